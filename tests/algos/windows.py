"""Windows of rows for learners of transitions, networks of a few numbers, and targets written the slow way."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reverie.core.types import Batch
from reverie.objectives.estimators import GAE, TD0, TD1, NStep, TDLambda, ValueEstimator

WIDE, ACTS = 3, 2
ESTIMATORS = [TD0(), TD1(), NStep(2), NStep(3), TDLambda(0.8), GAE(0.7)]


class TinyActor(nn.Module):
    def __init__(self, outputs: int = ACTS) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDE, outputs, dtype=torch.float64)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return self.layer(obs["state"]).tanh()


class TinyCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDE + ACTS, 5, dtype=torch.float64), nn.Tanh(), nn.Linear(5, 1, dtype=torch.float64)
        )

    def forward(self, obs: dict[str, Tensor], action: Tensor) -> Tensor:
        return self.layers(torch.cat([obs["state"], action], -1)).squeeze(-1)


def batch(size: int = 5, length: int = 5, seed: int = 0, crossing: bool = True, dtype=torch.float64) -> Batch:
    """Random rows. Episodes end in the middle of windows if they may, and at their last rows, in either way."""
    g = torch.Generator().manual_seed(seed)
    last = torch.rand(size, length, generator=g) < 0.3
    if not crossing:
        last[:, :-1] = False
    terminal = last & (torch.rand(size, length, generator=g) < 0.5)
    first = torch.cat([torch.zeros(size, 1, dtype=torch.bool), last[:, :-1]], 1)
    reward = torch.randn(size, length, generator=g, dtype=dtype) * ~first
    action = (torch.rand(size, length, ACTS, generator=g, dtype=dtype) * 2 - 1) * ~last[..., None]
    return Batch(
        obs={"state": torch.randn(size, length, WIDE, generator=g, dtype=dtype)},
        action=action, reward=reward, is_first=first, is_last=last, is_terminal=terminal,
        weight=torch.rand(size, generator=g, dtype=dtype) + 0.5, index=torch.arange(size),
    )  # fmt: skip


def slow_target(
    estimator: ValueEstimator, data: Batch, value: list[list[float]], b: int, t: int, discount: float,
    bonus: list[list[float]] | None = None,
) -> float:  # fmt: skip
    """What row t of window b turned out to be worth. ``bonus`` is what a row earns by itself when it is passed."""
    end = data.reward.shape[1] - 1
    steps = {NStep: lambda e: e.n, TD0: lambda e: 1, TD1: lambda e: end}.get(type(estimator), lambda e: None)(estimator)
    lam = 1.0 if steps else estimator.lam

    def follow(row: int, left: int | None) -> float:
        """The return from ``row``, whose action was taken, with so many rewards to go."""
        reward, after = float(data.reward[b, row + 1]), row + 1
        if data.is_terminal[b, after]:
            return reward
        if data.is_last[b, after] or after == end or left == 1:
            return reward + discount * value[b][after]
        passed = (bonus[b][after] if bonus else 0.0) + follow(after, left - 1 if left else None)
        return reward + discount * ((1 - lam) * value[b][after] + lam * passed)

    return follow(t, steps)


def moves(data: Batch) -> list[tuple[int, int]]:
    """Window and row of every action that was taken and whose outcome is in its window."""
    size, length = data.shape
    return [(b, t) for b in range(size) for t in range(length - 1) if not data.is_last[b, t]]


def row(data: Batch, b: int, t: int) -> dict[str, Tensor]:
    return {"state": data.obs["state"][b, t]}


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
