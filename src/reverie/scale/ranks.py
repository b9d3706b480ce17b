"""The ranks of a run as a process group of ``torch.distributed``: NCCL between GPUs, gloo between CPUs."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

PATIENCE = datetime.timedelta(hours=2)
"""Time that a rank waits for another, such as the first one while it evaluates. A rank that has ended is noticed at
once."""


class Group:
    """The process group that was joined: implements ``core/learners.py: Ranks``."""

    def __init__(self) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace each of the tensors, of one dtype and device, by its mean over all ranks, in one call for all.

        Each rank gets the same bits.
        """
        flat = torch.cat([x.detach().flatten() for x in tensors])
        dist.all_reduce(flat)
        flat /= self.count
        parts = torch.split(flat, [x.numel() for x in tensors])
        for x, mean in zip(tensors, parts, strict=True):
            x.detach().copy_(mean.view(x.shape))

    def gather(self, x: Tensor) -> Tensor:
        """Return ``[count, *shape]``, the ``x`` of each rank."""
        found = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.count)]
        dist.all_gather(found, x.contiguous())
        return torch.stack(found)

    def tell(self, word: Any = None) -> Any:
        """Return the plain ``word`` of rank 0; the others' is ignored."""
        words = [word]
        dist.broadcast_object_list(words, device=torch.device("cpu"))
        return words[0]

    def words(self, word: Any) -> list[Any]:
        """Return the plain ``word`` of each rank."""
        words: list[Any] = [None] * self.count
        dist.all_gather_object(words, word)
        return words


def join(device: str, **where: Any) -> Group:
    """Join the group that the environment variables of ``torchrun`` describe, or ``where``: see ``init_process_group``.

    Numbers on CPUs go by gloo, those on GPUs by NCCL.
    """
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    dist.init_process_group(backend, timeout=PATIENCE, **where)
    return Group()
