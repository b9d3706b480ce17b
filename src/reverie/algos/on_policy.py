"""What PPO, A2C and IMPALA share: rollouts, advantages, networks of policy and value, and one optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from reverie.algos.model_free import ModelFree, ValueConfig, check_sequences
from reverie.core.bounds import Above, AtLeast, ScheduledFloat, Within
from reverie.core.errors import ConfigError
from reverie.core.kernel_dispatch import NotesChanges, accelerated
from reverie.core.specs import IS_INTERVENTION, ActionSpec, ColumnSpec, ObsSpec
from reverie.core.types import FLAGS, Batch, PolicyOutput, Update, Window
from reverie.nn.exploration import SampledPolicy
from reverie.nn.intrinsic import IntrinsicReward, NoveltyModel
from reverie.nn.memory import MEMORY_COLUMN
from reverie.nn.on_policy_networks import PolicyValue, PolicyValueConfig, PolicyValueOutput, RecurrentPolicy
from reverie.nn.optim import Optimizer, advance_schedules, register_scheduled
from reverie.objectives.estimators import GAE, ValueEstimator
from reverie.objectives.policy import standardize
from reverie.objectives.td import Losses, masked_mean

# ---------------------------------------------------------------------- losses


class OnPolicyObjective(NotesChanges, nn.Module, ABC):
    """The losses over any ``network(obs, first, state)`` that returns a policy, values and a state.

    Batches contain rows ``[B, T]`` with :data:`ESTIMATE_COLUMNS` as extras, and with the state ``memory`` before each
    row if the network has one. Rows without an action (``is_last``, which also marks padding) have no weight.
    """

    cfg: Any
    entropy_coef: float | Tensor
    discount: Any  # gamma: a number, or a tensor [] that follows a schedule

    def __init__(self, network: nn.Module, cfg: OnPolicyConfig) -> None:
        super().__init__()
        self.network = network
        self.cfg = cfg
        register_scheduled(self, "entropy_coef", cfg.entropy_coef)
        register_scheduled(self, "discount", cfg.discount)

    @abstractmethod
    def forward(self, batch: Batch) -> Losses:
        """Return the weighted terms ``actor``, ``critic`` and ``entropy`` of a batch ``[B, T]``."""

    def losses(
        self, batch: Batch, evaluation: ActionEvaluation, actor: Tensor, value: Tensor, **metrics: Tensor
    ) -> Losses:
        """Return the three terms, given the actor's loss ``[B, T]`` and the ``value`` ``[B, T]``."""
        mask, target = ~batch.is_last, batch.extras["target"]
        policy, error = masked_mean(actor, mask), masked_mean((target - value).square(), mask)
        entropy = masked_mean(evaluation.entropy, mask)
        if INTRINSIC_TARGET in batch.extras:  # in all rows: the last of an episode leads to the next
            error = error + (batch.extras[INTRINSIC_TARGET] - evaluation.values[..., 1]).square().mean()
        terms = {"actor": policy, "critic": self.cfg.value_coef * error, "entropy": -self.entropy_coef * entropy}
        loss_metrics = {"loss/actor": policy, "loss/critic": error, "train/entropy": entropy}
        loss_metrics |= {"train/value": masked_mean(evaluation.value, mask), "train/target": masked_mean(target, mask)}
        loss_metrics |= {f"train/{name}": masked_mean(x, mask) for name, x in metrics.items()}
        return Losses(terms, {name: x.detach() for name, x in loss_metrics.items()})

    def evaluate_actions(self, batch: Batch) -> ActionEvaluation:
        """Evaluate the actions of a batch ``[B, T]`` with the current networks."""
        state = batch.extras[MEMORY_COLUMN][:, 0] if MEMORY_COLUMN in batch.extras else None
        policy, values, _ = self.network(batch.obs, batch.is_first, state)
        log_prob = policy.log_prob(batch.action).masked_fill(batch.is_last, 0.0)
        return ActionEvaluation(log_prob, policy.entropy(), values)

    def advantage(self, batch: Batch) -> Tensor:
        """Return the advantages ``[B, T]`` as the loss uses them."""
        advantage = batch.extras["advantage"]
        return standardize(advantage, ~batch.is_last) if self.cfg.normalize_advantage else advantage

    @accelerated
    @torch.no_grad()
    def estimates(self, batch: Batch, bonus: Tensor | None = None) -> dict[str, Tensor]:
        """Return :data:`ESTIMATE_COLUMNS` of rows 0 ... T-2 of whole rollouts ``[B, T]``, ``[B, T - 1]`` each.

        With intrinsic rewards ``bonus`` ``[B, T]``, whose returns continue in the next episode, the advantage is a
        weighted sum, and :data:`INTRINSIC_TARGET` is another column.

        The networks must not have changed since they chose the actions. The last row only gives the value to bootstrap
        from. With memory, ``memory`` is the state before each sequence, repeated in all of its rows.
        """
        c, state = self.cfg, batch.extras[MEMORY_COLUMN][:, 0] if MEMORY_COLUMN in batch.extras else None
        rows = batch.shape[1] - 1
        length = rows if state is None else c.batch_length
        log_probs, values, states = [], [], []
        for start in range(0, rows, length):
            part = batch.slice_time(start, start + length)
            if state is not None:
                states.append(state.unsqueeze(1).expand(-1, length, -1))
            decision = self.network(part.obs, part.is_first, state)
            log_probs.append(decision.policy.log_prob(part.action))
            values.append(decision.values)
            state = decision.state
        after = batch.slice_time(rows)
        values.append(self.network(after.obs, after.is_first, state).values)
        value, *intrinsic_value = torch.cat(values, 1).unbind(-1)  # [B, T] each
        advantage, target = c.value_estimator.estimate(
            reward=batch.reward, terminal=batch.is_terminal, last=batch.is_last, value=value, discount=self.discount
        )
        extras = {MEMORY_COLUMN: torch.cat(states, 1)} if states else {}
        if bonus is not None:
            no_ends = torch.zeros_like(batch.is_last)
            intrinsic = c.value_estimator.estimate(
                reward=bonus,
                terminal=no_ends,
                last=no_ends,
                value=intrinsic_value[0],
                discount=c.intrinsic_reward.discount,
            )
            advantage = advantage + c.intrinsic_reward.scale * intrinsic.advantage
            extras[INTRINSIC_TARGET] = intrinsic.target
        columns = (torch.cat(log_probs, 1), value[:, :-1], advantage, target)
        return dict(zip(ESTIMATE_COLUMNS, columns, strict=True)) | extras


