"""Validation of recorded episodes: rules that every episode must satisfy, and a report.

Rules check the values as they were recorded, before any conversion. Assumptions that readers had to make are reported
as well. An episode that breaks a rule is bad, and can be left out (``--quarantine``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from reverie.core.spaces import columns_in, nested
from reverie.core.types import FLAGS
from reverie.core.words import plural
from reverie.datasets.reader import SEED, About, Rows
from reverie.datasets.spaces import first_of

BLANK = 10
"""Length of a run of rows with only zeros from which they are taken for rows that were never written."""
HUGE = 1e30
"""Absolute value above which a number is taken for uninitialised memory."""

ROUNDING = 1e-5
"""How far rounding alone may put a float outside a bound, relative to it or to the distance of both, if larger."""


@dataclass
class Finding:
    """The rows and episodes that break one rule."""

    rule: str
    episodes: int = 0
    rows: int = 0
    first: str = ""
    """Place of the first such row, as text."""

    def __str__(self) -> str:
        return f"{self.rule}: {plural(self.rows, 'row')} in {plural(self.episodes, 'episode')}, first {self.first}"


@dataclass
class DataReport:
    """The result of a validation."""

    episodes: int = 0
    rows: int = 0
    stepless: int = 0
    """Number of episodes of a single row, which have no step."""
    rewards: tuple[float, float] = (np.inf, -np.inf)
    """Smallest and largest reward."""
    terminal: int = 0
    """Number of episodes that end in a terminal state."""
    findings: dict[str, Finding] = field(default_factory=dict)
    bad: list[int] = field(default_factory=list)
    """Indices of the episodes that break a rule, ascending."""
    remarks: list[str] = field(default_factory=list)
    """Assumptions, and what could not be checked. They make no episode bad."""

    @property
    def sound(self) -> bool:
        """Whether no rule is broken."""
        return not self.findings

    def disordered(self, episodes: np.ndarray) -> None:
        """Record that in ``episodes`` the next observation of a step differs from the following step's observation."""
        if len(episodes):
            rule = "observation differs from the previous step's next observation: steps out of order?"
            first = f"in episode {int(episodes[0])}"
            self.findings[rule] = Finding(rule, len(episodes), len(episodes), first)
            self.bad = sorted({*self.bad, *episodes.tolist()})

    def add(self, rule: str, wrong: np.ndarray, first_row: int) -> None:
        """Record that rows ``wrong`` ``[n]`` bool of the newest episode break a rule; it begins at ``first_row``."""
        if not wrong.any():
            return
        number = self.episodes - 1
        finding = self.findings.setdefault(rule, Finding(rule))
        if not finding.first:
            finding.first = f"in row {first_row + int(wrong.argmax())}, episode {number}"
        finding.rows += int(wrong.sum())
        if self.bad[-1:] != [number]:
            self.bad.append(number)
        finding.episodes += 1


