"""Memory of networks: recurrent layers or attention over the rows of an episode, reset where an episode begins.

Each kind carries a state from row to row. It is stored with the rows, so that a window of rows can begin anywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.bounds import AtLeast
from reverie.core.config import Choice
from reverie.nn.modules import is_plain

MEMORY_COLUMN = "memory"
"""Name of the column with the state of a learner's memories before each row."""


class MemoryModule(Protocol):
    """Interface of the modules that :meth:`Memory.build` returns."""

    units: int
    """H, the width of its output."""
    width: int
    """S, the width of its state."""

    def __call__(self, x: Tensor, first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Map rows ``[B, T, inputs]`` to ``[B, T, H]``, and return the state after each row, ``[B, T, S]``.

        ``state`` ``[B, S]`` is the state before row 0. Before each row that is ``first`` ``[B, T]``, the state is reset
        to 0: no gradient crosses episodes, and a window of several episodes gives the same result as one for each.
        """


MEMORY_FIRST_KEY = f"{MEMORY_COLUMN}/first"
"""Name of the flag among the observations that marks where episodes begin, for networks with memory."""


@dataclass(frozen=True)
class Memory(Choice, ABC):
    """Memory between observations and MLP."""

    from_rows: ClassVar[bool] = False
    """Whether single rows are enough to train it, because their states contain what was observed before."""

    @abstractmethod
    def build(self, inputs: int) -> MemoryModule:
        """Return the layers over ``inputs`` numbers."""


@dataclass(frozen=True)
class RecurrentConfig(Memory, base=True):
    """Recurrent layers. The first state of a window summarizes the rows before it, and gets no gradient."""

    units: Annotated[int, AtLeast(1)] = 128
    """H, the width of each layer."""
    layers: Annotated[int, AtLeast(1)] = 1
    """Number of stacked layers."""
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
            step, inputs = self._call_cell, x
            if is_plain(cell, nn.LSTMCell, nn.GRUCell):
                step, inputs = self._step, F.linear(x, cell.weight_ih, cell.bias_ih)  # [B, T, 4 H or 3 H]
            part, rows = begun, []
            for row, is_kept in zip(inputs.unbind(1), keep, strict=True):
                part = step(cell, row, part * is_kept)
                rows.append(part)
            after.append(torch.stack(rows, 1))  # [B, T, H or 2 H]
            x = after[-1][..., : self.units]
        return x, after[0] if len(after) == 1 else torch.cat(after, -1)

    def _call_cell(self, cell: nn.Module, inputs: Tensor, state: Tensor) -> Tensor:
        """Return the next state of a layer by its cell, which may be the user's."""
        if not self.lstm:
            next_h: Tensor = cell(inputs, state)
            return next_h
        return torch.cat(cell(inputs, tuple(state.chunk(2, -1))), -1)

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

    Its state is the inputs of the last rows, so it does not become stale when the weights change, except for image
    features and normalized vectors, which are stored as they were.
    """

    from_rows: ClassVar[bool] = True

    window: Annotated[int, AtLeast(2)] = 16
    """W, number of rows that it attends to, the newest included."""
    units: Annotated[int, AtLeast(1)] = 64
    """H, the width of each layer."""
    heads: Annotated[int, AtLeast(1)] = 4
    """Number of attention heads, a divisor of ``units``."""
    layers: Annotated[int, AtLeast(1)] = 1
    """Number of layers, each with attention and an MLP of 4 H units."""

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
        count = (row - begun).clamp(max=self.before)  # [B, T], earlier rows that it attends to
        windows = torch.cat([past, x], 1).unfold(1, window, 1).transpose(-1, -2)  # [B, T, W, I]
        age = torch.arange(window - 1, -1, -1, device=x.device)  # [W], how many rows ago
        legal = age <= count.unsqueeze(-1)  # [B, T, W]
        causal = torch.ones(window, window, dtype=torch.bool, device=x.device).tril()
        itself = torch.eye(window, dtype=torch.bool, device=x.device)  # otherwise an invalid row would attend to none
        mask = (causal & legal.flatten(0, 1).unsqueeze(1)) | itself  # [B T, W, W]
        y = self.embed(windows).flatten(0, 1) + self.age  # [B T, W, H]
        for block in self.blocks:
            y = block(y, mask)
        after = torch.cat([windows[:, :, 1:].flatten(2), (count + 1).clamp(max=self.before).unsqueeze(-1)], -1)
        out: Tensor = self.norm(y[:, -1])
        return out.view(len(x), rows, self.units), after


class AttentionBlock(nn.Module):
    """Attention, then an MLP, each with a residual connection, and optionally dropout."""

    def __init__(
        self, units: int, heads: int, dropout: float = 0.0, activation: Callable[[], nn.Module] = nn.GELU
    ) -> None:
        super().__init__()
        self.heads = heads
        self.norms: nn.ModuleList = nn.ModuleList(nn.LayerNorm(units) for _ in range(2))
        self.attend: nn.Linear = nn.Linear(units, 3 * units)
        self.out: nn.Linear = nn.Linear(units, units)
        self.mlp: nn.Sequential = nn.Sequential(nn.Linear(units, 4 * units), activation(), nn.Linear(4 * units, units))
        self.dropout = dropout
        self.drop: nn.Module = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map ``[M, W, H]`` to the same shape. ``mask`` ``[M, W, W]``: the positions that each position attends to."""
        projected: Tensor = self.attend(self.norms[0](x))
        parts = projected.view(*x.shape[:2], 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # [M, heads, W, H / heads] each
        dropout = self.dropout if self.drop.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.unsqueeze(1), dropout_p=dropout)
        x = x + self.drop(self.out(attended.transpose(1, 2).flatten(2)))
        y: Tensor = x + self.drop(self.mlp(self.norms[1](x)))
        return y
