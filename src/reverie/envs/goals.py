"""Goal environments: the interface of Gymnasium-Robotics' ``GoalEnv``, and its rewards for other goals.

The observation is a ``Dict`` with ``observation``, ``achieved_goal`` and ``desired_goal``. The reward of a step is
``compute_reward(achieved_goal, desired_goal, info)``; the optional ``compute_terminated`` has the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import EnvError, format_error
from reverie.core.obs_codec import ObsCodec, default_key
from reverie.core.spaces import cast, column
from reverie.core.specs import ACHIEVED_GOAL, DESIRED_GOAL, GOAL_KEY, ObsSpec
from reverie.envs.config import Env

GOALS = (ACHIEVED_GOAL, DESIRED_GOAL)
GoalMethod = Callable[[Any, Any, Any], Any]
"""A function of achieved goals, desired goals and infos."""


def is_goal_env(env: Env) -> bool:
    """Return whether ``env`` observes goals and computes their rewards."""
    space = env.observation_space
    return isinstance(space, spaces.Dict) and {*GOALS} <= {*space.spaces} and env.has_wrapper_attr("compute_reward")


def add_goal_space(space: spaces.Space[Any], keys: Collection[str]) -> spaces.Dict:
    """Return ``space`` with an observation ``goal``, whose parts are the observations with ``keys``."""
    parts = space if isinstance(space, spaces.Dict) else spaces.Dict({default_key(space): space})
    goal = _select_parts(parts, "", keys)
    assert goal is not None
    return spaces.Dict({**parts.spaces, GOAL_KEY: goal})


def _select_parts(space: spaces.Space[Any], key: str, keys: Collection[str]) -> spaces.Space[Any] | None:
    """Return the parts of ``space`` with ``keys``; ``key``: of the space itself. None if there are none."""
    if not isinstance(space, spaces.Dict):
        return space if key in keys else None
    chosen = {name: _select_parts(part, f"{key}/{name}" if key else name, keys) for name, part in space.items()}
    present = {name: part for name, part in chosen.items() if part is not None}
    return spaces.Dict(present) if present else None


def goal_spec_problem(spec: ObsSpec) -> str:
    """Return why the goals of ``spec`` cannot replace each other; "" if they can."""
    achieved, desired = (spec.get(key) for key in GOALS)
    if achieved is None or desired is None:
        return f"the observation '{DESIRED_GOAL if achieved else ACHIEVED_GOAL}' is missing or not an array"
    if achieved == desired:
        return ""
    texts = [f"{part.kind} {part.shape}" for part in (achieved, desired)]
    return f"'{ACHIEVED_GOAL}' is {texts[0]}, but '{DESIRED_GOAL}' is {texts[1]}: expected the same space"


class GoalFunction:
    """Rewards and terminations of stored goals, by the methods of a goal environment or by functions."""

    def __init__(
        self, compute_reward: GoalMethod, compute_terminated: GoalMethod | None = None, codec: ObsCodec | None = None
    ) -> None:
        """``codec``: of both goals, which the methods get as they are in its space; None: as they are stored."""
        self.compute_reward = compute_reward
        self.compute_terminated = compute_terminated
        self.leaves: dict[str, Any] = {} if codec is None else {leaf.key: leaf for leaf in codec.leaves}

    @classmethod
    def from_env(cls, env: Env, codec: ObsCodec) -> GoalFunction:
        """Return the function of a goal environment; ``codec``: of both goals."""
        has_terminated = env.has_wrapper_attr("compute_terminated")
        terminated = env.get_wrapper_attr("compute_terminated") if has_terminated else None
        return cls(env.get_wrapper_attr("compute_reward"), terminated, codec)

    def __call__(self, achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the rewards ``[M]`` and terminations ``[M]``, None if unknown, of stored goals ``[M, ...]``."""
        goals = self._decode(ACHIEVED_GOAL, achieved), self._decode(DESIRED_GOAL, desired)
        try:
            reward = call_on_rows(self.compute_reward, *goals)
            terminated = None if self.compute_terminated is None else call_on_rows(self.compute_terminated, *goals)
        except Exception as error:  # of any kind: third-party code runs here
            raise EnvError(
                f"replay.hindsight: the goals of stored rows have no reward, {format_error(error)}. compute_reward and "
                "compute_terminated get an empty info: they must depend on the achieved and the desired goal alone."
            ) from error
        return reward, None if terminated is None else terminated.astype(bool)

    def _decode(self, key: str, values: np.ndarray) -> np.ndarray:
        if key not in self.leaves:
            return values
        leaf = self.leaves[key]
        return cast(leaf.decode(values), leaf.space.dtype, column("obs", leaf.path))


def call_on_rows(method: GoalMethod, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    """Return the values ``[M]`` of ``method`` for goals ``[M, ...]``: of all at once, or else one by one.

    Methods of Gymnasium-Robotics that return a flag accept one goal only.
    """
    count = len(achieved)
    try:
        values = np.asarray(method(achieved, desired, [{}] * count))
    except Exception:  # of any kind: third-party code runs here
        values = np.empty(0)
    if values.size != count:
        values = np.array([method(*goals, {}) for goals in zip(achieved, desired, strict=True)])
    return values.reshape(count)
