"""Checked reset and step; no-op actions at the start of episodes, action repeat, and frame stacks."""

from __future__ import annotations

import copy
import itertools
import math
import traceback
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from reverie.core.bounds import AtLeast
from reverie.core.config import FLOAT32_MAX
from reverie.core.errors import ConfigError, DataError, EnvError, short_repr
from reverie.core.spaces import Path, get_at_path, iter_leaves
from reverie.core.specs import PLAYER_KEY, SPECIAL_KINDS, ObsPart
from reverie.envs.interventions import Replacement, join_replacements, read_replacement

Env = gymnasium.Env[Any, Any]
FlatObs = dict[str, np.ndarray]
Reset = tuple[Any, dict[str, Any]]
Stepped = tuple[Any, float, bool, bool, dict[str, Any]]
OLD_GYM = "Wrap environments of the old Gym API with shimmy.GymV26CompatibilityV0(env=...), or GymV21CompatibilityV0"


IDLE = np.int64(0)
"""The no-op action of Atari games, as sampled from their space."""


def wrapper_stack(env: object) -> list[Any]:
    """Return ``env``, or a vector, the wrapped environments from the outside in, and the environment itself last."""
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper | gymnasium.vector.VectorWrapper):
        layers.append(layers[-1].env)
    return layers


def find_instances(env: object) -> set[int]:
    """Return the ids of ``env`` and of all environments in it: inside wrappers, also of other classes, and vectors."""
    pending, ids = [env], set()
    while pending:
        if id(env := pending.pop()) not in ids:
            ids.add(id(env))
            for value in getattr(env, "__dict__", {}).values():
                members = value if isinstance(value, list | tuple) else (value,)
                pending += [
                    member for member in members if isinstance(member, gymnasium.Env | gymnasium.vector.VectorEnv)
                ]
    return ids


