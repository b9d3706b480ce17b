"""What model-free learners share: preprocessed rows, one optimizer for each loss, memories and their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from reverie.algos.base import Algorithm, TrainStep
from reverie.algos.settings import AlgorithmConfig
from reverie.core.bounds import AtLeast, Regex, Within, largest_value
from reverie.core.config import Config
from reverie.core.errors import ConfigError, missing_method_error
from reverie.core.protocols import Policy, RunningStatistics
from reverie.core.specs import ActionSpec, ColumnSpec, ObsSpec, num_continuous
from reverie.core.types import Batch, Metrics, PolicyOutput, QValues, State, Update, Window
from reverie.nn.actor_critic import QEnsemble
from reverie.nn.adam import Adam
from reverie.nn.batch_norm import BatchBody
from reverie.nn.cnn import Drq, are_small, images_of
from reverie.nn.intrinsic import IntrinsicReward, NoveltyModel
from reverie.nn.memory import MEMORY_COLUMN, Memory
from reverie.nn.network import CRITIC_SETTINGS, FEATURES, NetworkConfig
from reverie.nn.normalization import NormalizeConfig, Running
from reverie.nn.preprocess import Preprocessor
from reverie.nn.replay_memory import Memories, MemoryPolicy
from reverie.nn.reward_scaling import RewardScale
from reverie.objectives.categorical import best_value
from reverie.objectives.td import Losses, SplitObs, obs_before

CLIPPED = "train/clipped_target"
"""Metric of categorical critics: by how much the mean of a target lies outside of the atoms, averaged over all rows."""
IMPOSSIBLE = 10.0
"""Values of this many times the largest return that the rewards allow are called divergence."""
ClipFn = Callable[[Tensor], Tensor] | None
"""Clips bootstrap values to the range that the rewards allow; None: no clipping."""


BuildCriticFn = Callable[[ObsSpec, ActionSpec], nn.Module]
"""Builds a critic for observations and actions: :meth:`ModelFree.build_critic`."""


class ModelFree(Algorithm):
    """A learner whose networks read rows after a :class:`~reverie.nn.preprocess.Preprocessor`.

    A subclass builds its networks for ``self.preprocess.spec``, and assigns its losses, often a :class:`TDObjective`,
    to ``self.objective``. Its ``train_step`` gets preprocessed batches, and its ``_policy`` preprocessed observations.
    """

    cfg: Any
    objective: Any
    captures_on_cpu = True
    has_heldout_losses = True
    actor_path = "objective.actor"

    def __init__(self, obs_spec: ObsSpec, cfg: ModelFreeConfig, device: torch.device) -> None:
        super().__init__(cfg.graph)
        self.cfg = cfg
        self.device = device
        self.preprocess: Preprocessor = cfg.preprocessor(obs_spec)
        self.burn_in: int = getattr(cfg.networks, "burn_in", 0)
        self.window: Window = self.preprocess.make_window(cfg.batch_size, cfg.batch_length, self.burn_in)
        self.extra_spec: dict[str, ColumnSpec] = {}
        self.memories: Memories | None = None
        self.optims: dict[str, Adam] = {}
        self.trusted_value: float = IMPOSSIBLE
        """Below this mean value of the critic, no rewards are read to judge it."""

    def acting(self, simulations: int | None = None) -> Policy[Any]:
        """Return the policy behind the preprocessor."""
        return self.preprocess.policy(super().acting(simulations), self.device)

    def prepare_batch(self, batch: Batch) -> Batch:
        """Return the preprocessed batch, with the states of memories if there are any."""
        batch = self.preprocess(batch) if self.preprocess.is_active else batch
        return batch if self.memories is None else self.memories.burn_in_batch(batch, self.burn_in)

    def build_critic(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> nn.Module:
        """Return the critics of an actor-critic learner, by default ``num_critics`` or two networks.

        A subclass may return any module with the same outputs. If it has the attribute ``inputs``, a
        :class:`~reverie.nn.network.ObsConcat`, other networks use its encoder of images, which only the critic's loss
        trains. Otherwise each network has its own.
        """
        c, copies = self.cfg, getattr(self.cfg, "num_critics", 2)
        return QEnsemble(obs_spec, action_spec.width, c.networks, copies=copies, dtype=c.dtype)

    def build_novelty(self, action_spec: ActionSpec) -> NoveltyModel | None:
        """Return the networks of ``intrinsic_reward``, after all other networks; None if there is none."""
        chosen: IntrinsicReward | None = self.cfg.intrinsic_reward
        if chosen is None:
            return None
        return chosen.build(self.preprocess.spec, action_spec, self.cfg.networks.encoder, self.device)

    def encode(self, batch: Batch) -> tuple[Batch, Batch]:
        """Return the batch for the critic and for the actor, with images encoded once by the encoder that both share.

        Features replace images. Only the gradient of the critic's loss reaches the encoder.
        """
        inputs = getattr(self.objective.critic, "inputs", None)
        if inputs is None or inputs.encoder is None:
            return batch, batch
        first = inputs.encode(obs_before(batch.obs))
        with torch.no_grad():  # no network learns from the last rows
            last = inputs.encode({key: x[:, -1:] for key, x in batch.obs.items()})
        detached = first | {FEATURES: first[FEATURES].detach()}
        return replace(batch, obs=SplitObs(first, last)), replace(batch, obs=SplitObs(detached, last))

    def with_memory(self, policy: Policy[Any]) -> Policy[Any]:
        """Return ``policy``, wrapped to carry the states of the networks' memories if they have any."""
        memories = Memories(self.objective)
        if not memories.modules:
            return policy
        self.memories = memories
        self.extra_spec = {MEMORY_COLUMN: ColumnSpec(shape=(memories.width,), dtype="float32")}
        return MemoryPolicy(policy, memories, self.device)

    def state_value(self, output: PolicyOutput) -> Tensor:
        """Return the highest value of an action, or min_i Q_i(s, a) of the policy's likeliest action."""
        choice = output.decision
        if isinstance(choice, QValues):
            return best_value(choice.values, choice.values, choice.classes)
        action_values = getattr(getattr(self, "objective", None), "values", None)
        if action_values is None:
            return super().state_value(output)
        values = action_values(output.inputs, choice if isinstance(choice, Tensor) else choice.mode())
        return values if values.ndim == 1 else values.amin(0)

    def exploration(self, env_steps: int) -> float | None:
        schedule = getattr(self.cfg, "exploration", None)
        return None if schedule is None else float(schedule.amount(torch.tensor([env_steps])))

    def metrics_warning(self, metrics: Mapping[str, float], largest_reward: Callable[[], float]) -> str:
        if not isinstance(self.cfg, ValueConfig):
            return ""
        part = max(1 - largest_value(self.cfg.discount), 1e-3)  # of a horizon
        if (atoms := getattr(self.cfg, "atoms", None)) is not None:
            return str(atoms.warning(metrics.get(CLIPPED, 0.0) / part))
        value = abs(metrics.get("train/value", 0.0))
        if value <= self.trusted_value or not self.learns_rows_rewards:
            return ""
        bonus = metrics.get("train/temperature", 0.0) * abs(metrics.get("train/entropy", 0.0))  # of SAC
        largest = torch.tensor([largest_reward()], device=self.device)
        reward = float(self.preprocess.scale_rewards(largest, torch.zeros_like(largest, dtype=torch.bool)))
        self.trusted_value = max(IMPOSSIBLE * (reward + bonus) / part, 2 * value)
        if not reward or value <= IMPOSSIBLE * (reward + bonus) / part:
            return ""
        return (
            f"the critic diverges: its mean value is {value:.3g}, but the largest reward is {reward:.3g}, and no "
            f"return exceeds {reward / part:.3g}. Lower the learning rate, or set algo.reward_scale = return_std"
        )

    @property
    def learns_rows_rewards(self) -> bool:
        """Whether its rewards are those of the rows: without a bonus of its own, or goals that are relabeled."""
        return self.preprocess.follows_rewards and getattr(self.cfg, "intrinsic_reward", None) is None

    @property
    def clip_to_return_range(self) -> ClipFn:
        """The function that clips values to the returns that the rewards allow; None unless ``bound_values`` is set."""
        return None if self.preprocess.range is None else self.preprocess.range.forward

    @property
    def running_statistics(self) -> RunningStatistics | None:
        return self.preprocess.running_statistics

    def minimize(self, losses: Losses) -> Metrics:
        """Take a step of each optimizer on the term of its name, and return the metrics of ``losses.update()``.

        All gradients are computed before the first step.
        """
        optims = self.optims
        gradients = {name: optims[name].gradients(term) for name, term in losses.terms.items() if name in optims}
        for name, gradient in gradients.items():
            optims[name].apply(gradient)
        return dict(losses.update().metrics)

    @torch.no_grad()
    def heldout_losses(self, batch: Batch) -> Metrics:
        """Return ``loss/NAME`` of the objective on a batch, of all terms with the current networks."""
        metrics = self.objective(self.prepare_batch(batch.to(self.device))).update().metrics
        return {name: loss for name, loss in metrics.items() if name.startswith("loss/")}

    def memory_states(self, batch: Batch) -> dict[str, Tensor]:
        """Return the recomputed states of memories, to be written back to the replay buffer; empty without memory."""
        return {} if self.memories is None else {MEMORY_COLUMN: batch.extras[MEMORY_COLUMN]}

    def reset_lr_schedules(self) -> None:
        """Prepare this trained learner for the start of another run: decaying learning rates start over."""
        for optim in self.optims.values():
            optim.restart_schedule()


