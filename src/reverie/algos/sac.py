"""SAC: Haarnoja et al., "Soft actor-critic algorithms and applications", arXiv:1812.05905, 2018.

It is the version with two critics, no value network and a learned temperature. With more critics, of which each target
uses a random subset, it is REDQ: Chen et al., "Randomized ensembled double Q-learning", ICLR 2021. RLPD is a preset:
Ball et al., "Efficient online reinforcement learning with offline data", ICML 2023. Actions with continuous and
discrete parts are learned as in hybrid SAC: Delalleau et al., "Discrete and continuous action representation for
practical RL in video games", arXiv:1912.11077, 2019, here with one temperature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.model_free import BuildCriticFn, DelayedActorLearner
from reverie.algos.td import CriticConfig, TDObjective, check_critic_counts
from reverie.core.bounds import Above, AtLeast, Finite, PiecewiseLinear, ScheduledFloat, initial_value
from reverie.core.errors import ConfigError
from reverie.core.protocols import Policy
from reverie.core.specs import MASK_KEY, ActionSpec, ObsSpec, action_kind, num_classes_per_choice, num_continuous
from reverie.core.types import Batch, Obs, Update
from reverie.nn.actor_critic import QEnsemble
from reverie.nn.actors import HybridActor, HybridQEnsemble, TanhGaussianActor
from reverie.nn.adam import Adam
from reverie.nn.bodies import Body
from reverie.nn.distributions import Slices, slices_by_kind, take_part
from reverie.nn.exploration import ActionNoise, NoisySampledPolicy, SampledPolicy
from reverie.nn.network import MemoryNetworkConfig, share_encoder, unshared_parameters
from reverie.nn.normals import SquashedNormal
from reverie.nn.optim import frozen, register_scheduled
from reverie.nn.target_network import TargetNetwork
from reverie.objectives.categorical import missing_entropy
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import (
    Losses,
    draw_critics,
    masked_mean,
    obs_after,
    obs_before,
    regression_error,
    with_entropy_bonus,
)

# ---------------------------------------------------------------------- losses


CHOICE_ENTROPY = 0.98
"""Target entropy of a choice, as a share of ln n for n legal classes: Christodoulou 2019, arXiv:1910.07207,
hyperparameters in the appendix."""


class SoftObjective(TDObjective):
    """Actor and temperature of SAC over any distribution of actions; subclasses define the loss of the critics.

    ``actor(obs)`` returns a distribution with a differentiable ``sample_and_log_prob()``, ``[..., A]`` and ``[...]``,
    such as ``nn/normals.py: SquashedNormal``. ``critic(obs, action)`` returns the values ``[K, ...]`` of all critics;
    ``nn/actor_critic.py: CriticStack`` combines K modules. The term ``temperature`` trains ``log_temperature``.
    """

    cfg: SACConfig
    fixed_temperature: float | Tensor
    build_actor: ClassVar[Callable[..., nn.Module]] = TanhGaussianActor
    choices: Sequence[int] = ()
    """Numbers of classes of the choices whose legal classes change the target entropy; empty: none do."""

    def __init__(self, actor: nn.Module, critic: nn.Module, cfg: SACConfig, target_entropy: float) -> None:
        """``target_entropy``: in nats; -A in the paper. The value in ``cfg``, which may be None, is not used."""
        super().__init__(cfg)
        self.actor = actor
        self.critic = critic
        self.target_entropy = target_entropy
        self.log_temperature: nn.Parameter = nn.Parameter(torch.tensor(math.log(initial_value(cfg.temperature) or 1.0)))
        register_scheduled(self, "fixed_temperature", cfg.temperature)

    def actor_loss(self, batch: Batch) -> Losses:
        """Return the terms ``actor`` and ``temperature``: equations 9 and 18, from the same actions.

        J_pi = E[alpha ln pi(a | s) - min_i Q_i(s, a)],  J_alpha = E[-alpha (ln pi(a | s) + target entropy)].
        """
        with frozen(self.critic):
            value, entropy = self.expected_value(obs_before(batch.obs), self.critic)  # [B, T-1]
        mask = transition_mask(batch.is_last)
        actor = -masked_mean(value + self.temperature * entropy, mask)
        entropy = masked_mean(entropy.detach(), mask)
        temperature = self.log_temperature.exp() * (entropy - self.mean_target_entropy(batch, mask))
        metrics = {"train/entropy": entropy, "train/temperature": self.temperature}
        return Losses({"actor": actor, "temperature": temperature}, metrics)

    def mean_target_entropy(self, batch: Batch, mask: Tensor) -> float | Tensor:
        """Return the target entropy in nats, ``[]``; with masks of legal classes the mean over all rows in ``mask``.

        A row's default is ``CHOICE_ENTROPY`` times the sum of ln n for n legal classes of each choice.
        """
        if not self.choices or MASK_KEY not in batch.obs:
            return self.target_entropy
        missing = missing_entropy(self.legal_classes(obs_before(batch.obs)[MASK_KEY]), self.choices)  # [B, T-1]
        return self.target_entropy - CHOICE_ENTROPY * self.cfg.target_entropy_scale * masked_mean(missing, mask)

    def legal_classes(self, mask: Tensor) -> Tensor:
        """Return the part of masks ``[..., A]`` that belongs to classes; here all of it."""
        return mask

    def soft_targets(self, batch: Batch, value: Tensor, entropy: Tensor) -> Tensor:
        """Return the targets for the values and the entropies of the next rows, ``[B, T - 1]`` each."""
        if not self.cfg.entropy_backup:
            return self.cfg.value_estimator(batch, value, self.discount)
        bonus = self.temperature * entropy
        if bonus.shape[1] == 1:  # no row has an earlier one
            return self.cfg.value_estimator(batch, value + bonus, self.discount)
        batch, earlier_bonus = with_entropy_bonus(batch, bonus)
        return self.cfg.value_estimator(batch, value + bonus, self.discount) - earlier_bonus

    def values(self, obs: Obs, action: Tensor) -> Tensor:
        """Q_i of the actions that were taken, ``[K, ...]``."""
        return self.critic(obs, action)

    def expected_value(self, obs: Obs, critic: nn.Module) -> tuple[Tensor, Tensor]:
        """Return min_i Q_i(s, a) of ``critic`` and -ln pi(a | s), ``[...]`` each; here for sampled actions."""
        action, log_pi = self.actor(obs).sample_and_log_prob()  # [..., A], [...]
        return self.combine(critic(obs, action), is_target=critic is not self.critic), -log_pi

    def combine(self, values: Tensor, *, is_target: bool) -> Tensor:
        """Return one value ``[...]`` of the values ``[K, ...]`` of all critics or target critics: their minimum.

        With M ``num_target_critics``, it is the mean for the actor, and for targets the minimum over M critics that are
        drawn for the whole batch: REDQ, Algorithm 1.
        """
        drawn = self.cfg.num_target_critics
        if drawn is None:
            return values.amin(0)
        return draw_critics(values, drawn).amin(0) if is_target else values.mean(0)

    @property
    def target_networks(self) -> list[TargetNetwork]:
        """The target networks, which each update moves."""
        return [part for part in self.children() if isinstance(part, TargetNetwork)]

    @property
    def temperature(self) -> Tensor:
        """Alpha ``[]``, the weight of the entropy; without gradient."""
        constant = self.fixed_temperature
        return constant if isinstance(constant, Tensor) else self.log_temperature.detach().exp()

    @staticmethod
    def num_outputs(cfg: Any) -> int | None:
        """Return the number of outputs of each critic; None: a single value, without an axis."""
        return None

    @classmethod
    def build(
        cls, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: SACConfig, build_critic: BuildCriticFn
    ) -> SoftObjective:
        """Build the networks for these specs and the losses over them."""
        actor = cls.build_actor(obs_spec, action_spec.width, cfg.networks, cfg.dtype)
        critic = build_critic(obs_spec, action_spec)
        return cls(actor, critic, cfg, cfg.resolve_target_entropy(-float(action_spec.width)))

    @classmethod
    def build_critic(cls, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: SACConfig) -> nn.Module:
        """Build the critics for these specs."""
        outputs = cls.num_outputs(cfg)
        return QEnsemble(obs_spec, action_spec.width, cfg.networks, cfg.num_critics, cfg.dtype, outputs)


class SACObjective(SoftObjective):
    """The losses of SAC with K critics, two in the paper, and their target critics."""

    def __init__(self, actor: nn.Module, critic: nn.Module, cfg: SACConfig, target_entropy: float) -> None:
        super().__init__(actor, critic, cfg, target_entropy)
        self.target_critic: TargetNetwork = TargetNetwork(critic, cfg.tau, cfg.target_update_interval)

    def critic_loss(self, batch: Batch) -> Losses:
        """J_Q = sum_i E[(Q_i(s, a) - y)^2 / 2]: equation 5."""
        values = self.values(obs_before(batch.obs), batch.action[:, :-1])  # [K, B, T-1]
        return regression_error(values, self.targets(batch), batch, self.cfg.critic_loss, scale=0.5)

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """Y = r + gamma (1 - terminal) V(s'), V = min_i Q'_i(s', a') - alpha ln pi(a' | s'): equations 2 and 3.

        V lacks the entropy, its second term, unless ``entropy_backup`` is set.
        """
        value, entropy = self.expected_value(obs_after(batch.obs), self.target_critic)  # [B, T-1] each
        return self.soft_targets(batch, value, entropy)


class HybridSACObjective(SACObjective):
    """The losses of hybrid SAC, with the terms and targets of :class:`SACObjective`.

    ``actor(obs)`` returns a :class:`~reverie.nn.distributions.JointDistribution` of ``numbers`` and ``choices``, and
    ``critic(obs, numbers)`` the values of all classes given the continuous part, ``[K, ..., D]``. Values of several
    choices are additive, as in :mod:`~reverie.algos.discrete_sac`.
    """

    def __init__(
        self, actor: nn.Module, critic: nn.Module, cfg: SACConfig, target_entropy: float, slices: Mapping[str, Slices]
    ) -> None:
        """``slices``: where numbers and choices lie in the flat action."""
        super().__init__(actor, critic, cfg, target_entropy)
        self.slices = slices

    @classmethod
    def build(
        cls, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: SACConfig, build_critic: BuildCriticFn
    ) -> HybridSACObjective:
        actor = HybridActor(obs_spec, action_spec, cfg.networks, cfg.dtype, SquashedNormal)
        critic = build_critic(obs_spec, action_spec)
        classes = num_classes_per_choice(action_spec)
        entropy = CHOICE_ENTROPY * sum(map(math.log, classes)) - num_continuous(action_spec)
        objective = cls(actor, critic, cfg, cfg.resolve_target_entropy(entropy), slices_by_kind(action_spec))
        objective.choices = classes if cfg.target_entropy is None else ()
        return objective

    @classmethod
    def build_critic(cls, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: SACConfig) -> nn.Module:
        return HybridQEnsemble(obs_spec, action_spec, cfg.networks, copies=cfg.num_critics, dtype=cfg.dtype)

    def legal_classes(self, mask: Tensor) -> Tensor:
        return take_part(mask, self.slices["choices"])

    def values(self, obs: Obs, action: Tensor) -> Tensor:
        values: Tensor = self.critic(obs, take_part(action, self.slices["numbers"]))  # [K, ..., D]
        return (values * take_part(action, self.slices["choices"])).sum(-1)

    def expected_value(self, obs: Obs, critic: nn.Module) -> tuple[Tensor, Tensor]:
        """Return both as :class:`SACObjective` does, for sampled continuous parts and exactly over the classes."""
        parts = self.actor(obs).parts
        numbers, log_pi = parts["numbers"].sample_and_log_prob()  # [..., C], [...]
        values: Tensor = critic(obs, numbers)  # [K, ..., D]
        value = self.combine(values, is_target=critic is not self.critic)  # [..., D]
        return parts["choices"].mean(value), parts["choices"].entropy() - log_pi


# ---------------------------------------------------------------------- learner


class SAC(DelayedActorLearner):
    """The learner of SAC: actor, critics and a temperature, their updates and the policy."""

    losses: ClassVar[dict[str, type[SoftObjective]]] = {"continuous": SACObjective, "mixed": HybridSACObjective}
    """The losses, by the kind of the actions."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: SACConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        losses = self.losses[action_kind(action_spec)]
        self.objective: SoftObjective = losses.build(self.preprocess.spec, action_spec, cfg, self.build_critic)
        self.to(device)
        actor, critic = self.objective.actor, self.objective.critic
        share_encoder(critic, actor, *[target.model for target in self.objective.target_networks])
        self.optims["actor"] = Adam(unshared_parameters(actor, critic), cfg.actor_lr, **cfg.adam)
        self.optims["critic"] = Adam(
            critic.parameters(), cfg.critic_lr, weight_decay=cfg.critic_weight_decay, **cfg.adam
        )
        if cfg.temperature_lr:
            self.optims["temperature"] = Adam([self.objective.log_temperature], cfg.temperature_lr)
        else:
            self.objective.log_temperature.requires_grad_(False)
        self._policy = self.with_memory(self.build_policy(action_spec))

    def build_policy(self, action_spec: ActionSpec) -> Policy[Any]:
        """Return the policy of the actor; ConfigError if noise is added to actions that are not continuous."""
        actor, noise, graph = self.objective.actor, self.cfg.exploration, self.cfg.graph
        if noise is None:
            return SampledPolicy(actor, self.device, graph)
        if (kind := action_kind(action_spec)) != "continuous":
            raise ConfigError(f"exploration = {noise.to_text()}: expected continuous actions, but these are {kind}.")
        return NoisySampledPolicy(actor, noise, action_spec.width, self.device, graph)

    def build_critic(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> nn.Module:
        return self.losses[action_kind(action_spec)].build_critic(obs_spec, action_spec, self.cfg)

    def train_step(self, batch: Batch) -> Update:
        return self.learn(batch, updates_actor=True)

    def critic_step(self, batch: Batch) -> Update:
        return self.learn(batch, updates_actor=False)

    def learn(self, batch: Batch, *, updates_actor: bool) -> Update:
        """Take one step of the critics, of actor and temperature through the new critics, and of the targets."""
        o, (for_critic, for_actor) = self.objective, self.encode(batch)
        critic = o.critic_loss(for_critic)
        metrics = self.minimize(critic)
        if updates_actor:
            metrics |= self.minimize(o.actor_loss(for_actor))
        for target in o.target_networks:
            target.update()
        return Update(metrics=metrics, priority=critic.priority, extras=self.memory_states(batch))


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class SACConfig(CriticConfig):
    """Settings of SAC: the paper's table 1 (appendix D)."""

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous", "mixed"})
    samples_actions: ClassVar[bool] = True

    body: ClassVar[type[Body] | None] = None
    """The only body that the networks may have; None: any."""

    networks: MemoryNetworkConfig = field(default_factory=MemoryNetworkConfig)
    """Layers of the networks, optionally with memories in the actor and the critics."""
    actor_lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    """Learning rate of the actor."""
    critic_lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    """Learning rate of the critics."""
    temperature_lr: Annotated[ScheduledFloat, AtLeast(0)] = 3e-4
    """Learning rate of the temperature; 0 keeps the temperature constant."""
    num_critics: Annotated[int, AtLeast(1)] = 2
    """K, number of critics."""
    num_target_critics: Annotated[int | None, AtLeast(1)] = None
    """M, number of critics, drawn in each update, whose minimum is the target; the actor then maximizes the mean of all
    critics: REDQ (Chen et al. 2021, arXiv:2101.05982), Algorithm 1. None: the minimum of all critics for both."""
    entropy_backup: bool = True
    """Whether targets include the entropy of the policy in the next state. RLPD omits it for sparse rewards."""
    policy_delay: Annotated[int, AtLeast(1)] = 1
    """d: the actor and the temperature are updated at every d-th update of the critics. REDQ and RLPD update both once
    per env step."""
    target_update_interval: Annotated[int, AtLeast(1)] = 1
    """Gradient updates between two updates of the target critics."""
    temperature: Annotated[ScheduledFloat, Above(0)] = 1.0
    """Initial temperature alpha, from the authors' code (github.com/rail-berkeley/softlearning), as the paper gives
    none. It may be a schedule if temperature_lr is 0."""
    target_entropy: Annotated[float | None, Finite()] = None
    """Target entropy of the policy in nats, for learning the temperature. None: -A for A continuous dimensions, plus
    0.98 ln n for each choice among n legal classes."""
    target_entropy_scale: Annotated[float, Above(0)] = 1.0
    """Factor of the default of target_entropy. A number given there is not scaled. SimBa uses -A / 2."""
    exploration: ActionNoise | None = None
    """Noise that is added to sampled continuous actions while exploring, in units of the policy's range [-1, 1], such
    as gaussian(0.1). None: the policy's own randomness alone, as in the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_critic_counts(self.num_critics, self.num_target_critics)
        if self.body is not None and not isinstance(body := self.networks.body, self.body):
            text = None if body is None else body.to_text()
            raise ConfigError(
                f"networks.body = {text}: {self.algorithm} only has the body {self.body().to_text()}. "
                "Remove this option, or use another algorithm, such as sac."
            )
        if isinstance(self.temperature, PiecewiseLinear) and self.temperature_lr:
            raise ConfigError(
                f"temperature = {self.temperature}, temperature_lr = {self.temperature_lr}: a scheduled temperature "
                "cannot be learned. Set temperature_lr = 0."
            )

    def resolve_target_entropy(self, default: float) -> float:
        """Return the target entropy in nats; ``default``: its default before scaling."""
        return default * self.target_entropy_scale if self.target_entropy is None else self.target_entropy


SACConfig.learner = SAC
