"""R2-Dreamer: Morihira et al., ICLR 2026: DreamerV3 that learns to represent observations without a decoder.

The latents predict the encoder's own output, and a Barlow Twins loss keeps that prediction from collapsing. InfoNCE,
DreamerPro (Deng, Jang, Ahn 2022) and the decoder of DreamerV3 are alternatives to it (``representation``). It computes
what the authors' code computes (github.com/NM512/r2dreamer, May 2026), which also differs from DreamerV3 in the KL,
the optimizer's warm-up and the order of an update: ``docs/world_models.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.algos import dreamer_v3
from reverie.algos.dreamer_v3 import DreamerV3, DreamerV3Config, LossScales, WorldModelLosses
from reverie.algos.imagination import Trajectory
from reverie.algos.world_model import Context, Posterior, WorldModel
from reverie.core.bounds import Above, AtLeast, Within
from reverie.core.collectives import all_gather, all_gather_with_grad, get_rank
from reverie.core.config import Choice
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Metrics
from reverie.nn.functional import shift_images
from reverie.nn.layers import Linear
from reverie.nn.optim import LaPropAGC, LaPropAGCConfig, ReleasedLaPropConfig
from reverie.nn.state_space import Latent
from reverie.nn.target_network import DelayedTargetNetwork

# ---------------------------------------------------------------------- losses
# Shapes: N rows, E dimensions of an embedding, K prototypes. With several learners, the rows of all count.


def barlow_twins(x: Tensor, y: Tensor, redundancy: float) -> Tensor:
    """Return sum_i (1 - C_ii)^2 + redundancy * sum_{i != j} C_ij^2: Zbontar et al. (2021), equation 1.

    C is the correlation of the columns of ``x`` and ``y`` over the rows, in the form of R2-Dreamer's authors: standard
    deviations use N - 1, and the products are divided by N.

    Args:
        x: ``[N, E]``.
        y: ``[N, E]``.
        redundancy: the weight of the other correlations.

    Returns:
        ``[]``.
    """
    x, y = (all_gather_with_grad(z.float()) for z in (x, y))  # [N, E]
    x, y = ((z - z.mean(0)) / (z.std(0) + 1e-8) for z in (x, y))
    c = x.T @ y / len(x)  # [E, E]
    diagonal = c.diagonal()
    return (diagonal - 1).square().sum() + redundancy * (c.square().sum() - diagonal.square().sum())


def infonce(x: Tensor, y: Tensor) -> Tensor:
    """Return -ln(exp(x_i . y_i) / sum_j exp(x_i . y_j)): van den Oord et al. (2018), equation 4, with dot products.

    Args:
        x: ``[N, E]``.
        y: ``[N, E]``, without gradient: all other rows are the negative examples of a row.

    Returns:
        ``[N]``.
    """
    every = all_gather(y.float()).flatten(0, 1)  # [ranks * N, E]
    positives = torch.arange(len(x), device=x.device) + get_rank() * len(x)
    return F.cross_entropy(x.float() @ every.T, positives, reduction="none")


@torch.no_grad()
def sinkhorn(scores: Tensor, temperature: float, rounds: int) -> Tensor:
    """Return soft assignments of rows to prototypes that use all prototypes equally: Caron et al. (2020), equation 3.

    Args:
        scores: ``[N, K]``.
        temperature: of their softmax, above 0.
        rounds: how often prototypes and rows are normalized in turn (Cuturi 2013), at least 1.

    Returns:
        ``[N, K]``, each row a distribution.
    """
    every = all_gather(scores / temperature)  # [ranks, N, K]
    log_q = every.flatten(0, 1)
    log_q = log_q - log_q.logsumexp((0, 1))
    for _ in range(rounds):
        log_q = log_q - log_q.logsumexp(0, keepdim=True) - math.log(log_q.shape[1])
        log_q = log_q - log_q.logsumexp(1, keepdim=True) - math.log(len(log_q))
    return (log_q + math.log(len(log_q))).exp().view(every.shape)[get_rank()]


class RepresentationLoss(nn.Module):
    """The networks of a representation loss. This base class has no networks and no loss."""

    def before_update(self) -> None:
        """Prepare the next update."""

    def forward(self, world: WorldModel, context: Context, rows: Batch, post: Posterior) -> dict[str, Tensor]:
        """Return loss terms, each ``[]`` or ``[B, T]``, of rows ``[B, T]`` with their posterior."""
        return {}


class Projector(RepresentationLoss):
    """A linear layer from features to embeddings. The embeddings get no gradient: the posterior trains the encoder."""

    def __init__(self, world: WorldModel, cfg: Barlow | Infonce) -> None:
        super().__init__()
        self.cfg = cfg
        self.linear: Linear = Linear(world.rssm.feature_width, world.encoder.width)
        self.linear.register_parameter("bias", None)

    def forward(self, world: WorldModel, context: Context, rows: Batch, post: Posterior) -> dict[str, Tensor]:
        x = self.linear(post.latent.feature.flatten(0, 1))  # [B * T, E]
        y = post.embed.detach().flatten(0, 1)  # [B * T, E]
        if isinstance(self.cfg, Barlow):
            return {"barlow": barlow_twins(x, y, self.cfg.redundancy)}
        return {"infonce": infonce(x, y).view(rows.shape)}


class Prototypes(RepresentationLoss):
    """Prototypes and the projections onto them, of the encoder, of features, and of a slow encoder."""

    def __init__(self, world: WorldModel, cfg: Dreamerpro, images: list[str]) -> None:
        super().__init__()
        self.cfg = cfg
        self.images = images
        self.prototypes: nn.Parameter = nn.Parameter(torch.randn(cfg.num_prototypes, cfg.width))
        self.of_embed: nn.Linear = nn.Linear(world.encoder.width, cfg.width)
        self.of_feature: nn.Linear = nn.Linear(world.rssm.feature_width, cfg.width)
        self.slow_encoder: DelayedTargetNetwork = DelayedTargetNetwork(world.encoder, cfg.rate, cfg.update_interval)
        self.slow_of_embed: DelayedTargetNetwork = DelayedTargetNetwork(self.of_embed, cfg.rate, cfg.update_interval)

    @torch.no_grad()
    def before_update(self) -> None:
        """Normalize the prototypes to length 1, and update the slow encoder."""
        self.prototypes.copy_(F.normalize(self.prototypes, dim=-1))
        self.slow_encoder.update()
        self.slow_of_embed.update()

    def forward(self, world: WorldModel, context: Context, rows: Batch, post: Posterior) -> dict[str, Tensor]:
        """Return the loss terms of both views, ``[2B, T]``, which the world model filters again."""
        views = self.augment(rows)
        start = Context(context.latent.map(lambda x: torch.cat([x, x])), torch.cat([context.action, context.action]))
        posterior = world.observe(views, start)
        embed = self.of_embed(posterior.embed.float())  # [2B, T, P]
        feature = self.of_feature(posterior.latent.feature.float())  # [2B, T, P]
        with torch.no_grad():
            slow = self.slow_of_embed(self.slow_encoder(dict(views.obs), world.dtype).float())  # [2B, T, P]
            targets = self.targets(self.scores(slow))  # [2B, T', K]
        swapped = targets.roll(len(targets) // 2, 0)  # of the other view
        log_p = [(self.scores(x) / self.cfg.temperature).log_softmax(-1) for x in (embed, feature)]  # [2B, T', K] each
        norms = torch.stack([(x.norm(dim=-1) - 1).square() for x in (embed, feature)])  # [2, 2B, T]
        return {
            "swav": -(swapped * log_p[0]).sum(-1).mean(),
            "temporal": -(targets * log_p[1]).sum(-1).mean(),
            "projection_norm": norms.mean((1, 2)).sum(),
        }

    def augment(self, rows: Batch) -> Batch:
        """Return two views ``[2B, T]`` of rows ``[B, T]``, with images shifted at random."""
        twice = rows.map(lambda x: torch.cat([x, x]))
        by = self.image_shifts(*twice.shape, twice.reward.device).expand(*twice.shape, 2).flatten(0, 1)  # [2B * T, 2]
        moved = {k: shift_images(twice.obs[k].flatten(0, 1), by).view_as(twice.obs[k]) for k in self.images}
        return replace(twice, obs={**twice.obs, **moved})

    def image_shifts(self, windows: int, rows: int, device: torch.device) -> Tensor:
        """Draw the shift of each image (right, down) in pixels: ``[2B, 1, 2]``, or ``[2B, T, 2]``."""
        drawn = torch.rand(windows, rows if self.cfg.each_row else 1, 2, device=device)
        return self.cfg.shift - (drawn * (2 * self.cfg.shift + 1)).long()

    def scores(self, x: Tensor) -> Tensor:
        """Return the cosine of projections ``[2B, T, P]`` to each prototype, ``[2B, T', K]``, without skipped rows."""
        learns = self.slow_encoder.count >= self.cfg.freeze  # the update under way is counted
        prototypes = torch.where(learns, self.prototypes, self.prototypes.detach())
        return F.normalize(x[:, self.cfg.skip :], dim=-1) @ F.normalize(prototypes, dim=-1).T

    def targets(self, scores: Tensor) -> Tensor:
        """Return the assignments of both views, ``[2B, T', K]``."""
        views = [sinkhorn(x.flatten(0, 1), self.cfg.sinkhorn, self.cfg.rounds) for x in scores.chunk(2)]
        return torch.cat(views).view(scores.shape)


class NoDecoder(nn.Module):
    """A placeholder for a decoder, which predicts no observations."""

    def forward(self, latent: Latent) -> dict[str, Tensor]:
        return {}


# ---------------------------------------------------------------------- learner


class R2Dreamer(DreamerV3):
    """The learner of DreamerV3 with a representation loss."""

    cfg: R2DreamerConfig

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: R2DreamerConfig, device: torch.device) -> None:
        super().__init__(obs_spec, action_spec, cfg, device)
        self.representation: RepresentationLoss = cfg.representation.build(self.world, obs_spec).to(device)
        parts = (self.world, self.actor, self.critic, self.representation)
        self.optim: LaPropAGC = cfg.optim.build([p for part in parts for p in part.parameters()])

    def learn(self, context: Context, rows: Batch) -> tuple[WorldModelLosses, Metrics]:
        """Move the slow networks toward the others, then take one gradient step on rows ``[B, T]``."""
        self.slow_critic.update()
        self.representation.before_update()
        losses = self.losses(context, rows)
        return losses, losses.metrics | self.optim.step(self.total(losses.terms))

    def losses(self, context: Context, rows: Batch) -> WorldModelLosses:
        """Return the losses of DreamerV3 and the terms of the representation loss."""
        losses = super().losses(context, rows)
        terms = self.representation(self.world, context, rows, losses.post)
        metrics = losses.metrics | {f"loss/{k}": v.detach().mean() for k, v in terms.items()}
        return losses._replace(terms=losses.terms | terms, metrics=metrics)

    def window_priority(self, terms: dict[str, Tensor]) -> Tensor:
        """Return the mean loss of each window ``[B]`` over the terms that have a loss for each row."""
        return super().window_priority({k: v for k, v in terms.items() if v.ndim})

    def world_model_loss(
        self, batch: Batch, post: Posterior, logs: tuple[Tensor, Tensor] | None = None
    ) -> tuple[dict[str, Tensor], Metrics]:
        """Return the world model's losses of DreamerV3; by default, the KL is of the distributions without unimix."""
        rssm, deter = self.world.rssm, post.latent.deter
        logits = rssm.posterior(torch.cat([deter, post.embed], -1)), rssm.prior_net(deter)  # [B, T, S * C] each
        log_post, log_prior = (torch.log_softmax(x.float().view(post.stats.shape), -1) for x in logits)
        return super().world_model_loss(batch, post, logs or (log_post, log_prior))

    @torch.no_grad()
    def imagined_outcome(self, dream: Trajectory) -> tuple[Tensor, Tensor]:
        """Multiply the learned continuation by the discount, which it does not include here."""
        reward, cont = super().imagined_outcome(dream)
        return reward, cont * self.cfg.discount


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True)
class RepresentationConfig(Choice):
    """The loss with which latents learn to represent observations."""

    def build(self, world: WorldModel, obs_spec: ObsSpec) -> RepresentationLoss:
        """Return its networks; none by default."""
        return RepresentationLoss()


