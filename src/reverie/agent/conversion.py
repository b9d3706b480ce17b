"""Conversion between the observations and actions of environments and the tensors of networks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor

from reverie.core.action_codec import ActionCodec
from reverie.core.spaces import classes_of, column, iter_leaves
from reverie.core.types import QValues, Step
from reverie.envs.wrappers import FlatObs
from reverie.nn.functional import ILLEGAL


def to_numpy(values: Tensor) -> np.ndarray:
    """Return a tensor as float32 on the CPU."""
    out: np.ndarray = values.detach().float().cpu().numpy()
    return out


def obs_to_step(flat: FlatObs, first: np.ndarray, reward: Any) -> Step:
    """Return a copy of flat observations ``[N, ...]`` as rows, with ``first`` as their ``is_first``."""
    obs = {key: torch.from_numpy(np.array(x, order="C")) for key, x in flat.items()}
    reward = torch.as_tensor(reward, dtype=torch.float32).expand(len(first))
    none = torch.zeros(len(first), dtype=torch.bool)
    return Step(obs=obs, reward=reward, is_first=torch.from_numpy(first), is_last=none, is_terminal=none)


def action_statistics(choice: Any, space: spaces.Space[Any]) -> dict[str, Tensor]:
    """Return the statistics of a ``PolicyOutput`` for ``space``, ``[N, ...]`` each: see ``Agent.distribution``."""
    name, blank = "probabilities", 0.0
    if isinstance(choice, QValues):
        name, blank = "values", -math.inf
        flat = choice.values.masked_fill(choice.values <= ILLEGAL, -math.inf)
        std = torch.zeros_like(flat)
    elif isinstance(choice, Tensor):
        flat, std = choice, torch.zeros_like(choice)
    else:
        flat, std = choice.summary()
    flat, std = (x.float().reshape(-1, x.shape[-1]) for x in (flat, std))  # [N, A]
    cuts, statistics = ActionCodec(space).spec.slices(), {}
    for path, leaf in iter_leaves(space):
        cut = cuts["/".join(map(str, path)) or "action"]
        if isinstance(leaf, spaces.Box):
            half, middle = (torch.from_numpy(x).to(flat).reshape(-1) for x in action_bounds(leaf)[2:])
            statistics[column("mean", path)] = (flat[:, cut] * half + middle).reshape(-1, *leaf.shape)
            statistics[column("std", path)] = (std[:, cut] * half).reshape(-1, *leaf.shape)
            continue
        counts = classes_of(leaf)[0]
        parts = torch.split(flat[:, cut], counts.reshape(-1).tolist(), -1)
        max_classes = int(counts.max())
        padded = [F.pad(part, (0, max_classes - part.shape[-1]), value=blank) for part in parts]
        statistics[column(name, path)] = torch.stack(padded, 1).reshape(-1, *counts.shape, max_classes)
    return statistics


def action_bounds(leaf: Any) -> list[np.ndarray]:
    """Return the lower and upper bounds of continuous actions, half of their range, and the midpoint."""
    low, high = (bound.astype(np.float64) for bound in (leaf.low, leaf.high))
    return [low, high, high / 2 - low / 2, high / 2 + low / 2]
