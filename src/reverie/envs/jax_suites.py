"""Suites of environments in JAX, by the prefix of their ids: each function returns the :class:`JaxTask` of one name.

No suite's reset of ended environments is used: it hides final observations, and ``JaxVector`` resets by itself.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import EnvError, did_you_mean, format_error
from reverie.envs.jax_vector import JaxTask, check_step, import_jax

Space = spaces.Space[Any]
NAVIX_CLASSES = 12
"""Objects 0 to 10, which are more than the colors and states, and one class for all other numbers."""


def gymnax(name: str, **kwargs: object) -> JaxTask:
    """Return an environment of gymnax; ``kwargs`` are its arguments, or fields of its parameters."""
    module = importlib.import_module("gymnax")
    fields = set(vars(module.make(name)[1]))
    env, params = module.make(name, **{key: value for key, value in kwargs.items() if key not in fields})
    params = params.replace(**{key: value for key, value in kwargs.items() if key in fields})
    return gymnax_like(env, params, params.max_steps_in_episode)


def craftax(name: str, **kwargs: object) -> JaxTask:
    """Return a game of Craftax; ``kwargs`` are fields of its parameters."""
    env = importlib.import_module("craftax.craftax_env").make_craftax_env_from_name(name, auto_reset=False)
    params = env.default_params.replace(**kwargs)
    return gymnax_like(env, params, int(params.max_timesteps))


def gymnax_like(env: Any, params: object, max_episode_steps: int) -> JaxTask:
    """Return an environment with gymnax's interface, of version 1, which tells truncations, or earlier.

    Before version 1, an episode that ends after ``max_episode_steps`` is truncated, whatever the environment says.
    """
    jnp = import_jax().numpy

    def step(key: object, state: Any, action: object) -> tuple[Any, ...]:
        obs, state, reward, terminal, _ = env.step_env(key, state, action, params)
        terminal = jnp.asarray(terminal)
        terminal = terminal != 0 if jnp.issubdtype(terminal.dtype, jnp.integer) else terminal
        check_step(terminal=terminal)
        if hasattr(env, "is_truncated"):
            return obs, state, reward, terminal, jnp.asarray(env.is_truncated(state, params), bool)
        time = state.timestep if hasattr(state, "timestep") else state.time
        late = time >= max_episode_steps  # earlier versions count it as a termination
        return obs, state, reward, terminal & ~late, late

    seen, action = env.observation_space(params), env.action_space(params)
    return JaxTask(
        lambda key: env.reset_env(key, params), step, to_space(seen), to_space(action), int(max_episode_steps)
    )


def navix(name: str, **kwargs: object) -> JaxTask:
    """Return an environment of navix; ``kwargs`` are its arguments. Observations are classes of the cells."""
    env = importlib.import_module("navix").make(name, **kwargs)
    space, jnp = to_space(env.observation_space), import_jax().numpy
    if is_grid := isinstance(space, spaces.MultiDiscrete):
        space = spaces.MultiDiscrete(np.full(space.shape, NAVIX_CLASSES))  # its own lacks lava and the player

    def observe(time: Any) -> Any:
        return jnp.minimum(time.observation, NAVIX_CLASSES - 1) if is_grid else time.observation

    def init(key: object) -> tuple[Any, Any]:
        first = env.reset(key)
        return observe(first), first

    def step(key: object, state: Any, action: object) -> tuple[Any, ...]:
        after = env._step(state, action)  # step() would begin a new episode
        return observe(after), after, after.reward, after.is_termination(), after.is_truncation()

    return JaxTask(init, step, space, to_space(env.action_space), int(env.max_steps))


def jumanji(name: str, **kwargs: object) -> JaxTask:
    """Return an environment of Jumanji; ``kwargs`` are its arguments. Fields of observations are keys.

    The discount says what an end is. In most of its environments it is 0 at time limits, too, and observations contain
    the number of steps, except those of PacMan.
    """
    env = importlib.import_module("jumanji").make(name, **kwargs)
    to_space = importlib.import_module("jumanji.specs").jumanji_specs_to_gym_spaces
    space, jnp = to_space(env.observation_spec), import_jax().numpy

    def observe(obs: object, part: object = space) -> Any:
        if not isinstance(part, spaces.Dict):
            return obs
        return {key: observe(getattr(obs, key), inner) for key, inner in part.spaces.items()}

    def init(key: object) -> tuple[Any, Any]:
        state, first = env.reset(key)
        return observe(first.observation), state

    def step(key: object, state: Any, action: object) -> tuple[Any, ...]:
        state, after = env.step(state, action)
        terminal = after.last() & jnp.all(after.discount == 0)  # of all agents
        return observe(after.observation), state, jnp.sum(after.reward), terminal, after.last() & ~terminal

    return JaxTask(init, step, space, to_space(env.action_spec), getattr(env, "time_limit", None))


def brax(
    name: str, episode_length: int = 1000, action_repeat: int = 1, reset: str = "pool", **kwargs: object
) -> JaxTask:
    """Return an environment of Brax; ``kwargs`` are its arguments, such as ``backend``."""
    env = importlib.import_module("brax.envs").get_environment(name, **kwargs)
    return brax_like(env, episode_length, action_repeat, reset)


def playground(name: str, reset: str = "pool", **kwargs: object) -> JaxTask:
    """Return an environment of MuJoCo Playground; ``kwargs`` replace values of its config."""
    registry = importlib.import_module("mujoco_playground").registry
    config = registry.get_default_config(name)
    if "impl" in config and import_jax().default_backend() == "cpu":
        config.impl = "jax"  # the default, Warp, is far slower there
    config.update_from_flattened_dict(kwargs)  # the length of an episode may be among them
    env = registry.load(name, config=config)
    return brax_like(env, int(config.episode_length), int(config.action_repeat), reset)


def brax_like(env: Any, episode_length: int, action_repeat: int = 1, reset: str = "pool") -> JaxTask:
    """Return an environment with Brax's interface: ``reset(key)`` and ``step(state, action)``, which return a state.

    Episodes are truncated after ``episode_length`` steps of the environment, as by Brax's wrapper. ``reset``: "full"
    calls its reset at the end of each episode; "pool" starts in the state in which the environment first began.
    """
    if reset not in ("pool", "full"):
        raise EnvError(f"env.kwargs: reset = {reset!r}: expected pool or full.")
    jax = import_jax()
    jnp = jax.numpy

    def init(key: object) -> tuple[Any, Any]:
        state = env.reset(key)
        return state.obs, (state, jnp.zeros((), jnp.int32))

    def step(key: object, both: tuple[Any, Any], action: object) -> tuple[Any, ...]:
        state, steps = both

        def once(before: object, _: object) -> tuple[Any, Any]:
            after = env.step(before, action)
            return after, after.reward

        state, rewards = jax.lax.scan(once, state, (), action_repeat)
        steps, terminal = steps + action_repeat, state.done > 0
        rewards = jnp.where(jnp.isnan(state.done), jnp.nan, rewards)  # NaN is above nothing: nobody would notice
        success = [state.metrics["success"]] if "success" in state.metrics else []
        return state.obs, (state, steps), rewards.sum(), terminal, (steps >= episode_length) & ~terminal, *success

    def restart(key: object, obs: object, first: tuple[Any, Any]) -> tuple[Any, Any]:
        state, steps = first
        # Otherwise the random numbers of each episode would be those of the first.
        return obs, (state.replace(info={**state.info, "rng": key}) if "rng" in state.info else state, steps)

    def at_random_age(key: object, both: tuple[Any, Any]) -> tuple[Any, Any]:
        return both[0], jax.random.randint(key, (), 0, episode_length, jnp.int32)

    shapes = jax.eval_shape(env.reset, jax.random.PRNGKey(0)).obs
    space: Space
    if isinstance(shapes, Mapping):
        space = spaces.Dict({key: _box(x.shape) for key, x in shapes.items()})
    else:
        space = _box(shapes.shape)
    action = spaces.Box(-1.0, 1.0, (env.action_size,), np.float32)
    limit = -(-episode_length // action_repeat)
    pool = restart if reset == "pool" else None
    return JaxTask(init, step, space, action, limit, {}, action_repeat, pool, at_random_age)


def _box(shape: tuple[int, ...]) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def to_space(space: Any) -> Any:
    """Return Gymnasium's form of a space of gymnax, Craftax, navix or mjlab."""
    if isinstance(space, spaces.Space):
        return space
    inner = getattr(space, "spaces", None)
    if inner is not None:
        is_tuple = isinstance(inner, list | tuple)
        return (
            spaces.Tuple([*map(to_space, inner)])
            if is_tuple
            else spaces.Dict({key: to_space(part) for key, part in inner.items()})
        )
    shape, dtype = tuple(space.shape), np.dtype(getattr(space, "dtype", np.float32))
    count = getattr(space, "n", None)
    if count is None and type(space).__name__ == "Discrete":  # navix: of any shape, from 0 to a maximum
        count = int(np.max(space.maximum)) + 1
    if count is not None:
        return spaces.Discrete(int(count)) if not shape else spaces.MultiDiscrete(np.full(shape, int(count)))
    low, high = ("low", "high") if hasattr(space, "low") else ("minimum", "maximum")
    bounds = [np.broadcast_to(getattr(space, name), shape).astype(dtype) for name in (low, high)]
    kind: Any = dtype.type
    return spaces.Box(bounds[0], bounds[1], shape, dtype=kind)


