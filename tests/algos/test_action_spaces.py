"""Every algorithm learns and acts with every kind of actions that it has."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces

from batches import MOVE, OBS, steps
from contracts import SPECS, batch, shown
from dreamer_configs import EARLIER
from dreamer_configs import TINY as DREAMER
from reverie.algos.sac import SACConfig
from reverie.algos.table import ALGORITHMS, algorithm_config
from reverie.core.action_codec import ActionCodec
from reverie.core.specs import MASK_KEY, ActionPart, ActionSpec, action_kind
from reverie.nn.exploration import EpsilonGreedy, GreedyPolicy
from reverie.nn.functional import sample_legal
from reverie.objectives import categorical

SPACES: dict[str, spaces.Space[Any]] = {
    "continuous": spaces.Tuple((spaces.Box(-1, 1, ()), spaces.Dict(a=spaces.Box(0, 9, (2,), np.uint8)))),
    "discrete": spaces.Discrete(5, start=-2),
    "multi_discrete": spaces.Dict(move=spaces.Discrete(3, start=1), hands=spaces.MultiBinary(2)),
    "mixed": spaces.Tuple((
        spaces.Dict(grip=spaces.Discrete(2, start=1), aim=spaces.Box(-1, 4, (1,))),
        spaces.Tuple((spaces.MultiDiscrete([[2, 3]]), spaces.Box(0, 7, (2,), np.int64))),
    )),
}  # fmt: skip
OURS = sorted(entry.name for entry in ALGORITHMS)
SMALL = {
    "networks.units": (8,), "discriminator.units": (8,), "vae.units": (8,), "batch_size": 4, "num_quantiles": 3,
    "graph": False, "normalize_obs": None, "num_samples": 2, "rollout": 4,
}  # fmt: skip
ENSEMBLE = {"ensemble.num_models": 2, "ensemble.head.units": 8}


def config_of(name: str) -> Any:
    """Settings so small that an update takes no time."""
    config = algorithm_config(name)()
    if hasattr(config, "rssm"):
        small = DREAMER if name.endswith("v3") or name == "r2dreamer" else EARLIER
        small = small | {"batch_size": 2, "batch_length": 4, "horizon": 2}
        return config.merge(small | {"graph": False} | (ENSEMBLE if name.startswith("plan2") else {}))
    known = {key: value for key, value in SMALL.items() if hasattr(config, key.split(".")[0])}
    if name in ("tdmpc2", "bmpc"):
        known |= {
            "num_policy_samples": 1,
            "num_elites": 2,
            "networks": {"latent": 8, "encoder_units": (8,), "num_critics": 2},
        }
    if hasattr(config, "actor_loss"):  # the one that all actions have
        known["actor_loss"] = "awr"
    if name == "a2c":  # its batches are whole rollouts
        del known["batch_size"]
    return config.merge(known)


def extras(agent: Any, b: int, t: int) -> dict[str, torch.Tensor]:
    return {
        key: torch.zeros(b, t, *part.shape, dtype=getattr(torch, part.dtype)) for key, part in agent.extra_spec.items()
    }


BASES = {"bc", "discrete_crr", "dqn", "dreamer_v3", "gail", "hiql", "ppo", "sac", "tdmpc2"}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in BASES else pytest.mark.nightly) for name in OURS
])  # fmt: skip
def test_actions_of_every_kind_are_learned_and_taken(name: str) -> None:
    config = config_of(name)
    assert not config.on_policy or config.action_kinds == SPACES.keys()
    for kind in config.action_kinds:
        codec = ActionCodec(space := SPACES[kind])
        assert action_kind(codec.spec) == kind
        agent = config.build(SPECS["vector"], codec.spec, seed=1)
        agent.acts = codec.spec
        for seed in range(2):
            data = batch(agent, seed=seed)
            update = agent.update(data if config.on_policy else replace(data, extras=extras(agent, *data.shape)))
            assert all(torch.isfinite(x).all() for x in update.metrics.values()), kind
        for mode in ("explore", "eval"):
            state = agent.policy.initial(8)
            flat, _ = agent.policy.act(shown(envs=8), state, mode)
            assert all((flat[:, cut].sum(-1) == 1).all() for _, cut in codec.spec.categorical_slices()), kind
            for one in flat.numpy():
                assert space.contains(codec(one)), (kind, codec(one))


# ---------------------------------------------------------------- a single choice


@pytest.mark.parametrize("classes", [(), (4,)])
def test_a_single_choice_is_computed_as_if_there_were_no_others(classes):
    """To the last bit: also which numbers are drawn."""
    torch.manual_seed(0)
    q, other = torch.randn(7, 4), torch.randn(7, 4)
    hot = F.one_hot(torch.arange(7) % 4, 4).float()
    best = q.gather(-1, other.argmax(-1, keepdim=True)).squeeze(-1)
    limit = other.amax(-1, keepdim=True) - 0.3
    for found, expected in (
        (categorical.chosen_value(q, hot, classes), (q * hot).sum(-1)),
        (categorical.best_value(q, other, classes), best),
        (categorical.logsumexp_joint(q, classes), torch.logsumexp(q, -1)),
        (categorical.likely_values(q, other, -0.3, classes), q.masked_fill(other < limit, -math.inf)),
    ):
        assert torch.equal(found, expected)


def test_a_single_choice_draws_what_it_would_alone():
    q, legal = torch.randn(64, 4), torch.rand(64, 4) < 0.7
    legal[:, 0] = True
    step = steps(64)
    step = replace(step, obs=step.obs | {MASK_KEY: legal})
    policy = GreedyPolicy(lambda obs: q, EpsilonGreedy(0.5), (4,), torch.device("cpu"))
    torch.manual_seed(3)
    found, _ = policy.act(step, policy.initial(64), "explore")
    torch.manual_seed(3)
    drawn, index = torch.rand(64), torch.randint(4, (64,))
    index = torch.where(legal.gather(1, index[:, None]).squeeze(1), index, sample_legal(legal))
    assert torch.equal(found, F.one_hot(torch.where(drawn < 0.5, index, q.argmax(-1)), 4).float())


def test_numbers_and_choices_have_an_entropy_of_both_to_reach():
    classes = {name: ActionPart(kind="categorical", classes=(n,)) for name, n in (("a", 2), ("c", 3))}
    made = SACConfig().merge({"networks.units": (4,)}).build(OBS, ActionSpec(parts=classes | MOVE.parts))
    assert made.objective.target_entropy == pytest.approx(0.98 * (math.log(2) + math.log(3)) - 2)
