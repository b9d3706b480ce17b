"""CQL: Kumar, Zhou, Tucker, Levine, "Conservative Q-learning for offline reinforcement learning", NeurIPS 2020.

SAC with a penalty that lowers the values of sampled actions and raises the values of dataset actions: CQL(H), equation
4. With ``value_floor`` it is Cal-QL: Nakamoto et al., "Cal-QL: calibrated offline RL pre-training for efficient online
fine-tuning", NeurIPS 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from reverie.algos.model_free import OfflineConfig
from reverie.algos.returns_to_go import RETURN_TO_GO_COLUMN, ReturnToGoAnnotator, UnknownReturnPolicy
from reverie.algos.sac import SAC, SACConfig, SACObjective, SoftObjective
from reverie.core.bounds import Above, AtLeast, Finite, PiecewiseLinear, ScheduledFloat, Within, largest_value
from reverie.core.config import Choice
from reverie.core.errors import ConfigError
from reverie.core.protocols import RowAnnotator
from reverie.core.specs import ActionSpec, ColumnSpec, ObsSpec
from reverie.core.types import Batch, Update
from reverie.nn.actor_critic import many_action_values
from reverie.nn.adam import Adam
from reverie.nn.network import NetworkConfig
from reverie.nn.reward_scaling import Factor, ReturnStd
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, masked_mean, obs_after, obs_before, regression_error

# ---------------------------------------------------------------------- losses


MAX_MULTIPLIER = 1e6
"""Upper bound of the multiplier: the authors' code."""


