"""Settings of the replay, of how it is sampled, and of where the rows that a run learns from come from."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np

from reverie.core.bounds import MAX_INTEGER, Above, AtLeast, Within
from reverie.core.config import Choice, Config
from reverie.core.errors import ConfigError, missing_method_error
from reverie.core.types import Window


@dataclass(frozen=True)
class Experience(Choice):
    """The source of the rows that a run learns from."""

    recorded: ClassVar[float]
    """Fraction of each batch that comes from a dataset, in [0, 1]."""

    def __str__(self) -> str:
        return self.to_text()


@dataclass(frozen=True)
class Online(Experience):
    """Online RL: all rows are collected during the run."""

    recorded: ClassVar[float] = 0.0


@dataclass(frozen=True)
class Offline(Experience):
    """Offline RL: all rows come from a dataset."""

    recorded: ClassVar[float] = 1.0


@dataclass(frozen=True)
class Mixed(Experience):
    """Both: a fraction of each batch comes from a dataset, the rest is collected during the run."""

    part: Annotated[float, Within("(0, 1)")] = 0.5
    """Fraction of each batch that comes from a dataset, in (0, 1), rounded to whole windows."""

    @property
    def recorded(self) -> float:  # type: ignore[override]  # a constant of the others
        """Fraction of each batch that comes from a dataset."""
        return self.part


def experience_from_fraction(share: float) -> Experience:
    """Return the experience with this fraction of offline rows, in [0, 1]."""
    return Online() if share == 0 else Offline() if share == 1 else Mixed(share)


UNIT_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
            "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}  # fmt: skip


class Size(NamedTuple):
    """A number of rows or of bytes."""

    amount: int
    is_bytes: bool


def parse_size(value: int | str, name: str) -> Size:
    """Return the size that ``value`` describes: ``1000000``, ``5e6`` (rows), ``20GB``, ``512 MiB`` (bytes)."""
    text = str(value).strip().replace("_", "").lower()
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)(e\+?\d{1,2})?\s*(?:([kmgt]i?|)(b))?", text)
    number, power, prefix, is_bytes = match.groups("") if match else ("0", "", "", "")
    amount = Decimal(number + power) * UNIT_FACTORS.get(prefix, 0)
    if not 1 <= amount < MAX_INTEGER or (not is_bytes and amount % 1):
        raise ConfigError(
            f"{name} = {value!r}: expected rows such as 1000000 or 5e6, or bytes such as 20GB or 512MiB, "
            "at least 1 and a whole number of rows."
        )
    return Size(int(amount), bool(is_bytes))


@dataclass(frozen=True, kw_only=True)
class PriorityConfig(Config):
    """Prioritized replay, for the fraction of windows given by ``fractions.priority``."""

    alpha: Annotated[float, AtLeast(0)] = 0.6
    """Exponent of priorities, 0 or more: 0 is uniform, 1 proportional (Schaul et al. 2016, equation 1)."""
    beta: Annotated[float, Within("[0, 1]")] = 0.4
    """Initial exponent of the importance weights, in [0, 1]: 0 corrects no bias, 1 all of it (section 3.4)."""
    beta_end: Annotated[float, Within("[0, 1]")] = 1.0
    """Final exponent of the importance weights, in [0, 1]."""
    beta_anneal_windows: Annotated[int, AtLeast(0)] = 10_000_000
    """Number of windows drawn while beta changes linearly to beta_end; 0: beta_end from the start."""
    epsilon: Annotated[float, Above(0)] = 1e-6
    """Constant above 0 added to every priority, so that every window can be drawn (section 3.3)."""


@dataclass(frozen=True, kw_only=True)
class FractionsConfig(Config):
    """Fractions of windows drawn in each way, 0 or more. Only their ratios count: they are normalized to sum to 1."""

    uniform: Annotated[float, AtLeast(0)] = 1.0
    """Fraction drawn uniformly."""
    priority: Annotated[float, AtLeast(0)] = 0.0
    """Fraction drawn by priority (prioritized experience replay, `replay.priority`)."""
    recency: Annotated[float, AtLeast(0)] = 0.0
    """Fraction drawn with a preference for newer windows (`replay.recency_exponent`)."""
    episode_ends: Annotated[float, AtLeast(0)] = 0.0
    """Fraction drawn with a preference for ends of episodes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.normalize():
            raise ConfigError(f"replay.fractions = {self.to_dict()}: all are 0. Set at least one above 0.")

    def normalize(self) -> dict[str, float]:
        """Return the fractions above 0, normalized to sum to 1."""
        values = self.to_dict()
        return {name: value / sum(values.values()) for name, value in values.items() if value > 0}


