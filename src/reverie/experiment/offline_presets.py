"""Presets of agents that learn from a dataset.

With an additional environment (``--env``), ``steps`` and the replay ratio count env steps in it.
"""

from __future__ import annotations

import re

from reverie.experiment.model_free_presets import ANY_SCALE, MODEL_FREE, NATURE_ATARI, PENDULUM
from reverie.experiment.preset import MUJOCO, Preset, Settings

# fmt: off

DATA: Settings = {
    "updates": 1_000_000, "steps": 1_000_000, "replay_ratio": 1.0, "learning_starts": 1000, "threads": 1,
    "env.id": "HalfCheetah-v5", "env.num": 1, "env.max_image_size": (84, 84), "replay.capacity": 1_000_000,
}
"""Common settings on MuJoCo: a million updates, as in the papers of TD3+BC, ReBRAC, IQL and FQL."""

D4RL = f"{MUJOCO} dm_control/ AdroitHand AntMaze_ PointMaze_ FrankaKitchen-"
OGBENCH_IDS = "pointmaze- antmaze- humanoidmaze- antsoccer- cube- scene- puzzle- visual- powderworld-"
"""Prefixes of the ids of environments that the papers chose their settings for, and similar ones."""

ANY_REWARDS: Settings = {"algo.reward_scale": "return_std(std=5)"}
"""For environments that nobody has tuned for, whose rewards may have any scale: see ``model_free_presets.ANY_SCALE``.

All offline learners normalize observations.
"""

ANY_DATA: Settings = DATA | ANY_REWARDS
"""Learners of values for continuous actions in such environments."""


def _fast_targets(updates: int) -> Settings:
    """Target networks follow so fast that a hundred of their time constants pass in the run, or at most in 20 updates.

    A value reaches as many steps back as targets have been renewed: with tau = 0.005, ten steps in 2,000 updates, after
    which an action that pays off later still looks bad.
    """
    return {"algo.tau": min(0.05, max(0.005, 100 / updates))}


def _slower_targets(updates: int) -> Settings:
    """The same for CQL, whose targets evaluate actions that are not in the data."""
    return {"algo.tau": min(0.02, max(0.005, 100 / updates))}


def _fast_copies(updates: int) -> Settings:
    """The same instead of copies of the networks."""
    return _fast_targets(updates) | {"algo.target_update_interval": 1}


_ON_CPU: Settings = {"updates": 20_000, "steps": 20_000, "algo.networks.units": (128, 128)}
"""Changes for a machine without a GPU. With small networks, higher learning rates work."""
_FAST: Settings = dict.fromkeys(("algo.actor_lr", "algo.critic_lr"), 1e-3)

PENDULUM_DATA: Settings = DATA | {
    "updates": 20_000, "steps": 15_000, "eval_episodes": 20, "env.id": "Pendulum-v1", "replay.capacity": 100_000,
    "algo.batch_size": 256, "algo.networks.units": (64, 64),
}
"""Data of Pendulum-v1 on one CPU core: with small networks, higher learning rates work."""

CHOICE_DATA: Settings = {
    "updates": 100_000, "steps": 500_000, "replay_ratio": 0.25, "learning_starts": 1000, "threads": 1, "env.num": 1,
    "env.max_image_size": (84, 84), "replay.capacity": 100_000,
}
"""Common settings of algorithms for discrete actions on small problems."""

CARTPOLE_DATA: Settings = CHOICE_DATA | {
    "updates": 20_000, "steps": 50_000, "replay_ratio": 0.5, "eval_episodes": 20, "env.id": "CartPole-v1",
    "replay.capacity": 50_000, "algo.batch_size": 256, "algo.networks.units": (64, 64),
}
"""Data of CartPole-v1 on one CPU core: with small networks, higher learning rates work."""

MINATAR_DATA: Settings = CHOICE_DATA | {
    "updates": 50_000, "replay_ratio": 0.5, "eval_episodes": 20, "env.id": "MinAtar/Breakout-v1", "env.num": 4,
    "algo.batch_size": 128, "algo.networks.encoder": "minatar", "algo.networks.units": (128,),
}
"""Data of MinAtar with its authors' network and learning rate (github.com/kenjyoung/MinAtar, examples/dqn.py)."""

