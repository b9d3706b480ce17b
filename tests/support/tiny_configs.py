"""Settings so small that a run takes a second."""

from __future__ import annotations

from typing import Any

from reverie.experiment.config import ExperimentConfig

NETWORKS: dict[str, Any] = {
    "rssm": {"deter": 32, "hidden": 16, "classes": 4, "stoch": 4, "blocks": 4},
    "encoder": {"depth": 2, "units": 16, "layers": 1},
    "decoder": {"depth": 2, "units": 16, "layers": 1, "blocks": 4},
    "reward": {"units": 16},
    "cont": {"units": 16},
    "actor": {"units": 16, "layers": 1},
    "critic": {"units": 16, "layers": 1},
}

SETTINGS: dict[str, Any] = {
    "steps": 120,
    "learning_starts": 20,
    "replay_ratio": 0.1,
    "eval_episodes": 2,
    "tensorboard": False,
    "console": False,
    "algo": {"batch_size": 2, "batch_length": 8, "horizon": 3, **NETWORKS},
    "env": {"num": 2, "vectorization": "sync"},
    "replay": {"capacity": 1000},
}

SMALL: dict[str, Any] = {**SETTINGS, "steps": 60, "learning_starts": 5}

FEW: dict[str, Any] = {"steps": 10, "replay_ratio": 0, "random_steps": 5, "eval_episodes": 2, "console": False,
                       "tensorboard": False}  # fmt: skip
"""Of a run that does not learn."""

CONFIG = ExperimentConfig().merge(SETTINGS)


def settings(**more: Any) -> ExperimentConfig:
    return CONFIG.merge({key.replace("__", "."): value for key, value in more.items()})
