"""Presets of the Dreamers.

Source: "configs.yaml" is the file of github.com/danijar/dreamerv3 as of May 2026, the code of Hafner et al., Nature
2025; for DreamerV2 that of github.com/danijar/dreamerv2, version 2.2.0. Those of DreamerV1 are in dreamer.py of
github.com/danijar/dreamer. The train ratio of V3 is in replayed rows per env step, those of V1 and V2 are updates per
env step. Settings marked "ours" are not given there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reverie.algos.dreamer_v1 import DreamerV1Config
from reverie.algos.dreamer_v2 import DreamerV2Config
from reverie.algos.dreamer_v3 import DreamerV3Config, sized
from reverie.algos.plan2explore import Plan2ExploreConfig
from reverie.algos.plan2explore_v1 import Plan2ExploreV1Config
from reverie.algos.plan2explore_v3 import sized as exploring
from reverie.experiment import ExperimentConfig

CPU: dict[str, Any] = {
    "threads": 1,  # two are a quarter faster on an idle machine, but much slower beside one busy process
    "steps": 50_000,
    "replay_ratio": 0.4,
    "learning_starts": 512,
    "env.num": 4,
    "replay.capacity": 100_000,
    "algo.batch_size": 16,
    "algo.batch_length": 32,
    "algo.optim.lr": 6e-4,
    "algo.optim.warmup": 200,
}
"""Settings for small problems on two CPU cores."""

FEW_UPDATES: dict[str, Any] = {"steps": 40_000, "replay_ratio": 0.1, "eval_episodes": 4}
"""Changes of ``CPU`` for images of 64x64, whose updates take six times as long as those of vectors."""

CARTPOLE: dict[str, Any] = CPU | {
    "env.id": "CartPole-v1",
    "steps": 8_000,
    "eval_episodes": 20,
    "eval_envs": 20,
    "schedule.eval_every": 400,
    "stop_score": 499.0,
}
"""Settings with which CartPole-v1 is solved in minutes on two CPU cores."""

DEMO: dict[str, Any] = CPU | {
    "env.id": "MiniGrid-Empty-Random-6x6-v0",
    "env.full_view": True,
    "env.num": 16,  # steps are cheap beside updates, and random ones must find the goal a few times
    "replay_ratio": 0.1,
    "learning_starts": 2000,
    "steps": 30_000,
    "eval_episodes": 20,
    "eval_envs": 20,
    "schedule.eval_every": 500,
    "stop_score": 0.93,
    "algo.batch_length": 16,
    "algo.imagine_last": 4,
    "algo.discount_horizon": 50.0,
    "algo.entropy": 1e-3,
    "algo.encoder.keys": "agent",  # the room is always the same
    "algo.optim.lr": 3e-3,
    "algo.optim.warmup": 50,
}
"""Settings of the demonstration: an agent that starts anywhere in a room learns to walk to the goal."""


V3: dict[str, Any] = {"steps": 1_000_000, "train_ratio": 512, "env.num": 1}
"""DreamerV3 on any environment."""


def dreamer_v3() -> ExperimentConfig:
    """DreamerV3 with its fixed hyper-parameters at 12M parameters, for any environment; the train ratio is ours."""
    return _of("12m", V3)


def plan2explore_v3() -> ExperimentConfig:
    """Plan2Explore on DreamerV3 at 12M parameters, for any environment; the ensemble's settings are ours."""
    return ExperimentConfig(algo=exploring("12m")).merge(V3)


def cartpole() -> ExperimentConfig:
    """CartPole-v1 solved in minutes on two CPU cores; settings are ours."""
    return _of("nano", CARTPOLE)


def demo() -> ExperimentConfig:
    """The demonstration: an agent walks to the goal, seen from above, on two CPU cores; settings are ours."""
    return _of("nano", DEMO)


