"""FQL: Park, Li, Levine, "Flow Q-learning", ICML 2025, optionally with chunks of actions.

Flow matching clones the behavior policy: it learns a velocity that carries noise to actions. A second policy maps the
same noise to an action in one step: it imitates the result of the flow and maximizes the critics' values. With a
``chunk_size`` above 1, an action is a chunk of h actions that are taken one after another, and a target sums h rewards:
QC-FQL of Li, Zhou, Levine, "Reinforcement learning with action chunking", NeurIPS 2025.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.algos.model_free import ModelFree, OfflineConfig, ValueConfig, check_chunks
from reverie.algos.td import TDObjective
from reverie.core.bounds import Above, AtLeast, ScheduledFloat, Within
from reverie.core.collectives import mean_across_ranks
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Mode, Obs, Step, Update
from reverie.nn.actor_critic import QEnsemble
from reverie.nn.adam import Adam
from reverie.nn.exploration import ChunkPolicy, ChunkState
from reverie.nn.functional import is_traced
from reverie.nn.network import Network, NetworkConfig, share_encoder, unshared_parameters
from reverie.nn.optim import frozen
from reverie.nn.target_network import TargetNetwork
from reverie.objectives.chunks import split_chunks
from reverie.objectives.returns import n_step
from reverie.objectives.td import Losses, masked_mean, obs_after, squared_error

# ---------------------------------------------------------------------- losses


class FQLObjective(TDObjective):
    """The losses of FQL over chunks of h actions, with an additional term ``flow``.

    ``flow(obs, action, time)`` is the velocity ``[..., h A]`` of a chunk at a time ``[..., 1]`` in [0, 1], and
    ``actor(obs, noise)`` the chunk of the one-step policy for noise ``[..., h A]``. ``critic(obs, action)`` gives the
    values ``[K, ...]`` of K critics. Chunks begin at W = T - h rows of a window.
    """

    cfg: FQLConfig

    def __init__(self, flow: nn.Module, actor: nn.Module, critic: nn.Module, cfg: FQLConfig) -> None:
        super().__init__(cfg)
        self.flow = flow
        self.actor = actor
        self.critic = critic
        self.target_critic: TargetNetwork = TargetNetwork(critic, cfg.tau)

    def forward(self, batch: Batch) -> Losses:
        """Return the terms ``critic``, ``flow`` and ``actor`` of a batch ``[B, T]``."""
        critic, flow, actor = self.critic_loss(batch), self.flow_loss(batch), self.actor_loss(batch)
        return Losses(critic.terms | flow.terms | actor.terms, critic.metrics | actor.metrics, critic.priority)

    def critic_loss(self, batch: Batch) -> Losses:
        """sum_i E[(Q_i(s, a) - y)^2] over whole chunks: Algorithm 1; chunks are as in QC-FQL, section 4."""
        chunks = split_chunks(batch, self.cfg.chunk_size)
        values = self.critic(chunks.obs, chunks.action)  # [K, B, W]
        is_last = F.pad(~chunks.is_taken[..., -1], (0, 1))  # [B, W + 1], where no whole chunk begins
        starts = replace(batch.slice_time(0, is_last.shape[1]), is_last=is_last)
        return squared_error(values, self.targets(batch), starts)

    def flow_loss(self, batch: Batch) -> Losses:
        """E[|v(s, x_t, t) - (a - x_0)|^2], x_t = (1 - t) x_0 + t a, with noise x_0 and a uniform t: Algorithm 1.

        Squares are averaged over the dimensions of an action, and over the actions of chunks that were taken.
        """
        chunks = split_chunks(batch, self.cfg.chunk_size)
        noise = torch.randn_like(chunks.action)  # [B, W, h A]
        time = torch.rand_like(noise[..., :1])  # [B, W, 1]
        velocity = self.flow(chunks.obs, torch.lerp(noise, chunks.action, time), time)
        error = (velocity - (chunks.action - noise)).square().unflatten(-1, (self.cfg.chunk_size, -1))
        return Losses({"flow": masked_mean(error.mean(-1), chunks.is_taken)})

    def actor_loss(self, batch: Batch) -> Losses:
        """E[alpha |pi(s, z) - flow(s, z)|^2 - lambda mean_i Q_i(s, pi(s, z))], with noise z: Algorithm 1.

        lambda is 1, or with ``normalize_q`` 1 / E[abs(Q)] without gradient. Squares are averaged over the dimensions of
        a chunk.
        """
        chunks = split_chunks(batch, self.cfg.chunk_size)
        mask, noise = chunks.is_taken[..., 0], torch.randn_like(chunks.action)  # [B, W], [B, W, h A]
        action = self.actor(chunks.obs, noise)
        clone = self.flow_action(chunks.obs, noise)
        distillation = masked_mean((action - clone).square().mean(-1), mask)
        with frozen(self.critic):
            value = self.critic(chunks.obs, action.clamp(-1, 1)).mean(0)  # [B, W]
        metrics, loss = {"loss/distillation": distillation.detach()}, -masked_mean(value, mask)
        if self.cfg.normalize_q:
            size = mean_across_ranks(masked_mean(value.detach().abs(), mask))
            metrics["train/lambda"] = 1 / size.clamp(min=torch.finfo(size.dtype).tiny)  # finite
            loss = metrics["train/lambda"] * loss
        return Losses({"actor": self.cfg.alpha * distillation + loss}, metrics)

    @torch.no_grad()
    def flow_action(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return the chunks ``[..., h A]`` to which the flow carries noise, by Euler's method: Algorithm 1."""
        action, steps = noise, self.cfg.flow_steps
        for i in range(steps):
            action = action + self.flow(obs, action, torch.full_like(noise[..., :1], i / steps)) / steps
        return action.clamp(-1, 1)

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """Y = sum_i gamma^i r_{t+1+i} + gamma^h (1 - terminal) mean_j Q'_j(s_{t+h}, pi(s_{t+h}, z)).  ``[B, W]``."""
        c, h = self.cfg, self.cfg.chunk_size
        obs = {key: x[:, h - 1 :] for key, x in obs_after(batch.obs).items()}  # [B, W, ...]
        noise = torch.randn_like(split_chunks(batch, h).action)  # [B, W, h A]
        values = self.target_critic(obs, self.actor(obs, noise).clamp(-1, 1))  # [K, B, W]
        value = values.mean(0) if c.target_reduction == "mean" else values.amin(0)
        rows = {"reward": batch.reward, "terminal": batch.is_terminal, "last": batch.is_last}
        return n_step(**rows, value=F.pad(value, (h, 0)), discount=c.discount, n=h)[:, : value.shape[1]]


