"""Metrics of updates, typed: each algorithm has a dataclass whose documented fields are the names in every log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Self

from torch import Tensor

from reverie.core.errors import DataError

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
        """Return an update's ``metrics`` as an instance of this class."""
        names, mapped = cls.names(), cls._maps()
        maps = {name: field for name, field in names.items() if field in mapped}
        found: dict[str, Tensor | dict[str, Tensor]] = {}
        unknown = []
        for key, value in metrics.items():
            inside = next((name for name in maps if key.startswith(f"{name}/")), None)
            if inside is not None:
                part = found.setdefault(maps[inside], {})
                assert isinstance(part, dict)
                part[key.removeprefix(f"{inside}/")] = value
            elif key in names and key not in maps:
                found[names[key]] = value
            else:
                unknown.append(key)
        missing = sorted(name for name, field in cls.names(always=True).items() if field not in found)
        if unknown or missing:
            wrong = {"missing": missing, "unknown": sorted(unknown)}
            said = "; ".join(f"metrics {names} are {what}" for what, names in wrong.items() if names)
            raise DataError(f"{cls.__name__}: {said}. Check that the metrics are those of this algorithm.")
        return cls(**found)

    @classmethod
    def _maps(cls) -> set[str]:
        return {f.name for f in fields(cls) if _MAPPING.match(str(f.type))}
