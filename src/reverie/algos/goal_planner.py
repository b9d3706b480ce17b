"""Plans toward a goal in latent space, by the cross-entropy method (Rubinstein 1999), as in LeWorldModel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.core.bounds import AtLeast, Within
from reverie.core.config import Config
from reverie.core.errors import ConfigError
from reverie.core.specs import GOAL
from reverie.core.types import Mode, PolicyOutput, Step
from reverie.nn.exploration import ChunkPolicy, ChunkState
from reverie.nn.latent_model import LatentModel
from reverie.nn.normals import Summary


@dataclass(frozen=True, kw_only=True)
class PlannerConfig(Config):
    """Settings of plans."""

    horizon: Annotated[int, AtLeast(1)] = 5
    """H, blocks of actions in a plan."""
    executed: Annotated[int, AtLeast(0)] = 0
    """Blocks that are executed before the next plan; 0: all. With cost = last, fewer than all rarely arrive, as each
    plan again arrives at its own end."""
    cost: Literal["last", "sum"] = "last"
    """Squared distance to the goal's latent of the last step only, or the sum over all steps, with weights from 0.1 to
    1: PLDM."""
    candidates: Annotated[int, AtLeast(2)] = 300
    """Sequences of an iteration."""
    elites: Annotated[int, AtLeast(2)] = 30
    """Sequences of least cost, whose mean and standard deviation the next iteration samples from."""
    iterations: Annotated[int, AtLeast(1)] = 10
    """Iterations of a plan. The authors use 30."""
    initial_std: Annotated[float, Within("(0, inf)")] = 1.0
    """Standard deviation of the first candidates, in standard deviations of recorded actions."""
    steady: Annotated[float, Within("[0, 1]")] = 0.0
    """Share of the candidates of continuous actions whose noise is the same in all steps of a plan. They lead
    far, where independent noise cancels out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.elites > self.candidates or self.executed > self.horizon:
            raise ConfigError(
                f"elites = {self.elites} of candidates = {self.candidates}, executed = {self.executed} of horizon = "
                f"{self.horizon}: a part is larger than the whole."
            )

    @property
    def num_executed(self) -> int:
        """Blocks that are executed before the next plan."""
        return self.executed or self.horizon


class GoalPlan(NamedTuple):
    """Plans of N environments."""

    blocks: Tensor  # [N, H, block_width], normalized actions
    latents: Tensor  # [N, H, D], after each block
    costs: Tensor  # [N, H], squared distance of each latent to the goal's


class NormalBlocks:
    """Normal distributions of blocks ``[N, H, W]`` of normalized actions, clipped to bounds."""

    def __init__(self, limits: Tensor, block: int, plans: int, cfg: PlannerConfig) -> None:
        """``limits`` ``[2, A]``: of an action. ``block``: actions in a block. ``plans``: N."""
        self.shape: tuple[int, int] = (block, limits.shape[1])
        self.bounds: Tensor = limits.repeat(1, block)
        self.mean: Tensor = limits.new_zeros(plans, 1, cfg.horizon, self.bounds.shape[1])
        self.std: Tensor = torch.full_like(self.mean, cfg.initial_std)
        self.steady: float = cfg.steady

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Return ``count`` candidates ``[N, count, H, W]``, of which the first is the likeliest."""
        size = self.mean.expand(-1, count, -1, -1).shape
        noise = torch.randn(size, generator=generator, device=self.mean.device)
        steady = noise[:, : round(count * self.steady)]
        steady = steady.view(*steady.shape[:3], *self.shape)  # [N, S', H, k, A]
        steady.copy_(steady[:, :, :1, :1].clone())
        noise[:, 0] = 0
        return (self.mean + self.std * noise).clamp(self.bounds[0], self.bounds[1])

    def fit(self, elites: Tensor) -> None:
        """Follow the elites ``[N, E, H, W]``."""
        self.mean, self.std = elites.mean(1, keepdim=True), elites.std(1, keepdim=True)

    def likeliest(self) -> Tensor:
        """Return the likeliest blocks ``[N, H, W]``."""
        return self.mean[:, 0]


class CategoricalBlocks:
    """Probabilities of classes in blocks ``[N, H, W]`` of one-hot actions, each of choices among ``classes``."""

    def __init__(
        self, classes: tuple[int, ...], block: int, plans: int, cfg: PlannerConfig, device: torch.device
    ) -> None:
        self.classes: list[int] = [*classes] * block
        uniform = torch.cat([torch.full((count,), 1 / count, device=device) for count in self.classes])  # [W]
        self.probability: Tensor = uniform.expand(plans, 1, cfg.horizon, -1)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Return ``count`` candidates ``[N, count, H, W]``, of which the first is the likeliest."""
        size = self.probability.expand(-1, count, -1, -1).shape
        noise = torch.empty(size, device=self.probability.device).exponential_(generator=generator).log_().neg_()
        noise[:, 0] = 0
        return self._choose(self.probability.log() + noise)  # the largest sum has the class's probability: Gumbel

    def _choose(self, scores: Tensor) -> Tensor:
        """Return the one-hot classes with the largest ``scores`` ``[..., W]``."""
        choices = zip(torch.split(scores, self.classes, -1), self.classes, strict=True)
        return torch.cat([F.one_hot(part.argmax(-1), count) for part, count in choices], -1).to(scores.dtype)

    def fit(self, elites: Tensor) -> None:
        """Follow the elites ``[N, E, H, W]``: the frequencies of their classes."""
        self.probability = elites.mean(1, keepdim=True)

    def likeliest(self) -> Tensor:
        """Return the likeliest blocks ``[N, H, W]``."""
        return self._choose(self.probability[:, 0])


