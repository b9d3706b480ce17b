"""Presets of on-policy agents: PPO and A2C."""

from __future__ import annotations

from reverie.experiment.preset import NATURE_ATARI, Preset, Settings

GENERAL: Settings = {"steps": 1_000_000, "threads": 1}
"""The defaults of Stable-Baselines3."""

CARTPOLE: Settings = GENERAL | {"steps": 100_000, "env.id": "CartPole-v1", "env.num": 8}
"""CartPole-v1 on one CPU core, with the environments of RL Baselines3 Zoo."""

MUJOCO: Settings = GENERAL | {
    "env.id": "HalfCheetah-v5",
    "algo.normalise": "running",
    "algo.reward_scale": "return_std",
}
"""MuJoCo: the paper's table 3; normalisation as in its authors' code (Engstrom et al. 2020, arXiv:2005.12729)."""

PENDULUM: Settings = GENERAL | {
    "steps": 200_000,
    "env.id": "Pendulum-v1",
    "env.num": 4,
    "algo.rollout": 1024,
    "algo.discount": 0.9,
    "algo.lr": 1e-3,
    "algo.reward_scale": "factor(0.1)",
    "algo.networks.log_std": -0.693,
}
"""Pendulum-v1 as in RL Baselines3 Zoo, whose deviation of 1 in torques of -2 to 2 is 0.5 in actions of -1 to 1; twice
its steps, without state-dependent exploration and with smaller rewards."""

MINIGRID: Settings = GENERAL | {
    "steps": 200_000,
    "env.id": "MiniGrid-DoorKey-5x5-v0",
    "env.num": 16,
    "algo.rollout": 128,
    "algo.batch_size": 256,
    "algo.epochs": 4,
    "algo.lr": 7e-4,
    "algo.entropy_coef": 0.01,
    "algo.networks.encoder": "minatar",
    "algo.networks.share_encoder": True,
}
"""MiniGrid and BabyAI: github.com/lcswillems/rl-starter-files, scripts/train.py; the network is MinAtar's."""

ATARI: Settings = {
    "steps": 10_000_000,
    **NATURE_ATARI,
    "env.fire": True,
    "algo.entropy_coef": 0.01,
    "algo.networks.share_encoder": True,
    "algo.networks.units": (512,),
    "algo.networks.activation": "relu",
}
"""Atari, 40M frames: Schulman et al. 2017, table 5, and Mnih et al. 2016; FIRE as in OpenAI Baselines. The layer of 512
units is not shared."""

# fmt: off
TABLE: dict[str, Preset] = {
    "ppo": Preset("ppo", GENERAL, "PPO with the defaults of Stable-Baselines3: 1M steps."),
    "ppo_cartpole": Preset("ppo",
        CARTPOLE | {"algo.rollout": 32, "algo.batch_size": 256, "algo.epochs": 20, "algo.discount": 0.98,
            "algo.value_estimator": "gae(0.8)", "algo.lr": [[0, 1e-3], [1e5, 0]], "algo.clip": [[0, 0.2], [1e5, 0]]},
        "PPO on CartPole-v1: seconds on one CPU core; settings of RL Baselines3 Zoo.", envs="CartPole-"),
    "ppo_pendulum": Preset("ppo", PENDULUM,
        "PPO on Pendulum-v1: a minute on one CPU core; settings of RL Baselines3 Zoo but for the exploration.",
        envs="Pendulum-"),
    "ppo_acrobot": Preset("ppo",
        GENERAL | {"env.id": "Acrobot-v1", "env.num": 16, "algo.rollout": 256, "algo.epochs": 4,
            "algo.value_estimator": "gae(0.94)", "algo.normalise": "running", "algo.reward_scale": "return_std"},
        "PPO on Acrobot-v1: minutes on one CPU core; settings of RL Baselines3 Zoo.", envs="Acrobot-"),
    "ppo_lunar_lander": Preset("ppo",
        GENERAL | {"env.id": "LunarLander-v3", "env.num": 16, "algo.rollout": 1024, "algo.epochs": 4,
            "algo.discount": 0.999, "algo.value_estimator": "gae(0.98)", "algo.entropy_coef": 0.01},
        "PPO on LunarLander-v3: 1M steps, settings of RL Baselines3 Zoo.", envs="LunarLander-"),
    "ppo_minatar": Preset("ppo",
        GENERAL | {"env.id": "MinAtar/Breakout-v1", "env.num": 8, "algo.rollout": 128, "algo.batch_size": 256,
            "algo.epochs": 4, "algo.lr": [[0, 1e-3], [1e6, 0]], "algo.entropy_coef": 0.01,
            "algo.networks.encoder": "minatar", "algo.networks.share_encoder": True, "algo.networks.units": (128,),
            "algo.networks.activation": "relu"},
        "PPO on MinAtar, with its authors' network: 1M steps; other settings are ours.", envs="MinAtar/"),
    "ppo_minigrid": Preset("ppo", MINIGRID, "PPO on MiniGrid and BabyAI; settings of their rl-starter-files.",
        envs="MiniGrid- BabyAI-"),
    "ppo_mujoco": Preset("ppo", MUJOCO, "PPO on MuJoCo: 1M steps (table 3); observations and rewards are normalised.",
        envs="HalfCheetah- Hopper- Walker2d- Ant- Humanoid- Swimmer- Reacher- Pusher- InvertedPendulum- "
             "InvertedDoublePendulum- HumanoidStandup-"),
    "ppo_atari": Preset("ppo",
        ATARI | {"env.num": 8, "algo.rollout": 128, "algo.batch_size": 256, "algo.epochs": 4,
            "algo.lr": [[0, 2.5e-4], [1e7, 0]], "algo.clip": [[0, 0.1], [1e7, 0]]},
        "PPO on Atari, 40M frames: four 84x84 grey frames stacked (table 5).", envs="ALE/", cpu={"steps": 400_000}),
    "a2c": Preset("a2c", GENERAL, "A2C with the defaults of Stable-Baselines3: 1M steps."),
    "a2c_cartpole": Preset("a2c", CARTPOLE | {"steps": 500_000},
        "A2C on CartPole-v1: a minute on one CPU core; settings of RL Baselines3 Zoo.", envs="CartPole-"),
    "a2c_atari": Preset("a2c",
        ATARI | {"env.num": 16, "algo.value_coef": 0.25, "algo.rms_form": "tensorflow"},
        "A2C on Atari, 40M frames: four 84x84 grey frames stacked; settings of RL Baselines3 Zoo.", envs="ALE/",
        cpu={"steps": 400_000}),
}
# fmt: on
