"""Base classes of algorithms, of their configurations and of their losses."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from reverie.core.bounds import AtLeast, Ramp, Regex, Within
from reverie.core.config import Config
from reverie.core.discover import algorithm_config, algorithm_name, algorithms
from reverie.core.errors import ConfigError, missing_method_error, plural
from reverie.core.learners import averaged, is_distributed
from reverie.core.protocols import Policy, RowAnnotator, RunningStatistics
from reverie.core.specs import ActionSpec, Column, ObsSpec
from reverie.core.types import Batch, Metrics, State, Told, Update, Values, Window
from reverie.nn.actor_critic import NetworkConfig, kind_of
from reverie.nn.memory import MEMORY, Memory
from reverie.nn.normalise import Normalise, Running
from reverie.nn.optim import Adam, Loss, Optim, TrainStep, advance, gradients, ramps_of, run
from reverie.nn.preprocess import Preprocessor
from reverie.nn.remember import Memories, RememberingPolicy
from reverie.nn.rewards import RewardScale
from reverie.nn.target import Target
from reverie.objectives.categorical import best_value
from reverie.objectives.estimators import TD0, ValueEstimator
from reverie.objectives.td import Losses, RegressionLoss, after, td_targets

Optimiser = Adam | Optim | torch.optim.Optimizer
Clip = Callable[[Tensor], Tensor] | None
"""What clips the values that targets bootstrap from to what the rewards allow; None: nothing."""


@contextmanager
def building(seed: int) -> Iterator[None]:
    """Make a learner within, with float32 weights drawn from ``seed``, whatever PyTorch's default dtype and mode are.

    PyTorch's CPU generator is restored afterwards; those of GPUs are left alone, as weights are drawn on the CPU.
    Tensors of inference mode would not count writes, by which copies of weights in other layouts stay up to date.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        torch.set_default_dtype(default)


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(Config):
    """Settings that every algorithm has."""

    learner: ClassVar[type[Any]]
    """Class of the learner, made as ``learner(obs_spec, action_spec, config, device)``. It is defined after its
    configuration, and so assigned there: ``MyConfig.learner = MyLearner``."""
    action_kinds: ClassVar[frozenset[str]] = frozenset()
    """Kinds of action spaces that it learns (``nn/actor_critic.py: kind_of``), which ``build`` checks. Errors about
    actions name the algorithms that fit by this; one that does not say is not named, and gets any actions."""
    needs_data: ClassVar[bool] = False
    """Whether the algorithm is meant for recorded data. It may collect rows itself all the same."""
    on_policy: ClassVar[bool] = False
    """Whether it learns only from rows that its present policy has collected, instead of a replay."""

    batch_size: Annotated[int, AtLeast(1)] = 16
    """B, windows in a batch."""
    batch_length: Annotated[int, AtLeast(2)] = 64
    """T, rows of each window that the losses cover, context rows not counted."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Dtype that networks compute in. Parameters, losses and optimisers stay float32."""
    graph: bool = True
    """Capture updates and replay them: as CUDA graphs on CUDA devices; on CPUs as tapes (recorded calls), for
    model-free algorithms only. The results are the same."""

    @property
    def algorithm(self) -> str:
        """Name of the algorithm on the command line, such as ``dreamer_v3``; ``module:Class`` for your own."""
        return algorithm_name(type(self))

    @property
    def dtype(self) -> torch.dtype:
        """``precision`` as PyTorch's."""
        return getattr(torch, self.precision)

    def check_run(self, *, random_steps: int, learning_starts: int, frame_stack: int) -> None:
        """Raise ConfigError unless the settings fit those of the run.

        ``random_steps`` env steps come first, and ``learning_starts`` windows before the first update; environments
        themselves stack ``frame_stack`` frames.
        """

    def check_data(self, *, recorded: bool, collected: bool) -> None:
        """Raise ConfigError if the run lacks rows that are needed, ``recorded`` or ``collected`` in an environment."""

    def build(self, obs_spec: ObsSpec, action_spec: ActionSpec, device: str = "cpu", seed: int = 0) -> Algorithm:
        """Return a learner for these observations and actions, its weights drawn from ``seed`` and nothing else.

        Raises:
            ConfigError: the settings do not fit the observations, or the algorithm is not for such actions.
        """
        self.check_actions(action_spec)
        with building(seed):
            learner: Algorithm = self.learner(obs_spec, action_spec, self.for_obs(obs_spec), torch.device(device))
        if isinstance(learner, Algorithm):
            learner.enter_eval_mode()
        return learner

    def check_actions(self, spec: ActionSpec) -> None:
        """Raise ConfigError, which names the algorithms that fit, unless the algorithm is for such actions."""
        kind = kind_of(spec)
        if not self.action_kinds or kind in self.action_kinds:
            return
        fit = fitting(spec)
        also = f"; with recorded data: {', '.join(fit['recorded'])}" if fit["recorded"] else ""
        raise ConfigError(
            f"{self.algorithm} is for {' or '.join(sorted(self.action_kinds))} actions, but these are {kind}. "
            f"Suitable algorithms: {', '.join(fit['collected'])}{also}."
        )

    def for_obs(self, obs_spec: ObsSpec) -> Self:
        """Return these settings without defaults that do not fit the observations."""
        return self


