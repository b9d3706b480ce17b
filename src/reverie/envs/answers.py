"""What the ``reset`` and ``step`` of environments answer, in a form that can be relied on."""

from __future__ import annotations

import re
import traceback
from typing import Any, NoReturn

import gymnasium
import numpy as np

from reverie.core.checks import LARGEST
from reverie.core.errors import DataError, brief

Reset = tuple[Any, dict[str, Any]]
Stepped = tuple[Any, float, bool, bool, dict[str, Any]]
Env = gymnasium.Env[Any, Any]

OF_RESET = ("observation", "info")
OF_STEP = ("observation", "reward", "terminated", "truncated", "info")


def begun(env: Env, seed: int | None, options: dict[str, Any] | None) -> Reset:
    """Return what ``env.reset`` returns: the observation and the info.

    Raises:
        DataError: ``reset`` does not accept ``seed`` or ``options``, or returns something else.
    """
    try:
        found = env.reset(seed=seed, options=options)
    except TypeError as error:
        if "reset() got an unexpected keyword argument" not in str(error):
            raise
        remedy = "Define reset(self, *, seed=None, options=None) and call super().reset(seed=seed) in it"
        raise DataError(f"{error}. {remedy}") from error
    except ValueError as error:
        _raise(error, "reset", OF_RESET)
    obs, info = _all("reset", found, OF_RESET)
    return obs, info


def stepped(env: Env, action: Any) -> Stepped:
    """Return what ``env.step`` returns for ``action``, with the reward as a float and the ends as bools.

    Raises:
        DataError: it returns something else.
    """
    try:
        found = env.step(action)
    except ValueError as error:
        _raise(error, "step", OF_STEP)
    obs, reward, terminated, truncated, info = _all("step", found, OF_STEP)
    return obs, number(reward), flag("terminated", terminated), flag("truncated", truncated), info


def _all(method: str, found: Any, names: tuple[str, ...]) -> Any:
    """Return ``found`` if it has as many values as ``names``.

    Raises:
        DataError: it has not, as in environments made for old Gym.
    """
    if isinstance(found, tuple | list) and len(found) == len(names):
        return found
    what = f"{len(found)} values" if isinstance(found, tuple | list) else f"one value of type {type(found).__name__}"
    raise _unexpected(method, what, names)


def _raise(error: ValueError, method: str, names: tuple[str, ...]) -> NoReturn:
    """Raise ``error`` of a method, or the error of ``_all`` if a wrapper of Gymnasium could not unpack its values."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    failed = re.fullmatch(rf"(?:not enough|too many) values to unpack \(expected {len(names)}(.*)\)", str(error))
    if failed is None or not str(frame.f_globals.get("__name__")).startswith("gymnasium."):
        raise error
    got = re.search(r"\d+", failed[1])
    raise _unexpected(method, f"{got[0]} values" if got else "too many values", names) from error


def _unexpected(method: str, what: str, names: tuple[str, ...]) -> DataError:
    return DataError(
        f"{method}() returned {what}: expected {len(names)} values ({', '.join(names)}). Wrap environments of the "
        "old Gym API with shimmy.GymV26CompatibilityV0(env=...) or shimmy.GymV21CompatibilityV0(env=...)"
    )


def number(reward: Any) -> float:
    """Return the ``reward`` of an environment as a float.

    Raises:
        DataError: it is not a single number that float32 holds.
    """
    if not isinstance(reward, float | int):
        array = np.asarray(reward)
        if array.size != 1 or array.dtype.kind not in "biuf":
            raise DataError(f"the reward is {reward!r}: expected a number")
        reward = array.reshape(())
    found = float(reward)
    if not -LARGEST <= found <= LARGEST:
        raise DataError(f"the reward is {found}: expected a finite float32 number")
    return found


def flag(name: str, value: Any) -> bool:
    """Return what an environment gave as ``terminated`` or ``truncated``, whichever is the ``name``, as a bool.

    Raises:
        DataError: it is not a single bool or number.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    found = np.asarray(value)
    if found.size != 1 or found.dtype.kind not in "biuf":
        raise DataError(f"{name} is {brief(value)}: expected a bool, whether the episode ends with this step")
    return bool(found.reshape(()))
