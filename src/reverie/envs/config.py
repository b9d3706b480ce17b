"""The configuration of environments."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, get_type_hints

import gymnasium

from reverie.core.bounds import Above, AtLeast, Regex, Within
from reverie.core.config import Config
from reverie.core.errors import ConfigError, short_repr
from reverie.core.specs import MASK_KEY
from reverie.envs.env_id import expand_env_id
from reverie.envs.episode_info import parse_log_info
from reverie.envs.wrapper_list import parse_wrapper
from reverie.envs.wrappers import Env as Env

MakeEnv = Callable[..., Env]
"""Makes an environment; called with ``EnvConfig.kwargs``."""
EnvLike = str | MakeEnv | Env
"""A Gymnasium id, a function (or class) that makes an environment, or an environment."""


class Mark(enum.Enum):
    """What holds for a setting of the environment, declared with it. See :func:`marked`."""

    COPIES = enum.auto()
    """It does not change how a single environment behaves."""
    SINGLE = enum.auto()
    """It needs single environments: a vector environment of others cannot apply it."""
    ATARI = enum.auto()
    """ALE's and EnvPool's vectors of Atari games apply it themselves, though it is ``SINGLE``."""
    HOST = enum.auto()
    """It needs environments in the host's memory; so does what is ``SINGLE``."""
    SAVED = enum.auto()
    """Rows mean something else with another value, and the environment's id does not imply it: data save it."""
    MEANING = enum.auto()
    """Actions, rewards or ends mean something else with another value, in rows of the same shape."""
    ROWS = enum.auto()
    """Parts of one dataset have the same value; also of what is ``MEANING``."""


