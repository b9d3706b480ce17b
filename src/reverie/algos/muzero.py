"""MuZero: Schrittwieser et al., "Mastering Atari, Go, chess and shogi by planning with a learned model", Nature 2020.

With the search of Gumbel MuZero (Danihelka et al., ICLR 2022; ``objectives/tree_search.py``). A world model without a
decoder predicts rewards, values and the policy that the search finds; the agent acts by searching in it. With two
players, each row is seen by the player to move, its reward belongs to the player who moved before, and the discount is
negative. Some windows are searched again with newer networks: Schrittwieser et al., "Online and offline reinforcement
learning by planning with a learned model", NeurIPS 2021 (Reanalyze). With a ``consistency_coef``, predicted latents are
like those of the rows that come: Ye et al., "Mastering Atari games with limited data", NeurIPS 2021 (EfficientZero).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.algos.model_free import CLIPPED
from reverie.algos.planner import (
    SEARCH_POLICY,
    SEARCH_VALUE,
    ReanalyzeConfig,
    ReanalyzingLearner,
    SearchPlanner,
    find_legal,
)
from reverie.algos.td import AtomRange, TDConfig
from reverie.algos.tdmpc2_inspection import InspectableWorldModel
from reverie.core.bounds import Above, AtLeast, ScheduledFloat, Within
from reverie.core.errors import ConfigError
from reverie.core.kernel_dispatch import NotesChanges
from reverie.core.protocols import Policy
from reverie.core.specs import ActionSpec, ColumnSpec, ObsSpec, has_players
from reverie.core.types import Batch, Metrics, Obs, PolicyOutput, Update
from reverie.nn.adam import Adam, joint_gradient_step
from reverie.nn.distributions import Categoricals, JointDistribution
from reverie.nn.functional import one_hot, sim_norm
from reverie.nn.network import ObsConcat
from reverie.nn.number_distributions import SqrtTwoHot
from reverie.nn.relu_mlp import ReluMLP
from reverie.nn.state_space import Latent
from reverie.nn.target_network import TargetNetwork
from reverie.nn.tdmpc2_networks import LatentNetworkConfig, RandomDraws
from reverie.objectives.estimators import NStep, ValueEstimator
from reverie.objectives.td import Losses
from reverie.objectives.transforms import sqrt_transform
from reverie.objectives.tree_search import Node, SearchResult, SearchSettings, Transition, search

# ---------------------------------------------------------------------- losses


class Simplices(nn.Module):
    """A layer norm, and a softmax of every ``size`` numbers: the latents of TD-MPC2."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.scale: nn.Parameter = nn.Parameter(torch.ones(width))
        self.shift: nn.Parameter = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return sim_norm(x, self.size, self.scale, self.shift)


class MuZeroNetworks(nn.Module):
    """Encoder h, dynamics with rewards g, prediction of policy and value f: figure 1 of the paper."""

    bins: Tensor

    def __init__(self, obs_spec: ObsSpec, width: int, cfg: MuZeroConfig) -> None:
        """``width``: A, the number of actions."""
        super().__init__()
        n, latent = cfg.networks, cfg.networks.latent
        self.width = width
        self.latent = latent
        self.inputs: ObsConcat = ObsConcat(obs_spec, n, cfg.dtype)
        self.body: ReluMLP = ReluMLP(self.inputs.width, n.encoder_units, latent)
        self.norm: Simplices = Simplices(latent, n.simplex)
        self.next_norm: Simplices = Simplices(latent, n.simplex)
        self.dynamics: ReluMLP = ReluMLP(latent + width, n.units, latent + n.bins)
        self.prediction: ReluMLP = ReluMLP(latent, n.units, width + n.bins)
        with torch.no_grad():  # the first rewards and values are 0
            for weights in (*self.dynamics.layers()[-1], *self.prediction.layers()[-1]):
                weights[..., -n.bins :] = 0
        highest = float(sqrt_transform(torch.tensor(n.max_value)))
        self.register_buffer("bins", torch.linspace(-highest, highest, n.bins), persistent=False)

    def forward(self, obs: Obs) -> Tensor:
        """Map observations ``[..., *shape]`` to latents ``[..., L]``."""
        z: Tensor = self.norm(self.body(self.inputs(obs)))
        return z

    def step(self, z: Tensor, action: Tensor) -> tuple[SqrtTwoHot, Tensor]:
        """Return the reward ``[...]`` of one-hot actions ``[..., A]`` in latents, and the next latents ``[..., L]``."""
        after, logits = self.dynamics(z, action.to(z.dtype)).tensor_split([self.latent], -1)
        return SqrtTwoHot(logits, self.bins), self.next_norm(after)

    def predict(self, z: Tensor) -> tuple[Tensor, SqrtTwoHot]:
        """Return the policy's logits ``[..., A]`` and the value ``[...]`` of latents ``[..., L]``."""
        logits, value = self.prediction(z).tensor_split([self.width], -1)
        return logits.float(), SqrtTwoHot(value, self.bins)

    def node(self, z: Tensor) -> Node:
        """Return policy and value of latents ``[N, L]`` for a search."""
        logits, value = self.predict(z)
        return Node(z, logits, value.mean())


