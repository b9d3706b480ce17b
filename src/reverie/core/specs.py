"""Specifications of observations and actions: their shapes and meanings.

``core.spaces`` translates Gymnasium's spaces into specs. Learners build their networks from specs alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from reverie.core.errors import ConfigError, count_noun

ObsKind = Literal["image", "vector", "categorical", "mask", "player"]
ActionKind = Literal["categorical", "continuous"]

EXTRAS = "extras/"
"""Name prefix of extra columns in stored rows, which the policy stores and updates overwrite."""

FLAGS = ("is_first", "is_last", "is_terminal")
"""The columns that mark where episodes begin and end."""

VERSION_COLUMN = "version"
"""Column of rows from actors: the number of updates of the policy that chose the action."""

IS_INTERVENTION = "is_intervention"
"""Column of rows that is true where a person took over from the policy; absent where nobody has done so yet."""
IS_IMITATED = "is_imitated"
"""Column of batches with a person's sequences: rows whose actions are the person's or recorded, or drawn from all rows.
"""

MASK_KEY = "action_mask"
"""Key of the observation with the mask of legal actions, if the environment has one."""

SUCCESS_RATE = "success_rate"
"""Logged name of the success of an episode, which environments report without ``env.log_info``."""

PLAYER_KEY = "player"
"""Key of the observation that says which of two players moves, 0 or 1, if it is ``Discrete(2)``."""

SPECIAL_KINDS = frozenset({"mask", "player"})
"""Kinds of observations that are no inputs of networks."""

ACHIEVED_GOAL, DESIRED_GOAL = "achieved_goal", "desired_goal"
"""Keys of the observations of a goal environment: the goal that it has achieved, and the goal to achieve."""

GOAL_KEY = "goal"
GOAL = f"{GOAL_KEY}/"
"""Key of a goal, and prefix: ``goal/KEY`` is an observation ``KEY`` to reach, with its meaning and its statistics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObsPart:
    """One key of the observation.

    Five kinds exist. An ``image`` is ``[H, W, C]``, ``uint8`` in 0..255 or ``float32`` in ``low..high``. A ``vector``
    has ``float32`` numbers of any shape. A ``categorical`` has ``int64`` class indices of any shape, with ``classes``
    giving the number of classes of each element in flat order; the index -1 means "missing". A ``mask`` ``[A]`` of
    ``bool`` has a flag for each element of the flat action, true where it is legal, and where it is continuous. A
    ``player`` is the class index of the player to move, see :func:`mover_sign`. Both are no network inputs.
    """

    kind: ObsKind
    shape: tuple[int, ...]
    dtype: str
    classes: tuple[int, ...] = ()
    low: float = 0.0
    """Images: the value of black."""
    high: float = 255.0
    """Images: the value of white."""
    declared_bounds: str = field(default="", compare=False)
    """Vectors: kind and finite bounds of the numbers in the environment, such as ``integers in 0..255``. Empty:
    unknown. Learners do not use them, but a policy fails on numbers whose bounds differ from those in training."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(ObsKind):
            raise ConfigError(f"kind = '{self.kind}': expected one of {', '.join(get_args(ObsKind))}.")

    @property
    def width(self) -> int:
        """Number of elements of this part once flattened, with a one-hot vector for each class index."""
        return sum(self.classes) if self.kind == "categorical" else math.prod(self.shape)


ObsSpec = Mapping[str, ObsPart]
"""Observation parts by key. Nested spaces have keys such as ``arm/camera``."""


def without_mask(spec: ObsSpec) -> dict[str, ObsPart]:
    """Return the network inputs: all parts except the action mask and the player to move."""
    return {key: part for key, part in spec.items() if part.kind not in SPECIAL_KINDS}


def has_players(spec: ObsSpec) -> bool:
    """Return whether two players move in turn, as the observation ``player`` says; others of this name do not."""
    return PLAYER_KEY in spec and spec[PLAYER_KEY].kind == "player"


def mover_sign(player: np.ndarray) -> np.ndarray:
    """Return the sign with which rewards, of the player who moved before, count for player 0: 1 if 1 is to move."""
    return 2 * player - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPart:
    """One key of the action: a choice per entry of ``classes``, or ``size`` numbers, scaled to [-1, 1] for policies."""

    kind: ActionKind
    classes: tuple[int, ...] = ()
    size: int = 0
    low: tuple[float, ...] = ()
    """Continuous: the environment's values that correspond to -1. Empty: unknown, as in some datasets."""
    high: tuple[float, ...] = ()
    """Continuous: the environment's values that correspond to 1."""

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

    def categorical_slices(self) -> list[tuple[str, slice]]:
        """Return each categorical choice: the key of its part, and its position in the flat action."""
        out = []
        for key, cut in self.slices().items():
            start = cut.start
            for classes in self.parts[key].classes:
                out.append((key, slice(start, start + classes)))
                start += classes
        return out


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A field of each row: of the environment, or an extra one, such as the latent state of the policy."""

    shape: tuple[int, ...]
    dtype: str
    fill_value: float = 0.0
    """Extra columns: value of rows for which nothing was stored."""
    in_checkpoints: bool = True
    """Whether checkpoints save the column. If not, it is blank after resuming, or computed again from the rows."""

    @property
    def nbytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


LATE_COLUMNS = {VERSION_COLUMN: ColumnSpec((), "int32"), IS_INTERVENTION: ColumnSpec((), "bool")}
"""Columns that rows may lack, where they are zeros."""


# ---------------------------------------------------------------- signatures: specs as plain values, to compare


Signature = Mapping[str, dict[str, dict[str, Any]]]
"""``{"observation": {key: part}, "action": {key: part}}``, each part a mapping of its fields, fit for JSON."""

BOUNDS = {"low", "high"}
"""Names of the fields with bounds."""
BOUNDS_RTOL = 1e-5
"""Relative tolerance for equal bounds, which are stored as float32 or float64 and printed with six digits."""


def spec_to_dict(obs: ObsSpec, action: ActionSpec) -> Signature:
    """Return the specs as plain values."""
    parts: dict[str, Mapping[str, ObsPart | ActionPart]] = {"observation": obs, "action": action.parts}
    return {name: {key: _part_to_dict(part) for key, part in spec.items()} for name, spec in parts.items()}


def diff_specs(a: Signature, b: Signature, labels: tuple[str, str]) -> list[str]:
    """Return how two signatures differ, one line for each part; ``labels`` names both, such as "the data", "the agent".

    Bounds of actions are compared if both are known.
    """
    out: list[str] = []
    for space_name in ("observation", "action"):
        first, second = a.get(space_name, {}), b[space_name]
        for key in dict.fromkeys((*first, *second)):
            name = f"{space_name} '{key}'"
            if key not in first or key not in second:
                out.append(f"{name} ({_format_part((first | second)[key])}) is missing in {labels[key in first]}")
            elif _differ(first[key], second[key]):
                short = _format_part(second[key]).removeprefix(f"{first[key].get('kind')} ")
                out.append(f"{name} is {_format_part(first[key])} in {labels[0]}, but {short} in {labels[1]}")
    return out


def diff_bounds(a: Signature, b: Signature, labels: tuple[str, str]) -> list[str]:
    """Return one line, like :func:`diff_specs`, for each vector whose declared bounds differ."""
    a_parts, b_parts = a.get("observation", {}), b["observation"]
    both = {
        key: (a_parts[key].get("declared_bounds"), b_parts[key].get("declared_bounds"))
        for key in b_parts
        if key in a_parts
    }
    return [
        f"observation '{key}' has {was} in {labels[0]}, but {new} in {labels[1]}"
        for key, (was, new) in both.items()
        if was and new and was != new
    ]


def _differ(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return whether two parts differ in a field that both have; bounds may be unknown."""
    both = a.keys() & b.keys()
    return any(a[name] != b[name] for name in both - BOUNDS - {"declared_bounds"}) or not all(
        np.shape(a[name]) == np.shape(b[name]) and np.allclose(a[name], b[name], rtol=BOUNDS_RTOL, atol=0)
        for name in both & BOUNDS
    )


