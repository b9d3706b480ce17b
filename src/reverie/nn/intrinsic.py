"""Intrinsic rewards: what a learner adds to the environment's rewards so that it explores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.bounds import Above, AtLeast, Within
from reverie.core.collectives import all_gather
from reverie.core.config import Choice
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Batch, Metrics, Obs
from reverie.nn.adam import Adam
from reverie.nn.cnn import ConvReLU, ImageEncoder
from reverie.nn.network import Network, NetworkConfig
from reverie.nn.normalization import CONSTANT_ATOL, CONSTANT_RTOL
from reverie.nn.relu_mlp import ReluMLP
from reverie.objectives.td import masked_mean

CLIP = 5.0
"""Largest absolute value of a normalized observation: Burda et al. 2019, section 2.4."""


@dataclass(frozen=True)
class IntrinsicReward(Choice, ABC):
    """Reward of novel observations, added to the environment's reward in learning. Scores and stored rows omit it.

    PPO and A2C learn the values of intrinsic returns separately, as if episodes did not end, and add their advantages.
    DQN and IMPALA add the rewards: one critic learns the values of the sum.
    """

    scale: Annotated[float, Above(0)] = 0.5
    """Weight of the intrinsic returns, whose standard deviation is 1. The paper of rnd weighs intrinsic 1 and
    extrinsic 2."""
    discount: Annotated[float, Within("[0, 1)")] = 0.99
    """gamma of the intrinsic returns; the papers'."""
    lr: Annotated[float, Above(0)] = 1e-3
    """Learning rate of the networks. The papers' 1e-4 and 1e-3 are for many parallel environments."""

    @abstractmethod
    def build(
        self, spec: ObsSpec, action_spec: ActionSpec, encoder: ImageEncoder | None, device: torch.device
    ) -> NoveltyModel:
        """Return the networks for these observations and actions; None: the default ``encoder`` of images."""


class NoveltyModel(nn.Module, ABC):
    """Networks whose errors reward novel rows. The reward of a row is its error / std.

    Observations are normalized and clipped; classes are one-hot. std is the running standard deviation of the
    discounted sums of errors, as in Burda et al. 2019, section 2.4.
    """

    returns: Tensor
    optim: Adam
    first_row: ClassVar[int] = 0
    """The first row of a window that has an error."""

    def __init__(self, spec: ObsSpec, cfg: IntrinsicReward) -> None:
        super().__init__()
        self.cfg: Any = cfg
        self.shapes: dict[str, tuple[int, ...]] = {
            key: part.shape for key, part in spec.items() if part.kind in ("vector", "image")
        }
        self.obs_moments: nn.ModuleDict = nn.ModuleDict(
            {_escape(key): RunningMoments(math.prod(shape)) for key, shape in self.shapes.items()}
        )
        self.return_moments: RunningMoments = RunningMoments(1)
        self.register_buffer("returns", torch.zeros(0))  # [N], discounted sums of errors so far
        self.normalized_spec: ObsSpec = {
            key: replace(part, dtype="float32", low=0.0, high=1.0) if key in self.shapes else part
            for key, part in spec.items()
        }

    @abstractmethod
    def row_errors(self, batch: Batch) -> Tensor:
        """Return the errors ``[B, T]``; those of first rows are not used."""

    @abstractmethod
    def learn(self, batch: Batch) -> Metrics:
        """Train on the rows ``[B, T]``; return the metrics."""

    def next_columns(self, batch: Batch) -> dict[str, Tensor]:
        """Return the columns ``[N, T]`` of rollouts ``[N, T + 1]`` that :meth:`learn` needs in single rows."""
        return {}

    def normalize(self, obs: Obs) -> Obs:
        """Return the observations ``[..., *shape]`` as the networks read them."""
        x = dict(obs)
        for key, shape in self.shapes.items():
            rows, moments = obs[key].shape[: obs[key].ndim - len(shape)], self.moments_of(key)
            flat = moments.standardize(obs[key].float().reshape(*rows, -1)).clamp(-CLIP, CLIP)
            x[key] = flat.view(*rows, *shape)
        return x

    def moments_of(self, key: str) -> RunningMoments:
        """Return the statistics of the observation ``key``."""
        moments = self.obs_moments[_escape(key)]
        assert isinstance(moments, RunningMoments)
        return moments

    @torch.no_grad()
    def add_reward(self, batch: Batch) -> Batch:
        """Return the batch with intrinsic rewards added, after an update of the statistics with its rows.

        The errors of later rows are unknown: a discounted sum counts as if all were equal.
        """
        error = self.errors(batch)
        self.return_moments.add(error[:, self.first_row :].reshape(-1, 1) / (1 - self.cfg.discount))
        return replace(batch, reward=batch.reward + self.cfg.scale * error / self.return_moments.std)

    @torch.no_grad()
    def rewards(self, batch: Batch) -> Tensor:
        """Return the intrinsic rewards ``[N, T + 1]`` of rollouts, after an update of the statistics with their rows.

        Row 0 does not count: it was the last row of the rollout before.
        """
        error = self.errors(batch)
        if len(self.returns) != len(error):
            self.returns = error.new_zeros(len(error))
        returns = []
        for column in error[:, 1:].unbind(1):
            self.returns = column + self.cfg.discount * self.returns
            returns.append(self.returns)
        self.return_moments.add(torch.cat(returns).unsqueeze(1))
        return error / self.return_moments.std

    def errors(self, batch: Batch) -> Tensor:
        """Return the errors ``[B, T]``, 0 where no step led, after an update of the statistics of observations."""
        for key in self.shapes:
            self.moments_of(key).add(batch.obs[key].float().reshape(batch.reward.numel(), -1))
        return self.row_errors(batch).masked_fill(batch.is_first, 0.0)

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *rest: object) -> None:
        """Accept a state saved with another number of environments."""
        saved = state_dict.get(f"{prefix}returns", self.returns)
        self.returns = self.returns.new_zeros(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *rest)


