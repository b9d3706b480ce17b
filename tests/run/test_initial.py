"""Runs that begin with the agent of another one."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
import torch

import reverie
from log_capture import logged
from reverie.agent.loading import load
from reverie.algos.dreamer_v3 import DreamerV3, DreamerV3Config, with_size
from reverie.core.errors import ReverieError, RunError
from reverie.run.folder import read_saved_config

SMALL: dict[str, Any] = {
    "threads": 1, "eval_episodes": 0, "tensorboard": False, "console": False, "algo.batch_size": 8,
    "algo.networks.units": (8,),
}  # fmt: skip
LIVED = {"env": "Pendulum-v1", "replay_ratio": 0, "random_steps": 0}
ON_POLICY = {"replay_ratio": None, "env.num": 1, "algo.rollout": 16, "algo.normalize_obs": "running"}
LEARNING = LIVED | {"replay_ratio": 1, "learning_starts": 30}


def train(run: Path, algorithm: str = "td3_bc", **more: Any) -> list[str]:
    """What it said."""
    no_estimates = {"data.estimate_updates": 0} if "data" in more else {}
    with logged() as said:
        reverie.train(algorithm, run=run, **SMALL | no_estimates | more)
    return said


def learner(run: Path) -> dict[str, Any]:
    """Networks and optimizers; statistics go on with what is lived."""
    state = dict(load(run, env="Pendulum-v1").algo.state_dict())
    return state | {"model": {k: v for k, v in state["model"].items() if not k.startswith("preprocess.")}}


def seen(run: Path) -> torch.Tensor:
    """What observations are multiplied by."""
    return load(run, env="Pendulum-v1").algo.state_dict()["model"]["preprocess.normalizer.parts.0.factor"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise in the shape of Pendulum, whose observations are far from 0."""
    return noise(tmp_path_factory.mktemp("data") / "noise.hdf5", spread=3)


def noise(path: Path, spread: float) -> Path:
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file["observations"] = rng.normal(5, spread, (200, 3)).astype(np.float32)
        file["actions"] = rng.uniform(-2, 2, (200, 1)).astype(np.float32)
        file["rewards"] = rng.normal(size=200).astype(np.float32)
        file["terminals"] = np.zeros(200, bool)
        file["timeouts"] = np.arange(200) % 40 == 39
    return path


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    run = tmp_path_factory.mktemp("runs") / "offline"
    train(run, data=data, updates=30, **{"env": "none", "algo.reward_scale": None})
    return run


@pytest.mark.parametrize(("here", "there"), [(None, "return_std"), ("return_std", None)])
def test_values_in_other_units_are_refused(here, there, data, tmp_path):
    train(tmp_path / "one", data=data, updates=3, **{"env": "none", "algo.reward_scale": there})
    with pytest.raises(RunError, match=r"rewards are scaled by running returns .*: set algo\.reward_scale as there"):
        train(tmp_path / "two", init_from=str(tmp_path / "one"), steps=20, **LIVED, **{"algo.reward_scale": here})


@pytest.mark.parametrize("beside", [False, True])
def test_a_run_that_lives_begins_with_the_agent_of_one_that_did_not(offline, beside, tmp_path):
    other = noise(tmp_path / "other.hdf5", spread=300)  # with which that agent has nothing to do
    more = {"data": other, "experience": "mixed(0.5)"} if beside else {}
    said = train(tmp_path / "run", init_from=str(offline), steps=20, **LIVED, **more)  # learning never starts
    assert any(line.startswith(f"starting with the agent of {offline}/checkpoints/step-") for line in said)
    torch.testing.assert_close(learner(tmp_path / "run"), learner(offline), rtol=0, atol=0)
    torch.testing.assert_close(seen(tmp_path / "run"), seen(offline), rtol=0.2, atol=0)  # of the data, 20 rows aside


