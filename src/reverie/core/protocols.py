"""The plugs. ``run`` sees nothing but these; every other floor provides one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from reverie.core.specs import ActionSpec, ExtraPart, ObsSpec
from reverie.core.types import Batch, Mode, State, Step, Update, Window

S = TypeVar("S")


class Env(Protocol):
    """N environments that are stepped together."""

    num_envs: int
    obs_spec: ObsSpec
    action_spec: ActionSpec

    def reset(self, seed: int | None = None) -> Step:
        """Start N new episodes; every row is ``is_first``."""
        ...

    def step(self, action: Tensor) -> Step:
        """Take ``action`` ``[N, A]``. An ``is_last`` row is followed by an ``is_first`` row, whatever the action."""
        ...

    def render(self) -> np.ndarray | None:
        """What environment 0 looks like, uint8 ``[H, W, 3]``, or None if it cannot be drawn."""
        ...

    def close(self) -> None:
        """Free windows, processes and memory. May be called twice."""
        ...


@runtime_checkable
class AsyncEnv(Protocol):
    """What an ``Env`` offers besides, if its environments can be stepped while the caller does something else.

    ``step`` is then one after the other. Whoever wraps such an ``Env`` and changes ``step`` must change these as well:
    collecting calls them in its place.
    """

    def send(self, action: Tensor) -> None:
        """Begin to take ``action`` ``[N, A]``."""
        ...

    def receive(self) -> Step:
        """The answer to the action sent last; waits for it. What went wrong is raised here or by ``send``."""
        ...


@runtime_checkable
class Restorable(Protocol):
    """What an ``Env`` offers besides, if it outlives its failures and can be taken up in the middle of its episodes."""

    restarts: int
    """How many environments were started again because they had failed, since this object was made."""

    def snapshot(self) -> list[bytes | None]:
        """For each of N environments all that it needs to go on from here; None where that cannot be had.

        Waits for an answer that is due; it can still be received.
        """
        ...

    def restore(self, snapshots: Sequence[bytes | None], step: Step) -> Step:
        """Go on from ``snapshots``, taken when ``step`` were the current rows; the rows that are current now.

        An environment without a snapshot of any use begins a new episode: its current row becomes ``is_last``.
        """
        ...


class Policy(Protocol[S]):
    """Chooses actions. Its state is carried by the caller, never stored inside."""

    def initial(self, num_envs: int) -> S:
        """The state before anything was seen."""
        ...

    def act(self, step: Step, state: S, mode: Mode) -> tuple[Tensor, S]:
        """``(action [N, A], state)``. The policy resets the state itself where ``is_first``."""
        ...

    def override(self, state: S, action: Tensor) -> S:
        """The state if the caller executed ``action`` ``[N, A]`` instead of what ``act`` chose.

        A policy that carries no previous action returns ``state`` as it is.
        """
        ...

    def extras(self, state: S) -> dict[str, Tensor]:
        """Columns ``[N, ...]`` to store with the rows that led to ``state``; empty for most policies."""
        ...


@runtime_checkable
class Annealed(Protocol[S]):
    """What a ``Policy`` offers besides, if something about it changes with the env steps that it has acted in."""

    def after(self, state: S, env_steps: int) -> S:
        """``state``, in which nothing was done yet, as if ``env_steps`` had been, of all environments together."""
        ...


@runtime_checkable
class Memoryless(Protocol):
    """What a ``Policy`` offers besides, if it can say that its actions do not depend on earlier rows."""

    def memoryless(self, mode: Mode) -> bool:
        """Return whether actions in ``mode`` depend on the current row alone, so that rows may come in any order."""
        ...


@runtime_checkable
class Watcher(Protocol):
    """Takes statistics of the rows that are lived, such as those that observations are normalised by."""

    def watch(self, step: Step) -> None:
        """Rows that have just been lived, before anybody acts on them. Every row is shown once, in its order."""
        ...

    def fit(self, rows: Batch) -> None:
        """Rows that are there before any is lived, ``[N, n]``: consecutive ones of N streams, in place of others."""
        ...

    def widen(self, rows: Batch) -> None:
        """The same rows beside those of another run, whose statistics stay: only what bounds values takes them in."""
        ...


class Algorithm(Protocol):
    """A learner: feeds on batches, owns its networks and optimisers, and offers a policy."""

    window: Window
    extra_spec: Mapping[str, ExtraPart]
    device: torch.device

    @property
    def policy(self) -> Policy[Any]:
        """The policy that acts with the newest weights."""
        ...

    def update(self, batch: Batch) -> Update:
        """One gradient step, without waiting for the device."""
        ...

    def report(self, batch: Batch) -> dict[str, np.ndarray]:
        """Costly things to look at now and then: videos ``[T, H, W, C]`` uint8, curves. ``{}`` if there are none."""
        ...

    def state_dict(self) -> State:
        """All that this learner is: weights, optimisers, targets, normalisers, counters."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Become what ``state_dict`` described."""
        ...


class Source(Protocol):
    """Where batches come from: a replay, a dataset, a mix of them."""

    def sample(self) -> Batch:
        """B windows of T rows."""
        ...

    def feedback(self, index: Tensor, update: Update) -> None:
        """Write priorities and extras of an update back to the rows it came from; evicted rows are skipped."""
        ...

    def __len__(self) -> int:
        """How many windows can be sampled."""
        ...


class RowSink(Protocol):
    """Takes rows as they are lived."""

    def add(self, step: Step, action: Tensor, extras: Mapping[str, Tensor]) -> None:
        """One row for each of N streams."""
        ...


class Sink(Protocol):
    """Where measured values go."""

    def write(self, values: Mapping[str, float | np.ndarray], step: int) -> None:
        """Record named scalars, and arrays such as videos, at ``step`` env steps."""
        ...

    def close(self) -> None:
        """Flush and free."""
        ...


class Stateful(Protocol):
    """Anything a checkpoint can hold."""

    def state_dict(self) -> State:
        """Nested mappings of tensors and plain JSON values."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Become what ``state_dict`` described."""
        ...


@runtime_checkable
class WithFiles(Protocol):
    """A ``Stateful`` with something besides that is too large for memory to hold twice, or neither tensors nor JSON."""

    spare: bool
    """Whether a checkpoint that is no longer the newest can do without these files where they are large."""

    def save_files(self, folder: Path) -> None:
        """Write files into ``folder``, which is there and empty."""
        ...

    def load_files(self, folder: Path) -> None:
        """Take over what ``save_files`` wrote; ``folder`` may not be there, as in an older checkpoint."""
        ...