ATARI_DATA: Settings = {
    "updates": 1_000_000, "steps": 1_000_000, "replay_ratio": 0.25, "learning_starts": 50_000, "env.num": 1,
    **NATURE_ATARI, "env.fire_on_reset": True, "replay.capacity": 1_000_000, "algo.batch_size": 32,
    "algo.networks.units": (512,),
}
"""Data of Atari with the settings of Tianshou (examples/offline/atari_*.py, the same from 0.4.8 to 2.0.1).

In contrast, evaluations are greedy (eps_test = 0.001 for BCQ) and pixels are in [0, 1] (scale_obs = 0).
"""

RLPD: Settings = MODEL_FREE | {
    "experience": "mixed(0.5)", "steps": 250_000, "replay_ratio": 20.0, "learning_starts": 5000, "random_steps": 5000,
    "algo.num_critics": 10, "algo.num_target_critics": 2, "algo.policy_delay": 20, "algo.target_entropy_scale": 0.5,
    "algo.networks.critic_norm": "before_relu",
}
"""SAC on rows of a dataset and of the environment: Ball et al. 2023, arXiv:2302.02948."""

_ATARI_DATA: Settings = {"updates": 20_000, "steps": 20_000, "learning_starts": 10_000, "replay.capacity": 100_000}
"""Changes for a machine without a GPU; values by reverie."""

_GOAL_DATA: Settings = {
    "updates": 50_000, "steps": 50_000, "algo.batch_size": 256, "algo.networks.units": (256, 256),
}
"""Changes of goal-conditioned learners for a machine without a GPU; values by reverie."""

_STITCHED: Settings = {"algo.actor_goals.episode": 0.5, "algo.actor_goals.random": 0.5}
_RANDOM: Settings = {"algo.actor_goals.episode": 0.0, "algo.actor_goals.random": 1.0}
OGBENCH: tuple[tuple[str, str, Settings], ...] = (
    ("gcivl hiql gciql crl qrl", r".*maze-giant-|.*humanoidmaze-", {"algo.discount": 0.995}),
    ("gcivl hiql gciql crl qrl", r".*-stitch-", _STITCHED),
    ("gcivl hiql gciql crl qrl", r".*-explore-", _RANDOM),
    ("hiql", r"(visual-)?humanoidmaze-", {"algo.subgoal_steps": 100}),
    ("hiql", r"(visual-)?(cube|scene|puzzle|powderworld)-", {"algo.subgoal_steps": 10}),
    ("hiql", r".*-explore-", {"algo.low_alpha": 10.0, "algo.high_alpha": 10.0}),
    ("hiql", r"visual-|powderworld-", {"algo.actor_trains_phi": True}),
    ("gciql", r"pointmaze-", {"algo.alpha": 0.003}),
    ("gciql", r"(visual-)?humanoidmaze-|antsoccer-", {"algo.alpha": 0.1}),
    ("gciql", r"(visual-)?(cube|scene|puzzle)-", {"algo.alpha": 1.0}),
    ("gciql", r".*-noisy-", {"algo.alpha": 0.03}),
    ("gciql", r".*-explore-", {"algo.alpha": 0.01}),
    ("crl", r"pointmaze-", {"algo.alpha": 0.03}),
    ("crl", r"antsoccer-", {"algo.alpha": 0.3}),
    ("crl", r"(visual-)?(cube|scene|puzzle)-", {"algo.alpha": 3.0}),
    ("crl", r".*-noisy-", {"algo.alpha": 0.1}),
    ("crl", r".*-explore-", {"algo.alpha": 0.003}),
    ("qrl", r"pointmaze-", {"algo.alpha": 0.0003}),
    ("qrl", r"(visual-)?humanoidmaze-", {"algo.alpha": 0.001}),
    ("qrl", r"(visual-)?(cube|scene|puzzle)-", {"algo.alpha": 0.3}),
    ("qrl", r".*-noisy-", {"algo.alpha": 0.03}),
    ("qrl", r".*-explore-", {"algo.alpha": 0.001}),
    ("gcivl gciql crl qrl", r"powderworld-", {"algo.alpha": 3.0}),
    ("gciql crl qrl", r"powderworld-", {"algo.actor_loss": "awr"}),
    ("gcbc gcivl hiql gciql crl qrl", r"visual-|powderworld-",
        {"algo.batch_size": 256, "algo.networks.encoder": "impala"}),
    ("gcbc gcivl hiql gciql crl qrl", r"visual-(cube|scene|puzzle)-", {"algo.crop_probability": 0.5}),
)
"""Learners, the beginning of the name of a dataset or an environment as a regular expression, and the settings that
OGBench's authors chose there (impls/hyperparameters.sh); of several, the later one wins."""

