"""CRR: Wang et al., "Critic regularized regression", NeurIPS 2020.

The policy imitates the dataset's actions, weighted by their advantage over the policy's own actions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from reverie.algos.model_free import BoundedValueConfig, ClipFn, ModelFree
from reverie.algos.td import TDConfig, TDObjective
from reverie.core.bounds import Above, AtLeast, ScheduledFloat, Within
from reverie.core.config import Choice, Config
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Obs, Update
from reverie.nn.actor_critic import many_action_values
from reverie.nn.actors import GaussianActor
from reverie.nn.adam import Adam
from reverie.nn.exploration import SampledPolicy
from reverie.nn.target_network import TargetNetwork
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, masked_mean, obs_after, obs_before
from reverie.objectives.transforms import exp

# ---------------------------------------------------------------------- losses


class CRRObjective(TDObjective):
    """The losses of CRR over any distribution of actions and any number of critics.

    ``actor(obs)`` is a distribution with ``sample()``, ``repeat(n)`` and ``log_prob(action)``;
    ``critic(obs, action)`` gives the values ``[K, ...]`` of K critics.
    """

    def __init__(self, actor: nn.Module, critic: nn.Module, cfg: Any, within: ClipFn = None) -> None:
        """``cfg``: a CRRConfig, or a DiscreteCRRConfig. ``within`` clips the values that targets bootstrap from."""
        super().__init__(cfg)
        self.within = within
        self.actor = actor
        self.critic = critic
        self.target_actor: TargetNetwork = TargetNetwork(actor, cfg.tau, cfg.target_update_interval)
        self.target_critic: TargetNetwork = TargetNetwork(critic, cfg.tau, cfg.target_update_interval)

    def actor_loss(self, batch: Batch) -> Losses:
        """E[-f(A) ln pi(a | s)], where f has no gradient: equation 2."""
        obs, action, mask = obs_before(batch.obs), batch.action[:, :-1], transition_mask(batch.is_last)
        policy = self.actor(obs)
        with torch.no_grad():
            advantage = self.advantage(obs, action, policy)  # [B, T-1]
            weight = self.cfg.filter(advantage)
        metrics = {"train/advantage": masked_mean(advantage, mask), "train/weight": masked_mean(weight, mask)}
        return Losses({"actor": -masked_mean(weight * policy.log_prob(action), mask)}, metrics)

    @torch.no_grad()
    def advantage(self, obs: Obs, action: Tensor, policy: Any) -> Tensor:
        """A ``[...]`` of actions ``[..., A]`` over a baseline of m actions sampled from the policy: table 1."""
        value = self.critic(obs, action).amin(0)
        drawn = policy.repeat(self.cfg.num_samples).sample()  # [..., m, A]
        values = many_action_values(self.critic, obs, drawn).amin(0)  # [..., m]
        return value - (values.mean(-1) if self.cfg.baseline == "mean" else values.amax(-1))

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """Y = r + gamma (1 - terminal) min_i Q'_i(s', a'), a' ~ pi'(s'): Algorithm 1.  ``[B, T - 1]``."""
        obs = obs_after(batch.obs)
        action = self.target_actor(obs).sample()
        return self.bootstrap_value(batch, self.target_critic(obs, action).amin(0))

    def bootstrap_value(self, batch: Batch, value: Tensor) -> Tensor:
        """Return the targets ``[B, T - 1]`` from the value ``[B, T - 1]`` of next states, which is clipped first."""
        value = value if self.within is None else self.within(value)
        return self.cfg.value_estimator(batch, value, self.discount)


# ---------------------------------------------------------------------- learner


class CRR(ModelFree):
    """The learner of CRR: actor and critic, their update and the policy."""

    losses: type[CRRObjective] = CRRObjective

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: Any, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        self.objective: CRRObjective = self.build_objective(self.preprocess.spec, action_spec)
        self.to(device)
        actor, critic = self.objective.actor, self.objective.critic
        self.optims["actor"] = Adam(actor.parameters(), cfg.actor_lr)
        self.optims["critic"] = Adam(critic.parameters(), cfg.critic_lr)
        self._policy = self.with_memory(SampledPolicy(actor, device, cfg.graph))

    def train_step(self, batch: Batch) -> Update:
        """Take one step of the critic, of the actor through the new critic, and of the targets: Algorithm 1."""
        o = self.objective
        critic = o.critic_loss(batch)
        metrics = self.minimize(critic) | self.minimize(o.actor_loss(batch))
        o.target_actor.update()
        o.target_critic.update()
        return Update(metrics=metrics, priority=critic.priority, extras=self.memory_states(batch))

    def build_objective(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> CRRObjective:
        """Build the networks for these specs and the losses over them."""
        c, width = self.cfg, action_spec.width
        actor = GaussianActor(obs_spec, width, c.networks, c.dtype)
        return self.losses(actor, self.build_critic(obs_spec, action_spec), c, self.clip_to_return_range)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True)
class AdvantageWeight(Choice, ABC):
    """The weight f of an action in the actor's loss, a function of its advantage A: equation 2 of arXiv:2006.15134."""

    @abstractmethod
    def __call__(self, advantage: Tensor) -> Tensor:
        """Return weights ``[...]`` of advantages ``[...]``."""


