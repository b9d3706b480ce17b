"""A tree search from a row of an episode, as plain arrays for the page."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from reverie.agent.agent import Agent
from reverie.agent.planning import read_tree, search_latents
from reverie.core.errors import ConfigError, DataError, EnvError
from reverie.core.specs import PLAYER_KEY, has_players
from reverie.viewer.timeline import RealRow

MAX_SIMULATIONS, MAX_NODES = 400, 200
"""Maximum number of simulations of a search; nodes of its tree that are shown, the most visited ones."""


def find_board(agent: Agent) -> Callable[[Mapping[str, Any]], np.ndarray | None] | None:
    """Return the function that reads the board of an observation, if the agent's environment is a board game."""
    if not has_players(agent.obs_spec) or agent.config.env.frame_stack > 1:
        return None
    with contextlib.suppress(EnvError), contextlib.closing(agent.make_env()) as env:
        return getattr(env.unwrapped, "find_cells", None)
    return None


def search_row(agent: Agent, row: RealRow, simulations: int) -> dict[str, Any]:
    """Search from a row; return arrays ``[A]`` of all actions, the chosen one, and the nodes of the tree.

    Values are those of the player to move, in the critic's units. ``q`` is NaN for actions without a visit. With 0
    simulations, only the learned policy counts.
    """
    if row.values["last"]:
        raise DataError("the episode is over at this row. Go to an earlier one.")
    if row.latent is None:
        raise ConfigError(f"{agent.config.algo.algorithm} has no world model to search in.")
    result = search_latents(agent, row.latent, row.step.obs, max(2, simulations))
    tree, prior = read_tree(result), torch.softmax(result.tree.logits[0, 0], -1).numpy(force=True)
    visits, policy = tree["visits"][0], result.policy[0].numpy(force=True)
    chosen, value, count = int(result.action), float(result.value), MAX_NODES
    if not simulations:
        visits, policy, chosen, value, count = 0 * visits, prior, int(prior.argmax()), float(tree["raw_value"][0]), 1
    player = int(row.step.obs[PLAYER_KEY][0]) if has_players(agent.obs_spec) else 0
    return {
        "legal": np.flatnonzero(tree["legal"]), "prior": prior, "visits": visits.astype(int), "policy": policy,
        "q": np.where(visits > 0, result.q[0].numpy(force=True), np.nan), "chosen": chosen, "value": value,
        "player": player, "nodes": _describe_nodes(tree, player, count),
    }  # fmt: skip


def _describe_nodes(tree: Mapping[str, np.ndarray], player: int, count: int) -> dict[str, np.ndarray]:
    """Return the ``count`` most visited nodes: columns ``[n]``, parents before children.

    ``q`` is the value of the move to the node for the player who makes it, ``first`` the same for player 0 (without
    players: for the agent). ``raw`` is the model's value of the node for the player to move there. The root has the
    mean value of the search.
    """
    visits = 1 + tree["visits"].sum(-1)  # [M]; a parent has more than its child
    index = np.sort(np.argsort(-visits, kind="stable")[:count])
    parent, action = tree["parent"][index], tree["action"][index]
    edge = (parent, action)  # of the root: of no meaning
    sign, depth = np.ones(len(visits)), np.zeros(len(visits), int)  # +1 where player 0 moves
    sign[0] = 1 - 2 * player
    for node in range(1, len(visits)):
        above = tree["parent"][node]
        depth[node] = depth[above] + 1
        sign[node] = sign[above] * (-1 if tree["discount"][above, tree["action"][node]] < 0 else 1)
    q = tree["reward"][edge] + tree["discount"][edge] * tree["value"][edge]
    logits = tree["logits"][parent] - tree["logits"][parent].max(-1, keepdims=True)
    prior = np.exp(logits[np.arange(len(index)), action]) / np.exp(logits).sum(-1)
    q[0], prior[0] = tree["mean_value"][0], 1.0
    mover = np.append(sign[0], sign[parent[1:]])
    return {
        "parent": np.searchsorted(index, parent.clip(min=0)), "depth": depth[index], "action": action,
        "visits": visits[index].astype(int), "q": q, "first": mover * q, "prior": prior,
        "raw": tree["raw_value"][index],
    }  # fmt: skip
