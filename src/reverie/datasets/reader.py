"""The interface of readers of recorded data: spaces, and rows, one part at a time.

A reader puts things in the right order: which reward came with which observation, where episodes begin and end, and
the last observation of each. The values stay as recorded; ``datasets/dataset.py`` turns them into what learners see.
Columns are named ``obs`` or ``obs/arm/camera``, ``action`` or ``action/grip``, then ``reward``, ``is_first``,
``is_last`` and ``is_terminal``. The parts form one stream (``core/rows.py``).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
from gymnasium import spaces

from reverie.core.bounds import AtLeast
from reverie.core.config import Config
from reverie.core.errors import ConfigError, DataError, ReverieError, RowError, brief, with_count
from reverie.core.obs_conversion import looks_like_image
from reverie.core.rows import Rows
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.envs.limits import EXACT, INEXACT, is_wide

Space = spaces.Space[Any]
ColumnNames = str | tuple[str, ...]
"""The name of a table's column, or of several that together are one vector."""
SUFFIXES = {
    ".hdf5": "HDF5", ".h5": "HDF5", ".hdf": "HDF5", ".npz": "npz", ".parquet": "Parquet", ".arrow": "Arrow",
    ".csv": "CSV", ".tfrecord": "TFRecord", ".tfrecords": "TFRecord",
}  # fmt: skip
BOTH = "truncated"
"""Column that ``as_recorded`` may add: True where an episode is terminated and truncated at the same step."""
SEED = "seed"
"""Column that ``as_recorded`` may add: the seed of the environment in the first row of an episode, else None. Of dtype
object, as a seed may have 64 bits or more."""
PROPENSITY = "propensity"
"""Column that a reader may add: the probability with which the logging policy took the recorded action, in (0, 1]; 1 in
the last row of an episode, where none is taken."""
OF_OUTCOMES = frozenset({"reward", "is_last", "is_terminal"})
"""Columns that hold what the action of the row before led to."""
PART_BYTES = 1_500_000
"""Approximate size of a part in bytes; small enough for a processor's cache."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions(Config):
    """What the user says about files that do not say it themselves."""

    reader: str = ""
    """Class that reads a custom format, module:Class or module:Class(setting=value); empty: the format is
    detected."""
    columns: dict[str, ColumnNames] = field(default_factory=dict)
    """Tables: the column of each quantity, '{obs: state, action: action, reward: reward, terminal: done}'; several
    number columns that form one vector are a list, '{obs: [x, y], ...}'. propensity is the probability with which the
    recorded action was taken: see `reverie estimate`."""
    classes: dict[str, int | tuple[int, ...]] = field(default_factory=dict)
    """Observations that are class numbers, in files that do not say so: how many classes each of their elements has,
    `image=11` or '{image: 11, pose: [20, 20, 4]}'. An observation without a name is called observation."""
    time_limit: Annotated[int | None, AtLeast(1)] = None
    """Steps after which episodes are truncated, for D4RL files and tables that do not mark truncations."""
    partial: bool = False
    """RL Unplugged: use the readable part of shards that are cut off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, classes in self.classes.items():
            if not classes or min(classes if isinstance(classes, tuple) else (classes,)) < 1:
                raise ConfigError(f"data.classes.{key} = {brief(classes)}: expected numbers of classes, 1 or more.")
        for role, columns in self.columns.items():
            names = list(columns) if isinstance(columns, list | tuple) else [columns]
            if not names or not all(isinstance(name, str) for name in names):
                raise ConfigError(
                    f"data.columns.{role} = {brief(columns)}: expected a column name, or a list of numeric columns "
                    "that form one vector, such as [x, y]. Name several observations obs.state, obs.camera and so on."
                )


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """Description of a dataset: what it declares, or else what its arrays show."""

    observation: Space
    action: Space
    env: str = ""
    """The environment's id; "" if not declared."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments that the environment was made with."""
    env_settings: dict[str, Any] = field(default_factory=dict)
    """For our own stores and recordings: settings of the environment that the rows come from, as plain values."""
    env_spec: dict[str, Any] = field(default_factory=dict)
    """The environment's specification as Gymnasium serialises it."""
    time_limit: int | None = None
    """Number of steps after which the environment truncated episodes; None if not declared."""
    inferred: bool = False
    """True if observations are as the arrays look, as no space of them is declared."""
    has_measured_bounds: bool = False
    """True if the bounds or the number of actions come from recorded actions, as none are declared."""
    numbered: bool = False
    """True if ``action`` has classes only because recorded floats are whole numbers: see ``classes_in``."""
    declared_action_space: Space | None = None
    """The declared action space if it is infinite, so that only the bounds of ``action`` are measured; else None."""
    specs: tuple[ObsSpec, ActionSpec] | None = None
    """For our own stores, whose rows are as learners see them: their observations and actions; else None."""
    text: dict[str, str] = field(default_factory=dict)
    """Further facts for people, by title."""


