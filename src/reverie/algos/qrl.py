"""QRL: Wang et al., "Optimal goal-reaching reinforcement learning via quasimetric learning", ICML 2023.

As in OGBench's code (impls/agents/qrl.py). The distance between states is a quasimetric: it obeys the triangle
inequality, and may differ between both directions. It is maximized between any two states, where each recorded step
has at most length 1. The largest such distance is the length of the shortest way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.algos.goal_conditioned import ActorLossConfig, GoalConditioned
from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError
from reverie.core.goals import GoalShares
from reverie.core.kernel_dispatch import NotesChanges
from reverie.core.specs import GOAL, ActionSpec, ObsSpec
from reverie.core.types import Batch, Obs, PolicyOutput
from reverie.nn.goal_networks import PHI, Quasimetric, build_goal_actor, build_goal_network, with_phi
from reverie.nn.optim import frozen
from reverie.objectives.goals import INTERVALS, imitation_loss, obs_of_goal, start_and_goal, value_imitation_loss
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, masked_mean

MEAN_DISTANCE = 500.0
"""Distance between random states from which on its loss flattens, 5 times :data:`SOFTNESS`: the authors' code."""
SOFTNESS = 100.0

# ---------------------------------------------------------------------- losses


class QRLObjective(NotesChanges, nn.Module):
    """The losses of QRL.

    ``phi(obs)`` maps the observations of a goal's keys to representations ``[..., D]``, ``distance(phi, phi)`` is
    ``[...]``, and ``dynamics(obs, action)`` predicts the change of phi; ``awr`` needs no dynamics.
    """

    def __init__(
        self, actor: nn.Module, phi: nn.Module, distance: nn.Module, dynamics: nn.Module | None, cfg: QRLConfig
    ) -> None:
        super().__init__()
        self.cfg = cfg
        self.actor = actor
        self.phi = phi
        self.distance = distance
        self.dynamics = dynamics
        self.log_multiplier: nn.Parameter = nn.Parameter(torch.zeros(()))

    def forward(self, batch: Batch) -> Losses:
        """Return the terms ``value``, ``lagrange_multiplier``, ``dynamics`` and ``actor`` of a batch ``[B, 2]``."""
        before, after = self.phi(batch.obs).split(1, 1)  # [B, 1, D]
        value = self.value_loss(batch, before, after)
        actor = self.actor_loss(batch, before.detach(), after.detach())
        dynamics = {} if self.dynamics is None else {"dynamics": self.dynamics_loss(batch, before, after)}
        return Losses(value.terms | dynamics | actor.terms, value.metrics | actor.metrics)

    def value_loss(self, batch: Batch, before: Tensor, after: Tensor) -> Losses:
        """Return the terms ``value`` and ``lagrange_multiplier``.

        L = E[100 softplus(5 - d(s, g) / 100)] + lambda C,  C = E[max(d(s, s') - 1, 0)^2],  L_lambda = lambda (eps - C).
        """
        mask = transition_mask(batch.is_last)
        apart = self.distance(before, self.phi(obs_of_goal(batch, "value")))  # [B, 1]
        step = self.distance(before, after)  # [B, 1]
        spread = masked_mean(SOFTNESS * F.softplus((MEAN_DISTANCE - apart) / SOFTNESS), mask)
        excess = masked_mean((step - 1).relu().square(), mask)
        multiplier = self.log_multiplier.exp()
        terms = {
            "value": spread + multiplier.detach() * excess,
            "lagrange_multiplier": multiplier * (self.cfg.tolerance - excess.detach()),
        }
        metrics = {"train/distance": masked_mean(apart.detach(), mask), "train/step": masked_mean(step.detach(), mask)}
        return Losses(terms, metrics | {"train/lagrange_multiplier": multiplier.detach()})

    def predict(self, before: Tensor, action: Tensor) -> Tensor:
        """Return phi ``[B, 1, D]`` after an action ``[B, 1, A]``."""
        assert self.dynamics is not None
        change: Tensor = self.dynamics({PHI: before}, action)
        return before + change

    def dynamics_loss(self, batch: Batch, before: Tensor, after: Tensor) -> Tensor:
        """E[d(phi(s'), predicted) + d(predicted, phi(s'))] / 2, whose gradient also trains phi."""
        predicted = self.predict(before, batch.action[:, :-1])
        both = self.distance(after, predicted) + self.distance(predicted, after)  # [B, 1]
        return masked_mean(both, transition_mask(batch.is_last)) / 2

    def actor_loss(self, batch: Batch, before: Tensor, after: Tensor) -> Losses:
        """Return the term ``actor``, with Q = -d(predicted, g), and V = -d(s, g) for the advantage."""
        policy = self.actor(start_and_goal(batch, "actor"))
        log_pi = policy.log_prob(batch.action[:, :-1])  # [B, 1]
        with torch.no_grad():
            goal = self.phi(obs_of_goal(batch, "actor"))  # [B, 1, D]
        if self.dynamics is None:
            with torch.no_grad():
                advantage = self.distance(before, goal) - self.distance(after, goal)  # [B, 1]
            return imitation_loss(log_pi, advantage, self.cfg.alpha, batch)
        with frozen(self.dynamics), frozen(self.distance):
            value = -self.distance(self.predict(before, policy.mode()), goal)  # [B, 1]
        return value_imitation_loss(value, log_pi, self.cfg.alpha, batch)

    def values(self, obs: Obs, _: Tensor) -> Tensor:
        """-d(s, g) of observations with a goal, ``[...]``; actions do not matter."""
        goal = {key.removeprefix(GOAL): x for key, x in obs.items() if key.startswith(GOAL)}
        distance: Tensor = self.distance(self.phi(obs), self.phi(goal))
        return -distance


# ---------------------------------------------------------------------- learner


class QRL(GoalConditioned):
    """The learner of QRL: an actor, a distance and perhaps dynamics, their update and the policy."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: QRLConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        spec, width, c, dtype = self.preprocess.spec, cfg.representation_width, cfg.networks, cfg.dtype
        actor = build_goal_actor(spec, action_spec, c, dtype)
        phi = build_goal_network({key: spec[key] for key in self.preprocess.goals}, width, c, dtype)
        dynamics: nn.Module | None = None
        if cfg.actor_loss == "ddpg_bc":
            dynamics = build_goal_network(with_phi({}, width), width, c, dtype, extra_inputs=action_spec.width)
        self.objective: QRLObjective = QRLObjective(actor, phi, Quasimetric(), dynamics, cfg)
        self.make_optim_and_policy()

    def goal_distance(self, output: PolicyOutput) -> Tensor:
        return -self.state_value(output)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class QRLConfig(ActorLossConfig):
    """Settings of QRL, with the defaults of OGBench's code. Distances are between observations of the goal's keys."""

    alpha: Annotated[float, AtLeast(0)] = 0.003
    """Weight of imitation in ddpg_bc, inverse temperature in awr. The authors choose it for each environment."""
    representation_width: Annotated[int, AtLeast(INTERVALS)] = 512
    """D, the width of phi: a multiple of 8, the number of intervals in a component of the distance."""
    tolerance: Annotated[float, AtLeast(0)] = 0.05
    """Eps: the mean of max(d(s, s') - 1, 0)^2 that is tolerated."""
    value_goals: GoalShares = field(default_factory=lambda: GoalShares(episode=0.0, random=1.0))
    """Goals from which the distance is maximized."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.representation_width % INTERVALS:
            raise ConfigError(
                f"algo.representation_width = {self.representation_width}: expected a multiple of {INTERVALS}."
            )


QRLConfig.learner = QRL