class CountingLearner(ModelFree):
    """A learner of whose updates every n-th one does more, so that the number of updates is saved."""

    updates: int = 0
    """Number of updates, in Python, so that the others do not pay for what one does more."""

    def extra_state(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_extra_state(self, state: State) -> None:
        vars(self)["updates"] = int(state["updates"])


class DelayedActorLearner(CountingLearner):
    """A learner of which every ``policy_delay``-th update also trains the actor.

    Each of its two steps does the same work every time, and has its own capture.
    """

    def next_step(self) -> TrainStep:
        vars(self)["updates"] = self.updates + 1  # a module takes 3 us to set an attribute
        return self.critic_step if self.updates % self.cfg.policy_delay else self.train_step

    def critic_step(self, batch: Batch) -> Update:
        """Take one step without the actor."""
        raise missing_method_error(self, "critic_step")


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class ModelFreeConfig(AlgorithmConfig):
    """Settings of model-free agents: windows, networks, and how observations are preprocessed."""

    network_settings: ClassVar[frozenset[str]] = frozenset({"body", *CRITIC_SETTINGS})
    """Settings of `networks` that have an effect, among those that not all algorithms read."""

    batch_size: int = 256
    """B, number of windows (sequences) in a batch."""
    batch_length: int = 2
    """T, time steps of each window, which holds T - 1 transitions: 2 is one transition."""
    networks: NetworkConfig = field(default_factory=NetworkConfig)
    """Layers of the networks."""
    normalize_obs: NormalizeConfig | None = None
    """Normalize vector observations, (x - mean) / std. fixed(1000): by the first 1000 time steps; running: by all."""
    frame_stack: Annotated[int, AtLeast(1)] = 1
    """Number of the latest observations that are stacked for the networks. The replay stores each of them once."""
    frame_stack_keys: Annotated[str, Regex()] = ""
    """Regular expression of the observation keys that `frame_stack` stacks, matched in full. Empty: all images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for part in fields(self):
            if isinstance(networks := getattr(self, part.name), NetworkConfig):
                networks.check_settings(
                    part.name, self.network_settings if part.name == "networks" else (), self.algorithm
                )
        if self.frame_stack_keys and self.frame_stack == 1:
            raise ConfigError(
                f"frame_stack_keys = {self.frame_stack_keys!r}, frame_stack = 1: set frame_stack to "
                "the number of frames to stack."
            )

    def check_run(self, *, random_steps: int, learning_starts: int, frame_stack: int) -> None:
        min_rows = 0 if self.normalize_obs is None else self.normalize_obs.limit or 0
        if min_rows > min(random_steps, learning_starts):
            raise ConfigError(
                f"algo.normalize_obs = fixed({min_rows}), random_steps = {random_steps}, learning_starts = "
                f"{learning_starts}: rows come before statistics are fixed. Raise both to at least {min_rows}, or use "
                "algo.normalize_obs = running."
            )
        if isinstance(self.networks.body, BatchBody) and self.batch_length > 2:
            raise ConfigError(
                f"algo.batch_length = {self.batch_length}: rows between episodes would count in the statistics of "
                "batches. Use 2."
            )
        if self.frame_stack > 1 and frame_stack > 1:
            raise ConfigError(
                f"algo.frame_stack = {self.frame_stack}, env.frame_stack = {frame_stack}: frames would be stacked "
                "twice. Set algo.frame_stack alone, which uses less memory."
            )

    def for_specs(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> Self:
        """Return these settings without ``normalize_obs`` if no observation is a vector.

        With continuous actions, off-policy algorithms use DrQ's image encoder unless another is chosen.
        """
        vectors = any(part.kind == "vector" for part in obs_spec.values())
        changes: dict[str, Any] = {} if vectors else {"normalize_obs": None}
        if not self.on_policy and num_continuous(action_spec) and not are_small(images_of(obs_spec)):
            values = {part.name: getattr(self, part.name) for part in fields(self)}
            networks = {name: value for name, value in values.items() if isinstance(value, NetworkConfig)}
            changes |= {name: replace(x, encoder=Drq()) for name, x in networks.items() if x.encoder is None}
        return replace(self, **changes) if changes else self

    def preprocessor(self, obs_spec: ObsSpec) -> Preprocessor:
        """Return the preprocessor of rows that these settings describe."""
        names = ("normalize_obs", "frame_stack", "frame_stack_keys", "reward_scale", "discount", "bound_values")
        settings = {name: getattr(self, name) for name in names if hasattr(self, name)}
        if "discount" in settings:
            settings["discount"] = largest_value(settings["discount"])
        return Preprocessor(obs_spec, **settings)


@dataclass(frozen=True, kw_only=True)
class ValueConfig(ModelFreeConfig):
    """Settings of model-free agents that learn values."""

    discount: Annotated[float, Within("[0, 1]")] = 0.99
    """Discount factor gamma per agent step."""
    reward_scale: RewardScale | None = None
    """Scale rewards in the losses: factor(0.1) multiplies them, affine(1, -1) multiplies and then adds, return_std
    divides by the standard deviation of discounted returns. Stored rows and scores keep the true rewards."""


@dataclass(frozen=True, kw_only=True)
class OfflineConfig(Config):
    """Other defaults for offline learning."""

    needs_data: ClassVar[bool] = True

    networks: NetworkConfig = field(default_factory=NetworkConfig)
    normalize_obs: NormalizeConfig | None = field(default_factory=Running)
    """Normalize vector observations, (x - mean) / std, over the whole dataset; none leaves them as they are.
    The authors' code of TD3+BC, Decision Transformer and GAIL normalizes too, without a clip; that of others does
    not."""


@dataclass(frozen=True, kw_only=True)
class BoundedValueConfig(OfflineConfig):
    """Settings of offline learners that clip values to the range that the rewards allow."""

    bound_values: bool = True
    """Clip the values that targets bootstrap from to the returns that the rewards seen so far allow. Errors at actions
    that are not in the data are never corrected and may diverge. The paper does not clip."""


def check_sequences(memory: Memory | None, length: int, alone: int) -> None:
    """Raise ConfigError if windows of ``length`` rows cannot train ``memory``; ``alone``: length of single rows."""
    if memory is not None and not memory.from_rows and length == alone:
        raise ConfigError(
            f"networks.memory = {memory.to_text()}, batch_length = {length}: a recurrent memory cannot be trained on "
            f"single rows. Set batch_length to a sequence length such as {max(16, 2 * alone)}."
        )


def check_chunks(size: int, length: int) -> None:
    """Raise ConfigError if windows of ``length`` rows do not hold a chunk of ``size`` actions."""
    if length <= size:
        raise ConfigError(
            f"chunk_size = {size}, batch_length = {length}: a chunk needs windows with one row more. Set batch_length "
            f"to at least {size + 1}."
        )
