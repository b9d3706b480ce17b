"""Environment suites that are optional extras: ids, registration with Gymnasium, and how each was tested."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import difflib
import functools
import importlib
import os
import re
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id

from reverie.core.errors import EnvError, did_you_mean, format_error
from reverie.core.imports import OFFERED
from reverie.envs.registration import register_env

ENVPOOL = "envpool/"
"""EnvPool ids, which are used unchanged."""
JAX_SUITES = ("gymnax/", "craftax/", "navix/", "jumanji/", "brax/", "playground/")
"""Beginnings of the ids of environments in JAX (``envs/jax_suites.py``); the package is called the same."""
RANDOM_START = "random_start"
"""Argument in ``env.kwargs`` of environments in JAX: begin the first episodes of training at random ages."""
TRAINING_KWARGS: dict[str, tuple[str, ...]] = {
    RANDOM_START: JAX_SUITES,
    "opening_moves": ("reverie/", "pettingzoo/", "open_spiel/"),
}
"""Arguments in ``env.kwargs`` that evaluations omit, and the beginnings of the ids of their environments."""
EGL_PLATFORM_DEVICE = 0x313F


def _atari(_: str) -> None:
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner from each emulator
    gymnasium.register_envs(ale_py)


def _dm_control(_: str = "") -> None:
    choose_renderer()
    import shimmy

    _forget_removed_fields()
    gymnasium.register_envs(shimmy)


def _module(name: str) -> Callable[[str], None]:
    """Return a function that imports a module, which registers its environments."""
    return lambda _: gymnasium.register_envs(importlib.import_module(name))


def _minatar(_: str) -> None:
    import minatar.gym

    if "MinAtar/Breakout-v1" not in gymnasium.registry:
        minatar.gym.register_envs()


def _miniworld(_: str) -> None:
    if _is_headless():
        os.environ.setdefault("PYGLET_HEADLESS", "1")
    import miniworld

    gymnasium.register_envs(miniworld)


def _super_mario(_: str) -> None:
    import gym_super_mario_bros  # for Python 3.12 and older, with the old Gym

    if hasattr(gym_super_mario_bros, "SuperMarioBrosEnv") and find_spec("gym"):
        import gym

        for old in [name for name in gym.envs.registry if name.startswith("SuperMarioBros")]:
            register_env(old, "super_mario", old_id=old)


def _memory_maze(_: str) -> None:
    _dm_control()
    importlib.import_module("memory_maze.tasks")
    for size in ("9x9", "11x11", "13x13", "15x15"):
        register_env(f"MemoryMaze-{size}-v0", "MemoryMaze", size=size)


def _procgen(_: str) -> None:
    for name in importlib.import_module("procgen.env").ENV_NAMES:
        register_env(f"procgen-{name}-v0", "Procgen", name=name)


def _craftax(_: str) -> None:
    importlib.import_module("craftax")
    for name in ("Craftax-Symbolic", "Craftax-Pixels", "Craftax-Classic-Symbolic", "Craftax-Classic-Pixels"):
        register_env(f"{name}-v1", "Craftax", name=f"{name}-v1")


def _ogbench(env_id: str) -> None:
    choose_renderer()
    if env_id.startswith("visual-") and os.environ.get("MUJOCO_GL") == "disable":
        raise EnvError(
            f"{env_id} observes pictures, but MUJOCO_GL = disable, which is the default without a screen and without "
            "EGL or OSMesa. Install libegl1 (draws on a GPU, or on the CPU with libegl-mesa0) or libosmesa6, or set "
            "MUJOCO_GL."
        )
    gymnasium.register_envs(importlib.import_module("ogbench"))


def _any(package: str, maker: str, argument: str, module: str = "adapters") -> Callable[[str], None]:
    """Return a function that registers ``SUITE/NAME``, or any id: ``maker`` receives ``NAME``, or the whole id."""

    def register(env_id: str) -> None:
        importlib.import_module(package)
        if env_id:
            kwargs: dict[str, Any] = {argument: env_id.rpartition("/")[2]}
            register_env(env_id, maker, module, **kwargs)

    return register


def _crafter(_: str) -> None:
    importlib.import_module("crafter")
    register_env("CrafterReward-v1", "Crafter", "crafter", reward=True)
    register_env("CrafterNoReward-v1", "Crafter", "crafter", reward=False)


class Suite(NamedTuple):
    """Environments of one package, recognized by the ``prefixes`` of their ids."""

    title: str
    prefixes: tuple[str, ...]
    package: str
    extra: str
    """The extra that installs it; empty if there is none."""
    register: Callable[[str], None] | None
    """Registers an id. None: Gymnasium has registered it."""
    example: str
    """Algorithm, environment and options of `reverie train` with which the suite was tested."""
    untested_reason: str = ""
    """Why the suite was not tested by training, but its adapter with a stand-in of its published interface. Empty: it
    was."""


# fmt: off
SUITES = (
    Suite("Atari", ("ALE/",), "ale_py", "atari", _atari, "dqn --env ALE/Pong-v5"),
    Suite("DeepMind Control", ("dm_control/",), "dm_control", "dmc", _dm_control,
          "dreamer_v3 --env dm_control/cartpole-balance-v0"),
    Suite("MiniGrid, BabyAI", ("MiniGrid-", "BabyAI-", "reverie/Rooms-"), "minigrid", "minigrid", _module("minigrid"),
          "dreamer_v3 --env MiniGrid-Dynamic-Obstacles-5x5-v0"),
    Suite("MinAtar", ("MinAtar/",), "minatar", "minatar", _minatar, "dqn --env MinAtar/Breakout-v1"),
    Suite("Crafter", ("Crafter",), "crafter", "crafter", _crafter, "dreamer_v3 --env CrafterReward-v1"),
    Suite("Box2D", ("LunarLander", "BipedalWalker", "CarRacing"), "Box2D", "box2d", None, "dqn --env LunarLander-v3"),
    Suite("MuJoCo", ("Ant-", "HalfCheetah-", "Hopper-", "Humanoid", "InvertedDoublePendulum-", "InvertedPendulum-",
          "Pusher-", "Reacher-", "Swimmer-", "Walker2d-"), "mujoco", "mujoco", None, "sac --env HalfCheetah-v5"),
    Suite("Gymnasium-Robotics", ("FetchReach", "FetchPush", "FetchSlide", "FetchPick", "HandReach", "HandManipulate",
          "AdroitHand", "FrankaKitchen-", "PointMaze_", "AntMaze_"),
          "gymnasium_robotics", "robotics", _module("gymnasium_robotics"), "sac --env FetchReach-v4"),
    Suite("OGBench", ("pointmaze-", "antmaze-", "humanoidmaze-", "antsoccer-", "cube-", "scene-", "puzzle-", "visual-",
          "powderworld-"), "ogbench", "ogbench", _ogbench,
          "gcbc --data ogbench:pointmaze-medium-navigate-v0 --env pointmaze-medium-v0"),
    Suite("MiniWorld", ("MiniWorld-",), "miniworld", "miniworld", _miniworld, "dreamer_v3 --env MiniWorld-OneRoom-v0"),
    Suite("Memory Maze", ("MemoryMaze-",), "memory_maze", "memory_maze", _memory_maze,
          "dreamer_v3 --env MemoryMaze-9x9-v0"),
    Suite("ProcGen", ("procgen-",), "procgen", "", _procgen, "dreamer_v3 --env procgen-coinrun-v0"),
    Suite("Craftax", ("Craftax-",), "craftax", "craftax", _craftax, "dqn --env Craftax-Classic-Symbolic-v1"),
    Suite("Flappy Bird", ("FlappyBird-",), "flappy_bird_gymnasium", "flappy_bird", _module("flappy_bird_gymnasium"),
          "dqn --env FlappyBird-v0"),
    Suite("Super Mario Bros.", ("SuperMarioBros",), "gym_super_mario_bros", "mario", _super_mario,
          "dreamer_v3 --env SuperMarioBros-v3"),
    Suite("PettingZoo, one agent", ("pettingzoo/",), "pettingzoo", "pettingzoo",
          _any("pettingzoo", "pettingzoo_env", "name", "turn_based"), "dqn --env pettingzoo/classic.connect_four_v3"),
    Suite("OpenSpiel, two players", ("open_spiel/",), "pyspiel", "open_spiel",
          _any("pyspiel", "OpenSpielGame", "name", "turn_based"), "muzero --env open_spiel/tic_tac_toe"),
    Suite("MineDojo", ("minedojo/",), "minedojo", "", _any("minedojo", "minedojo", "task"),
          "dreamer_v3 --env minedojo/harvest_milk", "its Minecraft needs Java 8 and is downloaded when it is built"),
    Suite("tests", ("reverie/",), "reverie", "", lambda _: None, "dqn --env reverie/Count-v0"),
)
# fmt: on
"""The suite "tests" has environments with known best returns, to test learners."""
OFFERED.update(suite.package for suite in SUITES if suite.register is not None)


def register_suite(env_id: str) -> None:
    """Register the suite that ``env_id`` belongs to, if any."""
    for suite in SUITES:
        if suite.register is not None and env_id.startswith(suite.prefixes):
            try:
                suite.register(env_id)
            except ImportError as error:
                if env_id in gymnasium.registry:  # a user's environment whose name resembles the suite's
                    return
                how = _install_hint(suite) or f" Note that {suite.untested_reason}."
                needs = f"environment '{env_id}' needs the package '{suite.package}' ({error})"
                raise EnvError(f"{needs}.{how}") from error
            except EnvError:
                raise
            except Exception as error:  # of any kind: third-party code runs here
                failed = f"environment '{env_id}': importing '{suite.package}' failed with {format_error(error)}"
                raise EnvError(f"{failed}.{renderer_hint(error)}") from error


def _install_hint(suite: Suite) -> str:
    """Return how to install the package of ``suite``; "" if no extra does."""
    return f' Install it with: pip install "reverie-rl[{suite.extra}]"' if suite.extra else ""


def has_goal_tasks(env_id: str) -> bool:
    """Return whether ``env_id`` is an environment of OGBench that supplies goals, so that success is its score."""
    suite = next(suite for suite in SUITES if suite.package == "ogbench")
    return env_id.startswith(suite.prefixes) and "-singletask-" not in env_id


def missing_package_hint(env_id: str) -> str:
    """Return how to install the package of the suite of ``env_id``; "" if it is installed."""
    missing = (suite for suite in SUITES if env_id.startswith(suite.prefixes) and find_spec(suite.package) is None)
    return "".join(map(_install_hint, missing))


def registered_spec(env_id: str) -> EnvSpec | None:
    """Return the spec of ``env_id``, without a version that of its newest version; None if it is not registered."""
    if env_id not in gymnasium.registry:
        with contextlib.suppress(gymnasium.error.Error):
            space, bare, version = parse_env_id(env_id)
            if version is None:
                env_id = get_env_id(space, bare, find_highest_version(space, bare))
    return gymnasium.registry.get(env_id)


def suite_id(env_id: str) -> str:
    """Return ``env_id`` as presets know it: ale_py also registers games without ``ALE/``, like ``Pong-v4``."""
    name = env_id.rpartition(":")[2]
    is_of_suite = any(name.startswith(suite.prefixes) for suite in SUITES)
    if name.endswith(("-v0", "-v4")) and not is_of_suite and registered_spec(name) is None:
        with contextlib.suppress(ImportError):
            _atari(name)
    return f"ALE/{name.removeprefix('ALE/')}" if is_atari(name) else env_id


def is_atari(env_id: str) -> bool:
    """Return whether ``env_id``, without a module, is a game that ale_py has registered."""
    spec = registered_spec(env_id)
    return spec is not None and str(spec.entry_point).startswith("ale_py")


def register_id(env_id: str) -> None:
    """Register the suite of ``env_id``; if its prefix tells none, import suites until one has the id or a similar id.

    The most similar suite is imported first.
    """
    register_suite(env_id)
    suite_id(env_id)  # imports ale_py if its games have such ids
    if registered_spec(env_id) is not None:
        return
    for suite in sorted(SUITES, key=lambda suite: -difflib.SequenceMatcher(None, suite.prefixes[0], env_id).ratio()):
        if difflib.get_close_matches(env_id, gymnasium.registry, n=1, cutoff=0.8):
            return
        with contextlib.suppress(Exception):
            if suite.register is not None:
                suite.register("")


def check_id(env_id: str) -> None:
    """Check that ``env_id``, without a module, is registered; without a version, its newest version.

    Makes no environment.
    """
    if env_id.startswith((ENVPOOL, *JAX_SUITES)):
        return
    register_id(env_id)
    if registered_spec(env_id) is None:
        raise unknown_env_error(env_id)


def unknown_env_error(env_id: str) -> EnvError:
    """Return the error for an unknown id, which suggests a similar id that is registered."""
    module, _, name = env_id.rpartition(":")
    if module:
        near = did_you_mean(name, gymnasium.registry)
        if callable(getattr(sys.modules.get(module), name, None)):
            near = f" If {name}(num_envs) makes many environments at once, set env.vectorization = native."
        call = f"gymnasium.register('{name}', entry_point=...)"
        return EnvError(f"unknown environment '{env_id}': importing '{module}' does not register it: {call}.{near}")
    missing = [suite.extra for suite in SUITES if suite.extra and find_spec(suite.package) is None]
    extras = f' More environments come with pip install "reverie-rl[{",".join(missing)}]".' if missing else ""
    rule = " For a custom environment, use 'module:Id', where importing the module registers Id."
    path = Path(f"{env_id.removesuffix('.py')}.py")
    if path.is_file():
        rule = f" {path} is a file: use '{path.stem}:Id' in its folder, where it registers Id."
    return EnvError(f"unknown environment '{env_id}'.{did_you_mean(name, gymnasium.registry)}{extras}{rule}")


# ---------------------------------------------------------------- versions

ARRAY_PACKAGES = ("numpy", "torch", "reverie")
"""Packages of an environment's attributes that are no simulators, and this one, whose version is saved anyway."""


