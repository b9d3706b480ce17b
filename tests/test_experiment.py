"""Experiments: settings that fit, one seed for everything, runs that end, go on and can be used."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
import torch
import yaml
from gymnasium import spaces

import reverie
from reverie import experiment as experiments
from reverie.agent import dreaming
from reverie.agent.agent import Agent
from reverie.agent.dreaming import dream, measure, one_hot, painted
from reverie.agent.evaluation import evaluate_run
from reverie.agent.loading import load
from reverie.agent.observer import Observer
from reverie.agent.recording import RecordConfig, play
from reverie.algos.dreamer_v3 import SIZES, DreamerV3, DreamerV3Config
from reverie.algos.td3 import TD3, TD3Config
from reverie.core.errors import ConfigError, DataError, EnvError, ReverieError, RunError
from reverie.core.machine import available_memory, choose_device
from reverie.core.randomness import RngState, derived_seeds, reproducible
from reverie.core.specs import ObsPart
from reverie.core.types import Batch, Window
from reverie.data.readers.detect import open_reader
from reverie.effect import OF_COLLECTING
from reverie.envs.base import EnvConfig, make_gym
from reverie.envs.dummy import Count
from reverie.envs.flat import make_flat
from reverie.envs.recorded import RecordedActions
from reverie.envs.spaces import ActionCodec
from reverie.experiment import ExperimentConfig, build
from reverie.log.sinks import read_metrics
from reverie.nn.encoder import EncoderConfig
from reverie.nn.exploration import EpsilonGreedy
from reverie.nn.rssm import Latent
from reverie.presets import base, layered
from reverie.training.messages import memory, say_nothing
from reverie.training.run import train
from shared_generators import Lucky, Paying, Shared
from tiny import NETWORKS, SETTINGS

CONFIG = ExperimentConfig().merge(SETTINGS)


def settings(**more: Any) -> ExperimentConfig:
    return CONFIG.merge({key.replace("__", "."): value for key, value in more.items()})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on CartPole; tests may read it."""
    run = tmp_path_factory.mktemp("runs") / "cartpole"
    train(settings(steps=200), run=run, say=say_nothing)
    return run


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replay_ratio": 0.5, "train_ratio": 32}, "Set only one of them"),
        ({"steps": 0}, "steps = 0: expected at least 1"),
        ({"seed": -1}, "seed = -1: expected at least 0"),
        ({"replay_ratio": -1}, r"replay_ratio = -1\.0: expected a finite number"),
        ({"train_ratio": float("nan"), "replay_ratio": None}, "train_ratio = nan"),
        ({"device": "gpu"}, "device = 'gpu': expected auto, cpu, cuda"),
        ({"stepz": 1}, "unknown option 'stepz'. Did you mean 'steps'"),
        ({"algo.horzon": 1}, "Did you mean 'algo.horizon'"),
    ],
)
def test_settings_that_cannot_be_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CONFIG.merge(values)


def test_train_ratio_is_replay_ratio_in_other_units() -> None:
    window = Window(batch=16, length=64, context=1)
    assert ExperimentConfig(train_ratio=512).ratio(window) == 0.5
    assert ExperimentConfig(replay_ratio=0.25).ratio(window) == 0.25
    assert ExperimentConfig().ratio(window) == experiments.DEFAULT_REPLAY_RATIO


def test_a_learner_that_could_never_start_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learning_starts = 999 windows.*learning would never start"):
        build(settings(learning_starts=999, replay__capacity=200))


def test_a_window_longer_than_the_replay_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"replay.capacity"):
        build(settings(replay__capacity=10))


def test_a_replay_larger_than_memory_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "available_memory", lambda: 20_000)
    with pytest.raises(ConfigError, match=r"need 0\.0 GB, but only 0\.0 GB of memory is available\. Lower it to \d+"):
        build(settings(steps=1000))
    build(settings(steps=10)).close()  # a run so short that it never fills its replay


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == "cpu"
    with pytest.raises(ConfigError, match="PyTorch sees 0 CUDA devices"):
        choose_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [choose_device(name) for name in ("auto", "cpu", "cuda:1")] == ["cuda", "cpu", "cuda:1"]


def test_memory_is_known_here() -> None:
    free = available_memory()
    assert free is None or free > 0


def test_memory_is_reserved_only_for_rows_that_can_come() -> None:
    small = build(settings(steps=50, replay__capacity=10**12))
    assert 50 <= small.replay.storage.capacity * small.replay.storage.streams <= 200
    small.close()


# ---------------------------------------------------------------- chance


def test_seeds_differ_and_only_some_move_with_the_start() -> None:
    first, again, later, other = derived_seeds(1), derived_seeds(1), derived_seeds(1, 500), derived_seeds(2)
    assert first == again
    assert len(set(first.values())) == len(first)
    assert all(first[name] == later[name] for name in ("algo", "evaluation", "test", "confirmation"))
    assert all(first[name] != later[name] for name in ("env", "replay", "collector", "global"))
    assert all(first[name] != other[name] for name in first)


def test_randomness_goes_on_where_it_was_saved() -> None:
    state = RngState().state_dict()
    expected = torch.rand(3)
    RngState().load_state_dict(state)
    assert torch.equal(torch.rand(3), expected)


def test_reproducible_leaves_no_trace() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with reproducible(3):
        inside = torch.rand(2)
    assert torch.equal(torch.rand(2), expected)
    with reproducible(3):
        assert torch.equal(torch.rand(2), inside)


def test_one_seed_is_one_run(tmp_path: Path) -> None:
    keep = ("loss/", "train/", "episode/", "counters/", "eval/")

    def run(name: str, seed: int) -> list[dict[str, float]]:
        train(settings(seed=seed, schedule__log_every=40), run=tmp_path / name, say=say_nothing)
        rows = read_metrics(tmp_path / name / "metrics.jsonl")
        return [{k: v for k, v in row.items() if k.startswith(keep)} for row in rows]

    first, again, other = run("a", 3), run("b", 3), run("c", 4)
    assert first == again
    assert first != other
    assert any("loss/reward" in row for row in first)


def test_evaluation_does_not_disturb_training(tmp_path: Path) -> None:
    def losses(name: str, every: int) -> dict[str, float]:
        train(settings(schedule__eval_every=every, schedule__log_every=0), run=tmp_path / name, say=say_nothing)
        rows = read_metrics(tmp_path / name / "metrics.jsonl")
        return next({k: v for k, v in row.items() if k.startswith("loss/")} for row in rows if "loss/reward" in row)

    assert losses("never", 0) == losses("often", 30)


