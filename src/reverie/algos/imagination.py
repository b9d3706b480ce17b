"""Roll a policy, or recorded actions, through the world model."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from reverie.core.accelerate import accelerated
from reverie.nn.heads import Actor, JointDistribution
from reverie.nn.rssm import Latent, LatentDraw, StateSpaceModel

ActionDraw = Callable[[JointDistribution], Tensor]
"""A function from a policy's distribution to an action ``[..., A]``: a sample, or the mode."""
Legal = Callable[[Tensor], Tensor]
"""A function from features ``[..., F]`` to masks of legal actions ``[..., A]``."""


class Dream(NamedTuple):
    """Imagined trajectories, each from a real first state. Time is the first axis, so each step is contiguous."""

    feature: Tensor  # [H+1, M, F]
    hidden: Tensor  # [H, M, units], the actor's last hidden layer for all features but the last; with gradient
    action: Tensor  # [H+1, M, A]
    legal: Tensor | None = None  # [H+1, M, A] bool, the predicted masks of legal actions; None: all are


@accelerated
@torch.no_grad()
def imagine(
    rssm: StateSpaceModel, actor: Actor, start: Latent, horizon: int, draw_z: LatentDraw | None = None,
    draw_a: ActionDraw | None = None, legal: Legal | None = None,
) -> Dream:  # fmt: skip
    """Follow the actor for ``horizon`` steps from latents ``[M, ...]``, among actions that are predicted to be legal.

    No gradient goes through time, which likelihood-ratio losses of the actor do not need. But the actor's last hidden
    layer of each step is kept with its gradient. ``draw_z`` and ``draw_a`` draw latents and actions; None: samples.
    """
    hidden, actions, cell = [], [], rssm.cell(start.deter.dtype)
    features, allowed = start.deter.new_empty(horizon + 1, len(start.deter), rssm.feature_width), list[Tensor]()
    start.write_feature(features[0])
    for step, now in enumerate(features):
        with torch.enable_grad():
            hidden.append(actor.mlp(now))  # [M, units]
        allowed += [] if legal is None else [legal(now)]  # [M, A]
        policy = actor.heads(hidden[-1], *allowed[-1:])
        actions.append(policy.sample() if draw_a is None else draw_a(policy))  # [M, A]
        if step < horizon:
            rssm.dream_step(now, actions[-1], features[step + 1], cell, draw_z)
    with torch.enable_grad():
        kept = torch.stack(hidden[:-1])  # [H, M, units]
    return Dream(features, kept, torch.stack(actions), torch.stack(allowed) if allowed else None)


def imagine_through_time(
    rssm: StateSpaceModel, actor: Actor, start: Latent, horizon: int, draw_z: LatentDraw | None = None,
    draw_a: ActionDraw | None = None, through_policy: bool = False, legal: Legal | None = None,
) -> Dream:  # fmt: skip
    """Do :func:`imagine` with the gradient of every step with respect to the actions before it.

    Hafner et al. (2020), algorithm 1: the policy reads each state without gradient, so that it reaches the actor only
    through what its actions lead to. With ``through_policy`` it reads them with gradient.
    """
    latent, cell = start, rssm.cell(start.deter.dtype)
    features, hidden, actions, allowed = [], [], [], list[Tensor]()
    for step in range(horizon + 1):
        features.append(latent.feature)  # [M, F]
        hidden.append(actor.mlp(features[-1] if through_policy else features[-1].detach()))  # [M, units]
        allowed += [] if legal is None else [legal(features[-1])]  # [M, A]
        policy = actor.heads(hidden[-1], *allowed[-1:])
        actions.append(policy.rsample() if draw_a is None else draw_a(policy))  # [M, A]
        if step < horizon:
            latent = rssm.imagine_step(latent, actions[-1], cell, draw_z)
    legality = torch.stack(allowed) if allowed else None
    return Dream(torch.stack(features), torch.stack(hidden[:-1]), torch.stack(actions), legality)


@torch.no_grad()
def open_loop(rssm: StateSpaceModel, start: Latent, actions: Tensor, draw_z: LatentDraw | None = None) -> Latent:
    """Return the prior's latents ``[B, T, ...]`` under actions ``[B, T, A]``, each taken before its row."""
    latent, out, cell = start, [], rssm.cell(start.deter.dtype)
    for action in actions.unbind(1):
        latent = rssm.imagine_step(latent, action, cell, draw_z)
        out.append(latent)
    return Latent(torch.stack([x.deter for x in out], 1), torch.stack([x.stoch for x in out], 1))


def stacked_video(truth: Tensor, prediction: Tensor, low: float, high: float, seen: int) -> np.ndarray:
    """Return a video: truth above prediction above error (grey is 0), the sequences side by side.

    A line at the top, ``max(1, H // 16)`` high, is dark while rows are observed and bright while they are imagined.

    ``truth`` and ``prediction`` are pixels ``[B, T, H, W, C]`` from ``low`` (black) to ``high`` (white); the model has
    observed the first ``seen`` rows. The video is ``[T, L + 3 * H, B * W, C]`` uint8, L being the line's height.
    """
    real, guess = ((x.float().cpu() - low) / (high - low) for x in (truth, prediction))  # [B, T, H, W, C]
    imagined = (torch.arange(real.shape[1]) >= seen).float()  # [T]
    line = imagined[:, None, None, None].expand_as(real[:, :, : max(1, real.shape[2] // 16)])  # [B, T, L, W, C]
    rows = torch.cat([line, real, guess, (guess - real + 1) / 2], 2)  # [B, T, L + 3 * H, W, C]
    pixels = (rows.clamp(0, 1) * 255).to(torch.uint8)
    return pixels.permute(1, 2, 0, 3, 4).flatten(2, 3).numpy()
