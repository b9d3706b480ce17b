"""What goal-conditioned learners share: goals as inputs of networks, sampled goals, and their settings.

A learner's observations ``goal/KEY`` are a goal: an observation ``KEY`` to reach. Recorded data need none, as other
recorded observations serve as goals. The environment, or the caller of ``agent.act``, supplies them when acting.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from reverie.algos.model_free import ModelFree, ModelFreeConfig, OfflineConfig
from reverie.core.bounds import Above, AtLeast, Regex, ScheduledFloat, Within
from reverie.core.errors import ConfigError
from reverie.core.goals import GoalSampling, GoalShares
from reverie.core.specs import ACHIEVED_GOAL, DESIRED_GOAL, GOAL, ActionSpec, ObsSpec, num_continuous, without_mask
from reverie.core.types import Batch, PolicyOutput, Update, Window
from reverie.nn.adam import Adam
from reverie.nn.exploration import SampledPolicy
from reverie.nn.network import CRITIC_SETTINGS, NetworkConfig
from reverie.nn.preprocess import RandomCrops
from reverie.nn.target_network import TargetNetwork

# ---------------------------------------------------------------------- learner


class GoalConditioned(ModelFree):
    """A learner whose networks read observations with goals. ``preprocess.spec`` contains both."""

    cfg: Any

    def __init__(self, obs_spec: ObsSpec, cfg: GoalConfig, device: torch.device) -> None:
        super().__init__(cfg.network_spec(obs_spec), cfg, device)
        self.window: Window = replace(self.window, has_priorities=False)
        self.crops: RandomCrops = RandomCrops(self.preprocess.spec, cfg.crop_probability)

    def prepare_batch(self, batch: Batch) -> Batch:
        return self.crops(super().prepare_batch(batch))

    @property
    def goal_sampling(self) -> GoalSampling:
        """The goals that each transition of a batch needs."""
        return GoalSampling(
            shares=self.cfg.goal_shares, keys=self.preprocess.goals, discount=getattr(self.cfg, "discount", 0.0),
            context=self.window.context,
        )  # fmt: skip

    def goal_distance(self, output: PolicyOutput) -> Tensor:
        """Return d of V(s, g) = -(1 - gamma^d) / (1 - gamma), in steps: the value of a goal that is d steps away."""
        value = self.state_value(output)
        discount = self.cfg.discount
        return torch.log((1 + (1 - discount) * value).clamp(0, 1)) / math.log(discount)

    def make_optim_and_policy(self) -> None:
        """Create the optimizer of all parameters of the objective, and the policy of its actor."""
        self.to(self.device)
        self.optims["all"] = Adam(self.objective.parameters(), self.cfg.lr)
        self._policy = SampledPolicy(self.objective.actor, self.device, self.cfg.graph)

    def train_step(self, batch: Batch) -> Update:
        """Take one step of the target networks, and one of all networks on the sum of all terms.

        As in the authors' code, all losses are those of the networks before the step, which the targets follow too.
        """
        losses = self.objective(batch)
        for module in self.objective.children():
            if isinstance(module, TargetNetwork):
                module.update()
        self.optims["all"].step(losses.total())
        return Update(metrics=dict(losses.update().metrics))


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class GoalKeysConfig(OfflineConfig, ModelFreeConfig):
    """Settings of learners that act toward goals."""

    has_goals: ClassVar[bool] = True

    goal_keys: Annotated[str, Regex()] = ""
    """Regular expression of the observation keys that form a goal, matched in full. Empty: `achieved_goal` of a goal
    environment, else all observations."""

    def check_data(self, *, recorded: bool, collected: bool) -> None:
        if not recorded or collected:
            raise ConfigError(
                f"{self.algorithm} learns from recorded data alone. Pass --data PATH, and no experience but offline."
            )

    def needs_rewards(self, *, collected: bool) -> bool:
        return False

    def goal_keys_of(self, spec: ObsSpec) -> list[str]:
        """Return the keys of the observations of ``spec`` that form a goal; ConfigError if there is none."""
        keys = [key for key in without_mask(spec) if not key.startswith(GOAL) and key != DESIRED_GOAL]
        if not self.goal_keys and DESIRED_GOAL in spec and ACHIEVED_GOAL in spec:
            return [ACHIEVED_GOAL]
        if not (chosen := [key for key in keys if re.fullmatch(self.goal_keys or ".*", key)]):
            raise ConfigError(
                f"algo.goal_keys = {self.goal_keys!r}: no observation matches. The observations are: {', '.join(keys)}."
            )
        return chosen

    def acting_spec(self, spec: ObsSpec) -> ObsSpec:
        """Return the observations ``spec`` of recorded rows with the goals that acting needs."""
        goals = self.goal_keys_of(spec)
        if goals == [ACHIEVED_GOAL] and DESIRED_GOAL in spec:
            return spec
        return {**spec, **{f"{GOAL}{key}": spec[key] for key in goals}}

    def network_spec(self, spec: ObsSpec) -> ObsSpec:
        """Return the inputs of networks, given the observations ``spec`` of rows or of :meth:`acting_spec`."""
        rows = {key: part for key, part in spec.items() if not key.startswith(GOAL) and key != DESIRED_GOAL}
        return rows | {f"{GOAL}{key}": rows[key] for key in self.goal_keys_of(spec)}


@dataclass(frozen=True, kw_only=True)
class GoalConfig(GoalKeysConfig):
    """Settings of goal-conditioned learners, with the defaults of OGBench's code (github.com/seohongpark/ogbench)."""

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous", "discrete", "multi_discrete"})
    network_settings: ClassVar[frozenset[str]] = frozenset()

    batch_size: int = 1024
    """B, number of transitions in a batch."""
    networks: NetworkConfig = field(default_factory=lambda: NetworkConfig(units=(512, 512, 512)))
    """Layers of the networks, with GELU instead of ReLU."""
    lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    """Learning rate of Adam for all networks."""
    actor_goals: GoalShares = field(default_factory=GoalShares)
    """Goals of the policy's loss."""
    crop_probability: Annotated[float, Within("[0, 1]")] = 0.0
    """Probability with which an update shifts the images of its batch at random, by up to 3 pixels: those of a
    transition and of its goals alike. The authors use 0.5 for robots and 0 in mazes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_length != 2:
            raise ConfigError(
                f"algo.batch_length = {self.batch_length}: {self.algorithm} samples goals for single transitions. Use "
                "2."
            )

    @property
    def goal_shares(self) -> dict[str, GoalShares]:
        """Where goals come from, by their names."""
        return {"actor": self.actor_goals}


@dataclass(frozen=True, kw_only=True)
class GoalValueConfig(GoalConfig):
    """Settings of goal-conditioned learners with values."""

    network_settings: ClassVar[frozenset[str]] = frozenset(CRITIC_SETTINGS)

    networks: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(units=(512, 512, 512), critic_norm="after_relu")
    )
    """Layers of the networks, with GELU instead of ReLU. Values are critics."""
    discount: Annotated[float, Within("(0, 1)")] = 0.99
    """Discount factor gamma per agent step. The authors use 0.995 in giant mazes."""
    value_goals: GoalShares = field(
        default_factory=lambda: GoalShares(current=0.2, episode=0.5, random=0.3, geometric=True)
    )
    """Goals of the values' loss."""

    @property
    def goal_shares(self) -> dict[str, GoalShares]:
        return {"value": self.value_goals, "actor": self.actor_goals}


