"""What agents think of rows: a world model's state, surprise and imagination; a model-free agent's values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reverie.agent.agent import Agent
from reverie.agent.imagining import array, describing
from reverie.algos.base import INSIDE, Algorithm, ModelFree, dreamt_name
from reverie.algos.on_policy import OnPolicyObjective
from reverie.algos.world_model import Context, Dreamer, WorldModel
from reverie.core.types import Mode, Step
from reverie.nn.actor_critic import DiscreteQEnsemble, DiscreteQNetwork
from reverie.nn.distributions import Categoricals, Choices
from reverie.nn.heads import JointDistribution
from reverie.nn.preprocess import PreprocessedPolicy
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
        initial = self.world.rssm.initial(1, self.world.dtype)
        self.draws: bool = bool(self.world.rssm.named(self.world.rssm.prior(initial.deter)))
        """Whether its states are drawn from distributions."""
        said = self.say([initial])
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
        self, latent: Latent, steps: int, choose: Choose, held: Mapping[int, int]
    ) -> tuple[list[Latent], list[Tensor]]:
        """Imagine; return states ``[B, ...]`` and the actions before them ``[B, A]``. ``held``: classes that stay."""
        latents, actions = list[Latent](), list[Tensor]()
        for number in range(steps):
            actions.append(choose(number, latent))
            latent = with_classes(self.world.rssm.imagine_step(latent, actions[-1], self.cell), held)
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
    def divergence(self, step: Step, state: Context) -> dict[str, float]:
        """Return KL[posterior | prior] of a row and both entropies, in nats, if states are drawn."""
        world, latent = self.world, state.latent
        if not self.draws:
            return {}
        device = latent.deter.device
        embed = world.embed(step.obs_on(device), step.reward.to(device), step.is_terminal.to(device))
        outputs = world.rssm.posterior(torch.cat([latent.deter, embed.to(latent.deter.dtype)], -1))
        kind, posterior = self._distribution(world.rssm.stats(outputs))
        _, prior = self._distribution(world.rssm.prior(latent.deter))
        found = {"kl": kind.kl(posterior, prior), "posterior_entropy": kind.entropy(posterior)}
        found["prior_entropy"] = kind.entropy(prior)
        return {name: float(value[0]) for name, value in found.items()}

    def _distribution(self, stats: Tensor) -> tuple[Categorical | Gaussian, Tensor]:
        """Return the kind of z, and its statistics as that kind has them."""
        named = self.world.rssm.named(stats)
        if "logits" in named:
            return Categorical(), named["logits"]
        return Gaussian(), torch.stack([named["mean"], named["std"]], -1)

    def predicted_return(self, said: Said) -> np.ndarray:
        """Return the return ``[B]`` of imagined states ``[B, H]``, in the critic's units.

        sum_k d_k r_k + d_{H+1} v_H, where d_1 = 1 and d_{k+1} = d_k gamma c_k; c is the probability to go on.
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
    stoch = latent.stoch.clone() if classes else latent.stoch
    for number, value in classes.items():
        stoch[:, number] = 0
        stoch[:, number, value] = 1
    return latent._replace(stoch=stoch)


class Hearing:
    """A policy that keeps the row it has acted on last, as its networks see it."""

    def __init__(self, policy: Any) -> None:
        self.inner = policy
        self.heard: Any = None  # the row
        self.state: Any = None  # of the policy, after it

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def act(self, step: Step, state: Any, mode: Mode) -> tuple[Tensor, Any]:
        """Act as the policy does."""
        self.heard = step
        action, self.state = self.inner.act(step, state, mode)
        return action, self.state


class Values:
    """The critic of an agent, asked about the row that its policy has just seen."""

    def __init__(self, agent: Agent) -> None:
        self.algo: Algorithm = agent.algo
        self.choices: list[tuple[str, slice]] = agent.action_spec.choices()
        policy: Any = agent.algo.policy
        if isinstance(policy, PreprocessedPolicy):
            self._hearing = Hearing(policy.inner)
            self.policy: Any = PreprocessedPolicy(policy.preprocess, self._hearing, policy.device)
        else:
            self.policy = self._hearing = Hearing(policy)

    @torch.no_grad()
    def of(self, action: Tensor) -> dict[str, Any]:
        """Return ``q`` of all actions if they are discrete, ``value`` of ``action`` ``[1, A]`` else; and ``policy``.

        Of several critics the lowest counts. On-policy agents value the state.
        """
        objective: Any = getattr(self.algo, "objective", None)
        if not isinstance(self.algo, ModelFree) or objective is None:
            return {}
        if isinstance(objective, OnPolicyObjective):
            return self._decision(objective.network)
        obs, found = self._hearing.heard.obs_on(self.algo.device), dict[str, Any]()
        action, critic = action.to(self.algo.device), getattr(objective, "critic", None)
        if hasattr(objective, "network"):
            found["q"] = objective.values(obs)[0]
        elif isinstance(critic, DiscreteQEnsemble | DiscreteQNetwork):
            found["q"] = critic(obs).reshape(-1, action.shape[-1]).amin(0)
        elif critic is not None:
            found["value"] = float(getattr(objective, "values", critic)(obs, action).min())
        if "q" in found:
            best = [found["q"][cut].max() for _, cut in self.choices]
            found |= {"q": found["q"].tolist(), "value": float(sum(best))}
        actor = getattr(objective, "actor", None)
        return found | ({} if actor is None else probabilities(actor(obs)))

    def _decision(self, network: nn.Module) -> dict[str, Any]:
        """Return ``value`` and ``policy`` of networks that perhaps remember the rows before."""
        step, device = self._hearing.heard, self.algo.device
        before = getattr(self._hearing.state, "before", None)  # of the memory
        obs = {key: value.unsqueeze(1) for key, value in step.obs_on(device).items()}  # [1, 1, ...]
        found = network(obs, step.is_first.to(device).unsqueeze(1), before)
        return {"value": float(found.value)} | probabilities(found.policy)


def probabilities(policy: Any) -> dict[str, Any]:
    """Return the probability of each class ``[A]`` as ``policy``, if actions are discrete."""
    return {"policy": policy.log_probs.flatten().exp().tolist()} if isinstance(policy, Choices) else {}
