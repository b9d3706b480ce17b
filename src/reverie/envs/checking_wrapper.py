"""A wrapper that checks what an environment returns, before the library converts it."""

from __future__ import annotations

import contextlib
import pickle
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError, format_error, short_repr
from reverie.core.spaces import NUMBERS, column, get_at_path, iter_leaves
from reverie.core.specs import ACHIEVED_GOAL
from reverie.envs.config import Env
from reverie.envs.findings import Findings
from reverie.envs.goals import GOALS, call_on_rows, is_goal_env
from reverie.envs.limits import EXACT, is_rounded, is_wide
from reverie.envs.wrappers import Stateless

MANY_GOALS = 32
"""Number of goals whose rewards are computed at once, as hindsight experience replay does."""


class CheckingWrapper(gymnasium.Wrapper[Any, Any, Any, Any], Stateless):
    """Checks what an environment returns before the library converts it, and measures the time of each call."""

    def __init__(self, env: Env, findings: Findings) -> None:
        super().__init__(env)
        self._findings, self._where = findings, ""
        self._numpy_bits: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]  # missing in NumPy's types
        self._held: list[tuple[np.ndarray, np.ndarray]] = []  # arrays of the newest observation, and copies of them
        self._compute_reward = env.get_wrapper_attr("compute_reward") if is_goal_env(env) else None
        self._achieved: list[Any] = []  # goals of the first steps
        self.times: dict[str, list[float]] = {"reset()": [], "step()": [], "render()": []}  # seconds of each call

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        answer: Any = self._timed("reset()", lambda: self.env.reset(seed=seed, options=options))
        if isinstance(answer, tuple | list) and len(answer) == 2:
            self._check_obs(answer[0], answer[1])
        return answer

    def step(self, action: object) -> Any:
        answer: Any = self._timed("step()", lambda: self.env.step(action))
        if isinstance(answer, tuple | list) and len(answer) == 5:
            self._check_obs(answer[0], answer[4])
            if not isinstance(answer[1], float | int | np.floating | np.integer):
                self._findings.add("reward", **value_and_type(answer[1]))
            if self._compute_reward is not None:
                self._check_goal_reward(answer[0], answer[1], answer[4])
                if answer[2] and not self.env.has_wrapper_attr("compute_terminated"):
                    self._check_goal_end(answer[0], answer[1], answer[4])
            for name, flag in zip(("terminated", "truncated"), answer[2:4], strict=True):
                if not isinstance(flag, bool | np.bool_):
                    self._findings.add("ends", name=name, **value_and_type(flag))
        return answer

    def render(self) -> Any:
        return self._timed("render()", self.env.render)

    def _timed(self, method: str, call: Callable[[], Any]) -> Any:
        self._where, self._findings.known_before = method, frozenset(self._findings)
        before, started = self._generators(), time.perf_counter()
        answer = call()
        self.times[method].append(time.perf_counter() - started)
        if drawn := [owner for owner, state in self._generators().items() if state != before[owner]]:
            self._findings.add("generator", where=method, name=" and ".join(drawn))
        return answer

    def _generators(self) -> dict[str, Any]:
        """Return the state of the global generators; draws in ``goal_tasks.global_generator`` do not change them."""
        return {"NumPy": pickle.dumps(self._numpy_bits.state), "Python": random.getstate()}

    def _check_obs(self, obs: object, info: object) -> None:
        if any(not np.array_equal(array, copy, equal_nan=array.dtype.kind == "f") for array, copy in self._held):
            self._findings.add("reused", where=self._where)
        self._held = [(array, array.copy()) for array in _arrays_in(obs)]
        if not isinstance(info, dict):
            self._findings.add("info", where=self._where, **value_and_type(info))
        for path, leaf in iter_leaves(self.observation_space):
            if isinstance(leaf, spaces.Box):
                with contextlib.suppress(DataError, TypeError, ValueError):  # a mismatch, reported as a fault
                    self._check_leaf(column("obs", path), get_at_path(obs, path), leaf)

    def _check_goal_reward(self, obs: Mapping[str, np.ndarray], reward: float, info: object) -> None:
        assert self._compute_reward is not None
        try:
            computed = self._compute_reward(*(obs[key] for key in GOALS), info)
            if not np.isclose(computed, reward):
                problem = f"compute_reward returns {computed} for a step with the reward {reward}"
                self._findings.add("goals", error=problem)
            if len(self._achieved) < MANY_GOALS:
                self._achieved.append(np.copy(obs[ACHIEVED_GOAL]))
                if len(self._achieved) == MANY_GOALS:
                    self._check_many_goals(np.stack(self._achieved))
        except Exception as error:  # of any kind: third-party code runs here
            self._findings.add("goals", error=f"compute_reward fails with {format_error(error)}")

    def _check_goal_end(self, obs: Mapping[str, np.ndarray], reward: float, info: object) -> None:
        assert self._compute_reward is not None
        with contextlib.suppress(Exception):  # reported by ``_check_goal_reward``
            if np.isclose(self._compute_reward(obs[ACHIEVED_GOAL], obs[ACHIEVED_GOAL], info), reward):
                self._findings.add("ends_at_goals")

    def _check_many_goals(self, achieved: np.ndarray) -> None:
        """Compare rewards of goals ``[M, ...]``, computed in a batch and one by one, with shuffled goals."""
        assert self._compute_reward is not None
        desired = achieved[::-1].copy()
        at_once = call_on_rows(self._compute_reward, achieved, desired)
        alone = np.array([self._compute_reward(*goals, {}) for goals in zip(achieved, desired, strict=True)])
        if (wrong := ~np.isclose(at_once, alone.reshape(-1))).any():
            values = f"{at_once[wrong][0]} for two goals in an array of them, and {alone[wrong][0]} for them alone"
            self._findings.add("goals", error=f"compute_reward returns {values}")

    def _check_leaf(self, name: str, value: object, leaf: spaces.Box) -> None:
        array, is_array = np.asarray(value), isinstance(value, np.ndarray | np.generic)
        if array.shape != leaf.shape or array.dtype.kind not in NUMBERS or not np.isfinite(array).all():
            return  # reported as a fault
        if not is_array or not np.can_cast(array.dtype, leaf.dtype):
            kind = array.dtype if is_array else type(value).__name__
            self._findings.add("dtype", name=name, where=self._where, kind=kind, dtype=leaf.dtype)
        wrong = np.argwhere((array.astype(leaf.dtype) < leaf.low) | (array.astype(leaf.dtype) > leaf.high))
        if len(wrong):
            at = tuple(map(int, wrong[0]))
            declared = {"low": leaf.low[at], "high": leaf.high[at]}
            self._findings.add("bounds", name=name, where=self._where, value=array[at], at=at, **declared)
        large = np.argwhere(is_rounded(array) & is_wide(leaf))
        if len(large):
            at = tuple(map(int, large[0]))
            self._findings.add("exact", name=name, where=self._where, value=array[at], at=at, most=EXACT)


def value_and_type(value: object) -> dict[str, str]:
    """Return ``value`` and its type as text, for :meth:`Findings.add`."""
    return {"value": short_repr(value), "kind": type(value).__name__}


def _arrays_in(value: object) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _arrays_in(inner)
