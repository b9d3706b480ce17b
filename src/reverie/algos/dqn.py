"""DQN: Mnih et al., "Human-level control through deep reinforcement learning", Nature 2015.

With double Q-learning (van Hasselt, Guez, Silver 2016, arXiv:1509.06461) and the dueling network (Wang et al. 2016,
arXiv:1511.06581) as options. For n-step returns choose a value estimator; priorities are a setting of the replay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.base import PRECISIONS, ModelFree, ValueConfig
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.stats import Stats
from reverie.core.types import Batch, Obs, Update
from reverie.nn.actor_critic import DiscreteQNetwork, NetworkConfig, single_choice
from reverie.nn.exploration import EpsilonGreedy, EpsilonSchedule, GreedyPolicy, Inference
from reverie.nn.optim import Adam
from reverie.nn.target import Target
from reverie.objectives.estimators import TD0, ValueEstimator, check_estimator
from reverie.objectives.td import Losses, after, before, check_td, huber_error, td_targets


def check_settings(value_estimator: ValueEstimator, kappa: float, rows: int) -> None:
    """Raise ConfigError unless the estimator and kappa fit DQN in windows of ``rows`` rows."""
    check_estimator(value_estimator, algorithm="dqn", rows=rows)
    if not kappa > 0:
        raise ConfigError(f"kappa = {kappa}: expected a number above 0; inf gives the squared error.")


@dataclass(frozen=True, kw_only=True)
class DQNConfig(ValueConfig):
    """Settings of DQN: the paper's (extended data table 1), unless noted otherwise.

    Where the paper's values are for 50 million frames of Atari, these are for smaller problems. The preset
    ``dqn_atari`` has the paper's.
    """

    action_kinds: ClassVar[frozenset[str]] = frozenset({"discrete"})

    batch_size: int = 32
    """B, windows in a batch."""
    batch_length: int = 2
    """T, rows of each window. The losses cover its T - 1 transitions; 2 is one transition."""
    value_estimator: ValueEstimator = field(default_factory=TD0)
    """How targets are computed from the rows of a window. The paper uses TD(0)."""
    lr: float = 1e-4
    """Learning rate of Adam: that of Stable-Baselines3 and CleanRL. The paper uses RMSProp with 0.00025."""
    adam_eps: float = 1e-8
    """Adam's epsilon, added to the root of the second moment."""
    double: bool = False
    """Double Q-learning: the online network, not the target network, chooses the next action in the targets."""
    dueling: bool = False
    """Dueling network: separate streams for the state's value and for the advantages of actions."""
    kappa: float = 1.0
    """Threshold of the Huber loss: errors are squared up to kappa and linear beyond; inf: always squared."""
    tau: float = 1.0
    """Step of the target towards the network at each target update, in (0, 1]; 1 copies it."""
    target_every: int = 1000
    """Updates between two updates of the target. The paper has 10,000; MinAtar and CleanRL have 1000 and 500."""
    exploration: EpsilonSchedule = field(default_factory=lambda: EpsilonGreedy(1.0, 0.05, 50_000))
    """Random actions while exploring: epsilon falls from 1 to 0.05 in 50,000 env steps. In the paper, from 1 to 0.1 in
    a million."""
    networks: NetworkConfig = field(default_factory=NetworkConfig)
    """Layers of the network."""

    check = staticmethod(check_settings)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_td(self.discount, self.tau, self.target_every)
        self.check(self.value_estimator, self.kappa, self.batch_length)

    def common(self) -> dict[str, Any]:
        """Return the settings that the objective takes unchanged, by name."""
        names = ("discount", "value_estimator", "double", "kappa", "tau", "target_every")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class DQNStats(Stats):
    """Metrics of an update of DQN."""

    loss_critic: Tensor
    """E[w L(Q(s, a) - y)] with the Huber loss L."""
    train_value: Tensor
    """Mean Q of the taken actions."""
    train_target: Tensor
    """Mean target y."""


