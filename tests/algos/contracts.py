"""Small learners of every model-free algorithm, and rows for them: what the tests of all and of each family need."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from reverie.algos.a2c import A2CConfig
from reverie.algos.base import Algorithm
from reverie.algos.bc import BCConfig, Categorical, Stochastic
from reverie.algos.bcq import BCQConfig
from reverie.algos.cql import Best, CQLConfig, Lagrange, MonteCarlo
from reverie.algos.crr import Binary, CRRConfig, Max
from reverie.algos.ddpg import DDPGConfig
from reverie.algos.discrete_bcq import DiscreteBCQConfig
from reverie.algos.discrete_cql import DiscreteCQLConfig
from reverie.algos.discrete_crr import DiscreteCRRConfig
from reverie.algos.discrete_sac import DiscreteSACConfig
from reverie.algos.dqn import DQNConfig
from reverie.algos.gail import GAILConfig
from reverie.algos.iql import IQLConfig
from reverie.algos.ppo import PPOConfig
from reverie.algos.qr_dqn import QRDQNConfig
from reverie.algos.sac import SACConfig
from reverie.algos.td3 import TD3Config
from reverie.algos.td3_bc import TD3BCConfig
from reverie.algos.tdmpc2 import TDMPC2Config
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch, Step

_GAIL = GAILConfig().merge({"discriminator.units": (8, 8), "discriminator.encoder.depth": 2, "normalise": None})
_SEQUENCES = {"batch_length": 3, "networks.burn_in": 2}
MODEL_FREE = {
    "ddpg": DDPGConfig(),
    "td3": TD3Config(),
    "sac": SACConfig(),
    "dqn": DQNConfig(target_every=1),
    "qr_dqn": QRDQNConfig(target_every=1, quantiles=5),
    "gail_discrete": _GAIL,
    "dqn_choices": DQNConfig(target_every=1, dueling=True, double=True),
    "sac_mixed": SACConfig(),
    "gail_mixed": _GAIL,
    "tdmpc2": TDMPC2Config(batch_length=2, episodic=True, samples=16, elites=4, policy_samples=3).merge(
        {
            "networks": {
                "encoder_units": (8,),
                "latent": 8,
                "simplex": 4,
                "critics": 3,
                "dropout": 0.1,
                "encoder": "dreamer",
                "bins": 11,
            }
        }
    ),
    "dqn_lstm": DQNConfig(target_every=1, double=True).merge(_SEQUENCES | {"networks.memory": "lstm(4)"}),
    "qr_dqn_gru": QRDQNConfig(target_every=1, quantiles=5).merge(_SEQUENCES | {"networks.memory": "gru(4, 2)"}),
    "sac_gru": SACConfig().merge({"batch_length": 3, "networks.memory": "gru(4, orthogonal=True)"}),
    "discrete_sac_transformer": DiscreteSACConfig().merge(_SEQUENCES | {"networks.memory": "transformer(3, 4, 2)"}),
}
"""Those that learn from environments."""
OFFLINE = {
    "bc": BCConfig(),
    "bc_stochastic": BCConfig(clone=Stochastic()),
    "td3_bc": TD3BCConfig(),
    "bcq": BCQConfig(samples=3).merge({"vae.units": (8, 8), "vae.encoder.depth": 2}),
    "cql_lagrange": CQLConfig(samples=2, conservatism=Lagrange(), backup=Best(2)),
    "cql_floor": CQLConfig(samples=2, floor=MonteCarlo(), temperature_lr=0.0),
    "iql": IQLConfig(),
    "crr": CRRConfig(target_every=2),
    "crr_binary": CRRConfig(filter=Binary(), baseline=Max(), critics=2),
    "bc_choice": BCConfig(),
    "bc_choices": BCConfig(clone=Categorical()),
    "discrete_bcq": DiscreteBCQConfig(threshold=0.8),
    "discrete_crr": DiscreteCRRConfig(target_every=2, min_q_weight=1.0),
    "discrete_crr_binary": DiscreteCRRConfig(filter=Binary(), critics=2, tau=0.1, target_every=1),
    "discrete_cql_choices": DiscreteCQLConfig(quantiles=5, target_every=2, dueling=True, double=True),
    "iql_choices": IQLConfig(),
    "iql_mixed": IQLConfig(),
    "bc_mixed": BCConfig(),
}
"""Those that learn from recorded data."""
_OWN = {"rollout": 4, "batch_length": 2}
ON_POLICY = {
    "ppo": PPOConfig(rollout=4),
    "ppo_mixed": PPOConfig(rollout=4, clip_value=0.2, lr=[[0, 3e-4], [100, 0]], clip=[[0, 0.2], [100, 0.1]]),
    "ppo_lstm": PPOConfig().merge(_OWN | {"networks.memory": "lstm(4)", "value_estimator": "n_step(2)"}),
    "ppo_gru": PPOConfig(target_kl=100.0).merge(
        _OWN | {"networks.memory": "gru(4, 2)", "networks.critic_memory": "shared", "networks.orthogonal": False}
    ),
    "ppo_transformer": PPOConfig().merge(_OWN | {"networks.memory": "transformer(3, 4, 2, 2)"}),
    "a2c": A2CConfig(rollout=4),
    "a2c_lstm": A2CConfig(rms_form="tensorflow").merge(
        _OWN | {"networks.memory": "lstm(4)", "networks.critic_memory": "none"}
    ),
}
"""Those that learn from rollouts of their present policy."""
CONFIGS = MODEL_FREE | OFFLINE | ON_POLICY
ALIKE = {"sac", "sac_mixed", "gail_discrete", "dqn_lstm", "qr_dqn_gru", "bc_choices", "discrete_crr", "ppo", "a2c_lstm",
         "ppo_transformer"}  # fmt: skip
"""Those that run no line in updates and acting that none of the others runs; tests of single features need them."""
TINY = {"batch_size": 4, "networks.units": (8, 8), "networks.encoder.depth": 2}
SPECS = {
    "vector": {"state": ObsPart(kind="vector", shape=(3,), dtype="float32")},
    "everything": {
        "image": ObsPart(kind="image", shape=(8, 8, 3), dtype="uint8"),
        "state": ObsPart(kind="vector", shape=(2, 2), dtype="float32"),
        "more": ObsPart(kind="vector", shape=(), dtype="float32"),
        "token": ObsPart(kind="categorical", shape=(2,), dtype="int64", classes=(3, 4)),
    },
}
MOVES = ActionSpec(parts={"b": ActionPart(kind="continuous", size=1), "a": ActionPart(kind="continuous", size=2)})
CHOICE = ActionSpec(parts={"jump": ActionPart(kind="categorical", classes=(3,))})
CHOICES = ActionSpec(parts={name: ActionPart(kind="categorical", classes=(n,)) for name, n in (("b", 1), ("a", 2))})
CHOOSING = {
    "dqn": CHOICE, "qr_dqn": CHOICE, "gail_discrete": CHOICE, "bc_choice": CHOICE, "ppo_gru": CHOICES,
    "dqn_lstm": CHOICE, "qr_dqn_gru": CHOICE, "a2c": CHOICE,
} | {name: CHOICES if name.endswith("_choices") else CHOICE
     for name in CONFIGS if name.startswith("discrete_") or name.endswith("_choices")}  # fmt: skip
"""Those whose actions are one-hot; all actions are 3 numbers wide."""
BOTH = ActionSpec(parts={"b": ActionPart(kind="continuous", size=1), "a": ActionPart(kind="categorical", classes=(2,))})
ACTIONS = CHOOSING | {name: BOTH for name in CONFIGS if name.endswith("_mixed")}
"""Those of which not all actions are numbers."""


def tiny(name, changes=None):
    """The settings of a small learner."""
    own = {"batch_size": 1} if name.startswith("a2c") else {}  # a batch is a whole rollout
    return CONFIGS[name].merge(TINY | own | (changes or {}))


def build(name, spec="vector", device="cpu", **changes) -> Algorithm:
    spec_of = ACTIONS.get(name, MOVES)
    agent = tiny(name, changes).build(SPECS[spec], spec_of, device=device, seed=1)
    agent.acts = spec_of
    return agent


def actions(spec, b, t, g):
    """``[b, t, A]``, one-hot where they are choices."""
    given = torch.rand(b, t, spec.width, generator=g) * 2 - 1
    for _, place in spec.choices():
        part = given[..., place]
        given[..., place] = F.one_hot(part.argmax(-1), part.shape[-1]).float()
    return given


def observed(spec, shape, g):
    obs = {}
    for key, part in SPECS[spec].items():
        high = {"image": 256, "categorical": 3}.get(part.kind)
        full = (*shape, *part.shape)
        obs[key] = torch.randint(0, high, full, generator=g) if high else torch.randn(full, generator=g)
        obs[key] = obs[key].to(getattr(torch, part.dtype))
    return obs


def batch(agent, spec="vector", seed=0) -> Batch:
    g = torch.Generator().manual_seed(seed)
    b, t = agent.window.batch, agent.window.rows
    if agent.window.rollout:
        b, t = b * agent.window.length // agent.window.rollout, agent.window.context + agent.window.rollout + 1
    last = torch.zeros(b, t, dtype=torch.bool)
    last[:, -1] = torch.rand(b, generator=g) < 0.5
    rows = Batch(
        obs=observed(spec, (b, t), g), action=actions(getattr(agent, "acts", MOVES), b, t, g),
        reward=torch.randn(b, t, generator=g), is_first=torch.zeros(b, t, dtype=torch.bool), is_last=last,
        is_terminal=last & (torch.rand(b, t, generator=g) < 0.5), weight=torch.ones(b), index=torch.arange(b),
        extras={key: torch.randn(b, t, *part.shape, generator=g) for key, part in agent.extra_spec.items()},
    )  # fmt: skip
    return agent.estimated(rows) if agent.window.rollout else rows


def shown(spec="vector", envs=2, seed=0, first=True) -> Step:
    no = torch.zeros(envs, dtype=torch.bool)
    obs = observed(spec, (envs,), torch.Generator().manual_seed(seed))
    return Step(obs=obs, reward=torch.zeros(envs), is_first=no | first, is_last=no, is_terminal=no)


def learned(agent) -> dict[str, torch.Tensor]:
    """Every tensor of a learner by name, but for those that say how large the others are."""
    out: dict[str, torch.Tensor] = {}
    for name, part in agent.state_dict().items():
        if isinstance(part, Mapping):
            out |= {f"{name}/{k}": v for k, v in part.items() if not k.endswith((".widths", "shapes"))}
    return out


def steps(agent):
    """Each kind of update that gets a graph."""
    return [agent.train_step, *([agent.critic_step] if hasattr(agent, "critic_step") else [])]