@dataclass(frozen=True)
class SamplingRule(Choice):
    """A custom rule by which windows are drawn: derive a frozen dataclass from this class."""

    def build(self, windows: Any, rng: np.random.Generator) -> Any:
        """Return a ``replay/samplers.py: Sampler`` of ``windows``, whose random numbers come from ``rng``."""
        raise missing_method_error(self, "build")


@dataclass(frozen=True, kw_only=True)
class BatchSamplerConfig(Config):
    """How the windows of a batch are chosen."""

    online_queue: bool = True
    """Sample every newly collected window once, before windows drawn at random. No effect with `sequential`."""
    fractions: FractionsConfig = field(default_factory=FractionsConfig)
    """Fractions of all other windows that each way of sampling draws."""
    sampler: SamplingRule | None = None
    """A custom rule instead of `fractions`, such as 'mine:Rule()'. None: `fractions`."""
    priority: PriorityConfig = field(default_factory=PriorityConfig)
    """Settings of prioritized sampling."""
    recency_exponent: Annotated[float, AtLeast(0)] = 1.0
    """Exponent, 0 or more, of `fractions.recency`: a window of age a has a probability of about (1 + a)^-exponent."""
    sequential: bool = False
    """Read whole episodes in order and carry the state from window to window (truncated backpropagation through time),
    instead of `fractions` and the online queue."""
    reset_interval: Annotated[int, AtLeast(0)] = 0
    """With `sequential` and `algo.carry_state`: reset the state in the middle of episodes too, at the beginning of a
    window of T rows with probability T / (2 reset_interval); 0: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequential and self.fractions.normalize() != {"uniform": 1.0}:
            fractions = self.fractions.to_dict()
            raise ConfigError(
                f"replay.sequential = True, replay.fractions = {fractions}: whole episodes are read in order, "
                "so no fractions apply. Set only one of the two."
            )
        if self.sampler is not None and (self.sequential or self.fractions != FractionsConfig()):
            other = "sequential = True" if self.sequential else f"fractions = {self.fractions.to_dict()}"
            raise ConfigError(
                f"replay.sampler = {self.sampler.to_text()}, replay.{other}: each chooses all windows. Set only one of "
                "the two."
            )

    def check(self, window: Window) -> None:
        """Raise ConfigError if a setting has no meaning for an algorithm that learns from ``window``."""
        if self.sequential and window.context == window.num_free_rows and not window.carries:
            raise ConfigError(
                "replay.sequential = True, but the algorithm's windows have no context rows to carry state: expected "
                "algo.replay_context of 1 or more, algo.carry_state = True, or another algorithm that carries state."
            )
        if window.carries and not self.sequential:
            raise ConfigError(
                "algo.carry_state = True, but the next batch does not continue where the last one ended: set "
                "replay.sequential = True as well."
            )
        if self.fractions.priority and not window.has_priorities:
            raise ConfigError(
                f"replay.fractions.priority = {self.fractions.priority}, but the algorithm computes no priorities, "
                "so all windows would have the same probability: expected 0, or an algorithm with a critic or a world "
                "model."
            )


PERSON_OBJECT = "object"
"""``human.person`` of a person who was passed as an object in Python."""
PERSON_PAGE = "page"
"""``human.person`` of a person in a page of the browser."""


@dataclass(frozen=True, kw_only=True)
class HumanConfig(Config):
    """Settings of learning with a person, who takes over from the policy."""

    person: str = ""
    """Who can take over: `page`, a page in the browser; or `module:function` of the observation and the policy's
    action, which returns another action or None; in Python also a `reverie.Person`. Empty: nobody, or somebody in the
    environment."""
    fraction: Annotated[float | None, Within("[0, 1]")] = None
    """Fraction of each batch that has a person's actions or is recorded, rounded to whole windows; the rest is drawn
    from all collected rows. None: with a person 0.5, of bc 1, of world models 0; else 0."""
    min_rows: Annotated[int, AtLeast(1)] = 50
    """Windows of a person's actions in the replay before they have a fraction of their own."""
    intervention_reward: float = 0.0
    """Reward of an action of the policy after which a person took over, such as -1. Rows keep the environment's."""
    reward: Literal["add", "only"] = "add"
    """`add`: learn from the environment's reward plus intervention_reward; `only`: from the latter alone."""
    hz: Annotated[float | None, Within("[0, 30]")] = None
    """Rows a second while a person acts in the page. 0: each row waits for a key. None: as many as the environment
    renders, at most 30, or else 10."""
    success_reward: float = 1.0
    """Reward that a person in the page adds by marking a success, which ends the episode."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reward == "only" and not self.intervention_reward:
            raise ConfigError(
                "human.reward = 'only', human.intervention_reward = 0: all rewards would be 0. Set "
                "human.intervention_reward, such as -1."
            )


@dataclass(frozen=True)
class Hindsight(Choice):
    """The rows of an episode whose achieved goals can replace its desired goal."""

    share: Annotated[float, Within("(0, 1]")] = 0.8
    """Fraction of the windows that get another goal: k / (k + 1) for the paper's k, so 0.8 is k = 4."""
    reward: str = ""
    """Function `module:function` of the achieved goal, the desired goal and the info, as arrays of many rows; it
    returns their rewards. Empty: the environment's compute_reward."""

    def draw_rows(self, rng: np.random.Generator, begin: np.ndarray, row: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return a row ``[R]`` of each of R episodes.

        Their stored rows are ``begin`` to ``end`` ``[R]``. ``row`` ``[R]``, before ``end``, is the first learned row.
        """
        raise missing_method_error(self, "draw_rows")


@dataclass(frozen=True)
class Future(Hindsight):
    """Any row after the first row that is learned from."""

    def draw_rows(self, rng: np.random.Generator, begin: np.ndarray, row: np.ndarray, end: np.ndarray) -> np.ndarray:
        return rng.integers(row + 1, end + 1)


@dataclass(frozen=True)
class Final(Hindsight):
    """The newest row of the episode."""

    def draw_rows(self, rng: np.random.Generator, begin: np.ndarray, row: np.ndarray, end: np.ndarray) -> np.ndarray:
        return end


@dataclass(frozen=True)
class Episode(Hindsight):
    """Any row of the episode to which an action led."""

    def draw_rows(self, rng: np.random.Generator, begin: np.ndarray, row: np.ndarray, end: np.ndarray) -> np.ndarray:
        return rng.integers(begin + 1, end + 1)


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(BatchSamplerConfig):
    """Settings of the replay buffer."""

    capacity: int | str = 1_000_000
    """Total capacity of all streams in rows, such as 5e6, or in bytes, such as 20GB or 512MiB. When it is full, the
    oldest rows are evicted."""
    storage: Literal["ram", "mmap"] = "ram"
    """Storage of the rows with device cpu: ram, or mmap (memory-mapped files) for more rows than fit into memory."""
    store_path: str = "auto"
    """Permanent store of all rows: auto (the run's folder; none for on-policy learners), a path, a URL such as
    s3://bucket/name, or none."""
    store_keep: Literal["all", "replay"] = "all"
    """Rows that the store keeps: all, or replay for those that the replay of a checkpoint may need."""
    save: bool = True
    """Write all rows to the newest checkpoint, with environments on a device, which have no store by default. False: a
    resumed run begins with an empty replay."""
    write_buffer: int | str = "1GB"
    """Bytes that may wait for a store that is slow or cannot be reached; when they are full, collecting waits."""
    init_from: tuple[str, ...] = ()
    """Run folders or stores of earlier runs, whose rows fill the replay of a new run."""
    hindsight: Hindsight | None = None
    """Hindsight experience replay, for goal environments: 0.8 of the sampled windows get a goal that their episode has
    achieved in a later row (`future`), in its newest row (`final`) or in any row (`episode`)."""
    device: str = "cpu"
    """Device of the rows: cpu, or cuda (or cuda:<number>) if all of them fit on the GPU of the learner."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_size(self.capacity, "replay.capacity")
        if self.device != "cpu" and self.storage != "ram":
            settings = f"replay.device = '{self.device}', replay.storage = '{self.storage}'"
            raise ConfigError(
                f"{settings}: rows on a GPU cannot be in memory-mapped files. Use replay.device = 'cpu' or "
                "replay.storage = 'ram'."
            )

    def capacity_rows(self, bytes_per_row: float) -> int:
        """Return the total capacity in rows of ``_bytes_per_row`` bytes."""
        size = parse_size(self.capacity, "replay.capacity")
        return int(size.amount // bytes_per_row) if size.is_bytes else size.amount


def absolute_store_path(store: str) -> str:
    """Return ``replay.store_path`` as an absolute path, so that the working directory of a process does not matter."""
    return store if store in ("auto", "none") or "://" in store else os.path.abspath(os.path.expanduser(store))
