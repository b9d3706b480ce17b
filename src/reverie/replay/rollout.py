"""Rollouts of on-policy learners: the rows of the current policy, used for some epochs and then dropped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.core.columns import block_of, view_in_block
from reverie.core.errors import ConfigError, RunError
from reverie.core.specs import EXTRAS, IS_INTERVENTION, ColumnSpec
from reverie.core.types import FLAGS, Batch, SharedBatch, State, Step, Update, Window, no_flags
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.config import BatchSamplerConfig
from reverie.replay.storage import Storage


class MinibatchSource(ABC):
    """Minibatches of the newest T rows of N streams, T = ``window.rollout``: a ``BatchSource``.

    It offers nothing before T rows are complete. Then it offers each window of ``window.length`` rows ``window.epochs``
    times, in a new random order for each epoch, and starts over. The row after the last one, on which the policy has
    not acted yet, serves only as the bootstrap: so all actions come from the current policy.
    """

    window: Window
    shares_batch: bool = False
    """Whether every minibatch is the same :class:`SharedBatch`, see ``ReplayBuffer``; those on a GPU never are."""
    prepare_fn: Callable[[Batch], Batch]
    """Maps rows ``[N, context + T + 1]`` to the windows ``[W, length]`` that are learned from."""

    def _start(self, streams: int, window: Window, seed: int) -> None:
        self.windows: int = streams * window.rollout // window.length  # W, the windows of a rollout
        self.batches: int = self.windows // window.batch if window.epochs else 1  # minibatches of an epoch
        self.rng: np.random.Generator = np.random.default_rng(seed)
        self._minibatch: SharedBatch | None = None
        self._forget()

    def _forget(self) -> None:
        """Begin a new rollout."""
        self.used: int = 0  # minibatches that were sampled
        self.rows: Batch | None = None
        self.order: Tensor = torch.empty(0, dtype=torch.int64)  # of this epoch's windows
        self.shuffled: Batch | None = None  # in that order

    @property
    def supports_sharing(self) -> bool:
        """Whether ``shares_batch`` can be set."""
        return True

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Whether all rows of the rollout were added."""

    @abstractmethod
    def _complete_rows(self) -> Batch:
        """Return the context rows, the rollout's rows and the row after them: ``[N, context + T + 1]``."""

    def __len__(self) -> int:
        """Return the number of minibatches left of a complete rollout; 0 while it is being collected."""
        return self.batches * max(1, self.window.epochs) - self.used if self.is_complete else 0

    def sample(self, count: int | None = None, handles: Tensor | None = None) -> Batch:
        """Return the next minibatch, on the learner's device. ``count`` and ``handles`` are ignored."""
        if not len(self):
            raise RunError("the rollout is not complete yet: collect the other rows first.")
        if self.rows is None:
            self.rows = self.prepare_fn(self._complete_rows())
        number, self.used = self.used % self.batches, self.used + 1
        if not self.window.epochs:
            return self.rows
        chosen = slice(number * self.window.batch, (number + 1) * self.window.batch)
        if number == 0:
            order = torch.from_numpy(self.rng.permutation(self.windows))
            self.order = order.to(self.rows.reward.device, non_blocking=True)
            self.shuffled = None
        if self.shares_batch and self.rows.reward.is_cpu:
            return self._select(self.rows, self.order[chosen])
        if self.shuffled is None:  # for all of an epoch, as a GPU launches fewer operations
            self.shuffled = self.rows.map(lambda x: x.index_select(0, self.order))
        return self.shuffled.map(lambda x: x[chosen])

    def _select(self, rows: Batch, chosen: Tensor) -> Batch:
        """Return the windows ``chosen`` of ``rows``, in the memory of the minibatch before."""
        if self._minibatch is None:
            self._minibatch = SharedBatch.of(rows.map(lambda x: x.index_select(0, chosen)))
        else:
            for x, to in zip(rows.tensors, self._minibatch.tensors, strict=True):
                torch.index_select(_rows_of(x), 0, chosen, out=_rows_of(to))
        return self._minibatch


