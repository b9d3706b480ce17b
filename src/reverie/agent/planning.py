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
from reverie.algos.tdmpc2 import TDMPC2
from reverie.core.errors import ConfigError, DataError
from reverie.core.types import Obs
from reverie.nn.functional import one_hot
from reverie.nn.state_space import Latent
from reverie.objectives.tree_search import SearchResult as TreeSearchResult

LATENT_SIMULATIONS = 16
"""Default of searches in the latents of a Dreamer."""


class Plan(NamedTuple):
    """A plan of a world model, of H actions, for one observation or N. LeWM's H are blocks of k actions.

    MuZero's H is the length of the shortest principal variation of the N.
    """

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


class PlanMethods(Player):
    """Methods of :class:`~reverie.Agent` that show what it plans."""

    def search(
        self, obs: Any, simulations: int | None = None, *, state: AgentState | None = None, action_mask: Any = None
    ) -> SearchResult:
        """Search from a single observation, as MuZero does in :meth:`act`; the other arguments are those of ``act``.

        DreamerV3 and R2-Dreamer with one discrete action are searched in their latents. ``simulations``: nodes that the
        search adds to the tree, at least 2. None: as in training; 16 for a Dreamer.

        Raises:
            ConfigError: the algorithm does not search.
            DataError: the observation does not fit.
        """
        single, output = self.inspect(obs, state, action_mask=action_mask)
        if not single:
            raise DataError("a batch of observations: expected a single one to search from.")
        step = self.to_step(obs, state=state, action_mask=action_mask)
        tensors = search_latents(self, output.inputs, step.obs, simulations)
        tree, best, q = read_tree(tensors), int(tensors.action), tensors.q[0].numpy(force=True)
        return SearchResult(
            action=_to_action(self, best), policy=tensors.policy[0].numpy(force=True), value=float(tensors.value),
            prior=torch.softmax(tensors.tree.logits[0, 0], -1).numpy(force=True), visits=tree["visits"][0].astype(int),
            values=np.where(tree["legal"], q, np.nan), tree=tree,
            variation=[_to_action(self, action) for action, _ in _follow(tree, best)],
        )  # fmt: skip

    def plan(self, obs: Any, goal: Any = None, *, state: AgentState | None = None, action_mask: Any = None) -> Plan:
        """Return what an agent that plans intends to do; the arguments are those of :meth:`act`.

        LeWM plans to a goal. For TD-MPC2 and BMPC it is the mean of the plan, for MuZero the principal variation of its
        search. Random generators do not advance.

        Returns:
            ``actions`` to take, as :meth:`act` returns them, one after the other; and tensors ``[1, ...]``, or
            ``[N, ...]`` for batches: the predicted ``latents`` and their ``values``, or ``costs`` of LeWM, the squared
            distances to the goal's latent.

        Raises:
            ConfigError: the algorithm does not plan, or not to goals.
            DataError: the observation or the goal does not fit.
        """
        algo = self.algo
        if isinstance(algo, LeWM):
            single, output = self.inspect(obs, state, goal=goal)
            chosen = algo.plan(output.inputs)
            flat = algo.single_actions(chosen.blocks)  # [N, H k, A]
            return Plan(_to_actions(self, flat, single), chosen.latents, costs=chosen.costs)
        if goal is not None:
            raise ConfigError(f"goal: {self.config.algo.algorithm} does not plan to goals. Train lewm.")
        if isinstance(algo, MuZero):
            single, output = self.inspect(obs, state, action_mask=action_mask)
            step, z = self.to_step(obs, state=state, action_mask=action_mask), output.inputs.deter
            tensors = search_latents(self, output.inputs, step.obs, None)
            paths = [[*_follow(read_tree(tensors, i), action)] for i, action in enumerate(tensors.action.tolist())]
            length = min(map(len, paths))  # H of a batch is that of the shortest variation
            index = torch.tensor([[action for action, _ in path[:length]] for path in paths], device=z.device)
            flat = one_hot(index, z.new_zeros(*index.shape, algo.objective.width))
            values = z.new_tensor([[value for _, value in path[:length]] for path in paths])
            return Plan(_to_actions(self, flat, single), _predict(algo, z, flat), values=values)
        if isinstance(algo, TDMPC2) and algo.cfg.use_planning:
            single, output = self.inspect(obs, state)
            before = self.initial_state(len(output.inputs.deter)) if state is None else state.policy
            with torch.random.fork_rng([algo.device] if algo.device.type == "cuda" else []):
                after = algo.policy.act(self.to_step(obs, state=state), before, "eval")[1]
            flat = getattr(after, "state", after).mean  # [N, H, A]; a preprocessed policy wraps it
            latents = _predict(algo, output.inputs.deter, flat)
            values = algo.latent_value(Latent(latents, latents.new_zeros(*latents.shape[:2], 1, 1)))
            return Plan(_to_actions(self, flat, single), latents, values=values.detach())
        raise ConfigError(f"{self.config.algo.algorithm} does not plan. Train lewm, tdmpc2, bmpc or muzero.")


@torch.no_grad()
def search_latents(player: Player, latent: Latent, obs: Obs, simulations: int | None) -> TreeSearchResult:
    """Search from latents ``[N, ...]``; ``obs`` may have masks ``[N, A]``. ConfigError: the agent does not search.

    ``simulations`` None: as in training, or ``LATENT_SIMULATIONS``.
    """
    default = None if isinstance(player.algo, MuZero) else LATENT_SIMULATIONS
    policy: Any = player.algo.acting(default if simulations is None else simulations)
    result: TreeSearchResult = getattr(policy, "inner", policy).search(latent, obs)  # behind a preprocessor
    return result


def read_tree(result: TreeSearchResult, root: int = 0) -> dict[str, np.ndarray]:
    """Return the arrays of the tree of a root by name."""
    return {name: x[root].numpy(force=True) for name, x in result.tree._asdict().items()}


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
