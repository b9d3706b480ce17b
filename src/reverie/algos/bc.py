"""Behaviour cloning: Pomerleau, "ALVINN: an autonomous land vehicle in a neural network", NIPS 1988.

Supervised learning of the actions that a dataset holds. It knows no rewards.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.base import PRECISIONS, ModelFree, ModelFreeConfig
from reverie.core.config import Choice
from reverie.core.errors import ConfigError
from reverie.core.protocols import Policy
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.stats import Stats
from reverie.core.types import Batch, State, Update
from reverie.nn.adam import Adam
from reverie.nn.choice_steps import LikelihoodStep
from reverie.nn.choices import ChoicesActor
from reverie.nn.exploration import Gaussian, NoisyPolicy, SampledPolicy
from reverie.nn.gaussian import NormalActor
from reverie.nn.mlp import DeterministicActor, NetworkConfig, all_classes, only_kind
from reverie.nn.normalise import Normalise, Running
from reverie.objectives.returns import followed
from reverie.objectives.td import Losses, before, mean_over


@dataclass(frozen=True)
class Clone(Choice):
    """What imitates, and what makes it: the distance to actions, or how likely they are."""

    kind: ClassVar[str] = "continuous"
    """Of which actions."""

    def actor(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: NetworkConfig, dtype: torch.dtype) -> nn.Module:
        """The network."""
        raise NotImplementedError

    def policy(self, actor: nn.Module, width: int, device: torch.device) -> Policy[Any]:
        """How it acts: drawn while it explores, the likeliest where it is evaluated."""
        return SampledPolicy(actor, device)


@dataclass(frozen=True)
class Deterministic(Clone):
    """One action for each observation, the mean of those that were taken: squared error."""

    def actor(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: NetworkConfig, dtype: torch.dtype) -> nn.Module:
        """``[..., *shape]`` to ``[..., A]``."""
        return DeterministicActor(obs_spec, action_spec.width, cfg, dtype)

    def policy(self, actor: nn.Module, width: int, device: torch.device) -> Policy[Any]:
        """Without noise: there is nothing to explore for."""
        return NoisyPolicy(actor, Gaussian(sigma=0.0), width, device)


@dataclass(frozen=True)
class Stochastic(Clone):
    """A normal distribution for each observation: likelihood. Evaluated by its mean, drawn from otherwise."""

    def actor(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: NetworkConfig, dtype: torch.dtype) -> nn.Module:
        """``[..., *shape]`` to a distribution."""
        return NormalActor(obs_spec, action_spec.width, cfg, dtype)


@dataclass(frozen=True)
class Categorical(Clone):
    """Probabilities of classes, of one choice or of several: cross entropy. Evaluated by the likeliest class."""

    kind: ClassVar[str] = "categorical"

    def actor(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: NetworkConfig, dtype: torch.dtype) -> nn.Module:
        """``[..., *shape]`` to probabilities."""
        return ChoicesActor(obs_spec, all_classes(action_spec), cfg, dtype)


@dataclass(frozen=True, kw_only=True)
class BCConfig(ModelFreeConfig):
    """Settings of behaviour cloning; the paper's are of another time, these are those of TD3+BC's actor."""

    needs_data: ClassVar[bool] = True

    batch_size: int = 256
    """B, windows in a batch."""
    batch_length: int = 2
    """T, rows of each window, whose T - 1 actions are learned from."""
    clone: Clone | None = None
    """Continuous actions: deterministic, or stochastic, which learns how much actions vary as well. Choices among
    classes: categorical. None: the first of those that fit the actions."""
    lr: float = 3e-4
    """Learning rate."""
    networks: NetworkConfig = field(default_factory=NetworkConfig)
    """The actor."""
    normalise: Normalise | None = field(default_factory=Running)
    """Vectors less their mean, over their standard deviation, of all rows of the dataset. None: as they are."""

    def check_data(self, *, recorded: bool, lived: bool) -> None:
        """See :class:`~reverie.algos.base.AlgorithmConfig`: there must be somebody to imitate."""
        if not recorded:
            raise ConfigError(
                "bc imitates what was recorded, and no data are given: --data PATH. `reverie data record` makes some "
                "with a trained agent."
            )

    def build(self, obs_spec: ObsSpec, action_spec: ActionSpec, device: str = "cpu", seed: int = 0) -> BC:
        """A learner for these observations and actions of one kind, its weights drawn from ``seed``."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return BC(obs_spec, action_spec, self.where_vectors(obs_spec), torch.device(device))

    def fitting(self, spec: ActionSpec) -> Clone:
        """What imitates actions such as these.

        Raises:
            ConfigError: they are of both kinds, or of another than ``clone`` is for.
        """
        kind = only_kind("bc", spec)
        if self.clone is None:
            return Deterministic() if kind == "continuous" else Categorical()
        if self.clone.kind != kind:
            fit = ", ".join(name for name, found in Clone.kinds().items() if found.kind == kind)
            raise ConfigError(
                f"algo.clone = {self.clone.text()} is for {self.clone.kind} actions, and these are {kind}. Give one of "
                f"{fit}, or none, which chooses by the actions."
            )
        return self.clone


@dataclass(frozen=True, kw_only=True)
class BCStats(Stats):
    """What an update of behaviour cloning says."""

    loss_actor: Tensor
    """E[(pi(s) - a)^2], a mean over the numbers of an action too, or E[-ln pi(a | s)] of a distribution: of classes
    the cross entropy, summed over the choices of an action."""


class BCObjective(nn.Module):
    """The loss of behaviour cloning. ``objective(batch)`` is its term ``actor``; nothing else of this library is used.

    ``actor(obs)`` is an action ``[..., A]``, or a distribution over actions of any kind with ``log_prob(action)``
    ``[...]``.
    """

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, batch: Batch) -> Losses:
        """E[(pi(s) - a)^2], or E[-ln pi(a | s)], over all actions of a batch ``[B, T]`` but those of last rows."""
        found, action = self.actor(before(batch.obs)), batch.action[:, :-1]
        deterministic = isinstance(found, Tensor)
        error = (found - action).square().mean(-1) if deterministic else -found.log_prob(action)  # [B, T-1]
        loss = mean_over(error, followed(batch.is_last))
        return Losses({"actor": loss}, {"loss/actor": loss.detach()})


class BC(ModelFree):
    """An actor, the update that makes it a clone, and its policy."""

    stats = BCStats

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: BCConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        self.cfg = cfg
        self.window = replace(self.window, gives_priorities=False)
        clone = cfg.fitting(action_spec)
        actor = clone.actor(self.preprocess.spec, action_spec, cfg.networks, PRECISIONS[cfg.precision])
        self.objective = BCObjective(actor)
        self.to(device)
        self.optim = Adam(actor.parameters(), cfg.lr)
        self._step = LikelihoodStep(self.objective, {"actor": self.optim}, BCObjective.forward)
        self._policy = self.preprocess.policy(clone.policy(actor, action_spec.width, device), device)

    @property
    def policy(self) -> Policy[Any]:
        """Acts with the newest weights."""
        return self._policy

    def train_step(self, batch: Batch) -> Update:
        """One step of the actor."""
        losses = self._step(self.preprocess(batch))
        return Update(metrics=losses.metrics)

    def extra_state(self) -> dict[str, Any]:
        """The moments of the optimiser."""
        return {"optim": self.optim.state_dict()}

    def load_extra_state(self, state: State) -> None:
        """Take the moments back."""
        self.optim.load_state_dict(state["optim"])
