"""CQL: Kumar, Zhou, Tucker, Levine, "Conservative Q-learning for offline reinforcement learning", NeurIPS 2020.

SAC whose critics are also pressed down where the dataset has no actions, and up where it has: CQL(H), equation 4. With
a floor it is Cal-QL: Nakamoto et al., "Cal-QL: calibrated offline RL pre-training for efficient online fine-tuning",
NeurIPS 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.sac import SAC, SACConfig, SACObjective
from reverie.core.config import Choice, above, at_least, finite
from reverie.core.errors import ConfigError, DataError
from reverie.core.specs import ActionSpec, ExtraPart, ObsSpec
from reverie.core.stats import Stats
from reverie.core.types import Batch, Obs, Update
from reverie.nn.adam import Adam
from reverie.nn.fused import log_sum_exp
from reverie.nn.mlp import NetworkConfig, continuous_width
from reverie.nn.normalise import Normalise, Running
from reverie.nn.returned import RETURN, Unreturned
from reverie.nn.rewards import ReturnStd
from reverie.nn.several import draws, several
from reverie.objectives.returns import followed
from reverie.objectives.td import Losses, after, before, mean_over, squared_error

MOST = 1e6
"""The largest multiplier: the authors' code."""


@dataclass(frozen=True)
class Conservatism(Choice):
    """How much pressing values down counts beside temporal differences."""


@dataclass(frozen=True)
class Fixed(Conservatism):
    """As much as is said."""

    weight: float = 5.0
    """Alpha of equation 4: the authors' code for MuJoCo, which has the squared error whole where the equation halves
    it."""

    def __post_init__(self) -> None:
        at_least(self, weight=0)


@dataclass(frozen=True)
class Lagrange(Conservatism):
    """As much as brings the gap to a threshold: a multiplier that is learned (appendix F, "CQL(Lagrange)")."""

    threshold: float = 10.0
    """Tau, the gap that is left between the soft maximum of values and those of the dataset's actions: the authors'
    code and paper for MuJoCo. Smaller is more conservative."""
    lr: float = 3e-4
    """Learning rate of the multiplier: the authors' code."""
    initial: float = 1.0
    """The multiplier at the beginning. Where a weight w stands beside it, it is w: in the authors' code, multiplier
    (w gap - tau), which is lagrange(tau / w, lr, w), and in d3rlpy, multiplier w (gap - tau)."""

    def __post_init__(self) -> None:
        above(self, lr=0)
        finite(self, "threshold")
        if not 0 < self.initial <= MOST:
            raise ConfigError(f"initial = {self.initial}: expected a positive number, at most {MOST:g}.")


@dataclass(frozen=True)
class Backup(Choice):
    """What next states are worth."""


@dataclass(frozen=True)
class Expected(Backup):
    """min_i Q'_i(s', a), a ~ pi(s'), without entropy: equation 3 and the authors' code for MuJoCo."""


@dataclass(frozen=True)
class Soft(Backup):
    """The same, and the entropy that SAC adds."""


@dataclass(frozen=True)
class Mode(Backup):
    """min_i Q'_i(s', a) of the policy's likeliest action: d3rlpy.

    Values are pressed down around the policy's actions, where it draws its noise, and up at those of the dataset. Those
    of drawn actions are the lower for it, and targets as well: with the mode they are not. What that is worth is within
    the noise of seeds, and now and then one learns nothing (docs/offline.md).
    """


@dataclass(frozen=True)
class Best(Backup):
    """min_i max_a Q'_i(s', a) of n actions of the policy: the paper for AntMaze (appendix F)."""

    n: int = 10
    """How many actions."""

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"n = {self.n}: expected 1 or more.")


@dataclass(frozen=True)
class Floor(Choice):
    """What values of the policy's actions are not pressed below."""


@dataclass(frozen=True)
class MonteCarlo(Floor):
    """What the dataset has earned from there on, where its episode ended by itself: Cal-QL, section 5."""