class Validator:
    """Checks episodes against the rules, one after the other."""

    def __init__(self, about: About, longest: int | None = None) -> None:
        """Check data described by ``about``; ``longest`` is the environment's limit of steps, if known."""
        self.obs = columns_in(about.observation, "obs")
        self.actions = columns_in(about.action, "action")
        self.measured, self.rewards, self.longest = about.measured, about.rewards, longest
        self.ends_open = about.specs is not None  # rows of our own stores, after a failure of the environment
        self.report = DataReport()
        self.seen: dict[bytes, int] = {}

    def add(self, episode: Rows) -> bool:
        """Check an episode and return whether it breaks no rule."""
        report, first = self.report, self.report.rows
        report.episodes += 1
        for rule, wrong in self._rules(episode):
            report.add(rule, wrong, first)
        report.rows += len(episode["reward"])
        report.stepless += len(episode["reward"]) < 2
        report.terminal += bool(episode["is_terminal"][-1])
        earned, (least, most) = episode["reward"][1:], report.rewards
        report.rewards = float(earned.min(initial=least)), float(earned.max(initial=most))
        return report.bad[-1:] != [report.episodes - 1]

    def _rules(self, rows: Rows) -> Iterator[tuple[str, np.ndarray]]:
        total = len(rows["reward"])
        yield "episode without steps", np.full(total, total < 2)
        yield from flags_that_cannot_be(rows)
        for name, column in rows.items():
            if column.dtype.kind == "f":
                flat = column.reshape(total, -1)
                unused = rows["is_last"] & (name.partition("/")[0] == "action")
                finite: np.ndarray = np.asarray(np.isfinite(flat).all(axis=1))
                yield f"{name} is NaN or infinite", ~finite & ~unused
                with np.errstate(invalid="ignore"):
                    yield (
                        f"{name} has magnitudes above {HUGE:g}: never written?",
                        finite & ~unused & np.asarray((np.abs(flat) > HUGE).any(axis=1)),
                    )
        for name, space in self.obs:
            yield from outside(name, rows[name], space, np.zeros(total, bool))
        if not self.measured:
            for name, space in self.actions:
                yield from outside(name, rows[name], space, rows["is_last"])
        if any(seldom_zero(space) for _, space in self.obs):
            yield "all values are 0: never written?", blank(rows)
        yield from self._ends(rows, total)
        yield "duplicate of an earlier episode", np.full(total, self._again(rows))

    def _ends(self, rows: Rows, total: int) -> Iterator[tuple[str, np.ndarray]]:
        if not self.ends_open:
            yield "episode ends without is_last", ~rows["is_last"] & (np.arange(total) == total - 1)
        if self.longest is not None:
            yield f"episode exceeds its environment's limit of {self.longest} steps", np.arange(total) > self.longest
        if self.rewards is not None:
            low, high = self.rewards
            wrong = ((rows["reward"] < low) | (rows["reward"] > high)) & ~rows["is_first"]
            yield f"reward outside the declared range {low:g} to {high:g}", wrong

    def _again(self, rows: Rows) -> bool:
        """Return whether an episode of two steps or more equals an earlier one, bit for bit but for its seed."""
        if len(rows["reward"]) < 3:
            return False
        print_ = hashlib.blake2b(digest_size=16)
        for name in sorted(rows.keys() - {SEED}):
            column = rows[name]
            data = "\0".join(map(str, column)).encode() if column.dtype == object else column.tobytes()
            print_.update(data)
        number = self.report.episodes - 1
        return self.seen.setdefault(print_.digest(), number) != number


def flags_that_cannot_be(rows: Rows) -> Iterator[tuple[str, np.ndarray]]:
    """Yield rules on flags and the rows ``[n]`` bool that break them."""
    first, last, terminal = (rows[name] for name in FLAGS)
    inner = np.ones(len(first), bool)
    inner[0] = False
    yield "episode starts without is_first", ~first & ~inner
    yield "episode continues after its is_last row", np.concatenate([[False], last[:-1]])
    yield "is_terminal without is_last", terminal & ~last
    yield "non-zero reward on an is_first row", first & (rows["reward"] != 0)