class DQNObjective(nn.Module):
    """The loss of DQN. ``objective(batch)`` is its term by name; nothing else of this library is needed.

    ``network(obs)`` gives the values ``[..., A]`` of all actions; any module will do. Actions of the batch are one-hot.
    """

    check = staticmethod(check_settings)

    def __init__(
        self,
        network: nn.Module,
        *,
        discount: float = 0.99,
        value_estimator: ValueEstimator | None = None,
        double: bool = False,
        kappa: float = 1.0,
        tau: float = 1.0,
        target_every: int = 1000,
    ) -> None:
        """``value_estimator``: TD(0) by default. ``tau``, ``target_every``: how the target follows the network."""
        super().__init__()
        check_td(discount, tau, target_every, value_estimator)
        self.network, self.target_network = network, Target(network, tau, target_every)
        self.discount, self.doubly, self.kappa = discount, double, kappa
        self.value_estimator = value_estimator or TD0()
        self.check(self.value_estimator, kappa, self.value_estimator.rows)

    def forward(self, batch: Batch) -> Losses:
        """The term ``critic`` of a batch ``[B, T]``."""
        return self.critic_loss(batch)

    def critic_loss(self, batch: Batch) -> Losses:
        """E[L(Q(s, a) - y)]: Algorithm 1, whose errors are clipped to [-1, 1] (methods, "Training algorithm")."""
        values: Tensor = self.network(before(batch.obs))  # [B, T-1, A]
        taken = (values * batch.action[:, :-1]).sum(-1)  # [B, T-1]
        return huber_error(taken, self.targets(batch), batch, self.kappa)

    def values(self, obs: Obs) -> Tensor:
        """Q of all actions, ``[..., A]``."""
        values: Tensor = self.network(obs)
        return values

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """The y ``[B, T - 1]``; of one transition, r + gamma (1 - terminal) max_a Q'(s', a): Algorithm 1."""
        return td_targets(batch, self.next_value(after(batch.obs)), self.value_estimator, self.discount)

    @torch.no_grad()
    def next_value(self, obs: Obs) -> Tensor:
        """Return the value of states for the targets, ``[...]``: max_a Q'(s, a).

        With ``double`` it is Q'(s, argmax_a Q(s, a)): van Hasselt et al. 2016, equation 4.
        """
        values: Tensor = self.target_network(obs)  # [..., A]
        if not self.doubly:
            return values.amax(-1)
        return values.gather(-1, self.values(obs).argmax(-1, keepdim=True)).squeeze(-1)

    def update_targets(self) -> None:
        """Update the target, after every update: theta' <- tau theta + (1 - tau) theta' at every n-th call."""
        self.target_network.update()


class DQN(ModelFree):
    """The learner of DQN: a network, its update and the policy that explores."""

    losses: type[DQNObjective] = DQNObjective
    stats: type[Stats] = DQNStats

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: DQNConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        self.cfg = cfg
        network = self.build_network(self.preprocess.spec, single_choice(cfg.algorithm, action_spec))
        self.objective = self.losses(network, **cfg.common())
        self.to(device)
        self.optims = {"critic": Adam(self.objective.network.parameters(), cfg.lr, eps=cfg.adam_eps)}
        values = Inference(self.objective.values, self.objective.network)
        greedy = GreedyPolicy(values, cfg.exploration, action_spec.width, device)
        self._policy = self.preprocess.policy(greedy, device)

    def build_network(self, obs_spec: ObsSpec, classes: int) -> DiscreteQNetwork:
        """Build the network of the values of so many actions."""
        c = self.cfg
        return DiscreteQNetwork(obs_spec, classes, c.networks, dueling=c.dueling, dtype=PRECISIONS[c.precision])

    def train_step(self, batch: Batch) -> Update:
        """Take one step of the network and one of its target: Algorithm 1."""
        losses = self.minimise(self.objective.critic_loss, self.preprocess(batch))
        self.objective.update_targets()
        return Update(metrics=losses.metrics, priority=losses.priority)


DQNConfig.learner = DQN
