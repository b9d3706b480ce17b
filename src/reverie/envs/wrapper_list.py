"""The list ``env.wrappers``: Gymnasium's, reverie's or a user's wrappers by name, in the order of application."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_type_hints

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv

from reverie.core.bounds import Above, AtLeast, Finite
from reverie.core.config import FLOAT32_MAX, ClassCall, check_type, parse_call, split_hint
from reverie.core.errors import ConfigError, DataError, EnvError, ReverieError, did_you_mean, format_error, short_repr
from reverie.core.images import grayscale, resize
from reverie.core.imports import import_object
from reverie.core.obs_codec import default_key
from reverie.core.obs_conversion import ChannelAxis, conversion, looks_like_image
from reverie.core.spaces import Space, children, get_at_path, iter_leaves, map_leaves
from reverie.envs.episode_info import read_info
from reverie.envs.wrappers import Env, Stateless, TimeAware, checked_reset, checked_step, wrapper_stack


class LeafWrapper(gymnasium.ObservationWrapper[Any, Any, Any], Stateless, RecordConstructorArgs):
    """Transforms each leaf of the observation for which ``applies_to`` is true, inside dictionaries and tuples too."""

    expected = "images"

    def __init__(self, env: Env, **settings: Any) -> None:
        RecordConstructorArgs.__init__(self, **settings)
        gymnasium.ObservationWrapper.__init__(self, env)
        space = env.observation_space
        if not any(self.applies_to(leaf) for _, leaf in iter_leaves(space)):
            raise EnvError(f"expected {self.expected} among the observations, but found only {space}.")
        self._changes: dict[str, Callable[[Any], Any]] = {}
        self.observation_space = map_leaves(space, "obs", self._transform_leaf)

    def _transform_leaf(self, name: str, leaf: Space) -> Space:
        if not self.applies_to(leaf):
            return leaf
        space, self._changes[name] = self.transform(leaf)
        return space

    def applies_to(self, leaf: Space) -> bool:
        """Return whether ``leaf`` is transformed."""
        return isinstance(leaf, spaces.Box) and looks_like_image(leaf)

    def transform(self, leaf: Space) -> tuple[Space, Callable[[Any], Any]]:
        """Return the transformed space of ``leaf``, and the function that transforms its values."""
        raise NotImplementedError

    def observation(self, observation: object) -> Any:
        try:
            return self._of(self.env.observation_space, observation, "obs")
        except DataError as error:
            raise DataError(f"the observation {error}") from None

    def _of(self, space: Space, value: object, name: str) -> Any:
        if change := self._changes.get(name):
            return change(value)
        inside = {key: self._of(inner, get_at_path(value, (key,)), f"{name}/{key}") for key, inner in children(space)}
        return inside if isinstance(space, spaces.Dict) else tuple(inside.values()) if inside else value


class WithChannelAxis(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Tells the image wrappers around it the setting ``env.channel_axis``."""

    def __init__(self, env: Env, channel_axis: ChannelAxis) -> None:
        RecordConstructorArgs.__init__(self, channel_axis=channel_axis)
        gymnasium.Wrapper.__init__(self, env)
        self.channel_axis: ChannelAxis = channel_axis


class Images(LeafWrapper):
    """Transforms images, which become ``[H, W, C]``, or ``[C, H, W]`` if ``env.channel_axis`` is ``first``."""

    def transform(self, leaf: Space) -> tuple[Space, Callable[[Any], Any]]:
        axes = [layer.channel_axis for layer in wrapper_stack(self.env) if isinstance(layer, WithChannelAxis)]
        axis: ChannelAxis = axes[0] if axes else "auto"
        part, encode, _ = conversion(leaf, axis)

        def change(image: np.ndarray) -> np.ndarray:
            image = self.image(image)
            return np.moveaxis(image, -1, 0) if axis == "first" else image

        shape = change(np.zeros(part.shape, part.dtype)).shape
        dtype = np.dtype(part.dtype).type
        box = spaces.Box(dtype(part.low), dtype(part.high), shape, dtype)
        return box, lambda value: change(encode(value, 0))

    def image(self, image: np.ndarray) -> np.ndarray:
        """Return the transformed ``image`` ``[H, W, C]``."""
        raise NotImplementedError


