"""SimbaV2: Lee et al., "Hyperspherical normalization for scalable deep RL", ICML 2025, arXiv:2502.15280.

SAC whose critics predict the probabilities of fixed returns, the atoms, as in :mod:`~reverie.algos.c51`. The features
and the weights of all networks have norm 1, and returns are scaled to the range of the atoms. The actor has a head each
for mean and ln sigma.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.model_free import CLIPPED
from reverie.algos.sac import SAC, SACConfig, SoftObjective
from reverie.algos.td import AtomRange
from reverie.core.bounds import Above, AtLeast, ScheduledFloat
from reverie.core.errors import ConfigError
from reverie.core.types import Batch, Metrics, Obs
from reverie.nn.actors import BoundedGaussianActor
from reverie.nn.bodies import Body, Hypersphere, project_weights
from reverie.nn.network import NetworkConfig
from reverie.nn.normalization import NormalizeConfig, Running
from reverie.nn.reward_scaling import ReturnStd, RewardScale
from reverie.nn.target_network import TargetNetwork
from reverie.objectives.estimators import SingleBootstrap, ValueEstimator
from reverie.objectives.quantile import clipped_return, project_to_atoms, quantile_targets
from reverie.objectives.td import Losses, check_shapes, critic_losses, obs_after, obs_before, with_entropy_bonus

# ---------------------------------------------------------------------- losses


class CategoricalObjective(SoftObjective):
    """The losses of critics that predict the probabilities of atoms, with the terms of ``sac.SACObjective``.

    ``critic(obs, action)`` returns the logits of N atoms for each of K critics, ``[K, ..., N]``. The estimator must
    bootstrap from a single row: ``TD0``, ``TD1`` or ``NStep``.
    """

    cfg: SimbaV2Config
    support: Tensor

    def __init__(self, actor: nn.Module, critic: nn.Module, cfg: SimbaV2Config, target_entropy: float) -> None:
        super().__init__(actor, critic, cfg, target_entropy)
        self.target_critic: TargetNetwork = TargetNetwork(critic, cfg.tau, cfg.target_update_interval)
        self.register_buffer("support", torch.linspace(-cfg.max_value, cfg.max_value, cfg.num_atoms), persistent=False)

    def cross_entropy(self, logits: Tensor, atoms: Tensor, probs: Tensor, batch: Batch) -> Losses:
        """Return the loss of ``logits`` ``[K, B, T - 1, N]`` and of the targets m.

        ``atoms``, ``probs``: returns and their probabilities, ``[B, T - 1, N]`` each; m is their projection.
        """
        target = project_to_atoms(atoms, probs, self.support)
        loss = -(target * logits.log_softmax(-1)).sum(-1)  # [K, B, T-1]
        value, target_value = self.means(logits.detach()), (target * self.support).sum(-1)
        check_shapes(value, target_value, batch)
        losses = critic_losses(loss, loss.detach(), value, target_value, batch)
        clipped = clipped_return(atoms, probs, target, self.support)
        return losses._replace(metrics={**losses.metrics, CLIPPED: clipped})

    def distribution_after(self, batch: Batch, logits: Tensor, log_pi: Tensor) -> tuple[Tensor, Tensor]:
        """Return the returns after s and a and their probabilities, ``[B, T - 1, N]`` each.

        ``logits``: of the target critics, ``[K, B, T - 1, N]``; ``log_pi``: ln pi(a' | s').
        """
        c = self.cfg
        lowest = self.means(logits).argmin(0)[None, ..., None]  # [1, B, T-1, 1]
        probs = logits.softmax(-1).take_along_dim(lowest, 0)[0]  # [B, T-1, N]
        bonus = -self.temperature * log_pi if c.entropy_backup else torch.zeros_like(log_pi)  # [B, T-1]
        batch, earlier_bonus = with_entropy_bonus(batch, bonus)
        assert isinstance(c.value_estimator, SingleBootstrap)  # as the configuration has checked
        atoms = quantile_targets(self.support + bonus.unsqueeze(-1), batch, c.value_estimator, self.discount)
        _, _, row = c.value_estimator.bootstrap(
            reward=batch.reward, terminal=batch.is_terminal, last=batch.is_last, discount=self.discount
        )
        reached = probs.take_along_dim((row - 1).clamp(min=0).unsqueeze(-1), 1)  # [B, T-1, N]
        return atoms - earlier_bonus.unsqueeze(-1), reached

    @staticmethod
    def num_outputs(cfg: SimbaV2Config) -> int:
        return cfg.num_atoms

    def means(self, logits: Tensor) -> Tensor:
        """Return the means ``[...]`` of the distributions with ``logits`` ``[..., N]``."""
        return (logits.softmax(-1) * self.support).sum(-1)

    def values(self, obs: Obs, action: Tensor) -> Tensor:
        """The means of the critics' distributions, ``[K, ...]``."""
        return self.means(self.critic(obs, action))

    def expected_value(self, obs: Obs, critic: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the smallest mean of ``critic``'s distributions for sampled actions, and -ln pi(a | s)."""
        action, log_pi = self.actor(obs).sample_and_log_prob()  # [..., A], [...]
        return self.means(critic(obs, action)).amin(0), -log_pi


class SimbaV2Objective(CategoricalObjective):
    """The losses of SimbaV2."""

    build_actor: ClassVar[Callable[..., nn.Module]] = partial(BoundedGaussianActor, heads=2)

    def critic_loss(self, batch: Batch) -> Losses:
        """-sum_k E[sum_i m_i ln p_k,i(s, a)]: the cross entropy of the authors' code. The sum is over the critics k."""
        logits = self.critic(obs_before(batch.obs), batch.action[:, :-1])  # [K, B, T-1, N]
        return self.cross_entropy(logits, *self.target_distribution(batch), batch)

    def targets(self, batch: Batch) -> Tensor:
        """m: :meth:`target_distribution`, projected.  ``[B, T - 1, N]``."""
        return project_to_atoms(*self.target_distribution(batch), self.support)

    @torch.no_grad()
    def target_distribution(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The returns r + gamma (1 - terminal) (z - alpha ln pi(a' | s')) and their probabilities, ``[B, T - 1, N]``.

        The target critic with the smallest mean gives the probabilities. Without ``entropy_backup``, it lacks
        the entropy.
        """
        obs = obs_after(batch.obs)
        action, log_pi = self.actor(obs).sample_and_log_prob()  # [B, T-1, A], [B, T-1]
        return self.distribution_after(batch, self.target_critic(obs, action), log_pi)


# ---------------------------------------------------------------------- learner


class SimbaV2(SAC):
    """The learner of SimbaV2: actor, critics of atoms and a temperature, their updates and the policy."""

    losses: ClassVar[dict[str, type[SoftObjective]]] = {"continuous": SimbaV2Objective}

    def minimize(self, losses: Losses) -> Metrics:
        """Take a step of each optimizer, and put the weights of its network back on the unit sphere."""
        metrics = super().minimize(losses)
        for name in losses.terms.keys() & {"actor", "critic"}:
            project_weights(getattr(self.objective, name))
        return metrics


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class SimbaV2Config(SACConfig):
    """Settings of SimbaV2, with the values of its authors' code (github.com/DAVIAN-Robotics/SimbaV2).

    The authors use the discount clip(1 - 5 / L, 0.95, 0.995) for episodes of L env steps: 0.995 for 1000. They update
    the actor before the critics, and where episodes end by time limits alone, they have a single critic. Unlike here,
    they do not clip normalized observations, and the return that scales rewards restarts one step earlier, at the last
    reward of an episode.
    """

    network_settings: ClassVar[frozenset[str]] = SACConfig.network_settings | {"hypersphere"}
    body: ClassVar[type[Body] | None] = Hypersphere
    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous"})
    estimators: ClassVar[type[ValueEstimator]] = SingleBootstrap

    networks: NetworkConfig = field(  # type: ignore[assignment]  # without SAC's memory
        default_factory=lambda: NetworkConfig(body=Hypersphere(), units=(128,), critic_units=(512, 512))
    )
    num_atoms: Annotated[int, AtLeast(2)] = 101
    """N, number of atoms, evenly spaced."""
    max_value: Annotated[float, Above(0)] = 5.0
    """The largest atom; the smallest one is its negative. Scale rewards to it: ``reward_scale``."""
    normalize_obs: NormalizeConfig | None = field(default_factory=Running)
    reward_scale: RewardScale | None = field(default_factory=lambda: ReturnStd(clip=None, max_return=5.0))
    actor_lr: Annotated[ScheduledFloat, Above(0)] = 1e-4
    critic_lr: Annotated[ScheduledFloat, Above(0)] = 1e-4
    temperature_lr: Annotated[ScheduledFloat, AtLeast(0)] = 1e-4
    temperature: Annotated[ScheduledFloat, Above(0)] = 0.01
    target_entropy_scale: Annotated[float, Above(0)] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_target_critics is not None or self.critic_loss != "l2":
            name = "critic_loss" if self.num_target_critics is None else "num_target_critics"
            raise ConfigError(
                f"{name} = {getattr(self, name)}: {self.algorithm} computes targets and loss from distributions of "
                "returns. Remove this option."
            )

    @property
    def atoms(self) -> AtomRange:
        return AtomRange(-self.max_value, self.max_value, "Raise algo.max_value")


SimbaV2Config.learner = SimbaV2
