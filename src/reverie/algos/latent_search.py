"""Tree search in the latent space of a Dreamer, which its evaluation can use instead of the actor alone.

The model of the search is DreamerV3's dream, without luck: each action leads to the most likely next latent, since a
maximum over samples prefers lucky ones. So the environment should be nearly deterministic.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reverie.algos.dreamer import LatentPolicy
from reverie.algos.planner import find_legal
from reverie.algos.world_model import Context
from reverie.core.specs import MASK_KEY
from reverie.core.types import Mode, Obs, Step
from reverie.nn.distributions import Categoricals
from reverie.nn.functional import one_hot
from reverie.nn.state_space import Latent
from reverie.objectives.tree_search import Node, SearchResult, SearchSettings, Transition, search


class LatentSearchPolicy(LatentPolicy):
    """Acts by a search of S simulations from the latents that the agent's own policy infers."""

    def __init__(self, learner: Any, simulations: int) -> None:
        """``learner``: a DreamerV3 with one discrete action."""
        super().__init__(learner)
        # Differences that are small on the scale of returns by which the actor learns are the critic's errors.
        floor = float(learner.return_scale()[1])
        self.settings: SearchSettings = SearchSettings(simulations, q_range_floor=floor)

    @torch.no_grad()
    def act(self, step: Step, state: Context, mode: Mode) -> tuple[Tensor, Context]:
        """Return ``(action [N, A] beside the rows, state)``; without noise."""
        _, after = super().act(step, state, mode)
        action = one_hot(self.search(after.latent, step.obs).action, after.action)
        return action.to(step.is_first.device), after._replace(action=action)

    def search(self, latent: Latent, obs: Obs) -> SearchResult:
        """Search from latents ``[N, ...]``; ``obs`` may have masks ``[N, A]``."""
        root = self._node(latent, obs.get(MASK_KEY))
        return search(self._model, root, find_legal(obs, root.logits), torch.zeros_like(root.logits), self.settings)

    def _model(self, state: Tensor, index: Tensor) -> Transition:
        """Predict the most likely next latents of states ``[N, D + S C]``, with rewards and learned continuation."""
        learner, deter = self.learner, self._deter
        before = Latent(state[:, :deter], state[:, deter:].view(len(state), *self._shape))
        h = learner.world.rssm.step(*before, one_hot(index, state.new_zeros(len(state), self.width)))
        latent = learner.world.rssm.most_likely(Latent(h, before.stoch), learner.world.rssm.p(h))
        outcome = learner.predict_reward_and_cont(latent)
        return Transition(outcome["reward"], learner.cfg.discount * outcome["cont"], self._node(latent, None))

    def _node(self, latent: Latent, mask: Tensor | None) -> Node:
        """Return latents ``[N, ...]`` as a node. Actions are legal by ``mask``, or else as the model predicts."""
        self._deter, self._shape = latent.deter.shape[-1], latent.stoch.shape[1:]
        learner, feature = self.learner, latent.feature
        legal = None if learner.world.mask is None else learner.world.mask.legal(feature)
        if mask is not None:
            legal = mask.to(feature.device)
        decision = learner.actor_for("eval")(feature, *(() if legal is None else (legal,)))
        (part,) = decision.parts.values()
        assert isinstance(part, Categoricals)
        logits = part.log_probs.clamp(min=torch.finfo(torch.float32).min / 2)
        return Node(torch.cat([latent.deter, latent.stoch.flatten(1)], -1), logits, learner.latent_value(latent))
