"""BCQ: Fujimoto, Meger, Precup, "Off-policy deep reinforcement learning without exploration", ICML 2019.

Actions are sampled from a generative model of the dataset's actions and perturbed a little toward higher values. The
best of a few such actions is taken, both to act and in the critics' targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from reverie.algos.model_free import ModelFree, OfflineConfig
from reverie.algos.td import TDConfig, TDObjective
from reverie.core.bounds import Above, AtLeast, ScheduledFloat, Within
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Mode, Obs, Step, Update
from reverie.nn.actor_critic import many_action_values
from reverie.nn.adam import Adam
from reverie.nn.exploration import StatelessStorage, ignore_executed
from reverie.nn.functional import is_traced
from reverie.nn.network import Network, NetworkConfig, ObsConcat
from reverie.nn.optim import frozen
from reverie.nn.relu_mlp import ReluMLP
from reverie.nn.target_network import TargetNetwork
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, masked_mean, obs_after, obs_before
from reverie.objectives.transforms import exp

# ---------------------------------------------------------------------- losses


LATENT = 0.5
"""Latents are clipped to [-LATENT, LATENT] when actions are sampled: appendix D.1."""


class BCQObjective(TDObjective):
    """The losses of BCQ, with an additional term ``vae``.

    ``vae(obs, action)`` encodes and decodes actions as :class:`~reverie.algos.bcq.ActionVAE` does.
    ``vae.decode(obs, latent)`` gives n actions ``[..., n, A]`` for n latents ``[..., n, vae.latent]`` of each
    observation. ``perturb(obs, action)`` is the action ``[..., A]`` moved by at most phi, within [-1, 1].
    ``critic(obs, action, copy=None)`` gives the values ``[2, ...]`` of both critics, or ``[...]`` of one.
    """

    cfg: BCQConfig
    vae: Any

    def __init__(self, vae: nn.Module, perturb: nn.Module, critic: nn.Module, cfg: BCQConfig) -> None:
        super().__init__(cfg)
        self.vae = vae
        self.perturb = perturb
        self.critic = critic
        self.target_perturb: TargetNetwork = TargetNetwork(perturb, cfg.tau)
        self.target_critic: TargetNetwork = TargetNetwork(critic, cfg.tau)

    def forward(self, batch: Batch) -> Losses:
        """Return the terms ``vae``, ``critic`` and ``actor`` of a batch ``[B, T]``."""
        vae, critic, actor = self.vae_loss(batch), self.critic_loss(batch), self.actor_loss(batch)
        metrics = vae.metrics | critic.metrics | actor.metrics
        return Losses(vae.terms | critic.terms | actor.terms, metrics, critic.priority)

    def vae_loss(self, batch: Batch) -> Losses:
        """E[(a - a~)^2] + KL(N(mean, std) || N(0, 1)) / 2: Algorithm 1, with the means of the authors' code.

        Squares are averaged over the action dimensions and divergences over the latent dimensions. With 2 A latent
        dimensions, this is the factor 1 / (2 A) of appendix D.1.
        """
        action, mask = batch.action[:, :-1], transition_mask(batch.is_last)
        coded = self.vae(obs_before(batch.obs), action)
        reconstruction = masked_mean((coded.action - action).square().mean(-1), mask)
        divergence = masked_mean(_divergence_from_standard(coded.mean, coded.log_std).mean(-1), mask)
        loss = reconstruction + 0.5 * divergence
        metrics = {"loss/reconstruction": reconstruction.detach(), "train/divergence": divergence.detach()}
        return Losses({"vae": loss}, metrics)

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """Y = r + gamma (1 - terminal) max_a [lambda min_j Q'_j(s', a) + (1 - lambda) max_j Q'_j(s', a)]: equation 13.

        The n actions are decoded from latents and perturbed by the target perturbation network.
        """
        c, obs = self.cfg, obs_after(batch.obs)
        decoded = self.vae.decode(obs, self.latents(batch.reward[:, 1:], c.num_samples))  # [B, T-1, n, A]
        action = many_action_values(self.target_perturb.model, obs, decoded)
        q = many_action_values(self.target_critic.model, obs, action)  # [2, B, T-1, n]
        value = (c.lam * q.amin(0) + (1 - c.lam) * q.amax(0)).amax(-1)  # [B, T-1]
        return c.value_estimator(batch, value, self.discount)

    def actor_loss(self, batch: Batch) -> Losses:
        """E[-Q_1(s, a + xi(s, a))], a ~ G(s): equation 12."""
        obs = obs_before(batch.obs)
        with torch.no_grad():
            drawn = self.vae.decode(obs, self.latents(batch.reward[:, :-1], 1)).squeeze(-2)  # [B, T-1, A]
        action = self.perturb(obs, drawn)
        with frozen(self.critic):
            value = self.critic(obs, action, copy=0)  # [B, T-1]
        return Losses({"actor": -masked_mean(value, transition_mask(batch.is_last))})

    def latents(self, rows: Tensor, n: int) -> Tensor:
        """Sample n latents ``[..., n, L]`` for each of ``rows`` ``[...]``: normal, clipped to ``LATENT``."""
        shape = (*rows.shape, n, self.vae.latent)
        return torch.randn(shape, dtype=rows.dtype, device=rows.device).clamp(-LATENT, LATENT)

    @torch.no_grad()
    def best_action(self, obs: Obs, latent: Tensor) -> Tensor:
        """argmax_a Q_1(s, a), ``[..., A]``, over n actions decoded from ``latent`` and perturbed: equation 11."""
        action = many_action_values(self.perturb, obs, self.vae.decode(obs, latent))  # [..., n, A]
        best = many_action_values(self.critic, obs, action, first=True).argmax(-1)  # [...]
        index = best[..., None, None].expand(*best.shape, 1, action.shape[-1])
        return action.gather(-2, index).squeeze(-2)


def _divergence_from_standard(mean: Tensor, log_std: Tensor) -> Tensor:
    """KL(N(mean, std^2) || N(0, 1)) ``[...]``: Kingma and Welling 2014, appendix B."""
    return 0.5 * (mean.square() + exp(2 * log_std) - 1) - log_std


# ---------------------------------------------------------------------- learner


class BCQ(ModelFree):
    """The learner of BCQ: a VAE of actions, a perturbation network, two critics, their update and the policy."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: BCQConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        spec, width = self.preprocess.spec, action_spec.width
        vae = ActionVAE(spec, width, cfg.latent or 2 * width, cfg.vae, cfg.dtype)
        perturb = Perturbation(spec, width, cfg.phi, cfg.networks, cfg.dtype)
        critic = self.build_critic(spec, action_spec)
        self.objective: BCQObjective = BCQObjective(vae, perturb, critic, cfg)
        self.to(device)
        for name, network in {"vae": vae, "critic": critic, "actor": perturb}.items():
            self.optims[name] = Adam(network.parameters(), cfg.lr)
        self._policy = BestOfSamplesPolicy(self.objective.best_action, cfg.num_act_samples, vae.latent, device)

    def train_step(self, batch: Batch) -> Update:
        """Take one step of the VAE, of the critics, of the perturbation network and of the targets: Algorithm 1."""
        o = self.objective
        metrics = self.minimize(o.vae_loss(batch))
        critic = o.critic_loss(batch)
        metrics |= self.minimize(critic)
        metrics |= self.minimize(o.actor_loss(batch))
        o.target_perturb.update()
        o.target_critic.update()
        return Update(metrics=metrics, priority=critic.priority)


