"""TD3: Fujimoto, van Hoof, Meger, "Addressing function approximation error in actor-critic methods", ICML 2018.

DDPG with three changes: clipped double Q-learning, with targets from the minimum of two critics (section 4.2); delayed
updates of the actor and the targets (5.2); and target policy smoothing, by noise on the actions of targets (5.3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.ddpg import DDPG
from reverie.algos.td import CriticConfig, TDObjective, check_critic_counts
from reverie.core.bounds import Above, AtLeast, ScheduledFloat, Within
from reverie.core.types import Batch
from reverie.nn.exploration import ActionNoise, Gaussian
from reverie.nn.functional import clipped_noise
from reverie.nn.optim import frozen
from reverie.nn.target_network import TargetNetwork
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, draw_critics, masked_mean, obs_after, obs_before

# ---------------------------------------------------------------------- losses


class TD3Objective(TDObjective):
    """The losses of TD3 over any ``actor(obs) -> [..., A]`` in [-1, 1] and ``critic(obs, action, copy=None)``.

    The critic returns the values ``[K, ...]`` of all critics, or ``[...]`` of one ``copy``: ``nn/actor_critic.py:
    CriticStack`` combines several. The caller steps the actor, and updates the targets, at every ``policy_delay``-th
    step of the critics.
    """

    cfg: TD3Config

    def __init__(self, actor: nn.Module, critic: nn.Module, cfg: TD3Config) -> None:
        super().__init__(cfg)
        self.actor = actor
        self.critic = critic
        self.target_actor: TargetNetwork = TargetNetwork(actor, cfg.tau)
        self.target_critic: TargetNetwork = TargetNetwork(critic, cfg.tau)

    def actor_loss(self, batch: Batch) -> Losses:
        """E[-Q_1(s, pi(s))]: Algorithm 1, "Update phi by the deterministic policy gradient"."""
        obs = obs_before(batch.obs)
        with frozen(self.critic):
            value = self.critic(obs, self.actor(obs), copy=0)  # [B, T-1]
        return Losses({"actor": -masked_mean(value, transition_mask(batch.is_last))})

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """Return TD3's target, y = r + gamma (1 - terminal) min_i Q'_i(s', pi'(s') + clipped noise): eq. 10, 14.

        With M ``num_target_critics``, the minimum is over M critics that are drawn for the whole batch, as in REDQ.
        """
        c, obs = self.cfg, obs_after(batch.obs)
        action = self.target_actor(obs)  # [B, T-1, A]
        noise = torch.randn_like(action)
        action = clipped_noise(action, noise, c.target_policy_noise, c.target_noise_clip)
        values = self.target_critic(obs, action)  # [K, B, T-1]
        value = (values if c.num_target_critics is None else draw_critics(values, c.num_target_critics)).amin(0)
        return c.value_estimator(batch, value, self.discount)


# ---------------------------------------------------------------------- learner


class TD3(DDPG):
    """The learner of TD3: DDPG with several critics and less frequent updates of the actor."""

    losses: type[TD3Objective] = TD3Objective


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class TD3Config(CriticConfig):
    """Settings of TD3, from section 6.1, or from the authors' code (github.com/sfujim/TD3) where they differ.

    The paper uses batches of 100, learning rates of 0.001 and layers of 400 and 300 units.
    """

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous"})

    actor_lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    """Learning rate of the actor: the authors' code."""
    critic_lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    """Learning rate of the critics: the authors' code."""
    num_critics: Annotated[int, AtLeast(1)] = 2
    """K, number of critics."""
    num_target_critics: Annotated[int | None, AtLeast(1)] = None
    """M, number of critics, drawn in each update, whose minimum is the target; None: the minimum of all critics."""
    policy_delay: Annotated[int, AtLeast(1)] = 2
    """d: the actor and the targets are updated at every d-th update of the critics."""
    target_policy_noise: Annotated[float, AtLeast(0)] = 0.2
    """Standard deviation of the noise that smooths the target policy, in units of the policy's range [-1, 1]."""
    target_noise_clip: Annotated[float, Within("[0, inf]")] = 0.5
    """c, maximum absolute value of that noise, in units of the policy's range [-1, 1]; inf does not clip."""
    exploration: ActionNoise = field(default_factory=Gaussian)
    """Noise on actions while exploring, in units of the policy's range [-1, 1]: Gaussian with a standard deviation of
    0.1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_critic_counts(self.num_critics, self.num_target_critics)


TD3Config.learner = TD3