def plan_to_goal(
    model: LatentModel, z: Tensor, goal: Tensor, blocks: NormalBlocks | CategoricalBlocks, cfg: PlannerConfig, seed: int
) -> GoalPlan:
    """Return plans from latents ``z`` to ``goal``, ``[N, D]`` each. ``seed``: of the candidates.

    ``blocks``: where the search begins; the elites of each iteration change it.
    """
    generator = torch.Generator(z.device).manual_seed(seed)
    weights = z.new_ones(1) if cfg.cost == "last" else torch.linspace(0.1, 1, cfg.horizon, device=z.device)
    start = z[:, None].expand(-1, cfg.candidates, -1)
    for _ in range(cfg.iterations):
        candidates = blocks.draw(cfg.candidates, generator)  # [N, S, H, block_width]
        distance = _distance(model.imagine(start, candidates), goal[:, None, None])  # [N, S, H]
        cost = (distance[..., -len(weights) :] * weights).sum(-1)  # [N, S]
        best = cost.topk(cfg.elites, 1, largest=False).indices  # [N, E]
        blocks.fit(candidates.gather(1, best[..., None, None].expand(-1, -1, *candidates.shape[2:])))
    chosen = blocks.likeliest()
    latents = model.imagine(z, chosen)
    return GoalPlan(chosen, latents, _distance(latents, goal[:, None]))


class PlanState(NamedTuple):
    """The state of :class:`PlanningPolicy` for N environments."""

    chunk: ChunkState
    goal: Tensor  # [N, G], the numbers of the last goals; G = 1 before the first ones


@dataclass(frozen=True)
class FirstAction:
    """The action ``[N, A]`` that begins a plan, which is searched only when it is asked for: distances need none."""

    mode: Callable[[], Tensor]

    def summary(self, squashed: bool = True) -> Summary:
        """Return the action and its standard deviation, 0."""
        action = self.mode()
        return action, torch.zeros_like(action)


class PlanningPolicy(ChunkPolicy):
    """Executes plans; another goal begins a new one. In evaluations, the number of decisions seeds the candidates."""

    def initial(self, num_envs: int) -> Any:
        return PlanState(super().initial(num_envs), torch.zeros(num_envs, 1, device=self.device))

    def act(self, step: Step, state: Any, mode: Mode) -> tuple[Tensor, Any]:
        obs = step.obs_on(self.device)
        goal = torch.cat([obs[key].reshape(len(step), -1).float() for key in sorted(obs) if key.startswith(GOAL)], 1)
        is_new = (goal != state.goal).any(1).to(step.is_first.device)
        action, chunk = super().act(replace(step, is_first=step.is_first | is_new), state.chunk, mode)
        return action, PlanState(chunk, goal)

    def override(self, state: Any, action: Tensor) -> Any:
        return state._replace(chunk=super().override(state.chunk, action))

    def inspect(self, step: Step, state: ChunkState) -> PolicyOutput:
        """Return the first action of a new plan."""
        return PolicyOutput(step.obs_on(self.device), FirstAction(lambda: self.propose(step, None)[:, 0]))

    def draw_noise(self, envs: int, steps: Tensor, mode: Mode) -> Tensor | None:
        """Return the seed of the next plans, ``[1]``."""
        return steps.reshape(1) if mode == "eval" else torch.randint(2**31, (1,))


def _distance(latents: Tensor, goal: Tensor) -> Tensor:
    """Return squared distances ``[...]`` of latents ``[..., D]`` to ``goal``."""
    return (latents - goal).square().sum(-1)
