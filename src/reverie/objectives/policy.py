"""Losses of policies: REINFORCE, PPO's clipped loss, and the actor gradients of DreamerV2."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from reverie.core.bounds import Within
from reverie.core.collectives import all_gather
from reverie.core.config import Choice
from reverie.core.kernel_dispatch import accelerated
from reverie.core.tree import check_tensor_shapes


def reinforce(
    *, log_prob: Tensor, advantage: Tensor, entropy: Tensor, weight: Tensor, entropy_scale: float | Tensor
) -> Tensor:
    """Return -w [sg(A) ln pi(a|s) + eta H(pi(.|s))]: Williams (1992); DreamerV3 (Hafner et al. 2025), equation 6.

    Args:
        log_prob: ``[...]`` of the actions taken, in nats, with gradient.
        advantage: ``[...]``; it is detached here.
        entropy: ``[...]`` in nats, with gradient.
        weight: ``[...]``, the probability that the state is reached; it is detached here.
        entropy_scale: eta.

    Returns:
        ``[...]``.
    """
    check_tensor_shapes(log_prob.shape, advantage=advantage, entropy=entropy, weight=weight)
    return -weight.detach() * (log_prob * advantage.detach() + entropy_scale * entropy)


def _clipped_surrogate(*, log_ratio: Tensor, advantage: Tensor, clip: float | Tensor) -> Tensor:
    """Return PPO's clipped loss, -min(rho A, clip(rho, 1 - eps, 1 + eps) A): arXiv:1707.06347, equation 7.

    Args:
        log_ratio: ``[...]`` ln rho = ln pi(a|s) - ln pi_old(a|s), where pi_old is the behavior policy; with gradient.
        advantage: ``[...]``; it is detached here.
        clip: eps.

    Returns:
        ``[...]``.
    """
    check_tensor_shapes(log_ratio.shape, advantage=advantage)
    ratio, advantage = log_ratio.exp(), advantage.detach()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)  # type: ignore[arg-type]  # numbers or tensors


@accelerated
def clipped_objective(
    log_prob: Tensor, before: Tensor, advantage: Tensor, last: Tensor, clip: float | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return PPO's clipped loss, an estimate of the KL divergence, and where ratios are beyond the limits, ``[B, T]``.

    Only the loss has a gradient, which is 0 at last rows: they have no action.

    Args:
        log_prob: ``[B, T]`` of the actions taken, in nats.
        before: ``[B, T]`` of the same, by the policy that took them.
        advantage: ``[B, T]``.
        last: bool ``[B, T]``.
        clip: the largest difference of a ratio from 1.
    """
    log_ratio = (log_prob - before).masked_fill(last, 0.0)  # [B, T]
    loss, ratio = _clipped_surrogate(log_ratio=log_ratio, advantage=advantage, clip=clip), log_ratio.detach().exp()
    return loss, ratio - 1 - log_ratio.detach(), ((ratio - 1).abs() > clip).float()


@accelerated
def standardize(x: Tensor, mask: Tensor) -> Tensor:
    """Return (x - mean) / (std + 1e-8) ``[...]`` over the entries where ``mask`` ``[...]`` is 1, std with n - 1.

    A single entry is returned as it is. With several learners, the entries of all count.
    """
    check_tensor_shapes(x.shape, mask=mask)
    weight = mask.to(x.dtype)
    count = all_gather(weight.sum()).sum()
    centered = x - all_gather((x * weight).sum()).sum() / count.clamp(min=1)
    std = (all_gather((centered * weight).square().sum()).sum() / (count - 1).clamp(min=1)).sqrt()
    return torch.where(count > 1, centered / (std + 1e-8), x)


@dataclass(frozen=True)
class ActorGradient(Choice, ABC):
    """The objective of DreamerV2's actor, in addition to its entropy: Hafner et al. (2021), equation 6."""

    through_time: ClassVar[bool] = True
    """Whether imagined returns need a gradient with respect to the actions before them."""
    through_policy = False
    """Whether that gradient also flows through the policy's inputs at later states."""

    @abstractmethod
    def __call__(self, log_prob: Tensor, advantage: Tensor, target: Tensor) -> Tensor:
        """Return the objective ``[...]``, to be maximized.

        Args:
            log_prob: ``[...]`` of the actions taken, in nats, with gradient.
            advantage: ``[...]``; it is detached here.
            target: ``[...]``, the return after the action, with gradient if ``through_time``.
        """


@dataclass(frozen=True)
class Reinforce(ActorGradient):
    """ln pi(a|s) sg(A): Williams (1992)."""

    through_time: ClassVar[bool] = False

    def __call__(self, log_prob: Tensor, advantage: Tensor, target: Tensor) -> Tensor:
        """See :class:`ActorGradient`."""
        return log_prob * advantage.detach()


@dataclass(frozen=True)
class Dynamics(ActorGradient):
    """The return itself, differentiated through the world model; straight-through where actions are discrete."""

    through_policy: bool = False
    """Differentiate also through the policy's inputs at later states: all paths, as in PyDreamer. False: only through
    the effects of actions, as in the authors' code."""

    def __call__(self, log_prob: Tensor, advantage: Tensor, target: Tensor) -> Tensor:
        """See :class:`ActorGradient`."""
        return target


@dataclass(frozen=True)
class Mixed(ActorGradient):
    """mix * dynamics + (1 - mix) * reinforce.

    As in the authors' code, ln pi(a|s) also has a gradient through a, if a is continuous.
    """

    mix: Annotated[float, Within("[0, 1]")] = 0.1
    """Share of the gradient through the world model."""

    def __call__(self, log_prob: Tensor, advantage: Tensor, target: Tensor) -> Tensor:
        """See :class:`ActorGradient`."""
        return self.mix * target + (1 - self.mix) * log_prob * advantage.detach()
