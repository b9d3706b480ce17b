"""Returns of sequences of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from reverie.core.shapes import same_shape


def lambda_return(
    *, reward: Tensor, terminal: Tensor, last: Tensor, bootstrap: Tensor, discount: float, lam: float
) -> Tensor:
    """The lambda-return of every row but the last. DreamerV3 (Hafner et al. 2025), equation 5.

    R_t = r_{t+1} + gamma (1 - terminal_{t+1}) [(1 - lambda_{t+1}) v_{t+1} + lambda_{t+1} R_{t+1}],  R_T = v_T,
    with lambda_{t+1} = lambda (1 - last_{t+1}): a terminal row is worth nothing, while a row that is merely the last
    of its episode (a time limit) hands over to the bootstrap value.

    Args:
        reward: ``[B, T]``, the reward that came with each row.
        terminal: ``[B, T]`` in [0, 1]. In imagination, 1 - the predicted continuation.
        last: ``[B, T]`` in [0, 1].
        bootstrap: ``[B, T]``, the value v of each row.
        discount: gamma. 1 if the discount is already part of ``terminal``.
        lam: lambda.

    Returns:
        ``[B, T - 1]`` R_0 ... R_{T-2}.
    """
    same_shape(reward=reward, terminal=terminal, last=last, bootstrap=bootstrap)
    live = (1 - terminal.to(reward.dtype))[:, 1:] * discount  # [B, T-1]
    keep = (1 - last.to(reward.dtype))[:, 1:] * lam  # [B, T-1]
    onestep = reward[:, 1:] + live * (1 - keep) * bootstrap[:, 1:]  # [B, T-1]
    carry = live * keep  # [B, T-1]
    returns, value = [], bootstrap[:, -1]
    for r, c in zip(reversed(onestep.unbind(1)), reversed(carry.unbind(1)), strict=True):
        value = torch.addcmul(r, c, value)
        returns.append(value)
    return torch.stack(returns[::-1], 1)
