"""Networks that a loss looks through without moving them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn


@contextlib.contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Within, gradients pass through ``module`` to its inputs and leave its own parameters alone."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    for p in parameters:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in parameters:
            p.requires_grad_(True)
