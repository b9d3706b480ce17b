"""What an environment offers, said once: the shapes and meanings of its observations and actions.

Specs know nothing of Gymnasium. ``envs.spaces`` translates spaces into specs and flat actions back into what an
environment expects; learners build their networks from specs alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ObsKind = Literal["image", "vector", "categorical"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObsPart:
    """One key of the observation.

    Three kinds exist. An ``image`` is ``[H, W, C]``, ``uint8`` in 0..255 or ``float32`` in ``low..high``. A ``vector``
    holds ``float32`` numbers of any shape. A ``categorical`` holds ``int64`` class indices of any shape, with
    ``classes`` giving the number of classes of each element in flat order; the index -1 means "not there".
    """

    kind: ObsKind
    shape: tuple[int, ...]
    dtype: str
    classes: tuple[int, ...] = ()
    low: float = 0.0
    """Images: the value of black."""
    high: float = 255.0
    """Images: the value of white."""

    @property
    def width(self) -> int:
        """Numbers this part has once flattened, with one-hot vectors in place of classes."""
        return sum(self.classes) if self.kind == "categorical" else math.prod(self.shape)


ObsSpec = Mapping[str, ObsPart]
"""Observation parts by key. Nested spaces have keys such as ``arm/camera``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPart:
    """One key of the action.

    ``categorical``: one choice per entry of ``classes``. ``continuous``: ``size`` numbers, which the policy sees
    scaled to [-1, 1].
    """

    kind: Literal["categorical", "continuous"]
    classes: tuple[int, ...] = ()
    size: int = 0

    @property
    def width(self) -> int:
        """How many numbers this part takes in the flat action."""
        return sum(self.classes) if self.kind == "categorical" else self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSpec:
    """The flat action ``[A]`` of learners: parts in the order of their sorted keys, one-hot where categorical."""

    parts: Mapping[str, ActionPart]

    @property
    def width(self) -> int:
        """A, the width of the flat action."""
        return sum(part.width for part in self.parts.values())

    def slices(self) -> dict[str, slice]:
        """Where each part lies in the flat action."""
        out, start = {}, 0
        for key in sorted(self.parts):
            out[key] = slice(start, start + self.parts[key].width)
            start = out[key].stop
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraPart:
    """A column that a policy stores with each row, such as the latent state it held there."""

    shape: tuple[int, ...]
    dtype: str
    blank: float = 0.0
    """What stands there where nobody has stored anything."""
    kept: bool = True
    """Whether checkpoints hold it. What they do not is blank after one, or made of the rows again."""