@dataclass(frozen=True)
class Decoder(RepresentationConfig):
    """The decoder of DreamerV3."""


@dataclass(frozen=True)
class Barlow(RepresentationConfig):
    """Barlow Twins between embeddings and a linear projection of the latents: R2-Dreamer."""

    redundancy: Annotated[float, AtLeast(0)] = 5e-4
    """Weight of the correlations between different dimensions."""

    def build(self, world: WorldModel, obs_spec: ObsSpec) -> RepresentationLoss:
        return Projector(world, self)


@dataclass(frozen=True)
class Infonce(RepresentationConfig):
    """InfoNCE between embeddings and a linear projection of the latents."""

    def build(self, world: WorldModel, obs_spec: ObsSpec) -> RepresentationLoss:
        return Projector(world, self)


@dataclass(frozen=True)
class Dreamerpro(RepresentationConfig):
    """Prototypes instead of pixels: Deng, Jang, Ahn, "DreamerPro", ICML 2022. Observations must have an image."""

    num_prototypes: Annotated[int, AtLeast(2)] = 2500
    """K, number of prototypes."""
    width: Annotated[int, AtLeast(1)] = 32
    """P, dimensions of each prototype."""
    temperature: Annotated[float, Above(0)] = 0.1
    """Temperature of the softmax over the prototypes."""
    shift: Annotated[int, AtLeast(0)] = 3
    """Pixels by which both views of a window are shifted at most."""
    each_row: bool = False
    """Shift each image of a window separately; False: all by the same amount."""
    sinkhorn: Annotated[float, Above(0)] = 0.05
    """Temperature of the Sinkhorn algorithm, which assigns the targets to prototypes."""
    rounds: Annotated[int, AtLeast(1)] = 3
    """Iterations of the Sinkhorn algorithm."""
    rate: Annotated[float, Within("(0, 1]")] = 0.05
    """Share of the encoder's weights in each update of the slow encoder, which makes the targets."""
    update_interval: Annotated[int, AtLeast(1)] = 1
    """Gradient updates between two updates of the slow encoder."""
    freeze: Annotated[int, AtLeast(0)] = 10_000
    """Updates before which prototypes do not learn."""
    skip: Annotated[int, AtLeast(0)] = 1
    """Rows at the start of each window that have no loss."""

    def build(self, world: WorldModel, obs_spec: ObsSpec) -> RepresentationLoss:
        images = [key for key, part in obs_spec.items() if part.kind == "image"]
        if not images:
            raise ConfigError(
                f"algo.representation = dreamerpro needs an image; observations are {', '.join(sorted(obs_spec))}. "
                "barlow, infonce and decoder work with any."
            )
        return Prototypes(world, self, images)


