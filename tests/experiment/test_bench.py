"""``reverie bench``: what is counted and measured, and what people type and read."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from reverie.algos.base import Algorithm
from reverie.algos.dreamer_v3 import DreamerV3, DreamerV3Config, with_size
from reverie.algos.settings import AlgorithmConfig
from reverie.cli import main
from reverie.cli.bench import BenchCommand, make_request
from reverie.core import hardware
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Window
from reverie.envs.config import EnvConfig
from reverie.envs.dummy import Count
from reverie.envs.slot_vector_env import make_vector_env
from reverie.experiment import bench
from reverie.experiment.bench import env_rate, noise_batch
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.settings import merge_layers
from tiny_configs import NETWORKS

VECTOR = {"vector": ObsPart(kind="vector", shape=(24,), dtype="float32")}
MIXED = {
    "camera": ObsPart(kind="image", shape=(16, 16, 3), dtype="uint8"),
    "depth": ObsPart(kind="image", shape=(16, 16, 1), dtype="float32", low=-1.0, high=1.0),
    "words": ObsPart(kind="categorical", shape=(2,), dtype="int64", classes=(3, 3)),
    **VECTOR,
}
TURNS = ActionSpec(parts={"action": ActionPart(kind="continuous", size=6)})
CHOICES = ActionPart(kind="categorical", classes=(2, 3))
BOTH = ActionSpec(parts={"a": CHOICES, "b": ActionPart(kind="continuous", size=2)})
TINY = DreamerV3Config().merge({"batch_size": 2, "batch_length": 8, "horizon": 3, **NETWORKS})
CPU = torch.device("cpu")


class Ticks:
    """A clock that moves on by a given time whenever it is looked at."""

    def __init__(self, *steps: float) -> None:
        self.now, self.steps = 0.0, list(steps)

    def __call__(self) -> float:
        self.now += self.steps.pop(0) if self.steps else 0.0
        return self.now


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matrices, and hardly any repetitions."""
    monkeypatch.setattr(hardware, "CPU_SIZES", (32,))
    monkeypatch.setattr(bench, "benchmark", functools.partial(bench.benchmark, seconds=0.01))
    monkeypatch.setattr(bench, "env_rate", functools.partial(env_rate, seconds=0.01))


def settings_of(command: BenchCommand) -> ExperimentConfig:
    """The settings that are measured."""
    return merge_layers(make_request(command))


def weights(*modules: torch.nn.Module) -> int:
    """Numbers that are multiplied for one row."""
    return sum(p.numel() for module in modules for p in module.parameters() if p.ndim > 1)


def test_operations_of_an_update_are_those_of_its_equations() -> None:
    """Two for each weight and row forwards, four backwards; nothing backwards through the imagination."""
    config = with_size("1m").merge({"batch_length": 16, "horizon": 5})
    with torch.device("meta"):
        learner = DreamerV3(VECTOR, TURNS, config, torch.device("meta"))
    world, actor, critic = learner.world, learner.actor, learner.critic
    lived = config.batch_size * config.batch_length
    imagined = lived * config.horizon
    dynamics = weights(world.rssm) - weights(world.rssm.posterior)
    expected = 6 * lived * (weights(world) + weights(critic)) + 2 * lived * weights(critic)
    expected += imagined * (2 * dynamics + 8 * weights(actor) + 8 * weights(critic))
    expected += 2 * imagined * weights(world.reward, world.cont)
    assert bench.gflop(config, VECTOR, TURNS) == pytest.approx(expected / 1e9, rel=0.15)


class PeeksConfig(AlgorithmConfig):
    """Builds :class:`Peeks`."""

    def build(self, obs_spec: Any, action_spec: Any, device: str = "cpu", seed: int = 0) -> Algorithm:
        return Peeks()


class Peeks(Algorithm):
    """An algorithm that reads numbers while it learns, which tensors without memory do not have."""

    window, extra_spec = Window(batch=2, length=4), {}

    def update(self, batch: Any) -> Any:
        return torch.ones(()).item()


def test_what_cannot_be_counted_is_none() -> None:
    assert bench.gflop(PeeksConfig(), VECTOR, TURNS) is None


def test_median_is_of_the_calls_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    # begin, then for each call: is there time, start, end (the first look of all finds none)
    monkeypatch.setattr(bench.time, "perf_counter", Ticks(0, 0, 5, 0, 1, 0, 3))
    assert bench.median_seconds(lambda: calls.append(1), CPU, warm_up=2, seconds=0, min_calls=3, max_calls=9) == 3
    assert len(calls) == 5


def test_rate_of_environments_counts_decisions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_vector_env(EnvConfig(num=2), seed=0, factory=functools.partial(Count, truncate_at=3))
    looks = [0.0] + [1.0] * 8 + [1e9]  # eight turns a second: two episodes of three decisions and an end
    clock = Ticks(*looks)
    monkeypatch.setattr(bench.time, "perf_counter", clock)
    rate = env_rate(env, seconds=8.5)
    env.close()
    assert rate * clock.now == pytest.approx(2 * 6)