class Reader(ABC):
    """A recorded dataset in one file, or in several files that belong together.

    Users may write a reader for a custom format (docs/datasets.md). It raises DataError if the dataset is of another
    format, is damaged, or cannot be learned from.
    """

    format: ClassVar[str] = "own"
    """Name of the format, for messages."""

    def __init_subclass__(cls) -> None:
        """Turn the errors of libraries in our own readers into DataErrors. A user's reader shows its own tracebacks."""
        super().__init_subclass__()
        for name in GUARDED.intersection(vars(cls)) if cls.__module__.startswith("reverie.") else ():
            setattr(cls, name, guard_reading(vars(cls)[name]))

    def __init__(self, path: Path | str, options: ReadOptions | None = None) -> None:
        self.path: Path = Path(path)
        self.options: ReadOptions = options or ReadOptions()
        self.notes: Counter[str] = Counter()
        """What was left out or assumed, and how often."""
        self.largest: dict[str, float] = {}
        """The largest whole number of each observation that has larger ones than float32 holds."""

    def uses(self, option: str) -> bool:
        """Return whether an option of ``ReadOptions`` can change what is read from this dataset. Another is refused."""
        return False

    @abstractmethod
    def info(self) -> DatasetInfo:
        """Return the spaces, and whatever else is known about the dataset."""

    def assume(self, observation: Space, spec: ObsSpec) -> None:  # noqa: B027  # most formats declare their spaces
        """Take from an environment what the files do not say of their observations.

        ``observation``: the space of what it shows. ``spec``: the same as learners see it.
        """

    def env_id(self) -> str:
        """Return the environment's id as ``info`` does, but without reading anything large; "" if not declared."""
        return ""

    @abstractmethod
    def rows(self) -> int:
        """Return the number of rows that ``parts`` yields. Some formats have to be scanned; no values are decoded."""

    @abstractmethod
    def parts(self) -> Iterator[Rows]:
        """Yield all rows, columns ``[n, ...]`` by name, one part at a time."""

    def as_recorded(self) -> Iterator[Rows]:
        """Yield all rows with values in the spaces of ``info``, perhaps with the columns ``BOTH`` and ``SEED``.

        The same as ``parts`` except for our own stores.
        """
        return self.parts()

    def cut_episodes(self) -> np.ndarray:
        """Return the numbers of episodes that were cut where a step does not begin with the last next observation."""
        return np.empty(0, np.int64)

    def origin(self, row: int, column: str) -> str:
        """Return where the files hold the value in row number ``row`` of ``parts``, as text; "" if not known."""
        return ""

    def place_of(self, row: int, column: str) -> str:
        """Return where the value in row number ``row`` of ``parts`` lies: path, episode, step, and its ``origin``.

        Rows are read again. A step is an action and its outcome, which is in the next row.
        """
        episode, begins, total = -1, 0, 0
        for part in self.parts():
            firsts = np.flatnonzero(part["is_first"][: row - total + 1])
            episode, begins = episode + len(firsts), total + int(firsts[-1]) if len(firsts) else begins
            total += len(part["is_first"])
            if total > row:
                break
        origin = self.origin(row, column)
        return f"{self.path}, {step_text(episode, row - begins, column, origin)}"

    @contextlib.contextmanager
    def telling_places(self, is_whole: bool = True) -> Iterator[None]:
        """While entered, turn errors of rows into errors that name the place in the files.

        ``is_whole``: the rows are all of ``parts``; else those of some episodes, which are numbered in another way.
        """
        try:
            yield
        except RowError as error:
            if not is_whole:
                raise DataError(f"{self.path}: {error} (row of the chosen episodes)") from None
            raise DataError(f"{self.place_of(error.row, error.column)}: {error.subject} {error.problem}") from None

    def close(self) -> None:  # noqa: B027  # most readers hold no file open
        """Close all files. Nothing can be read after that."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def note(self, remark: str, times: int = 1) -> None:
        """Add a remark for the user of the data. Rows may be read again: the largest number counts."""
        self.note_all({remark: times})

    def note_all(self, counts: Mapping[str, int]) -> None:
        """Add remarks with the number of their occurrences; for a known remark the larger number counts."""
        self.notes |= Counter(counts)

    def note_large(self, name: str, values: np.ndarray, space: Space) -> None:
        """Note the largest whole number of an observation ``[n, ...]``, if learners, who see float32, see another."""
        if not isinstance(space, spaces.Box) or not is_wide(space):
            return
        largest = max(float(values.max(initial=0)), -float(values.min(initial=0)))
        if EXACT < largest < np.inf and largest == round(largest):
            key = f"observation '{name.removeprefix('obs/')}'"
            self.largest[key] = max(largest, self.largest.get(key, 0.0))

    def remarks(self) -> list[str]:
        """Return all notes as sentences."""
        remarks = [with_count(remark, times) for remark, times in self.notes.items()]
        inexact = INEXACT.format(high=EXACT).rstrip(".")
        large = (f"{name} has whole numbers up to {value:,.0f}, {inexact}" for name, value in self.largest.items())
        return [*remarks, *large]


def step_text(episode: int, row: int, column: str, origin: str) -> str:
    """Return the place of a value in a ``row`` of an episode as text; ``origin``: see ``Reader``."""
    step = max(0, row - (column in OF_OUTCOMES))
    return f"episode {episode:,}, step {step:,}" + (f" ({origin})" if origin else "")


# ---------------------------------------------------------------- damaged files

GUARDED = frozenset({"info", "env_id", "rows", "parts", "as_recorded", "cut_episodes"})
"""Methods of readers in which files are read."""


@contextlib.contextmanager
def reading(source: Path | str) -> Iterator[None]:
    """While entered, turn any error but ours into a DataError: ``source``, a file or a part, seems damaged.

    Libraries raise errors of all types for damaged files, down to AttributeError and SyntaxError.
    """
    try:
        yield
    except (ReverieError, ModuleNotFoundError):
        raise
    except Exception as error:
        details = " ".join(f"{type(error).__name__}: {error}".split())
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(f"{source} cannot be read: {error}.") from error
        seems = "it seems damaged, incomplete or of another format"
        raise DataError(f"{source} cannot be read: {seems} ({details}).") from error


def guard_reading(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a reader whose errors, or those of the iterator that it returns, name the reader's path."""

    def iterate(reader: Reader, parts: Iterator[Any]) -> Iterator[Any]:
        with reading(reader.path):
            yield from parts

    @functools.wraps(method)
    def call(reader: Reader) -> Any:
        with reading(reader.path):
            result = method(reader)
        return iterate(reader, result) if isinstance(result, Iterator) else result

    return call


