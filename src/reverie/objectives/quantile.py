"""Distributions of returns: quantiles, Dabney et al. 2018, arXiv:1710.10044, and atoms, Bellemare et al. 2017."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.core.kernel_dispatch import accelerated
from reverie.core.types import Batch
from reverie.objectives.categorical import choice_weight, split_choices, stack_choices
from reverie.objectives.estimators import SingleBootstrap
from reverie.objectives.td import Losses, check_shapes, critic_losses


def quantile_midpoints(
    count: int, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the fractions tau^_i = (2 i + 1) / (2 N) of N learned quantiles, ``[N]``: lemma 2."""
    return (torch.arange(count, device=device, dtype=dtype) + 0.5) / count


@accelerated
def quantile_huber(prediction: Tensor, target: Tensor, kappa: float = 1.0, tau: Tensor | None = None) -> Tensor:
    """Return the quantile Huber loss, summed over predictions and averaged over targets: equations 9 and 10.

    sum_i E_j[ |tau^_i - 1{u < 0}| L(u) ],  u = target_j - prediction_i,
    L(u) = u^2 / 2 where |u| <= kappa and kappa (|u| - kappa / 2) beyond. With kappa = 0, L(u) = |u|: equation 8.

    Algorithm 1 minimizes it. Only the prediction gets a gradient.

    Args:
        prediction: ``[..., N]``, need not be sorted; entry i is quantile tau^_i.
        target: ``[..., N']``, in any order.
        kappa: error up to which the loss is squared, 0 or more.
        tau: fractions of the predictions ``[..., N]`` instead of tau^_i.

    Returns:
        ``[...]``, in the dtype of the prediction.

    Raises:
        ValueError: the leading axes differ.
    """
    if prediction.shape[:-1] != target.shape[:-1]:
        shapes = f"prediction {tuple(prediction.shape)}, target {tuple(target.shape)}"
        raise ValueError(f"{shapes}: expected [..., N] and [..., N'] with the same leading axes.")
    u = target.detach().to(prediction.dtype).unsqueeze(-2) - prediction.unsqueeze(-1)  # [..., N, N']
    loss = F.huber_loss(u, torch.zeros_like(u), reduction="none", delta=kappa) if kappa else u.abs()
    tau = quantile_midpoints(prediction.shape[-1], u.device, u.dtype) if tau is None else tau
    return ((tau.unsqueeze(-1) - (u < 0).to(u.dtype)).abs() * loss).mean(-1).sum(-1)


@accelerated
def greedy_quantiles(quantiles: Tensor, selector: Tensor) -> Tensor:
    """Return the quantiles ``[..., N]`` of the action with the highest mean, from ``[..., A, N]``, without gradient.

    The means of ``selector`` ``[..., A, N]`` choose the action: the same quantiles, or another network's.
    """
    return quantiles_of_action(quantiles.detach(), selector.detach().mean(-1).argmax(-1))


def quantiles_of_action(quantiles: Tensor, index: Tensor) -> Tensor:
    """Return the quantiles ``[..., N]`` of the actions ``index`` ``[...]``, from ``[..., A, N]``."""
    flat = quantiles.reshape(index.numel(), *quantiles.shape[-2:])  # [M, A, N]
    return _gather_rows(flat, index.reshape(-1, 1)).view(*index.shape, quantiles.shape[-1])


