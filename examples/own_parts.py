"""Parts of one's own: the critics of SAC, and a rule by which the replay draws windows.

reverie train own_parts:TanhSACConfig --env Pendulum-v1 --replay.sampler 'own_parts:Rewarded(share=0.5)'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reverie.algos.sac import SAC, SACConfig
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.nn.actor_critic import CriticStack
from reverie.nn.encoder import flat_vector
from reverie.replay.config import SamplingRule
from reverie.replay.samplers import Sampler
from reverie.replay.windows import HandleQueue, Windows


class TanhCritic(nn.Module):
    """Q(s, a) of vectors, ``[...]``, by PyTorch's layers."""

    def __init__(self, spec: ObsSpec, width: int) -> None:
        super().__init__()
        self.spec = dict(spec)
        inputs = sum(part.width for part in spec.values()) + width
        self.net = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, obs: dict[str, Tensor], action: Tensor) -> Tensor:
        """Return the value of each observation and action."""
        parts = [flat_vector(obs[key], part) for key, part in sorted(self.spec.items())]
        value: Tensor = self.net(torch.cat([*parts, action], -1)).squeeze(-1)
        return value


class TanhSAC(SAC):
    """SAC with these critics."""

    def build_critic(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> nn.Module:
        """Return as many critics as the settings say."""
        return CriticStack(*(TanhCritic(obs_spec, action_spec.width) for _ in range(self.cfg.num_critics)))


@dataclass(frozen=True, kw_only=True)
class TanhSACConfig(SACConfig):
    """Settings of SAC, with these critics."""


TanhSACConfig.learner = TanhSAC


@dataclass(frozen=True)
class Rewarded(SamplingRule):
    """Windows with a reward are drawn more often."""

    share: float = 0.5
    """Share of the windows that are drawn from those with a reward, if there are any."""

    def build(self, windows: Windows, rng: np.random.Generator) -> Sampler:
        """Return the sampler."""
        return RewardedSampler(windows, rng, self.share)


class RewardedSampler(Sampler):
    """Draws windows of :class:`Rewarded`. Its generator is in checkpoints; all else follows from the rows."""

    listens = True

    def __init__(self, windows: Windows, rng: np.random.Generator, share: float) -> None:
        super().__init__(windows, rng)
        self.share = share
        self.rewarded = HandleQueue()

    def add(self, new: np.ndarray, collected: bool = True) -> None:
        """Note which of the new windows contain a reward."""
        rows: dict[str, Any] = self.windows.storage.gather(torch.from_numpy(new), self.windows.length)
        self.rewarded.add(new[(rows["reward"][:, 1:] != 0).any(1).numpy()])
        self.rewarded.drop(self.windows.oldest)  # their rows are overwritten

    def clear(self) -> None:
        """Forget all windows."""
        self.rewarded.clear()

    def draw(self, count: int, out: Tensor | None = None) -> Tensor:
        """Return handles ``[count]`` of windows."""
        handles = self.windows.handles_at(self.rng.integers(len(self.windows), size=count))
        chosen = self.rng.random(count) < self.share
        if len(self.rewarded):
            handles[chosen] = self.rewarded.handles[self.rng.integers(len(self.rewarded), size=chosen.sum())]
        return torch.from_numpy(handles)