def format_of(path: Path) -> str:
    """Return the format that a file's suffix names, one of ``SUFFIXES``; "" if none."""
    return SUFFIXES.get(path.suffix.lower(), "")


def list_files(folder: Path, format_: str) -> list[Path]:
    """Return the files in a folder whose suffix names a format, by number; hidden ones are left out."""
    files = (path for path in folder.iterdir() if format_of(path) == format_ and path.name[:1] != ".")
    return sorted((path for path in files if not path.is_dir()), key=by_number)


def by_number(path: Path) -> list[int | str]:
    """Return a sort key that puts ``part-10`` after ``part-9``."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.as_posix())]


def import_optional(name: str, extra: str) -> Any:
    """Return a module of a package; raise ConfigError if that is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package_name = name.partition(".")[0]
        raise ConfigError(f"{package_name} is needed ({error}): pip install 'reverie-rl[{extra}]'.") from None


def as_flags(values: np.ndarray, label: str, format_row: Callable[[int], str] = "row {:,}".format) -> np.ndarray:
    """Return a column of true and false, or of 1 and 0, as bool ``[n]``.

    ``label`` names it in messages, ``format_row`` one of its rows.
    """
    values = values.reshape(-1)
    if values.dtype == bool:
        return values.copy()  # a mapped file is not kept open
    wrong = (values != 0) & (values != 1) if values.dtype.kind in "biuf" else np.ones(len(values), bool)
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"{label} has the value {values[row]} in {format_row(row)}: expected true or false, or 1 or 0.")
    return values.astype(bool)


