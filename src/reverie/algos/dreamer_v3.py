"""DreamerV3: Hafner, Pasukonis, Ba, Lillicrap, "Mastering diverse control tasks through world models", Nature 2025.

It computes what the authors' newest code computes (May 2026). Where that code and the paper differ, it follows the
code. Three deliberate corrections are listed in ``docs/dreamer_v3.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from reverie.algos.dreamer import Dreamer, DreamerConfig, LatentPolicy, scale_per_term
from reverie.algos.imagination import Trajectory, imagine
from reverie.algos.latent_search import LatentSearchPolicy
from reverie.algos.world_model import Context, Posterior, WorldModel
from reverie.core.bounds import Above, AtLeast, ScheduledFloat, WeightByPattern, Within
from reverie.core.config import Config
from reverie.core.errors import ConfigError, did_you_mean
from reverie.core.protocols import Policy
from reverie.core.specs import ActionSpec, ColumnSpec, ObsPart, ObsSpec
from reverie.core.types import Batch, Metrics, Update, Window
from reverie.nn.actor import ActorConfig, DreamerActor
from reverie.nn.decoder import DecoderConfig
from reverie.nn.distributions import safe_log
from reverie.nn.encoder import EncoderConfig
from reverie.nn.functional import cast_once
from reverie.nn.heads import BernoulliHead, HeadConfig, TwoHotConfig, TwoHotHead
from reverie.nn.normalization import PercentileScale
from reverie.nn.optim import LaPropAGC, LaPropAGCConfig, Optimizer, register_scheduled
from reverie.nn.probe import Probe, ProbeConfig
from reverie.nn.rssm import RSSMConfig
from reverie.nn.state_space import Latent
from reverie.nn.target_network import TargetNetwork
from reverie.objectives.kl import dynamics_and_representation
from reverie.objectives.policy import reinforce
from reverie.objectives.returns import lambda_return

# Type checkers accept any builder. The command line reads its flags off the classes of the defaults.
if TYPE_CHECKING:
    from reverie.nn.decoder import DecoderBuilder as _DecoderField
    from reverie.nn.encoder import EncoderBuilder as _EncoderField
else:
    _EncoderField, _DecoderField = EncoderConfig, DecoderConfig


Terms = dict[str, Tensor]
"""Unweighted losses by name."""


# ---------------------------------------------------------------------- losses


def imagination_loss(ac: ActorCritic, dream: Trajectory, reward: Tensor, cont: Tensor) -> tuple[Terms, Tensor, Metrics]:
    """Return actor and critic losses ``[H, B, T]`` and the lambda-returns: equations 4 to 6. Updates the return scale.

    Args:
        ac: actor, critic, slow critic and scale of returns.
        dream: states of ``[B, T]`` trajectories.
        reward: ``[H + 1, B, T]``, the reward of each state; the first is not used.
        cont: ``[H + 1, B, T]``, the discounted probability to continue.
    """
    c, value = ac.cfg, ac.critic(dream.feature[:-1])  # [H, B, T]
    with torch.no_grad():
        v = torch.cat([value.mean(), ac.critic(dream.feature[-1:]).mean()])  # [H+1, B, T]
        slow = ac.slow_critic(dream.feature).mean()  # [H+1, B, T]
        weight = cont.cumprod(0)[:-1]  # [H, B, T], discounted probability to reach each state
        returns = lambda_return(reward, cont, v, c.lam, dim=0)  # [H, B, T], the imagined returns: equation 5
        ac.return_scale.update(returns)
        offset, scale = ac.return_scale()
        advantage = (returns - v[:-1]) / scale  # [H, B, T]
        scaled = (returns - offset) / scale  # [H, B, T]: 0 is the low percentile, 1 at most the high one
    log_prob, entropies = dream.policy.log_prob(dream.action[:-1]), dream.policy.entropies()
    entropy = torch.stack(list(entropies.values())).sum(0)  # [H, B, T]
    actor = reinforce(
        log_prob=log_prob, advantage=advantage, entropy=entropy, weight=weight, entropy_scale=ac.entropy_scale
    )  # equation 6
    critic = weight * value.loss(returns, slow[:-1], c.slow_regularizer)  # -ln p(R) - c ln p(v_slow)
    means = {"advantage": advantage, "reward": reward, "cont": cont, "value": v, "slow_value": slow}
    means |= {"target": returns, "weight": cont.cumprod(0), "advantage_magnitude": advantage.abs()}
    means |= {"return": scaled, "return_rate": (scaled.abs() >= 1).float()}
    means |= {f"entropy/{key}": x.detach() for key, x in entropies.items()}
    metrics = {f"train/{name}": x.mean() for name, x in means.items()}
    metrics |= {"train/return_min": scaled.min(), "train/return_max": scaled.max(), "train/return_scale": scale}
    metrics["train/advantage_std"] = advantage.std(correction=0)
    return {"actor": actor, "critic": critic}, returns, metrics


def replay_value_loss(ac: ActorCritic, batch: Batch, feature: Tensor, bootstrap: Tensor) -> Tensor:
    """The critic's loss ``[B, T - 1]`` on replayed rows ``[B, T]``: lambda-returns of their rewards and ``bootstrap``.

    ``bootstrap`` ``[B, T]`` is each row's imagined return. The gradient reaches the world model through ``feature``
    ``[B, T, F]``. The last row of an episode has no loss, as no action follows it.
    """
    c, value = ac.cfg, ac.critic(feature)  # [B, T]
    with torch.no_grad():
        slow = ac.slow_critic(feature).mean()[:, :-1]  # [B, T-1]
        cont, lam = (1 - batch.is_terminal.float()) * c.discount, (1 - batch.is_last.float()) * c.lam
        returns = lambda_return(batch.reward, cont, bootstrap, lam)  # [B, T-1]
    return (~batch.is_last).float()[:, :-1] * value[:, :-1].loss(returns, slow, c.slow_regularizer)


# ---------------------------------------------------------------------- learner


class ActorCritic(nn.Module):
    """An actor with its critic, slow critic and return scale: the base class of the learner."""

    cfg: DreamerV3Config
    actor: DreamerActor
    critic: TwoHotHead
    slow_critic: TargetNetwork
    return_scale: PercentileScale
    entropy_scale: float | Tensor

    def make_heads(self, width: int, action_spec: ActionSpec, cfg: DreamerV3Config) -> None:
        """Create the networks, for features of ``width`` numbers."""
        self.cfg = cfg
        self.actor = DreamerActor(width, action_spec, cfg.actor)
        self.critic = cfg.build_critic(width)
        self.slow_critic = TargetNetwork(self.critic, cfg.slow_rate, cfg.slow_update_interval, at_first=True)
        self.return_scale = PercentileScale(cfg.return_norm_rate, cfg.return_norm_limit)
        register_scheduled(self, "entropy_scale", cfg.entropy_coef)


class WorldModelLosses(NamedTuple):
    """Everything that one forward pass computes."""

    terms: Terms  # [B, T] each, before scaling; replay_critic is [B, T - 1]
    metrics: Metrics
    post: Posterior
    dream: Trajectory


class DreamerV3(ActorCritic, Dreamer):
    """The learner of DreamerV3: world model, actor and critic, and the single update that trains them together."""

    critic: TwoHotHead

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: DreamerV3Config, device: torch.device) -> None:
        super().__init__(cfg.graph)
        self.cfg = cfg
        register_scheduled(self, "noise", cfg.exploration_noise)
        self.obs_spec: dict[str, ObsPart] = dict(obs_spec)
        self.device = device
        self.window: Window = Window(
            batch=cfg.batch_size, length=cfg.batch_length, context=cfg.replay_context, crosses_episodes=True,
            learns_rows=True,
        )  # fmt: skip
        self.world: WorldModel = WorldModel(cfg.probe.model_parts(obs_spec), action_spec, cfg)
        width = self.world.rssm.feature_width
        self.make_heads(width, action_spec, cfg)
        self.probe: Probe | None = Probe(obs_spec, width, cfg.probe) if cfg.probe.heads else None
        self.to(device)
        parts = (self.world, self.actor, self.critic)
        self.optim: LaPropAGC = cfg.optim.build([p for part in parts for p in part.parameters()])
        if self.probe is not None:
            self.probe_optim: Optimizer = cfg.probe.optim.build(self.probe.parameters())
        self._policy = LatentPolicy(self, noisy=bool(cfg.exploration_noise))
        self.can_search: bool = [len(part.classes) for part in action_spec.parts.values()] == [1]
        self.extra_spec: dict[str, ColumnSpec] = self._extra_spec()

    def _searching_policy(self, simulations: int) -> Policy[Any]:
        return LatentSearchPolicy(self, simulations) if self.can_search else super()._searching_policy(simulations)

    def train_step(self, batch: Batch) -> Update:
        """Take one gradient step on a batch ``[B, K + T]`` with K context rows."""
        context, batch = self.split_context(batch)
        losses, metrics = self.learn(context, batch)
        if self.probe is not None:
            loss, probe_metrics = self.probe.loss(losses.post.latent.feature, batch.obs)
            self.probe_optim.step(loss)
            metrics |= probe_metrics
        priority, extras = self.window_priority(losses.terms), self.latent_columns(losses.post.latent)
        return Update(metrics=metrics, priority=priority, extras=extras)

    def learn(self, context: Context, batch: Batch) -> tuple[WorldModelLosses, Metrics]:
        """Take one gradient step on rows ``[B, T]``, then move the slow critic toward the critic."""
        with cast_once([*self.optim.params, *self.slow_critic.parameters()], self.world.dtype):
            losses = self.losses(context, batch)
        metrics = losses.metrics | self.optim.step(self.total(losses.terms))
        self.slow_critic.update()
        return losses, metrics

    def losses(self, context: Context, batch: Batch) -> WorldModelLosses:
        """Compute every loss term of rows ``[B, T]`` that start from ``context``. Updates the scale of returns.

        Raises:
            ConfigError: two terms have the same name.
        """
        post = self.world.observe(batch, context)
        terms, metrics = self.world_model_loss(batch, post)
        dream = self.imagine(self.actor, post.latent)
        learned, returns, imagined_metrics = imagination_loss(self, dream, *self.imagined_outcome(dream))
        learned = {name: loss.mean(0) for name, loss in learned.items()}  # [B, K], K rows that are imagined from
        count = returns.shape[2]
        feature = self.critic_feature(post)[:, -count:]
        learned["replay_critic"] = replay_value_loss(self, batch.slice_time(-count), feature, returns[0])  # [B, K-1]
        if twice := terms.keys() & learned.keys():
            raise ConfigError(f"two loss terms are called {min(twice)!r}, so one would be lost. Rename yours.")
        terms |= learned
        metrics |= imagined_metrics | {f"loss/{name}": term.detach().mean() for name, term in terms.items()}
        return WorldModelLosses(terms, metrics, post, dream)

    def total(self, terms: Terms) -> Tensor:
        """Equation 2: the weighted sum of the terms' means."""
        scales = scale_per_term(terms, self.cfg.loss_scales)
        return torch.stack([scales[name] * term.mean() for name, term in terms.items()]).sum()

    def window_priority(self, terms: Terms) -> Tensor:
        """The world model's mean loss of each window, ``[B]``: a priority for the replay."""
        scales, learned = scale_per_term(terms, self.cfg.loss_scales), ("actor", "critic", "replay_critic")
        world = [scales[name] * term.detach() for name, term in terms.items() if name not in learned]  # [B, T] each
        return torch.stack(world).sum(0).mean(1).clamp(min=0)  # [B]

    def imagine(self, actor: DreamerActor, latent: Latent) -> Trajectory:
        """Follow ``actor`` from the last rows of latents ``[B, T, ...]``: all of them, or ``imagine_last``."""
        start = latent.map(lambda x: x.detach()[:, -self.cfg.imagine_last :])  # [B, K, ...]
        return imagine(self.world, actor, start, self.cfg.horizon)

    # ------------------------------------------------------------------ what variants replace

    def world_model_loss(
        self, batch: Batch, post: Posterior, logs: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Terms, Metrics]:
        """Equation 3: dynamics, representation, and -ln p of observations, rewards, continuations; ``[B, T]`` each.

        ``logs``: ln p of posterior and prior for the KL, ``[B, T, S, C]`` each; by default those of the latents.
        """
        world, prior = self.world, self.world.rssm.p(post.latent.deter)  # [B, T, S, C]
        log_post, log_prior = safe_log(post.stats), safe_log(prior)
        dynamics, representation = dynamics_and_representation(*(logs or (log_post, log_prior)), self.cfg.free_nats)
        terms = {"dynamics": dynamics, "representation": representation, **world.prediction_losses(batch, post.latent)}
        entropies = {"prior": -(prior * log_prior), "posterior": -(post.stats * log_post)}
        metrics = {f"train/{name}_entropy": x.detach().sum((-2, -1)).mean() for name, x in entropies.items()}
        return terms, metrics | world.mask_metrics(batch, post.latent)

    @torch.no_grad()
    def imagined_outcome(self, dream: Trajectory) -> tuple[Tensor, Tensor]:
        """Return the reward and the discounted probability to continue of imagined states, ``[H + 1, ...]`` each."""
        return self.world.reward(dream.feature).mean(), self.world.cont(dream.feature).prob()

    def critic_feature(self, post: Posterior) -> Tensor:
        """Return the features ``[B, T, F]`` of replayed rows for the critic, here with gradient."""
        return post.latent.feature

    # ------------------------------------------------------------------ for all Dreamers

    def filter_batch(self, batch: Batch) -> tuple[Batch, Posterior]:
        context, batch = self.split_context(batch)
        return batch, self.world.observe(batch, context)

    # ------------------------------------------------------------------ stored latents

    def _extra_spec(self) -> dict[str, ColumnSpec]:
        c = self.cfg
        if not c.replay_context:
            return {}
        # In [-1, 1], float16 is more precise than bfloat16, but its largest number is 65,504.
        real = "float16" if c.precision != "float32" and self.world.rssm.is_bounded else "float32"
        number = "uint8" if c.rssm.classes <= 255 else "int16"
        classes = ColumnSpec(shape=(c.rssm.stoch,), dtype=number)
        return {"deter": ColumnSpec(shape=(c.rssm.deter,), dtype=real), "classes": classes}

    def latent_columns(self, latent: Latent) -> dict[str, Tensor]:
        """Return latents ``[..., D]``, ``[..., S, C]`` as columns: h itself, z as class indices ``[..., S]``.

        Classes count from 1, so that 0, the value in rows that were never trained on, stands for the initial latent,
        whose z is all zeros.
        """
        if not self.extra_spec:
            return {}
        columns = {"deter": latent.deter.detach(), "classes": latent.stoch.detach().argmax(-1) + 1}
        return {k: x.to(getattr(torch, self.extra_spec[k].dtype)) for k, x in columns.items()}

    def split_context(self, batch: Batch) -> tuple[Context, Batch]:
        """Split a batch into the stored latent and action of the last context row, and the rows to train on."""
        k, dtype = self.cfg.replay_context, self.world.dtype
        if k and self.extra_spec.keys() <= batch.extras.keys():
            classes = batch.extras["classes"][:, k - 1].long()  # [B, S]
            every = torch.arange(1, self.cfg.rssm.classes + 1, device=classes.device)  # [C]
            stoch = classes.unsqueeze(-1) == every  # [B, S, C]
            latent = Latent(batch.extras["deter"][:, k - 1].to(dtype), stoch.to(dtype))
        else:  # there is no context row, or it is of another policy, which has no latents
            latent = self.world.rssm.initial(batch.shape[0], dtype)
        action = batch.action[:, k - 1] if k else torch.zeros_like(batch.action[:, 0])
        return Context(latent, action), batch.slice_time(k)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class LossScales(Config):
    """Weights of the loss terms: DreamerV3 (2025), equation 2, and the text for actor and critic."""

    reconstruction: Annotated[WeightByPattern, AtLeast(0)] = 1.0
    """Weight of the reconstruction loss of each observation key; or weights by regular expression, of which the first
    that matches the whole key counts: {camera: 0.5, "joints/.*": 10}. Other keys have 1."""
    reward: Annotated[float, AtLeast(0)] = 1.0
    """Weight of the reward loss."""
    cont: Annotated[float, AtLeast(0)] = 1.0
    """Weight of the continuation loss."""
    dynamics: Annotated[float, AtLeast(0)] = 1.0
    """Weight of the KL that trains the prior."""
    representation: Annotated[float, AtLeast(0)] = 0.1
    """Weight of the KL that makes the posterior predictable."""
    mask: Annotated[float, AtLeast(0)] = 1.0
    """Weight of the loss of masks of legal actions."""
    actor: Annotated[float, AtLeast(0)] = 1.0
    """Weight of the actor's loss."""
    critic: Annotated[float, AtLeast(0)] = 1.0
    """Weight of the critic's loss on imagined trajectories."""
    replay_critic: Annotated[float, AtLeast(0)] = 0.3
    """Weight of the critic's loss on replayed trajectories."""


