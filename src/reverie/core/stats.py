"""Metrics of updates, typed: each algorithm has a dataclass whose documented fields are the names in every log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Self

from torch import Tensor

_MAPPING = re.compile(r"""['"]?(<class ')?([A-Za-z_]\w*\.)*(Mutable)?(Mapping|dict|Dict)\b""")
"""The type of a field that is a mapping, as text: written so, in quotes, or the ``str`` of the type itself."""


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Metrics of one update, detached and still on the learner's device.

    A field ``loss_actor`` is ``loss/actor`` in ``Update.metrics`` and in every log: the word before the first
    underscore is the group. A field with a default is absent from some updates. A field that is a ``Mapping`` or a
    ``dict`` holds the metrics whose names continue after its own: ``loss/reconstruction/image`` is
    ``loss_reconstruction["image"]``.
    """

    @classmethod
    def names(cls, *, always: bool = False) -> dict[str, str]:
        """Return the field of each name in the logs; with ``always``, only of those that every update has."""
        needed = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
        chosen = needed if always else [f.name for f in fields(cls)]
        return {name.replace("_", "/", 1): name for name in chosen}

    @classmethod
    def of(cls, metrics: Mapping[str, Tensor]) -> Self:
        """Return an update's ``metrics`` as this class; TypeError if they are not those of its fields."""
        names, mapped = cls.names(), cls._maps()
        maps = {name: field for name, field in names.items() if field in mapped}
        found: dict[str, Any] = {}
        for key, value in metrics.items():
            inside = next((name for name in maps if key.startswith(f"{name}/")), None)
            if inside is not None:
                found.setdefault(maps[inside], {})[key.removeprefix(f"{inside}/")] = value
            else:
                found[names.get(key, key)] = value
        return cls(**found)

    @classmethod
    def _maps(cls) -> set[str]:
        return {f.name for f in fields(cls) if _MAPPING.match(str(f.type))}
