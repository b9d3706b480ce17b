"""The scripts that measure agents beside other libraries: everybody gets the same data and episodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
import torch

from test_benchmarks import FOLDER, scripts

__all__ = ["scripts"]

CARTPOLE = {"type": "Discrete", "dtype": "int64", "start": 0, "n": 2}
TWO = {"type": "Box", "dtype": "float32", "shape": [1], "low": [-2.0], "high": [2.0]}


def write(path: Path, width: int, actions: dict[str, Any]) -> Path:
    """A Minari dataset of 3 + 2 steps: one episode terminates, the other is cut off."""
    noise = np.random.default_rng(0)
    (path / "data").mkdir(parents=True)
    about = {"total_episodes": 2, "action_space": json.dumps(actions)}
    (path / "data" / "metadata.json").write_text(json.dumps(about))
    with h5py.File(path / "data" / "main_data.hdf5", "w") as file:
        for number, steps in enumerate((3, 2)):
            episode = file.create_group(f"episode_{number}")
            episode["observations"] = noise.normal(3, 2, (steps + 1, width)).astype(np.float32)
            taken = noise.integers(0, 2, steps) if actions is CARTPOLE else noise.uniform(-2, 2, (steps, 1))
            episode["actions"] = taken
            episode["rewards"] = np.arange(steps, dtype=np.float64)
            episode["terminations"] = np.arange(steps) == (steps - 1 if number == 0 else -1)
            episode["truncations"] = np.arange(steps) == (steps - 1 if number == 1 else -1)
            episode.create_group("infos")
    return path


@pytest.fixture
def workers(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script of ``peers/`` by name."""
    monkeypatch.syspath_prepend(str(FOLDER / "peers"))
    return scripts


def test_everybody_reads_the_same_episodes(workers: Any, tmp_path: Path) -> None:
    task = workers("offline_task")
    found = task.read(write(tmp_path / "data", 3, TWO))
    assert [each.terminated for each in found.episodes] == [True, False]
    assert [len(each.obs) - len(each.action) for each in found.episodes] == [1, 1]
    every = np.concatenate([each.obs for each in found.episodes])
    np.testing.assert_allclose(every.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(every.std(0), 1, atol=1e-6)
    with h5py.File(tmp_path / "data/data/main_data.hdf5") as file:
        seen, taken = file["episode_1/observations"][...], file["episode_1/actions"][...]
    np.testing.assert_array_equal(found.seen(seen), found.episodes[1].obs)
    np.testing.assert_allclose(found.episodes[1].action, taken / 2, rtol=1e-6)
    np.testing.assert_allclose(found.done(found.episodes[1].action), taken, rtol=1e-5)
    assert found.done(np.array([[7.0]])) == 2.0
    assert not found.discrete
    assert found.actions == 1


def test_ours_are_judged_by_the_same_episodes(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole ones, from the states of the seeds that others begin with, each with a fresh state of the policy."""
    judge, peers, seeds, begun = scripts("offline_judge"), scripts("offline_peers"), [], []

    class Leaning:
        def make_env(self) -> Any:
            env = gymnasium.make("CartPole-v1")
            reset = env.reset
            env.reset = lambda *, seed: seeds.append(seed) or reset(seed=seed)  # type: ignore[method-assign,func-returns-value]
            return env

        def act(self, obs: np.ndarray, state: Any) -> tuple[int, str]:
            begun.extend([1] if state is None else [])
            return int(obs[2] > 0), "going on"

    monkeypatch.setattr(judge.reverie, "load", lambda run, device: Leaning())
    found = judge.judged(Path("run"), 3)
    assert seeds == [peers.FIRST_SEED, peers.FIRST_SEED + 1, peers.FIRST_SEED + 2]
    assert len(begun) == 3
    env, total = gymnasium.make("CartPole-v1"), 0.0
    for seed in seeds:
        obs, over = env.reset(seed=seed)[0], False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(int(obs[2] > 0))
            total, over = total + float(reward), terminated or truncated
    assert found == total / 3


@pytest.fixture
def few(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script of ``peers/`` by name; there are few transitions, in short episodes."""
    monkeypatch.syspath_prepend(str(FOLDER / "peers"))
    rates = scripts("rates")
    monkeypatch.setattr(rates, "ROWS", 60)
    monkeypatch.setattr(rates, "EPISODE", 10)
    return scripts


@pytest.mark.parametrize("task", ["td3", "dqn"])
def test_our_replay_is_filled_with_the_transitions_of_the_others(few: Any, task: str) -> None:
    """Whichever rows a batch has, one after another they are a transition that everybody has."""
    rates, ours = few("rates"), few("rates_reverie")
    every = rates.experience(task)
    learner = ours.config(task).build(ours.SEEN, ours.acts(task))
    replay = ours.filled(task, learner)
    seen = set()
    for _ in range(3):
        batch = replay.sample()
        for b in range(batch.shape[0]):
            t = int((every.obs == batch.obs["observation"][b, 0].numpy()).all(1).argmax())
            seen.add(t)
            action = batch.action[b, 0].argmax() if task == "dqn" else batch.action[b, 0]
            assert torch.equal(action, torch.as_tensor(every.action[t]))
            assert torch.equal(batch.obs["observation"][b, 1], torch.as_tensor(every.next_obs[t]))
            assert batch.reward[b, 1] == every.reward[t]
            assert batch.is_first[b, 0] == (t % 10 == 0)
            assert batch.is_terminal[b, 1] == every.terminated[t]
            assert batch.is_last[b, 1] == (every.terminated[t] or every.truncated[t])
    assert seen >= set(range(50))