def exclude_takeovers(batch: Batch) -> Batch:
    """Return rows ``[B, T]`` in which the actions of a person, which no policy has sampled, are in no loss.

    Such a row becomes ``is_last``, but not terminal, so that earlier rows bootstrap from its value, as with c = 0 of
    V-trace. Memories go on: ``is_first`` stays.
    """
    if IS_INTERVENTION not in batch.extras:
        return batch
    extras = {name: x for name, x in batch.extras.items() if name != IS_INTERVENTION}
    return replace(batch, is_last=batch.is_last | batch.extras[IS_INTERVENTION], extras=extras)


class ActionEvaluation(NamedTuple):
    """The networks' outputs for the rows of a batch, ``[B, T]`` each unless noted otherwise."""

    log_prob: Tensor  # of the action taken; 0 in rows without an action
    entropy: Tensor
    values: Tensor  # [B, T, V], of PolicyValueOutput

    @property
    def value(self) -> Tensor:
        """The value of the rewards, ``[B, T]``."""
        return self.values[..., 0]


# ---------------------------------------------------------------------- learner


ESTIMATE_COLUMNS = ("log_prob", "value", "advantage", "target")
"""Columns of minibatches: ln pi(a|s) and V(s) of the behavior policy, the advantage and the value's target."""
INTRINSIC_TARGET = "intrinsic_target"
"""Column of minibatches: the target of the value of intrinsic rewards."""