def package_versions(env: object) -> dict[str, str]:
    """Return the versions of the packages of an environment or vector, of its wrappers and of its simulator, by name.

    The simulator is an attribute of the environment, or the package of a suite that one of these packages requires.
    """
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper | gymnasium.vector.VectorWrapper):
        layers.append(layers[-1].env)
    objects = [*layers, *getattr(layers[-1], "__dict__", {}).values()]
    modules = {kind.__module__.partition(".")[0] for value in objects for kind in type(value).__mro__}
    versions: dict[str, str] = {}
    for module in sorted(modules - {*sys.stdlib_module_names, *ARRAY_PACKAGES}):
        versions |= _module_versions(module)
    return versions


@functools.cache
def _module_versions(module: str) -> dict[str, str]:
    try:
        package = distribution(module)
    except (PackageNotFoundError, ValueError):  # of another name, or none
        version = getattr(sys.modules.get(module), "__version__", None)
        return {} if version is None else {module: str(version)}
    names = [re.split(r"[^\w.-]", line)[0] for line in package.requires or [] if "extra ==" not in line]
    simulators = {suite.package for suite in SUITES} & set(names)
    return {package.name: package.version, **{name: distribution(name).version for name in simulators}}


# ---------------------------------------------------------------- drawing without a screen


def choose_renderer() -> None:
    """Set ``MUJOCO_GL`` if there is no screen and the user has not set it: EGL, else OSMesa, else no renderer."""
    if "MUJOCO_GL" in os.environ or not _is_headless():
        return
    if _egl_works():
        os.environ["MUJOCO_GL"] = "egl"
    else:
        os.environ["MUJOCO_GL"] = "osmesa" if ctypes.util.find_library("OSMesa") else "disable"


