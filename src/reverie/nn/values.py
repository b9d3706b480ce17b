"""Networks that answer for all classes of an action at once: values, or distributions of the return as quantiles."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reverie.core.specs import ObsSpec
from reverie.core.types import Obs
from reverie.nn.mlp import Inputs, NetworkConfig
from reverie.nn.perceptron import Perceptron


class Dueling(nn.Module):
    """A value and advantages from streams of their own: Wang et al. 2016, arXiv:1511.06581, equation 9.

    Q(s, a) = V(s) + A(s, a) - mean_b A(s, b). Each stream has a last hidden layer of its own, and they share those
    before it, as in the paper, where those before are a CNN.
    """

    def __init__(self, inputs: int, units: tuple[int, ...], classes: int, each: int = 1) -> None:
        """``each``: numbers for each class."""
        super().__init__()
        *shared, last = units
        self.classes, self.each = classes, each
        self.shared = Perceptron(inputs, tuple(shared[:-1]), shared[-1]) if shared else None
        width = shared[-1] if shared else inputs
        self.value = Perceptron(width, (last,), each)
        self.advantage = Perceptron(width, (last,), classes * each)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., inputs]`` to ``[..., classes * each]``."""
        if self.shared is not None:
            x = self.shared(x).relu()
        value = self.value(x).unsqueeze(-2)  # [..., 1, each]
        advantage = self.advantage(x).unflatten(-1, (self.classes, self.each))  # [..., classes, each]
        q: Tensor = value + advantage - advantage.mean(-2, keepdim=True)
        return q.flatten(-2)


class ActionValues(nn.Module):
    """Q(s, .) of all classes; with ``quantiles``, so many quantiles of the return for each."""

    def __init__(
        self,
        obs_spec: ObsSpec,
        classes: int,
        cfg: NetworkConfig,
        *,
        dueling: bool = False,
        quantiles: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.shape = (classes,) if quantiles is None else (classes, quantiles)
        width = self.inputs.width
        self.body: nn.Module
        if dueling:
            self.body = Dueling(width, cfg.units, classes, quantiles or 1)
        else:
            self.body = Perceptron(width, cfg.units, classes * (quantiles or 1))

    def forward(self, obs: Obs) -> Tensor:
        """``[..., *shape]`` to ``[..., A]``, or to ``[..., A, N]``."""
        y: Tensor = self.body(self.inputs(obs)).float()
        return y if len(self.shape) == 1 else y.view(*y.shape[:-1], *self.shape)


class ClassValues(nn.Module):
    """Numbers of all classes, K times, by perceptrons that share nothing but a CNN: critics, or values and logits."""

    def __init__(
        self, obs_spec: ObsSpec, classes: int, cfg: NetworkConfig, copies: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.body = Perceptron(self.inputs.width, cfg.units, classes, copies)

    def forward(self, obs: Obs) -> Tensor:
        """``[..., *shape]`` to ``[K, ..., A]``."""
        y: Tensor = self.body(self.inputs(obs))
        return y.float()

    def first(self, obs: Obs) -> Tensor:
        """What the first copy says, ``[..., A]``; the others are not asked."""
        y: Tensor = self.body(self.inputs(obs), copy=0)
        return y.float()
