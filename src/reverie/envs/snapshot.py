"""The state of one environment in mid-episode, as bytes, and how to restore it in a newly made environment.

For each layer, from the outermost wrapper to the environment itself, the first of these methods that applies:

1. Its own ``snapshot() -> state`` and ``restore(state)``, if its class has both. Its ``np_random`` is saved as well.
2. Its fields, pickled, all layers together so that shared objects stay shared. Emulators and simulators among the
   fields are saved as in ``NATIVE_STATE_HANDLERS``. Local functions and rendering objects are not saved: the new
   environment keeps its own. Large arrays and texts that equal those of a new environment, such as tables that it
   reads, are not saved either.

An environment cannot be saved if it contains objects that pickle would create again (``EzPickle``) or cannot pickle,
arrays that share memory, local functions that may have state, or values in ``__slots__``. State outside of the
environment is not saved: module globals, files, a server.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import hashlib
import importlib
import inspect
import io
import itertools
import math
import pickle
import sys
import types
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import gymnasium
import numpy as np

from reverie.core.errors import EnvError
from reverie.envs.config import Env
from reverie.envs.wrappers import wrapper_stack

if TYPE_CHECKING:
    from ale_py import ALEInterface, ALEState

FORMAT = 5
LARGE_BYTES = 2**16
"""Bytes from which a value is left out of a snapshot if a new environment has an equal value."""
MAX_CONSTANTS = 1000
"""Maximum number of constants of a field that are compared with those of a new environment."""
RNG_FIELDS = ("_np_random", "_np_random_seed")
"""Fields of the random generator that Gymnasium gives each environment."""
CONSTANT_FIELDS = {"spec", "metadata", "_ezpickle_args", "_ezpickle_kwargs"}
RENDERING_CLASSES = {
    "pygame": {"Surface", "Clock", "Font", "Sound", "Window", "Renderer", "Texture"},
    "matplotlib": {"Artist", "FigureCanvasBase", "FigureManagerBase", "Animation"},
    "glfw": {"object"},
    "OpenGL": {"object"},
}
"""Base classes of rendering objects, by package. Other classes, such as pygame.Rect, contain state."""
VIEWER_PACKAGES = {
    "gym",
    "gymnasium",
    "gymnasium_robotics",
    "mujoco",
    "mujoco_py",
    "dm_control",
    "highway_env",
    "robosuite",
}
"""Packages whose classes named ``...Renderer`` and ``...Viewer`` are rendering objects."""
STICKY_TOLERANCE = 1e-12
"""Tolerated probability that the last action of an Atari emulator is still being repeated."""
CONSTANT_TYPES = (types.NoneType, bool, int, float, str, bytes, type, types.ModuleType, types.BuiltinFunctionType)


LargeValue = np.ndarray | bytes | bytearray | str


class SnapshotError(Exception):
    """The state of this environment cannot be saved."""


@dataclass
class LayerState:
    """The state of one layer; ``stay`` names the fields that keep the values of the new environment."""

    custom: Any = None
    fields: dict[str, Any] = field(default_factory=dict)
    kept_fields: list[str] = field(default_factory=list)
    native: dict[str, bytes] = field(default_factory=dict)


def save_state(env: Env, extra: object = None) -> bytes | None:
    """Return the state of ``env`` together with ``extra``; None if it cannot be saved."""
    layers = wrapper_stack(env)
    try:
        states = [_saved(layer) for layer in layers]
        body = io.BytesIO()
        _Pickler(body, layers, states, getattr(env, "num_large", {})).dump((states, extra))
        constants = _constants(layers)
        fingerprint = getattr(env, "fingerprint", {}).items()
        fingerprint = {name: text for name, text in fingerprint if constants.get(name, text) == text}
        return zlib.compress(pickle.dumps((_identity(layers), fingerprint, body.getvalue())), 1)
    except (Exception, SystemExit):  # any error: third-party code runs here
        return None


def load_state(env: Env, snapshot: bytes) -> tuple[Any, str]:
    """Restore ``snapshot`` in the new ``env``; return the ``extra`` of ``save_state``, and "" or why it failed."""
    layers = wrapper_stack(env)
    try:
        identity, saved_fingerprint, body = pickle.loads(zlib.decompress(snapshot))
        if identity != _identity(layers):
            return None, "it was taken from a different environment, with different settings or by another version"
        fingerprint = getattr(env, "fingerprint", {})
        if edited := [name for name, text in saved_fingerprint.items() if fingerprint.get(name, text) != text]:
            return None, f"{edited[0]} has changed since"
        states, extra = _Unpickler(io.BytesIO(body), layers).load()
    except (Exception, SystemExit) as error:
        return None, f"it cannot be read ({type(error).__name__}: {error})"
    try:
        for layer, state in zip(layers, states, strict=True):
            _restore_layer(layer, state)
    except (Exception, SystemExit) as error:
        raise EnvError(f"it does not fit this environment ({type(error).__name__}: {error})") from error
    return extra, ""


def _identity(layers: list[Env]) -> tuple[object, ...]:
    names = [f"{type(layer).__module__}.{type(layer).__qualname__}" for layer in layers]
    return FORMAT, *names, str(getattr(layers[-1].spec, "id", "")), str(getattr(layers[0], "settings", ""))


def env_fingerprint(env: Env) -> dict[str, str]:
    """Return a fingerprint of a new environment: digests of class sources, and its constants as text, by name.

    Constants are plain fields and small arrays, also inside dictionaries and dataclasses. A snapshot contains all
    fields, so it would restore an outdated constant, or run with edited code. Classes of installed packages do not
    count.
    """
    kinds = {kind for layer in wrapper_stack(env) for kind in type(layer).__mro__}
    sources = {f"the source of {kind.__module__}.{kind.__qualname__}": _digest(kind) for kind in kinds}
    return {name: digest for name, digest in sorted(sources.items()) if digest} | _constants(wrapper_stack(env))


def count_large_values(env: Env) -> dict[bytes, int]:
    """Return the number of different objects with each large value, by its digest, in the fields of ``env``."""
    return {digest: len(objects) for digest, objects in _find_large_values(wrapper_stack(env)).items()}


def _find_large_values(layers: list[Env]) -> dict[bytes, list[Any]]:
    """Return the different objects with each large value, by its digest, in the fields of ``layers``."""
    finders = [_LargeValueFinder(layers) for _ in range(2)]
    for finder, layer in itertools.product(finders, layers):
        for value in () if _has_own(layer) else [*vars(layer).values()]:
            with contextlib.suppress(Exception, SystemExit):  # any error: third-party code runs here
                finder.dump(value)
    out: dict[bytes, list[Any]] = {}
    for value in finders[0].objects.values():
        if id(value) in finders[1].objects:  # it is not only made while it is pickled, perhaps each time another
            out.setdefault(_digest_large(value), []).append(value)
    return out


def _is_large(value: object) -> TypeGuard[LargeValue]:
    """Return whether ``value`` is an array, text or bytes of at least ``LARGE_BYTES``."""
    if type(value) is np.ndarray:
        return value.nbytes >= LARGE_BYTES and not value.dtype.hasobject and value.flags.c_contiguous
    return isinstance(value, bytes | bytearray | str) and len(value) >= LARGE_BYTES


def _digest_large(value: LargeValue) -> bytes:
    """Return a digest of a large value, including its type and shape."""
    if isinstance(value, np.ndarray):
        kind, content = f"{value.dtype} {value.shape}", value.reshape(-1).view(np.uint8).data
    else:
        text = value.encode(errors="surrogatepass") if isinstance(value, str) else value
        kind, content = type(value).__name__, memoryview(text)
    return hashlib.blake2b(content, digest_size=16, person=zlib.crc32(kind.encode()).to_bytes(4)).digest()


def _constants(layers: list[Env]) -> dict[str, str]:
    fields = [(layer, *item) for layer in layers if not _has_own(layer) for item in vars(layer).items()]
    constants = [
        (f"{path} of {type(layer).__qualname__}", text)
        for layer, name, x in fields
        for path, text in itertools.islice(_iter_constants(name, x), MAX_CONSTANTS)
    ]
    return dict(constants)


def _iter_constants(path: str, value: object, depth: int = 3) -> Iterator[tuple[str, str]]:
    """Yield the paths and contents of numbers, texts and small arrays in a field ``value``, such as of settings."""
    is_other = isinstance(value, gymnasium.Env | type | types.ModuleType) or _is_large(value)
    if is_other or path.rpartition(".")[2] in RNG_FIELDS:
        return
    if _is_plain(value):
        text = repr(value)
        yield path, text if len(text) < 100 else hashlib.sha256(text.encode()).hexdigest()
    elif isinstance(value, np.ndarray | np.generic):
        if not value.dtype.hasobject:
            yield path, f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    elif depth:
        # other objects are games in progress, with numbers that are each instance's own, or a new one's by chance
        has_settings = is_dataclass(value) or isinstance(value, types.SimpleNamespace)
        parts = value if isinstance(value, dict) else getattr(value, "__dict__", {}) if has_settings else {}
        for name, part in [*parts.items()]:
            yield from _iter_constants(f"{path}.{name}", part, depth - 1)


def _is_plain(value: object) -> bool:
    if type(value) in (tuple, list):
        return all(map(_is_plain, value))  # type: ignore[call-overload]  # a sequence
    return isinstance(value, types.NoneType | int | float | str)


@functools.cache  # the source that was imported, even if the file is edited afterwards
def _digest(kind: type) -> str:
    """Return a digest of the source of ``kind``; "" if it belongs to an installed package or is not available."""
    package = kind.__module__.partition(".")[0]
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    installed = {"site-packages", "dist-packages"} & set(Path(file).parts)
    with contextlib.suppress(Exception):  # any error: the file can be deleted, or not be Python
        if not installed and package != "reverie" and package not in sys.stdlib_module_names:
            return hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()
    return ""


def _has_own(layer: Env) -> bool:
    return all(callable(getattr(type(layer), name, None)) for name in ("snapshot", "restore"))


def _saved(layer: Env) -> LayerState:
    if _has_own(layer):
        custom_state = layer.snapshot()  # type: ignore[attr-defined]  # looked up above
        if custom_state is None:
            raise SnapshotError
        return LayerState(custom_state, {name: vars(layer)[name] for name in RNG_FIELDS if name in vars(layer)})
    members = [member for kind in type(layer).__mro__ for member in vars(kind).items()]
    if any(isinstance(value, types.MemberDescriptorType) and hasattr(layer, name) for name, value in members):
        raise SnapshotError  # values in __slots__ are not among the fields
    state, layers = LayerState(), (layer, getattr(layer, "env", None))
    for name, value in vars(layer).items():
        native = NATIVE_STATE_HANDLERS.get(_kind_of(value))
        if native is not None:
            state.native[name] = native[0](value)
        constant = name in CONSTANT_FIELDS or (name == "env" and isinstance(layer, gymnasium.Wrapper))
        if native is not None or constant or _is_renderer(value) or _is_local_function(value, layers):
            state.kept_fields.append(name)
        else:
            state.fields[name] = value
    return state


def _restore_layer(layer: Env, state: LayerState) -> None:
    fields = vars(layer)
    if _has_own(layer):
        fields.update(state.fields)
        layer.restore(state.custom)  # type: ignore[attr-defined]  # looked up above
        return
    for name, saved in state.native.items():
        NATIVE_STATE_HANDLERS[_kind_of(fields[name])][1](fields[name], saved)
    staying = {name: fields[name] for name in state.kept_fields if name in fields}
    fields.clear()
    fields.update(staying | state.fields)


def _is_renderer(value: object) -> bool:
    """Return whether ``value`` is a rendering object (window, surface, renderer), or a collection of only these."""
    if isinstance(value, list | tuple | dict):
        inside = value.values() if isinstance(value, dict) else value
        return len(inside) > 0 and all(map(_is_renderer, inside))
    kind = type(value)
    package = kind.__module__.split(".")[0]
    if package in VIEWER_PACKAGES:
        return kind.__name__.endswith(("Renderer", "Viewer"))
    return any(base.__name__ in RENDERING_CLASSES.get(package, ()) for base in kind.__mro__)


def _is_local_function(value: object, layers: tuple[object, ...]) -> bool:
    """Return whether ``value`` is a lambda or nested function.

    It can refer to the ``layers``, as in a new environment.
    """
    if not isinstance(value, types.FunctionType) or "<" not in value.__qualname__:
        return False
    values = [cell.cell_contents for cell in value.__closure__ or ()]
    values += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *vars(value).values()]
    if _assigns_nonlocal(value.__code__) or not all(
        _is_constant(x) or any(x is layer for layer in layers) for x in values
    ):
        raise SnapshotError
    return True


def _assigns_nonlocal(code: types.CodeType) -> bool:
    """Return whether ``code``, or a function within it, assigns to a nonlocal variable."""
    steps = {step.opname for step in dis.get_instructions(code)}
    return bool(steps & {"STORE_DEREF", "DELETE_DEREF"}) or any(
        _assigns_nonlocal(inside) for inside in code.co_consts if isinstance(inside, types.CodeType)
    )


def _is_constant(value: object) -> bool:
    return (
        all(map(_is_constant, value)) if type(value) is tuple else isinstance(value, (*CONSTANT_TYPES, gymnasium.Space))
    )


class _Pickler(pickle.Pickler):
    """Writes references to layers, kept fields and modules instead of their contents."""

    def __init__(
        self, file: io.BytesIO, layers: list[Env], states: list[LayerState], num_large: dict[bytes, int]
    ) -> None:
        """``num_large``: by digest, see :func:`count_large_values`."""
        super().__init__(file, protocol=5)
        self._num_large = num_large
        self._large: dict[bytes, list[Any]] = {}  # the objects that are left out
        self._references: dict[int, tuple[Any, ...]] = {id(layer): ("layer", n) for n, layer in enumerate(layers)}
        self._spans: list[tuple[int, int]] = []
        for n, (layer, state) in enumerate(zip(layers, states, strict=True)):
            for name, value in vars(layer).items():
                if name in state.kept_fields and not isinstance(value, CONSTANT_TYPES):
                    self._references.setdefault(id(value), ("field", n, name))
                if name not in state.fields and isinstance(value, np.ndarray) and value.size:
                    with contextlib.suppress(SnapshotError):
                        self._spans.append(_span(value))

    def dump(self, obj: object) -> None:
        """Write ``obj``; raise SnapshotError if arrays share memory, since pickle would separate them."""
        super().dump(obj)
        if any(after[0] < before[1] for before, after in itertools.pairwise(sorted(self._spans))):
            raise SnapshotError

    def reducer_override(self, obj: object) -> Any:
        torch = sys.modules.get("torch")
        if isinstance(obj, np.ndarray) and obj.size:
            self._spans.append(_span(obj))
        elif torch and isinstance(obj, torch.Tensor) and not isinstance(obj, torch.nn.Parameter):
            start, size = obj.untyped_storage().data_ptr(), obj.untyped_storage().nbytes()
            self._spans += [(start, start + size)] if size else []  # the ``data`` of a parameter follows
        return NotImplemented

    def persistent_id(self, obj: object) -> tuple[Any, ...] | None:
        reference = self._references.get(id(obj))
        if reference is None and isinstance(obj, types.ModuleType):
            return "module", obj.__name__
        if reference is None and not isinstance(obj, type) and any(c.__name__ == "EzPickle" for c in type(obj).__mro__):
            raise SnapshotError
        return self._refer_to_large(obj) if reference is None and self._num_large else reference

    def _refer_to_large(self, obj: object) -> tuple[Any, ...] | None:
        """Return a reference to an equal large value of a new environment, another for each object."""
        if not _is_large(obj):
            return None
        digest = _digest_large(obj)
        if len(objects := self._large.setdefault(digest, [])) >= self._num_large.get(digest, 0):
            return None
        if isinstance(obj, np.ndarray):
            self._spans.append(_span(obj))
        objects.append(obj)
        reference = self._references[id(obj)] = ("large", digest, len(objects) - 1)
        return reference


class _LargeValueFinder(pickle.Pickler):
    """Finds large values in what it writes."""

    def __init__(self, layers: list[Env]) -> None:
        super().__init__(io.BytesIO(), protocol=5)
        self._layers = layers
        self.objects: dict[int, Any] = {}  # by their ids

    def persistent_id(self, obj: object) -> str | None:
        if _is_large(obj):
            self.objects[id(obj)] = obj
            return "large"
        is_native = isinstance(obj, types.ModuleType) or _kind_of(obj) in NATIVE_STATE_HANDLERS
        return "native" if is_native or any(obj is layer for layer in self._layers) else None


def _span(array: np.ndarray) -> tuple[int, int]:
    """Return the addresses where ``array`` begins and ends; raise SnapshotError if its memory belongs to a library."""
    owner: Any = array
    while (base := owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)) is not None:
        owner = base
    if not isinstance(owner, np.ndarray | bytes | bytearray):
        raise SnapshotError
    reach = [(count - 1) * stride for count, stride in zip(array.shape, array.strides, strict=True)]
    start = array.ctypes.data
    return start + sum(x for x in reach if x < 0), start + array.itemsize + sum(x for x in reach if x > 0)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, layers: list[Env]) -> None:
        super().__init__(file)
        self._layers = layers

    @functools.cached_property
    def _large(self) -> dict[bytes, list[Any]]:
        return _find_large_values(self._layers)

    def persistent_load(self, pid: tuple[Any, ...]) -> Any:
        if pid[0] == "module":
            return importlib.import_module(pid[1])
        if pid[0] == "large":
            objects = self._large.get(pid[1], [])
            if len(objects) <= pid[2]:
                raise SnapshotError("a large array or text of the environment has changed since")
            return objects[pid[2]]
        layer = self._layers[pid[1]]
        return layer if pid[0] == "layer" else vars(layer)[pid[2]]


# ---------------------------------------------------------------- emulators and simulators that pickle cannot save


def _kind_of(value: object) -> tuple[str, str]:
    """Return the package and the class name of ``value``, without importing the package."""
    return type(value).__module__.split(".")[0], type(value).__name__


def _save_atari(ale: ALEInterface) -> bytes:
    """Return the state of the Arcade Learning Environment (ALE), which is left unchanged.

    The saved state lacks the last action, which sticky actions repeat. This action is found by trial: the emulator
    repeats it until the random generator (part of the state) first accepts another action. A candidate that leads to
    the same state as the original is the last action, or equivalent to it.
    """
    state, frames, action = ale.cloneState(include_rng=True), _frames(ale), 0
    if frames and not ale.game_over():
        after = _state_after_noops(ale, frames)
        ale.restoreState(state)
        action = _last_action(ale, state, frames, after)
        _restore_atari(ale, state, action, frames)
    return pickle.dumps((state, action))


def _load_atari(ale: ALEInterface, saved: bytes) -> None:
    state, action = pickle.loads(saved)
    ale.reset_game()
    _restore_atari(ale, state, action, _frames(ale))


def _frames(ale: ALEInterface) -> int:
    """Return the number of frames after which a new action has almost surely replaced the last one."""
    sticky = ale.getFloat("repeat_action_probability")
    return math.ceil(math.log(STICKY_TOLERANCE) / math.log(sticky)) if sticky > 0.0 else 0


def _last_action(ale: ALEInterface, state: ALEState, frames: int, after: bytes) -> int:
    for action in range(len(ale.getLegalActionSet())):
        _restore_atari(ale, state, action, frames)
        if _state_after_noops(ale, frames) == after:
            return action
    ale.restoreState(state)
    raise ValueError("no action reproduces the next state of the emulator")


def _restore_atari(ale: ALEInterface, state: ALEState, action: int, frames: int) -> None:
    """Put the emulator in ``state``, with ``action`` as its last action."""
    if frames:
        ale.reset_game()
        for _ in range(frames):
            ale.act(action)
    ale.restoreState(state)


def _state_after_noops(ale: ALEInterface, frames: int) -> bytes:
    for _ in range(frames):
        ale.act(0)
    return pickle.dumps(ale.cloneState(include_rng=True))


def _load_mujoco(data: Any, saved: bytes) -> None:
    sys.modules["mujoco"].mj_copyData(data, data.model, pickle.loads(saved))


def _hash_of(model: object) -> bytes:
    return hashlib.sha256(pickle.dumps(model)).digest()


def _check_model(model: object, saved: bytes) -> None:
    if _hash_of(model) != saved:
        raise ValueError("the MuJoCo model differs from the saved one")


NATIVE_STATE_HANDLERS: dict[tuple[str, str], tuple[Callable[[Any], bytes], Callable[[Any, bytes], None]]] = {
    ("ale_py", "ALEInterface"): (_save_atari, _load_atari),
    ("mujoco", "MjData"): (pickle.dumps, _load_mujoco),  # with derived fields: the next step uses contact forces
    ("mujoco", "MjModel"): (_hash_of, _check_model),  # a new environment has the same model, unless changed
}
"""Functions that save the state of such an object, and load it into a new one, by ``_kind_of``."""
