"""Tree search with a model: Danihelka et al., "Policy improvement by planning with Gumbel", ICLR 2022 (Gumbel MuZero).

The search computes what the authors' code computes (github.com/google-deepmind/mctx, commit b53073f), for N roots at
once. All functions are pure but for ``backup`` and :func:`search`, which write to the :class:`Tree`. A tree has
M = S + 1 nodes for S simulations: node 0 is the root, and simulation i adds node i + 1.

With two players, values and rewards are those of the player to move, and discounts are negative.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from reverie.core.kernel_dispatch import accelerated

EDGES = ("logits", "visits", "reward", "discount", "value")
MAX_UNREAD = 32
"""Levels of a tree that are walked on a GPU without asking whether all paths have ended. The host would wait for the
answer, and a search that waits cannot be captured; but empty levels of a deeper tree would take longer."""
LOWEST_SCORE = -1e9
"""Scores of actions at the root are at least this, so that a masked action is below all others."""


class Node(NamedTuple):
    """What a model predicts in N states."""

    state: Tensor  # [N, ...]
    logits: Tensor  # [N, A], of the prior policy
    value: Tensor  # [N], of the player to move


class Transition(NamedTuple):
    """What a model predicts for N actions."""

    reward: Tensor  # [N], of the player who acts
    discount: Tensor  # [N], of the next node's value; 0 where an episode ends, negative where another player moves
    node: Node


class SearchModel(Protocol):
    """A model to search in: learned networks, or the rules of a game."""

    def __call__(self, state: Tensor, action: Tensor, /) -> Transition:
        """Return the transitions from states ``[N, ...]`` by actions ``[N]``, int64."""


class SearchSettings(NamedTuple):
    """Constants of a search; the defaults are the authors'."""

    num_simulations: int
    num_considered: int = 16
    """m, the actions of the root among which sequential halving chooses."""
    c_visit: float = 50.0
    c_scale: float = 0.1
    q_range_floor: float = 1e-8
    """The range of a node's action values is scaled to 1, unless it is below this number, which then is scaled to 1.
    A small floor amplifies noise where all values are nearly equal. If values have a known range, such as 2 in games
    with results in [-1, 1], this range as the floor means a constant scale."""


class Tree(NamedTuple):
    """N search trees. Edges ``[N, M, A]`` lead from nodes to the children that are ``child``, -1 if there is none."""

    logits: Tensor  # [N, M, A]; at illegal actions of the root, the lowest number
    visits: Tensor  # [N, M, A] float32
    reward: Tensor  # [N, M, A]
    discount: Tensor  # [N, M, A]
    value: Tensor  # [N, M, A], mean value of the child
    child: Tensor  # [N, M, A] int64
    raw_value: Tensor  # [N, M], by the model
    mean_value: Tensor  # [N, M], of all returns through the node, its raw value among them
    parent: Tensor  # [N, M] int64
    action: Tensor  # [N, M] int64, that leads to the node
    legal: Tensor  # [N, A] bool, at the root
    gumbel: Tensor  # [N, A] noise at the root
    considered: Tensor  # [N, S], the visits of the actions that each simulation considers at the root


class SearchResult(NamedTuple):
    """The result of a search at N roots."""

    action: Tensor  # [N] int64
    policy: Tensor  # [N, A], the improved policy pi', 0 at illegal actions
    value: Tensor  # [N], sum_a pi'(a) q(a)
    q: Tensor  # [N, A], completed values of the root's actions
    tree: Tree


# ---------------------------------------------------------------------- constants and scores