def atari() -> ExperimentConfig:
    """Atari, 200M frames: 96x96 grey, sticky actions, all 18 actions (configs.yaml: atari)."""
    kwargs = {"repeat_action_probability": 0.25, "full_action_space": True}
    suite = {"resize": (96, 96), "grayscale": True, "action_repeat": 4, "pool_frames": 2, "noop_max": 30}
    env = {"id": "ALE/Pong-v5", "num": 16, "vector": "process", **suite, "time_limit": 27_000, "kwargs": kwargs}
    return _of("200m", {"steps": 51_000_000, "train_ratio": 32, "env": env})


def atari100k() -> ExperimentConfig:
    """Atari with 400K frames: 64x64 RGB, no sticky actions, the game's own actions (configs.yaml: atari100k)."""
    kwargs = {"repeat_action_probability": 0.0, "full_action_space": False}
    suite = {"resize": (64, 64), "action_repeat": 4, "pool_frames": 2, "noop_max": 30, "time_limit": 27_000}
    env = {"id": "ALE/Pong-v5", "num": 1, **suite, "kwargs": kwargs}
    return _of("200m", {"steps": 110_000, "train_ratio": 256, "env": env})


def dmc_proprio() -> ExperimentConfig:
    """DeepMind Control from proprioceptive states, 1M steps, at 1 million parameters (configs.yaml: dmc_proprio)."""
    env = {"id": "dm_control/walker-walk-v0", "num": 16, "vector": "process"}
    return _of("1m", {"steps": 1_100_000, "train_ratio": 1024, "env": env})


def dmc_vision() -> ExperimentConfig:
    """DeepMind Control from 64x64 pixels, 1M steps (configs.yaml: dmc_vision)."""
    env = {"id": "dm_control/walker-walk-v0", "num": 16, "vector": "process", "pixels": "only", "resize": (64, 64)}
    return _of("200m", {"steps": 1_100_000, "train_ratio": 256, "env": env})


def crafter() -> ExperimentConfig:
    """Crafter, 1M steps (configs.yaml: crafter)."""
    return _of("200m", {"steps": 1_100_000, "train_ratio": 512, "env.id": "CrafterReward-v1", "env.num": 1})


def procgen() -> ExperimentConfig:
    """ProcGen, 100M steps at 96x96 (configs.yaml: procgen); give the environment as `module:Id`."""
    env = {"num": 16, "vector": "process", "resize": (96, 96)}
    return _of("200m", {"steps": 110_000_000, "train_ratio": 64, "env": env})


def minigrid() -> ExperimentConfig:
    """MiniGrid from its 7x7 symbols; settings are ours."""
    env = {"id": "MiniGrid-DoorKey-5x5-v0", "num": 4}
    return _of("1m", {"steps": 500_000, "train_ratio": 512, "env": env})


def minatar() -> ExperimentConfig:
    """MinAtar from its 10x10 planes; settings are ours."""
    return _of("1m", {"steps": 2_000_000, "train_ratio": 128, "env.id": "MinAtar/Breakout-v1", "env.num": 8})


def _of(size: str, values: Mapping[str, Any]) -> ExperimentConfig:
    return ExperimentConfig(algo=sized(size, DreamerV3Config())).merge(values)


V2: dict[str, Any] = {
    "steps": 1_000_000,
    "replay_ratio": 1 / 5,
    "random_steps": 10_000,
    "learning_starts": 10_000,
    "env.num": 1,
    "replay.capacity": 2_000_000,
}
"""DreamerV2: prefill and "train every"; the steps are ours."""

V2_DMC: dict[str, Any] = V2 | {
    "random_steps": 1000,
    "learning_starts": 1000,
    "env.id": "dm_control/walker-walk-v0",
    "env.action_repeat": 2,
    "algo.rewards": "identity",
    "algo.learn_cont": False,
    "algo.kl": "balanced(nats=1.0)",
    "algo.entropy": 1e-4,
    "algo.rssm.deter": 200,
    "algo.rssm.hidden": 200,
    "algo.model_optim.lr": 3e-4,
    "algo.actor_optim.lr": 8e-5,
    "algo.critic_optim.lr": 8e-5,
}
"""DreamerV2 on DeepMind Control, from states or from pixels."""

