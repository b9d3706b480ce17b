"""Runs whose networks see rows normalized, stacked and with scaled rewards, from the first step to the loaded agent."""

import contextlib
import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import reverie
from reverie.api import train_config as train
from reverie.core.errors import ConfigError
from reverie.experiment.build import build
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.settings import Request, merge_layers
from reverie.run.checkpoint import Checkpoints, read_checkpoint
from reverie.run.turn import to_executed_action
from reverie.store.store import ReplayStore

SMALL = {
    "steps": 120, "replay_ratio": 0.5, "learning_starts": 20, "random_steps": 30, "env.num": 2,
    "env.vectorization": "sync", "eval_episodes": 2, "eval_envs": 2, "threads": 1, "seed": 0, "console": False,
    "tensorboard": False,
    "replay.capacity": 90, "algo.batch_size": 8, "algo.networks.units": (8,), "schedule.eval_every": 40,
    "algo.normalize_obs": None, "algo.reward_scale": None,
}  # fmt: skip
ENVS = {"td3": "reverie/Match-v0", "discrete_sac": "reverie/Look-v0"}


def settings(name: str, **more: Any) -> ExperimentConfig:
    depth = {"algo.networks.encoder": "dreamer(depth=2)"} if name == "discrete_sac" else {}
    return merge_layers(Request(algorithm=name, env=ENVS[name])).merge(SMALL | {"env.id": ENVS[name]} | depth | more)


def learned(run: Path) -> dict[str, torch.Tensor]:
    return read_checkpoint(Checkpoints(run / "checkpoints").latest(), ["algo"])["algo"]["model"]


def stored(run: Path) -> dict[str, np.ndarray]:
    """All rows of a run, ``[N, n, ...]``."""
    store = ReplayStore(run / "replay")
    chunks = [chunk.rows for chunk in store.read(store.segments[-1])]
    return {name: np.concatenate([rows[name] for rows in chunks], 1) for name in chunks[0]}


def test_running_statistics_are_of_every_row_that_was_lived(tmp_path: Path) -> None:
    """Not of those of evaluations, of which there are more. The row that was current at the end was never acted on."""
    config = settings("td3", **{"algo.normalize_obs": "running", "algo.reward_scale": "return_std"})
    train(config, run=tmp_path / "run")
    rows, model = stored(tmp_path / "run"), learned(tmp_path / "run")
    seen = rows["obs/observation"].reshape(-1).astype(np.float64)
    count, mean, spread = model["preprocess.normalizer.parts.0.moments"][:, 0].tolist()
    assert count == len(seen) > 120
    assert mean == pytest.approx(seen.mean())
    assert np.sqrt(spread / count) == pytest.approx(seen.std())
    assert rows["reward"].min() == -16  # the true ones, and no other are measured
    first, returns = rows["is_first"], np.zeros_like(rows["reward"], np.float64)
    for t in range(1, returns.shape[1]):
        returns[:, t] = np.where(first[:, t], 0.0, 0.99 * returns[:, t - 1] + rows["reward"][:, t])
    assert 1 / float(model["preprocess.rewards.factor"]) == pytest.approx(returns[~first].std(), rel=1e-5)


def test_a_replay_that_begins_with_rows_gives_its_statistics(tmp_path: Path) -> None:
    train(settings("td3"), run=tmp_path / "first")
    rows = {"replay.init_from": [str(tmp_path / "first")], "random_steps": 0}
    config = settings("td3", **{"algo.normalize_obs": "running", **rows})
    built = build(config, run=tmp_path / "second")
    with contextlib.closing(built):
        built.store.check_writable()
        built.begin()
        normalizer = built.algo.preprocess.normalizer
        held = built.replay.storage.read(built.replay.oldest, built.replay.count)["obs/observation"]
        assert normalizer.count == held.size > 80
        assert float(normalizer.parts[0].shift) == pytest.approx(held.mean(), rel=1e-5)


def test_scores_and_rows_keep_true_rewards(tmp_path: Path) -> None:
    results = {}
    for name, scale in {"plain": None, "scaled": "factor(0.001)"}.items():
        config = settings("td3", **{"algo.reward_scale": scale, "learning_starts": 1000})  # nothing is learned
        results[name] = train(config.merge({"replay.capacity": 3000}), run=tmp_path / name).evaluation
    assert results["plain"].scores == results["scaled"].scores
    assert np.array_equal(stored(tmp_path / "plain")["reward"], stored(tmp_path / "scaled")["reward"])


