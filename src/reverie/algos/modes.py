"""Checks of a learner: modules with a train and an eval mode, untrained parameters, moments that are not finite."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from reverie.core.errors import ConfigError, count_noun
from reverie.nn.optim import Optimizer

AnyOptimizer = Optimizer | torch.optim.Optimizer


def reads_training_flag(module: nn.Module) -> bool:
    """Return whether ``module`` or its hooks might read its flag ``training``.

    Those modules of this library do that have a true attribute ``has_two_modes``.
    """
    kind = type(module)
    is_known = kind in (nn.Linear, nn.Sequential, nn.ModuleList) or kind.__module__.startswith("reverie.")
    return (
        not is_known
        or getattr(kind, "has_two_modes", False)
        or bool(module._forward_hooks or module._forward_pre_hooks)
    )


def check_all_parameters_trained(
    learner: nn.Module, optims: Mapping[str, AnyOptimizer], before: Mapping[str, int]
) -> None:
    """Raise ConfigError if, after the first update, a parameter is in no optimizer, not frozen and was not written to.

    ``before``: number of writes to each parameter before the update. A learner without known optimizers is not checked.
    """
    trained: set[int] = set()
    for optim in optims.values():
        groups = optim.param_groups if isinstance(optim, torch.optim.Optimizer) else [{"params": optim.params}]
        trained |= {id(p) for group in groups for p in group["params"]}
    untrained = [
        name
        for name, p in learner.named_parameters()
        if p.requires_grad and id(p) not in trained and p._version == before.get(name)
    ]
    if trained and untrained:
        more_text = f" and {len(untrained) - 3} more" if len(untrained) > 3 else ""
        raise ConfigError(
            f"{type(learner).__name__}: no optimizer has {count_noun(len(untrained), 'parameter')}, which would never "
            f"be trained: {', '.join(untrained[:3])}{more_text}. Give them to one, as in self.optims['head'] = "
            "Adam(self.head.parameters(), lr), or freeze them by requires_grad_(False)."
        )


def find_bad_moment(optims: Mapping[str, AnyOptimizer]) -> str | None:
    """Return the name of an optimizer whose moments contain NaN or infinity, or None. Its parameters may never change.

    A single gradient whose square overflows float32 is enough. Reads all moments and waits for the device.
    """
    for name, optim in optims.items():
        moments = (x for x in tree_leaves(optim.state_dict()) if isinstance(x, Tensor) and x.is_floating_point())
        if not all(bool(torch.isfinite(x).all()) for x in moments):
            return name
    return None
