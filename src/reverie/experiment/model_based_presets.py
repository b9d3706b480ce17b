"""Presets of the Dreamers, of TD-MPC2, of BMPC and of MuZero, whose settings are by reverie.

Source: "configs.yaml" is the file of github.com/danijar/dreamerv3 as of May 2026, the code of Hafner et al., Nature
2025; for DreamerV2 it is the file of github.com/danijar/dreamerv2, version 2.2.0. DreamerV1: dreamer.py
of github.com/danijar/dreamer; R2-Dreamer: configs/env/ of github.com/NM512/r2dreamer. The train ratio of V3 is in
replayed rows per env step; the ratios of V1 and V2 are updates per env step. Settings "by reverie" are not given there.
TD-MPC2: config.yaml and envs/ of github.com/nicklashansen/tdmpc2 (e9f5932). Its authors start with as many updates at
once as random steps, then make one update per env step. Here the updates at once are omitted. BMPC has the settings of
TD-MPC2 but for its own: config.yaml of github.com/wertyuilife2/bmpc (d5dabc6).
"""

from __future__ import annotations

from reverie.experiment.preset import MUJOCO, Preset, Settings

# fmt: off

# With two threads updates are a quarter faster on an idle machine, but much slower next to a busy process.
CPU: Settings = {
    "threads": 1, "steps": 50_000, "replay_ratio": 0.4, "learning_starts": 512, "env.num": 4,
    "replay.capacity": 100_000, "algo.batch_size": 16, "algo.batch_length": 32, "algo.optim.lr": 6e-4,
    "algo.optim.warmup": 200,
}
"""Settings for small problems on two CPU cores."""

FEW_UPDATES: Settings = {"steps": 40_000, "replay_ratio": 0.1, "eval_episodes": 4}
"""Changes of ``CPU_SUFFIX`` for images of 64x64, whose updates take six times as long as those of vectors."""

CARTPOLE: Settings = CPU | {
    "env.id": "CartPole-v1", "steps": 8_000, "eval_episodes": 20, "eval_envs": 20, "schedule.eval_every": 400,
    "stop_score": 499.0,
}
"""Settings with which CartPole-v1 is solved in minutes on two CPU cores."""

DEMO: Settings = CPU | {
    "env.id": "reverie/Rooms-v0", "env.full_view": True, "env.num": 16, "replay_ratio": 0.1, "learning_starts": 1500,
    "steps": 15_000, "eval_episodes": 100, "eval_envs": 50, "schedule.eval_every": 1000, "stop_score": 1.0,
    "schedule.dream_snapshots": 24,
    "algo.batch_length": 16, "algo.imagine_last": 4, "algo.horizon": 12, "algo.discount_horizon": 50.0,
    "algo.entropy_coef": 3e-3, "algo.free_nats": 0.1, "algo.loss_scales.reconstruction": {"agent": 6.0},
    "algo.encoder.keys": "agent", "algo.optim.lr": 3e-3, "algo.optim.warmup": 50,
} | {f"algo.{part}.layers": 1 for part in ("encoder", "decoder", "actor", "critic")}
"""Settings of the demonstration: an agent that starts anywhere in four rooms, which are always the same, walks to the
goal.

Steps cost less than updates, and random ones must find the goal a few times. With few free nats and a large weight of
the agent's place, dreams are exact sooner."""

# For a machine without a GPU, so that a run takes about an hour on two cores; values by reverie.
_CPU: Settings = CPU | {"size": "nano", "env.vectorization": "sync", "schedule.eval_every": 10_000}
_CPU_IMAGES = _CPU | FEW_UPDATES
_CPU_GRIDS = _CPU | {"steps": 40_000}

