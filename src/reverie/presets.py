"""Published settings by name: functions that return an ``ExperimentConfig``, and the layers of settings above them.

Source: "configs.yaml" is that of github.com/danijar/dreamerv3 as of May 2026, the code of Hafner et al., Nature 2025.
Its train ratio is in replayed rows per env step. Where it gives no setting, the docstring says that values are ours.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reverie.algos.base import AlgorithmConfig
from reverie.algos.ddpg import DDPGConfig
from reverie.algos.dqn import DQNConfig
from reverie.algos.dreamer_v3 import DreamerV3Config, sized
from reverie.algos.qr_dqn import QRDQNConfig
from reverie.algos.sac import SACConfig
from reverie.algos.td3 import TD3Config
from reverie.core.discover import algorithm_config, algorithm_name
from reverie.core.errors import ConfigError, did_you_mean
from reverie.envs.base import EnvConfig
from reverie.experiment import ExperimentConfig
from reverie.folder import SCHEMA, read_yaml

CPU: dict[str, Any] = {
    "threads": 1,  # two are a quarter faster on an idle machine, but half as fast again beside one busy process
    "steps": 100_000,
    "replay_ratio": 0.4,
    "learning_starts": 512,
    "env.num": 4,
    "replay.capacity": 100_000,
    "algo.batch_size": 16,
    "algo.batch_length": 32,
    "algo.optim.lr": 6e-4,
    "algo.optim.warmup": 200,
}
"""What small problems on two CPU cores do well with."""

CARTPOLE: dict[str, Any] = CPU | {
    "env.id": "CartPole-v1",
    "steps": 8_000,
    "eval_episodes": 20,
    "eval_envs": 20,
    "schedule.eval_every": 400,
    "stop_score": 499.0,
}
"""What the demonstration is tuned to: minutes on two CPU cores, until it is solved."""


MODEL_FREE: dict[str, Any] = {
    "steps": 1_000_000,
    "replay_ratio": 1.0,
    "learning_starts": 10_000,
    "random_steps": 10_000,
    "env.id": "HalfCheetah-v5",
    "env.num": 1,
    "replay.capacity": 1_000_000,
}
"""What DDPG, TD3 and SAC have in common on MuJoCo: one update a step, a million steps, random actions at first."""

PENDULUM: dict[str, Any] = MODEL_FREE | {
    "steps": 15_000,
    "learning_starts": 1000,
    "random_steps": 1000,
    "threads": 1,
    "env.id": "Pendulum-v1",
    "replay.capacity": 100_000,
    "algo.actor_lr": 1e-3,
    "algo.critic_lr": 1e-3,
}
"""Pendulum-v1 on a CPU core: short episodes bear faster learning rates."""

VALUES: dict[str, Any] = {
    "steps": 500_000,
    "replay_ratio": 0.25,
    "learning_starts": 1000,
    "env.num": 1,
    "replay.capacity": 100_000,
}
"""What DQN and QR-DQN have in common on small problems: an update for every fourth step."""

CARTPOLE_VALUES: dict[str, Any] = VALUES | {
    "steps": 50_000,
    "replay_ratio": 0.5,
    "threads": 1,
    "env.id": "CartPole-v1",
    "replay.capacity": 50_000,
    "algo.batch_size": 64,
    "algo.batch_length": 4,
    "algo.value_estimator": "n_step(3)",
    "algo.lr": 1e-3,
    "algo.double": True,
    "algo.tau": 0.01,
    "algo.target_every": 1,
    "algo.networks.units": (128, 128),
    "algo.exploration": "epsilon_greedy(1.0, 0.05, 5000)",
}
"""CartPole-v1 on a CPU core: returns of three steps and a target that moves slowly keep it solved."""

MINATAR_VALUES: dict[str, Any] = VALUES | {
    "replay_ratio": 0.5,
    "learning_starts": 5000,
    "threads": 1,
    "env.id": "MinAtar/Breakout-v1",
    "env.num": 4,
    "algo.lr": 2.5e-4,
    "algo.networks.encoder": "minatar",
    "algo.networks.units": (128,),
    "algo.exploration": "epsilon_greedy(1.0, 0.01, 50000)",
}
"""MinAtar with its authors' network, replay and learning rate (github.com/kenjyoung/MinAtar, examples/dqn.py).

