"""What a model-free agent thinks of a row: the values of actions, and the probabilities that it takes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reverie.agent.agent import Agent
from reverie.algos.base import ModelFree
from reverie.core.types import Mode, Step
from reverie.nn.actor_critic import DiscreteQEnsemble, DiscreteQNetwork
from reverie.nn.distributions import Choices
from reverie.nn.preprocess import PreprocessedPolicy


class Hearing:
    """A policy that keeps the row it has acted on last, as its networks see it."""

    def __init__(self, policy: Any) -> None:
        self.inner = policy
        self.heard: Any = None  # the row

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def act(self, step: Step, state: Any, mode: Mode) -> tuple[Tensor, Any]:
        """Act as the policy does."""
        self.heard = step
        found: tuple[Tensor, Any] = self.inner.act(step, state, mode)
        return found


class Values:
    """The critic of an agent, asked about the row that its policy has just seen."""

    def __init__(self, agent: Agent) -> None:
        self.algo = agent.algo
        policy: Any = agent.algo.policy
        inside = isinstance(policy, PreprocessedPolicy)
        self._hearing = Hearing(policy.inner if inside else policy)
        self.policy: Any = self._hearing
        if inside:
            self.policy = PreprocessedPolicy(policy.preprocess, self._hearing, policy.device)

    @torch.no_grad()
    def of(self, action: Tensor) -> dict[str, Any]:
        """Return ``q`` of all actions if they are discrete, ``value`` of ``action`` ``[1, A]`` else; and ``policy``.

        Of several critics the lowest counts. An algorithm without a critic has no values.
        """
        objective: Any = getattr(self.algo, "objective", None)
        if not isinstance(self.algo, ModelFree) or objective is None:
            return {}
        obs, found = self._hearing.heard.obs_on(self.algo.device), dict[str, Any]()
        critic = getattr(objective, "critic", None)
        if hasattr(objective, "network"):
            found["q"] = objective.values(obs)[0]
        elif isinstance(critic, DiscreteQEnsemble | DiscreteQNetwork):
            found["q"] = critic(obs).reshape(-1, action.shape[-1]).amin(0)
        elif critic is not None:
            found["value"] = float(critic(obs, action.to(self.algo.device)).min())
        if "q" in found:
            found |= {"q": found["q"].tolist(), "value": float(found["q"].max())}
        actor = getattr(objective, "actor", None)
        if actor is not None and isinstance(policy := actor(obs), Choices):
            found["policy"] = policy.log_probs[0].exp().tolist()
        return found