def _rows_of(x: Tensor) -> Tensor:
    """Return a view of ``x`` that PyTorch selects from fastest: with one axis, if each row is one number."""
    return x.view(-1) if x.numel() == len(x) else x


class RolloutBuffer(MinibatchSource, ReplayBuffer):
    """The rollout of environments whose rows lie in the host's memory."""

    gpu: torch.device | None = None
    """The learner's GPU, if it has one: minibatches lie there."""
    next_row_fn: Callable[[], Step]
    """Returns the current row of each stream, which is not stored yet. May wait for the environments."""

    def __init__(self, storage: Storage, window: Window, *, seed: int) -> None:
        ReplayBuffer.__init__(self, storage, window, seed=seed, config=BatchSamplerConfig(), online=False)
        self._start(storage.streams, window, seed)
        self.begun: int = 0  # number of the rollout's first row

    def _restart(self, begun: int) -> None:
        self.begun = begun
        self._forget()

    @property
    def is_complete(self) -> bool:
        return self.count - self.begun >= self.window.rollout

    def register_row(self, step: Step) -> None:
        """Do nothing: rollouts are not sampled as windows."""

    @property
    def oldest_needed(self) -> int:
        return max(self.oldest, (self.count if self.used else self.begun) - self.window.context)

    def restart_at(self, first: int) -> None:
        """Drop all rows, see ``ReplayBuffer``; a rollout begins at row ``first``."""
        super().restart_at(first)
        self._restart(first)

    def _complete_rows(self) -> Batch:
        step = self.next_row_fn()  # first: it may correct the newest of the rows
        streams, before = self.storage.streams, self.window.context
        handles = (self.begun - before) * streams + torch.arange(streams)
        rows = self.storage.gather(handles, before + self.window.rollout)
        if self.gpu is not None:
            block = block_of(rows["reward"]).to(self.gpu, non_blocking=True)
            rows = {name: view_in_block(block, rows[name]) for name in self.storage.specs}
        latest = {f"obs/{key}": value for key, value in step.obs.items()} | {"reward": step.reward}
        latest |= {name: getattr(step, name) for name in FLAGS}
        joined = {name: _with_row(x, latest.get(name)) for name, x in rows.items()}
        is_cut = joined["is_first"][:, -1] & ~joined["is_last"][:, -2]  # as by a crash, known only now
        joined["is_last"][:, -2] |= is_cut
        joined["action"][:, -2].masked_fill_(is_cut[:, None], 0.0)
        extras = {key: joined[name] for name, key in self.extra_names.items()}
        return Batch.from_columns(joined, torch.arange(streams), extras)

    def feedback(self, index: Tensor, update: Update) -> None:
        """Drop the rows after their last minibatch, or as soon as ``update.rollout_done`` is true."""
        if not len(self) or (update.rollout_done is not None and bool(update.rollout_done)):
            self._restart(self.count)

    def state_dict(self) -> State:
        """Return the first row and the generator of orders. A partly used rollout counts as used up."""
        begun = self.count if self.used else self.begun
        streams = self.storage.streams
        return {"begun": begun, "count": self.count, "streams": streams, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        """Restore a saved state; without the same rows a new rollout begins, as other rows are of another policy."""
        begun, same = int(state["begun"]), (state["count"], state["streams"]) == (self.count, self.storage.streams)
        self._restart(begun if same and begun >= self.oldest else self.count)  # the rollout can have become shorter
        self.rng.bit_generator.state = dict(state["rng"])


class DeviceRollout(MinibatchSource):
    """The rollout of environments on a device, where its rows stay. Part of a checkpoint.

    Columns are ``[context + T + 1, N, ...]``: each row is copied once, into its place, and nothing is stored on disk.
    """

    used: int
    rows: Batch | None

    def __init__(
        self, columns: Mapping[str, ColumnSpec], streams: int, window: Window, device: torch.device, *, seed: int
    ) -> None:
        """``columns``: as by ``row_columns``."""
        self.window = window
        self.streams = streams
        shape = (window.context + window.rollout + 1, streams)
        self.columns: dict[str, Tensor] = {
            name: torch.zeros(*shape, *spec.shape, dtype=getattr(torch, spec.dtype), device=device)
            for name, spec in columns.items()
        }
        self._places = [
            dict(zip(self.columns, views, strict=True))
            for views in zip(*(x.unbind() for x in self.columns.values()), strict=True)
        ]
        self._has_context = False  # whether the rows before the rollout are those before it in the streams
        self._start(streams, window, seed)
        self.restart()

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(x.nbytes for x in self.columns.values())

    @property
    def is_complete(self) -> bool:
        return self._place == len(self._places)

    def restart(self) -> None:
        """Drop the rows of this rollout; the next row is the first of a new one."""
        self._place = self.window.context
        self._forget()

    def add(self, step: Step, action: Tensor, extras: Mapping[str, Tensor]) -> None:
        """Add one row to each stream, see ``RowSink``."""
        if self.is_complete:
            self._keep_context()
            self.restart()
        rows = {"action": action} | {f"{EXTRAS}{key}": value for key, value in extras.items()}
        self._write(rows, step)
        if not self._has_context:  # the first row is repeated before itself
            for x in self.columns.values():
                x[: self.window.context] = x[self.window.context]
            self._has_context = True

    def correct(self, action: Tensor, is_takeover: Tensor | None) -> None:
        """Replace the actions of the newest rows, see ``RowSink``."""
        place = self._places[self._place - 1]
        place["action"].copy_(action)
        if is_takeover is not None:
            if IS_INTERVENTION not in place:
                self._add_tags()
            place[IS_INTERVENTION].copy_(is_takeover)

    def _add_tags(self) -> None:
        """Add the column ``is_intervention``, which is false in all rows so far."""
        tags = self.columns[IS_INTERVENTION] = torch.zeros_like(self.columns["is_last"])
        for place, tag in zip(self._places, tags.unbind(), strict=True):
            place[IS_INTERVENTION] = tag

    def complete(self, step: Step) -> None:
        """Add the row after the rollout, on which the policy has not acted."""
        self._write({}, step)

    def _write(self, rows: dict[str, Tensor], step: Step) -> None:
        rows |= {f"obs/{key}": value for key, value in step.obs.items()}
        rows |= {"reward": step.reward} | {name: getattr(step, name) for name in FLAGS}
        place = self._places[self._place]
        rows |= {IS_INTERVENTION: no_flags(self.streams)} if IS_INTERVENTION in place else {}
        for name, value in rows.items():
            place[name].copy_(value)
        self._place += 1

    def _keep_context(self) -> None:
        """Move the rows before the next rollout to its beginning."""
        before, rollout = self.window.context, self.window.rollout
        for x in self.columns.values() if before else ():
            x[:before] = x[rollout : rollout + before].clone()

    def _complete_rows(self) -> Batch:
        rows = {name: x.transpose(0, 1) for name, x in self.columns.items()}  # [N, context + T + 1, ...], views
        extras = {
            name.removeprefix(EXTRAS): x for name, x in rows.items() if name.startswith((EXTRAS, IS_INTERVENTION))
        }
        index = torch.arange(self.streams, device=rows["reward"].device)
        return Batch.from_columns(rows, index, extras)

    def feedback(self, index: Tensor, update: Update) -> None:
        """Drop the rows as soon as ``update.rollout_done`` is true."""
        if update.rollout_done is not None and bool(update.rollout_done):
            self.used = self.batches * max(1, self.window.epochs)
        if not len(self):
            self.rows = None

    def state_dict(self) -> State:
        """Return the generator of orders, and the rows before the next rollout. Checkpoints follow whole rollouts."""
        before, rollout = self.window.context, self.window.rollout
        has_context = before > 0 and self.is_complete
        kept = {name: x[rollout : rollout + before] for name, x in self.columns.items()} if has_context else {}
        return {"rng": self.rng.bit_generator.state, "context": kept}

    def load_state_dict(self, state: State) -> None:
        """Restore a saved state; with other streams, the first row is repeated before itself."""
        self.rng.bit_generator.state = dict(state["rng"])
        self.restart()
        kept: Mapping[str, Any] = state["context"]
        places = {name: x[: self.window.context] for name, x in self.columns.items()}
        if kept and all(name in kept and kept[name].shape == x.shape for name, x in places.items()):
            for name, x in places.items():
                x.copy_(kept[name])
            self._has_context = True


class RolloutQueue(ReplayBuffer):
    """The rollouts of N streams that were not learned from yet: a ``BatchSource`` of each once, the oldest first.

    A rollout is a window of T rows, after the last row of the rollout before it.
    """

    def __init__(self, storage: Storage, window: Window, *, seed: int) -> None:
        super().__init__(storage, window, seed=seed, config=BatchSamplerConfig())

    @property
    def oldest_needed(self) -> int:
        assert self.batch_sampler.online is not None
        return max(self.oldest, self.batch_sampler.online.oldest_row)

    @property
    def num_queued(self) -> int:
        """Number of complete rollouts."""
        assert self.batch_sampler.online is not None
        return len(self.batch_sampler.online.queue)

    def __len__(self) -> int:
        """Return the number of complete batches."""
        return self.num_queued // self.window.batch


def rollout_rows(window: Window, streams: int) -> int:
    """Return the rows of each stream to store: one rollout, or those of a queue of several batches."""
    rollouts = max(MIN_QUEUED, QUEUED_BATCHES * -(-window.batch // streams)) if window.queued else 1
    return window.context + window.rollout * rollouts


QUEUED_BATCHES, MIN_QUEUED = 4, 16
"""Batches of rollouts that a queue stores, and minimum number of rollouts of each stream; older ones are dropped."""


def _with_row(x: Tensor, latest: Tensor | None) -> Tensor:
    """Return ``x`` ``[N, n, ...]`` with one more row, ``latest`` ``[N, ...]``; zeros if it is None."""
    row = torch.zeros_like(x[:, 0]) if latest is None else latest.to(x.device, x.dtype, non_blocking=True)
    return torch.cat([x, row.unsqueeze(1)], 1)


IGNORED_SETTINGS = (
    "capacity", "storage", "init_from", "device", "online_queue", "fractions", "sampler", "priority",
    "recency_exponent", "sequential", "reset_interval", "hindsight",
)  # fmt: skip
"""Settings of the replay that have no meaning for rollouts."""


def check_rollout(config: BatchSamplerConfig, window: Window, streams: int) -> None:
    """Raise ConfigError if settings of the replay have no effect on rollouts, or minibatches do not divide them."""
    default = type(config)()
    for name in IGNORED_SETTINGS:
        if (value := getattr(config, name)) != getattr(default, name):
            raise ConfigError(
                f"replay.{name} = {value!r} has no effect: on-policy learners keep one rollout of "
                f"algo.rollout = {window.rollout} rows and then drop it. Remove this setting."
            )
    rows, batch = streams * window.rollout, window.batch * window.length
    if window.epochs and not window.queued and rows % batch:
        fits = [n for n in range(window.length, rows + 1, window.length) if rows % n == 0]
        near = min(fits, key=lambda n: abs(n - batch))
        raise ConfigError(
            f"algo.batch_size = {batch} does not divide the {rows} rows of a rollout, algo.rollout = {window.rollout} "
            f"of each of {streams} environments: set algo.batch_size = {near}, or change algo.rollout."
        )
