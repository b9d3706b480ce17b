"""What a world model makes of rows: its state, its surprise, what it imagines, and what it says of its states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.agent.agent import Agent
from reverie.agent.imagining import array, describing
from reverie.algos.base import INSIDE, dreamt_name
from reverie.algos.world_model import Dreamer, PolicyState, WorldModel
from reverie.core.types import Step
from reverie.nn.distributions import Categoricals
from reverie.nn.heads import JointDistribution
from reverie.nn.rssm import Categorical, Gaussian, Latent

Said = dict[str, np.ndarray]
"""What the networks say of a state, by the names of ``Dreamer.dream``, and ``prior_entropy`` and ``policy``."""
Choose = Callable[[int, Latent], Tensor]
"""The actions ``[B, A]`` of an imagined step, from its number and the states ``[B, ...]`` before it."""


class Mind:
    """The world model of an agent, asked one state after the other."""

    def __init__(self, agent: Agent) -> None:
        """Raise ConfigError if the agent has no world model."""
        self.learner: Dreamer = describing(agent)
        self.world: WorldModel = self.learner.world
        self.cell: Any = self.world.rssm.cell(self.world.dtype)  # the weights stay as they are
        self.draws: bool = bool(
            self.world.rssm.named(self.world.rssm.prior(self.world.rssm.initial(1, self.world.dtype).deter))
        )
        """Whether its states are drawn from distributions."""
        said = self.say([self.world.rssm.initial(1, self.world.dtype)])
        self.keys: list[str] = [key for key in agent.obs_spec if dreamt_name(key) in said]
        """The observations that are dreamt."""

    def act(self, latent: Latent, mode: str) -> Tensor:
        """Return the policy's actions ``[B, A]`` in states ``[B, ...]``: drawn ("sample") or most likely ("mode")."""
        policy = self.policy(latent)
        return (policy.sample() if mode == "sample" else policy.mode()).clamp(-1, 1)

    def policy(self, latent: Latent) -> JointDistribution:
        """Return the distribution of actions in states ``[..., D]``, ``[..., S, C]``."""
        legal = self.world.legal
        found: JointDistribution = self.learner.actor(latent.feature, None if legal is None else legal(latent.feature))
        return found

    @torch.no_grad()
    def imagine(
        self, latent: Latent, steps: int, choose: Choose, held: Mapping[int, int] | None = None
    ) -> tuple[list[Latent], list[Tensor]]:
        """Imagine ``steps`` on; return the states after each ``[B, ...]``, and the actions before them ``[B, A]``.

        ``held``: the classes that some latents keep, whatever the prior says.
        """
        latents, actions = list[Latent](), list[Tensor]()
        for number in range(steps):
            actions.append(choose(number, latent))
            latent = self.world.rssm.imagine_step(latent, actions[-1], self.cell)
            latent = with_classes(latent, held or {})
            latents.append(latent)
        return latents, actions

    @torch.no_grad()
    def say(self, latents: Sequence[Latent]) -> Said:
        """Return what the networks say of T states of B episodes, ``[B, T, ...]`` each."""
        whole = Latent(*(torch.stack(parts, 1) for parts in zip(*latents, strict=True)))  # [B, T, ...]
        said = {name: array(values) for name, values in self.learner.described(whole).items()}
        said |= {"policy": array(chances(self.policy(whole)))}
        if not self.draws:
            return said
        kind, prior = self._distribution(self.world.rssm.prior(whole.deter))
        return said | {"prior_entropy": array(kind.entropy(prior))}

    @torch.no_grad()
    def divergence(self, step: Step, state: PolicyState) -> dict[str, float]:
        """Return KL[posterior | prior] of a row and both entropies, in nats; ``state`` is the policy's after it.

        Nothing if the model's states are not drawn.
        """
        world, latent = self.world, state.latent
        if not self.draws:
            return {}
        device = latent.deter.device
        embed = world.embed(step.obs_on(device), step.reward.to(device), step.is_terminal.to(device))
        outputs = world.rssm.posterior(torch.cat([latent.deter, embed.to(latent.deter.dtype)], -1))
        kind, posterior = self._distribution(world.rssm.stats(outputs))
        _, prior = self._distribution(world.rssm.prior(latent.deter))
        found = {
            "kl": kind.kl(posterior, prior),
            "posterior_entropy": kind.entropy(posterior),
            "prior_entropy": kind.entropy(prior),
        }
        return {name: float(value[0]) for name, value in found.items()}

    def _distribution(self, stats: Tensor) -> tuple[Categorical | Gaussian, Tensor]:
        """Return the kind of z, and its statistics as that kind has them."""
        named = self.world.rssm.named(stats)
        if "logits" in named:
            return Categorical(), named["logits"]
        return Gaussian(), torch.stack([named["mean"], named["std"]], -1)

    def predicted_return(self, said: Said) -> np.ndarray:
        """Return the return ``[B]`` of imagined states ``[B, H]``, in the critic's units.

        sum_k d_k r_k + d_{H+1} v_H, where d_1 = 1 and d_{k+1} = d_k gamma c_k: the rewards r after the first state's
        predecessor, each discounted by gamma and by the probability c that the episode goes on.
        """
        reward = array(self.world.transform(torch.from_numpy(said["reward"])))  # [B, H]
        kept = np.cumprod(self.world.discount * said["cont"], 1)  # [B, H]
        before = np.concatenate([np.ones_like(kept[:, :1]), kept[:, :-1]], 1)
        total: np.ndarray = (before * reward).sum(1) + kept[:, -1] * said[f"{INSIDE}value"][:, -1]
        return total


def chances(policy: JointDistribution) -> Tensor:
    """Return the probability of each class of an action ``[..., A]``, or its most likely value where continuous."""
    parts: list[Any] = []
    for part in policy.parts.values():
        if isinstance(part, Categoricals):
            parts += [part.probs[..., i, :count] for i, count in enumerate(part.classes)]
        else:
            parts.append(part.mode())
    return torch.cat(parts, -1)


def with_classes(latent: Latent, classes: Mapping[int, int]) -> Latent:
    """Return states ``[B, ...]`` with some categorical latents set to a class."""
    if not classes:
        return latent
    stoch = latent.stoch.clone()
    for number, value in classes.items():
        stoch[:, number] = 0
        stoch[:, number, value] = 1
    return latent._replace(stoch=stoch)
