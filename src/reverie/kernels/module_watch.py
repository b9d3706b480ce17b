"""Noticing that modules were changed since something was prepared or captured from them, without walking through them.

A full check takes 20 microseconds where the caches are cold, too long before every update and action.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.utils.hooks import RemovableHandle

from reverie.core.config import Config
from reverie.core.kernel_dispatch import ModuleChanges
from reverie.nn.modules import find_hook

Attributes = dict[str, Any]
_PLAIN = int | float | str | Config | None
_INTERNAL = frozenset(vars(nn.Module()))  # attributes that PyTorch gives every module


class ModuleWatch:
    """A module and all modules below it, with their classes, hooks and public attributes.

    It refers to the module only weakly, so that caches may be keyed by modules. What changes inside an attribute, such
    as an entry of a list, is not noticed.
    """

    def __init__(self, root: nn.Module, ignored: Collection[str] = (), others: Sequence[Attributes] = ()) -> None:
        """``ignored``: attributes of ``root`` that may change. ``others``: attributes of other objects, optimizers."""
        self.root: weakref.ReferenceType[nn.Module] = weakref.ref(root)
        self.ignored = ignored
        self.others = others
        self.refresh()

    def refresh(self) -> None:
        """Remember the present state."""
        root: Any = self.root()
        modules = list(root.modules())
        self.children: list[Attributes] = [module._modules for module in modules if module._modules]
        self.tables: list[Attributes] = [*[module.__dict__ for module in modules[1:]], *self.others]
        # Numbers, strings and settings of the module itself: other attributes may refer to it.
        own = [name for name, x in vars(root).items() if isinstance(x, _PLAIN) and self._is_own(name)]
        self.get_own: Callable[[Attributes], Any] = operator.itemgetter(*own, *own[:1]) if own else len
        self.own: Any = self.get_own(vars(root))
        self.tensors: list[tuple[Attributes, str, Tensor]] = [
            (table, name, x) for table in self.tables for name, x in table.items() if isinstance(x, Tensor)
        ]
        named = [(table, [name for name, x in table.items() if _is_compared(name, x)]) for table in self.tables]
        # A getter of two names at least returns a tuple.
        self.getters: list[Any] = [(operator.itemgetter(*names, names[0]), table) for table, names in named if names]
        self.names: list[str] = [name for _, names in named if names for name in (*names, names[0])]
        self.before: list[Any] = [get(table) for get, table in self.getters]
        self.structure: tuple[Any, ...] = self._structure(root)
        self.hook: str = find_hook(root)
        self.num_handles: int = RemovableHandle.next_id
        self.num_noted: int = ModuleChanges.count

    def has_hint(self) -> bool:
        """Return whether something may have changed: a hook, or what :class:`ModuleChanges` counts."""
        return self.num_noted != ModuleChanges.count or self.num_handles != RemovableHandle.next_id or self.hook != ""

    def find_change(self) -> str:
        """Return what has changed since :meth:`refresh`, or an empty string."""
        root: Any = self.root()
        self.num_noted = ModuleChanges.count
        if self.hook or self.num_handles != RemovableHandle.next_id:  # each new hook takes the next number
            self.num_handles = RemovableHandle.next_id
            if (hook := find_hook(root)) != self.hook:
                return f"a hook of {hook or self.hook}"
        if self._structure(root) != self.structure:
            return "its modules"
        try:
            now = [get(table) for get, table in self.getters]
            if now == self.before and self.get_own(vars(root)) == self.own and self._has_same_tensors():
                return ""
        except (KeyError, RuntimeError, ValueError):  # an attribute was deleted, or replaced by an array
            return "an attribute"
        pairs = zip(self.names, chain.from_iterable(now), chain.from_iterable(self.before), strict=True)
        return f"the attribute {next((name for name, x, before in pairs if x != before), 'of the learner')}"

    def _structure(self, root: nn.Module) -> tuple[Any, ...]:
        children = [*chain.from_iterable(map(dict.values, self.children))]
        return children, [*map(type, children)], [*map(len, self.tables)], len(vars(root))

    def _has_same_tensors(self) -> bool:
        return all(table.get(name) is x for table, name, x in self.tensors)

    def _is_own(self, name: str) -> bool:
        return name not in _INTERNAL and name not in self.ignored


def _note_registration(*_: object) -> None:
    ModuleChanges.note()


register_module_module_registration_hook(_note_registration)  # whoever replaces a module


def _is_compared(name: str, x: object) -> bool:
    return name not in _INTERNAL and not name.startswith("_") and not isinstance(x, Tensor | list | dict)