def check_spaces(env: object, prefix: str = "") -> None:
    """Raise EnvError unless the spaces of ``env`` are Gymnasium's; ``prefix``: prefix of its attribute names."""
    for name in (f"{prefix}observation_space", f"{prefix}action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, spaces.Space):
            problem = f"is {short_repr(space)}, a {type(space).__module__}.{type(space).__qualname__}"
            problem = problem if hasattr(env, name) else "is missing"
            raise EnvError(
                f"{type(getattr(env, 'unwrapped', env)).__name__}.{name} {problem}: expected a Gymnasium space, such "
                "as gymnasium.spaces.Box, or gymnasium.spaces.Dict for a dictionary of spaces."
            )


def checked_reset(env: Env, seed: int | None, options: dict[str, Any] | None = None) -> Reset:
    """Reset ``env``; return the observation and the info."""
    try:
        answer: Any = env.reset(seed=seed, options=options)
    except (TypeError, ValueError) as error:
        _check_old_gym(error)
        raise
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise _unexpected_value_error("reset", answer, "2 values (observation, info)")
    return answer[0], answer[1]


def checked_step(env: Env, action: object) -> Stepped:
    """Step ``env`` with ``action``; return the results, with the reward as a float and the flags as bools."""
    try:
        answer: Any = env.step(action)
    except ValueError as error:
        _check_old_gym(error)
        raise
    if not isinstance(answer, tuple | list) or len(answer) != 5:
        raise _unexpected_value_error("step", answer, "5 values (observation, reward, terminated, truncated, info)")
    obs, reward, terminated, truncated, info = answer
    return obs, check_reward(reward), check_flag("terminated", terminated), check_flag("truncated", truncated), info


def _unexpected_value_error(method: str, answer: object, expected: str) -> DataError:
    one = f"one value of type {type(answer).__name__}"
    actual = f"{len(answer)} values" if isinstance(answer, tuple | list) else one
    return DataError(f"{method}() returned {actual}: expected {expected}. {OLD_GYM}")


def _check_old_gym(error: Exception) -> None:
    """Raise a DataError with advice if ``error`` is from a Gymnasium wrapper around an environment of the old API."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if "values to unpack" in str(error) and str(frame.f_globals.get("__name__")).startswith("gymnasium."):
        raise DataError(f"a wrapper of Gymnasium found {error}. {OLD_GYM}") from error
    if "reset() got an unexpected keyword argument" in str(error):
        remedy = "Define reset(self, *, seed=None, options=None) and call super().reset(seed=seed) in it"
        raise DataError(f"{error}. {remedy}") from error


def check_reward(reward: object) -> float:
    """Return the ``reward`` of an environment as a float."""
    if not isinstance(reward, float | int):
        advice = "Multi-agent and vector rewards are not supported: combine them into one number in a wrapper"
        reward = _single("the reward", reward, f"a number. {advice}")
    value = float(reward)
    if not -FLOAT32_MAX <= value <= FLOAT32_MAX:
        raise DataError(f"the reward is {value}: expected a finite float32 number")
    return value


def check_flag(name: str, value: object) -> bool:
    """Return the flag ``name``, ``terminated`` or ``truncated``, of an environment as a bool."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    expected = "a bool, whether the episode ends with this step, of one environment and one agent"
    if (single := float(_single(name, value, expected))) not in (0.0, 1.0):  # such as NaN, which is truthy
        raise DataError(f"{name} is {short_repr(value)}: expected {expected}")
    return single == 1.0


def _single(name: str, value: object, expected: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:  # a list of lists of different lengths
        array = np.empty(0)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise DataError(f"{name} is {short_repr(value)}: expected {expected}")
    return array.reshape(())


def _meanings(env: Env, settings: str) -> list[str]:
    """Return the action names of an Atari game; ``settings``: the settings that need them, for the error message."""
    names: list[str] = getattr(env.unwrapped, "get_action_meanings", lambda: [])()
    if not isinstance(env.action_space, spaces.Discrete) or names[:1] != ["NOOP"]:
        raise EnvError(f"{settings}: expected action 0 to be NOOP, as in Atari, but its names are {names}.")
    return names


class Stateless:
    """A wrapper without a state, of which ``envs/snapshot.py`` saves nothing."""

    def snapshot(self, *state: tuple[()]) -> tuple[()]:
        """Return or restore the state."""
        return ()

    restore = snapshot


class NoopReset(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Starts each episode with 0 to ``most`` no-op actions; their number is drawn from a separate generator."""

    def __init__(self, env: Env, most: Annotated[int, AtLeast(0)]) -> None:
        RecordConstructorArgs.__init__(self, most=most)
        gymnasium.Wrapper.__init__(self, env)
        _meanings(env, "env.noop_max")
        self._most = most
        self._random = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode and take the no-op actions; if the episode ends, start another one."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        obs, info = checked_reset(self.env, seed, options)
        for _ in range(int(self._random.integers(self._most + 1))):
            obs, _, terminated, truncated, info = checked_step(self.env, IDLE)
            if terminated or truncated:
                obs, info = checked_reset(self.env, None, options)
        return obs, info


class ActionRepeat(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Repeats each action ``times`` times, sums the rewards, and stops at the end of the episode.

    With ``pool`` above 1 the observation is the maximum over the last ``pool`` frames of the action: Atari draws some
    sprites on every other frame only.
    """

    def __init__(self, env: Env, times: Annotated[int, AtLeast(1)], pool: Annotated[int, AtLeast(1)] = 1) -> None:
        RecordConstructorArgs.__init__(self, times=times, pool=pool)
        gymnasium.Wrapper.__init__(self, env)
        self._times, self._pool = times, pool
        space = env.observation_space
        if pool > 1 and not (isinstance(space, spaces.Box) and space.dtype == np.uint8):
            raise EnvError(f"env.pool_frames = {pool} needs uint8 images, but the environment has {space}.")

    def step(self, action: object) -> Stepped:
        """Take ``action`` up to ``times`` times; the reward is the sum. The info tells one executed action of all."""
        total, frames, replacements = 0.0, deque[np.ndarray](maxlen=self._pool), list[Replacement | None]()
        for _ in range(self._times):
            # Copied, like the frames: the environment can modify the action, and can draw all frames into one array.
            obs, reward, terminated, truncated, info = checked_step(self.env, copy.deepcopy(action))
            total += reward
            replacements.append(copy.deepcopy(read_replacement(info)))
            if self._pool > 1:
                frames.append(np.array(obs))
            if terminated or truncated:
                break
        if len(frames) > 1:
            obs = np.maximum.reduce(frames)
        if any(replacements):
            info = join_replacements(self.action_space, action, replacements, info)
        return obs, total, terminated, truncated, info


def _repeat(layer: Env) -> int:
    """Return how often ``layer`` repeats each action; of a range, from which Atari's emulator draws, the mean."""
    names = ("_skip", "skip", "frame_skip", "_times") if isinstance(layer, gymnasium.Wrapper) else ("_frameskip",)
    value: Any = next((vars(layer)[name] for name in names if name in getattr(layer, "__dict__", {})), 1)
    if isinstance(value, tuple) and len(value) == 2:
        return int(value[0] + value[1]) // 2
    return int(value) if isinstance(value, int | np.integer) and not isinstance(value, bool) else 1


def count_frames(env: Env) -> int:
    """Return the number of frames per action: the product over all wrappers of ``env`` and its emulator.

    Raises ConfigError if a part besides ``ActionRepeat`` repeats actions, and another part repeats the result.
    """
    counts = [(type(layer), count) for layer in wrapper_stack(env) if (count := _repeat(layer)) > 1]
    if len(counts) > 1 and any(kind is not ActionRepeat for kind, _ in counts):
        parts = ", ".join(f"{kind.__name__} takes {count} per action" for kind, count in counts)
        raise ConfigError(
            f"frames are skipped twice: {parts}. Set env.action_repeat = 1 and env.pool_frames = 1, or make the "
            "environment without its frame skip (in Atari: frameskip=1)."
        )
    return math.prod(count for _, count in counts)


class TimeAware(gymnasium.wrappers.TimeAwareObservation, RecordConstructorArgs):
    """Adds the time in the episode to the observation, in decisions: actions repeated around the limit count once."""

    def __init__(
        self, env: Env, flatten: bool = True, normalize_time: bool = False, *, dict_time_key: str = "time"
    ) -> None:
        super().__init__(env, flatten, normalize_time, dict_time_key=dict_time_key)
        layers = itertools.takewhile(
            lambda layer: not isinstance(layer, gymnasium.wrappers.TimeLimit), wrapper_stack(env)
        )
        self.max_timesteps: int = math.ceil(self.max_timesteps / math.prod(map(_repeat, layers)))


class LifeLoss(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Atari's lives.

    With ``end``, an episode ends with each life, and the game continues in the next episode. With ``fire``, the action
    FIRE is taken at the start of a game or a life, if the game has it.
    """

    def __init__(self, env: Env, end: bool = False, fire: bool = False) -> None:
        RecordConstructorArgs.__init__(self, end=end, fire=fire)
        gymnasium.Wrapper.__init__(self, env)
        meanings = _meanings(env, "env.terminal_on_life_loss and env.fire_on_reset")
        self._end, self._fire = end, np.int64(meanings.index("FIRE")) if fire and "FIRE" in meanings else None
        self._lives, self._goes_on = 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start the next life after a lost life, else a new game; if the game ends, start another one."""
        if self._goes_on and seed is None:
            obs, info = self._act(IDLE)
        else:
            obs, info = checked_reset(self.env, seed, options)
        if self._fire is not None:
            obs, info = self._act(self._fire)
        self._lives, self._goes_on = info["lives"], False
        if self.env.has_wrapper_attr("begin_summary"):  # the next life is another episode
            self.env.get_wrapper_attr("begin_summary")()
        return obs, info

    def _act(self, action: np.int64) -> Reset:
        obs, _, terminated, truncated, info = checked_step(self.env, action)
        return checked_reset(self.env, None, None) if terminated or truncated else (obs, info)

    def step(self, action: object) -> Stepped:
        """Take ``action``. Some games continue for a few frames without lives, until they report the end."""
        obs, reward, terminated, truncated, info = checked_step(self.env, action)
        lost = 0 < info["lives"] < self._lives and not (terminated or truncated)
        if lost and self._end:
            self._goes_on = terminated = True
        elif lost and self._fire is not None:
            obs, extra_reward, terminated, truncated, info = checked_step(self.env, self._fire)
            reward += extra_reward
        self._lives = info["lives"]
        return obs, reward, terminated, truncated, info


class TruncateAtLimit(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Truncates episodes that the environment terminates at its time limit: after ``limit`` steps, or with both flags.

    NetHack and ViZDoom have ended the game by then, and show blank images or grids: the observation before is repeated.
    """

    def __init__(self, env: Env, limit: Annotated[int, AtLeast(1)]) -> None:
        RecordConstructorArgs.__init__(self, limit=limit)
        gymnasium.Wrapper.__init__(self, env)
        self._limit, self._num_steps, self._obs = limit, 0, None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        self._num_steps = 0
        obs, info = checked_reset(self.env, seed, options)
        self._obs = copy.deepcopy(obs)  # the environment can reuse its arrays
        return obs, info

    def step(self, action: object) -> Stepped:
        obs, reward, terminated, truncated, info = checked_step(self.env, action)
        self._num_steps += 1
        if terminated and (truncated or self._num_steps >= self._limit):
            terminated, truncated = False, True
            if self._blank_parts(obs) - self._blank_parts(self._obs):
                obs = self._obs
        self._obs = copy.deepcopy(obs)
        return obs, reward, terminated, truncated, info

    def _blank_parts(self, obs: object) -> set[Path]:
        """Return which images and grids of ``obs`` have a single value."""
        leaves = [(path, get_at_path(obs, path)) for path, _ in iter_leaves(self.observation_space)]
        return {path for path, leaf in leaves if np.ndim(leaf) > 1 and np.min(leaf) == np.max(leaf)}


class AlternatingTurns(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A game whose observation ``player`` says who moves; EnvError if the same player moves twice in a row."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        obs, info = self.env.reset(seed=seed, options=options)
        self._player = obs[PLAYER_KEY]
        return obs, info

    def step(self, action: object) -> Stepped:
        """Take an action, after which it is the other player's turn, even if the game is over."""
        obs, *rest = self.env.step(action)
        mover, self._player = self._player, obs[PLAYER_KEY]
        if mover == self._player:
            raise EnvError(
                f"player {mover} moves twice in a row: expected turns that alternate, and after the last move the view "
                "of the player who would be next. If 'player' is no turn, set env.exclude_keys = player."
            )
        return (obs, *rest)


class FrameStack:
    """Stacks the last ``count`` observations, newest last.

    At the start of an episode, the first observation is repeated. Images are stacked along their channels, everything
    else along a new first axis; action masks are not stacked.
    """

    def __init__(self, spec: Mapping[str, ObsPart], count: int) -> None:
        self._count = count
        self.past: FlatObs = {}
        self.spec: dict[str, ObsPart] = {key: self._stacked(part) for key, part in spec.items()}

    def _stacked(self, part: ObsPart) -> ObsPart:
        if part.kind in SPECIAL_KINDS:
            return part
        if part.kind == "image":
            return replace(part, shape=(*part.shape[:2], part.shape[2] * self._count))
        return replace(part, shape=(self._count, *part.shape), classes=part.classes * self._count)

    def __call__(self, obs: FlatObs, first: bool) -> FlatObs:
        """Return the stack with ``obs`` added, in memory that the next call reuses. ``first``: an episode begins."""
        if first:
            self.past = {}
        for key, array in obs.items():
            image = self.spec[key].kind == "image"
            if self.spec[key].kind in SPECIAL_KINDS:
                self.past[key] = array
            elif first:
                self.past[key] = (np.concatenate if image else np.stack)([array] * self._count, axis=-1 if image else 0)
            elif image:
                channels = array.shape[-1]
                self.past[key][..., :-channels] = self.past[key][..., channels:].copy()
                self.past[key][..., -channels:] = array
            else:
                self.past[key][:-1] = self.past[key][1:].copy()
                self.past[key][-1] = array
        return self.past
