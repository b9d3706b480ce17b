"""Train and eval mode of modules: dropout and batch norm differ in them, as may modules of a user's own."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

ONE_MODE = (nn.Linear, nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ELU, nn.ReLU, nn.LeakyReLU, nn.SiLU, nn.Tanh)
"""Modules of PyTorch in the learners here. Many others have one mode too; switching those does no harm."""


def has_two_modes(module: nn.Module) -> bool:
    """Return whether ``module`` might read its flag ``training``, which none of this library does.

    One with hooks might as well: ``torch.nn.utils.spectral_norm`` is a hook that reads the flag.
    """
    kind = type(module)
    known = kind in ONE_MODE or kind.__module__.partition(".")[0] == "reverie"
    return not known or bool(module._forward_hooks or module._forward_pre_hooks)


def switch(modules: Iterable[nn.Module], *, training: bool) -> None:
    """Set the flag of these modules alone. ``module.train()`` would take 1 us for each module below them too."""
    for module in modules:
        vars(module)["training"] = training
