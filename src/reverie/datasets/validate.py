"""Validation of recorded episodes: rules that every episode must satisfy, and a report.

Rules check the values as they were recorded, before any conversion. Assumptions that readers had to make are reported
as well. An episode that violates a rule is invalid, and can be omitted (``--write-valid``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from reverie.core.errors import EnvError, count_noun
from reverie.core.rows import Rows, find_rule_violations, iter_checked_rows, iter_episodes, stepless_error
from reverie.core.spaces import classes_of, columns_in, columns_to_nested, first_item
from reverie.datasets.dataset_env import make_dataset_env
from reverie.datasets.reader import SEED, DatasetInfo, Reader, Space, read_progress, step_text
from reverie.envs.make import close_quietly

MIN_BLANK_RUN = 10
"""Minimum length of a run of all-zero rows that count as never written."""
UNINITIALIZED_LIMIT = 1e30
"""Absolute value above which a number counts as uninitialized memory."""
ROUNDING = 1e-5
"""Tolerance for floats outside a bound due to rounding, relative to the bound or the range, whichever is larger."""


@dataclass
class RuleViolation:
    """The rows and episodes that violate one rule."""

    rule: str
    first: str
    """Location of the first such row, as text."""
    episodes: int = 0
    rows: int = 0

    def __str__(self) -> str:
        return (
            f"{self.rule}: {count_noun(self.rows, 'row')} in {count_noun(self.episodes, 'episode')}, first {self.first}"
        )


@dataclass
class DataReport:
    """The result of a validation."""

    episodes: int = 0
    rows: int = 0
    findings: dict[str, RuleViolation] = field(default_factory=dict)
    invalid_episodes: list[int] = field(default_factory=list)
    """Indices of the episodes that violate a rule, ascending."""
    remarks: list[str] = field(default_factory=list)
    """Assumptions, and unchecked properties. They do not make an episode invalid."""

    @property
    def is_valid(self) -> bool:
        """Whether no rule is violated."""
        return not self.findings

    def add(self, rule: str, wrong: np.ndarray) -> None:
        """Record that rows ``wrong`` ``[n]`` bool of the newest episode violate a rule, which begins with a column."""
        if not wrong.any():
            return
        number = self.episodes - 1
        if rule not in self.findings:
            location = step_text(number, int(wrong.argmax()), rule.partition(" ")[0])
            self.findings[rule] = RuleViolation(rule, f"in {location}")
        finding = self.findings[rule]
        finding.rows += int(wrong.sum())
        finding.episodes += 1
        if self.invalid_episodes[-1:] != [number]:
            self.invalid_episodes.append(number)


def validate(reader: Reader, replayed: int = 3) -> DataReport:
    """Check every episode against all rules, and up to ``replayed`` episodes with seeds against their environment."""
    info = reader.info()
    env, reason = environment_of(info)
    rules = EpisodeRules(info, env.spec.max_episode_steps if env is not None and env.spec is not None else None)
    report, done, stepless = DataReport(), 0, 0
    names = [name for name, _ in (*rules.obs, *rules.actions)]
    with read_progress(f"validating {reader.path.name}", reader.rows()) as track_progress:
        parts = iter_checked_rows(track_progress(reader.as_recorded()), names, str(reader.path), flags=False)
        for rows in iter_episodes(parts):
            report.episodes += 1
            stepless += len(rows["reward"]) < 2
            for name, space in rules.obs:
                reader.note_large(name, rows[name], space)
            for rule, wrong in rules(rows):
                report.add(rule, wrong)
            seed = rows[SEED][0] if SEED in rows else None
            if env is not None and done < replayed and seed is not None and int(seed) >= 0:
                done += 1
                report.add(f"differs from a replay in {info.env}", replay_episode(env, rows, info, int(seed)))
            report.rows += len(rows["reward"])
    if len(cut := reader.cut_episodes()):
        rule = "observation differs from the previous step's next observation: steps out of order?"
        report.findings[rule] = RuleViolation(rule, f"in episode {int(cut[0])}", len(cut), len(cut))
        report.invalid_episodes = sorted({*report.invalid_episodes, *cut.tolist()})
    report.remarks += filter(None, [stepless_error(report.rows, stepless)])
    report.remarks += reader.remarks()
    if env is not None:
        close_quietly(env)
        reason = "no episode has a recorded seed" if replayed else "the number of episodes to replay is 0"
    if not done:
        which = "an" if env is None else "the"
        report.remarks.append(f"no episodes were replayed in {which} environment: {reason}")
    return report


def environment_of(info: DatasetInfo) -> tuple[gymnasium.Env[Any, Any] | None, str]:
    """Return the environment that a dataset names, or the reason why there is none."""
    try:
        return (make_dataset_env(info), "") if info.env else (None, "the dataset does not name one")
    except EnvError as error:
        return None, str(error)


class EpisodeRules:
    """The rules of a dataset, applied to consecutive episodes."""

    def __init__(self, info: DatasetInfo, longest: int | None = None) -> None:
        """``longest``: the environment's time limit in steps, if known."""
        self.obs: list[tuple[str, Space]] = columns_in(info.observation, "obs")
        self.actions: list[tuple[str, Space]] = columns_in(info.action, "action")
        self.measured: bool = info.has_measured_bounds
        self.longest = longest
        self.seen: set[bytes] = set()

    def __call__(self, rows: Rows) -> Iterator[tuple[str, np.ndarray]]:
        """Yield rules, and the rows of an episode that violate them, bool ``[n]``."""
        total, last = len(rows["reward"]), rows["is_last"]
        end = np.arange(total) == total - 1
        yield "episode without steps", np.full(total, total < 2)
        yield from find_rule_violations(rows)
        yield "episode ends without is_last", ~last & end
        for name, values in rows.items():
            if values.dtype.kind == "f":
                flat, unused = np.abs(values.reshape(total, -1)), last & name.startswith("action")
                finite = np.isfinite(flat).all(axis=1) | unused
                yield f"{name} is NaN or infinite", ~finite
                huge = finite & ~unused & (flat > UNINITIALIZED_LIMIT).any(axis=1)
                yield f"{name} has magnitudes above {UNINITIALIZED_LIMIT:g}: never written?", huge
        for name, space in [*self.obs, *(() if self.measured else self.actions)]:
            for rule, wrong in _find_out_of_space(name, rows[name], space):
                yield rule, np.asarray(wrong & ~(last & name.startswith("action")))
        boxes = [space for _, space in self.obs if isinstance(space, spaces.Box)]
        if any(box.dtype.kind == "f" or len(box.shape) > 1 for box in boxes):  # class indices are often 0
            yield "all values are 0: never written?", _blank_rows(rows)
        if self.longest is not None:
            yield f"episode exceeds its environment's limit of {self.longest} steps", np.arange(total) > self.longest
        yield "duplicate of an earlier episode", np.full(total, total > 2 and self._seen_before(rows))

    def _seen_before(self, rows: Rows) -> bool:
        """Return whether an episode equals an earlier one bit for bit, except for its seed."""
        hashed = hashlib.blake2b(digest_size=16)
        for name in sorted(rows.keys() - {SEED}):
            values = rows[name]
            hashed.update("\0".join(map(str, values)).encode() if values.dtype == object else values.tobytes())
        is_repeated = hashed.digest() in self.seen
        self.seen.add(hashed.digest())
        return is_repeated


