"""What the learners of one run share: several ranks, each with its own rows, that take the same gradient step.

Every function here returns what it is given where one learner trains alone. ``scale/`` joins several.

A gradient step of N ranks with B/N rows each must be that of one with B rows: gradients are averaged, a mean over
masked rows divides by the mean count (:func:`averaged`), a percentile takes all numbers (:func:`gathered`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor


class Ranks(Protocol):
    """The ranks of a run. All must make the same calls in the same order."""

    rank: int  # number of this one, from 0
    count: int  # how many there are

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace each of the tensors, of one dtype, by its mean over all ranks."""

    def gather(self, x: Tensor) -> Tensor:
        """Return ``[count, *shape]``, the ``x`` of each rank; all have the same shape."""


_joined: list[Ranks] = []


@contextmanager
def joined(ranks: Ranks) -> Iterator[None]:
    """Learn together with other ranks within."""
    _joined.append(ranks)
    try:
        yield
    finally:
        _joined.pop()


@contextmanager
def alone() -> Iterator[None]:
    """Learn alone within, as one rank that evaluates does."""
    before, _joined[:] = _joined[:], []
    try:
        yield
    finally:
        _joined[:] = before


def is_distributed() -> bool:
    """Return whether several learners train together."""
    return bool(_joined)


def rank() -> int:
    """Return the number of this rank, from 0."""
    return _joined[-1].rank if _joined else 0


def average(tensors: Sequence[Tensor]) -> None:
    """Replace each of the tensors by its mean over all ranks."""
    if _joined:
        _joined[-1].average(tensors)


def averaged(x: Tensor) -> Tensor:
    """Return the mean of ``x`` over all ranks, without gradient."""
    if not _joined:
        return x
    mean = x.detach().clone()
    _joined[-1].average([mean])
    return mean


def gathered(x: Tensor) -> Tensor:
    """Return ``[N, *shape]``, the ``x`` of each of N ranks, without gradient."""
    return _joined[-1].gather(x.detach()) if _joined else x.detach()[None]


def all_gather_with_grad(x: Tensor) -> Tensor:
    """Return the rows of all ranks, ``[N * B, ...]``, from the own ``[B, ...]``, which alone get a gradient.

    It is N times as large. So the mean over ranks of gradients of a loss of all rows is the gradient of that loss.
    """
    if not _joined:
        return x
    rows = gathered(x)  # [N, B, ...]
    rows[rank()] = len(rows) * x - (len(rows) - 1) * x.detach()
    return rows.flatten(0, 1)


def at_least(x: Tensor, minimum: float) -> Tensor:
    """Return max(x, minimum) where ``x`` ``[]`` is a mean over rows, and ``minimum`` bounds the mean of all ranks."""
    if not _joined:
        return x.clamp(min=minimum)
    return torch.where(averaged(x) > minimum, x, torch.full_like(x, minimum))
