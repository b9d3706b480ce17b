"""BMPC: Wang, Guo, Wang, Qian, Lan, "Bootstrapped model predictive control", ICLR 2025, arXiv:2503.18871.

TD-MPC2 whose policy imitates the planner, and whose critics have the values of states under this policy, predicted by
the world model. Stored plans become outdated, so every few updates the planner recomputes the plans of some windows
(lazy reanalyze). It computes what the authors' code computes (github.com/wertyuilife2/bmpc, commit d5dabc6), for a
single task.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos import tdmpc2
from reverie.algos.planner import ReanalyzeConfig, ReanalyzingLearner
from reverie.algos.tdmpc2 import SIZES as SIZES
from reverie.algos.tdmpc2 import TDMPC2, TDMPC2Config, TDMPC2Objective
from reverie.algos.tdmpc2_planner import PLANNED, PolicySample
from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionSpec, ColumnSpec, ObsSpec
from reverie.core.types import Batch
from reverie.nn.normals import HALF_LOG_2PI, ClippedNormal
from reverie.nn.tdmpc2_networks import MishMLP, TDMPC2NetworkConfig
from reverie.objectives.kl import gaussian_kl

# ---------------------------------------------------------------------- losses


class BMPCObjective(TDMPC2Objective):
    """The losses of TD-MPC2 with critics of states, and a policy that imitates the planner."""

    cfg: BMPCConfig

    def policy_loss(self, z: Tensor, batch: Batch) -> tuple[Tensor, PolicySample, dict[str, Tensor]]:
        """Return 1/H sum_t rho^t E[KL(pi || planner) / scale - eta entropy] over latents ``[H+1, B, L]``: section 4.1.

        The planner's action at t is the normal distribution ``batch.extras["planned"]`` ``[B, H+1, 2, A]``; rows
        without a plan have N(0, 1). The KL divergence is the mean over actions. Also return the actions, and by
        metric the ``divergence`` ``[H, B]``. First updates the scale by the divergences of the first step.
        """
        policy = self.policy(z[:-1])
        mean, std = batch.extras[PLANNED][:, :-1].transpose(0, 1).unbind(2)  # [H, B, A] each
        planner = torch.stack([mean, std.where(std > 0, 1.0)], -1)  # [H, B, A, 2]
        divergence = gaussian_kl(torch.stack([policy.mean, policy.log_std.exp()], -1), planner) / self.width  # [H, B]
        self.update_scale(divergence[0].detach())
        loss = divergence / self.scale - self.cfg.entropy_coef * policy.scaled_entropy
        return (loss.mean(1) * self.rhos[:-1]).mean(), policy, {"divergence": divergence}

    @torch.no_grad()
    def targets(self, first: Tensor, encodings: Tensor, batch: Batch) -> Tensor:
        """Return y = sum_{k < n} gamma^k r_k + gamma^n V'(z_n), ``[H, B]``, of n imagined steps: section 4.2.

        The latents z_0 are those of all rows but the last: ``first`` ``[B, L]`` and ``encodings[:-1]``. The policy
        acts in them. As in plans, everything after a termination counts as 0.
        """
        z, c = torch.cat([first[None], encodings[:-1]]), self.cfg
        total, alive, discount = torch.zeros((), device=z.device), torch.ones((), device=z.device), 1.0
        for _ in range(c.td_horizon):
            reward, z = self.step(z, self.policy(z).action)
            total = total + discount * alive * reward
            discount *= c.discount
            if (logit := self.termination_logits(z)) is not None:
                alive = alive * (logit <= 0)
        return total + discount * alive * self.policy_values(self.target_critic.model, z).mean(0)

    @torch.no_grad()
    def reanalyze(self, batch: Batch, count: int) -> dict[str, Tensor]:
        """Return the plans ``[B, T, 2, A]`` of a batch, with new ones for its last ``count`` windows: section 4.3.

        The last row of a window keeps its plan.
        """
        obs = {key: x[-count:, :-1].flatten(0, 1) for key, x in batch.obs.items()}
        z: Tensor = self.encoder(obs)  # [N, L], N = count * H
        before = torch.zeros(len(z), self.cfg.horizon, self.width, device=z.device)
        with self.critic.without_dropout():
            fresh = self.plan(z, before, False, partial(self.policy, min_log_std=self.cfg.reanalyze_min_log_std))[2]
        planned = batch.extras[PLANNED].clone()
        planned[-count:, :-1] = fresh.view(-1, self.cfg.horizon, 2, self.width)
        return {PLANNED: planned}

    # ---------------------------------------------------------------- the networks

    def gaussian(self, z: Tensor, min_log_std: float | None = None) -> tuple[Tensor, Tensor]:
        """Return mean, after tanh, and ln sigma ``[..., A]`` of the policy in latents ``[..., L]``."""
        mean, raw = self.prior(z).float().chunk(2, -1)  # [..., A]
        low = self.cfg.min_log_std if min_log_std is None else min_log_std
        return mean.tanh(), low + 0.5 * (self.cfg.max_log_std - low) * (raw.tanh() + 1)

    def policy(self, z: Tensor, min_log_std: float | None = None) -> PolicySample:
        """Sample actions in latents ``[..., L]``: a Gaussian, clipped to [-1, 1]."""
        mean, log_std = self.gaussian(z, min_log_std)
        noise = self.draws.normal(*mean.shape, like=mean)
        action = (mean + noise * log_std.exp()).clamp(-1, 1)
        entropy = (0.5 * noise.square() + log_std + HALF_LOG_2PI).sum(-1)
        return PolicySample(action, mean, log_std, entropy, self.width * entropy)

    def distribution(self, mean: Tensor, log_std: Tensor) -> ClippedNormal:
        return ClippedNormal(mean, log_std)

    def build_critic(self, latent: int, width: int) -> MishMLP:
        """Return K critics of ``latent`` numbers: values of states."""
        return super().build_critic(latent, 0)

    def critic_logits(self, z: Tensor, action: Tensor) -> Tensor:
        return self.critic(z)

    def policy_values(self, critic: nn.Module, z: Tensor) -> Tensor:
        return self.two_values(critic, z)


# ---------------------------------------------------------------------- learner


class BMPC(ReanalyzingLearner, TDMPC2):
    """The learner of BMPC: TD-MPC2's, which also makes new plans for some of the rows."""

    objective: BMPCObjective
    losses: ClassVar[type[TDMPC2Objective]] = BMPCObjective

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: BMPCConfig, device: torch.device) -> None:
        super().__init__(obs_spec, action_spec, cfg, device)
        self.extra_spec: dict[str, ColumnSpec] = {PLANNED: ColumnSpec(shape=(2, action_spec.width), dtype="float32")}


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class BMPCConfig(ReanalyzeConfig, TDMPC2Config):
    """Settings of BMPC, with the defaults of the authors' code; other settings are TD-MPC2's."""

    networks: TDMPC2NetworkConfig = field(default_factory=lambda: TDMPC2NetworkConfig(num_critics=2))
    min_log_std: float = -3.0
    max_log_std: float = 1.0
    td_horizon: Annotated[int, AtLeast(1)] = 1
    """n, the imagined steps of the policy whose rewards are in the targets of the critics."""
    reanalyze_min_log_std: float = -2.0
    """Minimum ln sigma of the policy that proposes sequences to new plans of stored rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.reanalyze_interval and not self.use_planning:
            raise ConfigError(
                "reanalyze_interval = 0, use_planning = False: there are no plans that the policy could learn from."
            )


def with_size(name: str, base: TDMPC2Config | None = None) -> TDMPC2Config:
    """Return ``base`` with the widths of a size of TD-MPC2; the authors have fewer critics up to ``48m``."""
    config = tdmpc2.with_size(name, base or BMPCConfig())
    return config.merge({"networks.num_critics": 8 if name.lower() == "317m" else 2})


BMPCConfig.learner = BMPC