@dataclass(frozen=True)
class Exp(AdvantageWeight):
    """min(exp(A / beta), clip): equation 4 and appendix B."""

    beta: Annotated[float, Within("(0, inf]")] = 1.0
    """Temperature: an advantage larger by beta has e times the weight."""
    clip: Annotated[float, Within("(0, inf]")] = 20.0
    """Upper bound of the weight."""

    def __call__(self, advantage: Tensor) -> Tensor:
        return exp(advantage / self.beta).clamp(max=self.clip)


@dataclass(frozen=True)
class Binary(AdvantageWeight):
    """1 if the advantage is above 0, else 0: equation 3."""

    def __call__(self, advantage: Tensor) -> Tensor:
        return (advantage > 0).to(advantage.dtype)


@dataclass(frozen=True)
class All(AdvantageWeight):
    """1 for all actions: behavior cloning. The critic then evaluates the cloned policy."""

    def __call__(self, advantage: Tensor) -> Tensor:
        return torch.ones_like(advantage)


@dataclass(frozen=True, kw_only=True)
class CRRBaseConfig(Config):
    """Settings that CRR and discrete CRR share, with the defaults of DeepMind's code (Acme).

    The paper uses learning rates of 0.0001 and residual networks.
    """

    filter: AdvantageWeight = field(default_factory=Exp)
    """Weight f(A) of an action in the actor's loss, by its advantage A: exp(1, 20), binary, or all."""
    num_critics: Annotated[int, AtLeast(1)] = 1
    """Number of critics; their minimum is used. The paper has one."""
    actor_lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    """Learning rate of the actor."""
    critic_lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    """Learning rate of the critic."""
    tau: Annotated[float, Within("(0, 1]")] = 1.0
    """Step of the targets toward their networks at each target update; 1 copies them."""
    target_update_interval: Annotated[int, AtLeast(1)] = 100
    """Gradient updates between two updates of the target networks."""


@dataclass(frozen=True, kw_only=True)
class CRRConfig(CRRBaseConfig, BoundedValueConfig, TDConfig):
    """Settings of CRR, with the defaults of the paper and, for vector observations, of DeepMind's code (Acme).

    The paper's critic predicts a distribution and its policy is a mixture. Here, as in d3rlpy, the critic predicts a
    scalar and the policy is one normal distribution, whose samples are clipped; Acme's are squashed by tanh. The agent
    acts with the mode; d3rlpy's draws one of several samples by their values, as the paper does.
    """

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous"})

    baseline: Literal["mean", "max"] = "mean"
    """Baseline of the advantage: mean or maximum of the values of the policy's sampled actions (table 1)."""
    num_samples: Annotated[int, AtLeast(1)] = 4
    """m, number of actions sampled from the policy for the baseline."""


CRRConfig.learner = CRR