class Grayscale(Images):
    """Converts color images to grayscale, like ``env.grayscale``."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)

    def image(self, image: np.ndarray) -> np.ndarray:
        return grayscale(image) if image.shape[-1] == 3 else image


class Resize(Images):
    """Resizes images to ``height`` and ``width`` in pixels, like ``env.resize``."""

    def __init__(self, env: Env, height: Annotated[int, AtLeast(1)], width: Annotated[int, AtLeast(1)]) -> None:
        self._size = height, width
        super().__init__(env, height=height, width=width)

    def image(self, image: np.ndarray) -> np.ndarray:
        return resize(image, self._size)


Pixels = Annotated[int, AtLeast(0)]


class Crop(Images):
    """Crops this many pixels from each side of images."""

    def __init__(self, env: Env, top: Pixels = 0, bottom: Pixels = 0, left: Pixels = 0, right: Pixels = 0) -> None:
        self._cut = top, bottom, left, right
        super().__init__(env, top=top, bottom=bottom, left=left, right=right)

    def image(self, image: np.ndarray) -> np.ndarray:
        (height, width, _), (top, bottom, left, right) = image.shape, self._cut
        if top + bottom >= height or left + right >= width:
            cut = f"top = {top}, bottom = {bottom}, left = {left}, right = {right}"
            raise ConfigError(f"{cut}: expected fewer than the {height} x {width} pixels (height x width) of an image.")
        return image[top : height - bottom, left : width - right]


class OneHot(LeafWrapper):
    """Encodes discrete observations as one-hot vectors."""

    expected = "discrete parts"

    def __init__(self, env: Env) -> None:
        super().__init__(env)

    def applies_to(self, leaf: Space) -> bool:
        return isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete)

    def transform(self, leaf: Space) -> tuple[Space, Callable[[Any], Any]]:
        return spaces.flatten_space(leaf), lambda value: spaces.flatten(leaf, value)


class NormalizeFixed(LeafWrapper):
    """Normalizes vectors as ``(x - mean) / std``, with fixed numbers: one for all elements, or one for each."""

    expected = "vectors"

    def __init__(self, env: Env, mean: Annotated[Any, Finite()], std: Annotated[Any, Above(0)]) -> None:
        self._mean, self._std = (np.asarray(number, np.float64) for number in (mean, std))
        super().__init__(env, mean=mean, std=std)

    def applies_to(self, leaf: Space) -> bool:
        return isinstance(leaf, spaces.Box) and not looks_like_image(leaf)

    def transform(self, leaf: Any) -> tuple[Space, Callable[[Any], Any]]:
        low, high = ((bound - self._mean) / self._std for bound in (leaf.low, leaf.high))
        if low.shape != leaf.shape:
            raise EnvError(f"mean and std have shape {low.shape}, but an observation has {leaf.shape}.")
        box = spaces.Box(low.astype(np.float32), high.astype(np.float32))
        return box, lambda value: ((value - self._mean) / self._std).astype(np.float32)


class ScaleReward(gymnasium.RewardWrapper[Any, Any], RecordConstructorArgs):
    """Multiplies rewards ``by`` a number."""

    def __init__(self, env: Env, by: Annotated[float, Finite()]) -> None:
        RecordConstructorArgs.__init__(self, by=by)
        gymnasium.RewardWrapper.__init__(self, env)
        self._by = by

    def reward(self, reward: Any) -> Any:
        return reward * self._by


class ObserveInfo(gymnasium.Wrapper[Any, Any, Any, Any], Stateless, RecordConstructorArgs):
    """Observes ``size`` numbers of the info as ``info/KEY``, such as what a probe predicts.

    They are 0 where the info of ``reset`` lacks them.
    """

    def __init__(self, env: Env, key: str, size: Annotated[int, AtLeast(1)] = 1) -> None:
        RecordConstructorArgs.__init__(self, key=key, size=size)
        gymnasium.Wrapper.__init__(self, env)
        self._key, self._size = key, size
        inner = env.observation_space
        self._name = "" if isinstance(inner, spaces.Dict) else default_key(inner)
        number = spaces.Box(-FLOAT32_MAX, FLOAT32_MAX, (size,), np.float32)
        parts = inner.spaces if isinstance(inner, spaces.Dict) else {self._name: inner}
        self.observation_space = spaces.Dict({**parts, f"info/{key}": number})

    def _with_info(self, obs: Any, info: Mapping[str, Any], default: object = None) -> dict[str, Any]:
        value = read_info(info, self._key)
        array = np.asarray(default if value is None else value, np.float64)
        if array.size != self._size or not np.isfinite(array).all():
            raise DataError(
                f"observe_info: '{self._key}' in the info is {short_repr(value)}: expected {self._size} numbers. The "
                f"info has: {', '.join(map(str, info)) or 'nothing'}"
            )
        return {**({self._name: obs} if self._name else obs), f"info/{self._key}": array.reshape(-1).astype(np.float32)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = checked_reset(self.env, seed, options)
        return self._with_info(obs, info, np.zeros(self._size)), info

    def step(self, action: object) -> Any:
        obs, *rest, info = checked_step(self.env, action)
        return self._with_info(obs, info), *rest, info


SHORT: dict[str, type[Any]] = {
    "crop": Crop, "time_limit": wrappers.TimeLimit, "reward_scale": ScaleReward, "reward_clip": wrappers.ClipReward,
    "normalize": NormalizeFixed, "one_hot": OneHot, "flatten": wrappers.FlattenObservation, "time_aware": TimeAware,
    "observe_info": ObserveInfo, "sticky_actions": wrappers.StickyAction, "rescale_action": wrappers.RescaleAction,
}  # fmt: skip
"""Classes by their names in ``env.wrappers``: of what no setting of the environment does."""

STATEFUL_WRAPPERS = (wrappers.NormalizeObservation, wrappers.NormalizeReward)
"""Wrappers whose statistics are not saved in checkpoints, and would restart in evaluations."""
NORMALIZE_ADVICE = (
    " To normalize by running statistics, use algo.normalize_obs = running, and for rewards algo.reward_scale = "
    "return_std: these belong to the agent, and are saved with it."
)


def parse_wrapper(text: str) -> ClassCall:
    """Parse and check an entry of ``env.wrappers``, without importing the module of ``module:Class``."""
    error_prefix = f"env.wrappers = {short_repr(text)}"
    call = parse_call(text, error_prefix)
    if ":" not in call.name:
        if call.name not in SHORT:
            choices = f" Available: {', '.join(SHORT)}, or 'module:Class' for another."
            raise ConfigError(f"{error_prefix}: unknown name '{call.name}'.{did_you_mean(call.name, SHORT)}{choices}")
        _check_settings(call, SHORT[call.name])
    return call


def _check_settings(call: ClassCall, kind: type[Any]) -> None:
    parameters = dict(list(inspect.signature(kind).parameters.items())[1:])  # without ``env``
    try:
        arguments = inspect.signature(kind).bind(None, *call.args, **call.kwargs).arguments
    except TypeError as error:
        unknown = [name for name in call.kwargs if name not in parameters]
        near = next((hint for name in unknown if (hint := did_you_mean(name, parameters))), "")
        plain = ", ".join(str(setting.replace(annotation=setting.empty)) for setting in parameters.values())
        has = f"Its settings: {plain}." if parameters else "It has no settings."
        raise ConfigError(
            f"{call.error_prefix}: {error}.{near} {has}{NORMALIZE_ADVICE if kind is NormalizeFixed else ''}"
        ) from None
    hints = _hints(kind)
    for name, parameter in parameters.items():
        if name in arguments and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            hint, bounds = split_hint(hints.get(name, Any))
            try:
                check_type(arguments[name], hint, name)
                for bound in bounds:
                    bound.check(name, _flat(arguments[name]))
            except ConfigError as error:
                raise ConfigError(f"{call.error_prefix}: {error}") from None


def _hints(kind: type[Any]) -> dict[str, Any]:
    try:
        return get_type_hints(kind.__init__, include_extras=True)
    except Exception:  # any error: an annotation of a user's class can be invalid, or imported only for type checkers
        return {}


def _flat(value: object) -> tuple[Any, ...]:
    """Return the items of nested lists."""
    return tuple(x for item in value for x in _flat(item)) if isinstance(value, list | tuple) else (value,)


def apply_wrappers(env: Env, entries: tuple[str, ...], channel_axis: ChannelAxis) -> Env:
    """Return ``env`` inside the wrappers that ``entries`` name, the first one innermost."""
    env = WithChannelAxis(env, channel_axis) if entries and channel_axis != "auto" else env
    for call in map(parse_wrapper, entries):
        kind = SHORT.get(call.name) or import_object(call.name, error_prefix=call.error_prefix, base=gymnasium.Wrapper)
        _check_settings(call, kind)
        if issubclass(kind, STATEFUL_WRAPPERS):
            problem = "each environment, evaluation environments too, would have separate statistics."
            raise ConfigError(f"{call.error_prefix}: {problem}{NORMALIZE_ADVICE}")
        try:
            env = kind(env, *call.args, **call.kwargs)
        except Exception as error:  # any error: the class can be a user's
            if isinstance(error, ConfigError):
                raise ConfigError(f"{call.error_prefix}: {error}") from error
            message = error if isinstance(error, ReverieError) else format_error(error)
            raise EnvError(f"{call.error_prefix}: {message}") from error
    return env


def check_stateless(env: Env | VectorEnv[Any, Any, Any]) -> None:
    """Raise EnvError if a wrapper inside ``env`` has statistics, or ends episodes as only training should."""
    for layer in wrapper_stack(env):
        names = {kind.__name__ for kind in type(layer).__mro__}
        if names & {kind.__name__ for kind in STATEFUL_WRAPPERS}:
            problem = "each copy of the environment, for evaluations too, has its own statistics."
            raise EnvError(f"the environment is inside {type(layer).__name__}: {problem}{NORMALIZE_ADVICE}")
        if getattr(layer, "terminal_on_life_loss", False) is True and isinstance(layer, wrappers.AtariPreprocessing):
            raise EnvError(
                "the environment is inside AtariPreprocessing(terminal_on_life_loss=True), which would end the "
                "episodes of evaluations too. Leave it out; env.terminal_on_life_loss = True is for training alone."
            )