They make an update a step for five million steps and explore more; these are for a tenth of that on a CPU core.
"""

ATARI_VALUES: dict[str, Any] = {
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
"""Atari as in Mnih et al. 2015, extended data table 1, and its preprocessing."""


def dreamer_v3() -> ExperimentConfig:
    """DreamerV3 with its fixed hyper-parameters at 12 million parameters, for any environment; the amount is ours."""
    return _of("12m", {"steps": 1_000_000, "train_ratio": 512, "env.num": 1})


def cpu() -> ExperimentConfig:
    """DreamerV3 for small problems on a few CPU cores: a tiny model and a faster learning rate; values are ours."""
    return _of("nano", CPU)


def cartpole() -> ExperimentConfig:
    """The demonstration: CartPole-v1 solved in minutes on two CPU cores; values are ours."""
    return _of("nano", CARTPOLE)


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
    """DeepMind Control from its sensors, 1M steps, at 1 million parameters (configs.yaml: dmc_proprio)."""
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
    """MiniGrid from its 7x7 symbols; values are ours."""
    env = {"id": "MiniGrid-DoorKey-5x5-v0", "num": 4}
    return _of("1m", {"steps": 500_000, "train_ratio": 512, "env": env})


def minatar() -> ExperimentConfig:
    """MinAtar from its 10x10 planes; values are ours."""
    return _of("1m", {"steps": 2_000_000, "train_ratio": 128, "env.id": "MinAtar/Breakout-v1", "env.num": 8})


def ddpg() -> ExperimentConfig:
    """DDPG on MuJoCo and the like: 1M steps; the amount of random actions is ours."""
    return ExperimentConfig(algo=DDPGConfig()).merge(MODEL_FREE)


def td3() -> ExperimentConfig:
    """TD3 on MuJoCo and the like: 1M steps (section 6.1); the amount of random actions is ours."""
    return ExperimentConfig(algo=TD3Config()).merge(MODEL_FREE)


def sac() -> ExperimentConfig:
    """SAC on MuJoCo and the like: 1M steps; the amount of random actions is ours."""
    return ExperimentConfig(algo=SACConfig()).merge(MODEL_FREE)


def ddpg_pendulum() -> ExperimentConfig:
    """DDPG on Pendulum-v1: minutes on one CPU core; values are ours."""
    return ExperimentConfig(algo=DDPGConfig()).merge(PENDULUM)


def td3_pendulum() -> ExperimentConfig:
    """TD3 on Pendulum-v1: minutes on one CPU core; values are ours."""
    return ExperimentConfig(algo=TD3Config()).merge(PENDULUM)


def sac_pendulum() -> ExperimentConfig:
    """SAC on Pendulum-v1: minutes on one CPU core; values are ours."""
    return ExperimentConfig(algo=SACConfig()).merge(PENDULUM | {"algo.temperature_lr": 1e-3})


def dqn() -> ExperimentConfig:
    """DQN for small problems with a choice among classes; the amount of updates is the paper's."""
    return ExperimentConfig(algo=DQNConfig()).merge(VALUES)


def qr_dqn() -> ExperimentConfig:
    """QR-DQN for small problems with a choice among classes; the amount of updates is the paper's."""
    return ExperimentConfig(algo=QRDQNConfig()).merge(VALUES)


def dqn_cartpole() -> ExperimentConfig:
    """DQN on CartPole-v1: a minute on one CPU core; values are ours."""
    return ExperimentConfig(algo=DQNConfig()).merge(CARTPOLE_VALUES)


def qr_dqn_cartpole() -> ExperimentConfig:
    """QR-DQN on CartPole-v1: a minute on one CPU core; values are ours."""
    return ExperimentConfig(algo=QRDQNConfig()).merge(CARTPOLE_VALUES | {"algo.quantiles": 32})


def dqn_minatar() -> ExperimentConfig:
    """DQN on MinAtar, with its authors' network."""
    return ExperimentConfig(algo=DQNConfig()).merge(MINATAR_VALUES)