PIXELS: dict[str, Any] = {"env.pixels": "only", "env.resize": (64, 64)}


def dreamer_v2() -> ExperimentConfig:
    """DreamerV2 with the defaults of its authors' code (configs.yaml: defaults); the number of steps is ours."""
    return ExperimentConfig(algo=DreamerV2Config()).merge(V2)


def plan2explore() -> ExperimentConfig:
    """Plan2Explore on DreamerV2 with the defaults of its authors' code; the number of steps is ours."""
    return ExperimentConfig(algo=Plan2ExploreConfig()).merge(V2)


def dreamer_v2_atari() -> ExperimentConfig:
    """DreamerV2 on Atari, 200M frames: 64x64 grey, sticky actions, the game's own (configs.yaml: atari)."""
    kwargs = {"repeat_action_probability": 0.25, "full_action_space": False}
    suite = {"resize": (64, 64), "grayscale": True, "action_repeat": 4, "pool_frames": 2, "noop_max": 30}
    env = {"id": "ALE/Pong-v5", "num": 1, **suite, "time_limit": 27_000, "kwargs": kwargs}
    own = {
        "steps": 50_000_000, "replay_ratio": 1 / 16, "random_steps": 50_000, "learning_starts": 50_000, "env": env,
        "algo.rssm.deter": 600, "algo.rssm.hidden": 600, "algo.scales.kl": 0.1, "algo.scales.cont": 5.0,
        "algo.discount": 0.999, "algo.entropy": 1e-3, "algo.model_optim.lr": 2e-4, "algo.actor_optim.lr": 4e-5,
        "algo.critic_optim.lr": 1e-4,
    }  # fmt: skip
    return dreamer_v2().merge(own)


def dreamer_v2_crafter() -> ExperimentConfig:
    """DreamerV2 on Crafter, with layer norm everywhere (configs.yaml: crafter)."""
    parts = ("rssm", "encoder", "decoder", "reward", "cont", "actor", "critic")
    own = {
        "env.id": "CrafterReward-v1", "algo.discount": 0.999, "algo.entropy": 3e-3, "algo.actor_optim.lr": 1e-4,
        "algo.critic_optim.lr": 1e-4, **{f"algo.{part}.norm": "layer" for part in parts},
    }  # fmt: skip
    return dreamer_v2().merge(own)


def dreamer_v2_dmc_proprio() -> ExperimentConfig:
    """DreamerV2 on DeepMind Control from proprioceptive states (configs.yaml: dmc_proprio)."""
    return dreamer_v2().merge(V2_DMC)


def dreamer_v2_dmc_vision() -> ExperimentConfig:
    """DreamerV2 on DeepMind Control from 64x64 pixels (configs.yaml: dmc_vision)."""
    return dreamer_v2().merge(V2_DMC | PIXELS)


V1: dict[str, Any] = {
    "steps": 1_000_000,
    "replay_ratio": 1 / 5,
    "random_steps": 2500,
    "learning_starts": 2500,
    "env.num": 1,
}
"""DreamerV1; the steps are ours."""


def dreamer_v1() -> ExperimentConfig:
    """DreamerV1 with the defaults of its authors' code; the number of steps is ours."""
    return ExperimentConfig(algo=DreamerV1Config()).merge(V1)


def plan2explore_v1() -> ExperimentConfig:
    """Plan2Explore on DreamerV1 with the defaults of its authors' code; the ensemble's settings are ours."""
    return ExperimentConfig(algo=Plan2ExploreV1Config()).merge(V1)


def dreamer_v1_dmc() -> ExperimentConfig:
    """DreamerV1 on DeepMind Control from 64x64 pixels, 5M frames (dreamer.py): 100 updates for each 1000 frames."""
    env = {"env.id": "dm_control/walker-walk-v0", "env.action_repeat": 2}
    return dreamer_v1().merge({"steps": 2_500_000} | env | PIXELS)


