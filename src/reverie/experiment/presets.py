"""All presets, as data: nothing here imports PyTorch, so that ``reverie list`` is fast."""

from __future__ import annotations

import re

from reverie.algos.table import algorithms
from reverie.core.errors import ConfigError
from reverie.envs.env_id import expand_env_id
from reverie.experiment import model_based_presets, model_free_presets, offline_presets
from reverie.experiment.preset import Settings

TABLE = model_based_presets.TABLE | model_free_presets.TABLE | offline_presets.TABLE
"""All presets by name."""
SUITES = {
    f"{preset.algorithm}: {start}": name for name, preset in TABLE.items() for start in preset.env_prefixes.split()
}
"""Default preset by ``algorithm: prefix`` of environment ids."""
_BY_SIZE: Settings = {"algo.networks.encoder": "by_size"}
CPU_ENCODERS: dict[str, Settings] = {
    "ddpg": _BY_SIZE, "td3": _BY_SIZE, "sac": _BY_SIZE, "tqc": _BY_SIZE, "crossq": _BY_SIZE, "simba_v2": _BY_SIZE,
    "xqc": _BY_SIZE, "bc": _BY_SIZE, "td3_bc": _BY_SIZE, "rebrac": _BY_SIZE, "decision_transformer": _BY_SIZE,
    "fql": _BY_SIZE, "cql": _BY_SIZE, "iql": _BY_SIZE, "crr": _BY_SIZE, "gcbc": _BY_SIZE, "gcivl": _BY_SIZE,
    "hiql": _BY_SIZE, "gciql": _BY_SIZE, "crl": _BY_SIZE, "qrl": _BY_SIZE,
    "bcq": _BY_SIZE | {"algo.vae.encoder": "by_size"}, "gail": _BY_SIZE | {"algo.discriminator.encoder": "by_size"},
}  # fmt: skip
"""Changes of the presets for any environment with continuous actions: DrQ's convolutions take five times as long."""
ON_CPU = {
    name: CPU_ENCODERS.get(name, {}) | preset.cpu_changes
    for name, preset in TABLE.items() if preset.cpu_changes is not None
}  # fmt: skip
"""Changes of presets for machines without a GPU."""
CPU_SUFFIX = "+cpu"
"""Suffix of the name of a preset with its CPU changes: minigrid+cpu."""


POLICIES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy", "MlpLstmPolicy")
"""Names of policies in Stable-Baselines3, which come where the environment comes here."""


def check_algorithm_name(algorithm: str, env: str | None = None) -> None:
    """Raise ConfigError if there is no such ``algorithm``, but a preset or an environment of this name."""
    name = algorithm.replace("-", "_")
    if name in TABLE and name not in algorithms():
        raise ConfigError(f"unknown algorithm '{algorithm}': it is a preset. {preset_advice(name)}")
    if re.search(r"-v\d+$", algorithm) and name not in algorithms():
        other = env if env is not None and env.replace("-", "_") in algorithms() else "ppo"
        raise ConfigError(f"unknown algorithm '{algorithm}': it is an environment. {_both_lines(other, algorithm)}")
    if env in POLICIES:
        raise ConfigError(
            f"there is no {env} to choose: networks follow from the environment. {_both_lines(algorithm)}"
        )


def _both_lines(algorithm: str, env: str = "CartPole-v1") -> str:
    return f"Write reverie.train('{algorithm}', env='{env}'), or `reverie train {algorithm} --env {env}`."


def preset_advice(name: str) -> str:
    """Return how to use the preset ``name`` in both interfaces."""
    algorithm = TABLE[name.removesuffix(CPU_SUFFIX)].algorithm
    return f"Use `reverie train {algorithm} --preset {name}`, in Python reverie.train('{algorithm}', preset='{name}')."


def preset_name(algorithm: str, env: str) -> str | None:
    """Return the preset's name for an algorithm on an environment; None if the algorithm has no preset."""
    env_id = expand_env_id(env).rpartition(":")[2]
    key = f"{algorithm}: {env_id}-"  # "CartPole", which Gymnasium accepts, also has the prefix
    default = algorithm if algorithm in TABLE else None
    return next((name for start, name in SUITES.items() if key.startswith(start)), default)