# ---------------------------------------------------------------------- learner


class FQL(ModelFree):
    """The learner of FQL: a flow, a one-step policy and two critics, their update and the policy."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: FQLConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        spec, width = self.preprocess.spec, cfg.chunk_size * action_spec.width
        flow = Network(spec, width, cfg.networks, cfg.dtype, extra_inputs=width + 1, activation="gelu")
        actor = Network(spec, width, cfg.networks, cfg.dtype, extra_inputs=width, activation="gelu")
        critic = self.build_critic(spec, action_spec)
        networks: list[Any] = [network for network in (flow, actor, critic) if isinstance(network, Network)]
        for network in networks:
            network.body.initialize_glorot()
        self.objective: FQLObjective = FQLObjective(flow, actor, critic, cfg)
        self.to(device)
        share_encoder(critic, flow, actor, self.objective.target_critic.model)
        self.optims["critic"] = Adam(critic.parameters(), cfg.lr)
        self.optims["flow"] = Adam(unshared_parameters(flow, critic), cfg.lr)
        self.optims["actor"] = Adam(unshared_parameters(actor, critic), cfg.lr)
        self._policy = FlowPolicy(actor, cfg.chunk_size, action_spec.width, device)

    def build_critic(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> nn.Module:
        c = self.cfg
        width = c.chunk_size * action_spec.width
        return QEnsemble(obs_spec, width, c.networks, copies=2, dtype=c.dtype, activation="gelu")

    def train_step(self, batch: Batch) -> Update:
        """Take one step of the targets, of the critics, of the flow and of the one-step policy: Algorithm 1.

        As in the authors' code, all losses are those of the networks before the step, which the targets follow too.
        """
        o, (for_critic, for_actor) = self.objective, self.encode(batch)
        critic, flow, actor = o.critic_loss(for_critic), o.flow_loss(for_actor), o.actor_loss(for_actor)
        o.target_critic.update()
        losses = Losses(critic.terms | flow.terms | actor.terms, critic.metrics | actor.metrics, critic.priority)
        return Update(metrics=self.minimize(losses), priority=critic.priority)


class FlowPolicy(ChunkPolicy):
    """The one-step policy, of single actions or of chunks.

    In evaluations, the number of decisions so far is the seed of the noise, so that evaluations are reproducible and do
    not change the default generator.
    """

    @torch.no_grad()
    def act(self, step: Step, state: ChunkState, mode: Mode) -> tuple[Tensor, ChunkState]:
        if self.size > 1:
            return super().act(step, state, mode)
        action = self.propose(step, self.draw_noise(len(step), state.steps, mode)).squeeze(1)
        return action, state._replace(steps=state.steps + (mode == "eval"))

    def draw_noise(self, envs: int, steps: Tensor, mode: Mode) -> Tensor:
        generator = None
        if mode == "eval" and not is_traced(steps):
            generator = torch.Generator().manual_seed(int(steps))
        return torch.randn(envs, self.size * self.width, generator=generator)

    def memoryless(self, mode: Mode) -> bool:
        return self.size == 1  # the state then only counts decisions, which seed the noise of evaluations


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class FQLConfig(OfflineConfig, ValueConfig):
    """Settings of FQL, with the defaults of the authors' code (github.com/seohongpark/fql)."""

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous"})
    network_settings: ClassVar[frozenset[str]] = ValueConfig.network_settings - {"body"}

    chunk_size: Annotated[int, AtLeast(1)] = 1
    """h, number of actions in a chunk. FQL has 1, QC-FQL 5. Windows need at least h + 1 rows: set batch_length too."""
    alpha: Annotated[float, AtLeast(0)] = 10.0
    """Weight of the imitation of the flow relative to the value. The authors choose it for each task, from 3 to
    30000; with normalize_q, they recommend 0.03 to 10."""
    normalize_q: bool = False
    """Divide the value in the actor's loss by its mean absolute value, so that alpha does not depend on the scale of
    rewards. The paper does not; the authors recommend it for new tasks."""
    flow_steps: Annotated[int, AtLeast(1)] = 10
    """Number of steps of Euler's method from noise to the flow's action."""
    target_reduction: Literal["mean", "min"] = "mean"
    """Mean or minimum of the target critics' values. The authors use min for OGBench's AntMaze and for Adroit."""
    tau: Annotated[float, Within("(0, 1]")] = 0.005
    """Step size of the target critics per update; 1 copies the critics."""
    lr: Annotated[ScheduledFloat, Above(0)] = 3e-4
    """Learning rate of all networks."""
    networks: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(units=(512, 512, 512, 512), critic_norm="after_relu")
    )
    """Layers of the networks, with GELU instead of ReLU."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_chunks(self.chunk_size, self.batch_length)


FQLConfig.learner = FQL