@dataclass(frozen=True, kw_only=True)
class CQLConfig(SACConfig):
    """Settings of CQL: those of its authors' code for MuJoCo (github.com/aviralkumar2907/CQL) and of appendix F."""

    needs_data: ClassVar[bool] = True

    conservatism: Conservatism = field(default_factory=Fixed)
    """How much pressing values down counts: fixed(5), or lagrange(10), which finds out."""
    samples: int = 10
    """N, actions that are drawn of each kind: uniformly, from pi(s) and from pi(s')."""
    softness: float = 1.0
    """The temperature of the soft maximum of their values; towards 0 it is the maximum."""
    backup: Backup = field(default_factory=Expected)
    """What next states are worth: expected, mode, soft, or best(10)."""
    floor: Floor | None = None
    """What values of the policy's actions are not pressed below: monte_carlo is Cal-QL; None: any value is."""
    actor_lr: float = 1e-4
    """Learning rate of the actor."""
    temperature_lr: float = 1e-4
    """Learning rate of the temperature; 0 leaves it as it is."""
    networks: NetworkConfig = field(default_factory=lambda: NetworkConfig(units=(256, 256, 256)))
    """Actor and critics."""
    normalise: Normalise | None = field(default_factory=Running)
    """Vectors less their mean, over their standard deviation, of all rows of the dataset. The paper has None."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, samples=1)
        above(self, softness=0)
        if self.floor is not None and isinstance(self.reward_scale, ReturnStd) and self.reward_scale.clip is not None:
            raise ConfigError(
                f"reward_scale = {self.reward_scale.text()} with floor = {self.floor.text()}: rewards are cut and what "
                "they add up to is not, so that no value could reach it. Give return_std(None), or factor(...)."
            )

    def common(self) -> dict[str, Any]:
        """What an objective takes over as it is."""
        names = ("conservatism", "samples", "softness", "backup", "floor")
        return {**super().common(), **{name: getattr(self, name) for name in names}}

    def build(self, obs_spec: ObsSpec, action_spec: ActionSpec, device: str = "cpu", seed: int = 0) -> CQL:
        """A learner for these observations and continuous actions, its weights drawn from ``seed``."""
        continuous_width("cql", action_spec)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return CQL(obs_spec, action_spec, self.where_vectors(obs_spec), torch.device(device))


@dataclass(frozen=True, kw_only=True)
class CQLStats(Stats):
    """What an update of CQL says."""

    loss_critic: Tensor
    """Temporal differences of both critics: E[w (Q - y)^2], summed over them."""
    loss_conservative: Tensor
    """What is added to that: the gaps of both critics, less the threshold if there is one, times their weight."""
    train_gap: Tensor
    """By how much the soft maximum of values exceeds those of the dataset's actions, mean of both critics."""
    train_value: Tensor
    """The mean of what both critics say of the dataset's actions."""
    train_target: Tensor
    """The mean of their targets y."""
    loss_actor: Tensor
    """E[alpha ln pi(a | s) - min_i Q_i(s, a)]."""
    loss_temperature: Tensor
    """E[-alpha (ln pi(a | s) + target entropy)]."""
    train_entropy: Tensor
    """-E[ln pi(a | s)], in nats."""
    train_temperature: Tensor
    """Alpha, what a nat of entropy is worth."""
    loss_multiplier: Tensor | None = None
    """Of the multiplier: less it times what the gap exceeds the threshold by; only with lagrange."""
    train_multiplier: Tensor | None = None
    """What pressing values down counts; only with lagrange."""
    train_floored: Tensor | None = None
    """The part of the policy's actions whose values lie below the floor; only with one."""