def _gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Return ``x[m, index[m, j]]``: ``[M, K, N]`` and ``[M, J]`` to ``[M, J, N]``. Copies whole rows of N."""
    start = torch.arange(0, x.shape[0] * x.shape[1], x.shape[1], device=x.device).unsqueeze(1)  # [M, 1]
    return x.flatten(0, 1).index_select(0, (start + index).flatten()).view(*index.shape, x.shape[-1])


@accelerated
def quantile_targets(next_quantiles: Tensor, batch: Batch, estimator: SingleBootstrap, discount: float) -> Tensor:
    """Return targets y_j of rows 0 ... T-2, ``[B, T - 1, N]``, from distributions of rows 1 ... T-1, without gradient.

    y_j = G + gamma^m (1 - terminal) theta_j, where ``estimator`` gives the sum of rewards G and the row after m steps.
    Targets of rows that are the last of their episode are meaningless and must be masked.
    """
    reward, live, row = estimator.bootstrap(
        reward=batch.reward, terminal=batch.is_terminal, last=batch.is_last, discount=discount
    )  # [B, T-1]
    reached = _gather_rows(next_quantiles.detach(), (row - 1).clamp(min=0))  # [B, T-1, N]
    return reward.unsqueeze(-1) + live.unsqueeze(-1) * reached


@accelerated
def quantile_error(
    prediction: Tensor,
    target: Tensor,
    batch: Batch,
    kappa: float,
    classes: Sequence[int] = (),
    tau: Tensor | None = None,
) -> Losses:
    """Return the term ``critic``: :func:`quantile_huber` of the taken actions, averaged as in ``td.critic_losses``.

    With several choices, return the mean over them: each has its own quantiles for the same target.

    Args:
        prediction: quantiles of all actions, ``[B, T - 1, A, N]``.
        target: ``[B, T - 1, N']``.
        batch: provides one-hot actions ``[B, T, A]``, weights ``[B]`` and the ends of episodes.
        kappa: as in :func:`quantile_huber`.
        classes: number of classes of each choice; ``()`` is a single choice of A classes.
        tau: fractions of the predictions ``[B, T - 1, N]``, as in :func:`quantile_huber`.

    Returns:
        The losses. The loss is a sum over the quantiles, priorities are means over them.
    """
    pairs = zip(split_choices(prediction, classes, -2), split_choices(batch.action[:, :-1], classes), strict=True)
    theta = stack_choices([quantiles_of_action(part, action.argmax(-1)) for part, action in pairs])  # [(D,) B, T-1, N]
    check_shapes(theta[..., 0], target[..., 0], batch)
    loss = quantile_huber(theta, target.expand(*theta.shape[:-1], -1), kappa, tau)  # [(D,) B, T-1]
    error, value = loss.detach() / theta.shape[-1], theta.detach().mean(-1)  # [(D,) B, T-1]
    return critic_losses(loss, error, value, target.mean(-1), batch, choice_weight(classes))


def project_to_atoms(atoms: Tensor, probs: Tensor, support: Tensor) -> Tensor:
    """Return the probabilities ``[..., N]`` of the ``support`` ``[N]`` for a distribution over other atoms.

    p_i = sum_j [1 - |[x_j] - z_i| / dz]_0^1 p_j, where [x_j] is bounded to the support: each x_j gives its probability
    to its two neighbors in the support. Bellemare et al. 2017, equation 7.

    Args:
        atoms: x ``[..., M]``, in any order.
        probs: their probabilities, the same shape.
        support: z, evenly spaced and ascending.
    """
    x, intervals = atoms.clamp(support[0], support[-1]), len(support) - 1
    position = (x - support[0]) * (intervals / (support[-1] - support[0]))  # [..., M], from 0 to N - 1
    lower = position.nan_to_num(0.0).long().clamp(max=intervals - 1)  # the neighbor below, an index even for NaN
    share = ((x - support[lower]) / (support[1] - support[0])).clamp(0, 1)  # of the neighbor above
    projected = probs.new_zeros(*probs.shape[:-1], len(support))
    return projected.scatter_add_(-1, lower, probs * (1 - share)).scatter_add_(-1, lower + 1, probs * share)


def clipped_return(atoms: Tensor, probs: Tensor, projected: Tensor, support: Tensor) -> Tensor:
    """Return by how much :func:`project_to_atoms` moved the mean into the support, averaged over all rows: a scalar."""
    return ((atoms * probs).sum(-1) - (projected * support).sum(-1)).abs().mean()
