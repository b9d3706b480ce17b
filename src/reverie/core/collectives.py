"""Exchange between the learners of one run: ranks with separate rows that take the same gradient step.

With a single learner, every function here returns its input. ``distributed/`` joins several learners.

A gradient step of N ranks with B/N rows each must equal the step of one rank with B rows: gradients are averaged, a
mean over masked rows divides by the mean count (:func:`mean_across_ranks`), and a percentile takes all numbers
(:func:`all_gather`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor


class ProcessRanks(Protocol):
    """The ranks of a run. All must make the same calls in the same order."""

    rank: int  # number of this rank, from 0
    count: int  # number of ranks

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace each of the tensors, of one dtype, by its mean over all ranks."""

    def gather(self, x: Tensor) -> Tensor:
        """Return ``[count, *shape]``, the ``x`` of each rank; all have the same shape."""


_joined: list[ProcessRanks] = []


@contextmanager
def use_ranks(ranks: ProcessRanks) -> Iterator[None]:
    """Use ``ranks`` for collective operations inside the context."""
    _joined.append(ranks)
    try:
        yield
    finally:
        _joined.pop()


@contextmanager
def single_rank() -> Iterator[None]:
    """Act as a single rank inside the context, for example during an evaluation."""
    before, _joined[:] = _joined[:], []
    try:
        yield
    finally:
        _joined[:] = before


def is_distributed() -> bool:
    """Return whether several learners train together."""
    return bool(_joined)


def get_rank() -> int:
    """Return the number of this rank, from 0."""
    return _joined[-1].rank if _joined else 0


def all_reduce_mean(tensors: Sequence[Tensor]) -> None:
    """Replace each of the tensors by its mean over all ranks."""
    if _joined:
        _joined[-1].average(tensors)


def mean_across_ranks(x: Tensor) -> Tensor:
    """Return the mean of ``x`` over all ranks, without gradient."""
    if not _joined:
        return x
    mean = x.detach().clone()
    _joined[-1].average([mean])
    return mean


def all_gather(x: Tensor) -> Tensor:
    """Return ``[N, *shape]``, the ``x`` of each of N ranks, without gradient."""
    return _joined[-1].gather(x.detach()) if _joined else x.detach()[None]


def all_gather_with_grad(x: Tensor) -> Tensor:
    """Gather the rows ``[B, ...]`` of all N ranks into ``[N * B, ...]``. Only this rank's rows receive a gradient.

    The gradient is N times as large: its mean over all ranks is the gradient of a loss over all rows.
    """
    if not _joined:
        return x
    rows = all_gather(x)  # [N, B, ...]
    rows[get_rank()] = len(rows) * x - (len(rows) - 1) * x.detach()
    return rows.flatten(0, 1)


def clamp_min_across_ranks(x: Tensor, minimum: float) -> Tensor:
    """Return max(x, minimum) where ``x`` ``[]`` is a mean over rows, and ``minimum`` limits the mean over all ranks."""
    if not _joined:
        return x.clamp(min=minimum)
    return torch.where(mean_across_ranks(x) > minimum, x, torch.full_like(x, minimum))
