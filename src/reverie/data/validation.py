"""Whether recorded episodes can be right: rules that each episode is held against, and a report.

Rules look at values as they were recorded, before anything is made of them; what readers had to assume is reported
beside them. An episode that breaks a rule is bad, and can be left out (``--quarantine``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from reverie.data.readers.base import FLAGS, About, Rows
from reverie.data.readers.spaces import first_of, leaves_of, nested

BLANK = 10
"""So many rows of nothing but zeros, one behind the other, were never written."""
HUGE = 1e30
"""Numbers of this size come from memory that was never written."""


@dataclass
class Finding:
    """What breaks one rule."""

    rule: str
    episodes: int = 0
    rows: int = 0
    first: str = ""
    """Where it was met first."""

    def __str__(self) -> str:
        plural = "episodes" if self.episodes > 1 else "episode"
        return f"{self.rule}: {self.rows:,} rows in {self.episodes:,} {plural}, first {self.first}"


@dataclass
class DataReport:
    """What was looked at and what was found."""

    episodes: int = 0
    rows: int = 0
    findings: dict[str, Finding] = field(default_factory=dict)
    bad: list[int] = field(default_factory=list)
    """Numbers of the episodes that break a rule."""
    remarks: list[str] = field(default_factory=list)
    """What had to be assumed, or could not be looked at; it makes nothing bad."""

    @property
    def sound(self) -> bool:
        """Whether no rule is broken."""
        return not self.findings

    def disordered(self, episodes: np.ndarray) -> None:
        """In these episodes a step does not begin with what the one before led to."""
        if len(episodes):
            rule = "a step does not begin with what the one before led to: out of order?"
            first = f"in episode {int(episodes[0])}"
            self.findings[rule] = Finding(rule, len(episodes), len(episodes), first)
            self.bad = sorted({*self.bad, *episodes.tolist()})

    def add(self, rule: str, wrong: np.ndarray, first_row: int) -> None:
        """Rows ``[n]`` bool of the newest episode break ``rule``."""
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
    """Holds episodes against the rules, one after the other."""

    def __init__(self, about: About, longest: int | None = None) -> None:
        """``longest``: the steps after which the environment ends its episodes, if that is known."""
        self.obs = [(name, space) for name, _, space in leaves_of(about.observation, "obs")]
        self.actions = [(name, space) for name, _, space in leaves_of(about.action, "action")]
        self.measured, self.rewards, self.longest = about.measured, about.rewards, longest
        self.report = DataReport()
        self.seen: dict[bytes, int] = {}

    def add(self, episode: Rows) -> bool:
        """Look at an episode; whether it is good."""
        report, first = self.report, self.report.rows
        report.episodes += 1
        for rule, wrong in self._rules(episode):
            report.add(rule, wrong, first)
        report.rows += len(episode["reward"])
        return report.bad[-1:] != [report.episodes - 1]

    def _rules(self, rows: Rows) -> Iterator[tuple[str, np.ndarray]]:
        total = len(rows["reward"])
        yield "an episode without a step", np.full(total, total < 2)
        yield from flags_that_cannot_be(rows)
        for name, column in rows.items():
            if column.dtype.kind == "f":
                flat = column.reshape(total, -1)
                finite: np.ndarray = np.asarray(np.isfinite(flat).all(axis=1))
                yield f"{name} is NaN or infinite", ~finite
                with np.errstate(invalid="ignore"):
                    yield (
                        f"{name} has numbers beyond {HUGE:g}: never written?",
                        finite & np.asarray((np.abs(flat) > HUGE).any(axis=1)),
                    )
        for name, space in self.obs:
            yield from outside(name, rows[name], space, np.zeros(total, bool))
        if not self.measured:
            for name, space in self.actions:
                yield from outside(name, rows[name], space, rows["is_last"])
        yield "nothing but zeros: never written?", blank(rows)
        yield from self._ends(rows, total)
        yield "the same episode again", np.full(total, self._again(rows))

    def _ends(self, rows: Rows, total: int) -> Iterator[tuple[str, np.ndarray]]:
        if self.longest is not None:
            yield f"an episode longer than the environment's {self.longest} steps", np.arange(total) > self.longest
        if self.rewards is not None:
            low, high = self.rewards
            wrong = ((rows["reward"] < low) | (rows["reward"] > high)) & ~rows["is_first"]
            yield f"a reward beyond the declared {low:g} to {high:g}", wrong

    def _again(self, rows: Rows) -> bool:
        """Whether an episode of two steps or more is another one's copy, to the last bit."""
        if len(rows["reward"]) < 3:
            return False
        print_ = hashlib.blake2b(digest_size=16)
        for name in sorted(rows):
            column = rows[name]
            data = "\0".join(map(str, column)).encode() if column.dtype == object else column.tobytes()
            print_.update(data)
        number = self.report.episodes - 1
        return self.seen.setdefault(print_.digest(), number) != number