def test_evaluation_does_not_disturb_an_environment_that_draws_from_everybodys_generators(tmp_path: Path) -> None:
    def rows(name: str, every: int) -> bytes:
        run = tmp_path / name
        more: dict[str, Any] = {
            "console": False,
            "tensorboard": False,
            "eval_episodes": 1,
            "schedule.eval_every": every,
        }
        reverie.train(
            "td3", env=Shared, run=run, steps=60, learning_starts=10**5, random_steps=5, say=say_nothing, **more
        )
        return b"".join(part["obs/observation"].tobytes() for part in open_reader(str(run)).parts())

    assert rows("never", 0) == rows("often", 20)


# ---------------------------------------------------------------- runs


def test_a_run_leaves_its_files(trained: Path) -> None:
    saved = yaml.safe_load((trained / "config.yaml").read_text())
    assert saved["schema"] == 1
    assert saved["algorithm"] == "dreamer_v3"
    assert saved["experiment"]["env"]["id"] == "CartPole-v1"
    assert ExperimentConfig().merge(saved["experiment"]) == settings(steps=200)
    evaluation = json.loads((trained / "eval.json").read_text())
    assert len(evaluation["scores"]) == 2
    assert evaluation["score"]["mean"] == pytest.approx(np.mean(evaluation["scores"]))
    assert evaluation["actions"] == "mode"
    rows = read_metrics(trained / "metrics.jsonl")
    assert rows[-1]["eval/score"] == evaluation["score"]["mean"]
    assert {"loss/reward", "counters/updates", "time/env_steps_per_second"} <= set().union(*rows)
    assert (trained / "curve.png").stat().st_size > 1000
    assert [path.name for path in (trained / "checkpoints").glob("step-*")]
    assert not list(trained.rglob("*.part*"))


def test_threads_are_those_of_before_afterwards(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        reverie.train(settings(steps=1, eval_episodes=0, threads=1), run=tmp_path / "run", say=say_nothing)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_result_says_what_happened(tmp_path: Path) -> None:
    said: list[str] = []
    result = train(settings(), run=tmp_path / "run", say=said.append)
    assert result.reason == "finished"
    assert result.env_steps >= 120
    assert result.updates > 0
    assert result.evaluation is not None
    assert set(result.files) == {"settings", "metrics", "curve", "evaluation", "checkpoint"}
    assert all(path.exists() for path in result.files.values())
    assert "parameters on cpu" in said[0]
    assert "GB" in said[0]


def test_an_existing_run_is_continued(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    before = read_metrics(run / "metrics.jsonl")
    said: list[str] = []
    result = train(settings(steps=300), run=run, say=said.append)
    assert "continuing" in said[0]
    assert result.env_steps >= 300
    rows = read_metrics(run / "metrics.jsonl")
    assert rows[: len(before)] == before
    updates = [row["counters/updates"] for row in rows if "counters/updates" in row]
    assert updates == sorted(updates)
    assert updates[-1] > before[-2]["counters/updates"] > 0


def test_another_precision_goes_on_with_the_stored_latents(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    before = np.load(max((run / "checkpoints").glob("*/replay/deter.npy")))
    train(settings(algo__precision="bfloat16", steps=220, replay_ratio=0.05), run=run, say=say_nothing)
    after = np.load(max((run / "checkpoints").glob("*/replay/deter.npy")))[:, : before.shape[1]]
    assert after.dtype == np.float16
    assert (after == before.astype(np.float16)).mean() > 0.5  # the others were updated


def test_a_run_that_had_all_its_steps_says_so(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    said: list[str] = []
    train(settings(steps=200), run=tmp_path / "run", say=said.append)
    assert any("already" in text for text in said)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"env__id": "Acrobot-v1"}, r"contains a run with environment 'CartPole-v1', not 'Acrobot-v1'"),
        (
            {"algo__rssm__deter": 64},
            r"begun with other settings: algo\.rssm\.deter: \d+ -> 64\. .* does not fit these settings: .*mismatch",
        ),
    ],
)
def test_another_runs_folder_is_left_alone(trained: Path, tmp_path: Path, more: dict[str, Any], message: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ReverieError, match=message):
        train(settings(**more), run=run, say=say_nothing)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match=r"not empty and is not a run"):
        train(settings(), run=tmp_path, say=say_nothing)
    with pytest.raises(RunError, match=r"is a file"):
        train(settings(), run=tmp_path / "thesis.tex", say=say_nothing)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


class Unsavable(DreamerV3):
    def extra_state(self) -> dict[str, Any]:
        return {**super().extra_state(), "draws": [random.Random(0)]}


@dataclass(frozen=True, kw_only=True)
class UnsavableConfig(DreamerV3Config):
    """Settings of a learner whose state no checkpoint can hold."""


UnsavableConfig.learner = Unsavable


def test_a_state_that_no_checkpoint_can_hold_is_told_before_the_first_step(tmp_path: Path) -> None:
    algo = UnsavableConfig().merge(SETTINGS["algo"])
    with pytest.raises(RunError, match=r"cannot save algo/draws/0: .* not Random\.$"):
        train(settings().merge({"algo": algo}), run=tmp_path / "run", say=say_nothing)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "more",
    [{"env__id": "CartPole-v99"}, {"replay__capacity": 10}, {"learning_starts": 5000}, {"algo__rssm__deter": 33}],
)
def test_nothing_is_created_before_everything_was_checked(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, EnvError)):
        train(settings(**more), run=tmp_path / "run", say=say_nothing)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [("schema: 99\nalgorithm: dreamer_v3\nexperiment: {}\n", "schema 99"), ("steps: 3\n", "has no schema, algorithm")],
)
def test_a_config_of_another_time_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(RunError, match=message):
        load(tmp_path)


# ---------------------------------------------------------------- environments from Python


class Corridor(gymnasium.Env[Any, Any]):
    """An image, a vector and a class; ends after nine steps."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Dict(
            eye=gymnasium.spaces.Box(0, 255, (6, 5, 4), np.uint8),
            sense=gymnasium.spaces.Dict(
                x=gymnasium.spaces.Box(-1, 1, (3,), np.float32), n=gymnasium.spaces.Discrete(3)
            ),
        )
        self.action_space = gymnasium.spaces.Dict(
            go=gymnasium.spaces.Discrete(2, start=1), turn=gymnasium.spaces.Box(-2.0, 4.0, (1,), np.float32)
        )

    def _obs(self) -> dict[str, Any]:
        eye = np.zeros((6, 5, 4), np.uint8)
        eye[self.t % 6, :, self.t % 4] = 255
        return {"eye": eye, "sense": {"x": np.full(3, self.t / 10, np.float32), "n": self.t % 3}}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.t += 1
        return self._obs(), 1.0, self.t == 9, False, {}


SMALL = {**SETTINGS, "steps": 60, "learning_starts": 5}


@pytest.fixture(scope="module")
def corridor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on an environment that was given as a class."""
    run = tmp_path_factory.mktemp("runs") / "corridor"
    config = ExperimentConfig().merge(SMALL).merge({"env.id": "Corridor"})
    train(config, env=Corridor, run=run, say=say_nothing)
    return run


