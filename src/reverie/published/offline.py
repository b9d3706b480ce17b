"""Presets of agents that learn from recorded data.

With an environment beside the data (``--env``), ``steps`` and the replay ratio count what is collected there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reverie.algos.bc import BCConfig
from reverie.algos.bcq import BCQConfig
from reverie.algos.cql import CQLConfig
from reverie.algos.crr import CRRConfig
from reverie.algos.discrete_bcq import DiscreteBCQConfig
from reverie.algos.discrete_cql import DiscreteCQLConfig
from reverie.algos.discrete_crr import DiscreteCRRConfig
from reverie.algos.gail import GAILConfig
from reverie.algos.iql import IQLConfig
from reverie.algos.td3_bc import TD3BCConfig
from reverie.experiment import ExperimentConfig
from reverie.objectives.estimators import NStep
from reverie.published.model_free import MODEL_FREE, PENDULUM

DATA: dict[str, Any] = {
    "updates": 1_000_000,
    "steps": 1_000_000,
    "replay_ratio": 1.0,
    "learning_starts": 1000,
    "threads": 1,
    "env.id": "HalfCheetah-v5",
    "env.num": 1,
    "replay.capacity": 1_000_000,
}
"""Common settings on MuJoCo: a million updates, as in the papers."""

PENDULUM_DATA: dict[str, Any] = DATA | {
    "updates": 20_000,
    "steps": 15_000,
    "eval_episodes": 20,
    "env.id": "Pendulum-v1",
    "replay.capacity": 100_000,
    "algo.batch_size": 256,
    "algo.networks.units": (64, 64),
}
"""Data of Pendulum-v1 on one CPU core: with small networks, higher learning rates work."""

CHOICE_DATA: dict[str, Any] = {
    "updates": 100_000,
    "steps": 500_000,
    "replay_ratio": 0.25,
    "learning_starts": 1000,
    "threads": 1,
    "env.num": 1,
    "replay.capacity": 100_000,
}
"""Common settings of algorithms for discrete actions on small problems."""

CARTPOLE_DATA: dict[str, Any] = CHOICE_DATA | {
    "updates": 20_000,
    "steps": 50_000,
    "replay_ratio": 0.5,
    "eval_episodes": 20,
    "env.id": "CartPole-v1",
    "replay.capacity": 50_000,
    "algo.batch_size": 256,
    "algo.networks.units": (64, 64),
}
"""Data of CartPole-v1 on one CPU core: with small networks, higher learning rates work."""

MINATAR_DATA: dict[str, Any] = CHOICE_DATA | {
    "updates": 50_000,
    "replay_ratio": 0.5,
    "eval_episodes": 20,
    "env.id": "MinAtar/Breakout-v1",
    "env.num": 4,
    "algo.batch_size": 128,
    "algo.networks.encoder": "minatar",
    "algo.networks.units": (128,),
}
"""Data of MinAtar with its authors' network and learning rate (github.com/kenjyoung/MinAtar, examples/dqn.py)."""


def bc() -> ExperimentConfig:
    """Behaviour cloning on data of MuJoCo and similar tasks; as many updates as the other algorithms."""
    return ExperimentConfig(algo=BCConfig()).merge(DATA)


def td3_bc() -> ExperimentConfig:
    """TD3+BC on data of MuJoCo and similar tasks: 1M updates (appendix C)."""
    return ExperimentConfig(algo=TD3BCConfig()).merge(DATA)


def bcq() -> ExperimentConfig:
    """BCQ on data of MuJoCo and similar tasks; as many updates as the other algorithms."""
    return ExperimentConfig(algo=BCQConfig()).merge(DATA)


def cql() -> ExperimentConfig:
    """CQL on data of MuJoCo and similar tasks: 1M updates."""
    return ExperimentConfig(algo=CQLConfig()).merge(DATA)


def iql() -> ExperimentConfig:
    """IQL on data of MuJoCo and similar tasks: 1M updates (appendix B)."""
    return ExperimentConfig(algo=IQLConfig()).merge(DATA)


def crr() -> ExperimentConfig:
    """CRR on data of MuJoCo and similar tasks; as many updates as the other algorithms."""
    return ExperimentConfig(algo=CRRConfig()).merge(DATA)


def gail() -> ExperimentConfig:
    """GAIL with an expert's data on MuJoCo and similar tasks, beside the environment: 1M steps, as SAC."""
    return ExperimentConfig(algo=GAILConfig()).merge(MODEL_FREE)


