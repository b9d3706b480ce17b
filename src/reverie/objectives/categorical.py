"""Values of states from values of discrete actions, with one choice or several.

With D choices, the flat ``[..., A]`` has one block of classes after the other, and ``classes`` has the number of
classes of each; ``()`` is a single choice of A classes. *Branching* values (Tavakoli, Pardo, Kormushev 2018,
arXiv:1711.08946) estimate the same return by each choice, and are averaged. *Additive* values are parts of the return,
Q(s, a) = sum_d Q_d(s, a_d): expectations over a policy of independent choices, and the logarithm of a sum of
exponentials over all joint actions, are then sums over the choices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def split_choices(x: Tensor, classes: Sequence[int], axis: int = -1) -> tuple[Tensor, ...]:
    """Split ``x``, which has A entries along ``axis``, into the part of each choice; a single choice is x itself."""
    return (x,) if len(classes) < 2 else torch.split(x, list(classes), axis)


def join_choices(parts: Sequence[Tensor], axis: int = -1) -> Tensor:
    """Return the inverse of :func:`split_choices`."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), axis)


def stack_choices(parts: Sequence[Tensor]) -> Tensor:
    """Stack a tensor ``[...]`` of each choice to ``[D, ...]``; a single choice is returned unchanged."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts))


def mean_over_choices(parts: Sequence[Tensor]) -> Tensor:
    """Return the mean ``[...]`` over the choices: Tavakoli et al., equation 6."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).mean(0)


def choice_weight(classes: Sequence[int]) -> float:
    """Return 1 / D, the weight of each choice in a mean over them."""
    return 1 / max(1, len(classes))


def chosen_value(values: Tensor, action: Tensor, classes: Sequence[int]) -> Tensor:
    """Return the value of the taken class of each choice, ``[D, ...]``, or ``[...]`` for a single choice.

    ``values`` and the one-hot ``action`` are ``[..., A]``.
    """
    return stack_choices([part.sum(-1) for part in split_choices(values * action, classes)])


def highest_value(values: Tensor, classes: Sequence[int] = ()) -> Tensor:
    """Return the highest value ``[...]`` of ``[..., A]``; with several choices, the mean of their highest values."""
    return mean_over_choices([part.amax(-1) for part in split_choices(values, classes)])


def best_value(values: Tensor, selector: Tensor, classes: Sequence[int]) -> Tensor:
    """Return ``values`` ``[..., A]`` of the class with the highest ``selector``, averaged over the choices: ``[...]``.

    Tavakoli et al., equation 6, where the online network's values are the ``selector`` ``[..., A]``.
    """
    pairs = zip(split_choices(values, classes), split_choices(selector, classes), strict=True)
    return mean_over_choices([value.gather(-1, scores.argmax(-1, keepdim=True)).squeeze(-1) for value, scores in pairs])


def missing_entropy(legal: Tensor, classes: Sequence[int] = ()) -> Tensor:
    """Return by how much illegal classes lower the largest entropy of a policy ``[...]``: sum_d ln(n_d / legal n_d).

    In nats, at least 0, for masks of legal classes ``[..., A]``.
    """
    parts = split_choices(legal, classes)
    return torch.stack([(part.shape[-1] / part.sum(-1).clamp(min=1)).log() for part in parts]).sum(0)


def logsumexp_joint(values: Tensor, classes: Sequence[int]) -> Tensor:
    """Return ln sum exp of the additive ``values`` ``[..., A]`` of all joint actions, ``[...]``: a sum over choices."""
    first, *rest = [part.logsumexp(-1) for part in split_choices(values, classes)]
    return sum(rest, first)


def likely_values(values: Tensor, logits: Tensor, log_threshold: float, classes: Sequence[int] = ()) -> Tensor:
    """Return ``values`` ``[..., A]`` of classes whose logit is at least the highest plus ``log_threshold``, else -inf.

    The highest logit is taken within the same choice: G(a | s) / max_b G(b | s) >= threshold. Discrete BCQ (Fujimoto et
    al. 2019), algorithm 1, has > instead of >=, so that a threshold of 1 would leave no action.
    """
    pairs = zip(split_choices(values, classes), split_choices(logits, classes), strict=True)
    return join_choices(
        [value.masked_fill(logit < logit.amax(-1, keepdim=True) + log_threshold, -math.inf) for value, logit in pairs]
    )