# ---------------------------------------------------------------- spaces of arrays that declare none

MOST_CLASSES = 256
"""Most classes that whole numbers stored as floats are taken for."""
CLASSES = (
    "the recorded actions are floats, all of them whole numbers from 0 to {}: they are taken for class numbers (if "
    "there is an environment with continuous actions, its action space is used instead)"
)
WHOLE = (
    "the recorded actions are floats, all of them whole numbers, several for a step: they are taken for continuous "
    "actions, as class numbers would be integers"
)


def nested_space(leaves: Mapping[str, Space], root: str) -> Space:
    """Return the spaces of columns such as ``obs/arm/camera`` as one: nested dictionaries, or the lone ``obs``."""
    if root in leaves:
        return leaves[root]
    parts: dict[str, dict[str, Space]] = {}
    for name, space in leaves.items():
        key = name.removeprefix(f"{root}/").partition("/")[0]
        parts.setdefault(f"{root}/{key}", {})[name] = space
    return spaces.Dict({name.removeprefix(f"{root}/"): nested_space(inner, name) for name, inner in parts.items()})


def observed_space(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Space:
    """Return a space for observations of this shape and dtype: uint8 of 2 or 3 dimensions is an image.

    All others are unbounded floats of the smallest dtype that holds the numbers.
    """
    if dtype == np.uint8 and len(shape) in (2, 3):
        return spaces.Box(0, 255, shape, np.uint8)
    if dtype.kind not in "biuf":
        raise DataError(f"observations have dtype {dtype}: expected numbers.")
    return spaces.Box(-np.inf, np.inf, shape, np.result_type(np.float32, dtype).type)


def classes_space(classes: Sequence[int], shape: tuple[int, ...]) -> Space:
    """Return the space of class numbers ``[*shape]``; ``classes`` has the number of classes of each, in flat order."""
    counts = np.reshape(list(classes), shape)
    return spaces.MultiDiscrete(counts) if shape else spaces.Discrete(int(counts))


def seen_space(
    arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]], options: ReadOptions, env_spaces: Mapping[str, Space],
    path: Path,
) -> Space:  # fmt: skip
    """Return a space of observations by column, of which the files tell only shape and dtype.

    The kind of each is what ``options.classes`` say, or else that of the same name and shape in ``env_spaces``, the
    spaces of an environment, or else a guess: see :func:`observed_space`.
    """
    classes = {"obs" if name == "observation" and "obs" in arrays else f"obs/{name}": n
               for name, n in options.classes.items()}  # fmt: skip
    if unknown := ", ".join(sorted(name.removeprefix("obs/") for name in classes.keys() - arrays.keys())):
        names = ", ".join("observation" if name == "obs" else name.removeprefix("obs/") for name in arrays)
        raise ConfigError(f"data.classes: {path} has no observation '{unknown}'. It has: {names}.")
    leaves: dict[str, Space] = {}
    for name, (shape, dtype) in arrays.items():
        if name in classes:
            leaves[name] = _classes_space(
                classes[name], shape, f"data.classes: '{name.removeprefix('obs/')}' in {path}"
            )
        elif (leaf := env_spaces.get(name)) is not None and _tells_kind(leaf, shape, dtype):
            leaves[name] = leaf
        else:
            leaves[name] = observed_space(shape, dtype)
    return nested_space(leaves, "obs")


def _classes_space(classes: int | tuple[int, ...], shape: tuple[int, ...], label: str) -> Space:
    size = math.prod(shape)
    counts = (classes,) * size if isinstance(classes, int) else classes
    if len(counts) != size:
        raise ConfigError(
            f"{label} has shape {list(shape)}, but {len(counts)} numbers of classes: expected {size}, or one."
        )
    return classes_space(counts, shape)


