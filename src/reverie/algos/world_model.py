"""The world model shared by the Dreamers: encoder, recurrent state-space model, decoder, reward and continuation.

The papers differ by the parts that are passed in, never by a flag in here.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from reverie.core.types import Batch, Mode, Obs, Step
from reverie.nn.decoder import Prediction
from reverie.nn.distributions import Bernoulli, TwoHot
from reverie.nn.encoder import encoded
from reverie.nn.fused import draw
from reverie.nn.heads import Actor, BernoulliHead, TwoHotHead
from reverie.nn.inputs import check_unchanged, writes
from reverie.nn.rssm import RSSM, Chooser, Latent


class Context(NamedTuple):
    """The start of a sequence: the latent and the action before its first row."""

    latent: Latent  # [B, ...]
    action: Tensor  # [B, A]


class Posterior(NamedTuple):
    """The world model's filtered latents of a batch."""

    embed: Tensor  # [B, T, E]
    latent: Latent  # [B, T, ...]
    probs: Tensor  # [B, T, S, C]


class WorldModel(nn.Module):
    """The networks that model observations, dynamics, rewards and ends of episodes."""

    def __init__(
        self,
        encoder: nn.Module,
        rssm: RSSM,
        decoder: nn.Module,
        reward: TwoHotHead,
        cont: BernoulliHead,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.rssm = rssm
        self.decoder = decoder
        self.reward = reward
        self.cont = cont
        self.dtype = dtype

    def embed(self, obs: Obs) -> Tensor:
        """Encode observations ``[..., *shape]`` to ``[..., E]``."""
        return encoded(self.encoder, obs, self.dtype)

    def observe(self, batch: Batch, context: Context | None = None, choose: Chooser = draw) -> Posterior:
        """Filter a batch ``[B, T]`` that starts from ``context``; None: from the initial latent."""
        if context is None:
            context = Context(self.rssm.initial(batch.shape[0], self.dtype), torch.zeros_like(batch.action[:, 0]))
        before = torch.cat([context.action[:, None], batch.action[:, :-1]], 1)  # [B, T, A]
        embed = self.embed(batch.obs)  # [B, T, E]
        latent, probs = self.rssm.observe(context.latent, embed, before, batch.is_first, choose)
        return Posterior(embed, latent, probs)

    def predict(self, latent: Latent) -> tuple[dict[str, Prediction], TwoHot, Bernoulli]:
        """Predict observations, reward and continuation from latents ``[..., D]``, ``[..., S, C]``.

        Raises:
            ConfigError: the decoder changed the latents in place.
        """
        feature, before = latent.feature, writes(latent._asdict())  # [..., F]
        decoded = self.decoder(latent)
        name = f"the decoder {type(self.decoder).__name__}"
        check_unchanged(name, latent._asdict(), before, "The actor, the critic and the replay read it as well.")
        return decoded, self.reward(feature), self.cont(feature)


class PolicyState(NamedTuple):
    """The state that a latent policy carries from step to step."""

    latent: Latent  # [N, ...]
    action: Tensor  # [N, A]


class Dreaming(Protocol):
    """What a latent policy acts with: a learner, or any object that has its parts."""

    world: WorldModel
    actor: Actor

    def pack(self, latent: Latent) -> dict[str, Tensor]:
        """Return the columns that are stored with the rows."""
        ...


class LatentPolicy:
    """Filters observations into latents and acts from them, by the parts that ``learner`` has at that moment."""

    def __init__(self, learner: Dreaming) -> None:
        self.learner = learner

    @property
    def world(self) -> WorldModel:
        """The world model."""
        return self.learner.world

    @property
    def actor(self) -> Actor:
        """The policy's head."""
        return self.learner.actor

    @property
    def width(self) -> int:
        """A, the width of flat actions."""
        return max((s.stop for s in self.actor.slices.values()), default=0)

    def initial(self, num_envs: int) -> PolicyState:
        """Return the initial latent and actions of zeros, for ``num_envs`` environments."""
        latent = self.world.rssm.initial(num_envs, self.world.dtype)
        return PolicyState(latent, torch.zeros(num_envs, self.width, device=latent.deter.device))

    @torch.no_grad()
    def act(self, step: Step, state: PolicyState, mode: Mode) -> tuple[Tensor, PolicyState]:
        """Return ``(action [N, A] on the CPU, state)``. ``eval`` takes the action's mode, but samples the latent too.

        Samples of a normal distribution are clipped to [-1, 1] before they are stored, as environments and the world
        model (``nn/rssm.py``) clip them too.
        """
        device, world = state.action.device, self.world
        embed = world.embed(step.obs_on(device))  # [N, E]
        is_first = step.is_first.to(device, non_blocking=True)  # [N]
        latent = world.rssm.observe_step(state.latent, embed, state.action, is_first)
        policy = self.actor(latent.feature)
        action = (policy.sample() if mode == "explore" else policy.mode()).clamp(-1, 1)  # [N, A]
        return action.cpu(), PolicyState(latent, action)

    def override(self, state: PolicyState, action: Tensor) -> PolicyState:
        """Record that the caller executed ``action`` ``[N, A]`` instead."""
        return state._replace(action=action.to(state.action.device, non_blocking=True))

    def extras(self, state: PolicyState) -> dict[str, Tensor]:
        """Return the latent as columns, to be stored with the row that led to it."""
        return {k: v.cpu() for k, v in self.learner.pack(state.latent).items()}
