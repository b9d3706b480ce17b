"""What is checked of a learner: modules with two modes, parameters that nothing trains, moments that are not finite."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from reverie.core.errors import ConfigError, count_noun
from reverie.nn.adam import Adam
from reverie.nn.optim import LaPropAGC

Optimizer = Adam | LaPropAGC | torch.optim.Optimizer


def reads_training_flag(module: nn.Module) -> bool:
    """Return whether ``module`` might read its flag ``training``, which none of this library does; hooks might, too."""
    kind = type(module)
    is_known = kind in (nn.Linear, nn.Sequential, nn.ModuleList) or kind.__module__.startswith("reverie.")
    return not is_known or bool(module._forward_hooks or module._forward_pre_hooks)


def check_all_parameters_trained(
    learner: nn.Module, optims: Mapping[str, Optimizer], before: Mapping[str, int]
) -> None:
    """Raise ConfigError unless, after the first update, each parameter is in an optimizer, frozen, or was written to.

    ``before``: how often each was written to before. A learner without any known optimizer is not checked.
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
            "be "
            f"trained: {', '.join(untrained[:3])}{more_text}. Give them to one, as in self.optims['head'] = "
            "Adam(self.head.parameters(), lr), or freeze them by requires_grad_(False)."
        )


def find_bad_moment(optims: Mapping[str, Optimizer]) -> str | None:
    """Return the name of an optimizer that holds NaN or infinity, so that a parameter may never move; or None.

    One gradient whose square float32 does not hold is enough. Reads all moments and waits for the device.
    """
    for name, optim in optims.items():
        moments = (x for x in tree_leaves(optim.state_dict()) if isinstance(x, Tensor) and x.is_floating_point())
        if not all(bool(torch.isfinite(x).all()) for x in moments):
            return name
    return None
