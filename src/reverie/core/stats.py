"""What updates say, typed: a dataclass for each algorithm, whose documented fields are the names in every log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Self

from torch import Tensor

from reverie.core.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Numbers of one update, without gradient and still on the learner's device.

    A field ``loss_actor`` is ``loss/actor`` in ``Update.metrics`` and with every logger: the word before the first
    underscore is the group. A field with a default is not said by every update.
    """

    @classmethod
    def names(cls, *, always: bool = False) -> dict[str, str]:
        """The field of each name in the logs; with ``always`` only of those that every update says."""
        chosen = [f.name for f in fields(cls) if not always or f.default is MISSING]
        return {name.replace("_", "/", 1): name for name in chosen}

    @classmethod
    def of(cls, metrics: Mapping[str, Tensor]) -> Self:
        """The metrics of an update with their types.

        Raises:
            DataError: some are missing, or are none of this algorithm's.
        """
        names = cls.names()
        unknown, missing = sorted(metrics.keys() - names.keys()), sorted(cls.names(always=True).keys() - metrics.keys())
        if unknown or missing:
            raise DataError(f"{cls.__name__}: {missing} are missing, {unknown} are none of its: are they another's?")
        return cls(**{names[key]: value for key, value in metrics.items()})
