"""Divergences between latents, and the free nats that keep them from collapsing."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from reverie.core.bounds import AtLeast, Within
from reverie.core.collectives import clamp_min_across_ranks
from reverie.core.config import Choice

Divergence = Callable[[Tensor, Tensor], Tensor]
"""KL(p || q) ``[...]`` of two distributions, each given by a tensor of its statistics."""


def categorical_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(p || q) = sum_c p_c (ln p_c - ln q_c), summed over the S latents.

    Args:
        log_p: ``[..., S, C]`` normalized log-probabilities.
        log_q: ``[..., S, C]`` normalized log-probabilities.

    Returns:
        ``[...]`` in nats.
    """
    return (log_p.exp() * (log_p - log_q)).sum((-2, -1))


def gaussian_kl(p: Tensor, q: Tensor) -> Tensor:
    """Return KL(p || q) = sum_s ln(sigma_q / sigma_p) + (sigma_p^2 + (mu_p - mu_q)^2) / (2 sigma_q^2) - 1/2.

    Args:
        p: ``[..., S, 2]`` means and standard deviations.
        q: ``[..., S, 2]`` means and standard deviations.

    Returns:
        ``[...]`` in nats.
    """
    (mean_p, std_p), (mean_q, std_q) = p.unbind(-1), q.unbind(-1)  # [..., S]
    ratio, distance = std_p / std_q, (mean_p - mean_q) / std_q
    return (0.5 * (ratio.square() + distance.square() - 1) - ratio.log()).sum(-1)


def dynamics_and_representation(log_post: Tensor, log_prior: Tensor, free_nats: float) -> tuple[Tensor, Tensor]:
    """Return L_dyn and L_rep: DreamerV3 (Hafner et al. 2025), equation 3.

    L_dyn = max(free, KL(sg(post) || prior)),  L_rep = max(free, KL(post || sg(prior))). The KL is summed over the
    latents *before* it is clipped.

    Args:
        log_post: ``[..., S, C]`` log-probabilities of the posterior, unimix included.
        log_prior: ``[..., S, C]`` log-probabilities of the prior, unimix included.
        free_nats: KL in nats below which there is no gradient.

    Returns:
        Two losses ``[...]``.
    """
    dynamics = categorical_kl(log_post.detach(), log_prior)  # [...]
    representation = categorical_kl(log_post, log_prior.detach())  # [...]
    return dynamics.clamp(min=free_nats), representation.clamp(min=free_nats)


def importance_bound(loss: Tensor, samples: int) -> Tensor:
    """Return -ln mean_i exp(-loss_i), the bound of Burda et al. (2016), equation 8.

    Args:
        loss: ``[B * samples, ...]`` -ln of the weight of each posterior sample; a row's samples are adjacent.
        samples: number of samples of each row; 1 returns ``loss`` itself.

    Returns:
        ``[B, ...]``.
    """
    if samples == 1:
        return loss
    return math.log(samples) - torch.logsumexp(-loss.view(-1, samples, *loss.shape[1:]), 1)


@dataclass(frozen=True)
class KLLoss(Choice, ABC):
    """The loss that trains posterior and prior to match."""

    @abstractmethod
    def __call__(self, kl: Divergence, post: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss ``[]``, and KL ``[...]`` before free nats, of statistics ``[..., S, n]``."""


@dataclass(frozen=True)
class FreeNats(KLLoss):
    """max(free_nats, mean KL(post || prior)): DreamerV1 (Hafner et al. 2020), equation 10, and its authors' code."""

    nats: Annotated[float, AtLeast(0)] = 3.0
    """Mean KL in nats below which there is no gradient."""

    def __call__(self, kl: Divergence, post: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`KLLoss`."""
        value = kl(post, prior)  # [...]
        return clamp_min_across_ranks(value.mean(), self.nats), value


@dataclass(frozen=True)
class BalancedKL(KLLoss):
    """DreamerV2 (Hafner et al. 2021), algorithm 2: (1 - b) KL(post || sg(prior)) + b KL(sg(post) || prior)."""

    balance: Annotated[float, Within("[0, 1]")] = 0.8
    """b, the weight of the term that trains the prior. At exactly 0.5, as in the authors' code, it is the plain KL:
    twice the gradient, and free nats for each row regardless of ``average``."""
    nats: Annotated[float, AtLeast(0)] = 0.0
    """KL in nats below which a term gives no gradient."""
    average: bool = True
    """Apply ``nats`` to the mean of all rows; False: to each row."""
    forward: bool = False
    """Use KL(prior || post) instead of KL(post || prior); not in the paper."""

    def __call__(self, kl: Divergence, post: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`KLLoss`."""
        p, q = (prior, post) if self.forward else (post, prior)
        if self.balance == 0.5:
            value = kl(p, q)
            return value.clamp(min=self.nats).mean(), value
        mix = self.balance if self.forward else 1 - self.balance
        value, detached = kl(p, q.detach()), kl(p.detach(), q)  # [...]
        return torch.lerp(self._apply_free_nats(detached), self._apply_free_nats(value), mix), value

    def _apply_free_nats(self, value: Tensor) -> Tensor:
        return clamp_min_across_ranks(value.mean(), self.nats) if self.average else value.clamp(min=self.nats).mean()
