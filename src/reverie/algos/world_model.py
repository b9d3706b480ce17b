"""The world model shared by the Dreamers: encoder, recurrent state-space model, decoder, reward and continuation.

The papers differ by the parts that their settings build, never by a flag in here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from reverie.algos.base import INSIDE, Algorithm, dreamt_name
from reverie.algos.imagination import Dream, Legal, open_loop, stacked_video
from reverie.algos.settings import AlgorithmConfig
from reverie.core.bounds import AtLeast, Ramp, Rate, Regex, Weights, Within, weight_of
from reverie.core.config import Config
from reverie.core.errors import ConfigError, DataError, missing_method_error
from reverie.core.specs import MASK, ActionSpec, Column, ObsPart, ObsSpec, observed
from reverie.core.types import Batch, Metrics, Mode, Obs, Step, Told, Window
from reverie.nn.actor import Actor, DenseActorConfig, JointDistribution
from reverie.nn.adam import GlobalAdamConfig
from reverie.nn.decoder import DenseDecoderConfig, Prediction
from reverie.nn.dense_rssm import DenseRSSMConfig
from reverie.nn.encoder import ARRIVAL, DenseEncoderConfig, select
from reverie.nn.heads import BernoulliHead, ConstantHead, DenseHeadConfig, MaskHead, NumberHead, SupportHead, TwoHotHead
from reverie.nn.optim import Optim, let_change
from reverie.nn.probe import Probe
from reverie.nn.state_space import Latent, StateSpaceModel
from reverie.objectives.kl import Balanced, KLLoss, importance_bound
from reverie.objectives.transforms import IDENTITY, REWARDS, RewardTransform

# Type checkers accept any builder. The command line reads its flags off the classes of the defaults.
if TYPE_CHECKING:
    from reverie.nn.decoder import DecoderBuilder
    from reverie.nn.encoder import EncoderBuilder

    EncoderField: TypeAlias = EncoderBuilder
    DecoderField: TypeAlias = DecoderBuilder
else:
    EncoderField, DecoderField = DenseEncoderConfig, DenseDecoderConfig


class Context(NamedTuple):
    """The latent and the action before a row: where a sequence starts, and what a policy carries from step to step."""

    latent: Latent  # [B, ...]
    action: Tensor  # [B, A]


class Posterior(NamedTuple):
    """The world model's filtered latents of a batch."""

    embed: Tensor  # [B, T, E]
    latent: Latent  # [B, T, ...]
    stats: Tensor  # [B, T, S, n], of z's distribution: V3 has its probabilities, n = C


@dataclass(frozen=True, kw_only=True)
class DreamerConfig(AlgorithmConfig):
    """What the settings of all Dreamers have in common: they say which parts make up the world model."""

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous", "discrete", "multi_discrete", "mixed"})
    heads: ClassVar[frozenset[str]] = frozenset({"decoder", "reward", "cont"})
    """The predicting parts. Settings ``grad_heads``, if there are such, name those whose losses train the latents."""

    def __post_init__(self) -> None:
        super().__post_init__()
        named = getattr(self, "grad_heads", ())
        if unknown := [part for part in named if part not in self.heads]:
            raise ConfigError(f"grad_heads = {named}: {unknown[0]!r} is none of decoder, reward, cont.")

    def build_decoder(self: Any, seen: ObsSpec) -> nn.Module:
        """Return the decoder of these observations: from latents to a dictionary of predictions."""
        return self.decoder.build(seen, self.rssm.deter, self.rssm.stoch * self.rssm.classes)

    def build_heads(self, width: int) -> tuple[nn.Module, nn.Module]:
        """Return the heads of reward and continuation, for features of ``width`` numbers.

        The first gives a number's distribution, with ``mean()`` and ``loss(value)``; the second that of
        (1 - terminal) * discount, with ``prob()`` and ``loss()``.
        """
        raise missing_method_error(self, "build_heads")

    @property
    def learned_discount(self: Any) -> float:
        """The discount that the learned continuation includes."""
        return self.discount

    @property
    def transform(self) -> RewardTransform:
        """Of the rewards that are learned."""
        return IDENTITY


