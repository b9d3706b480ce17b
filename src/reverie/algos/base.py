"""What every algorithm and its configuration have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from reverie.algos.capture import Captured, CudaGraphs, Tapes, TrainStep
from reverie.core.config import Config, at_least, check_pattern
from reverie.core.errors import ConfigError
from reverie.core.protocols import Policy, Watcher
from reverie.core.specs import ActionSpec, ExtraPart, ObsSpec
from reverie.core.types import Batch, State, Update, Window
from reverie.nn.adam import Adam
from reverie.nn.normalise import Normalise
from reverie.nn.preprocess import Preprocessor
from reverie.nn.rewards import RewardScale
from reverie.objectives.estimators import GAE, TD1, TDLambda

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(Config):
    """Settings that every algorithm has."""

    needs_data: ClassVar[bool] = False
    """Whether it was made for recorded data. It may live all the same, and learn from what it lived itself."""

    batch_size: int = 16
    """B, windows in a batch."""
    batch_length: int = 64
    """T, rows of each window that are learned from."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What networks compute in. Parameters, losses and optimisers stay float32."""
    graph: bool = True
    """Capture updates and replay them: on CUDA devices as CUDA graphs, on CPUs as tapes if the algorithm is
    model-free. What is computed does not change."""

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.batch_length < 2:
            raise ConfigError(
                f"batch_size = {self.batch_size}, batch_length = {self.batch_length}: expected at least 1 and 2."
            )

    def check_run(self, *, random_steps: int, learning_starts: int, frame_stack: int) -> None:
        """Refuse settings that do not fit those of the run: its first steps, and what its environments stack.

        Raises:
            ConfigError: they do not.
        """

    def check_data(self, *, recorded: bool, lived: bool) -> None:
        """Refuse to learn where what is learned from is missing: rows that were recorded, or that are lived meanwhile.

        Raises:
            ConfigError: it is.
        """

    @abstractmethod
    def build(self, obs_spec: ObsSpec, action_spec: ActionSpec, device: str = "cpu", seed: int = 0) -> Algorithm:
        """A learner for these observations and actions."""


