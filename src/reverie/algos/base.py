"""The base class of learners, and how an update is run."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from reverie.algos.gradient_norms import GradientNorms
from reverie.algos.modes import AnyOptimizer, check_all_parameters_trained, find_bad_moment, reads_training_flag
from reverie.core.bounds import AtLeast, PiecewiseLinear
from reverie.core.collectives import is_distributed, mean_across_ranks
from reverie.core.config import coerce
from reverie.core.errors import ConfigError, missing_method_error
from reverie.core.kernel_dispatch import ModuleChanges, NotesChanges, accelerated
from reverie.core.protocols import Policy, RowAnnotator, RunningStatistics
from reverie.core.specs import ColumnSpec
from reverie.core.types import Batch, Metrics, PolicyOutput, SharedBatch, State, Update, Window
from reverie.nn.loss_scale import LossScale
from reverie.nn.optim import NoGradientError, Optimizer, advance_schedules

TrainStep = Callable[[Batch], Update]
"""One gradient step on a batch that lies on the learner's device."""

DENORMAL = 5e-324
"""Equals 0 in a thread that flushes denormal numbers, nearer to 0 than 1.2e-38 in float32, as JAX always does.

They arise where weights of advantages or gates vanish, and some processors need a hundred times as long for them:
updates of HIQL took six times as long after 34,000 updates on a Xeon. So updates flush them.
"""

INTERNAL_PREFIX = "inside/"
"""Name prefix of a world model's latents and values in :meth:`Algorithm.dream`, next to its predictions."""


@functools.cache
def prediction_name(key: str) -> str:
    """Return the name of an observation in :meth:`Algorithm.dream`: its key, with prefix ``obs/`` if the name is taken.

    Other names are ``reward``, ``cont`` and names that begin with ``INTERNAL_PREFIX``.
    """
    # An observation ``reward`` is called obs/reward, so an observation ``obs/reward`` is called obs/obs/reward.
    bare = re.sub("^(obs/)*", "", key)
    return f"obs/{key}" if bare in ("reward", "cont") or bare.startswith(INTERNAL_PREFIX) else key