class WorldModel(nn.Module):
    """The networks that model observations, dynamics, rewards and ends of episodes."""

    encoder: Any

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: Any) -> None:
        """Build the parts that ``cfg``, a :class:`DreamerConfig`, names."""
        super().__init__()
        seen, weights = observed(obs_spec), cfg.scales.reconstruction
        for pattern in weights if isinstance(weights, Mapping) else ():
            Regex().check("scales.reconstruction", pattern)
            select(seen, pattern, "scales.reconstruction")
        self.encoder = cfg.encoder.build(seen)
        self.rssm: StateSpaceModel = cfg.rssm.build(self.encoder.width, action_spec.width)
        self.decoder: nn.Module = cfg.build_decoder(seen)
        reward, cont = cfg.build_heads(self.rssm.feature_width)
        self.reward: nn.Module = reward
        self.cont: nn.Module = cont
        self.mask: MaskHead | None = None
        if MASK in obs_spec:
            with torch.random.fork_rng(devices=[]):  # the weights of all other parts are drawn as without masks
                self.mask = MaskHead(self.rssm.feature_width, action_spec, cfg.cont)
        self.dtype: torch.dtype = cfg.dtype
        self.discount: float = cfg.learned_discount
        self.transform: RewardTransform = cfg.transform
        self.stopped: frozenset[str] = cfg.heads.difference(getattr(cfg, "grad_heads", cfg.heads))
        """The predicting parts whose losses give the latents no gradient."""

    def embed(self, obs: Obs, reward: Tensor | None = None, is_terminal: Tensor | None = None) -> Tensor:
        """Encode observations ``[..., *shape]`` to ``[..., E]``; some encoders also read rewards and ends ``[...]``."""
        if reward is not None and is_terminal is not None and getattr(self.encoder, "arrival", False):
            obs = {**obs, ARRIVAL: torch.stack([self.transform(reward), is_terminal.to(reward.dtype)], -1)}
        return self.encoder(dict(obs), self.dtype)

    def observe(self, batch: Batch, context: Context | None = None, samples: int = 1) -> Posterior:
        """Filter a batch ``[B, T]`` that starts from ``context``; None: from the initial latent.

        With ``samples`` above 1, each row has as many posteriors, one after the other: the result, and ``context``,
        are ``[B * samples, ...]``.
        """
        embed = self.embed(batch.obs, batch.reward, batch.is_terminal)  # [B, T, E]
        if samples > 1:
            batch, embed = repeated(batch, samples), embed.repeat_interleave(samples, 0)
        if context is None:
            context = Context(self.rssm.initial(batch.shape[0], self.dtype), torch.zeros_like(batch.action[:, 0]))
        before = torch.cat([context.action[:, None], batch.action[:, :-1]], 1)  # [B, T, A]
        latent, stats = self.rssm.observe(context.latent, embed, before, batch.is_first)
        return Posterior(embed, latent, stats)

    def predict(self, latent: Latent) -> tuple[dict[str, Prediction], Any, Any]:
        """Predict observations, reward and continuation from latents ``[..., D]``, ``[..., S, C]``."""
        feature = latent.feature  # [..., F]
        given = {part: feature.detach() if part in self.stopped else feature for part in ("reward", "cont")}
        decoded = self.decoder(latent.map(Tensor.detach) if "decoder" in self.stopped else latent)
        return decoded, self.reward(given["reward"]), self.cont(given["cont"])

    def prediction_losses(self, rows: Batch, latent: Latent) -> dict[str, Tensor]:
        """Return -ln p of rewards, continuations and observations ``[B, T]`` each, given latents ``[B, T, ...]``.

        The learned continuation includes the discount, so imagination applies no other.
        """
        decoded, reward, cont = self.predict(latent)
        alive = (~rows.is_terminal).float() * self.discount  # [B, T]
        terms = {
            "reward": reward.loss(self.transform(rows.reward)),
            "cont": cont.loss(alive),
            **{f"reconstruction/{k}": prediction.loss(rows.obs[k]) for k, prediction in decoded.items()},
        }
        if self.mask is not None:
            terms["mask"] = self.mask.loss(latent.feature, rows.obs[MASK], rows.is_last)
        return terms

    @property
    def legal(self) -> Legal | None:
        """A function from features ``[..., F]`` to the predicted masks ``[..., A]``; None: all actions are legal."""
        return None if self.mask is None else self.mask.legal

    @torch.no_grad()
    def mask_metrics(self, rows: Batch, latent: Latent) -> Metrics:
        """Return which share of illegal classes is predicted to be legal, and of legal ones to be illegal."""
        if self.mask is None:
            return {}
        predicted, legal = self.mask.legal(latent.feature), rows.obs[MASK]  # [B, T, A]
        has_action = ~rows.is_last.unsqueeze(-1)
        pairs = {"false_legal": (~legal & has_action, predicted), "false_illegal": (legal & has_action, ~predicted)}
        return {
            f"train/mask_{name}": (classes & wrong).sum() / classes.sum().clamp(min=1)
            for name, (classes, wrong) in pairs.items()
        }


