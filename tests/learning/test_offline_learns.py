"""Learners of recorded rows on a dataset whose best action is known: better than what was done, and nothing else."""

from functools import cache

import numpy as np
import pytest
import torch

from reverie.algos.bc import BCConfig
from reverie.algos.bcq import BCQConfig
from reverie.algos.cql import Constant, CQLConfig
from reverie.algos.crr import CRRConfig, Exp
from reverie.algos.decision_transformer import DecisionTransformerConfig
from reverie.algos.discrete_bcq import DiscreteBCQConfig
from reverie.algos.discrete_cql import DiscreteCQLConfig
from reverie.algos.discrete_crr import DiscreteCRRConfig
from reverie.algos.fql import FQLConfig
from reverie.algos.iql import IQLConfig
from reverie.algos.rebrac import ReBRACConfig
from reverie.algos.td3_bc import TD3BCConfig
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Step
from reverie.replay.build import build_replay
from reverie.replay.config import ReplayConfig

OBS = {"state": ObsPart(kind="vector", shape=(2,), dtype="float32")}
ACTION = ActionSpec(parts={"move": ActionPart(kind="continuous", size=1)})
CHOICE = ActionSpec(parts={"move": ActionPart(kind="categorical", classes=(4,))})
EPISODES, STEPS = 400, 4
LOW, HIGH = -0.5, 0.4
FAST = {"batch_size": 128, "networks.units": (64, 64)}
MILD = CQLConfig(
    critic_lr=1e-3, actor_lr=1e-3, tau=0.02, num_samples=5, conservative_weight=Constant(0.3), temperature=0.03
)
FLOW = FQLConfig(lr=1e-3, tau=0.02, alpha=0.4, normalize_q=True, flow_steps=4)
CASES = {
    "bc": (BCConfig(lr=3e-3), 400, (-0.15, 0.05)),
    "td3_bc": (TD3BCConfig(actor_lr=1e-3, critic_lr=1e-3, tau=0.02), 1500, (0.1, 0.6)),
    "rebrac": (ReBRACConfig(tau=0.02, actor_bc_coef=0.4), 600, (0.1, 0.6)),
    "fql": (FLOW, 500, (0.1, 0.6)),
    "fql_chunks": (FLOW.merge({"chunk_size": 2, "batch_length": 3}), 500, (0.1, 0.6)),
    "decision_transformer": (
        DecisionTransformerConfig(lr=5e-3, batch_length=5, return_scale=1.0).merge(
            {"networks.memory": "transformer(4, 16, 1)"}
        ),
        400,
        (0.1, 0.5),
    ),
    "bcq": (BCQConfig(tau=0.02, latent=8).merge({"vae.units": (64, 64)}), 1200, (0.08, 0.6)),
    "cql": (MILD, 1000, (0.1, 0.6)),
    "iql": (IQLConfig(actor_lr=1e-3, critic_lr=1e-3, value_lr=1e-3, tau=0.02, beta=20.0), 1000, (0.1, 0.5)),
    "crr": (CRRConfig(actor_lr=1e-3, critic_lr=1e-3, target_update_interval=20, filter=Exp(0.2)), 1000, (0.1, 0.5)),
}


@cache
def rows() -> dict[str, np.ndarray]:
    """Episodes of a few steps: what is seen is a sign and noise, what is earned 1 + sign x action.

    Actions are uniform in [-0.5, 0.4] times the sign: what is better than 0.4 was never tried.
    """
    g = np.random.default_rng(0)
    shape = (EPISODES, STEPS + 1)
    sign = np.where(g.random(shape) < 0.5, -1.0, 1.0)
    action = sign * g.uniform(LOW, HIGH, shape)
    earned = 1 + sign * action
    none = np.zeros(shape, bool)
    first, last = none.copy(), none.copy()
    first[:, 0], last[:, -1] = True, True
    reward = np.concatenate([np.zeros((EPISODES, 1)), earned[:, :-1]], 1)
    state = np.stack([3 * sign + 10, g.normal(size=shape)], -1)
    columns = {
        "obs/state": state, "action": (action * ~last)[..., None], "reward": reward, "is_first": first, "is_last": last,
        "is_terminal": last,
    }  # fmt: skip
    return {
        k: v.reshape(-1, *v.shape[2:]).astype(v.dtype if v.dtype == bool else np.float32) for k, v in columns.items()
    }


