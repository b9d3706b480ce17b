"""What learners promise: weights by the seed alone, no trace in the caller's generators, all optimisers kept."""

from dataclasses import dataclass

import pytest
import torch

from reverie.algos.base import Algorithm, AlgorithmConfig, seeded
from reverie.algos.dreamer_v3 import DreamerV3Config
from reverie.algos.fqe import FQEConfig
from reverie.algos.world_model import DenseDreamerConfig
from reverie.core.config import Config
from reverie.core.discover import algorithm_config, algorithms
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch
from reverie.noise import noise_step

VECTOR = {"state": ObsPart(kind="vector", shape=(3,), dtype="float32")}
IMAGE = {"image": ObsPart(kind="image", shape=(8, 8, 3), dtype="uint8")}
MOVES = ActionSpec(parts={"move": ActionPart(kind="continuous", size=2)})
CHOICE = ActionSpec(parts={"jump": ActionPart(kind="categorical", classes=(3,))})
TINY = {
    "rssm.deter": 16, "rssm.hidden": 8, "rssm.classes": 4, "rssm.stoch": 4, "rssm.blocks": 2, "encoder.units": 8,
    "encoder.depth": 2, "encoder.mults": [1], "decoder.units": 8, "decoder.depth": 8, "decoder.mults": [1],
    "actor.units": 8, "critic.units": 8, "reward.units": 8, "cont.units": 8,
}  # fmt: skip
SMALL = {
    "rssm.deter": 16, "rssm.hidden": 8, "rssm.stoch": 4, "encoder.units": (8,), "decoder.units": (8,), "actor.units": 8,
    "critic.units": 8, "reward.units": 8, "cont.units": 8,
}  # fmt: skip
TINY_IMAGES = {"networks.units": (8,), "networks.encoder.depth": 2}
NAMES = sorted(name for name, home in algorithms().items() if home == f"reverie.algos.{name}")
DREAMERS = ("dreamer_v1", "dreamer_v2", "dreamer_v3", "plan2explore", "plan2explore_v1", "plan2explore_v3")
DISCRETE = ("dqn", "qr_dqn", "discrete_sac", "discrete_bcq", "discrete_cql", "discrete_crr")


def config_of(name: str) -> Config:
    config = FQEConfig() if name == "fqe" else algorithm_config(name)()
    kinds = {DreamerV3Config: TINY, DenseDreamerConfig: SMALL}
    found = [changes for kind, changes in kinds.items() if isinstance(config, kind)]
    return config.merge(found[0] if found else {"networks.units": (8,)})


def same(one: object, other: object) -> None:
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("name", [*NAMES, "fqe"])
def test_weights_are_those_of_the_seed_and_no_generator_of_a_gpu_is_seeded(name, monkeypatch):
    config, spec = config_of(name), CHOICE if name in DISCRETE else MOVES
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        expected = config.build(VECTOR, spec, seed=7)
        if name not in ("fqe", "gail"):  # these choose what to make
            torch.manual_seed(7)
            same(config.learner(VECTOR, spec, config, torch.device("cpu")), expected)

    def refused(seed: int) -> None:
        raise AssertionError("torch.manual_seed seeds the generators of all GPUs")

    before = torch.get_rng_state()
    monkeypatch.setattr(torch, "manual_seed", refused)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", refused)
    same(config.build(VECTOR, spec, seed=7), expected)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", NAMES)
def test_no_update_here_takes_time_to_switch_modes(name):
    agent = config_of(name).build(VECTOR, CHOICE if name in DISCRETE else MOVES)
    agent.rest()
    assert agent._two_moded == ()


@pytest.mark.parametrize("name", [*NAMES, "fqe"])
def test_what_is_made_in_inference_mode_is_as_otherwise_and_can_act(name):
    config, spec = config_of(name), CHOICE if name in DISCRETE else MOVES
    with torch.inference_mode():
        agent = config.build(VECTOR, spec)
        if name != "fqe":
            agent.policy.act(noise_step(VECTOR, 2), agent.policy.initial(2), "eval")
    same(agent, config.build(VECTOR, spec))
    assert not any(x.is_inference() for x in (*agent.parameters(), *agent.buffers()))


def test_seeded_draws_what_manual_seed_would():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        expected = torch.rand(4)
    with seeded(3):
        assert torch.equal(torch.rand(4), expected)


