"""Reinforcement learning from experience: lived, recorded or imagined."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from reverie.core.discover import version
from reverie.core.waiting import spin_briefly

if TYPE_CHECKING:
    from reverie.agent.agent import Agent, load
    from reverie.agent.dreaming import dream
    from reverie.agent.estimation import estimate
    from reverie.algos.dreamer_v3 import DreamerV3Config
    from reverie.api import train, train_seeds
    from reverie.envs.base import EnvConfig
    from reverie.experiment import ExperimentConfig
    from reverie.training.judging import Result
    from reverie.training.seeds import SeedsResult

if "torch" not in sys.modules:
    spin_briefly()  # no effect once torch is imported

_HOMES = {
    "Agent": "reverie.agent.agent",
    "load": "reverie.agent.agent",
    "DreamerV3Config": "reverie.algos.dreamer_v3",
    "train": "reverie.api",
    "dream": "reverie.agent.dreaming",
    "estimate": "reverie.agent.estimation",
    "EnvConfig": "reverie.envs.base",
    "ExperimentConfig": "reverie.experiment",
    "Result": "reverie.training.judging",
    "SeedsResult": "reverie.training.seeds",
    "train_seeds": "reverie.api",
}
"""Module of each public name. Names are imported on first use, so that ``import reverie`` is quick."""

__all__ = [
    "Agent",
    "DreamerV3Config",
    "EnvConfig",
    "ExperimentConfig",
    "Result",
    "SeedsResult",
    "dream",
    "estimate",
    "load",
    "train",
    "train_seeds",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version()
    if name not in _HOMES:
        raise AttributeError(f"module 'reverie' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