_EARLIER: Settings = {f"algo.{part}.units": 64 for part in ("reward", "cont", "actor", "critic")} | {
    "threads": 1, "steps": 20_000, "replay_ratio": 0.4, "random_steps": 500, "learning_starts": 500, "env.num": 4,
    "env.vectorization": "sync", "replay.capacity": 100_000, "schedule.eval_every": 10_000, "algo.batch_size": 16,
    "algo.batch_length": 32, "algo.rssm.deter": 128, "algo.rssm.hidden": 64, "algo.rssm.stoch": 16,
    "algo.encoder.units": (64, 64), "algo.decoder.units": (64, 64), "algo.encoder.depth": 4, "algo.decoder.depth": 4,
    "algo.model_optim.lr": 1e-3, "algo.actor_optim.lr": 4e-4, "algo.critic_optim.lr": 1e-3,
}
# With an entropy of 0.002, at returns of some tens in few steps, the policy stops trying too early.
_V2 = _EARLIER | {
    "algo.rssm.latent": "categorical(16)", "algo.slow_update_interval": 50, "algo.entropy_coef": 0.02,
    "algo.loss_scales.cont": 5.0,
}
_V1 = _EARLIER | {"algo.kl": "free_nats(1.0)"}
_PYDREAMER: Settings = _V2 | {"algo.encoder.outputs": 64, "algo.probe.optim.lr": 1e-3}
_FEW_MODELS: Settings = {"algo.ensemble.num_models": 5, "algo.ensemble.head.layers": 2}

V3: Settings = {"threads": 0, "steps": 1_000_000, "train_ratio": 512, "env.num": 1}
"""DreamerV3 on any environment."""

V2: Settings = {
    "threads": 0, "steps": 1_000_000, "replay_ratio": 1 / 5, "random_steps": 10_000, "learning_starts": 10_000,
    "env.num": 1, "replay.capacity": 2_000_000,
}
"""DreamerV2: prefill and "train every"; steps by reverie."""

V2_DMC: Settings = V2 | {
    "random_steps": 1000, "learning_starts": 1000, "env.id": "dm_control/walker-walk-v0", "env.action_repeat": 2,
    "algo.reward_transform": "identity", "algo.learn_cont": False, "algo.kl": "balanced_kl(nats=1.0)",
    "algo.entropy_coef": 1e-4,
    "algo.rssm.deter": 200, "algo.rssm.hidden": 200, "algo.model_optim.lr": 3e-4, "algo.actor_optim.lr": 8e-5,
    "algo.critic_optim.lr": 8e-5,
}
"""DreamerV2 on DeepMind Control, from states or from pixels."""

WORKERS: Settings = {"threads": 0, "env.num": 16, "env.vectorization": "async"}
PIXELS: Settings = {"env.pixels": "only", "env.resize": (64, 64)}
DMC: Settings = {"env.id": "dm_control/walker-walk-v0", **WORKERS}
MINIGRID: Settings = {"steps": 500_000, "train_ratio": 512, "env.id": "MiniGrid-DoorKey-5x5-v0", "env.num": 4}
MINATAR: Settings = {"steps": 2_000_000, "train_ratio": 128, "env.id": "MinAtar/Breakout-v1", "env.num": 8}

ATARI: Settings = {
    "threads": 0, "env.id": "ALE/Pong-v5", "env.num": 1, "env.resize": (64, 64), "env.action_repeat": 4,
    "env.pool_frames": 2, "env.noop_max": 30, "env.max_episode_steps": 27_000,
    "env.kwargs": {"repeat_action_probability": 0.25, "full_action_space": True},
}
"""Atari with sticky actions and all 18 actions."""

ATARI_100K: Settings = ATARI | {"env.kwargs": {"repeat_action_probability": 0.0, "full_action_space": False}}
"""Atari without sticky actions, with the game's own actions."""

V1: Settings = {
    "threads": 0, "steps": 1_000_000, "replay_ratio": 1 / 5, "random_steps": 2500, "learning_starts": 2500,
    "env.num": 1,
}
"""DreamerV1; steps by reverie."""