def gail_pendulum() -> ExperimentConfig:
    """GAIL with an expert's data on Pendulum-v1, beside the environment, as SAC; settings are ours."""
    small = {"algo.batch_size": 128, "algo.networks.units": (64, 64), "algo.discriminator.units": (64, 64)}
    softer = {"algo.gradient_penalty": 1.0, "algo.temperature": 0.1, "algo.temperature_lr": 1e-3}
    return ExperimentConfig(algo=GAILConfig()).merge(PENDULUM | small | softer)


def gail_cartpole() -> ExperimentConfig:
    """GAIL with an expert's data on CartPole-v1, beside the environment: a minute on one core; settings are ours.

    Episodes end when the agent fails, so rewards are positive: that makes long episodes better.
    """
    short = {"steps": 10_000, "learning_starts": 500, "random_steps": 500, "replay.capacity": 50_000}
    small = {"algo.batch_size": 128, "algo.networks.units": (64, 64), "algo.discriminator.units": (64, 64)}
    softer = {
        "algo.gradient_penalty": 1.0,
        "algo.temperature": 0.1,
        "algo.temperature_lr": 0.0,
        "algo.reward": "positive",
    }
    return ExperimentConfig(algo=GAILConfig()).merge(PENDULUM | {"env.id": "CartPole-v1"} | short | small | softer)


def bc_pendulum() -> ExperimentConfig:
    """Behaviour cloning on data of Pendulum-v1: half a minute on one CPU core; settings are ours."""
    return ExperimentConfig(algo=BCConfig()).merge(PENDULUM_DATA | {"algo.lr": 1e-3})


