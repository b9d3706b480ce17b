"""TD-MPC2: Hansen, Su, Wang, "TD-MPC2: scalable, robust world models for continuous control", ICLR 2024.

A world model without a decoder: an encoder, latent dynamics, rewards and values. The agent acts by planning in it:
model predictive path integral control (MPPI), warm-started by its last plan and by a learned policy. It computes what
the authors' code computes (github.com/nicklashansen/tdmpc2, commit e9f5932) for a single task; multi-task agents
are not supported. Where code and paper differ, it follows the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.algos.model_free import ModelFree, ValueConfig
from reverie.algos.tdmpc2_inspection import InspectableWorldModel
from reverie.algos.tdmpc2_planner import Elites, Planner, PolicySample, SamplePolicy
from reverie.core.bounds import Above, AtLeast, ScheduledFloat, Within
from reverie.core.collectives import all_gather
from reverie.core.errors import ConfigError, did_you_mean
from reverie.core.kernel_dispatch import NotesChanges
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Metrics, PolicyOutput, Update, Window
from reverie.nn.adam import Adam, joint_gradient_step
from reverie.nn.cnn import Shifted, are_small, images_of
from reverie.nn.normalization import PERCENTILES, percentiles
from reverie.nn.normals import HALF_LOG_2PI, Normal, SquashedNormal
from reverie.nn.number_distributions import LogTwoHot
from reverie.nn.optim import frozen
from reverie.nn.target_network import TargetNetwork
from reverie.nn.tdmpc2_networks import LatentEncoder, MishMLP, RandomDraws, TDMPC2NetworkConfig

# ---------------------------------------------------------------------- losses


class TDMPC2Objective(NotesChanges, nn.Module):
    """The world model, the policy and the critics, and their losses."""

    scale: Tensor
    bins: Tensor
    rhos: Tensor

    def __init__(self, obs_spec: ObsSpec, width: int, cfg: TDMPC2Config) -> None:
        """``width``: A, the action dimensions."""
        super().__init__()
        n, latent = cfg.networks, cfg.networks.latent
        self.cfg = cfg
        self.width = width
        self.draws: RandomDraws = RandomDraws()
        self.encoder: LatentEncoder = LatentEncoder(obs_spec, n, cfg.dtype)
        self.dynamics: MishMLP = MishMLP(latent + width, n.units, latent, simplex=n.simplex)
        self.reward: MishMLP = MishMLP(latent + width, n.units, n.bins, zero=True)
        self.termination: MishMLP | None = MishMLP(latent, n.units, 1) if cfg.episodic else None
        self.prior: MishMLP = MishMLP(latent, n.units, 2 * width)
        self.critic: MishMLP = self.build_critic(latent, width)
        self.target_critic: TargetNetwork = TargetNetwork(self.critic, cfg.tau).eval()
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("bins", torch.linspace(n.low, n.high, n.bins), persistent=False)
        self.register_buffer("rhos", cfg.rho ** torch.arange(cfg.horizon + 1.0), persistent=False)

    # ---------------------------------------------------------------- learning

    def model_losses(self, batch: Batch, rollout: LatentRollout) -> dict[str, Tensor]:
        """Return the losses ``[H, B]`` of each step and window, before weighting by rho^t: section 3.1 of the paper."""
        z, action = rollout.latent, batch.action[:, :-1].transpose(0, 1)  # [H+1, B, L], [H, B, A]
        values = self.value_distribution(self.critic_logits(z[:-1], action))  # [K, H, B]
        losses = {
            "consistency": (z[1:].float() - rollout.encodings.float()).square().mean(-1),
            "reward": self.value_distribution(self.reward(z[:-1], action)).loss(batch.reward[:, 1:].T),
            "critic": values.loss(rollout.target.expand(len(values.logits), -1, -1)).mean(0),
        }
        if (logit := self.termination_logits(z[1:])) is not None:
            over = batch.is_terminal[:, 1:].T.float()
            losses["termination"] = F.binary_cross_entropy_with_logits(logit, over, reduction="none")
        return losses

    def totals(self, losses: Mapping[str, Tensor], weight: Tensor) -> dict[str, Tensor]:
        """Return each mean loss ``[H, B]`` over windows of ``weight`` ``[B]``, all but termination times rho^t."""
        rhos = self.rhos[:-1, None]
        return {name: (x * weight * (1.0 if name == "termination" else rhos)).mean() for name, x in losses.items()}

    def total(self, means: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted sum of the losses."""
        c = self.cfg
        weights = {
            "consistency": c.consistency_coef,
            "reward": c.reward_coef,
            "critic": c.value_coef,
            "termination": c.termination_coef,
        }
        return torch.stack([weights[name] * x for name, x in means.items()]).sum()

    def policy_loss(self, z: Tensor, batch: Batch) -> tuple[Tensor, PolicySample, dict[str, Tensor]]:
        """Return -1/(H+1) sum_t rho^t E[Q / scale + eta entropy] over latents ``[H+1, B, L]``: section 3.1.

        Also return the actions, and their ``value`` ``[H+1, B]``. First updates the scale by the first step's values.
        """
        policy = self.policy(z)
        with frozen(self.critic):
            value = self.two_values(self.critic, z, policy.action).mean(0)
        self.update_scale(value[0].detach())
        gain = value / self.scale + self.cfg.entropy_coef * policy.scaled_entropy
        return -(gain.mean(1) * self.rhos).mean(), policy, {"value": value}

    @torch.no_grad()
    def targets(self, first: Tensor, encodings: Tensor, batch: Batch) -> Tensor:
        """Return y = r + gamma (1 - terminal) min_{i of two} Q'_i(z', pi(z')), ``[H, B]``: section 3.1.

        The latents z' are the ``encodings`` ``[H, B, L]`` of all rows but the first, which has the latent ``first``.
        """
        value = self.policy_values(self.target_critic.model, encodings).amin(0)
        return batch.reward[:, 1:].T + self.cfg.discount * (1 - batch.is_terminal[:, 1:].T.float()) * value

    def unroll(self, batch: Batch) -> LatentRollout:
        """Predict latents from the first row of each window ``[B, T]`` under its actions."""
        with torch.no_grad():
            encodings: Tensor = self.encoder({k: v[:, 1:].transpose(0, 1) for k, v in batch.obs.items()})  # [H, B, L]
        latents = [self.encoder({k: v[:, 0] for k, v in batch.obs.items()})]  # [B, L]
        target = self.targets(latents[0].detach(), encodings, batch)
        for action in batch.action[:, :-1].unbind(1):
            latents.append(self.dynamics(latents[-1], action))
        return LatentRollout(torch.stack(latents), encodings, target)

    @torch.no_grad()
    def update_scale(self, value: Tensor) -> None:
        """Move the scale toward the range of values ``[B]`` between percentiles 5 and 95, at least 1."""
        low, high = percentiles(all_gather(value), PERCENTILES)
        self.scale.lerp_((high - low).clamp(min=1), self.cfg.tau)

    # ---------------------------------------------------------------- the networks

    def gaussian(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and ln sigma ``[..., A]`` of the policy before tanh, in latents ``[..., L]``."""
        c = self.cfg
        mean, raw = self.prior(z).float().chunk(2, -1)  # [..., A]
        return mean, c.min_log_std + 0.5 * (c.max_log_std - c.min_log_std) * (raw.tanh() + 1)

    def policy(self, z: Tensor) -> PolicySample:
        """Sample actions in latents ``[..., L]``: tanh of a Gaussian."""
        mean, log_std = self.gaussian(z)
        noise = self.draws.normal(*mean.shape, like=mean)
        action = (mean + noise * log_std.exp()).tanh()
        gaussian = (-0.5 * noise.square() - log_std - HALF_LOG_2PI).sum(-1)  # [...], ln of the density before tanh
        log_prob = gaussian - ((1 - action.square()).relu() + 1e-6).log().sum(-1)
        # The authors have -log_prob * (A * gaussian / (log_prob + 1e-8)), in which tanh cancels.
        return PolicySample(action, mean.tanh(), log_std, -log_prob, -self.width * gaussian)

    def value_distribution(self, logits: Tensor) -> LogTwoHot:
        """Return the distribution of a reward or value with these logits ``[..., bins]``."""
        return LogTwoHot(logits, self.bins)

    def distribution(self, mean: Tensor, log_std: Tensor) -> Normal:
        """Return the distribution of actions with these parameters by :meth:`gaussian`, for inspection."""
        return SquashedNormal(mean, log_std, samples=0)

    def build_critic(self, latent: int, width: int) -> MishMLP:
        """Return K critics of ``latent`` numbers and ``width`` actions."""
        n = self.cfg.networks
        return MishMLP(latent + width, n.units, n.bins, copies=n.num_critics, dropout=n.dropout, zero=True)

    def critic_logits(self, z: Tensor, action: Tensor) -> Tensor:
        """Return the logits ``[K, ..., bins]`` of all critics."""
        return self.critic(z, action)

    def two_values(self, critic: nn.Module, *inputs: Tensor) -> Tensor:
        """Return the values ``[2, ...]`` by two critics drawn at random."""
        chosen = self.draws.pair(self.cfg.networks.num_critics, self.bins)
        return self.value_distribution(critic(*inputs, chosen=chosen)).mean()

    def policy_values(self, critic: nn.Module, z: Tensor) -> Tensor:
        """Return the values ``[2, ...]`` of the policy in latents ``[..., L]``."""
        return self.two_values(critic, z, self.policy(z).action)

    def termination_logits(self, z: Tensor) -> Tensor | None:
        """Return the logits ``[...]`` of the probability that an episode has terminated in latents ``[..., L]``."""
        return None if self.termination is None else self.termination(z).float().squeeze(-1)

    # ---------------------------------------------------------------- planning

    def step(self, z: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the reward ``[...]`` of actions ``[..., A]`` in latents, and the next latents ``[..., L]``.

        With actions ``[N, S, A]``, latents ``[N, L]`` are shared by the S actions.
        """
        return self.value_distribution(self.reward(z, action)).mean(), self.dynamics(z, action)

    def estimate(self, z: Tensor, actions: Tensor) -> Tensor:
        """Return the values ``[N, S]`` of action sequences ``[H, N, S, A]`` from latents ``[N, L]``.

        sum_t gamma^t r_t + gamma^H Q(z_H, pi(z_H)), where everything after a termination counts as 0.
        """
        total, alive, discount = torch.zeros((), device=z.device), torch.ones((), device=z.device), 1.0
        for action in actions:
            reward, z = self.step(z, action)
            total = total + discount * alive * reward
            discount *= self.cfg.discount
            if (logit := self.termination_logits(z)) is not None:
                alive = alive * (logit <= 0)
        last = self.policy_values(self.critic, z).mean(0)
        return (total + discount * alive * last).nan_to_num(0)

    def policy_trajectories(self, z: Tensor, count: int, policy: SamplePolicy) -> Tensor:
        """Return ``count`` action sequences ``[H, N, count, A]`` of ``policy`` from latents ``[N, L]``."""
        z = z.unsqueeze(1).expand(-1, count, -1)
        actions = [policy(z).action]
        for _ in range(self.cfg.horizon - 1):
            z = self.dynamics(z, actions[-1])
            actions.append(policy(z).action)
        return torch.stack(actions)

    def select_elites(self, actions: Tensor, value: Tensor) -> Elites:
        """Return the best of action sequences ``[H, N, S, A]`` by their values ``[N, S]``: section 3.2 of the paper."""
        c = self.cfg
        best, index = value.topk(c.num_elites, -1)  # [N, E]
        chosen = actions.gather(2, index[None, ..., None].expand(len(actions), -1, -1, self.width))  # [H, N, E, A]
        score = torch.softmax(c.temperature * best, -1)  # [N, E]
        mean = (score[..., None] * chosen).sum(2, keepdim=True)
        std = (score[..., None] * (chosen - mean).square()).sum(2, keepdim=True).sqrt()
        return Elites(chosen, best, index, score, mean, std.clamp(c.min_std, c.max_std))

    @torch.no_grad()
    def plan(self, z: Tensor, before: Tensor, explore: bool, policy: SamplePolicy | None = None) -> tuple[Tensor, ...]:
        """Plan from latents ``[N, L]``, all N at once: MPPI, section 3.2 of the paper.

        Args:
            z: the latents.
            before: the mean ``[N, H, A]`` of the previous step's plan, 0 where an episode begins.
            explore: whether noise is added to the action.
            policy: proposes sequences; None: :meth:`policy`.

        Returns:
            The first action ``[N, A]`` of an elite drawn by weight; the mean ``[N, H, A]`` of the new plan; and
            ``[N, 2, A]``: this elite's first action and the standard deviation of the noise around it.
        """
        c, draws, count = self.cfg, self.draws, len(z)
        num_drawn = c.num_samples - c.num_policy_samples
        mean = F.pad(before[:, 1:], (0, 0, 0, 1)).transpose(0, 1).unsqueeze(2)  # [H, N, 1, A]
        std = torch.full_like(mean, c.max_std)
        proposed = [self.policy_trajectories(z, n, policy or self.policy)] if (n := c.num_policy_samples) else []
        for _ in range(c.iterations):
            drawn = mean + std * draws.normal(c.horizon, count, num_drawn, self.width, like=mean)
            actions = torch.cat([*proposed, drawn.clamp(-1, 1)], 2)  # [H, N, S, A]
            elites = self.select_elites(actions, self.estimate(z, actions))
            mean, std = elites.mean, elites.std
        chosen = (elites.score.log() + draws.gumbel(elites.score)).argmax(-1)  # [N]
        center = elites.actions[0].gather(1, chosen[:, None, None].expand(-1, 1, self.width))  # [N, 1, A]
        action, spread = center.squeeze(1), std[0]  # [N, A], [N, 1, A]
        if explore:
            action = action + spread.squeeze(1) * draws.normal(count, self.width, like=action)
        return action.clamp(-1, 1), mean.squeeze(2).transpose(0, 1), torch.cat([center, spread], 1)


class LatentRollout(NamedTuple):
    """The world model's latents of a batch and their targets. Time first."""

    latent: Tensor  # [H+1, B, L], of the first row, and predicted from there
    encodings: Tensor  # [H, B, L], of the later rows; without gradient
    target: Tensor  # [H, B], TD targets


# ---------------------------------------------------------------------- learner


class TDMPC2(ModelFree, InspectableWorldModel):
    """The learner of TD-MPC2: world model, critics and policy, their update, and the planner."""

    objective: TDMPC2Objective
    losses: ClassVar[type[TDMPC2Objective]] = TDMPC2Objective
    """The losses."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: TDMPC2Config, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        self.slices: dict[str, slice] = action_spec.slices()
        self.window: Window = replace(self.window, crosses_episodes=False)
        o = self.objective = self.losses(self.preprocess.spec, action_spec.width, cfg)
        self.to(device)
        model = [o.dynamics, o.reward, o.critic, *([] if o.termination is None else [o.termination])]
        self.optims["encoder"] = Adam(o.encoder.parameters(), cfg.encoder_lr)
        self.optims["model"] = Adam([p for part in model for p in part.parameters()], cfg.lr)
        self.optims["policy"] = Adam(o.prior.parameters(), cfg.lr, eps=1e-5)
        self._policy = Planner(self)

    def train_step(self, batch: Batch) -> Update:
        """Take a step of the world model and critics, then of the policy through the new critics; move the targets."""
        o, c = self.objective, self.cfg
        rollout = o.unroll(batch)
        losses = o.model_losses(batch, rollout)
        means = o.totals(losses, batch.weight)
        norms = {
            "model": joint_gradient_step(
                o.total(means), [self.optims["encoder"], self.optims["model"]], c.max_grad_norm
            )
        }
        loss, policy, measures = o.policy_loss(rollout.latent.detach(), batch)
        norms["policy"] = joint_gradient_step(loss, [self.optims["policy"]], c.max_grad_norm)
        o.target_critic.update()
        measures |= {"target": rollout.target, "entropy": policy.entropy}
        metrics = {f"train/{k}": v.detach().mean() for k, v in measures.items()} | {"train/scale": o.scale.clone()}
        metrics |= {f"loss/{k}": v.detach() for k, v in (means | {"actor": loss}).items()}
        metrics |= {f"opt/grad_norm/{k}": v for k, v in norms.items()}
        return Update(metrics=metrics, priority=losses["critic"].detach().mean(0))

    @torch.no_grad()
    def heldout_losses(self, batch: Batch) -> Metrics:
        """Return ``loss/NAME`` of the world model and the critics on a batch."""
        o, batch = self.objective, self.prepare_batch(batch.to(self.device))
        means = o.totals(o.model_losses(batch, o.unroll(batch)), batch.weight)
        return {f"loss/{name}": loss for name, loss in means.items()}

    def state_value(self, output: PolicyOutput) -> Tensor:
        return self.latent_value(output.inputs)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class TDMPC2Config(ValueConfig):
    """Settings of TD-MPC2, with the defaults of the authors' code at five million parameters.

    The authors use the discount clip(1 - 5 / L, 0.95, 0.995) for episodes of L env steps: 0.99 for 500.
    """

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous"})
    human_fraction: ClassVar[float | None] = 0.0
    network_settings: ClassVar[frozenset[str]] = frozenset()

    batch_length: int = 4
    """T, time steps of each window. The horizon H, of learning and of planning, is T - 1."""
    networks: TDMPC2NetworkConfig = field(default_factory=TDMPC2NetworkConfig)
    """Widths of the networks."""
    lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    """Learning rate of all networks but the encoder."""
    encoder_lr: Annotated[ScheduledFloat, Above(0)] = 9e-5
    """Learning rate of the encoder."""
    max_grad_norm: Annotated[float, Above(0)] = 20.0
    """Maximum gradient norm, separately for the world model with the critics and for the policy."""
    tau: Annotated[float, Within("(0, 1]")] = 0.01
    """Update rate of the target critics and of the running scale of values."""
    rho: Annotated[float, Within("(0, 1]")] = 0.5
    """Temporal weight of losses: the loss at step t of the horizon counts rho^t."""
    consistency_coef: Annotated[float, AtLeast(0)] = 20.0
    """Weight of the consistency loss, the error of predicted latents."""
    reward_coef: Annotated[float, AtLeast(0)] = 0.1
    """Weight of the reward loss."""
    value_coef: Annotated[float, AtLeast(0)] = 0.1
    """Weight of the value loss."""
    entropy_coef: Annotated[float, AtLeast(0)] = 1e-4
    """Weight of the policy's entropy, before tanh and times the number of actions, relative to scaled values."""
    episodic: bool = False
    """Learn when episodes terminate, and plan with it. The authors do so only for tasks that can terminate."""
    termination_coef: Annotated[float, AtLeast(0)] = 1.0
    """Weight of the termination loss."""
    min_log_std: float = -10.0
    """Minimum ln sigma of the policy."""
    max_log_std: float = 2.0
    """Maximum ln sigma of the policy."""
    use_planning: bool = True
    """Act by planning (MPPI); False: act by the policy alone."""
    iterations: Annotated[int, AtLeast(1)] = 6
    """Iterations of MPPI in each plan. The authors use two more for actions of 20 dimensions or more."""
    num_samples: Annotated[int, AtLeast(2)] = 512
    """S, number of action sequences that are evaluated in each iteration."""
    num_policy_samples: Annotated[int, AtLeast(0)] = 24
    """Number of these sequences that are sampled from the policy."""
    num_elites: Annotated[int, AtLeast(1)] = 64
    """E, number of the best sequences, to which the next distribution is fitted."""
    min_std: Annotated[float, Above(0)] = 0.05
    """Minimum standard deviation of planned actions, in units of [-1, 1]."""
    max_std: Annotated[float, Above(0)] = 2.0
    """Maximum standard deviation of planned actions, with which each plan begins."""
    temperature: Annotated[float, Above(0)] = 0.5
    """Inverse temperature of the elites' weights: these are exp(temperature (value - best value))."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, limit in (("num_policy_samples", self.num_samples - 1), ("num_elites", self.num_samples)):
            if (count := getattr(self, name)) > limit:
                raise ConfigError(
                    f"{name} = {count}, num_samples = {self.num_samples}: expected at most {limit}. Lower {name}, or "
                    "increase num_samples."
                )

    def for_specs(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> Self:
        """Return these settings for these spaces: with the authors' image encoder, unless another is chosen."""
        usual = self.networks.encoder is None and not are_small(images_of(obs_spec), Shifted.SMALLEST_SIDE)
        cfg = replace(self, networks=replace(self.networks, encoder=Shifted())) if usual else self
        return super(TDMPC2Config, cfg).for_specs(obs_spec, action_spec)

    @property
    def horizon(self) -> int:
        """H, the steps that are unrolled in learning and in planning."""
        return self.batch_length - 1


SIZES: dict[str, dict[str, Any]] = {
    "nano": {"units": (128, 128), "latent": 64, "encoder_units": (64,), "num_critics": 2},
    "1m": {"units": (384, 384), "latent": 128, "encoder_units": (256,), "num_critics": 2},
    "5m": {"units": (512, 512), "latent": 512, "encoder_units": (256,), "num_critics": 5},
    "19m": {"units": (1024, 1024), "latent": 768, "encoder_units": (1024,) * 2, "num_critics": 5},
    "48m": {"units": (1792, 1792), "latent": 768, "encoder_units": (1792,) * 3, "num_critics": 5},
    "317m": {"units": (4096, 4096), "latent": 1376, "encoder_units": (4096,) * 4, "num_critics": 8},
}
"""Widths by number of parameters: one for two CPU cores, and the authors'."""


def with_size(name: str, base: TDMPC2Config | None = None) -> TDMPC2Config:
    """Return ``base`` with the widths of a named size."""
    if name.lower() not in SIZES:
        raise ConfigError(f"size = {name!r}: expected one of {', '.join(SIZES)}.{did_you_mean(name, SIZES)}")
    return (base or TDMPC2Config()).merge({"networks": SIZES[name.lower()]})


TDMPC2Config.learner = TDMPC2
