"""Checks of tensor shapes."""

from __future__ import annotations

from torch import Tensor


def same_shape(**tensors: Tensor) -> None:
    """Raise ValueError unless all named tensors have one shape.

    Raises:
        ValueError: they differ; the message gives every name with its shape.
    """
    if len({t.shape for t in tensors.values()}) > 1:
        raise ValueError(f"shapes differ: {', '.join(f'{k} {tuple(t.shape)}' for k, t in tensors.items())}.")
