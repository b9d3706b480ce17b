"""Which keys take which actions: from a file, from the environment, or by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from gymnasium import spaces

from reverie.core.errors import ConfigError, short_repr
from reverie.core.files import read_file
from reverie.core.spaces import Space

IDLE = "idle"
"""Name in a file of the action without a key."""
ARROWS = {"ArrowLeft": "left", "ArrowRight": "right", "ArrowUp": "up forward", "ArrowDown": "down back backward"}
"""Keys, and the names of actions that they take."""
PAIRS = (("ArrowLeft", "ArrowRight"), ("ArrowDown", "ArrowUp"), ("a", "d"), ("s", "w"))
"""Keys of the lowest and the highest value of each number."""
Keys = frozenset[str]


class KeyMap(NamedTuple):
    """Actions by the keys that are held together, in the order of preference."""

    space: Space
    actions: dict[Keys, Any]
    idle: Any = None
    """The action without a key; None: there is none, and each step waits for a key."""

    def choose(self, keys: Keys) -> Any:
        """Return the action of ``keys``; None if there is none. Vectors of single keys add up, within their bounds."""
        if not keys:
            return self.idle
        if keys in self.actions or not isinstance(self.space, spaces.Box):
            return self.actions.get(keys)
        vectors = [self.actions[frozenset({key})] for key in keys if frozenset({key}) in self.actions]
        total = np.sum(vectors, axis=0) if vectors else None
        return None if total is None else np.clip(total, self.space.low, self.space.high).astype(self.space.dtype)

    def describe(self) -> str:
        """Return the keys and their actions, in one line."""
        pairs = [f"{'+'.join(sorted(keys))}: {np.asarray(action).tolist()}" for keys, action in self.actions.items()]
        return ", ".join(pairs) + ("" if self.idle is None else f", none: {np.asarray(self.idle).tolist()}")


def find_keymap(path: Path | None, space: Space, unwrapped: object) -> KeyMap:
    """Return the keys in the file ``path``; without one, those of the environment ``unwrapped``, or default ones.

    ConfigError if a file names wrong keys or actions, or if there is no default for ``space``.
    """
    if path is not None:
        return _read_keymap(path, space)
    names = [str(name).lower() for name in getattr(unwrapped, "get_action_meanings", list)()]
    named: Callable[[], Any] | None = getattr(unwrapped, "get_keys_to_action", None)
    declared = named() if named is not None else getattr(unwrapped, "metadata", {}).get("keys_to_action")
    if declared:
        keymap = KeyMap(space, {_normalize(keys): _read_action(space, action) for keys, action in declared.items()})
        return keymap._replace(idle=keymap.actions.pop(frozenset(), _find_noop(space, names)))
    if isinstance(space, spaces.Discrete):
        return _default_classes(space, names)
    if isinstance(space, spaces.Box) and space.shape and np.prod(space.shape) <= len(PAIRS):
        return _default_numbers(space)
    raise ConfigError(f"there are no default keys for actions in {space}: pass --keys FILE.")


def _read_keymap(path: Path, space: Space) -> KeyMap:
    """Read a YAML file such as ``{ArrowLeft: 0, a+w: 3, idle: 1}``; for numbers, ``{a: [-1, 0]}``."""
    node = yaml.compose(read_file(path).decode())
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}: expected keys and their actions, such as ArrowLeft: 0.")
    keymap, loader = KeyMap(space, {}), yaml.SafeLoader("")
    for key_node, value_node in node.value:
        error_prefix = f"{path}, line {key_node.start_mark.line + 1}: {key_node.value}"
        value = loader.construct_object(value_node, deep=True)
        keys = _normalize(tuple(key_node.value.split("+"))) if key_node.value != IDLE else frozenset()
        if keys in keymap.actions:
            raise ConfigError(f"{error_prefix} has two actions. Remove one of the lines.")
        try:
            keymap.actions[keys] = _read_action(space, value)
        except ConfigError as error:
            raise ConfigError(f"{error_prefix}: {error}") from None
    return keymap._replace(idle=keymap.actions.pop(frozenset(), None))


def _normalize(keys: object) -> Keys:
    """Return keys as a set of names; letters of environments are characters or their numbers."""
    parts = keys if isinstance(keys, tuple | list) else [*keys] if isinstance(keys, str) and len(keys) > 1 else [keys]
    if isinstance(keys, str) and keys in ARROWS:
        parts = [keys]
    names = [chr(key) if isinstance(key, int) else str(key) for key in parts]
    return frozenset("Space" if name == " " else name.lower() if len(name) == 1 else name for name in names)


def _read_action(space: Space, action: object) -> Any:
    """Return ``action`` as one of ``space``; ConfigError if it is none."""
    if isinstance(space, spaces.Discrete) and isinstance(action, int | np.integer):
        fitted: Any = space.dtype.type(action)
    elif space.dtype is not None and not isinstance(action, str | Mapping):
        fitted = np.asarray(action, space.dtype)
    else:
        fitted = action
    if not space.contains(fitted):
        raise ConfigError(f"the action {short_repr(action)} is not in {space}.")
    return fitted


def _default_classes(space: spaces.Discrete, names: Sequence[str]) -> KeyMap:
    """Return digits, and the arrows by the names of the actions, or else for the first ones."""
    actions = {frozenset({str(i)}): _read_action(space, int(space.start) + i) for i in range(min(10, int(space.n)))}
    numbers = [
        next((i for i, name in enumerate(names) if name in meanings.split()), -1) for meanings in ARROWS.values()
    ]
    if max(numbers) < 0:
        numbers = [*range(len(ARROWS))]
    arrows = {frozenset({key}): int(space.start) + i for key, i in zip(ARROWS, numbers, strict=True)
              if 0 <= i < space.n}  # fmt: skip
    keys_to_action = actions | {keys: _read_action(space, action) for keys, action in arrows.items()}
    return KeyMap(space, keys_to_action, _find_noop(space, names))


def _find_noop(space: Space, names: Sequence[str]) -> Any:
    """Return the action of this name; None if there is none."""
    if not isinstance(space, spaces.Discrete) or "noop" not in names:
        return None
    return _read_action(space, int(space.start) + names.index("noop"))


def _default_numbers(space: spaces.Box) -> KeyMap:
    """Return a pair of keys for each number; none is held: zeros, or the middle of the bounds."""
    idle = np.clip(np.zeros(space.shape), space.low, space.high)
    actions: dict[Keys, Any] = {}
    for i, pair in zip(range(idle.size), PAIRS, strict=False):
        for key, bound in zip(pair, (space.low, space.high), strict=True):
            vector = idle.copy()
            vector.flat[i] = bound.flat[i]
            actions[frozenset({key})] = vector.astype(space.dtype)
    return KeyMap(space, actions, idle.astype(space.dtype))