def _part_to_dict(part: ObsPart | ActionPart) -> dict[str, Any]:
    values = dataclasses.asdict(part)
    unknown = [name for name in BOUNDS if values.get(name) == ()]
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items() if name not in unknown}


def _format_part(part: Mapping[str, Any]) -> str:
    """Describe a part: ``vector (5,)``, ``categorical of 2 classes``, ``image (64, 64, 3) uint8 in 0..255``."""
    words = [str(part.get("kind"))]
    if "shape" in part:
        words.append(str(tuple(part["shape"])))
    if part.get("size"):
        words.append(f"of {count_noun(part['size'], 'number')}")
        words += [f"in {_numbers(part['low'])}..{_numbers(part['high'])}"] if part.get("low") else []
    if part.get("classes"):
        words.append(f"of {' x '.join(map(str, part['classes']))} classes")
    if part.get("kind") == "image":
        words.append(f"{part.get('dtype')} in {part.get('low'):g}..{part.get('high'):g}")
    return " ".join(words)


def _numbers(values: Sequence[float]) -> str:
    """Return the numbers as ``(-1, -2)``, or as a single one if all are the same."""
    texts = [f"{value:g}" for value in values]
    return texts[0] if len(set(texts)) == 1 else f"({', '.join(texts)})"


def num_classes_per_choice(spec: ActionSpec) -> tuple[int, ...]:
    """Return the number of classes of each discrete choice, in the order of the flat action."""
    return tuple(count for key in sorted(spec.parts) for count in spec.parts[key].classes)


def num_continuous(spec: ActionSpec) -> int:
    """Return how many numbers of the flat action are continuous."""
    return sum(part.size for part in spec.parts.values())


def action_kind(spec: ActionSpec) -> str:
    """Return ``continuous``, ``discrete`` (one choice), ``multi_discrete`` (several choices) or ``mixed``."""
    kinds = {part.kind for part in spec.parts.values()}
    if len(kinds) > 1:
        return "mixed"
    if kinds == {"continuous"}:
        return "continuous"
    return "discrete" if len(num_classes_per_choice(spec)) == 1 else "multi_discrete"