def fitting(spec: ActionSpec) -> dict[str, tuple[str, ...]]:
    """Return the algorithms for such actions: ``collected``, and ``recorded`` for those meant for recorded data."""
    kind, fit = kind_of(spec), dict[str, tuple[str, ...]](collected=(), recorded=())
    for name in sorted(algorithms()):
        with contextlib.suppress(Exception):  # an installed package's algorithm that cannot be imported
            config: Any = algorithm_config(name)
            if kind in config.action_kinds:
                fit["recorded" if config.needs_data else "collected"] += (name,)
    return fit


@dataclass(frozen=True, kw_only=True)
class ModelFreeConfig(AlgorithmConfig):
    """Settings of model-free agents: windows, networks, and how observations are preprocessed."""

    batch_size: int = 256
    """B, windows in a batch."""
    batch_length: int = 2
    """T, rows of each window. The losses cover its T - 1 transitions; 2 is one transition."""
    networks: NetworkConfig = field(default_factory=NetworkConfig)
    """Layers of the networks."""
    normalise: Normalise | None = None
    """Normalise vectors, (x - mean) / std: by the first 1000 rows with fixed(1000), by all rows with running."""
    frames: Annotated[int, AtLeast(1)] = 1
    """Number of latest frames that the networks see together. The replay stores each frame once."""
    frame_keys: Annotated[str, Regex()] = ""
    """Regular expression of the observation keys that `frames` stacks, matched in full. Empty: all images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frame_keys and self.frames == 1:
            raise ConfigError(
                f"frame_keys = {self.frame_keys!r}, frames = 1: set frames to the number of frames to stack."
            )

    def check_run(self, *, random_steps: int, learning_starts: int, frame_stack: int) -> None:
        wanted = 0 if self.normalise is None else self.normalise.limit or 0
        if wanted > min(random_steps, learning_starts):
            raise ConfigError(
                f"algo.normalise = fixed({wanted}), random_steps = {random_steps}, learning_starts = "
                f"{learning_starts}: rows come before statistics are fixed. Raise both to at least {wanted}, or use "
                "algo.normalise = running."
            )
        if self.frames > 1 and frame_stack > 1:
            raise ConfigError(
                f"algo.frames = {self.frames}, env.frame_stack = {frame_stack}: frames would be stacked twice. Set "
                "algo.frames alone, which uses less memory."
            )

    def for_obs(self, obs_spec: ObsSpec) -> Self:
        """Return these settings, without ``normalise`` if it is a default and no observation is a vector."""
        vectors = any(part.kind == "vector" for part in obs_spec.values())
        asked = type(self).__dataclass_fields__["normalise"].default is None  # then it is no default of the algorithm
        return self if vectors or asked or self.normalise is None else replace(self, normalise=None)

    def preprocessor(self, obs_spec: ObsSpec) -> Preprocessor:
        """Return the preprocessor of rows that these settings describe."""
        names = ("normalise", "frames", "frame_keys", "reward_scale", "discount", "bound_values")
        return Preprocessor(obs_spec, **{name: getattr(self, name) for name in names if hasattr(self, name)})


@dataclass(frozen=True, kw_only=True)
class ValueConfig(ModelFreeConfig):
    """Settings of model-free agents that learn values."""

    discount: Annotated[float, Within("[0, 1]")] = 0.99
    """Discount factor gamma per agent step."""
    reward_scale: RewardScale | None = None
    """Scale rewards in the losses: factor(0.1) multiplies them, affine(1, -1) multiplies and then adds, return_std
    divides by the standard deviation of discounted returns. Stored rows and scores keep the true rewards."""


@dataclass(frozen=True, kw_only=True)
class TDConfig(ValueConfig):
    """Settings of temporal-difference learning with target networks."""

    estimators: ClassVar[type[ValueEstimator]] = ValueEstimator
    """Class of the value estimators that fit."""

    value_estimator: ValueEstimator = field(default_factory=TD0)
    """How targets are computed from the rows of a window. The paper uses TD(0)."""
    tau: Annotated[float, Within("(0, 1]")] = 0.005
    """Step of the target networks towards their networks at each target update; 1 copies them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen, fit = self.value_estimator, self.estimators
        if not isinstance(chosen, fit) or chosen.needs_behaviour:
            known = [k for k, v in fit.kinds().items() if not v.needs_behaviour]
            raise ConfigError(
                f"value_estimator = {chosen.text()}: {self.algorithm} expects one of {', '.join(known)}, or your own "
                f"subclass of {fit.__name__} that needs rows alone."
            )
        chosen.check_window(self.batch_length)
        check_sequences(getattr(self.networks, "memory", None), self.batch_length, alone=2)

    def check_run(self, *, random_steps: int, learning_starts: int, frame_stack: int) -> None:
        super().check_run(random_steps=random_steps, learning_starts=learning_starts, frame_stack=frame_stack)
        if self.batch_length == 2 and self.value_estimator.whole_window:
            raise ConfigError(
                f"algo.value_estimator = {self.value_estimator.text()}, algo.batch_length = 2: there is nothing to "
                "look ahead to, so it equals td0. Set algo.batch_length to at least 3, or use td0."
            )


