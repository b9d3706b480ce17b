"""Presets of model-free agents that collect their own data: DDPG, TD3, SAC, DQN and QR-DQN."""

from __future__ import annotations

from reverie.presets.registry import Settings, preset

MODEL_FREE: Settings = {
    "steps": 1_000_000,
    "replay_ratio": 1.0,
    "learning_starts": 10_000,
    "random_steps": 10_000,
    "threads": 1,  # for such small networks two are slower
    "env.id": "HalfCheetah-v5",
    "env.num": 1,
    "replay.capacity": 1_000_000,
}
"""Common settings of DDPG, TD3 and SAC on MuJoCo: one update per env step, a million steps, random actions at first."""

PENDULUM: Settings = MODEL_FREE | {
    "steps": 15_000,
    "learning_starts": 1000,
    "random_steps": 1000,
    "env.id": "Pendulum-v1",
    "replay.capacity": 100_000,
    "algo.actor_lr": 1e-3,
    "algo.critic_lr": 1e-3,
}
"""Pendulum-v1 on one CPU core: with its short episodes, higher learning rates work."""

VALUES: Settings = {
    "steps": 500_000,
    "replay_ratio": 0.25,
    "learning_starts": 1000,
    "threads": 1,
    "env.num": 1,
    "replay.capacity": 100_000,
}
"""Common settings of DQN and QR-DQN: one update every fourth step."""

SMALL_VALUES: Settings = VALUES | {
    "replay_ratio": 0.5,
    "algo.batch_size": 64,
    "algo.batch_length": 4,
    "algo.value_estimator": "n_step(3)",
    "algo.lr": 3e-4,
    "algo.double": True,
    "algo.tau": 0.01,
    "algo.target_every": 1,
}
"""DQN and QR-DQN on small problems. With single steps and the paper's targets, copied every 1,000 updates, Acrobot-v1
and FrozenLake-v1 were not learned in 20,000 and 10,000 env steps; with these settings they were."""

CARTPOLE_VALUES: Settings = SMALL_VALUES | {
    "steps": 50_000,
    "env.id": "CartPole-v1",
    "replay.capacity": 50_000,
    "algo.lr": 1e-3,
    "algo.networks.units": (128, 128),
    "algo.exploration": "epsilon_greedy(1.0, 0.05, 5000)",
}
"""CartPole-v1 on one CPU core."""

MINATAR_VALUES: Settings = VALUES | {
    "replay_ratio": 0.5,
    "learning_starts": 5000,
    "env.id": "MinAtar/Breakout-v1",
    "env.num": 4,
    "algo.lr": 2.5e-4,
    "algo.networks.encoder": "minatar",
    "algo.networks.units": (128,),
    "algo.exploration": "epsilon_greedy(1.0, 0.01, 50000)",
}
"""MinAtar with its authors' network, replay and learning rate (github.com/kenjyoung/MinAtar, examples/dqn.py).

They train for five million steps, with an update per step and more exploration; this is a tenth of that, for a CPU
core.
"""

ATARI_VALUES: Settings = {
    "steps": 50_000_000,
    "replay_ratio": 0.25,
    "learning_starts": 50_000,
    "random_steps": 50_000,
    "env.id": "ALE/Pong-v5",
    "env.num": 1,
    "env.action_repeat": 4,
    "env.pool_frames": 2,
    "env.noop_max": 30,
    "env.resize": (84, 84),
    "env.grayscale": True,
    "env.clip_reward": "sign",
    "env.time_limit": 27_000,
    "env.kwargs": {"repeat_action_probability": 0.0, "full_action_space": False},
    "replay.capacity": 1_000_000,
    "replay.online": False,
    "algo.target_every": 10_000,
    "algo.frames": 4,
    "algo.networks.encoder": "nature",
    "algo.networks.units": (512,),
}
"""Atari as in Mnih et al. 2015, extended data table 1, with its preprocessing."""


_ATARI: Settings = {
    "steps": 400_000,
    "learning_starts": 10_000,
    "random_steps": 10_000,
    "replay.capacity": 100_000,
    "algo.target_every": 1000,
    "algo.exploration": "epsilon_greedy(1.0, 0.05, 100000)",
}
"""Changes of Atari's presets for a machine without a GPU: about an hour on two cores; values are ours."""


@preset("ddpg")
def ddpg() -> Settings:
    """DDPG on MuJoCo and similar tasks: 1M steps; the number of random steps is ours."""
    return MODEL_FREE


@preset("td3")
def td3() -> Settings:
    """TD3 on MuJoCo and similar tasks: 1M steps (section 6.1); the number of random steps is ours."""
    return MODEL_FREE


@preset("sac")
def sac() -> Settings:
    """SAC on MuJoCo and similar tasks: 1M steps; the number of random steps is ours."""
    return MODEL_FREE


@preset("ddpg", "Pendulum-")
def ddpg_pendulum() -> Settings:
    """DDPG on Pendulum-v1: minutes on one CPU core; settings are ours."""
    return PENDULUM


@preset("td3", "Pendulum-")
def td3_pendulum() -> Settings:
    """TD3 on Pendulum-v1: minutes on one CPU core; settings are ours."""
    return PENDULUM


@preset("sac", "Pendulum-")
def sac_pendulum() -> Settings:
    """SAC on Pendulum-v1: minutes on one CPU core; settings are ours."""
    return PENDULUM | {"algo.temperature_lr": 1e-3}


@preset("dqn")
def dqn() -> Settings:
    """DQN for small problems with discrete actions; settings are ours."""
    return SMALL_VALUES


@preset("qr_dqn")
def qr_dqn() -> Settings:
    """QR-DQN for small problems with discrete actions; settings are ours."""
    return SMALL_VALUES


@preset("dqn", "CartPole-")
def dqn_cartpole() -> Settings:
    """DQN on CartPole-v1: a minute on one CPU core; settings are ours.

    With the learning rate and the batch size of ``qr_dqn_cartpole``, two of six seeds fell below 200 after they had
    reached 500.
    """
    return CARTPOLE_VALUES | {"algo.lr": 5e-4, "algo.batch_size": 128}


@preset("qr_dqn", "CartPole-")
def qr_dqn_cartpole() -> Settings:
    """QR-DQN on CartPole-v1: a minute on one CPU core; settings are ours."""
    return CARTPOLE_VALUES | {"algo.quantiles": 32}


@preset("dqn", "MinAtar/")
def dqn_minatar() -> Settings:
    """DQN on MinAtar, with its authors' network."""
    return MINATAR_VALUES


@preset("qr_dqn", "MinAtar/")
def qr_dqn_minatar() -> Settings:
    """QR-DQN on MinAtar, with its authors' network."""
    return MINATAR_VALUES


@preset("dqn", "ALE/", cpu=_ATARI)
def dqn_atari() -> Settings:
    """DQN on Atari, 200M frames: four 84x84 grey frames stacked (Mnih et al. 2015, extended data table 1)."""
    return ATARI_VALUES | {"algo.lr": 1e-4, "algo.exploration": "epsilon_greedy(1.0, 0.1, 1000000)"}


@preset("qr_dqn", "ALE/", cpu=_ATARI)
def qr_dqn_atari() -> Settings:
    """QR-DQN on Atari, 200M frames: four 84x84 grey frames stacked (Dabney et al. 2018, "Evaluation on Atari 2600")."""
    paper = {"algo.lr": 5e-5, "algo.adam_eps": 0.01 / 32, "algo.exploration": "epsilon_greedy(1.0, 0.01, 1000000)"}
    return ATARI_VALUES | paper