class OnPolicy(ModelFree, ABC):
    """A learner of policy and value from rollouts of its current policy."""

    losses: type[OnPolicyObjective]
    objective: OnPolicyObjective
    actor_path = "objective.network.actor"
    has_heldout_losses = False  # they need a rollout

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: OnPolicyConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        self.window: Window = replace(
            self.window, batch=cfg.rollout // cfg.batch_length, rollout=cfg.rollout, epochs=0,
            crosses_episodes=True, has_priorities=False,
        )  # fmt: skip
        network = self.build_network(self.preprocess.spec, action_spec)
        self.objective = self.losses(network, cfg)
        self.to(device)
        self.optim: Optimizer = self.build_optim()
        self.novelty: NoveltyModel | None = self.build_novelty(action_spec)
        if network.width:
            self.extra_spec: dict[str, ColumnSpec] = {
                MEMORY_COLUMN: ColumnSpec(shape=(network.width,), dtype="float32")
            }
            self._policy = RecurrentPolicy(network, device)
        else:
            self._policy = SampledPolicy(network.actor, device, cfg.graph)

    def build_network(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> PolicyValue:
        """Build the networks for these specs."""
        c = self.cfg
        num_values = 1 if c.intrinsic_reward is None or c.from_actors else 2
        return PolicyValue(obs_spec, action_spec, c.networks, c.dtype, num_values)

    @abstractmethod
    def build_optim(self) -> Optimizer:
        """Return the optimizer of all parameters."""

    def state_value(self, output: PolicyOutput) -> Tensor:
        """Return V(s), ``[...]``."""
        return (
            output.inputs.value
            if isinstance(output.inputs, PolicyValueOutput)
            else self.objective.network(output.inputs).value
        )

    def prepare_batch(self, batch: Batch) -> Batch:
        """Return the batch: :meth:`prepare_rollout` has preprocessed whole rollouts."""
        return batch

    def prepare_rollout(self, batch: Batch) -> Batch:
        """Return the preprocessed windows ``[W, batch_length]`` of rollouts ``[N, context + T + 1]`` with estimates."""
        advance_schedules(self._ramps, self.position())  # targets are computed before the first update
        rows = self.preprocess(batch.to(self.device))
        bonus = None if self.novelty is None else self.novelty.rewards(rows)
        rows = exclude_takeovers(rows)
        estimates, length = self.objective.estimates(rows, bonus), self.cfg.batch_length
        if self.novelty is not None:
            estimates |= self.novelty.next_columns(rows)
        estimated = replace(rows.slice_time(0, -1), extras=estimates)
        windows = estimated.reward.numel() // length

        def cut(x: Tensor) -> Tensor:
            return x.reshape(windows, length, *x.shape[2:])

        columns: dict[str, Any] = {name: cut(getattr(estimated, name)) for name in ("action", "reward", *FLAGS)}
        columns |= {name: {key: cut(x) for key, x in getattr(estimated, name).items()} for name in ("obs", "extras")}
        index = torch.arange(windows, device=self.device)
        return Batch(**columns, weight=torch.ones(windows, device=self.device), index=index)

    def train_step(self, batch: Batch) -> Update:
        losses = self.objective(batch)
        metrics = losses.metrics | self.optim.apply(self.optim.gradients(losses.total()))
        if self.novelty is not None:
            metrics |= self.novelty.learn(batch)
        return Update(metrics=metrics)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(ValueConfig):
    """Settings of learners that learn from rollouts of their current policy."""

    on_policy: ClassVar[bool] = True
    human_fraction: ClassVar[float | None] = None
    samples_actions: ClassVar[bool] = True
    from_actors: ClassVar[bool] = False
    """Whether it also learns from rollouts of earlier policies, by V-trace, so actors may collect during updates."""
    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous", "discrete", "multi_discrete", "mixed"})
    network_settings: ClassVar[frozenset[str]] = frozenset()

    rollout: Annotated[int, AtLeast(1)] = 2048
    """T, time steps of each environment in a rollout, which is dropped after its updates; n_steps of
    Stable-Baselines3."""
    batch_length: Annotated[int, AtLeast(1)] = 1
    """Time steps of each sequence in a minibatch, over which gradients flow through the memory; 1 without memory."""
    discount: Annotated[ScheduledFloat, Within("[0, 1]")] = 0.99  # type: ignore[assignment]  # of more types
    """Discount factor gamma per agent step; or a schedule over env steps, [[0, 0.97], [1e6, 0.99]]."""
    networks: PolicyValueConfig = field(default_factory=PolicyValueConfig)
    """Layers of the networks."""
    value_estimator: ValueEstimator = field(default_factory=GAE)
    """How advantages and targets are computed from the rows of a rollout; all estimators except V-trace are
    supported."""
    intrinsic_reward: IntrinsicReward | None = None
    """Reward of novel observations, added to the environment's: rnd() or icm(). None: no intrinsic reward."""
    normalize_advantage: bool = True
    """Normalize the advantages of each minibatch: (A - mean) / std."""
    value_coef: Annotated[float, AtLeast(0)] = 0.5
    """Weight of the value loss, the mean squared error without a factor of 1/2."""
    entropy_coef: Annotated[ScheduledFloat, AtLeast(0)] = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: Annotated[float, AtLeast(0)] = 0.5
    """Maximum norm of the gradient of all parameters; 0 does not clip."""
    lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    """Learning rate; [[0, 3e-4], [1e6, 0]] falls to 0 over a million env steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value_estimator.needs_behavior != self.from_actors:
            fit = "v_trace" if self.from_actors else "one that needs rows alone, such as gae"
            raise ConfigError(f"value_estimator = {self.value_estimator.to_text()}: expected {fit}.")
        self.value_estimator.check_window(self.rollout + 1, "rollout")
        if self.rollout % self.batch_length:
            raise ConfigError(
                f"batch_length = {self.batch_length}, rollout = {self.rollout}: expected sequences that divide a "
                "rollout evenly."
            )
        check_sequences(self.networks.memory, self.rollout if self.from_actors else self.batch_length, alone=1)

    def check_data(self, *, recorded: bool, collected: bool) -> None:
        if recorded:
            raise ConfigError(
                f"{self.algorithm} learns only from rows of its current policy: leave out --data, or use sac or dqn."
            )

    def check_run(self, *, random_steps: int, learning_starts: int, frame_stack: int) -> None:
        if self.normalize_obs is not None and self.normalize_obs.limit is not None:
            raise ConfigError(
                f"normalize_obs = {self.normalize_obs.to_text()}: no rows come before learning. Use running."
            )
        super().check_run(random_steps=random_steps, learning_starts=learning_starts, frame_stack=frame_stack)
