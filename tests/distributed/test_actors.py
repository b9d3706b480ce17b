"""Actors: processes that act beside the learner."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import reverie
from finished_episodes import as_rows, episodes
from reverie.core.clock import UpdateRatio
from reverie.core.columns import ColumnSpec
from reverie.core.errors import ConfigError, RunError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Step, Update, Window
from reverie.datasets.config import DatasetConfig
from reverie.datasets.format_detection import open_reader
from reverie.distributed.actor_collector import MAX_DEATHS, ActorCollector, ActorHandle
from reverie.distributed.actor_connection import (
    HEADER,
    ActorConnection,
    ActorStop,
    Failure,
    MessageKind,
    WeightBoard,
    acting_weights,
    load_weights,
    serialize_weights,
)
from reverie.distributed.actor_replays import MultiReplay
from reverie.distributed.local_actors import LocalActorConnection, LocalActors
from reverie.distributed.ray_actors import RayActor, RayActorConnection, RayActors
from reverie.experiment.config import ExperimentConfig
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.build import build_replay
from reverie.replay.config import ReplayConfig
from reverie.store.store import ReplayStore
from tiny_configs import CONFIG

SPEC = {"state": ObsPart(kind="vector", shape=(2,), dtype="float32")}
MOVES = ActionSpec(parts={"a": ActionPart(kind="continuous", size=1)})
QUICK: dict[str, Any] = {
    "env": "CartPole-v1", "actors": 2, "learning_starts": 60, "eval_episodes": 0, "tensorboard": False,
    "console": False, "threads": 1, "schedule": {"log_every": 20}, "algo": {"batch_size": 16},
}  # fmt: skip


# ---------------------------------------------------------------- the whole


class Killer:
    """Kills an actor without warning once the run has made some steps."""

    victim = None

    def write(self, values: Mapping[str, Any], step: int) -> None:
        self.values = values
        if self.victim is None and step > 150:
            self.victim = multiprocessing.active_children()[0].pid
            os.kill(self.victim, signal.SIGKILL)

    def close(self) -> None:
        pass


def test_a_run_outlives_its_actors_and_is_resumed(tmp_path: Path, said: list[str]) -> None:
    """Every row received is kept, with the version that acted; nobody is left behind."""
    killer, run = Killer(), tmp_path / "run"
    made = reverie.train("dqn", run=run, steps=500, sinks=[killer], **QUICK)
    assert killer.victim is not None
    assert [line for line in said if "is restarted, with new episodes: its process died (exit code -9)" in line]
    assert not multiprocessing.active_children()
    assert 500 <= made.env_steps < 700  # the other actor may use up the half that it was allowed before
    assert killer.values["train/staleness"] >= 0
    assert abs(made.updates - 0.5 * (made.env_steps - 60)) < 110  # within the tolerance of 100 updates, with rounding
    store = ReplayStore(run / "replay")
    rows, histories = store.num_rows(), store.histories()
    assert len(histories) in (1, 2)  # on a busy machine one actor may do all of it
    assert rows > 500
    for history in histories:
        chunks = [chunk for segment, start, stop in history for chunk in store.read(segment, start, stop)]
        version = np.concatenate([chunk.rows["version"][0] for chunk in chunks])
        assert (np.diff(version) >= 0).all()
        assert 0 <= version.min() <= version.max() <= made.updates
    with open_reader(str(run), DatasetConfig()) as reader:
        assert all("version" not in part for part in reader.parts())

    again = reverie.train("dqn", run=run, steps=560, **QUICK)
    assert "actors start new episodes: a run with actors does not resume in mid-episode" in said
    assert again.env_steps >= 560
    assert ReplayStore(run / "replay").num_rows() > rows
    with pytest.raises(RunError, match=r"actors = 0, but .* was trained with actors = 2"):
        reverie.train("dqn", run=run, steps=600, **(QUICK | {"actors": 0}))


def elsewhere_missing(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    """A simulator that only the main process can reach."""
    if multiprocessing.parent_process() is not None:
        raise OSError("no license")
    return gymnasium.make("CartPole-v1")


def test_an_actor_that_cannot_begin_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"actor 0 failed before its first step: .*no license"):
        reverie.train("dqn", run=tmp_path, steps=100,
                      **(QUICK | {"env": elsewhere_missing, "actors": 1}))  # fmt: skip


def test_an_actor_that_always_dies_at_its_start_may_come_from_a_script() -> None:
    link: Any = SimpleNamespace(end=lambda deadline: "its process died (exit code 1)")
    collector: Any = None
    lane = ActorHandle(0, link, deaths=deque([time.monotonic()] * 2, MAX_DEATHS))
    with pytest.raises(RunError, match=r"exit code 1\)\. It died during .*`if __name__ == .*, or use actors = 0\.$"):
        ActorCollector.restart_actor(collector, lane, Failure("", False))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replay": {"sequential": True}}, "replay.sequential"),
        ({"replay": {"init_from": ("runs/x",)}}, "--experience mixed"),
        ({"env": gymnasium.make("CartPole-v1")}, "instance"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        reverie.train("dqn", run=tmp_path / "run", steps=100, **(QUICK | changes))
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- the ratio


def test_learner_and_actors_wait_only_beyond_the_slack() -> None:
    """Ratio 0.5, slack 2, counted from step 10 on."""
    ratio = UpdateRatio(0.5, 2.0)
    assert ratio.must_wait
    assert ratio.env_steps_allowed == 4  # env steps until updates / ratio + slack / ratio
    assert [ratio.updates_due(10) for _ in range(4)] == [1, 1, 0, 0]  # two ahead
    assert ratio.must_wait
    assert ratio.env_steps_allowed == 8
    assert [ratio.updates_due(12), ratio.updates_due(12)] == [1, 0]
    assert ratio.updates_due(10 + 2 * 5 + 4) == 1  # 7 updates may have been made, and the slack; 3 were
    assert ratio.env_steps_allowed == -2  # 14 steps x 0.5 - 4 updates = 3: one more than the slack
    assert [ratio.updates_due(24), ratio.env_steps_allowed] == [1, 0]
    assert [ratio.updates_due(24), ratio.env_steps_allowed] == [1, 2]
    assert [ratio.take_whole_updates(), ratio.take_whole_updates(), ratio.env_steps_allowed] == [
        1,
        0,
        4,
    ]  # at the end of a run


def test_without_bound_the_learner_never_waits_once_it_has_begun() -> None:
    ratio = UpdateRatio(0.5, float("inf"))
    assert ratio.must_wait
    assert [ratio.updates_due(10) for _ in range(50)] == [1] * 50
    assert ratio.env_steps_allowed == float("inf")
    assert ratio.state_dict()["credit"] == -1.0  # no debt for a resumed run with a bound
    assert UpdateRatio(0.0, float("inf")).updates_due(10) == 0


# ---------------------------------------------------------------- what arrives


def wire() -> LocalActorConnection:
    columns = {"action": ColumnSpec((1,), "float32"), "reward": ColumnSpec((), "float32")}
    return LocalActorConnection(multiprocessing.get_context("spawn"), columns, 2)


def test_blocks_arrive_in_order_and_their_memory_is_used_again() -> None:
    line = wire()
    port = ActorConnection(*line.port)
    for number in range(line.slots + 3):
        room = port.next_block()
        room["reward"][:, :3] = number
        port.send(room, 3, number, episodes((1.5, 4, {"success": 1.0})), 2)
        assert line.waiting == 1
        block = line.receive()
        assert block.version == number
        assert as_rows([block.episodes]) == [(1.5, 4, {"success": 1.0})]
        assert block.rows["reward"].tolist() == [[number] * 3] * 2
        line.free()
    port.fail(Failure("why", is_permanent=True))
    assert line.receive() == Failure("why", is_permanent=True)
    line.pipe.close()
    line.far.close()
    with pytest.raises(ActorStop):
        port.check()


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff" * 40,
        HEADER.pack(MessageKind.ROWS, 99_999, 1, 0, 0) + b"[]",
        HEADER.pack(MessageKind.ROWS, 0, 2**31, 0, 0) + b"[]",
        HEADER.pack(MessageKind.ROWS, 0, 1, 0, 0) + b'[["x"]]',
        HEADER.pack(MessageKind.ROWS, 0, 1, 0, 0) + b"[" * 100_000,
        HEADER.pack(MessageKind.FAILED, 0, 0, 0, 0) + b"{}",
    ],
    ids=["empty", "noise", "slot", "turns", "episodes", "nested", "failure"],
)
@pytest.mark.usefixtures("_no_collection")
def test_an_actor_whose_message_is_damaged_is_lost(message: bytes) -> None:
    line = wire()
    line.far.send_bytes(message)
    failure = line.receive()
    assert isinstance(failure, Failure)
    assert "message of" in failure.text
    assert not failure.is_permanent


def test_a_torn_copy_of_weights_counts_as_none() -> None:
    """And they are the policy's alone."""
    algo = CONFIG.algo.build(SPEC, MOVES)
    weights = acting_weights(algo, SPEC)
    assert {name.split(".")[0] for name in weights} == {"world", "actor"}
    assert not any(name.startswith("world.decoder") for name in weights)
    data = serialize_weights(weights)
    board = WeightBoard(multiprocessing.get_context("spawn"), len(data))
    assert board.read(None) is None
    board.publish(data, 5)
    assert board.read(5) is None
    assert board.read(4) == (5, data)
    board.publish(data, 6)
    board.memory.array()[int(board.newest.array()[0]) % 2][-1] ^= 1  # being written
    assert board.read(5) is None
    other = {name: torch.zeros_like(x) for name, x in weights.items()}
    load_weights(other, data)
    assert serialize_weights(other) == data


