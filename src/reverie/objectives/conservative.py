"""The penalty of CQL for discrete actions: Kumar et al. 2020, arXiv:2006.04779."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from reverie.core.types import Batch
from reverie.objectives.categorical import logsumexp_joint
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, masked_mean


def cql_gap(values: Tensor, batch: Batch, classes: Sequence[int] = ()) -> Tensor:
    """E[ln sum_a' exp Q(s, a') - Q(s, a)], ``[]``, non-negative: CQL(H), equation 4. The sum is over all actions.

    With several choices, whose values are additive, it is the sum of their gaps.

    Args:
        values: Q of all actions, ``[B, T - 1, A]`` of one critic, or ``[K, B, T - 1, A]`` of K, over which the gap is
            summed.
        batch: provides one-hot actions ``[B, T, A]`` and the ends of episodes.
        classes: number of classes of each choice; ``()`` is a single choice of A classes.
    """
    chosen = (values * batch.action[:, :-1]).sum(-1)  # [(K,) B, T-1]
    gap = logsumexp_joint(values, classes) - chosen  # [(K,) B, T-1]
    return masked_mean(gap if gap.ndim == 2 else gap.sum(0), transition_mask(batch.is_last))


def add_penalty(losses: Losses, gap: Tensor, weight: float) -> Losses:
    """Return ``losses`` with the penalty, ``weight`` times ``gap``, added to the term ``critic``."""
    conservative = weight * gap
    metrics = {**losses.metrics, "train/conservative_gap": gap.detach(), "loss/conservative": conservative.detach()}
    return Losses({**losses.terms, "critic": losses.terms["critic"] + conservative}, metrics, losses.priority)
