"""Whether a module computes what its class defines, so that another way of computing it may take its place.

A module may be changed without being replaced: by hooks, by a function assigned to ``forward``, by another class.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.modules.module as torch_module
from torch import nn

HOOK_ATTRIBUTES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
"""The attributes in which PyTorch keeps the hooks of a module that change or observe its calls."""
_ALL_MODULES = [getattr(torch_module, f"_global{name}") for name in HOOK_ATTRIBUTES]  # hooks of every module


def has_hook(module: nn.Module) -> bool:
    """Return whether a hook changes or observes the calls of ``module``; modules below it do not count."""
    return any(vars(module)[name] for name in HOOK_ATTRIBUTES) or any(_ALL_MODULES)


def is_plain(module: nn.Module, *classes: type[nn.Module]) -> bool:
    """Return whether ``module`` is exactly of one of the classes, without a hook and without its own ``forward``."""
    return type(module) in classes and "forward" not in vars(module) and not has_hook(module)


def find_hook(module: nn.Module) -> str:
    """Return the name of the first module or parameter with a hook, ``module`` itself included; "" if there is none."""
    return next(_iter_hooked(module), "")


def _iter_hooked(root: nn.Module) -> Iterator[str]:
    if any(_ALL_MODULES):
        yield "every module"
    for name, module in root.named_modules():
        if any(vars(module)[hooks] for hooks in HOOK_ATTRIBUTES):
            yield name or type(module).__name__
    for name, parameter in root.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            yield name
