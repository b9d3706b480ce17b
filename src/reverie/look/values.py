"""What a model-free agent thinks of a row: the values of actions, and the probabilities that it takes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from reverie.agent.agent import Agent
from reverie.algos.base import Algorithm, ModelFree
from reverie.algos.on_policy import OnPolicyObjective
from reverie.core.types import Mode, Step
from reverie.nn.actor_critic import DiscreteQEnsemble, DiscreteQNetwork
from reverie.nn.distributions import Choices
from reverie.nn.preprocess import PreprocessedPolicy


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
        inside = isinstance(policy, PreprocessedPolicy)
        self._hearing = Hearing(policy.inner if inside else policy)
        self.policy: Any = self._hearing
        if inside:
            self.policy = PreprocessedPolicy(policy.preprocess, self._hearing, policy.device)

    @torch.no_grad()
    def of(self, action: Tensor) -> dict[str, Any]:
        """Return ``q`` of all actions if they are discrete, ``value`` of ``action`` ``[1, A]`` else; and ``policy``.

        Of several critics the lowest counts. On-policy agents value the state. Without a critic there are no values.
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