@dataclass(frozen=True, kw_only=True)
class DreamerV3Config(DreamerConfig):
    """Settings of DreamerV3; the defaults are the authors', at their size of 12 million parameters."""

    replay_context: Annotated[int, AtLeast(0)] = 1
    """Time steps before each window that only supply the stored latent to start from; 0 starts from zeros."""
    horizon: Annotated[int, AtLeast(1)] = 15
    """H, length of imagined trajectories in agent steps."""
    discount_horizon: Annotated[float, Above(1)] = 333.0
    """Discount as a horizon in agent steps: gamma = 1 - 1 / discount_horizon."""
    lam: Annotated[float, Within("[0, 1]")] = 0.95
    """Lambda of the lambda-returns."""
    entropy_coef: Annotated[ScheduledFloat, AtLeast(0)] = 3e-4
    """Weight of the policy's entropy in nats, summed over the parts of an action."""
    free_nats: Annotated[float, AtLeast(0)] = 1.0
    """KL in nats below which a KL loss gives no gradient."""
    slow_rate: Annotated[float, Within("(0, 1]")] = 0.02
    """Share of the critic's weights in each update of the slow critic, a moving average."""
    slow_update_interval: Annotated[int, AtLeast(1)] = 1
    """Gradient updates between two updates of the slow critic; the first gradient update makes one."""
    slow_regularizer: Annotated[float, AtLeast(0)] = 1.0
    """Weight of the loss of the critic on the predictions of the slow critic, its second target."""
    imagine_last: Annotated[int, AtLeast(0)] = 0
    """Imagine from only this many last time steps of each window, at least 2; 0 imagines from all."""
    loss_scales: LossScales = field(default_factory=LossScales)
    """Weights of the loss terms."""
    rssm: RSSMConfig = field(default_factory=RSSMConfig)
    """Sizes of the recurrent state-space model."""
    encoder: _EncoderField = field(default_factory=EncoderConfig)
    """Builds the encoder: any object with ``build(obs_spec)`` that returns a module with an int attribute ``width`` and
    ``forward(obs, dtype)``, from observations ``[..., *shape]`` to ``[..., width]``."""
    decoder: _DecoderField = field(default_factory=DecoderConfig)
    """Builds the decoder: any object with ``build(obs_spec, deter, stoch)``."""
    reward: TwoHotConfig = field(default_factory=lambda: TwoHotConfig(layers=1))
    """Layers and bins of the reward head, which is two-hot encoded."""
    cont: HeadConfig = field(default_factory=lambda: HeadConfig(layers=1))
    """Layers of the continuation head."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    """Layers of the policy head, and its distribution."""
    critic: TwoHotConfig = field(default_factory=lambda: TwoHotConfig(layers=3))
    """Layers and bins of the value head, which is two-hot encoded."""
    return_norm_rate: Annotated[float, Within("(0, 1]")] = 0.01
    """Update rate of the running percentiles of returns."""
    return_norm_limit: Annotated[float, Above(0)] = 1.0
    """Smallest scale that returns are divided by, so that small returns are not scaled up."""
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    """Additional heads that show the information in the latents, and do not train them. Default: none."""
    optim: LaPropAGCConfig = field(default_factory=LaPropAGCConfig)
    """The single optimizer of all parts except the probes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.probe.gradients:
            raise ConfigError("probe.gradients is for DreamerV2: these probes do not train the latents. Remove it.")

    @property
    def discount(self) -> float:
        """Discount factor gamma per agent step."""
        return 1 - 1 / self.discount_horizon

    def build_heads(self, width: int) -> tuple[nn.Module, nn.Module]:
        return TwoHotHead(width, self.reward), BernoulliHead(width, self.cont)

    def build_critic(self, width: int) -> TwoHotHead:
        return TwoHotHead(width, self.critic)


