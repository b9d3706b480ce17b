"""FQE, fitted Q evaluation: Le, Voloshin, Yue, "Batch policy learning under constraints", arXiv:1903.08738, 2019.

What another policy would earn is estimated from recorded rows by regression on r + gamma Q(s', pi(s')), again and again
(algorithm 3). Voloshin, Le, Jiang and Yue, "Empirical study of off-policy policy evaluation for reinforcement
learning", arXiv:1911.06854, find it among the best of such estimates. It is no way to find a policy, so that it is not
among the algorithms that train one; ``estimating.py`` asks it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reverie.algos.base import PRECISIONS, ModelFree, ValueConfig
from reverie.core.errors import ConfigError, DataError
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.stats import Stats
from reverie.core.types import Batch, Obs, State, Update
from reverie.nn.adam import Adam
from reverie.nn.mlp import ActionCritic, NetworkConfig
from reverie.nn.normalise import Normalise, Running
from reverie.nn.several import several
from reverie.nn.target import Target
from reverie.objectives.estimators import TD0
from reverie.objectives.td import Losses, after, before, bootstrapped, check_td, squared_error

CHOSEN = "chosen"
"""The name of the column of a batch, ``[B, T, n, A]``, that holds what the policy would do in each row."""


class Units(NamedTuple):
    """In what units values are learned: numbers of the data, which change how soon they are found and not what."""

    shift: float = 0.0
    """What everything is worth at first."""
    scale: float = 1.0
    """How much a number of the network's counts."""
    low: float = -math.inf
    """No value is less."""
    high: float = math.inf
    """No value is more."""


@dataclass(frozen=True, kw_only=True)
class FQEConfig(ValueConfig):
    """Settings of FQE. The paper has none that would do here: its regressions are each carried to their end."""

    batch_size: int = 256
    """B, windows in a batch."""
    batch_length: int = 2
    """T, rows of each window, whose T - 1 transitions are learned from; 2 is one transition."""
    lr: float = 1e-3
    """Learning rate."""
    tau: float = 0.1
    """How far the critic that gives the targets moves towards the one that learns. What is still missing shrinks by
    about tau (1 - discount) with each update, so that a small tau takes long; 1 copies it."""
    target_every: int = 1
    """It moves at every n-th update. The paper's regressions are tau = 1 and an n of many updates."""
    networks: NetworkConfig = field(default_factory=NetworkConfig)
    """The critic."""
    normalise: Normalise | None = field(default_factory=Running)
    """Vectors less their mean, over their standard deviation, of all rows of the dataset."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_td(self.discount, self.tau, self.target_every)
        if self.reward_scale is not None:
            raise ConfigError(f"reward_scale = {self.reward_scale.text()}: estimates are of rewards as they are.")

    def build(
        self,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        device: str = "cpu",
        seed: int = 0,
        units: Units | None = None,
    ) -> FQE:
        """An estimate for these observations and actions of any kind, its weights drawn from ``seed``."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return FQE(
                obs_spec, action_spec, self.where_vectors(obs_spec), torch.device(device), units if units else Units()
            )


@dataclass(frozen=True, kw_only=True)
class FQEStats(Stats):
    """What an update of FQE says."""

    loss_critic: Tensor
    """E[w (Q(s, a) - y)^2]."""
    train_value: Tensor
    """The mean of what the critic says of the dataset's actions."""
    train_target: Tensor
    """The mean of the targets y."""


