"""Settings of data that the command line shares with Python. No large package is imported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from reverie.core.bounds import AtLeast, Within
from reverie.core.config import Config
from reverie.core.errors import ConfigError, short_repr

ColumnNames = str | tuple[str, ...]
"""Name of a table's column, or of several that form one vector."""
PROPENSITY = "propensity"
"""Column that a reader may add: the behavior policy's probability of the recorded action, in (0, 1]; 1 in the last row
of an episode, which has no action."""
REQUIRED_COLUMNS = ("observations", "actions", "terminals")
OPTIONAL_COLUMNS = ("rewards", "timeouts", "next_observations", "episode_terminals", PROPENSITY)
"""Arrays of D4RL's files. ``episode_terminals`` of d3rlpy 1 marks every end of an episode."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions(Config):
    """User-provided options for files that do not describe themselves."""

    reader: str = ""
    """Class that reads a custom format, module:Class or module:Class(setting=value). Empty: detect the format."""
    columns: dict[str, ColumnNames] = field(default_factory=dict)
    """Tables: the column of each quantity, '{obs: state, action: action, reward: reward, terminal: done}'; several
    number columns that form one vector are a list, '{obs: [x, y], ...}'. propensity is the behavior policy's
    probability of the recorded action: see `reverie estimate`."""
    classes: dict[str, int | tuple[int, ...]] = field(default_factory=dict)
    """Categorical observations in files that do not declare them: number of classes of each element, `image=11` or
    '{image: 11, pose: [20, 20, 4]}'. An unnamed observation is called observation."""
    max_episode_steps: Annotated[int | None, AtLeast(1)] = None
    """Steps after which episodes are truncated, for D4RL files and tables that do not mark truncations."""
    partial: bool = False
    """RL Unplugged: use the readable part of truncated shards."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, classes in self.classes.items():
            if not classes or min(classes if isinstance(classes, tuple) else (classes,)) < 1:
                raise ConfigError(
                    f"data.classes.{key} = {short_repr(classes)}: expected numbers of classes, 1 or more."
                )
        for role, columns in self.columns.items():
            names = list(columns) if isinstance(columns, list | tuple) else [columns]
            if not names or not all(isinstance(name, str) for name in names):
                raise ConfigError(
                    f"data.columns.{role} = {short_repr(columns)}: expected a column name, or a list of numeric "
                    "columns that form one vector, such as [x, y]. Name several observations obs.state, obs.camera and "
                    "so on."
                )


@dataclass(frozen=True, kw_only=True)
class Subset(Config):
    """A random part of the episodes of a dataset, with its size; or the episodes with the highest returns."""

    fraction: Annotated[float | None, Within("(0, 1]")] = None
    """Fraction of the steps, above 0 and up to 1."""
    steps: Annotated[int | None, AtLeast(1)] = None
    """Number of steps, instead of a fraction."""
    top_fraction: Annotated[float | None, Within("(0, 1]")] = None
    """Fraction of the episodes, with the highest returns, instead of a random part."""
    min_return: float | None = None
    """Minimum return of the episodes, instead of a random part."""
    seed: Annotated[int, AtLeast(0)] = 0
    """Seed of the random part."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = {name: getattr(self, name) for name in ("fraction", "steps", "top_fraction", "min_return")}
        if sum(value is not None for value in sizes.values()) != 1:
            sizes_text = ", ".join(f"{name} = {value}" for name, value in sizes.items())
            raise ConfigError(f"{sizes_text}: pass exactly one of them.")


@dataclass(frozen=True, kw_only=True)
class RecordConfig(Config):
    """How much to record, and how the agent explores."""

    episodes: Annotated[int | None, AtLeast(1)] = None
    """Number of episodes."""
    steps: Annotated[int | None, AtLeast(1)] = None
    """Number of env steps, instead of episodes; the last episode is truncated."""
    epsilon: Annotated[float, Within("[0, 1]")] = 0.0
    """Probability that a random action from the action space replaces the agent's action."""
    noise: Annotated[float, AtLeast(0)] = 0.0
    """Standard deviation of Gaussian noise on continuous actions, in units of half their range."""
    deterministic: bool = True
    """Take the agent's most likely actions. False: sample them."""
    seed: Annotated[int, AtLeast(0)] = 0
    """Seed of environments, exploration and actions."""
    raw: bool = False
    """Record the environment's original images, before env.resize and env.grayscale."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.episodes is None) == (self.steps is None):
            raise ConfigError(f"episodes = {self.episodes}, steps = {self.steps}: expected exactly one of them.")
