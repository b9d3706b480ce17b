"""LeWM: Maes et al. 2026, "LeWorldModel", arXiv 2603.19312: a world model without decoder that plans to a goal.

An encoder maps observations to latents, and a predictor the latent of a row to that of the row k steps later, given the
k actions between. Nothing is reconstructed and no reward is used: a regularizer keeps latents from collapsing. To reach
a goal, the policy searches the actions whose predicted latent is nearest to the goal's, and takes all of them.

The losses are the authors'. The default networks are small, for a CPU: a CNN and a predictor of a single latent, where
the authors have a vision transformer and a transformer over three latents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from reverie.algos.goal_conditioned import GoalKeysConfig
from reverie.algos.goal_planner import (
    CategoricalBlocks,
    GoalPlan,
    NormalBlocks,
    PlannerConfig,
    PlanningPolicy,
    plan_to_goal,
)  # fmt: skip
from reverie.algos.model_free import ModelFree
from reverie.core.bounds import Above, AtLeast, ScheduledFloat
from reverie.core.errors import ConfigError
from reverie.core.kernel_dispatch import NotesChanges
from reverie.core.masks import EXCLUDE_ADVICE
from reverie.core.protocols import RunningStatistics
from reverie.core.specs import MASK_KEY, ActionSpec, ObsSpec, num_classes_per_choice
from reverie.core.types import Batch, Obs, PolicyOutput, Step, Update, Window
from reverie.nn.adam import Adam
from reverie.nn.cnn import Strided
from reverie.nn.latent_model import LatentModel, LatentRegularizer, Sigreg, effective_rank
from reverie.nn.network import NetworkConfig
from reverie.nn.normalization import Standardizer
from reverie.objectives.td import Losses

LATENT_STD = "train/latent_std"
COLLAPSED_STD = 0.1
"""Standard deviation of latents below which they have collapsed."""

# ---------------------------------------------------------------------- losses


class LeWMObjective(NotesChanges, nn.Module):
    """The losses of LeWM over windows of n blocks of k actions, ``[B, n k + 1]``."""

    def __init__(self, model: LatentModel, block: int, regularizer: LatentRegularizer) -> None:
        super().__init__()
        self.model = model
        self.block = block
        self.regularizer = regularizer

    def forward(self, batch: Batch) -> Losses:
        """L = E[|predict(z_t, a_t) - z_{t+k}|^2] / D + regularizer(z); both latents get a gradient: section 3.

        ``batch.action``: normalized, or one-hot.
        """
        z = self.model.encode({key: batch.obs[key][:, :: self.block] for key in self.model.keys})  # [B, n + 1, D]
        predicted = self.model.predict(z[:, :-1], _blocks_of(batch.action[:, :-1], self.block))
        prediction, regularizer = (predicted - z[:, 1:]).square().mean(), self.regularizer.loss(z)
        with torch.no_grad():
            metrics = {
                "loss/prediction": prediction.detach(), "loss/regularizer": regularizer.detach(),
                LATENT_STD: z.std(0).mean(), "train/latent_rank": effective_rank(z[:, 0]),
            }  # fmt: skip
        return Losses({"model": prediction + regularizer}, metrics)


def _blocks_of(action: Tensor, block: int) -> Tensor:
    """Return actions ``[B, n k, A]`` as n blocks of k actions, ``[B, n, k A]``."""
    return action.reshape(len(action), action.shape[1] // block, -1)


# ---------------------------------------------------------------------- learner


class LeWM(ModelFree):
    """The learner of LeWM: a world model, its update, and a policy that plans."""

    actor_path = ""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: LeWMConfig, device: torch.device) -> None:
        super().__init__(cfg.network_spec(obs_spec), cfg, device)
        self.window: Window = replace(self.window, crosses_episodes=False, has_priorities=False)
        spec, width = self.preprocess.spec, action_spec.width
        encoded = {key: spec[key] for key in self.preprocess.goals}
        model = LatentModel(encoded, cfg.block * width, cfg.networks, cfg.latent, cfg.dtype)
        self.objective: LeWMObjective = LeWMObjective(model, cfg.block, cfg.regularizer)
        self.classes: tuple[int, ...] = num_classes_per_choice(action_spec)
        """Number of classes of each discrete choice; empty if actions are continuous."""
        self.actions: Standardizer = Standardizer((width,))
        """Mean and standard deviation of recorded continuous actions."""
        self.to(device)
        self.optims["model"] = Adam(
            model.parameters(), cfg.lr, max_grad_norm=cfg.max_grad_norm, decoupled_decay=cfg.weight_decay
        )
        self._policy = PlanningPolicy(self.propose, cfg.planner.num_executed * cfg.block, width, device)

    def prepare_batch(self, batch: Batch) -> Batch:
        batch = super().prepare_batch(batch)
        return replace(batch, action=self.actions(batch.action))

    def train_step(self, batch: Batch) -> Update:
        return Update(metrics=self.minimize(self.objective(batch)))

    @torch.no_grad()
    def plan(self, obs: Obs, seed: int = 0) -> GoalPlan:
        """Return plans from preprocessed observations ``[N, ...]`` to the goals among them; actions are normalized."""
        model, cfg = self.objective.model, self.cfg
        z = model.encode(obs)
        if self.classes:
            blocks: NormalBlocks | CategoricalBlocks = CategoricalBlocks(
                self.classes, cfg.block, len(z), cfg.planner, z.device
            )
        else:
            limits = self.actions(torch.stack([torch.full_like(self.actions.shift, x) for x in (-1.0, 1.0)]))  # [2, A]
            blocks = NormalBlocks(limits, cfg.block, len(z), cfg.planner)
        return plan_to_goal(model, z, model.encode_goal(obs), blocks, cfg.planner, seed)

    def dream(self, batch: Batch, context: int) -> dict[str, Tensor]:
        """Raise NotImplementedError: predictions are latents alone."""
        raise NotImplementedError("LeWM has no decoder, so it cannot dream. `reverie view RUN` draws its plans.")

    def goal_distance(self, output: PolicyOutput) -> Tensor:
        """Return the distance of the latents of observation and goal."""
        model, obs = self.objective.model, output.inputs
        return (model.encode(obs) - model.encode_goal(obs)).norm(dim=-1)

    def propose(self, obs: Obs, seed: Tensor | None) -> Tensor:
        """Return the actions ``[N, h A]`` that are executed before the next plan."""
        blocks = self.plan(obs, 0 if seed is None else int(seed)).blocks
        return self.single_actions(blocks[:, : self.cfg.planner.num_executed]).flatten(1)

    def single_actions(self, blocks: Tensor) -> Tensor:
        """Return the actions ``[N, H k, A]`` of blocks ``[N, H, k A]``, no longer normalized."""
        normalized = blocks.reshape(len(blocks), -1, self.actions.shift.shape[0])
        return normalized / self.actions.factor + self.actions.shift

    @property
    def running_statistics(self) -> RunningStatistics:
        return LeWMStatistics(super().running_statistics, None if self.classes else self.actions)

    def metrics_warning(self, metrics: Mapping[str, float], largest_reward: Callable[[], float]) -> str:
        std = metrics.get(LATENT_STD, 1.0)
        if std >= COLLAPSED_STD:
            return ""
        return (
            f"the latents have collapsed: their standard deviation is {std:.2g}, so all observations look alike to "
            "plans. Increase the weight of algo.regularizer, or the batch size"
        )


class LeWMStatistics(NamedTuple):
    """The statistics of observations, if there are any, and of continuous actions."""

    observations: RunningStatistics | None
    actions: Standardizer | None

    def update_statistics(self, step: Step) -> None:
        """Do nothing: rows are recorded."""

    def fit(self, rows: Batch) -> None:
        """Compute the statistics of rows ``[N, n]``, once: networks are trained with them."""
        if self.observations is not None:
            self.observations.fit(rows)
        if self.actions is not None and not self.actions.count:
            self.actions.add(rows.action[~rows.is_last])


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class LeWMConfig(GoalKeysConfig):
    """Settings of LeWM: losses and planner of the authors' code (github.com/lucas-maes/le-wm), networks by reverie."""

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous", "discrete", "multi_discrete"})
    network_settings: ClassVar[frozenset[str]] = frozenset()

    batch_size: Annotated[int, AtLeast(2)] = 128
    """B, number of windows in a batch."""
    batch_length: Annotated[int, AtLeast(2)] = 16
    """T, rows of each window: a multiple of `block`, and one more. The authors have three blocks."""
    block: Annotated[int, AtLeast(1)] = 5
    """k, env steps that the model predicts at once, given their k actions."""
    latent: Annotated[int, AtLeast(1)] = 64
    """D, width of a latent. The authors have 192."""
    networks: NetworkConfig = field(default_factory=lambda: NetworkConfig(units=(256, 512, 512), encoder=Strided()))
    """Layers: the first width is of the encoder's last layer, the others of the predictor, and the last of both
    projectors."""
    regularizer: LatentRegularizer = field(default_factory=Sigreg)
    """What keeps latents from collapsing: sigreg, or vicreg of PLDM, which is better in worlds of few dimensions."""
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    """How actions are searched."""
    lr: Annotated[ScheduledFloat, Above(0)] = 1e-3
    """Learning rate of AdamW. The authors use 5e-5 for their transformers."""
    weight_decay: Annotated[float, AtLeast(0)] = 1e-3
    """Weight decay of AdamW."""
    max_grad_norm: Annotated[float, AtLeast(0)] = 1.0
    """Maximum gradient norm; 0 does not clip."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_length % self.block != 1 % self.block or self.batch_length <= self.block:
            raise ConfigError(
                f"algo.batch_length = {self.batch_length}, algo.block = {self.block}: expected a multiple of block and "
                f"one more, such as {3 * self.block + 1}."
            )

    def for_specs(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> Self:
        if MASK_KEY in obs_spec:
            raise ConfigError(f"lewm: which actions of a plan will be legal is unknown. {EXCLUDE_ADVICE}")
        return super().for_specs(obs_spec, action_spec)


LeWMConfig.learner = LeWM
