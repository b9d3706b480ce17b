"""Frame stacking on the learner's side: stacks are made from rows that hold one frame each."""

from __future__ import annotations

import re
from dataclasses import replace

import torch
from torch import Tensor, nn

from reverie.core.errors import ConfigError
from reverie.core.specs import ObsPart, ObsSpec, observed
from reverie.core.types import Obs


class Frames(nn.Module):
    """Stacks the last ``count`` observations, the newest last. In an episode's first rows, its first frame is repeated.

    Images are stacked along their channels, everything else along a new first axis. The values are the same as with
    ``env.frame_stack`` (``envs/wrappers.py: FrameStack``), while stored rows keep one frame each.
    """

    def __init__(self, spec: ObsSpec, count: int, keys: str = "") -> None:
        """Stack the observations whose whole key matches the regular expression ``keys``; all images if it is empty.

        Raises:
            ConfigError: there is no such observation.
        """
        super().__init__()
        self.count = count
        self.parts: dict[str, ObsPart] = {key: spec[key] for key in chosen(spec, count, keys)}
        self.spec: ObsSpec = {key: self._stacked(part) if key in self.parts else part for key, part in spec.items()}

    @property
    def context(self) -> int:
        """Number of earlier rows that the stack of a row needs."""
        return self.count - 1

    def _stacked(self, part: ObsPart) -> ObsPart:
        if part.kind == "image":
            return replace(part, shape=(*part.shape[:2], part.shape[2] * self.count))
        return replace(part, shape=(self.count, *part.shape), classes=part.classes * self.count)

    def forward(self, obs: Obs, is_first: Tensor) -> Obs:
        """Map observations of rows ``[B, context + T]`` to the stacked observations of the last T rows.

        Stacks do not reach back beyond the newest row of ``is_first`` ``[B, context + T]``.
        """
        rows = is_first.shape[1] - self.context
        stacked = {key: x[:, self.context :] for key, x in obs.items()}  # [B, T, ...]
        for key, part in self.parts.items():
            newest = [stacked[key]]  # of [B, T, *shape], the newest first
            begun = torch.zeros_like(is_first[:, :rows])  # [B, T], whether the row ``lag`` before is of another episode
            for lag in range(1, self.count):
                start = self.context - lag
                begun = begun | is_first[:, start + 1 : start + 1 + rows]
                over = begun.view(*begun.shape, *(1 for _ in part.shape))
                newest.append(torch.where(over, newest[-1], obs[key][:, start : start + rows]))
            stacked[key] = join(newest[::-1], part)
        return stacked

    def initial(self, num_envs: int, device: torch.device) -> Obs:
        """Return the past frames of N environments before the first observation: zeros ``[N, context, *shape]``."""
        return {
            key: torch.zeros((num_envs, self.context, *part.shape), dtype=getattr(torch, part.dtype), device=device)
            for key, part in self.parts.items()
        }

    def see(self, obs: Obs, is_first: Tensor, past: Obs) -> tuple[Obs, Obs]:
        """Return stacked observations ``[N, ...]`` and the past frames for the next ones. Inputs are not changed."""
        stacked, later = dict(obs), {}
        for key, part in self.parts.items():
            now = obs[key].unsqueeze(1)  # [N, 1, *shape]
            rows = torch.cat([torch.where(is_first.view(-1, *(1 for _ in now.shape[1:])), now, past[key]), now], 1)
            stacked[key], later[key] = join(list(rows.unbind(1)), part), rows[:, 1:]
        return stacked, later


def join(frames: list[Tensor], part: ObsPart) -> Tensor:
    """Join frames ``[..., *shape]``, the oldest first, to one observation."""
    return torch.cat(frames, -1) if part.kind == "image" else torch.stack(frames, -1 - len(part.shape))


def chosen(spec: ObsSpec, count: int, keys: str) -> list[str]:
    """Return the keys of the observations to stack, sorted.

    Raises:
        ConfigError: there are none.
    """
    spec = observed(spec)
    found = [key for key in sorted(spec) if (re.fullmatch(keys, key) if keys else spec[key].kind == "image")]
    if not found:
        raise ConfigError(
            f"frames = {count}, frame_keys = {keys!r}: no observation matches; empty keys stack images. The "
            f"observations are: {', '.join(f'{key!r} ({spec[key].kind})' for key in sorted(spec))}."
        )
    return found