def trained(config, updates, spec=ACTION):
    agent = config.merge({**FAST, "discount": 0.8} if hasattr(config, "discount") else FAST).build(OBS, spec, seed=0)
    columns = dict(rows() if spec is ACTION else choices())
    replay = build_replay(
        ReplayConfig(capacity=EPISODES * (STEPS + 1)),
        obs_spec=OBS,
        action_spec=spec,
        extra_spec=agent.extra_spec,
        num_envs=1,
        window=agent.window,
        seed=0,
    )
    replay.annotator = agent.annotator
    replay.extend({k: v[None] for k, v in columns.items()})
    agent.preprocess.normalizer and agent.preprocess.normalizer.fit({"state": torch.from_numpy(columns["obs/state"])})
    torch.manual_seed(0)
    for _ in range(updates):
        batch = replay.sample()
        replay.feedback(batch.index, agent.update(batch))
    return agent


def acts(agent):
    """Signs ``[N]``, and what is done there ``[N, A]``."""
    n = 100
    sign = torch.tensor([-1.0, 1.0]).repeat(n // 2)
    obs = {"state": torch.stack([3 * sign + 10, torch.randn(n, generator=torch.Generator().manual_seed(1))], -1)}
    no = torch.zeros(n, dtype=torch.bool)
    step = Step(obs=obs, reward=torch.zeros(n), is_first=~no, is_last=no, is_terminal=no)
    return sign, agent.policy.act(step, agent.policy.initial(n), "eval")[0]


def chosen(agent):
    """What it does in either state, as a number that was at best 0.4 in the data."""
    sign, action = acts(agent)
    return [(sign * action[:, 0])[sign == s].mean().item() for s in (-1, 1)]


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in ("bc", "cql", "crr", "iql", "td3_bc") else pytest.mark.nightly)
    for name in CASES
])  # fmt: skip
def test_the_better_actions_of_the_data_and_none_that_it_does_not_hold(name):
    config, updates, (low, high) = CASES[name]
    found = chosen(trained(config, updates))
    assert all(low < x < high for x in found), found


# ---------------------------------------------------------------- a choice among classes


SHARES = (0.45, 0.3, 0.25)
"""How often the worst, the middle and the best of three actions were taken; the fourth never was."""
CHOOSING = {
    "bc": (BCConfig(lr=3e-3), 300, "worst"),
    "discrete_bcq": (DiscreteBCQConfig(lr=1e-3, tau=0.02, threshold=0.2), 500, "best"),
    "discrete_cql": (
        DiscreteCQLConfig(lr=1e-3, num_quantiles=16, conservative_weight=0.3, target_update_interval=20),
        500,
        "best",
    ),
    "discrete_crr": (
        DiscreteCRRConfig(actor_lr=3e-3, critic_lr=3e-3, target_update_interval=20, filter=Exp(0.2)),
        500,
        "best",
    ),
}


@cache
def choices() -> dict[str, np.ndarray]:
    """As :func:`rows`, with classes: 0, 1, 2 are the worst, the middle and the best where the sign is +, 2, 1, 0 else.

    They earn -2, -1.5 and -1, and what was never tried looks better to whom nobody told.
    """
    g, made = np.random.default_rng(1), dict(rows())
    last = made["is_last"]
    rank = g.choice(3, size=last.shape, p=SHARES)
    taken = np.where(made["obs/state"][:, 0] > 10, rank, 2 - rank)
    made["action"] = (np.eye(4)[taken] * ~last[:, None]).astype(np.float32)
    earned = -2 + 0.5 * rank
    made["reward"] = (np.concatenate([[0], earned[:-1]]) * ~made["is_first"]).astype(np.float32)
    return made


def kinds(agent):
    """What it does, as shares of the worst, the middle, the best and what was never tried."""
    sign, action = acts(agent)
    seen = torch.where(sign[:, None] > 0, action, action[:, [2, 1, 0, 3]])
    return dict(zip(("worst", "middle", "best", "never"), seen.mean(0).tolist(), strict=True))


@pytest.mark.parametrize("name", CHOOSING)
def test_the_best_class_of_the_data_and_none_that_it_does_not_hold(name):
    """A clone does what was done most often."""
    config, updates, expected = CHOOSING[name]
    found = kinds(trained(config, updates, CHOICE))
    assert found[expected] > 0.9, found
