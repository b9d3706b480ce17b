"""Training from Python: by name or by objects, nothing of the caller's is changed; and the names that there are."""

import contextlib
import inspect
import io
import itertools
import json
import random
import re
import subprocess
import sys
import textwrap
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import reverie
from corridor_env import Corridor
from reverie.agent.loading import load
from reverie.algos.dreamer_v3 import DreamerV3Config
from reverie.algos.table import ALGORITHMS
from reverie.core.errors import ConfigError, RunError
from reverie.distributed.actor_collector import build_actor_collector
from reverie.distributed.launch import learner_share
from reverie.distributed.learners import make_learner_experiment
from reverie.distributed.team import LearnerGroup
from reverie.experiment import suggestions
from reverie.experiment.build import build
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.rules import validate_config
from reverie.log.jsonl import read_metrics
from tiny_configs import NETWORKS, SMALL, settings


def test_train_with_configuration_objects(tmp_path: Path) -> None:
    algo = DreamerV3Config(batch_size=2, batch_length=8, horizon=3).merge(NETWORKS)
    more = {key: value for key, value in SMALL.items() if key not in ("algo", "env")}
    result = reverie.train(algo, env=Corridor, run=tmp_path / "a", **more)
    assert load(result.run, env=Corridor).config.algo == algo
    assert (result.agent.config.algo, result.agent) == (algo, result.agent)
    assert Corridor().action_space.contains(result.agent.predict(Corridor().reset()[0])[0])
    config = ExperimentConfig().merge(SMALL)
    assert reverie.train(config, run=tmp_path / "b").reason == "finished"


def test_help_begins_with_lines_of_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    block = re.search(r"::\n\n((?: {4}.*\n|\n)+)", str(reverie.__doc__))
    assert block is not None
    code = textwrap.dedent(block[1])
    assert len([line for line in code.splitlines() if line]) == 8
    exec(code.replace("steps=50_000", "steps=256, eval_episodes=1, console=False, tensorboard=False"), {})
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def pytorch_settings() -> tuple[int, bool]:
    return torch.get_num_threads(), torch.backends.cudnn.benchmark


def test_pytorch_has_the_settings_of_a_run_within_it_alone(tmp_path: Path) -> None:
    within = []

    class Look(reverie.Callback):
        def on_start(self, run: Any) -> None:
            within.append(pytorch_settings())

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        config = settings(steps=1, eval_episodes=0, threads=1, cudnn_benchmark=True)
        reverie.train(config, run=tmp_path / "run", callbacks=(Look(),))
        assert (within[0], pytorch_settings()) == ((1, True), (3, False))
    finally:
        torch.set_num_threads(before)


class Drawing:
    """A sink that uses the generators that belong to nobody."""

    def write(self, values: Any, step: int) -> None:
        torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002

    def close(self) -> None:
        torch.manual_seed(0)


def test_a_training_leaves_the_generators_of_others_alone_and_the_other_way_round(tmp_path: Path) -> None:
    def weights(name: str, **more: Any) -> dict[str, torch.Tensor]:
        reverie.train(settings(steps=60, eval_episodes=0), run=tmp_path / name, **more)
        return load(tmp_path / name).algo.state_dict()

    def seed() -> None:
        torch.manual_seed(3), np.random.seed(3), random.seed(3)  # noqa: NPY002

    def drawn() -> list[float]:
        return [float(torch.rand(1)), float(np.random.rand()), random.random()]  # noqa: NPY002

    seed()
    expected = drawn()
    seed()
    alone = weights("alone")
    assert drawn() == expected
    beside = weights("beside", sinks=[Drawing()])
    torch.testing.assert_close(beside, alone, rtol=0, atol=0)


class Recorder(reverie.Callback):
    """Remembers what it is told."""

    told: typing.ClassVar[list[tuple[str, Any]]] = []

    def __init__(self, name: str = "object") -> None:
        self.name = name

    def on_start(self, run: reverie.TrainingRun) -> None:
        self.told.append((f"{self.name} start", (run.env_steps, run.updates, run.folder)))

    def on_log(self, run: reverie.TrainingRun, values: Any) -> None:
        self.told.append((f"{self.name} log", values["counters/env_steps"]))

    def on_evaluation(self, run: reverie.TrainingRun, values: Any) -> None:
        assert len(run.eval_env.call("spec")) == 2
        self.told.append((f"{self.name} evaluation", (run.env_steps, values["eval/episodes"])))

    def on_end(self, run: reverie.TrainingRun, result: reverie.TrainResult) -> None:
        assert result.evaluation is not None
        with pytest.raises(RunError, match=r"Load the agent: reverie\.load"):
            _ = result.agent
        run.log({"train/mine": 3.0})
        torch.save(run.algo, io.BytesIO())  # a learner in a run can be saved, as any module
        self.told.append((f"{self.name} end", (run.env_steps, run.updates, result.reason)))


