"""Networks that gradients pass through without reaching their parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn


@contextlib.contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """In this context, gradients pass through ``module`` to its inputs, and its parameters get none."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    for p in parameters:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in parameters:
            p.requires_grad_(True)
