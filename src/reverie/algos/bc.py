"""Behavior cloning: Pomerleau, "ALVINN: an autonomous land vehicle in a neural network", NIPS 1988.

Supervised learning of the actions in a dataset. Rewards are not used. With a ``chunk_size`` above 1, the actor
proposes a chunk of h actions, which are taken one after another: Zhao et al., "Learning fine-grained bimanual
manipulation with low-cost hardware", RSS 2023, section IV.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from reverie.algos.model_free import ModelFree, ModelFreeConfig, OfflineConfig, check_chunks, check_sequences
from reverie.core.bounds import Above, AtLeast, ScheduledFloat
from reverie.core.errors import ConfigError
from reverie.core.kernel_dispatch import NotesChanges
from reverie.core.protocols import Policy
from reverie.core.specs import IS_IMITATED, ActionSpec, ObsSpec, num_classes_per_choice
from reverie.core.types import Batch, Obs, Update, Window
from reverie.nn.actor_critic import DeterministicActor
from reverie.nn.actors import CategoricalActor, GaussianActor, HybridActor
from reverie.nn.adam import Adam
from reverie.nn.distributions import Distribution, JointDistribution
from reverie.nn.exploration import ChunkPolicy, Gaussian, NoisyPolicy, SampledPolicy
from reverie.nn.network import MemoryNetworkConfig, NetworkConfig
from reverie.nn.normals import ClippedNormal
from reverie.objectives.chunks import split_chunks
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, masked_mean, obs_before
from reverie.objectives.transforms import exp

# ---------------------------------------------------------------------- losses


class BCObjective(NotesChanges, nn.Module):
    """The loss of behavior cloning, usable on its own. ``objective(batch)`` returns its term ``actor``.

    ``actor(obs)`` returns an action ``[..., A]``, or any distribution over actions with ``log_prob(action)``
    ``[...]``. With chunks of h actions, it returns ``[..., h A]``, or a normal distribution over it.
    """

    def __init__(self, actor: nn.Module, chunk_size: int = 1) -> None:
        """``chunk_size``: h."""
        super().__init__()
        self.actor = actor
        self.chunk_size = chunk_size

    def forward(self, batch: Batch) -> Losses:
        """Return E[(pi(s) - a)^2] or E[-ln pi(a | s)] of a batch ``[B, T]``; last rows of episodes have no action."""
        if self.chunk_size > 1:
            return self.chunk_loss(batch)
        policy, action = self.actor(obs_before(batch.obs)), batch.action[:, :-1]
        return Losses({"actor": masked_mean(_imitation_error(policy, action), _imitation_mask(batch))})

    def chunk_loss(self, batch: Batch) -> Losses:
        """Return the same mean over the taken actions of all chunks."""
        chunks = split_chunks(batch, self.chunk_size)
        policy = self.actor(chunks.obs)
        if isinstance(policy, Tensor):
            policy = self.split(policy)  # [B, W, h, A]
        else:
            policy = ClippedNormal(self.split(policy.mean), self.split(policy.log_std))
        error = _imitation_error(policy, self.split(chunks.action))  # [B, W, h]
        is_imitated = _imitation_mask(batch).unfold(1, self.chunk_size, 1)  # [B, W, h]
        return Losses({"actor": masked_mean(error, chunks.is_taken & is_imitated)})

    def split(self, chunks: Tensor) -> Tensor:
        """Return chunks ``[..., h A]`` as ``[..., h, A]``."""
        return chunks.reshape(*chunks.shape[:-1], self.chunk_size, -1)


def _imitation_mask(batch: Batch) -> Tensor:
    """Return which rows 0 ... T-2 have an action to imitate, bool ``[B, T - 1]``: not the policy's among a person's."""
    mask = transition_mask(batch.is_last)
    return mask & batch.extras[IS_IMITATED][:, :-1] if IS_IMITATED in batch.extras else mask


def _imitation_error(policy: Tensor | Distribution | JointDistribution, action: Tensor) -> Tensor:
    """(pi(s) - a)^2, averaged over the dimensions of an action, or -ln pi(a | s): ``[...]`` of actions ``[..., A]``."""
    return (policy - action).square().mean(-1) if isinstance(policy, Tensor) else -policy.log_prob(action)


# ---------------------------------------------------------------------- learner


class BC(ModelFree):
    """The learner of behavior cloning: an actor, its update and its policy."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: BCConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        self.window: Window = replace(self.window, has_priorities=False)
        clone = cfg.resolve_kind(action_spec)
        actor = _cloning_actor(
            clone, self.actor_spec(action_spec), action_spec, cfg.networks, cfg.dtype, cfg.chunk_size
        )
        self.objective: BCObjective = BCObjective(actor, cfg.chunk_size)
        self.to(device)
        self.optims: dict[str, Adam] = {"actor": Adam(actor.parameters(), cfg.lr)}
        policy: Policy[Any] = SampledPolicy(actor, device, cfg.graph)
        if cfg.chunk_size > 1:
            propose = functools.partial(propose_chunk, actor)
            policy = ChunkPolicy(propose, cfg.chunk_size, action_spec.width, device)
        elif clone == "deterministic":
            policy = NoisyPolicy(actor, Gaussian(sigma=0.0), action_spec.width, device, cfg.graph)
        self._policy = self.with_memory(policy)

    def actor_spec(self, action_spec: ActionSpec) -> ObsSpec:
        """Return the observations that the actor reads."""
        return self.preprocess.spec

    def train_step(self, batch: Batch) -> Update:
        return Update(metrics=self.minimize(self.objective(batch)), extras=self.memory_states(batch))