class Algorithm(NotesChanges, nn.Module):
    """A learner as a module: its state is its parameters, buffers and optimizers, and what :meth:`extra_state` adds.

    A subclass implements :meth:`train_step`. It must change all state in place, because a captured update keeps using
    the same memory.

    Modules with a train and an eval mode, such as dropout and batch norm, are in train mode only within an update.
    Acting, evaluation, dreams and reports drop no units and change no statistics.
    """

    window: Window
    extra_spec: Mapping[str, ColumnSpec]
    device: torch.device
    _policy: Policy[Any]
    captures_on_cpu: ClassVar[bool] = False
    """Whether updates are captured on CPUs too; it pays where Python takes as long as the arithmetic."""
    has_heldout_losses: ClassVar[bool] = False
    """Whether it defines :meth:`heldout_losses`."""
    can_search: bool = False
    """Whether it has a model in which :meth:`acting` can search."""
    actor_path: ClassVar[str] = ""
    """Name of the actor module, if it reads observations. ``init_from`` also loads it from other algorithms."""

    def __init__(self, graph: bool = True) -> None:
        super().__init__()
        self.graph = graph
        """Whether updates may be captured, because each does the same work."""
        self.capture_version: object = object()
        """Replaced by a new object to invalidate all earlier captures."""
        self._is_checked = False  # whether all parameters are known to be trained
        self._two_mode_modules: tuple[nn.Module, ...] | None = None  # None: not looked for yet
        self._ramps: dict[PiecewiseLinear, list[Tensor]] = {}  # the tensors that follow each
        self._newest_batch: Batch | None = None  # one that is shared, and so has the shapes that were checked
        self.loss_scale: LossScale | None = None
        """The factor of all losses; None unless networks compute in float16."""
        self.gradient_norms: GradientNorms | None = None
        """The norms of gradients that some updates return; None unless ``grad_norms`` is set."""
        self.position: Callable[[], int] = int
        """Returns the env steps of the run so far, which scheduled settings depend on; 0 outside a run."""

    def set_num_offline(self, windows: int) -> None:
        """Set how many windows of each batch, the first ones, are offline; the rest are online."""

    @property
    def running_statistics(self) -> RunningStatistics | None:
        """The object that updates its statistics with each collected row; None by default."""
        return None

    @property
    def annotator(self) -> RowAnnotator | None:
        """The object that fills an extra column of collected rows once later rows are known; None by default."""
        return None

    @property
    def policy(self) -> Policy[Any]:
        """The policy as trained: :meth:`acting`."""
        return self.acting()

    def acting(self, simulations: int | None = None) -> Policy[Any]:
        """Return the policy, which acts with the newest weights. Subclasses assign it to ``self._policy``.

        ``simulations``: act by tree searches of so many nodes, at least 2; None: as trained. ConfigError: it cannot.
        """
        if self._two_mode_modules is None:  # a config with a custom `build` has made this learner
            self.enter_eval_mode()
        if simulations is None:
            return self._policy
        AtLeast(2).check("simulations", simulations := coerce(simulations, int, "simulations"))
        return self._searching_policy(simulations)

    def _searching_policy(self, simulations: int) -> Policy[Any]:
        raise ConfigError(
            f"{type(self).__name__} does not search. Use an agent of muzero, or of dreamer_v3, plan2explore_v3 or "
            "r2dreamer with one discrete action."
        )

    def update(self, batch: Batch) -> Update:
        """Take one gradient step on a batch on any device. Does not wait for the device; the caller owns the result.

        With several learners, metrics are averaged.

        Raises:
            ConfigError: after the first update, a parameter is in no optimizer.
            DataError: flags of the batch are not bool, or its shapes do not match.
        """
        if batch is not self._newest_batch:
            batch.check(getattr(self, "window", None))
            vars(self)["_newest_batch"] = batch if type(batch) is SharedBatch else None  # a module takes 3 us
        if self._two_mode_modules is None:
            self.enter_eval_mode()
        if self._ramps:
            advance_schedules(self._ramps, self.position())
        is_plain = self._is_checked and not self._two_mode_modules
        step = self.next_step() if self.gradient_norms is None else self.gradient_norms.next_step(self)
        were_flushed, has_gradients = DENORMAL == 0.0, torch.is_grad_enabled()
        torch.set_flush_denormal(True)
        if not has_gradients:  # an environment in this process may have disabled them
            torch.set_grad_enabled(True)
        try:
            update = run_step(self, step, batch) if is_plain else self.run_in_train_mode(step, batch)
        except NoGradientError as error:
            raise error.with_names(self) from None
        finally:
            torch.set_flush_denormal(were_flushed)
            if not has_gradients:
                torch.set_grad_enabled(False)
        if self.loss_scale is not None:
            update = replace(update, metrics={**update.metrics, "opt/loss_scale": self.loss_scale.adjust()})
        return replace(update, metrics=_mean_metrics(update.metrics)) if is_distributed() else update

    def next_step(self) -> TrainStep:
        """Return the method that takes the next step: ``train_step``, unless steps differ in what they compute.

        Each method may be captured separately for each batch shape.
        """
        return self.train_step

    def run_in_train_mode(self, step: TrainStep, batch: Batch) -> Update:
        """Run ``step``, a method of this learner, with modules in train mode; see :meth:`update`."""
        versions = None if self._is_checked else {name: p._version for name, p in self.named_parameters()}
        self._switch(training=True)
        try:
            update = run_step(self, step, batch)
        finally:
            self._switch(training=False)
        if versions is not None:
            check_all_parameters_trained(self, self.optimizers(), versions)
            self._is_checked = True
        return update

    def prepare_batch(self, batch: Batch) -> Batch:
        """Return the argument of :meth:`train_step` for a batch on the learner's device. Default: the batch itself."""
        return batch

    def prepare_rollout(self, batch: Batch) -> Batch:
        """Return the windows of a rollout ``[N, context + T + 1]`` that are sampled. Default: the rollout itself."""
        return batch

    def find_nonfinite_optimizer(self) -> str | None:
        """Return the name of an optimizer with a moment that is not finite, or None: see ``find_bad_moment``."""
        return find_bad_moment(self.optimizers())

    def enter_eval_mode(self) -> None:
        """Put the modules whose behavior depends on the mode into eval mode until the next update.

        Modules that ``__init__`` has put into eval mode stay there. This takes longer than a small update, so it is
        done once: call it again after replacing a module or an optimizer, and after ``train()``. Updates are then
        captured again.
        """
        self.capture_version = object()
        ModuleChanges.note()
        if self.gradient_norms is not None:
            self.gradient_norms.attach(self)
        modules = [module for module in self.modules() if module.training and reads_training_flag(module)]
        previous = [module for module in self._two_mode_modules or () if module not in modules]
        self._two_mode_modules = (*previous, *modules)
        ramps = [(ramp, m.get_buffer(name)) for m in self.modules() for name, ramp in vars(m).get("ramps", {}).items()]
        for optim in self.optimizers().values():
            if isinstance(optim, Optimizer):
                optim.loss_scale = self.loss_scale
                ramps += optim.ramps
        self._ramps = {ramp: [x for key, x in ramps if key == ramp] for ramp, _ in ramps}
        self._switch(training=False)

    def _switch(self, *, training: bool) -> None:
        for module in self._two_mode_modules or ():
            vars(module)["training"] = training  # module.train() would take 1 us for each module below it too

    def state_value(self, output: PolicyOutput) -> Tensor:
        """Return the critic's values of rows ``[N]``, given the policy's output.

        Raises:
            ConfigError: the algorithm does not learn a state-value function.
        """
        raise ConfigError(f"{type(self).__name__} does not learn a state-value function.")

    def goal_distance(self, output: PolicyOutput) -> Tensor:
        """Return the estimated distance of rows to their goals ``[N]``, given the policy's output.

        Raises:
            ConfigError: the algorithm does not estimate distances.
        """
        raise ConfigError(
            f"{type(self).__name__} does not estimate distances to goals. gcivl, hiql, gciql, qrl and lewm do."
        )

    def train_step(self, batch: Batch) -> Update:
        """Take one gradient step on a batch on the learner's device, with the same operations for every batch.

        It must not wait for the device, read a tensor's value in Python or copy from the host. Random numbers must come
        from the device's default generator.
        """
        raise missing_method_error(self, "train_step")

    def exploration(self, env_steps: int) -> float | None:
        """Return the epsilon, or the standard deviation of the action noise, after ``env_steps``; None: neither."""
        return None

    def metrics_warning(self, metrics: Mapping[str, float], largest_reward: Callable[[], float]) -> str:
        """Return a warning about the metrics of a log entry, which a run shows once; "" if there is none.

        ``largest_reward`` returns the largest absolute reward of the run's rows; 0 if it is unknown.
        """
        return ""

    def report(self, batch: Batch) -> dict[str, np.ndarray]:
        """Return videos and curves for the log, by name; none by default."""
        return {}

    def heldout_losses(self, batch: Batch) -> Metrics:
        """Return ``loss/NAME`` of a batch on any device, as an update computes them. Nothing is trained."""
        raise missing_method_error(self, "heldout_losses")

    def dream(self, batch: Batch, context: int) -> dict[str, torch.Tensor]:
        """Return a world model's predictions of all rows: the first ``context`` observed, the rest imagined.

        Names of values without a column in the rows, such as latents, begin with ``INTERNAL_PREFIX``. Observations keep
        their keys (:func:`prediction_name`).
        """
        raise NotImplementedError(f"{type(self).__name__} has no world model, which dreaming needs.")

    def optimizers(self) -> dict[str, AnyOptimizer]:
        """Return each optimizer that this learner and its modules hold as attributes, or in a dictionary.

        Their names end with ``optim``: ``actor_optim`` is ``self.optims["actor"]``.
        """
        optims: dict[str, AnyOptimizer] = {}
        for module_name, module in self.named_modules():
            for key, value in vars(module).items():
                for name, optim in value.items() if isinstance(value, dict) else ((key, value),):
                    if isinstance(optim, AnyOptimizer) and not any(optim is optimizer for optimizer in optims.values()):
                        suffix = "" if name.endswith("optim") else "_optim"
                        optims[f"{module_name}.{name}".lstrip(".") + suffix] = optim
        return optims

    def extra_state(self) -> dict[str, Any]:
        """Return the checkpoint state in addition to parameters, buffers and optimizers, such as Python counters."""
        return {}

    def load_extra_state(self, state: State) -> None:
        """Restore the state that :meth:`extra_state` returned."""

    # The next two narrow torch's overloads on purpose: an algorithm is always the root module, never a child.
    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        """Return ``{"model": parameters and buffers by name, "NAME_optim": moments, ..., **extra_state}``.

        In float16 with ``loss_scale``. A state of another precision can be loaded all the same.
        """
        optims = {name: optim.state_dict() for name, optim in self.optimizers().items()}
        scale = {} if self.loss_scale is None else {"loss_scale": self.loss_scale.state_dict()}
        norms = {} if self.gradient_norms is None else {"num_norm_updates": self.gradient_norms.num_updates}
        return {"model": super().state_dict(), **optims, **scale, **norms, **self.extra_state()}

    def load_state_dict(self, state: State) -> None:  # type: ignore[override]
        """Restore the state that ``state_dict`` returned."""
        super().load_state_dict(state["model"])
        for name, optim in self.optimizers().items():
            optim.load_state_dict(state[name])
        if self.loss_scale is not None and "loss_scale" in state:
            self.loss_scale.load_state_dict(state["loss_scale"])
        if self.gradient_norms is not None:
            self.gradient_norms.num_updates = int(state.get("num_norm_updates", 0))
        self.load_extra_state(state)


@accelerated
def run_step(learner: Algorithm, step: TrainStep, batch: Batch) -> Update:
    """Return ``step(batch)``, a method of ``learner``, for a batch on any device. A kernel captures and replays it."""
    return step(learner.prepare_batch(batch.to(learner.device)))


def _mean_metrics(metrics: Mapping[str, Tensor]) -> Metrics:
    """Return the mean of each metric over all learners."""
    means = mean_across_ranks(torch.stack([value.float() for value in metrics.values()])) if metrics else torch.empty(0)
    return dict(zip(metrics, means.unbind(), strict=True))