@pytest.mark.parametrize("parts", [(), ("objective.actor", "preprocess")])
def test_it_learns_on_and_goes_on_although_that_run_is_gone(offline, parts, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(offline, moved)
    learning = LEARNING | {"init_from": str(moved), "init_modules": parts}
    train(tmp_path / "once", steps=60, **learning)
    train(tmp_path / "twice", steps=45, **learning)
    shutil.rmtree(moved)
    said = train(tmp_path / "twice", steps=60, **learning)
    assert not [line for line in said if "beginning with" in line]
    torch.testing.assert_close(learner(tmp_path / "twice"), learner(tmp_path / "once"), rtol=0, atol=0)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(learner(tmp_path / "once"), learner(offline), rtol=0, atol=0)


def test_what_a_run_began_with_stays_what_it_was(offline, tmp_path):
    run = tmp_path / "run"
    train(run, init_from=str(offline), steps=20, **LIVED)
    settings = (run / "config.yaml").read_text()
    for other in (
        {"init_from": str(run)},
        {"replay.init_from": [str(run)]},
        {"init_from": str(offline), "init_modules": "actor"},
    ):
        with pytest.raises(RunError, match=rf"only to a new run, but {run} started with .* choose another --run"):
            train(run, steps=30, **LIVED | other)
    assert (run / "config.yaml").read_text() == settings
    said = train(run, steps=25, **LIVED)  # without saying it again, and then as it is not written there
    said += train(run, steps=30, init_from=f"{offline}/", **LIVED)
    assert not [line for line in said if "init" in line]
    assert read_saved_config(run).experiment["init_from"] == str(offline)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"init_from": "nothing"}, r"init_from = 'nothing': expected a run folder, a checkpoint in one"),
        (
            {"algorithm": "sac"},
            r"actor of td3_bc does not match the actor of sac: .*widths is \(3, 8, 1\) in the checkpoint, \(3, 8, 2\)",
        ),
        (ON_POLICY | {"algorithm": "ppo"}, r"tanh is \(False, True\) in the checkpoint, \(True, False\) here"),
        ({"algorithm": "ddpg"}, r"normalized in the checkpoint but not here: set algo.normalize_obs = running"),
        ({"algorithm": "td3"}, r"normalized in the checkpoint but not here: set algo.normalize_obs = running"),
        ({"algorithm": "bcq"}, r"bcq has no actor"),
        (
            {"init_modules": ["preprocess", "actor"]},
            r"init_modules = 'actor': no parameter name matches. There are: objective.actor",
        ),
        ({"init_modules": "obj.*actor", "algo.networks.units": (9,)}, r"nothing matches: objective.actor.body.widths"),
        ({"init_from": None, "init_modules": "actor"}, r"no run to load them from\. Set init_from"),
        ({"env": "MountainCarContinuous-v0"}, r"the environment differs from the one that .*offline was trained on"),
        ({"algo.networks.units": (9,)}, r"does not fit these settings"),
    ],
)
def test_what_cannot_be_begun_with_leaves_nothing(offline, more, message, tmp_path):
    options = {"algorithm": "td3_bc", "init_from": str(offline), "steps": 20, **LIVED, **more}
    with pytest.raises(ReverieError, match=message):
        train(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- parts


def model(run: Path, **more: Any) -> dict[str, torch.Tensor]:
    return load(run, **more).algo.state_dict()["model"]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> set[str]:
    """Names of the parameters that are equal in both, of those that were drawn."""
    drawn = {name for name in one.keys() & other.keys() if one[name].is_floating_point() and one[name].ndim > 1}
    return {name for name in drawn if torch.equal(one[name], other[name])}


def test_ppo_begins_with_the_clone_of_an_expert(tmp_path):
    """With the actor, the statistics that it was trained with, and so the return."""
    columns: dict[str, list[Any]] = {"observations": [], "actions": [], "rewards": [], "terminals": [], "timeouts": []}
    env = gymnasium.make("CartPole-v1", max_episode_steps=100)
    for seed in range(5):
        obs, ends = env.reset(seed=seed)[0], (False, False)
        while not any(ends):
            action = int(obs[2] + 0.3 * obs[3] > 0)
            after, reward, *ends, _ = env.step(action)
            for column, value in zip(columns.values(), (obs, action, reward, *ends), strict=True):
                column.append(value)
            obs = after
    with h5py.File(tmp_path / "expert.hdf5", "w") as file:
        for name, values in columns.items():
            file[name] = np.array(values)
    small = {"env": "CartPole-v1", "env.max_episode_steps": 100, "eval_episodes": 5, "algo.networks.units": (16,)}
    clone, tuned = tmp_path / "clone", tmp_path / "tuned"
    train(clone, "bc", data=tmp_path / "expert.hdf5", updates=300, **small, **{"algo.batch_size": 64, "algo.lr": 3e-3})
    ppo = small | ON_POLICY | {"algo.networks.activation": "relu"}
    slowly = {"algo.lr": [[0, 0.0], [1e9, 3e-4]]}
    said = train(tuned, "ppo", init_from=str(clone), steps=16, **ppo, **slowly)
    rows = len(columns["actions"])
    path = clone / "checkpoints" / "step-000000300"
    assert said[:3] == [
        f"starting with parts of the agent of {path}: preprocess, objective.network.actor",
        "re-initialized: objective.network.critic, optimizers",
        f"observations are normalized by the statistics of {path}, of {rows} rows",
    ]
    scores = [json.loads((run / "eval.json").read_text())["score"]["mean"] for run in (clone, tuned)]
    assert scores[0] == scores[1] > 80
    assert model(tuned)["preprocess.normalizer.parts.0.moments"][0, 0] == rows + 16


def test_of_another_algorithm_the_actor_is_taken_and_its_target_follows(offline, tmp_path):
    train(tmp_path / "run", "ddpg", init_from=str(offline), steps=20, **LIVED, **{"algo.normalize_obs": "running"})
    found, had = model(tmp_path / "run"), model(offline, env="Pendulum-v1")
    names = {"objective.actor.body.theta", "objective.target_actor.model.body.theta"}
    assert same(found, had) == {"objective.actor.body.theta"}
    assert len({tuple(found[name].flatten().tolist()) for name in names}) == 1


class Renamed(gymnasium.ObservationWrapper):
    """Pendulum with its numbers under another key."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("Pendulum-v1"))
        self.observation_space = gymnasium.spaces.Dict({"other": self.env.observation_space})

    def observation(self, observation: Any) -> dict[str, Any]:
        return {"other": observation}


def test_parts_are_taken_without_optimizers_and_statistics_only_of_the_same_observations(offline, tmp_path):
    parts = {"init_from": str(offline), "init_modules": [r"objective\.critic", "preprocess"]}
    said = train(tmp_path / "run", steps=20, **LIVED, **parts)
    critics = {"objective.critic.body.theta", "objective.target_critic.model.body.theta"}
    found, had = load(tmp_path / "run").algo.state_dict(), load(offline, env="Pendulum-v1").algo.state_dict()
    assert same(found["model"], had["model"]) == {"objective.critic.body.theta"}
    assert torch.equal(*(found["model"][name] for name in critics))
    assert had["critic_optim"]["updates"] > 0 == found["critic_optim"]["updates"]
    assert said[1] == "re-initialized: objective.actor, objective.target_actor, optimizers"
    assert "200 rows" in said[2]
    with pytest.raises(RunError, match="'preprocess', nothing matches"):
        train(tmp_path / "not", steps=20, **LIVED | {"env": Renamed}, **parts)
    said = train(tmp_path / "other", steps=20, **LIVED | {"env": Renamed}, **parts | {"init_modules": "."})
    assert any("observation 'other' (vector (3,)) is missing in the run" in line for line in said)
    assert [line for line in said if "normalized" in line] == ["observations are normalized by new rows"]


@dataclass(frozen=True, kw_only=True)
class MyConfig(DreamerV3Config):
    """A variant with one more network."""


class My(DreamerV3):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.head: torch.nn.Linear = torch.nn.Linear(3, 2).requires_grad_(False)


MyConfig.learner = My


def test_a_variant_begins_with_the_networks_that_fit(tmp_path):
    small = {k: v for k, v in SMALL.items() if "networks" not in k} | {"replay_ratio": 0, "steps": 40}
    small |= {"env": "CartPole-v1", "algo.batch_length": 8}
    base, tiny = tmp_path / "base", with_size("nano").merge({"rssm.deter": 16, "rssm.hidden": 8})
    reverie.train(tiny, run=base, **small)
    mine = MyConfig(**{f.name: getattr(tiny, f.name) for f in fields(DreamerV3Config)}).merge({"encoder.units": 9})
    with logged() as said:
        reverie.train(mine, run=tmp_path / "mine", init_from=str(base), **small)
    assert said[1] == "re-initialized: world.encoder, world.rssm.posterior.first, head, optimizers"
    assert "world.encoder.mlp.0.weight is (64, 4) in the checkpoint, (9, 4) here" in said[2]
    with logged() as said:
        reverie.train(tiny, run=tmp_path / "back", init_from=str(tmp_path / "mine"), **small)
    assert said[1] == "re-initialized: world.encoder, world.rssm.posterior.first, optimizers"
    with logged() as said:
        parts = r"world\.(?!reward)"
        reverie.train(tiny, run=tmp_path / "parts", init_from=str(base), init_modules=parts, **small)
    assert said[0].endswith(": world.encoder, world.rssm, world.decoder, world.cont")
    had = model(base)
    for run in ("mine", "parts"):
        found = load(tmp_path / run, algo=mine if run == "mine" else None).algo.state_dict()["model"]
        assert torch.equal(found["world.rssm.gates.weight"], had["world.rssm.gates.weight"])


@pytest.mark.parametrize(("name", "anew"), [("r2dreamer", "world.decoder, optimizers"), ("plan2explore_v3", "")])
def test_a_dreamer_begins_with_its_networks_in_a_variant_of_it(name, anew, tmp_path):
    small = {k: v for k, v in SMALL.items() if "networks" not in k} | {"replay_ratio": 0, "steps": 40, "size": "nano"}
    small |= {"env": "CartPole-v1", "algo.batch_length": 8}
    reverie.train(name, run=tmp_path / "variant", **small)
    with logged() as said:
        reverie.train("dreamer_v3", run=tmp_path / "v3", init_from=str(tmp_path / "variant"), **small)
    assert [line for line in said if "re-initialized" in line] == [f"re-initialized: {anew}"] * bool(anew)
    had, found = model(tmp_path / "variant"), model(tmp_path / "v3")
    assert torch.equal(found["world.rssm.gates.weight"], had["world.rssm.gates.weight"])


def test_what_a_run_learns_from_stays_what_it_was(data, tmp_path):
    alone = tmp_path / "alone"
    train(alone, data=data, updates=10, env="Pendulum-v1", **{"experience": "offline"})
    with pytest.raises(RunError, match=r"was trained on a dataset alone, .* --init-from .*alone"):
        train(alone, steps=20, data=data, **LIVED, **{"experience": "mixed(0.5)"})
    lived = tmp_path / "lived"
    train(lived, steps=20, **LIVED)
    with pytest.raises(RunError, match=r"was trained on collected rows, which cannot change"):
        train(lived, steps=30, data=data, **LIVED, **{"experience": "mixed(0.5)"})
    both = tmp_path / "both"
    train(both, steps=20, data=data, **LIVED, **{"experience": "mixed(0.5)"})
    train(both, steps=30, data=data, **LIVED, **{"experience": "mixed(0.25)"})  # how much of each may change
