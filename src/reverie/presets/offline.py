"""Presets of agents that learn from recorded data.

With an environment beside the data (``--env``), ``steps`` and the replay ratio count what is collected there.
"""

from __future__ import annotations

from reverie.presets.model_free import MODEL_FREE, PENDULUM
from reverie.presets.registry import Settings, preset

DATA: Settings = {
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

PENDULUM_DATA: Settings = DATA | {
    "updates": 20_000,
    "steps": 15_000,
    "eval_episodes": 20,
    "env.id": "Pendulum-v1",
    "replay.capacity": 100_000,
    "algo.batch_size": 256,
    "algo.networks.units": (64, 64),
}
"""Data of Pendulum-v1 on one CPU core: with small networks, higher learning rates work."""

CHOICE_DATA: Settings = {
    "updates": 100_000,
    "steps": 500_000,
    "replay_ratio": 0.25,
    "learning_starts": 1000,
    "threads": 1,
    "env.num": 1,
    "replay.capacity": 100_000,
}
"""Common settings of algorithms for discrete actions on small problems."""

CARTPOLE_DATA: Settings = CHOICE_DATA | {
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

MINATAR_DATA: Settings = CHOICE_DATA | {
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


@preset("bc")
def bc() -> Settings:
    """Behaviour cloning on data of MuJoCo and similar tasks; as many updates as the other algorithms."""
    return DATA


@preset("td3_bc")
def td3_bc() -> Settings:
    """TD3+BC on data of MuJoCo and similar tasks: 1M updates (appendix C)."""
    return DATA


@preset("bcq", cpu={"updates": 200_000, "steps": 200_000})
def bcq() -> Settings:
    """BCQ on data of MuJoCo and similar tasks; as many updates as the other algorithms."""
    return DATA


@preset("cql", cpu={"updates": 100_000, "steps": 100_000})
def cql() -> Settings:
    """CQL on data of MuJoCo and similar tasks: 1M updates."""
    return DATA


@preset("iql")
def iql() -> Settings:
    """IQL on data of MuJoCo and similar tasks: 1M updates (appendix B)."""
    return DATA


@preset("crr")
def crr() -> Settings:
    """CRR on data of MuJoCo and similar tasks; as many updates as the other algorithms."""
    return DATA


@preset("gail", cpu={"steps": 500_000})
def gail() -> Settings:
    """GAIL with an expert's data on MuJoCo and similar tasks, beside the environment: 1M steps, as SAC."""
    return MODEL_FREE


@preset("gail", "Pendulum-")
def gail_pendulum() -> Settings:
    """GAIL with an expert's data on Pendulum-v1, beside the environment, as SAC; settings are ours."""
    small = {"algo.batch_size": 128, "algo.networks.units": (64, 64), "algo.discriminator.units": (64, 64)}
    softer = {"algo.gradient_penalty": 1.0, "algo.temperature": 0.1, "algo.temperature_lr": 1e-3}
    return PENDULUM | small | softer


@preset("gail", "CartPole-")
def gail_cartpole() -> Settings:
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
    return PENDULUM | {"env.id": "CartPole-v1"} | short | small | softer


@preset("bc", "Pendulum-")
def bc_pendulum() -> Settings:
    """Behaviour cloning on data of Pendulum-v1: half a minute on one CPU core; settings are ours."""
    return PENDULUM_DATA | {"algo.lr": 1e-3}


@preset("td3_bc", "Pendulum-")
def td3_bc_pendulum() -> Settings:
    """TD3+BC on data of Pendulum-v1: a minute on one CPU core; settings are ours."""
    faster = {"algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3}
    return PENDULUM_DATA | faster


@preset("bcq", "Pendulum-")
def bcq_pendulum() -> Settings:
    """BCQ on data of Pendulum-v1: a minute on one CPU core; settings are ours."""
    return PENDULUM_DATA | {"algo.vae.units": (128, 128)}


@preset("cql", "Pendulum-")
def cql_pendulum() -> Settings:
    """CQL on data of Pendulum-v1: minutes on one CPU core; settings are ours."""
    faster = {"algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3, "algo.temperature_lr": 1e-3}
    return PENDULUM_DATA | faster


@preset("iql", "Pendulum-")
def iql_pendulum() -> Settings:
    """IQL on data of Pendulum-v1: a minute on one CPU core; settings are ours."""
    faster = {"algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3, "algo.value_lr": 1e-3}
    return PENDULUM_DATA | faster


@preset("crr", "Pendulum-")
def crr_pendulum() -> Settings:
    """CRR on data of Pendulum-v1: a minute on one CPU core; settings are ours."""
    faster = {"algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3}
    return PENDULUM_DATA | faster


@preset("discrete_bcq")
def discrete_bcq() -> Settings:
    """Discrete BCQ on data of small problems with discrete actions; the number of updates is ours."""
    return CHOICE_DATA


@preset("discrete_cql")
def discrete_cql() -> Settings:
    """Discrete CQL on data of small problems with discrete actions; the number of updates is ours."""
    return CHOICE_DATA


@preset("discrete_crr")
def discrete_crr() -> Settings:
    """Discrete CRR on data of small problems with discrete actions; the number of updates is ours."""
    return CHOICE_DATA


@preset("bc", "CartPole-")
def bc_cartpole() -> Settings:
    """Behaviour cloning on data of CartPole-v1: half a minute on one CPU core; settings are ours."""
    return CARTPOLE_DATA | {"algo.lr": 1e-3}


@preset("discrete_bcq", "CartPole-")
def discrete_bcq_cartpole() -> Settings:
    """Discrete BCQ on data of CartPole-v1: half a minute on one CPU core; settings are ours.

    Uses three-step returns, as DQN's preset does: with one-step returns values take longer than this to converge.
    """
    ahead = {"algo.value_estimator": "n_step(3)", "algo.batch_length": 4}
    return CARTPOLE_DATA | ahead | {"algo.lr": 1e-3}


@preset("discrete_cql", "CartPole-")
def discrete_cql_cartpole() -> Settings:
    """Discrete CQL on data of CartPole-v1: a minute on one CPU core; settings are ours."""
    return CARTPOLE_DATA | {"algo.lr": 1e-3, "algo.quantiles": 64}


@preset("discrete_crr", "CartPole-")
def discrete_crr_cartpole() -> Settings:
    """Discrete CRR on data of CartPole-v1: half a minute on one CPU core; settings are ours."""
    faster = {"algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3}
    return CARTPOLE_DATA | faster


@preset("bc", "MinAtar/")
def bc_minatar() -> Settings:
    """Behaviour cloning on data of MinAtar, with its authors' network; settings are ours."""
    return MINATAR_DATA | {"algo.lr": 2.5e-4}


@preset("discrete_bcq", "MinAtar/")
def discrete_bcq_minatar() -> Settings:
    """Discrete BCQ on data of MinAtar, with its authors' network; settings are ours."""
    return MINATAR_DATA | {"algo.lr": 2.5e-4}


@preset("discrete_cql", "MinAtar/")
def discrete_cql_minatar() -> Settings:
    """Discrete CQL on data of MinAtar, with its authors' network; settings are ours."""
    return MINATAR_DATA | {"algo.lr": 2.5e-4, "algo.quantiles": 64}


@preset("discrete_crr", "MinAtar/")
def discrete_crr_minatar() -> Settings:
    """Discrete CRR on data of MinAtar, with its authors' network; settings are ours."""
    slower = {"algo.actor_lr": 2.5e-4, "algo.critic_lr": 2.5e-4}
    return MINATAR_DATA | slower
