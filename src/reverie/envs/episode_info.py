"""Numbers in an environment's info, such as a success or a cost, summarised over each episode for the logs.

This file must not import torch: workers import it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from reverie.core.errors import ConfigError, brief, did_you_mean

STATISTICS = ("std", "median", "iqm", "iqm_low", "iqm_high")
"""Statistics of the scores besides their mean, which the logs have as ``score_<statistic>``."""

RESERVED = frozenset({"score", "length", "episodes", "final", *(f"score_{name}" for name in STATISTICS)})
"""Names that the logs have under ``episode/`` or ``eval/`` already."""

Summary = dict[str, float]


class Wanted(NamedTuple):
    """A number to be logged of each episode."""

    key: str
    """Key in the info; ``a/b`` may also mean ``info["a"]["b"]``."""
    how: str
    """Summary over the steps of an episode, one of ``HOW``."""
    name: str
    """Name in the logs, after ``episode/`` or ``eval/``."""


class Logged(NamedTuple):
    """What an episode had of the numbers to be logged."""

    numbers: Summary = {}  # noqa: RUF012 - never changed
    """The summaries by name, without those of keys that it did not have."""
    missing: str = ""
    """An error text if no episode of this environment so far had some key; otherwise empty."""
    wrong: str = ""
    """An error text if a value was no number; otherwise empty."""


class Numbers:
    """Summaries of the finite numbers that one key had in the steps of an episode."""

    def __init__(self) -> None:
        self.count, self.sum, self.last, self.max, self.min = 0, 0.0, 0.0, -math.inf, math.inf

    def add(self, value: float) -> None:
        """Add the number of one step."""
        self.count, self.sum, self.last = self.count + 1, self.sum + value, value
        self.max, self.min = max(self.max, value), min(self.min, value)

    @property
    def mean(self) -> float:
        """Mean over the steps that had one."""
        return self.sum / self.count


HOW = ("last", "sum", "mean", "max", "min")
"""Summaries, attributes of ``Numbers``."""


def wanted(entries: Iterable[str]) -> tuple[Wanted, ...]:
    """Return what the entries ``KEY`` and ``KEY:HOW`` of ``env.log_info`` ask for.

    Raises:
        ConfigError: an entry has no key or another summary, its name is taken, or it is there twice.
    """
    found: list[Wanted] = []
    for entry in entries:
        key, colon, how = entry.rpartition(":") if ":" in entry else (entry, "", "last")
        if not key or how not in HOW:
            raise ConfigError(
                f"env.log_info = {entry!r}: expected KEY, or KEY:HOW with one of {', '.join(HOW)}."
                f"{did_you_mean(how, HOW) if key else ''}"
            )
        name = f"{key}_{how}" if colon else key
        if name in RESERVED:
            raise ConfigError(
                f"env.log_info = {entry!r}: the logs use {name} for something else. Use '{key}:last', which is logged "
                f"as {key}_last."
            )
        if any(one.name == name for one in found):
            raise ConfigError(f"env.log_info has {entry!r} twice.")
        found.append(Wanted(key, how, name))
    return tuple(found)


class EpisodeInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Summarises numbers of the info over each episode. The info of ``reset`` does not count."""

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]  # as of Gymnasium's own wrappers
        """The spec of the environment alone: this wrapper does not change how it behaves."""
        return self.env.spec

    def __init__(self, env: gymnasium.Env[Any, Any], entries: Iterable[str]) -> None:
        super().__init__(env)
        self._wanted = wanted(entries)
        self._ever: set[str] = set()  # keys that some episode had
        self._begin()

    def _begin(self) -> None:
        self._numbers = {one.key: Numbers() for one in self._wanted}
        self._others: set[str] = set()  # what else the info had, for messages
        self._wrong = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        found = self.env.reset(seed=seed, options=options)
        self._begin()
        return found

    def step(self, action: Any) -> Any:
        """Take ``action``; whether the answer has the right form is checked by ``FlatEnv``."""
        found = self.env.step(action)
        if isinstance(found, tuple | list) and len(found) == 5 and isinstance(found[4], Mapping):
            self._add(found[4])
        return found

    def _add(self, info: Mapping[str, Any]) -> None:
        for key, numbers in self._numbers.items():
            value = _value(info, key)
            if value is None:
                self._others.update(map(str, info))
            elif (number := _number(value)) is None:
                self._wrong = self._wrong or (
                    f"info['{key}'] is {brief(value)} ({type(value).__name__}): env.log_info needs a number or a bool."
                )
            elif math.isfinite(number):
                numbers.add(number)

    def summary(self) -> Logged:
        """Return what the episode had."""
        self._ever.update(key for key, numbers in self._numbers.items() if numbers.count)
        had = [one for one in self._wanted if self._numbers[one.key].count]
        found = {one.name: float(getattr(self._numbers[one.key], one.how)) for one in had}
        return Logged(found, self._missing(), self._wrong)

    def _missing(self) -> str:
        missing = [key for key in self._numbers if key not in self._ever]
        if not missing:
            return ""
        others = sorted(self._others)
        has = f"It has: {', '.join(others[:20])}." if others else "It is empty, or that is not finite."
        return (
            f"env.log_info: the info had no finite number '{missing[0]}' in any step of the first episode."
            f"{did_you_mean(missing[0], others)} {has}"
        )


def summary_of(env: gymnasium.Env[Any, Any]) -> Logged:
    """Return the summary of the ``EpisodeInfo`` in ``env``; empty if it has none."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, EpisodeInfo):
            return env.summary()
        env = env.env
    return Logged()


def _value(info: Mapping[str, Any], key: str) -> Any:
    """Return ``info[key]``, or ``info["a"]["b"]`` for ``a/b``; None if it is not there."""
    if key in info or "/" not in key:
        return info.get(key)
    inner: Any = info
    for part in key.split("/"):
        inner = inner.get(part) if isinstance(inner, Mapping) else None
    return inner


def _number(value: Any) -> float | None:
    """Return a number, a bool, or an array of one as a float; None if ``value`` is none of these."""
    if isinstance(value, float | int):
        return float(value)
    try:
        found = np.asarray(value)
    except Exception:  # of any kind: a user's object converts itself
        return None
    return float(found.reshape(())) if found.size == 1 and found.dtype.kind in "biuf" else None