def test_an_instance_is_trained_on_and_evaluated_at_the_end(tmp_path: Path) -> None:
    config = ExperimentConfig().merge(SMALL).merge({"env.num": 1, "env.id": "Corridor"})
    result = train(config, env=Corridor(), run=tmp_path / "run", say=say_nothing)
    assert result.evaluation is not None
    assert result.evaluation.scores == [9.0, 9.0]


class Paid(gymnasium.Env[Any, Any]):
    """Each step earns 5; an episode has four of them."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    closed = False

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.t, self.lock = 0, threading.Lock()  # which cannot be copied
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.zeros(2, np.float32), 5.0, self.t == 4, False, {}

    def close(self) -> None:
        self.closed = True


def test_an_instance_has_its_true_rewards_and_stays_open(tmp_path: Path) -> None:
    env = Paid()
    clipped = settings(steps=20, env__num=1, env__clip_reward="sign", eval_episodes=2)
    result = train(clipped, env=env, run=tmp_path / "run", say=say_nothing)
    assert result.evaluation is not None
    assert result.evaluation.scores == [20.0, 20.0]  # never clipped where agents are judged
    agent = reverie.load(tmp_path / "run", env=env)
    assert agent.evaluate(3).scores == [20.0] * 3
    assert not env.closed
    with pytest.raises(TypeError, match=r"is an instance.*cannot be pickled.*reverie.load in the other pro"):
        pickle.dumps(agent)
    assert copy.deepcopy(agent).evaluate(1).scores == [20.0]
    with pytest.raises(ConfigError, match=r"actions = 'modes'.*mode, sample.*Did you mean 'mode'"):
        agent.evaluate(1, actions="modes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="actions = 3"):
        agent.act(np.zeros(2, np.float32), actions=3)  # type: ignore[arg-type]


class Wider(Paid):
    """Shows more numbers the more environments there are; counts those that are open."""

    made = open = 0

    def __init__(self) -> None:
        Wider.made, Wider.open = Wider.made + 1, Wider.open + 1
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2 + Wider.made // 2,), np.float32)

    def close(self) -> None:
        Wider.open -= 1


class Alone(Paid):
    """A simulator that can run only once."""

    running = False

    def __init__(self) -> None:
        if Alone.running:
            raise OSError("port in use")
        Alone.running = True

    def close(self) -> None:
        Alone.running = False


def test_where_only_one_can_run_evaluations_are_named() -> None:
    config = settings(env__num=1, eval_envs=1, schedule__eval_every=0)
    message = r"port in use.*\)\. This was an environment for evaluations; .* set eval_episodes = 0 and"
    with pytest.raises(EnvError, match=message):
        build(config, env=Alone)
    assert not Alone.running
    build(config.merge({"eval_episodes": 0}), env=Alone).close()
    assert not Alone.running


def test_other_spaces_in_evaluations_are_told_at_the_start() -> None:
    message = r"vector \(2,\) in the training environments, but \(3,\) in those for evaluations: expected the same"
    with pytest.raises(EnvError, match=message):
        build(settings(env__num=1, eval_envs=1), env=Wider)
    assert Wider.open == 0


@pytest.mark.parametrize("env", [3, gymnasium.make_vec("CartPole-v1", num_envs=2)])
def test_what_is_no_environment_is_refused(env: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"env = .*expected an environment id, a function that makes an environment, or a single"
    ):
        build(settings(), env)


class Module(torch.nn.Module):
    def reset(self) -> None: ...

    def step(self, action: Any) -> None: ...


def test_an_environment_of_another_library_is_no_function_that_makes_one() -> None:
    with pytest.raises(ConfigError, match=r"^env is a test_experiment\.Module: expected a gymnasium\.Env\. Wrap env"):
        build(settings(), Module())  # type: ignore[arg-type]


@pytest.mark.parametrize(("every", "wanted"), [(0, False), ("0", False), ("0.0", False), ("0s", False), ("5m", True)])
def test_never_is_never_in_any_unit(every: int | str, wanted: bool) -> None:
    assert settings(schedule__eval_every=every, eval_episodes=1).evaluates_on_the_way == wanted


def test_an_instance_cannot_be_two() -> None:
    with pytest.raises(ConfigError, match=r"env\.num = 2.*Pass a function"):
        build(ExperimentConfig().merge(SMALL), env=Corridor())
    with pytest.raises(ConfigError, match=r"eval_every = 5: evaluations during training need a second environment"):
        build(ExperimentConfig().merge(SMALL).merge({"env.num": 1, "schedule.eval_every": 5}), env=Corridor())


def test_an_environment_from_python_must_be_given_again(corridor: Path) -> None:
    with pytest.raises(RunError, match=r"trained with env = Corridor.*reverie\.load\(run, env=\.\.\.\)"):
        load(corridor)


@dataclass(frozen=True, kw_only=True)
class OwnEncoderConfig(EncoderConfig):
    """An encoder of the user's."""

    depth: int = 2
    units: int = 12
    layers: int = 1


def test_an_own_encoder_must_be_given_again(tmp_path: Path) -> None:
    algo = CONFIG.algo.merge({"encoder": OwnEncoderConfig()})
    train(settings(steps=60).merge({"algo": algo}), run=tmp_path / "run", say=say_nothing)
    with pytest.raises(RunError, match=r"algo\.encoder = .*OwnEncoderConfig.*algo=\.\.\."):
        load(tmp_path / "run")
    agent = load(tmp_path / "run", algo=algo)  # type: ignore[arg-type]
    assert agent.config.algo == algo


def test_a_finished_run_says_what_it_has_not_learned_with(tmp_path: Path) -> None:
    said: list[str] = []
    train(settings(steps=60, eval_episodes=0), run=tmp_path / "run", say=say_nothing)
    train(settings(steps=60, eval_episodes=0, console=False), run=tmp_path / "run", say=said.append)
    assert not [line for line in said if "learned" in line]
    other = settings(steps=60, eval_episodes=0, algo__horizon=7, replay_ratio=0.75)
    train(other, run=tmp_path / "run", say=said.append)
    assert any(
        "has not used these changed settings: replay_ratio: " in line and "algo.horizon" in line for line in said
    )


class Drawing:
    """A sink that uses the generators that belong to nobody."""

    def write(self, values: Any, step: int) -> None:
        torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002

    def close(self) -> None:
        torch.manual_seed(0)


def test_a_training_leaves_the_generators_of_others_alone_and_the_other_way_round(tmp_path: Path) -> None:
    def weights(name: str, **more: Any) -> dict[str, torch.Tensor]:
        reverie.train(settings(steps=60, eval_episodes=0), run=tmp_path / name, say=say_nothing, **more)
        return load(tmp_path / name).algo.state_dict()

    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    expected = [float(torch.rand(1)), float(np.random.rand()), random.random()]  # noqa: NPY002
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    alone = weights("alone")
    assert [float(torch.rand(1)), float(np.random.rand()), random.random()] == expected  # noqa: NPY002
    beside = weights("beside", sinks=[Drawing()])
    torch.testing.assert_close(beside, alone, rtol=0, atol=0)


