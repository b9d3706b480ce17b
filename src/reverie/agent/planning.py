"""What an agent plans: the tree of its search, and the actions that it intends to take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from reverie.agent.player import AgentState, Player
from reverie.algos.lewm import LeWM
from reverie.algos.muzero import MuZero
from reverie.algos.planner import find_legal
from reverie.algos.tdmpc2 import TDMPC2
from reverie.core.bounds import AtLeast
from reverie.core.config import coerce
from reverie.core.errors import ConfigError, DataError
from reverie.nn.functional import one_hot
from reverie.nn.state_space import Latent


class Plan(NamedTuple):
    """A plan of a world model, of H actions, for one observation or N. LeWM's H are blocks of k actions."""

    actions: list[Any]
    """H actions, or H k, each as ``act`` returns it."""
    latents: Tensor
    """Predicted after each action or block, ``[N, H, D]``; N is 1 for one observation."""
    costs: Tensor | None = None
    """LeWM: squared distances of the latents to the goal's, ``[N, H]``."""
    values: Tensor | None = None
    """Others: values of the latents ``[N, H]`` for the agent that plans, in the critic's units."""


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """A tree search from one observation. Values are those of the player to move, in the critic's units."""

    action: Any
    """The chosen action, as ``act`` returns it."""
    policy: np.ndarray
    """The improved policy ``[A]``, 0 for illegal actions."""
    prior: np.ndarray
    """The learned policy ``[A]``, 0 for illegal actions."""
    visits: np.ndarray
    """How often the search has taken each action, ``[A]``."""
    values: np.ndarray
    """Values of actions ``[A]``, NaN for illegal ones. Actions without visits have a mean of the others."""
    value: float
    """The value of the observation: the mean of ``values`` under ``policy``."""
    variation: list[Any]
    """The principal variation: the chosen action, then the most visited ones."""
    tree: dict[str, np.ndarray] = field(repr=False)
    """Arrays by the names in ``objectives/tree_search.py: Tree``, without N; node 0 is the root."""


def search(
    player: Player, obs: Any, simulations: int | None = None, state: AgentState | None = None, action_mask: Any = None
) -> SearchResult:
    """Search from an observation: see ``Agent.search``."""
    if not isinstance(player.algo, MuZero):
        raise ConfigError(f"{player.config.algo.algorithm} does not search. Train muzero.")
    return _search(player, player.algo, obs, simulations, state, action_mask)[0]


def _search(
    player: Player, algo: MuZero, obs: Any, simulations: int | None, state: AgentState | None, action_mask: Any
) -> tuple[SearchResult, Tensor, list[tuple[int, float]]]:
    """Return the result of a search, the latent ``[1, L]`` that it begins with, and its principal variation."""
    AtLeast(2).check("simulations", coerce(simulations, int | None, "simulations"))
    single, output = player.inspect(obs, state, action_mask=action_mask)
    if not single:
        raise DataError("a batch of observations: expected a single one to search from.")
    z = output.inputs.deter
    step = player.to_step(obs, state=state, action_mask=action_mask)
    legal = find_legal(step.obs, z.new_zeros(1, algo.objective.width))
    tensors = algo.objective.search(z, legal, explore=False, simulations=simulations)
    tree = {name: x[0].numpy(force=True) for name, x in tensors.tree._asdict().items()}
    best, q = int(tensors.action), tensors.q[0].numpy(force=True)
    path = [*_follow(tree, best)]
    result = SearchResult(
        action=_to_action(player, best), policy=tensors.policy[0].numpy(force=True), value=float(tensors.value),
        prior=torch.softmax(tensors.tree.logits[0, 0], -1).numpy(force=True), visits=tree["visits"][0].astype(int),
        values=np.where(tree["legal"], q, np.nan), tree=tree,
        variation=[_to_action(player, action) for action, _ in path],
    )  # fmt: skip
    return result, z, path


def _follow(tree: Mapping[str, np.ndarray], action: int) -> Iterator[tuple[int, float]]:
    """Yield ``action`` and then the most visited ones, and the value after each for the player at the root."""
    node, sign = 0, 1.0
    while (child := int(tree["child"][node, action])) >= 0:
        sign *= float(np.sign(tree["discount"][node, action]))
        yield action, sign * float(tree["mean_value"][child])
        node = child
        q = tree["reward"][node] + tree["discount"][node] * tree["value"][node]
        action = int(np.lexsort((q, tree["visits"][node]))[-1])


def _to_action(player: Player, index: int) -> Any:
    return player.codec(np.eye(player.action_spec.width, dtype=np.float32)[index])


def plan(player: Player, obs: Any, goal: Any = None, state: AgentState | None = None, action_mask: Any = None) -> Plan:
    """Return what an agent intends to do after an observation: see ``Agent.plan``."""
    algo = player.algo
    if isinstance(algo, LeWM):
        single, output = player.inspect(obs, state, goal=goal)
        chosen = algo.plan(output.inputs)
        flat = algo.single_actions(chosen.blocks)  # [N, H k, A]
        return Plan(_to_actions(player, flat, single), chosen.latents, costs=chosen.costs)
    if goal is not None:
        raise ConfigError(f"goal: {player.config.algo.algorithm} does not plan to goals. Train lewm.")
    if isinstance(algo, MuZero):
        result, z, path = _search(player, algo, obs, None, state, action_mask)
        index = torch.tensor([[action for action, _ in path]], device=z.device)
        flat = one_hot(index, z.new_zeros(1, len(path), algo.objective.width))
        values = z.new_tensor([[value for _, value in path]])
        return Plan(result.variation, _predict(algo, z, flat), values=values)
    if isinstance(algo, TDMPC2) and algo.cfg.use_planning:
        single, output = player.inspect(obs, state)
        before, device = player.initial_state(len(output.inputs.deter)) if state is None else state.policy, algo.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            after = algo.policy.act(player.to_step(obs, state=state), before, "eval")[1]
        flat = getattr(after, "state", after).mean  # [N, H, A]; a preprocessed policy wraps it
        latents = _predict(algo, output.inputs.deter, flat)
        values = algo.latent_value(Latent(latents, latents.new_zeros(*latents.shape[:2], 1, 1)))
        return Plan(_to_actions(player, flat, single), latents, values=values.detach())
    raise ConfigError(f"{player.config.algo.algorithm} does not plan. Train lewm, tdmpc2, bmpc or muzero.")


def _to_actions(player: Player, flat: Tensor, single: bool) -> list[Any]:
    """Return actions ``[N, T, A]`` one after the other, as ``act`` returns them."""
    return [player.codec(x[0] if single else x) for x in flat.swapaxes(0, 1).numpy(force=True)]


@torch.no_grad()
def _predict(algo: TDMPC2 | MuZero, z: Tensor, actions: Tensor) -> Tensor:
    """Return the latents ``[N, H, L]`` after each of the actions ``[N, H, A]``."""
    latents = []
    for action in actions.unbind(1):
        z = algo.objective.step(z, action)[1]
        latents.append(z)
    return torch.stack(latents, 1)
