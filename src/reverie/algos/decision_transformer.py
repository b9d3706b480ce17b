"""Decision Transformer: Chen et al., "Decision transformer: RL via sequence modeling", NeurIPS 2021.

Behavior cloning of sequences, conditioned on the return-to-go of each row: the sum of the rewards until the end of the
episode. In acting, the return-to-go is a target, less the rewards so far.

A causal transformer attends to three tokens of each of the last rows: return-to-go, observation and action. Each token
also contains the time step in the episode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.algos.bc import BC, BCConfig
from reverie.algos.returns_to_go import RETURN_TO_GO_COLUMN, TIMESTEP_COLUMN, ReturnToGoAnnotator
from reverie.core.bounds import Above, AtLeast, Finite, ScheduledFloat, Within
from reverie.core.errors import ConfigError
from reverie.core.protocols import Policy, RowAnnotator
from reverie.core.specs import ActionSpec, ColumnSpec, ObsPart, ObsSpec
from reverie.core.types import Batch, Mode, Obs, PolicyOutput, Step, Update
from reverie.nn.adam import Adam
from reverie.nn.memory import MEMORY_COLUMN, MEMORY_FIRST_KEY, AttentionBlock, Transformer, TransformerMemory
from reverie.nn.network import MemoryInputs, MemoryNetworkConfig
from reverie.nn.preprocess import inspect_policy
from reverie.nn.reward_scaling import ReturnScaler

ACTION_KEY = "(action)"
"""Key of the action of the row before, ``[..., A]``; 0 where an episode begins. Such keys come before others."""
RETURN_KEY = "(return)"
"""Key of the return-to-go ``[..., 1]`` among the actor's observations, divided by ``return_scale``."""
TIME_KEY = "(time)"
"""Key of the number of rows ``[..., 1]`` before this one in its episode."""

# ---------------------------------------------------------------------- learner; the loss is that of behavior cloning


class DecisionTransformer(BC):
    """The learner of Decision Transformer: an actor with a memory, its update and its policy."""

    cfg: DecisionTransformerConfig
    best_return: Tensor

    def __init__(
        self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: DecisionTransformerConfig, device: torch.device
    ) -> None:
        context = ContextSettings(
            **vars(cfg.networks.memory),
            actions=action_spec.width,
            timesteps=cfg.max_episode_length,
            dropout=cfg.dropout,
        )
        cfg = replace(cfg, networks=replace(cfg.networks, memory=context))
        super().__init__(obs_spec, action_spec, cfg, device)
        if cfg.return_scale is None:  # the statistics of the preprocessor; its scaled rewards are not read
            self.preprocess.rewards = ReturnScaler(discount=1.0, clip=None).to(device)
        self.register_buffer("best_return", torch.tensor(-math.inf, device=device))
        column = ColumnSpec(shape=(), dtype="float32", fill_value=-math.inf, in_checkpoints=False)
        self.extra_spec: dict[str, ColumnSpec] = {
            RETURN_TO_GO_COLUMN: column,
            TIMESTEP_COLUMN: replace(column, fill_value=0),
        }
        actor: Any = self.objective.actor
        self.optims["actor"] = Adam(
            actor.parameters(), cfg.lr, max_grad_norm=cfg.max_grad_norm, decoupled_decay=cfg.weight_decay
        )
        actor.inputs.memory_key = MEMORY_COLUMN
        self._policy = ReturnPolicy(self._policy, actor.inputs, self, action_spec.width, device)

    def actor_spec(self, action_spec: ActionSpec) -> ObsSpec:
        """Return the observations, the return-to-go, the time step and the previous action."""
        parts = {key: ObsPart(kind="vector", shape=(width,), dtype="float32")
                 for key, width in ((ACTION_KEY, action_spec.width), (RETURN_KEY, 1), (TIME_KEY, 1))}  # fmt: skip
        return {**self.preprocess.spec, **parts}

    def with_memory(self, policy: Policy[Any]) -> Policy[Any]:
        """Return ``policy``: no states of the memory are stored, as the memory is blank where a window begins."""
        return policy

    @property
    def annotator(self) -> RowAnnotator:
        """Fills in the returns-to-go and time steps of episodes once they have ended."""
        return ReturnToGoAnnotator(discount=1.0, ends_at_limits=True, has_timesteps=True)

    @property
    def return_scale(self) -> float | Tensor:
        """The number, or ``[]``, by which returns-to-go are divided."""
        if self.cfg.return_scale is not None:
            return self.cfg.return_scale
        assert self.preprocess.scaler is not None
        return 1 / self.preprocess.scaler.multiplier

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
            to_go.masked_fill(~is_known, 0),
            batch.extras[TIMESTEP_COLUMN],
            action,
            batch.is_first,
            blank_memory,
            self.return_scale,
        )
        return replace(batch, obs={**batch.obs, **conditions}, is_last=batch.is_last | ~is_known)

    def train_step(self, batch: Batch) -> Update:
        """Take one step on the rows whose return-to-go is known: section 3, "Training"."""
        to_go = batch.extras[RETURN_TO_GO_COLUMN]  # [B, T]
        episode_returns = to_go.masked_fill(~(batch.is_first & to_go.isfinite()), -math.inf)  # [B, T]
        self.best_return.copy_(torch.maximum(self.best_return, episode_returns.amax()))
        return Update(metrics=self.minimize(self.objective(batch)))


