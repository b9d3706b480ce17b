"""Acting in chunks: a policy that proposes h actions and takes all of them before it looks again."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from reverie.core.types import Mode, Obs, Step
from reverie.nn.exploration import StatelessStorage, may_any


class ChunkState(NamedTuple):
    """The state of :class:`ChunkPolicy` for N environments."""

    actions: Tensor  # [N, h, A], the newest chunk
    num_taken: Tensor  # [N] int64, how many of its actions were taken
    steps: Tensor  # [] int64, number of decisions in mode "eval"


class ChunkPolicy(StatelessStorage[ChunkState]):
    """A policy that takes all h actions of a chunk before it proposes the next one. A new episode begins a new chunk.

    Noise is drawn in each step, whether or not a chunk begins, from the CPU's default generator.
    """

    def __init__(
        self, actor: Callable[[Obs, Tensor | None], Tensor], size: int, width: int, device: torch.device
    ) -> None:
        """``actor(obs, noise)`` returns chunks ``[N, h A]``; ``size`` is h, ``width`` A.

        ``noise`` is standard normal, ``[N, h A]``; None asks for the likeliest chunk.
        """
        self.actor = actor
        self.size = size
        self.width = width
        self.device = device

    def initial(self, num_envs: int) -> ChunkState:
        none = torch.zeros(num_envs, self.size, self.width)
        return ChunkState(none, torch.full((num_envs,), self.size), torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def act(self, step: Step, state: ChunkState, mode: Mode) -> tuple[Tensor, ChunkState]:
        """Return ``(action [N, A] on the CPU, state)``. Where an episode begins, a new chunk replaces the last one."""
        noise = self.draw_noise(len(step), state.steps, mode)
        actions, num_taken, is_over = state.actions, state.num_taken, step.is_first | (state.num_taken == self.size)
        if may_any(is_over):
            actions = torch.where(is_over.view(-1, 1, 1), self.propose(step, noise), actions)
            num_taken = num_taken.masked_fill(is_over, 0)
        index = num_taken.view(-1, 1, 1).expand(-1, 1, self.width)  # [N, 1, A]
        return actions.gather(1, index).squeeze(1), ChunkState(actions, num_taken + 1, state.steps + (mode == "eval"))

    def draw_noise(self, envs: int, steps: Tensor, mode: Mode) -> Tensor | None:
        """Return noise ``[N, h A]`` for the next chunks; None in evaluations. ``steps`` as in :class:`ChunkState`."""
        return None if mode == "eval" else torch.randn(envs, self.size * self.width)

    def propose(self, step: Step, noise: Tensor | None) -> Tensor:
        """Return chunks ``[N, h, A]`` for ``noise`` ``[N, h A]``, on the CPU."""
        noise = None if noise is None else noise.to(self.device, non_blocking=True)
        chunk = self.actor(step.obs_on(self.device), noise)
        return chunk.clamp(-1, 1).cpu().view(-1, self.size, self.width)

    def memoryless(self, mode: Mode) -> bool:
        return False