PYDREAMER: dict[str, Any] = {
    "steps": 100_000_000,
    "replay_ratio": 1 / 20,
    "random_steps": 50_000,
    "learning_starts": 50_000,
    "env.num": 8,
    "env.vector": "process",
    "replay.capacity": 10_000_000,
    "replay.sequence": True,
    "replay.reset_interval": 200,
    "algo.carry": True,
    "algo.batch_size": 32,
    "algo.batch_length": 48,
    "algo.rewards": "identity",
    "algo.returns": "next_reward",
    "algo.discount": 0.995,
    "algo.entropy": 3e-3,
    "algo.actor_gradient": "reinforce",
    "algo.slow_moves": "before",
    "algo.dream_in": "same",
    "algo.rssm.deter": 2048,
    "algo.rssm.hidden": 1000,
    "algo.rssm.cell": "keras_gru",
    "algo.rssm.init": "split",
    "algo.encoder.units": (400, 400),
    "algo.encoder.outputs": 256,
    **{f"algo.{part}.cnn_norm": "none" for part in ("encoder", "decoder")},
    **{f"algo.{part}.norm": "layer" for part in ("rssm", "encoder", "decoder", "reward", "cont", "actor", "critic")},
    **{f"algo.{part}.init": "torch" for part in ("actor", "critic")},
    **{
        f"algo.{part}.{name}": value
        for part in ("model_optim", "actor_optim", "critic_optim", "probe.optim")
        for name, value in {"form": "torch", "lr": 3e-4, "eps": 1e-5, "decay": 0.01, "clip": 200.0}.items()
    },
    "algo.actor_optim.lr": 1e-4,
    "algo.critic_optim.lr": 1e-4,
}
"""PyDreamer's config/defaults.yaml. Its trainer does not wait for its workers; on a V100 an update takes about as long
as 20 of their steps (README.md). Number of steps: ours, but for Atari."""


def pydreamer_minigrid() -> ExperimentConfig:
    """PyDreamer on MiniGrid with its map probe (defaults.yaml: minigrid). Its maze is not public: the id is ours."""
    own = {
        "env.id": "MiniGrid-SimpleCrossingS11N5-v0", "env.kwargs": {"max_steps": 500}, "env.map_view": True,
        "algo.horizon": 1, "algo.encoder.keys": "view", "algo.encoder.class_units": (400, 400, 400),
        "algo.encoder.arrival": True, "algo.decoder.keys": "view", "algo.decoder.class_units": (400, 400),
        "algo.probe.heads": ("mlp('map', given='map_coord', units=1024, norm='layer', init='torch')",),
    }  # fmt: skip
    return _pydreamer(own)


def pydreamer_atari() -> ExperimentConfig:
    """PyDreamer on Atari, 200M frames: 64x64 RGB, sticky actions, all 18 actions (defaults.yaml: atari)."""
    kwargs = {"repeat_action_probability": 0.25, "full_action_space": True}
    suite = {"resize": (64, 64), "action_repeat": 4, "pool_frames": 2, "noop_max": 30, "time_limit": 27_000}
    own = {
        "steps": 50_000_000, "env": {"id": "ALE/Pong-v5", "num": 1, **suite, "kwargs": kwargs}, "algo.rewards": "tanh",
        "algo.rssm.deter": 1024, "algo.scales.kl": 0.1, "algo.discount": 0.99, "algo.entropy": 1e-3,
    }  # fmt: skip
    return _pydreamer(own)


def pydreamer_dmc() -> ExperimentConfig:
    """PyDreamer on DeepMind Control from 64x64 pixels, with gradients through the model (defaults.yaml: dmc)."""
    own = {
        "random_steps": 5000, "learning_starts": 5000, "env.id": "dm_control/quadruped-run-v0", "env.num": 1,
        "env.action_repeat": 2, "env.time_limit": 500, **PIXELS, "algo.rewards": "tanh", "algo.entropy": 1e-4,
        "algo.actor_gradient": "dynamics(True)", "algo.actor.continuous": "tanh_normal(0.1, 0.0, 0)",
    }  # fmt: skip
    return _pydreamer(own)


