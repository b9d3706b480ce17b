"""Decision Transformer: Chen et al., "Decision transformer: RL via sequence modeling", NeurIPS 2021.

Behavior cloning of sequences, conditioned on the return-to-go of each row: the sum of the rewards until the end of the
episode. In acting, the return-to-go is a target, less the rewards so far.

As in the paper, a causal transformer attends to the last rows. Here a row is one token (return-to-go, observation,
previous action) instead of three, positions count from the first of these rows, and there is no dropout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.algos.bc import BC, BCConfig
from reverie.algos.returns_to_go import RETURN_TO_GO_COLUMN, ReturnToGoAnnotator
from reverie.core.bounds import Above, AtLeast, Finite, ScheduledFloat
from reverie.core.errors import ConfigError
from reverie.core.protocols import Policy, RowAnnotator
from reverie.core.specs import ActionSpec, ColumnSpec, ObsPart, ObsSpec
from reverie.core.types import Batch, Mode, Obs, PolicyOutput, Step, Update
from reverie.nn.adam import Adam
from reverie.nn.memory import MEMORY_COLUMN, MEMORY_FIRST_KEY, Transformer, TransformerMemory
from reverie.nn.network import MemoryInputs, MemoryNetworkConfig
from reverie.nn.preprocess import inspect_policy

RETURN_KEY = "(return)"
"""Key of the return-to-go ``[..., 1]`` among the actor's observations, divided by ``return_scale``."""
ACTION_KEY = "(action)"
"""Key of the action of the row before, ``[..., A]``; zeros where an episode begins."""

# ---------------------------------------------------------------------- learner; the loss is that of behavior cloning


class DecisionTransformer(BC):
    """The learner of Decision Transformer: an actor with a memory, its update and its policy."""

    cfg: DecisionTransformerConfig
    best_return: Tensor

    def __init__(
        self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: DecisionTransformerConfig, device: torch.device
    ) -> None:
        memory = cfg.networks.memory
        if isinstance(memory, Transformer):
            cfg = replace(cfg, networks=replace(cfg.networks, memory=ContextSettings(**vars(memory))))
        super().__init__(obs_spec, action_spec, cfg, device)
        self.register_buffer("best_return", torch.tensor(-math.inf, device=device))
        column = ColumnSpec(shape=(), dtype="float32", fill_value=-math.inf, in_checkpoints=False)
        self.extra_spec: dict[str, ColumnSpec] = {RETURN_TO_GO_COLUMN: column}
        actor: Any = self.objective.actor
        self.optims["actor"] = Adam(actor.parameters(), cfg.lr, max_grad_norm=cfg.max_grad_norm)
        actor.inputs.memory_key = MEMORY_COLUMN
        self._policy = ReturnPolicy(self._policy, actor.inputs, self.best_return, action_spec.width, cfg, device)

    def actor_spec(self, action_spec: ActionSpec) -> ObsSpec:
        """Return the observations, the return-to-go and the previous action."""
        parts = {key: ObsPart(kind="vector", shape=(width,), dtype="float32")
                 for key, width in ((RETURN_KEY, 1), (ACTION_KEY, action_spec.width))}  # fmt: skip
        return {**self.preprocess.spec, **parts}

    def with_memory(self, policy: Policy[Any]) -> Policy[Any]:
        """Return ``policy``: no states of the memory are stored, as the memory is blank where a window begins."""
        return policy

    @property
    def annotator(self) -> RowAnnotator:
        """Fills in the returns-to-go of episodes once they have ended."""
        return ReturnToGoAnnotator(discount=1.0, ends_at_limits=True)

    def prepare_batch(self, batch: Batch) -> Batch:
        """Return the preprocessed batch with what the actor reads; rows of unknown return-to-go count as last."""
        batch = super().prepare_batch(batch)
        to_go = batch.extras[RETURN_TO_GO_COLUMN]  # [B, T]
        is_known = to_go.isfinite()
        action = F.pad(batch.action * ~batch.is_last.unsqueeze(-1), (0, 0, 1, 0))[:, :-1]  # [B, T, A]
        action = action.masked_fill(batch.is_first.unsqueeze(-1), 0)
        actor: Any = self.objective.actor
        blank_memory = to_go.new_zeros(()).expand(*to_go.shape, actor.inputs.memory.width)
        conditions = condition(
            to_go.masked_fill(~is_known, 0), action, batch.is_first, blank_memory, self.cfg.return_scale
        )
        return replace(batch, obs={**batch.obs, **conditions}, is_last=batch.is_last | ~is_known)

    def train_step(self, batch: Batch) -> Update:
        """Take one step on the rows whose return-to-go is known: section 3, "Training"."""
        to_go = batch.extras[RETURN_TO_GO_COLUMN]  # [B, T]
        episode_returns = to_go.masked_fill(~(batch.is_first & to_go.isfinite()), -math.inf)  # [B, T]
        self.best_return.copy_(torch.maximum(self.best_return, episode_returns.amax()))
        return Update(metrics=self.minimize(self.objective(batch)))


