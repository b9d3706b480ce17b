"""Losses of policies."""

from __future__ import annotations

from torch import Tensor

from reverie.core.shapes import same_shape


def reinforce(*, log_prob: Tensor, advantage: Tensor, entropy: Tensor, weight: Tensor, entropy_scale: float) -> Tensor:
    """Return -w [sg(A) ln pi(a|s) + eta H(pi(.|s))]: Williams (1992); DreamerV3 (Hafner et al. 2025), equation 6.

    Args:
        log_prob: ``[...]`` of the actions taken, in nats, with gradient.
        advantage: ``[...]``; it is detached here.
        entropy: ``[...]`` in nats, with gradient.
        weight: ``[...]``, the probability that the state is reached at all; it is detached here.
        entropy_scale: eta.

    Returns:
        ``[...]``.
    """
    same_shape(log_prob=log_prob, advantage=advantage, entropy=entropy, weight=weight)
    return -weight.detach() * (log_prob * advantage.detach() + entropy_scale * entropy)