def test_callbacks_are_called_in_order_and_named_ones_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "told", [])
    config, run = settings(schedule__eval_every=50, schedule__log_every=40, steps=90, env__num=1), tmp_path / "run"
    text = f"{__name__}:Recorder('text')"
    result = reverie.train(config, run=run, callbacks=[Recorder(), text])
    ends = [("start", (0, 0, run)), ("log", 40), ("evaluation", (50, 2)), ("log", 80), ("log", 90)]
    ends += [("end", (90, result.updates, "finished"))]
    assert Recorder.told == [(f"{name} {hook}", what) for hook, what in ends for name in ("text", "object")]
    assert load(run).config.callbacks == (text,)
    assert [row["train/mine"] for row in read_metrics(run / "metrics.jsonl") if "train/mine" in row] == [3.0, 3.0]


@pytest.mark.parametrize(("given", "message"), [
    (Recorder, r"Recorder'>: expected Recorder\(\.\.\.\), an object"),
    (print, "expected an object derived from reverie.Callback"),
    ("Recorder", "'Recorder': expected module:Class"),
    (f"{__name__}:Recordr", "no subclass of Callback .* Did you mean 'Recorder'"),
    (f"{__name__}:Recorder(nam=1)", r"unexpected keyword argument 'nam'. Expected Recorder\(name"),
])  # fmt: skip
def test_what_is_no_callback_is_refused_before_anything_is_written(given: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        reverie.train(settings(steps=60), run=tmp_path / "run", callbacks=[given])
    assert not (tmp_path / "run").exists()


def test_objects_do_not_reach_the_processes_of_seeds(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"callbacks = .*Recorder.*: each run has its own process, .* 'module:Class"):
        reverie.train_seeds(settings(steps=60), run=tmp_path / "run", callbacks=[Recorder()])


@pytest.mark.parametrize(("members", "message"), [
    ({"on_eval": print}, "on_eval would never be called. Did you mean 'on_evaluation'"),
    ({"state_dict": dict}, "define both state_dict and load_state_dict"),
])  # fmt: skip
def test_a_callback_with_a_mistake_is_told_at_once(members: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        type("Mine", (reverie.Callback,), members)


def test_a_state_that_no_checkpoint_can_hold_is_told_before_training(tmp_path: Path) -> None:
    kept = {"state_dict": lambda self: {"lock": object()}, "load_state_dict": print}
    with pytest.raises(RunError, match=r"cannot save callbacks/.*Kept 1/lock"):
        reverie.train(settings(steps=60), run=tmp_path / "run", callbacks=[type("Kept", (reverie.Callback,), kept)()])
    assert not (tmp_path / "run").exists()


def test_callbacks_cannot_reach_environments_of_other_processes(tmp_path: Path) -> None:
    acted = build(settings(actors=1), actors=build_actor_collector)
    several = make_learner_experiment(build(settings()), settings(), LearnerGroup(), tmp_path)
    several.team.count = 2
    for experiment, message in ((acted, "actors = 1: a callback cannot"), (several, "learners = 2: callbacks run in")):
        with contextlib.closing(experiment), pytest.raises(RunError, match=message):
            experiment.callback_env("training")
    assert acted.callback_env("evaluation") is acted.envs.evaluation
    several.team.rank = 1
    patient = settings(patience=3, schedule__eval_every=20, env__num=2)
    validate_config(patient.merge(learner_share(patient, several.team)))  # evaluates nothing itself


def test_two_trainings_at_once_are_refused(tmp_path: Path, said: list[str]) -> None:
    class Nested(Drawing):
        def write(self, values: Any, step: int) -> None:
            reverie.train(settings(steps=60), run=tmp_path / "inner")

    reverie.train(settings(steps=60), run=tmp_path / "outer", sinks=[Nested()])
    assert any("Nested cannot write: RunError: another training run is active in this process" in line for line in said)
    assert not (tmp_path / "inner").exists()
    reverie.train(settings(steps=60, eval_episodes=0), run=tmp_path / "next")  # once it is over


@pytest.mark.parametrize(("name", "tasks"), [
    ("sac", ["cheetah", "cheetah_run", "hopper", "reacher_easy", "walker", "walker_walk"]),
    ("dqn", ["asterix", "breakout", "door_key", "key_corridor"]),
])  # fmt: skip
def test_the_reasons_of_suggestions_are_measured(name: str, tasks: list[str]) -> None:
    bench = Path(__file__).parents[2] / "bench"
    means: dict[tuple[str, str], list[float]] = {}
    rows = json.loads((bench / "sample_efficiency.json").read_text())["rows"]
    for task, method in itertools.product(tasks, (name, "ppo")):
        values = [[row[x] for x in ("score", "cpu_seconds", "steps")] for row in rows
                  if (row["task"], row["method"]) == (task, method)]  # fmt: skip
        means[task, method] = np.mean(values, 0).tolist()
    assert all(means[task, name][2] == means[task, "ppo"][2] for task in tasks)
    better = sum(means[task, name][0] > means[task, "ppo"][0] for task in tasks)
    assert f"in {better} of {len(tasks)} tasks" in suggestions.REASONS[name]
    ratios = [means[task, name][1] / means[task, "ppo"][1] for task in tasks]
    low, high = {"five to fourteen times": (5, 14), "three to eleven times": (3, 11)}[
        re.findall(r"for (.*) the processor time", suggestions.REASONS[name])[0]
    ]
    assert low <= min(ratios) <= max(ratios) <= high
    defaults = json.loads((bench / "defaults.json").read_text())
    for task in defaults["tasks"]:
        scores = [row["score"] for row in defaults["rows"] if row["task"] == task["task"] and row["algorithm"] == "ppo"
                  and row["library"] == "reverie" and row["steps"] == suggestions.MAX_STEPS["ppo"]]  # fmt: skip
        assert np.mean(scores) > task["random"], task


def test_check_env_suggests_what_suits_the_spaces() -> None:
    """Without a preset for the environment, quick learners where there are no images; with one, its own."""
    for name, env in {"sac": "Pendulum-v1", "dqn": "FrozenLake-v1", "dreamer_v3": "CartPole-v1"}.items():
        fast, thorough = reverie.check_env(env, steps=50).starts
        assert (fast.algorithm, fast.steps, thorough.algorithm) == ("ppo", 50_000, name)
        assert (fast.reason.split(":")[0], thorough.reason.split(":")[0]) == ("fast", "thorough")
    assert thorough.steps == 8000  # of the preset
    (start,) = reverie.check_env("Pendulum-v1", algorithm="td3", steps=50).starts
    assert start == ("td3", 15_000, "")
    report = reverie.check_env(Corridor, env_options={"max_episode_steps": 4}, steps=50)
    assert (report.algorithm, max(report.measurements["lengths"]) <= 4) == ("dreamer_v3", True)


@pytest.mark.parametrize(
    ("algorithm", "env", "low", "wide"),
    [
        ("c51", "CartPole-v1", {"v_min": -0.1, "v_max": 0.1}, {"v_min": 0.0, "v_max": 100.0}),
        pytest.param("simba_v2", "Pendulum-v1", {"max_value": 0.1}, {"max_value": 2000.0}, marks=pytest.mark.nightly),
    ],
)
def test_returns_outside_of_the_atoms(
    tmp_path: Path, said: list[str], algorithm: str, env: str, low: dict[str, float], wide: dict[str, float]
) -> None:
    """One warning in a run, and one by check_env; none where they fit."""
    options = {"eval_episodes": 0, "learning_starts": 20, "random_steps": 20, "schedule.log_every": 30, "envs": 1}
    for atoms, times in ((low, 1), (wide, 0)):
        widths = {"units": [16]} | ({"critic_units": [16]} if env == "Pendulum-v1" else {})
        algo = {"reward_scale": None, "batch_size": 8, "networks": widths, **atoms}
        (tmp_path / "algo.yaml").write_text(json.dumps({"algo": algo}))
        reverie.train(algorithm, env, config=tmp_path / "algo.yaml", run=tmp_path / str(times), steps=120, **options)
        report = reverie.check_env(env, algorithm=algorithm, config=tmp_path / "algo.yaml", steps=400)
        texts = [line for line in said if "targets pile up" in line]
        assert len(texts) == [finding.name for finding in report.findings].count("atoms") == times
        assert all("-0.1 to 0.1: targets pile up at the outermost atom" in text for text in texts)
        assert all(f"Raise algo.{[*low][-1]}" in text for text in texts)
        said.clear()


# ---------------------------------------------------------------- names


def test_each_name_is_documented() -> None:
    for name in reverie.__all__:
        assert getattr(reverie, name).__doc__, name


@pytest.mark.parametrize("name", ["load", "train", "train_seeds", "dream", "estimate_return", "extract"])
def test_what_functions_return_is_there(name: str) -> None:
    assert typing.get_type_hints(getattr(reverie, name))["return"].__name__ in reverie.__all__


def test_the_settings_of_each_algorithm_are_there() -> None:
    for entry in ALGORITHMS:
        module, _, name = entry.target.partition(":")
        assert getattr(reverie, name).__module__ == module


def test_dir_lists_public_names_alone() -> None:
    assert [name for name in dir(reverie) if not name.startswith("__")] == sorted(reverie.__all__)
    assert "__version__" in dir(reverie)
    assert reverie.__version__.count(".") >= 1
    with pytest.raises(AttributeError, match="attribute 'trian'"):
        _ = reverie.trian


def test_the_common_arguments_of_train_are_in_its_signature_and_docstring() -> None:
    parameters = {name: p for name, p in inspect.signature(reverie.train).parameters.items() if name != "overrides"}
    assert {"steps", "seed", "envs", "run", "device", "replay_ratio", "data", "eval_episodes"} <= parameters.keys()
    assert all(f"        {name}: " in str(reverie.train.__doc__) for name in parameters)


def test_importing_reverie_imports_nothing_heavy() -> None:
    code = "import sys, reverie; sys.exit(any(name in sys.modules for name in ('torch', 'gymnasium', 'reverie.api')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