Reward = Callable[[Dream], Tensor]
"""A function from imagined trajectories to the rewards of their states ``[H + 1, B, T]``."""


class LatentPolicy:
    """Filters observations into latents and acts from them, by the parts that ``learner`` has at that moment."""

    def __init__(self, learner: Any, noisy: bool = False) -> None:
        """``learner`` has ``world``, ``actor``, ``acting`` and ``pack``; if ``noisy``, ``noise`` for ``disturbed``."""
        self.learner = learner
        self.noisy = noisy

    @property
    def actor(self) -> Actor:
        """The policy's head."""
        return self.learner.actor

    @property
    def width(self) -> int:
        """A, the width of flat actions."""
        return max((s.stop for s in self.actor.slices.values()), default=0)

    def initial(self, num_envs: int) -> Context:
        """Return the initial latent and actions of zeros, for ``num_envs`` environments."""
        latent = self.learner.world.rssm.initial(num_envs, self.learner.world.dtype)
        return Context(latent, torch.zeros(num_envs, self.width, device=latent.deter.device))

    def decided(self, step: Step, state: Context, mode: Mode) -> tuple[Latent, JointDistribution]:
        """Return the latent of the rows, ``[N, ...]``, and the distribution of actions in it."""
        device, world = state.action.device, self.learner.world
        reward, is_first, is_terminal = (
            x.to(device, non_blocking=True) for x in (step.reward, step.is_first, step.is_terminal)
        )  # [N]
        embed = world.embed(step.obs_on(device), reward, is_terminal)  # [N, E]
        rows = (embed.unsqueeze(1), state.action.unsqueeze(1), is_first.unsqueeze(1))  # [N, 1, ...]
        latent = world.rssm.observe(state.latent, *rows)[0].map(lambda x: x[:, 0])
        legal = step.obs.get(MASK)
        masks = () if legal is None else (legal.to(device, non_blocking=True),)  # [N, A]
        return latent, self.learner.acting(mode)(latent.feature, *masks)

    def tell(self, step: Step, state: Context) -> Told:
        return Told(*self.decided(step, state, "eval"))

    @torch.no_grad()
    def act(self, step: Step, state: Context, mode: Mode) -> tuple[Tensor, Context]:
        """Return ``(action [N, A] on the CPU, state)``. ``eval`` takes the action's mode, but samples the latent too.

        Samples of a normal distribution are clipped to [-1, 1] before they are stored, as environments and the world
        model (``nn/rssm.py``) clip them too.
        """
        latent, policy = self.decided(step, state, mode)
        action = policy.sample() if mode != "eval" else policy.mode()  # [N, A]
        if self.noisy and mode != "eval":
            action = policy.disturbed(action, self.learner.noise)
        action = action.clamp(-1, 1)
        return action.cpu(), Context(latent, action)

    def override(self, state: Context, action: Tensor) -> Context:
        return state._replace(action=action.to(state.action.device, non_blocking=True))

    def extras(self, state: Context) -> dict[str, Tensor]:
        """Return the latent as columns, to be stored with the row that led to it."""
        return {k: v.cpu() for k, v in self.learner.pack(state.latent).items()}