# ---------------------------------------------------------------------- random network distillation


@dataclass(frozen=True)
class RND(IntrinsicReward):
    """Random network distillation: Burda et al., "Exploration by random network distillation", ICLR 2019."""

    update_fraction: Annotated[float, Within("(0, 1]")] = 0.25
    """Share of the rows of a batch from which the predictor learns, drawn at random; the authors'."""
    units: Annotated[int, AtLeast(1)] = 128
    """Width of all layers of both networks."""

    def build(
        self, spec: ObsSpec, action_spec: ActionSpec, encoder: ImageEncoder | None, device: torch.device
    ) -> RandomNetworkDistillation:
        return RandomNetworkDistillation(spec, self, encoder, device)


class RandomNetworkDistillation(NoveltyModel):
    """A random target network f, and a predictor f^ trained to equal it. The error of a row is ||f^(s') - f(s')||^2.

    The predictor has two more layers than the target.
    """

    def __init__(self, spec: ObsSpec, cfg: RND, encoder: ImageEncoder | None, device: torch.device) -> None:
        super().__init__(spec, cfg)
        self.target_network: Network = _network(self.normalized_spec, encoder, cfg.units, 1).requires_grad_(False)
        self.predictor: Network = _network(self.normalized_spec, encoder, cfg.units, 3)
        self.to(device)
        self.optim: Adam = Adam(self.predictor.parameters(), cfg.lr)

    def forward(self, obs: Obs) -> Tensor:
        """Return the prediction error of observations ``[..., *shape]``: ``[...]``."""
        x = self.normalize(obs)
        with torch.no_grad():
            target = self.target_network(x)
        error: Tensor = (self.predictor(x) - target).square().mean(-1)
        return error

    def row_errors(self, batch: Batch) -> Tensor:
        error: Tensor = self(batch.obs)
        return error

    def learn(self, batch: Batch) -> Metrics:
        """Train the predictor on some of the rows ``[B, T]``; return the metrics."""
        rows = batch.reward.numel()
        chosen = torch.rand(rows, device=batch.reward.device).topk(math.ceil(self.cfg.update_fraction * rows)).indices
        loss = self({key: x.flatten(0, 1)[chosen] for key, x in batch.obs.items()}).mean()
        self.optim.step(loss)
        error = loss.detach()
        return {"loss/intrinsic": error, "train/intrinsic_reward": error / self.return_moments.std.squeeze(0)}


# ---------------------------------------------------------------------- intrinsic curiosity


NEXT_PREFIX = "next/"
"""Prefix of the columns of minibatches with the observations of the next row."""


@dataclass(frozen=True)
class ICM(IntrinsicReward):
    """Intrinsic curiosity: Pathak et al., "Curiosity-driven exploration by self-supervised prediction", ICML 2017.

    Rewards are divided by the deviation of their returns, as in Burda et al., "Large-scale study of curiosity-driven
    learning", ICLR 2019, section 2.2. Continuous parts of actions, which the paper lacks, have a squared error.
    """

    forward_weight: Annotated[float, Within("[0, 1]")] = 0.2
    """beta, the weight of the forward model's loss; the inverse model's has 1 - beta. The paper's."""
    units: Annotated[int, AtLeast(1)] = 128
    """Width of the features and of all layers; the paper has 288 features and layers of 256."""

    def build(
        self, spec: ObsSpec, action_spec: ActionSpec, encoder: ImageEncoder | None, device: torch.device
    ) -> IntrinsicCuriosity:
        return IntrinsicCuriosity(spec, action_spec, self, encoder, device)


