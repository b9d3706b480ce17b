"""Whether a new environment is the same as that of which a snapshot was taken: its classes, and what never changes.

A snapshot holds all fields, so it would bring back the old value of a constant that was edited meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import sys
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from reverie.core.errors import brief

Env = gymnasium.Env[Any, Any]

RANDOM = ("_np_random", "_np_random_seed")
"""Fields of the generator that Gymnasium gives to each environment."""
INSTALLED = {"site-packages", "dist-packages"}


@dataclass(frozen=True)
class Made:
    """What an environment is like when it has just been made.

    ``plain``: fields of each layer that are None, bools, numbers, strings or tuples of these. ``sources``: a digest of
    the source of each class that is not of an installed package, by name, where the source is available.
    """

    plain: tuple[dict[str, Any], ...]
    sources: dict[str, str]

    def unchanged(self, env: Env) -> Made:
        """Return this without the fields whose values are others in ``env`` now: constants remain."""
        now = (vars(layer) for layer in layers_of(env))
        pairs = zip(self.plain, now, strict=True)
        return Made(
            tuple({n: x for n, x in was.items() if n in has and _same(x, has[n])} for was, has in pairs), self.sources
        )


@dataclass(frozen=True)
class Seen:
    """Plain fields of a layer when it had just been made, and when it was let go; None as long as it is in use."""

    made: dict[str, Any]
    left: dict[str, Any] | None = None


_SEEN: dict[int, Seen] = {}
"""Layers by their ids, as they need not be hashable. One that is passed as an instance may be used several times."""


def as_made(env: Env) -> Made:
    """Describe ``env`` as it was made. Layers that save themselves may change their constants.

    An instance that was used before and moved on is still described so, except for what was edited after that use.
    """
    layers = layers_of(env)
    classes = {each for layer in layers for each in type(layer).__mro__}
    sources = {f"{each.__module__}.{each.__qualname__}": _digest(each) for each in classes}
    return Made(
        tuple({} if has_own(layer) else _fields_as_made(layer) for layer in layers),
        {name: digest for name, digest in sources.items() if digest},
    )


def let_go(env: Env) -> None:
    """Remember how ``env`` is left: what is another way when it comes back was edited meanwhile."""
    for layer in layers_of(env):
        if id(layer) in _SEEN:
            _SEEN[id(layer)] = Seen(_SEEN[id(layer)].made, _plain_fields(layer))


def difference(then: Made, env: Env, now: Made) -> str:
    """Return how ``env``, which began as ``now``, differs from what stayed as it was ``then``; "" if it does not."""
    for name, digest in then.sources.items():
        if now.sources.get(name, digest) != digest:
            return f"the source of {name} has changed since"
    for layer, was, has in zip(layers_of(env), then.plain, now.plain, strict=True):
        for name, value in was.items():
            if name in has and not _same(value, has[name]):
                return f"{name} of {type(layer).__qualname__} was {brief(value)} and is {brief(has[name])} now"
    return ""


def layers_of(env: Env) -> list[Env]:
    """Return ``env``, the environments that it wraps from the outermost on, and the environment itself."""
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers


def has_own(layer: Env) -> bool:
    """Return whether the class of ``layer`` defines its own ``snapshot`` and ``restore``."""
    return all(callable(getattr(type(layer), name, None)) for name in ("snapshot", "restore"))


def _plain_fields(layer: Env) -> dict[str, Any]:
    return {name: value for name, value in vars(layer).items() if name not in RANDOM and _is_plain(value)}


def _fields_as_made(layer: Env) -> dict[str, Any]:
    found = _plain_fields(layer)
    if id(layer) not in _SEEN:
        weakref.finalize(layer, _SEEN.pop, id(layer), None).atexit = False
    else:
        seen = _SEEN[id(layer)]
        left = found if seen.left is None else seen.left
        found = seen.made | {n: x for n, x in found.items() if n not in left or not _same(x, left[n])}
    _SEEN[id(layer)] = Seen(found)
    return found


def _is_plain(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _same(one: object, other: object) -> bool:
    """Return whether two plain values are the same; NaN is, 1 and True are not."""
    return type(one) is type(other) and repr(one) == repr(other)


@functools.cache  # so that it is the source that was imported, also if the file is edited afterwards
def _digest(kind: type) -> str:
    """Return a digest of the source of ``kind``; "" if it is of an installed package or not available."""
    package = kind.__module__.partition(".")[0]
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    if package == "reverie" or package in sys.stdlib_module_names or INSTALLED & set(Path(file).parts):
        return ""
    with contextlib.suppress(Exception):  # of any kind: the file may be gone, or no Python
        return hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()
    return ""