TABLE: dict[str, Preset] = {
    "bc": Preset("bc", DATA, "Behavior cloning on data of any task; settings by reverie.",
        cpu_changes=_ON_CPU | {"algo.lr": 1e-3}),
    "td3_bc": Preset("td3_bc", ANY_DATA | {"algo.policy_delay": 1},
        "TD3+BC on data of any task; settings by reverie.",
        cpu_changes=_ON_CPU | _FAST, from_updates=_fast_targets),
    "rebrac": Preset("rebrac", ANY_DATA | {"algo.policy_delay": 1, "algo.actor_bc_coef": 0.4},
        "ReBRAC on data of any task; settings by reverie.",
        cpu_changes=_ON_CPU | {"algo.batch_size": 256}, from_updates=_fast_targets),
    "fql": Preset("fql", ANY_DATA | {"algo.normalize_q": True, "algo.alpha": 0.1},
        "FQL on data of any task; settings by reverie.", cpu_changes=_ON_CPU | {"algo.lr": 1e-3},
        from_updates=_fast_targets),
    "bcq": Preset("bcq", ANY_DATA, "BCQ on data of any task; settings by reverie.",
        cpu_changes=_ON_CPU | {"algo.vae.units": (128, 128)}, from_updates=_fast_targets),
    "cql": Preset("cql",
        DATA | {"algo.reward_scale": "return_std(None, std=5)", "algo.conservative_weight": "constant(2)",
            "algo.temperature": 0.02},
        "CQL on data of any task; settings by reverie.",
        cpu_changes=_ON_CPU | _FAST | {"algo.batch_size": 64}, from_updates=_slower_targets),
    "iql": Preset("iql", ANY_DATA, "IQL on data of any task; settings by reverie.",
        cpu_changes=_ON_CPU | _FAST | {"algo.value_lr": 1e-3}, from_updates=_fast_targets),
    "crr": Preset("crr", ANY_DATA, "CRR on data of any task; settings by reverie.",
        cpu_changes=_ON_CPU | _FAST, from_updates=_fast_copies),
    "bc_mujoco": Preset("bc", DATA,
        "Behavior cloning on data of MuJoCo, D4RL and similar tasks; as many updates as the other algorithms.",
        env_prefixes=D4RL, cpu_changes={}),
    "td3_bc_mujoco": Preset("td3_bc", DATA,
        "TD3+BC on data of MuJoCo, D4RL and similar tasks: 1M updates (appendix C).",
        env_prefixes=D4RL, cpu_changes={"updates": 400_000, "steps": 400_000}),
    "rebrac_mujoco": Preset("rebrac", DATA, "ReBRAC on data of MuJoCo, D4RL and similar tasks: 1M updates.",
        env_prefixes=D4RL, cpu_changes={"updates": 60_000, "steps": 60_000}),
    "decision_transformer": Preset("decision_transformer", DATA | {"updates": 100_000, "algo.return_scale": None},
        "Decision Transformer on data of any task; settings by reverie.",
        cpu_changes={"updates": 20_000, "steps": 20_000, "algo.batch_size": 32, "algo.lr": 1e-3}),
    "decision_transformer_mujoco": Preset("decision_transformer",
        DATA | {"updates": 100_000, "steps": 100_000, "algo.lr": [[0, 1e-8], [9999, 1e-4]]},
        "Decision Transformer on data of MuJoCo, D4RL and similar tasks: 100k updates.", env_prefixes=D4RL,
        cpu_changes={"updates": 20_000, "steps": 20_000, "algo.batch_size": 32}),
    "fql_mujoco": Preset("fql", DATA, "FQL on data of MuJoCo, D4RL, OGBench and similar tasks: 1M updates.",
        env_prefixes=f"{D4RL} {OGBENCH_IDS}",
        cpu_changes={"updates": 50_000, "steps": 50_000, "algo.batch_size": 32}),
    "qc_fql": Preset("fql",
        ANY_DATA | {"algo.chunk_size": 5, "algo.batch_length": 6, "algo.normalize_q": True, "algo.alpha": 0.1},
        "QC-FQL on data of any task: chunks of five actions, 1M updates; alpha for any scale by reverie.",
        cpu_changes={"updates": 50_000, "steps": 50_000, "algo.batch_size": 32}, from_updates=_fast_targets),
    "qc_fql_ogbench": Preset("fql", DATA | {"algo.chunk_size": 5, "algo.batch_length": 6, "algo.alpha": 100.0},
        "QC-FQL on data of OGBench: chunks of five actions, 1M updates.",
        cpu_changes={"updates": 50_000, "steps": 50_000, "algo.batch_size": 32}),
    "rlpd": Preset("sac", RLPD | ANY_SCALE | {"algo.temperature": 0.02},
        "RLPD: SAC with data of any task, in addition to the environment; scales by reverie.",
        cpu_changes={"steps": 20_000}),
    "rlpd_mujoco": Preset("sac", RLPD,
        "RLPD: SAC with data of MuJoCo and similar tasks, in addition to the environment: 250k steps.",
        cpu_changes={"steps": 20_000}),
    "bcq_mujoco": Preset("bcq", DATA,
        "BCQ on data of MuJoCo, D4RL and similar tasks; as many updates as the other algorithms.",
        env_prefixes=D4RL, cpu_changes={"updates": 50_000, "steps": 50_000}),
    "cql_mujoco": Preset("cql", DATA, "CQL on data of MuJoCo, D4RL and similar tasks: 1M updates.",
        env_prefixes=D4RL, cpu_changes={"updates": 50_000, "steps": 50_000, "algo.batch_size": 32}),
    "iql_mujoco": Preset("iql", DATA,
        "IQL on data of MuJoCo, D4RL and similar tasks: 1M updates (appendix B); the actor's rate is constant.",
        env_prefixes=D4RL, cpu_changes={"updates": 200_000, "steps": 200_000}),
    "gcbc": Preset("gcbc", DATA,
        "Goal-conditioned behavior cloning on OGBench's data: 1M updates.",
        cpu_changes=_GOAL_DATA),
    "gcivl": Preset("gcivl", DATA, "GCIVL on OGBench's data: 1M updates.", cpu_changes=_GOAL_DATA),
    "hiql": Preset("hiql", DATA, "HIQL on OGBench's data: 1M updates.", cpu_changes=_GOAL_DATA),
    "gciql": Preset("gciql", DATA, "GCIQL on OGBench's data: 1M updates.", cpu_changes=_GOAL_DATA),
    "crl": Preset("crl", DATA, "CRL on OGBench's data: 1M updates.",
        cpu_changes=_GOAL_DATA | {"algo.representation_width": 256}),
    "qrl": Preset("qrl", DATA, "QRL on OGBench's data: 1M updates.",
        cpu_changes=_GOAL_DATA | {"algo.representation_width": 256}),
    "lewm": Preset("lewm",
        DATA | {"updates": 50_000, "steps": 50_000, "algo.planner.steady": 0.5,
            "algo.regularizer": "sigreg(weight=0.02)"},
        "LeWM on recorded pictures without rewards, with small networks; settings by reverie.",
        cpu_changes={"updates": 5_000, "steps": 5_000, "algo.latent": 32}),
    "crr_mujoco": Preset("crr", DATA,
        "CRR on data of MuJoCo, D4RL and similar tasks; as many updates as the other algorithms.",
        env_prefixes=D4RL, cpu_changes={"updates": 200_000, "steps": 200_000}),
    "gail": Preset("gail", MODEL_FREE,
        "GAIL with an expert's data on MuJoCo and similar tasks, in addition to the environment: 1M steps, as SAC.",
        cpu_changes={"steps": 200_000}),
    "gail_pendulum": Preset("gail",
        PENDULUM | {"algo.batch_size": 128, "algo.networks.units": (64, 64), "algo.discriminator.units": (64, 64),
            "algo.gradient_penalty": 1.0, "algo.temperature": 0.1, "algo.temperature_lr": 1e-3},
        "GAIL with an expert's data on Pendulum-v1, in addition to the environment, as SAC; settings by reverie.",
        env_prefixes="Pendulum-"),
    # Episodes end when the agent fails, so rewards are positive: that makes long episodes better.
    "gail_cartpole": Preset("gail",
        PENDULUM | {"env.id": "CartPole-v1", "steps": 10_000, "learning_starts": 500, "random_steps": 500,
            "replay.capacity": 50_000, "algo.batch_size": 128, "algo.networks.units": (64, 64),
            "algo.discriminator.units": (64, 64), "algo.gradient_penalty": 1.0, "algo.temperature": 0.1,
            "algo.temperature_lr": 0.0, "algo.reward_form": "positive"},
        "GAIL with an expert's data and the environment CartPole-v1: a minute on one core; settings by reverie.",
        env_prefixes="CartPole-"),
    "bc_pendulum": Preset("bc", PENDULUM_DATA | {"algo.lr": 1e-3},
        "Behavior cloning on data of Pendulum-v1: half a minute on one CPU core; settings by reverie.",
        env_prefixes="Pendulum-"),
    "td3_bc_pendulum": Preset("td3_bc", PENDULUM_DATA | {"algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3},
        "TD3+BC on data of Pendulum-v1: a minute on one CPU core; settings by reverie.", env_prefixes="Pendulum-"),
    "rebrac_pendulum": Preset("rebrac", PENDULUM_DATA,
        "ReBRAC on data of Pendulum-v1: minutes on one CPU core; settings by reverie.", env_prefixes="Pendulum-"),
    "bcq_pendulum": Preset("bcq", PENDULUM_DATA | {"algo.vae.units": (128, 128)},
        "BCQ on data of Pendulum-v1: a minute on one CPU core; settings by reverie.", env_prefixes="Pendulum-"),
    "cql_pendulum": Preset("cql",
        PENDULUM_DATA | {"algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3, "algo.temperature_lr": 1e-3},
        "CQL on data of Pendulum-v1: minutes on one CPU core; settings by reverie.", env_prefixes="Pendulum-"),
    "iql_pendulum": Preset("iql",
        PENDULUM_DATA | {"algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3, "algo.value_lr": 1e-3},
        "IQL on data of Pendulum-v1: a minute on one CPU core; settings by reverie.", env_prefixes="Pendulum-"),
    "crr_pendulum": Preset("crr", PENDULUM_DATA | {"algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3},
        "CRR on data of Pendulum-v1: a minute on one CPU core; settings by reverie.", env_prefixes="Pendulum-"),
    "discrete_bcq": Preset("discrete_bcq", CHOICE_DATA | ANY_REWARDS,
        "Discrete BCQ on data of any task with discrete actions; settings by reverie.",
        cpu_changes=_ON_CPU | {"algo.lr": 1e-3}, from_updates=_fast_targets),
    "discrete_cql": Preset("discrete_cql", CHOICE_DATA | ANY_REWARDS,
        "Discrete CQL on data of any task with discrete actions; settings by reverie.",
        cpu_changes=_ON_CPU | {"algo.lr": 1e-3, "algo.num_quantiles": 64}, from_updates=_fast_copies),
    "discrete_crr": Preset("discrete_crr", CHOICE_DATA | ANY_REWARDS,
        "Discrete CRR on data of any task with discrete actions; settings by reverie.",
        cpu_changes=_ON_CPU | _FAST, from_updates=_fast_copies),
    "bc_cartpole": Preset("bc", CARTPOLE_DATA | {"algo.lr": 1e-3},
        "Behavior cloning on data of CartPole-v1: half a minute on one CPU core; settings by reverie.",
        env_prefixes="CartPole-"),
    # Uses three-step returns, as DQN's preset does: with one-step returns values take longer than this to converge.
    "discrete_bcq_cartpole": Preset("discrete_bcq",
        CARTPOLE_DATA | {"algo.value_estimator": "n_step(3)", "algo.batch_length": 4, "algo.lr": 1e-3},
        "Discrete BCQ on data of CartPole-v1: half a minute on one CPU core; settings by reverie.",
        env_prefixes="CartPole-"),
    "discrete_cql_cartpole": Preset("discrete_cql", CARTPOLE_DATA | {"algo.lr": 1e-3, "algo.num_quantiles": 64},
        "Discrete CQL on data of CartPole-v1: a minute on a CPU core; settings by reverie.", env_prefixes="CartPole-"),
    "discrete_crr_cartpole": Preset("discrete_crr", CARTPOLE_DATA | {"algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3},
        "Discrete CRR on data of CartPole-v1: half a minute on one CPU core; settings by reverie.",
        env_prefixes="CartPole-"),
    "bc_minatar": Preset("bc", MINATAR_DATA | {"algo.lr": 2.5e-4},
        "Behavior cloning on data of MinAtar, with its authors' network; settings by reverie.", env_prefixes="MinAtar/",
        cpu_changes={}),
    "discrete_bcq_minatar": Preset("discrete_bcq", MINATAR_DATA | {"algo.lr": 2.5e-4},
        "Discrete BCQ on data of MinAtar, with its authors' network; settings by reverie.", env_prefixes="MinAtar/",
        cpu_changes={}),
    "discrete_cql_minatar": Preset("discrete_cql", MINATAR_DATA | {"algo.lr": 2.5e-4, "algo.num_quantiles": 64},
        "Discrete CQL on data of MinAtar, with its authors' network; settings by reverie.", env_prefixes="MinAtar/",
        cpu_changes={}),
    "discrete_crr_minatar": Preset("discrete_crr", MINATAR_DATA | {"algo.actor_lr": 2.5e-4, "algo.critic_lr": 2.5e-4},
        "Discrete CRR on data of MinAtar, with its authors' network; settings by reverie.", env_prefixes="MinAtar/",
        cpu_changes={}),
    "bc_atari": Preset("bc", ATARI_DATA | {"algo.lr": 1e-4},
        "Behavior cloning on data of Atari, of four 84x84 gray frames (Tianshou: atari_il.py).", env_prefixes="ALE/",
        cpu_changes=_ATARI_DATA),
    "discrete_bcq_atari": Preset("discrete_bcq",
        ATARI_DATA | {"algo.lr": 6.25e-5, "algo.tau": 1.0, "algo.target_update_interval": 8000},
        "Discrete BCQ on data of Atari, of four 84x84 gray frames (Tianshou: atari_bcq.py).", env_prefixes="ALE/",
        cpu_changes=_ATARI_DATA | {"algo.target_update_interval": 1000}),
    "discrete_cql_atari": Preset("discrete_cql", ATARI_DATA | {"algo.lr": 1e-4, "algo.double": True},
        "Discrete CQL on data of Atari, of four 84x84 gray frames (Tianshou: atari_cql.py).", env_prefixes="ALE/",
        cpu_changes=_ATARI_DATA),
    "discrete_crr_atari": Preset("discrete_crr",
        ATARI_DATA | {"algo.actor_lr": 1e-4, "algo.critic_lr": 1e-4, "algo.target_update_interval": 500,
            "algo.conservative_weight": 20.0},
        "Discrete CRR on data of Atari, of four 84x84 gray frames (Tianshou: atari_crr.py).", env_prefixes="ALE/",
        cpu_changes=_ATARI_DATA),
}


def ogbench_settings(algorithm: str, name: str) -> Settings:
    """Return the settings of :data:`OGBENCH` for a dataset or an environment of OGBench called ``name``."""
    chosen: Settings = {}
    for algorithms, pattern, settings in OGBENCH:
        if algorithm in algorithms.split() and re.match(pattern, name):
            chosen |= settings
    return chosen