class Consistency(nn.Module):
    """Compares predicted latents with those of the rows that came, by a projector P1 and a predictor P2.

    Chen and He, "Exploring simple Siamese representation learning", CVPR 2021, as in EfficientZero, section 4.1.
    """

    def __init__(self, latent: int, units: tuple[int, ...]) -> None:
        super().__init__()
        self.projector: ReluMLP = ReluMLP(latent, units, latent)
        self.predictor: ReluMLP = ReluMLP(latent, units, latent)

    def forward(self, predicted: Tensor, encoded: Tensor) -> Tensor:
        """Return 1 - cos(P2(P1(predicted)), P1(encoded)) ``[...]`` of latents ``[..., L]``.

        Gradients stop at P1(encoded): without that, all latents could become the same.
        """
        guess = self.predictor(self.projector(predicted))
        return 1 - torch.cosine_similarity(guess.float(), self.projector(encoded).detach().float(), -1)


class MuZeroTargets(NamedTuple):
    """What the predictions k = 0 ... K of a window are trained to be."""

    policy: Tensor  # [B, K+1, A], pi' of searches; 0 where there was none, and after an end
    value: Tensor  # [B, K+1]
    reward: Tensor  # [B, K+1], that came with each row
    weight: Tensor  # [B, K+1], 0 after a truncation, 1/K after the first row
    is_later: Tensor  # [B, K+1], whether the row belongs to a later episode than the first one
    action: Tensor  # [B, K, A]; random where none was taken


