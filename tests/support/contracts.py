"""Small learners of every model-free algorithm, and rows for them: what the tests of all and of each family need."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from reverie.algos.base import Algorithm
from reverie.algos.table import algorithm_config
from reverie.core.specs import GOAL, ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch, Step

METRICS_PAGE = Path(__file__).parents[2] / "docs/metrics.md"
DECLARED = set(re.findall(r"^\| `([^`]+)` \|", METRICS_PAGE.read_text(encoding="utf-8"), re.MULTILINE))


def assert_declared(update):
    """Each metric of an update has a meaning in docs/metrics.md."""
    unknown = [n for n in update.metrics if n not in DECLARED and "/".join(n.split("/")[:2]) not in DECLARED]
    assert not unknown, unknown


def config(algorithm, settings=None, **more):
    return algorithm_config(algorithm)().merge((settings or {}) | more)


_GAIL = config(
    "gail", {"discriminator.units": (8, 8), "discriminator.encoder": "dreamer(depth=2)", "normalize_obs": None}
)
_SEQUENCES = {"batch_length": 3, "networks.burn_in": 2}
MODEL_FREE = {
    "ddpg": config("ddpg"),
    "td3": config("td3"),
    "sac": config("sac"),
    "dqn": config("dqn", target_update_interval=1),
    "qr_dqn": config("qr_dqn", target_update_interval=1, num_quantiles=5),
    "c51": config("c51", target_update_interval=1, num_atoms=5, double=True, dueling=True, noisy_sigma=0.5),
    "iqn": config("iqn", target_update_interval=1, num_quantiles=3, num_target_quantiles=2, num_cosines=4),
    "gail_discrete": _GAIL,
    "dqn_choices": config("dqn", target_update_interval=1, dueling=True, double=True),
    "sac_mixed": config("sac"),
    "sac_ensemble": config("sac", {"networks.critic_norm": "before_relu", "networks.critic_dropout": 0.1},
                           num_critics=4, num_target_critics=2, policy_delay=2, entropy_backup=False),
    "simba_v2": config("simba_v2", {"networks.units": (6,), "networks.critic_units": (8,)}, num_atoms=7,
                       reward_scale=None),
    "xqc": config("xqc", {"networks.body": "batch_norm(0.1)", "networks.units": (6,), "networks.critic_units": (8, 6)},
                  num_atoms=7, reward_scale=None, policy_delay=2),
    "tqc": config("tqc", {"networks.critic_units": (6, 8)}, num_critics=3, num_quantiles=5),
    "crossq": config("crossq", {"networks.body": "batch_renorm(0.1, 2)", "networks.critic_units": (6,)},
                     policy_delay=2),
    "sac_ae": config("sac_ae", decoder_channels=2),
    "sac_simba": config("sac", {"networks.body": "simba", "networks.critic_units": (6, 6)}, decoupled_weight_decay=0.1),
    "gail_mixed": _GAIL,
    "tdmpc2": config("tdmpc2", batch_length=2, episodic=True, num_samples=16, num_elites=4, num_policy_samples=3,
                     networks={
        "encoder_units": (8,), "latent": 8, "simplex": 4, "num_critics": 3, "dropout": 0.1, "encoder": "dreamer",
        "bins": 11,
    }),
    "bmpc": config("bmpc", batch_length=2, episodic=True, num_samples=16, num_elites=4, num_policy_samples=3,
                   reanalyze_interval=2, reanalyze_batch_size=3, networks={
        "encoder_units": (8,), "latent": 8, "simplex": 4, "dropout": 0.1, "encoder": "dreamer", "bins": 11,
    }),
    "muzero": config("muzero", batch_length=3, unroll=1, value_estimator="n_step(1)", num_simulations=4,
                     num_considered=2, reanalyze_interval=2, reanalyze_batch_size=3, target_update_interval=1,
                     consistency_coef=2.0, networks={
        "encoder_units": (8,), "latent": 8, "simplex": 4, "encoder": "dreamer", "bins": 11,
    }),
    "dqn_lstm": config("dqn", _SEQUENCES | {"networks.memory": "lstm(4)"}, target_update_interval=1, double=True),
    "qr_dqn_gru": config("qr_dqn", _SEQUENCES | {"networks.memory": "gru(4, 2)"}, target_update_interval=1,
                         num_quantiles=5),
    "sac_gru": config("sac", {"batch_length": 3, "networks.memory": "gru(4, orthogonal=True)"}),
    "discrete_sac_transformer": config("discrete_sac", _SEQUENCES | {"networks.memory": "transformer(3, 4, 2)"}),
}  # fmt: skip
"""Those that learn from environments."""
_LEWM_PLANNER = {"planner.candidates": 6, "planner.elites": 3, "planner.iterations": 2}
_LEWM = config("lewm", _LEWM_PLANNER, block=2, batch_length=5, latent=4)
OFFLINE = {
    "bc": config("bc"),
    "bc_stochastic": config("bc", policy_kind="stochastic"),
    "bc_gru": config("bc", {"batch_length": 4, "networks.memory": "gru(4)"}),
    "bc_chunks": config("bc", {"batch_length": 4, "networks.memory": "gru(4)"}, chunk_size=2, policy_kind="stochastic"),
    "td3_bc": config("td3_bc"),
    "rebrac": config("rebrac", critic_bc_coef=0.0),  # the penalty depends on whether an episode ends
    "fql": config("fql", flow_steps=2, target_reduction="min"),
    "fql_chunks": config("fql", flow_steps=2, chunk_size=2, batch_length=3, normalize_q=True),
    "bcq": config("bcq", {"num_samples": 3, "vae.units": (8, 8), "vae.encoder": "dreamer(depth=2)"}),
    "cql_lagrange": config("cql", num_samples=2, conservative_weight="lagrange", backup="best(2)"),
    "cql_floor": config("cql", num_samples=2, value_floor="monte_carlo", temperature_lr=0.0),
    "iql": config("iql"),
    "gcbc": config("gcbc"),
    "gcbc_choices": config("gcbc"),
    "lewm": _LEWM,
    "lewm_choices": _LEWM,
    "lewm_vicreg": config(
        "lewm",
        {"planner.candidates": 6, "planner.elites": 3, "planner.cost": "sum"},
        block=2,
        batch_length=5,
        latent=4,
        regularizer="vicreg",
    ),
    "gcivl": config("gcivl"),
    "hiql": config("hiql", representation_width=4),
    "hiql_choices": config("hiql", representation_width=4, actor_trains_phi=True),
    "gciql": config("gciql"),
    "gciql_choices": config("gciql", actor_loss="awr"),
    "crl": config("crl", representation_width=4),
    "crl_choices": config("crl", representation_width=4, actor_loss="awr"),
    "qrl": config("qrl", representation_width=16),
    "qrl_choices": config("qrl", representation_width=16, actor_loss="awr"),
    "crr": config("crr", target_update_interval=2),
    "crr_binary": config("crr", filter="binary", baseline="max", num_critics=2),
    "decision_transformer": config(
        "decision_transformer", {"batch_length": 4, "networks.memory": "transformer(3, 4, 2)"}
    ),
    "decision_transformer_choices": config(
        "decision_transformer", {"batch_length": 4, "networks.memory": "transformer(3, 4, 2)"}, target_return=2.0
    ),
    "bc_choice": config("bc"),
    "bc_choices": config("bc", policy_kind="categorical"),
    "discrete_bcq": config("discrete_bcq", threshold=0.8),
    "discrete_bcq_lstm": config("discrete_bcq", _SEQUENCES | {"networks.memory": "lstm(4)"}, threshold=0.8),
    "discrete_crr": config("discrete_crr", target_update_interval=2, conservative_weight=1.0),
    "discrete_crr_transformer": config(
        "discrete_crr",
        _SEQUENCES | {"networks.memory": "transformer(3, 4, 2)"},
        filter="binary",
        num_critics=2,
        tau=0.1,
        target_update_interval=1,
    ),
    "discrete_cql_choices": config(
        "discrete_cql",
        _SEQUENCES | {"networks.memory": "gru(4)"},
        num_quantiles=5,
        target_update_interval=2,
        dueling=True,
        double=True,
    ),
    "iql_choices": config("iql", _SEQUENCES | {"networks.memory": "gru(4)"}),
    "iql_mixed": config("iql"),
    "bc_mixed": config("bc"),
}
"""Those that learn from recorded data."""
_OWN = {"rollout": 4, "batch_length": 2}
_SHARED = {"networks.memory": "gru(4, 2)", "networks.critic_memory": "shared", "networks.orthogonal": False}
ON_POLICY = {
    "ppo": config("ppo", rollout=4),
    "ppo_mixed": config("ppo", rollout=4, value_clip_range=0.2, lr=[[0, 3e-4], [100, 0]],
                        clip_range=[[0, 0.2], [100, 0.1]]),
    "ppo_lstm": config("ppo", _OWN | {"networks.memory": "lstm(4)", "value_estimator": "n_step(2)"}),
    "ppo_gru": config("ppo", _OWN | _SHARED, target_kl=100.0),
    "ppo_transformer": config("ppo", _OWN | {"networks.memory": "transformer(3, 4, 2, 2)"}),
    "a2c": config("a2c", rollout=4),
    "a2c_lstm": config("a2c", _OWN | {"networks.memory": "lstm(4)", "networks.critic_memory": "none"},
                       rms_implementation="tensorflow"),
    "impala": config("impala", rollout=4, intrinsic_reward="icm(units=8)"),
    "impala_lstm": config("impala", {"rollout": 4, "networks.memory": "lstm(4)"},
                          intrinsic_reward="rnd(units=8, update_fraction=1.0)"),  # all rows: ranks draw their own
}  # fmt: skip
"""Those that learn from rollouts of their present policy."""
CONFIGS = MODEL_FREE | OFFLINE | ON_POLICY
ALIKE = {"sac", "sac_mixed", "gail_discrete", "dqn_lstm", "qr_dqn_gru", "bc_choices", "discrete_crr", "ppo", "a2c_lstm",
         "ppo_transformer"}  # fmt: skip
"""Those that run no line in updates and acting that none of the others runs; tests of single features need them."""
DISTINCT = sorted({(type(config), type(getattr(config.networks, "memory", None))): name
                   for name, config in reversed(CONFIGS.items()) if name not in ALIKE}.values())  # fmt: skip
"""One of each algorithm and kind of memory, for tests of what all settings of an algorithm do alike."""
BASES = {"dqn_choices", "sac_ensemble", "discrete_crr_transformer", "gail_mixed", "tdmpc2", "hiql", "ppo_lstm",
         "pydreamer", "v3"}  # fmt: skip
"""One of each base of learners and of the ways through it: choices, numbers, memories, data, plans, goals, rollouts;
and Dreamers of ``dreamer_configs.py``."""


def by_base(names):
    """The same, of which ``make test`` runs those of ``BASES``, and ``make nightly`` the others."""
    return [name if name in BASES else pytest.param(name, marks=pytest.mark.nightly) for name in names]


TINY = {"batch_size": 4, "networks.units": (8, 8), "networks.encoder": "dreamer(depth=2)"}
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
    name: CHOICES if name.endswith("_choices") or name == "ppo_gru" else CHOICE
    for name, cfg in CONFIGS.items()
    if "continuous" not in cfg.action_kinds or name.endswith(("_choice", "_choices", "_discrete"))
    or name in ("a2c", "ppo_gru")
}  # fmt: skip
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
    for _, place in spec.categorical_slices():
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
        goals=goals(agent, spec, b, g),
    )  # fmt: skip
    return agent.prepare_rollout(rows) if agent.window.rollout else rows


def goals(agent, spec, b, g):
    """Goals of the transitions of a batch, if the learner needs some."""
    sampling = getattr(agent, "goal_sampling", None)
    names = () if sampling is None else (*sampling.shares, *(("low", "high") if sampling.subgoal_steps else ()))
    return {f"{name}/{key}": x for name in names for key, x in observed(spec, (b, agent.window.context + 1), g).items()}


def shown(spec="vector", envs=2, seed=0, first=True) -> Step:
    no = torch.zeros(envs, dtype=torch.bool)
    obs = observed(spec, (envs,), torch.Generator().manual_seed(seed))
    obs |= {f"{GOAL}{key}": x.flip(0) for key, x in obs.items()}  # for goal-conditioned learners
    return Step(obs=obs, reward=torch.zeros(envs), is_first=no | first, is_last=no, is_terminal=no)


def learned(agent) -> dict[str, torch.Tensor]:
    """Every tensor of a learner by name, but for those that say how large the others are."""
    parts = {name: part for name, part in agent.state_dict().items() if isinstance(part, Mapping)}
    return {f"{name}/{k}": v for name, part in parts.items() for k, v in part.items()
            if not k.endswith((".widths", ".tanh", "shapes"))}  # fmt: skip


def padded(short, long):
    """Two windows as a batch, of which the first is filled up with rows that do not count."""
    more = long.shape[1] - short.shape[1]
    filled = short.map(lambda x: torch.cat([x, x.new_zeros(len(x), more, *x.shape[2:])], 1) if x.ndim > 1 else x)
    filled.is_last[:, -more:] = True
    pairs = {key: (getattr(filled, key), getattr(long, key)) for key in Batch.__dataclass_fields__}
    return Batch(**{key: {k: torch.cat([a[k], b[k]]) for k in a} if isinstance(a, dict) else torch.cat([a, b])
                    for key, (a, b) in pairs.items()})  # fmt: skip


def steps(agent):
    """Each kind of update that gets a graph."""
    return [
        agent.train_step,
        *([agent.critic_step] if hasattr(agent, "critic_step") else []),
    ]


PREPARED = {"normalize_obs": "running", "frame_stack": 3, "frame_stack_keys": ".*", "reward_scale": "return_std"}


def lived(spec: str, count: int, seed: int = 0):
    """Rows of two environments, far from mean 0 and deviation 1."""
    g = torch.Generator().manual_seed(seed)
    for i in range(count):
        step = shown(spec, seed=100 * seed + i, first=i % 5 == 0)
        obs = {k: v * 7 + 3 if v.is_floating_point() else v for k, v in step.obs.items()}
        yield replace(step, obs=obs, reward=torch.randn(2, generator=g) * 9 * ~step.is_first)
