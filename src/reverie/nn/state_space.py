"""The base class of recurrent state-space models (RSSM).

Hafner et al. (2025), equation 1::

    sequence model     h_t = f(h_{t-1}, z_{t-1}, a_{t-1})
    posterior          z_t ~ q(z_t | h_t, x_t)
    prior              z^_t ~ p(z^_t | h_t)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reverie.core.kernel_dispatch import accelerated
from reverie.nn.layers import Linear, RMSNormSiLU

LatentDraw = Callable[[Tensor], Tensor]
"""The randomness of z: a function from probabilities ``[..., C]`` to class indices ``[...]``, such as the arg max; for
Gaussian latents from means ``[...]`` to standard normal noise ``[...]``."""


class Latent(NamedTuple):
    """The model state s = (h, z)."""

    deter: Tensor  # h [..., D]
    stoch: Tensor  # z [..., S, C] one-hot; Gaussian latents have C = 1

    @property
    def feature(self) -> Tensor:
        """The input of heads, h and z concatenated: ``[..., D + S*C]``."""
        return torch.cat([self.deter, self.stoch.flatten(-2)], -1)

    def map(self, fn: Callable[[Tensor], Tensor]) -> Latent:
        """Apply ``fn`` to both tensors."""
        return Latent(fn(self.deter), fn(self.stoch))

    def detach(self) -> Latent:
        """Return the latent without gradient."""
        return Latent(self.deter.detach(), self.stoch.detach())


class StateSpaceModel(nn.Module, ABC):
    """The model of h and z over time, given observations (:meth:`observe`) or by its own prior (:meth:`imagine`).

    Legend: M any number of rows, D the width of h, S latent variables of C numbers, n statistics of each.
    """

    cfg: Any
    posterior: LogitNet
    prior_net: LogitNet
    draw: LatentDraw | None = None
    """The randomness of z, to compare updates with recordings; None: samples."""

    @abstractmethod
    def step(self, h: Tensor, z: Tensor, action: Tensor) -> Tensor:
        """f: return the next h ``[M, D]`` from h ``[M, D]``, z ``[M, S, C]`` and the action ``[M, A]`` between."""

    def q(self, h: Tensor, x: Tensor) -> Tensor:
        """Return the posterior's statistics ``[..., S, n]``, for embedded observations x ``[..., E]``."""
        return self.stats(self.posterior(torch.cat([h, x], -1)))

    def p(self, h: Tensor) -> Tensor:
        """Return the prior's statistics ``[..., S, n]``."""
        return self.stats(self.prior_net(h))

    @accelerated
    def observe(self, start: Latent, x: Tensor, action: Tensor, is_first: Tensor) -> tuple[Latent, Tensor]:
        """Return the posterior's latents ``[B, T, ...]`` and statistics ``[B, T, S, n]`` of a sequence.

        Args:
            start: the state before the first row, ``[B, ...]``.
            x: ``[B, T, E]`` embedded observations.
            action: ``[B, T, A]``, the action *before* each row.
            is_first: ``[B, T]`` bool; where it is set, the previous state and action are reset to 0.
        """
        (h, z), rows = start, []
        for x_t, a, first in zip(x.unbind(1), action.unbind(1), is_first.unbind(1), strict=True):
            keep = (~first).to(x.dtype)[:, None]  # [B, 1], 0 where an episode begins
            h = self.step(h * keep, z * keep[..., None], (a * keep).to(x.dtype))  # [B, D]
            stats = self.q(h, x_t)  # [B, S, n]
            z = self.sample(stats).to(h.dtype)  # [B, S, C]
            rows.append((h, z, stats))
        h, z, stats = (torch.stack(column, 1) for column in zip(*rows, strict=True))
        return Latent(h, z), stats

    def imagine(self, latent: Latent, action: Tensor) -> Latent:
        """Take one step under the prior, from latents ``[M, ...]`` and the actions ``[M, A]`` taken there."""
        h = self.step(*latent, action.to(latent.deter.dtype))
        return Latent(h, self.sample(self.p(h)).to(h.dtype))

    @abstractmethod
    def stats(self, logits: Tensor) -> Tensor:
        """Return the statistics ``[..., S, n]`` of z's distribution, in float32, from a network's outputs."""

    @abstractmethod
    def sample(self, stats: Tensor) -> Tensor:
        """Return z ``[..., S, C]`` with gradient, drawn by :attr:`draw`."""

    @abstractmethod
    def stats_by_name(self, stats: Tensor) -> dict[str, Tensor]:
        """Return the statistics of z's distribution, as :meth:`p` gives them, by name."""

    def most_likely(self, latent: Latent, stats: Tensor) -> Latent:
        """Return latents ``[..., D]`` with the most likely z instead of a sample, by its statistics ``[..., S, n]``.

        In the first row of an episode z alone has all the information, so a posterior of several nats gives samples
        that are reconstructed as other rows.
        """
        by_name = self.stats_by_name(stats)
        if "mean" in by_name:
            return latent._replace(stoch=by_name["mean"].unsqueeze(-1).to(latent.stoch.dtype))
        logits = by_name["logits"]  # [..., S, C]
        z = nn.functional.one_hot(logits.argmax(-1), logits.shape[-1])
        return latent._replace(stoch=z.to(latent.stoch.dtype))

    @property
    def feature_width(self) -> int:
        """F = D + S*C, the width of :attr:`Latent.feature`."""
        return int(self.cfg.deter + self.cfg.stoch * self.cfg.classes)

    def initial(self, batch_size: int, dtype: torch.dtype) -> Latent:
        """Return the state before the first observation: zeros ``[batch_size, ...]`` of ``dtype``."""
        device = next(self.prior_net.parameters()).device
        deter = torch.zeros(batch_size, self.cfg.deter, dtype=dtype, device=device)
        stoch = torch.zeros(batch_size, self.cfg.stoch, self.cfg.classes, dtype=dtype, device=device)
        return Latent(deter, stoch)

    def split(self, feature: Tensor) -> Latent:
        """Return the latent of a feature ``[..., F]``: the inverse of :attr:`Latent.feature`."""
        deter, stoch = torch.split(feature, [self.cfg.deter, self.cfg.stoch * self.cfg.classes], -1)
        return Latent(deter, stoch.view(*stoch.shape[:-1], self.cfg.stoch, self.cfg.classes))


class LogitNet(nn.Sequential):
    """An MLP from ``[..., inputs]`` to logits ``[..., outputs]``. Its first linear layer has a separate name."""

    first: Linear
    rest: nn.Sequential

    def __init__(
        self,
        widths: Sequence[int],
        linear: Callable[[int, int], Linear] = Linear,
        after: Callable[[int], list[nn.Module]] = lambda width: [RMSNormSiLU(width)],
    ) -> None:
        """``linear`` makes each linear layer, ``after`` the norm and activation after all but the last."""
        first, *linears = [linear(i, o) for i, o in pairwise(widths)]
        rest = [m for layer in linears for m in (*after(layer.weight.shape[1]), layer)]
        super().__init__(OrderedDict(first=first, rest=nn.Sequential(*rest)))
