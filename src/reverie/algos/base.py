"""Base classes of algorithms and of their configurations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from reverie.algos.complete import bad_moment, check_complete, check_saved, check_trained, written
from reverie.core.checks import at_least, check_pattern
from reverie.core.config import Config
from reverie.core.discover import algorithm_name
from reverie.core.errors import ConfigError, brief, unwritten
from reverie.core.protocols import Hindsight, Policy, Watcher
from reverie.core.specs import ActionSpec, ExtraPart, ObsSpec
from reverie.core.types import Batch, State, Update, Window
from reverie.nn.normalise import Normalise
from reverie.nn.optim import Adam, Loss, TrainStep, gradients, run
from reverie.nn.preprocess import Preprocessor
from reverie.nn.rewards import RewardScale
from reverie.objectives.estimators import ValueEstimator
from reverie.objectives.td import Losses

ONE_MODE = (nn.Linear, nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ELU, nn.ReLU, nn.LeakyReLU, nn.SiLU, nn.Tanh)
"""Modules of PyTorch in the learners here. Many others have one mode too; switching those does no harm."""


def has_two_modes(module: nn.Module) -> bool:
    """Return whether ``module`` might read its flag ``training``, which none of this library does.

    One with hooks might as well: ``torch.nn.utils.spectral_norm`` is a hook that reads the flag.
    """
    kind = type(module)
    known = kind in ONE_MODE or kind.__module__.partition(".")[0] == "reverie"
    return not known or bool(module._forward_hooks or module._forward_pre_hooks)


def switch(modules: Iterable[nn.Module], *, training: bool) -> None:
    """Set the flag of these modules alone. ``module.train()`` would take 1 us for each module below them too."""
    for module in modules:
        vars(module)["training"] = training


PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw weights from ``seed`` within, and restore PyTorch's CPU generator afterwards.

    Weights are drawn on the CPU. So, unlike ``torch.manual_seed``, this leaves the generators of GPUs alone.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def building(seed: int) -> Iterator[None]:
    """Make a learner within, with float32 weights drawn from ``seed``, whatever PyTorch's default dtype and mode are.

    Tensors made in inference mode do not count writes, by which copies of weights in other layouts are kept up to date.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with seeded(seed), torch.inference_mode(False):
            yield
    finally:
        torch.set_default_dtype(default)


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(Config):
    """Settings that every algorithm has.

    Raises:
        ConfigError: a setting is out of range. All subclasses check their settings when they are made.
    """

    learner: ClassVar[type[Any]]
    """Class of the learner, made as ``learner(obs_spec, action_spec, config, device)``. It is defined after its
    configuration, and so assigned there: ``MyConfig.learner = MyLearner``."""
    action_kinds: ClassVar[frozenset[str]] = frozenset()
    """Kinds of action spaces that it learns (``nn/actor_critic.py: kind_of``). Errors about actions name the algorithms
    that fit by this, so one that does not say is not named."""
    needs_data: ClassVar[bool] = False
    """Whether the algorithm is meant for recorded data. It may collect rows itself all the same."""

    batch_size: int = 16
    """B, windows in a batch."""
    batch_length: int = 64
    """T, rows of each window that the losses cover, context rows not counted."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Dtype that networks compute in. Parameters, losses and optimisers stay float32."""
    graph: bool = True
    """Capture updates and replay them: as CUDA graphs on CUDA devices; on CPUs as tapes (recorded calls), for
    model-free algorithms only. The results are the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size < 1 or self.batch_length < 2:
            raise ConfigError(
                f"batch_size = {self.batch_size}, batch_length = {self.batch_length}: expected batch_size >= 1 and "
                "batch_length >= 2."
            )

    @property
    def algorithm(self) -> str:
        """Name of the algorithm on the command line, such as ``dreamer_v3``; ``module:Class`` for your own."""
        return algorithm_name(type(self))

    def check_run(self, *, random_steps: int, learning_starts: int, frame_stack: int) -> None:
        """Raise ConfigError unless the settings fit those of the run.

        Args:
            random_steps: env steps taken by random actions first.
            learning_starts: windows that are collected before the first update.
            frame_stack: frames that the environments stack themselves.
        """

    def check_data(self, *, recorded: bool, lived: bool) -> None:
        """Raise ConfigError if a source of rows that the algorithm needs is missing.

        Args:
            recorded: whether the run has recorded data.
            lived: whether the run collects rows in an environment.
        """

    def build(self, obs_spec: ObsSpec, action_spec: ActionSpec, device: str = "cpu", seed: int = 0) -> Algorithm:
        """Return a learner for these observations and actions, its weights drawn from ``seed`` and nothing else.

        Raises:
            ConfigError: the settings do not fit the observations, the algorithm is not for such actions, or it has no
                learner.
        """
        if not hasattr(self, "learner"):
            name = type(self).__name__
            raise ConfigError(f"{name} does not say what it builds: set {name}.learner to the class of your learner.")
        with building(seed):
            learner: Algorithm = self.learner(obs_spec, action_spec, self.for_obs(obs_spec), torch.device(device))
        if isinstance(learner, Algorithm):
            learner.rest()
        return learner

    def for_obs(self, obs_spec: ObsSpec) -> Self:
        """Return these settings without defaults that do not fit the observations."""
        return self


@dataclass(frozen=True, kw_only=True)
class ModelFreeConfig(AlgorithmConfig):
    """Settings of model-free agents: how observations are preprocessed."""

    normalise: Normalise | None = None
    """Normalise vectors, (x - mean) / std: by the first 1000 rows with fixed(1000), by all rows with running."""
    frames: int = 1
    """Number of latest frames that the networks see together. The replay stores each frame once."""
    frame_keys: str = ""
    """Regular expression of the observation keys that `frames` stacks, matched in full. Empty: all images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, frames=1)
        if self.frame_keys and self.frames == 1:
            raise ConfigError(
                f"frame_keys = {self.frame_keys!r}, frames = 1: set frames to the number of frames to stack."
            )
        check_pattern(self, "frame_keys")

    def check_run(self, *, random_steps: int, learning_starts: int, frame_stack: int) -> None:
        """See :class:`AlgorithmConfig`. ``normalise = fixed(n)`` needs its n rows before the policy acts or learns."""
        wanted = 0 if self.normalise is None else self.normalise.limit or 0
        if wanted > min(random_steps, learning_starts):
            assert self.normalise is not None
            raise ConfigError(
                f"algo.normalise = {self.normalise.text()}, random_steps = {random_steps}, learning_starts = "
                f"{learning_starts}: the policy would act or learn before the statistics of observations are fixed. "
                f"Raise both to at least {wanted}, or use algo.normalise = running, which does not need this."
            )
        if self.frames > 1 and frame_stack > 1:
            raise ConfigError(
                f"algo.frames = {self.frames}, env.frame_stack = {frame_stack}: frames would be stacked twice. Set "
                "only one of them; algo.frames uses less memory because the replay stores each frame once."
            )

    def for_obs(self, obs_spec: ObsSpec) -> Self:
        """See :class:`AlgorithmConfig`. Without ``normalise`` if it is a default and no observation is a vector."""
        vectors = any(part.kind == "vector" for part in obs_spec.values())
        asked = type(self).__dataclass_fields__["normalise"].default is None  # then it is no default of the algorithm
        return self if vectors or asked or self.normalise is None else replace(self, normalise=None)

    def preprocessor(self, obs_spec: ObsSpec) -> Preprocessor:
        """Return the preprocessor of rows that these settings describe.

        Raises:
            ConfigError: there is nothing to normalise or to stack.
        """
        return Preprocessor(obs_spec, normalise=self.normalise, frames=self.frames, frame_keys=self.frame_keys)


