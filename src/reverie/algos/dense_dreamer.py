"""What DreamerV1 and V2 share: settings, and the loss of the world model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import torch
from torch import Tensor, nn

from reverie.algos.dreamer import Dreamer, DreamerConfig, scale_per_term
from reverie.algos.world_model import Posterior, repeat_windows
from reverie.core.bounds import AtLeast, WeightByPattern, Within
from reverie.core.config import Config
from reverie.core.specs import ColumnSpec, ObsPart, ObsSpec
from reverie.core.types import Batch, Metrics, Window
from reverie.nn.actor import DenseActorConfig
from reverie.nn.adam import GlobalAdamConfig
from reverie.nn.decoder import DenseDecoderConfig
from reverie.nn.dense_rssm import DenseRSSMConfig
from reverie.nn.encoder import DenseEncoderConfig
from reverie.nn.heads import BernoulliHead, ConstantHead, DenseHeadConfig, ScalarHead, SupportHead
from reverie.nn.optim import Optimizer, register_scheduled
from reverie.objectives.kl import BalancedKL, KLLoss, importance_bound
from reverie.objectives.transforms import REWARD_TRANSFORMS, RewardTransform

# Type checkers accept any builder. The command line reads its flags off the classes of the defaults.
if TYPE_CHECKING:
    from reverie.nn.decoder import DecoderBuilder
    from reverie.nn.encoder import EncoderBuilder

    EncoderField: TypeAlias = EncoderBuilder
    DecoderField: TypeAlias = DecoderBuilder
else:
    EncoderField, DecoderField = DenseEncoderConfig, DenseDecoderConfig


@dataclass(frozen=True, kw_only=True)
class ModelLossScales(Config):
    """Weights of the world model's loss terms."""

    reconstruction: Annotated[WeightByPattern, AtLeast(0)] = 1.0
    """Weight of -ln p of each observation key, or weights by regular expression, of which the first that matches the
    whole key applies: {camera: 0.5, "joints/.*": 10}. All other keys have weight 1."""
    vectors: Annotated[float, AtLeast(0)] = 1.0
    """Additional factor for vector observations."""
    reward: Annotated[float, AtLeast(0)] = 1.0
    """Weight of -ln p of rewards."""
    cont: Annotated[float, AtLeast(0)] = 1.0
    """Weight of -ln p of continuations."""
    kl: Annotated[float, AtLeast(0)] = 1.0
    """Weight of the KL loss."""
    mask: Annotated[float, AtLeast(0)] = 1.0
    """Weight of -ln p of masks of legal actions."""