SUITES: dict[str, Callable[..., JaxTask]] = {
    "gymnax": gymnax, "craftax": craftax, "navix": navix, "jumanji": jumanji, "brax": brax, "playground": playground,
}  # fmt: skip
NAMES: dict[str, Callable[[Any], Iterable[str]]] = {
    "gymnax": lambda load: load("gymnax").registered_envs,
    "navix": lambda load: load("navix").registry(),
    "jumanji": lambda load: load("jumanji").registered_environments(),
    "brax": lambda load: load("brax.envs")._envs,
    "playground": lambda load: load("mujoco_playground").registry.ALL_ENVS,
}
"""The names of each suite that has a list of them, given ``importlib.import_module``."""


def make_task(env_id: str, kwargs: Mapping[str, Any]) -> JaxTask:
    """Return the environment ``SUITE/NAME``, the same object for the same arguments; EnvError if it is unknown."""
    return _make_task(env_id, json.dumps(kwargs, sort_keys=True))


@functools.lru_cache(maxsize=16)
def _make_task(env_id: str, kwargs: str) -> JaxTask:
    suite, _, name = env_id.partition("/")
    import_jax()
    try:
        if suite in NAMES and name not in (known := [*NAMES[suite](importlib.import_module)]):
            raise EnvError(
                f"unknown environment '{env_id}'.{did_you_mean(name, known)} All: {', '.join(sorted(known))}."
            )
        task = SUITES[suite](name, **json.loads(kwargs))
        return task._replace(packages={package: version(package) for package in (suite, "jax")})
    except ImportError as error:
        raise EnvError(f"environment '{env_id}' needs the package '{suite}' ({error}): pip install {suite}") from error
    except EnvError:
        raise
    except Exception as error:  # of any kind: third-party code runs here
        raise EnvError(
            f"environment '{env_id}' with env.kwargs = {kwargs} failed with {format_error(error)}"
        ) from error