@dataclass(frozen=True, kw_only=True)
class R2Scales(LossScales):
    """Weights of the loss terms, including the representation losses."""

    barlow: Annotated[float, AtLeast(0)] = 0.05
    """Weight of the Barlow Twins loss."""
    infonce: Annotated[float, AtLeast(0)] = 1.0
    """Weight of InfoNCE."""
    swav: Annotated[float, AtLeast(0)] = 1.0
    """Weight of DreamerPro's loss between both views."""
    temporal: Annotated[float, AtLeast(0)] = 1.0
    """Weight of DreamerPro's loss between latents and the slow encoder."""
    projection_norm: Annotated[float, AtLeast(0)] = 1.0
    """Weight of DreamerPro's loss that keeps projections at length 1."""


@dataclass(frozen=True, kw_only=True)
class R2DreamerConfig(DreamerV3Config):
    """Settings of R2-Dreamer: the settings of DreamerV3, and the representation loss."""

    representation: RepresentationConfig = field(default_factory=Barlow)
    """The loss that makes latents represent observations: ``barlow(redundancy=5e-4)``, ``infonce``,
    ``dreamerpro(num_prototypes=2500)``, or ``decoder``, which alone uses the settings of ``decoder``."""
    loss_scales: R2Scales = field(default_factory=R2Scales)
    """Weights of the loss terms."""
    optim: LaPropAGCConfig = field(default_factory=ReleasedLaPropConfig)
    """The single optimizer of all parts."""

    def build_decoder(self, obs_spec: ObsSpec) -> nn.Module:
        return super().build_decoder(obs_spec) if isinstance(self.representation, Decoder) else NoDecoder()

    @property
    def learned_discount(self) -> float:
        """The continuation is learned without the discount."""
        return 1.0


def with_size(name: str, base: DreamerV3Config | None = None) -> DreamerV3Config:
    """Return ``base`` with the widths of a named size of DreamerV3."""
    return dreamer_v3.with_size(name, base or R2DreamerConfig())


R2DreamerConfig.learner = R2Dreamer
