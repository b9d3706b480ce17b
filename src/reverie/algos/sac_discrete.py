"""Discrete SAC: Christodoulou, "Soft actor-critic for discrete action settings", arXiv:1910.07207, 2019.

SAC for a choice among classes. Critics answer for all classes at once and the policy gives each a probability, so that
expectations over actions are sums and nothing is drawn while learning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.algos.base import PRECISIONS
from reverie.algos.sac import SAC, SACConfig, SACObjective
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Obs
from reverie.nn.mlp import Inputs, NetworkConfig, single_choice
from reverie.nn.perceptron import Perceptron


@dataclass(frozen=True, kw_only=True)
class SACDiscreteConfig(SACConfig):
    """Settings of discrete SAC: those of SAC, but for the entropy."""

    target_entropy: float | None = None
    """Nats of entropy that the temperature is to bring about; None: 0.98 ln A of A classes, the author's code."""

    def build(self, obs_spec: ObsSpec, action_spec: ActionSpec, device: str = "cpu", seed: int = 0) -> SACDiscrete:
        """A learner for these observations and a choice among classes, its weights drawn from ``seed``."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return SACDiscrete(obs_spec, action_spec, self, torch.device(device))


class Choice:
    """Probabilities of A classes."""

    def __init__(self, logits: Tensor) -> None:
        """``[..., A]``."""
        self.log_probs = logits.log_softmax(-1)

    def sample(self) -> tuple[Tensor, Tensor]:
        """One-hot ``[..., A]`` and its log-probability ``[...]``."""
        noise = -torch.empty_like(self.log_probs).exponential_().log()  # Gumbel: the largest sum is a draw
        action = self._one_hot((self.log_probs + noise).argmax(-1))
        return action, (self.log_probs * action).sum(-1)

    def mode(self) -> Tensor:
        """The likeliest class, one-hot ``[..., A]``."""
        return self._one_hot(self.log_probs.argmax(-1))

    def mean(self, x: Tensor) -> Tensor:
        """pi^T x, the expectation ``[...]`` of values ``[..., A]``."""
        return (self.log_probs.exp() * x).sum(-1)

    def _one_hot(self, index: Tensor) -> Tensor:
        return F.one_hot(index, self.log_probs.shape[-1]).float()


class SACDiscreteObjective(SACObjective):
    """The losses of discrete SAC, with the terms and targets of :class:`~reverie.algos.sac.SACObjective`.

    ``actor(obs)`` is a :class:`Choice` and ``critic(obs)`` the values of all classes, ``[2, ..., A]``.
    """

    def values(self, obs: Obs, action: Tensor) -> Tensor:
        """Q_1 and Q_2 of the actions that were taken, ``[2, ...]``."""
        values: Tensor = self.critic(obs)  # [2, ..., A]
        return (values * action).sum(-1)

    def policy_value(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """pi^T min_i Q_i and the entropy, ``[...]``, with the actor's gradient: equations 11 and 12."""
        with torch.no_grad():
            values: Tensor = self.critic(obs)  # [2, ..., A]
        return self._expected(obs, values)

    @torch.no_grad()
    def next_value(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """pi^T min_i Q'_i and the entropy, ``[...]``: equation 10."""
        return self._expected(obs, self.target_critic(obs))

    def _expected(self, obs: Obs, values: Tensor) -> tuple[Tensor, Tensor]:
        policy: Choice = self.actor(obs)
        return policy.mean(values.amin(0)), -policy.mean(policy.log_probs)


class ChoiceActor(nn.Module):
    """pi(a | s): a perceptron to a :class:`Choice`."""

    def __init__(self, obs_spec: ObsSpec, classes: int, cfg: NetworkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.body = Perceptron(self.inputs.width, cfg.units, classes)

    def forward(self, obs: Obs) -> Choice:
        """``[..., *shape]`` to probabilities of the classes."""
        y: Tensor = self.body(self.inputs(obs))
        return Choice(y.float())


class ChoiceCritic(nn.Module):
    """Q(s, .) of all classes, twice."""

    def __init__(self, obs_spec: ObsSpec, classes: int, cfg: NetworkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.body = Perceptron(self.inputs.width, cfg.units, classes, copies=2)

    def forward(self, obs: Obs) -> Tensor:
        """``[..., *shape]`` to ``[2, ..., A]``."""
        y: Tensor = self.body(self.inputs(obs))
        return y.float()


class SACDiscrete(SAC):
    """Actor, two critics and a temperature over one choice among classes."""

    def build_objective(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> SACDiscreteObjective:
        """The losses over networks of these sizes."""
        c = self.cfg
        classes, dtype = single_choice("sac_discrete", action_spec), PRECISIONS[c.precision]
        actor = ChoiceActor(obs_spec, classes, c.networks, dtype)
        critic = ChoiceCritic(obs_spec, classes, c.networks, dtype)
        entropy = 0.98 * math.log(classes) if c.target_entropy is None else c.target_entropy
        return SACDiscreteObjective(actor, critic, target_entropy=entropy, **c.common())