def _find_out_of_space(name: str, values: np.ndarray, space: Space) -> Iterator[tuple[str, np.ndarray]]:
    """Yield rules on dtype, shape and bounds of ``space``, and the rows ``[n]`` bool that violate them."""
    total = len(values)
    kinds = "biuf" if not isinstance(space, spaces.Text) and np.dtype(space.dtype).kind == "f" else "biu"
    if isinstance(space, spaces.Text):
        yield f"{name} is not in its Text space", np.array([not space.contains(str(text)) for text in values], bool)
    elif values.shape[1:] != (space.shape or ()):
        yield f"{name} has shape {values.shape[1:]}; its space declares {space.shape}", np.ones(total, bool)
    elif values.dtype.kind not in kinds:
        yield f"{name} has dtype {values.dtype}; its space declares {space.dtype}", np.ones(total, bool)
    else:
        low, high = _bounds_with_tolerance(space)
        wrong = ((values < low) | (values > high)).reshape(total, -1).any(axis=1)
        yield f"{name} is outside the bounds of its space", np.asarray(wrong)


def _bounds_with_tolerance(space: Space) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper bounds of a space, with a tolerance for rounding of floats."""
    if not isinstance(space, spaces.Box):
        counts, start = classes_of(space)
        return start, start + counts - 1
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    if space.dtype.kind != "f":
        return low, high
    with np.errstate(over="ignore"):
        span = np.where(np.isfinite(high - low), high - low, 1.0)
    return low - ROUNDING * np.maximum(np.abs(low), span), high + ROUNDING * np.maximum(np.abs(high), span)


def _blank_rows(rows: Rows) -> np.ndarray:
    """Return a mask ``[n]`` of runs of at least ``MIN_BLANK_RUN`` rows whose values are all zero."""
    total = len(rows["reward"])
    nothing = rows["reward"] == 0
    for name, values in rows.items():
        if name.partition("/")[0] in ("obs", "action") and values.dtype != object:
            nothing = nothing & (values.reshape(total, -1) == 0).all(axis=1)
    out = np.zeros(total, bool)
    for start, stop in np.flatnonzero(np.diff(nothing, prepend=False, append=False)).reshape(-1, 2).tolist():
        out[start:stop] = stop - start >= MIN_BLANK_RUN
    return out


# ---------------------------------------------------------------- replay in the environment


def replay_episode(env: gymnasium.Env[Any, Any], rows: Rows, info: DatasetInfo, seed: int) -> np.ndarray:
    """Replay an episode's actions in ``env``. Return a mask ``[n]`` of the rows that differ, up to the first one."""
    wrong = np.zeros(len(rows["reward"]), bool)
    obs, _ = env.reset(seed=seed)
    wrong[0] = not _values_equal(obs, _space_value_at(info.observation, rows, "obs", 0))
    for t in range(1, len(wrong)):
        obs, reward, terminated, truncated, _ = env.step(_space_value_at(info.action, rows, "action", t - 1))
        same_obs = _values_equal(obs, _space_value_at(info.observation, rows, "obs", t))
        same_reward = not info.has_rewards or _values_equal(float(reward), rows["reward"][t])
        wrong[t] = not (same_obs and same_reward and terminated == rows["is_terminal"][t])
        if wrong[t] or terminated or truncated:
            break  # later rows depend on this row
    return wrong


def _space_value_at(space: Space, rows: Rows, root: str, row: int) -> Any:
    """Return the value of ``space`` in one row."""
    return first_item(columns_to_nested(space, {name: values[row : row + 1] for name, values in rows.items()}, root))


def _values_equal(first: Any, second: Any) -> bool:
    """Return whether two values of a space are equal, up to rounding."""
    if isinstance(first, Mapping):
        return all(_values_equal(first[key], second[key]) for key in first)
    if isinstance(first, tuple):
        return all(_values_equal(a, b) for a, b in zip(first, second, strict=True))
    if isinstance(first, str):
        return bool(first == second)
    return bool(np.allclose(np.asarray(first, np.float64), np.asarray(second, np.float64), rtol=1e-3, atol=1e-4))
