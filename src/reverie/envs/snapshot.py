"""The state of one environment in the middle of its episode, as bytes; and how a newly made one takes it over.

For each layer, from the outermost wrapper to the environment itself, the first of these ways that fits:

1. Its own ``snapshot() -> state`` and ``restore(state)``, if its class has both. Its ``np_random`` is saved as well.
2. Its fields, pickled, all layers together so that shared objects stay shared, and arrays share their memory. Emulators
   and simulators among the fields are saved as in ``natives``. Local functions and what draws, also within lists,
   tuples and dictionaries, are not saved: those of the new environment stay.

An environment cannot be saved if it holds objects that pickle would make anew (``EzPickle``) or cannot pickle, local
functions that may have state, or values in ``__slots__``. State outside it is not saved: globals of a module, files, a
server.
"""

from __future__ import annotations

import dis
import importlib
import io
import pickle
import types
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from reverie.core.errors import EnvError
from reverie.envs import natives
from reverie.envs.pickled_arrays import NotTaken, PickledArrays, Reduced
from reverie.envs.unchanged import RANDOM, Made, difference, has_own, layers_of

Env = gymnasium.Env[Any, Any]
Path = tuple[Any, ...]
"""Keys and indices, the first one the name of a field."""

FORMAT = 1
CONSTANT = {"spec", "metadata", "_ezpickle_args", "_ezpickle_kwargs"}
EVERYTHING = {"object"}
DRAWING = {
    "pygame": {"Surface", "Clock", "Font", "Sound", "Window", "Renderer", "Texture"},
    "pyglet": {"BaseWindow", "Context", "Batch", "Group", "TextLayout", "AbstractImage", "Font", "Clock"},
    "matplotlib": {"Artist", "FigureCanvasBase", "FigureManagerBase", "Animation"},
    "tkinter": {"Misc", "Image", "Font"},
    "cv2": {"VideoWriter"},
    "pygame_gui": EVERYTHING,
    "glfw": EVERYTHING,
    "OpenGL": EVERYTHING,
}
"""Base classes, by package, of objects of that package that draw. Other classes, such as pygame.Rect, hold state."""
VIEWING = {"gym", "gymnasium", "gymnasium_robotics", "mujoco", "mujoco_py", "dm_control", "highway_env", "robosuite"}
"""Packages whose classes named ``DRAWERS`` draw."""
DRAWERS = ("Renderer", "Viewer")
SIMPLE = (types.NoneType, bool, int, float, str, bytes, type, types.ModuleType, types.BuiltinFunctionType)


@dataclass
class Layer:
    """The state of one layer; ``stay`` names the fields that keep the values of the new environment."""

    own: Any = None
    fields: dict[str, Any] = field(default_factory=dict)
    stay: list[str] = field(default_factory=list)
    native: dict[str, bytes] = field(default_factory=dict)


def take(env: Env, extra: object = None) -> bytes | None:
    """Return everything ``env`` needs to go on, together with ``extra``; None if it cannot be saved."""
    layers = layers_of(env)
    try:
        states = [_taken(layer) for layer in layers]
        body = io.BytesIO()
        _Pickler(body, layers, states).dump((states, extra))
        made = _made(env)
        constant = made and made.unchanged(env)
        return zlib.compress(pickle.dumps((FORMAT, _identity(layers), body.getvalue(), constant)), 1)
    except Exception:  # of any kind: third-party code runs here
        return None


def put(env: Env, snapshot: bytes) -> tuple[Any, str]:
    """Let the new ``env`` go on from ``snapshot``; return the ``extra`` of ``take``, and "" or why it cannot be used.

    Raises:
        EnvError: it does not fit, and ``env`` is left half restored.
    """
    layers = layers_of(env)
    try:
        form, identity, body, *more = pickle.loads(zlib.decompress(snapshot))
        if form != FORMAT:
            return None, f"it has format {form}, but this version writes {FORMAT}"
        if identity != _identity(layers):
            return None, "it was taken from a different environment or with different settings"
        then, now = (more or [None])[0], _made(env)  # earlier versions did not save it
        if then and now and (why := difference(then, env, now)):
            return None, why
        states, extra = _Unpickler(io.BytesIO(body), layers).load()
    except Exception as error:
        return None, f"it cannot be read ({type(error).__name__}: {error})"
    try:
        for layer, state in zip(layers, states, strict=True):
            _given(layer, state)
    except Exception as error:
        raise EnvError(f"it does not fit this environment ({type(error).__name__}: {error})") from error
    return extra, ""


def _identity(layers: list[Env]) -> tuple[str, ...]:
    names = [f"{type(layer).__module__}.{type(layer).__qualname__}" for layer in layers]
    return (*names, str(getattr(layers[-1].spec, "id", "")), str(getattr(layers[0], "settings", "")))


def _made(env: Env) -> Made | None:
    made: Made | None = getattr(env, "made", None)
    return made


def _taken(layer: Env) -> Layer:
    state = Layer()
    if has_own(layer):
        state.own = layer.snapshot()  # type: ignore[attr-defined]  # looked up above
        if state.own is None:
            raise NotTaken
        state.fields = {name: vars(layer)[name] for name in RANDOM if name in vars(layer)}
        return state
    if _has_slots(layer):
        raise NotTaken
    for name, value in vars(layer).items():
        if name in CONSTANT or (name == "env" and isinstance(layer, gymnasium.Wrapper)):
            state.stay.append(name)
        elif native := natives.find(value):
            state.native[name] = native.take(value)
            state.stay.append(name)
        elif _draws(value) or _is_local_function(value):
            state.stay.append(name)
        else:
            state.fields[name] = value
    return state


