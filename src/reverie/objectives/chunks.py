"""Chunks of actions: a policy proposes h actions for one observation, and takes them one after another.

Zhao, Kumar, Levine, Finn, "Learning fine-grained bimanual manipulation with low-cost hardware", RSS 2023,
arXiv:2304.13705; for values, Li, Zhou, Levine, "Reinforcement learning with action chunking", NeurIPS 2025.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from reverie.core.types import Batch, Obs
from reverie.objectives.td import obs_before


class Chunks(NamedTuple):
    """The chunks of h actions that begin at the first W = T - h rows of windows."""

    obs: Obs  # [B, W, ...], where they begin
    action: Tensor  # [B, W, h A], 0 where no action was taken
    is_taken: Tensor  # [B, W, h] bool, whether an action was taken in the episode in which the chunk begins


def split_chunks(batch: Batch, size: int) -> Chunks:
    """Return the chunks of ``size`` actions of a batch ``[B, T]``. The last row of an episode has no action."""
    is_taken = (~batch.is_last[:, :-1]).unfold(1, size, 1).cumprod(-1).bool()  # [B, W, h]
    action = batch.action[:, :-1].unfold(1, size, 1).transpose(-1, -2) * is_taken.unsqueeze(-1)  # [B, W, h, A]
    return Chunks(
        {key: x[:, : action.shape[1]] for key, x in obs_before(batch.obs).items()}, action.flatten(2), is_taken
    )
