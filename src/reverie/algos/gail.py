"""GAIL: Ho and Ermon, "Generative adversarial imitation learning", NeurIPS 2016, arXiv:1606.03476, off-policy.

A discriminator learns to tell the expert's actions from the agent's, and its output is the agent's only reward. The
off-policy version is discriminator-actor-critic: Kostrikov et al., "Discriminator-actor-critic: addressing sample
inefficiency and reward bias in adversarial imitation learning", ICLR 2019, arXiv:1809.02925, here with SAC instead of
TD3 and without that paper's absorbing states: see :data:`REWARDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.algos.discrete_sac import DiscreteSAC
from reverie.algos.model_free import OfflineConfig
from reverie.algos.sac import SAC, SACConfig, SoftObjective
from reverie.core.bounds import Above, AtLeast, ScheduledFloat
from reverie.core.errors import ConfigError
from reverie.core.kernel_dispatch import NotesChanges
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Obs, Update
from reverie.nn.adam import Adam
from reverie.nn.network import NetworkConfig, ObsConcat
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, masked_mean, obs_before

# ---------------------------------------------------------------------- losses


class DiscriminatorObjective(NotesChanges, nn.Module):
    """The loss of GAIL's discriminator, usable on its own.

    ``discriminator`` has the methods ``encode`` and ``logits`` of :class:`Discriminator`.
    """

    discriminator: Any

    def __init__(self, discriminator: nn.Module, cfg: GAILConfig) -> None:
        super().__init__()
        self.discriminator = discriminator
        self.cfg = cfg

    def forward(self, expert: Batch, agent: Batch) -> Losses:
        """Return the term ``discriminator`` of two batches ``[B, T]`` and ``[B', T]``.

        -E_expert[ln D(s, a)] - E_agent[ln(1 - D(s, a))] + penalty E[(|grad f| - 1)^2]: GAIL's equation 17 with the
        expert as the positive class, and the gradient penalty of Gulrajani et al. at points between both.
        """
        x, y = self._encode_batch(expert), self._encode_batch(agent)  # [B, T-1, I], [B', T-1, I]
        expert_mask, agent_mask = transition_mask(expert.is_last), transition_mask(agent.is_last)
        f, g = self.discriminator.logits(x), self.discriminator.logits(y)
        loss = masked_mean(F.softplus(-f) * expert.weight[:, None], expert_mask)
        loss = loss + masked_mean(F.softplus(g) * agent.weight[:, None], agent_mask)
        slope = self.gradient_penalty(x.detach(), y.detach(), expert_mask, agent_mask)
        metrics = {
            "loss/discriminator": loss.detach(),
            "loss/penalty": slope.detach(),
            "train/expert_prob": masked_mean(f.detach().sigmoid(), expert_mask),
            "train/agent_prob": masked_mean(g.detach().sigmoid(), agent_mask),
        }
        return Losses({"discriminator": loss + self.cfg.gradient_penalty * slope}, metrics)

    def gradient_penalty(self, x: Tensor, y: Tensor, expert_mask: Tensor, agent_mask: Tensor) -> Tensor:
        """E[(|grad f| - 1)^2] at random points between pairs of rows; the smaller batch is repeated."""
        pairs = torch.arange(max(len(x), len(y)), device=x.device)
        i, j = pairs % len(x), pairs % len(y)
        share = torch.rand(len(pairs), x.shape[1], 1, dtype=x.dtype, device=x.device)
        between = (share * y[j] + (1 - share) * x[i]).requires_grad_()  # [N, T-1, I]
        with torch.enable_grad():
            logits = self.discriminator.logits(between)
            (slope,) = torch.autograd.grad(logits.sum(), between, create_graph=True)
        length = (slope.square().sum(-1) + torch.finfo(slope.dtype).tiny).sqrt()  # has a finite gradient where it is 0
        return masked_mean((length - 1).square(), expert_mask[i] & agent_mask[j])

    def _encode_batch(self, batch: Batch) -> Tensor:
        return self.discriminator.encode(obs_before(batch.obs), batch.action[:, :-1])


def _airl_reward(f: Tensor) -> Tensor:
    """The reward ln D - ln(1 - D) = f, of either sign: AIRL's (Fu et al. 2018, arXiv:1710.11248)."""
    return f


REWARDS: dict[str, Callable[[Tensor], Tensor]] = {
    "airl": _airl_reward,
    "positive": F.softplus,  # -ln(1 - D) > 0: GAIL's code
    "negative": F.logsigmoid,  # ln D < 0: GAIL's algorithm 1
}
"""The reward of an action, a function of the discriminator D(s, a) = sigmoid f(s, a), the probability of expert.

Terminal states have value 0. So rewards that are all positive favor long episodes, and negative rewards short ones,
independent of the expert; the second paper calls this reward bias. Choose according to how episodes end.
"""


class Discriminator(nn.Module):
    """f(s, a), the logit of "by the expert". Plain layers, as the gradient penalty needs second derivatives."""

    def __init__(self, obs_spec: ObsSpec, width: int, cfg: NetworkConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.inputs: ObsConcat = ObsConcat(obs_spec, cfg, dtype)
        widths = (self.inputs.width + width, *cfg.units)
        self.hidden: nn.ModuleList = nn.ModuleList([nn.Linear(i, o) for i, o in pairwise(widths)])
        self.out: nn.Linear = nn.Linear(widths[-1], 1)
        for layer in (*self.hidden, self.out):
            nn.init.orthogonal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def encode(self, obs: Obs, action: Tensor) -> Tensor:
        """Return the inputs ``[..., I]`` of an observation and an action: features of images, the rest unchanged."""
        return torch.cat([self.inputs(obs).float(), action.float()], -1)

    def logits(self, x: Tensor) -> Tensor:
        """Return logits f ``[...]`` of inputs ``[..., I]``."""
        for layer in self.hidden:
            x = layer(x).tanh()
        y: Tensor = self.out(x)
        return y.squeeze(-1)

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        """Return logits f ``[...]`` of observations ``[..., *shape]`` and actions ``[..., A]``."""
        return self.logits(self.encode(obs, action))


# ---------------------------------------------------------------------- learner


class GAIL(SAC):
    """The learner of GAIL: SAC, for the kind of the actions, and a discriminator.

    The first :attr:`recorded` windows of a batch are the expert's, the others the agent's.
    """

    losses: ClassVar[dict[str, type[SoftObjective]]] = SAC.losses | DiscreteSAC.losses
    cfg: GAILConfig
    has_heldout_losses = False  # they compare two sets of rows
    learns_rows_rewards = False

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: GAILConfig, device: torch.device) -> None:
        super().__init__(obs_spec, action_spec, cfg, device)
        self.recorded: int = cfg.batch_size // 2
        network = Discriminator(self.preprocess.spec, action_spec.width, cfg.discriminator, cfg.dtype)
        self.imitation: DiscriminatorObjective = DiscriminatorObjective(network, cfg).to(device)
        self.optims["discriminator"] = Adam(network.parameters(), cfg.discriminator_lr)

    def set_num_offline(self, windows: int) -> None:
        self.recorded = windows

    def learn(self, batch: Batch, *, updates_actor: bool) -> Update:
        """Take one step of the discriminator, then one of SAC on the agent's rows with the discriminator's rewards.

        As in the second paper's algorithm 1, SAC does not learn from the expert's rows.
        """
        expert, agent = batch.map(lambda x: x[: self.recorded]), batch.map(lambda x: x[self.recorded :])
        metrics = self.minimize(self.imitation(expert, agent))
        with torch.no_grad():
            f = self.imitation.discriminator(obs_before(agent.obs), agent.action[:, :-1])  # [B', T-1]
            earned = REWARDS[self.cfg.reward_form](f)
            mean = masked_mean(earned, transition_mask(agent.is_last))
        agent = replace(agent, reward=F.pad(earned, (1, 0)))  # row t + 1 has action t's reward
        update = super().learn(agent, updates_actor=updates_actor)
        assert update.priority is not None
        priority = torch.cat([update.priority.new_ones(self.recorded), update.priority])
        return Update(metrics={**update.metrics, **metrics, "train/gail_reward": mean}, priority=priority)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class GAILConfig(OfflineConfig, SACConfig):
    """Settings of GAIL: SAC's, and the discriminator's of the authors' code (google-research/dac)."""

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous", "discrete", "multi_discrete", "mixed"})
    human_fraction: ClassVar[float | None] = None

    batch_size: Annotated[int, AtLeast(2)] = 256
    """B, windows in a batch: half of them are the expert's, half the agent's. The authors use 100 of each."""
    reward_form: Literal["airl", "positive", "negative"] = "airl"
    """The agent's reward, a function of the discriminator: airl, positive or negative."""
    discriminator_lr: Annotated[ScheduledFloat, Above(0)] = 1e-3
    """Learning rate of the discriminator."""
    gradient_penalty: Annotated[float, AtLeast(0)] = 10.0
    """Weight of the discriminator's gradient penalty (Gulrajani et al. 2017, arXiv:1704.00028, equation 3), at points
    between the expert's rows and the agent's."""
    discriminator: NetworkConfig = field(default_factory=NetworkConfig)
    """Layers of the discriminator, with tanh after each hidden layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reward_scale is not None:
            raise ConfigError(
                f"reward_scale = {self.reward_scale.to_text()}: gail does not learn from the environment's rewards."
            )

    def check_data(self, *, recorded: bool, collected: bool) -> None:
        if not (recorded and collected):
            has = "only recorded data were given" if recorded else "no dataset was given"
            raise ConfigError(
                f"gail learns from an expert's dataset and from its own actions, but {has}. Pass --data PATH and "
                "--env ID, without --experience, or use bc."
            )

    def needs_rewards(self, *, collected: bool) -> bool:
        return False


GAILConfig.learner = GAIL
