"""IMPALA: Espeholt et al., "IMPALA: scalable distributed deep-RL ...", ICML 2018, arXiv:1802.01561.

Actors collect with the weights that they have, while the learner learns from the rollouts that have arrived. V-trace
corrects the targets for the difference between the policies. Without actors, collecting and learning take turns.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.algos.on_policy import (
    ActionEvaluation,
    OnPolicy,
    OnPolicyConfig,
    OnPolicyObjective,
    exclude_takeovers,
)
from reverie.core.bounds import Above, AtLeast, ScheduledFloat, Within
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionSpec, ColumnSpec, ObsSpec
from reverie.core.types import Batch, Mode, Obs, Step, Window
from reverie.nn.exploration import CapturableFunction, SampledPolicy, ignore_executed
from reverie.nn.on_policy_networks import MemoryState, RecurrentPolicy
from reverie.nn.optim import GlobalRMSpropConfig, Optimizer
from reverie.objectives.estimators import ValueEstimator, VTrace
from reverie.objectives.td import Losses

LOG_PROB = "log_prob"
"""Column of ln mu(a|s), the log-probability of the action under the behavior policy, which the actor stores."""

# ---------------------------------------------------------------------- losses


class IMPALAObjective(OnPolicyObjective):
    """The losses of IMPALA: the policy gradient and the value loss with V-trace, and the entropy bonus."""

    def forward(self, batch: Batch) -> Losses:
        """E[-rho A ln pi(a|s)], the value's squared error and the entropy: section 4.2.

        The last of the rows ``[B, T + 1]`` only gives the value to bootstrap from. The terms are means over rows, as in
        A2C; the paper's are sums.
        """
        # A stream that was cut, or that begins after the first row of the window
        last = batch.is_last | F.pad(batch.is_first[:, 1:], (0, 1))
        batch = replace(batch, is_last=last)
        evaluation = self.evaluate_actions(batch)
        estimate = self.cfg.value_estimator.estimate(
            reward=batch.reward, terminal=batch.is_terminal, last=last, value=evaluation.value.detach(),
            discount=self.discount, log_pi=evaluation.log_prob.detach(), log_mu=batch.extras[LOG_PROB],
        )  # fmt: skip
        rows = replace(batch.slice_time(0, -1), extras={"target": estimate.target})  # [B, T]
        current = ActionEvaluation(*(x[:, :-1] for x in evaluation))
        ratio = (current.log_prob.detach() - batch.extras[LOG_PROB][:, :-1]).masked_fill(rows.is_last, 0.0).exp()
        actor = -current.log_prob * estimate.advantage
        return self.losses(rows, current, actor, current.value, importance_ratio=ratio)


# ---------------------------------------------------------------------- policy


def _sample_with_log_prob(actor: nn.Module, obs: Obs) -> Tensor:
    """Return sampled actions and their log-probabilities, joined to ``[N, A + 1]``."""
    action, log_prob = actor(obs).sample_and_log_prob()
    return torch.cat([action, log_prob.unsqueeze(-1)], -1)


class BehaviorPolicy(SampledPolicy):
    """A stochastic actor that stores the log-probability ``[N]`` of each sampled action, which is its state."""

    override = ignore_executed

    def __init__(self, actor: nn.Module, device: torch.device, graph: bool = True) -> None:
        super().__init__(actor, device, graph)
        self.drawn: CapturableFunction = CapturableFunction(
            functools.partial(_sample_with_log_prob, actor), actor, graph=graph
        )

    def initial(self, num_envs: int) -> Any:
        return torch.zeros(num_envs)

    @torch.no_grad()
    def act(self, step: Step, state: object, mode: Mode) -> tuple[Tensor, Any]:
        if mode == "eval":
            return super().act(step, None, mode)[0], state
        drawn = self.drawn.beside(step.obs, step.is_first, self.device)  # [N, A + 1]
        return drawn[:, :-1], drawn[:, -1]

    def extras(self, state: Any) -> dict[str, Tensor]:
        return {LOG_PROB: state}


class RecurrentBehaviorState(NamedTuple):
    """State of the memories of N environments, and the log-probability of the newest action."""

    memory: MemoryState
    log_prob: Tensor  # [N]


class RecurrentBehaviorPolicy(RecurrentPolicy):
    """A stochastic policy with memory that also stores the log-probability of each sampled action."""

    override = ignore_executed

    def initial(self, num_envs: int) -> Any:
        return RecurrentBehaviorState(super().initial(num_envs), torch.zeros(num_envs))

    @torch.no_grad()
    def act(self, step: Step, state: Any, mode: Mode) -> tuple[Tensor, Any]:
        if mode == "eval":
            action, memory = super().act(step, state.memory, mode)
            return action, state._replace(memory=memory)
        decision: Any = self.evaluate(step, state.memory)
        action, log_prob = decision.policy.sample_and_log_prob()  # [N, 1, A], [N, 1]
        memory = MemoryState(state.memory.after, decision.state)
        return action.squeeze(1).cpu(), RecurrentBehaviorState(memory, log_prob.squeeze(1).cpu())

    def inspect(self, step: Step, state: Any) -> Any:
        return super().inspect(step, state.memory)

    def extras(self, state: Any) -> dict[str, Tensor]:
        return super().extras(state.memory) | {LOG_PROB: state.log_prob}


# ---------------------------------------------------------------------- learner


class IMPALA(OnPolicy):
    """The learner of IMPALA."""

    losses: type[IMPALAObjective] = IMPALAObjective
    cfg: IMPALAConfig

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: IMPALAConfig, device: torch.device) -> None:
        super().__init__(obs_spec, action_spec, cfg, device)
        window = self.preprocess.make_window(cfg.batch_size, cfg.rollout, before=1)  # rows of T transitions
        self.window: Window = replace(
            window, rollout=cfg.rollout, crosses_episodes=True, learns_rows=True, has_priorities=False, queued=True
        )
        self.extra_spec: dict[str, ColumnSpec] = self.extra_spec | {LOG_PROB: ColumnSpec(shape=(), dtype="float32")}
        network: Any = self.objective.network
        self._policy = (
            RecurrentBehaviorPolicy(network, device) if network.width else BehaviorPolicy(network.actor, device)
        )

    def build_optim(self) -> Optimizer:
        c = self.cfg
        settings = GlobalRMSpropConfig(
            implementation="torch", lr=c.lr, alpha=c.rms_alpha, eps=c.rms_eps, max_grad_norm=c.max_grad_norm
        )
        return settings.build(self.parameters())

    def prepare_batch(self, batch: Batch) -> Batch:
        """Return the preprocessed windows ``[B, T + 1]``, with intrinsic rewards if there are any."""
        batch = self.preprocess(batch) if self.preprocess.is_active else batch
        return exclude_takeovers(batch if self.novelty is None else self.novelty.add_reward(batch))

    def prepare_rollout(self, batch: Batch) -> Batch:
        """Return the batch on the learner's device: windows are prepared in each update."""
        return batch.to(self.device)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class IMPALAConfig(OnPolicyConfig):
    """Settings of IMPALA: the paper's for Atari (table G.1), unless noted otherwise."""

    from_actors: ClassVar[bool] = True

    batch_size: int = 32
    """B, number of rollouts in a batch."""
    rollout: Annotated[int, AtLeast(2)] = 20
    """T, time steps of a rollout, over which gradients flow through the memory."""
    batch_length: int = 1
    """Always 1: sequences are rollouts."""
    value_estimator: ValueEstimator = field(default_factory=VTrace)
    """V-trace, with its bounds of the importance weights."""
    normalize_advantage: bool = False
    value_coef: Annotated[float, AtLeast(0)] = 0.25
    """Weight of the value loss, the mean squared error. The paper's 0.5 is the weight of half of the squared error."""
    max_grad_norm: Annotated[float, AtLeast(0)] = 0.5
    """Maximum norm of the gradient, as of A2C; 0 does not clip. The paper's 40 is for sums over 640 rows."""
    entropy_coef: Annotated[ScheduledFloat, AtLeast(0)] = 0.01
    """Weight of the entropy bonus."""
    lr: Annotated[ScheduledFloat, Above(0)] = 6e-4
    """Learning rate; the paper's falls to 0."""
    rms_alpha: Annotated[float, Within("[0, 1)")] = 0.99
    """Decay rate of the mean square: alpha of PyTorch's RMSprop."""
    rms_eps: Annotated[float, Above(0)] = 1e-5
    """RMSProp's epsilon, as of A2C. The paper's is for sums over the batch, and for TensorFlow's RMSProp."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, only in (("batch_length", 1), ("normalize_advantage", False)):
            if (value := getattr(self, name)) != only:
                raise ConfigError(f"{name} = {value}: IMPALA's batches are whole rollouts. Remove this option.")


IMPALAConfig.learner = IMPALA
