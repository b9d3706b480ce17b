"""Specifications of observations and actions: their shapes and meanings.

Specs do not depend on Gymnasium. ``core.spaces`` translates spaces into specs, and flat actions back into what an
environment expects. Learners build their networks from specs alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from reverie.core.errors import ConfigError

ObsKind = Literal["image", "vector", "categorical", "mask"]
ActionKind = Literal["categorical", "continuous"]

EXTRAS = "extras/"
"""Prefix of the names of extra columns in stored rows, which the policy stores and updates overwrite."""

VERSION = "version"
"""Column of rows that actors have sent: the number of updates that the policy had had which chose the action."""

MASK = "action_mask"
"""Key of the observation that tells which actions are legal, if the environment tells that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObsPart:
    """One key of the observation.

    Four kinds exist. An ``image`` is ``[H, W, C]``, ``uint8`` in 0..255 or ``float32`` in ``low..high``. A ``vector``
    holds ``float32`` numbers of any shape. A ``categorical`` holds ``int64`` class indices of any shape, with
    ``classes`` giving the number of classes of each element in flat order; the index -1 means "missing". A ``mask``
    ``[A]`` of ``bool`` has a flag for each element of the flat action, true where it is legal, and where it is
    continuous. Networks do not read it: it restricts the distributions of actions.
    """

    kind: ObsKind
    shape: tuple[int, ...]
    dtype: str
    classes: tuple[int, ...] = ()
    low: float = 0.0
    """Images: the value of black."""
    high: float = 255.0
    """Images: the value of white."""
    declared: str = field(default="", compare=False)
    """Vectors: kind and finite bounds of the numbers in the environment, such as ``integers in 0..255``. Empty: not
    known. Learners do not use them, but a policy that was trained on other ones sees what it never saw."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(ObsKind):
            raise ConfigError(f"kind = '{self.kind}': expected one of {', '.join(get_args(ObsKind))}.")

    @property
    def width(self) -> int:
        """Number of elements of this part once flattened, with a one-hot vector for each class index."""
        return sum(self.classes) if self.kind == "categorical" else math.prod(self.shape)


ObsSpec = Mapping[str, ObsPart]
"""Observation parts by key. Nested spaces have keys such as ``arm/camera``."""


def observed(spec: ObsSpec) -> dict[str, ObsPart]:
    """Return the parts that networks read: all but the mask of legal actions."""
    return {key: part for key, part in spec.items() if part.kind != "mask"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPart:
    """One key of the action.

    ``categorical``: one choice per entry of ``classes``. ``continuous``: ``size`` numbers, which the policy sees
    scaled to [-1, 1].
    """

    kind: ActionKind
    classes: tuple[int, ...] = ()
    size: int = 0
    low: tuple[float, ...] = ()
    """Continuous: what -1 stands for in the environment, of each number. Empty: not known, as in recorded data."""
    high: tuple[float, ...] = ()
    """Continuous: what 1 stands for."""

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ConfigError(f"{self}: expected a categorical part with classes, or a continuous one with a size.")

    @property
    def width(self) -> int:
        """Number of elements of this part in the flat action."""
        return sum(self.classes) if self.kind == "categorical" else self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSpec:
    """The flat action ``[A]`` of learners: parts in the order of their sorted keys, one-hot where categorical."""

    parts: Mapping[str, ActionPart]

    @property
    def width(self) -> int:
        """Width A of the flat action."""
        return sum(part.width for part in self.parts.values())

    def slices(self) -> dict[str, slice]:
        """Return the position of each part in the flat action."""
        out, start = {}, 0
        for key in sorted(self.parts):
            out[key] = slice(start, start + self.parts[key].width)
            start = out[key].stop
        return out

    def choices(self) -> list[tuple[str, slice]]:
        """Return each categorical choice: the key of its part, and its position in the flat action."""
        out = []
        for key, cut in self.slices().items():
            start = cut.start
            for classes in self.parts[key].classes:
                out.append((key, slice(start, start + classes)))
                start += classes
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraPart:
    """A column that a policy stores with each row, such as the latent state it held there."""

    shape: tuple[int, ...]
    dtype: str
    blank: float = 0.0
    """Value of rows for which nothing was stored."""
    kept: bool = True
    """Whether checkpoints hold the column. If not, it is blank after resuming, or computed from the rows again."""