@dataclass(frozen=True, kw_only=True)
class ModelFreeConfig(AlgorithmConfig):
    """Settings of agents whose networks see observations as they are: what is done to those before."""

    normalise: Normalise | None = None
    """Vectors less their mean, over their standard deviation: fixed(1000) by the first 1000 rows, running by all."""
    frames: int = 1
    """The last so many frames of images are seen together. They are made of rows, which hold one frame each."""
    frame_keys: str = ""
    """A pattern of whole keys: which observations `frames` stacks. All images unless given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, frames=1)
        if self.frame_keys and self.frames == 1:
            raise ConfigError(f"frame_keys = {self.frame_keys!r}, frames = 1: give frames, how many of them to stack.")
        check_pattern(self, "frame_keys")

    def check_run(self, *, random_steps: int, learning_starts: int, frame_stack: int) -> None:
        """See :class:`AlgorithmConfig`. Statistics that are to be fixed must be so before anybody acts or learns."""
        wanted = 0 if self.normalise is None else self.normalise.limit or 0
        if wanted > min(random_steps, learning_starts):
            assert self.normalise is not None
            raise ConfigError(
                f"algo.normalise = {self.normalise.text()}, random_steps = {random_steps}, learning_starts = "
                f"{learning_starts}: the policy would act, or learn, on observations whose statistics are not fixed "
                f"yet. Raise both to {wanted} or more, or give algo.normalise = running, which needs none."
            )
        if self.frames > 1 and frame_stack > 1:
            raise ConfigError(
                f"algo.frames = {self.frames}, env.frame_stack = {frame_stack}: that would be stacks of stacks. Give "
                "one of them; algo.frames needs as little memory as no stack at all."
            )

    def where_vectors(self, obs_spec: ObsSpec) -> Self:
        """The same, but without ``normalise`` if there are no vectors: where it is a default, that is no mistake."""
        vectors = any(part.kind == "vector" for part in obs_spec.values())
        return self if vectors or self.normalise is None else replace(self, normalise=None)

    def preprocessor(self, obs_spec: ObsSpec) -> Preprocessor:
        """What these settings make of rows.

        Raises:
            ConfigError: there is nothing to normalise or to stack.
        """
        return Preprocessor(obs_spec, normalise=self.normalise, frames=self.frames, frame_keys=self.frame_keys)


@dataclass(frozen=True, kw_only=True)
class ValueConfig(ModelFreeConfig):
    """Settings of model-free agents that learn what rewards are worth."""

    discount: float = 0.99
    """Gamma."""
    reward_scale: RewardScale | None = None
    """What rewards are multiplied by where they are learned from: factor(0.1), or return_std for one over the standard
    deviation of discounted returns. Rows and scores keep the true ones."""

    def check_run(self, *, random_steps: int, learning_starts: int, frame_stack: int) -> None:
        """See :class:`ModelFreeConfig`. An estimator that looks ahead must have something to look at."""
        super().check_run(random_steps=random_steps, learning_starts=learning_starts, frame_stack=frame_stack)
        estimator = getattr(self, "value_estimator", None)
        if self.batch_length == 2 and isinstance(estimator, TD1 | TDLambda | GAE):
            raise ConfigError(
                f"algo.value_estimator = {estimator.text()}, algo.batch_length = 2: in windows of one transition there "
                "is nothing to look ahead to, and this would be td0. Give algo.batch_length = 3 or more, or say td0."
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
"""How names begin of what a world model holds, beside its predictions."""


class Algorithm(nn.Module):
    """A learner as a module: its state is its parameters, its buffers and what :meth:`extra_state` adds.

    A subclass writes :meth:`train_step`. All that it changes must be changed in place, so that a captured update finds
    it where it was; ``load_state_dict`` copies for the same reason.
    """

    window: Window
    extra_spec: Mapping[str, ExtraPart]
    device: torch.device
    tapes: ClassVar[bool] = False
    """Whether updates are captured on CPUs too: where Python takes as long as the numbers."""

    def __init__(self, graph: bool = True) -> None:
        """``graph``: whether updates are captured."""
        super().__init__()
        self.graph = graph
        self._captured: dict[str, Captured | None] = {}

    @property
    def watcher(self) -> Watcher | None:
        """Who wants to be told of the rows that are lived; nobody by default."""
        return None

    @property
    def policy(self) -> Policy[Any]:
        """The policy that acts with the newest weights."""
        raise NotImplementedError

    def update(self, batch: Batch) -> Update:
        """One gradient step on a batch from anywhere. Does not wait for the device; what it returns is the caller's."""
        return self.run_step(self.train_step, batch)

    def run_step(self, step: TrainStep, batch: Batch) -> Update:
        """``step``, a method of this learner such as ``train_step``, on a batch from anywhere.

        Each such method is captured on its own for batches of one shape (``algos/capture.py``).
        """
        on_gpu = self.device.type == "cuda"
        if not self.graph or not (on_gpu or (self.tapes and self.device.type == "cpu")):
            return step(batch.to(self.device))
        captured = self._captured.get(step.__name__)
        if captured is None:  # also in a copied learner
            state = [*self.parameters(), *self.buffers()]
            captured = Captured(step, self.device, CudaGraphs(self.device) if on_gpu else Tapes(), state)
            self._captured[step.__name__] = captured
        return captured(batch)

    def train_step(self, batch: Batch) -> Update:
        """One gradient step on a batch that lies on the learner's device: the same operations for every batch.

        Nothing in here may wait for the device, read a number in Python or copy from the host, and random numbers come
        from the device's default generator.
        """
        raise NotImplementedError

    def report(self, batch: Batch) -> dict[str, np.ndarray]:
        """Videos and curves to look at now and then; none by default."""
        return {}

    def dream(self, batch: Batch, context: int) -> dict[str, torch.Tensor]:
        """World models: predictions of all rows, the first ``context`` seen and the rest imagined.

        What is not about a column of the rows, such as latents, has a name that begins with ``INSIDE``.
        """
        raise NotImplementedError(f"{type(self).__name__} has no world model to dream with.")

    def extra_state(self) -> dict[str, Any]:
        """What a checkpoint must hold beside parameters and buffers: optimisers, counters."""
        return {}

    def load_extra_state(self, state: State) -> None:
        """Take back what :meth:`extra_state` gave."""

    # The next two narrow torch's overloads on purpose: an algorithm is the root of its modules, never a child.
    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        """``{"model": parameters and buffers by name, **extra_state}``."""
        return {"model": super().state_dict(), **self.extra_state()}

    def load_state_dict(self, state: State) -> None:  # type: ignore[override]
        """Become what ``state_dict`` described."""
        super().load_state_dict(state["model"])
        self.load_extra_state(state)


class ModelFree(Algorithm):
    """A learner whose networks see rows after a :class:`~reverie.nn.preprocess.Preprocessor`.

    A subclass builds its networks for ``self.preprocess.spec``, hands its policy to ``self.preprocess.policy`` and
    begins its ``train_step`` with ``batch = self.preprocess(batch)``. Checkpoints hold ``self.optims``; one with other
    state says so in :meth:`extra_state`.
    """

    tapes = True

    def __init__(self, obs_spec: ObsSpec, cfg: ModelFreeConfig, device: torch.device) -> None:
        super().__init__(cfg.graph)
        self.device = device
        self.preprocess = cfg.preprocessor(obs_spec)
        self.window = self.preprocess.window(cfg.batch_size, cfg.batch_length)
        self.extra_spec = {}
        self.optims: dict[str, Adam] = {}

    @property
    def within_range(self) -> Callable[[Tensor], Tensor] | None:
        """What brings values into the range that rewards allow, if the settings want that."""
        return None if self.preprocess.range is None else self.preprocess.range.forward

    @property
    def watcher(self) -> Watcher | None:
        """The preprocessor, if it has statistics of rows."""
        return self.preprocess.watcher

    def renew(self) -> None:
        """Be the learner that another run begins with: learning rates that fall begin to fall again."""
        for optim in self.optims.values():
            optim.renew()

    def extra_state(self) -> dict[str, Any]:
        """The moments of the optimisers."""
        return {f"{name}_optim": optim.state_dict() for name, optim in self.optims.items()}

    def load_extra_state(self, state: State) -> None:
        """Take the moments back."""
        for name, optim in self.optims.items():
            optim.load_state_dict(state[f"{name}_optim"])