def renderer_hint(error: BaseException) -> str:
    """Return advice for an OpenGL ``error`` if ``MUJOCO_GL`` names a renderer; "" for other errors."""
    modules = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in walk_tb(error.__traceback__)}
    if "MUJOCO_GL" not in os.environ or not ("OpenGL" in modules or "MUJOCO_GL" in str(error)):
        return ""
    return (
        f" MUJOCO_GL = {os.environ['MUJOCO_GL']}: this renderer does not work here. Install its library (libosmesa6 "
        "for osmesa, libegl1 for egl), or set another: egl, osmesa, or disable if nothing is rendered."
    )


def _is_headless() -> bool:
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return not screen and sys.platform.startswith("linux")


def _egl_works() -> bool:
    """Return whether EGL can open a display on some device (a GPU, or Mesa's software renderer)."""
    try:
        egl = ctypes.CDLL("libEGL.so.1")
        egl.eglGetProcAddress.restype = ctypes.c_void_p
        query = _function(egl, b"eglQueryDevicesEXT", ctypes.c_uint)
        display_of = _function(egl, b"eglGetPlatformDisplayEXT", ctypes.c_void_p)
    except (OSError, AttributeError):
        return False
    devices, count = (ctypes.c_void_p * 16)(), ctypes.c_int()
    if not query(ctypes.c_int(16), devices, ctypes.byref(count)):
        return False
    for device in devices[: count.value]:
        display = display_of(ctypes.c_uint(EGL_PLATFORM_DEVICE), ctypes.c_void_p(device), None)
        if display and egl.eglInitialize(ctypes.c_void_p(display), None, None):
            return True
    return False


