"""Several actions for each observation, which is encoded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reverie.core.types import Mode, Obs, Step


def several(critic: nn.Module, obs: Obs, action: Tensor, copy: int | None = None) -> Tensor:
    """``critic(obs, action)`` for n actions ``[..., n, A]`` of each observation ``[..., *shape]``: ``[(K,) ..., n]``.

    A critic that has a method ``several`` is asked so. Any other is shown each observation n times. With ``copy`` only
    that one of K critics answers, ``[..., n]``.
    """
    ask = getattr(critic, "several", None)
    if ask is not None:
        values: Tensor = ask(obs, action) if copy is None else ask(obs, action, copy)
        return values
    values = critic(repeated(obs, action), action)
    return values if copy is None else values[copy]


def repeated(obs: Obs, x: Tensor) -> Obs:
    """Observations ``[..., *shape]`` as ``[..., n, *shape]``, for n ``x`` ``[..., n, X]``: views."""
    axis, n = x.ndim - 2, x.shape[-2]
    return {k: v.unsqueeze(axis).expand(*v.shape[:axis], n, *v.shape[axis:]) for k, v in obs.items()}


def times(x: Tensor, n: int) -> Tensor:
    """``[..., X]`` as ``[..., n, X]``: a view."""
    return x.unsqueeze(-2).expand(*x.shape[:-1], n, x.shape[-1])


def beside(features: Tensor, x: Tensor) -> Tensor:
    """Features ``[..., F]`` as ``[..., n, F]``, for n ``x`` ``[..., n, X]``: a view."""
    return features.unsqueeze(-2).expand(*x.shape[:-1], features.shape[-1])


def draws(policy: Any, n: int) -> tuple[Tensor, Tensor]:
    """Actions ``[..., n, A]``, n of them, of a distribution and their log-densities ``[..., n]``."""
    action, density = policy.repeated(n).sample()
    return action, density


class Decided(NamedTuple):
    """What a policy carries that draws when it is evaluated."""

    steps: Tensor  # [] int64, decisions of evaluations


class BestOfSeveral:
    """Draws latents, of which each stands for an action, and takes the best of these.

    While exploring it draws from the CPU's default generator. Where it is evaluated, what it draws follows from how
    often it has decided since the beginning, so that evaluations disturb nothing and give the same again.
    """

    def __init__(
        self, best: Callable[[Obs, Tensor], Tensor], samples: int, latent: int, clip: float, device: torch.device
    ) -> None:
        """``best(obs, latent)`` is the best action ``[N, A]`` of n latents ``[N, n, L]`` within ``[-clip, clip]``."""
        self.best, self.samples, self.latent, self.clip, self.device = best, samples, latent, clip, device

    def initial(self, num_envs: int) -> Decided:
        """Nothing was decided."""
        return Decided(torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def act(self, step: Step, state: Decided, mode: Mode) -> tuple[Tensor, Decided]:
        """``(action [N, A] on the CPU, state)``."""
        generator = None
        if mode == "eval":
            generator = torch.Generator().manual_seed(int(state.steps))
            state = Decided(state.steps + 1)
        latent = torch.randn(len(step), self.samples, self.latent, generator=generator).clamp(-self.clip, self.clip)
        obs = step.obs_on(self.device)
        return self.best(obs, latent.to(self.device, non_blocking=True)).cpu(), state

    def memoryless(self, mode: Mode) -> bool:
        """Return True: the state only counts decisions, which seed the latents of evaluations."""
        return True

    def override(self, state: Decided, action: Tensor) -> Decided:
        """What was executed changes nothing."""
        return state

    def extras(self, state: Decided) -> dict[str, Tensor]:
        """Nothing is stored."""
        return {}
