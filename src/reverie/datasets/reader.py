"""The interface of dataset readers: spaces, and rows, one part at a time.

A reader arranges the values as rows: which reward belongs to which observation, where episodes begin and end, and the
last observation of each. The values stay as recorded; ``datasets/dataset.py`` converts them to learner inputs. Columns
are named ``obs`` or ``obs/arm/camera``, ``action`` or ``action/grip``, then ``reward``, ``is_first``, ``is_last`` and
``is_terminal``. The parts form one stream (``core/rows.py``).
"""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError, RowError, with_count
from reverie.core.progress import progress_bars
from reverie.core.rows import Rows
from reverie.core.spaces import columns_in
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.datasets.options import ColumnNames as ColumnNames
from reverie.datasets.options import ReadOptions as ReadOptions
from reverie.datasets.source import Source, natural_sort_key, reading
from reverie.envs.limits import EXACT, INEXACT, is_rounded, is_wide

Space = spaces.Space[Any]
TRUNCATED_COLUMN = "truncated"
"""Column that ``as_recorded`` may add: True where an episode is terminated and truncated at the same step."""
SEED = "seed"
"""Column that ``as_recorded`` may add: the seed of the environment in the first row of an episode, else None. Dtype
object, since a seed can have 64 bits or more."""
ROBOT, FPS, TASK, CONTROLLER = "robot", "frames per second", "task", "controller"
CLASSES = "classes of "
"""Titles in ``DatasetInfo.text`` of what can differ between datasets with the same spaces; the last is a beginning."""
OUTCOME_COLUMNS = frozenset({"reward", "is_last", "is_terminal"})
"""Columns that contain the outcome of the previous row's action."""
PART_BYTES = 1_500_000
"""Approximate size of a part in bytes; small enough for a processor's cache."""


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """Description of a dataset, as declared, or else as inferred from its arrays."""

    observation: Space
    action: Space
    env: str = ""
    """The environment's id; "" if not declared."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments with which the environment was made."""
    env_settings: dict[str, Any] = field(default_factory=dict)
    """For replay stores and recordings of reverie: settings of the recorded environment, as plain values."""
    env_spec: dict[str, Any] = field(default_factory=dict)
    """The environment's spec as serialized by Gymnasium."""
    max_episode_steps: int | None = None
    """Number of steps after which the environment truncated episodes; None if not declared."""
    inferred: bool = False
    """Whether the observation space is inferred from the arrays, since none is declared."""
    has_rewards: bool = True
    """Whether rewards are recorded. If not, the reward of every row is 0."""
    has_propensity: bool = False
    """Whether the rows have the column ``PROPENSITY``."""
    has_interventions: bool = False
    """Whether the rows have the column ``is_intervention``: in which a person took over from the policy."""
    has_measured_bounds: bool = False
    """Whether the bounds or the number of actions are inferred from recorded actions, since none are declared."""
    numbered: bool = False
    """Whether ``action`` is discrete only because the recorded floats are whole numbers: see ``inferred_spaces.py``."""
    declared_action_space: Space | None = None
    """The declared action space if it is unbounded, so that the bounds of ``action`` are measured; else None."""
    specs: tuple[ObsSpec, ActionSpec] | None = None
    """For replay stores, whose rows are as learners see them: their observations and actions; else None."""
    element_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the elements of columns, such as the joints in ``obs/state``, as far as they are declared."""
    text: dict[str, str] = field(default_factory=dict)
    """Additional information for users, by title."""


class Reader(ABC):
    """A recorded dataset in one file, or in several files that belong together.

    Users can write a reader for a custom format (docs/datasets.md). It raises DataError if the dataset has another
    format, is damaged, or is unusable for learning.
    """

    format: ClassVar[str] = "own"
    """Name of the format, for messages."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of its files in lower case, such as ``(".npz",)``; folders are searched for them."""
    required_names: ClassVar[Sequence[str]] = ()
    """Names of arrays or groups that each file has, if it is an npz or HDF5 file."""
    env_spaces: Mapping[str, Space] = MappingProxyType({})
    """The environment's spaces by column, if there are any."""
    is_guarded: ClassVar[bool] = True
    """Whether errors of libraries are those of damaged files. False: the user's code runs, and shows its own errors."""

    @classmethod
    def matches(cls, source: Source) -> bool:
        """Return whether this class reads ``source``: by its required names, or else by its suffix."""
        if cls.required_names:
            return source.names.issuperset(cls.required_names)
        return source.path.suffix.lower() in cls.suffixes and not source.is_folder

    @classmethod
    def files_in(cls, folder: Source) -> list[Path]:
        """Return the files in a folder of unknown format that this class may read."""
        return folder.files(*cls.suffixes)

    @classmethod
    def open(cls, path: Path, sources: Sequence[Source], options: ReadOptions) -> list[Reader]:
        """Return a reader of each of ``sources``, or a single one if they are one dataset, called ``path``."""
        return [cls(source.path, options) for source in sources]

    def __init_subclass__(cls) -> None:
        """Convert library errors in reverie's readers to DataErrors. A user's reader shows its own tracebacks."""
        super().__init_subclass__()
        is_guarded = cls.is_guarded and cls.__module__.startswith("reverie.")
        for name in GUARDED.intersection(vars(cls)) if is_guarded else ():
            setattr(cls, name, _guard_reading(vars(cls)[name]))

    def __init__(self, path: Path | str, options: ReadOptions | None = None) -> None:
        self.path: Path = Path(path)
        self.options: ReadOptions = options or ReadOptions()
        self.notes: Counter[str] = Counter()
        """Omissions and assumptions, and how often they occurred."""
        self.largest: dict[str, float] = {}
        """The largest integer of each observation that exceeds float32's exact range."""

    def supports_option(self, option: str) -> bool:
        """Return whether an option of ``ReadOptions`` can change what is read from this dataset.

        Other options are rejected.
        """
        return False

    @abstractmethod
    def info(self) -> DatasetInfo:
        """Return the spaces, and everything else known about the dataset."""

    def set_expected_spaces(self, observation: Space, spec: ObsSpec) -> None:
        """Use an environment's spaces for observations that the files do not describe.

        ``observation``: its observation space. ``spec``: the same as learners see it.
        """
        self.env_spaces = dict(columns_in(observation, "obs"))

    def tasks(self) -> Collection[str]:
        """Return the texts of the tasks that the dataset declares, of which it may observe none."""
        return ()

    def assume_tasks(self, tasks: Collection[str]) -> None:  # noqa: B027  # most formats declare no tasks
        """Observe the task, one of ``tasks``, since the dataset is joined with datasets of other tasks."""

    def env_id(self) -> str:
        """Return the environment's id like ``info``, but without reading much; "" if not declared."""
        return ""

    @abstractmethod
    def rows(self) -> int:
        """Return the number of rows that ``parts`` yields. Some formats have to be scanned; no values are decoded."""

    @abstractmethod
    def parts(self) -> Iterator[Rows]:
        """Yield all rows, columns ``[n, ...]`` by name, one part at a time."""

    def as_recorded(self) -> Iterator[Rows]:
        """Yield all rows with values in the spaces of ``info``; some readers add ``TRUNCATED_COLUMN`` and ``SEED``.

        The same as ``parts`` except for replay stores.
        """
        return self.parts()

    def cut_episodes(self) -> np.ndarray:
        """Return the numbers of episodes split where a step does not start from the previous next observation."""
        return np.empty(0, np.int64)

    def locate(self, row: int, column: str) -> str:
        """Return the path, the episode and the step of the value in row number ``row`` of ``parts``.

        Rows are read again. A step is an action and its outcome, which is in the next row.
        """
        episode, begins, total = -1, 0, 0
        for part in self.parts():
            firsts = np.flatnonzero(part["is_first"][: row - total + 1])
            episode, begins = episode + len(firsts), total + int(firsts[-1]) if len(firsts) else begins
            total += len(part["is_first"])
            if total > row:
                break
        return f"{self.path}, {step_text(episode, row - begins, column)}"

    @contextlib.contextmanager
    def locating_errors(self, is_whole: bool = True) -> Iterator[None]:
        """Inside the context, convert errors about rows to errors that name the location in the files.

        ``is_whole``: the rows are all of ``parts``; otherwise only some episodes, which are numbered differently.
        """
        try:
            yield
        except RowError as error:
            if not is_whole:
                raise DataError(f"{self.path}: {error} (row of the chosen episodes)") from None
            raise DataError(f"{self.locate(error.row, error.column)}: {error.subject} {error.problem}") from None

    def common_columns(self, columns: Rows) -> Rows:
        """Return a file's observations that the first file has, with a remark on others; DataError if one lacks."""
        self.first_names: list[str] = self.__dict__.get("first_names", list(columns))
        if missing := sorted(set(self.first_names) - columns.keys()):
            raise DataError(f"{self.path}: a file lacks {', '.join(missing)}, which the first one has.")
        for name in sorted(columns.keys() - set(self.first_names)):
            self.add_remark(f"left out: {name}, which the first file lacks")
        return {name: columns[name] for name in self.first_names}

    def close(self) -> None:  # noqa: B027  # most readers hold no file open
        """Close all files. Nothing can be read afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def add_remark(self, remark: str, times: int = 1) -> None:
        """Add a remark for the user. Since rows can be read again, the largest number counts."""
        self.merge_remarks({remark: times})

    def merge_remarks(self, counts: Mapping[str, int]) -> None:
        """Add remarks with the number of their occurrences; for a known remark the larger number counts."""
        self.notes |= Counter(counts)

    def note_large(self, name: str, values: np.ndarray, space: Space) -> None:
        """Record the largest number of an observation ``[n, ...]``, if float32 rounds numbers of its size."""
        if not isinstance(space, spaces.Box) or not is_wide(space):
            return
        largest = max(float(values.max(initial=0)), -float(values.min(initial=0)))
        if EXACT < largest < np.inf and is_rounded(values).any():
            key = f"observation '{name.removeprefix('obs/')}'"
            self.largest[key] = max(largest, self.largest.get(key, 0.0))

    def remarks(self) -> list[str]:
        """Return all remarks as sentences."""
        remarks = [with_count(remark, times) for remark, times in self.notes.items()]
        inexact = INEXACT.format(high=EXACT).rstrip(".")
        large = (f"{name} has numbers up to {value:,.0f}, {inexact}" for name, value in self.largest.items())
        return [*remarks, *large]


def step_text(episode: int, row: int, column: str) -> str:
    """Format the location of a value in a ``row`` of an episode."""
    return f"episode {episode:,}, step {max(0, row - (column in OUTCOME_COLUMNS)):,}"


def check_rewards(info: DatasetInfo, path: Path, purpose: str) -> None:
    """Raise DataError if the dataset at ``path`` has no rewards, which ``purpose`` needs."""
    if not info.has_rewards:
        raise DataError(
            f"{path} has no rewards, which {purpose} needs. Goal-conditioned learners, such as gcbc, need none. Or "
            "write a copy with rewards that your function computes from observations and actions, such as from a "
            f"success flag or the distance to a goal: reverie data convert {path} COPY --reward-fn module:function."
        )


# ---------------------------------------------------------------- damaged files

GUARDED = frozenset({"info", "env_id", "rows", "parts", "as_recorded", "cut_episodes"})
"""Methods of readers that read files."""


def _guard_reading(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of a reader so that its errors, and errors of the iterator it returns, name the reader's path."""

    def iterate(reader: Reader, parts: Iterator[Any]) -> Iterator[Any]:
        with reading(reader.path):
            yield from parts

    @functools.wraps(method)
    def call(reader: Reader) -> Any:
        with reading(reader.path):
            result = method(reader)
        return iterate(reader, result) if isinstance(result, Iterator) else result

    return call