def some_speed(**changes: Any) -> bench.Speed:
    values = {"parameters": 1, "first_update_s": 1.0, "update_s": 1.0, "rows_per_s": 1.0, "act_ms": {1: 1.0}}
    return bench.Speed(**{**values, "peak_gb": 1.0, "device_peak_gb": None, "gflop": 50.0, **changes})


@pytest.mark.parametrize(("precision", "changes", "share"), [
    ("float32", {"update_s": 2.0}, 0.25),
    ("bfloat16", {}, 0.125),
    ("float16", {}, None),
    ("float32", {"gflop": None}, None),
])  # fmt: skip
def test_share_is_of_the_rate_of_the_same_precision(precision: str, changes: dict[str, Any], share: Any) -> None:
    rates = {"float32": 100.0, "bfloat16": 400.0}
    report = bench.Report(speed=some_speed(**changes), env_steps_per_s=None, precision=precision, matrix_gflops=rates)
    assert report.matrix_rate_share == share


@pytest.mark.usefixtures("quick")
def test_measuring_a_learner_of_everything() -> None:
    report = bench.benchmark(ExperimentConfig(algo=TINY, device="cpu", env=EnvConfig(num=3)), MIXED, BOTH)
    speed = report.speed
    assert (speed.parameters, [*speed.act_ms]) == (TINY.build(MIXED, BOTH).optim.count, [1, 3, 8])
    assert speed.rows_per_s == pytest.approx(16 / speed.update_s)
    assert speed.device_peak_gb is None
    assert 0.05 < speed.peak_gb < 50
    assert report.matrix_rate_share > 0
    assert (report.env_steps_per_s, report.machine["threads"]) == (None, torch.get_num_threads())


@pytest.mark.parametrize(("args", "message"), [
    (["--batch", "8"], "--batch = '8': expected windows x rows, such as 16x64."),
    (["--precision", "float64"], "bfloat16"),
])  # fmt: skip
def test_mistakes_are_explained(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *args]) == 2
    assert message in re.sub(r"[\s│]+", " ", capsys.readouterr().err)


def test_float16_is_for_gpus() -> None:
    config = ExperimentConfig(algo=TINY.merge({"precision": "float16"}), device="cpu")
    with pytest.raises(ConfigError, match=r"precision = 'float16' on a CPU.*: expected a GPU\. Use bfloat16 or"):
        bench.benchmark(config, MIXED, BOTH)


def test_settings_are_those_that_train_would_have() -> None:
    named = settings_of(BenchCommand(env="CartPole-v1"))
    assert (named.env.num, named.algo) == (4, settings_of(BenchCommand(preset="cartpole")).algo)
    said = BenchCommand(batch="2x4", precision="bfloat16", envs=5, threads=3, size="1m")
    config = settings_of(said)
    assert (config.algo.batch_size, config.algo.batch_length, config.algo.precision) == (2, 4, "bfloat16")
    assert (config.env.num, config.threads, config.algo.rssm) == (5, 3, with_size("1m").rssm)


@pytest.mark.usefixtures("quick")
def test_a_report_from_words_to_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment is timed, too, and closed."""
    closed = []

    def make(config: EnvConfig, *, seed: int) -> Any:
        env = make_vector_env(config, seed=seed)
        close = env.close
        monkeypatch.setattr(env, "close", lambda: (closed.append(True), close()))
        return env

    monkeypatch.setattr("reverie.envs.slot_vector_env.make_vector_env", make)
    path = tmp_path / "report.json"
    words = ["--env", "reverie/Grid-v0", "--size", "nano", "--batch", "2x4", "--envs", "2"]
    assert main(["bench", *words, "--threads", "1", "--device", "cpu", "--json", str(path)]) == 0
    text, pieces = capsys.readouterr().out, ("parameters", "update", "GFLOP/s", "of the float32 rate")
    assert all(piece in text for piece in (*pieces, "on reverie/Grid-v0", "for 2 envs", "steps/s"))
    assert closed == [True]
    values = json.loads(path.read_text())
    rate = values["matrix_gflops"]["float32"]
    assert values["share"] == pytest.approx(values["speed"]["gflop"] / values["speed"]["update_s"] / rate)
    assert values["settings"]["algo"]["batch_length"] == 4
    assert values["machine"]["threads"] == 1


def test_noise_can_be_learned_from() -> None:
    learner = TINY.build(MIXED, BOTH)
    batch = noise_batch(learner, MIXED, BOTH)
    assert batch.shape == (2, learner.window.rows)
    assert batch.action[..., :2].sum(-1).eq(1).all()  # one-hot
    assert batch.extras["deter"].abs().max() <= 1
    assert all(torch.isfinite(value) for value in learner.update(batch).metrics.values())