class FQEObjective(nn.Module):
    """The loss of FQE. ``objective(batch, chosen)`` is its one term; nothing else of this library is needed.

    ``critic(obs, action)`` are values ``[...]`` of observations and actions, which are one-hot where they are classes.
    """

    def __init__(
        self,
        critic: nn.Module,
        *,
        discount: float = 0.99,
        tau: float = 0.1,
        target_every: int = 1,
        low: float = -math.inf,
        high: float = math.inf,
    ) -> None:
        """``low`` and ``high``: what values lie between: the paper's functions are bounded as well."""
        super().__init__()
        check_td(discount, tau, target_every)
        self.critic, self.target_critic = critic, Target(critic, tau, target_every)
        self.discount, self.low, self.high = discount, low, high

    def forward(self, batch: Batch, chosen: Tensor) -> Losses:
        """E[w (Q(s, a) - y)^2] of a batch ``[B, T]``, ``chosen`` ``[B, T, n, A]`` being n actions of the policy."""
        values: Tensor = self.critic(before(batch.obs), batch.action[:, :-1])  # [B, T-1]
        return squared_error(values, self.targets(batch, chosen), batch)

    @torch.no_grad()
    def targets(self, batch: Batch, chosen: Tensor) -> Tensor:
        """The y = r + gamma (1 - terminal) mean_i Q'(s', a'_i), ``[B, T - 1]``: algorithm 3.

        A row that is the last of its episode and not terminal is worth what the policy would earn from there on.
        """
        return bootstrapped(batch, self.worth(after(batch.obs), chosen[:, 1:]), TD0(), self.discount)

    @torch.no_grad()
    def worth(self, obs: Obs, chosen: Tensor) -> Tensor:
        """What observations are worth to a policy, ``[...]``, of n of its actions ``[..., n, A]`` in each of them."""
        return several(self.target_critic.model, obs, chosen).mean(-1).clamp(self.low, self.high)

    def update_targets(self) -> None:
        """After every update: theta' <- tau theta + (1 - tau) theta', at every n-th call."""
        self.target_critic.update()


class UnitCritic(nn.Module):
    """Q(s, a) = shift + scale f(s, a): what is far from 0 need not be learned from 0 on."""

    def __init__(self, inner: ActionCritic, units: Units) -> None:
        super().__init__()
        self.inner = inner
        self.shift, self.scale = units.shift, units.scale

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        """``[..., *shape]`` and ``[..., A]`` to ``[...]``."""
        value: Tensor = self.shift + self.scale * self.inner(obs, action)
        return value

    def several(self, obs: Obs, action: Tensor) -> Tensor:
        """Of n actions ``[..., n, A]`` for each observation, which is encoded once: ``[..., n]``."""
        return self.shift + self.scale * self.inner.several(obs, action)


class FQE(ModelFree):
    """A critic and the update that trains it. Batches hold what the policy would do as ``extras["chosen"]``."""

    stats = FQEStats

    def __init__(
        self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: FQEConfig, device: torch.device, units: Units
    ) -> None:
        super().__init__(obs_spec, cfg, device)
        self.cfg = cfg
        inner = ActionCritic(self.preprocess.spec, action_spec.width, cfg.networks, dtype=PRECISIONS[cfg.precision])
        settings = {name: getattr(cfg, name) for name in ("discount", "tau", "target_every")}
        self.objective = FQEObjective(UnitCritic(inner, units), low=units.low, high=units.high, **settings)
        self.to(device)
        self.optim = Adam(inner.parameters(), cfg.lr)

    def train_step(self, batch: Batch) -> Update:
        """One step of the critic.

        Raises:
            DataError: the batch does not say what the policy would do.
        """
        if CHOSEN not in batch.extras:
            raise DataError(f"the batch has no extras['{CHOSEN}'] [B, T, n, A]: what the policy would do in each row.")
        batch = self.preprocess(batch)
        losses = self.objective(batch, batch.extras[CHOSEN])
        self.optim.step(losses.terms["critic"])
        self.objective.update_targets()
        return Update(metrics=losses.metrics, priority=losses.priority)

    @torch.no_grad()
    def worth(self, batch: Batch) -> Tensor:
        """What the rows after the context are worth to the policy, ``[B, T]``."""
        batch = self.preprocess(batch.to(self.device))
        return self.objective.worth(batch.obs, batch.extras[CHOSEN])

    def extra_state(self) -> dict[str, Any]:
        """The moments of the optimiser."""
        return {"optim": self.optim.state_dict()}

    def load_extra_state(self, state: State) -> None:
        """Take the moments back."""
        self.optim.load_state_dict(state["optim"])
