"""Losses that tie latents to embedded observations without a decoder.

Shapes: N rows, E dimensions of an embedding, K prototypes. With several learners, the rows of all count
(``core/collectives.py``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.core.collectives import all_gather, all_gather_with_grad, get_rank


def barlow_twins(x: Tensor, y: Tensor, redundancy: float) -> Tensor:
    """Return sum_i (1 - C_ii)^2 + redundancy * sum_{i != j} C_ij^2: Zbontar et al. (2021), equation 1.

    C is the correlation of the columns of ``x`` and ``y`` over the rows, in the form of R2-Dreamer's authors: standard
    deviations use N - 1, and the products are divided by N.

    Args:
        x: ``[N, E]``.
        y: ``[N, E]``.
        redundancy: the weight of the other correlations.

    Returns:
        ``[]``.
    """
    x, y = (all_gather_with_grad(z.float()) for z in (x, y))  # [N, E]
    x, y = ((z - z.mean(0)) / (z.std(0) + 1e-8) for z in (x, y))
    c = x.T @ y / len(x)  # [E, E]
    diagonal = c.diagonal()
    return (diagonal - 1).square().sum() + redundancy * (c.square().sum() - diagonal.square().sum())


def infonce(x: Tensor, y: Tensor) -> Tensor:
    """Return -ln(exp(x_i . y_i) / sum_j exp(x_i . y_j)): van den Oord et al. (2018), equation 4, with dot products.

    Args:
        x: ``[N, E]``.
        y: ``[N, E]``, without gradient: all other rows are the negative examples of a row.

    Returns:
        ``[N]``.
    """
    every = all_gather(y.float()).flatten(0, 1)  # [ranks * N, E]
    positives = torch.arange(len(x), device=x.device) + get_rank() * len(x)
    return F.cross_entropy(x.float() @ every.T, positives, reduction="none")


@torch.no_grad()
def sinkhorn(scores: Tensor, temperature: float, rounds: int) -> Tensor:
    """Return soft assignments of rows to prototypes that use all prototypes equally: Caron et al. (2020), equation 3.

    Args:
        scores: ``[N, K]``.
        temperature: of their softmax, above 0.
        rounds: how often prototypes and rows are normalized in turn (Cuturi 2013), at least 1.

    Returns:
        ``[N, K]``, each row a distribution.
    """
    every = all_gather(scores / temperature)  # [ranks, N, K]
    log_q = every.flatten(0, 1)
    log_q = log_q - log_q.logsumexp((0, 1))
    for _ in range(rounds):
        log_q = log_q - log_q.logsumexp(0, keepdim=True) - math.log(log_q.shape[1])
        log_q = log_q - log_q.logsumexp(1, keepdim=True) - math.log(len(log_q))
    return (log_q + math.log(len(log_q))).exp().view(every.shape)[get_rank()]
