"""Losses and expectations over discrete actions, in one call each (``choices.c``), for CPUs and without autograd."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from reverie.core.compiled import compiled, library
from reverie.core.shapes import expect


def fits(*numbers: Tensor) -> bool:
    """Return whether compiled functions can read these tensors and autograd is off."""
    return not torch.is_grad_enabled() and compiled(*numbers) and all(x.numel() > 0 for x in numbers)


def loss_and_gradient(
    logits: Tensor,
    action: Tensor,
    last: Tensor,
    classes: tuple[int, ...],
    *,
    weight: Tensor | None = None,
    square: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return E[w (ln sum_b exp x_b - x_a) + square E_b[x_b^2]], ``[]``, over all actions taken, and its gradient.

    The first part is the cross entropy of logits x, summed over the parts of an action, or CQL's gap of values x.

    Args:
        logits: x ``[B, T - 1, A]``.
        action: ``[B, T, A]``, concatenated one-hot vectors.
        last: ``[B, T]``.
        classes: number of classes of each part of the action; they add up to A.
        weight: w ``[B, T - 1]``, of any dtype; 1 by default.
        square: weight of the squares.
    """
    windows, steps, width = logits.shape
    expect((windows, steps + 1, sum(classes)), action=action)
    expect((windows, steps, sum(classes)), logits=logits)
    expect((windows, steps + 1), is_last=last)
    expect((windows, steps), weight=weight)
    logits, action, last = logits.contiguous(), action.contiguous(), last.contiguous()
    weight = None if weight is None else weight.float().contiguous()  # a user's filter may return bool or float64
    gradient, out = torch.empty_like(logits), logits.new_empty(())
    sizes = (ctypes.c_int64 * len(classes))(*classes)
    library().choice_loss(
        logits.data_ptr(), action.data_ptr(), last.data_ptr(), 0 if weight is None else weight.data_ptr(),
        gradient.data_ptr(), out.data_ptr(), windows, steps, width, sizes, len(classes), square,
    )  # fmt: skip
    return out, gradient


def likely_worth(values: Tensor, logits: Tensor, worth: Tensor, least: float) -> Tensor:
    """Return ``worth`` ``[...]`` of the action with the highest value among the likely ones. Inputs are ``[..., A]``.

    An action is likely if its logit is at least the highest logit plus ``least`` (at most 0).
    """
    expect(values.shape, logits=logits, worth=worth)
    values, logits, worth = values.contiguous(), logits.contiguous(), worth.contiguous()
    out, classes = values.new_empty(values.shape[:-1]), values.shape[-1]
    library().likely_worth(
        values.data_ptr(), logits.data_ptr(), worth.data_ptr(), out.data_ptr(), out.numel(), classes, least
    )
    return out


def expected_least(logits: Tensor, values: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return v = sum_b p_b min_i Q_i(b) and the advantage min_i Q_i(a) - v, ``[...]`` each.

    The advantage is uninitialised without ``action``. Inputs are logits ``[..., A]``, values ``[K, ..., A]`` and a
    one-hot action a ``[..., A]``.
    """
    expect((len(values), *logits.shape), values=values)
    expect(logits.shape, action=action)
    logits, values = logits.contiguous(), values.contiguous()
    action = None if action is None else action.contiguous()
    expected, classes = logits.new_empty(logits.shape[:-1]), logits.shape[-1]
    better, room = torch.empty_like(expected), logits.new_empty(classes)
    library().expected_least(
        logits.data_ptr(), values.data_ptr(), 0 if action is None else action.data_ptr(), expected.data_ptr(),
        better.data_ptr(), room.data_ptr(), len(values), expected.numel(), classes,
    )  # fmt: skip
    return expected, better
