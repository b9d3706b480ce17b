"""The memories of off-policy learners: their states are stored with the rows, and used in learning and acting.

Kapturowski et al., "Recurrent experience replay in distributed reinforcement learning", ICLR 2019 (R2D2): the state
before each row is stored with the row; sequences start from it, after burn-in rows that refresh it. Here each update
also writes the states that it has computed back to its rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.protocols import Policy
from reverie.core.types import Batch, Mode, Obs, PolicyOutput, Step
from reverie.nn.memory import MEMORY_COLUMN, MEMORY_FIRST_KEY
from reverie.nn.network import MemoryInputs
from reverie.nn.preprocess import advance_schedule, inspect_policy
from reverie.nn.target_network import TargetNetwork


class Memories:
    """All memories of the networks in an ``objective``. Target networks start from their source's state."""

    def __init__(self, objective: nn.Module) -> None:
        targets = [part for part in objective.children() if isinstance(part, TargetNetwork)]
        followed = {id(b): a for t in targets for a, b in zip(t.source.modules(), t.model.modules(), strict=True)}
        cuts: dict[int, slice] = {}
        self.width: int = 0
        """S, the width of the states of all memories except in target networks."""
        self.modules: list[tuple[MemoryInputs, slice]] = []
        self.targets: list[tuple[MemoryInputs, slice]] = []
        readers = [(name, m) for name, m in objective.named_modules() if isinstance(m, MemoryInputs)]
        for name, m in sorted(readers, key=lambda pair: id(pair[1]) in followed):  # targets last
            m.memory_key = f"{MEMORY_COLUMN}/{name}"
            if id(m) in followed:
                self.targets.append((m, cuts[id(followed[id(m)])]))
            else:
                cuts[id(m)] = slice(self.width, self.width + m.memory.width)
                self.modules.append((m, cuts[id(m)]))
                self.width += m.memory.width

    def add_to_obs(self, obs: Obs, first: Tensor, state: Tensor) -> Obs:
        """Return the observations plus the inputs of memories: flags ``first`` and states ``[..., S]``."""
        return (
            obs
            | {MEMORY_FIRST_KEY: first}
            | {m.memory_key: state[..., cut] for m, cut in (*self.modules, *self.targets)}
        )

    def next_state(self, obs: Obs) -> Tensor:
        """Return the states after each row, ``[..., S]``."""
        return torch.cat([m.with_memory(obs)[1] for m, _ in self.modules], -1)

    @torch.no_grad()
    def burn_in_batch(self, batch: Batch, burn_in: int) -> Batch:
        """Return the learned rows of a batch ``[B, burn_in + T]``, with the states before them.

        Only the first state is read from the replay. The ``extras`` are the states before all learned rows, to be
        written back. Losses read windows from row 0 or from row 1 on: a target's other states are omitted.
        """
        obs = self.add_to_obs(batch.obs, batch.is_first, batch.extras[MEMORY_COLUMN])
        missing, states = batch.shape[1] - burn_in - 2, {}
        for m, _ in self.modules:
            states[m.memory_key] = torch.cat(
                [obs[m.memory_key][:, :1], m.with_memory(obs)[1][:, :-1]], 1
            )  # [B, burn_in + T, S]
        first_rows = {key: x[:, : burn_in + 1] for key, x in obs.items()}
        for m, _ in self.targets:
            states[m.memory_key] = F.pad(
                torch.cat([first_rows[m.memory_key][:, :1], m.with_memory(first_rows)[1]], 1), (0, 0, 0, missing)
            )
        fresh = torch.cat([states[m.memory_key] for m, _ in self.modules], -1)
        return replace(batch, obs=obs | states, extras={**batch.extras, MEMORY_COLUMN: fresh}).slice_time(burn_in)


class ReplayMemoryState(NamedTuple):
    """The state of a :class:`MemoryPolicy` for N environments."""

    before: Tensor  # [N, S], of the memories before the newest row
    after: Tensor  # [N, S]
    inner: Any  # the state of the inner policy


class MemoryPolicy:
    """A policy whose networks have memory, around a policy that acts on single rows."""

    def __init__(self, inner: Policy[Any], memories: Memories, device: torch.device) -> None:
        self.inner = inner
        self.memories = memories
        self.device = device

    def initial(self, num_envs: int) -> ReplayMemoryState:
        blank = torch.zeros(num_envs, self.memories.width, device=self.device)
        return ReplayMemoryState(blank, blank, self.inner.initial(num_envs))

    def add_to_obs(self, step: Step, state: ReplayMemoryState) -> Obs:
        """Return the observations plus the inputs of memories."""
        return self.memories.add_to_obs(step.obs_on(self.device), step.is_first.to(self.device), state.after)

    @torch.no_grad()
    def act(self, step: Step, state: ReplayMemoryState, mode: Mode) -> tuple[Tensor, ReplayMemoryState]:
        obs = self.add_to_obs(step, state)
        action, inner = self.inner.act(replace(step, obs=obs), state.inner, mode)
        return action, ReplayMemoryState(state.after, self.memories.next_state(obs), inner)

    def inspect(self, step: Step, state: ReplayMemoryState) -> PolicyOutput:
        return inspect_policy(self.inner, replace(step, obs=self.add_to_obs(step, state)), state.inner)

    def advance_schedule(self, state: ReplayMemoryState, env_steps: int) -> ReplayMemoryState:
        return state._replace(inner=advance_schedule(self.inner, state.inner, env_steps))

    def override(self, state: ReplayMemoryState, action: Tensor) -> ReplayMemoryState:
        return state._replace(inner=self.inner.override(state.inner, action))

    def extras(self, state: ReplayMemoryState) -> dict[str, Tensor]:
        return {MEMORY_COLUMN: state.before} | self.inner.extras(state.inner)
