"""Rollouts of on-policy learners: the rows of the current policy, used for some epochs and then dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from reverie.core.columns import block_of, view_in_block
from reverie.core.errors import ConfigError, RunError
from reverie.core.types import FLAGS, Batch, State, Step, Update, Window
from reverie.replay.batch_sampler import BatchSamplerConfig
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.storage import Storage


class RolloutBuffer(ReplayBuffer):
    """The newest T rows of N streams, T = ``window.rollout``: a ``BatchSource`` of minibatches.

    It offers nothing before T rows are complete. Then it offers each window of ``window.length`` rows ``window.epochs``
    times, in a new random order for each epoch, and starts over. The row after the last one, on which the policy has
    not acted yet, serves only as the bootstrap: so all actions come from the current policy.
    """

    gpu: torch.device | None = None
    """The learner's GPU, if it has one: minibatches lie there."""
    prepare_fn: Callable[[Batch], Batch]
    """Maps rows ``[N, context + T + 1]`` to the windows ``[W, length]`` that are learned from."""
    next_row_fn: Callable[[], Step]
    """Returns the current row of each stream, which is not stored yet. May wait for the environments."""

    def __init__(self, storage: Storage, window: Window, *, seed: int) -> None:
        super().__init__(storage, window, seed=seed, config=BatchSamplerConfig(), online=False)
        self.windows: int = storage.streams * window.rollout // window.length  # W, the windows of a rollout
        self.batches: int = self.windows // window.batch if window.epochs else 1  # minibatches of an epoch
        self.rng: np.random.Generator = np.random.default_rng(seed)
        self._restart(0)

    def _restart(self, begun: int) -> None:
        self.begun = begun  # number of the rollout's first row; minibatches that were sampled
        self.used: int = 0
        self.rows: Batch | None = None

    def __len__(self) -> int:
        """Return the number of minibatches left of a complete rollout; 0 while it is being collected."""
        is_complete = self.count - self.begun >= self.window.rollout
        return self.batches * max(1, self.window.epochs) - self.used if is_complete else 0

    def register_row(self, step: Step) -> None:
        """Do nothing: rollouts are not sampled as windows."""

    @property
    def oldest_needed(self) -> int:
        return max(self.oldest, (self.count if self.used else self.begun) - self.window.context)

    def restart_at(self, first: int) -> None:
        """Drop all rows, see ``ReplayBuffer``; a rollout begins at row ``first``."""
        super().restart_at(first)
        self._restart(first)

    def sample(self, count: int | None = None) -> Batch:
        """Return the next minibatch, copied, on the learner's device. ``count`` is ignored."""
        if not len(self):
            raise RunError("the rollout is not complete yet: collect the other rows first.")
        if self.rows is None:
            self.rows = self.prepare_fn(self._complete_rows())
            on_gpu = self.window.epochs > 0 and self.rows.reward.is_cuda
            self.alike: list[AlikeColumns] = _stack_alike(self.rows) if on_gpu else []
        number, self.used = self.used % self.batches, self.used + 1
        if not self.window.epochs:
            return self.rows
        if number == 0:
            self.order: Tensor = torch.from_numpy(self.rng.permutation(self.windows)).to(
                self.rows.reward.device, non_blocking=True
            )
        chosen = self.order[number * self.window.batch : (number + 1) * self.window.batch]
        return (
            _take_windows(self.rows, self.alike, chosen)
            if self.alike
            else self.rows.map(lambda x: x.index_select(0, chosen))
        )

    def _complete_rows(self) -> Batch:
        """Return the context rows, the rollout's rows and the row after them: ``[N, context + T + 1]``."""
        streams, before = self.storage.streams, self.window.context
        handles = (self.begun - before) * streams + torch.arange(streams)
        rows = self.storage.gather(handles, before + self.window.rollout)
        if self.gpu is not None:
            block = block_of(rows["reward"]).to(self.gpu, non_blocking=True)
            rows = {name: view_in_block(block, rows[name]) for name in self.storage.specs}
        step = self.next_row_fn()
        latest = {f"obs/{key}": value for key, value in step.obs.items()} | {"reward": step.reward}
        latest |= {name: getattr(step, name) for name in FLAGS}
        joined = {name: _with_row(x, latest.get(name)) for name, x in rows.items()}
        joined["is_last"][:, -2] |= joined["is_first"][:, -1]  # a stream may have been cut
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


class AlikeColumns(NamedTuple):
    """Columns of one shape and dtype."""

    ids: list[int]
    stacked: Tensor  # [columns, W, ...]; [W, ...] of a single one


def _stack_alike(rows: Batch) -> list[AlikeColumns]:
    """Return the columns of ``rows`` ``[W, ...]`` on a GPU, where one kernel then takes windows of several columns."""
    alike: dict[object, dict[int, Tensor]] = {}
    for x in rows.tensors:
        alike.setdefault((x.shape, x.dtype), {})[id(x)] = x
    groups = [(list(group), list(group.values())) for group in alike.values()]
    return [AlikeColumns(ids, torch.stack(xs) if len(xs) > 1 else xs[0]) for ids, xs in groups]


def _take_windows(rows: Batch, groups: list[AlikeColumns], chosen: Tensor) -> Batch:
    """Return the windows ``chosen`` ``[B]`` of ``rows`` ``[W, ...]``, given :func:`_stack_alike`."""
    windows: dict[int, Tensor] = {}
    for ids, stacked in groups:
        if len(ids) > 1:
            windows |= zip(ids, stacked.index_select(1, chosen).unbind(), strict=True)
        else:
            windows[ids[0]] = stacked.index_select(0, chosen)
    return rows.map(lambda x: windows[id(x)])


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
    "capacity", "storage", "init_from", "device", "online_queue", "fractions", "priority", "recency_exponent",
    "sequential", "reset_interval", "hindsight",
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