@dataclass(frozen=True, kw_only=True)
class DenseDreamerConfig(DreamerConfig):
    """Settings that DreamerV1 and V2 share; the defaults are those of DreamerV2."""

    batch_length: int = 50
    """T, rows of each window. Each begins with the zero latent."""
    horizon: int = 15
    """H, length of imagined trajectories in agent steps."""
    discount: Annotated[float, Within("[0, 1]")] = 0.99
    """Discount factor gamma per agent step."""
    lam: Annotated[float, Within("[0, 1]")] = 0.95
    """Lambda of the lambda-returns."""
    reward_transform: Literal["identity", "sign", "tanh", "log1p"] = "identity"
    """Transform of the rewards for learning. Stored rows and scores keep the original rewards."""
    learn_cont: bool = True
    """Learn when episodes end. False: imagined episodes never end, and only gamma discounts them."""
    loss_scales: ModelLossScales = field(default_factory=ModelLossScales)
    """Weights of the world model's loss terms."""
    reward_support: tuple[float, ...] = ()
    """Rewards, before their transform, over which the reward head predicts a distribution; each reward is learned as
    the nearest of them. Empty: the head predicts the mean of a normal distribution."""
    kl: KLLoss = field(default_factory=BalancedKL)
    """The loss between posterior and prior: balanced_kl(balance=0.8, nats=0) of V2, or free_nats(nats=3) of V1."""
    rssm: DenseRSSMConfig = field(default_factory=DenseRSSMConfig)
    """Sizes, cell and latents of the recurrent state-space model."""
    encoder: EncoderField = field(default_factory=DenseEncoderConfig)
    """Builds the encoder: any object with ``build(obs_spec)`` (``nn/encoder.py``)."""
    decoder: DecoderField = field(default_factory=DenseDecoderConfig)
    """Builds the decoder: any object with ``build(obs_spec, deter, stoch)``."""
    reward: DenseHeadConfig = field(default_factory=DenseHeadConfig)
    """Layers of the reward head."""
    cont: DenseHeadConfig = field(default_factory=DenseHeadConfig)
    """Layers of the continuation head."""
    actor: DenseActorConfig = field(default_factory=DenseActorConfig)
    """Layers of the policy, and its distribution."""
    critic: DenseHeadConfig = field(default_factory=DenseHeadConfig)
    """Layers of the value head."""
    model_optim: GlobalAdamConfig = field(default_factory=GlobalAdamConfig)
    """Optimizer of the world model."""
    actor_optim: GlobalAdamConfig = field(default_factory=GlobalAdamConfig)
    """Optimizer of the policy."""
    critic_optim: GlobalAdamConfig = field(default_factory=GlobalAdamConfig)
    """Optimizer of the value head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        AtLeast(self.min_horizon).check("horizon", self.horizon)

    def build_heads(self, width: int) -> tuple[nn.Module, nn.Module]:
        cont = BernoulliHead(width, self.cont) if self.learn_cont else ConstantHead(self.learned_discount)
        support = self.transform.forward(torch.tensor(self.reward_support))
        reward = SupportHead(width, self.reward, support) if len(support) else ScalarHead(width, self.reward)
        return reward, cont

    def build_critic(self, width: int) -> ScalarHead:
        return ScalarHead(width, self.critic)

    @property
    def transform(self) -> RewardTransform:
        return REWARD_TRANSFORMS[self.reward_transform]

    @property
    def min_horizon(self) -> int:
        """The smallest H: each action needs a later reward in the loss."""
        return 2


class DenseDreamer(Dreamer):
    """What DreamerV1 and V2 have in common: the world model and its loss."""

    cfg: DenseDreamerConfig
    extra_spec: Mapping[str, ColumnSpec]
    optims: dict[str, Optimizer]

    def __init__(self, obs_spec: ObsSpec, cfg: DenseDreamerConfig, device: torch.device) -> None:
        super().__init__(cfg.graph)
        self.cfg = cfg
        register_scheduled(self, "noise", cfg.exploration_noise)
        self.obs_spec: dict[str, ObsPart] = dict(obs_spec)
        self.device: torch.device = device
        self.extra_spec = {}
        self.window: Window = Window(
            batch=cfg.batch_size, length=cfg.batch_length, crosses_episodes=True, learns_rows=True
        )

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        """Return the weighted sum of the mean terms; with several samples, the bound of Burda et al. (2016)."""
        scales = scale_per_term(terms, self.cfg.loss_scales)
        for key in terms:
            part = self.obs_spec.get(key.removeprefix("reconstruction/"))
            if part is not None and part.kind == "vector":
                scales[key] *= self.cfg.loss_scales.vectors
        if self.samples > 1:
            weighted = torch.stack([scales[k] * v for k, v in terms.items()]).sum(0)  # [B * samples, T]
            return importance_bound(weighted, self.samples).mean()
        return torch.stack([scales[k] * v.mean() for k, v in terms.items()]).sum()

    def filter_batch(self, batch: Batch) -> tuple[Batch, Posterior]:
        return repeat_windows(batch, self.samples), self.world.observe(batch, None, self.samples)

    def world_model_loss(self, rows: Batch, post: Posterior) -> tuple[dict[str, Tensor], Metrics]:
        """Return loss terms ``[B, T]``: Hafner et al. (2021), equation 2, and (2020), equation 10; the KL is ``[]``.

        With several samples, rows are repeated, and the KL loss is ln q(z) - ln p(z) of each, ``[B * samples, T]``.
        """
        latent, prior = self.cfg.rssm.latent, self.world.rssm.p(post.latent.deter)
        kl, value = self.cfg.kl(latent.kl, post.stats, prior)
        if self.samples > 1:
            kl = latent.log_prob(post.stats, post.latent.stoch) - latent.log_prob(prior, post.latent.stoch)
        terms = {"kl": kl, **self.world.prediction_losses(rows, post.latent)}
        metrics = {"train/prior_entropy": latent.entropy(prior), "train/posterior_entropy": latent.entropy(post.stats)}
        metrics |= {"train/kl": importance_bound(value, self.samples)}
        metrics |= {f"loss/{k}": importance_bound(v, self.samples) for k, v in terms.items()}
        metrics |= self.world.mask_metrics(rows, post.latent)
        return terms, {k: v.detach().mean() for k, v in metrics.items()}

    def window_priority(self, terms: dict[str, Tensor]) -> Tensor:
        """Return the prediction loss of each window, ``[B]``, as a replay priority."""
        rows = [v.detach().mean(1) for k, v in terms.items() if k != "kl"]  # [B] each
        return torch.stack(rows).sum(0).view(-1, self.samples).mean(1).clamp(min=0)