def test_two_trainings_at_once_are_refused(tmp_path: Path) -> None:
    class Nested(Drawing):
        def write(self, values: Any, step: int) -> None:
            reverie.train(settings(steps=60), run=tmp_path / "inner", say=say_nothing)

    said: list[str] = []
    reverie.train(settings(steps=60), run=tmp_path / "outer", say=said.append, sinks=[Nested()])
    assert any("Nested failed: RunError: another training is running in this process" in line for line in said)
    assert not (tmp_path / "inner").exists()
    reverie.train(settings(steps=60, eval_episodes=0), run=tmp_path / "next", say=say_nothing)  # once it is over


def test_a_single_file_of_settings_and_numbers_of_numpy(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("replay_ratio: 0.125")
    made = reverie.api.settings_of(CONFIG, None, None, None, (), {"seed": np.int64(4)})
    assert made.seed == 4
    assert type(made.seed) is int
    made = reverie.api.settings_of(
        "dqn", "CartPole-v1", None, None, str(tmp_path / "mine.yaml"), {"steps": np.int64(4)}
    )
    assert (made.replay_ratio, made.steps) == (0.125, 4)


OWN_ESTIMATOR = """
from dataclasses import dataclass
from reverie.objectives.estimators import OneRow

@dataclass(frozen=True)
class Further(OneRow):
    by: int = 2

    def steps(self, rows):
        return self.by
"""


def test_an_own_value_estimator_in_a_module_is_found_again(tmp_path: Path) -> None:
    (tmp_path / "own_estimators.py").write_text(OWN_ESTIMATOR)
    flags = "--env Pendulum-v1 --algo.batch-length 4 --algo.networks.units 8 8 --steps 250 --learning-starts 200 "
    flags += "--random-steps 200 --eval-episodes 0 --no-tensorboard --algo.value-estimator own_estimators:Further(by=3)"

    def reverie(*words: str, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "reverie", *words]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)

    made = reverie("train", "ddpg", *flags.split(), "--run", str(tmp_path / "run"))
    assert made.returncode == 0, made.stderr
    assert "value_estimator: own_estimators:Further(by=3)" in (tmp_path / "run" / "config.yaml").read_text()
    on = reverie("train", "--resume", str(tmp_path / "run"), "--steps", "260")
    assert on.returncode == 0, on.stderr
    elsewhere = reverie("eval", str(tmp_path / "run"), cwd=tmp_path / "run")
    assert elsewhere.returncode == 1
    assert "module 'own_estimators' cannot be imported" in elsewhere.stderr
    assert "PYTHONPATH" in elsewhere.stderr


# ---------------------------------------------------------------- using an agent


def test_what_an_agent_is_can_be_read(trained: Path) -> None:
    agent = load(trained)
    assert repr(agent) == f"Agent(dreamer_v3 in CartPole-v1, from {agent.checkpoint})"
    with pytest.raises(RunError, match="run = 3: expected the path of a run folder"):
        load(3)  # type: ignore[arg-type]


def test_act_on_one_observation(trained: Path) -> None:
    agent = load(trained)
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    state, done, actions = None, False, []
    while not done:
        action, state = agent.act(obs, state)
        assert env.action_space.contains(action)
        actions.append(action)
        obs, _, terminated, truncated, _ = env.step(action)
        done = terminated or truncated
    assert len(actions) >= 8


def test_an_agent_is_told_which_action_was_executed_instead(trained: Path) -> None:
    agent = load(trained)
    _, state = agent.act(np.zeros((3, 4), np.float32))
    told = agent.override(state, np.array([1, 0, 1]))
    assert told.policy.action.tolist() == [[0, 1], [1, 0], [0, 1]]
    assert told.policy.latent is state.policy.latent
    _, state = agent.act(np.zeros(4, np.float32))
    assert agent.override(state, 1).policy.action.tolist() == [[0, 1]]
    assert agent.override(state, np.array([0])).policy.action.tolist() == [[1, 0]]
    with pytest.raises(DataError, match=r"action = 'left': expected an action of Discrete\(2\)"):
        agent.override(state, "left")
    with pytest.raises(DataError, match=r"action = \[0, 1\]: expected an action of Discrete\(2\)"):
        agent.override(state, [0, 1])
    with pytest.raises(DataError, match=r"action 'action' of row 0 is 7"):
        agent.override(state, 7)


def test_an_agent_is_told_of_actions_of_any_space(trained: Path) -> None:
    agent = load(trained)
    _, state = agent.act(np.zeros((2, 4), np.float32))
    turn = spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiBinary(2)))
    agent.action_space = spaces.Dict({"push": spaces.Box(np.float32([-1, 0]), np.float32([3, 10])), "turn": turn})
    agent._encode, decode = RecordedActions(agent.action_space), ActionCodec(agent.action_space)
    push, bits = np.float32([[2, 5], [-1, 10]]), np.int8([[0, 1], [1, 1]])
    told = agent.override(state, {"push": push, "turn": (np.array([3, 1]), bits)}).policy.action
    assert told[:, :2].tolist() == [[0.5, 0.0], [-1.0, 1.0]]
    for number, flat in enumerate(told.numpy()):
        action = decode(flat)
        np.testing.assert_allclose(action["push"], push[number])
        assert action["turn"][0] == (3, 1)[number]
        assert action["turn"][1].tolist() == bits[number].tolist()
    with pytest.raises(DataError, match=r"expected a batch of 2 actions of Dict"):
        agent.override(state, {"push": push})
    with pytest.raises(DataError, match=r"is nan|NaN|finite"):
        agent.override(state, {"push": push * np.nan, "turn": (np.array([3, 1]), bits)})


