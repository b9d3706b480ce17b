"""The ranks of a run as a process group of ``torch.distributed``: NCCL between GPUs, gloo between CPUs."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from reverie.core.errors import RunError

TIMEOUT = datetime.timedelta(hours=2)
"""Maximum time that a rank waits for another, for example during an evaluation. An ended rank is noticed at once."""


class ProcessGroup:
    """The joined process group, or a single rank: implements ``core/collectives.py: ProcessRanks``."""

    def __init__(self, store: Any = None) -> None:
        """``store``: the ranks' common store. None: a single rank, whose broadcasts return the value."""
        self.store = store
        self.rank: int = 0 if store is None else dist.get_rank()
        self.count: int = 1 if store is None else dist.get_world_size()

    @classmethod
    def join(cls, device: str, store: Any, rank: int, count: int) -> Self:
        """Join ``count`` ranks through ``store``. Tensors on CPUs use gloo, tensors on GPUs use NCCL."""
        # Default arguments of its functions keep the group that exists when it is imported, and the optimizers of
        # PyTorch import it. The threads of a kept group outlive the interpreter, and then abort a finished run.
        import torch.distributed.nn  # noqa: F401

        backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=TIMEOUT)
        return cls(store)

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace each of the tensors, of one dtype and device, by its mean over all ranks, in one call.

        All ranks get identical bits.
        """
        flat = torch.cat([x.detach().flatten() for x in tensors])
        self._with_all(dist.all_reduce, flat)
        flat /= self.count
        parts = torch.split(flat, [x.numel() for x in tensors])
        for x, mean in zip(tensors, parts, strict=True):
            x.detach().copy_(mean.view(x.shape))

    def gather(self, x: Tensor) -> Tensor:
        """Return ``[count, *shape]``, the ``x`` of each rank."""
        gathered = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.count)]
        self._with_all(dist.all_gather, gathered, x.contiguous())
        return torch.stack(gathered)

    def broadcast_object(self, value: object = None) -> Any:
        """Return the plain ``value`` of rank 0; the values of other ranks are ignored."""
        values = [value]
        self._with_all(dist.broadcast_object_list, values, device=torch.device("cpu"))
        return values[0]

    def broadcast_int(self, value: int) -> int:
        """Return the number ``value`` of rank 0; the numbers of other ranks are ignored."""
        number = torch.tensor(value)
        self._with_all(dist.broadcast, number, 0)
        return int(number)

    def all_gather_object(self, value: object) -> list[Any]:
        """Return the plain ``value`` of each rank."""
        values: list[Any] = [None] * self.count
        self._with_all(dist.all_gather_object, values, value)
        return values

    def scatter_object(self, values: Sequence[Any]) -> Any:
        """Return this rank's item of the plain ``values`` of rank 0; the values of other ranks are ignored."""
        received: list[Any] = [None]
        self._with_all(dist.scatter_object_list, received, None if self.rank else list(values), 0)
        return received[0]

    def is_first_to_ask(self) -> bool:
        """Return whether this is the first rank that asks; it reports to the user why all end."""
        with contextlib.suppress(Exception):  # the store ends with its process
            return self.store is None or bool(self.store.add("told", 1) == 1)
        return True

    def _with_all(self, exchange: Callable[..., object], *args: object, **kwargs: object) -> None:
        """Run a collective operation; RunError if one of the ranks has ended."""
        if self.count == 1:
            return
        try:
            exchange(*args, **kwargs)
        except RuntimeError as error:
            raise RunError(
                "another learner of this run exited without an error message; it was probably killed, perhaps out of "
                "memory"
            ) from error
