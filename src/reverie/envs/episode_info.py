"""Values in an environment's info, such as success or cost, summarized over each episode for the logs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from reverie.core.errors import ConfigError, DataError, did_you_mean, short_repr
from reverie.core.specs import SUCCESS_RATE
from reverie.envs.wrappers import checked_step

STATISTICS = ("std", "median", "iqm", "iqm_low", "iqm_high")
"""Statistics of the scores besides their mean, logged as ``score_<statistic>``."""
SUCCESS_KEYS = ("is_success", "success")
"""Keys of the info with the success of an episode, in its last step."""
TASK = "task_id"
"""Key of the info, and option of ``reset``, with the task: success is also logged as ``success_rate/task1``."""
RESERVED = frozenset({
    "score", "length", "episodes", "final", "cut_off", "video", SUCCESS_RATE, *(f"score_{name}" for name in STATISTICS)
})  # fmt: skip
"""Names that are already used under ``episode/`` or ``eval/``."""
SUMMARIES = ("last", "sum", "mean", "max", "min")
"""Summaries of the values in an episode's steps."""
Summary = dict[str, float]


def _update_summary(old: Summary, x: float) -> Summary:
    """Return the ``SUMMARIES`` and the ``count`` of the values so far (none: ``{}``) and ``x``."""
    count, total = old.get("count", 0) + 1, old.get("sum", 0.0) + x
    low, high = min(old.get("min", x), x), max(old.get("max", x), x)
    return {"count": count, "last": x, "sum": total, "mean": total / count, "max": high, "min": low}


def parse_log_info(entries: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Parse the entries ``KEY`` and ``KEY:HOW`` of ``env.log_info``: return key and summary by logged name.

    The key ``a/b`` can also mean ``info["a"]["b"]``.
    """
    keys_by_name: dict[str, tuple[str, str]] = {}
    for entry in entries:
        key, colon, how = entry.rpartition(":") if ":" in entry else (entry, "", "last")
        if not key or how not in SUMMARIES:
            near = did_you_mean(how, SUMMARIES) if key else ""
            raise ConfigError(
                f"env.log_info = {entry!r}: expected KEY, or KEY:HOW with one of {', '.join(SUMMARIES)}.{near}"
            )
        name = f"{key}_{how}" if colon else key
        if name in RESERVED:
            instead = f"Use '{key}:last', which is logged as {key}_last"
            raise ConfigError(f"env.log_info = {entry!r}: the logs use {name} for something else. {instead}.")
        keys_by_name[name] = key, how
    return keys_by_name


class EpisodeInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Summarizes values of the info over each episode. The info of ``reset`` does not count."""

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]  # as of Gymnasium's own wrappers
        """The spec of the environment alone: this wrapper does not change how it behaves."""
        return self.env.spec

    def __init__(self, env: gymnasium.Env[Any, Any], entries: Iterable[str]) -> None:
        super().__init__(env)
        self._entries = parse_log_info(entries)
        self._ever: set[str] = set()  # keys present in some episode
        self.begin_summary()

    def begin_summary(self) -> None:
        """Forget the values so far: an episode begins, perhaps without a reset of the environment."""
        self._numbers: dict[str, Summary] = {}  # by key; without keys missing in this episode
        self._other_keys: set[str] = set()  # other keys of the info, for messages

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs_and_info = self.env.reset(seed=seed, options=options)
        self.begin_summary()
        return obs_and_info

    def step(self, action: object) -> Any:
        result = checked_step(self.env, action)
        if not isinstance(info := result[4], Mapping):
            raise DataError(
                f"env.log_info: the info of step() is {short_repr(info)}: expected a dictionary. Return {{}}"
            )
        for key in dict.fromkeys(key for key, _ in self._entries.values()):
            number = _to_number(read_info(info, key))
            if number is None:
                self._other_keys.update(map(str, info))
            elif math.isfinite(number):
                self._numbers[key] = _update_summary(self._numbers.get(key, {}), number)
        return result

    def summary(self) -> tuple[Summary, str]:
        """Return the summaries of the episode by logged name, without missing keys.

        And an error message if no episode of this environment so far had some key, else "".
        """
        self._ever.update(self._numbers)
        numbers, entries = self._numbers, self._entries.items()
        summaries = {name: numbers[key][how] for name, (key, how) in entries if key in numbers}
        missing = next((key for key, _ in self._entries.values() if key not in self._ever), None)
        return summaries, "" if missing is None else self._missing(missing)

    def _missing(self, key: str) -> str:
        keys = sorted(self._other_keys)
        has = f"It has: {', '.join(keys[:20])}." if keys else "The info is empty, or the value is not finite."
        problem = f"env.log_info: the info had no finite number '{key}' in any step of the first episode."
        return f"{problem}{did_you_mean(key, keys)} {has}"


def read_info(info: Mapping[str, Any], key: str) -> Any:
    """Return ``info[key]``, or ``info["a"]["b"]`` for ``a/b``; None if it is missing."""
    first, slash, rest = key.partition("/")
    inner = info.get(first)
    return read_info(inner, rest) if slash and key not in info and isinstance(inner, Mapping) else info.get(key)


def success_summary(info: object) -> Summary:
    """Return the success in the ``info`` of an episode's last step, by its logged names; {} if it reports none."""
    if not isinstance(info, Mapping):
        return {}
    values = [_to_number(info.get(key)) for key in SUCCESS_KEYS]
    names = [SUCCESS_RATE, f"{SUCCESS_RATE}/task{info[TASK]}"] if TASK in info else [SUCCESS_RATE]
    return next((dict.fromkeys(names, value) for value in values if value is not None), {})


def _to_number(value: object) -> float | None:
    """Return a number, a bool, or an array of one element as a float; None for other values."""
    if isinstance(value, float | int):
        return float(value)
    array = np.asarray(value)
    return float(array.reshape(())) if array.size == 1 and array.dtype.kind in "biuf" else None
