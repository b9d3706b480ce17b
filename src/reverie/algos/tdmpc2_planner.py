"""The policy of TD-MPC2: it plans at every step, or samples the learned policy. And the types that planning needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from reverie.algos.planner import LatentPlanner
from reverie.algos.tdmpc2_inspection import InspectableWorldModel
from reverie.core.types import Mode, Step
from reverie.nn.exploration import CapturableFunction
from reverie.nn.state_space import Latent

PLANNED = "planned"
"""Column of the planned action's mean and standard deviation ``[2, A]``, for learners that store them."""


class Plan(NamedTuple):
    """The state of the policy. Planning needs only the mean; the rest is for inspection and for learners."""

    mean: Tensor  # [N, H, A], of the last plan
    latent: Latent  # [N, ...], of the last row, see LatentWorld
    action: Tensor  # [N, A], taken there
    planned: Tensor  # [N, 2, A], mean and standard deviation of the planned action; 0 where nothing was planned


class PolicySample(NamedTuple):
    """Actions sampled from the policy."""

    action: Tensor  # [..., A]
    mean: Tensor  # [..., A], tanh of the Gaussian's mean
    log_std: Tensor  # [..., A]
    entropy: Tensor  # [...], -ln pi(a)
    scaled_entropy: Tensor  # [...], A times the entropy of the Gaussian before tanh


SamplePolicy = Callable[[Tensor], PolicySample]
"""Samples actions in latents ``[..., L]``."""


class Elites(NamedTuple):
    """The best action sequences of an iteration, and the distribution fitted to them."""

    actions: Tensor  # [H, N, E, A]
    value: Tensor  # [N, E], descending
    indices: Tensor  # [N, E], among the S sequences
    score: Tensor  # [N, E], weights with sum 1
    mean: Tensor  # [H, N, 1, A]
    std: Tensor  # [H, N, 1, A]


class Planner(LatentPlanner):
    """Acts by planning, or by the policy alone. Evaluations are stochastic too, as in the authors' code."""

    def __init__(self, learner: InspectableWorldModel) -> None:
        super().__init__(learner)
        self.plans: dict[bool, CapturableFunction] = {
            explore: CapturableFunction(
                partial(self.plan_action, explore), learner.objective, static=learner.graph, graph=learner.graph
            )
            for explore in (False, True)
        }

    def plan_action(self, explore: bool, x: Mapping[str, Tensor]) -> Tensor:
        """Return action, its distribution and the new plan in one tensor ``[N, 3 + H, A]``.

        ``x``: ``latent`` and the plan ``before``.
        """
        action, mean, planned = self.learner.objective.plan(x["latent"], x["before"], explore)
        return torch.cat([action.unsqueeze(1), planned, mean], 1)

    def initial(self, num_envs: int) -> Plan:
        o, world = self.learner.objective, self.learner.world
        mean = torch.zeros(num_envs, o.cfg.horizon, o.width, device=self.learner.device)
        planned = mean.new_zeros(num_envs, 2, o.width)
        return Plan(mean, world.initial(num_envs, world.dtype), mean[:, 0].clone(), planned)

    @torch.no_grad()
    def act(self, step: Step, state: Plan, mode: Mode) -> tuple[Tensor, Plan]:
        """Return ``(action [N, A] beside the rows, plan)``.

        ``eval`` adds no noise to the plan's first action, but still samples sequences and draws one of the elites.
        Without planning it takes the policy's mean.
        """
        o, latent = self.learner.objective, self.observe(step, state)
        z = latent.deter  # [N, L]
        mean = state.mean.masked_fill(step.is_first.to(z.device, non_blocking=True)[:, None, None], 0.0)
        if o.cfg.use_planning and mode != "random":
            plan = self.plans[mode != "eval"]({"latent": z, "before": mean})
            action, planned, mean = plan[:, 0], plan[:, 1:3], plan[:, 3:]
        else:
            action = o.policy(z).action if mode != "eval" else o.distribution(*o.gaussian(z)).mode()
            planned = torch.zeros_like(state.planned)
        return action.to(step.is_first.device), Plan(mean, latent, action, planned)

    def extras(self, state: Plan) -> dict[str, Tensor]:
        return {PLANNED: state.planned} if self.learner.extra_spec else {}

    def memoryless(self, mode: Mode) -> bool:
        return not self.learner.objective.cfg.use_planning
