"""The loss of a reward that explains which of two clips a person prefers."""

from __future__ import annotations

import torch
from torch import Tensor

NOISE = 0.1
"""Probability of a random answer, which the paper assumes."""


def preference_loss(difference: Tensor, answer: Tensor, noise: float = NOISE) -> Tensor:
    """Return the cross-entropy of the answers about B pairs of clips, a scalar.

    P = (1 - noise) sigmoid(R_1 - R_2) + noise / 2, loss = -E[y ln P + (1 - y) ln(1 - P)]: Christiano et al., "Deep
    reinforcement learning from human preferences", NeurIPS 2017, arXiv:1706.03741, equation 1 and section 2.2.3.

    Args:
        difference: R_1 - R_2 ``[B]``, the sum of the predicted rewards of the first clip less that of the second.
        answer: y ``[B]``, 1 for the first clip, 0 for the second, 1/2 for a tie.
        noise: probability that a person answers at random.
    """
    prefers_first, prefers_second = (  # 1 - sigmoid(d) is sigmoid(-d)
        (1 - noise) * torch.sigmoid(sign * difference) + noise / 2 for sign in (1, -1)
    )
    return -(answer * prefers_first.log() + (1 - answer) * prefers_second.log()).mean()