class IntrinsicCuriosity(NoveltyModel):
    """Features phi, an inverse model g of the action, and a forward model f of the next features: section 2.

    The error of row t + 1 is ||f(phi(s_t), a_t) - phi(s_t+1)||^2 / 2, equation 6. All three learn from
    (1 - beta) L_I + beta L_F, equation 7: L_F is that error, and L_I the negative log-likelihood of a_t by
    g(phi(s_t), phi(s_t+1)), equations 2 to 5. phi reads no noise that actions do not influence.
    """

    first_row: ClassVar[int] = 1

    def __init__(
        self, spec: ObsSpec, action_spec: ActionSpec, cfg: ICM, encoder: ImageEncoder | None, device: torch.device
    ) -> None:
        super().__init__(spec, cfg)
        cuts = action_spec.slices()
        self.choices: list[slice] = [cut for _, cut in action_spec.categorical_slices()]
        self.numbers: list[slice] = [cut for key, cut in cuts.items() if action_spec.parts[key].kind == "continuous"]
        self.features: Network = _network(self.normalized_spec, encoder, cfg.units, 1)
        self.inverse_model: ReluMLP = ReluMLP(2 * cfg.units, (cfg.units,), action_spec.width)
        self.forward_model: ReluMLP = ReluMLP(cfg.units + action_spec.width, (cfg.units,), cfg.units)
        self.to(device)
        self.optim: Adam = Adam(self.parameters(), cfg.lr)

    def forward(self, before: Tensor, after: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return L_F and L_I ``[...]``, for features ``[..., units]`` of two adjacent rows and the action between."""
        action = action.clamp(-1, 1)  # as environments clip it, [..., A]
        error = 0.5 * (self.forward_model(torch.cat([before, action], -1)) - after).square().sum(-1)
        y = self.inverse_model(torch.cat([before, after], -1))  # [..., A]
        terms = [-(y[..., cut].log_softmax(-1) * action[..., cut]).sum(-1) for cut in self.choices]
        terms += [0.5 * (y[..., cut] - action[..., cut]).square().sum(-1) for cut in self.numbers]
        return error, torch.stack(terms).sum(0)

    def row_errors(self, batch: Batch) -> Tensor:
        return F.pad(self._losses(batch)[0], (1, 0))

    def next_columns(self, batch: Batch) -> dict[str, Tensor]:
        return {f"{NEXT_PREFIX}{key}": x[:, 1:] for key, x in batch.obs.items()}

    def learn(self, batch: Batch) -> Metrics:
        """Train all three networks on the transitions of the rows ``[B, T]``; return the metrics."""
        (error, inverse), mask = self._losses(batch), ~batch.is_last
        mask = mask[:, : error.shape[1]]
        error, inverse = masked_mean(error, mask), masked_mean(inverse, mask)
        loss = (1 - self.cfg.forward_weight) * inverse + self.cfg.forward_weight * error
        self.optim.step(loss)
        reward = error.detach() / self.return_moments.std.squeeze(0)
        return {
            "loss/intrinsic": loss.detach(), "loss/inverse": inverse.detach(), "train/intrinsic_reward": reward,
        }  # fmt: skip

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return L_F and L_I of all transitions: ``[B, T - 1]``, or ``[B, T]`` with the columns of next rows."""
        phi = self.features(self.normalize(batch.obs))  # [B, T, units]
        cut = len(NEXT_PREFIX)
        if later := {key[cut:]: x for key, x in batch.extras.items() if key.startswith(NEXT_PREFIX)}:
            losses: tuple[Tensor, Tensor] = self(phi, self.features(self.normalize(later)), batch.action)
        else:
            losses = self(phi[:, :-1], phi[:, 1:], batch.action[:, :-1])
        return losses


# ---------------------------------------------------------------------- parts


class RunningMoments(nn.Module):
    """Mean and standard deviation of all rows ``[M, D]`` so far, computed on the device without waiting for it."""

    count: Tensor
    mean: Tensor
    var: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))

    @property
    def std(self) -> Tensor:
        """The standard deviation ``[D]``, above 0; of constants, more than the rounding error of the mean."""
        return torch.maximum(self.var.sqrt(), CONSTANT_RTOL * self.mean.abs() + CONSTANT_ATOL)

    def add(self, x: Tensor) -> None:
        """Add rows ``[M, D]``, of all learners: Chan, Golub and LeVeque (1979), equation 2.1."""
        rows = all_gather(x).flatten(0, 1)
        var, mean = torch.var_mean(rows, 0, correction=0)
        share = len(rows) / (self.count + len(rows))
        shift = mean - self.mean
        self.var.lerp_(var, share).add_(share * (1 - share) * shift.square())
        self.mean.add_(share * shift)
        self.count.add_(len(rows))

    def standardize(self, x: Tensor) -> Tensor:
        """Return ``(x - mean) / std``, ``[..., D]``."""
        return (x - self.mean) / self.std


def _network(spec: ObsSpec, encoder: ImageEncoder | None, units: int, hidden: int) -> Network:
    """Return a network of ``hidden`` layers and ``units`` outputs, with orthogonal weights."""
    network = Network(spec, units, NetworkConfig(units=(units,) * hidden, encoder=encoder))
    network.body.initialize(math.sqrt(2))  # type: ignore[operator]
    for part in network.modules():
        if isinstance(part, ConvReLU):
            part.initialize()
    return network


def _escape(key: str) -> str:
    """Return the name of a module for the observation ``key``, without dots."""
    return "obs:" + key.replace(".", "|")