LATENT_LOG_STD = (-4.0, 15.0)
"""Limits of ln sigma of the latent, for numerical stability: from the code of the authors of BCQ."""


class ActionVAE(nn.Module):
    """A conditional variational autoencoder, E(s, a) and D(s, z): Kingma and Welling 2014; Sohn, Lee and Yan 2015."""

    def __init__(
        self, obs_spec: ObsSpec, width: int, latent: int, cfg: NetworkConfig, dtype: torch.dtype = torch.float32
    ) -> None:
        """``width``: action dimensions. ``latent``: latent dimensions. Encoder and decoder share a CNN for images."""
        super().__init__()
        self.latent = latent
        self.inputs: ObsConcat = ObsConcat(obs_spec, cfg, dtype)
        self.encoder: ReluMLP = ReluMLP(self.inputs.width + width, cfg.units, 2 * latent)
        self.decoder: ReluMLP = ReluMLP(self.inputs.width + latent, cfg.units, width, squash=True)

    def forward(self, obs: Obs, action: Tensor) -> VAEOutput:
        """Encode actions ``[..., A]`` and decode them from a sampled latent z ~ N(mean, std^2), with gradient."""
        features = self.inputs(obs)  # [..., F]
        code: Tensor = self.encoder(features, action.to(features.dtype))
        mean, raw = code.float().chunk(2, -1)  # [..., L]
        log_std = raw.clamp(*LATENT_LOG_STD)
        latent = mean + exp(log_std) * torch.randn_like(mean)
        return VAEOutput(self.decoder(features, latent.to(features.dtype)).float(), mean, log_std)

    def decode(self, obs: Obs, latent: Tensor) -> Tensor:
        """Return the actions ``[..., n, A]`` of n latents ``[..., n, L]`` for each observation ``[..., *shape]``."""
        features = self.inputs(obs)
        return self.decoder(features, latent.to(features.dtype)).float()