def flags_that_cannot_be(rows: Rows) -> Iterator[tuple[str, np.ndarray]]:
    """Rows of an episode whose flags contradict each other, or what rows are."""
    first, last, terminal = (rows[name] for name in FLAGS)
    inner = np.ones(len(first), bool)
    inner[0] = False
    yield "an episode begins without is_first", ~first & ~inner
    yield "an episode goes on after its is_last row", np.concatenate([[False], last[:-1]])
    yield "is_terminal without is_last", terminal & ~last
    yield "a reward that is not 0 on an is_first row", first & (rows["reward"] != 0)


def outside(name: str, values: np.ndarray, space: object, excused: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Rows ``[n]`` whose values are not of ``space``: of another dtype or shape, or beyond its bounds."""
    total = len(values)
    if isinstance(space, spaces.Text):
        yield f"{name} is not text of its space", np.array([not space.contains(str(text)) for text in values], bool)
        return
    shape = getattr(space, "shape", None)
    if shape is not None and values.shape[1:] != shape:
        yield f"{name} has shape {values.shape[1:]}, its space declares {shape}", np.ones(total, bool)
        return
    declared = getattr(space, "dtype", None)
    if declared is not None and not same_kind(values.dtype, np.dtype(declared)):
        yield f"{name} has dtype {values.dtype}, its space declares {declared}", np.ones(total, bool)
        return
    low, high = bounds_of(space)
    flat = values.reshape(total, -1)
    with np.errstate(invalid="ignore"):
        wrong = ((flat < low) | (flat > high)).any(axis=1)
    yield f"{name} is beyond the bounds of its space", wrong & ~excused


def same_kind(found: np.dtype[np.generic], declared: np.dtype[np.generic]) -> bool:
    """Whether values can be of a dtype: whole numbers may have any width, others must have the declared one."""
    if declared.kind in "biu":
        return found.kind in "biu"
    return found.kind in "fiu" if declared.kind == "f" else found == declared


def bounds_of(space: object) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and largest numbers of a space, flat; with room for the rounding of floats."""
    if isinstance(space, spaces.Box):
        low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
        slack = 1e-5 * np.maximum(1.0, np.abs(np.where(np.isfinite(high), high, 1.0)))
        return (low - slack, high + slack) if space.dtype.kind == "f" else (low, high)
    if isinstance(space, spaces.Discrete):
        return np.array([space.start]), np.array([space.start + space.n - 1])
    if isinstance(space, spaces.MultiDiscrete):
        start = np.asarray(space.start).reshape(-1)
        return start, start + space.nvec.reshape(-1) - 1
    return np.zeros(1), np.ones(1)


def blank(rows: Rows) -> np.ndarray:
    """``[n]`` bool: rows in runs of ``BLANK`` or more in which nothing was seen, done or won."""
    total = len(rows["reward"])
    nothing = rows["reward"] == 0
    if not any(name.partition("/")[0] == "obs" and column.dtype != object for name, column in rows.items()):
        return np.zeros(total, bool)
    for name, column in rows.items():
        if name.partition("/")[0] in ("obs", "action") and column.dtype != object:
            nothing = nothing & (column.reshape(total, -1) == 0).all(axis=1)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], nothing, [False]]).astype(np.int8))).reshape(-1, 2)
    out = np.zeros(total, bool)
    for start, stop in edges.tolist():
        out[start:stop] = stop - start >= BLANK
    return out


# ---------------------------------------------------------------- played again


def replay(env: gymnasium.Env[Any, Any], rows: Rows, about: About, seed: int) -> np.ndarray:
    """Play an episode again; ``[n]`` bool, the rows that come out otherwise."""
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
            break  # all that follows follows from it
    return wrong


def alike(seen: Any, rows: Rows, about: About, row: int) -> bool:
    """Whether ``seen`` is what the row shows, but for rounding."""
    there = first_of(nested(about.observation, {name: values[row : row + 1] for name, values in rows.items()}, "obs"))
    return same(seen, there)


def same(one: Any, two: Any) -> bool:
    """Whether two values of a space are equal but for rounding."""
    if isinstance(one, Mapping):
        return all(same(one[key], two[key]) for key in one)
    if isinstance(one, tuple):
        return all(same(a, b) for a, b in zip(one, two, strict=True))
    if isinstance(one, str):
        return bool(one == two)
    return bool(np.allclose(np.asarray(one, np.float64), np.asarray(two, np.float64), rtol=1e-3, atol=1e-4))