# ---------------------------------------------------------------- several replays


def lane(rows: int, seed: int) -> ReplayBuffer:
    window = Window(batch=64, length=2)
    replay = build_replay(
        ReplayConfig(capacity=1000, online_queue=False),
        obs_spec=SPEC,
        action_spec=MOVES,
        extra_spec={},
        num_envs=1,
        window=window,
        seed=seed,
    )
    for number in range(rows):
        no = torch.zeros(1, dtype=torch.bool)
        step = Step(obs={"state": torch.full((1, 2), float(seed))}, reward=torch.zeros(1), is_first=no | (number == 0),
                    is_last=no, is_terminal=no)  # fmt: skip
        replay.add(step, torch.zeros(1, 1), {})
    return replay


def test_windows_of_all_actors_are_equally_likely_and_get_their_feedback(monkeypatch: pytest.MonkeyPatch) -> None:
    """31 windows and 93: a quarter and three quarters, within five standard deviations."""
    lanes = MultiReplay([lane(32, 0), lane(94, 1)], seed=0)
    assert len(lanes) == 31 + 93
    got: list[tuple[int, list[float]]] = []
    for number, replay in enumerate(lanes.replays):
        monkeypatch.setattr(
            replay, "feedback", lambda index, update, n=number: got.append((n, update.priority.tolist()))
        )
    share = 0.0
    for _ in range(40):
        batch = lanes.sample()
        origin = batch.obs["state"][:, 0, 0]
        share += float(origin.mean()) / 40
        lanes.feedback(batch.index, Update(metrics={}, priority=origin))
    assert abs(share - 0.75) < 5 * (0.75 * 0.25 / (40 * 64)) ** 0.5
    assert all(set(priority) <= {float(number)} for number, priority in got)
    assert sum(len(priority) for _, priority in got) == 40 * 64


def test_slack_is_of_actors_alone() -> None:
    assert ExperimentConfig().tolerance is None
    assert ExperimentConfig(actors=1).tolerance == 100
    assert ExperimentConfig(actors=1, ratio_tolerance=None).tolerance == float("inf")


@pytest.mark.parametrize(
    ("local", "remote", "own"),
    [
        (ActorConnection, RayActor, set()),
        (WeightBoard, RayActor, {"publish"}),
        (LocalActors, RayActors, set()),
        (LocalActorConnection, RayActorConnection, {"start", "decode"}),
    ],
)
def test_actors_on_ray_have_the_methods_of_local_ones(local: type, remote: type, own: set[str]) -> None:
    """Both are called by the same code; Ray itself is too large for this suite (``make cluster``)."""
    methods = {name for name, value in vars(local).items() if callable(value) and not name.startswith("_")}
    assert methods - own <= {*dir(remote)}