def condition(to_go: Tensor, time: Tensor, action: Tensor, first: Tensor, memory: Tensor, scale: float | Tensor) -> Obs:
    """Return the actor's inputs in addition to the observations.

    ``to_go`` and ``time`` ``[...]`` are returns-to-go and time steps, ``action`` ``[..., A]`` the previous actions.

    The memory reads ``first`` ``[...]``, where episodes begin, and its state before each row, ``memory`` ``[..., S]``.
    """
    numbers = {RETURN_KEY: (to_go / scale).unsqueeze(-1), TIME_KEY: time.unsqueeze(-1)}
    return {**numbers, ACTION_KEY: action, MEMORY_FIRST_KEY: first, MEMORY_COLUMN: memory}


class ReturnState(NamedTuple):
    """The state of a :class:`ReturnPolicy` for N environments."""

    to_go: Tensor  # [N], the return-to-go of the newest row
    time: Tensor  # [N], the number of rows before it in its episode
    action: Tensor  # [N, A], the action taken there
    memory: Tensor  # [N, S], the state of the memory after it
    inner: Any  # the state of the inner policy


class ReturnPolicy:
    """A policy that aims at a return: its return-to-go is the target at first, and falls by each reward."""

    def __init__(
        self, inner: Policy[Any], inputs: MemoryInputs, learner: DecisionTransformer, width: int, device: torch.device
    ) -> None:
        """``inner`` acts on what :func:`condition` returns and observations.

        ``inputs``: the memory. ``learner`` knows the target and the scale of returns. ``width``: A.
        """
        self.inner = inner
        self.inputs = inputs
        self.learner = learner
        self.width = width
        self.device = device

    def initial(self, num_envs: int) -> ReturnState:
        to_go, time, action, memory = (
            torch.zeros(num_envs, *shape, device=self.device)
            for shape in ((), (), (self.width,), (self.inputs.memory.width,))
        )
        return ReturnState(to_go, time, action, memory, self.inner.initial(num_envs))

    def target(self) -> Tensor:
        """Return the return to aim at ``[]``; 0 while no episode is known."""
        target, best = self.learner.cfg.target_return, self.learner.best_return
        return best.masked_fill(best.isinf(), 0) if target is None else torch.full_like(best, target)

    def add_to_step(self, step: Step, state: ReturnState) -> tuple[Step, Tensor, Tensor]:
        """Return the rows with what the actor reads, and their returns-to-go and time steps ``[N]``."""
        first, reward = step.is_first.to(self.device), step.reward.to(self.device)
        to_go = torch.where(first, self.target(), state.to_go - reward)
        time = (state.time + 1).masked_fill(first, 0)
        action = state.action.masked_fill(first.unsqueeze(-1), 0)
        conditions = condition(to_go, time, action, first, state.memory, self.learner.return_scale)
        return replace(step, obs={**step.obs_on(self.device), **conditions}), to_go, time

    @torch.no_grad()
    def act(self, step: Step, state: ReturnState, mode: Mode) -> tuple[Tensor, ReturnState]:
        step, to_go, time = self.add_to_step(step, state)
        action, inner = self.inner.act(step, state.inner, mode)
        _, memory = self.inputs.with_memory(step.obs)
        return action, ReturnState(to_go, time, action.to(self.device), memory, inner)

    def inspect(self, step: Step, state: ReturnState) -> PolicyOutput:
        return inspect_policy(self.inner, self.add_to_step(step, state)[0], state.inner)

    def override(self, state: ReturnState, action: Tensor) -> ReturnState:
        return state._replace(action=action.to(self.device), inner=self.inner.override(state.inner, action))

    def extras(self, state: ReturnState) -> dict[str, Tensor]:
        unknown = torch.full_like(state.to_go, -math.inf)  # until the episode has ended
        return {RETURN_TO_GO_COLUMN: unknown, TIMESTEP_COLUMN: state.time}


