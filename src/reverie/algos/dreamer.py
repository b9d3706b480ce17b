"""What all Dreamers share: settings that build a world model, a policy that acts from latents, and inspection."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from reverie.algos.base import INTERNAL_PREFIX, Algorithm, prediction_name
from reverie.algos.imagination import comparison_video, open_loop
from reverie.algos.settings import AlgorithmConfig
from reverie.algos.world_model import Context, Posterior, WorldModel
from reverie.core.bounds import AtLeast, PiecewiseLinear, ScheduledFloat
from reverie.core.config import Config
from reverie.core.errors import ConfigError, DataError, missing_method_error
from reverie.core.kernel_dispatch import accelerated
from reverie.core.specs import MASK_KEY, ObsPart, ObsSpec
from reverie.core.types import Batch, Metrics, Mode, PolicyOutput, Step
from reverie.nn.actor import DreamerActor
from reverie.nn.distributions import JointDistribution
from reverie.nn.heads import ScalarHead, TwoHotHead
from reverie.nn.probe import Probe
from reverie.nn.state_space import Latent
from reverie.objectives.kl import importance_bound
from reverie.objectives.transforms import IDENTITY, RewardTransform


@dataclass(frozen=True, kw_only=True)
class DreamerConfig(AlgorithmConfig):
    """Settings that all Dreamers share: the parts that make up the world model."""

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous", "discrete", "multi_discrete", "mixed"})
    human_fraction: ClassVar[float | None] = 0.0
    heads: ClassVar[frozenset[str]] = frozenset({"decoder", "reward", "cont"})
    """Names of the prediction heads. The setting ``grad_heads``, if it exists, lists those that train the latents."""

    exploration_noise: Annotated[ScheduledFloat, AtLeast(0)] = 0.0
    """Exploration noise in addition to the policy's randomness: standard deviation of Gaussian noise on continuous
    actions, and probability of a random discrete action. A schedule is possible, such as [[0, 0.3], [1e6, 0.1]]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        named = getattr(self, "grad_heads", ())
        if unknown := [part for part in named if part not in self.heads]:
            raise ConfigError(f"grad_heads = {named}: {unknown[0]!r} is none of decoder, reward, cont.")

    def needs_rewards(self, *, collected: bool) -> bool:
        return collected  # the world model alone learns without them

    def build_decoder(self: Any, obs_spec: ObsSpec) -> nn.Module:
        """Return the decoder, from latents to a dictionary of predicted observations."""
        return self.decoder.build(obs_spec, self.rssm.deter, self.rssm.stoch * self.rssm.classes)

    def build_heads(self, width: int) -> tuple[nn.Module, nn.Module]:
        """Return the heads of reward and continuation, for features of ``width`` numbers.

        The reward head returns a distribution with ``mean()`` and ``loss(value)``. The continuation head returns the
        distribution of (1 - terminal) * discount, with ``prob()`` and ``loss()``.
        """
        raise missing_method_error(self, "build_heads")

    def build_critic(self, width: int) -> nn.Module:
        """Return the value head, for features of ``width`` numbers; another one returns a distribution of its kind."""
        raise missing_method_error(self, "build_critic")

    @property
    def learned_discount(self: Any) -> float:
        """The discount that the learned continuation includes."""
        return self.discount

    @property
    def transform(self) -> RewardTransform:
        """The transform of rewards for learning."""
        return IDENTITY


