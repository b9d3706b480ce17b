"""Presets of model-free agents that collect their own data."""

from __future__ import annotations

from reverie.experiment.preset import MUJOCO, Preset, Settings

# fmt: off

def _short_starts(steps: int) -> Settings:
    """Random actions for a twentieth of the run, but for 100 to 10,000 env steps, then learning."""
    return dict.fromkeys(("learning_starts", "random_steps"), min(10_000, max(100, steps // 20)))


def _short_exploration(steps: int) -> Settings:
    """The same, and random actions that become rare over a tenth of the run, but over at most 50,000 env steps."""
    return _short_starts(steps) | {"algo.exploration": f"epsilon_greedy(1.0, 0.05, {max(1, min(50_000, steps // 10))})"}


NATURE_ATARI: Settings = {
    "env.id": "ALE/Pong-v5", "env.action_repeat": 4, "env.pool_frames": 2, "env.noop_max": 30,
    "env.terminal_on_life_loss": True, "env.resize": (84, 84), "env.grayscale": True, "env.clip_reward": "sign",
    "env.max_episode_steps": 27_000,
    "env.kwargs": {"repeat_action_probability": 0.0, "full_action_space": False}, "algo.frame_stack": 4,
    "algo.networks.encoder": "nature",
}
"""Atari as model-free agents see it: Mnih et al. 2015, extended data table 1; lives from its section "Training
details"."""

MODEL_FREE: Settings = {
    "steps": 1_000_000, "replay_ratio": 1.0, "learning_starts": 10_000, "random_steps": 10_000, "threads": 1,
    "env.id": "HalfCheetah-v5", "env.num": 1, "env.max_image_size": (84, 84), "replay.capacity": 1_000_000,
}
"""Common settings of DDPG, TD3 and SAC on MuJoCo: one update per env step, a million steps, random actions at first.

For such small networks two threads are slower than one."""

PLAYGROUND: Settings = {
    "env.id": "playground/CheetahRun", "env.num": 1024, "replay_ratio": 2 / 1024, "learning_starts": 10_240,
    "random_steps": 0, "threads": 1,
}
"""Off-policy learners in MuJoCo Playground: two updates on a large batch for each step of 1,024 environments."""
_HALVED = [[0, 3e-4], [5e7, 1.5e-4]]
_PLAYGROUND_ON_CPU: Settings = {
    "steps": 300_000, "env.num": 16, "replay_ratio": 0.25, "learning_starts": 5000, "replay.capacity": 300_000,
    "algo.batch_size": 256, "algo.tau": 0.005,
}

ANY_SCALE: Settings = {"algo.normalize_obs": "running", "algo.reward_scale": "return_std(std=5)"}
"""For environments that nobody has tuned for, whose observations and rewards may have any scale.

With returns of deviation 1, the reward of a single step is often smaller than the errors of the critic.
"""

CONTROL: Settings = MODEL_FREE | ANY_SCALE
"""DDPG, TD3 and SAC in such environments."""

_FAST_AT_FIRST = [[0, 1e-3], [2e5, 3e-4]]
"""A learning rate for short runs, which becomes the published one in long ones."""

SOFT_CONTROL: Settings = CONTROL | {
    "algo.temperature": 0.02, "algo.actor_lr": _FAST_AT_FIRST, "algo.critic_lr": _FAST_AT_FIRST,
    "algo.temperature_lr": _FAST_AT_FIRST,
}
"""SAC in such environments: scaled rewards are small, and so is the weight of the entropy."""

DMC_PIXELS: Settings = {
    "steps": 500_000, "replay_ratio": 1.0, "learning_starts": 1000, "random_steps": 1000, "env.num": 1,
    "env.id": "dm_control/walker-walk-v0", "env.action_repeat": 2, "env.pixels": "only", "env.resize": (84, 84),
    "replay.capacity": 100_000, "algo.frame_stack": 3, "algo.frame_stack_keys": ".*", "algo.batch_size": 128,
    "algo.networks.units": (1024, 1024),
}
"""DeepMind Control from pixels, 1M frames: Yarats et al. 2021, table 3; capacity of DrQ."""

_PIXELS: Settings = {"threads": 1, "steps": 20_000, "replay_ratio": 0.2, "algo.batch_size": 32,
                     "algo.networks.units": (256, 256), "replay.capacity": 20_000}

HIGH_RATIO: Settings = MODEL_FREE | {
    "steps": 300_000, "replay_ratio": 20.0, "learning_starts": 5000, "random_steps": 5000,
    "algo.num_target_critics": 2, "algo.policy_delay": 20, "algo.target_entropy_scale": 0.5,
}
"""SAC with 20 updates per env step: Chen et al. 2021, appendix B, which Hiraoka et al. 2022 follow.

Their target entropies are -3 for HalfCheetah and Walker2d and -4 for Ant, which is -A / 2, -1 for Hopper and -2 for
Humanoid.
"""

PENDULUM: Settings = MODEL_FREE | {
    "steps": 15_000, "learning_starts": 1000, "random_steps": 1000, "env.id": "Pendulum-v1", "replay.capacity": 100_000,
    "algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3,
}
"""Pendulum-v1 on one CPU core: with its short episodes, higher learning rates work."""

VALUES: Settings = {
    "steps": 500_000, "replay_ratio": 0.25, "learning_starts": 1000, "threads": 1, "env.num": 1,
    "env.max_image_size": (84, 84), "replay.capacity": 100_000,
}
"""Common settings of DQN, C51, QR-DQN and IQN: one update every fourth step."""

SMALL_VALUES: Settings = VALUES | {
    "replay_ratio": 0.5, "algo.batch_size": 64, "algo.batch_length": 4, "algo.value_estimator": "n_step(3)",
    "algo.lr": 3e-4, "algo.double": True, "algo.tau": 0.01, "algo.target_update_interval": 1,
}
"""DQN and its variants on small problems. With single steps and the paper's targets, copied every 1,000 updates, DQN
and QR-DQN did not learn Acrobot-v1 and FrozenLake-v1 in 20,000 and 10,000 env steps; with these settings they did."""

ANY_VALUES: Settings = SMALL_VALUES | {
    "algo.normalize_obs": "running", "algo.reward_scale": "return_std", "algo.networks.units": (128, 128),
}
"""The same in environments that nobody has tuned for; the Huber loss is linear beyond errors of 1."""

CARTPOLE_VALUES: Settings = SMALL_VALUES | {
    "steps": 50_000, "env.id": "CartPole-v1", "replay.capacity": 50_000, "algo.lr": 1e-3,
    "algo.networks.units": (128, 128), "algo.exploration": "epsilon_greedy(1.0, 0.05, 5000)",
}
"""CartPole-v1 on one CPU core."""

MINATAR_VALUES: Settings = VALUES | {
    "replay_ratio": 0.5, "learning_starts": 5000, "env.id": "MinAtar/Breakout-v1", "env.num": 4, "algo.lr": 2.5e-4,
    "algo.networks.encoder": "minatar", "algo.networks.units": (128,),
    "algo.exploration": "epsilon_greedy(1.0, 0.01, 50000)",
}
"""MinAtar with its authors' network, replay and learning rate (github.com/kenjyoung/MinAtar, examples/dqn.py).

They train for five million steps, with an update per step and more exploration; this is a tenth of that, for a CPU
core.
"""

ATARI_VALUES: Settings = {
    "steps": 50_000_000, "replay_ratio": 0.25, "learning_starts": 50_000, "random_steps": 50_000, "env.num": 1,
    **NATURE_ATARI, "replay.capacity": 1_000_000, "replay.online_queue": False, "algo.target_update_interval": 10_000,
    "algo.networks.units": (512,),
}
"""Atari as in Mnih et al. 2015, extended data table 1, with its preprocessing."""

RAINBOW: Settings = {
    "algo.double": True, "algo.dueling": True, "algo.noisy_sigma": 0.5, "algo.exploration": "epsilon_greedy(0)",
    "algo.value_estimator": "n_step(3)", "algo.batch_length": 4, "replay.fractions.uniform": 0.0,
    "replay.fractions.priority": 1.0, "replay.priority.alpha": 0.5, "replay.online_queue": False,
}
"""The parts of Rainbow that are settings of C51: Hessel et al. 2018, table 1."""

_ATARI: Settings = {
    "steps": 200_000, "learning_starts": 10_000, "random_steps": 10_000, "replay.capacity": 100_000,
    "algo.target_update_interval": 1000, "algo.exploration": "epsilon_greedy(1.0, 0.05, 100000)",
}
"""Changes of Atari's presets for a machine without a GPU: about an hour on two cores; values by reverie."""

ON_POLICY: Settings = {"steps": 1_000_000, "threads": 1, "env.max_image_size": (84, 84)}
"""PPO and A2C with the defaults of Stable-Baselines3 for vectors."""

ON_POLICY_ANY: Settings = ON_POLICY | ANY_SCALE | {"env.num": 8}
"""PPO and A2C in environments that nobody has tuned for."""

IMPALA: Settings = ON_POLICY | {"env.num": 8, "algo.batch_size": 8, "ratio_tolerance": 1.0}
"""IMPALA with a rollout of each environment in a batch; actors may be a batch ahead of the learner."""

ON_POLICY_CARTPOLE: Settings = ON_POLICY | {"steps": 100_000, "env.id": "CartPole-v1", "env.num": 8}
"""CartPole-v1 on one CPU core, with the environments of RL Baselines3 Zoo."""

ON_POLICY_MUJOCO: Settings = ON_POLICY | {
    "env.id": "HalfCheetah-v5", "algo.normalize_obs": "running", "algo.reward_scale": "return_std",
}
"""MuJoCo: the paper's table 3; normalization as in its authors' code (Engstrom et al. 2020, arXiv:2005.12729)."""

ON_POLICY_PENDULUM: Settings = ON_POLICY | {
    "steps": 200_000, "env.id": "Pendulum-v1", "env.num": 4, "algo.rollout": 1024, "algo.discount": 0.9,
    "algo.lr": 1e-3, "algo.reward_scale": "factor(0.1)", "algo.networks.log_std": -0.693,
}
"""Pendulum-v1 as in RL Baselines3 Zoo, whose deviation of 1 in torques of -2 to 2 is 0.5 in actions of -1 to 1; twice
its steps, without state-dependent exploration and with smaller rewards."""

ON_POLICY_MINIGRID: Settings = ON_POLICY | {
    "steps": 200_000, "env.id": "MiniGrid-DoorKey-5x5-v0", "env.num": 16, "algo.rollout": 128, "algo.batch_size": 256,
    "algo.epochs": 4, "algo.lr": 7e-4, "algo.entropy_coef": 0.01, "algo.networks.encoder": "minatar",
    "algo.networks.share_encoder": True,
}
"""MiniGrid and BabyAI: rollouts, batches and entropy of github.com/lcswillems/rl-starter-files, scripts/train.py.

Its learning rate is 1e-3, its advantages are not standardized, and it clips values. The network is MinAtar's.
"""

ON_POLICY_ATARI: Settings = {
    "steps": 10_000_000, **NATURE_ATARI, "env.fire_on_reset": True, "algo.entropy_coef": 0.01,
    "algo.networks.share_encoder": True, "algo.networks.units": (512,), "algo.networks.activation": "relu",
}
"""Atari, 40M frames, as in RL Baselines3 Zoo, but the layer of 512 units is not shared.

OpenAI Baselines' PPO has a constant range of the ratio, clips values and halves their weight.
"""

TABLE: dict[str, Preset] = {
    "ddpg": Preset("ddpg", CONTROL, "DDPG for any task with continuous actions; settings by reverie.",
        cpu_changes={"steps": 300_000}, from_steps=_short_starts),
    "td3": Preset("td3",
        CONTROL | {"algo.actor_lr": 1e-4, "algo.critic_lr": _FAST_AT_FIRST, "algo.policy_delay": 1,
            "algo.exploration": "gaussian(0.3)"},
        "TD3 for any task with continuous actions; settings by reverie.",
        cpu_changes={"steps": 300_000}, from_steps=_short_starts),
    "sac": Preset("sac", SOFT_CONTROL, "SAC for any task with continuous actions; settings by reverie.",
        cpu_changes={"steps": 200_000}, from_steps=_short_starts),
    "ddpg_mujoco": Preset("ddpg", MODEL_FREE,
        "DDPG on MuJoCo and DeepMind Control: 1M steps; number of random steps by reverie.",
        env_prefixes=f"{MUJOCO} dm_control/", cpu_changes={"steps": 300_000}),
    "td3_mujoco": Preset("td3", MODEL_FREE,
        "TD3 on MuJoCo and DeepMind Control: 1M steps (section 6.1); number of random steps by reverie.",
        env_prefixes=f"{MUJOCO} dm_control/", cpu_changes={"steps": 300_000}),
    "sac_mujoco": Preset("sac", MODEL_FREE,
        "SAC on MuJoCo and DeepMind Control: 1M steps; number of random steps by reverie.",
        env_prefixes=f"{MUJOCO} dm_control/", cpu_changes={"steps": 200_000}),
    "redq": Preset("sac", HIGH_RATIO | {"algo.num_critics": 10},
        "REDQ: SAC with ten critics and 20 updates per env step on MuJoCo and similar tasks: 300k steps.",
        cpu_changes={"steps": 20_000}),
    "droq": Preset("sac",
        HIGH_RATIO | {"algo.networks.critic_norm": "before_relu", "algo.networks.critic_dropout": 0.01},
        "DroQ: SAC with dropout and 20 updates per env step on MuJoCo and similar tasks: 300k steps.",
        cpu_changes={"steps": 20_000}),
    "hil": Preset("sac",
        MODEL_FREE | {"steps": 20_000, "replay_ratio": 2.0, "learning_starts": 100, "random_steps": 0,
            "algo.batch_size": 256, "algo.discount": 0.97, "algo.temperature": 0.01, "algo.target_entropy_scale": 0.5,
            "algo.entropy_backup": False, "algo.policy_delay": 2},
        "HIL-SERL: SAC for rewards of success alone, with a person (--human) or demonstrations: 20k steps.",
        cpu_changes={}),
    "drq": Preset("sac",
        DMC_PIXELS | {"algo.networks.encoder": "drq(pad=4)", "algo.batch_size": 512, "algo.actor_lr": 1e-3,
            "algo.critic_lr": 1e-3, "algo.temperature_lr": 1e-3, "algo.temperature": 0.1, "algo.policy_delay": 2,
            "algo.target_update_interval": 2, "algo.tau": 0.01},
        "DrQ: SAC on DeepMind Control from randomly shifted images: 500k steps. Unlike in the paper there is one "
        "shift, targets share the encoder, and ln sigma is bounded as in SAC.",
        cpu_changes=_PIXELS),
    "sac_ae": Preset("sac_ae", DMC_PIXELS,
        "SAC-AE on DeepMind Control from images, which it also reconstructs: 500k steps.", cpu_changes=_PIXELS),
    "tqc": Preset("tqc", SOFT_CONTROL, "TQC for any task with continuous actions; settings by reverie.",
        cpu_changes={"steps": 100_000, "algo.num_critics": 2, "algo.networks.critic_units": (256, 256)},
        from_steps=_short_starts),
    "crossq": Preset("crossq", CONTROL | {"algo.temperature": 0.02},
        "CrossQ for any task with continuous actions; settings by reverie.",
        cpu_changes={"steps": 50_000, "algo.networks.critic_units": (512, 512)}, from_steps=_short_starts),
    "tqc_mujoco": Preset("tqc", MODEL_FREE,
        "TQC on MuJoCo and DeepMind Control: 1M steps; number of random steps by reverie.",
        env_prefixes=f"{MUJOCO} dm_control/", cpu_changes={"steps": 100_000}),
    "crossq_mujoco": Preset("crossq", MODEL_FREE | {"learning_starts": 5000, "random_steps": 5000},
        "CrossQ on MuJoCo and DeepMind Control: 1M steps.",
        env_prefixes=f"{MUJOCO} dm_control/", cpu_changes={"steps": 50_000}),
    "simba": Preset("sac",
        MODEL_FREE | {"replay_ratio": 2.0, "learning_starts": 5000, "random_steps": 5000,
            "algo.normalize_obs": "running", "algo.networks.body": "simba", "algo.networks.units": (128,),
            "algo.networks.critic_units": (512, 512), "algo.actor_lr": 1e-4, "algo.critic_lr": 1e-4,
            "algo.temperature_lr": 1e-4, "algo.temperature": 0.01, "algo.target_entropy_scale": 0.5,
            "algo.decoupled_weight_decay": 0.01, "algo.discount": 0.995},
        "SimBa: SAC with residual networks and two updates per env step on MuJoCo and similar tasks: 1M steps; "
        "ln sigma is bounded as in SAC.",
        cpu_changes={"steps": 20_000}),
    "simba_v2": Preset("simba_v2",
        MODEL_FREE | {"learning_starts": 5000, "random_steps": 5000, "algo.discount": 0.995,
            "algo.actor_lr": [[0, 1e-4], [1e6, 5e-5]], "algo.critic_lr": [[0, 1e-4], [1e6, 5e-5]],
            "algo.temperature_lr": [[0, 1e-4], [1e6, 5e-5]]},
        "SimbaV2: networks on the unit sphere on MuJoCo and similar tasks: 1M steps; the authors make as many updates "
        "per env step as the action is repeated.",
        cpu_changes={"steps": 20_000}),
    # The authors' schedule counts updates of the actor, a third of the critics', so its rate decays by a third as much.
    "xqc": Preset("xqc",
        MODEL_FREE | {"replay_ratio": 2.0, "learning_starts": 5000, "random_steps": 5000, "algo.discount": 0.995,
            "algo.critic_lr": [[0, 3e-4], [1e6, 3e-5]], "algo.actor_lr": [[0, 3e-4], [1e6, 2.1e-4]],
            "algo.temperature_lr": [[0, 3e-4], [1e6, 2.1e-4]]},
        "XQC: batch norm, weights of norm 1 and two updates per env step, on MuJoCo and similar tasks: 1M steps.",
        cpu_changes={"steps": 20_000}),
    # FastTD3's code (younggyoseo/FastTD3 070415e, fast_td3/hyperparams.py: MuJoCoPlaygroundArgs). Its critics predict
    # 101 atoms in [-10, 10], each environment draws the deviation of its noise from [0.001, 0.4] in each episode, and
    # it computes in bfloat16; here critics are scalar, and the deviation is the mean.
    "td3_playground": Preset("td3",
        PLAYGROUND | {"steps": 102_400_000, "replay.capacity": 10_485_760, "algo.batch_size": 32_768,
            "algo.discount": 0.97, "algo.tau": 0.1, "algo.target_policy_noise": 0.001, "algo.exploration":
            "gaussian(0.2)", "algo.decoupled_weight_decay": 0.1, "algo.normalize_obs": "running",
            "algo.networks.units": (512, 256, 128), "algo.networks.critic_units": (1024, 512, 256)},
        "TD3 with the settings of FastTD3 (Seo et al. 2025) on MuJoCo Playground, but with scalar critics: 102M steps.",
        env_prefixes="playground/", cpu_changes=_PLAYGROUND_ON_CPU),
    # FlashSAC's code (leeyngdo/FlashSAC 0727b22, configs/agent/flashSAC.yaml). Its networks are blocks with inverted
    # bottlenecks, and it repeats its noise for several steps; here they are XQC's layers of its widths, with new noise
    # in each step. The discount, updates for each step, random steps and length are by reverie.
    "xqc_playground": Preset("xqc",
        PLAYGROUND | {"steps": 50_000_000, "replay.capacity": 1_000_000, "algo.batch_size": 2048,
            "algo.discount": 0.97, "algo.tau": 0.01, "algo.policy_delay": 2,
            "algo.reward_scale": "return_std(None, 5.0)",
            "algo.networks.units": (128,) * 4, "algo.networks.critic_units": (256,) * 4,
            "algo.actor_lr": _HALVED, "algo.critic_lr": _HALVED, "algo.temperature_lr": _HALVED},
        "XQC with the settings of FlashSAC (Kim et al. 2026) on MuJoCo Playground, but with XQC's networks: 50M steps.",
        env_prefixes="playground/", cpu_changes=_PLAYGROUND_ON_CPU),
    "ddpg_pendulum": Preset("ddpg", PENDULUM, "DDPG on Pendulum-v1: minutes on one CPU core; settings by reverie.",
        env_prefixes="Pendulum-"),
    "td3_pendulum": Preset("td3", PENDULUM, "TD3 on Pendulum-v1: minutes on one CPU core; settings by reverie.",
        env_prefixes="Pendulum-"),
    "sac_pendulum": Preset("sac", PENDULUM | {"algo.temperature_lr": 1e-3},
        "SAC on Pendulum-v1: minutes on one CPU core; settings by reverie.", env_prefixes="Pendulum-"),
    "dqn": Preset("dqn", ANY_VALUES, "DQN for small problems with discrete actions; settings by reverie.",
        cpu_changes={}, from_steps=_short_exploration),
    "discrete_sac": Preset("discrete_sac",
        SOFT_CONTROL | {"env.id": "CartPole-v1", "steps": 500_000, "replay_ratio": 0.5, "replay.capacity": 100_000,
            "algo.target_entropy_scale": 0.5},  # of 0.98 ln 2, the author's, a policy is left that hardly chooses
        "SAC for discrete actions on small problems; settings by reverie.", cpu_changes={}, from_steps=_short_starts),
    "qr_dqn": Preset("qr_dqn", ANY_VALUES,
        "QR-DQN for small problems with discrete actions; settings by reverie.",
        cpu_changes={"steps": 400_000}, from_steps=_short_exploration),
    # With the learning rate and the batch size of ``qr_dqn_cartpole``, two of six seeds fell below 200 after they
    # had reached 500.
    "dqn_cartpole": Preset("dqn", CARTPOLE_VALUES | {"algo.lr": 5e-4, "algo.batch_size": 128},
        "DQN on CartPole-v1: a minute on one CPU core; settings by reverie.", env_prefixes="CartPole-"),
    "qr_dqn_cartpole": Preset("qr_dqn", CARTPOLE_VALUES | {"algo.num_quantiles": 32},
        "QR-DQN on CartPole-v1: a minute on one CPU core; settings by reverie.", env_prefixes="CartPole-"),
    "c51": Preset("c51", ANY_VALUES | {"algo.reward_scale": "return_std(10, 10)"},
        "C51 for small problems with discrete actions; scales returns to -10 to 10; settings by reverie.",
        cpu_changes={}, from_steps=_short_exploration),
    "iqn": Preset("iqn", ANY_VALUES,
        "IQN for small problems with discrete actions; settings by reverie.",
        cpu_changes={"steps": 100_000}, from_steps=_short_exploration),
    "c51_cartpole": Preset("c51", CARTPOLE_VALUES | {"algo.v_min": 0.0, "algo.v_max": 100.0},
        "C51 on CartPole-v1: a minute on one CPU core; settings by reverie.", env_prefixes="CartPole-"),
    "iqn_cartpole": Preset("iqn", CARTPOLE_VALUES,
        "IQN on CartPole-v1: minutes on one CPU core; settings by reverie.", env_prefixes="CartPole-"),
    "dqn_minatar": Preset("dqn", MINATAR_VALUES, "DQN on MinAtar, with its authors' network.", env_prefixes="MinAtar/",
        cpu_changes={}),
    "qr_dqn_minatar": Preset("qr_dqn", MINATAR_VALUES, "QR-DQN on MinAtar, with its authors' network.",
        env_prefixes="MinAtar/", cpu_changes={}),
    "c51_minatar": Preset("c51", MINATAR_VALUES | {"algo.v_min": 0.0, "algo.v_max": 50.0},
        "C51 on MinAtar, with its authors' network; bounds of returns by reverie.", env_prefixes="MinAtar/",
        cpu_changes={}),
    "iqn_minatar": Preset("iqn", MINATAR_VALUES, "IQN on MinAtar, with its authors' network.",
        env_prefixes="MinAtar/", cpu_changes={"steps": 300_000}),
    "rainbow_minatar": Preset("c51",
        MINATAR_VALUES | RAINBOW | {"algo.v_min": 0.0, "algo.v_max": 50.0},
        "Rainbow on MinAtar, with its authors' network; bounds of returns by reverie.", cpu_changes={}),
    "dqn_minigrid": Preset("dqn", SMALL_VALUES, "DQN on MiniGrid and BabyAI; settings by reverie.",
        env_prefixes="MiniGrid- BabyAI-", cpu_changes={}),
    "dqn_atari": Preset("dqn",
        ATARI_VALUES | {"algo.lr": 1e-4, "algo.exploration": "epsilon_greedy(1.0, 0.1, 1000000)"},
        "DQN on Atari, 200M frames: four 84x84 gray frames stacked (Mnih et al. 2015, extended data table 1).",
        env_prefixes="ALE/", cpu_changes=_ATARI),
    "qr_dqn_atari": Preset("qr_dqn",
        ATARI_VALUES | {"algo.lr": 5e-5, "algo.adam_eps": 0.01 / 32,
            "algo.exploration": "epsilon_greedy(1.0, 0.01, 1000000)"},
        'QR-DQN on Atari, 200M frames: four 84x84 gray frames (Dabney et al. 2018, "Evaluation on Atari 2600").',
        env_prefixes="ALE/", cpu_changes=_ATARI),
    "c51_atari": Preset("c51",
        ATARI_VALUES | {"algo.lr": 2.5e-4, "algo.adam_eps": 0.01 / 32,
            "algo.exploration": "epsilon_greedy(1.0, 0.01, 1000000)"},
        "C51 on Atari, 200M frames: four 84x84 gray frames (Bellemare et al. 2017, section 5).",
        env_prefixes="ALE/", cpu_changes=_ATARI),
    "iqn_atari": Preset("iqn",
        ATARI_VALUES | {"algo.lr": 5e-5, "algo.adam_eps": 0.01 / 32,
            "algo.exploration": "epsilon_greedy(1.0, 0.01, 1000000)", "algo.num_quantiles": 64,
            "algo.num_target_quantiles": 64},
        "IQN on Atari, 200M frames: four 84x84 gray frames (Dabney et al. 2018, as in Dopamine).",
        env_prefixes="ALE/",
        cpu_changes=_ATARI | {"steps": 50_000, "algo.num_quantiles": 8, "algo.num_target_quantiles": 8}),
    "rainbow": Preset("c51",
        ATARI_VALUES | RAINBOW | {"learning_starts": 20_000, "random_steps": 20_000, "algo.lr": 6.25e-5,
            "algo.adam_eps": 1.5e-4, "algo.target_update_interval": 2000,
            "replay.priority.beta_anneal_windows": 400_000_000},
        "Rainbow on Atari, 200M frames: four 84x84 gray frames (Hessel et al. 2018, table 1).",
        cpu_changes={key: value for key, value in _ATARI.items() if key != "algo.exploration"}
            | {"steps": 60_000, "replay.priority.beta_anneal_windows": 3_200_000}),
    "ppo": Preset("ppo", ON_POLICY_ANY | {"algo.rollout": 256, "algo.lr": [[0, 1e-3], [1e6, 1e-4]]},
        "PPO for any task; settings by reverie.", cpu_changes={}),
    "ppo_cartpole": Preset("ppo",
        ON_POLICY_CARTPOLE | {"algo.rollout": 32, "algo.batch_size": 256, "algo.epochs": 20, "algo.discount": 0.98,
            "algo.value_estimator": "gae(0.8)", "algo.lr": [[0, 1e-3], [1e5, 0]],
            "algo.clip_range": [[0, 0.2], [1e5, 0]]},
        "PPO on CartPole-v1: seconds on one CPU core; settings of RL Baselines3 Zoo.", env_prefixes="CartPole-"),
    "ppo_pendulum": Preset("ppo", ON_POLICY_PENDULUM,
        "PPO on Pendulum-v1: a minute on one CPU core; settings of RL Baselines3 Zoo but for the exploration.",
        env_prefixes="Pendulum-"),
    "ppo_acrobot": Preset("ppo",
        ON_POLICY | {"env.id": "Acrobot-v1", "env.num": 16, "algo.rollout": 256, "algo.epochs": 4,
            "algo.value_estimator": "gae(0.94)", "algo.normalize_obs": "running", "algo.reward_scale": "return_std"},
        "PPO on Acrobot-v1: minutes on one CPU core; settings of RL Baselines3 Zoo.", env_prefixes="Acrobot-"),
    "ppo_lunar_lander": Preset("ppo",
        ON_POLICY | {"env.id": "LunarLander-v3", "env.num": 16, "algo.rollout": 1024, "algo.epochs": 4,
            "algo.discount": 0.999, "algo.value_estimator": "gae(0.98)", "algo.entropy_coef": 0.01},
        "PPO on LunarLander-v3: 1M steps, settings of RL Baselines3 Zoo.", env_prefixes="LunarLander-", cpu_changes={}),
    "ppo_minatar": Preset("ppo",
        ON_POLICY | {"env.id": "MinAtar/Breakout-v1", "env.num": 8, "algo.rollout": 128, "algo.batch_size": 256,
            "algo.epochs": 4, "algo.lr": [[0, 1e-3], [1e6, 0]], "algo.entropy_coef": 0.01,
            "algo.networks.encoder": "minatar", "algo.networks.share_encoder": True, "algo.networks.units": (128,),
            "algo.networks.activation": "relu"},
        "PPO on MinAtar, with its authors' network: 1M steps; other settings by reverie.", env_prefixes="MinAtar/",
        cpu_changes={}),
    "ppo_minigrid": Preset("ppo", ON_POLICY_MINIGRID,
        "PPO on MiniGrid and BabyAI; rollouts of their rl-starter-files, learning rate by reverie.",
        env_prefixes="MiniGrid- BabyAI-", cpu_changes={}),
    "ppo_mujoco": Preset("ppo", ON_POLICY_MUJOCO,
        "PPO on MuJoCo: 1M steps (table 3); observations and rewards are normalized.",
        env_prefixes=MUJOCO, cpu_changes={}),
    "ppo_sb3": Preset("ppo", ON_POLICY, "PPO with the defaults of Stable-Baselines3, also for DeepMind Control.",
        env_prefixes="dm_control/", cpu_changes={}),
    "ppo_atari": Preset("ppo",
        ON_POLICY_ATARI | {"env.num": 8, "algo.rollout": 128, "algo.batch_size": 256, "algo.epochs": 4,
            "algo.lr": [[0, 2.5e-4], [1e7, 0]], "algo.clip_range": [[0, 0.1], [1e7, 0]]},
        "PPO on Atari, 40M frames: four 84x84 gray frames stacked; settings of RL Baselines3 Zoo.", env_prefixes="ALE/",
        cpu_changes={"steps": 400_000}),
    "impala": Preset("impala", IMPALA, "IMPALA with the paper's rollouts: 1M steps; --actors M adds actors.",
        cpu_changes={}),
    "impala_minatar": Preset("impala",
        IMPALA | {"env.id": "MinAtar/Breakout-v1", "algo.lr": [[0, 1e-3], [1e6, 0]], "algo.value_coef": 0.5,
            "algo.networks.encoder": "minatar", "algo.networks.share_encoder": True, "algo.networks.units": (128,),
            "algo.networks.activation": "relu"},
        "IMPALA on MinAtar, with its authors' network: 1M steps; other settings by reverie.", env_prefixes="MinAtar/",
        cpu_changes={}),
    "a2c": Preset("a2c", ON_POLICY_ANY, "A2C for any task; settings by reverie.", cpu_changes={}),
    "a2c_sb3": Preset("a2c", ON_POLICY, "A2C with the defaults of Stable-Baselines3.", cpu_changes={}),
    "a2c_cartpole": Preset("a2c", ON_POLICY_CARTPOLE | {"steps": 500_000},
        "A2C on CartPole-v1: a minute on one CPU core; settings of RL Baselines3 Zoo.", env_prefixes="CartPole-"),
    "a2c_atari": Preset("a2c",
        ON_POLICY_ATARI | {"env.num": 16, "algo.value_coef": 0.25, "algo.rms_implementation": "tensorflow"},
        "A2C on Atari, 40M frames: four 84x84 gray frames stacked; settings of RL Baselines3 Zoo.", env_prefixes="ALE/",
        cpu_changes={"steps": 400_000}),
}