@dataclass(frozen=True, kw_only=True)
class ValueConfig(ModelFreeConfig):
    """Settings of model-free agents that learn values."""

    in_units_of_values: ClassVar[str] = ""
    """Name of a setting in units of values, so that its default fits rewards near 1 only; "" if there is none."""

    discount: float = 0.99
    """Discount factor gamma per agent step, in [0, 1]."""
    reward_scale: RewardScale | None = None
    """Multiply rewards in the losses: by a constant with factor(0.1), or with return_std by one over the standard
    deviation of discounted returns. Stored rows and scores keep the true rewards."""

    def check_run(self, *, random_steps: int, learning_starts: int, frame_stack: int) -> None:
        """See :class:`ModelFreeConfig`. An estimator of several steps needs windows of more than one transition."""
        super().check_run(random_steps=random_steps, learning_starts=learning_starts, frame_stack=frame_stack)
        estimator = getattr(self, "value_estimator", None)
        if self.batch_length == 2 and isinstance(estimator, ValueEstimator) and estimator.whole_window:
            raise ConfigError(
                f"algo.value_estimator = {estimator.text()}, algo.batch_length = 2: windows of a single transition "
                "leave nothing to look ahead to, so this equals td0. Set algo.batch_length to at least 3, or use td0."
            )

    def preprocessor(self, obs_spec: ObsSpec) -> Preprocessor:
        """See :class:`ModelFreeConfig`."""
        return Preprocessor(
            obs_spec,
            normalise=self.normalise,
            frames=self.frames,
            frame_keys=self.frame_keys,
            reward_scale=self.reward_scale,
            discount=self.discount,
            bound_values=getattr(self, "bound_values", False),
        )