class VAEOutput(NamedTuple):
    """The output of a variational autoencoder for an action."""

    action: Tensor  # [..., A], decoded from a sampled latent
    mean: Tensor  # [..., L], mean of the latent
    log_std: Tensor  # [..., L], ln sigma of the latent


class Perturbation(Network):
    """The perturbation network xi, which changes actions by at most phi: BCQ (Fujimoto et al. 2019), section 4.1."""

    accepts_action_lists = True
    """See :func:`~reverie.nn.actor_critic.many_action_values`."""

    def __init__(
        self, obs_spec: ObsSpec, width: int, phi: float, cfg: NetworkConfig, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(obs_spec, width, cfg, dtype, extra_inputs=width, squash=True)
        self.phi = phi

    def forward(self, obs: Obs, action: Tensor) -> Tensor:  # type: ignore[override]
        """Return the actions ``[..., A]``, or n for each observation ``[..., n, A]``, perturbed within [-1, 1]."""
        return (action + self.phi * super().forward(obs, action)).clamp(-1, 1)


class StepCount(NamedTuple):
    """The state of :class:`BestOfSamplesPolicy`."""

    steps: Tensor  # [] int64, number of decisions in mode "eval"


class BestOfSamplesPolicy(StatelessStorage[StepCount]):
    """A policy that samples n latents, decodes each to an action, and takes the best action.

    Exploration draws from the CPU's default generator. In evaluations, the number of decisions so far is the seed, so
    that evaluations are reproducible and do not change the default generator.
    """

    override = ignore_executed

    def __init__(self, best: Callable[[Obs, Tensor], Tensor], samples: int, latent: int, device: torch.device) -> None:
        """``best(obs, latent)`` returns the best action ``[N, A]`` of n = ``samples`` latents ``[N, n, L]``."""
        self.best = best
        self.samples = samples
        self.latent = latent
        self.device = device

    def initial(self, num_envs: int) -> StepCount:
        return StepCount(torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def act(self, step: Step, state: StepCount, mode: Mode) -> tuple[Tensor, StepCount]:
        generator = None
        if mode == "eval" and not is_traced(state.steps):
            generator = torch.Generator().manual_seed(int(state.steps))
            state = StepCount(state.steps + 1)
        latent = torch.randn(*step.is_first.shape, self.samples, self.latent, generator=generator).clamp(
            -LATENT, LATENT
        )
        obs = step.obs_on(self.device)
        return self.best(obs, latent.to(self.device, non_blocking=True)).cpu(), state

    def memoryless(self, mode: Mode) -> bool:
        return True  # the state only counts decisions, which seed the latents of evaluations


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class BCQConfig(OfflineConfig, TDConfig):
    """Settings of BCQ, with the defaults of the paper's appendix D and the authors' code (github.com/sfujim/BCQ)."""

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous"})

    batch_size: int = 100
    num_samples: Annotated[int, AtLeast(1)] = 10
    """n, number of actions sampled for each next state; the target uses the best."""
    num_act_samples: Annotated[int, AtLeast(1)] = 10
    """n, number of actions sampled to act; the best is taken. The authors' code samples 100."""
    phi: Annotated[float, AtLeast(0)] = 0.05
    """Largest perturbation of an action, in units of the policy's range [-1, 1]. 0 leaves actions as they are."""
    lam: Annotated[float, Within("[0, 1]")] = 0.75
    """Lambda, weight of min(Q1, Q2) in the target; max(Q1, Q2) has weight 1 - lambda (equation 13)."""
    latent: Annotated[int | None, AtLeast(1)] = None
    """Dimensions of the VAE's latent; None: 2 A, where A is the dimension of actions."""
    lr: Annotated[ScheduledFloat, Above(0)] = 1e-3
    """Learning rate of all networks."""
    networks: NetworkConfig = field(default_factory=lambda: NetworkConfig(units=(400, 300)))
    """Layers of the perturbation network and of the critics."""
    vae: NetworkConfig = field(default_factory=lambda: NetworkConfig(units=(750, 750)))
    """Layers of the VAE's encoder and decoder."""


BCQConfig.learner = BCQ
