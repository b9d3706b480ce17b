"""Suites that come as extras: their ids, how they are registered with Gymnasium, and hints on how to install them."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import gymnasium

from reverie.core.errors import EnvError, did_you_mean
from reverie.envs import dmc


class Suite(NamedTuple):
    """Environments of one package, recognised by the ``prefixes`` of their ids."""

    prefixes: tuple[str, ...]
    package: str
    extra: str
    register: Callable[[], None]


def _atari() -> None:
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner from each emulator
    gymnasium.register_envs(ale_py)


def _dm_control() -> None:
    dmc.choose_renderer()
    import shimmy

    dmc.forget_removed_fields()
    gymnasium.register_envs(shimmy)


def _minigrid() -> None:
    import minigrid

    gymnasium.register_envs(minigrid)


def _minatar() -> None:
    import minatar.gym

    if "MinAtar/Breakout-v1" not in gymnasium.registry:
        minatar.gym.register_envs()


def _ours(module: str) -> None:
    importlib.import_module(f"reverie.envs.{module}").register()


SUITES = (
    Suite(("ALE/",), "ale_py", "atari", _atari),
    Suite(("dm_control/",), "dm_control", "dmc", _dm_control),
    Suite(("MiniGrid-", "BabyAI-"), "minigrid", "minigrid", _minigrid),
    Suite(("MinAtar/",), "minatar", "minatar", _minatar),
    Suite(("Crafter",), "crafter", "crafter", functools.partial(_ours, "crafter")),
    Suite(("reverie/",), "reverie", "", functools.partial(_ours, "dummy")),
)


def load_suite(env_id: str) -> None:
    """Register the suite that ``env_id`` belongs to, if any."""
    for suite in SUITES:
        if env_id.startswith(suite.prefixes):
            try:
                suite.register()
            except ImportError as error:
                raise EnvError(
                    f"environment '{env_id}' needs the package '{suite.package}' ({error}). Install it with: "
                    f"{_pip(suite)}"
                ) from error


def check_id(env_id: str) -> None:
    """Check that ``env_id``, without a module, is registered; its newest version if it names none. Makes nothing."""
    load_suite(env_id)
    if env_id not in gymnasium.registry and not any(known.startswith(f"{env_id}-v") for known in gymnasium.registry):
        raise unknown(env_id)


def unknown(env_id: str) -> EnvError:
    """Return the error for an unknown id: names the nearest ids and the suites that are not installed.

    Suites, some of which take a second to import, are imported until one has an id that is spelt almost so.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        near = did_you_mean(name, gymnasium.registry)
        call = f"gymnasium.register('{name}', entry_point=...)"
        return EnvError(f"unknown environment '{env_id}': importing '{module}' does not register it: {call}.{near}")
    for suite in sorted(SUITES, key=lambda suite: -difflib.SequenceMatcher(None, suite.prefixes[0], name).ratio()):
        if difflib.get_close_matches(name, gymnasium.registry, n=1, cutoff=0.8):
            break
        with contextlib.suppress(Exception):
            suite.register()
    missing = [_pip(suite) for suite in SUITES if find_spec(suite.package) is None]
    extras = f" More environments come with {', '.join(missing)}." if missing else ""
    rule = " For an environment of your own, use 'module:Id', where importing the module registers Id."
    if env_id.endswith(".py") and Path(env_id).is_file():
        rule = f" {env_id} is a file: use '{Path(env_id).stem}:Id' in its folder, where it registers Id."
    return EnvError(f"unknown environment '{env_id}'.{did_you_mean(name, gymnasium.registry)}{extras}{rule}")


def _pip(suite: Suite) -> str:
    return f'pip install "reverie-rl[{suite.extra}]"'