def _has_slots(layer: Env) -> bool:
    """Return whether ``layer`` has values in ``__slots__``, which are not among its fields."""
    members = [member for kind in type(layer).__mro__ for member in vars(kind).items()]
    return any(isinstance(value, types.MemberDescriptorType) and hasattr(layer, name) for name, value in members)


def _given(layer: Env, state: Layer) -> None:
    fields = vars(layer)
    if has_own(layer):
        fields.update(state.fields)
        layer.restore(state.own)  # type: ignore[attr-defined]  # looked up above
        return
    for name, saved in state.native.items():
        native = natives.find(fields[name])
        assert native is not None
        native.give(fields[name], saved)
    staying = {name: fields[name] for name in state.stay if name in fields}
    fields.clear()
    fields.update(staying)
    fields.update(state.fields)


def _draws(value: object, depth: int = 3) -> bool:
    """Return whether ``value`` is a window, a surface, a renderer and the like, or a collection of nothing else."""
    if isinstance(value, list | tuple | dict):
        inside = value.values() if isinstance(value, dict) else value
        return depth > 0 and len(inside) > 0 and all(_draws(item, depth - 1) for item in inside)
    kind = type(value)
    package = kind.__module__.split(".")[0]
    if package in VIEWING:
        return kind.__name__.endswith(DRAWERS)
    return any(base.__name__ in DRAWING.get(package, ()) for base in kind.__mro__)


def _drawings(value: object, path: Path, seen: set[int]) -> Iterator[tuple[Path, object]]:
    """Yield what draws within the collection ``value``, with its path there; ``seen`` has collections gone through."""
    if _draws(value):
        yield path, value
    elif isinstance(value, list | tuple | dict) and id(value) not in seen:
        seen.add(id(value))
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _drawings(item, (*path, key), seen)


def _is_local_function(value: object) -> bool:
    """Return whether ``value`` is a lambda or nested function, which pickle cannot find by name.

    Raises:
        NotTaken: it is, and it may have state: in variables around it, default arguments or attributes.
    """
    if not isinstance(value, types.FunctionType) or "<" not in value.__qualname__:
        return False
    held = [cell.cell_contents for cell in value.__closure__ or ()]
    held += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *vars(value).values()]
    if _rebinds(value.__code__, set(value.__code__.co_freevars)) or not all(map(_is_constant, held)):
        raise NotTaken
    return True


def _rebinds(code: types.CodeType, names: set[str]) -> bool:
    """Return whether ``code``, or a function within it, assigns to one of its free variables ``names``: nonlocal."""
    steps = dis.get_instructions(code)
    if any(step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in names for step in steps):
        return True
    inside = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return any(_rebinds(each, names & set(each.co_freevars)) for each in inside)


def _is_constant(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_is_constant, value))
    return isinstance(value, SIMPLE) or _is_unsampled(value)


def _is_unsampled(value: object) -> bool:
    """Return whether ``value`` is a space without a random generator as yet, and so without state."""
    if not isinstance(value, gymnasium.Space):
        return False
    parts = getattr(value, "spaces", ())
    inside = parts.values() if isinstance(parts, dict) else parts
    return vars(value)["_np_random"] is None and all(map(_is_unsampled, inside))


class _Pickler(pickle.Pickler):
    """Writes references to layers, to fields that stay, to what draws and to modules in place of their contents."""

    def __init__(self, file: io.BytesIO, layers: list[Env], states: list[Layer]) -> None:
        super().__init__(file, protocol=5)
        pairs = list(zip(layers, states, strict=True))
        left = [x for layer, state in pairs for name, x in vars(layer).items() if name not in state.fields]
        self._arrays = PickledArrays(x for x in left if isinstance(x, np.ndarray))
        self._known: dict[int, tuple[Any, ...]] = {id(layer): ("layer", n) for n, layer in enumerate(layers)}
        for n, (layer, state) in enumerate(pairs):
            for name in state.stay:
                value = vars(layer)[name]
                if not isinstance(value, SIMPLE):
                    self._known.setdefault(id(value), ("field", n, name))
            for path, drawing in _drawings(state.fields, (), set()):
                self._known.setdefault(id(drawing), ("field", n, *path))

    def dump(self, obj: Any) -> None:
        super().dump(obj)
        self._arrays.check()

    def reducer_override(self, obj: Any) -> Reduced | Any:
        if isinstance(obj, np.ndarray):
            return self._arrays.reduced(obj) or NotImplemented
        self._arrays.add_tensor(obj)
        return NotImplemented

    def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
        known = self._known.get(id(obj))
        if known is None and isinstance(obj, types.ModuleType):
            return "module", obj.__name__
        if known is None and not isinstance(obj, type) and any(c.__name__ == "EzPickle" for c in type(obj).__mro__):
            raise NotTaken
        return known


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, layers: list[Env]) -> None:
        super().__init__(file)
        self._layers = layers

    def persistent_load(self, pid: tuple[Any, ...]) -> Any:
        if pid[0] == "module":
            return importlib.import_module(pid[1])
        layer = self._layers[pid[1]]
        if pid[0] == "layer":
            return layer
        found: Any = vars(layer)
        try:
            for key in pid[2:]:
                found = found[key]
        except (LookupError, TypeError):
            where = "".join(f"[{key!r}]" for key in pid[3:])
            raise LookupError(f"there is nothing to draw with at {pid[2]}{where} in the new environment") from None
        return found
