"""What every reader of recorded data offers: its spaces, and its rows, a part at a time.

A reader gets the *order* of things right: which reward came with which observation, where episodes begin and end, and
what was seen last. The values stay as they were recorded; ``envs/recorded.py`` makes of them what learners see.

Columns are named ``obs`` or ``obs/arm/camera``, ``action`` or ``action/grip``, then ``reward``, ``is_first``,
``is_last`` and ``is_terminal``, as in ``core/types.py``. Parts follow each other as one stream: an episode may begin in
one part and end in a later one. The first row of all is ``is_first``, the last one ``is_last``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from gymnasium import spaces

from reverie.core.errors import ConfigError, DataError, brief
from reverie.core.specs import ActionSpec, ObsSpec

Rows = dict[str, np.ndarray]
Space = spaces.Space[Any]

Named = str | tuple[str, ...]
"""A column of a table, or several that are one vector."""

FLAGS = ("is_first", "is_last", "is_terminal")
PART_BYTES = 1_500_000
"""So large are the parts that readers make where they are free to choose: they stay in a processor's cache."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What a file cannot say of itself."""

    columns: dict[str, Named] = field(default_factory=dict)
    """Which column is what, of a table whose columns are called as somebody liked."""
    time_limit: int | None = None
    """Episodes end after so many steps, in files that do not say where their time ran out."""
    partial: bool = False
    """Use what can be read of files that were cut off in the middle."""

    def __post_init__(self) -> None:
        for role, given in self.columns.items():
            names = list(given) if isinstance(given, list | tuple) else [given]
            if not names or not all(isinstance(name, str) for name in names):
                raise ConfigError(
                    f"data.columns.{role} = {brief(given)}: expected the name of a column, or a list of names of "
                    "columns of numbers that are one vector, such as [x, y]. Several observations are obs.state and "
                    "obs.camera."
                )
        if self.time_limit is not None and self.time_limit < 1:
            raise ConfigError(f"data.time_limit = {self.time_limit}: expected at least 1.")


