"""Runs that learn from recorded data: alone, and together with what is lived."""

import contextlib
import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
import torch
from gymnasium.wrappers import RescaleAction, TransformReward
from hypothesis import given
from hypothesis import strategies as st

import reverie
from offline_runs import ON_DATA, SMALL, train, weights
from reverie.agent.loading import read_config
from reverie.algos import gail
from reverie.algos.cql import CQLObjective
from reverie.algos.returns_to_go import ReturnToGoAnnotator
from reverie.cli import main
from reverie.core.columns import ColumnSpec
from reverie.core.errors import ConfigError, DataError, EnvError, RunError
from reverie.core.types import Batch, Window
from reverie.datasets import writers
from reverie.datasets.config import DatasetConfig
from reverie.datasets.dataset import open_recorded
from reverie.datasets.dataset_env import check_same_meaning, missing_kwargs_and_wrappers
from reverie.datasets.reader import DatasetInfo
from reverie.envs.config import EnvConfig, Mark, marked
from reverie.envs.make import spec_to_json
from reverie.experiment.build import build
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.dataset_env import with_dataset_env
from reverie.experiment.offline import write_returns
from reverie.replay.config import BatchSamplerConfig
from reverie.replay.offline import OfflineReplay
from reverie.replay.storage import HostStorage
from reverie.run.checkpoint import Checkpoints
from tiny_configs import NETWORKS

MIXED: dict[str, Any] = {"env": "Pendulum-v1", "learning_starts": 10, "random_steps": 5, "replay.capacity": 200,
                         "schedule.save_every": 20, "eval_episodes": 0}  # fmt: skip


def assert_same_weights(one: Path, two: Path, without: str = "nothing") -> None:
    found = [{name: x for name, x in weights(run).items() if not name.endswith(without)} for run in (one, two)]
    assert found[0]
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize(("algorithm", "more"), [
    ("td3", {"algo.normalize_obs": "running", "replay.fractions.priority": 1.0, "replay.fractions.uniform": 0.0}),
    ("cql", {"algo.num_samples": 2, "algo.value_floor": "monte_carlo", "env": "none"}),
    ("decision_transformer", {"algo.batch_length": 4, "algo.networks.memory": "transformer(3, 4, 2)"}),
])  # fmt: skip
def test_a_run_on_data_goes_on_bit_for_bit(pendulum, tmp_path, algorithm, more):
    train(pendulum, tmp_path / "whole", algorithm=algorithm, updates=12, **more)
    for updates in (5, 12):
        assert train(pendulum, tmp_path / "parts", algorithm=algorithm, updates=updates, **more).updates == updates
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")


@given(block=st.integers(1, 6), edge=st.integers(0, 4))
def test_returns_are_those_of_whole_episodes_wherever_they_are_cut(block: int, edge: int) -> None:
    """Of a terminal episode of rewards 1, 2 and one that was cut off, in two parts, whatever is looked at together."""
    rows = {name: np.zeros((5, 1), np.float32) for name in ("obs/state", "action")}
    rows |= {"reward": np.array([0, 1, 2, 0, 5], np.float32), "is_first": np.array([1, 0, 0, 1, 0], bool),
             "is_last": np.array([0, 0, 1, 0, 1], bool), "is_terminal": np.array([0, 0, 1, 0, 0], bool)}  # fmt: skip
    columns = {name: ColumnSpec(values.shape[1:], str(values.dtype)) for name, values in rows.items()}
    columns |= {name: ColumnSpec((), "float32") for name in ("extras/return", "extras/timestep")}
    dataset = OfflineReplay(HostStorage(columns, 1, 5), Window(batch=2, length=2), seed=0, config=BatchSamplerConfig())
    parts = [{name: values[piece] for name, values in rows.items()} for piece in (slice(edge), slice(edge, 5))]
    dataset.fill((part for part in parts if len(part["reward"])), 5)
    for limits, returns in ((False, [-np.inf, -np.inf]), (True, [5, 0])):
        write_returns(dataset, ReturnToGoAnnotator(0.5, ends_at_limits=limits, has_timesteps=limits), block)
        assert dataset.column("extras/return").tolist() == [1 + 0.5 * 2, 2, 0, *returns]
    assert dataset.column("extras/timestep").tolist() == [0, 1, 2, 0, 1]
    assert "extras" not in dataset.fingerprint