PYDREAMER: Settings = {
    "threads": 0, "steps": 100_000_000, "replay_ratio": 1 / 20, "random_steps": 50_000, "learning_starts": 50_000,
    "env.num": 8, "env.vectorization": "async", "replay.capacity": 10_000_000, "replay.sequential": True,
    "replay.reset_interval": 200, "algo.carry_state": True, "algo.batch_size": 32, "algo.batch_length": 48,
    "algo.reward_transform": "identity", "algo.return_estimator": "next_reward", "algo.discount": 0.995,
    "algo.entropy_coef": 3e-3, "algo.actor_gradient": "reinforce",
    "algo.slow_update_order": "before", "algo.imagine_with": "same", "algo.rssm.deter": 2048, "algo.rssm.hidden": 1000,
    "algo.rssm.cell": "keras_gru", "algo.rssm.init": "split", "algo.encoder.units": (400, 400),
    "algo.encoder.outputs": 256, **{f"algo.{part}.cnn_norm": "none" for part in ("encoder", "decoder")},
    **{f"algo.{part}.norm": "layer" for part in ("rssm", "encoder", "decoder", "reward", "cont", "actor", "critic")},
    **{f"algo.{part}.init": "torch" for part in ("actor", "critic")},
    **{f"algo.{part}.{name}": value
       for part in ("model_optim", "actor_optim", "critic_optim", "probe.optim")
       for name, value in {"implementation": "torch", "lr": 3e-4, "eps": 1e-5, "weight_decay": 0.01,
                           "max_grad_norm": 200.0}.items()},
    "algo.actor_optim.lr": 1e-4, "algo.critic_optim.lr": 1e-4,
}
"""PyDreamer's config/defaults.yaml. Its trainer does not wait for its workers; on a V100 an update takes about as long
as 20 of their steps (README.md). Number of steps by reverie, except for Atari."""

R2_DMC: Settings = {"size": "12m", "train_ratio": 512, "replay.capacity": 500_000, "env.action_repeat": 2, **DMC}
"""R2-Dreamer on DeepMind Control, from states or from pixels."""

TDMPC2: Settings = {
    "threads": 0, "size": "5m", "steps": 1_000_000, "replay_ratio": 1.0, "learning_starts": 2500, "random_steps": 2500,
    "env.num": 1, "replay.capacity": 1_000_000, "algo.episodic": True,
}
"""TD-MPC2 in any environment; the number of steps, and terminating episodes, by reverie."""

TDMPC2_DMC: Settings = TDMPC2 | {"env.id": "dm_control/walker-walk-v0", "env.action_repeat": 2, "algo.episodic": False}
"""DeepMind Control, whose episodes of 500 env steps never terminate."""

TDMPC2_MUJOCO: Settings = TDMPC2 | {
    "learning_starts": 5000, "random_steps": 5000, "env.id": "HalfCheetah-v5", "algo.rho": 0.7,
}
"""MuJoCo: discount 0.99 and rho 0.7, as the authors have them for Gymnasium's environments."""

TDMPC2_CPU: Settings = {
    "size": "nano", "threads": 1, "steps": 50_000, "replay_ratio": 0.5, "learning_starts": 1000, "random_steps": 1000,
    "env.vectorization": "sync", "replay.capacity": 100_000, "algo.batch_size": 128, "algo.lr": 1e-3,
    "algo.encoder_lr": 3e-4, "algo.iterations": 4, "algo.num_samples": 128, "algo.num_policy_samples": 16,
    "algo.num_elites": 16,
}
"""Smaller networks and plans for a machine without a GPU: an hour on two cores; values by reverie."""

_TDMPC2_PIXELS: Settings = {"steps": 20_000, "replay_ratio": 0.2, "algo.batch_size": 32}
_BMPC_CPU: Settings = TDMPC2_CPU | {"algo.reanalyze_batch_size": 10}

MUZERO: Settings = {
    "threads": 1, "steps": 100_000, "replay_ratio": 0.25, "learning_starts": 1000, "env.num": 8,
    "env.vectorization": "sync", "replay.capacity": 100_000,
}
"""MuZero in environments with vectors. The untrained search acts at random, so there are no random steps."""

