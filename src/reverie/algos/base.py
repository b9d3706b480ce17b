"""What every algorithm and its configuration have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

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

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.batch_length < 2:
            raise ConfigError(
                f"batch_size = {self.batch_size}, batch_length = {self.batch_length}: expected at least 1 and 2."
            )

    @abstractmethod
    def build(self, obs_spec: ObsSpec, action_spec: ActionSpec, device: str = "cpu", seed: int = 0) -> Algorithm:
        """A learner for these observations and actions."""


class Algorithm(nn.Module):
    """A learner as a module: its state is its parameters, its buffers and what :meth:`extra_state` adds."""

    window: Window
    extra_spec: Mapping[str, ExtraPart]
    device: torch.device

    @property
    def policy(self) -> Policy[Any]:
        """The policy that acts with the newest weights."""
        raise NotImplementedError

    def update(self, batch: Batch) -> Update:
        """One gradient step."""
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