class CQLObjective(SACObjective):
    """The losses of CQL: :class:`~reverie.algos.sac.SACObjective` with a penalty in the critic loss.

    With a value floor, ``batch.extras["return"]`` ``[B, T]`` must contain the return-to-go of each row, -inf where it
    is unknown. With ``lagrange``, the term ``lagrange_multiplier`` trains the parameter ``log_multiplier``.
    """

    cfg: CQLConfig
    log_multiplier: nn.Parameter | None

    def __init__(self, actor: nn.Module, critic: nn.Module, cfg: CQLConfig, target_entropy: float) -> None:
        super().__init__(actor, critic, cfg, target_entropy)
        learned = cfg.conservative_weight if isinstance(cfg.conservative_weight, Lagrange) else None
        self.log_multiplier = nn.Parameter(torch.tensor(math.log(learned.initial))) if learned else None

    def critic_loss(self, batch: Batch) -> Losses:
        """sum_i E[(Q_i(s, a) - y)^2] + alpha E[T ln sum_a' exp(Q_i(s, a') / T) - Q_i(s, a)]: equation 4.

        The sum over all actions is estimated by importance sampling: exp Q of sampled actions over their density
        (appendix F). As in the authors' code, one sum covers N actions of each of three kinds and is not divided by
        3 N. It excludes the dataset's own action, whose density is unknown.
        """
        action, log_density = self.sample_actions(batch)
        every = torch.cat([batch.action[:, :-1].unsqueeze(-2), action], -2)  # [B, T-1, 1 + M, A]
        values = many_action_values(self.critic, obs_before(batch.obs), every)  # [K, B, T-1, 1 + M]
        chosen, sampled = torch.split(values, [1, action.shape[-2]], -1)
        chosen = chosen.squeeze(-1)  # [K, B, T-1]
        losses = regression_error(chosen, self.targets(batch), batch, self.cfg.critic_loss)
        sampled, floored = self.apply_floor(sampled, batch)
        heat = self.cfg.cql_temperature
        soft = heat * ((sampled - log_density) / heat).logsumexp(-1)  # [K, B, T-1]
        gap = masked_mean((soft - chosen).mean(0), transition_mask(batch.is_last))
        return self.with_penalty(losses, gap, critics=len(values), metrics=floored)

    def with_penalty(self, losses: Losses, gap: Tensor, critics: int, metrics: dict[str, Tensor]) -> Losses:
        """Add the penalty to ``losses``: ``gap`` ``[]``, the mean over critics, times weight or multiplier."""
        terms, metrics = dict(losses.terms), {**losses.metrics, **metrics, "train/conservative_gap": gap.detach()}
        kind = self.cfg.conservative_weight
        if isinstance(kind, Lagrange):
            assert self.log_multiplier is not None
            multiplier = self.log_multiplier.clamp(max=math.log(MAX_MULTIPLIER)).exp()
            conservative = multiplier.detach() * (gap - kind.threshold)
            terms["lagrange_multiplier"] = -multiplier * (gap - kind.threshold).detach()
            metrics["train/lagrange_multiplier"] = multiplier.detach()
        else:
            assert isinstance(kind, Constant)
            conservative = kind.weight * gap
        conservative = critics * conservative
        terms["critic"] = terms["critic"] + conservative
        return Losses(terms, {**metrics, "loss/conservative": conservative.detach()}, losses.priority)

    @torch.no_grad()
    def sample_actions(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Sample M = 3 N actions ``[B, T - 1, M, A]`` for each state; return them and their log-densities.

        N are uniform in [-1, 1]^A, N are from pi(s) and N from pi(s'). Log-densities are ``[B, T - 1, M]``.
        """
        actions, n = batch.action[:, :-1], self.cfg.num_samples
        wide = (*actions.shape[:-1], n, actions.shape[-1])
        uniform = torch.empty(wide, dtype=actions.dtype, device=actions.device).uniform_(-1, 1)
        density = torch.full_like(uniform[..., 0], -actions.shape[-1] * math.log(2))  # ln(1 / 2^A)
        current = self.actor(obs_before(batch.obs)).repeat(n).sample_and_log_prob()
        following = self.actor(obs_after(batch.obs)).repeat(n).sample_and_log_prob()
        return torch.cat([uniform, current[0], following[0]], -2), torch.cat([density, current[1], following[1]], -1)

    def apply_floor(self, values: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Raise values ``[K, B, T - 1, M]`` of the policy's sampled actions to the floor; return them and the metrics.

        max(Q(s, a), V(s)), a ~ pi: Cal-QL, section 5. As in its authors' code, values of uniform actions are unchanged.
        """
        if self.cfg.value_floor is None:
            return values, {}
        floor = batch.extras[RETURN_TO_GO_COLUMN][:, :-1, None]  # [B, T-1, 1]
        uniform, policy = values[..., : self.cfg.num_samples], values[..., self.cfg.num_samples :]
        below = (policy.detach() < floor).to(values.dtype).mean((0, -1))  # [B, T-1]
        metrics = {"train/below_floor": masked_mean(below, transition_mask(batch.is_last))}
        return torch.cat([uniform, torch.maximum(policy, floor)], -1), metrics

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """Y = r + gamma (1 - terminal) V(s'), V by ``cfg.backup``: equation 3.  ``[B, T - 1]``."""
        obs, c = obs_after(batch.obs), self.cfg
        if isinstance(c.backup, Soft):
            return super().targets(batch)
        if isinstance(c.backup, Best):
            action = self.actor(obs).repeat(c.backup.n).sample()  # [B, T-1, n, A]
            values = many_action_values(self.target_critic.model, obs, action)  # [K, B, T-1, n]
            value = self.combine(values.amax(-1), is_target=True)  # [B, T-1]
        elif isinstance(c.backup, Mode):
            values = self.target_critic(obs, self.actor(obs).mode())  # [K, B, T-1]
            value = self.combine(values, is_target=True)  # [B, T-1]
        else:
            value, _ = self.expected_value(obs, self.target_critic)  # [B, T-1]
        return c.value_estimator(batch, value, self.discount)


# ---------------------------------------------------------------------- learner


class CQL(SAC):
    """The learner of CQL: actor, critics, a temperature, an optional multiplier, their update and the policy."""

    cfg: CQLConfig
    objective: CQLObjective
    losses: ClassVar[dict[str, type[SoftObjective]]] = {"continuous": CQLObjective}

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: CQLConfig, device: torch.device) -> None:
        super().__init__(obs_spec, action_spec, cfg, device)
        if isinstance(cfg.conservative_weight, Lagrange) and self.objective.log_multiplier is not None:
            self.optims["lagrange_multiplier"] = Adam([self.objective.log_multiplier], cfg.conservative_weight.lr)
        if cfg.value_floor is not None:
            self.extra_spec: dict[str, ColumnSpec] = {
                RETURN_TO_GO_COLUMN: ColumnSpec(shape=(), dtype="float32", fill_value=-math.inf, in_checkpoints=False)
            }
            self._policy = UnknownReturnPolicy(self.objective.actor, device)

    @property
    def annotator(self) -> RowAnnotator | None:
        """Fills in the returns-to-go of collected episodes once they have ended; None without a value floor."""
        return None if self.cfg.value_floor is None else ReturnToGoAnnotator(largest_value(self.cfg.discount))

    def learn(self, batch: Batch, *, updates_actor: bool) -> Update:
        """Take one step of the critics and the multiplier, then of the actor and the temperature, then the targets."""
        update = super().learn(batch, updates_actor=updates_actor)
        if self.objective.log_multiplier is not None:
            with torch.no_grad():  # beyond the bound, the multiplier would have no gradient and stay there
                self.objective.log_multiplier.clamp_(max=math.log(MAX_MULTIPLIER) - 1e-6)
        return update

    def prepare_batch(self, batch: Batch) -> Batch:
        """Return the preprocessed batch, with its returns multiplied by the factor that scales the rewards."""
        batch = super().prepare_batch(batch)
        rewards = self.preprocess.rewards
        if RETURN_TO_GO_COLUMN not in batch.extras or rewards is None:
            return batch
        to_go = batch.extras[RETURN_TO_GO_COLUMN] * rewards.multiplier
        return replace(batch, extras={**batch.extras, RETURN_TO_GO_COLUMN: to_go})


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True)
class ConservativeWeight(Choice):
    """Weight of the CQL penalty relative to the temporal-difference error."""


