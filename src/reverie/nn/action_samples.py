"""Evaluating n actions for each observation, which is encoded once; the policy that picks the best of n."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reverie.core.types import Mode, Obs, Step
from reverie.nn.exploration import Unaffected


def several(critic: nn.Module, obs: Obs, action: Tensor, copy: int | None = None) -> Tensor:
    """Return the values ``[(K,) ..., n]`` of n actions ``[..., n, A]`` for each observation ``[..., *shape]``.

    A critic's own method ``several`` is used if there is one; any other critic gets each observation n times. ``copy``
    is the index of the only one of K critics to return, ``[..., n]``.
    """
    ask = getattr(critic, "several", None)
    if ask is not None:
        values: Tensor = ask(obs, action) if copy is None else ask(obs, action, copy)
        return values
    values = critic(repeated(obs, action), action)
    return values if copy is None else values[copy]


def repeated(obs: Obs, x: Tensor) -> Obs:
    """Expand observations ``[..., *shape]`` to ``[..., n, *shape]``, as views, with n taken from x ``[..., n, X]``."""
    axis, n = x.ndim - 2, x.shape[-2]
    return {k: v.unsqueeze(axis).expand(*v.shape[:axis], n, *v.shape[axis:]) for k, v in obs.items()}


def times(x: Tensor, n: int) -> Tensor:
    """Expand ``[..., X]`` to ``[..., n, X]``, as a view."""
    return x.unsqueeze(-2).expand(*x.shape[:-1], n, x.shape[-1])


def draws(policy: Any, n: int) -> tuple[Tensor, Tensor]:
    """Return n samples ``[..., n, A]`` of the distribution ``policy``, and their log-densities ``[..., n]``."""
    action, density = policy.repeated(n).sample()
    return action, density


class Decided(NamedTuple):
    """The state of :class:`BestOfSeveral`."""

    steps: Tensor  # [] int64, number of decisions in mode "eval"


class BestOfSeveral(Unaffected[Decided]):
    """A policy that samples n latents, each of which is decoded to an action, and takes the best action.

    Exploring draws from the CPU's default generator. In evaluations, the number of decisions so far is the seed, so
    that evaluations are reproducible and do not change the default generator.
    """

    def __init__(
        self, best: Callable[[Obs, Tensor], Tensor], samples: int, latent: int, clip: float, device: torch.device
    ) -> None:
        """``best(obs, latent)`` returns the best action ``[N, A]`` of n = ``samples`` latents ``[N, n, L]``.

        Latents are standard normal, clipped to ``[-clip, clip]``; ``latent`` is L.
        """
        self.best, self.samples, self.latent, self.clip, self.device = best, samples, latent, clip, device

    def initial(self, num_envs: int) -> Decided:
        """Return the state before the first decision."""
        return Decided(torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def act(self, step: Step, state: Decided, mode: Mode) -> tuple[Tensor, Decided]:
        """Return ``(action [N, A] on the CPU, state)``."""
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
