"""Behaviour cloning: Pomerleau, "ALVINN: an autonomous land vehicle in a neural network", NIPS 1988.

Supervised learning of the actions in a dataset. Rewards are not used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.base import ModelFree, ModelFreeConfig, RecordedConfig
from reverie.core.bounds import Above, Rate
from reverie.core.config import Choice
from reverie.core.errors import ConfigError
from reverie.core.protocols import Policy
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Stats, Update, Window
from reverie.nn.actor_critic import (
    ChoicesActor,
    DeterministicActor,
    GaussianActor,
    MixedActor,
    NetworkConfig,
    all_classes,
)
from reverie.nn.exploration import Gaussian, NoisyPolicy, SampledPolicy
from reverie.nn.optim import Adam
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, before, mean_over


@dataclass(frozen=True)
class Clone(Choice, ABC):
    """The kind of policy that imitates, which determines the loss: squared error, or negative log-likelihood."""

    kind: ClassVar[str] = "continuous"
    """Kind of the actions that it imitates: ``continuous``, ``categorical`` or ``mixed``."""

    @abstractmethod
    def actor(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: NetworkConfig, dtype: torch.dtype) -> nn.Module:
        """Return the network for these specs."""

    def policy(self, actor: nn.Module, width: int, device: torch.device) -> Policy[Any]:
        """Return the policy over ``actor``: it samples when exploring and takes the mode in evaluations."""
        return SampledPolicy(actor, device)


@dataclass(frozen=True)
class Deterministic(Clone):
    """A deterministic policy, trained by the squared error: it learns the mean of the actions taken."""

    def actor(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: NetworkConfig, dtype: torch.dtype) -> nn.Module:
        return DeterministicActor(obs_spec, action_spec.width, cfg, dtype)

    def policy(self, actor: nn.Module, width: int, device: torch.device) -> Policy[Any]:
        return NoisyPolicy(actor, Gaussian(sigma=0.0), width, device)


@dataclass(frozen=True)
class Stochastic(Clone):
    """A normal distribution, trained by its log-likelihood. Evaluations use its mean; exploration samples."""

    def actor(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: NetworkConfig, dtype: torch.dtype) -> nn.Module:
        return GaussianActor(obs_spec, action_spec.width, cfg, dtype)


@dataclass(frozen=True)
class Categorical(Clone):
    """Class probabilities of one or several discrete actions, trained by cross entropy. Evaluations use the mode."""

    kind: ClassVar[str] = "categorical"

    def actor(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: NetworkConfig, dtype: torch.dtype) -> nn.Module:
        return ChoicesActor(obs_spec, all_classes(action_spec), cfg, dtype)


@dataclass(frozen=True)
class Mixed(Clone):
    """A normal distribution of the numbers and class probabilities of the choices, trained by their log-likelihood."""

    kind: ClassVar[str] = "mixed"

    def actor(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: NetworkConfig, dtype: torch.dtype) -> nn.Module:
        return MixedActor(obs_spec, action_spec, cfg, dtype)


@dataclass(frozen=True, kw_only=True)
class BCConfig(RecordedConfig, ModelFreeConfig):
    """Settings of behaviour cloning: those of TD3+BC's actor, as the paper's (1988) are out of date."""

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous", "discrete", "multi_discrete", "mixed"})

    clone: Clone | None = None
    """Kind of policy. Continuous actions: deterministic, or stochastic, which learns their spread too. Discrete
    actions: categorical. Both: mixed. None: deterministic, categorical or mixed, by the action space."""
    lr: Annotated[Rate, Above(0)] = 3e-4
    """Learning rate of Adam."""

    def check_data(self, *, recorded: bool, collected: bool) -> None:
        if not recorded:
            raise ConfigError(
                "bc learns from recorded data, but no dataset was given. Pass --data PATH; `reverie data record` "
                "records a dataset with a trained agent."
            )

    def fitting(self, spec: ActionSpec) -> Clone:
        """Return ``clone``, or its default for these actions."""
        kinds = {part.kind for part in spec.parts.values()}
        kind = "mixed" if len(kinds) > 1 else min(kinds)
        if self.clone is None:
            return {"continuous": Deterministic(), "categorical": Categorical(), "mixed": Mixed()}[kind]
        if self.clone.kind != kind:
            fit = ", ".join(name for name, found in Clone.kinds().items() if found.kind == kind)
            raise ConfigError(
                f"algo.clone = {self.clone.text()} is for {self.clone.kind} actions, but these actions are {kind}. Use "
                f"one of {fit}, or none to choose it by the kind of the actions."
            )
        return self.clone


@dataclass(frozen=True, kw_only=True)
class BCStats(Stats):
    """Metrics of an update of behaviour cloning."""

    loss_actor: Tensor
    """E[(pi(s) - a)^2], also averaged over the dimensions of an action, or E[-ln pi(a | s)] of a distribution; for
    discrete actions the cross entropy, summed over the parts of an action."""


class BCObjective(nn.Module):
    """The loss of behaviour cloning. ``objective(batch)`` is its term ``actor``; nothing else of this library is used.

    ``actor(obs)`` is an action ``[..., A]``, or a distribution over actions of any kind with ``log_prob(action)``
    ``[...]``.
    """

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, batch: Batch) -> Losses:
        """Return E[(pi(s) - a)^2] or E[-ln pi(a | s)] of a batch ``[B, T]``; last rows of episodes have no action."""
        found, action = self.actor(before(batch.obs)), batch.action[:, :-1]
        deterministic = isinstance(found, Tensor)
        error = (found - action).square().mean(-1) if deterministic else -found.log_prob(action)  # [B, T-1]
        return Losses.of(actor=mean_over(error, transition_mask(batch.is_last)))


class BC(ModelFree):
    """The learner of behaviour cloning: an actor, its update and its policy."""

    stats = BCStats

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: BCConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        self.window: Window = replace(self.window, gives_priorities=False)
        clone = cfg.fitting(action_spec)
        actor = clone.actor(self.preprocess.spec, action_spec, cfg.networks, cfg.dtype)
        self.objective: BCObjective = BCObjective(actor)
        self.to(device)
        self.optims: dict[str, Adam] = {"actor": Adam(actor.parameters(), cfg.lr)}
        self._policy = clone.policy(actor, action_spec.width, device)

    def train_step(self, batch: Batch) -> Update:
        return self.minimise(self.objective.forward, batch).update()


BCConfig.learner = BC