class Dreamer(Algorithm):
    """What all Dreamers have: a world model to look into."""

    world: WorldModel
    actor: Actor
    critic: TwoHotHead | NumberHead
    obs_spec: dict[str, ObsPart]
    samples: int = 1
    """Posterior samples of each row."""

    def acting(self, mode: Mode) -> Actor:
        """Return the policy's head that acts in ``mode``: the same in all of them, but for subclasses."""
        return self.actor

    def pack(self, latent: Latent) -> dict[str, Tensor]:
        """Return the columns that are stored with the rows; none by default."""
        return {}

    @torch.no_grad()
    def dream(self, batch: Batch, context: int) -> dict[str, Tensor]:
        """Observe ``context`` rows of a batch ``[B, T]``, and imagine the others under its actions.

        Nothing is trained, and no latent is stored. To imagine under other actions, replace ``batch.action``. It may
        have more rows than the batch, ``[B, T + n, A]``: then n more are imagined, where the action of the last row of
        the batch counts too.

        Args:
            batch: whole episodes from their first rows on, or parts of such.
            context: from 1 to T; with T and no more actions, all rows are observed and none is imagined.

        Returns:
            Predictions ``[B, T, ...]``, or ``[B, T + n, ...]``, by name: observations in their own units (class
            probabilities if categorical) by :func:`~reverie.algos.base.dreamt_name`, ``reward``, ``cont`` (the
            probability to continue), ``inside/deter`` and ``inside/stoch`` (the latents) and ``inside/value`` (their
            value by the critic).

        Raises:
            ConfigError: ``context`` is not a whole number in 1 ... T.
            DataError: the actions have another shape.
        """
        rows = batch.shape[1]
        if not 1 <= context <= rows:
            raise ConfigError(f"context = {context}: expected a whole number from 1 to {rows}, the rows of the batch.")
        found, count, width = batch.action.shape, batch.shape[0], LatentPolicy(self).width
        if len(found) != 3 or (found[0], found[2]) != (count, width) or found[1] < rows:
            raise DataError(
                f"batch.action has shape {list(found)}: expected [{count}, {rows}, {width}], or more rows to imagine "
                "on. Actions are one-hot where they are discrete, and in [-1, 1] where they are continuous."
            )
        batch = batch.to(self.device)
        latent = self.world.observe(batch.rows(0, context)).latent  # [B, context, ...]
        actions = batch.action[:, context - 1 : -1]  # [B, T - context, A]
        if actions.shape[1]:
            unseen = open_loop(self.world.rssm, latent.map(lambda x: x[:, -1]), actions)
            latent = Latent(*(torch.cat(pair, 1) for pair in zip(latent, unseen, strict=True)))  # [B, T, ...]
        return self.described(latent)

    def state_value(self, told: Told) -> Tensor:
        return self.judged(told.seen)

    def judged(self, latent: Latent) -> Tensor:
        """Return the critic's values ``[...]`` of latents ``[..., D]``."""
        return self.critic(latent.feature).mean()

    @torch.no_grad()
    def described(self, latent: Latent) -> dict[str, Tensor]:
        """Return what the networks say of latents ``[B, T, ...]``, by the names of :meth:`dream`."""
        inside = {"deter": latent.deter, "stoch": latent.stoch, "value": self.judged(latent)}
        return self.decoded(latent) | self.outcome(latent) | {f"{INSIDE}{k}": v for k, v in inside.items()}

    @torch.no_grad()
    def decoded(self, latent: Latent) -> dict[str, Tensor]:
        """Return the observations that are predicted from latents ``[..., D]``, by the names of :meth:`dream`."""
        return {dreamt_name(k): v.value() for k, v in self.world.decoder(latent).items()} | self.predicted_mask(latent)

    @torch.no_grad()
    def predicted_mask(self, latent: Latent) -> dict[str, Tensor]:
        """Return the masks ``[..., A]`` that are predicted from latents, by their name; nothing without masks."""
        return {} if self.world.mask is None else {dreamt_name(MASK): self.world.mask.legal(latent.feature).float()}

    @torch.no_grad()
    def outcome(self, latent: Latent) -> dict[str, Tensor]:
        """Return ``reward`` and ``cont`` of latents ``[..., D]``, as :meth:`dream` does."""
        reward, cont = self.world.reward(latent.feature), self.world.cont(latent.feature)
        going_on = (cont.prob() / self.world.discount).clamp(max=1)  # the head learns it times the discount
        return {"reward": self.world.transform.inverse(reward.mean()), "cont": going_on}

    def filter_batch(self, batch: Batch) -> tuple[Batch, Posterior]:
        """Return the rows that a batch trains on, ``samples`` times, and their posterior."""
        raise missing_method_error(self, "filter_batch")

    def world_model_loss(self, batch: Batch, post: Posterior) -> tuple[dict[str, Tensor], Metrics]:
        """Return the world model's loss terms of rows with their posterior, and metrics."""
        raise missing_method_error(self, "world_model_loss")

    @torch.no_grad()
    def model_losses(self, batch: Batch) -> Metrics:
        """Return ``loss/NAME`` of the world model and its probes on a batch, as an update does. Nothing is trained."""
        rows, post = self.filter_batch(batch.to(self.device))
        terms, _ = self.world_model_loss(rows, post)
        found = {f"loss/{k}": importance_bound(v, self.samples).mean() for k, v in terms.items()}
        if isinstance(probe := getattr(self, "probe", None), Probe):
            _, metrics = probe.loss(post.latent.feature, rows.obs, self.samples)
            found |= {k: v for k, v in metrics.items() if k.startswith("loss/")}
        return found

    def report(self, batch: Batch, sequences: int = 6) -> dict[str, np.ndarray]:
        """Return videos of open-loop predictions of a few windows: the first half observed, the second imagined."""
        images = {k: part for k, part in self.obs_spec.items() if part.kind == "image"}
        if not images:
            return {}
        rows, seen = batch.map(lambda x: x[:sequences]), batch.shape[1] // 2
        own = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=own):  # a report must not change the random numbers of later updates
            predicted = self.dream(rows, seen)
        return {
            f"report/{k}": stacked_video(rows.obs[k], predicted[dreamt_name(k)], part.low, part.high, seen)
            for k, part in images.items()
            if dreamt_name(k) in predicted
        }


