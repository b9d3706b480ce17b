"""Interfaces between the packages. ``run`` uses only these; every other package implements some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from reverie.core.specs import ActionSpec, ColumnSpec, ObsSpec
from reverie.core.types import Batch, ExactRewards, ExecutedActions, Mode, PolicyOutput, State, Step, Update, Window

S = TypeVar("S")


class Env(Protocol):
    """N environments that are stepped together. Their rows are on ``device``, and nobody may write to them."""

    num_envs: int
    device: torch.device
    defers: bool
    """Whether errors of values wait for ``check``, since nothing is read from the device before. It is then resumed
    from its ``state_dict``, otherwise from snapshots."""
    obs_spec: ObsSpec
    action_spec: ActionSpec
    frames_per_action: int
    packages: dict[str, str]
    """Versions of the packages of the environments, by name."""
    can_end_one: bool
    """Whether ``truncate`` can end single episodes. Otherwise it ends all."""

    @property
    def instances(self) -> set[int]:
        """Ids of all environment objects in this process."""

    @property
    def exact_rewards(self) -> ExactRewards | None:
        """Rewards ``[N]`` of the current rows in the precision of the environments; None: unknown, after a resume."""

    @property
    def success(self) -> Tensor | None:
        """Whether each environment has reached its goal in the current rows, ``[N]``; None: see ``episode_info``."""

    @property
    def executed_actions(self) -> ExecutedActions | None:
        """The actions that have led to the current rows, where they were not the policy's; None: all were."""

    @property
    def episode_info(self) -> Mapping[int, Mapping[str, float]]:
        """The success and ``env.log_info`` values of the episodes that end with the current rows, by environment."""

    def summary(self, number: int) -> Mapping[str, float]:
        """Return what ``episode_info`` says of one environment, or would say if its episode ended here."""

    @property
    def max_episode_steps(self) -> int | None:
        """Maximum episode length that the environment declares; None: unknown."""

    def reset(self, seed: int | None = None) -> Step:
        """Start N new episodes; every row is ``is_first``."""

    def step(self, action: Tensor) -> Step:
        """Take ``action`` ``[N, A]``.

        An ``is_last`` row is followed by an ``is_first`` row, whose action is ignored.
        """

    def truncate(self, step: Step, numbers: Sequence[int]) -> Step:
        """End the episodes of the environments ``numbers`` with the current rows ``step``; return the rows.

        Rows that end an episode are ``is_last``, so that the next step begins new episodes.
        """

    def send(self, action: Tensor) -> None:
        """Start a step with ``action`` ``[N, A]``; do not wait for environments in other processes."""

    def receive(self) -> Step:
        """Wait for the step started last and return its rows. Its errors are raised here or by ``send``."""

    def check(self) -> None:
        """Raise the errors of all steps so far that are known only on the device, for which this waits."""

    @property
    def restarts(self) -> int:
        """Number of restarts after a failure of an environment, since this object was made."""

    def snapshot(self) -> list[bytes | None]:
        """Return the serialized state of each of N environments, or None if it cannot be saved; [] if none can.

        Waits for a pending step; ``receive`` still returns its rows.
        """

    def restore(self, snapshots: Sequence[bytes | None], step: Step) -> Step:
        """Continue from ``snapshots``, or none, taken when ``step`` were the current rows. Return the current rows.

        An environment without a usable snapshot begins a new episode: its current row becomes ``is_last``.
        """

    def state_dict(self) -> State | None:
        """Return the state of environments on a device as named tensors; None if they cannot be saved."""

    def load_state_dict(self, state: State, step: Step) -> None:
        """Continue from a saved state, when ``step`` were the current rows."""

    def call(self, name: str, *args: object, **kwargs: object) -> list[Any]:
        """Call a method of each environment between two steps, or read an attribute; return the N results."""

    def set_attr(self, name: str, value: object) -> None:
        """Set an attribute that each environment has to ``value`` between two steps."""

    def render(self) -> np.ndarray | None:
        """Return an image of environment 0, uint8 ``[H, W, 3]``, or None if it cannot be rendered."""

    def close(self) -> None:
        """Release windows, processes and memory. Can be called twice."""


class Policy(Protocol[S]):
    """Chooses actions. Its state is passed in and returned, never stored inside."""

    def initial(self, num_envs: int) -> S:
        """Return the state before the first observation."""

    def act(self, step: Step, state: S, mode: Mode) -> tuple[Tensor, S]:
        """Return ``(action [N, A], state)``. The policy resets the state itself where ``is_first``."""

    def override(self, state: S, action: Tensor) -> S:
        """Return the state for the case that the caller takes ``action`` ``[N, A]`` instead of what ``act`` chose."""

    def extras(self, state: S) -> dict[str, Tensor]:
        """Return columns ``[N, ...]`` to store with the rows that led to ``state``; empty for most policies."""


@runtime_checkable
class ScheduledPolicy(Protocol[S]):
    """Optional method of a ``Policy`` that follows a schedule in env steps, such as a decaying epsilon."""

    def advance_schedule(self, state: S, env_steps: int) -> S:
        """Return the initial ``state`` with its schedule advanced by ``env_steps``, summed over all environments."""


