"""The values of a model-free agent for the current row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.agent.agent import Agent
from reverie.agent.conversion import to_numpy
from reverie.algos.model_free import ModelFree
from reverie.algos.on_policy import OnPolicyObjective
from reverie.core.bounds import largest_value
from reverie.core.protocols import Inspectable
from reverie.core.specs import has_players
from reverie.core.types import PolicyOutput, Step
from reverie.nn.actor_critic import DiscreteQEnsemble, DiscreteQNetwork
from reverie.nn.distributions import Categoricals
from reverie.nn.exploration import ChunkPolicy
from reverie.nn.preprocess import PreprocessedPolicy
from reverie.viewer.goals import estimate_goals, is_goal_agent


@torch.no_grad()
def model_free_values(agent: Agent, step: Step, before: Any, action: Tensor) -> dict[str, Any]:
    """Return ``q`` of all actions if they are discrete, otherwise ``value`` of ``action`` ``[1, A]``; and ``policy``.

    With several critics, the lowest value counts. On-policy agents value the state. ``before``: the policy's state
    before the row ``step``. Without a critic of single actions there are no values. Goal-conditioned agents estimate a
    ``distance`` to the goal.
    """
    if is_goal_agent(agent):
        return {name: float(x) for name, x in estimate_goals(agent, step, before).items()}
    objective: Any = getattr(agent.algo, "objective", None)
    if not isinstance(agent.algo, ModelFree) or objective is None:
        return {}
    policy, device = agent.algo.policy, agent.algo.device
    if isinstance(policy, PreprocessedPolicy):
        step, before, policy = policy.preprocess_step(step, before.past)[0], before.state, policy.inner
    output = (
        policy.inspect(step, before) if isinstance(policy, Inspectable) else PolicyOutput(step.obs_on(device), None)
    )
    obs, has_chunks = output.inputs, isinstance(policy, ChunkPolicy) and policy.size > 1
    if isinstance(objective, OnPolicyObjective):
        return {"value": float(agent.algo.state_value(output))} | probabilities(output.decision)
    action, critic, values = action.to(device), getattr(objective, "critic", None), dict[str, Any]()
    if hasattr(objective, "network"):
        values["q"] = objective.values(obs)[0]
    elif isinstance(critic, DiscreteQEnsemble | DiscreteQNetwork):
        values["q"] = critic(obs).reshape(-1, action.shape[-1]).amin(0)
    elif critic is not None and not has_chunks:
        values["value"] = float(getattr(objective, "values", critic)(obs, action).min())
    if "q" in values:
        best = [values["q"][cut].max() for _, cut in agent.action_spec.categorical_slices()]
        values |= {"q": values["q"].tolist(), "value": float(sum(best))}
    return values | probabilities(output.decision)


def learns_rows_rewards(agent: Agent) -> bool:
    """Return whether the critic's values are returns of the environment's rewards, and of nothing else."""
    c = agent.config
    learns_others = c.reward or c.human.intervention_reward or getattr(c.algo, "entropy_backup", False)
    return not learns_others and getattr(agent.algo, "learns_rows_rewards", True)


def critic_rewards(agent: Agent, rewards: np.ndarray) -> np.ndarray:
    """Return the rewards of an episode's rows ``[T]`` in the units of the critic's values; NaN if it learns others."""
    if not learns_rows_rewards(agent):
        return np.full(len(rewards), np.nan, np.float32)
    if (world := getattr(agent.algo, "world", None)) is not None:
        return to_numpy(world.transform.forward(torch.from_numpy(rewards)))
    if not isinstance(agent.algo, ModelFree):
        return rewards
    return agent.algo.preprocess.scale_rewards(torch.from_numpy(rewards), torch.arange(len(rewards)) == 0).numpy()


def value_discount(agent: Agent) -> float:
    """Return the factor of the next row's value in that of a row: negative if that is another player's."""
    discount = largest_value(getattr(agent.config.algo, "discount", 1.0))
    return -discount if has_players(agent.obs_spec) else discount


def probabilities(policy: object) -> dict[str, Any]:
    """Return the probability of each class ``[A]`` as ``policy``, if actions are discrete."""
    return {"policy": policy.log_probs.flatten().exp().tolist()} if isinstance(policy, Categoricals) else {}


def greedy_gap(agent: Agent, values: Mapping[str, Any]) -> float:
    """Return by how much the best action of a row is above the second best: in Q, else in probability.

    NaN unless the action is a single choice.
    """
    scores = values.get("q", values.get("policy"))
    if scores is None or len(agent.action_spec.categorical_slices()) != 1:
        return float("nan")
    second, first = np.sort(scores)[-2:]
    return float(first - second)