def qr_dqn_minatar() -> ExperimentConfig:
    """QR-DQN on MinAtar, with its authors' network."""
    return ExperimentConfig(algo=QRDQNConfig()).merge(MINATAR_VALUES)


def dqn_atari() -> ExperimentConfig:
    """DQN on Atari, 200M frames: 84x84 grey, four of them (Mnih et al. 2015, extended data table 1)."""
    return ExperimentConfig(algo=DQNConfig()).merge(
        ATARI_VALUES | {"algo.lr": 1e-4, "algo.exploration": "epsilon_greedy(1.0, 0.1, 1000000)"}
    )


def qr_dqn_atari() -> ExperimentConfig:
    """QR-DQN on Atari, 200M frames: 84x84 grey, four of them (Dabney et al. 2018, "Evaluation on Atari 2600")."""
    paper = {"algo.lr": 5e-5, "algo.adam_eps": 0.01 / 32, "algo.exploration": "epsilon_greedy(1.0, 0.01, 1000000)"}
    return ExperimentConfig(algo=QRDQNConfig()).merge(ATARI_VALUES | paper)


PRESETS: dict[str, Callable[[], ExperimentConfig]] = {
    "dreamer_v3": dreamer_v3,
    "cpu": cpu,
    "cartpole": cartpole,
    "atari": atari,
    "atari100k": atari100k,
    "dmc_proprio": dmc_proprio,
    "dmc_vision": dmc_vision,
    "crafter": crafter,
    "procgen": procgen,
    "minigrid": minigrid,
    "minatar": minatar,
    "ddpg": ddpg,
    "td3": td3,
    "sac": sac,
    "ddpg_pendulum": ddpg_pendulum,
    "td3_pendulum": td3_pendulum,
    "sac_pendulum": sac_pendulum,
    "dqn": dqn,
    "qr_dqn": qr_dqn,
    "dqn_cartpole": dqn_cartpole,
    "qr_dqn_cartpole": qr_dqn_cartpole,
    "dqn_minatar": dqn_minatar,
    "qr_dqn_minatar": qr_dqn_minatar,
    "dqn_atari": dqn_atari,
    "qr_dqn_atari": qr_dqn_atari,
}
"""Every preset by its name."""

SUITES: dict[str, str] = {
    "CartPole-": "cartpole",
    "ALE/": "atari",
    "dm_control/": "dmc_proprio",
    "Crafter": "crafter",
    "MiniGrid-": "minigrid",
    "BabyAI-": "minigrid",
    "MinAtar/": "minatar",
    "ddpg: Pendulum-": "ddpg_pendulum",
    "td3: Pendulum-": "td3_pendulum",
    "sac: Pendulum-": "sac_pendulum",
    "dqn: CartPole-": "dqn_cartpole",
    "qr_dqn: CartPole-": "qr_dqn_cartpole",
    "dqn: MinAtar/": "dqn_minatar",
    "qr_dqn: MinAtar/": "qr_dqn_minatar",
    "dqn: ALE/": "dqn_atari",
    "qr_dqn: ALE/": "qr_dqn_atari",
}
"""Which preset an environment gets by the beginning of its id, unless another one is asked for; ``algorithm: `` before
it is for that algorithm alone."""


def _of(size: str, values: Mapping[str, Any]) -> ExperimentConfig:
    return ExperimentConfig(algo=sized(size, DreamerV3Config())).merge(values)


def preset_name(algorithm: str, env: str) -> str | None:
    """The preset for an algorithm on an environment; None if the algorithm has none of its own."""
    bare = env.rpartition(":")[2]
    wanted = (f"{algorithm}: {bare}", bare)  # what is for this algorithm alone comes before what is for all
    name = next((name for x in wanted for start, name in SUITES.items() if x.startswith(start)), algorithm)
    for candidate in (name, algorithm):
        if candidate in PRESETS and algorithm_name(type(PRESETS[candidate]().algo)) == algorithm:
            return candidate
    return None