@pytest.fixture
def floors(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What updates of Cal-QL take for the returns."""
    seen, apply_floor = [], CQLObjective.apply_floor

    def looked_at(self: CQLObjective, values: torch.Tensor, batch: Batch) -> Any:
        seen.append(batch.extras["return"].clone())
        return apply_floor(self, values, batch)

    monkeypatch.setattr(CQLObjective, "apply_floor", looked_at)
    return seen


CAL_QL: dict[str, Any] = {"algo.value_floor": "monte_carlo", "algo.num_samples": 2, "algo.graph": False}
UNSCALED: dict[str, Any] = CAL_QL | {"algo.reward_scale": None}


class Count(gymnasium.Env[Any, Any]):
    """Episodes of 3, 4, 5, 3, ... steps with a reward of 1 each; every second one ends by the clock."""

    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    episode = -1

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.episode, self.done = self.episode + 1, 0
        return self._seen(), {}

    def _seen(self) -> np.ndarray:
        return np.array([self.done, self.episode % 2], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.done += 1
        over, by_itself = self.done == 3 + self.episode % 3, self.episode % 2 == 0
        return self._seen(), 1.0, over and by_itself, over and not by_itself, {}


def test_returns_of_collected_episodes_are_known_when_they_have_ended(tmp_path, floors):
    """And a run that was stopped in the middle of one sees the same as one that was not."""
    lived = SMALL | UNSCALED | {"env": Count, "learning_starts": 4, "algo.discount": 0.5}
    reverie.train("cql", **lived, run=tmp_path / "whole", steps=60)
    whole, ends = torch.cat(floors), {0.0, 1.0, 1.5, 1.75, 1.875, 1.9375}
    assert {x for x in whole.flatten().tolist() if x > -np.inf} == ends
    assert whole[-40:].isneginf().any()  # of episodes that the clock ended, or that go on
    del floors[:]
    reverie.train("cql", **lived, run=tmp_path / "parts", steps=31)
    reverie.train("cql", **lived, run=tmp_path / "parts", steps=60)
    torch.testing.assert_close(torch.cat(floors), whole, rtol=0, atol=0)
    assert not list((tmp_path / "parts").rglob("return.npy"))


def test_returns_are_those_of_the_discount(pendulum: Path, tmp_path: Path, floors: list[torch.Tensor]) -> None:
    first, later = {"algorithm": "cql", "updates": 2, **UNSCALED}, {"updates": 4, "algo.discount": 0.5}
    with h5py.File(shutil.copy(pendulum, tmp_path / "ended.hdf5"), "a") as file:
        file["terminals"][:], file["timeouts"][:] = file["timeouts"][:], False
    pendulum = tmp_path / "ended.hdf5"
    train(pendulum, tmp_path / "run", **first)
    assert torch.stack(floors).isfinite().all()
    del floors[:]
    train(pendulum, tmp_path / "run", **first | later)
    gone_on = torch.stack(floors)
    del floors[:]
    train(pendulum, tmp_path / "fresh", **first | later)
    assert torch.equal(gone_on, torch.stack(floors[2:]))
    assert not list((tmp_path / "run").rglob("return.npy"))


def test_a_run_on_data_alone(pendulum: Path, tmp_path: Path, said: list[str]) -> None:
    result = train(pendulum, tmp_path / "run", updates=20,
                   **{"env": "Pendulum-v1", "schedule.eval_every": 10})  # fmt: skip
    assert (result.reason, result.updates, result.env_steps) == ("finished", 20, 0)
    assert len(result.evaluation.scores) == 1
    assert any("160 recorded steps in 4 episodes" in line for line in said)
    saved = Checkpoints(tmp_path / "run/checkpoints").paths()
    assert [path.name for path in saved] == ["step-000000010", "step-000000020"]
    assert json.loads((tmp_path / "run/eval.json").read_text())["updates"] == 20
    agent = reverie.load(tmp_path / "run")
    assert agent.evaluate(1).lengths == [200]
    with contextlib.closing(open_recorded(DatasetConfig(path=str(pendulum)))) as recorded:
        assert torch.equal(agent.load_episode(3).reward, recorded.episode(3).reward)


def test_an_episode_is_what_was_recorded(pendulum: Path) -> None:
    with h5py.File(pendulum) as file:
        seen, done, reward = (file[name][80:120] for name in ("observations", "actions", "rewards"))
        largest = np.abs(file["actions"][:]).max()
    with contextlib.closing(open_recorded(DatasetConfig(path=str(pendulum)))) as recorded:
        batch = recorded.episode(2)
    assert (batch.shape, batch.index.tolist()) == ((1, 41), [2])
    np.testing.assert_array_equal(batch.obs["observation"][0, :-1], seen)
    np.testing.assert_allclose(batch.action[0, :-1], done / largest, atol=0.02)
    np.testing.assert_array_equal(batch.reward[0], [0, *reward.astype(np.float32)])
    assert [x[0].nonzero().tolist() for x in (batch.is_first, batch.is_last)] == [[[0]], [[40]]]


def test_a_run_that_goes_on_keeps_the_environment_it_was_evaluated_in(pendulum: Path, tmp_path: Path) -> None:
    """The data name none: what the first command said is not lost."""
    train(pendulum, tmp_path / "run", updates=2, **{"env": "Pendulum-v1"})
    assert train(pendulum, tmp_path / "run", updates=4).evaluation.lengths == [200]


def test_a_look_at_the_agent_leaves_the_final_evaluation_done(pendulum: Path, tmp_path: Path) -> None:
    """Also at an earlier checkpoint: the same command has nothing left to do."""
    run, more = tmp_path / "run", {"env": "Pendulum-v1", "schedule.save_every": 2}
    train(pendulum, run, updates=4, **more)
    own = json.loads((run / "eval.json").read_text())
    assert main(["eval", str(run), "--episodes", "2", "--checkpoint", "step-000000002"]) == 0
    later = json.loads((run / "eval.json").read_text())
    assert (later["updates"], later["episodes"], later["final"]) == (2, 2, own)
    again = train(pendulum, run, updates=4, **more).evaluation
    assert (again.scores, again.lengths) == (own["scores"], own["lengths"])
    assert json.loads((run / "eval.json").read_text()) == later


def test_bounds_of_actions_are_those_of_the_environment(pendulum: Path) -> None:
    """What was recorded as 2 is the largest action there, and 1 to the policy."""
    config = ExperimentConfig().merge({"data.path": str(pendulum), "env.id": "Pendulum-v1", "device": "cpu"})
    with contextlib.closing(build(with_dataset_env(config, None))) as experiment, h5py.File(pendulum) as file:
        found = experiment.offline.dataset.column("action")[:40, 0]
        np.testing.assert_allclose(found, file["actions"][:40, 0] / 2, rtol=1e-6)
        assert experiment.action_spec.parts["action"].high == (2.0,)


def test_dreamer_learns_from_data_alone_and_keeps_its_latents(pendulum: Path, tmp_path: Path) -> None:
    settings = {name: value for name, value in ON_DATA.items() if not name.startswith("algo.")}
    algo = {"batch_size": 2, "batch_length": 8, "horizon": 3, **NETWORKS}
    for run, counts in {"one": (6,), "two": (3, 6)}.items():
        for updates in counts:
            reverie.train("dreamer_v3", data=pendulum, run=tmp_path / run, updates=updates, algo=algo, **settings)
    assert_same_weights(tmp_path / "one", tmp_path / "two")


def test_losses_on_held_out_data_are_measured_and_change_nothing(
    pendulum: Path, tmp_path: Path, cartpole: Path
) -> None:
    given: dict[str, Any] = {name: value for name, value in SMALL.items() if not name.startswith("algo.")} | {
        "env": "Pendulum-v1", "steps": 34, "learning_starts": 3, "eval_episodes": 0, "schedule.report_every": 14,
        "algo": {"batch_size": 2, "batch_length": 8, "horizon": 3, **NETWORKS}, "replay_ratio": 0.5, "envs": 1,
    }  # fmt: skip
    for name, more in {"plain": {}, "measured": {"heldout_data": str(pendulum)}}.items():
        assert reverie.train("dreamer_v3", run=tmp_path / name, **given | more).updates > 5
    assert_same_weights(tmp_path / "plain", tmp_path / "measured")
    entries = [json.loads(line) for line in (tmp_path / "measured/metrics.jsonl").read_text().splitlines()]
    found = [entry["step"] for entry in entries if "heldout/loss/reconstruction/observation" in entry]
    assert found == [14, 28, 34]
    with contextlib.closing(build(read_config(tmp_path / "measured"))) as experiment:
        first = experiment.heldout()
        torch.rand(3)
        assert experiment.heldout() == first  # of the same windows, by the same draws
    with pytest.raises(DataError, match="does not fit the environment Pendulum-v1"):
        reverie.train("dreamer_v3", run=tmp_path / "wrong", **given | {"heldout_data": str(cartpole)})
    with pytest.raises(ConfigError, match=r"ppo has no losses on recorded rows alone"):
        reverie.train("ppo", env="Pendulum-v1", heldout_data=str(pendulum), run=tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_recorded_and_lived_together_go_on_bit_for_bit(pendulum: Path, tmp_path: Path) -> None:
    more = MIXED | {"experience": "mixed", "algo.normalize_obs": "running"}
    for run, counts in {"one": (60,), "two": (30, 60)}.items():
        for steps in counts:
            result = train(pendulum, tmp_path / run, steps=steps, **more)
    assert result.updates > 20
    assert_same_weights(tmp_path / "one", tmp_path / "two")
    assert "experience: mixed(part=0.5)" in (tmp_path / "one/config.yaml").read_text()


def test_imitation_knows_which_rows_are_the_experts(pendulum, tmp_path, monkeypatch, said):
    experts, judge = [], gail.DiscriminatorObjective.forward

    def judged(self, expert, agent):
        experts.append((len(expert.reward), len(agent.reward)))
        return judge(self, expert, agent)

    monkeypatch.setattr(gail.DiscriminatorObjective, "forward", judged)
    more = MIXED | {
        "experience": "mixed(0.3)",
        "algo.discriminator.units": (8,),
    }
    for steps in (30, 60):
        train(pendulum, tmp_path / "run", algorithm="gail", steps=steps, **more)
    assert set(experts) == {(2, 6)}
    assert any("2 of the 8 windows of a batch" in line for line in said)


@pytest.mark.parametrize(
    ("algorithm", "setting", "told"),
    [("bc", {"replay.fractions.priority": 1.0}, r"replay.fractions.priority = 1.0, but the algorithm computes no"),
     ("bc", {"replay.sequential": True}, r"replay.sequential = True, but .* no context rows"),
     ("td3", {"replay.sequential": True, "algo.frame_stack": 3, "algo.frame_stack_keys": ".*"},
      "replay.sequential = True, but")],
)  # fmt: skip
def test_ways_of_drawing_that_would_mean_nothing_are_refused(pendulum, tmp_path, algorithm, setting, told):
    with pytest.raises(ConfigError, match=told):
        train(pendulum, tmp_path / "run", algorithm=algorithm, updates=1, **setting)
    assert not (tmp_path / "run").exists()


def test_imitation_needs_recorded_rows_and_lived_ones(pendulum: Path, tmp_path: Path, said: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"gail collects rows, but no environment is given\. Pass --env ID"):
        train(pendulum, tmp_path / "run", algorithm="gail")
    assert not said  # about where to evaluate, which does not matter then
    with pytest.raises(ConfigError, match=r"gail .* no dataset was given\. Pass --data PATH"):
        reverie.train("gail", "Pendulum-v1", run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_an_environment(pendulum: Path, tmp_path: Path, said: list[str]) -> None:
    result = train(pendulum, tmp_path / "run", updates=3)
    assert result.evaluation is None
    assert any("no evaluations: the dataset does not name its environment. Pass --env" in line for line in said)
    agent = reverie.load(tmp_path / "run")
    assert f" on {pendulum}, from " in repr(agent)
    assert reverie.load(tmp_path / "run", env="Pendulum-v1").evaluate(1).lengths == [200]
    train(pendulum, tmp_path / "none", updates=3, **{"env": "none"})


def test_an_agent_without_an_environment_acts_as_recorded(pendulum: Path, tmp_path: Path, said: list[str]) -> None:
    """Its actions are those in the environment whose spaces the data have; there is nothing to play."""
    train(pendulum, tmp_path / "run", updates=3, **{"env": "none"})
    said.clear()
    agent = reverie.load(tmp_path / "run")
    assert not said
    other = reverie.load(tmp_path / "run", env="Pendulum-v1")
    (line,) = said  # of bounds that were measured from the data
    assert re.match(r"action 'action' is .* in the data, but .*-2\.\.2 in the environment: the agent was trained", line)
    with h5py.File(pendulum) as file:
        low, high = file["actions"][:].min(0), file["actions"][:].max(0)
    assert agent.action_space == gymnasium.spaces.Box(low, high, dtype=np.float32)
    assert agent.observation_space == gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    assert other.observation_space == gymnasium.make("Pendulum-v1").observation_space
    obs = np.array([0.6, -0.8, 2.0], np.float32)
    middle, half = (high + low) / 2, (high - low) / 2
    np.testing.assert_allclose(agent.act(obs)[0], middle + half * other.act(obs)[0] / 2.0, rtol=1e-5)
    with pytest.raises(EnvError, match=r"a dataset alone, so there is no environment to play .* --env ID"):
        agent.evaluate(1)


class Sole(Count):
    """A simulator that can be open once, and whose end is an error."""

    running = 0

    def __init__(self) -> None:
        assert not Sole.running
        Sole.running += 1

    def close(self) -> None:
        Sole.running -= 1
        raise RuntimeError("the server had gone before")


def test_environments_made_to_look_at_them_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gymnasium.registry, "Sole-v0", gymnasium.envs.registration.EnvSpec("Sole-v0", Sole))
    few = {
        **SMALL,
        "eval_episodes": 0,
        "learning_starts": 10,
        "random_steps": 10,
        "steps": 20,
    }
    reverie.train("td3", "Sole-v0", run=tmp_path / "lived", **few)
    reverie.train("td3", Sole, data=tmp_path / "lived", run=tmp_path / "mixed", experience="mixed", **few)
    train(tmp_path / "lived", tmp_path / "alone", updates=3, eval_episodes=0)
    assert not Sole.running


def test_data_that_changed(pendulum: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(pendulum, tmp_path / "data.hdf5"))
    train(path, tmp_path / "run", updates=3)
    with h5py.File(path, "a") as file:
        file["rewards"][7] += 1.0
    with pytest.raises(RunError, match=r"differs from the one the run was trained on \(164 rows saved, 164 rows found"):
        train(path, tmp_path / "run", updates=6)
    shutil.copy(pendulum, path)
    assert train(path, tmp_path / "run", updates=6).updates == 6


def test_what_does_not_fit(pendulum: Path, tmp_path: Path) -> None:
    said = r"does not fit the environment CartPole-v1: .* is vector \(3,\) in the data, but \(4,\) in CartPole-v1; "
    with pytest.raises(DataError, match=said + r"action .*categorical of 2"):
        train(pendulum, tmp_path / "run", **{"env": "CartPole-v1"})
    with pytest.raises(DataError, match="does not fit the environment MountainCarContinuous-v0"):
        train(pendulum, tmp_path / "run", env="MountainCarContinuous-v0", steps=10, experience="mixed")
    with pytest.raises(ConfigError, match=r"experience = mixed\(0\.5\): of the 1 windows"):
        train(pendulum, tmp_path / "run", env="Pendulum-v1", steps=10, experience="mixed", **{"algo.batch_size": 1})
    with pytest.raises(ConfigError, match="discrete_sac is for discrete or multi_discrete actions, but"):
        reverie.train("discrete_sac", data=pendulum, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_on_data_in_memory(pendulum: Path, tmp_path: Path) -> None:
    """It is that on the file, bit for bit, also if it goes on; the data must then be passed again."""
    with h5py.File(pendulum) as file:
        arrays = {
            name: np.array(file[name]) for name in ("observations", "actions", "rewards", "terminals", "timeouts")
        }
        np.savez(tmp_path / "same.npz", **arrays)
    train(tmp_path / "same.npz", tmp_path / "whole", updates=6, env="Pendulum-v1")
    train(arrays, tmp_path / "run", updates=3, env="Pendulum-v1")
    with pytest.raises(DataError, match=r"passed in memory \(dict\).*Pass them again in Python, data="):
        reverie.train("td3", run=tmp_path / "run", updates=6)
    with pytest.raises(RunError, match="'object:dict': the dataset differs from the one the run was trained on"):
        train({**arrays, "rewards": arrays["rewards"] + 1}, tmp_path / "run", updates=6)
    train({"path": arrays}, tmp_path / "run", updates=6)
    assert_same_weights(tmp_path / "whole", tmp_path / "run")
    one, two = (reverie.load(tmp_path / "run").load_episode(1, data) for data in (arrays, tmp_path / "same.npz"))
    assert torch.equal(one.obs["observation"], two.obs["observation"])
    with pytest.raises(ConfigError, match="data = object:dict: each seed runs in its own process"):
        reverie.train_seeds("td3", data=arrays, run=tmp_path / "seeds")
    with pytest.raises(ConfigError, match=r"'observations'.*expected a path") as told:
        train([{"observations": np.zeros((200, 3))}] * 100, tmp_path / "none")
    assert len(str(told.value)) < 500
    assert not (tmp_path / "none").exists()


def test_rewards_that_are_shifted_teach_what_shifted_data_do(pendulum: Path, tmp_path: Path) -> None:
    """Also where windows hold several episodes, whose first rows have no reward, and in the bounds of values."""
    with h5py.File(pendulum) as file:
        arrays = {name: np.array(values) for name, values in file.items()}
    shifted = arrays | {"rewards": arrays["rewards"].astype(np.float32) * np.float32(0.5) - np.float32(1)}
    more: dict[str, Any] = {"algorithm": "crr", "env": "none", "updates": 4, "algo.value_estimator": "n_step(3)"}
    more |= {"algo.batch_length": 30, "algo.batch_size": 16}
    train(arrays, tmp_path / "by setting", **more, **{"algo.reward_scale": "affine(0.5, -1)"})
    train(shifted, tmp_path / "by data", **more, **{"algo.reward_scale": None})
    assert_same_weights(tmp_path / "by setting", tmp_path / "by data", without="preprocess.range.rewards")  # not scaled
    both = {"algo.value_floor": "monte_carlo", "algo.reward_scale": "affine(1, -1)"}
    with pytest.raises(ConfigError, match=r"affine.*floor = monte_carlo: the returns .* are not shifted"):
        train(arrays, tmp_path / "cql", algorithm="cql", **both)


def test_a_run_on_several_datasets(pendulum: Path, tmp_path: Path, said: list[str]) -> None:
    train([pendulum, pendulum], tmp_path / "run", updates=2, env="none", steps=10)
    assert any("320 recorded steps in 8 episodes" in line for line in said)
    assert any("7.87 kB of recorded rows" in line for line in said)  # all of them, whatever the steps
    words = ["train", "td3", "--data", str(pendulum), str(pendulum), "--updates", "3"]
    assert main([*words, "--run", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize(("form", "looks"), [("minari", 3), ("d4rl", 1)])
def test_a_disk_that_fills_up(pendulum, tmp_path, monkeypatch, capsys, form, looks):
    """HDF5 would end the process: its end is not waited for, and nothing half-written stays."""
    usage, left = shutil.disk_usage, [10**9] * (looks - 1)
    filling = lambda path: usage(path)._replace(free=left.pop() if left else 10**4)  # noqa: E731
    monkeypatch.setattr("reverie.datasets.output.shutil.disk_usage", filling)
    assert main(["data", "convert", str(pendulum), str(tmp_path / "copy"), "--format", form]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("form", "name", "copied"),
    [("minari", "check_room", writers.check_room), ("parquet", "transitions_of", writers.transitions_of)],
)
def test_a_signal_that_a_library_swallows_ends_a_copy_all_the_same(
    pendulum, tmp_path, monkeypatch, capsys, form, name, copied
):
    def swallowing(*given: Any) -> Any:
        with contextlib.suppress(BaseException):  # as Python does where a callback raises
            signal.raise_signal(signal.SIGTERM)
        return copied(*given)

    monkeypatch.setattr(writers, name, swallowing)
    assert main(["data", "convert", str(pendulum), str(tmp_path / "copy"), "--format", form]) == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- recorded and collected rows are of one task


def about(**told: Any) -> DatasetInfo:
    space = gymnasium.spaces.Box(-1, 1, (1,))
    return DatasetInfo(observation=space, action=space, **told)


@pytest.mark.parametrize(("was", "now", "name"), [
    ({"action_repeat": 2}, {}, "action_repeat"),
    ({"action_repeat": 4, "pool_frames": 2}, {"action_repeat": 4}, "pool_frames"),
    ({"clip_reward": "sign"}, {}, "clip_reward"),
    ({"truncate_at_limit": True}, {}, "truncate_at_limit"),
    ({"truncate_at_limit": False}, {"truncate_at_limit": True}, "truncate_at_limit"),
    ({"fire_on_reset": False}, {"fire_on_reset": True}, "fire_on_reset"),
    ({"terminal_on_life_loss": False}, {"terminal_on_life_loss": True}, "terminal_on_life_loss"),
    ({"filtered_action": "executed"}, {"filtered_action": "policy"}, "filtered_action"),
    ({"clip_reward": "sign"}, {"clip_reward": "sign"}, ""),
    ({"noop_max": 30, "max_episode_steps": 9, "num": 4}, {}, ""),
    ({}, {}, ""),
])  # fmt: skip
def test_settings_that_change_what_rows_mean(was: dict[str, Any], now: dict[str, Any], name: str) -> None:
    data, env = about(env_settings=was), EnvConfig().merge(now)
    if not name:
        check_same_meaning(data, env)
        return
    assert name in marked(Mark.MEANING)
    said = rf"env\.{name} = {getattr(env, name)}: the rows were recorded with env\.{name} = {was[name]}, .*Set env\."
    with pytest.raises(ConfigError, match=said):
        check_same_meaning(data, env)


def test_two_tasks_are_not_mixed_in_silence(tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    few = SMALL | {"steps": 30, "eval_episodes": 0, "learning_starts": 10, "random_steps": 10}
    reverie.train("td3", "Pendulum-v1", run=data, env_options={"action_repeat": 2}, **few)
    with pytest.raises(ConfigError, match=r"env\.action_repeat = 1: the rows were recorded with .* = 2, but"):
        reverie.train("td3", "Pendulum-v1", data=data, run=run, experience="mixed", **few)
    assert not run.exists()


def test_wrappers_of_the_environment_are_compared() -> None:
    plain, scaled = gymnasium.make("Pendulum-v1"), RescaleAction(gymnasium.make("Pendulum-v1"), -1, 1)
    data = about(env="mine:Pendulum-v1", env_spec=json.loads(spec_to_json(scaled.spec)[0]))
    assert missing_kwargs_and_wrappers(data, plain.spec) == ["gymnasium.wrappers.transform_action:RescaleAction"]
    assert missing_kwargs_and_wrappers(data, scaled.spec) == missing_kwargs_and_wrappers(data, None) == []
    assert missing_kwargs_and_wrappers(data, gymnasium.spec("CartPole-v1")) == []  # chosen by its id
    assert missing_kwargs_and_wrappers(about(env="Pendulum-v1"), TransformReward(plain, float).spec) == []


def test_rewards_are_needed_only_to_learn_from_them(pendulum: Path, tmp_path: Path, capsys: Any) -> None:
    with h5py.File(pendulum) as file:
        data = {name: file[name][:60] for name in ("observations", "actions", "terminals")}
    more: dict[str, Any] = {"env": "none", "updates": 2, "console": True, "data.estimate_updates": 1}
    result = train(data, tmp_path / "bc", algorithm="bc", **more)
    assert result.updates == 2  # and no estimate of returns
    assert "in 1 episode of object:dict: no rewards" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(DataError, match=r"object:dict has no rewards, which iql needs.*--reward-fn module:function"):
        train(data, tmp_path / "iql", algorithm="iql", **more)
    with pytest.raises(DataError, match="has no rewards, which an estimate needs"):
        reverie.estimate_return(tmp_path / "bc", data=data, updates=1)


def test_world_models_learn_without_rewards_unless_others_have_them(
    pendulum: Path, tmp_path: Path, capsys: Any
) -> None:
    with h5py.File(pendulum) as old, h5py.File(tmp_path / "data.hdf5", "w") as file:
        for name in ("observations", "actions", "terminals"):
            file[name] = old[name][:60]
    given: dict[str, Any] = {name: value for name, value in SMALL.items() if not name.startswith("algo.")} | {
        "env": "none", "data": tmp_path / "data.hdf5", "updates": 1, "console": True,
        "algo": {"batch_size": 2, "batch_length": 8, "horizon": 3, **NETWORKS},
    }  # fmt: skip
    reverie.train("dreamer_v3", run=tmp_path / "run", **given)
    said = " ".join(capsys.readouterr().out.split())
    assert "there are no rewards: the world model predicts 0, and the actor learns nothing" in said
    heldout = {"heldout_data": str(tmp_path / "data.hdf5"), "data": pendulum}
    with pytest.raises(DataError, match="has no rewards, which heldout_data needs"):
        reverie.train("dreamer_v3", run=tmp_path / "wrong", **given | heldout)
