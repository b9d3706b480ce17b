"""Checks of tensor shapes."""

from __future__ import annotations

from torch import Tensor


def same_shape(**tensors: Tensor) -> None:
    """Raise ValueError unless all named tensors have one shape."""
    if len({t.shape for t in tensors.values()}) > 1:
        raise ValueError(f"shapes differ: {', '.join(f'{k} {tuple(t.shape)}' for k, t in tensors.items())}.")


def expect(shape: tuple[int, ...], **tensors: Tensor | None) -> None:
    """Check that all ``tensors`` that are given have this shape. Compiled functions get only their addresses."""
    for name, x in tensors.items():
        if x is not None and x.shape != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}: expected {tuple(shape)}.")