def condition(to_go: Tensor, action: Tensor, first: Tensor, memory: Tensor, scale: float) -> Obs:
    """Return what the actor reads beside the observations: ``to_go`` ``[...]``, the previous ``action`` ``[..., A]``.

    The memory reads ``first`` ``[...]``, where episodes begin, and its state before each row, ``memory`` ``[..., S]``.
    """
    returns = (to_go / scale).unsqueeze(-1)
    return {RETURN_KEY: returns, ACTION_KEY: action, MEMORY_FIRST_KEY: first, MEMORY_COLUMN: memory}


class ReturnState(NamedTuple):
    """The state of a :class:`ReturnPolicy` for N environments."""

    to_go: Tensor  # [N], the return-to-go of the newest row
    action: Tensor  # [N, A], the action taken there
    memory: Tensor  # [N, S], the state of the memory after it
    inner: Any  # the state of the inner policy


class ReturnPolicy:
    """A policy that aims at a return: its return-to-go is the target at first, and falls by each reward."""

    def __init__(
        self, inner: Policy[Any], inputs: MemoryInputs, best: Tensor, width: int, cfg: DecisionTransformerConfig,
        device: torch.device,
    ) -> None:  # fmt: skip
        """``inner`` acts on what :func:`condition` returns and observations; ``best`` ``[]``: the target, unless set.

        ``inputs``: the memory. ``width``: A.
        """
        self.inner = inner
        self.inputs = inputs
        self.best = best
        self.width = width
        self.cfg = cfg
        self.device = device

    def initial(self, num_envs: int) -> ReturnState:
        to_go, action, memory = (
            torch.zeros(num_envs, *shape, device=self.device)
            for shape in ((), (self.width,), (self.inputs.memory.width,))
        )
        return ReturnState(to_go, action, memory, self.inner.initial(num_envs))

    def target(self) -> Tensor:
        """Return the return to aim at ``[]``; 0 while no episode is known."""
        target = self.cfg.target_return
        return self.best.masked_fill(self.best.isinf(), 0) if target is None else torch.full_like(self.best, target)

    def add_to_step(self, step: Step, state: ReturnState) -> tuple[Step, Tensor]:
        """Return the rows with what the actor reads, and their returns-to-go ``[N]``."""
        first, reward = step.is_first.to(self.device), step.reward.to(self.device)
        to_go = torch.where(first, self.target(), state.to_go - reward)
        action = state.action.masked_fill(first.unsqueeze(-1), 0)
        conditions = condition(to_go, action, first, state.memory, self.cfg.return_scale)
        return replace(step, obs={**step.obs_on(self.device), **conditions}), to_go

    @torch.no_grad()
    def act(self, step: Step, state: ReturnState, mode: Mode) -> tuple[Tensor, ReturnState]:
        step, to_go = self.add_to_step(step, state)
        action, inner = self.inner.act(step, state.inner, mode)
        _, memory = self.inputs.with_memory(step.obs)
        return action, ReturnState(to_go, action.to(self.device), memory, inner)

    def inspect(self, step: Step, state: ReturnState) -> PolicyOutput:
        return inspect_policy(self.inner, self.add_to_step(step, state)[0], state.inner)

    def override(self, state: ReturnState, action: Tensor) -> ReturnState:
        return state._replace(action=action.to(self.device), inner=self.inner.override(state.inner, action))

    def extras(self, state: ReturnState) -> dict[str, Tensor]:
        return {RETURN_TO_GO_COLUMN: torch.full_like(state.to_go, -math.inf)}  # unknown until the episode has ended


