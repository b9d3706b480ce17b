"""Presets of TD-MPC2. Source: config.yaml and envs/ of github.com/nicklashansen/tdmpc2 (e9f5932), if not marked "ours".

The authors make as many updates at once as there were random steps, then one for each env step. Here are no updates at
once.
"""

from __future__ import annotations

from reverie.experiment.dreamer_presets import PIXELS
from reverie.experiment.preset import Preset, Settings

GENERAL: Settings = {
    "size": "5m",
    "steps": 1_000_000,
    "replay_ratio": 1.0,
    "learning_starts": 2500,
    "random_steps": 2500,
    "env.num": 1,
    "replay.capacity": 1_000_000,
    "algo.episodic": True,
}
"""Any environment; the steps, and that episodes may terminate, are ours."""

DMC: Settings = GENERAL | {
    "env.id": "dm_control/walker-walk-v0",
    "env.action_repeat": 2,
    "algo.episodic": False,
}
"""DeepMind Control, whose episodes of 500 env steps never terminate."""

MUJOCO: Settings = GENERAL | {
    "learning_starts": 5000,
    "random_steps": 5000,
    "env.id": "HalfCheetah-v5",
    "algo.rho": 0.7,
}
"""MuJoCo: discount 0.99 and rho 0.7, as the authors have them for Gymnasium's environments."""

SMALL: Settings = {
    "size": "nano",
    "threads": 1,
    "steps": 50_000,
    "replay_ratio": 0.5,
    "learning_starts": 1000,
    "random_steps": 1000,
    "env.vector": "serial",
    "replay.capacity": 100_000,
    "algo.batch_size": 128,
    "algo.lr": 1e-3,
    "algo.encoder_lr": 3e-4,
    "algo.iterations": 4,
    "algo.samples": 128,
    "algo.policy_samples": 16,
    "algo.elites": 16,
}
"""Smaller networks and plans for a machine without a GPU: an hour on two cores; values are ours."""

_PIXELS: Settings = {"steps": 20_000, "replay_ratio": 0.2, "algo.batch_size": 32}

# fmt: off
TABLE: dict[str, Preset] = {
    "tdmpc2": Preset("tdmpc2", GENERAL,
        "TD-MPC2 at 5M parameters, for any environment with continuous actions; the number of steps is ours.",
        cpu=SMALL),
    "tdmpc2_dmc": Preset("tdmpc2", DMC,
        "TD-MPC2 on DeepMind Control from proprioceptive states, two frames for each action.", envs="dm_control/",
        cpu=SMALL),
    "tdmpc2_dmc_vision": Preset("tdmpc2", DMC | PIXELS | {"algo.frames": 3},
        "TD-MPC2 on DeepMind Control from three stacked frames of 64x64 pixels.", cpu=SMALL | _PIXELS),
    "tdmpc2_mujoco": Preset("tdmpc2", MUJOCO,
        "TD-MPC2 on MuJoCo, whose episodes may terminate: 1M steps.",
        envs="HalfCheetah- Hopper- Walker2d- Ant- Humanoid- Swimmer- Reacher- Pusher- InvertedPendulum- "
             "InvertedDoublePendulum- HumanoidStandup-", cpu=SMALL),
    "tdmpc2_pendulum": Preset("tdmpc2",
        GENERAL | SMALL
        | {"steps": 5000, "env.id": "Pendulum-v1", "replay_ratio": 1.0, "algo.episodic": False},
        "TD-MPC2 on Pendulum-v1: minutes on one CPU core; settings are ours.", envs="Pendulum-"),
}
# fmt: on
