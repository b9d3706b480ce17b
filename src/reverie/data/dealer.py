"""Who decides which windows make the next batch: all samplers of a replay, put together as its settings say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.core.config import Config
from reverie.core.errors import ConfigError
from reverie.core.types import State, Window
from reverie.data.mixture import FractionsConfig, Mixture
from reverie.data.priorities import Prioritised, PriorityConfig
from reverie.data.sampling import Component, Ends, OnlineQueue, Recency, Sampler, Uniform
from reverie.data.sequence import Sequence
from reverie.data.starts import AllStarts, Beginnings, EpisodeStarts, Starts
from reverie.data.storage import Storage


@dataclass(frozen=True, kw_only=True)
class DealerConfig(Config):
    """How the windows of a batch are chosen."""

    online: bool = True
    """Deal out every newly lived window once before drawing at random from all of them. Not with `sequence`."""
    fractions: FractionsConfig = field(default_factory=FractionsConfig)
    """How large a part of all other windows is drawn in which way."""
    priority: PriorityConfig = field(default_factory=PriorityConfig)
    """How priorities are used."""
    recency_exponent: float = 1.0
    """How fast `fractions.recency` forgets: the window of age a has a probability of about (1 + a)^-exponent."""
    sequence: bool = False
    """Whole episodes in their order with carried state (truncated backpropagation through time) instead of all that."""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.recency_exponent) and self.recency_exponent >= 0):
            raise ConfigError(f"replay.recency_exponent = {self.recency_exponent}: expected a number, 0 or more.")
        if self.sequence and self.fractions.shares() != {"uniform": 1.0}:
            raise ConfigError(
                f"replay.sequence = True, replay.fractions = {self.fractions.to_dict()}: whole episodes in their order "
                "leave nothing to be drawn in other ways. Give one of the two."
            )

    def check(self, window: Window) -> None:
        """These ways must mean something to an algorithm that learns from ``window``.

        Raises:
            ConfigError: one of them does not.
        """
        if self.sequence and window.context == window.free:
            raise ConfigError(
                "replay.sequence = True, but the algorithm's windows have no context rows, by which state would be "
                "carried: expected algo.replay_context of 1 or more, or an algorithm that carries a state."
            )
        if self.fractions.priority and not window.gives_priorities:
            raise ConfigError(
                f"replay.fractions.priority = {self.fractions.priority}, but the algorithm never says how much is left "
                "to learn from a window, so all would be drawn alike: expected 0, or an algorithm with a critic or a "
                "world model."
            )


class Dealer:
    """Keeps track of the windows of ``rows`` and draws B of them at a time."""

    def __init__(self, rows: Storage, window: Window, seed: int, config: DealerConfig) -> None:
        """``rows`` are empty."""
        self.rows, self.window = rows, window
        crosses = window.crosses_episodes
        self.starts: Starts = AllStarts(rows, window.rows) if crosses else EpisodeStarts(rows, window.rows, window.free)
        self.beginnings = Beginnings(rows)
        self.sampler = self._sequence(seed) if config.sequence else self._mixture(config, seed)
        online = config.online and not config.sequence
        self.online = OnlineQueue(self.starts, rows, window.rows, window.free) if online else None
        self.in_sequence = config.sequence
        """Whether windows start from what was learned of those before."""
        self.priorities = self.sampler.priority if isinstance(self.sampler, Mixture) else None
        """Where priorities go, if any windows are drawn by them."""
        self.samplers: dict[str, Sampler] = {"sequence" if config.sequence else "mixture": self.sampler}
        """All of them by the name under which they are saved."""
        if self.online is not None:
            self.samplers["online"] = self.online

    def _sequence(self, seed: int) -> Sequence:
        return Sequence(self.starts, np.random.default_rng(seed), self.rows, self.beginnings, self.window)

    def _mixture(self, config: DealerConfig, seed: int) -> Mixture:
        starts, rows = self.starts, self.rows
        makers: dict[str, Callable[[np.random.Generator], Component]] = {
            "uniform": lambda rng: Uniform(starts, rng),
            "priority": lambda rng: Prioritised(starts, rng, rows, config.priority),
            "recency": lambda rng: Recency(starts, rng, config.recency_exponent),
            "ends": lambda rng: Ends(starts, rng, rows, self.beginnings, self.window.rows, self.window.free),
        }
        generators = {name: np.random.default_rng([seed, i]) for i, name in enumerate(makers)}
        shares = config.fractions.shares()
        parts = {name: (share, makers[name](generators[name])) for name, share in shares.items()}
        return Mixture(parts, np.random.default_rng(seed))

    def add(self, is_first: np.ndarray, lived: bool) -> None:
        """Take note of ``n`` more rows of each stream, ``[N, n]``, already stored. See ``Sampler.add``."""
        self.beginnings.add(is_first)
        fresh = self.starts.add(is_first)
        for sampler in self.samplers.values():
            sampler.add(fresh, lived)

    def add_one(self, is_first: list[bool]) -> None:
        """``add`` of one row of each of N streams, just lived, as happens all the time."""
        fresh = self.starts.add_one(is_first)
        if self.online is not None:
            self.online.add_one(fresh)
        if self.sampler.listens:
            self.beginnings.add_one(is_first)
            self.sampler.add(np.array(fresh, np.int64), True)

    def clear(self) -> None:
        """The storage holds nothing any more."""
        self.starts.clear()
        for sampler in self.samplers.values():
            sampler.clear()

    def draw(self) -> tuple[Tensor, Tensor | None]:
        """Handles ``[B]`` and importance weights ``[B]`` float32, None if all are 1.

        Those of new windows, which come once, are 1.
        """
        batch = self.window.batch
        fresh = self.online.draw(batch) if self.online is not None and self.online.queue else None
        new = 0 if fresh is None else len(fresh)
        drawn = self.sampler.draw(batch - new)
        handles = drawn if fresh is None else torch.cat([fresh, drawn])
        if not isinstance(self.sampler, Mixture) or self.priorities is None:
            return handles, None
        weights = np.ones(batch, np.float32)
        weights[new:] = self.sampler.weights(drawn.numpy())
        return handles, torch.from_numpy(weights)

    def state_dict(self) -> State:
        """Of all samplers, and what their handles mean."""
        states = {name: dict(sampler.state_dict()) for name, sampler in self.samplers.items()}
        return {"rows": self._rows(), "samplers": states}

    def load_state_dict(self, state: State) -> bool:
        """Draw on as before if the same rows are here already, else with the generators only; whether they are.

        Samplers that there were not stay as they are.
        """
        same: bool = state.get("rows") == self._rows()
        for name, sampler in self.samplers.items():
            if name in state["samplers"]:
                whole = state["samplers"][name]
                sampler.load_state_dict(whole if same else generators_of(whole))
        return same

    def _rows(self) -> dict[str, Any]:
        """Handles are the same only for as many rows and streams, and windows only if they are as long."""
        window, rows = self.window, self.rows
        known = {"count": rows.count, "streams": rows.streams, "length": window.rows}
        return known | {"crosses": window.crosses_episodes} | ({"free": window.free} if window.free else {})


def generators_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a sampler's state that has a meaning without the rows."""
    kept = {key: value for key, value in state.items() if key == "rng"}
    if "samplers" in state:
        kept["samplers"] = {name: generators_of(inner) for name, inner in state["samplers"].items()}
    return kept
