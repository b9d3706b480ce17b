"""Importance sampling: the return of a policy pi, from episodes of a behavior policy mu with known probabilities.

Steps t = 0 ... H-1 of E episodes are tensors ``[E, H]``, float64, as products of many ratios exceed float32. An episode
of n steps fills the first n. It ended in a terminal state, or it was truncated and its continuation is unknown.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def cumulative_ratios(log_ratio: Tensor, steps: Tensor, terminal: Tensor) -> Tensor:
    """Return rho_{0:t} = prod_{k=0..t} pi(a_k | s_k) / mu(a_k | s_k) up to a factor for each step t, ``[E, H]``.

    The factor, which makes the largest ratio of a step 1, cancels in weighted estimates. After a terminal state, the
    ratio stays constant, as later rewards are known to be 0; after a truncation it is 0, as they are unknown.

    Args:
        log_ratio: ``[E, H]``, ln pi(a_t | s_t) - ln mu(a_t | s_t); not read from step n on.
        steps: ``[E]``, n of each episode.
        terminal: ``[E]`` bool.
    """
    over = torch.arange(log_ratio.shape[1]) >= steps[:, None]  # [E, H]
    total = log_ratio.masked_fill(over, 0).cumsum(1).masked_fill(over & ~terminal[:, None], -math.inf)  # [E, H]
    return (total - total.amax(0).clamp(min=torch.finfo(total.dtype).min)).exp()


def effective_sample_size(log_ratio: Tensor, steps: Tensor) -> float:
    """Return (sum_i rho_i)^2 / sum_i rho_i^2 of the ratios of whole episodes: Kong (1992); 0 if pi takes none of them.

    This many episodes of pi itself would be equally informative. The arguments are as in :func:`cumulative_ratios`.
    """
    last = cumulative_ratios(log_ratio, steps, torch.ones_like(steps, dtype=torch.bool))[:, -1]  # [E]
    return float(last.sum().square() / last.square().sum()) if last.any() else 0.0


def weighted_importance_sampling(ratio: Tensor, value: Tensor, discount: float, counts: Tensor | None = None) -> Tensor:
    """Return sum_t gamma^t sum_i w_it x_it, w_it = rho_it / sum_j rho_jt: per-decision weighted importance sampling.

    For rewards this is WIS: Precup, Sutton & Singh (2000), with the weights of Thomas & Brunskill (2016). A step
    that pi reaches in none of the episodes adds nothing.

    Args:
        ratio: ``[E, H]`` rho of :func:`cumulative_ratios`.
        value: ``[E, H]`` x of each step, 0 after the end.
        discount: gamma.
        counts: ``[R, E]``, how often each episode counts, in R resamples; None: once.

    Returns:
        ``[R]``.
    """
    counts = torch.ones(1, len(ratio), dtype=ratio.dtype) if counts is None else counts
    total = counts @ ratio  # [R, H]
    mean = torch.where(total > 0, counts @ (ratio * value) / total, 0.0)
    return mean @ (discount ** torch.arange(ratio.shape[1], dtype=ratio.dtype))


def doubly_robust(ratio: Tensor, error: Tensor, start: Tensor, discount: float, counts: Tensor | None = None) -> Tensor:
    """Return mean_i V(s_i0) + sum_t gamma^t sum_i w_it delta_it, ``[R]``: Thomas & Brunskill (2016).

    With delta_t = r_t + gamma V(s_{t+1}) - Q(s_t, a_t) this is their WDR, the weighted form of Jiang & Li (2016). It is
    consistent if either the critic or the ratios are exact.

    Args:
        ratio: ``[E, H]``, like ``discount`` and ``counts`` as in :func:`weighted_importance_sampling`.
        error: ``[E, H]``, the critic's temporal-difference error delta; 0 after the end.
        start: ``[E]``, the critic's value V(s_0) of each episode's first state.
        discount: gamma.
        counts: ``[R, E]``.
    """
    counts = torch.ones(1, len(ratio), dtype=ratio.dtype) if counts is None else counts
    return counts @ start / counts.sum(1) + weighted_importance_sampling(ratio, error, discount, counts)
