"""ReBRAC: Tarasov et al., "Revisiting the minimalist approach to offline reinforcement learning", NeurIPS 2023.

TD3+BC with a second penalty: the target of the critics also falls with the distance between the target policy's action
and the next action of the dataset. Each penalty has its own weight. Critics have layer norm, and all networks three
hidden layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from reverie.algos.model_free import OfflineConfig
from reverie.algos.td3 import TD3, TD3Config, TD3Objective
from reverie.core.bounds import AtLeast, ScheduledFloat
from reverie.core.collectives import mean_across_ranks
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Update
from reverie.nn.functional import clipped_noise
from reverie.nn.network import NetworkConfig
from reverie.nn.optim import frozen
from reverie.nn.relu_mlp import ReluMLP
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, draw_critics, masked_mean, obs_after, obs_before

# ---------------------------------------------------------------------- losses


class ReBRACObjective(TD3Objective):
    """The losses of ReBRAC: :class:`~reverie.algos.td3.TD3Objective` with a penalty in either loss.

    The last row of each window needs its action too, unless it ends the episode.
    """

    cfg: ReBRACConfig

    def actor_loss(self, batch: Batch) -> Losses:
        """E[beta_1 |pi(s) - a|^2 - lambda min_i Q_i(s, pi(s))], lambda = 1 / E[abs(min_i Q_i)]: section 3.

        lambda, which has no gradient, is from the authors' code (github.com/tinkoff-ai/ReBRAC).
        """
        obs, mask = obs_before(batch.obs), transition_mask(batch.is_last)
        action = self.actor(obs)  # [B, T-1, A]
        with frozen(self.critic):
            value = self.critic(obs, action).amin(0)  # [B, T-1]
        size = mean_across_ranks(masked_mean(value.detach().abs(), mask))
        factor = 1 / size.clamp(min=torch.finfo(size.dtype).tiny)  # finite
        cloning = masked_mean(_squared_distance(action, batch.action[:, :-1]), mask)
        loss = self.cfg.actor_bc_coef * cloning - factor * masked_mean(value, mask)
        return Losses({"actor": loss}, {"loss/bc": cloning.detach(), "train/lambda": factor})

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """Y = r + gamma (1 - terminal) (min_i Q'_i(s', a') - beta_2 |a' - b|^2): section 3.  ``[B, T - 1]``.

        a' is the target policy's action with clipped noise, b the dataset's action at s'. The last row of an episode
        has no action, and so no penalty.
        """
        c, obs = self.cfg, obs_after(batch.obs)
        action = self.target_actor(obs)  # [B, T-1, A]
        action = clipped_noise(action, torch.randn_like(action), c.target_policy_noise, c.target_noise_clip)
        penalty = _squared_distance(action, batch.action[:, 1:]) * ~batch.is_last[:, 1:]
        values = self.target_critic(obs, action)  # [K, B, T-1]
        value = (values if c.num_target_critics is None else draw_critics(values, c.num_target_critics)).amin(0)
        return c.value_estimator(batch, value - c.critic_bc_coef * penalty, self.discount)


def _squared_distance(a: Tensor, b: Tensor) -> Tensor:
    """|a - b|^2 ``[...]`` of actions ``[..., A]``."""
    return (a - b).square().sum(-1)


# ---------------------------------------------------------------------- learner


class ReBRAC(TD3):
    """The learner of ReBRAC: actor and two critics, their updates and the policy."""

    losses: type[ReBRACObjective] = ReBRACObjective

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: ReBRACConfig, device: torch.device) -> None:
        super().__init__(obs_spec, action_spec, cfg, device)
        for target, bound in ((self.objective.target_actor, 1e-3), (self.objective.target_critic, 3e-3)):
            if isinstance(body := target.source.body, ReluMLP):
                initialize(body, bound)
                with torch.no_grad():
                    torch._foreach_copy_([*target.model.parameters()], [*target.source.parameters()])

    def train_step(self, batch: Batch) -> Update:
        """Take TD3's step. As in the authors' code, the target actor follows the actor before the actor's step."""
        o, (for_critic, for_actor) = self.objective, self.encode(batch)
        critic = o.critic_loss(for_critic)
        metrics = self.minimize(critic)
        o.target_critic.update()
        o.target_actor.update()
        metrics |= self.minimize(o.actor_loss(for_actor))
        return Update(metrics=metrics, priority=critic.priority)


@torch.no_grad()
def initialize(mlp: ReluMLP, bound: float) -> None:
    """Draw the last layer uniformly within ``bound``, and set the biases of the other layers to 0.1.

    That is from the authors' code, which refers to EDAC: An et al. 2021, arXiv:2110.01548.
    """
    *hidden, last = mlp.layers()
    for _, bias in hidden:
        bias.fill_(0.1)
    for parameter in last:
        parameter.copy_(torch.empty_like(parameter, device="cpu").uniform_(-bound, bound))  # of the seed on any device


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class ReBRACConfig(OfflineConfig, TD3Config):
    """Settings of ReBRAC: the authors' for MuJoCo.

    For AntMaze and Adroit, they use batches of 256 and other learning rates; for AntMaze also a discount of 0.999 and
    rewards multiplied by 100.
    """

    batch_size: int = 1024
    actor_bc_coef: Annotated[float, AtLeast(0)] = 0.01
    """beta_1, weight of the squared distance to the dataset's action in the actor's loss. The authors choose it for
    each dataset, between 0.001 and 0.1; 0.01 is the most frequent value for MuJoCo."""
    critic_bc_coef: Annotated[float, AtLeast(0)] = 0.01
    """beta_2, weight of the squared distance to the next action of the dataset in the critics' target. The authors
    choose it for each dataset, between 0 and 0.5; 0.01 is the most frequent value for MuJoCo."""
    actor_lr: ScheduledFloat = 1e-3
    critic_lr: ScheduledFloat = 1e-3
    networks: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(units=(256, 256, 256), critic_norm="after_relu")
    )
    """Layers of the networks."""


ReBRACConfig.learner = ReBRAC
