"""The outermost wrapper: checked observations as a flat dictionary, flat actions. Vectors use only this interface."""

from __future__ import annotations

import math
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError, EnvError, ReverieError, told
from reverie.core.images import ImageOptions, latest, rgb
from reverie.core.spaces import ActionCodec, ObsCodec
from reverie.core.specs import ActionSpec, ObsPart
from reverie.envs import timeout
from reverie.envs.answers import begun, stepped
from reverie.envs.base import EnvConfig, Factory, make_gym
from reverie.envs.episode_info import Logged, summary_of
from reverie.envs.placeholder import NoEnvironment
from reverie.envs.unchanged import as_made, let_go
from reverie.envs.wrappers import FlatObs, FrameStack


def make_flat(
    config: EnvConfig, factory: Factory | gymnasium.Env[Any, Any] | None, index: int, render: bool
) -> FlatEnv:
    """Make environment number ``index`` of a vector.

    Raises:
        EnvError: it is unknown, cannot be made, or has spaces that are not supported.
    """
    try:
        env = readable(make_gym(config, factory, render), config.mission)
        name = config.id if factory is None else type(env.unwrapped).__name__
        return FlatEnv(env, config, f"environment {index} ('{name}')", drawn=index == 0)
    except ReverieError:
        raise
    except Exception as error:
        named = f" ('{config.id}')" if factory is None else ""
        raise EnvError(f"environment {index}{named} could not be created: {told(error)}") from error


def readable(env: gymnasium.Env[Any, Any], mission: bool) -> gymnasium.Env[Any, Any]:
    """Return ``env`` with observations that learners can see: of MiniGrid, one-hot grids, and the mission as text."""
    if "minigrid" not in sys.modules:
        return env
    from reverie.envs import minigrid  # needs the optional package

    return minigrid.readable(env, mission) if minigrid.is_minigrid(env) else env