class CQLObjective(SACObjective):
    """The losses of CQL: those of :class:`~reverie.algos.sac.SACObjective` but for the critics'.

    With a floor, batches have what was earned from each row on in ``extras["return"]`` ``[B, T]``, -inf where nobody
    knows. With lagrange there is a term ``multiplier`` of the one parameter ``log_multiplier``.
    """

    log_multiplier: nn.Parameter | None

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        *,
        conservatism: Conservatism | None = None,
        samples: int = 10,
        softness: float = 1.0,
        backup: Backup | None = None,
        floor: Floor | None = None,
        **settings: Any,
    ) -> None:
        """``conservatism``: fixed(5) unless given; ``backup``: expected; the rest as in SAC."""
        super().__init__(actor, critic, **settings)
        self.conservatism, self.backup, self.floor = conservatism or Fixed(), backup or Expected(), floor
        self.samples, self.softness = samples, softness
        self.log_multiplier = None
        if isinstance(self.conservatism, Lagrange):
            self.log_multiplier = nn.Parameter(torch.tensor(math.log(self.conservatism.initial)))

    def critic_loss(self, batch: Batch) -> Losses:
        """sum_i E[(Q_i(s, a) - y)^2] + alpha E[T ln sum_a' exp(Q_i(s, a') / T) - Q_i(s, a)]: equation 4.

        The sum over all actions is estimated by actions that are drawn, each over its density (appendix F). As in the
        authors' code there are N of each of three kinds, all in one sum which is not divided by 3 N, and the dataset's
        own action is not among them: it has no density to be divided by.
        """
        action, log_density = self.sampled(batch)
        every = torch.cat([batch.action[:, :-1].unsqueeze(-2), action], -2)  # [B, T-1, 1 + M, A]
        values = several(self.critic, before(batch.obs), every)  # [2, B, T-1, 1 + M]
        taken, others = torch.split(values, [1, action.shape[-2]], -1)
        taken = taken.squeeze(-1)  # [2, B, T-1]
        losses = squared_error(taken, self.targets(batch), batch)
        others, floored = self.raised(others, batch)
        soft = self.softness * log_sum_exp((others - log_density) / self.softness)  # [2, B, T-1]
        gap = mean_over((soft - taken).mean(0), followed(batch.is_last))
        return self.pressed(losses, gap, critics=len(values), metrics=floored)

    def pressed(self, losses: Losses, gap: Tensor, critics: int, metrics: dict[str, Tensor]) -> Losses:
        """``losses`` with the gap of each critic, ``[]`` on average, added, at a weight or by the multiplier."""
        terms, metrics = dict(losses.terms), {**losses.metrics, **metrics, "train/gap": gap.detach()}
        if self.log_multiplier is None:
            assert isinstance(self.conservatism, Fixed)
            conservative = self.conservatism.weight * gap
        else:
            assert isinstance(self.conservatism, Lagrange)
            multiplier, beyond = self.log_multiplier.exp().clamp(max=MOST), gap - self.conservatism.threshold
            conservative = multiplier.detach() * beyond
            terms["multiplier"] = -multiplier * beyond.detach()
            metrics |= {"train/multiplier": multiplier.detach(), "loss/multiplier": terms["multiplier"].detach()}
        conservative = critics * conservative
        terms["critic"] = terms["critic"] + conservative
        return Losses(terms, {**metrics, "loss/conservative": conservative.detach()}, losses.priority)

    @torch.no_grad()
    def sampled(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """M = 3 N actions ``[B, T - 1, M, A]`` for each state, and the log-densities ``[B, T - 1, M]`` of each kind.

        N are drawn uniformly from all of [-1, 1]^A, as many from pi(s) and from pi(s').
        """
        taken, n = batch.action[:, :-1], self.samples
        wide = (*taken.shape[:-1], n, taken.shape[-1])
        uniform = torch.empty(wide, dtype=taken.dtype, device=taken.device).uniform_(-1, 1)
        density = torch.full_like(uniform[..., 0], -taken.shape[-1] * math.log(2))  # ln(1 / 2^A)
        here, there = draws(self.actor(before(batch.obs)), n), draws(self.actor(after(batch.obs)), n)
        return torch.cat([uniform, here[0], there[0]], -2), torch.cat([density, here[1], there[1]], -1)

    def raised(self, values: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Values ``[2, B, T - 1, M]`` of sampled actions, those of the policy's at least at the floor; and how many.

        max(Q(s, a), V(s)), a ~ pi: Cal-QL, section 5. Its authors' code leaves uniform actions as they are, too.
        """
        if self.floor is None:
            return values, {}
        if RETURN not in batch.extras:
            raise DataError(
                f"floor = {self.floor.text()}: batches have no '{RETURN}' among their extras. They come with datasets "
                "whose returns are known; without, give floor = none."
            )
        floor = batch.extras[RETURN][:, :-1, None]  # [B, T-1, 1]
        uniform, policy = values[..., : self.samples], values[..., self.samples :]
        below = (policy.detach() < floor).to(values.dtype).mean((0, -1))  # [B, T-1]
        metrics = {"train/floored": mean_over(below, followed(batch.is_last))}
        return torch.cat([uniform, torch.maximum(policy, floor)], -1), metrics

    @torch.no_grad()
    def next_value(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """What states are worth to the targets, ``[...]``, and the entropy that counts beside it."""
        if isinstance(self.backup, Best):
            action, density = draws(self.actor(obs), self.backup.n)  # [..., n, A]
            values = several(self.target_critic.model, obs, action)  # [2, ..., n]
            return values.amax(-1).amin(0), torch.zeros_like(density[..., 0])
        if isinstance(self.backup, Mode):
            value = self.target_critic(obs, self.actor(obs).mode()).amin(0)  # [...]
            return value, torch.zeros_like(value)
        value, entropy = super().next_value(obs)
        return value, entropy if isinstance(self.backup, Soft) else torch.zeros_like(entropy)


class CQL(SAC):
    """Actor, two critics, a temperature and a multiplier, and the update that trains them from recorded rows."""

    losses = CQLObjective
    stats = CQLStats

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: CQLConfig, device: torch.device) -> None:
        super().__init__(obs_spec, action_spec, cfg, device)
        assert isinstance(self.objective, CQLObjective)
        if isinstance(cfg.conservatism, Lagrange) and self.objective.log_multiplier is not None:
            self.optims["multiplier"] = Adam([self.objective.log_multiplier], cfg.conservatism.lr)
        if cfg.floor is not None:
            self.extra_spec = {RETURN: ExtraPart(shape=(), dtype="float32", blank=-math.inf, kept=False)}
            self._policy = self.preprocess.policy(Unreturned(self.objective.actor, device), device)

    def train_step(self, batch: Batch) -> Update:
        """One step of the critics and the multiplier, of the actor through the new critics, and the rest as in SAC."""
        batch = self.scaled(self.preprocess(batch))
        losses = Losses({}, {})
        for loss in (self.objective.critic_loss, self.objective.actor_loss):
            found = loss(batch)
            for name, term in found.terms.items():
                if name in self.optims:  # a temperature that stays is not among them
                    self.optims[name].step(term)
            losses = losses.joined(found)
        self.objective.update_targets()
        return Update(metrics=losses.metrics, priority=losses.priority)

    def scaled(self, batch: Batch) -> Batch:
        """With what was earned in units of the rewards that are learned from."""
        rewards = self.preprocess.rewards
        if RETURN not in batch.extras or rewards is None:
            return batch
        return replace(batch, extras={**batch.extras, RETURN: batch.extras[RETURN] * rewards.factor})