# ---------------------------------------------------------------------- memory


class ContextTransformer(TransformerMemory):
    """A causal transformer over the tokens of at most W rows, all of which attend at once: see :class:`MemoryModule`.

    A row of I inputs has the keys of this module first. Windows of rows begin with a blank memory.
    """

    def __init__(self, cfg: ContextSettings, inputs: int) -> None:
        nn.Module.__init__(self)
        units = cfg.units
        self.units: int = units
        self.before: int = cfg.window - 1
        self.inputs = inputs
        self.width: int = self.before * inputs + 1
        self.parts: list[int] = [cfg.actions, 1, 1, inputs - cfg.actions - 2]
        self.embed_action: nn.Linear = nn.Linear(cfg.actions, units)
        self.embed_return: nn.Linear = nn.Linear(1, units)
        self.embed_obs: nn.Linear = nn.Linear(self.parts[-1], units)
        self.embed_time: nn.Embedding = nn.Embedding(cfg.timesteps, units)
        self.embed_norm: nn.LayerNorm = nn.LayerNorm(units)
        self.drop: nn.Dropout = nn.Dropout(cfg.dropout)
        blocks = [AttentionBlock(units, cfg.heads, cfg.dropout, nn.ReLU) for _ in range(cfg.layers)]
        self.blocks: nn.ModuleList = nn.ModuleList(blocks)
        self.norm: nn.LayerNorm = nn.LayerNorm(units)
        for layer in self.blocks.modules():
            if isinstance(layer, nn.Linear):  # as in GPT-2
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

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
        """Return ``[B, R, H]`` of the observations of R rows ``[B, R, I]``: section 3, "Architecture".

        Each row attends to the rows from ``start`` ``[B, R]`` on, without the action before the first of them.
        """
        action, to_go, time, obs = torch.split(rows, self.parts, -1)
        step, last = time.squeeze(-1).long(), self.embed_time.num_embeddings - 1  # [B, R]
        time_embedding, previous_embedding = (self.embed_time(x.clamp(0, last)) for x in (step, step - 1))  # [B, R, H]
        embedded = self.embed_return(to_go) + time_embedding, self.embed_obs(obs) + time_embedding
        parts = (self.embed_action(action) + previous_embedding, *embedded)
        y = self.drop(self.embed_norm(torch.stack(parts, 2).flatten(1, 2)))  # [B, 3 R, H]
        token = torch.arange(y.shape[1], device=rows.device)  # [3 R]
        first = (3 * start + 1).unsqueeze(-1).expand(-1, -1, 3).flatten(1)  # [B, 3 R]
        mask = (token <= token.unsqueeze(1)) & (token >= first.unsqueeze(-1))  # [B, 3 R, 3 R]
        mask = mask | torch.eye(len(token), dtype=torch.bool, device=rows.device)  # for tokens that are not used
        for block in self.blocks:
            y = block(y, mask)
        out: Tensor = self.norm(y[:, 2::3])
        return out


