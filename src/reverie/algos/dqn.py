"""DQN: Mnih et al., "Human-level control through deep reinforcement learning", Nature 2015.

With double Q-learning (van Hasselt, Guez, Silver 2016, arXiv:1509.06461) and the dueling network (Wang et al. 2016,
arXiv:1511.06581) as options, and noisy networks (Fortunato et al. 2018, arXiv:1706.10295). For n-step returns choose a
value estimator; priorities are a setting of the replay.
Several choices are learned as branches: Tavakoli, Pardo, Kormushev, "Action branching architectures for deep
reinforcement learning", AAAI 2018, arXiv:1711.08946. That paper's agent is ``double`` and ``dueling``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.model_free import ModelFree
from reverie.algos.td import TDConfig, TDObjective
from reverie.core.bounds import Above, AtLeast, ScheduledFloat, Within
from reverie.core.specs import ActionSpec, ObsSpec, num_classes_per_choice
from reverie.core.types import Batch, Obs, Update
from reverie.nn.actor_critic import DiscreteQNetwork
from reverie.nn.adam import Adam
from reverie.nn.exploration import CapturableFunction, EpsilonGreedy, EpsilonSchedule, GreedyPolicy
from reverie.nn.intrinsic import IntrinsicReward, NoveltyModel
from reverie.nn.network import MemoryNetworkConfig
from reverie.nn.relu_mlp import noisy_parameters
from reverie.nn.target_network import TargetNetwork
from reverie.objectives.categorical import best_value, choice_weight, chosen_value, highest_value
from reverie.objectives.td import Losses, huber_error, obs_after, obs_before

# ---------------------------------------------------------------------- losses


class DQNObjective(TDObjective):
    """The loss of DQN over any ``network(obs)`` of the values ``[..., A]`` of all actions. Actions are one-hot."""

    cfg: DQNConfig

    def __init__(self, network: nn.Module, cfg: DQNConfig, classes: tuple[int, ...] = ()) -> None:
        """``classes``: number of classes of each choice, one block after the other in A; ``()``: a single choice."""
        super().__init__(cfg)
        self.network = network
        self.target_network: TargetNetwork = TargetNetwork(network, cfg.tau, cfg.target_update_interval)
        self.classes = classes

    def critic_loss(self, batch: Batch) -> Losses:
        """E[L(Q(s, a) - y)]: Algorithm 1, whose errors are clipped to [-1, 1] (methods, "Training algorithm").

        With several choices, the loss is the mean of L(Q_d(s, a_d) - y) over them: Tavakoli et al. Priorities are means
        over the choices too, but sums in that paper.
        """
        values: Tensor = self.network(obs_before(batch.obs))  # [B, T-1, A]
        chosen = chosen_value(values, batch.action[:, :-1], self.classes)  # [(D,) B, T-1]
        return huber_error(chosen, self.targets(batch), batch, self.cfg.kappa, choice_weight(self.classes))

    def values(self, obs: Obs) -> Tensor:
        """Q of all actions, ``[..., A]``."""
        return self.network(obs)

    def noisy_values(self, obs: Obs) -> Tensor:
        """Q of all actions, ``[..., A]``, with noise drawn for the parameters."""
        with noisy_parameters():
            return self.values(obs)

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """Y = r + gamma (1 - terminal) max_a Q'(s', a): Algorithm 1.  ``[B, T - 1]``.

        With ``double`` it is Q'(s', argmax_a Q(s', a)): van Hasselt et al. 2016, equation 4. With several choices, it
        is averaged over them: Tavakoli et al., equation 6.
        """
        obs, c = obs_after(batch.obs), self.cfg
        q = self.target_network(obs)  # [B, T-1, A]
        value = best_value(q, self.network(obs), self.classes) if c.double else highest_value(q, self.classes)
        return c.value_estimator(batch, value, self.discount)


# ---------------------------------------------------------------------- learner


class DQN(ModelFree):
    """The learner of DQN: a network, its update and the policy that explores."""

    losses: type[DQNObjective] = DQNObjective

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: DQNConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        classes = num_classes_per_choice(action_spec)
        self.objective: DQNObjective = self.losses(self.build_network(self.preprocess.spec, classes), cfg, classes)
        self.to(device)
        network = self.objective.network
        self.optims["critic"] = Adam(network.parameters(), cfg.lr, eps=cfg.adam_eps)
        values = CapturableFunction(self.objective.values, network, graph=cfg.graph)
        noisy_values = (
            CapturableFunction(self.objective.noisy_values, network, graph=cfg.graph) if cfg.noisy_sigma else None
        )
        self._policy = self.with_memory(GreedyPolicy(values, cfg.exploration, classes, device, noisy_values))
        self.novelty: NoveltyModel | None = self.build_novelty(action_spec)

    def train_step(self, batch: Batch) -> Update:
        """Take one step of the network, and of the target: Algorithm 1.

        Noise is drawn separately for the network, for the target network and for the choice of double Q-learning:
        Fortunato et al. 2018, Algorithm 1.
        """
        if self.novelty is not None:
            batch = self.novelty.add_reward(batch)
        with noisy_parameters():
            losses = self.objective.critic_loss(batch)
        metrics = self.minimize(losses)
        self.objective.target_network.update()
        if self.novelty is not None:
            metrics |= self.novelty.learn(batch)
        return Update(metrics=metrics, priority=losses.priority, extras=self.memory_states(batch))

    def build_network(self, obs_spec: ObsSpec, classes: tuple[int, ...], outputs: int | None = None) -> nn.Module:
        """Build the network of the values of all classes of each choice, or of N ``outputs`` for each class."""
        c = self.cfg
        return DiscreteQNetwork(
            obs_spec, classes, c.networks, dueling=c.dueling, outputs=outputs, noisy_sigma=c.noisy_sigma, dtype=c.dtype
        )


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class DQNConfig(TDConfig):
    """Settings of DQN: the paper's (extended data table 1), unless noted otherwise.

    Where the paper's values are for 50 million frames of Atari, these are for smaller problems. The preset
    ``dqn_atari`` has the paper's.
    """

    action_kinds: ClassVar[frozenset[str]] = frozenset({"discrete", "multi_discrete"})
    network_settings: ClassVar[frozenset[str]] = frozenset()

    batch_size: int = 32
    networks: MemoryNetworkConfig = field(default_factory=MemoryNetworkConfig)
    """Layers of the network, optionally with a memory."""
    lr: Annotated[ScheduledFloat, Above(0)] = 1e-4
    """Learning rate of Adam, from Stable-Baselines3 and CleanRL. The paper uses RMSProp with 0.00025."""
    adam_eps: Annotated[float, Above(0)] = 1e-8
    """Adam's epsilon, added to the root of the second moment."""
    intrinsic_reward: IntrinsicReward | None = None
    """Reward of novel observations, added to the environment's: rnd() or icm(). None: no intrinsic reward."""
    double: bool = False
    """Double Q-learning: the online network, not the target network, chooses the next action in the targets."""
    dueling: bool = False
    """Dueling network: separate streams for the state's value and for the advantages of actions."""
    noisy_sigma: Annotated[float, AtLeast(0)] = 0.0
    """Noisy network: initial standard deviation sigma_0 of the noise in the parameters of all layers but convolutions,
    memories and IQN's layer of cosines; 0: no noise. In Fortunato et al. 2018 it is 0.5 and replaces random actions:
    set `exploration` to `epsilon_greedy(0)`."""
    kappa: Annotated[float, Within("(0, inf]")] = 1.0
    """Threshold of the Huber loss: errors are squared up to kappa and linear beyond; inf: always squared."""
    tau: float = 1.0
    target_update_interval: Annotated[int, AtLeast(1)] = 1000
    """Gradient updates between two updates of the target network. The paper uses 10,000, MinAtar 1000 and CleanRL
    500."""
    exploration: EpsilonSchedule = field(default_factory=lambda: EpsilonGreedy(1.0, 0.05, 50_000))
    """Random actions while exploring: epsilon falls from 1 to 0.05 in 50,000 env steps. In the paper, from 1 to 0.1 in
    a million."""


DQNConfig.learner = DQN
