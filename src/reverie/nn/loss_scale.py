"""The loss scale of learners whose networks compute in float16."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from reverie.core.types import State

ResultT = TypeVar("ResultT")

INITIAL, GROWTH_INTERVAL = 2.0**16, 2000
"""The first loss scale, and the number of updates without overflow after which it doubles: PyTorch's GradScaler."""

LOWEST = 2.0**-14
"""Loss scale below which gradients that are not finite are no overflow: the learner has diverged."""


class LossScale:
    """A factor of all losses of a learner: Micikevicius et al. 2018, "Mixed precision training", section 3.2.

    float16 has no numbers between 0 and 6e-8, where gradients would vanish, nor beyond 65,504. So the gradient of a
    loss times S is computed, and divided by S in float32. Where it overflows, the optimizer skips its step, and S
    halves; after 2,000 updates without overflow S doubles.

    All of it stays on the device, because an update may not wait for it. Gradients are checked after they are averaged
    over several learners, so all of these skip the same steps.
    """

    def __init__(self, device: torch.device) -> None:
        self.value: Tensor = torch.full((), INITIAL, device=device)
        """S, a power of two: multiplying and dividing by it does not round."""
        self.streak: Tensor = torch.zeros((), dtype=torch.int64, device=device)
        """Updates without overflow since S last changed."""
        self.has_overflowed: Tensor = torch.zeros((), dtype=torch.bool, device=device)
        """Whether an optimizer has skipped a step in this update."""

    @torch.no_grad()
    def step_if_finite(
        self, step: Callable[[list[Tensor]], ResultT], grads: list[Tensor], state: list[Tensor]
    ) -> ResultT:
        """Return ``step`` of the ``grads`` divided by S. If one is not finite, ``state``, all that it changes, stays.

        Below a scale of :data:`LOWEST` it changes all the same, so that a run finds that it has diverged.
        """
        unscaled = list(torch._foreach_mul(grads, 1 / self.value))
        overflows = ~torch.stack(torch._foreach_norm(unscaled, math.inf)).isfinite().all()
        self.has_overflowed |= overflows
        is_skipped = overflows & (self.value >= LOWEST)
        before = [x.clone() for x in state]
        result = step(unscaled)
        for x, old in zip(state, before, strict=True):
            x.copy_(torch.where(is_skipped, old, x))
        return result

    @torch.no_grad()
    def adjust(self) -> Tensor:
        """Change S after an update. Return the S of the update, ``[]``."""
        used = self.value.clone()
        self.streak.add_(1).masked_fill_(self.has_overflowed, 0)
        is_long = self.streak == GROWTH_INTERVAL
        self.value.mul_(torch.where(self.has_overflowed, 0.5, 1.0 + is_long))
        self.streak.masked_fill_(is_long, 0)
        self.has_overflowed.fill_(False)
        return used

    def state_dict(self) -> State:
        """Return S and the updates since it last changed."""
        return {"value": self.value, "streak": self.streak}

    def load_state_dict(self, state: State) -> None:
        self.value.copy_(state["value"])
        self.streak.copy_(state["streak"])