def test_normalising_that_was_asked_for_needs_vectors_and_a_default_does_not():
    """An algorithm that normalises by default learns from images; one that was told to must have what to normalise."""
    assert algorithm_config("td3_bc")().merge(TINY_IMAGES).build(IMAGE, MOVES).preprocess.normaliser is None
    with pytest.raises(ValueError, match="normalise"):
        algorithm_config("td3")().merge(TINY_IMAGES | {"normalise": "running"}).build(IMAGE, MOVES)


def test_reports_leave_generators_of_other_gpus_alone(monkeypatch):
    agent = config_of("dreamer_v3").build(IMAGE, CHOICE)
    forked, fork = [], torch.random.fork_rng
    monkeypatch.setattr(torch.random, "fork_rng", lambda **given: forked.append(given) or fork(**given))
    no = torch.zeros(1, 4, dtype=torch.bool)
    rows = Batch(
        obs={"image": torch.zeros(1, 4, 8, 8, 3, dtype=torch.uint8)}, action=torch.zeros(1, 4, 3),
        reward=torch.zeros(1, 4), is_first=no, is_last=no, is_terminal=no, weight=torch.ones(1),
        index=torch.zeros(1, dtype=torch.int64),
    )  # fmt: skip
    before = torch.get_rng_state()
    assert agent.report(rows)
    assert torch.equal(torch.get_rng_state(), before)
    assert forked == [{"devices": []}]


@pytest.mark.parametrize("name", [name for name in [*NAMES, "fqe"] if name not in DREAMERS])
def test_optimisers_hold_all_that_is_learned_and_are_renewed(name):
    agent = config_of(name).build(VECTOR, CHOICE if name in DISCRETE else MOVES)
    held = {id(p) for optim in agent.optims.values() for p in optim.params}
    assert held == {id(p) for p in agent.parameters() if p.requires_grad}
    for optim in agent.optims.values():
        optim.settings = optim.settings._replace(cosine=10)  # a learning rate that falls
        optim.updates += 3
    agent.renew()
    assert [float(optim.updates) for optim in agent.optims.values()] == [0.0] * len(agent.optims)


@pytest.mark.parametrize("name", NAMES)
def test_moments_that_are_not_finite_are_named_by_their_parameter(name):
    agent = config_of(name).build(VECTOR, CHOICE if name in DISCRETE else MOVES)
    assert agent.bad_moment() is None
    optim = agent.optim if hasattr(agent, "optim") else list(agent.optims.values())[-1]
    optim.square[-1].fill_(torch.inf)
    (expected,) = (name for name, p in agent.named_parameters() if p is optim.params[-1])
    assert agent.bad_moment() == expected


@pytest.mark.parametrize("name", ["bc", "dqn", "qr_dqn", "discrete_bcq", "discrete_cql", "fqe"])
def test_checkpoints_of_before_are_read_whose_only_optimiser_is_called_optim(name):
    spec = CHOICE if name in DISCRETE else MOVES
    agent, other = (config_of(name).build(VECTOR, spec, seed=seed) for seed in (1, 2))
    (optim,) = agent.optims.values()
    for moment in (*optim.mean, *optim.square):
        moment += torch.rand_like(moment)
    optim.updates += 3
    state = agent.state_dict()
    (key,) = (key for key in state if key.endswith("_optim"))
    other.load_state_dict({"model": state["model"], "optim": state[key]})
    same(other, agent)


@dataclass(frozen=True)
class Unfinished(AlgorithmConfig):
    """Names no learner."""


class Bare(Algorithm):
    """Returns its metrics alone."""

    def __init__(self):
        super().__init__()
        self.device = torch.device("cpu")

    def train_step(self, batch):
        return {"loss/critic": torch.zeros(())}


def test_what_is_left_out_of_an_algorithm_of_ones_own_is_told():
    with pytest.raises(ConfigError, match=r"Unfinished does not say what it builds: set Unfinished\.learner"):
        Unfinished().build({}, MOVES)
    bare, no = Bare(), torch.zeros(2, 2, dtype=torch.bool)
    bare.graph = False
    rows = {"reward": torch.zeros(2, 2), "action": torch.zeros(2, 2, 2), "weight": torch.ones(2)}
    batch = Batch(obs={}, is_first=no, is_last=no, is_terminal=no, index=torch.arange(2), **rows)
    with pytest.raises(ConfigError, match=r"Bare\.train_step returned \{'loss/critic': .*expected .*Update\(metrics="):
        bare.update(batch)