@dataclass(frozen=True, kw_only=True)
class CriticConfig(TDConfig):
    """Settings of critics that are trained by regression on their targets."""

    critic_loss: RegressionLoss = "l2"
    """Loss of the critic's error u: l2 is the paper's, l1 is abs(u), smooth_l1 is u^2 / 2 up to abs(u) = 1 and abs(u) -
    1/2 beyond."""
    critic_weight_decay: Annotated[float, AtLeast(0)] = 0.0
    """Weight decay of the critic: this times each parameter is added to its gradient, as in PyTorch's Adam."""
    max_grad_norm: Annotated[float, AtLeast(0)] = 0.0
    """Largest norm of the gradient of the actor, and of that of the critic; 0 does not clip."""


def check_sequences(memory: Memory | None, length: int, alone: int) -> None:
    """Raise ConfigError if windows of ``length`` rows teach ``memory`` nothing; ``alone``: those of a single row."""
    if memory is not None and not memory.from_rows and length == alone:
        raise ConfigError(
            f"networks.memory = {memory.text()}, batch_length = {length}: from single rows no memory is learned. Set "
            "batch_length to the rows of a sequence, such as 16."
        )


@dataclass(frozen=True, kw_only=True)
class RecordedConfig(Config):
    """What learners of recorded data set otherwise."""

    needs_data: ClassVar[bool] = True

    networks: NetworkConfig = field(default_factory=NetworkConfig)
    normalise: Normalise | None = field(default_factory=Running)
    """Normalise vectors: (x - mean) / std, over all rows of the dataset; none leaves them as they are. In the papers
    TD3+BC does, the others do not."""


