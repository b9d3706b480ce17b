"""C51: Bellemare, Dabney, Munos, "A distributional perspective on RL", ICML 2017, arXiv:1707.06887.

DQN whose network predicts the probabilities of fixed returns, the atoms, instead of their mean. The preset ``rainbow``
is this algorithm with double Q-learning, the dueling network, noisy parameters, 3-step returns and priorities: Hessel
et al., "Rainbow", AAAI 2018, arXiv:1710.02298. With several choices, each is a branch with its own probabilities, as in
:mod:`~reverie.algos.dqn`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.dqn import DQN, DQNConfig, DQNObjective
from reverie.algos.model_free import CLIPPED
from reverie.algos.td import AtomRange
from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError
from reverie.core.specs import ObsSpec
from reverie.core.types import Batch, Obs
from reverie.nn.functional import mask_illegal
from reverie.objectives.categorical import choice_weight, mean_over_choices, split_choices, stack_choices
from reverie.objectives.estimators import SingleBootstrap, ValueEstimator
from reverie.objectives.quantile import clipped_return, project_to_atoms, quantiles_of_action
from reverie.objectives.td import Losses, check_shapes, critic_losses, obs_after, obs_before

# ---------------------------------------------------------------------- losses


class C51Objective(DQNObjective):
    """The loss of C51, with the interface of :class:`~reverie.algos.dqn.DQNObjective`.

    ``network(obs)`` returns the logits of N atoms for each action, ``[..., A, N]``. The estimator must bootstrap from a
    single row: ``TD0``, ``TD1`` or ``NStep``.
    """

    cfg: C51Config
    support: Tensor

    def __init__(self, network: nn.Module, cfg: C51Config, classes: tuple[int, ...] = ()) -> None:
        super().__init__(network, cfg, classes)
        self.register_buffer("support", torch.linspace(cfg.v_min, cfg.v_max, cfg.num_atoms), persistent=False)

    def critic_loss(self, batch: Batch) -> Losses:
        """-E[sum_i m_i ln p_i(s, a)]: Algorithm 1. Priorities are KL(m || p), as in Rainbow, "The integrated agent"."""
        logits: Tensor = self.network(obs_before(batch.obs))  # [B, T-1, A, N]
        pairs = zip(split_choices(logits, self.classes, -2), split_choices(batch.action[:, :-1], self.classes),
                    strict=True)  # fmt: skip
        log_p = stack_choices([quantiles_of_action(part, a.argmax(-1)) for part, a in pairs]).log_softmax(-1)
        atoms, probs = self.target_distribution(batch)  # [B, T-1, N]
        target = project_to_atoms(atoms, probs, self.support)
        loss = -(target * log_p).sum(-1)  # [(D,) B, T-1]
        kl = (loss.detach() + torch.xlogy(target, target).sum(-1)).clamp(min=0)  # rounding may give less
        value, target_value = (log_p.detach().exp() * self.support).sum(-1), (target * self.support).sum(-1)
        check_shapes(loss, target_value, batch)
        losses = critic_losses(loss, kl, value, target_value, batch, choice_weight(self.classes))
        clipped = clipped_return(atoms, probs, target, self.support)
        return losses._replace(metrics={**losses.metrics, CLIPPED: clipped})

    def values(self, obs: Obs) -> Tensor:
        """The means of the distributions, ``[..., A]``: Q in Algorithm 1."""
        return self.means(self.network(obs), obs)

    def means(self, logits: Tensor, obs: Obs) -> Tensor:
        """Return sum_i z_i p_i ``[..., A]`` of ``logits`` ``[..., A, N]``; illegal actions have the lowest value."""
        return mask_illegal((logits.softmax(-1) * self.support).sum(-1), obs)

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """m: :meth:`target_distribution`, projected: Algorithm 1.  ``[B, T - 1, N]``."""
        return project_to_atoms(*self.target_distribution(batch), self.support)

    @torch.no_grad()
    def target_distribution(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The returns r + gamma (1 - terminal) z at (s', a*), and their probabilities, ``[B, T - 1, N]`` each.

        a* has the highest mean; with ``double`` the online network chooses it. With several choices, probabilities are
        averaged over them.
        """
        obs, c = obs_after(batch.obs), self.cfg
        logits = self.target_network(obs)  # [B, T-1, A, N]
        means = self.means(self.network(obs) if c.double else logits, obs)  # [B, T-1, A]
        pairs = zip(split_choices(logits, self.classes, -2), split_choices(means, self.classes), strict=True)
        probs = mean_over_choices([quantiles_of_action(part, scores.argmax(-1)).softmax(-1) for part, scores in pairs])
        assert isinstance(c.value_estimator, SingleBootstrap)  # as the configuration has checked
        reward, live, row = c.value_estimator.bootstrap(
            reward=batch.reward, terminal=batch.is_terminal, last=batch.is_last, discount=self.discount
        )  # [B, T-1]
        reached = probs.take_along_dim((row - 1).clamp(min=0).unsqueeze(-1), 1)  # [B, T-1, N]
        return reward.unsqueeze(-1) + live.unsqueeze(-1) * self.support, reached


# ---------------------------------------------------------------------- learner


class C51(DQN):
    """The learner of C51: a network of the atoms' logits, its update and the policy that explores."""

    cfg: C51Config
    losses: type[C51Objective] = C51Objective

    def build_network(self, obs_spec: ObsSpec, classes: tuple[int, ...], outputs: int | None = None) -> nn.Module:
        return super().build_network(obs_spec, classes, self.cfg.num_atoms)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class C51Config(DQNConfig):
    """Settings of C51, with the defaults of DQN, and of the paper for the additional settings."""

    estimators: ClassVar[type[ValueEstimator]] = SingleBootstrap

    num_atoms: Annotated[int, AtLeast(2)] = 51
    """N, number of atoms."""
    v_min: float = -10.0
    """Return of the first atom; lower returns count as this."""
    v_max: float = 10.0
    """Return of the last atom; higher returns count as this. The paper's bounds fit rewards clipped to their sign."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.v_min >= self.v_max:
            raise ConfigError(f"v_min = {self.v_min}, v_max = {self.v_max}: expected v_min < v_max.")
        if self.kappa != 1.0:
            raise ConfigError(f"kappa = {self.kappa}: C51 has no Huber loss.")

    @property
    def atoms(self) -> AtomRange:
        return AtomRange(self.v_min, self.v_max, "Raise algo.v_max (for costs, lower algo.v_min)")


C51Config.learner = C51