INSIDE = "inside/"
"""Prefix of the names of a world model's latents and values in :meth:`Algorithm.dream`, beside its predictions."""


def dreamt_name(key: str) -> str:
    """Return the name of an observation in :meth:`Algorithm.dream`: its key, after ``obs/`` if another has that name.

    The others are ``reward``, ``cont`` and what begins with ``INSIDE``.
    """
    bare = re.sub("^(obs/)*", "", key)  # obs/reward would be the name of the observation reward, so it becomes another
    return f"obs/{key}" if bare in ("reward", "cont") or bare.startswith(INSIDE) else key


class Algorithm(nn.Module):
    """A learner as a module: its state is its parameters, its buffers and what :meth:`extra_state` adds.

    A subclass implements :meth:`train_step`. It must change all state in place, as a captured update goes on using the
    same memory; ``load_state_dict`` copies for the same reason.

    Modules that behave differently while they learn, such as dropout and batch norm, are in eval mode, and in train
    mode only within :meth:`run_step`: acting, evaluations, dreams and reports neither drop nor change statistics.
    """

    window: Window
    extra_spec: Mapping[str, ExtraPart]
    device: torch.device
    _policy: Policy[Any]
    tapes: ClassVar[bool] = False
    """Whether updates are captured on CPUs too; it pays where Python takes as long as the arithmetic."""

    def __init__(self, graph: bool = True) -> None:
        """``graph``: whether updates are captured."""
        super().__init__()
        self.graph = graph
        self.since = object()  # see nn/optim.py: Learner
        self._checked = False
        self._two_moded: tuple[nn.Module, ...] | None = None  # None: not looked for yet

    def expect_recorded(self, windows: int) -> None:
        """Note how many windows of each batch, the first ones, are recorded; the others were collected."""

    @property
    def watcher(self) -> Watcher | None:
        """The object that must see each collected row, to keep statistics; None by default."""
        return None

    @property
    def hindsight(self) -> Hindsight | None:
        """The object that fills an extra column of collected rows when later rows are known; None by default."""
        return None

    @property
    def policy(self) -> Policy[Any]:
        """The policy, which acts with the newest weights: what a subclass has assigned to ``self._policy``.

        Raises:
            ConfigError: there is none, or it was assigned to ``self.policy``.
        """
        if "policy" in self._modules:  # PyTorch puts a module there, and this property hides it
            raise ConfigError(f"{type(self).__name__}: assign the policy to self._policy, not to self.policy.")
        if not hasattr(self, "_policy"):
            raise ConfigError(
                f"{type(self).__name__} has no policy: assign one to self._policy in its __init__, for example "
                "self.preprocess.policy(GreedyPolicy(...), device)."
            )
        if self._two_moded is None:  # a config with a `build` of its own has made this learner
            self.rest()
        return self._policy

    def update(self, batch: Batch) -> Update:
        """Take one gradient step on a batch on any device. Does not wait for the device; the caller owns the result."""
        found: object = self.run_step(self.train_step, batch)
        if isinstance(found, Update):
            return found
        raise ConfigError(
            f"{type(self).__name__}.train_step returned {brief(found)}: expected "
            "reverie.core.types.Update(metrics={'loss/critic': ...})."
        )

    def run_step(self, step: TrainStep, batch: Batch) -> Update:
        """Run ``step``, a method of this learner such as ``train_step``, on a batch on any device.

        Each such method may be captured separately, for each shape of batch (``kernels/capture.py``). Within, modules
        are in train mode: see :meth:`rest`.

        Raises:
            ConfigError: the class forgot something, which shows after the first update (``algos/complete.py``).
            DataError: the batch has flags that are not bool, or shapes that do not fit.
        """
        batch.check(getattr(self, "window", None))
        if self._two_moded is None:
            self.rest()
        if self._checked:
            return self._in_train_mode(step, batch)
        before = written(self)
        found = self._in_train_mode(step, batch)
        self._check_complete()
        check_trained(self, before)
        check_saved(self, self.extra_state())
        self._checked = True
        return found

    def _check_complete(self) -> None:
        """Raise ConfigError if a kind of learner needs something that this one lacks; called after its first update."""

    def bad_moment(self) -> str | None:
        """Return the name of a parameter whose moments in an optimiser are NaN or infinite, or None. Reads all."""
        return bad_moment(self)

    def rest(self) -> None:
        """Put the modules that learn in train mode, and differ in it, into eval mode until :meth:`run_step`.

        Those that ``__init__`` has put into eval mode stay there. Done once, as looking at all modules takes longer
        than a small update: call it again after replacing a module or an optimiser, and after ``train()``. Updates are
        then captured anew.
        """
        self.since = object()
        found = [module for module in self.modules() if module.training and has_two_modes(module)]
        kept = [module for module in self._two_moded or () if module not in found]
        self._two_moded = (*kept, *found)
        switch(self._two_moded, training=False)

    def _in_train_mode(self, step: TrainStep, batch: Batch) -> Update:
        if not self._two_moded:
            return run(self, step, batch)
        switch(self._two_moded, training=True)
        try:
            return run(self, step, batch)
        finally:
            switch(self._two_moded, training=False)

    def train_step(self, batch: Batch) -> Update:
        """Take one gradient step on a batch on the learner's device, with the same operations for every batch.

        It must not wait for the device, read a tensor's value in Python or copy from the host. Random numbers must come
        from the device's default generator.
        """
        raise unwritten(self, "train_step")

    def report(self, batch: Batch) -> dict[str, np.ndarray]:
        """Return videos and curves for the log, by name; none by default."""
        return {}

    def dream(self, batch: Batch, context: int) -> dict[str, torch.Tensor]:
        """Return a world model's predictions of all rows: the first ``context`` observed, the rest imagined.

        Names of values that are no column of the rows, such as latents, begin with ``INSIDE``. Those of observations
        are their keys (:func:`dreamt_name`).

        Raises:
            NotImplementedError: the algorithm has no world model.
        """
        raise NotImplementedError(f"{type(self).__name__} has no world model, which dreaming needs.")

    def extra_state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold beside parameters and buffers: optimisers, counters."""
        return {}

    def load_extra_state(self, state: State) -> None:
        """Restore what :meth:`extra_state` returned."""

    # The next two narrow torch's overloads on purpose: an algorithm is always the root module, never a child.
    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        """Return ``{"model": parameters and buffers by name, **extra_state}``."""
        return {"model": super().state_dict(), **self.extra_state()}

    def load_state_dict(self, state: State) -> None:  # type: ignore[override]
        """Restore what ``state_dict`` returned."""
        super().load_state_dict(state["model"])
        self.load_extra_state(state)


class ModelFree(Algorithm):
    """A learner whose networks see rows after a :class:`~reverie.nn.preprocess.Preprocessor`.

    A subclass builds its networks for ``self.preprocess.spec``, wraps its policy in ``self.preprocess.policy`` and
    begins its ``train_step`` with ``batch = self.preprocess(batch)``. Checkpoints hold ``self.optims``; a learner with
    more state adds it in :meth:`extra_state`.
    """

    tapes = True

    def __init__(self, obs_spec: ObsSpec, cfg: ModelFreeConfig, device: torch.device) -> None:
        super().__init__(cfg.graph)
        self.device = device
        self.preprocess = cfg.preprocessor(obs_spec)
        self.window = self.preprocess.window(cfg.batch_size, cfg.batch_length)
        self.extra_spec = {}
        self.optims: dict[str, Adam] = {}

    def _check_complete(self) -> None:
        """Raise ConfigError if it forgot preprocessing that the settings ask for, or to save an optimiser."""
        check_complete(self, self.optims, self.preprocess, self.extra_state())

    @property
    def within_range(self) -> Callable[[Tensor], Tensor] | None:
        """The function that clips values to the returns that the rewards allow; None unless ``bound_values`` is set."""
        return None if self.preprocess.range is None else self.preprocess.range.forward

    @property
    def watcher(self) -> Watcher | None:
        """The preprocessor, if it keeps statistics of rows; else None."""
        return self.preprocess.watcher

    def minimise(self, loss: Loss, *inputs: Any) -> Losses:
        """Take a gradient step on each term of ``loss(*inputs)`` that has an optimiser. Return the losses before it."""
        losses, found = gradients(loss, self.optims, *inputs)
        for name, gradient in found.items():
            self.optims[name].apply(gradient)
        return losses

    def renew(self) -> None:
        """Prepare this trained learner for the start of another run: decaying learning rates start over."""
        for optim in self.optims.values():
            optim.renew()

    def extra_state(self) -> dict[str, Any]:
        """Return the moments of all optimisers."""
        return {f"{name}_optim": optim.state_dict() for name, optim in self.optims.items()}

    def load_extra_state(self, state: State) -> None:
        """Restore the moments of all optimisers."""
        for name, optim in self.optims.items():
            key = f"{name}_optim"
            # Learners with a single optimiser called it "optim" in checkpoints of before.
            optim.load_state_dict(state["optim" if key not in state and "optim" in state else key])