SIZES: dict[str, dict[str, int]] = {
    "nano": {"deter": 128, "hidden": 64, "classes": 8, "stoch": 16, "depth": 4, "units": 64, "bins": 63},
    "1m": {"deter": 512, "hidden": 64, "classes": 4, "depth": 4, "units": 64},
    "12m": {"deter": 2048, "hidden": 256, "classes": 16, "depth": 16, "units": 256},
    "25m": {"deter": 3072, "hidden": 384, "classes": 24, "depth": 24, "units": 384},
    "50m": {"deter": 4096, "hidden": 512, "classes": 32, "depth": 32, "units": 512},
    "100m": {"deter": 6144, "hidden": 768, "classes": 48, "depth": 48, "units": 768},
    "200m": {"deter": 8192, "hidden": 1024, "classes": 64, "depth": 64, "units": 1024},
    "400m": {"deter": 12288, "hidden": 1536, "classes": 96, "depth": 96, "units": 1536},
    "XS": {"deter": 256, "hidden": 256, "classes": 32, "depth": 24, "units": 256, "layers": 1},
    "S": {"deter": 512, "hidden": 512, "classes": 32, "depth": 32, "units": 512, "layers": 2},
    "M": {"deter": 1024, "hidden": 640, "classes": 32, "depth": 48, "units": 640, "layers": 3},
    "L": {"deter": 2048, "hidden": 768, "classes": 32, "depth": 64, "units": 768, "layers": 4},
    "XL": {"deter": 4096, "hidden": 1024, "classes": 32, "depth": 96, "units": 1024, "layers": 5},
}
"""Widths by name: one for two CPU cores, the authors' 1m to 400m, and RLlib's XS to XL with its published widths."""

PARTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("deter", "hidden", "classes", "stoch"), ("rssm",)), "bins": ("reward", "critic"),
    "units": ("encoder", "decoder", "reward", "cont", "actor", "critic"), "depth": ("encoder", "decoder"),
    "layers": ("encoder", "decoder", "actor", "critic"),
}  # fmt: skip
"""The parts that have each width."""


def with_size(name: str, base: DreamerV3Config | None = None) -> DreamerV3Config:
    """Return ``base`` with the widths of a named size."""
    config, sizes = base or DreamerV3Config(), {size.lower(): widths for size, widths in SIZES.items()}
    if name.lower() not in sizes:
        raise ConfigError(f"size = {name!r}: expected one of {', '.join(SIZES)}.{did_you_mean(name, SIZES)}")
    default = {"stoch": RSSMConfig().stoch, "bins": TwoHotConfig().bins}  # nano changes both, and config may be nano
    widths = default | sizes[name.lower()]
    builders = {"encoder": EncoderConfig, "decoder": DecoderConfig}  # custom ones have no widths
    custom = {part for part, kind in builders.items() if not isinstance(getattr(config, part), kind)}
    return config.merge({f"{part}.{k}": v for k, v in widths.items() for part in PARTS[k] if part not in custom})


DreamerV3Config.learner = DreamerV3