@dataclass(frozen=True)
class ContextSettings(Transformer, base=True):
    """The settings of :class:`ContextTransformer`."""

    actions: int = 1
    """A, width of an action."""
    timesteps: int = 1000
    """Number of embeddings of time steps."""
    dropout: float = 0.1
    """Share of the units that are dropped in training."""

    def build(self, inputs: int) -> ContextTransformer:
        return ContextTransformer(self, inputs)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class DecisionTransformerConfig(BCConfig):
    """Settings of Decision Transformer, with the defaults of the paper for MuJoCo (appendix A.2).

    Windows may begin in the episode before, so all rows are learned from equally often. In the authors' code, windows
    begin within an episode, so its first rows are learned from less often.
    """

    human_fraction: ClassVar[float | None] = None

    batch_size: int = 64
    batch_length: int = 21
    """T, time steps of each window; all but the last one are learned from: 20 in the paper."""
    target_return: Annotated[float | None, Finite()] = None
    """Return to aim at, in units of the environment's rewards. None: the highest return of the episodes of the dataset
    that were learned from."""
    return_scale: Annotated[float | None, Above(0)] = 1000.0
    """Returns-to-go are divided by this number. Choose one so that returns are about 1 to 10. None: the standard
    deviation of the returns so far in the dataset."""
    lr: ScheduledFloat = 1e-4
    """Learning rate of Adam. The paper has a linear warm-up over 10,000 updates: [[0, 1e-8], [9999, 1e-4]]."""
    weight_decay: Annotated[float, Within("[0, 1)")] = 1e-4
    """Weight decay as in AdamW: each update first shrinks each parameter by this share of the learning rate."""
    dropout: Annotated[float, Within("[0, 1)")] = 0.1
    """Probability with which dropout zeroes the embeddings, attention weights and outputs of layers in updates."""
    max_episode_length: Annotated[int, AtLeast(1)] = 1000
    """Number of embeddings of time steps. All later time steps of an episode share the last one."""
    max_grad_norm: Annotated[float, AtLeast(0)] = 0.25
    """Maximum gradient norm; 0 does not clip."""
    networks: MemoryNetworkConfig = field(
        default_factory=lambda: MemoryNetworkConfig(
            units=(), memory=Transformer(window=20, units=128, heads=1, layers=3)
        )
    )
    """The transformer, and the hidden layers after it: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        memory, rows = self.networks.memory, self.batch_length - 1
        if self.chunk_size > 1:
            raise ConfigError(f"chunk_size = {self.chunk_size}: {self.algorithm} proposes single actions. Set it to 1.")
        if not isinstance(memory, Transformer) or self.networks.burn_in:
            raise ConfigError(
                f"networks.memory = {memory}, networks.burn_in = {self.networks.burn_in}: {self.algorithm} is a "
                "transformer, whose memory is blank where a window begins. Use a memory such as transformer(20), no "
                "burn_in."
            )
        if memory.window < rows:
            raise ConfigError(
                f"batch_length = {self.batch_length}, networks.memory = {memory.to_text()}: the transformer attends to "
                f"fewer rows. Set batch_length to at most {memory.window + 1}."
            )

    def needs_rewards(self, *, collected: bool) -> bool:
        return True


DecisionTransformerConfig.learner = DecisionTransformer