class LatentPolicy:
    """Filters observations into latents and acts from them, with the current networks of ``learner``."""

    def __init__(self, learner: Any, noisy: bool = False) -> None:
        """``learner`` has ``world``, ``actor``, ``acting`` and ``pack``; ``noise`` too if ``noisy``."""
        self.learner = learner
        self.noisy = noisy

    @property
    def actor(self) -> DreamerActor:
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

    def action_distribution(self, step: Step, state: Context, mode: Mode) -> tuple[Latent, JointDistribution]:
        """Return the latent of the rows, ``[N, ...]``, and the distribution of actions in it."""
        device, world = state.action.device, self.learner.world
        reward, is_first, is_terminal = (
            x.to(device, non_blocking=True) for x in (step.reward, step.is_first, step.is_terminal)
        )  # [N]
        embed = world.embed(step.obs_on(device), reward, is_terminal)  # [N, E]
        rows = (embed.unsqueeze(1), state.action.unsqueeze(1), is_first.unsqueeze(1))  # [N, 1, ...]
        latent = world.rssm.observe(state.latent, *rows)[0].map(lambda x: x[:, 0])
        legal = step.obs.get(MASK_KEY)
        masks = () if legal is None else (legal.to(device, non_blocking=True),)  # [N, A]
        return latent, self.learner.actor_for(mode)(latent.feature, *masks)

    def inspect(self, step: Step, state: Context) -> PolicyOutput:
        return PolicyOutput(*self.action_distribution(step, state, "eval"))

    @torch.no_grad()
    def act(self, step: Step, state: Context, mode: Mode) -> tuple[Tensor, Context]:
        """Return ``(action [N, A] beside the rows, state)``. ``eval`` takes the mode, but still samples the latent.

        Samples of a normal distribution are clipped to [-1, 1] before they are stored, as environments and the world
        model (``nn/rssm.py``) clip them too.
        """
        after = self.choose(step, state, mode)
        return after.action.to(step.is_first.device), after

    @accelerated
    def choose(self, step: Step, state: Context, mode: Mode) -> Context:
        """Return the latent of the rows and the action chosen in it, on the learner's device: :meth:`act`."""
        latent, policy = self.action_distribution(step, state, mode)
        action = policy.sample() if mode != "eval" else policy.mode()  # [N, A]
        if self.noisy and mode != "eval":
            action = policy.add_exploration_noise(action, self.learner.noise)
        return Context(latent, action.clamp(-1, 1))

    def override(self, state: Context, action: Tensor) -> Context:
        return state._replace(action=action.to(state.action.device, non_blocking=True))

    def extras(self, state: Context) -> dict[str, Tensor]:
        """Return the latent as columns, to be stored with the row that led to it, on the learner's device."""
        columns: dict[str, Tensor] = self.learner.latent_columns(state.latent)
        return columns


