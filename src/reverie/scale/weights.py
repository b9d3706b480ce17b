"""The weights of a policy alone: which they are, and as safetensors in shared memory with a version.

A version is the number of gradient updates that the weights have had.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from reverie.algos.base import Algorithm
from reverie.core.accelerate import only
from reverie.core.randomness import left_as_found
from reverie.core.specs import MASK, ObsSpec
from reverie.core.types import Step
from reverie.envs.worker import Column, shared

HEAD = struct.Struct("<qqI")
"""In front of the weights in shared memory: version, bytes, CRC-32 of them."""


class _Reads(TorchFunctionMode):
    """Remembers the memory of tensors that operations get. A ``TorchDispatchMode`` would import TorchDynamo."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.read |= {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        return func(*args, **(kwargs or {}))


def acting(algo: Algorithm, spec: ObsSpec) -> dict[str, Tensor]:
    """Return the parameters and buffers, by name, that the policy of ``algo`` reads when it acts in ``explore``.

    It acts twice for this, in an environment's first row and in a later one, without kernels.
    """
    with left_as_found(), only(), _Reads() as reads, torch.no_grad():
        state = algo.policy.initial(1)
        for first in (True, False):
            action, state = algo.policy.act(blank(spec, 1, first), state, "explore")
            algo.policy.extras(algo.policy.override(state, action))
    held = {**dict(algo.named_parameters()), **dict(algo.named_buffers())}
    return {name: x for name, x in held.items() if x.untyped_storage().data_ptr() in reads.read and x.numel()}


def blank(spec: ObsSpec, rows: int, first: bool = False) -> Step:
    """Return rows of zeros, in which every action is legal."""
    obs = {key: torch.zeros(rows, *part.shape, dtype=getattr(torch, part.dtype)) for key, part in spec.items()}
    obs |= {key: torch.ones_like(x) for key, x in obs.items() if key == MASK}
    no = torch.zeros(rows, dtype=torch.bool)
    return Step(obs=obs, reward=torch.zeros(rows), is_first=no | first, is_last=no, is_terminal=no.clone())


def packed(weights: Mapping[str, Tensor]) -> bytes:
    """Return copies of the ``weights`` as safetensors. Waits for their device."""
    data: bytes = save({name: x.detach().to("cpu", copy=True).contiguous() for name, x in weights.items()})
    return data


@torch.no_grad()
def adopt(weights: Mapping[str, Tensor], data: bytes) -> None:
    """Copy safetensors into the ``weights`` of the same names and shapes."""
    found = load(data)
    for name, x in weights.items():
        x.copy_(found[name])


class Board:
    """The newest weights, in shared memory that one process writes and any number read without locks.

    Two places take turns: whoever reads one while it is written again finds a wrong checksum, and looks once more. So
    a process may be killed at any moment without holding up another.
    """

    def __init__(self, context: Any, size: int) -> None:
        """Make room for ``size`` bytes, for processes of the multiprocessing ``context``."""
        self.memory: Column = shared(context, (2, HEAD.size + size), "uint8")
        self.newest: Column = shared(context, (1,), "int64")

    def publish(self, data: bytes, version: int) -> None:
        """Replace the weights."""
        newest = self.newest.array()
        place = 1 - int(newest[0]) % 2
        head = HEAD.pack(version, len(data), zlib.crc32(data))
        view = memoryview(self.memory.array()[place])
        view[: HEAD.size], view[HEAD.size : HEAD.size + len(data)] = head, data
        newest[0] = 2 * (int(newest[0]) // 2 + 1) + place  # its parity says where, and it always grows

    def read(self, known: int | None) -> tuple[int, bytes] | None:
        """Return version and weights; None if their version is ``known``, or they are being replaced just now."""
        place = self.memory.array()[int(self.newest.array()[0]) % 2]
        version, size, check = HEAD.unpack(place[: HEAD.size].tobytes())
        if version == known or not 0 < size <= place.size - HEAD.size:
            return None
        data = place[HEAD.size : HEAD.size + size].tobytes()
        return (version, data) if zlib.crc32(data) == check else None