def test_actions_that_a_recording_replaces_are_told_to_the_agent(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, known = load(trained), []
    act = Agent.act

    def watched(self: Agent, obs: Any, state: Any = None, **more: Any) -> Any:
        if state is not None:
            known.append(int(state.policy.action.argmax()))
        return act(self, obs, state, **more)

    monkeypatch.setattr(Agent, "act", watched)
    env = agent.make_env()
    config = RecordConfig(episodes=1, epsilon=0.5)
    episode = play(agent, env, config, np.random.default_rng(0), seed=1, most=30)
    assert episode["actions"].tolist()[:-1] == known


def test_what_cannot_be_acted_on_or_seeded_with(trained: Path) -> None:
    agent = load(trained)
    with pytest.raises(DataError, match="obs is an empty batch"):
        agent.act(np.zeros((0, 4), np.float32))
    for seed, expected in (
        ("a", "an integer"),
        (1.5, "an integer"),
        (-1, "at least 0"),
        (2**70, r"at .*, below 2\^63"),
    ):
        with pytest.raises(ConfigError, match=f"seed = {seed!r}: expected {expected}"):
            agent.evaluate(2, seed=seed)  # type: ignore[arg-type]
    assert agent.evaluate(1, seed=np.int64(3)).scores == agent.evaluate(1, seed=3).scores  # type: ignore[arg-type]


def test_drawn_actions_have_the_exploration_that_training_ended_with(tmp_path: Path) -> None:
    small = {"steps": 40, "learning_starts": 20, "replay_ratio": 0.1, "eval_episodes": 0, "replay.capacity": 40}
    networks = {"algo.networks.units": (4,), "algo.batch_size": 4, "algo.exploration": EpsilonGreedy(1.0, 0.0, 40)}
    config = base("dqn", "CartPole-v1").merge(small | networks | {"console": False, "tensorboard": False, "threads": 1})
    train(config, run=tmp_path / "run", say=say_nothing)
    agent, obs = load(tmp_path / "run"), np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    assert agent.step == 40
    for other in (agent, pickle.loads(pickle.dumps(agent))):
        assert (other.act(obs, actions="sample")[0] == other.act(obs)[0]).all()
    assert agent.evaluate(3, actions="sample").scores == agent.evaluate(3).scores
    alone = config.merge({"data.path": "rows.npz", "data.fraction": 1.0})
    assert alone.explored(0) >= 10**12 > config.explored(7) == 7  # it never explores: schedules are at their end


def test_copies_and_pickles_of_an_agent_act_as_it_does(trained: Path) -> None:
    agent, obs = load(trained), torch.rand(3, 4, requires_grad=True)

    def actions(of: Any) -> list[int]:
        torch.manual_seed(0)
        return [int(of.act(row, actions="sample")[0]) for row in (*obs, obs.detach().numpy()[0])]

    expected = actions(agent)
    for other in (pickle.loads(pickle.dumps(agent)), copy.copy(agent), copy.deepcopy(agent)):
        assert actions(other) == expected
        assert (other.run, other.checkpoint, other.config) == (agent.run, agent.checkpoint, agent.config)
    assert agent.act([obs[0], obs[1]])[0].shape == (2,)


def test_a_pickle_has_the_weights_and_a_deep_copy_its_own(trained: Path) -> None:
    agent = load(trained)
    with torch.no_grad():
        for weight in agent.algo.parameters():
            weight.add_(0.125)
    again, deep = pickle.loads(pickle.dumps(agent)), copy.deepcopy(agent)
    before = {name: weight.clone() for name, weight in agent.algo.named_parameters()}
    with torch.no_grad():
        for weight in agent.algo.parameters():
            weight.zero_()
    for other in (again, deep):
        assert all(torch.equal(weight, before[name]) for name, weight in other.algo.named_parameters())


def test_what_a_run_says_of_itself_has_units_that_fit(tmp_path: Path) -> None:
    said: list[str] = []
    config = ExperimentConfig().merge(SMALL).merge({"replay_ratio": 1.0, "train_ratio": None, "eval_episodes": 1})
    train(config.merge({"steps": 20, "learning_starts": 100}), run=tmp_path / "run", say=said.append)
    assert re.search(r", 1 update per env step \(.*, replay up to \d+\.\d\d [kM]B", "\n".join(said))
    assert "evaluating: 1 episode" in said
    assert [memory(size) for size in (512, 99_000_000, 250_000_000)] == ["0.51 kB", "99.00 MB", "0.25 GB"]


def test_act_on_a_batch_as_on_each_alone(corridor: Path) -> None:
    agent = load(corridor, env=Corridor)
    envs = gymnasium.vector.SyncVectorEnv([Corridor] * 3)
    obs, _ = envs.reset()
    torch.manual_seed(0)
    actions, state = agent.act(obs)
    assert set(actions) == {"go", "turn"}
    assert actions["go"].shape == (3,)
    assert actions["turn"].shape == (3, 1)
    obs, *_ = envs.step(actions)
    actions, state = agent.act(obs, state, is_first=[False, True, False])
    assert envs.action_space.contains(actions)
    one = Corridor()
    single, _ = agent.act(one.reset()[0])
    assert one.action_space.contains(single)


def test_the_state_is_what_tells_equal_observations_apart(trained: Path) -> None:
    agent = load(trained)
    obs = np.zeros((2, 4), np.float32)
    _, state = agent.act(obs)
    _, state = agent.act(obs, state, is_first=[False, True])
    deter = state.policy.latent.deter
    assert not torch.allclose(deter[0], deter[1])


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros(3, np.float32), r"shape \(3,\).*declares \(4,\)"),
        (np.full(4, np.nan, np.float32), "is nan at index"),
    ],
)
def test_what_does_not_fit_is_named(trained: Path, obs: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(trained).act(obs)


def test_a_state_of_another_batch_is_refused(trained: Path) -> None:
    agent = load(trained)
    _, state = agent.act(np.zeros((2, 4), np.float32))
    with pytest.raises(DataError, match="3 observations, state is of 2 environments"):
        agent.act(np.zeros((3, 4), np.float32), state)


def test_a_batch_with_parts_of_different_lengths_is_refused() -> None:
    parts = {"camera": gymnasium.spaces.Box(0, 255, (4, 4, 3), np.uint8), "state": gymnasium.spaces.Box(-1, 1, (2,))}
    env = Count()
    env.observation_space = gymnasium.spaces.Dict(parts)
    observer = Observer(make_flat(EnvConfig(), env, 0, False), EnvConfig())
    for cameras, states in ((3, 2), (2, 3)):
        obs = {"camera": np.zeros((cameras, 4, 4, 3), np.uint8), "state": np.zeros((states, 2), np.float32)}
        with pytest.raises(DataError, match=f"not of one length: expected {cameras} observations in each"):
            observer.split(obs)


def test_a_state_may_be_gone_back_to(tmp_path: Path) -> None:
    """What an agent has seen belongs to the state: two ways on from the same one do not know of each other."""
    config = ExperimentConfig().merge(SMALL).merge({"env": {"id": "CartPole-v1", "frame_stack": 3}, "eval_episodes": 0})
    train(config, run=tmp_path / "run", say=say_nothing)
    agent = load(tmp_path / "run")
    _, state = agent.act(np.zeros(4, np.float32))
    before = {key: past.copy() for key, past in state.stacks[0].past.items()}  # type: ignore[union-attr]
    agent.act(np.ones(4, np.float32), state)
    for key, past in before.items():
        np.testing.assert_array_equal(state.stacks[0].past[key], past)  # type: ignore[union-attr]


def test_options_of_training_apply_to_raw_observations(tmp_path: Path) -> None:
    config = (
        ExperimentConfig()
        .merge(SMALL)
        .merge({"env": {"id": "CartPole-v1", "pixels": "add", "resize": [8, 10], "grayscale": True, "frame_stack": 2}})
    )
    train(config.merge({"eval_episodes": 0}), run=tmp_path / "run", say=say_nothing)
    agent = load(tmp_path / "run")
    assert agent.obs_spec["image"].shape == (8, 10, 2)
    assert agent.obs_spec["observation"].shape == (2, 4)
    env = agent.make_env(render=True)
    obs, _ = env.reset(seed=0)
    action, state = agent.act({"image": env.render(), "observation": obs})
    assert env.action_space.contains(action)
    _, floats = agent.act({"image": env.render() / 255.0, "observation": obs})  # read as in training
    np.testing.assert_array_equal(floats.stacks[0].past["image"], state.stacks[0].past["image"])  # type: ignore[union-attr]
    stacked = state.stacks[0]({"image": np.full((8, 10, 1), 7, np.uint8), "observation": obs}, False)  # type: ignore[misc]
    assert (stacked["image"][..., 1] == 7).all()
    assert (stacked["image"][..., 0] != 7).any()
    with pytest.raises(DataError, match=r"'image' is env\.render\(\)"):
        agent.act(obs)
    recorded = play(agent, agent.make_env(), RecordConfig(episodes=1), np.random.default_rng(0), seed=0, most=3)
    np.testing.assert_array_equal(recorded["observations"][0], obs)  # what the environment gave, without the frames
    assert recorded["observations"].shape == (4, 4)


def test_frames_in_place_of_minigrids_symbols_are_read() -> None:
    pytest.importorskip("minigrid")
    config = EnvConfig(id="MiniGrid-Empty-5x5-v0", pixels="only", resize=(8, 8))
    flat = make_flat(config, None, 0, False)
    env = make_gym(config, None, False)
    obs, _ = env.reset(seed=0)
    observer = Observer(flat, config)
    given = observer.given(env, obs)
    assert observer.split(given) == (True, [given])
    np.testing.assert_array_equal(observer(given, None, True)["image"], flat.reset(seed=0)[0]["image"])


def test_of_a_list_of_frames_the_last_one_is_read() -> None:
    config = EnvConfig(pixels="only")

    def make() -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.RenderCollection(gymnasium.make("CartPole-v1", render_mode="rgb_array"))

    flat, env = make_flat(config, make, 0, False), make()
    observer = Observer(flat, config)
    obs, _ = env.reset(seed=0)
    expected = [flat.reset(seed=0)[0]["image"], flat.step(np.array([0, 1], np.float32))[0]["image"]]
    np.testing.assert_array_equal(observer.given(env, obs)["image"], expected[0])
    env.step(0)
    env.step(1)
    single, (one,) = observer.split({"image": [*env.render()[:1], expected[1]]})
    assert single
    np.testing.assert_array_equal(observer(one, None, False)["image"], expected[1])
    assert not observer.split({"image": np.stack(expected)})[0]
    with pytest.raises(DataError, match="there is no image"):
        observer(observer.split({"image": []})[1][0], None, False)


def test_minigrids_symbols_are_read_as_in_training(tmp_path: Path) -> None:
    pytest.importorskip("minigrid")
    config = ExperimentConfig().merge(SMALL).merge({"env.id": "MiniGrid-Empty-5x5-v0", "eval_episodes": 0})
    train(config, run=tmp_path / "run", say=say_nothing)
    agent = load(tmp_path / "run")
    env = gymnasium.make("MiniGrid-Empty-5x5-v0")
    obs, _ = env.reset(seed=0)
    action, _ = agent.act(obs)
    assert env.action_space.contains(action)


def test_evaluation_writes_scores_and_video(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    agent = load(run)
    report = evaluate_run(agent, 3, actions="sample", video=True)
    assert len(report.evaluation.scores) == 3
    saved = json.loads((run / "eval.json").read_text())
    assert saved["actions"] == "sample"
    assert saved["checkpoint"] == agent.checkpoint.name
    assert report.files["video"].stat().st_size > 1000
    assert evaluate_run(agent, 3, actions="sample").evaluation.scores == report.evaluation.scores
    assert "time_limit" not in saved
    assert evaluate_run(agent, 3, time_limit=4).evaluation.lengths == [4, 4, 4]
    assert json.loads((run / "eval.json").read_text())["time_limit"] == 4
    with pytest.raises(ConfigError, match=r"env\.time_limit = 0: expected at least 1"):
        agent.evaluate(1, time_limit=0)


def test_what_is_no_state_is_refused(trained: Path) -> None:
    agent = load(trained)
    with pytest.raises(
        DataError, match=r"state = 'sample': expected the state that the last call of act returned.*by name"
    ):
        agent.act(np.zeros(4, np.float32), "sample")


def test_load_without_a_run_or_a_checkpoint(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"there is no such folder\. Did you mean 'cartpole'"):
        load(trained.parent / "cartpol")
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(RunError, match="has no checkpoint yet"):
        load(run)
    (run / "checkpoints" / "diverged-000000012").mkdir(parents=True)
    with pytest.raises(RunError, match="diverged before its first checkpoint: there is only diverged-000000012"):
        load(run)


# ---------------------------------------------------------------- dreams


def test_dream_of_everything(corridor: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(corridor, run)
    report = dream(load(run, env=Corridor), context=3, horizon=20, sequences=2)
    assert set(report.errors) == {"eye", "sense/x", "sense/n", "reward", "cont"}
    assert {len(error) for error in report.errors.values()} == {7}  # ten rows, of which three were seen
    assert report.repeated["reward"].max() == 0.0
    assert report.repeated["cont"].tolist() == [0.0] * 6 + [1.0]
    assert 0 <= report.errors["sense/n"].min() <= report.errors["sense/n"].max() <= 1
    numbers = json.loads(report.files["numbers"].read_text())
    assert numbers["error_per_step"]["eye"] == pytest.approx(report.errors["eye"].tolist())
    assert numbers["context"] == 3
    assert {"video of eye", "traces", "errors", "numbers", "arrays"} == set(report.files)
    assert all(path.stat().st_size > 500 for path in report.files.values())
    arrays = np.load(report.files["arrays"])
    assert {key.partition("/")[0] for key in arrays} == {"action", "is_first", "is_last", "truth", "dream", "inside"}
    assert {arrays[key].shape[:2] for key in arrays} == {(2, 10)}
    far = np.sqrt(np.square(arrays["dream/reward"] - arrays["truth/reward"])[:, 3:].mean(0))
    assert far == pytest.approx(report.errors["reward"])
    algo = load(run, env=Corridor).algo
    latent = Latent(*(torch.from_numpy(arrays[f"inside/{name}"]) for name in ("deter", "stoch")))
    with torch.no_grad():
        decoded, reward, _ = algo.world.predict(latent)
        values = algo.critic(latent.feature).mean()
        found = {"dream/reward": reward.mean(), "dream/eye": decoded["eye"].value(), "inside/value": values}
    for name, value in found.items():
        assert value.numpy() == pytest.approx(arrays[name], abs=1e-3), name


class Telling(gymnasium.Env):
    """Shows under the names of a dream's other arrays what they are not: numbers from 100 on."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Dict(
        {key: gymnasium.spaces.Box(0, 200, (1,), np.float32) for key in ("reward", "cont", "inside/value", "obs/cont")}
    )

    def seen(self) -> dict[str, np.ndarray]:
        return {key: np.array([100 + i + self.t], np.float32) for i, key in enumerate(self.observation_space.spaces)}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.seen(), 1.0, False, self.t == 9, {}


def test_observations_with_names_of_a_dream_are_dreamt_beside_them(tmp_path: Path) -> None:
    config = ExperimentConfig().merge(SMALL).merge({"env.id": "Telling", "eval_episodes": 0})
    train(config, env=Telling, run=tmp_path / "run", say=say_nothing)
    report = dream(load(tmp_path / "run", env=Telling), context=3, horizon=20, sequences=2)
    own = {"obs/reward", "obs/cont", "obs/inside/value", "obs/obs/cont"}
    assert set(report.errors) == own | {"reward", "cont"}
    assert report.units["reward"] == report.units["obs/reward"] == "root-mean-square error"
    arrays = np.load(report.files["arrays"])
    assert {arrays[f"truth/{name}"].min() >= 100 for name in own} == {True}
    assert all(arrays[f"dream/{name}"].shape == (2, 10, 1) for name in own)
    assert set(arrays["truth/reward"].ravel()) == {0.0, 1.0}
    assert arrays["dream/cont"].shape == arrays["inside/value"].shape == (2, 10)


def test_dreams_of_vectors_are_drawn_by_those_who_know_how(trained: Path, corridor: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    agent = load(run)
    report = dream(agent, context=3, horizon=4, sequences=2)
    frames = imageio_ffmpeg.read_frames(str(report.files["video"]))
    width, height = next(frames)["size"]
    shown = [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in frames]
    assert len(shown) == 7
    assert np.abs(shown[0].astype(int) - shown[6]).max() > 100
    batch = Batch(
        obs={"observation": torch.tensor([[[0.0, 0, 0, 0], [1, 0, 0, 0]]] * 5)}, action=torch.zeros(5, 2, 2),
        reward=torch.zeros(5, 2), is_first=torch.zeros(5, 2), is_last=torch.zeros(5, 2),
        is_terminal=torch.zeros(5, 2), weight=torch.ones(5), index=torch.arange(5),
    )  # fmt: skip
    real, imagined = painted(agent, batch, {"observation": batch.obs["observation"].numpy()[:, ::-1]})
    assert real.shape == imagined.shape == (3, 2, 171, 256, 3)
    assert (real[:, ::-1] == imagined).all()
    assert (real[0, 0] != real[0, 1]).any()
    assert painted(agent, batch, {}) is None
    assert painted(load(corridor, env=Corridor), batch, {"observation": real}) is None


def test_of_stacked_pictures_the_newest_is_shown() -> None:
    frames = np.arange(2 * 8).reshape(2, 8)
    assert dreaming.newest(frames, 4).tolist() == [[6, 7], [14, 15]]
    assert dreaming.newest(frames, 1).tolist() == frames.tolist()


def test_dreams_are_of_the_rewards_that_were_learned(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    agent, seen = load(tmp_path / "run"), []
    agent.config = agent.config.merge({"env.clip_reward": "tanh"})
    see = dreaming.imagined
    monkeypatch.setattr(
        dreaming, "imagined", lambda agent, batch, context: (seen.append(batch), see(agent, batch, 3))[1]
    )
    dream(agent, context=3, horizon=4)
    assert seen[0].reward[:, 1:].unique().tolist() == pytest.approx([np.tanh(1.0)])
    assert agent.evaluate(1).scores[0] >= 8  # true ones


def test_dream_needs_something_to_imagine(corridor: Path) -> None:
    agent = load(corridor, env=Corridor)
    with pytest.raises(ConfigError, match=r"actions = 'best': expected one of"):
        dream(agent, actions="best")
    with pytest.raises(ConfigError, match="episodes = 0: expected at least 1"):
        agent.evaluate(0)
    with pytest.raises(RunError, match="longer than context = 10 rows"):
        dream(agent, context=10)
    with pytest.raises(ConfigError, match="horizon = 0: expected at least 1"):
        dream(agent, horizon=0)


def test_errors_are_measured_per_step_and_in_their_units() -> None:
    spec = {
        "v": ObsPart(kind="vector", shape=(2,), dtype="float32"),
        "c": ObsPart(kind="categorical", shape=(2,), dtype="int64", classes=(2, 3)),
    }
    index = np.array([[[0, 0], [1, 2], [1, -1]]])
    hot = one_hot(index, spec["c"])
    assert hot.shape == (1, 3, 2, 3)
    assert hot[0, 2].tolist() == [[0, 1, 0], [0, 0, 0]]
    truth = {"v": np.array([[[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]]), "c": hot}
    guess = {"v": truth["v"] + np.array([[[9.0, 9.0], [3.0, -3.0], [0.0, 0.0]]]), "c": hot.copy()}
    guess["c"][0, 1, 1] = [0.25, 0.25, 0.5]  # half the probability missed the second class
    errors, repeated, units = measure(truth, guess, spec, context=1)
    assert errors["v"].tolist() == [3.0, 0.0]
    assert repeated["v"].tolist() == [1.0, 2.0]
    assert errors["c"].tolist() == [0.25, 0.0]
    assert units == {"v": "root-mean-square error", "c": "probability not assigned to the true class"}


def test_predictions_of_another_shape_are_refused() -> None:
    spec = {
        "i": ObsPart(kind="image", shape=(4, 6, 3), dtype="uint8"),
        "v": ObsPart(kind="vector", shape=(2, 2), dtype="float32"),
    }
    truth = {"i": np.ones((2, 5, 4, 6, 3)), "v": np.ones((2, 5, 2, 2)), "reward": np.ones((2, 5))}
    measure(truth, {**truth, "v": np.ones((2, 5, 4)), "reward": np.ones((2, 5, 1))}, spec, 3)
    for wrong in (truth["i"].transpose(0, 1, 4, 2, 3), truth["i"].reshape(2, 5, -1), truth["i"][:, 1:]):
        with pytest.raises(ConfigError, match=r"prediction of 'i' has shape .*: expected \[2, 5, 4, 6, 3\], \[B, T,"):
            measure(truth, {"i": wrong}, spec, 3)
    with pytest.raises(ConfigError, match=r"expected \[2, 5, 2, 2\] or \[2, 5, 4\]"):
        measure(truth, {"v": np.ones((2, 5, 1, 4))}, spec, 3)
    with pytest.raises(ConfigError, match=r"predicts 'w', which is no observation: expected some of i, v, reward"):
        measure(truth, {"w": truth["v"]}, spec, 3)


# ---------------------------------------------------------------- Python's front door


def test_train_by_name_with_overrides(tmp_path: Path) -> None:
    result = reverie.train(
        "dreamer_v3",
        env="Acrobot-v1",
        size="nano",
        run=tmp_path / "run",
        say=say_nothing,
        envs=2,
        **{
            **{key: value for key, value in SMALL.items() if key != "env"},
            "algo": {"batch_size": 2, "batch_length": 8},
            "env_options": {"time_limit": 30},
            "eval_episodes": 0,
        },
    )
    saved = yaml.safe_load((result.run / "config.yaml").read_text())["experiment"]
    assert saved["env"]["id"] == "Acrobot-v1"
    assert (saved["env"]["num"], saved["env"]["time_limit"]) == (2, 30)
    assert saved["algo"]["rssm"]["deter"] == SIZES["nano"]["deter"]


FEW: dict[str, Any] = {"steps": 10, "learning_starts": 10**5, "random_steps": 5, "eval_episodes": 2, "console": False,
                       "tensorboard": False, "say": say_nothing}  # fmt: skip


def test_arguments_are_handed_to_the_class(tmp_path: Path) -> None:
    result = reverie.train("td3", env=Paying, run=tmp_path / "a", env_options={"kwargs": {"pay": 3.0}}, **FEW)
    assert result.evaluation is not None
    assert result.evaluation.scores == [21.0, 21.0]
    assert load(tmp_path / "a", env=Paying).evaluate(1).scores == [21.0]
    with pytest.raises(
        EnvError, match=r"env\.kwargs: Paying has no argument 'pays'\. Did you mean 'pay'\? It accepts pay, told"
    ):
        reverie.train("td3", env=Paying, run=tmp_path / "b", env_options={"kwargs": {"pays": 3.0}}, **FEW)
    with pytest.raises(
        ConfigError, match=r"env\.kwargs = .* with an environment instance: these arguments have no effect"
    ):
        reverie.train("td3", env=Paying(), run=tmp_path / "b", env_options={"kwargs": {"pay": 3.0}}, **FEW)
    assert not (tmp_path / "b").exists()


def test_a_run_with_arguments_that_nobody_took_is_loaded_all_the_same(tmp_path: Path) -> None:
    """Earlier versions saved them; and an instance is made already."""
    run = tmp_path / "run"
    reverie.train("td3", env=Paying, run=run, env_options={"kwargs": {"pay": 3.0}}, **FEW)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("pay: 3.0", "pay: 3.0\n      full_action_space: false"))
    assert load(run, env=Paying).evaluate(1).scores == [21.0]
    assert load(run, env=Paying(2.0)).evaluate(1).scores == [14.0]


@pytest.mark.parametrize("vector", ["serial", "process"])
def test_an_evaluation_of_what_draws_from_everybodys_generators_is_the_same_again(tmp_path: Path, vector: str) -> None:
    options = {"vector": vector}
    scores = [
        reverie.train("td3", env=Lucky, run=tmp_path / name, env_options=options, **FEW).evaluation.scores
        for name in ("once", "again")
    ]
    assert scores[0] == scores[1]
    assert len(set(scores[0])) == 2


@pytest.mark.parametrize(("starts", "few"), [(11, "no"), (10, "hardly any"), (9, "")])
def test_a_run_that_ends_before_it_learns_says_so_before_it_begins(tmp_path: Path, starts: int, few: str) -> None:
    said: list[str] = []
    more = FEW | {"learning_starts": starts, "eval_episodes": 0, "say": said.append}
    reverie.train("td3", env=Paying, run=tmp_path / "run", **more)
    found = [line for line in said if "there will be" in line]
    expected = f"there will be {few} updates: learning starts after {starts} windows, but the run has only 10 env steps"
    assert found == ([expected] if few else [])


@dataclass(frozen=True, kw_only=True)
class Forgetful(TD3Config):
    """Perhaps its line ``Forgetful.learner = ...`` was forgotten."""


@dataclass(frozen=True, kw_only=True)
class Mindful(TD3Config):
    """Says what it builds."""


class Minded(TD3):
    """A learner of somebody's own."""


Mindful.learner = Minded


@pytest.mark.parametrize(("config", "told"), [(Forgetful, True), (Mindful, False), (TD3Config, False)])
def test_a_run_says_whose_learner_it_trains_if_its_class_does_not(tmp_path: Path, config: type, told: bool) -> None:
    said: list[str] = []
    reverie.train(config(), env=Paying, run=tmp_path / "run", **FEW | {"eval_episodes": 0, "say": said.append})
    found = [line for line in said if "learner of" in line]
    line = "Forgetful trains TD3, the learner of TD3Config; if you wrote another one, set Forgetful.learner to its"
    assert [line in one for one in found] == [True] * told


def test_what_a_preset_hands_to_gymnasium_is_not_for_a_class_of_ones_own() -> None:
    assert layered("dqn", env="ALE/Pong-v5").env.kwargs
    assert not layered("dqn", env="Paying", preset="dqn_atari", handed=True).env.kwargs


@pytest.mark.parametrize("vector", ["serial", "process"])
def test_evaluations_while_training_are_where_the_environments_are(tmp_path: Path, vector: str) -> None:
    told = tmp_path / "told"
    options = {"kwargs": {"told": str(told)}, "vector": vector}
    few = {name: value for name, value in FEW.items() if name not in OF_COLLECTING}
    alone = few | {"data": tmp_path / "lived", "data.fraction": 1.0, "updates": 1}
    for run, more in (("lived", FEW), ("alone", alone)):
        told.mkdir()
        result = reverie.train("td3", env=Paying, run=tmp_path / run, env_options=options, **more)
        assert result.evaluation is not None
        assert (str(os.getpid()) in {path.name for path in told.iterdir()}) == (vector == "serial")
        shutil.rmtree(told)


def test_train_with_configuration_objects(tmp_path: Path) -> None:
    algo = DreamerV3Config(batch_size=2, batch_length=8, horizon=3).merge(NETWORKS)
    more = {key: value for key, value in SMALL.items() if key not in ("algo", "env")}
    result = reverie.train(algo, env=Corridor, run=tmp_path / "a", say=say_nothing, **more)
    assert load(result.run, env=Corridor).config.algo == algo
    config = ExperimentConfig().merge(SMALL)
    assert reverie.train(config, run=tmp_path / "b", say=say_nothing).reason == "finished"


def test_public_names() -> None:
    assert reverie.load is load
    assert reverie.DreamerV3Config is DreamerV3Config
    assert reverie.__version__.count(".") >= 1
    assert {"train", "load", "DreamerV3Config"} <= set(dir(reverie))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = reverie.trian
