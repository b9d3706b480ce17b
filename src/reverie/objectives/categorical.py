"""Values of states by values of categorical actions."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def masked_argmax_value(values: Tensor, logits: Tensor, target: Tensor, log_threshold: float) -> Tensor:
    """Return ``target`` ``[...]`` of the action with the highest value among the likely ones. Inputs are ``[..., A]``.

    See :func:`likely_values` for which are.
    """
    best = likely_values(values, logits, log_threshold).argmax(-1, keepdim=True)  # [..., 1]
    return target.gather(-1, best).squeeze(-1)


def likely_values(values: Tensor, logits: Tensor, log_threshold: float) -> Tensor:
    """Return ``values`` ``[..., A]`` of actions whose logit is at least the highest plus ``log_threshold``, else -inf.

    That is G(a | s) / max_b G(b | s) >= threshold: discrete BCQ (Fujimoto et al. 2019), algorithm 1, which has > in
    place of >=, so that a threshold of 1 would leave no action.
    """
    return values.masked_fill(logits < logits.amax(-1, keepdim=True) + log_threshold, -math.inf)


def expected_min_q(logits: Tensor, values: Tensor) -> Tensor:
    """Return sum_a pi(a) min_i Q_i(a) ``[...]``, for the policy's logits ``[..., A]`` and values ``[K, ..., A]``."""
    return (torch.softmax(logits, -1) * values.amin(0)).sum(-1)