def base(algorithm: str, env: str | None = None, preset: str | None = None) -> ExperimentConfig:
    """The lowest layer of settings: a preset, which the environment chooses unless it is named.

    Raises:
        ConfigError: the algorithm or the preset is unknown, or the preset is another algorithm's.
    """
    config_class = algorithm_config(algorithm)
    algorithm = algorithm_name(config_class)
    name = preset_name(algorithm, env or EnvConfig().id) if preset is None else preset.replace("-", "_")
    if name is None:
        algo = config_class()
        assert isinstance(algo, AlgorithmConfig)
        return ExperimentConfig(algo=algo)
    if name not in PRESETS:
        raise ConfigError(f"unknown preset '{preset}'.{did_you_mean(name, PRESETS)} There are: {', '.join(PRESETS)}.")
    config = PRESETS[name]()
    if not isinstance(config.algo, config_class):
        raise ConfigError(f"preset '{name}' is for {algorithm_name(type(config.algo))}, not for {algorithm}.")
    return config


def layered(
    algorithm: str,
    *,
    env: str | None = None,
    preset: str | None = None,
    size: str | None = None,
    files: Sequence[Path | str] = (),
) -> ExperimentConfig:
    """The preset, then the YAML files in their order, then the size and the environment's id.

    Raises:
        ConfigError: a name or key is unknown, or a value does not fit.
    """
    settings = [(Path(file), _settings(Path(file), algorithm)) for file in files]
    named = [name for _, values in settings if (name := _env_id(values)) is not None]
    config = base(algorithm, env or (named[-1] if named else None), preset)
    for path, values in settings:
        try:
            config = overlay(config, values)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    if size is not None:
        config = resized(config, size)
    return config if env is None else config.merge({"env": {"id": env}})


def overlay(config: ExperimentConfig, values: Mapping[str, Any]) -> ExperimentConfig:
    """``config`` with ``values`` on top. Of the two ways to say the replay ratio, the later layer's holds.

    Raises:
        ConfigError: a key is unknown or a value does not fit.
    """
    ratios = {key for key in ("replay_ratio", "train_ratio") if values.get(key) is not None}
    if ratios:
        config = config.merge({"replay_ratio": None, "train_ratio": None})
    return config.merge(values)


def resized(config: ExperimentConfig, size: str) -> ExperimentConfig:
    """``config`` with the widths of a named size of its algorithm.

    Raises:
        ConfigError: the algorithm has no sizes, or none of that name.
    """
    module = importlib.import_module(type(config.algo).__module__)
    if not hasattr(module, "sized"):
        raise ConfigError(f"size = '{size}': {algorithm_name(type(config.algo))} has no named sizes.")
    return config.merge({"algo": module.sized(size, config.algo)})


def _settings(path: Path, algorithm: str) -> dict[str, Any]:
    """The settings in a YAML file, which may be the config.yaml of a run or a piece of one.

    ``env: CartPole-v1`` is short for ``env: {id: CartPole-v1}``.

    Raises:
        ConfigError: it is not readable, or of a run of another algorithm or a newer version.
    """
    values = read_yaml(path)
    if "experiment" in values:
        values = _of_a_run(path, values, algorithm)
    env = values.get("env")
    return {**values, "env": {"id": env}} if isinstance(env, str) else values


def _of_a_run(path: Path, values: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """What stands below ``experiment:`` in a config.yaml, whose head may be missing."""
    beside = sorted(values.keys() - {"schema", "reverie", "algorithm", "custom", "experiment"})
    inner = values["experiment"]
    if beside or not isinstance(inner, Mapping):
        raise ConfigError(
            f"{path}: expected all options below 'experiment:', as in a run's config.yaml, or none; "
            f"found {', '.join(map(repr, beside)) or repr(inner)}."
        )
    schema, wanted = values.get("schema", SCHEMA), algorithm.replace("-", "_")
    if schema > SCHEMA or values.get("algorithm", wanted) != wanted:
        found = f"{values.get('algorithm', wanted)}, schema {schema}"
        raise ConfigError(f"{path} is of {found}: expected {algorithm}, at most {SCHEMA}.")
    return dict(inner)


def _env_id(values: Mapping[str, Any]) -> str | None:
    """The environment that a file names, in either way to write it."""
    env = values.get("env")
    return str(env["id"]) if isinstance(env, Mapping) and "id" in env else values.get("env.id")