@dataclass(frozen=True, kw_only=True)
class BoundedConfig(RecordedConfig):
    """Recorded data, and values that stay within what the rewards allow."""

    bound_values: bool = True
    """Clip the values that targets bootstrap from to the returns that the rewards seen so far allow. Errors at actions
    that the data lack are never corrected and may diverge. The paper does not clip. Ignored with reward_scale =
    return_std."""


INSIDE = "inside/"
"""Prefix of the names of a world model's latents and values in :meth:`Algorithm.dream`, beside its predictions."""


def dreamt_name(key: str) -> str:
    """Return the name of an observation in :meth:`Algorithm.dream`: its key, after ``obs/`` if another has that name.

    The others are ``reward``, ``cont`` and what begins with ``INSIDE``.
    """
    bare = re.sub("^(obs/)*", "", key)  # obs/reward would be the name of the observation reward, so it becomes another
    return f"obs/{key}" if bare in ("reward", "cont") or bare.startswith(INSIDE) else key


class Algorithm(nn.Module):
    """A learner as a module: its state is its parameters, buffers and optimisers, and what :meth:`extra_state` adds.

    A subclass implements :meth:`train_step`. It must change all state in place, as a captured update goes on using the
    same memory.

    Modules that behave differently while they learn, such as dropout and batch norm, are in eval mode, and in train
    mode only within :meth:`run_step`: acting, evaluations, dreams and reports neither drop nor change statistics.
    """

    window: Window
    extra_spec: Mapping[str, Column]
    device: torch.device
    _policy: Policy[Any]
    tapes: ClassVar[bool] = False
    """Whether updates are captured on CPUs too; it pays where Python takes as long as the arithmetic."""
    actor_place: ClassVar[str] = ""
    """Name of the module that is the actor, if it reads observations; other algorithms can begin with it (``init``)."""

    def __init__(self, graph: bool = True) -> None:
        super().__init__()
        self.graph = graph
        self.since: object = object()  # see nn/optim.py: Learner
        self._checked = False
        self._two_moded: tuple[nn.Module, ...] | None = None  # None: not looked for yet
        self._ramps: list[tuple[Ramp, Tensor]] | None = None  # None: not looked for yet
        self.position: Callable[[], int] = int
        """Returns how far the run is, in env steps, for settings that change on the way; 0 outside of a run."""

    def expect_recorded(self, windows: int) -> None:
        """Note how many windows of each batch, the first ones, are recorded; the others were collected."""

    @property
    def running_statistics(self) -> RunningStatistics | None:
        """The object that must see each collected row, to keep statistics; None by default."""
        return None

    @property
    def annotator(self) -> RowAnnotator | None:
        """The object that fills an extra column of collected rows when later rows are known; None by default."""
        return None

    @property
    def policy(self) -> Policy[Any]:
        """The policy, which acts with the newest weights: what a subclass has assigned to ``self._policy``."""
        if self._two_moded is None:  # a config with a `build` of its own has made this learner
            self.enter_eval_mode()
        return self._policy

    def update(self, batch: Batch) -> Update:
        """Take one gradient step on a batch on any device. Does not wait for the device; the caller owns the result.

        Of several learners, the metrics are the means of theirs.
        """
        if self._ramps is None:
            self.enter_eval_mode()
        if self._ramps:
            advance(self._ramps, self.position())
        found = self.run_step(self.next_step(), batch)
        return replace(found, metrics=means(found.metrics)) if is_distributed() else found

    def next_step(self) -> TrainStep:
        """Return the method that takes the next step: ``train_step``, unless steps differ in what they compute."""
        return self.train_step

    def run_step(self, step: TrainStep, batch: Batch) -> Update:
        """Run ``step``, a method of this learner such as ``train_step``, on a batch on any device.

        Each such method may be captured separately, for each shape of batch. Within, modules are in train mode.

        Raises:
            ConfigError: after the first update, a parameter is in no optimiser.
            DataError: the batch has flags that are not bool, or shapes that do not fit.
        """
        batch.check(getattr(self, "window", None))
        if self._two_moded is None:
            self.enter_eval_mode()
        before = None if self._checked else {name: p._version for name, p in self.named_parameters()}
        self._switch(training=True)
        try:
            found = run(self, step, batch)
        finally:
            self._switch(training=False)
        if before is not None:
            check_trained(self, before)
            self._checked = True
        return found

    def prepared(self, batch: Batch) -> Batch:
        """Return what :meth:`train_step` gets of a batch on the learner's device; by default the batch itself."""
        return batch

    def bad_moment(self) -> str | None:
        """Return the name of an optimiser that holds NaN or infinity, so that a parameter may never move; or None.

        One gradient whose square float32 does not hold is enough. Reads all moments and waits for the device.
        """
        for name, optim in self.optimisers().items():
            held = (x for x in tree_leaves(optim.state_dict()) if isinstance(x, Tensor) and x.is_floating_point())
            if not all(bool(torch.isfinite(x).all()) for x in held):
                return name
        return None

    def enter_eval_mode(self) -> None:
        """Put the modules that learn in train mode, and differ in it, into eval mode until :meth:`run_step`.

        Those that ``__init__`` has put into eval mode stay there. Done once, as it takes longer than a small update:
        call it again after replacing a module or an optimiser, and after ``train()``. Updates are then captured anew.
        """
        self.since = object()
        found = [module for module in self.modules() if module.training and has_two_modes(module)]
        kept = [module for module in self._two_moded or () if module not in found]
        self._two_moded = (*kept, *found)
        own = [(ramp, m.get_buffer(name)) for m in self.modules() for name, ramp in vars(m).get("ramps", {}).items()]
        self._ramps = own + [pair for optim in self.optimisers().values() for pair in ramps_of(optim)]
        self._switch(training=False)

    def _switch(self, *, training: bool) -> None:
        for module in self._two_moded or ():
            vars(module)["training"] = training  # module.train() would take 1 us for each module below it too

    def state_value(self, told: Told) -> Tensor:
        """Return what the critic expects of rows ``[N]``, given what the policy chooses their actions by.

        Raises:
            ConfigError: the algorithm learns no values.
        """
        raise ConfigError(f"{type(self).__name__} learns no values of states.")

    def train_step(self, batch: Batch) -> Update:
        """Take one gradient step on a batch on the learner's device, with the same operations for every batch.

        It must not wait for the device, read a tensor's value in Python or copy from the host. Random numbers must come
        from the device's default generator.
        """
        raise missing_method_error(self, "train_step")

    def exploration(self, env_steps: int) -> float | None:
        """Return the epsilon, or the deviation of the noise on actions, after ``env_steps``; None: there is neither."""
        return None

    def report(self, batch: Batch) -> dict[str, np.ndarray]:
        """Return videos and curves for the log, by name; none by default."""
        return {}

    def dream(self, batch: Batch, context: int) -> dict[str, torch.Tensor]:
        """Return a world model's predictions of all rows: the first ``context`` observed, the rest imagined.

        Names of values that are no column of the rows, such as latents, begin with ``INSIDE``. Those of observations
        are their keys (:func:`dreamt_name`).
        """
        raise NotImplementedError(f"{type(self).__name__} has no world model, which dreaming needs.")

    def optimisers(self) -> dict[str, Optimiser]:
        """Return each optimiser that this learner and its modules hold as attributes, or in a dictionary.

        Their names end with ``optim``: ``actor_optim`` is ``self.optims["actor"]``.
        """
        found: dict[str, Optimiser] = {}
        for place, module in self.named_modules():
            for key, value in vars(module).items():
                for name, optim in value.items() if isinstance(value, dict) else ((key, value),):
                    if isinstance(optim, Optimiser) and not any(optim is other for other in found.values()):
                        found[f"{place}.{name}".lstrip(".") + ("" if name.endswith("optim") else "_optim")] = optim
        return found

    def extra_state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold beside parameters, buffers and optimisers, such as counters in Python."""
        return {}

    def load_extra_state(self, state: State) -> None:
        """Restore what :meth:`extra_state` returned."""

    # The next two narrow torch's overloads on purpose: an algorithm is always the root module, never a child.
    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        """Return ``{"model": parameters and buffers by name, "NAME_optim": moments, ..., **extra_state}``."""
        optims = {name: optim.state_dict() for name, optim in self.optimisers().items()}
        return {"model": super().state_dict(), **optims, **self.extra_state()}

    def load_state_dict(self, state: State) -> None:  # type: ignore[override]
        """Restore what ``state_dict`` returned."""
        super().load_state_dict(state["model"])
        for name, optim in self.optimisers().items():
            optim.load_state_dict(state[name])
        self.load_extra_state(state)


def means(metrics: Metrics) -> Metrics:
    """Return the mean of each metric over all learners."""
    together = averaged(torch.stack([value.float() for value in metrics.values()])) if metrics else torch.empty(0)
    return dict(zip(metrics, together.unbind(), strict=True))


def has_two_modes(module: nn.Module) -> bool:
    """Return whether ``module`` might read its flag ``training``, which none of this library does; hooks might, too."""
    known = type(module) in (nn.Linear, nn.Sequential, nn.ModuleList) or type(module).__module__.startswith("reverie.")
    return not known or bool(module._forward_hooks or module._forward_pre_hooks)


def check_trained(learner: Algorithm, before: Mapping[str, int]) -> None:
    """Raise ConfigError unless, after the first update, each parameter is in an optimiser, frozen, or was written to.

    ``before``: how often each was written to before. A learner without any known optimiser trains in a way of its own.
    """
    held: set[int] = set()
    for optim in learner.optimisers().values():
        groups = optim.param_groups if isinstance(optim, torch.optim.Optimizer) else [{"params": optim.params}]
        held |= {id(p) for group in groups for p in group["params"]}
    left = [
        name
        for name, p in learner.named_parameters()
        if p.requires_grad and id(p) not in held and p._version == before.get(name)
    ]
    if held and left:
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        raise ConfigError(
            f"{type(learner).__name__}: no optimiser has {plural(len(left), 'parameter')}, which would never be "
            f"trained: {', '.join(left[:3])}{more}. Give them to one, as in self.optims['head'] = "
            "Adam(self.head.parameters(), lr), or freeze them by requires_grad_(False)."
        )


class ModelFree(Algorithm):
    """A learner whose networks see rows after a :class:`~reverie.nn.preprocess.Preprocessor`.

    A subclass builds its networks for ``self.preprocess.spec``, and assigns its losses, often a :class:`TDObjective`,
    to ``self.objective``. Its ``train_step`` gets preprocessed batches, and its ``_policy`` preprocessed observations.
    """

    cfg: Any
    objective: Any
    tapes = True
    actor_place = "objective.actor"

    def __init__(self, obs_spec: ObsSpec, cfg: ModelFreeConfig, device: torch.device) -> None:
        super().__init__(cfg.graph)
        self.cfg = cfg
        self.device = device
        self.preprocess: Preprocessor = cfg.preprocessor(obs_spec)
        self.burn_in: int = getattr(cfg.networks, "burn_in", 0)
        self.window: Window = self.preprocess.window(cfg.batch_size, cfg.batch_length, self.burn_in)
        self.extra_spec: dict[str, Column] = {}
        self.memories: Memories | None = None
        self.optims: dict[str, Adam] = {}

    @property
    def policy(self) -> Policy[Any]:
        """The policy behind the preprocessor."""
        return self.preprocess.policy(super().policy, self.device)

    def prepared(self, batch: Batch) -> Batch:
        """Return the preprocessed batch, with the states of memories if there are any."""
        ready = self.preprocess(batch)
        return ready if self.memories is None else self.memories.prepared(ready, self.burn_in)

    def remembering(self, policy: Policy[Any]) -> Policy[Any]:
        """Return ``policy``, around which the memories of the networks are kept if they have any."""
        memories = Memories(self.objective)
        if not memories.own:
            return policy
        self.memories = memories
        self.extra_spec = {MEMORY: Column(shape=(memories.width,), dtype="float32")}
        return RememberingPolicy(policy, memories, self.device)

    def state_value(self, told: Told) -> Tensor:
        """See :class:`Algorithm`: the highest value of an action, or min_i Q_i(s, a) of the policy's likeliest."""
        choice = told.choice
        if isinstance(choice, Values):
            return best_value(choice.values, choice.values, choice.classes)
        if not isinstance(getattr(self, "objective", None), TDObjective):
            return super().state_value(told)
        values = self.objective.values(told.seen, choice if isinstance(choice, Tensor) else choice.mode())
        return values if values.ndim == 1 else values.amin(0)

    def exploration(self, env_steps: int) -> float | None:
        schedule = getattr(self.cfg, "exploration", None)
        return None if schedule is None else float(schedule.amount(torch.tensor([env_steps])))

    @property
    def within_range(self) -> Clip:
        """The function that clips values to the returns that the rewards allow; None unless ``bound_values`` is set."""
        return None if self.preprocess.range is None else self.preprocess.range.forward

    @property
    def running_statistics(self) -> RunningStatistics | None:
        return self.preprocess.running_statistics

    def minimise(self, loss: Loss, *inputs: Any) -> Losses:
        """Take a gradient step on each term of ``loss(*inputs)`` that has an optimiser. Return the losses before it."""
        losses, found = gradients(loss, self.optims, *inputs)
        for name, gradient in found.items():
            self.optims[name].apply(gradient)
        return losses

    def train_step(self, batch: Batch) -> Update:
        """Take one step of the critic, of the actor (if there is one) through the new critic, and of the targets."""
        o = self.objective
        critic, actor = self.minimise(o.critic_loss, batch), self.minimise(o.actor_loss, batch)
        o.update_targets()
        update = critic.joined(actor).update()
        return update if self.memories is None else replace(update, extras={MEMORY: batch.extras[MEMORY]})

    def renew(self) -> None:
        """Prepare this trained learner for the start of another run: decaying learning rates start over."""
        for optim in self.optims.values():
            optim.renew()


