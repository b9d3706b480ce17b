"""Policies that plan in the latent space of a world model, and learners that store plans and make some of them anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from reverie.algos.model_free import CountingLearner
from reverie.algos.tdmpc2_inspection import InspectableWorldModel
from reverie.core.bounds import AtLeast
from reverie.core.config import Config
from reverie.core.kernel_dispatch import accelerated
from reverie.core.specs import MASK_KEY
from reverie.core.types import Batch, Mode, Obs, PolicyOutput, Step, Update
from reverie.nn.functional import one_hot, sample_legal
from reverie.nn.state_space import Latent
from reverie.objectives.tree_search import SearchResult

SEARCH_POLICY, SEARCH_VALUE = "search_policy", "search_value"
"""Columns of the improved policy ``[A]`` of a search and of its value ``[1]``; 0 in rows without a search."""


class LatentPlanner:
    """The base of policies that encode rows, and plan from there."""

    def __init__(self, learner: InspectableWorldModel) -> None:
        self.learner = learner

    def observe(self, step: Step, state: Any) -> Latent:
        """Return the latents ``[N, ...]`` of rows, with the rewards predicted from ``state``; 0 where one begins."""
        world, device = self.learner.world, self.learner.device
        begun = step.is_first.to(device, non_blocking=True)[:, None, None]
        z: Tensor = self.learner.objective.encoder(step.obs_on(device))  # [N, L]
        return Latent(z, world.imagine(state.latent, state.action).stoch.masked_fill(begun, 0.0))

    def inspect(self, step: Step, state: Any) -> PolicyOutput:
        """Return the learned policy, which proposes actions to the plan, not the plan."""
        z: Tensor = self.learner.objective.encoder(step.obs_on(self.learner.device))  # [N, L]
        latent, legal = Latent(z, z.new_zeros(len(z), 1, 1)), step.obs.get(MASK_KEY)
        return PolicyOutput(latent, self.learner.actor(latent.feature, None if legal is None else legal.to(z.device)))

    def override(self, state: Any, action: Tensor) -> Any:
        return state._replace(action=action.to(state.action.device, non_blocking=True))


class SearchState(NamedTuple):
    """The state of :class:`SearchPlanner`: nothing of it is needed for the next action."""

    latent: Latent  # [N, ...], of the last row, see LatentWorld
    action: Tensor  # [N, A], taken there
    policy: Tensor  # [N, A], of the search there; 0 where there was none
    value: Tensor  # [N, 1]


class SearchPlanner(LatentPlanner):
    """Acts by tree search: ``explore`` with Gumbel noise, ``eval`` without, ``random`` without a search."""

    def __init__(self, learner: InspectableWorldModel, simulations: int | None = None) -> None:
        """``simulations``: of each search; None: those of the settings."""
        super().__init__(learner)
        self.simulations = simulations

    def initial(self, num_envs: int) -> SearchState:
        world, width = self.learner.world, self.learner.objective.width
        policy = torch.zeros(num_envs, width, device=self.learner.device)
        return SearchState(world.initial(num_envs, world.dtype), policy, policy.clone(), policy[:, :1].clone())

    @torch.no_grad()
    def act(self, step: Step, state: SearchState, mode: Mode) -> tuple[Tensor, SearchState]:
        """Return ``(action [N, A] beside the rows, state)``."""
        after = self.choose(step, state, mode)
        return after.action.to(step.is_first.device), after

    @accelerated
    def choose(self, step: Step, state: SearchState, mode: Mode) -> SearchState:
        """Return the search and its action, on the learner's device: :meth:`act`."""
        latent = self.observe(step, state)
        if mode == "random":
            legal = find_legal(step.obs, state.policy)
            index, policy, value = sample_legal(legal), torch.zeros_like(state.policy), torch.zeros_like(state.value)
        else:
            index, policy, value, *_ = self.search(latent, step.obs, explore=mode == "explore")
            value = value.unsqueeze(-1)
        return SearchState(latent, one_hot(index, state.policy), policy, value)

    def search(self, latent: Latent, obs: Obs, *, explore: bool = False) -> SearchResult:
        """Search from latents ``[N, ...]``; ``obs`` may have masks ``[N, A]``. ``explore``: with Gumbel noise."""
        objective: Any = self.learner.objective
        legal = find_legal(obs, latent.deter.new_zeros(len(latent.deter), objective.width))
        result: SearchResult = objective.search(latent.deter, legal, explore=explore, simulations=self.simulations)
        return result

    def extras(self, state: SearchState) -> dict[str, Tensor]:
        return {SEARCH_POLICY: state.policy, SEARCH_VALUE: state.value}

    def memoryless(self, mode: Mode) -> bool:
        return True


def find_legal(obs: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """Return the mask of legal actions ``[..., A]`` in the shape of ``like``, on its device.

    All actions are legal without a mask, and where none is legal, as after the end of a game.
    """
    if (mask := obs.get(MASK_KEY)) is None:
        return torch.ones_like(like, dtype=torch.bool)
    legal = mask.to(like.device, non_blocking=True)
    return legal | ~legal.any(-1, keepdim=True)


# ---------------------------------------------------------------------- lazy reanalyze


class ReanalyzingLearner(CountingLearner):
    """A learner from stored plans, which become outdated: every k-th update makes new plans for some windows.

    Its objective has ``reanalyze(batch, count)``, which returns the extra columns ``[B, T, ...]`` of a prepared batch,
    with new plans for its last ``count`` windows: if windows overlap, the last ones are stored.
    """

    def update(self, batch: Batch) -> Update:
        """Take a gradient step; every k-th one on a batch with new plans, which are returned to be stored.

        The plans are not captured, as they take far longer than Python, and all memory of a capture stays reserved.
        """
        vars(self)["updates"] = self.updates + 1
        if not self.cfg.reanalyze_interval or self.updates % self.cfg.reanalyze_interval:
            return super().update(batch)
        prepared = self.prepare_batch(batch.to(self.device))
        plans = self.objective.reanalyze(prepared, min(self.cfg.reanalyze_batch_size, len(batch.index)))
        return replace(super().update(batch.with_extras(plans)), extras=plans)


@dataclass(frozen=True, kw_only=True)
class ReanalyzeConfig(Config):
    """Settings of :class:`ReanalyzingLearner`."""

    reanalyze_interval: Annotated[int, AtLeast(0)] = 10
    """Updates from one batch with new plans to the next; 0: stored plans stay as they are."""
    reanalyze_batch_size: Annotated[int, AtLeast(1)] = 20
    """Windows of such a batch that get new plans, at most all."""
