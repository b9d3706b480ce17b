"""The outermost wrapper: checked observations as flat arrays, and flat actions. Vectors use only this interface."""

from __future__ import annotations

import copy
import traceback
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from reverie.core.action_codec import ActionCodec
from reverie.core.errors import DataError, EnvError, ReverieError, did_you_mean, short_repr
from reverie.core.images import ImageOptions, frame_to_rgb, last_frame
from reverie.core.masks import has_choices, mask_in
from reverie.core.obs_codec import ObsCodec
from reverie.core.signals import is_interrupt
from reverie.core.specs import MASK_KEY, ActionSpec, ObsPart, has_players, without_mask
from reverie.envs.config import Env, EnvConfig, MakeEnv
from reverie.envs.episode_info import Summary, success_summary
from reverie.envs.interventions import POLICY, ExecutedActionReader
from reverie.envs.limits import DeclaredBounds, declared_bounds, own_limit
from reverie.envs.make import ChangedError, NoEnvironmentError, format_make_error, make_gym, to_learnable_obs
from reverie.envs.masks import ActionMask, with_mask
from reverie.envs.snapshot import count_large_values, env_fingerprint
from reverie.envs.suites import package_versions
from reverie.envs.vector_steps import CLIPS
from reverie.envs.wrappers import (
    AlternatingTurns,
    FlatObs,
    FrameStack,
    checked_reset,
    checked_step,
    count_frames,
    wrapper_stack,
)

ObsBuffers = Mapping[str, np.ndarray]
"""Arrays by key to which an observation is written, ``[*shape]`` each."""


