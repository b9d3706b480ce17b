"""What every algorithm and its configuration have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from reverie.algos.capture import Captured, CudaGraphs
from reverie.core.config import Config
from reverie.core.errors import ConfigError
from reverie.core.protocols import Policy
from reverie.core.specs import ActionSpec, ExtraPart, ObsSpec
from reverie.core.types import Batch, State, Update, Window

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(Config):
    """Settings that every algorithm has."""

    batch_size: int = 16
    """B, windows in a batch."""
    batch_length: int = 64
    """T, rows of each window that are learned from."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What networks compute in. Parameters, losses and optimisers stay float32."""
    graph: bool = True
    """On CUDA devices, run updates as a CUDA graph. What is computed does not change."""

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.batch_length < 2:
            raise ConfigError(
                f"batch_size = {self.batch_size}, batch_length = {self.batch_length}: expected at least 1 and 2."
            )

    @abstractmethod
    def build(self, obs_spec: ObsSpec, action_spec: ActionSpec, device: str = "cpu", seed: int = 0) -> Algorithm:
        """A learner for these observations and actions."""


class Algorithm(nn.Module):
    """A learner as a module: its state is its parameters, its buffers and what :meth:`extra_state` adds.

    A subclass writes :meth:`train_step`. All that it changes must be changed in place, so that a captured update finds
    it where it was; ``load_state_dict`` copies for the same reason.
    """

    window: Window
    extra_spec: Mapping[str, ExtraPart]
    device: torch.device

    def __init__(self, graph: bool = True) -> None:
        """``graph``: whether updates on a CUDA device are captured."""
        super().__init__()
        self.graph = graph
        self._captured: Captured | None = None

    @property
    def policy(self) -> Policy[Any]:
        """The policy that acts with the newest weights."""
        raise NotImplementedError

    def update(self, batch: Batch) -> Update:
        """One gradient step on a batch from anywhere, without waiting for the device. What it returns is the caller's.

        On a CUDA device, batches of one shape are learned from by replaying a graph (``algos/capture.py``).
        """
        if not self.graph or self.device.type != "cuda":
            return self.train_step(batch.to(self.device))
        if self._captured is None:
            state = [*self.parameters(), *self.buffers()]
            self._captured = Captured(self.train_step, self.device, CudaGraphs(self.device), state)
        return self._captured(batch)

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
        """World models: predictions of all rows, the first ``context`` seen and the rest imagined."""
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