@dataclass(frozen=True)
class Constant(ConservativeWeight):
    """A constant weight."""

    weight: Annotated[float, AtLeast(0)] = 5.0
    """Alpha of equation 4. The authors' code for MuJoCo, unlike the equation, does not halve the squared error."""


@dataclass(frozen=True)
class Lagrange(ConservativeWeight):
    """A learned weight, a Lagrange multiplier that keeps the gap at a threshold (appendix F, "CQL(Lagrange)")."""

    threshold: Annotated[float, Finite()] = 10.0
    """Tau, the target gap between the soft maximum of Q and Q of the dataset's actions: the paper for MuJoCo. The
    authors' script has 5. Smaller is more conservative."""
    lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    """Learning rate of the multiplier: the authors' code."""
    initial: Annotated[float, Within(f"(0, {MAX_MULTIPLIER:g}]")] = 1.0
    """Initial multiplier. Other code multiplies a multiplier that starts at 1 by a weight w. For the authors'
    multiplier (w gap - tau), use lagrange(tau / w, lr, w). For d3rlpy's multiplier w (gap - tau), use
    lagrange(tau, lr, w)."""


@dataclass(frozen=True)
class Backup(Choice):
    """How the critics' targets value next states."""


@dataclass(frozen=True)
class Expected(Backup):
    """min_i Q'_i(s', a), a ~ pi(s'), without entropy: equation 3 and the authors' code for MuJoCo."""


@dataclass(frozen=True)
class Soft(Backup):
    """As ``expected``, plus the entropy bonus of SAC."""


@dataclass(frozen=True)
class Mode(Backup):
    """min_i Q'_i(s', a) of the policy's mode: d3rlpy.

    The penalty lowers values around the policy's actions, so values of sampled actions, and targets made of them, are
    lower than the value of the mode. The gain is within the noise of seeds, and some runs learn nothing
    (docs/offline.md).
    """


@dataclass(frozen=True)
class Best(Backup):
    """min_i max_a Q'_i(s', a) over n actions sampled from the policy: the paper for AntMaze (appendix F)."""

    n: Annotated[int, AtLeast(1)] = 10
    """Number of sampled actions."""


@dataclass(frozen=True, kw_only=True)
class CQLConfig(OfflineConfig, SACConfig):
    """Settings of CQL, with the defaults of the authors' code for MuJoCo (github.com/aviralkumar2907/CQL).

    Their ln sigma is at least -5; here it is at least -20, as in SAC, d3rlpy and TorchRL.
    """

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous"})

    conservative_weight: ConservativeWeight = field(default_factory=Constant)
    """Weight alpha of the CQL penalty: constant(5), or lagrange(10), which learns it so that the gap is about 10."""
    num_samples: Annotated[int, AtLeast(1)] = 10
    """N, number of actions sampled of each of three kinds: uniform, from pi(s) and from pi(s')."""
    cql_temperature: Annotated[float, Above(0)] = 1.0
    """Temperature T of the soft maximum T ln sum exp(Q / T) over actions; as T approaches 0, it becomes the maximum."""
    backup: Backup = field(default_factory=Expected)
    """Value of next states in the targets: expected, mode, soft, or best(10)."""
    value_floor: Literal["monte_carlo"] | None = None
    """Lower bound of the policy's values in the penalty: monte_carlo (Cal-QL, section 5) is the return-to-go of each
    row, for episodes that ended in a terminal state. None: no bound, as in CQL."""
    actor_lr: ScheduledFloat = 1e-4
    temperature_lr: ScheduledFloat = 1e-4
    networks: NetworkConfig = field(  # type: ignore[assignment]  # without SAC's memory
        default_factory=lambda: NetworkConfig(units=(256, 256, 256))
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            self.value_floor is not None
            and isinstance(self.reward_scale, ReturnStd)
            and self.reward_scale.clip is not None
        ):
            raise ConfigError(
                f"reward_scale = {self.reward_scale.to_text()}, value_floor = {self.value_floor}: values of clipped "
                "rewards cannot reach a floor of unclipped returns. Use reward_scale = return_std(None) or factor(...)."
            )
        if self.value_floor is not None and isinstance(self.discount, PiecewiseLinear):
            raise ConfigError(
                f"discount = {self.discount}, value_floor = {self.value_floor}: returns are computed once, with one "
                "discount. Use a number."
            )
        if self.value_floor is not None and self.exploration is not None:
            raise ConfigError(f"exploration = {self.exploration.to_text()}, value_floor = {self.value_floor}: set one.")
        if self.value_floor is not None and isinstance(self.reward_scale, Factor) and self.reward_scale.shift:
            raise ConfigError(
                f"reward_scale = {self.reward_scale.to_text()}, value_floor = {self.value_floor}: the returns that are "
                "the floor are not shifted. Use factor(...), or write shifted rewards to the dataset: reverie data "
                "convert --reward-fn."
            )


CQLConfig.learner = CQL