def _function(egl: ctypes.CDLL, name: bytes, result: type) -> Callable[..., Any]:
    address = egl.eglGetProcAddress(ctypes.c_char_p(name))
    if not address:
        raise AttributeError(name)
    return ctypes.CFUNCTYPE(result)(address)


def dm_control_view(env_id: str, size: tuple[int, int] | None) -> dict[str, Any]:
    """Return the arguments of an environment of dm_control's suite that choose a camera, and ``(height, width)``.

    The default camera does not move, so bodies that walk leave the picture. Published results from pixels have camera
    0, and 2 for the quadruped (github.com/danijar/dreamerv3, embodied/envs/dmc.py), and render at the learner's size.
    """
    domain = re.fullmatch(r"dm_control/(\w+)-\w+-v\d+", env_id)
    if domain is None:  # locomotion and manipulation have their own cameras
        return {}
    camera = {"camera_id": 2 if domain[1] == "quadruped" else 0}
    return {"render_kwargs": camera | ({} if size is None else {"height": size[0], "width": size[1]})}


def _forget_removed_fields() -> None:
    """Remove fields that MuJoCo 4 no longer has from the list in dm_control 1.0.50, which reads all of them by name."""
    import mujoco  # type: ignore[import-untyped, import-not-found, unused-ignore]  # has no types
    from dm_control.mujoco.wrapper.mjbindings import sizes

    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    for name, struct in (("mjmodel", model), ("mjdata", mujoco.MjData(model))):
        fields = sizes.array_sizes[name]
        for field in [field for field in fields if not hasattr(struct, field)]:
            del fields[field]