@functools.cache
def schedule(num_considered: int, num_simulations: int) -> tuple[int, ...]:
    """Return the visits that an action has when simulation i considers it: sequential halving, Algorithm 1.

    It works for any number of simulations S, as in the authors' code: with m = 4 and S = 8, it is 0 0 0 0 1 1 2 2.
    """
    if num_considered <= 1:
        return tuple(range(num_simulations))
    visits, sequence = [0] * num_considered, list[int]()
    rounds, count = math.ceil(math.log2(num_considered)), num_considered
    while len(sequence) < num_simulations:
        for _ in range(max(1, num_simulations // (rounds * count))):
            sequence += visits[:count]
            visits[:count] = [visit + 1 for visit in visits[:count]]
        count = max(2, count // 2)
    return tuple(sequence[:num_simulations])


@functools.cache
def _schedules(num_considered: int, num_simulations: int, device: torch.device) -> Tensor:
    """Return the schedules ``[m + 1, S]`` of 0 ... m actions."""
    with torch.inference_mode(False):
        rows = [schedule(m, num_simulations) for m in range(num_considered + 1)]
        return torch.tensor(rows, dtype=torch.float32, device="cpu").to(device)


class CompletedValues(NamedTuple):
    """Values of the actions of N nodes."""

    q: Tensor  # [N, A], with the mixed value where an action has no visit
    sigma: Tensor  # [N, A], transformed to the scale of logits


def _complete_values(
    logits: Tensor, visits: Tensor, q: Tensor, raw_value: Tensor, c_visit: float, c_scale: float, q_range_floor: float
) -> CompletedValues:
    """Return q of all actions ``[N, A]``, and sigma(q) = (c_visit + max_b N(b)) c_scale q: equation 8, section 3.4.

    Actions without visits have the mixed value of appendix D,
    (v + sum_b N(b) sum_visited p q / sum_visited p) / (1 + sum_b N(b)). In sigma, q is rescaled to [0, 1]; see
    :class:`SearchSettings`.
    """
    visited, prior = visits > 0, torch.softmax(logits, -1).clamp(min=torch.finfo(torch.float32).tiny)
    share = prior * visited
    share = share / share.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)  # [N, A]
    count = visits.sum(-1)
    mixed = (raw_value + count * (share * q).sum(-1)) / (1 + count)  # [N]
    q = torch.where(visited, q, mixed.unsqueeze(-1))
    low, high = q.aminmax(dim=-1, keepdim=True)
    scale = (c_visit + visits.amax(-1, keepdim=True)) * c_scale
    return CompletedValues(q, scale * ((q - low) / (high - low).clamp(min=q_range_floor)))


def _complete_at(tree: Tree, rows: Tensor, node: Tensor, *constants: float) -> tuple[Tensor, Tensor, CompletedValues]:
    """Return logits, visits and completed values ``[N, A]`` of a node ``[N]`` in each tree."""
    at = (rows, node)
    logits, visits = tree.logits[at], tree.visits[at]
    q = tree.reward[at] + tree.discount[at] * tree.value[at]
    return logits, visits, _complete_values(logits, visits, q, tree.raw_value[at], *constants)


def _best_considered(tree: Tree, logits: Tensor, visits: Tensor, sigma: Tensor, considered: Tensor) -> Tensor:
    """Return the legal action ``[N]`` of the root with the highest g + l + sigma, among those with these visits.

    Scores that are NaN count as the lowest.
    """
    score = (tree.gumbel + (logits - logits.amax(-1, keepdim=True)) + sigma).nan_to_num(nan=LOWEST_SCORE)
    score = score.clamp(min=LOWEST_SCORE).masked_fill(visits != considered.unsqueeze(-1), -math.inf)
    return torch.where(tree.legal, score, -math.inf).argmax(-1)


# ---------------------------------------------------------------------- search


@accelerated
def select(tree: Tree, simulation: int, c_visit: float, c_scale: float, q_range_floor: float) -> tuple[Tensor, Tensor]:
    """Return the node ``[N]`` and its action ``[N]`` without a child that simulation 0 ... S - 1 reaches: section 5.

    Below the root, the action is argmax_a pi'(a) - N(a) / (1 + sum_b N(b)), with pi' = softmax(l + sigma).
    """
    constants = (c_visit, c_scale, q_range_floor)
    node = torch.zeros_like(tree.parent[:, 0])
    rows = torch.arange(len(node), device=node.device)
    logits, visits, completed = _complete_at(tree, rows, node, *constants)
    action = _best_considered(tree, logits, visits, completed.sigma, tree.considered[:, simulation])
    for _ in range(simulation):  # the nodes below the root so far: no path is longer
        child = tree.child[rows, node, action]
        inside = child >= 0
        if (inside.is_cpu or simulation > MAX_UNREAD) and not inside.any():
            break
        node = torch.where(inside, child, node)
        logits, visits, completed = _complete_at(tree, rows, node, *constants)
        improved = torch.softmax(logits + completed.sigma, -1).nan_to_num(nan=0.0)
        best = (improved - visits / (1 + visits.sum(-1, keepdim=True))).argmax(-1)
        action = torch.where(inside, best, action)
    return node, action


@accelerated
def backup(tree: Tree, leaf: int, node: Tensor, action: Tensor, transition: Transition) -> None:
    """Add node ``leaf``, which an action ``[N]`` of a node ``[N]`` leads to, and its return to all nodes above it.

    G <- r + d G; each edge on the way counts a visit.
    """
    rows = torch.arange(len(node), device=node.device)
    edge = (rows, node, action)
    tree.reward[edge], tree.discount[edge] = transition.reward, transition.discount
    tree.logits[:, leaf], tree.child[edge] = transition.node.logits, torch.full_like(node, leaf)
    tree.raw_value[:, leaf] = tree.mean_value[:, leaf] = transition.node.value
    tree.parent[:, leaf], tree.action[:, leaf] = node, action
    node, total = torch.full_like(node, leaf), tree.raw_value[:, leaf]
    for _ in range(leaf):
        parent = tree.parent[rows, node]
        above = parent >= 0  # at the root there is none, and nothing changes
        if (above.is_cpu or leaf > MAX_UNREAD) and not above.any():
            break
        parent = torch.where(above, parent, node)
        edge = (rows, parent, tree.action[rows, node].clamp(min=0))
        total = torch.where(above, tree.reward[edge] + tree.discount[edge] * total, total)
        count, mean = 1 + tree.visits[rows, parent].sum(-1), tree.mean_value[rows, parent]
        tree.value[edge] = torch.where(above, tree.mean_value[rows, node], tree.value[edge])
        tree.mean_value[rows, parent] = torch.where(above, (mean * count + total) / (count + 1), mean)
        tree.visits[edge] += above
        node = parent


def start(root: Node, legal: Tensor, gumbel: Tensor, settings: SearchSettings) -> Tree:
    """Return trees that consist of the ``root``, see :func:`search`."""
    (count, width), nodes = root.logits.shape, settings.num_simulations + 1
    m = min(settings.num_considered, width)
    links = {name: torch.full((count, nodes), -1, device=legal.device) for name in ("parent", "action")}
    tree = Tree(
        **{name: root.logits.new_zeros(count, nodes, width) for name in EDGES}, **links,
        child=links["parent"].new_full((count, nodes, width), -1), raw_value=root.value.new_zeros(count, nodes),
        mean_value=root.value.new_zeros(count, nodes), legal=legal.contiguous(), gumbel=gumbel.contiguous(),
        considered=_schedules(m, settings.num_simulations, legal.device)[legal.sum(-1).clamp(max=m)],
    )  # fmt: skip
    logits = root.logits - root.logits.amax(-1, keepdim=True)
    tree.logits[:, 0] = logits.masked_fill(~legal, torch.finfo(torch.float32).min)
    tree.raw_value[:, 0] = tree.mean_value[:, 0] = root.value
    return tree


@torch.no_grad()
def search(model: SearchModel, root: Node, legal: Tensor, gumbel: Tensor, settings: SearchSettings) -> SearchResult:
    """Search from N roots at once.

    Args:
        model: predicts the children of nodes.
        root: the states of the roots, with logits and values in float32.
        legal: ``[N, A]`` bool, the legal actions at the roots, at least one each. Below them, none is masked.
        gumbel: ``[N, A]``, samples of the standard Gumbel distribution to explore, or zeros.
        settings: constants of the search.
    """
    constants = settings[2:]
    tree = start(root, legal, gumbel, settings)
    rows = torch.arange(len(legal), device=legal.device)
    states = root.state.new_zeros(len(rows), settings.num_simulations + 1, *root.state.shape[1:])
    states[:, 0] = root.state
    for simulation in range(settings.num_simulations):
        node, action = select(tree, simulation, *constants)
        transition = model(states[rows, node], action)
        states[:, simulation + 1] = transition.node.state
        backup(tree, simulation + 1, node, action, transition)
    return summarize(tree, settings)


def summarize(tree: Tree, settings: SearchSettings) -> SearchResult:
    """Return the action with the highest g + l + sigma among the most visited legal ones, and pi': sections 3 and 4."""
    rows = torch.arange(len(tree.legal), device=tree.legal.device)
    logits, visits, completed = _complete_at(tree, rows, torch.zeros_like(rows), *settings[2:])
    action = _best_considered(tree, logits, visits, completed.sigma, visits.amax(-1))
    improved = (logits + completed.sigma).masked_fill(~tree.legal, torch.finfo(torch.float32).min)
    policy = torch.softmax(improved, -1) * tree.legal
    return SearchResult(action, policy, (policy * completed.q).sum(-1), completed.q, tree)
