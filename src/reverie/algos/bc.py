"""Behavior cloning: Pomerleau, "ALVINN: an autonomous land vehicle in a neural network", NIPS 1988.

Supervised learning of the actions in a dataset. Rewards are not used.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from reverie.algos.model_free import ModelFree, ModelFreeConfig, OfflineConfig, check_sequences
from reverie.core.bounds import Above, ScheduledFloat
from reverie.core.errors import ConfigError
from reverie.core.protocols import Policy
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Update, Window
from reverie.nn.action_kinds import num_classes_per_choice
from reverie.nn.actor_critic import CategoricalActor, DeterministicActor, GaussianActor, MixedActor
from reverie.nn.adam import Adam
from reverie.nn.exploration import Gaussian, NoisyPolicy, SampledPolicy
from reverie.nn.network import MemoryNetworkConfig, NetworkConfig
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, masked_mean, obs_before

# ---------------------------------------------------------------------- losses


class BCObjective(nn.Module):
    """The loss of behavior cloning, usable on its own. ``objective(batch)`` returns its term ``actor``.

    ``actor(obs)`` returns an action ``[..., A]``, or any distribution over actions with ``log_prob(action)``
    ``[...]``.
    """

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, batch: Batch) -> Losses:
        """Return E[(pi(s) - a)^2] or E[-ln pi(a | s)] of a batch ``[B, T]``; last rows of episodes have no action."""
        policy, action = self.actor(obs_before(batch.obs)), batch.action[:, :-1]
        deterministic = isinstance(policy, Tensor)
        error = (policy - action).square().mean(-1) if deterministic else -policy.log_prob(action)  # [B, T-1]
        return Losses({"actor": masked_mean(error, transition_mask(batch.is_last))})


# ---------------------------------------------------------------------- learner


class BC(ModelFree):
    """The learner of behavior cloning: an actor, its update and its policy."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: BCConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        self.window: Window = replace(self.window, has_priorities=False)
        clone = cfg.resolve_kind(action_spec)
        actor = cloning_actor(clone, self.actor_spec(action_spec), action_spec, cfg.networks, cfg.dtype)
        self.objective: BCObjective = BCObjective(actor)
        self.to(device)
        self.optims: dict[str, Adam] = {"actor": Adam(actor.parameters(), cfg.lr)}
        policy: Policy[Any] = SampledPolicy(actor, device)
        if clone == "deterministic":
            policy = NoisyPolicy(actor, Gaussian(sigma=0.0), action_spec.width, device)
        self._policy = self.with_memory(policy)

    def actor_spec(self, action_spec: ActionSpec) -> ObsSpec:
        """Return the observations that the actor reads."""
        return self.preprocess.spec

    def train_step(self, batch: Batch) -> Update:
        return Update(metrics=self.minimize(self.objective(batch)))


def cloning_actor(
    clone: str, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: NetworkConfig, dtype: torch.dtype
) -> nn.Module:
    """Return the network for a kind of policy: ``deterministic`` outputs actions, all others a distribution."""
    if clone == "deterministic":
        return DeterministicActor(obs_spec, action_spec.width, cfg, dtype)
    if clone == "stochastic":
        return GaussianActor(obs_spec, action_spec.width, cfg, dtype)
    if clone == "categorical":
        return CategoricalActor(obs_spec, num_classes_per_choice(action_spec), cfg, dtype)
    return MixedActor(obs_spec, action_spec, cfg, dtype)


# ---------------------------------------------------------------------- settings


CLONE_KINDS = {
    "deterministic": "continuous",
    "stochastic": "continuous",
    "categorical": "categorical",
    "mixed": "mixed",
}
"""Kind of actions that each kind of policy imitates. The first policy for a kind of actions is its default."""


@dataclass(frozen=True, kw_only=True)
class BCConfig(OfflineConfig, ModelFreeConfig):
    """Settings of behavior cloning, with the defaults of TD3+BC's actor, as the paper (1988) is out of date."""

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous", "discrete", "multi_discrete", "mixed"})
    network_settings: ClassVar[frozenset[str]] = frozenset({"body"})

    policy_kind: Literal["deterministic", "stochastic", "categorical", "mixed"] | None = None
    """Kind of policy, which determines the loss. Continuous actions: deterministic, by the squared error, or
    stochastic, a normal distribution by its log-likelihood. Discrete actions: categorical, by cross entropy. Both:
    mixed, by log-likelihood. None: deterministic, categorical or mixed, by the action space."""
    networks: MemoryNetworkConfig = field(default_factory=MemoryNetworkConfig)
    """Layers of the network, optionally with a memory."""
    lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    """Learning rate of Adam."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sequences(self.networks.memory, self.batch_length, alone=2)

    def check_data(self, *, recorded: bool, collected: bool) -> None:
        if not recorded:
            raise ConfigError(
                f"{self.algorithm} learns from recorded data, but no dataset was given. Pass --data PATH; `reverie "
                "data record` records a dataset with a trained agent."
            )

    def needs_rewards(self, *, collected: bool) -> bool:
        return False

    def resolve_kind(self, spec: ActionSpec) -> str:
        """Return ``policy_kind``, or its default for these actions."""
        kinds = {part.kind for part in spec.parts.values()}
        kind = "mixed" if len(kinds) > 1 else min(kinds)
        fit = [name for name, imitated in CLONE_KINDS.items() if imitated == kind]
        if self.policy_kind is not None and self.policy_kind not in fit:
            raise ConfigError(
                f"algo.policy_kind = {self.policy_kind} is for {CLONE_KINDS[self.policy_kind]} actions, but these "
                "actions "
                f"are {kind}. Use one of {', '.join(fit)}, or None to choose it by the kind of the actions."
            )
        return self.policy_kind or fit[0]


BCConfig.learner = BC
