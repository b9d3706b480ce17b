"""Deterministic actors, and critics, of model-free algorithms."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from reverie.core.specs import ObsSpec
from reverie.core.types import Obs
from reverie.nn.functional import mask_illegal
from reverie.nn.network import MemoryInputs, Network, NetworkConfig, ObsConcat, build_inputs
from reverie.nn.relu_mlp import NoisyMLP, ReluMLP
from reverie.objectives.categorical import join_choices, split_choices


class DeterministicActor(Network):
    """A deterministic policy mu(s) in [-1, 1]: an MLP with tanh on top, from ``[..., *shape]`` to ``[..., A]``."""

    def __init__(self, obs_spec: ObsSpec, width: int, cfg: NetworkConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(obs_spec, width, cfg, dtype, squash=True)


# ---------------------------------------------------------------------- critics of continuous actions


class QEnsemble(Network):
    """A critic Q(s, a), or K critics (``copies``) that share only a CNN.

    Observations ``[..., *shape]`` and actions ``[..., A]`` are mapped to values ``[...]``, or ``[K, ...]`` of K copies.
    Actions may also be n for each observation, ``[..., n, A]``. With ``outputs``, a value is several numbers, such as
    quantiles, along another last axis.
    """

    accepts_action_lists = True
    """See :func:`many_action_values`."""

    def __init__(
        self,
        obs_spec: ObsSpec,
        width: int,
        cfg: NetworkConfig,
        copies: int | None = None,
        dtype: torch.dtype = torch.float32,
        outputs: int | None = None,
        **settings: object,
    ) -> None:
        """``settings`` are passed to :class:`Network`."""
        super().__init__(obs_spec, outputs, cfg, dtype, extra_inputs=width, copies=copies, is_critic=True, **settings)


class CriticStack(nn.Module):
    """K critics of any kind as one: ``CriticStack(first, second)(obs, action)`` returns their values ``[K, ...]``."""

    def __init__(self, *critics: nn.Module) -> None:
        super().__init__()
        self.critics: nn.ModuleList = nn.ModuleList(critics)

    def forward(self, obs: Obs, action: Tensor, copy: int | None = None) -> Tensor:
        """Return the values of all critics, ``[K, ...]``, or the values of one ``copy``, ``[...]``."""
        if copy is not None:
            values: Tensor = self.critics[copy](obs, action)
            return values
        return torch.stack([critic(obs, action) for critic in self.critics])


def many_action_values(critic: nn.Module, obs: Obs, action: Tensor, *, first: bool = False) -> Tensor:
    """Return the values ``[(K,) ..., n]`` of n actions ``[..., n, A]`` for each observation ``[..., *shape]``.

    A critic with the attribute ``accepts_action_lists`` accepts such actions; for others, each observation is repeated
    n times. ``first``: return the values of the first of K critics alone, ``[..., n]``.
    """
    if not getattr(critic, "accepts_action_lists", False):
        axis, n = action.ndim - 2, action.shape[-2]
        obs = {k: v.unsqueeze(axis).expand(*v.shape[:axis], n, *v.shape[axis:]) for k, v in obs.items()}
    values: Tensor = critic(obs, action, copy=0) if first else critic(obs, action)
    return values


# ---------------------------------------------------------------------- critics of discrete actions


def _build_mlp(inputs: int, units: tuple[int, ...], outputs: int, noisy_sigma: float) -> ReluMLP:
    """Return an MLP with ReLU, with noisy parameters unless ``noisy_sigma`` is 0."""
    return NoisyMLP(inputs, units, outputs, noisy_sigma) if noisy_sigma else ReluMLP(inputs, units, outputs)


class Dueling(nn.Module):
    """A dueling network, with streams for the value and advantages: Wang et al. 2016, arXiv:1511.06581, equation 9.

    Q(s, a) = V(s) + A(s, a) - mean_b A(s, b). Each stream has its own last hidden layer; the layers before it are
    shared. Several choices share V: Tavakoli et al. 2018, arXiv:1711.08946, equation 1.
    """

    def __init__(
        self, inputs: int, units: tuple[int, ...], classes: tuple[int, ...], outputs: int = 1, noisy_sigma: float = 0.0
    ) -> None:
        """``outputs`` is the number of outputs of each class; ``classes`` the number of classes of each choice."""
        super().__init__()
        shared, last = units[:-1], units[-1:]
        self.classes = classes
        self.outputs = outputs
        self.shared: ReluMLP | None = _build_mlp(inputs, shared[:-1], shared[-1], noisy_sigma) if shared else None
        width = shared[-1] if shared else inputs
        self.value: ReluMLP = _build_mlp(width, last, outputs, noisy_sigma)
        self.advantage: ReluMLP = _build_mlp(width, last, sum(classes) * outputs, noisy_sigma)

    def forward(self, x: Tensor, copy: int | None = None) -> Tensor:
        """Map ``[..., inputs]`` to ``[..., A * outputs]``, A the sum of ``classes``. There is a single copy."""
        if self.shared is not None:
            x = self.shared(x).relu()
        value = self.value(x).unsqueeze(-2)  # [..., 1, outputs]
        advantage = self.advantage(x).unflatten(-1, (sum(self.classes), self.outputs))  # [..., A, outputs]
        q = [value + part - part.mean(-2, keepdim=True) for part in split_choices(advantage, self.classes, -2)]
        return join_choices(q, -2).flatten(-2)


class DiscreteQNetwork(Network):
    """A critic Q(s, .) of the A classes of one or several choices, or with N ``outputs`` for each class."""

    def __init__(
        self,
        obs_spec: ObsSpec,
        classes: tuple[int, ...],
        cfg: NetworkConfig,
        *,
        dueling: bool = False,
        outputs: int | None = None,
        noisy_sigma: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        nn.Module.__init__(self)
        self.inputs: ObsConcat = build_inputs(obs_spec, cfg, dtype)
        self.is_scalar = False
        self.shape: tuple[int] | tuple[int, int] = (sum(classes),) if outputs is None else (sum(classes), outputs)
        self.body: nn.Module = _discrete_body(
            self.inputs.width, cfg.units, classes, outputs or 1, dueling=dueling, noisy_sigma=noisy_sigma
        )

    def forward(self, obs: Obs) -> Tensor:  # type: ignore[override]
        """Map observations ``[..., *shape]`` to values ``[..., A]``, or to distributions ``[..., A, N]``."""
        y = super().forward(obs)
        if len(self.shape) == 1:
            return mask_illegal(y, obs)
        return mask_illegal(y.view(*y.shape[:-1], *self.shape), obs, distributions=True)


def _discrete_body(
    inputs: int, units: tuple[int, ...], classes: tuple[int, ...], outputs: int, *, dueling: bool, noisy_sigma: float
) -> nn.Module:
    """Return the layers from ``inputs`` numbers to ``outputs`` numbers of each class of each choice."""
    if dueling:
        return Dueling(inputs, units, classes, outputs, noisy_sigma)
    return _build_mlp(inputs, units, sum(classes) * outputs, noisy_sigma)


class ImplicitQuantileNetwork(nn.Module):
    """Quantiles of the returns of all actions, at any fractions tau: IQN (Dabney et al. 2018), section 3.1.

    Z_tau(s, a) = f(psi(s) * phi(tau))_a,  phi_j(tau) = ReLU(sum_i cos(pi i tau) w_ij + b_j),  i = 0 ... n - 1. psi is
    the encoder of images or the memory; without either, the first hidden layer.
    """

    def __init__(
        self,
        obs_spec: ObsSpec,
        classes: tuple[int, ...],
        cfg: NetworkConfig,
        *,
        num_cosines: int,
        dueling: bool = False,
        noisy_sigma: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.inputs: ObsConcat = build_inputs(obs_spec, cfg, dtype)
        width, units = self.inputs.width, cfg.units
        self.psi: ReluMLP | None = None
        if self.inputs.encoder is None and not isinstance(self.inputs, MemoryInputs):
            self.psi = _build_mlp(width, (), units[0], noisy_sigma)
            width, units = units[0], units[1:]
        self.num_cosines = num_cosines
        self.phi: ReluMLP = ReluMLP(num_cosines, (), width)
        self.body: nn.Module = _discrete_body(width, units, classes, 1, dueling=dueling, noisy_sigma=noisy_sigma)

    def forward(self, obs: Obs, tau: Tensor) -> Tensor:
        """Map observations ``[..., *shape]`` and fractions ``[..., N]`` or ``[N]`` to quantiles ``[..., A, N]``."""
        x = self.inputs(obs)
        x = x if self.psi is None else self.psi(x).relu()  # [..., F]
        i = torch.arange(self.num_cosines, device=tau.device)
        phi = self.phi((math.pi * tau.unsqueeze(-1) * i).cos().to(x.dtype)).relu()  # [..., N, F]
        quantiles = self.body(x.unsqueeze(-2) * phi).float()  # [..., N, A]
        return mask_illegal(quantiles.transpose(-1, -2), obs, distributions=True)


class DiscreteQEnsemble(Network):
    """K MLPs that share only a CNN, each with one output for each of A classes: K critics, or values and logits."""

    def __init__(
        self, obs_spec: ObsSpec, classes: int, cfg: NetworkConfig, copies: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(obs_spec, classes, cfg, dtype, copies=copies, is_critic=True)

    def forward(self, obs: Obs, copy: int | None = None) -> Tensor:  # type: ignore[override]
        """Map observations ``[..., *shape]`` to ``[K, ..., A]``, or to ``[..., A]`` of the only ``copy`` to compute."""
        return mask_illegal(super().forward(obs, copy=copy), obs)