MUZERO_CARTPOLE: Settings = MUZERO | {
    "steps": 30_000, "env.id": "CartPole-v1", "eval_episodes": 20, "eval_envs": 20, "schedule.eval_every": 2000,
    "stop_score": 475.0, "algo.value_estimator": "n_step(40)", "algo.batch_length": 46,
    "algo.reanalyze_batch_size": 20,
}
"""CartPole-v1 in minutes on one CPU core."""

MUZERO_GRID: Settings = MUZERO | {
    "env.id": "MiniGrid-Empty-5x5-v0", "algo.value_estimator": "n_step(10)", "algo.batch_length": 16,
    "algo.reanalyze_batch_size": 20, "algo.discount": 0.99, "algo.networks.max_value": 2.0,
    "algo.consistency_coef": 2.0, "algo.gumbel_scale": 2.0,
}
"""MiniGrid: with wide bins, values between 0 and 1 are not learned. With half of the noise, one of three seeds needed
four times the env steps in DoorKey: the values of states in which it was stuck were too high."""

MUZERO_BOARD: Settings = MUZERO | {
    "steps": 250_000, "replay_ratio": 0.0625, "env.id": "reverie/TicTacToe-v0", "env.num": 64,
    "env.kwargs": {"opening_moves": 6}, "replay.capacity": 60_000, "learning_starts": 2000,
    "schedule.eval_every": 50_000, "eval_episodes": 100, "eval_envs": 50, "algo.value_estimator": "td1",
    "algo.reanalyze_interval": 0, "algo.discount": 1.0,
    "algo.lr": [[0, 2e-3], [250_000, 1e-4]], "algo.q_range_floor": 2.0,
    "algo.networks.bins": 21, "algo.networks.max_value": 1.0,
}
"""MuZero in board games against itself, with results of -1, 0 and 1. Few updates on many games learn most in little
time; so do games that begin after random moves."""


def _planning_presets(name: str, title: str, on_cpu: Settings) -> dict[str, Preset]:
    """Return the presets of TD-MPC2, which are those of BMPC, too."""
    pendulum = {"steps": 5000, "env.id": "Pendulum-v1", "replay_ratio": 1.0, "algo.episodic": False}
    return {
        name: Preset(name, TDMPC2,
            f"{title} at 5M parameters, for any environment with continuous actions; number of steps by reverie.",
            cpu_changes=on_cpu),
        f"{name}_dmc": Preset(name, TDMPC2_DMC,
            f"{title} on DeepMind Control from proprioceptive states, two frames for each action.",
            env_prefixes="dm_control/", cpu_changes=on_cpu),
        f"{name}_dmc_vision": Preset(name, TDMPC2_DMC | PIXELS | {"algo.frame_stack": 3},
            f"{title} on DeepMind Control from three stacked frames of 64x64 pixels.",
            cpu_changes=on_cpu | _TDMPC2_PIXELS),
        f"{name}_mujoco": Preset(name, TDMPC2_MUJOCO,
            f"{title} on MuJoCo, whose episodes may terminate: 1M steps.", env_prefixes=MUJOCO, cpu_changes=on_cpu),
        f"{name}_pendulum": Preset(name, TDMPC2 | on_cpu | pendulum,
            f"{title} on Pendulum-v1: minutes on one CPU core; settings by reverie.", env_prefixes="Pendulum-"),
    }