class TDObjective(nn.Module):
    """The losses of temporal-difference learning, over any networks; nothing else of this library is needed.

    ``objective(batch)`` is their terms by name. The gradient of each reaches its own networks alone. Paper by paper,
    subclasses define :meth:`critic_loss`, :meth:`actor_loss` (if there is an actor) and :meth:`next_value`.
    """

    def __init__(self, cfg: Any, within: Clip = None) -> None:
        """``cfg``: settings of the algorithm. ``within`` clips the values that targets bootstrap from."""
        super().__init__()
        self.cfg = cfg
        self.within = within

    def forward(self, batch: Batch) -> Losses:
        """The terms ``critic`` and ``actor`` of a batch ``[B, T]``."""
        return self.critic_loss(batch).joined(self.actor_loss(batch))

    def critic_loss(self, *inputs: Any, **more: Any) -> Losses:
        """The term ``critic`` of a batch ``[B, T]``."""
        raise missing_method_error(self, "critic_loss")

    def actor_loss(self, *inputs: Any, **more: Any) -> Losses:
        """The term ``actor`` of a batch ``[B, T]``; by default there is none."""
        return Losses({}, {})

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """The y ``[B, T - 1]``; of one transition, r + gamma (1 - terminal) V(s'), V as in :meth:`next_value`."""
        value, c = self.next_value(after(batch.obs)), self.cfg  # [B, T-1]
        return td_targets(batch, value, c.value_estimator, c.discount, within=self.within)

    def next_value(self, *inputs: Any, **more: Any) -> Any:
        """Return the value of states for the targets, ``[...]``."""
        raise missing_method_error(self, "next_value")

    def values(self, *inputs: Any) -> Tensor:
        """Return the values ``[(K,) ...]`` of actions ``[..., A]`` in observations ``[..., *shape]``."""
        critic: Any = self.critic
        found: Tensor = critic(*inputs)
        return found

    def update_targets(self) -> None:
        """Update the target networks: theta' <- tau theta + (1 - tau) theta'."""
        for part in self.children():
            if isinstance(part, Target):
                part.update()