def scales_of(terms: Mapping[str, Tensor], scales: Config) -> dict[str, float]:
    """Return the scale of each loss term. ``NAME/KEY`` has that of ``NAME``, which may depend on the key."""
    known, parts = scales.to_dict(), {name: name.partition("/") for name in terms}
    return {name: weight_of(known[term], key) for name, (term, _, key) in parts.items()}


# ---------------------------------------------------------------------- DreamerV1 and V2


@dataclass(frozen=True, kw_only=True)
class ModelScales(Config):
    """Weights of the world model's loss terms."""

    reconstruction: Annotated[Weights, AtLeast(0)] = 1.0
    """Weight of -ln p of each observation key; or weights by regular expression, of which the first that matches the
    whole key counts: {camera: 0.5, "joints/.*": 10}. Other keys have 1."""
    vectors: Annotated[float, AtLeast(0)] = 1.0
    """Factor of that weight for vectors."""
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
    rewards: Literal["identity", "sign", "tanh", "log1p"] = "identity"
    """Transform of the rewards that are learned from. Stored rows and scores keep the original ones."""
    noise: Annotated[Rate, AtLeast(0)] = 0.0
    """Exploration noise beside the policy's own: the deviation of a normal that is added to continuous
    actions, and the probability of a random discrete one. It may be a ramp, such as [[0, 0.3], [1e6, 0.1]]."""
    learn_cont: bool = True
    """Learn when episodes end. False: imagined ones never do, and gamma alone discounts them."""
    scales: ModelScales = field(default_factory=ModelScales)
    """Weights of the world model's loss terms."""
    reward_support: tuple[float, ...] = ()
    """Rewards, before their transform, over which the reward head predicts a distribution; a reward is learned as the
    nearest of them. Empty: the head predicts the mean of a normal."""
    kl: KLLoss = field(default_factory=Balanced)
    """The loss between posterior and prior: balanced(balance=0.8, nats=0) of DreamerV2, or free(nats=3) of V1."""
    rssm: DenseRSSMConfig = field(default_factory=DenseRSSMConfig)
    """Sizes, cell and latents of the recurrent state-space model."""
    encoder: EncoderField = field(default_factory=DenseEncoderConfig)
    """Builds the encoder: this one, or any object with ``build(obs_spec)`` (``nn/encoder.py``)."""
    decoder: DecoderField = field(default_factory=DenseDecoderConfig)
    """Builds the decoder: this one, or any object with ``build(obs_spec, deter, stoch)``."""
    reward: DenseHeadConfig = field(default_factory=DenseHeadConfig)
    """Layers of the reward head."""
    cont: DenseHeadConfig = field(default_factory=DenseHeadConfig)
    """Layers of the continuation head."""
    actor: DenseActorConfig = field(default_factory=DenseActorConfig)
    """Layers of the policy, and its distribution."""
    critic: DenseHeadConfig = field(default_factory=DenseHeadConfig)
    """Layers of the value head."""
    model_optim: GlobalAdamConfig = field(default_factory=GlobalAdamConfig)
    """Optimiser of the world model."""
    actor_optim: GlobalAdamConfig = field(default_factory=GlobalAdamConfig)
    """Optimiser of the policy."""
    critic_optim: GlobalAdamConfig = field(default_factory=GlobalAdamConfig)
    """Optimiser of the value head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        AtLeast(self.least_horizon).check("horizon", self.horizon)

    def build_heads(self, width: int) -> tuple[nn.Module, nn.Module]:
        cont = BernoulliHead(width, self.cont) if self.learn_cont else ConstantHead(self.learned_discount)
        support = self.transform(torch.tensor(self.reward_support))
        reward = SupportHead(width, self.reward, support) if len(support) else NumberHead(width, self.reward)
        return reward, cont

    @property
    def transform(self) -> RewardTransform:
        return REWARDS[self.rewards]

    @property
    def least_horizon(self) -> int:
        """The shortest H: an action needs a reward after it that counts."""
        return 2


class DenseDreamer(Dreamer):
    """What DreamerV1 and V2 have in common: the world model and its loss."""

    cfg: DenseDreamerConfig
    extra_spec: Mapping[str, Column]
    optims: dict[str, Optim]

    def __init__(self, obs_spec: ObsSpec, cfg: DenseDreamerConfig, device: torch.device) -> None:
        super().__init__(cfg.graph)
        self.cfg = cfg
        let_change(self, "noise", cfg.noise)
        self.obs_spec: dict[str, ObsPart] = dict(obs_spec)
        self.device: torch.device = device
        self.extra_spec = {}
        self.window: Window = Window(batch=cfg.batch_size, length=cfg.batch_length, crosses_episodes=True)

    def exploration(self, env_steps: int) -> float | None:
        noise = self.cfg.noise
        if not noise:
            return None
        return noise.at(env_steps) if isinstance(noise, Ramp) else noise

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        """The weighted sum of the terms' means; with several samples, the bound of the sums of terms."""
        scales = scales_of(terms, self.cfg.scales)
        for key in terms:
            part = self.obs_spec.get(key.removeprefix("reconstruction/"))
            if part is not None and part.kind == "vector":
                scales[key] *= self.cfg.scales.vectors
        if self.samples > 1:
            weighted = torch.stack([scales[k] * v for k, v in terms.items()]).sum(0)  # [B * samples, T]
            return importance_bound(weighted, self.samples).mean()
        return torch.stack([scales[k] * v.mean() for k, v in terms.items()]).sum()

    def filter_batch(self, batch: Batch) -> tuple[Batch, Posterior]:
        return repeated(batch, self.samples), self.world.observe(batch, None, self.samples)

    def world_model_loss(self, rows: Batch, post: Posterior) -> tuple[dict[str, Tensor], Metrics]:
        """Hafner et al. (2021), equation 2, and (2020), equation 10: ``[B, T]`` each; the KL loss is ``[]``.

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
        """-ln p of all that was predicted in each window, ``[B]``: a priority for the replay."""
        rows = [v.detach().mean(1) for k, v in terms.items() if k != "kl"]  # [B] each
        return torch.stack(rows).sum(0).view(-1, self.samples).mean(1).clamp(min=0)


def repeated(batch: Batch, samples: int) -> Batch:
    """Return a batch ``[B * samples, T]`` with each of its windows so many times, one after the other."""
    return batch if samples == 1 else batch.map(lambda x: x.repeat_interleave(samples, 0))
