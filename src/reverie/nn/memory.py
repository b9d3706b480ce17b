"""Memory of networks: layers over the rows of an episode, which forget where an episode begins.

Each kind carries a state from row to row. It is stored with the rows, so that a window of rows can begin anywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.bounds import AtLeast
from reverie.core.config import Choice

MEMORY_COLUMN = "memory"
"""Name of the column that holds the state of a learner's memories before each row."""


class MemoryModule(Protocol):
    """What :meth:`Memory.build` makes, a module."""

    units: int
    """H, the width of its output."""
    width: int
    """S, the width of its state."""

    def __call__(self, x: Tensor, first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Map rows ``[B, T, inputs]`` to ``[B, T, H]``, and return the state after each row, ``[B, T, S]``.

        ``state`` ``[B, S]`` is the one before row 0. It is as if it were 0 before a row that is ``first`` ``[B, T]``:
        so no gradient crosses episodes, and a window that holds several gives what a window for each would.
        """


MEMORY_FIRST_KEY = f"{MEMORY_COLUMN}/first"
"""Name of the flag among the observations that marks where episodes begin, for networks with memory."""


@dataclass(frozen=True)
class Memory(Choice, ABC):
    """Memory between observations and perceptrons."""

    from_rows: ClassVar[bool] = False
    """Whether single rows are enough to learn it from, as their states hold what was seen before."""

    @abstractmethod
    def build(self, inputs: int) -> MemoryModule:
        """Return the layers over ``inputs`` numbers."""


@dataclass(frozen=True)
class RecurrentConfig(Memory, base=True):
    """Recurrent layers. What was seen before a window is in its first state, into which no gradient flows."""

    units: Annotated[int, AtLeast(1)] = 128
    """H, the width of each layer."""
    layers: Annotated[int, AtLeast(1)] = 1
    """Number of layers, one on the other."""
    orthogonal: bool = False
    """Orthogonal weights and biases of 0 (Huang et al. 2022, "5 LSTM implementation details", 1); else uniform within 1
    / sqrt(H), as in PyTorch and sb3-contrib."""
    cell: ClassVar[type[Any]]
    tensors: ClassVar[int] = 1
    """Tensors of width H in the state of a layer."""

    def build(self, inputs: int) -> Recurrent:
        return Recurrent(self, inputs)


@dataclass(frozen=True)
class LSTM(RecurrentConfig):
    """Long short-term memory: Hochreiter and Schmidhuber 1997, with forget gates; two biases, as in PyTorch."""

    cell: ClassVar[type[Any]] = nn.LSTMCell
    tensors: ClassVar[int] = 2


@dataclass(frozen=True)
class GRU(RecurrentConfig):
    """Gated recurrent units: Cho et al. 2014, in PyTorch's form."""

    cell: ClassVar[type[Any]] = nn.GRUCell


class Recurrent(nn.Module):
    """Layers of an LSTM or a GRU: see :class:`MemoryModule`."""

    def __init__(self, cfg: RecurrentConfig, inputs: int) -> None:
        super().__init__()
        self.units: int = cfg.units
        self.lstm: bool = cfg.tensors == 2
        self.width: int = cfg.layers * cfg.tensors * cfg.units
        cells: list[Any] = [cfg.cell(cfg.units if k else inputs, cfg.units) for k in range(cfg.layers)]
        self.cells: nn.ModuleList = nn.ModuleList(cells)
        for name, x in self.named_parameters() if cfg.orthogonal else ():
            nn.init.zeros_(x) if "bias" in name else nn.init.orthogonal_(x)

    def forward(self, x: Tensor, first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        keep, after = (~first).to(x.dtype).unsqueeze(-1).unbind(1), []  # T of [B, 1]
        cells: list[Any] = list(self.cells)
        for cell, begun in zip(cells, state.chunk(len(cells), -1), strict=True):
            gates = F.linear(x, cell.weight_ih, cell.bias_ih)  # [B, T, 4 H or 3 H]
            part, rows = begun, []
            for inputs, is_kept in zip(gates.unbind(1), keep, strict=True):
                part = self._step(cell, inputs, part * is_kept)
                rows.append(part)
            after.append(torch.stack(rows, 1))  # [B, T, H or 2 H]
            x = after[-1][..., : self.units]
        return x, after[0] if len(after) == 1 else torch.cat(after, -1)

    def _step(self, cell: Any, inputs: Tensor, state: Tensor) -> Tensor:
        """Return the next state of a layer, ``[B, 2 H]`` (h, c) or ``[B, H]``; ``inputs`` is W x + b of its input."""
        h = state[:, : self.units]
        gates = F.linear(h, cell.weight_hh, cell.bias_hh)
        if not self.lstm:
            (reset, update, new), (r, z, n) = inputs.chunk(3, -1), gates.chunk(3, -1)
            new = (new + (reset + r).sigmoid() * n).tanh()
            return torch.lerp(new, h, (update + z).sigmoid())
        i, f, g, o = (inputs + gates).chunk(4, -1)
        c = f.sigmoid() * state[:, self.units :] + i.sigmoid() * g.tanh()
        return torch.cat([o.sigmoid() * c.tanh(), c], -1)


@dataclass(frozen=True)
class Transformer(Memory):
    """A causal transformer over the last rows of the episode: Vaswani et al. 2017, norms first as in GPT-2.

    What was seen before is the state itself, the inputs of the last rows: nothing of it grows old while the weights
    change, but for features of images and normalized numbers, which stay as they were.
    """

    from_rows: ClassVar[bool] = True

    window: Annotated[int, AtLeast(2)] = 16
    """W, the rows that it sees, with the newest."""
    units: Annotated[int, AtLeast(1)] = 64
    """H, the width of each layer."""
    heads: Annotated[int, AtLeast(1)] = 4
    """Heads of attention, which divide the units."""
    layers: Annotated[int, AtLeast(1)] = 1
    """Number of layers, each attention and a perceptron of 4 H units."""

    def build(self, inputs: int) -> TransformerMemory:
        return TransformerMemory(self, inputs)


class TransformerMemory(nn.Module):
    """A transformer: see :class:`MemoryModule`. Its state: the inputs of the last W - 1 rows, and how many count."""

    def __init__(self, cfg: Transformer, inputs: int) -> None:
        super().__init__()
        self.units: int = cfg.units
        self.before: int = cfg.window - 1
        self.inputs = inputs
        self.width: int = self.before * inputs + 1
        self.embed: nn.Linear = nn.Linear(inputs, cfg.units)
        self.age: nn.Parameter = nn.Parameter(0.02 * torch.randn(cfg.window, cfg.units))
        self.blocks: nn.ModuleList = nn.ModuleList(AttentionBlock(cfg.units, cfg.heads) for _ in range(cfg.layers))
        self.norm: nn.LayerNorm = nn.LayerNorm(cfg.units)

    def forward(self, x: Tensor, first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Attend from each row to its own window, so that the result does not depend on the other rows of the batch."""
        rows, window = x.shape[1], self.before + 1
        past, num_past = state[:, :-1].view(-1, self.before, self.inputs), state[:, -1:]  # [B, W-1, I], [B, 1]
        row = torch.arange(rows, device=x.device, dtype=x.dtype)
        begun = torch.where(first, row, -num_past)  # [B, T]
        begun = begun if rows == 1 else begun.cummax(1).values  # [B, T], where the row's episode begins; ONNX lacks it
        count = (row - begun).clamp(max=self.before)  # [B, T], rows before it that it sees
        windows = torch.cat([past, x], 1).unfold(1, window, 1).transpose(-1, -2)  # [B, T, W, I]
        age = torch.arange(window - 1, -1, -1, device=x.device)  # [W], how many rows ago
        legal = age <= count.unsqueeze(-1)  # [B, T, W]
        causal = torch.ones(window, window, dtype=torch.bool, device=x.device).tril()
        itself = torch.eye(window, dtype=torch.bool, device=x.device)  # or a row that does not count would see none
        mask = (causal & legal.flatten(0, 1).unsqueeze(1)) | itself  # [B T, W, W]
        y = self.embed(windows).flatten(0, 1) + self.age  # [B T, W, H]
        for block in self.blocks:
            y = block(y, mask)
        after = torch.cat([windows[:, :, 1:].flatten(2), (count + 1).clamp(max=self.before).unsqueeze(-1)], -1)
        out: Tensor = self.norm(y[:, -1])
        return out.view(len(x), rows, self.units), after


class AttentionBlock(nn.Module):
    """Attention, then a perceptron, each added to what it reads."""

    def __init__(self, units: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms: nn.ModuleList = nn.ModuleList(nn.LayerNorm(units) for _ in range(2))
        self.attend: nn.Linear = nn.Linear(units, 3 * units)
        self.out: nn.Linear = nn.Linear(units, units)
        self.mlp: nn.Sequential = nn.Sequential(nn.Linear(units, 4 * units), nn.GELU(), nn.Linear(4 * units, units))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map ``[M, W, H]`` to the same shape. ``mask`` ``[M, W, W]``: what each place may look at."""
        projected: Tensor = self.attend(self.norms[0](x))
        parts = projected.view(*x.shape[:2], 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # [M, heads, W, H / heads] each
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.unsqueeze(1))
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        y: Tensor = x + self.mlp(self.norms[1](x))
        return y