class FlatEnv(gymnasium.Wrapper[Any, np.ndarray, Any, Any]):
    """One environment whose observations are a flat dictionary of arrays and whose action is ``[A]`` float32.

    Every error inside is raised as an ``EnvError`` or a ``DataError`` that names the environment's number and the step,
    and that can be pickled. ``where`` is the environment's name in these errors; ``frame`` returns None unless
    ``drawn``.

    Raises:
        EnvError: its spaces are not supported, or an option does not fit them.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], config: EnvConfig, where: str, drawn: bool) -> None:
        super().__init__(env)
        self.made = as_made(self)  # first: what follows may reset it
        self._where = where
        self.settings = config.one()
        self._drawn = drawn
        self._step = 0
        self.episode = 0
        """The number of the current episode, from 1."""
        self._clip = _clipping(config.clip_reward)
        self._action = ActionCodec(env.action_space)
        self._codec, spec = self._observations(config)
        self._options = ImageOptions(spec, config.resize, config.grayscale)
        self._stack = FrameStack(self._options.spec, config.frame_stack) if config.frame_stack > 1 else None
        self.obs_spec: dict[str, ObsPart] = self._stack.spec if self._stack else self._options.spec
        self.action_spec: ActionSpec = self._action.spec
        self.observation_space = spaces.Dict({key: _box(part) for key, part in self.obs_spec.items()})
        self.action_space = spaces.Box(-np.inf, np.inf, (self.action_spec.width,), np.float32)

    def _observations(self, config: EnvConfig) -> tuple[ObsCodec | None, dict[str, ObsPart]]:
        """Return the codec (None if only pixels are observed) and the spec of all parts, before image options."""
        pixels = config.pixels != "none" and config.keeps("image")
        self._pixels = pixels
        codec = None if config.pixels == "only" else ObsCodec(self.env.observation_space, config.keeps, config.channels)
        spec = dict(codec.spec) if codec else {}
        if pixels:
            if "image" in spec:
                raise EnvError(
                    "env.pixels = 'add' adds the observation 'image', but the environment already has one. "
                    "Use env.pixels = 'none' to keep its own, or 'only' to observe the rendered image alone."
                )
            spec["image"] = ObsPart(kind="image", shape=self._first_drawing().shape, dtype="uint8")
        if not spec:
            raise EnvError(
                "no observations are left: env.pixels = 'only' provides only 'image', which env.include or env.exclude "
                "removes."
            )
        return codec, spec

    def _first_drawing(self) -> np.ndarray:
        if self.env.render_mode is None:
            raise EnvError(
                f"{self._where} cannot render images: its render_mode is None. Create it with render_mode='rgb_array'."
            )
        self.env.reset()
        try:
            frame = self.env.render()
        except Exception as error:
            hint = "On a headless machine, MuJoCo needs MUJOCO_GL=egl or MUJOCO_GL=osmesa."
            raise EnvError(f"{self._where} could not render an image: {_said(error)}. {hint}") from error
        try:
            image = _drawn(frame)
        except DataError as error:
            raise EnvError(f"{self._where}: {error}") from error
        if image is None:
            raise EnvError(
                f"{self._where}: render() returned no image with render_mode={self.env.render_mode!r}. "
                "It must return an array with render_mode='rgb_array'."
            )
        return image

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FlatObs, dict[str, Any]]:
        """Start an episode. The info is always empty: sending it between processes would cost too much."""
        self.episode += 1
        self._step = 0
        try:
            obs, _ = begun(self.env, seed, options)
            return self._flat(obs, True), {}
        except (Exception, timeout.Overdue) as error:
            raise self._placed(error) from error

    def step(self, action: np.ndarray) -> tuple[FlatObs, float, bool, bool, dict[str, Any]]:
        """Take the flat ``action`` ``[A]``; the info is always empty."""
        self._step += 1
        try:
            obs, reward, terminated, truncated, _ = stepped(self.env, self._action(action))
            if self._clip:
                reward = self._clip(reward)
            return self._flat(obs, False), reward, terminated, truncated, {}
        except (Exception, timeout.Overdue) as error:
            raise self._placed(error) from error

    def close(self) -> None:
        """Close the environment; an instance of the user's stays open and may come back."""
        let_go(self)
        super().close()

    def _flat(self, obs: Any, first: bool) -> FlatObs:
        flat = self._codec(obs) if self._codec else {}
        if self._pixels:
            flat["image"] = self._drawing()
        flat = self._options(flat)
        if self._pixels and flat["image"].shape != (expected := self._options.spec["image"].shape):
            raise DataError(
                f"the rendered image has shape {flat['image'].shape}: expected {expected}, the shape of the first one. "
                "Set env.resize"
            )
        return self._stack(flat, first) if self._stack else flat

    def _drawing(self) -> np.ndarray:
        image = _drawn(self.env.render())
        if image is None:
            raise EnvError("render() returned no image")
        return image

    def logged(self) -> Logged:
        """Return what ``env.log_info`` asks for of the episode that has just ended."""
        numbers, *texts = summary_of(self.env)
        return Logged(numbers, *(text and f"{self._where}: {text}" for text in texts))

    def frame(self) -> np.ndarray | None:
        """Return a rendering of environment 0, uint8 ``[H, W, 3]``; None for the others, or if rendering fails."""
        if not self._drawn or self.env.render_mode != "rgb_array":
            return None
        try:
            return _drawn(self.env.render())
        except Exception as error:
            warnings.warn(f"{self._where} could not be rendered: {_said(error)}", stacklevel=2)
            return None

    def snapshot(self) -> tuple[int, int, FlatObs]:
        """Return the state of this wrapper: numbers of the episode and the step, and the stacked observations."""
        return self.episode, self._step, self._stack.past if self._stack else {}

    def restore(self, state: tuple[int, int, FlatObs]) -> None:
        """Set the state that ``snapshot`` returned."""
        self.episode, self._step, past = state
        if self._stack:
            self._stack.past = past

    def _placed(self, error: BaseException) -> ReverieError:
        """Return ``error`` with its environment, episode and step, as a type that every process can unpickle."""
        if isinstance(error, NoEnvironment):
            return error
        at = f"{self._where}, step {self._step} of episode {self.episode}"
        if isinstance(error, DataError):
            return DataError(f"{at}: {error}")
        if isinstance(error, ReverieError):
            return EnvError(f"{at}: {error}")
        last = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != timeout.__file__][-1]
        what = f"timed out: {error}" if isinstance(error, timeout.Overdue) else f"failed with {_said(error)}"
        return EnvError(f"{at} {what} ({last.filename}:{last.lineno} in {last.name})")


def _box(part: ObsPart) -> spaces.Box:
    if part.kind == "vector":
        return spaces.Box(-np.inf, np.inf, part.shape, np.float32)
    if part.kind == "categorical":
        return spaces.Box(-1, max(part.classes) - 1, part.shape, np.int64)
    return spaces.Box(part.low, part.high, part.shape, np.dtype(part.dtype).type)


def _clipping(how: str) -> Callable[[float], float] | None:
    if how == "sign":
        return lambda reward: float((reward > 0) - (reward < 0))
    return math.tanh if how == "tanh" else None


def _drawn(frame: Any) -> np.ndarray | None:
    """Return what ``render`` returned, the last one of a list, as uint8 ``[H, W, 3]``; None if it is nothing."""
    frame = latest(frame)
    return None if frame is None else rgb(np.asarray(frame))


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
