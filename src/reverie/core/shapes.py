"""Shape documentation that runs: ``check(x, "B T D", B=16)`` at the door of a function."""

from __future__ import annotations

from torch import Tensor


def check(x: Tensor, letters: str, **sizes: int) -> dict[str, int]:
    """Check that ``x`` has one axis per letter and that named axes agree with ``sizes``; return all sizes by letter.

    Raises:
        ValueError: rank or size differ. A letter that stands twice must have one size.
    """
    names = letters.split()
    if x.ndim != len(names):
        raise ValueError(f"shape {tuple(x.shape)} has {x.ndim} axes: expected [{', '.join(names)}].")
    found = dict(sizes)
    for name, size in zip(names, x.shape, strict=True):
        expected = int(name) if name.isdigit() else found.setdefault(name, size)
        if size != expected:
            raise ValueError(f"shape {tuple(x.shape)}: axis {name} of [{', '.join(names)}] is {size}, not {expected}.")
    return found


def same_shape(**tensors: Tensor) -> None:
    """Raise ValueError unless all named tensors have one shape.

    Raises:
        ValueError: they differ; the message gives every name with its shape.
    """
    if len({t.shape for t in tensors.values()}) > 1:
        raise ValueError(f"shapes differ: {', '.join(f'{k} {tuple(t.shape)}' for k, t in tensors.items())}.")
