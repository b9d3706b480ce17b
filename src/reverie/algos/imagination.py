"""Roll a policy, or recorded actions, through the world model."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from reverie.core.kernel_dispatch import accelerated
from reverie.nn.actor import DreamerActor
from reverie.nn.distributions import JointDistribution
from reverie.nn.state_space import Latent, StateSpaceModel

Legal = Callable[[Tensor], Tensor]
"""A function from features ``[..., F]`` to masks of legal actions ``[..., A]``."""


class LatentModel(Protocol):
    """The parts of a world model that imagination uses."""

    @property
    def rssm(self) -> StateSpaceModel: ...
    @property
    def predict_mask(self) -> Legal | None: ...


class Trajectory(NamedTuple):
    """Imagined trajectories: one from each row ``[B, T]``, whose H + 1 states are the leading axis."""

    feature: Tensor  # [H + 1, B, T, F]
    action: Tensor  # [H + 1, B, T, A]
    policy: JointDistribution  # pi(a | s) at the first K states [K, B, T, A], with gradient, though not to the states
    legal: Tensor | None = None  # [H + 1, B, T, A] bool, the predicted masks of legal actions; None: all are


RewardFn = Callable[[Trajectory], Tensor]
"""A function from imagined trajectories to the rewards of their states ``[H + 1, B, T]``."""


@accelerated
def imagine(
    world: LatentModel,
    actor: DreamerActor,
    start: Latent,
    horizon: int,
    policies: int | None = None,
    *,
    through_time: bool = False,
    through_policy: bool = False,
) -> Trajectory:
    """Follow the actor for ``horizon`` steps from latents ``[B, T, ...]``, among actions predicted to be legal.

    By default no gradient flows through time; likelihood-ratio losses of the actor need none. With ``through_time``,
    each step is differentiable with respect to earlier actions: Hafner et al. (2020), algorithm 1. The policy's inputs
    are detached states, so the gradient reaches the actor only through the effects of its actions. With
    ``through_policy``, they are not detached. ``policies``: K, the number of states at which the policy is returned
    with gradient; None: all but the last.
    """
    features, actions, masks = [], [], list[Tensor]()
    with torch.set_grad_enabled(through_time and torch.is_grad_enabled()):
        latent = start.map(lambda x: x.flatten(0, 1))
        for step in range(horizon + 1):
            features.append(latent.feature)  # [M, F]
            masks += [] if world.predict_mask is None else [world.predict_mask(features[-1])]  # [M, A]
            policy = actor(features[-1] if through_policy else features[-1].detach(), *masks[-1:])
            sample = policy.rsample if through_time else policy.sample
            actions.append(sample() if actor.draw is None else actor.draw(policy))  # [M, A]
            if step < horizon:
                latent = world.rssm.imagine(latent, actions[-1])
    lead = (horizon + 1, *start.deter.shape[:-1])  # H + 1, B, T
    feature, action = torch.stack(features).view(*lead, -1), torch.stack(actions).view(*lead, -1)
    legal = torch.stack(masks).view(*lead, -1) if masks else None
    count = horizon if policies is None else policies
    return Trajectory(feature, action, actor(feature[:count].detach(), None if legal is None else legal[:count]), legal)


@torch.no_grad()
def open_loop(rssm: StateSpaceModel, start: Latent, actions: Tensor) -> Latent:
    """Return the prior's latents ``[B, T, ...]`` under actions ``[B, T, A]``, each taken before its row."""
    latent, latents = start, []
    for action in actions.unbind(1):
        latent = rssm.imagine(latent, action)
        latents.append(latent)
    return Latent(torch.stack([x.deter for x in latents], 1), torch.stack([x.stoch for x in latents], 1))


def comparison_video(truth: Tensor, prediction: Tensor, low: float, high: float, context: int) -> np.ndarray:
    """Return a video: truth above prediction above error (gray is 0), the sequences side by side.

    A line at the top, ``max(1, H // 16)`` high, is dark while rows are observed and bright while they are imagined.

    ``truth`` and ``prediction`` are pixels ``[B, T, H, W, C]`` from ``low`` (black) to ``high`` (white); the model has
    observed the first ``context`` rows. The video is ``[T, L + 3 * H, B * W, C]`` uint8, L being the line's height.
    """
    real, guess = ((x.float().cpu() - low) / (high - low) for x in (truth, prediction))  # [B, T, H, W, C]
    imagined = (torch.arange(real.shape[1]) >= context).float()  # [T]
    line = imagined[:, None, None, None].expand_as(real[:, :, : max(1, real.shape[2] // 16)])  # [B, T, L, W, C]
    rows = torch.cat([line, real, guess, (guess - real + 1) / 2], 2)  # [B, T, L + 3 * H, W, C]
    pixels = (rows.clamp(0, 1) * 255).to(torch.uint8)
    return pixels.permute(1, 2, 0, 3, 4).flatten(2, 3).numpy()