@runtime_checkable
class Inspectable(Protocol):
    """Optional method of a ``Policy`` that can explain its actions."""

    def inspect(self, step: Step, state: object) -> PolicyOutput:
        """Return the output that the policy uses in evaluations, given rows and the preceding state."""


@runtime_checkable
class Memoryless(Protocol):
    """Optional method of a ``Policy`` whose actions may be independent of earlier rows."""

    def memoryless(self, mode: Mode) -> bool:
        """Return whether actions in ``mode`` depend only on the current row, so that rows can be in any order."""


@runtime_checkable
class RunningStatistics(Protocol):
    """Keeps statistics of the collected rows, such as those that normalize observations."""

    def update_statistics(self, step: Step) -> None:
        """Update with newly collected rows, before the policy acts on them. Every row comes once, in order."""

    def fit(self, rows: Batch) -> None:
        """Initialize the statistics from rows ``[N, n]`` that exist before collecting: n rows each of N streams.

        Existing statistics, such as another run's, are kept; bounds of values are widened.
        """


class Learner(Protocol):
    """A learner: it owns networks and optimizers, is updated with batches, and provides a policy."""

    window: Window
    extra_spec: Mapping[str, ColumnSpec]
    device: torch.device

    @property
    def policy(self) -> Policy[Any]:
        """Policy that acts with the newest weights."""

    def update(self, batch: Batch) -> Update:
        """Make one gradient step, without waiting for the device."""

    def exploration(self, env_steps: int) -> float | None:
        """Return the policy's exploration parameter at ``env_steps``: an epsilon or a standard deviation, if any."""

    def report(self, batch: Batch) -> dict[str, np.ndarray]:
        """Return expensive diagnostics, computed periodically: videos ``[T, H, W, C]`` uint8, curves.

        ``{}`` if none.
        """

    def state_dict(self) -> State:
        """Return the whole state of the learner: weights, optimizers, targets, normalizers, counters."""

    def load_state_dict(self, state: State) -> None:
        """Restore the state that ``state_dict`` returned."""


class BatchSource(Protocol):
    """Provides batches: a replay, a dataset, or a mix of them."""

    def sample(self) -> Batch:
        """Return B windows of T rows."""

    def feedback(self, index: Tensor, update: Update) -> None:
        """Write priorities and extras of an update back to the sampled rows ``index`` ``[B]``; skip evicted ones."""

    def __len__(self) -> int:
        """Return the number of windows that can be sampled."""


class RowStorage(Protocol):
    """Rows of several streams, numbered by stream: the storage interface of :class:`RowAnnotator`."""

    streams: int
    count: int

    @property
    def oldest(self) -> int:
        """Number of the oldest stored row."""

    def read(
        self, start: int, stop: int, names: list[str] | None = None, stream: int | None = None
    ) -> dict[str, np.ndarray]:
        """Return rows ``start`` to ``stop`` of some columns of one stream, ``[1, n, ...]``."""

    def replace(self, name: str, start: int, stream: int, values: np.ndarray) -> None:
        """Overwrite one column of one stream, from row ``start`` on."""


class RowAnnotator(Protocol):
    """Fills an extra column of stored rows, once the following rows are known."""

    def on_add(self, storage: RowStorage, step: Step) -> None:
        """Fill the column after one row was added to each stream."""

    def on_extend(self, storage: RowStorage) -> None:
        """Fill the column of all rows, after many were added."""


class RowSink(Protocol):
    """Receives rows as they are collected."""

    def add(self, step: Step, action: Tensor, extras: Mapping[str, Tensor]) -> None:
        """Add one row to each of N streams: observation, the action ``[N, A]`` taken after it, the policy's extras."""

    def correct(self, action: Tensor, is_takeover: Tensor | None) -> None:
        """Replace the actions of the newest rows by those that were executed, ``[N, A]``; before the next row comes.

        ``is_takeover`` ``[N]``: where a person took over; None: nowhere.
        """


class MeterLike(Protocol):
    """Averages metrics on the device."""

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Add the metrics of one update."""

    def flush(self) -> dict[str, float]:
        """Return the means since the last flush, read from the device in one go."""


class Sink(Protocol):
    """A destination of metrics."""

    def write(self, values: Mapping[str, float | str | np.ndarray], step: int) -> None:
        """Record named scalars, texts, and arrays such as images and videos, at ``step`` env steps."""

    def close(self) -> None:
        """Flush and release everything."""


class Stateful(Protocol):
    """An object that can be part of a checkpoint."""

    def state_dict(self) -> State:
        """Return nested mappings of tensors and plain JSON values."""

    def load_state_dict(self, state: State) -> None:
        """Restore the state that ``state_dict`` returned."""


@runtime_checkable
class StatefulWithFiles(Protocol):
    """A ``Stateful`` that also saves files: data too large to be in memory twice, or neither tensors nor JSON."""

    prunable: bool
    """Whether checkpoints other than the newest can omit these files if they are large."""

    def save_files(self, folder: Path) -> None:
        """Write files into ``folder``, which exists and is empty."""

    def load_files(self, folder: Path) -> None:
        """Load what ``save_files`` wrote. ``folder`` can be missing, as in an older checkpoint."""