@dataclass(frozen=True, kw_only=True)
class About:
    """What a dataset says of itself, or what its arrays give away."""

    observation: Space
    action: Space
    env: str = ""
    """The environment's id; empty if it is not said."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """What the environment was made with."""
    env_settings: dict[str, Any] = field(default_factory=dict)
    """Rows of our own: all settings of the environment that they were lived in, as plain values."""
    time_limit: int | None = None
    """The steps after which the environment ended its episodes, where it says so."""
    episodes: int | None = None
    """How many there are, where that is known without reading."""
    rewards: tuple[float, float] | None = None
    """The range of rewards that is declared."""
    measured: bool = False
    """Whether bounds of continuous actions follow from the recorded ones, because none were declared."""
    specs: tuple[ObsSpec, ActionSpec] | None = None
    """Rows of our own: they are as learners see them already, and these are their parts."""
    text: dict[str, str] = field(default_factory=dict)
    """What else it says, for people."""


class Reader(ABC):
    """A recorded dataset in one file or in files that belong together.

    Raises:
        DataError: it is not what it seems to be, is damaged, or holds what cannot be learned from.
        ConfigError: an option does not fit, or a package is missing.
    """

    format: ClassVar[str]
    """What it is called in sentences."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self.path, self.options = path, options
        self.notes: Counter[str] = Counter()
        """What is known of the whole that had to be assumed, and how often."""
        self.met: Counter[str] = Counter()
        """What was left out or assumed while rows were read the last time, and how often."""

    @abstractmethod
    def about(self) -> About:
        """Spaces and whatever else is said of the whole."""

    def env_id(self) -> str:
        """The id of the environment as ``about`` says it, without reading anything large; empty if it is not said."""
        return ""

    @abstractmethod
    def rows(self) -> int:
        """How many rows ``parts`` will give. Some formats must be read through for that, without their values."""

    @abstractmethod
    def parts(self) -> Iterator[Rows]:
        """All rows, ``[n, ...]`` by column."""

    def as_recorded(self) -> Iterator[Rows]:
        """All rows with values of the spaces that ``about`` says. ``parts`` are so, but for those of our own stores."""
        return self.parts()

    def ask(self, answer: Callable[[About], tuple[Space | None, str]]) -> None:  # noqa: B027 - most need not ask
        """Before ``about`` and ``as_recorded``: rows of our own are to have actions as their environment takes them.

        Args:
            answer: the space of the environment's actions, or why there is none.
        """

    def files(self) -> Sequence[Path]:
        """The files that the rows are read from, in order."""
        return [self.path]

    def disordered(self) -> np.ndarray:
        """Numbers of episodes in which a step does not begin with what the one before led to, if that is recorded."""
        return np.empty(0, np.int64)

    def close(self) -> None:  # noqa: B027 - most have nothing open
        """Let go of open files. Nothing can be read after that."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def note(self, what: str, times: int = 1) -> None:
        """Remember something that whoever uses the data should know."""
        if times:
            self.notes[what] += times

    def meet(self, what: str, times: int = 1) -> None:
        """The same of something that is met in the rows, each time that they are read."""
        if times:
            self.met[what] += times

    def remarks(self) -> list[str]:
        """The notes as sentences."""
        return [f"{what} ({times:,} times)" if times > 1 else what for what, times in self.noted().items()]

    def noted(self) -> Counter[str]:
        """All notes."""
        return self.notes + self.met


def needs(package: str, extra: str, error: ImportError) -> ConfigError:
    """The error for a package that is not installed."""
    return ConfigError(f"{package} is needed to read this ({error}): pip install 'reverie-rl[{extra}]'.")


# ---------------------------------------------------------------- spaces of arrays that come without one


def observed_space(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Space:
    """The space of observations ``[n, *shape]`` of ``dtype``.

    Raises:
        DataError: they are no numbers.
    """
    if dtype == np.uint8 and len(shape) in (2, 3):
        return spaces.Box(0, 255, shape, np.uint8)
    if dtype.kind not in "biuf":
        raise DataError(f"observations of dtype {dtype}: expected numbers.")
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def action_space(
    blocks: Callable[[], Iterable[np.ndarray]], where: Path | str, *, scaled: bool = False
) -> tuple[Space, bool]:
    """The space that recorded actions ``[n, ...]`` are from, and whether its bounds had to be measured.

    Whole numbers are classes. Of others [-1, 1] is taken where it holds all.

    Args:
        blocks: the actions, some at a time.
        where: the file, for sentences.
        scaled: such files hold what policies say, in [-1, 1], and not what environments take: where that holds all it
            was not measured.

    Raises:
        DataError: there are no actions, or none that are finite.
    """
    seen = [(block.min(), block.max(), block.dtype.kind in "iub") for block in blocks() if block.size]
    if not seen:
        raise DataError(f"{where}: there are no actions in it: nothing can be learned about what to do.")
    low, high, whole = min(s[0] for s in seen), max(s[1] for s in seen), all(s[2] for s in seen)
    if whole and low < 0:
        raise DataError(f"{where}: there are whole-number actions down to {low}: expected class numbers from 0 on.")
    shape = next(block.shape[1:] for block in blocks() if block.size)
    if not np.isfinite([float(s[i]) for s in seen for i in (0, 1)]).all():  # whoever learns from them is told where
        return action_space(lambda: map(_finite_rows, blocks()), where, scaled=scaled)
    if not whole and low >= -1.0 - 1e-5 and high <= 1.0 + 1e-5:
        return spaces.Box(-1.0, 1.0, shape, np.float32), not scaled
    each = [(block.min(axis=0), block.max(axis=0)) for block in blocks() if block.size]
    lows, highs = np.min([e[0] for e in each], axis=0), np.max([e[1] for e in each], axis=0)
    if not whole:
        lows, highs = lows.astype(np.float32), highs.astype(np.float32)
        return spaces.Box(lows, np.where(highs > lows, highs, lows + 1), shape, np.float32), True
    counts = np.maximum(highs.astype(np.int64), 1) + 1
    return (spaces.MultiDiscrete(counts) if counts.ndim else spaces.Discrete(int(counts))), True


def _finite_rows(block: np.ndarray) -> np.ndarray:
    finite: np.ndarray = block[np.isfinite(block.reshape(len(block), -1)).all(axis=1)]
    return finite
