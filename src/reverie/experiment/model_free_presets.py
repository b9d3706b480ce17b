"""Presets of model-free agents that collect their own data: DDPG, TD3, SAC, DQN and QR-DQN."""

from __future__ import annotations

from reverie.experiment.preset import NATURE_ATARI, Preset, Settings

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
    "env.num": 1,
    **NATURE_ATARI,
    "replay.capacity": 1_000_000,
    "replay.online": False,
    "algo.target_every": 10_000,
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

# fmt: off
TABLE: dict[str, Preset] = {
    "ddpg": Preset("ddpg", MODEL_FREE,
        "DDPG on MuJoCo and similar tasks: 1M steps; the number of random steps is ours."),
    "td3": Preset("td3", MODEL_FREE,
        "TD3 on MuJoCo and similar tasks: 1M steps (section 6.1); the number of random steps is ours."),
    "sac": Preset("sac", MODEL_FREE,
        "SAC on MuJoCo and similar tasks: 1M steps; the number of random steps is ours."),
    "ddpg_pendulum": Preset("ddpg", PENDULUM, "DDPG on Pendulum-v1: minutes on one CPU core; settings are ours.",
        envs="Pendulum-"),
    "td3_pendulum": Preset("td3", PENDULUM, "TD3 on Pendulum-v1: minutes on one CPU core; settings are ours.",
        envs="Pendulum-"),
    "sac_pendulum": Preset("sac", PENDULUM | {"algo.temperature_lr": 1e-3},
        "SAC on Pendulum-v1: minutes on one CPU core; settings are ours.", envs="Pendulum-"),
    "dqn": Preset("dqn", SMALL_VALUES, "DQN for small problems with discrete actions; settings are ours."),
    "qr_dqn": Preset("qr_dqn", SMALL_VALUES,
        "QR-DQN for small problems with discrete actions; settings are ours."),
    # With the learning rate and the batch size of ``qr_dqn_cartpole``, two of six seeds fell below 200 after they
    # had reached 500.
    "dqn_cartpole": Preset("dqn", CARTPOLE_VALUES | {"algo.lr": 5e-4, "algo.batch_size": 128},
        "DQN on CartPole-v1: a minute on one CPU core; settings are ours.", envs="CartPole-"),
    "qr_dqn_cartpole": Preset("qr_dqn", CARTPOLE_VALUES | {"algo.quantiles": 32},
        "QR-DQN on CartPole-v1: a minute on one CPU core; settings are ours.", envs="CartPole-"),
    "dqn_minatar": Preset("dqn", MINATAR_VALUES, "DQN on MinAtar, with its authors' network.", envs="MinAtar/"),
    "qr_dqn_minatar": Preset("qr_dqn", MINATAR_VALUES, "QR-DQN on MinAtar, with its authors' network.",
        envs="MinAtar/"),
    "dqn_atari": Preset("dqn",
        ATARI_VALUES | {"algo.lr": 1e-4, "algo.exploration": "epsilon_greedy(1.0, 0.1, 1000000)"},
        "DQN on Atari, 200M frames: four 84x84 grey frames stacked (Mnih et al. 2015, extended data table 1).",
        envs="ALE/", cpu=_ATARI),
    "qr_dqn_atari": Preset("qr_dqn",
        ATARI_VALUES | {"algo.lr": 5e-5, "algo.adam_eps": 0.01 / 32,
            "algo.exploration": "epsilon_greedy(1.0, 0.01, 1000000)"},
        'QR-DQN on Atari, 200M frames: four 84x84 grey frames (Dabney et al. 2018, "Evaluation on Atari 2600").',
        envs="ALE/", cpu=_ATARI),
}
# fmt: on
