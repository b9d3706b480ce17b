"""All presets, as data: nothing here imports PyTorch, so that ``reverie list`` is fast."""

from __future__ import annotations

from reverie.core.discover import algorithms
from reverie.core.errors import ConfigError
from reverie.experiment import model_based_presets, model_free_presets, offline_presets

TABLE = model_based_presets.TABLE | model_free_presets.TABLE | offline_presets.TABLE
"""All presets by name."""
CPU_SUFFIX = "+cpu"
"""Suffix of the name of a preset with its CPU changes: minigrid+cpu."""


def check_not_preset(algorithm: str) -> None:
    """Raise ConfigError if there is no such ``algorithm``, but a preset of this name."""
    name = algorithm.replace("-", "_")
    if name in TABLE and name not in algorithms():
        raise ConfigError(f"unknown algorithm '{algorithm}': it is a preset. {preset_advice(name)}")


def preset_advice(name: str) -> str:
    """Return how to use the preset ``name`` in both interfaces."""
    algorithm = TABLE[name.removesuffix(CPU_SUFFIX)].algorithm
    return f"Use `reverie train {algorithm} --preset {name}`, in Python reverie.train('{algorithm}', preset='{name}')."
