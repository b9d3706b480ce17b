"""FQE, fitted Q evaluation: Le, Voloshin, Yue, "Batch policy learning under constraints", arXiv:1903.08738, 2019.

It estimates the return of another policy from offline rows, by repeated regression on r + gamma Q(s', pi(s'))
(algorithm 3). Voloshin, Le, Jiang and Yue, "Empirical study of off-policy policy evaluation for reinforcement
learning", arXiv:1911.06854, find it among the best of such estimators. It trains no policy, so it is not listed among
the algorithms; ``agent/off_policy_estimator.py`` uses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from reverie.algos.model_free import ModelFree, OfflineConfig, ValueConfig
from reverie.algos.settings import init_context
from reverie.core.bounds import Above, AtLeast, Within
from reverie.core.errors import ConfigError
from reverie.core.kernel_dispatch import NotesChanges
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Obs, Update
from reverie.nn.actor_critic import QEnsemble, many_action_values
from reverie.nn.adam import Adam
from reverie.nn.target_network import TargetNetwork
from reverie.objectives.estimators import TD0
from reverie.objectives.td import Losses, obs_after, obs_before, squared_error

# ---------------------------------------------------------------------- losses


class ValueUnits(NamedTuple):
    """Shift and scale of the critic's outputs, and bounds of values, computed from the data. They speed up learning."""

    shift: float = 0.0
    """Value that the critic's output 0 stands for."""
    scale: float = 1.0
    """Value of one unit of the critic's output."""
    low: float = -math.inf
    """Lower bound of values."""
    high: float = math.inf
    """Upper bound of values."""


NO_UNITS = ValueUnits()


class FQEObjective(NotesChanges, nn.Module):
    """The loss of FQE over any ``critic(obs, action) -> [...]``. Discrete actions are one-hot."""

    def __init__(self, critic: nn.Module, cfg: FQEConfig, units: ValueUnits = NO_UNITS) -> None:
        """``units``: bounds of target values, as the paper's functions are bounded, and the unit of errors."""
        super().__init__()
        self.critic = critic
        self.target_critic: TargetNetwork = TargetNetwork(critic, cfg.tau, cfg.target_update_interval)
        self.discount: float = cfg.discount
        self.units = units

    def forward(self, batch: Batch, chosen: Tensor) -> Losses:
        """E[w ((Q(s, a) - y) / unit)^2] of a batch ``[B, T]``; ``chosen`` ``[B, T, n, A]``: n actions of the policy.

        The unit keeps squared errors within float32, and gradients near 1, the size that Adam's eps is meant for.
        """
        values: Tensor = self.critic(obs_before(batch.obs), batch.action[:, :-1])  # [B, T-1]
        return squared_error(values / self.units.scale, self.targets(batch, chosen) / self.units.scale, batch)

    @torch.no_grad()
    def targets(self, batch: Batch, chosen: Tensor) -> Tensor:
        """Return y = r + gamma (1 - terminal) mean_i Q'(s', a'_i), ``[B, T - 1]``: algorithm 3.

        An episode's last row after a time limit is not terminal: targets bootstrap from it like from any other row.
        """
        return TD0()(batch, self.value(obs_after(batch.obs), chosen[:, 1:]), self.discount)

    @torch.no_grad()
    def value(self, obs: Obs, chosen: Tensor) -> Tensor:
        """Value of observations under the policy, ``[...]``, averaged over n of its actions ``[..., n, A]``."""
        return many_action_values(self.target_critic.model, obs, chosen).mean(-1).clamp(self.units.low, self.units.high)


class UnitCritic(nn.Module):
    """Q(s, a) = shift + scale f(s, a), so that values far from 0 are learned faster."""

    accepts_action_lists = True
    """See :func:`~reverie.nn.actor_critic.many_action_values`."""

    def __init__(self, inner: QEnsemble, units: ValueUnits) -> None:
        super().__init__()
        self.inner = inner
        self.shift: float = units.shift
        self.scale: float = units.scale

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        """Return values ``[...]`` of observations ``[..., *shape]`` and actions ``[..., A]``."""
        return self.shift + self.scale * self.inner(obs, action)


# ---------------------------------------------------------------------- learner


CHOSEN = "chosen"
"""Name of the batch's extra ``[B, T, n, A]``: n actions of the evaluated policy in each row."""


class FQE(ModelFree):
    """The learner of FQE: a critic and its update. ``extras["chosen"]`` of a batch are the policy's actions."""

    objective: FQEObjective

    def __init__(
        self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: FQEConfig, device: torch.device, units: ValueUnits
    ) -> None:
        super().__init__(obs_spec, cfg, device)
        inner = QEnsemble(self.preprocess.spec, action_spec.width, cfg.networks, dtype=cfg.dtype)
        self.objective = FQEObjective(UnitCritic(inner, units), cfg, units)
        self.to(device)
        self.optims["critic"] = Adam(inner.parameters(), cfg.lr, decoupled_decay=cfg.weight_decay)
        self.scale: float = units.scale

    def train_step(self, batch: Batch) -> Update:
        losses = self.objective(batch, batch.extras[CHOSEN])
        metrics = self.minimize(losses)
        self.objective.target_critic.update()
        return Update(metrics=metrics, priority=losses.priority)

    @torch.no_grad()
    def value(self, batch: Batch) -> Tensor:
        """Return the policy's value of each row after the context, ``[B, T]``."""
        batch = self.preprocess(batch.to(self.device))
        return self.objective.value(batch.obs, batch.extras[CHOSEN])


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class FQEConfig(OfflineConfig, ValueConfig):
    """Settings of FQE. The defaults are not the paper's, which runs each regression to convergence."""

    lr: Annotated[float, Above(0)] = 3e-4
    """Learning rate of Adam."""
    weight_decay: Annotated[float, AtLeast(0)] = 1.0
    """Decoupled weight decay, as in AdamW: each update shrinks the critic's weights by the fraction lr times this.
    Without it, the critic overfits single transitions, and its values of actions that are rare in the data diverge. The
    paper bounds the class of functions instead."""
    tau: Annotated[float, Within("(0, 1]")] = 0.1
    """Step of the target critic toward the critic at each target update; 1 copies it. The remaining error shrinks by a
    factor of about 1 - tau (1 - discount) per update, so a small tau takes long."""
    target_update_interval: Annotated[int, AtLeast(1)] = 1
    """Gradient updates between two updates of the target network. The paper's regressions are tau = 1 with many updates
    in between."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reward_scale is not None:
            raise ConfigError(
                f"reward_scale = {self.reward_scale.to_text()}: expected none; FQE needs unscaled rewards."
            )

    def build(
        self,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        device: str = "cpu",
        seed: int = 0,
        units: ValueUnits = NO_UNITS,
    ) -> FQE:
        """Return an estimator for these observations and actions of any kind, with weights drawn from ``seed``."""
        with init_context(seed):
            return FQE(obs_spec, action_spec, self.for_specs(obs_spec, action_spec), torch.device(device), units)