def _cloning_actor(
    clone: str, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: NetworkConfig, dtype: torch.dtype, chunk_size: int = 1
) -> nn.Module:
    """Return the network for a kind of policy: ``deterministic`` outputs actions, all others a distribution.

    The action of continuous kinds is a chunk of ``chunk_size`` actions.
    """
    if clone == "deterministic":
        return DeterministicActor(obs_spec, chunk_size * action_spec.width, cfg, dtype)
    if clone == "stochastic":
        return GaussianActor(obs_spec, chunk_size * action_spec.width, cfg, dtype)
    if clone == "categorical":
        return CategoricalActor(obs_spec, num_classes_per_choice(action_spec), cfg, dtype)
    return HybridActor(obs_spec, action_spec, cfg, dtype)


def propose_chunk(actor: nn.Module, obs: Obs, noise: Tensor | None) -> Tensor:
    """Return chunks ``[N, h A]``: the actor's own, or those that it draws with standard normal ``noise``."""
    policy: Any = actor(obs)
    if isinstance(policy, Tensor):
        return policy
    mean: Tensor = policy.mean
    return mean if noise is None else mean + exp(policy.log_std) * noise


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
    human_fraction: ClassVar[float | None] = 1.0

    policy_kind: Literal["deterministic", "stochastic", "categorical", "mixed"] | None = None
    """Kind of policy, which determines the loss. Continuous actions: deterministic, by the squared error, or
    stochastic, a normal distribution by its log-likelihood. Discrete actions: categorical, by cross entropy. Both:
    mixed, by log-likelihood. None: deterministic, categorical or mixed, by the action space."""
    chunk_size: Annotated[int, AtLeast(1)] = 1
    """h, number of continuous actions that are proposed at once, and then taken without looking at the observations
    between. Windows need at least h + 1 rows: set batch_length too."""
    networks: MemoryNetworkConfig = field(default_factory=MemoryNetworkConfig)
    """Layers of the network, optionally with a memory."""
    lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    """Learning rate of Adam."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_chunks(self.chunk_size, self.batch_length)
        check_sequences(self.networks.memory, self.batch_length, alone=self.chunk_size + 1)

    def check_data(self, *, recorded: bool, collected: bool) -> None:
        if not recorded:
            raise ConfigError(
                f"{self.algorithm} learns from recorded data, but no dataset was given. Pass --data PATH; `reverie "
                "data record` records a dataset with a trained agent. Or pass --human, a person who takes over."
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
                f"actions are {kind}. Use one of {', '.join(fit)}, or None to choose it by the kind of the actions."
            )
        if self.chunk_size > 1 and kind != "continuous":
            raise ConfigError(
                f"algo.chunk_size = {self.chunk_size}: chunks are of continuous actions, but these actions are {kind}. "
                "Set algo.chunk_size to 1."
            )
        return self.policy_kind or fit[0]


BCConfig.learner = BC