def outside(name: str, values: np.ndarray, space: object, excused: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield rules on dtype, shape and bounds of ``space``, and the rows ``[n]`` bool that break them.

    Rows in ``excused`` ``[n]`` may be beyond the bounds.
    """
    total = len(values)
    if isinstance(space, spaces.Text):
        yield f"{name} is not in its Text space", np.array([not space.contains(str(text)) for text in values], bool)
        return
    shape = getattr(space, "shape", None)
    if shape is not None and values.shape[1:] != shape:
        yield f"{name} has shape {values.shape[1:]}; its space declares {shape}", np.ones(total, bool)
        return
    declared = getattr(space, "dtype", None)
    if declared is not None and not same_kind(values.dtype, np.dtype(declared)):
        yield f"{name} has dtype {values.dtype}; its space declares {declared}", np.ones(total, bool)
        return
    low, high = bounds_of(space)
    flat = values.reshape(total, -1)
    with np.errstate(invalid="ignore"):
        wrong = ((flat < low) | (flat > high)).any(axis=1)
    yield f"{name} is outside the bounds of its space", wrong & ~excused


def same_kind(found: np.dtype[np.generic], declared: np.dtype[np.generic]) -> bool:
    """Return whether dtypes are compatible: integers and bools for such ones, all numbers for a float; else equal."""
    allowed = {"b": "biu", "i": "biu", "u": "biu", "f": "biuf"}
    return found.kind in allowed[declared.kind] if declared.kind in allowed else found == declared


def bounds_of(space: object) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper bounds of a space, flat, with a tolerance for rounding of floats."""
    if isinstance(space, spaces.Box):
        low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
        if space.dtype.kind != "f":
            return low, high
        with np.errstate(over="ignore"):
            span = high - low
        span = np.where(np.isfinite(span), span, 1.0)
        return low - ROUNDING * np.maximum(np.abs(low), span), high + ROUNDING * np.maximum(np.abs(high), span)
    if isinstance(space, spaces.Discrete):
        return np.array([space.start]), np.array([space.start + space.n - 1])
    if isinstance(space, spaces.MultiDiscrete):
        start = np.asarray(space.start).reshape(-1)
        return start, start + space.nvec.reshape(-1) - 1
    return np.zeros(1), np.ones(1)


def seldom_zero(space: object) -> bool:
    """Return whether observations of ``space`` are hardly ever all 0: floats and images, other than class numbers."""
    return isinstance(space, spaces.Box) and (space.dtype.kind == "f" or len(space.shape) > 1)


def blank(rows: Rows) -> np.ndarray:
    """Return a mask ``[n]`` of rows in runs of ``BLANK`` or more whose observation, action and reward are all zero."""
    total = len(rows["reward"])
    nothing = rows["reward"] == 0
    for name, column in rows.items():
        if name.partition("/")[0] in ("obs", "action") and column.dtype != object:
            nothing = nothing & (column.reshape(total, -1) == 0).all(axis=1)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], nothing, [False]]).astype(np.int8))).reshape(-1, 2)
    out = np.zeros(total, bool)
    for start, stop in edges.tolist():
        out[start:stop] = stop - start >= BLANK
    return out


# ---------------------------------------------------------------- replay in the environment


def replay(env: gymnasium.Env[Any, Any], rows: Rows, about: About, seed: int) -> np.ndarray:
    """Replay an episode's actions in ``env``. Return a mask ``[n]`` of the rows that differ, up to the first one."""
    wrong = np.zeros(len(rows["reward"]), bool)
    seen, _ = env.reset(seed=seed)
    wrong[0] = not alike(seen, rows, about, 0)
    for t in range(len(wrong) - 1):
        here = {name: values[t : t + 1] for name, values in rows.items()}
        action = first_of(nested(about.action, here, "action"))
        seen, reward, terminated, truncated, _ = env.step(action)
        same = alike(seen, rows, about, t + 1) and bool(
            np.isclose(float(reward), rows["reward"][t + 1], rtol=1e-3, atol=1e-4)
        )
        wrong[t + 1] = not same or terminated != rows["is_terminal"][t + 1]
        if wrong[t + 1] or terminated or truncated:
            break  # later rows depend on this one
    return wrong


def alike(seen: Any, rows: Rows, about: About, row: int) -> bool:
    """Return whether the observation ``seen`` equals that of ``row``, up to rounding."""
    there = first_of(nested(about.observation, {name: values[row : row + 1] for name, values in rows.items()}, "obs"))
    return same(seen, there)


def same(one: Any, two: Any) -> bool:
    """Return whether two values of a space are equal, up to rounding."""
    if isinstance(one, Mapping):
        return all(same(one[key], two[key]) for key in one)
    if isinstance(one, tuple):
        return all(same(a, b) for a, b in zip(one, two, strict=True))
    if isinstance(one, str):
        return bool(one == two)
    return bool(np.allclose(np.asarray(one, np.float64), np.asarray(two, np.float64), rtol=1e-3, atol=1e-4))