@dataclass(frozen=True, kw_only=True)
class ExpectileConfig(GoalValueConfig):
    """Settings of goal-conditioned learners whose values are expectiles, with target networks."""

    expectile: Annotated[float, Within("(0, 1)")] = 0.9
    """Tau: a value is this expectile of its targets. At 0.5 it is their mean; near 1 it approaches their maximum."""
    tau: Annotated[float, Within("(0, 1]")] = 0.005
    """Step size of the target networks per update; 1 copies the networks."""


@dataclass(frozen=True, kw_only=True)
class ActorLossConfig(GoalValueConfig):
    """Settings of goal-conditioned learners with a choice of the policy's loss."""

    actor_loss: Literal["ddpg_bc", "awr"] = "ddpg_bc"
    """Loss of the policy. ddpg_bc: maximize the value of its actions, and imitate recorded ones. awr: imitate recorded
    actions with weights exp(alpha A), which discrete actions need."""
    alpha: Annotated[float, AtLeast(0)] = 0.3
    """Weight of imitation in ddpg_bc, inverse temperature in awr. The authors choose it for each environment."""

    def for_specs(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> Self:
        if self.actor_loss == "ddpg_bc" and not num_continuous(action_spec):
            raise ConfigError(
                "algo.actor_loss = ddpg_bc: values have no gradient by discrete actions. Use --algo.actor-loss awr."
            )
        return super().for_specs(obs_spec, action_spec)