@dataclass(frozen=True, kw_only=True)
class EnvConfig(Config):
    """The environments: id, number, and changes to their observations, actions and rewards."""

    id: str = "CartPole-v1"
    """Gymnasium id, or `module:Id` to first import the module that registers it."""
    num: Annotated[int, AtLeast(1), Mark.COPIES] = 1
    """Number of environments that are stepped together."""
    vectorization: Annotated[Literal["sync", "async", "native"], Mark.COPIES] = "sync"
    """`sync` steps them one by one in this process; `async` uses one worker process per environment with shared memory;
    scripts then need `if __name__ == "__main__":`. `native` uses an existing vector environment: an id with a vector
    entry point in Gymnasium, `envpool/ID`, or your function with the argument num_envs."""
    restarts: Annotated[int, AtLeast(0), Mark.COPIES, Mark.SINGLE] = 10
    """Maximum restarts of failed environments within `restart_window`, summed over all environments. 0: none."""
    restart_window: Annotated[float, Above(0), Mark.COPIES, Mark.SINGLE] = 3600.0
    """Seconds after which a failure no longer counts."""
    timeout: Annotated[float, Within("[0, 1e6]"), Mark.COPIES] = 600.0
    """Time limit in seconds for a step, a reset or the creation of an environment in a worker process (`vectorization =
    async`). A slower worker is killed, which counts as a failure. 0: no limit."""
    wrappers: Annotated[tuple[str, ...], Mark.SINGLE, Mark.SAVED, Mark.MEANING] = ()
    """Wrappers around the environment, innermost first: `name`, `name(setting=value)` or `module:Class(setting=value)`.
    The options below are applied after them."""
    action_repeat: Annotated[int, AtLeast(1), Mark.SINGLE, Mark.ATARI, Mark.SAVED, Mark.MEANING] = 1
    """Repeat each action this many times and sum the rewards. Above 1, Atari ids do not skip frames themselves."""
    pool_frames: Annotated[int, AtLeast(1), Mark.SINGLE, Mark.ATARI, Mark.SAVED, Mark.MEANING] = 1
    """Observe the pixelwise maximum of this many of the last repeated frames (Atari: 2)."""
    noop_max: Annotated[int, AtLeast(0), Mark.SINGLE, Mark.ATARI, Mark.SAVED] = 0
    """Start each episode with a random number of no-op actions, 0 to this many (Atari: 30)."""
    terminal_on_life_loss: Annotated[bool, Mark.SINGLE, Mark.ATARI, Mark.SAVED, Mark.MEANING] = False
    """Atari: training episodes end with each lost life. Evaluation plays whole games."""
    fire_on_reset: Annotated[bool, Mark.SINGLE, Mark.ATARI, Mark.SAVED, Mark.MEANING] = False
    """Atari: take the action FIRE, for which some games wait, at the start of a game or a life."""
    max_episode_steps: Annotated[int | None, AtLeast(1), Mark.SINGLE, Mark.ATARI, Mark.SAVED, Mark.ROWS] = None
    """Truncate episodes after this many decisions of the agent, instead of the registered limit."""
    truncate_at_limit: Annotated[bool, Mark.SINGLE, Mark.SAVED, Mark.MEANING] = False
    """Episodes that the environment terminates at its time limit, or at `max_episode_steps`, count as truncated: the
    value of the last state is then not 0. For NetHack, MiniHack and ViZDoom."""
    clip_reward: Annotated[Literal["none", "sign", "tanh"], Mark.HOST, Mark.MEANING] = "none"
    """Replace training rewards by their sign or tanh; training scores sum these. Evaluation uses the true rewards, and
    so do estimates if the dataset contains them. The stored rows of a run with this setting contain the clipped
    rewards."""
    resize: Annotated[tuple[int, int] | None, AtLeast(1), Mark.HOST, Mark.ROWS] = None
    """Resize images to this height and width in pixels. None: keep their size."""
    max_image_size: Annotated[tuple[int, int] | None, AtLeast(1)] = None
    """Resize images that are higher or wider to this height and width in pixels, unless `resize` is set."""
    grayscale: Annotated[bool, Mark.HOST, Mark.ROWS] = False
    """Convert color images to grayscale."""
    frame_stack: Annotated[int, AtLeast(1), Mark.SINGLE, Mark.ATARI, Mark.ROWS] = 1
    """Stack this many of the latest observations."""
    pixels: Annotated[Literal["none", "add", "only"], Mark.SINGLE, Mark.ROWS] = "none"
    """Observe the image that render() returns under the key `image`: in addition to the other observations, or instead
    of them."""
    channel_axis: Literal["auto", "first", "last"] = "auto"
    """Axis of image channels. `auto`: the first axis if it is small and the other two are larger; otherwise the
    last."""
    include_keys: Annotated[str, Regex()] = ".*"
    """Regular expression: only observations whose whole key matches are used. Nested keys are joined as
    `arm/camera`."""
    exclude_keys: Annotated[str, Regex()] = ""
    """Regular expression: observations whose whole key matches are excluded. Empty: none."""
    mission: Annotated[bool, Mark.SINGLE, Mark.SAVED] = False
    """MiniGrid and BabyAI: include the mission in the observation, as text."""
    full_view: Annotated[bool, Mark.SINGLE, Mark.SAVED] = False
    """MiniGrid and BabyAI: observe the whole grid as classes instead of the agent's view."""
    map_view: Annotated[bool, Mark.SINGLE, Mark.SAVED] = False
    """MiniGrid and BabyAI: observe the agent's view as classes, `view`, and the inputs of PyDreamer's map probe: the
    whole grid, `map`, and the agent's position and direction, `map_coord`."""
    log_info: Annotated[tuple[str, ...], Mark.SINGLE] = ()
    """Values of the info to log for each episode: `KEY` for the value in the last step, or `KEY:HOW`, with `sum`,
    `mean`, `max`, `min` or `last` over the steps."""
    filtered_action: Annotated[Literal["executed", "policy"], Mark.SAVED, Mark.MEANING] = "executed"
    """The action to store where a filter, such as a safety layer, replaced the policy's and says so in the info as
    `executed_action`. `policy`: the policy's, and the filter is a part of the environment. On-policy learners always
    store the policy's. Of a takeover by a person, the executed action is stored."""
    tasks: Annotated[tuple[int, ...], AtLeast(1), Mark.SINGLE] = ()
    """Tasks of the episodes, in turn: `1 3`. Empty: all tasks of an environment with an attribute num_tasks, such as
    OGBench's, whose reset() takes the option task_id; the `goal` in its info is observed."""
    kwargs: Annotated[dict[str, Any], Mark.ROWS] = field(default_factory=dict)
    """Arguments for gymnasium.make, or for the class or function that makes the environment, as YAML in one argument:
    `'{full_action_space: true, port: 1}'`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "id", expand_env_id(self.id))
        if self.full_view and self.map_view:
            raise ConfigError("env.full_view = True, env.map_view = True: set at most one of them.")
        if self.pool_frames > self.action_repeat:
            expected = f"expected at most env.action_repeat = {self.action_repeat}"
            raise ConfigError(f"env.pool_frames = {self.pool_frames}: {expected}.")
        if self.pool_frames > 1 and self.pixels != "none":
            conflict = f"env.pool_frames = {self.pool_frames} with env.pixels = '{self.pixels}'"
            raise ConfigError(f"{conflict}: images are rendered only after the last repeat. Use one of the two.")
        parse_log_info(self.log_info)
        for entry in self.wrappers:
            parse_wrapper(entry)

    def changed(self, names: Iterable[str]) -> dict[str, Any]:
        """Return those of the settings ``names`` that are not the defaults."""
        usual = EnvConfig()
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(usual, name)}

    def single_env_text(self) -> str:
        """Return the settings that determine how a single environment behaves, as text without memory addresses."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in marked(Mark.COPIES)}
        return re.sub(r" at 0x[0-9a-f]+", "", repr(values))

    def label(self) -> str:
        """Return the id, and the arguments if there are any, on one line: ``Pendulum-v1 {'g': 5.0}``."""
        return f"{self.id} {short_repr(self.kwargs)}" if self.kwargs else self.id

    def uses_key(self, key: str) -> bool:
        """Return whether the observation ``key`` is used; the action mask is used unless it is excluded."""
        included = key == MASK_KEY or re.fullmatch(self.include_keys, key, re.DOTALL)
        return bool(included) and not (self.exclude_keys and re.fullmatch(self.exclude_keys, key, re.DOTALL))


@functools.cache
def marked(*marks: Mark) -> tuple[str, ...]:
    """Return the names of the settings of ``EnvConfig`` that have one of the ``marks``."""
    hints = get_type_hints(EnvConfig, include_extras=True)
    return tuple(f.name for f in fields(EnvConfig) if set(marks) & {*getattr(hints[f.name], "__metadata__", ())})


def settings_text(settings: Mapping[str, object]) -> str:
    """Return settings of the environment in messages: ``env.resize = (64, 64), env.grayscale = True``."""
    return ", ".join(f"env.{name} = {value!r}" for name, value in settings.items())


def env_name(env: EnvLike) -> str:
    """Return the name of ``env`` in messages: the id, or the name of the class or function."""
    if isinstance(env, str):
        return env
    if isinstance(env, gymnasium.Env):
        return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    return str(getattr(env, "__qualname__", type(env).__qualname__))


def settings_of(env: EnvLike) -> dict[str, Any]:
    """Return the settings that ``env``, an instance or what makes environments, has instead of those of another one."""
    return {"id": env_name(env), "kwargs": {}} | ({"vectorization": "sync"} if isinstance(env, gymnasium.Env) else {})
