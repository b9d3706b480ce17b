"""DreamerV1: Hafner, Lillicrap, Ba, Norouzi, "Dream to control: learning behaviors by latent imagination", ICLR 2020.

It computes what the authors' code computes (github.com/danijar/dreamer, May 2020). Where that code and the paper
differ, it follows the code: ``docs/dreamer_v1_v2.md`` lists where.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from reverie.algos.dense_dreamer import DecoderField, DenseDreamer, DenseDreamerConfig, EncoderField, ModelLossScales
from reverie.algos.dreamer import LatentPolicy
from reverie.algos.imagination import RewardFn, Trajectory, imagine
from reverie.algos.world_model import Context, Posterior, WorldModel
from reverie.core.bounds import ScheduledFloat
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Metrics, Update
from reverie.nn.actor import DenseActorConfig, DreamerActor, TanhNormal
from reverie.nn.adam import GlobalAdamConfig
from reverie.nn.decoder import DenseDecoderConfig
from reverie.nn.dense_rssm import DenseRSSMConfig, Gaussian
from reverie.nn.encoder import DenseEncoderConfig
from reverie.nn.heads import DenseHeadConfig, ScalarHead
from reverie.nn.optim import Optimizer, gradient_steps
from reverie.nn.state_space import Latent
from reverie.objectives.kl import FreeNats, KLLoss
from reverie.objectives.returns import lambda_return_of_states

# ---------------------------------------------------------------------- losses


def imagination_loss_v1(
    ac: ImaginationActorCritic, world: WorldModel, start: Latent, reward: RewardFn | None = None
) -> ActorCriticLosses:
    """Imagine from latents ``[B, T, ...]`` and return the losses of actor and critic: equations 7 and 8.

    The losses cover the H imagined states, not the start latents. The value of a state includes its own reward. There
    is no entropy bonus, as in the authors' code. ``reward``: the reward of imagined states; None: the world model's
    prediction.
    """
    dream = imagine(world, ac.actor, start, ac.cfg.horizon, through_time=True)
    feature = dream.feature[1:]  # [H, B, T, F]
    rewards = (world.reward(dream.feature).mean() if reward is None else reward(dream))[1:]  # [H, B, T]
    discount, critic_output = world.cont(feature).prob(), ac.critic(feature)  # [H, B, T]
    value = critic_output.mean()  # [H, B, T]
    target = lambda_return_of_states(rewards, discount, value, ac.cfg.lam, dim=0)  # [H-1, B, T]
    weight = torch.cat([torch.ones_like(discount[:1]), discount[:-2]]).cumprod(0).detach()  # [H-1, B, T]
    critic = weight * critic_output[:-1].loss(target.detach())  # [H-1, B, T], trains only the critic
    terms = {"reward": rewards, "discount": discount, "value": value, "target": target, "weight": weight}
    return ActorCriticLosses(-weight * target, critic, dream, terms)


class ActorCriticLosses(NamedTuple):
    """The losses of policy and critic on one imagined trajectory."""

    actor: Tensor  # [H - 1, B, T]
    critic: Tensor  # [H - 1, B, T]
    dream: Trajectory
    terms: dict[str, Tensor]  # [H, B, T] or [H - 1, B, T] each

    def metrics(self) -> Metrics:
        """Return means over all imagined rows, as ``train/NAME`` and ``loss/NAME``."""
        losses = {"loss/actor": self.actor, "loss/critic": self.critic}
        means = {f"train/{k}": self.terms[k] for k in ("reward", "value", "target")} | losses
        return {k: v.detach().mean() for k, v in means.items()}


# ---------------------------------------------------------------------- learner


class ImaginationActorCritic(nn.Module):
    """A policy with its critic: the base class of the learner."""

    cfg: DreamerV1Config
    actor: DreamerActor
    critic: ScalarHead

    def make_heads(self, width: int, action_spec: ActionSpec, cfg: DreamerV1Config) -> None:
        """Create the networks, for features of ``width`` numbers."""
        self.cfg = cfg
        self.actor, self.critic = DreamerActor(width, action_spec, cfg.actor), cfg.build_critic(width)


class DreamerV1(ImaginationActorCritic, DenseDreamer):
    """The learner of DreamerV1: world model, policy and critic, all trained at the same weights."""

    cfg: DreamerV1Config
    critic: ScalarHead

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: DreamerV1Config, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        self.world: WorldModel = WorldModel(obs_spec, action_spec, cfg)
        self.make_heads(self.world.rssm.feature_width, action_spec, cfg)
        self.to(device)
        self.optims: dict[str, Optimizer] = {
            "model": cfg.model_optim.build(self.world.parameters()),
            "actor": cfg.actor_optim.build(self.actor.parameters()),
            "critic": cfg.critic_optim.build(self.critic.parameters()),
        }
        self._policy = LatentPolicy(self, noisy=bool(cfg.exploration_noise))

    def train_step(self, batch: Batch) -> Update:
        terms, metrics = self.train_on_rows(batch)
        return Update(metrics=metrics, priority=self.window_priority(terms))

    def train_on_rows(self, rows: Batch, context: Context | None = None) -> tuple[dict[str, Tensor], Metrics]:
        """Take one gradient step of each optimizer on rows ``[B, T]``; return the model's losses and metrics."""
        post = self.world.observe(rows, context)
        terms, metrics = self.world_model_loss(rows, post)
        losses, extra = self.behavior_losses(rows, context, post)
        shared = [name for name in losses if name.endswith("actor")]  # by the critic's, which comes after it
        return terms, metrics | extra | gradient_steps({"model": self.total(terms), **losses}, self.optims, shared)

    def behavior_losses(
        self, rows: Batch, context: Context | None, post: Posterior
    ) -> tuple[dict[str, Tensor], Metrics]:
        """Return the loss ``[]`` of each optimizer except the world model's, and metrics."""
        losses = imagination_loss_v1(self, self.world, self.start(post))
        return {"actor": losses.actor.mean(), "critic": losses.critic.mean()}, losses.metrics()

    def start(self, post: Posterior) -> Latent:
        """Return the latents to imagine from: without last rows if ends are learned, since these can be terminal.

        In the paper, imagination starts from all rows.
        """
        return post.latent.map(lambda x: x.detach()[:, : -1 if self.cfg.learn_cont else None])


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class DreamerV1Config(DenseDreamerConfig):
    """Settings of DreamerV1, with the defaults of the authors' code for DeepMind Control."""

    batch_size: int = 50
    exploration_noise: ScheduledFloat = 0.3
    learn_cont: bool = False
    loss_scales: ModelLossScales = field(default_factory=lambda: ModelLossScales(cont=10.0))
    kl: KLLoss = field(default_factory=FreeNats)
    rssm: DenseRSSMConfig = field(
        default_factory=lambda: DenseRSSMConfig(deter=200, hidden=200, stoch=30, latent=Gaussian(), cell="keras_gru")
    )
    encoder: EncoderField = field(default_factory=lambda: DenseEncoderConfig(depth=32, act="relu"))
    decoder: DecoderField = field(default_factory=lambda: DenseDecoderConfig(depth=32, act="relu"))
    reward: DenseHeadConfig = field(default_factory=lambda: DenseHeadConfig(layers=2))
    cont: DenseHeadConfig = field(default_factory=lambda: DenseHeadConfig(layers=3))
    actor: DenseActorConfig = field(default_factory=lambda: DenseActorConfig(continuous=TanhNormal()))
    critic: DenseHeadConfig = field(default_factory=lambda: DenseHeadConfig(layers=3))
    model_optim: GlobalAdamConfig = field(default_factory=lambda: GlobalAdamConfig(lr=6e-4, eps=1e-7))
    actor_optim: GlobalAdamConfig = field(default_factory=lambda: GlobalAdamConfig(lr=8e-5, eps=1e-7))
    critic_optim: GlobalAdamConfig = field(default_factory=lambda: GlobalAdamConfig(lr=8e-5, eps=1e-7))


DreamerV1Config.learner = DreamerV1
