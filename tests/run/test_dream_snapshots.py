"""A film of the training: snapshots spread over a run, which do not change it and survive what it survives."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest
import torch

import reverie
from resumed_runs import CONFIG, Walk, assert_same, run_until
from reverie.algos.dqn import DQNConfig
from reverie.algos.settings import AlgorithmConfig
from reverie.api import train_config as train
from reverie.core.action_codec import ActionCodec
from reverie.core.clock import Clock
from reverie.core.errors import RunError
from reverie.core.specs import ObsPart
from reverie.run.checkpoint import Checkpoints, read_checkpoint
from reverie.run.dream_snapshots import DreamSnapshots

FILM = CONFIG.merge({"schedule.dream_snapshots": 4, "keep_checkpoints": 9})
STEPS = ["step-000000000", "step-000000026", "step-000000050", "step-000000076"]


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("film") / "run"
    assert train(FILM, env=Walk, run=run).reason == "finished"
    return run


def weights(path: Path) -> dict[str, torch.Tensor]:
    return read_checkpoint(path, ["algo"])["algo"]["model"]


def same(a: Path, b: Path) -> bool:
    first, second = weights(a), weights(b)
    return all(torch.equal(first[name], value) for name, value in second.items())


def test_a_film_changes_nothing_and_loads(film: Path, tmp_path: Path) -> None:
    train(FILM.merge({"schedule.dream_snapshots": 0}), env=Walk, run=tmp_path / "run")
    assert not (tmp_path / "run/dream_snapshots").exists()
    assert_same(film, tmp_path / "run")
    snapshots = sorted((film / "dream_snapshots").iterdir())
    assert [path.name for path in snapshots] == STEPS
    assert not same(snapshots[0], snapshots[3])
    agent = reverie.load(film, env=Walk, checkpoint=snapshots[2])
    assert agent.step == 50
    model = agent.algo.state_dict()["model"]
    assert all(torch.equal(model[name], value) for name, value in weights(snapshots[2]).items())
    state = read_checkpoint(snapshots[2], ["algo"])["algo"]
    assert state.keys() == {"model"}  # without optimizers


def test_a_resumed_run_continues_its_film(film: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, name = tmp_path / "run", "dream_snapshots"
    run_until(run, 61, monkeypatch, **{"schedule.dream_snapshots": 4})
    known = sorted((run / name).iterdir())
    assert [path.name for path in known] == STEPS[:3]
    stale = known[2].rename(known[2].with_name("step-000000070"))  # of a process that was killed later
    (stale / "tensors.safetensors").write_bytes(b"")
    assert train(FILM, env=Walk, run=run).reason == "finished"
    assert sorted(path.name for path in (run / name).iterdir()) == [STEPS[0], STEPS[1], STEPS[3]]
    assert all(same(run / name / step, film / name / step) for step in (STEPS[0], STEPS[1], STEPS[3]))


def test_a_damaged_snapshot_and_a_full_disk(
    film: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    save = Checkpoints.save

    def fails_once(self: Checkpoints, step: int, *args: object, **kwargs: object) -> Path:
        if self.folder.name == "dream_snapshots" and step == 26:
            raise RunError("cannot write checkpoint: No space left on device.")
        return save(self, step, *args, **kwargs)

    monkeypatch.setattr(Checkpoints, "save", fails_once)
    assert train(FILM, env=Walk, run=tmp_path / "run").reason == "finished"
    assert sum("continues without this snapshot" in line for line in said) == 1
    damaged = tmp_path / "run/dream_snapshots" / STEPS[2]
    (damaged / "tensors.safetensors").write_bytes(b"torn")
    with pytest.raises(RunError, match="damaged"):
        reverie.load(tmp_path / "run", env=Walk, checkpoint=damaged)
    assert_same(film, tmp_path / "run")


@pytest.mark.parametrize(
    ("algo", "steps", "count"), [(CONFIG.algo, 12_000, 12), (CONFIG.algo, 11_990, 0), (DQNConfig(), 10**6, 0)]
)
def test_the_default_depends_on_settings_alone(
    algo: AlgorithmConfig, steps: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"observation": ObsPart(kind="vector", shape=(3,), dtype="float32")}
    learner = algo.build(spec, ActionCodec(gymnasium.spaces.Discrete(2)).spec)
    clock = Clock(length=steps, replay_ratio=0.1)
    assert DreamSnapshots(tmp_path, learner, clock, None).count == count
    monkeypatch.setattr("reverie.run.dream_snapshots.MAX_BYTES", 1000)
    assert DreamSnapshots(tmp_path, learner, clock, None).count == 0
