"""Critics of discrete actions: networks that output the values, or quantiles of the return, of all actions at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reverie.core.checks import check_at_least
from reverie.core.specs import ObsSpec
from reverie.core.types import Obs
from reverie.nn.actor_critic import Inputs, NetworkConfig
from reverie.nn.perceptron import ReluMLP


class Dueling(nn.Module):
    """A dueling network, with streams for the value and advantages: Wang et al. 2016, arXiv:1511.06581, equation 9.

    Q(s, a) = V(s) + A(s, a) - mean_b A(s, b). Each stream has its own last hidden layer; the layers before it are
    shared, as in the paper, where these are a CNN.
    """

    def __init__(self, inputs: int, units: tuple[int, ...], classes: int, each: int = 1) -> None:
        """``each`` is the number of outputs for each of the ``classes`` discrete actions."""
        super().__init__()
        *shared, last = units
        self.classes, self.each = classes, each
        self.shared = ReluMLP(inputs, tuple(shared[:-1]), shared[-1]) if shared else None
        width = shared[-1] if shared else inputs
        self.value = ReluMLP(width, (last,), each)
        self.advantage = ReluMLP(width, (last,), classes * each)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., inputs]`` to ``[..., classes * each]``."""
        if self.shared is not None:
            x = self.shared(x).relu()
        value = self.value(x).unsqueeze(-2)  # [..., 1, each]
        advantage = self.advantage(x).unflatten(-1, (self.classes, self.each))  # [..., classes, each]
        q: Tensor = value + advantage - advantage.mean(-2, keepdim=True)
        return q.flatten(-2)


class DiscreteQNetwork(nn.Module):
    """A critic Q(s, .) of A discrete actions (``classes``); with ``quantiles``, N quantiles of the return of each."""

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
            self.body = ReluMLP(width, cfg.units, classes * (quantiles or 1))

    def forward(self, obs: Obs) -> Tensor:
        """Map observations ``[..., *shape]`` to values ``[..., A]``, or to quantiles ``[..., A, N]``."""
        y: Tensor = self.body(self.inputs(obs)).float()
        return y if len(self.shape) == 1 else y.view(*y.shape[:-1], *self.shape)


class DiscreteQEnsemble(nn.Module):
    """K MLPs that share only a CNN, each with one output for each discrete action: K critics, or values and logits."""

    def __init__(
        self, obs_spec: ObsSpec, classes: int, cfg: NetworkConfig, copies: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        check_at_least("copies", copies, 1)
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.body = ReluMLP(self.inputs.width, cfg.units, classes, copies)

    def forward(self, obs: Obs) -> Tensor:
        """Map observations ``[..., *shape]`` to ``[K, ..., A]``."""
        y: Tensor = self.body(self.inputs(obs))
        return y.float()

    def first(self, obs: Obs) -> Tensor:
        """Return the outputs of the first copy, ``[..., A]``, without computing the others."""
        y: Tensor = self.body(self.inputs(obs), copy=0)
        return y.float()