class MuZeroObjective(NotesChanges, nn.Module):
    """The networks, their losses, and the search."""

    scales: Tensor

    def __init__(self, obs_spec: ObsSpec, width: int, cfg: MuZeroConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.width = width
        self.networks: MuZeroNetworks = MuZeroNetworks(obs_spec, width, cfg)
        n = cfg.networks
        self.consistency: Consistency | None = Consistency(n.latent, n.units[-1:]) if cfg.consistency_coef else None
        self.draws: RandomDraws = RandomDraws()
        self.discount: float = -cfg.discount if has_players(obs_spec) else cfg.discount
        scales = torch.full((cfg.unroll + 1,), 1 / cfg.unroll).index_fill(0, torch.tensor(0), 1.0)
        self.register_buffer("scales", scales, persistent=False)
        self.target_networks: TargetNetwork | None = None
        if cfg.reanalyze_interval:
            self.target_networks = TargetNetwork(self.networks, cfg.tau, cfg.target_update_interval)

    def forward(self, batch: Batch) -> Losses:
        """Return the terms ``actor``, ``critic`` and ``reward`` of windows ``[B, T]``: equation 1 and appendix G.

        With a ``consistency_coef``, also ``consistency``: EfficientZero's equation 4, for rows of the first episode.

        Each is the mean over windows of sum_k s_k loss_k, with s_0 = 1 and s_k = 1/K. The gradient into each predicted
        latent is halved where the next one is predicted from it.
        """
        targets, n = self.targets(batch), self.networks
        z: Tensor = n({key: x[:, 0] for key, x in batch.obs.items()})  # [B, L]
        latents, rewards = [z], []
        for action in targets.action.unbind(1):
            reward, after = n.step(z, action)
            rewards.append(reward.logits)  # [B, bins]
            latents.append(after)
            z = after.detach().lerp(after, 0.5)
        logits, value = n.predict(torch.stack(latents, 1))  # [B, K+1, ...]
        log_prob = torch.log_softmax(logits, -1)
        reward = SqrtTwoHot(torch.stack(rewards, 1), n.bins)
        losses = {
            "actor": -(targets.policy * log_prob).sum(-1),
            "critic": value.loss(targets.value),
            "reward": F.pad(reward.loss(targets.reward[:, 1:]), (1, 0)),
        }  # [B, K+1]
        if self.consistency is not None:
            with torch.no_grad():
                encoded = n({key: x[:, 1 : len(latents)] for key, x in batch.obs.items()})  # [B, K, L]
            distance = self.consistency(torch.stack(latents[1:], 1), encoded)
            losses["consistency"] = F.pad(distance.masked_fill(targets.is_later[:, 1:], 0.0), (1, 0))
        weight = targets.weight * batch.weight.unsqueeze(-1)
        terms = {name: (weight * loss).sum(1).mean() for name, loss in losses.items()}
        return Losses(terms, self.metrics(targets, log_prob), (value.mean()[:, 0] - targets.value[:, 0]).detach().abs())

    @torch.no_grad()
    def metrics(self, targets: MuZeroTargets, log_prob: Tensor) -> dict[str, Tensor]:
        """Return means over the first rows of windows, and how far values are beyond the bins."""
        highest, policy = self.cfg.networks.max_value, targets.policy[:, 0]
        prior = log_prob[:, 0]
        return {
            "train/target": targets.value[:, 0].mean(),
            CLIPPED: (targets.value.abs() - highest).clamp(min=0).mean(),
            "train/entropy": -(prior.exp() * prior).sum(-1).mean(),
            "train/divergence": (policy * (policy.clamp(min=1e-30).log() - prior)).sum(-1).mean(),
        }

    def total(self, losses: Losses) -> Tensor:
        """Return the weighted sum of the losses."""
        c, terms = self.cfg, losses.terms
        total = terms["actor"] + c.value_coef * terms["critic"] + c.reward_coef * terms["reward"]
        return total + c.consistency_coef * terms["consistency"] if self.consistency is not None else total

    @torch.no_grad()
    def targets(self, batch: Batch) -> MuZeroTargets:
        """Return the targets of rows 0 ... K of windows ``[B, T]``, whose episode may end among them.

        Values are sums of rewards by ``value_estimator``, which bootstrap from the values of stored searches and of
        :meth:`MuZero.fill_values`. A terminal row and all after it have value 0, under random actions, so that the
        model knows that nothing follows. Nothing is learned after a truncation.
        """
        rows = self.cfg.unroll + 1
        values = self.cfg.value_estimator.estimate(
            reward=batch.reward, terminal=batch.is_terminal, last=batch.is_last,
            value=batch.extras[SEARCH_VALUE].squeeze(-1), discount=self.discount,
        ).target[:, :rows]  # fmt: skip
        last, terminal = batch.is_last[:, :rows], batch.is_terminal[:, :rows]
        ends = last.int().cumsum(1)  # [B, K+1], of episodes so far
        after = ends > last.int()  # the row belongs to a later episode
        over = (terminal & ~after).int().cumsum(1) > 0  # the window's first episode has terminated
        action = batch.action[:, : rows - 1]
        idle = (last | after)[:, :-1].unsqueeze(-1)
        index = (torch.rand(action.shape[:2], device=action.device) * self.width).long().clamp(max=self.width - 1)
        return MuZeroTargets(
            policy=batch.extras[SEARCH_POLICY][:, :rows] * ~(after | over).unsqueeze(-1),
            value=values.masked_fill(over, 0.0), reward=batch.reward[:, :rows].masked_fill(after, 0.0),
            weight=(~after | over) * self.scales, is_later=after,
            action=torch.where(idle, one_hot(index, action), action),
        )  # fmt: skip

    # ---------------------------------------------------------------- search

    def search(
        self, z: Tensor, legal: Tensor, *,
        explore: bool, networks: MuZeroNetworks | None = None, simulations: int | None = None,
    ) -> SearchResult:  # fmt: skip
        """Search from latents ``[N, L]`` with legal actions ``[N, A]``; ``explore``: with Gumbel noise.

        ``simulations``: their number; None: that of the settings.
        """
        chosen, c = networks or self.networks, self.cfg
        settings = c.search_settings._replace(num_simulations=simulations or c.num_simulations)

        def model(state: Tensor, index: Tensor) -> Transition:
            reward, after = chosen.step(state, F.one_hot(index, self.width))
            r = reward.mean()
            return Transition(r, torch.full_like(r, self.discount), chosen.node(after))

        root = chosen.node(z)
        gumbel = c.gumbel_scale * self.draws.gumbel(root.logits) if explore else torch.zeros_like(root.logits)
        return search(model, root, legal, gumbel, settings)

    @property
    def older_networks(self) -> MuZeroNetworks:
        """The target networks; the learned ones if there are none."""
        networks: Any = self.networks if self.target_networks is None else self.target_networks.model
        return networks

    @torch.no_grad()
    def reanalyze(self, batch: Batch, count: int) -> dict[str, Tensor]:
        """Return the stored searches of a batch ``[B, T]``, with new ones by the target networks for ``count`` windows.

        The noise of a search only decides which actions it looks at.
        """
        networks = self.older_networks
        obs = {key: x[-count:].flatten(0, 1) for key, x in batch.obs.items()}
        policy, value = batch.extras[SEARCH_POLICY].clone(), batch.extras[SEARCH_VALUE].clone()
        result = self.search(
            networks(obs), find_legal(obs, policy[-count:].flatten(0, 1)), explore=True, networks=networks
        )
        policy[-count:], value[-count:] = result.policy.view_as(policy[-count:]), result.value.view_as(value[-count:])
        return {SEARCH_POLICY: policy, SEARCH_VALUE: value}

    # ---------------------------------------------------------------- inspection

    @property
    def encoder(self) -> nn.Module:
        """The networks, as they are called with observations."""
        return self.networks

    def step(self, z: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the reward ``[...]`` of actions ``[..., A]`` in latents, and the next latents ``[..., L]``."""
        reward, after = self.networks.step(z, action)
        return reward.mean(), after

    def reward(self, z: Tensor, action: Tensor) -> Tensor:
        """Return the logits ``[..., bins]`` of the reward."""
        return self.networks.step(z, action)[0].logits

    def value_distribution(self, logits: Tensor) -> SqrtTwoHot:
        """Return the distribution of a reward or value with these logits ``[..., bins]``."""
        return SqrtTwoHot(logits, self.networks.bins)

    def termination_logits(self, z: Tensor) -> None:
        """Return None: values and rewards of 0 mean that an episode is over."""


# ---------------------------------------------------------------------- learner


class PriorActor(NamedTuple):
    """The policy over features ``[..., L + 1]``, without a search, for inspection."""

    objective: MuZeroObjective
    slices: dict[str, slice]

    def __call__(self, feature: Tensor, legal: Tensor | None = None) -> JointDistribution:
        """Return the distribution of actions ``[..., A]``; ``legal`` ``[..., A]`` masks them."""
        logits, _ = self.objective.networks.predict(feature[..., :-1])
        key = next(iter(self.slices))
        return JointDistribution({key: Categoricals(logits, (self.objective.width,), legal=legal)}, self.slices)


class MuZero(ReanalyzingLearner, InspectableWorldModel):
    """The learner of MuZero: the networks, their update, and the policy that searches."""

    can_search = True
    objective: MuZeroObjective

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: MuZeroConfig, device: torch.device) -> None:
        super().__init__(obs_spec, cfg, device)
        width = action_spec.width
        self.slices: dict[str, slice] = action_spec.slices()
        self.extra_spec: dict[str, ColumnSpec] = {
            SEARCH_POLICY: ColumnSpec(shape=(width,), dtype="float32"),
            SEARCH_VALUE: ColumnSpec(shape=(1,), dtype="float32"),
        }
        self.objective = MuZeroObjective(self.preprocess.spec, width, cfg)
        self.to(device)
        learned = nn.ModuleList(filter(None, [self.objective.networks, self.objective.consistency]))
        self.optims["model"] = Adam(learned.parameters(), cfg.lr, decoupled_decay=cfg.decoupled_weight_decay)
        self._policy = SearchPlanner(self)

    def _searching_policy(self, simulations: int) -> Policy[Any]:
        return SearchPlanner(self, simulations)

    def update(self, batch: Batch) -> Update:
        """Take a gradient step; see :meth:`fill_values`."""
        return super().update(self.fill_values(batch))

    def heldout_losses(self, batch: Batch) -> Metrics:
        return super().heldout_losses(self.fill_values(batch))

    @torch.no_grad()
    def fill_values(self, batch: Batch) -> Batch:
        """Return the batch with values by the older networks in rows without a search, such as recorded ones.

        On the CPU, batches without such rows are returned at once; on a GPU, looking for them would wait.
        """
        is_missing = ~batch.extras[SEARCH_POLICY].any(-1)  # [B, context + T]
        if is_missing.is_cpu and not is_missing.any():
            return batch
        prepared = self.prepare_batch(batch.to(self.device))
        is_missing = is_missing[:, -prepared.shape[1] :].to(self.device, non_blocking=True)
        networks, value = self.objective.older_networks, prepared.extras[SEARCH_VALUE]  # [B, T, 1]
        z: Tensor = networks({key: x.flatten(0, 1) for key, x in prepared.obs.items()})  # [B T, L]
        predicted = networks.predict(z)[1].mean().float().view_as(value)
        return batch.with_extras({SEARCH_VALUE: torch.where(is_missing.unsqueeze(-1), predicted, value)})

    @property
    def actor(self) -> PriorActor:  # type: ignore[override]
        """The policy that dreams follow."""
        return PriorActor(self.objective, self.slices)

    def train_step(self, batch: Batch) -> Update:
        """Take a step of all networks on the sum of the losses, and move the target networks."""
        o = self.objective
        losses = o(batch)
        norm = joint_gradient_step(o.total(losses), [self.optims["model"]], self.cfg.max_grad_norm)
        if o.target_networks is not None:
            o.target_networks.update()
        update = losses.update()
        return Update(metrics={**update.metrics, "opt/grad_norm": norm}, priority=update.priority)

    def latent_value(self, latent: Latent) -> Tensor:
        return self.objective.networks.predict(latent.deter)[1].mean()

    def state_value(self, output: PolicyOutput) -> Tensor:
        return self.latent_value(output.inputs)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class MuZeroNetworkConfig(LatentNetworkConfig):
    """Widths of the networks of MuZero, for vectors; values by reverie."""

    units: Annotated[tuple[int, ...], AtLeast(1)] = (128, 128)
    encoder_units: Annotated[tuple[int, ...], AtLeast(1)] = (128,)
    latent: Annotated[int, AtLeast(1)] = 64
    bins: Annotated[int, AtLeast(2)] = 51
    max_value: Annotated[float, Above(0)] = 300.0
    """The largest absolute value of the bins: rewards and values beyond it are clipped to it."""


@dataclass(frozen=True, kw_only=True)
class MuZeroConfig(ReanalyzeConfig, TDConfig):
    """Settings of MuZero for vectors; values by reverie unless a source is named.

    A window has K + 1 rows that are predicted, and the rows after them that ``value_estimator`` looks ahead to.
    """

    action_kinds: ClassVar[frozenset[str]] = frozenset({"discrete"})
    network_settings: ClassVar[frozenset[str]] = frozenset()
    plays_both_sides: ClassVar[bool] = True
    human_fraction: ClassVar[float | None] = 0.0

    batch_size: int = 128
    batch_length: int = 12
    networks: MuZeroNetworkConfig = field(default_factory=MuZeroNetworkConfig)
    """Widths of the networks."""
    discount: Annotated[float, Within("[0, 1]")] = 0.997
    """Discount factor gamma per agent step."""
    value_estimator: ValueEstimator = field(default_factory=lambda: NStep(5))
    """How values are computed from the rows of a window; they bootstrap from the values of stored searches, and of the
    networks in rows without a search. 5 steps, as in the paper's appendix H: the rewards are those of earlier policies.
    """
    unroll: Annotated[int, AtLeast(1)] = 5
    """K, the steps that are predicted from the first row of a window in learning."""
    lr: Annotated[ScheduledFloat, Above(0)] = 1e-3
    """Learning rate of all networks."""
    decoupled_weight_decay: Annotated[float, AtLeast(0)] = 1e-4
    """Weight decay as in AdamW: each update shrinks every parameter by the share of the learning rate times this."""
    max_grad_norm: Annotated[float, Above(0)] = 5.0
    """Maximum gradient norm."""
    value_coef: Annotated[float, AtLeast(0)] = 0.5
    """Weight of the value loss."""
    reward_coef: Annotated[float, AtLeast(0)] = 1.0
    """Weight of the reward loss."""
    consistency_coef: Annotated[float, AtLeast(0)] = 0.0
    """Weight of EfficientZero's consistency loss, which has 2; 0: none."""
    num_simulations: Annotated[int, AtLeast(2)] = 16
    """S, the nodes that a search adds to the tree."""
    num_considered: Annotated[int, AtLeast(2)] = 8
    """m, the actions of the root among which a search chooses; the authors have 16."""
    c_visit: Annotated[float, AtLeast(0)] = 50.0
    """The scale of values relative to logits is (c_visit + largest number of visits) c_scale."""
    c_scale: Annotated[float, Above(0)] = 0.1
    """See ``c_visit``."""
    q_range_floor: Annotated[float, Above(0)] = 0.01
    """In a search, the range of action values in each state is scaled to 1, unless it is below this. The known range
    of values, such as 2 for results in [-1, 1], makes the scale constant. The authors have 1e-8, which amplifies noise
    where all values are nearly equal."""
    gumbel_scale: Annotated[float, AtLeast(0)] = 1.0
    """Scale of the noise with which searches explore; evaluations have none."""
    reanalyze_batch_size: Annotated[int, AtLeast(1)] = 40
    """Windows of a batch with new searches that are searched again, at most all."""
    tau: Annotated[float, Within("(0, 1]")] = 1.0
    """Step size of the target networks, which search again, per target update; 1 copies the networks."""
    target_update_interval: Annotated[int, AtLeast(1)] = 200
    """Updates from one target update to the next."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_length < self.unroll + 2:
            raise ConfigError(
                f"batch_length = {self.batch_length}, unroll = {self.unroll}: expected windows of at least "
                f"{self.unroll + 2} rows, as the value of each predicted row is a sum over later ones. Increase "
                "batch_length."
            )

    @property
    def search_settings(self) -> SearchSettings:
        """The constants of a search."""
        return SearchSettings(self.num_simulations, self.num_considered, self.c_visit, self.c_scale, self.q_range_floor)

    @property
    def atoms(self) -> AtomRange:
        """The range of values, beyond which they are clipped."""
        limit = self.networks.max_value
        return AtomRange(-limit, limit, "Increase networks.max_value")


MuZeroConfig.learner = MuZero