class Outcome(NamedTuple):
    """What a reset or a step returns, next to the observation."""

    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    actor: int = POLICY
    """Whose action was executed: ``FlatEnv.executed_action`` is not the policy's unless this is ``POLICY``."""

    @property
    def is_over(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated


def make_flat(config: EnvConfig, factory: MakeEnv | None, index: int, render: bool) -> FlatEnv:
    """Make environment number ``index`` of a vector."""
    try:
        env = to_learnable_obs(make_gym(config, factory, render, index), config.mission)
        name = config.id if factory is None else type(env.unwrapped).__name__
        return FlatEnv(env, config, f"environment {index} ('{name}')", drawn=index == 0)
    except BaseException as error:
        if isinstance(error, ReverieError) or is_interrupt(error):
            raise
        named = f" ('{config.id}')" if factory is None else ""
        kwargs_text = f" with env.kwargs = {short_repr(config.kwargs)}" if config.kwargs else ""
        message = f"environment {index}{named} could not be created{kwargs_text}: {format_make_error(error)}"
        raise EnvError(message) from error


class FlatEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment whose observations are written to arrays and whose action is ``[A]`` float32.

    Every error of the environment is raised as a picklable ``EnvError`` or ``DataError`` that names the environment,
    ``label``, and the step. ``render_frame`` returns None unless ``drawn``.
    """

    def __init__(self, env: Env, config: EnvConfig, label: str, drawn: bool) -> None:
        super().__init__(env)
        self._where, self._drawn = label, drawn
        self.settings: str = config.single_env_text()  # first, since the code below can reset it
        self.fingerprint: dict[str, str] = env_fingerprint(env)
        self.num_large: dict[bytes, int] = count_large_values(env)
        self.env: Env = with_mask(env) if config.uses_key(MASK_KEY) else env
        self._info: Any = {}  # of the latest step
        self._reset_options: dict[str, Any] | None = None
        self._logs = bool(config.log_info)
        self._step = 0
        self.episode: int = 0
        """The number of the current episode, from 1."""
        self._clip: Any = None if config.clip_reward == "none" else CLIPS[config.clip_reward]
        self._inner = env.unwrapped
        self._space = self._inner.action_space  # the object itself, to detect a replacement quickly
        self._declared = copy.deepcopy(env.action_space)
        lacks_mask = config.uses_key(MASK_KEY) and not isinstance(self.env, ActionMask)
        self._unmasked = lacks_mask and has_choices(env.action_space)
        self._action = ActionCodec(env.action_space)
        keeps_filtered = config.filtered_action == "policy"
        self.read_executed_action: ExecutedActionReader = ExecutedActionReader(
            env.action_space, wrapper_stack(env), keeps_filtered
        )
        self.executed_action: np.ndarray = np.zeros(self._action.spec.width, np.float32)
        """The flat action ``[A]`` that was executed in the latest step whose ``Outcome.actor`` is not ``POLICY``."""
        self._codec, spec = self._observations(config)
        self.env = AlternatingTurns(self.env) if has_players(spec) else self.env
        self._options = ImageOptions(spec, config.resize, config.grayscale, config.max_image_size)
        self._stack = FrameStack(self._options.spec, config.frame_stack) if config.frame_stack > 1 else None
        self.obs_spec: dict[str, ObsPart] = self._stack.spec if self._stack else self._options.spec
        self.action_spec: ActionSpec = self._action.spec
        self.bounds: dict[str, DeclaredBounds] = declared_bounds(self._codec)
        self.max_episode_steps: int | None = own_limit(wrapper_stack(env))
        """Maximum episode length that the environment declares."""
        self.frames_per_action: int = count_frames(env)
        self.packages: dict[str, str] = package_versions(env)

    def _observations(self, config: EnvConfig) -> tuple[ObsCodec | None, dict[str, ObsPart]]:
        """Return the codec and the spec of all parts, before image options.

        The codec is None with rendered images alone.
        """
        self._pixels = config.pixels != "none" and config.uses_key("image")
        codec = env_obs_codec(self.env, config)
        spec = dict(codec.spec) if codec else {}
        if self._pixels:
            if "image" in spec:
                conflict = "env.pixels = 'add' adds the observation 'image', but the environment already has one"
                raise EnvError(f"{conflict}. Use 'none' to keep it, or 'only' to observe only the rendered image.")
            spec["image"] = ObsPart(kind="image", shape=self._first_render().shape, dtype="uint8")
        if not without_mask(spec):
            raise EnvError("no observations are left: env.include_keys and env.exclude_keys remove all of them.")
        return codec, spec

    def _first_render(self) -> np.ndarray:
        if self.env.render_mode is None:
            remedy = "Create it with render_mode='rgb_array', which is passed to a class or function that takes it"
            raise EnvError(f"{self._where} cannot render images: its render_mode is None. {remedy}.")
        self.env.reset()
        try:
            return self._render()
        except Exception as error:
            hint = "On a headless machine, MuJoCo needs MUJOCO_GL=egl or MUJOCO_GL=osmesa."
            raise EnvError(f"{self._where} could not render an image: {_format_env_error(error)}. {hint}") from error

    def reset_into(self, seed: int | None, rows: ObsBuffers) -> Outcome:
        """Start an episode; write its first observation to ``rows``."""
        self.episode += 1
        self._step = 0
        try:
            obs, info = checked_reset(self.env, seed, self._reset_options)
            self._check_unchanged("reset", info, obs)
            self._write_obs(obs, True, rows)
        except BaseException as error:
            raise self._with_location(error) from error
        return Outcome()

    def step_into(self, action: np.ndarray, rows: ObsBuffers) -> Outcome:
        """Take the flat ``action`` ``[A]``; write the observation to ``rows``. The info is not passed on."""
        self._step += 1
        try:
            obs, reward, terminated, truncated, info = checked_step(self.env, self._action(action))
            self._info = info
            has_mask = self._unmasked and isinstance(info, dict) and MASK_KEY in info
            if has_mask or self._inner.action_space is not self._space:
                self._check_unchanged("step", info)
            actor = self._read_actor(info, rows) if isinstance(info, dict) and info else POLICY
            self._write_obs(obs, False, rows)
        except BaseException as error:
            raise self._with_location(error) from error
        return Outcome(float(self._clip(reward)) if self._clip else reward, terminated, truncated, actor)

    def _read_actor(self, info: object, rows: ObsBuffers) -> int:
        """Return whose action was executed; set ``executed_action``. ``rows``: still of the row before the step."""
        executed, actor = self.read_executed_action(info, rows.get(MASK_KEY))
        if actor != POLICY:
            self.executed_action = executed
        return actor

    def _check_unchanged(self, method: str, info: object, obs: object = None) -> None:
        """Raise ChangedError if the environment has action masks or actions that it did not have when it was made."""
        if self._unmasked and (mask_in(info) is not None or mask_in(obs) is not None):
            source = "info" if mask_in(info) is not None else "observation"
            raise ChangedError(
                f"the {source} of {method}() has an {MASK_KEY}, but there was none when the environment was made, "
                "neither in the info of reset() nor in the observation space: the agent would take illegal actions. "
                f"Provide it in every step, also in the info of reset(), or set env.exclude_keys = {MASK_KEY}"
            )
        if (action_space := self.env.action_space) != self._declared:
            raise ChangedError(
                f"{method}() replaced the action space {self._declared} by {action_space}: the agent would still "
                "choose from the former. Keep one action space; if some actions are illegal at times, provide "
                f"info['{MASK_KEY}']"
            )
        self._space = self._inner.action_space

    def _write_obs(self, obs: object, first: bool, rows: ObsBuffers) -> None:
        flat: FlatObs = self._codec(obs) if self._codec else {}
        if self._pixels:
            flat["image"] = self._render()
        flat = self._options(flat)
        if self._stack:
            flat = self._stack(flat, first)
        for key, array in flat.items():
            rows[key][...] = array

    def _render(self) -> np.ndarray:
        return frame_to_rgb(np.asarray(last_frame(self.env.render())))

    def episode_summary(self) -> tuple[Summary, str]:
        """Return the success and the ``env.log_info`` values of the episode that has just ended.

        See ``EpisodeInfo.summary`` for these values and the error message.
        """
        numbers, missing = self.env.get_wrapper_attr("summary")() if self._logs else ({}, "")
        return numbers | success_summary(self._info), missing and f"{self._where}: {missing}"

    def render_frame(self) -> np.ndarray | None:
        """Return a rendered frame of environment 0, uint8 ``[H, W, 3]``.

        None for other environments, or if rendering fails.
        """
        if not self._drawn or self.env.render_mode != "rgb_array":
            return None
        try:
            return self._render()
        except BaseException as error:
            if is_interrupt(error):
                raise
            warnings.warn(f"{self._where} could not be rendered: {_format_env_error(error)}", stacklevel=2)
            return None

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, str]:
        """Call the method, or read the attribute, ``name`` of the environment.

        Return its value, and an error message or "".
        """
        if name in ("reset", "step", "close"):
            return None, f"call('{name}') is reserved for the run itself."
        try:
            attribute = self.env.get_wrapper_attr(name)
        except AttributeError:
            return None, self._missing_attribute_text(name)
        try:
            return attribute(*args, **kwargs) if callable(attribute) else attribute, ""
        except BaseException as error:
            return None, f"call('{name}'): {self._with_location(error)}"

    def set_attr(self, name: str, value: Any) -> tuple[None, str]:
        """Set an attribute that the environment or a wrapper has; return an error message or "".

        ``reset_options``: of each reset from now on.
        """
        if name == "reset_options":
            self._reset_options = value
            return None, ""
        try:
            is_set = self.env.set_wrapper_attr(name, value, force=False)
            return None, "" if is_set else self._missing_attribute_text(name)
        except BaseException as error:
            return None, f"set_attr('{name}'): {self._with_location(error)}"

    def _missing_attribute_text(self, name: str) -> str:
        public_names = [attribute for attribute in dir(self.env.unwrapped) if not attribute.startswith("_")]
        return f"{self._where} has no '{name}', nor has a wrapper.{did_you_mean(name, public_names)}"

    def snapshot(self) -> tuple[int, int, FlatObs]:
        """Return the state of this wrapper: episode number, step number, and the stacked observations."""
        return self.episode, self._step, self._stack.past if self._stack else {}

    def restore(self, state: tuple[int, int, FlatObs]) -> None:
        """Set the state that ``snapshot`` returned."""
        self.episode, self._step, past = state
        if self._stack:
            self._stack.past = past

    def location(self) -> str:
        """Return the environment, the step and the episode, for messages."""
        return f"{self._where}, step {self._step} of episode {self.episode}"

    def _with_location(self, error: BaseException) -> ReverieError:
        """Return ``error`` with its environment, episode and step, as a type that every process can unpickle.

        Exceptions raised by a signal are raised again.
        """
        if is_interrupt(error):
            raise error
        if isinstance(error, NoEnvironmentError):
            return error
        at = self.location()
        if isinstance(error, ReverieError):
            kinds = (DataError, ChangedError, EnvError)
            return next((kind for kind in kinds if isinstance(error, kind)), EnvError)(f"{at}: {error}")
        last = traceback.extract_tb(error.__traceback__)[-1]
        return EnvError(f"{at} failed with {_format_env_error(error)} ({last.filename}:{last.lineno} in {last.name})")


def env_obs_codec(env: Env, config: EnvConfig) -> ObsCodec | None:
    """Return the codec of the environment's observations; None if only rendered images are observed."""
    if config.pixels != "only":
        return ObsCodec(env.observation_space, config.uses_key, config.channel_axis)
    return ObsCodec(env.observation_space, lambda key: key == MASK_KEY) if isinstance(env, ActionMask) else None


def _format_env_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