# ---------------------------------------------------------------------- memory


class ContextTransformer(TransformerMemory):
    """A causal transformer over at most W rows, all of which attend at once: see :class:`MemoryModule`.

    Windows of rows begin with a blank memory. Positions count from the first row that is attended to, at which the
    window, the context of W rows or the episode begins.
    """

    def forward(self, x: Tensor, first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Map rows ``[B, T, I]`` of a window, or a single row and the state before it.

        The state after the rows of a window is blank.
        """
        if x.shape[1] > 1:
            row = torch.arange(x.shape[1], device=x.device)
            out = self.attend(x, torch.where(first, row, 0).cummax(1).values)
            return out, state.new_zeros(()).expand(*x.shape[:2], self.width)
        count = state[:, -1:].masked_fill(first, 0)  # [B, 1], earlier rows of the episode
        rows = torch.cat([state[:, :-1].view(-1, self.before, self.inputs), x], 1)  # [B, W, I]
        out = self.attend(rows, (self.before - count).long().expand(-1, self.before + 1))[:, -1:]
        after = torch.cat([rows[:, 1:].flatten(1), (count + 1).clamp(max=self.before)], -1)
        return out, after.unsqueeze(1)

    def attend(self, rows: Tensor, start: Tensor) -> Tensor:
        """Return ``[B, R, H]``; each of R rows attends to the rows from ``start`` ``[B, R]`` on, itself included."""
        row = torch.arange(rows.shape[1], device=rows.device)  # [R]
        mask = (row <= row.unsqueeze(1)) & (row >= start.unsqueeze(-1))  # [B, R, R]
        mask = mask | torch.eye(len(row), dtype=torch.bool, device=rows.device)  # a row before all others is not used
        y = self.embed(rows) + self.age[(row - start).clamp(min=0)]  # [B, R, H]
        for block in self.blocks:
            y = block(y, mask)
        out: Tensor = self.norm(y)
        return out


@dataclass(frozen=True)
class ContextSettings(Transformer, base=True):
    """The settings of :class:`ContextTransformer`."""

    def build(self, inputs: int) -> ContextTransformer:
        return ContextTransformer(self, inputs)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class DecisionTransformerConfig(BCConfig):
    """Settings of Decision Transformer, with the defaults of the paper for MuJoCo (appendix A.2).

    The authors also use dropout, weight decay and a warm-up of the learning rate.
    """

    batch_size: int = 64
    batch_length: int = 21
    """T, time steps of each window; all but the last one are learned from: 20 in the paper."""
    target_return: Annotated[float | None, Finite()] = None
    """Return to aim at, in units of the environment's rewards. None: the highest return of the episodes of the dataset
    that were learned from."""
    return_scale: Annotated[float, Above(0)] = 1000.0
    """Returns-to-go are divided by this number. Choose one so that returns are about 1 to 10."""
    lr: ScheduledFloat = 1e-4
    max_grad_norm: Annotated[float, AtLeast(0)] = 0.25
    """Maximum gradient norm; 0 does not clip."""
    networks: MemoryNetworkConfig = field(
        default_factory=lambda: MemoryNetworkConfig(
            units=(128,), memory=Transformer(window=20, units=128, heads=1, layers=3)
        )
    )
    """Layers of the network, with a memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.networks.memory is None or self.networks.burn_in:
            raise ConfigError(
                f"networks.memory = {self.networks.memory}, networks.burn_in = {self.networks.burn_in}: the memory of "
                f"{self.algorithm} is blank where a window begins. Use a memory such as transformer(20), no burn_in."
            )
        memory, rows = self.networks.memory, self.batch_length - 1
        if isinstance(memory, Transformer) and memory.window < rows:
            raise ConfigError(
                f"batch_length = {self.batch_length}, networks.memory = {memory.to_text()}: the transformer attends to "
                f"fewer rows. Set batch_length to at most {memory.window + 1}."
            )

    def needs_rewards(self, *, collected: bool) -> bool:
        return True


DecisionTransformerConfig.learner = DecisionTransformer
