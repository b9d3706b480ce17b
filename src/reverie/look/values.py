"""What a model-free agent thinks of the row that it has just seen: its values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from reverie.agent.agent import Agent
from reverie.algos.base import ModelFree
from reverie.algos.on_policy import OnPolicyObjective
from reverie.core.types import Step
from reverie.nn.actor_critic import DiscreteQEnsemble, DiscreteQNetwork
from reverie.nn.distributions import Choices
from reverie.nn.preprocess import PreprocessedPolicy


@torch.no_grad()
def values_of(agent: Agent, step: Step, before: Any, after: Any, action: Tensor) -> dict[str, Any]:
    """Return ``q`` of all actions if they are discrete, ``value`` of ``action`` ``[1, A]`` else; and ``policy``.

    Of several critics the lowest counts. On-policy agents value the state. ``before`` and ``after``: the policy's state
    before the row ``step`` and after it. Agents without a critic have none of these.
    """
    objective: Any = getattr(agent.algo, "objective", None)
    if not isinstance(agent.algo, ModelFree) or objective is None:
        return {}
    policy, device = agent.algo.policy, agent.algo.device
    obs, first = step.obs_on(device), step.is_first.to(device)
    if isinstance(policy, PreprocessedPolicy):
        frames, normaliser, after = policy.preprocess.frames, policy.preprocess.normaliser, after.state
        obs = obs if frames is None else frames.see(obs, first, before.past)[0]
        obs = obs if normaliser is None else normaliser(obs)
    if isinstance(objective, OnPolicyObjective):
        network: nn.Module = objective.network
        rows = {key: value.unsqueeze(1) for key, value in obs.items()}  # [1, 1, ...]
        said = network(rows, first.unsqueeze(1), getattr(after, "before", None))  # of the memory
        return {"value": float(said.value)} | probabilities(said.policy)
    action, critic, found = action.to(device), getattr(objective, "critic", None), dict[str, Any]()
    if hasattr(objective, "network"):
        found["q"] = objective.values(obs)[0]
    elif isinstance(critic, DiscreteQEnsemble | DiscreteQNetwork):
        found["q"] = critic(obs).reshape(-1, action.shape[-1]).amin(0)
    elif critic is not None:
        found["value"] = float(getattr(objective, "values", critic)(obs, action).min())
    if "q" in found:
        best = [found["q"][cut].max() for _, cut in agent.action_spec.choices()]
        found |= {"q": found["q"].tolist(), "value": float(sum(best))}
    actor = getattr(objective, "actor", None)
    return found | ({} if actor is None else probabilities(actor(obs)))


def probabilities(policy: Any) -> dict[str, Any]:
    """Return the probability of each class ``[A]`` as ``policy``, if actions are discrete."""
    return {"policy": policy.log_probs.flatten().exp().tolist()} if isinstance(policy, Choices) else {}
