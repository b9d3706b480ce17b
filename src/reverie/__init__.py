"""Reinforcement learning from experience: collected, recorded or imagined.

Train an agent, evaluate it, and let it act::

    import gymnasium, reverie

    result = reverie.train("ppo", env="CartPole-v1", steps=50_000, run="runs/first")  # or "dreamer_v3", "sac", ...
    print(result.evaluation.score)
    agent = result.agent  # later: reverie.load("runs/first")

    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset()
    action, state = agent.predict(obs)  # pass the state to the next call
    obs, reward, terminated, truncated, _ = env.step(action)

:func:`check_env` checks a custom environment. On the command line: ``reverie --help``.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import lazy_loader

import reverie.core.early_interrupt  # noqa: F401 - before imports that take time
from reverie.core.imports import on_import
from reverie.core.openmp import limit_openmp_spinning
from reverie.core.version import version

if "torch" not in sys.modules:
    limit_openmp_spinning()  # no effect once torch is imported

_import_public, _, __all__ = lazy_loader.attach_stub(__name__, __file__)  # the names in __init__.pyi


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version()
    try:
        globals()[name] = value = _import_public(name)
    except AttributeError:
        if name in __all__ or name.startswith("_"):
            raise
        raise AttributeError(_describe_missing(name)) from None
    return value


def _describe_missing(name: str) -> str:
    from reverie.algos.table import algorithms
    from reverie.core import foreign_names

    groups = {entry.name: entry.group for entry in algorithms().values()}
    line = foreign_names.find_line(foreign_names.PACKAGE_NAMES, name) or foreign_names.train_line(name, groups)
    return foreign_names.describe_missing("module 'reverie'", name, line, __all__)


def __dir__() -> list[str]:
    dunders = [name for name in globals() if name.startswith("__")]
    return sorted({*__all__, *dunders, "__version__"})


def _register() -> None:
    """Make reverie's environments, and dreams, environments of Gymnasium: ``make("reverie/Dream-v0", run=RUN)``."""
    import gymnasium

    from reverie.envs.registration import register_own_envs

    register_own_envs()
    gymnasium.register(
        "reverie/Dream-v0",
        entry_point="reverie.agent.dream_env:DreamEnv",
        vector_entry_point="reverie.agent.dream_env:DreamVectorEnv",
    )


importlib.import_module("reverie.core.logger")  # from now on programs may change the logger
on_import("gymnasium", _register)