TABLE: dict[str, Preset] = {
    "dreamer_v3": Preset("dreamer_v3", {"size": "12m"} | V3,
        "DreamerV3 with its fixed hyperparameters at 12M parameters, for any environment; train ratio by reverie.",
        cpu_changes=_CPU),
    "plan2explore_v3": Preset("plan2explore_v3", {"size": "12m"} | V3,
        "Plan2Explore on DreamerV3 at 12M parameters, for any environment; ensemble's settings by reverie.",
        cpu_changes=_CPU | _FEW_MODELS | {"replay_ratio": 0.2}),
    "cartpole": Preset("dreamer_v3", {"size": "nano"} | CARTPOLE,
        "CartPole-v1 solved in minutes on two CPU cores; settings by reverie.", env_prefixes="CartPole-"),
    "demo": Preset("dreamer_v3", {"size": "nano"} | DEMO,
        "The demonstration: an agent walks through four rooms, seen from above, on one CPU core; settings by reverie."),
    "atari": Preset("dreamer_v3",
        {"size": "200m", "steps": 51_000_000, "train_ratio": 32, **ATARI, **WORKERS, "env.resize": (96, 96),
            "env.grayscale": True},
        "Atari, 200M frames: 96x96 gray, sticky actions, all 18 actions (configs.yaml: atari).", env_prefixes="ALE/",
        cpu_changes=_CPU_IMAGES | {"replay_ratio": 0.05, "schedule.eval_every": 20_000}),
    "atari100k": Preset("dreamer_v3", {"size": "200m", "steps": 110_000, "train_ratio": 256, **ATARI_100K},
        "Atari with 400K frames: 64x64 RGB, no sticky actions, the game's own actions (configs.yaml: atari100k).",
        cpu_changes=_CPU_IMAGES | {"schedule.eval_every": 20_000}),
    "dmc_proprio": Preset("dreamer_v3", {"size": "1m", "steps": 1_100_000, "train_ratio": 1024, **DMC},
        "DeepMind Control from proprioceptive states, 1M steps, at 1 million parameters (configs.yaml: dmc_proprio).",
        env_prefixes="dm_control/", cpu_changes=_CPU),
    "dmc_vision": Preset("dreamer_v3", {"size": "200m", "steps": 1_100_000, "train_ratio": 256, **DMC, **PIXELS},
        "DeepMind Control from 64x64 pixels, 1M steps (configs.yaml: dmc_vision).", cpu_changes=_CPU_IMAGES),
    "crafter": Preset("dreamer_v3",
        {"threads": 0, "size": "200m", "steps": 1_100_000, "train_ratio": 512, "env.id": "CrafterReward-v1",
            "env.num": 1},
        "Crafter, 1M steps (configs.yaml: crafter).", env_prefixes="Crafter", cpu_changes=_CPU_IMAGES),
    "procgen": Preset("dreamer_v3",
        {"size": "200m", "steps": 110_000_000, "train_ratio": 64, "env.id": "procgen-coinrun-v0", **WORKERS,
            "env.kwargs": {"detailed": True}, "env.resize": (96, 96)},
        "ProcGen, 100M steps at 96x96 (configs.yaml: procgen).", env_prefixes="procgen-",
        cpu_changes=_CPU_IMAGES | {"replay_ratio": 0.05}),
    "dmlab": Preset("dreamer_v3",
        {"size": "200m", "steps": 26_000_000, "train_ratio": 32,
            **WORKERS, "env.resize": (64, 64)},
        "DeepMind Lab, 100M frames at 64x64, four for each action (configs.yaml: dmlab); give the environment as "
        "`module:Id`.",
        cpu_changes=_CPU_IMAGES),
    "minecraft": Preset("dreamer_v3",
        {"size": "200m", "steps": 100_000_000, "train_ratio": 32, "env.id": "minedojo/harvest_milk", **WORKERS,
            "env.resize": (64, 64), "env.max_episode_steps": 36_000},
        "MineDojo at 64x64 (configs.yaml: minecraft); task, actions and number of steps by reverie.",
        env_prefixes="minedojo/",
        cpu_changes=_CPU_IMAGES),
    "games": Preset("dreamer_v3",
        {"size": "50m", "steps": 10_000_000, "train_ratio": 64, "env.id": "MiniWorld-OneRoom-v0", **WORKERS,
            "env.num": 8, "env.resize": (64, 64)},
        "MiniWorld, Memory Maze and Super Mario Bros. at 64x64; settings by reverie.",
        env_prefixes="MiniWorld- MemoryMaze- SuperMarioBros", cpu_changes=_CPU_IMAGES),
    "craftax": Preset("dreamer_v3",
        {"size": "12m", "steps": 10_000_000, "train_ratio": 64, "env.id": "Craftax-Classic-Symbolic-v1", "env.num": 16},
        "Craftax from its symbols; settings by reverie.", env_prefixes="Craftax-", cpu_changes=_CPU),
    "minigrid": Preset("dreamer_v3", {"size": "1m"} | MINIGRID,
        "MiniGrid from 7x7 symbols; settings by reverie.", env_prefixes="MiniGrid- BabyAI-", cpu_changes=_CPU_GRIDS),
    "minatar": Preset("dreamer_v3", {"size": "1m"} | MINATAR,
        "MinAtar from its 10x10 planes; settings by reverie.", env_prefixes="MinAtar/", cpu_changes=_CPU_GRIDS),
    "r2dreamer": Preset("r2dreamer", {"size": "12m", "replay.capacity": 500_000} | V3,
        "R2-Dreamer with the defaults of its authors' code at 12M parameters, for any environment; steps by reverie.",
        cpu_changes=_CPU),
    "r2dreamer_dmc_proprio": Preset("r2dreamer", R2_DMC | {"steps": 255_000},
        "R2-Dreamer on DeepMind Control from proprioceptive states, 510K frames (dmc_proprio.yaml).",
        env_prefixes="dm_control/", cpu_changes=_CPU),
    "r2dreamer_dmc_vision": Preset("r2dreamer", R2_DMC | PIXELS | {"steps": 505_000},
        "R2-Dreamer on DeepMind Control from 64x64 pixels, 1M frames (dmc_vision.yaml).", cpu_changes=_CPU_IMAGES),
    "r2dreamer_atari100k": Preset("r2dreamer",
        {"size": "200m", "steps": 102_500, "train_ratio": 128, "replay.capacity": 500_000, **ATARI_100K,
            "env.id": "ALE/Alien-v5"},
        "R2-Dreamer on Atari with 410K frames: 64x64 RGB, no sticky actions, the game's own (atari100k.yaml).",
        env_prefixes="ALE/", cpu_changes=_CPU_IMAGES | {"schedule.eval_every": 20_000}),
    "r2dreamer_crafter": Preset("r2dreamer",
        {"size": "200m", "steps": 1_010_000, "train_ratio": 512, "replay.capacity": 500_000,
            "env.id": "CrafterReward-v1", "env.num": 1, "env.max_episode_steps": 1000},
        "R2-Dreamer on Crafter, 1M steps (crafter.yaml).", env_prefixes="Crafter", cpu_changes=_CPU_IMAGES),
    "r2dreamer_minigrid": Preset("r2dreamer", {"size": "1m"} | MINIGRID,
        "R2-Dreamer on MiniGrid from its 7x7 symbols; settings by reverie.", env_prefixes="MiniGrid- BabyAI-",
        cpu_changes=_CPU_GRIDS),
    "r2dreamer_minatar": Preset("r2dreamer", {"size": "1m"} | MINATAR,
        "R2-Dreamer on MinAtar from its 10x10 planes; settings by reverie.", env_prefixes="MinAtar/",
        cpu_changes=_CPU_GRIDS),
    "dreamer_v2": Preset("dreamer_v2", V2,
        "DreamerV2 with the defaults of its authors' code (configs.yaml: defaults); number of steps by reverie.",
        cpu_changes=_V2),
    "plan2explore": Preset("plan2explore", V2,
        "Plan2Explore on DreamerV2 with the defaults of its authors' code; number of steps by reverie.",
        cpu_changes=_V2 | _FEW_MODELS | {"algo.ensemble.head.units": 64, "algo.expl_reward_norm.momentum": 0.99}),
    "dreamer_v2_atari": Preset("dreamer_v2",
        V2 | ATARI | {"steps": 50_000_000, "replay_ratio": 1 / 16, "random_steps": 50_000, "learning_starts": 50_000,
            "env.grayscale": True, "env.kwargs": {"repeat_action_probability": 0.25, "full_action_space": False},
            "algo.rssm.deter": 600, "algo.rssm.hidden": 600, "algo.loss_scales.kl": 0.1, "algo.loss_scales.cont": 5.0,
            "algo.discount": 0.999, "algo.entropy_coef": 1e-3, "algo.model_optim.lr": 2e-4, "algo.actor_optim.lr": 4e-5,
            "algo.critic_optim.lr": 1e-4},
        "DreamerV2 on Atari, 200M frames: 64x64 gray, sticky actions, the game's own (configs.yaml: atari).",
        env_prefixes="ALE/", cpu_changes=_V2 | FEW_UPDATES),
    "dreamer_v2_crafter": Preset("dreamer_v2",
        V2 | {"env.id": "CrafterReward-v1", "algo.discount": 0.999, "algo.entropy_coef": 3e-3,
              "algo.actor_optim.lr": 1e-4,
            "algo.critic_optim.lr": 1e-4, **{f"algo.{part}.norm": "layer" for part in ("rssm", "encoder", "decoder",
            "reward", "cont", "actor", "critic")}},
        "DreamerV2 on Crafter, with layer norm everywhere (configs.yaml: crafter).", env_prefixes="Crafter",
        cpu_changes=_V2 | FEW_UPDATES),
    "dreamer_v2_dmc_proprio": Preset("dreamer_v2", V2 | V2_DMC,
        "DreamerV2 on DeepMind Control from proprioceptive states (configs.yaml: dmc_proprio).",
        env_prefixes="dm_control/", cpu_changes=_V2),
    "dreamer_v2_dmc_vision": Preset("dreamer_v2", V2 | V2_DMC | PIXELS,
        "DreamerV2 on DeepMind Control from 64x64 pixels (configs.yaml: dmc_vision).", cpu_changes=_V2 | FEW_UPDATES),
    "dreamer_v1": Preset("dreamer_v1", V1,
        "DreamerV1 with the defaults of its authors' code; number of steps by reverie.", cpu_changes=_V1),
    "plan2explore_v1": Preset("plan2explore_v1", V1,
        "Plan2Explore on DreamerV1 with the defaults of DreamerV1's code, and the ensemble of DreamerV2's.",
        cpu_changes=_V1 | _FEW_MODELS | {"algo.ensemble.head.units": 64}),
    "dreamer_v1_dmc": Preset("dreamer_v1",
        V1 | {"steps": 2_500_000, "env.id": "dm_control/walker-walk-v0", "env.action_repeat": 2} | PIXELS,
        "DreamerV1 on DeepMind Control from 64x64 pixels, 5M frames (dreamer.py), with the newest million rows.",
        env_prefixes="dm_control/", cpu_changes=_V1 | FEW_UPDATES),
    "pydreamer_minigrid": Preset("dreamer_v2",
        PYDREAMER | {"env.id": "MiniGrid-SimpleCrossingS11N5-v0", "env.kwargs": {"max_steps": 500},
            "env.map_view": True, "algo.horizon": 1, "algo.encoder.keys": "view", "algo.encoder.class_units": (400, 400,
            400), "algo.encoder.encode_reward": True, "algo.decoder.keys": "view",
            "algo.decoder.class_units": (400, 400),
            "algo.probe.heads": ("mlp('map', inputs='map_coord', units=1024, norm='layer', init='torch')",)},
        "PyDreamer on MiniGrid with its map probe (defaults.yaml: minigrid). Its maze is not public: id by reverie.",
        cpu_changes=_PYDREAMER | {"algo.encoder.class_units": (64, 64), "algo.decoder.class_units": (64,),
            "algo.probe.heads": ("mlp('map', inputs='map_coord', units=128, norm='layer', init='torch')",)}),
    "pydreamer_atari": Preset("dreamer_v2",
        PYDREAMER | ATARI | {"steps": 50_000_000, "algo.reward_transform": "tanh", "algo.rssm.deter": 1024,
            "algo.loss_scales.kl": 0.1, "algo.discount": 0.99, "algo.entropy_coef": 1e-3},
        "PyDreamer on Atari, 200M frames: 64x64 RGB, sticky actions, all 18 actions (defaults.yaml: atari).",
        cpu_changes=_PYDREAMER | FEW_UPDATES),
    "pydreamer_dmc": Preset("dreamer_v2",
        PYDREAMER | {"random_steps": 5000, "learning_starts": 5000, "env.id": "dm_control/quadruped-run-v0",
            "env.num": 1, "env.action_repeat": 2, "env.max_episode_steps": 500, **PIXELS,
            "algo.reward_transform": "tanh", "algo.entropy_coef": 1e-4, "algo.actor_gradient": "dynamics(True)",
            "algo.actor.continuous": "tanh_normal(0.1, 0.0, 0)"},
        "PyDreamer on DeepMind Control from 64x64 pixels, with gradients through the model (defaults.yaml: dmc).",
        cpu_changes=_PYDREAMER | FEW_UPDATES),
    # Its observations are `image`, `goal_direction` and `goals_direction`, and it reports no terminal states.
    "pydreamer_miniworld": Preset("dreamer_v2",
        PYDREAMER | {"env.resize": (64, 64), "algo.encoder.encode_reward": True,
            **{f"algo.{part}.keys": "image" for part in ("encoder", "decoder")},
            **{f"algo.{part}.depth": 32 for part in ("encoder", "decoder")},
            "algo.probe.heads": ("mlp('goals?_direction', norm='layer', init='torch')",)},
        "PyDreamer on MiniWorld with its goals probe (defaults.yaml: miniworld); give the environment as `module:Id`.",
        cpu_changes=_PYDREAMER | FEW_UPDATES),
    # Its observations are `image` and vectors, such as the logarithm of 1 + what the inventory holds.
    "pydreamer_minerl": Preset("dreamer_v2",
        PYDREAMER | {"env.num": 2, "env.max_episode_steps": 3000, "env.resize": (64, 64), "replay.reset_interval": 50,
            "algo.batch_size": 16, "algo.batch_length": 16, "algo.reward_transform": "log1p",
            "algo.loss_scales.vectors": 10.0,
            "algo.loss_scales.reward": 10.0, "algo.loss_scales.kl": 0.3, "algo.rssm.stoch": 96,
            "algo.entropy_coef": 1e-2,
            "algo.horizon": 5, "algo.model_optim.lr": 1e-4, "algo.actor_optim.lr": 1e-4, "algo.critic_optim.lr": 1e-4},
        "PyDreamer on MineRL (minerl.yaml); give the environment as `module:Id`.",
        cpu_changes=_PYDREAMER | FEW_UPDATES),
    **_planning_presets("tdmpc2", "TD-MPC2", TDMPC2_CPU),
    "muzero": Preset("muzero", MUZERO, "MuZero for small problems with discrete actions; settings by reverie.",
        cpu_changes={}),
    "muzero_cartpole": Preset("muzero", MUZERO_CARTPOLE,
        "MuZero on CartPole-v1: minutes on one CPU core; settings by reverie.", env_prefixes="CartPole-"),
    "muzero_grid": Preset("muzero", MUZERO_GRID,
        "MuZero on small grids of MiniGrid: minutes on one CPU core; settings by reverie.", env_prefixes="MiniGrid-"),
    "muzero_board": Preset("muzero", MUZERO_BOARD,
        "MuZero against itself in small board games: minutes on one CPU core; settings by reverie.",
        env_prefixes="reverie/TicTacToe- reverie/ConnectFour- reverie/Nim- open_spiel/"),
    "muzero_pettingzoo": Preset("muzero",
        MUZERO_BOARD | {"env.id": "pettingzoo/classic.tictactoe_v3",
            "env.kwargs": {"agent": "all", "opening_moves": 6}},
        "MuZero against itself in PettingZoo's games of two players; settings by reverie.",
        env_prefixes="pettingzoo/classic."),
    **_planning_presets("bmpc", "BMPC", _BMPC_CPU),
}