def pydreamer_miniworld() -> ExperimentConfig:
    """PyDreamer on MiniWorld with its goals probe (defaults.yaml: miniworld); give the environment as `module:Id`.

    Its observations are `image`, `goal_direction` and `goals_direction`, and it reports no terminal states.
    """
    own: dict[str, Any] = {"env.resize": (64, 64), "algo.encoder.arrival": True}
    for part in ("encoder", "decoder"):
        own |= {f"algo.{part}.keys": "image", f"algo.{part}.depth": 32}
    own["algo.probe.heads"] = ("mlp('goals?_direction', norm='layer', init='torch')",)
    return _pydreamer(own)


def pydreamer_minerl() -> ExperimentConfig:
    """PyDreamer on MineRL (minerl.yaml); give the environment as `module:Id`.

    Its observations are `image` and vectors, such as the logarithm of 1 + what the inventory holds.
    """
    own = {
        "env.num": 2, "env.time_limit": 3000, "env.resize": (64, 64), "replay.reset_interval": 50,
        "algo.batch_size": 16, "algo.batch_length": 16, "algo.rewards": "log1p", "algo.scales.vectors": 10.0,
        "algo.scales.reward": 10.0, "algo.scales.kl": 0.3, "algo.rssm.stoch": 96, "algo.entropy": 1e-2,
        "algo.horizon": 5, "algo.model_optim.lr": 1e-4, "algo.actor_optim.lr": 1e-4, "algo.critic_optim.lr": 1e-4,
    }  # fmt: skip
    return _pydreamer(own)


def _pydreamer(values: Mapping[str, Any]) -> ExperimentConfig:
    return ExperimentConfig(algo=DreamerV2Config()).merge(PYDREAMER).merge(values)


PRESETS: dict[str, Callable[[], ExperimentConfig]] = {
    "dreamer_v3": dreamer_v3,
    "cartpole": cartpole,
    "demo": demo,
    "atari": atari,
    "atari100k": atari100k,
    "dmc_proprio": dmc_proprio,
    "dmc_vision": dmc_vision,
    "crafter": crafter,
    "procgen": procgen,
    "minigrid": minigrid,
    "minatar": minatar,
    "dreamer_v2": dreamer_v2,
    "dreamer_v2_atari": dreamer_v2_atari,
    "dreamer_v2_crafter": dreamer_v2_crafter,
    "dreamer_v2_dmc_proprio": dreamer_v2_dmc_proprio,
    "dreamer_v2_dmc_vision": dreamer_v2_dmc_vision,
    "plan2explore": plan2explore,
    "plan2explore_v1": plan2explore_v1,
    "plan2explore_v3": plan2explore_v3,
    "dreamer_v1": dreamer_v1,
    "dreamer_v1_dmc": dreamer_v1_dmc,
    "pydreamer_minigrid": pydreamer_minigrid,
    "pydreamer_atari": pydreamer_atari,
    "pydreamer_dmc": pydreamer_dmc,
    "pydreamer_miniworld": pydreamer_miniworld,
    "pydreamer_minerl": pydreamer_minerl,
}
"""Presets by name."""

_CPU = CPU | {"size": "nano", "env.vector": "serial", "schedule.eval_every": 10_000}

