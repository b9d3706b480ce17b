"""Inspection of TD-MPC2: its world model and policy with the interface of the Dreamers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from reverie.algos.base import INTERNAL_PREFIX
from reverie.algos.dreamer import Dreamer
from reverie.algos.world_model import Context, Posterior
from reverie.core.errors import ConfigError
from reverie.core.types import Batch
from reverie.nn.distributions import JointDistribution
from reverie.nn.preprocess import Preprocessor
from reverie.nn.state_space import Latent
from reverie.objectives.transforms import IDENTITY, RewardTransform


class LatentWorld:
    """The world model with the interface of ``world_model.py: WorldModel`` and its RSSM, for inspection.

    The deterministic part of its states is the latent z ``[..., L]``. The other part, ``[..., 1, 1]``, is the state's
    predicted reward, which depends on the previous latent and action. Images are not predicted.
    """

    predict_mask: None = None
    mask: None = None
    begins: bool = False

    def __init__(self, learner: InspectableWorldModel) -> None:
        self.learner = learner
        self.objective: Any = learner.objective
        self.rssm = self
        self.dtype: torch.dtype = learner.cfg.dtype
        self.discount: float = learner.cfg.discount
        self.feature_width: int = learner.cfg.networks.latent + 1

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the weights."""
        return self.objective.parameters()

    @property
    def transform(self) -> RewardTransform:
        """The scale of rewards in losses, if there is one."""
        scale = self.learner.preprocess.rewards
        if scale is None:
            return IDENTITY
        shift = getattr(scale, "shift", 0.0)
        return RewardTransform(lambda x: x * scale.multiplier + shift, lambda x: (x - shift) / scale.multiplier)

    def initial(self, num_envs: int, dtype: torch.dtype) -> Latent:
        """Return uninformative states ``[num_envs, ...]``, since no latent precedes the first row."""
        n = self.learner.cfg.networks
        z = torch.full((num_envs, n.latent), 1 / n.simplex, dtype=dtype, device=self.learner.device)
        return Latent(z, z.new_zeros(num_envs, 1, 1))

    def imagine(self, latent: Latent, action: Tensor) -> Latent:
        """Return the states ``[M, ...]`` after actions ``[M, A]``."""
        reward, z = self.objective.step(latent.deter, action)
        return Latent(z, self.transform.inverse(reward)[..., None, None].to(z.dtype))

    def p(self, h: Tensor) -> Tensor:
        return h  # nothing is sampled

    def stats_by_name(self, stats: Tensor) -> dict[str, Tensor]:
        return {}  # there are no distributions

    def most_likely(self, latent: Latent, stats: Tensor) -> Latent:
        return latent

    def observe(self, batch: Batch, context: Context | None = None) -> Posterior:
        """Encode rows ``[B, T]``; the reward of each is predicted from the row before it."""
        p, obs = self.learner.preprocess, batch.obs
        obs = obs if p.normalizer is None else p.normalizer(obs)
        if p.frames is not None:
            if context is not None:
                raise ConfigError(
                    f"algo.frame_stack = {p.frames.count}: stacked frames cannot be extracted piece by piece."
                )
            before = [(x[:, :1].expand(-1, p.frames.context, *x.shape[2:]), x) for x in (batch.is_first, *obs.values())]
            first, *stacks = (torch.cat(parts, 1) for parts in before)
            obs = p.frames(dict(zip(obs, stacks, strict=True)), first)
        z = self.objective.encoder(obs)  # [B, T, L]
        start = Context(Latent(z[:, 0], z), torch.zeros_like(batch.action[:, 0])) if context is None else context
        previous = torch.cat([start.latent.deter[:, None], z[:, :-1]], 1)
        action = torch.cat([start.action[:, None], batch.action[:, :-1]], 1)
        reward = self.transform.inverse(
            self.objective.value_distribution(self.objective.reward(previous, action)).mean()
        )  # [B, T]
        begun = batch.is_first.clone()
        begun[:, 0] |= context is None
        return Posterior(z, Latent(z, reward.masked_fill(begun, 0.0)[..., None, None].to(z.dtype)), z)


class LatentActor(NamedTuple):
    """The policy over features ``[..., L + 1]``, without planning, for inspection."""

    objective: Any
    slices: dict[str, slice]

    def __call__(self, feature: Tensor, legal: Tensor | None = None) -> JointDistribution:
        """Return the distribution of actions ``[..., A]``; all are legal, as they are continuous."""
        mean, log_std = self.objective.gaussian(feature[..., :-1])
        parts = {
            key: self.objective.distribution(mean[..., cut], log_std[..., cut]) for key, cut in self.slices.items()
        }
        return JointDistribution(dict(parts), self.slices)


class InspectableWorldModel(Dreamer):
    """The interface of a Dreamer, implemented by the networks of TD-MPC2."""

    cfg: Any
    objective: Any
    preprocess: Preprocessor
    slices: dict[str, slice]

    @property
    def world(self) -> LatentWorld:  # type: ignore[override]
        """The world model, for inspection."""
        return LatentWorld(self)

    @property
    def actor(self) -> LatentActor:  # type: ignore[override]
        """The policy that dreams follow."""
        return LatentActor(self.objective, self.slices)

    def latent_value(self, latent: Latent) -> Tensor:
        """Return the mean of all critics' values ``[...]`` of the policy's likeliest action."""
        z, o = latent.deter, self.objective
        action = o.distribution(*o.gaussian(z)).mode()
        return o.value_distribution(o.critic_logits(z, action)).mean().mean(0)

    @torch.no_grad()
    def describe_latent(self, latent: Latent) -> dict[str, Tensor]:
        """Return reward, continuation, latent and value of latents ``[B, T, ...]``, by the names of :meth:`dream`."""
        return self.predict_reward_and_cont(latent) | {
            f"{INTERNAL_PREFIX}deter": latent.deter,
            f"{INTERNAL_PREFIX}value": self.latent_value(latent),
        }

    @torch.no_grad()
    def decode(self, latent: Latent) -> dict[str, Tensor]:
        """Return nothing: there is no decoder."""
        return {}

    @torch.no_grad()
    def predict_reward_and_cont(self, latent: Latent) -> dict[str, Tensor]:
        """Return ``reward`` and ``cont``; without ``episodic``, episodes never end."""
        logit = self.objective.termination_logits(latent.deter)
        reward = latent.stoch[..., 0, 0].float()
        return {"reward": reward, "cont": torch.ones_like(reward) if logit is None else torch.sigmoid(-logit)}

    def report(self, batch: Batch, sequences: int = 6) -> dict[str, np.ndarray]:
        return {}
