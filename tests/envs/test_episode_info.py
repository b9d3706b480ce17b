"""Numbers of an environment's info in the logs: what is summarised, where it goes, and what is said of mistakes."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import env_zoo
import pytest
import torch

import reverie
from reverie.core.errors import ConfigError, EnvError
from reverie.envs.config import EnvConfig
from reverie.envs.make import make_gym
from reverie.run.collect import Collector, EpisodeStats

BOTH = pytest.mark.parametrize("vector", ["serial", "process"])
ALL = ("success", "success:max", "cost:sum", "cost:mean", "cost:min", "cost:last", "inner/r:max")
OF_FOUR = {
    "success": 0.0, "success_max": 1.0, "cost_sum": 10.0, "cost_mean": 2.5, "cost_min": 1.0, "cost_last": 4.0,
    "inner/r_max": 4.0,
}  # fmt: skip


def stepped(env: Any, count: int) -> list[Any]:
    """What is logged after the reset and after each of ``count`` steps."""
    env.reset()
    logged = [env.logged]
    for _ in range(count):
        env.step(torch.zeros(env.num_envs, env.action_spec.width))
        logged.append(env.logged)
    return logged


# ---------------------------------------------------------------- what is logged


@BOTH
def test_numbers_are_summarised_over_each_episode(make: Any, vector: str) -> None:
    env = make(env_zoo.Judged, num=2, vector=vector, log_info=ALL)
    logged = stepped(env, 10)
    assert logged[4] == logged[9] == {0: OF_FOUR, 1: OF_FOUR}
    assert not any(logged[i] for i in (0, 1, 2, 3, 5, 6, 7, 8, 10))


def test_each_repeated_frame_counts_and_idle_actions_do_not() -> None:
    env = make_gym(EnvConfig(log_info=("cost:sum",), action_repeat=2, time_limit=2), env_zoo.Judged, False)
    for _ in range(2):
        env.reset()
        env.step(0)
        assert env.step(0)[2]
        assert env.env.env.summary().numbers == {"cost_sum": 10.0}  # type: ignore[attr-defined]


def test_an_environment_goes_on_with_its_sums(make: Any) -> None:
    def begun() -> Any:
        return make(env_zoo.Judged, log_info=("cost:sum", "success:max"))

    one, two = begun(), begun()
    one.reset()
    for _ in range(2):
        step = one.step(torch.zeros(1, 2))
    two.reset()
    two.restore(one.snapshot(), step)
    for env in (one, two):
        env.step(torch.zeros(1, 2))
        env.step(torch.zeros(1, 2))
    assert one.logged == two.logged == {0: {"cost_sum": 10.0, "success_max": 1.0}}


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (
            ("success:mx",),
            r"env\.log_info = 'success:mx': expected KEY, or KEY:HOW with one of last, sum, mean, max, min",
        ),
        (("",), r"expected KEY, or KEY:HOW"),
        (("score",), r"the logs use score for something else\. Use 'score:last', which is logged as score_last"),
    ],
)
def test_entries_that_mean_nothing_are_refused(entries: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EnvConfig(log_info=entries)


@BOTH
def test_a_key_that_is_not_there_ends_the_run_and_is_told(make: Any, vector: str) -> None:
    env = make(env_zoo.Judged, num=2, vector=vector, log_info=("succes",))
    said = (
        r"environment 0 \('Judged'\): .*no finite number 'succes' in any step of the first episode\. Did you mean 'suc"
    )
    with pytest.raises(EnvError, match=said) as told:
        stepped(env, 4)
    assert "It has: cost, inner, success." in str(told.value)
    with pytest.raises(EnvError, match="no finite number 'succes'"):
        env.step(torch.zeros(2, 2))


@pytest.mark.parametrize("value", ["yes", [1, 2], math.nan])
def test_values_that_are_no_numbers_are_told(make: Any, value: Any) -> None:
    env = make(functools.partial(env_zoo.Judged, 2, {"mood": value}), log_info=("mood", "cost"))
    with pytest.raises(EnvError, match="no finite number 'mood'"):
        stepped(env, 2)


# ---------------------------------------------------------------- where it goes


class Policy:
    """Does nothing, and stores nothing."""

    def initial(self, count: int) -> None:
        return None

    def act(self, step: Any, state: None, mode: str) -> tuple[torch.Tensor, None]:
        return torch.zeros(len(step), 2), None

    def extras(self, state: None) -> dict[str, torch.Tensor]:
        return {}


class Nowhere:
    def add(self, *given: Any) -> None:
        pass


def collector(make: Any) -> Collector:
    return Collector(make(env_zoo.Judged, log_info=("cost:sum",)), Policy(), Nowhere())  # type: ignore[arg-type]


def test_collected_episodes_have_them_and_checkpoints_keep_them(make: Any) -> None:
    one = collector(make)
    for _ in range(4):
        one.collect()
    one.unlogged.append(EpisodeStats(1.0, 2, {"cost_sum": 3.0}))
    state = one.state_dict()  # of the last row, which is not counted yet
    assert json.loads(json.dumps(state["unlogged"])) == [[1.0, 2, {"cost_sum": 3.0}]]
    assert all(name in state["step"] for name in ("reward", "is_first", "is_last"))
    two = collector(make)
    two.load_state_dict(state)
    assert two.unlogged == one.unlogged
    assert two.resume(state, one.snapshots()) == 0
    assert one.drain(at_the_end=True) == two.drain(at_the_end=True) == [EpisodeStats(4.0, 4, {"cost_sum": 10.0})]


def test_a_run_logs_them(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "env_options": {"log_info": ("success:max", "cost:sum")}, "steps": 60, "learning_starts": 40, "envs": 2,
        "threads": 1, "tensorboard": False, "console": False, "eval_episodes": 2, "algo.networks.units": (8,),
    }  # fmt: skip
    run = tmp_path / "run"
    result = reverie.train("dqn", env=env_zoo.Judged, run=run, **options)
    assert result.evaluation is not None
    assert result.evaluation.info == [{"success_max": 1.0, "cost_sum": 10.0}] * 2
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {line["episode/cost_sum"] for line in lines if "episode/cost_sum" in line} == {10.0}
    assert lines[-1]["eval/success_max"] == 1.0
    assert json.loads((run / "eval.json").read_text())["info"] == result.evaluation.info
    again = reverie.train("dqn", env=env_zoo.Judged, run=run, **options)
    assert again.evaluation is not None
    assert again.evaluation.info == result.evaluation.info
