"""Several ways of sampling windows in one batch, and the importance weights that correct for priorities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from reverie.core.bounds import AtLeast
from reverie.core.config import Config
from reverie.core.errors import ConfigError
from reverie.core.types import State
from reverie.replay.priorities import Prioritised
from reverie.replay.sampling import Component


@dataclass(frozen=True, kw_only=True)
class FractionsConfig(Config):
    """Fractions of windows drawn in each way, 0 or more. Only their ratios count: they are normalised to sum to 1."""

    uniform: Annotated[float, AtLeast(0)] = 1.0
    """Fraction drawn uniformly."""
    priority: Annotated[float, AtLeast(0)] = 0.0
    """Fraction drawn by priority (prioritized experience replay, `replay.priority`)."""
    recency: Annotated[float, AtLeast(0)] = 0.0
    """Fraction drawn with a preference for newer windows (`replay.recency_exponent`)."""
    ends: Annotated[float, AtLeast(0)] = 0.0
    """Fraction drawn with a preference for ends of episodes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.total == 0:
            raise ConfigError(
                f"replay.fractions.uniform = {self.uniform}, and all others are 0 too: expected at least one above 0."
            )

    @property
    def total(self) -> float:
        """Sum of all fractions."""
        return float(sum(self.to_dict().values()))

    def shares(self) -> dict[str, float]:
        """Return the fractions above 0, normalised to sum to 1."""
        return {name: value / self.total for name, value in self.to_dict().items() if value > 0}


class Mixture:
    """Draws each window with one of several samplers, chosen with fixed probabilities."""

    def __init__(self, parts: Mapping[str, tuple[float, Component]], rng: np.random.Generator) -> None:
        """Mix ``parts``: ``(probability, sampler)`` by name; the probabilities sum to 1."""
        self.samplers = {name: sampler for name, (_, sampler) in parts.items()}
        self.alone = next(iter(self.samplers.values())) if len(self.samplers) == 1 else None
        self.shares = np.array([share for share, _ in parts.values()])
        self.rng = rng
        self.listens = any(sampler.listens for sampler in self.samplers.values())
        priority = self.samplers.get("priority")
        self.priority = priority if isinstance(priority, Prioritised) else None

    def add(self, fresh: np.ndarray, lived: bool = True) -> None:
        """See ``Sampler``."""
        for sampler in self.samplers.values():
            sampler.add(fresh, lived)

    def clear(self) -> None:
        """See ``Sampler``."""
        for sampler in self.samplers.values():
            sampler.clear()

    def draw(self, count: int) -> Tensor:
        """Return ``count`` handles, grouped by sampler."""
        if self.alone is not None:
            return self.alone.draw(count)
        counts = self.rng.multinomial(count, self.shares).tolist()
        return torch.cat([sampler.draw(n) for sampler, n in zip(self.samplers.values(), counts, strict=True)])

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """Return the probability ``[B]`` of each of ``handles`` ``[B]`` in one draw."""
        if self.alone is not None:
            return self.alone.probability(handles)
        each = [sampler.probability(handles) for sampler in self.samplers.values()]
        probability: np.ndarray = self.shares @ np.stack(each)
        return probability

    def weights(self, handles: np.ndarray) -> np.ndarray:
        """Return importance weights ``[B]`` float64: ``(1 / (M q))^beta`` over their maximum; 1 without priorities.

        q is the probability under the whole mixture, M the number of windows (Schaul et al. 2016, section 3.4).
        """
        if self.priority is None or not len(handles):
            return np.ones(len(handles))
        probability, beta = self.probability(handles), self.priority.beta()
        self.priority.drawn += len(handles)
        weights: np.ndarray = (probability.min() / probability) ** beta
        return weights

    def state_dict(self) -> State:
        """Return the states of all samplers, and of the generator that chooses among them."""
        return {
            "rng": self.rng.bit_generator.state,
            "samplers": {name: dict(sampler.state_dict()) for name, sampler in self.samplers.items()},
        }

    def load_state_dict(self, state: State) -> None:
        """See ``Sampler``. Samplers that ``state`` does not have stay as they are."""
        self.rng.bit_generator.state = dict(state["rng"])
        for name, sampler in self.samplers.items():
            if name in state.get("samplers", {}):
                sampler.load_state_dict(state["samplers"][name])