def to_bool_column(values: np.ndarray, label: str, format_row: Callable[[int], str] = "row {:,}".format) -> np.ndarray:
    """Convert a column of true and false, or of 1 and 0, to bool ``[n]``.

    ``label`` names it in messages, ``format_row`` one of its rows.
    """
    values = values.reshape(-1)
    if values.dtype == bool:
        return values.copy()  # so that a mapped file is not kept open
    wrong = (values != 0) & (values != 1) if values.dtype.kind in "biuf" else np.ones(len(values), bool)
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"{label} has the value {values[row]} in {format_row(row)}: expected true or false, or 1 or 0.")
    return values.astype(bool)


@contextlib.contextmanager
def read_progress(description: str, total: int) -> Iterator[Callable[[Iterator[Rows]], Iterator[Rows]]]:
    """Show the rows read in a progress bar, on a terminal."""
    with progress_bars("rows") as show_progress:

        def track_progress(parts: Iterator[Rows]) -> Iterator[Rows]:
            num_rows = 0
            for part in parts:
                yield part
                num_rows += len(part["is_first"])
                show_progress(description, num_rows, total)

        yield track_progress


class FilesReader(Reader):
    """A dataset in several files, ``paths``, in the natural order of their names."""

    @classmethod
    def open(cls, path: Path, sources: Sequence[Source], options: ReadOptions) -> list[Reader]:
        return [cls(path, options, [source.path for source in sources])]

    def __init__(self, path: Path, options: ReadOptions | None = None, paths: Sequence[Path] = ()) -> None:
        super().__init__(path, options)
        self.paths: list[Path] = sorted(paths or [path], key=natural_sort_key)