def td3_bc_pendulum() -> ExperimentConfig:
    """TD3+BC on data of Pendulum-v1: a minute on one CPU core; settings are ours."""
    faster = {"algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3}
    return ExperimentConfig(algo=TD3BCConfig()).merge(PENDULUM_DATA | faster)


def bcq_pendulum() -> ExperimentConfig:
    """BCQ on data of Pendulum-v1: a minute on one CPU core; settings are ours."""
    return ExperimentConfig(algo=BCQConfig()).merge(PENDULUM_DATA | {"algo.vae.units": (128, 128)})


def cql_pendulum() -> ExperimentConfig:
    """CQL on data of Pendulum-v1: minutes on one CPU core; settings are ours."""
    faster = {"algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3, "algo.temperature_lr": 1e-3}
    return ExperimentConfig(algo=CQLConfig()).merge(PENDULUM_DATA | faster)


def iql_pendulum() -> ExperimentConfig:
    """IQL on data of Pendulum-v1: a minute on one CPU core; settings are ours."""
    faster = {"algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3, "algo.value_lr": 1e-3}
    return ExperimentConfig(algo=IQLConfig()).merge(PENDULUM_DATA | faster)


def crr_pendulum() -> ExperimentConfig:
    """CRR on data of Pendulum-v1: a minute on one CPU core; settings are ours."""
    faster = {"algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3}
    return ExperimentConfig(algo=CRRConfig()).merge(PENDULUM_DATA | faster)


def discrete_bcq() -> ExperimentConfig:
    """Discrete BCQ on data of small problems with discrete actions; the number of updates is ours."""
    return ExperimentConfig(algo=DiscreteBCQConfig()).merge(CHOICE_DATA)


def discrete_cql() -> ExperimentConfig:
    """Discrete CQL on data of small problems with discrete actions; the number of updates is ours."""
    return ExperimentConfig(algo=DiscreteCQLConfig()).merge(CHOICE_DATA)


def discrete_crr() -> ExperimentConfig:
    """Discrete CRR on data of small problems with discrete actions; the number of updates is ours."""
    return ExperimentConfig(algo=DiscreteCRRConfig()).merge(CHOICE_DATA)


def bc_cartpole() -> ExperimentConfig:
    """Behaviour cloning on data of CartPole-v1: half a minute on one CPU core; settings are ours."""
    return ExperimentConfig(algo=BCConfig()).merge(CARTPOLE_DATA | {"algo.lr": 1e-3})


def discrete_bcq_cartpole() -> ExperimentConfig:
    """Discrete BCQ on data of CartPole-v1: half a minute on one CPU core; settings are ours.

    Uses three-step returns, as DQN's preset does: with one-step returns values take longer than this to converge.
    """
    ahead = {"algo.value_estimator": NStep(3), "algo.batch_length": 4}
    return ExperimentConfig(algo=DiscreteBCQConfig()).merge(CARTPOLE_DATA | ahead | {"algo.lr": 1e-3})


def discrete_cql_cartpole() -> ExperimentConfig:
    """Discrete CQL on data of CartPole-v1: a minute on one CPU core; settings are ours."""
    return ExperimentConfig(algo=DiscreteCQLConfig()).merge(CARTPOLE_DATA | {"algo.lr": 1e-3, "algo.quantiles": 64})


def discrete_crr_cartpole() -> ExperimentConfig:
    """Discrete CRR on data of CartPole-v1: half a minute on one CPU core; settings are ours."""
    faster = {"algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3}
    return ExperimentConfig(algo=DiscreteCRRConfig()).merge(CARTPOLE_DATA | faster)


def bc_minatar() -> ExperimentConfig:
    """Behaviour cloning on data of MinAtar, with its authors' network; settings are ours."""
    return ExperimentConfig(algo=BCConfig()).merge(MINATAR_DATA | {"algo.lr": 2.5e-4})


def discrete_bcq_minatar() -> ExperimentConfig:
    """Discrete BCQ on data of MinAtar, with its authors' network; settings are ours."""
    return ExperimentConfig(algo=DiscreteBCQConfig()).merge(MINATAR_DATA | {"algo.lr": 2.5e-4})


def discrete_cql_minatar() -> ExperimentConfig:
    """Discrete CQL on data of MinAtar, with its authors' network; settings are ours."""
    return ExperimentConfig(algo=DiscreteCQLConfig()).merge(MINATAR_DATA | {"algo.lr": 2.5e-4, "algo.quantiles": 64})


def discrete_crr_minatar() -> ExperimentConfig:
    """Discrete CRR on data of MinAtar, with its authors' network; settings are ours."""
    slower = {"algo.actor_lr": 2.5e-4, "algo.critic_lr": 2.5e-4}
    return ExperimentConfig(algo=DiscreteCRRConfig()).merge(MINATAR_DATA | slower)


PRESETS: dict[str, Callable[[], ExperimentConfig]] = {
    "bc": bc,
    "td3_bc": td3_bc,
    "bcq": bcq,
    "cql": cql,
    "iql": iql,
    "crr": crr,
    "gail": gail,
    "bc_pendulum": bc_pendulum,
    "td3_bc_pendulum": td3_bc_pendulum,
    "bcq_pendulum": bcq_pendulum,
    "cql_pendulum": cql_pendulum,
    "iql_pendulum": iql_pendulum,
    "crr_pendulum": crr_pendulum,
    "gail_pendulum": gail_pendulum,
    "gail_cartpole": gail_cartpole,
    "discrete_bcq": discrete_bcq,
    "discrete_cql": discrete_cql,
    "discrete_crr": discrete_crr,
    "bc_cartpole": bc_cartpole,
    "discrete_bcq_cartpole": discrete_bcq_cartpole,
    "discrete_cql_cartpole": discrete_cql_cartpole,
    "discrete_crr_cartpole": discrete_crr_cartpole,
    "bc_minatar": bc_minatar,
    "discrete_bcq_minatar": discrete_bcq_minatar,
    "discrete_cql_minatar": discrete_cql_minatar,
    "discrete_crr_minatar": discrete_crr_minatar,
}
"""Presets by name."""

ON_CPU: dict[str, dict[str, Any]] = {
    "cql": {"updates": 100_000, "steps": 100_000},
    "bcq": {"updates": 200_000, "steps": 200_000},
    "gail": {"steps": 500_000},
}
"""Changes of presets for a machine without a GPU, so that a run takes about an hour on two cores; values are ours.

The other presets take an hour at most.
"""

SUITES: dict[str, str] = {
    "bc: Pendulum-": "bc_pendulum",
    "td3_bc: Pendulum-": "td3_bc_pendulum",
    "bcq: Pendulum-": "bcq_pendulum",
    "cql: Pendulum-": "cql_pendulum",
    "iql: Pendulum-": "iql_pendulum",
    "crr: Pendulum-": "crr_pendulum",
    "gail: Pendulum-": "gail_pendulum",
    "gail: CartPole-": "gail_cartpole",
    "bc: CartPole-": "bc_cartpole",
    "discrete_bcq: CartPole-": "discrete_bcq_cartpole",
    "discrete_cql: CartPole-": "discrete_cql_cartpole",
    "discrete_crr: CartPole-": "discrete_crr_cartpole",
    "bc: MinAtar/": "bc_minatar",
    "discrete_bcq: MinAtar/": "discrete_bcq_minatar",
    "discrete_cql: MinAtar/": "discrete_cql_minatar",
    "discrete_crr: MinAtar/": "discrete_crr_minatar",
}
"""Preset of an environment for the algorithm before the colon, by the prefix of its id."""