_EARLIER: dict[str, Any] = {f"algo.{part}.units": 64 for part in ("reward", "cont", "actor", "critic")} | {
    "threads": 1,
    "steps": 20_000,
    "replay_ratio": 0.4,
    "random_steps": 500,
    "learning_starts": 500,
    "env.num": 4,
    "env.vector": "serial",
    "replay.capacity": 100_000,
    "schedule.eval_every": 10_000,
    "algo.batch_size": 16,
    "algo.batch_length": 32,
    "algo.rssm.deter": 128,
    "algo.rssm.hidden": 64,
    "algo.rssm.stoch": 16,
    "algo.encoder.units": (64, 64),
    "algo.decoder.units": (64, 64),
    "algo.encoder.depth": 4,
    "algo.decoder.depth": 4,
    "algo.model_optim.lr": 1e-3,
    "algo.actor_optim.lr": 4e-4,
    "algo.critic_optim.lr": 1e-3,
}
_V2 = _EARLIER | {
    "algo.rssm.latent": "categorical(16)",
    "algo.slow_every": 50,
    "algo.entropy": 0.02,  # returns of some tens in few steps: with 0.002 the policy stops trying too early
    "algo.scales.cont": 5.0,
}
_V1 = _EARLIER | {"algo.kl": "free(1.0)"}
_PYDREAMER: dict[str, Any] = _V2 | {"algo.encoder.outputs": 64, "algo.probe.optim.lr": 1e-3}
_FEW_MODELS: dict[str, Any] = {"algo.ensemble.models": 5, "algo.ensemble.head.layers": 2}

ON_CPU: dict[str, dict[str, Any]] = {
    "dreamer_v3": _CPU,
    "atari": _CPU | FEW_UPDATES | {"replay_ratio": 0.05, "schedule.eval_every": 20_000},
    "atari100k": _CPU | FEW_UPDATES | {"schedule.eval_every": 20_000},
    "dmc_proprio": _CPU,
    "dmc_vision": _CPU | FEW_UPDATES,
    "crafter": _CPU | FEW_UPDATES,
    "procgen": _CPU | FEW_UPDATES | {"replay_ratio": 0.05},
    "minigrid": _CPU | {"steps": 40_000},
    "minatar": _CPU | {"steps": 40_000},
    "dreamer_v2": _V2,
    "dreamer_v2_atari": _V2 | FEW_UPDATES,
    "dreamer_v2_crafter": _V2 | FEW_UPDATES,
    "dreamer_v2_dmc_proprio": _V2,
    "dreamer_v2_dmc_vision": _V2 | FEW_UPDATES,
    "plan2explore": _V2 | _FEW_MODELS | {"algo.ensemble.head.units": 64, "algo.explore_norm.momentum": 0.99},
    "plan2explore_v1": _V1 | _FEW_MODELS | {"algo.ensemble.head.units": 64},
    "plan2explore_v3": _CPU | _FEW_MODELS,
    "dreamer_v1": _V1,
    "dreamer_v1_dmc": _V1 | FEW_UPDATES,
    "pydreamer_minigrid": _PYDREAMER
    | {
        "algo.encoder.class_units": (64, 64),
        "algo.decoder.class_units": (64,),
        "algo.probe.heads": ("mlp('map', given='map_coord', units=128, norm='layer', init='torch')",),
    },
    "pydreamer_atari": _PYDREAMER | FEW_UPDATES,
    "pydreamer_dmc": _PYDREAMER | FEW_UPDATES,
    "pydreamer_miniworld": _PYDREAMER | FEW_UPDATES,
    "pydreamer_minerl": _PYDREAMER | FEW_UPDATES,
}
"""Changes of presets for a machine without a GPU, so that a run takes about an hour on two cores; values are ours."""

SUITES: dict[str, str] = {
    "CartPole-": "cartpole",
    "ALE/": "atari",
    "dm_control/": "dmc_proprio",
    "Crafter": "crafter",
    "MiniGrid-": "minigrid",
    "BabyAI-": "minigrid",
    "MinAtar/": "minatar",
    "dreamer_v2: ALE/": "dreamer_v2_atari",
    "dreamer_v2: Crafter": "dreamer_v2_crafter",
    "dreamer_v2: dm_control/": "dreamer_v2_dmc_proprio",
    "dreamer_v1: dm_control/": "dreamer_v1_dmc",
}
"""Preset of an environment, by the prefix of its id."""