def _tells_kind(leaf: Space, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether an environment's ``leaf`` says more of an array than its shape and dtype do."""
    if dtype.kind not in "biuf" or leaf.shape is None or (leaf.shape or (1,)) != (shape or (1,)):
        return False
    boxes = [space for space in (leaf, observed_space(shape, dtype)) if isinstance(space, spaces.Box)]
    return len(boxes) < 2 or any(map(looks_like_image, boxes))


def action_space(
    blocks: Callable[[], Iterable[np.ndarray]], label: Path | str, *, scaled: bool = False
) -> tuple[Space, bool]:
    """Return a space that contains the recorded actions ``[n, ...]``, and whether its bounds had to be measured.

    Integers are discrete actions. Floats get [-1, 1] if that contains all of them, else the measured range, rounded to
    float32, as which learners see actions. ``blocks`` returns the actions, some at a time, and is called several times.
    ``scaled``: the format stores the policy's output, so that bounds of [-1, 1] do not count as measured.
    """
    ranges = [(block.min(), block.max(), block.dtype) for block in blocks() if block.size]
    if not ranges:
        raise DataError(f"{label} contains no actions, or none that are finite float32 numbers.")
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    is_integer = all(r[2].kind in "iub" for r in ranges)
    if is_integer and low < 0:
        raise DataError(f"{label} contains integer actions down to {low}: expected class numbers, 0 or more.")
    if not _fits(np.array([float(bound) for r in ranges for bound in r[:2]])).all():  # reported when they are read

        def finite() -> Iterator[np.ndarray]:
            return (block[_fits(block.reshape(len(block), -1)).all(axis=1)] for block in blocks())

        return action_space(finite, label, scaled=scaled)
    shape = next(block.shape[1:] for block in blocks() if block.size)
    dtype = np.result_type(np.float32, *{r[2] for r in ranges}).type
    if not is_integer and low >= -1.0 - 1e-5 and high <= 1.0 + 1e-5:
        return spaces.Box(-1.0, 1.0, shape, dtype), not scaled
    bounds = [(block.min(axis=0), block.max(axis=0)) for block in blocks() if block.size]
    lows, highs = np.min([e[0] for e in bounds], axis=0), np.max([e[1] for e in bounds], axis=0)
    if not is_integer:
        lows, highs = lows.astype(np.float32), highs.astype(np.float32)
        highs = np.where(highs > lows, highs, lows + 1)
        return spaces.Box(lows.astype(dtype), highs.astype(dtype), shape, dtype), True
    counts = np.maximum(highs.astype(np.int64), 1) + 1
    return (spaces.MultiDiscrete(counts) if counts.ndim else spaces.Discrete(int(counts))), True


class MeasuredAction(NamedTuple):
    """The space of recorded actions, for ``DatasetInfo``."""

    space: Space
    measured: bool
    numbered: bool


def measured_action(
    reader: Reader, blocks: Callable[[], Iterable[np.ndarray]], *, scaled: bool = False, classes: bool = True
) -> MeasuredAction:
    """Return the space of actions ``[n, ...]`` for which none is declared, as ``action_space`` does.

    With ``classes``, floats that number classes are discrete actions as integers are; ``reader`` notes what is assumed.
    """
    space, measured = action_space(blocks, reader.path, scaled=scaled)
    count = classes_in(blocks()) if classes else 0
    if not count or math.prod(space.shape or ()) != 1:
        reader.note(WHOLE, int(count > 0))
        return MeasuredAction(space, measured, False)
    reader.note(CLASSES.format(count - 1))
    return MeasuredAction(spaces.MultiDiscrete([count]) if space.shape else spaces.Discrete(count), True, True)


def classes_in(blocks: Iterable[np.ndarray]) -> int:
    """Return the number of classes that recorded actions ``[n, ...]`` number as floats; 0 if they are no classes.

    A class is stored as a float where a table had missing values, or where one array holds all columns. Floats are
    taken for classes if all are whole numbers from 0 to at most ``MOST_CLASSES - 1``, and not all of them 0.
    """
    largest = 0.0
    for block in blocks:
        if block.dtype.kind != "f" or not ((block >= 0) & (block < MOST_CLASSES) & (block == np.rint(block))).all():
            return 0
        largest = max(largest, float(block.max(initial=0)))
    return int(largest) + 1 if largest else 0


def _fits(values: np.ndarray) -> np.ndarray:
    """Return a mask of those of ``values`` that are finite float32 numbers, as which learners see them."""
    return np.asarray(np.abs(values) <= np.finfo(np.float32).max)
