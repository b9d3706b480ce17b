"""Held-out episodes as validation: losses, the best checkpoint and patience, without an environment."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offline_runs import SMALL, train, weights
from reverie.agent.loading import read_config
from reverie.algos.table import algorithm_config
from reverie.core.errors import ConfigError, RunError
from reverie.core.types import Window
from reverie.datasets.config import DatasetConfig
from reverie.datasets.dataset import build_dataset, open_recorded
from reverie.experiment.build import build
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.offline import HeldoutEpisodes
from reverie.log.jsonl import read_metrics
from reverie.run.checkpoint import Checkpoints
from reverie.run.manifest import checkpoint_step

OWN_WINDOWS = ("decision_transformer", "fql", "tdmpc2")
UNMEASURED = {"tdmpc2": {"loss/actor"}}
VALIDATED: dict[str, Any] = {
    "env": "none", "heldout_fraction": 0.25, "schedule.eval_every": 10, "score_metric": "heldout/loss/actor:min",
}  # fmt: skip


def heldout_losses(run: Path) -> dict[int, float]:
    name = "heldout/loss/actor"
    return {row["step"]: row[name] for row in read_metrics(run / "metrics.jsonl", [name]) if name in row}


def test_patience_stops_a_clone_that_overfits_and_keeps_its_best_checkpoint(pendulum: Path, tmp_path: Path) -> None:
    more = VALIDATED | {"algorithm": "bc", "algo.networks.units": (64, 64), "algo.lr": 3e-3, "updates": 190}
    result = train(pendulum, tmp_path / "run", patience=3, **more)
    losses = heldout_losses(tmp_path / "run")
    best = min(losses, key=losses.__getitem__)
    found = Checkpoints(tmp_path / "run/checkpoints").best()
    assert found is not None
    assert (result.updates, checkpoint_step(found)) == (best + 30, best)
    assert result.stop_reason.startswith("patience = 3 (no heldout/loss/actor was better than")
    with pytest.raises(ConfigError, match=r"score_metric = heldout/loss/actr: choose one of heldout/loss/actor\.$"):
        train(pendulum, tmp_path / "wrong", **more | {"score_metric": "heldout/loss/actr"})
    with pytest.raises(ConfigError, match=r"do not log 'eval/score'\. Choose one of heldout/loss/actor\. The run"):
        train(pendulum, tmp_path / "unchosen", patience=3, **more | {"score_metric": "eval/score"})
    config = read_config(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"heldout_fraction = 0\.1 of 4 episodes is less than one episode"):
        build(config.merge({"heldout_fraction": 0.1}))
    with pytest.raises(ConfigError, match=r"heldout_fraction = 0\.25, but heldout_data is set too"):
        build(config.merge({"heldout_data": str(pendulum)}))


def test_a_loss_on_held_out_data_can_rank_agents_that_are_also_evaluated(pendulum: Path, tmp_path: Path) -> None:
    more = VALIDATED | {"env": "Pendulum-v1", "eval_episode_steps": 5, "schedule.eval_every": 2, "updates": 4}
    result = train(pendulum, tmp_path, algorithm="td3_bc", **more)
    losses = heldout_losses(tmp_path)
    found = Checkpoints(tmp_path / "checkpoints").best()
    assert found is not None
    assert checkpoint_step(found) == min(losses, key=losses.__getitem__)
    assert result.evaluation is not None
    last = read_metrics(tmp_path / "metrics.jsonl")[-1]
    assert last.items() >= {"eval/final": 1.0, "heldout/loss/actor": losses[4]}.items()  # a search reads it


def test_held_out_episodes_are_never_learned_from_and_measuring_changes_nothing(pendulum: Path, tmp_path: Path) -> None:
    """Also if the run is resumed, and with the returns-to-go of the same rows."""
    config = {"algo.num_samples": 2, "algo.value_floor": "monte_carlo", "algo.reward_scale": "factor(0.1)"}
    more = VALIDATED | {"algorithm": "cql", "data.estimate_updates": 1} | config
    for run, counts, period in (("plain", (30,), 0), ("parts", (25, 30), 10)):
        for updates in counts:
            train(pendulum, tmp_path / run, updates=updates, **more | {"schedule.eval_every": period})
    plain, parts = (
        {name: value for name, value in weights(tmp_path / run).items() if "estimator" not in name}
        for run in ("plain", "parts")
    )
    assert len(plain) > 10
    torch.testing.assert_close(parts, plain, rtol=0, atol=0)
    assert list(heldout_losses(tmp_path / "parts")) == [10, 20, 25, 30]
    whole = DatasetConfig(path=str(pendulum))
    with contextlib.closing(open_recorded(whole)) as recorded:
        rows = build_dataset(whole, recorded, window=Window(batch=2, length=2), seed=0)
    episode = np.cumsum(rows.column("is_first"))
    with contextlib.closing(build(read_config(tmp_path / "plain"))) as experiment:
        for name in ("obs/observation", "reward", "is_first", "is_last"):
            np.testing.assert_array_equal(experiment.offline.dataset.column(name), rows.column(name)[episode < 4])
    with pytest.raises(RunError, match=r"the dataset differs from the one the run was trained on \(123 rows"):
        train(pendulum, tmp_path / "plain", updates=31, **more | {"heldout_fraction": 0.5})


@given(
    fraction=st.floats(0.01, 0.99), lengths=st.lists(st.integers(1, 4), min_size=1, max_size=30), cut=st.integers(1, 9)
)
def test_held_out_episodes_are_whole_and_evenly_spaced(fraction: float, lengths: list[int], cut: int) -> None:
    first = np.concatenate([np.arange(length) == 0 for length in lengths])
    number = np.cumsum(first)
    heldout = HeldoutEpisodes(fraction)
    parts = ({"is_first": first[i : i + cut], "n": number[i : i + cut]} for i in range(0, len(first), cut))
    kept = [n for part in heldout.remove(parts) for n in part["n"]]
    chosen = [n for part in heldout.parts for n in part["n"]]
    assert sorted(kept + chosen) == number.tolist()
    assert not set(kept) & set(chosen)
    assert len(set(chosen)) == int(np.floor(len(lengths) * fraction))
    np.testing.assert_array_equal(number[np.concatenate(heldout.masks)], chosen)


@pytest.mark.parametrize("algorithm", [
    "decision_transformer", "fql", "sac", "tdmpc2",
    *(pytest.param(name, marks=pytest.mark.nightly) for name in ("bcq", "crr", "iql", "rebrac")),  # by the same lines
])  # fmt: skip
def test_losses_on_held_out_data_have_the_names_of_an_update(pendulum: Path, algorithm: str) -> None:
    small = SMALL if algorithm not in OWN_WINDOWS else {"algo.batch_size": 8, "algo.networks.units": (16,)}
    own = {"data.path": str(pendulum), "device": "cpu", "env.id": "none", "eval_episodes": 0, "heldout_fraction": 0.25}
    config = ExperimentConfig(algo=algorithm_config(algorithm)()).merge(small | own)
    with contextlib.closing(build(config)) as experiment:
        before = {name: value.clone() for name, value in experiment.algo.state_dict()["model"].items()}
        names = {name.removeprefix("heldout/") for name in experiment.heldout()}
        torch.testing.assert_close(experiment.algo.state_dict()["model"], before, rtol=0, atol=0)
        trained = {
            name for _ in range(2) for name in experiment.algo.update(experiment.offline.dataset.sample()).metrics
        }
        assert names == {name for name in trained if name.startswith("loss/")} - UNMEASURED.get(algorithm, set())