class Dreamer(Algorithm):
    """A learner with a world model: the base class of all Dreamers."""

    cfg: Any
    world: WorldModel
    actor: DreamerActor
    critic: TwoHotHead | ScalarHead
    obs_spec: dict[str, ObsPart]
    has_heldout_losses = True
    samples: int = 1
    """Posterior samples of each row."""

    def exploration(self, env_steps: int) -> float | None:
        noise: ScheduledFloat = self.cfg.exploration_noise
        if not noise:
            return None
        return noise.value_at(env_steps) if isinstance(noise, PiecewiseLinear) else noise

    def actor_for(self, mode: Mode) -> DreamerActor:
        """Return the actor that acts in ``mode``: by default the same actor in every mode."""
        return self.actor

    def latent_columns(self, latent: Latent) -> dict[str, Tensor]:
        """Return the columns that are stored with the rows; none by default."""
        return {}

    @torch.no_grad()
    def dream(self, batch: Batch, context: int) -> dict[str, Tensor]:
        """Observe ``context`` rows of a batch ``[B, T]``, and imagine the rest under its actions.

        The states of observed rows are the most likely ones; imagined states are samples.
        Nothing is trained, and no latent is stored. To imagine under other actions, replace ``batch.action``. With n
        additional actions, ``[B, T + n, A]``, n more rows are imagined; the action of the batch's last row then counts
        too.

        Args:
            batch: episodes from their first rows on, or parts of episodes.
            context: from 1 to T. With T and no additional actions, all rows are observed and none is imagined.

        Returns:
            Predictions ``[B, T, ...]``, or ``[B, T + n, ...]``, by name: observations in their own units (class
            probabilities if categorical) by :func:`~reverie.algos.base.prediction_name`, ``reward``, ``cont`` (the
            probability to continue), ``inside/deter`` and ``inside/stoch`` (the latents) and ``inside/value`` (their
            value by the critic).

        Raises:
            ConfigError: ``context`` is not a whole number in 1 ... T.
            DataError: the actions have another shape.
        """
        rows = batch.shape[1]
        if not 1 <= context <= rows:
            raise ConfigError(f"context = {context}: expected a whole number from 1 to {rows}, the rows of the batch.")
        shape, count, width = batch.action.shape, batch.shape[0], LatentPolicy(self).width
        if len(shape) != 3 or (shape[0], shape[2]) != (count, width) or shape[1] < rows:
            raise DataError(
                f"batch.action has shape {list(shape)}: expected [{count}, {rows}, {width}], or additional rows to "
                "imagine. Actions are one-hot where they are discrete, and in [-1, 1] where they are continuous."
            )
        batch = batch.to(self.device)
        post = self.world.observe(batch.slice_time(0, context))
        latent = self.world.rssm.most_likely(post.latent, post.stats)  # [B, context, ...]
        actions = batch.action[:, context - 1 : -1]  # [B, T - context, A]
        if actions.shape[1]:
            unseen = open_loop(self.world.rssm, latent.map(lambda x: x[:, -1]), actions)
            latent = Latent(*(torch.cat(pair, 1) for pair in zip(latent, unseen, strict=True)))  # [B, T, ...]
        return self.describe_latent(latent)

    def state_value(self, output: PolicyOutput) -> Tensor:
        return self.latent_value(output.inputs)

    def latent_value(self, latent: Latent) -> Tensor:
        """Return the critic's values ``[...]`` of latents ``[..., D]``."""
        return self.critic(latent.feature).mean()

    @torch.no_grad()
    def describe_latent(self, latent: Latent) -> dict[str, Tensor]:
        """Return the predictions of all networks for latents ``[B, T, ...]``, by the names of :meth:`dream`."""
        inside = {"deter": latent.deter, "stoch": latent.stoch, "value": self.latent_value(latent)}
        return (
            self.decode(latent)
            | self.predict_reward_and_cont(latent)
            | {f"{INTERNAL_PREFIX}{k}": v for k, v in inside.items()}
        )

    @torch.no_grad()
    def decode(self, latent: Latent) -> dict[str, Tensor]:
        """Return the observations that are predicted from latents ``[..., D]``, by the names of :meth:`dream`."""
        decoded = {prediction_name(k): v.value() for k, v in self.world.decoder(latent).items()}
        return decoded | self.predicted_mask(latent)

    @torch.no_grad()
    def predicted_mask(self, latent: Latent) -> dict[str, Tensor]:
        """Return the masks ``[..., A]`` that are predicted from latents, by their name; nothing without masks."""
        return (
            {}
            if self.world.mask is None
            else {prediction_name(MASK_KEY): self.world.mask.legal(latent.feature).float()}
        )

    @torch.no_grad()
    def predict_reward_and_cont(self, latent: Latent) -> dict[str, Tensor]:
        """Return ``reward`` and ``cont`` of latents ``[..., D]``, as :meth:`dream` does."""
        reward, cont = self.world.reward(latent.feature), self.world.cont(latent.feature)
        going_on = (cont.prob() / self.world.discount).clamp(max=1)  # the head predicts continuation times discount
        return {"reward": self.world.transform.inverse(reward.mean()), "cont": going_on}

    def filter_batch(self, batch: Batch) -> tuple[Batch, Posterior]:
        """Return the rows that a batch trains on, ``samples`` times, and their posterior."""
        raise missing_method_error(self, "filter_batch")

    def world_model_loss(self, batch: Batch, post: Posterior) -> tuple[dict[str, Tensor], Metrics]:
        """Return the world model's loss terms of rows with their posterior, and metrics."""
        raise missing_method_error(self, "world_model_loss")

    @torch.no_grad()
    def heldout_losses(self, batch: Batch) -> Metrics:
        """Return ``loss/NAME`` of the world model and its probes on a batch, as an update does. Nothing is trained."""
        rows, post = self.filter_batch(batch.to(self.device))
        terms, _ = self.world_model_loss(rows, post)
        losses = {f"loss/{k}": importance_bound(v, self.samples).mean() for k, v in terms.items()}
        if isinstance(probe := getattr(self, "probe", None), Probe):
            _, metrics = probe.loss(post.latent.feature, rows.obs, self.samples)
            losses |= {k: v for k, v in metrics.items() if k.startswith("loss/")}
        return losses

    def report(self, batch: Batch, sequences: int = 6) -> dict[str, np.ndarray]:
        """Return videos of open-loop predictions of a few windows: the first half observed, the second imagined."""
        images = {k: part for k, part in self.obs_spec.items() if part.kind == "image"}
        if not images:
            return {}
        rows, context = batch.map(lambda x: x[:sequences]), batch.shape[1] // 2
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):  # a report must not change the random numbers of later updates
            predicted = self.dream(rows, context)
        return {
            f"report/{k}": comparison_video(rows.obs[k], predicted[prediction_name(k)], part.low, part.high, context)
            for k, part in images.items()
            if prediction_name(k) in predicted
        }


def scale_per_term(terms: Mapping[str, Tensor], scales: Config) -> dict[str, float]:
    """Return the scale of each loss term. ``NAME/KEY`` has the scale of ``NAME``, which may depend on the key.

    Then it is that of the first regular expression that matches the whole key, or 1 if none does.
    """
    scale_of: dict[str, float] = {}
    for name in terms:
        term, _, key = name.partition("/")
        scale = getattr(scales, term)
        if isinstance(scale, Mapping):
            scale = next((x for pattern, x in scale.items() if re.fullmatch(pattern, key)), 1.0)
        scale_of[name] = scale
    return scale_of
