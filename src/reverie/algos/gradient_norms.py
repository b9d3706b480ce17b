"""Norms of the gradients by network, before clipping, as metrics of updates: the setting ``grad_norms``.

The norms are a part of what is captured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reverie.core.types import Batch, Metrics, Update
from reverie.nn.loss_scale import LossScale
from reverie.nn.optim import Optimizer

PREFIX = "opt/module_grad_norm/"
"""Beginning of the metrics' names."""
INTERVAL = 64
"""Number of updates of a small learner from one with norms to the next, which takes up to twice as long."""
PARTS = frozenset({"actor", "critic", "rssm"})
"""A module that has one of these below it is no network, but contains several."""


class GradientNorms:
    """Sums up the squares of the gradients of a learner in an update, by network."""

    def __init__(self) -> None:
        self.num_updates: int = 0
        self.squares: dict[str, Tensor] | None = None
        """The sums in this update; None in an update without norms."""

    def attach(self, learner: Any) -> None:
        """Watch the optimizers that ``learner`` has now."""
        networks: dict[int, list[str]] = {}
        for path, parameter in learner.named_parameters(remove_duplicate=False):
            networks.setdefault(id(parameter), []).append(find_network(learner, path))
        for name, optim in learner.optimizers().items():
            owner = name.removesuffix("_optim").rpartition(".")[-1]
            groups = optim.param_groups if isinstance(optim, torch.optim.Optimizer) else [{"params": optim.params}]
            names = [networks[id(p)] for group in groups for p in group["params"]]
            if not isinstance(optim, Optimizer) and not hasattr(optim, "norms"):
                optim.register_step_pre_hook(_add_gradients)
            # An encoder that several networks share belongs to the one that its optimizer is named after.
            optim.norms = OptimizerNorms([owner if owner in options else options[0] for options in names], self)

    def next_step(self, learner: Any) -> Callable[[Batch], Update]:
        """Return the method of ``learner`` that takes the next step, some of them with norms."""
        step: Any = learner.next_step()
        interval = INTERVAL if learner.captures_on_cpu else 1
        self.num_updates += 1
        return step if self.num_updates % interval else MethodType(_with_norms(step.__func__), learner)

    def take(self) -> Metrics:
        """Return the norms of this update by metric name, and forget them."""
        squares, self.squares = self.squares or {}, None
        return {PREFIX + name: square.sqrt() for name, square in squares.items()}


class OptimizerNorms(NamedTuple):
    """The network of each parameter of an optimizer, and where squares are summed up."""

    networks: Sequence[str]
    norms: GradientNorms

    @torch.no_grad()
    def add(self, params: Sequence[Tensor], grads: Sequence[Tensor], scale: LossScale | None = None) -> None:
        """Add the gradients of all ``params``, or of those that are not frozen, divided by ``scale``."""
        if (squares := self.norms.squares) is None:
            return
        names = self.networks
        if len(grads) < len(names):
            names = [name for name, p in zip(names, params, strict=True) if p.requires_grad]
        for network in dict.fromkeys(names):
            part = [grad for name, grad in zip(names, grads, strict=True) if name == network]
            norms = torch.stack(torch._foreach_norm(part))
            square = (norms if scale is None else norms / scale.value).square().sum()
            squares[network] = squares[network] + square if network in squares else square


def find_network(learner: nn.Module, path: str) -> str:
    """Return the name of the network to which the parameter ``path`` belongs, such as ``actor`` or ``world.rssm``."""
    root = "objective" if path.startswith("objective.") else ""
    names, module = path.removeprefix("objective.").split("."), learner.get_submodule(root)
    for depth, name in enumerate(names[:-1], 1):
        module = module.get_submodule(name)
        if PARTS.isdisjoint(module._modules):
            return ".".join(names[:depth])
    return ".".join(names)


def _add_gradients(optim: Any, *_: object) -> None:
    params = [p for group in optim.param_groups for p in group["params"]]
    optim.norms.add(params, [torch.zeros_like(p) if p.grad is None else p.grad for p in params])


@functools.cache  # captures refer to it weakly
def _with_norms(function: Callable[[Any, Batch], Update]) -> Callable[[Any, Batch], Update]:
    def step(self: Any, batch: Batch) -> Update:
        self.gradient_norms.squares = {}
        update = function(self, batch)
        return replace(update, metrics={**update.metrics, **self.gradient_norms.take()})

    step.__name__ = f"{function.__name__}_with_norms"  # it is captured by this name
    return step
