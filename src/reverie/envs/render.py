"""Render observations: with a method of the environment, or by setting the environment's state and rendering it.

The environments are not imported here: they are recognized by their class names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np

from reverie.core.errors import EnvError
from reverie.core.specs import ObsSpec
from reverie.envs.wrappers import wrapper_stack

RenderFn = Callable[[Mapping[str, np.ndarray]], np.ndarray]
"""Turns observations by key, ``[*shape]`` each, into an image ``[H, W, 3]`` uint8."""
SetStateFn = Callable[[Any, np.ndarray], None]
"""Sets the state of an environment from an observation."""
RENDER_METHOD = "render_observation"
"""Name of an optional method of environments and wrappers: draws an observation (an array, or a dictionary of several),
returns uint8 ``[H, W, 3]``."""


@contextlib.contextmanager
def limited_size(env: gymnasium.Env[Any, Any], side: int | None) -> Iterator[None]:
    """Let an environment of tiles draw at most ``side`` pixels in the context: MiniGrid computes each in Python."""
    inner: Any = env.unwrapped
    if side is None or not (hasattr(inner, "tile_size") and hasattr(inner, "grid")):
        yield
        return
    size = inner.tile_size
    inner.tile_size = max(8, min(size, side // max(inner.width, inner.height)))
    try:
        yield
    finally:
        inner.tile_size = size


def make_renderer(env: gymnasium.Env[Any, Any], spec: ObsSpec, is_complete: bool = True) -> RenderFn | None:
    """Return a function that draws observations of ``spec``; None if this is not supported, or ``env`` cannot render.

    ``is_complete``: ``spec`` has all observations of ``env``. Otherwise only wrappers with ``DRAWN_FROM`` draw.
    Afterwards ``env`` cannot be used for anything else: its state is set by the last observation drawn.
    """
    inner = env.unwrapped
    for layer in wrapper_stack(env):
        needed: Collection[str] | None = getattr(layer, "DRAWN_FROM", set() if is_complete else None)
        method = getattr(layer, RENDER_METHOD, None)
        if callable(method) and needed is not None and spec.keys() >= set(needed):
            return lambda obs: _picture(layer, method, obs)
    if not is_complete or any(isinstance(layer, gymnasium.ObservationWrapper) for layer in wrapper_stack(env)):
        return None
    if type(inner).__module__ == "minatar.gym" and [part.kind for part in spec.values()] == ["image"]:
        return lambda obs: _draw_minatar(next(iter(obs.values())))
    set_state = (
        STATE_SETTERS.get(type(inner).__name__) if type(inner).__module__.startswith("gymnasium.envs.") else None
    )
    shapes = [part.shape for part in spec.values() if part.kind == "vector"]
    if env.render_mode is None or set_state is None or len(spec) != 1 or shapes != [inner.observation_space.shape]:
        return None

    def paint(obs: Mapping[str, np.ndarray]) -> np.ndarray:
        (vector,) = obs.values()
        set_state(inner, _clip_to_bounds(inner.observation_space, vector))
        return np.asarray(env.render())

    with contextlib.suppress(Exception, SystemExit):  # any error, such as a missing driver
        env.reset(seed=0)
        frame = paint({key: np.zeros(part.shape, np.float32) for key, part in spec.items()})
        return paint if is_picture(frame) else None
    return None


def _draw_minatar(planes: np.ndarray) -> np.ndarray:
    """Draw MinAtar's planes ``[H, W, C]``, 0 to 255, in its colors, the last one on top; uint8 ``[H, W, 3]``."""
    import seaborn  # type: ignore[import-untyped]  # comes with MinAtar

    colors = np.array([(0, 0, 0), *seaborn.color_palette("cubehelix", planes.shape[-1])])
    numbers = (planes > 127.5) * np.arange(1, planes.shape[-1] + 1)
    return np.asarray(np.rint(colors[numbers.max(-1)] * 255).astype(np.uint8))


def _clip_to_bounds(space: Any, vector: np.ndarray) -> np.ndarray:
    """Return ``vector`` clipped to the bounds of ``space``, as float64: models can imagine impossible values."""
    return np.clip(np.nan_to_num(vector.astype(np.float64)), space.low, space.high)


def _picture(env: Any, render_obs: Callable[[Any], Any], obs: Mapping[str, np.ndarray]) -> np.ndarray:
    frame = np.asarray(render_obs(dict(obs) if len(obs) > 1 else next(iter(obs.values()))))
    if not is_picture(frame):
        result = f"{type(env).__name__}.{RENDER_METHOD} returned {frame.dtype} {frame.shape}"
        raise EnvError(f"{result}: expected a uint8 image [H, W, 3].")
    return frame


def is_picture(frame: np.ndarray) -> bool:
    """Return whether an array is an image ``[H, W, 3]`` uint8."""
    return frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[-1] == 3


def _state(env: Any, obs: np.ndarray) -> None:
    env.state = obs


def _pendulum(env: Any, obs: np.ndarray) -> None:
    env.state, env.last_u = np.array([np.arctan2(obs[1], obs[0]), obs[2]]), None


def _acrobot(env: Any, obs: np.ndarray) -> None:
    env.state = np.array([np.arctan2(obs[1], obs[0]), np.arctan2(obs[3], obs[2]), obs[4], obs[5]])


def _mujoco(env: Any, obs: np.ndarray) -> None:
    """Set positions and velocities; leading positions that the observation lacks (distance traveled) are 0."""
    positions, velocities = env.model.nq, env.model.nv
    state = np.concatenate([np.zeros(positions + velocities - len(obs)), obs])
    env.set_state(state[:positions], state[positions:])


STATE_SETTERS: Mapping[str, SetStateFn] = {
    **dict.fromkeys(("CartPoleEnv", "MountainCarEnv", "Continuous_MountainCarEnv"), _state),
    "PendulumEnv": _pendulum,
    "AcrobotEnv": _acrobot,
    **dict.fromkeys(("InvertedPendulumEnv", "HalfCheetahEnv", "HopperEnv", "Walker2dEnv", "SwimmerEnv"), _mujoco),
}
"""Gymnasium classes whose observations determine the rendered image."""