@pytest.mark.parametrize("name", ENVS)
def test_a_loaded_agent_sees_as_the_learner_does(name: str, tmp_path: Path) -> None:
    """One observation after the other, and several episodes at once, of which one begins anew in between."""
    keys = {"algo.normalize_obs": "running"} if name == "td3" else {}
    config = settings(name, **{"algo.frame_stack": 3, "algo.frame_stack_keys": ".*", **keys})
    train(config, run=tmp_path / "run")
    agent, rebuilt = reverie.load(tmp_path / "run"), build(config)
    rebuilt.algo.load_state_dict(
        read_checkpoint(Checkpoints(tmp_path / "run" / "checkpoints").latest(), ["algo"])["algo"]
    )
    env = rebuilt.envs.evaluation
    step, inner = env.reset(3), rebuilt.algo.policy.initial(2)
    key = next(iter(step.obs))
    alone, together = [None, None], None
    for _ in range(25):
        expected, inner = rebuilt.algo.policy.act(step, inner, "eval")
        raw = step.obs[key].numpy()
        decoded = [agent.codec(action) for action in expected.numpy()]
        both, together = agent.act(raw, together, is_first=step.is_first.numpy())
        for i in range(2):
            action, alone[i] = agent.act(raw[i], None if step.is_first[i] else alone[i])
            np.testing.assert_allclose(action, decoded[i], rtol=1e-5, atol=1e-6)  # products of one row round otherwise
            assert np.array_equal(np.asarray(both)[i], decoded[i])
        step = env.step(to_executed_action(expected, step))
    rebuilt.close()
    assert agent.evaluate(2, seed=5).scores == agent.evaluate(2, seed=5).scores


def test_priorities_are_written_and_weights_are_learned_from() -> None:
    """What an update says of a window is its priority from then on; its loss counts as much as its weight says."""
    more = {"replay.fractions.uniform": 0, "replay.fractions.priority": 1, "replay.online_queue": False,
            "env.id": "reverie/Match-v0", "algo.frame_stack": 3, "algo.frame_stack_keys": ".*"}  # fmt: skip
    built = build(merge_layers(Request(algorithm="sac", env="reverie/Match-v0")).merge(SMALL | more))
    while len(built.replay) < 40:
        built.collector.collect()
    priorities = built.replay.batch_sampler.priorities
    for _ in range(3):
        batch = built.replay.sample()
        alone = copy.deepcopy(built.algo)
        update = built.algo.update(batch)
        built.replay.feedback(batch.index, update)
        said = dict(zip(batch.index.tolist(), update.priority.tolist(), strict=True))
        kept = priorities.priority[np.array(list(said)) % len(priorities.priority)]
        assert kept == pytest.approx(np.array(list(said.values())) + 1e-6)
    assert batch.weight.min() < 1
    torch.manual_seed(0)
    heavy = alone.update(replace(batch, weight=2 * batch.weight)).metrics["loss/critic"]
    assert heavy != update.metrics["loss/critic"]
    built.close()


@pytest.mark.parametrize(("more", "said"), [
    ({"algo.normalize_obs": "fixed(31)"}, "random_steps = 30, learning_starts = 20"),
    ({"algo.frame_stack": 2}, r"'\.\*' stacks everything. The observations are: 'observation' \(vector\)"),
    ({"algo.frame_stack": 2, "algo.frame_stack_keys": "observatio"},
     "frame_stack_keys = 'observatio': no observation matches"),
    ({"algo.frame_stack": 2, "algo.frame_stack_keys": ".*", "env.frame_stack": 2}, "frames would be stacked twice"),
    ({"algo.frame_stack": 2, "algo.frame_stack_keys": ".*", "replay.sequential": True}, "replay.sequential = True"),
    ({"algo.value_estimator": "td_lambda(0.9)"}, r"td_lambda\(lam=0.9\), algo.batch_length = 2: .* equals td0"),
    ({"algo.frame_stack": 200, "algo.frame_stack_keys": ".*", "replay.capacity": 1}, "replay.capacity = 1"),
])  # fmt: skip
def test_settings_that_contradict_each_other_leave_nothing(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        train(settings("td3", **more), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
