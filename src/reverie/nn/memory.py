"""Memory of networks: recurrent layers over the rows of an episode, reset where an episode begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.bounds import AtLeast
from reverie.core.config import Choice


@dataclass(frozen=True)
class Memory(Choice):
    """Recurrent layers between observations and perceptrons."""

    units: Annotated[int, AtLeast(1)] = 128
    """H, the width of each layer."""
    layers: Annotated[int, AtLeast(1)] = 1
    """Number of layers, one on the other."""
    cell: ClassVar[type[Any]]
    tensors: ClassVar[int] = 1
    """Tensors of width H in the state of a layer."""

    def build(self, inputs: int) -> Recurrent:
        """Return the layers over ``inputs`` numbers."""
        return Recurrent(self, inputs)


@dataclass(frozen=True)
class LSTM(Memory):
    """Long short-term memory: Hochreiter and Schmidhuber 1997, with forget gates; two biases, as in PyTorch."""

    cell: ClassVar[type[Any]] = nn.LSTMCell
    tensors: ClassVar[int] = 2


@dataclass(frozen=True)
class GRU(Memory):
    """Gated recurrent units: Cho et al. 2014, in PyTorch's form."""

    cell: ClassVar[type[Any]] = nn.GRUCell


class Recurrent(nn.Module):
    """Layers of an LSTM or a GRU over windows of rows that may hold several episodes."""

    def __init__(self, cfg: Memory, inputs: int) -> None:
        super().__init__()
        self.units, self.lstm = cfg.units, cfg.tensors == 2
        self.width = cfg.layers * cfg.tensors * cfg.units
        """S, the width of the state of all layers."""
        self.cells = nn.ModuleList(cfg.cell(cfg.units if k else inputs, cfg.units) for k in range(cfg.layers))

    def forward(self, x: Tensor, first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Map rows ``[B, T, inputs]`` to ``[B, T, H]``, from the ``state`` ``[B, S]`` before them to the one after.

        The state is 0 before a row that is ``first`` ``[B, T]``. So no gradient crosses episodes, and a window that
        holds several gives what a window for each would.
        """
        keep, after = (~first).to(x.dtype).unsqueeze(-1).unbind(1), []  # T of [B, 1]
        cells: list[Any] = list(self.cells)
        for cell, begun in zip(cells, state.chunk(len(cells), -1), strict=True):
            gates = F.linear(x, cell.weight_ih, cell.bias_ih)  # [B, T, 4 H or 3 H]
            part, rows = begun, []
            for given, kept in zip(gates.unbind(1), keep, strict=True):
                part = self._step(cell, given, part * kept)
                rows.append(part[:, : self.units])
            x = torch.stack(rows, 1)
            after.append(part)
        return x, torch.cat(after, -1)

    def _step(self, cell: Any, given: Tensor, state: Tensor) -> Tensor:
        """Return the next state of a layer, ``[B, 2 H]`` (h, c) or ``[B, H]``; ``given`` is W x + b of its input."""
        h = state[:, : self.units]
        gates = F.linear(h, cell.weight_hh, cell.bias_hh)
        if not self.lstm:
            (reset, update, new), (r, z, n) = given.chunk(3, -1), gates.chunk(3, -1)
            new = (new + (reset + r).sigmoid() * n).tanh()
            return torch.lerp(new, h, (update + z).sigmoid())
        i, f, g, o = (given + gates).chunk(4, -1)
        c = f.sigmoid() * state[:, self.units :] + i.sigmoid() * g.tanh()
        return torch.cat([o.sigmoid() * c.tanh(), c], -1)
