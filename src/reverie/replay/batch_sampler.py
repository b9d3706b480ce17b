"""Choosing the windows of each batch: the batch sampler combines the samplers that the settings name.

It also registers new rows with ``Beginnings``, ``Starts`` and the samplers (invariant 5 of ``replay/window_index.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from reverie.core.bounds import AtLeast
from reverie.core.config import Config
from reverie.core.errors import ConfigError
from reverie.core.types import State, Window
from reverie.replay.mixture import FractionsConfig, Mixture
from reverie.replay.priorities import Prioritised, PriorityConfig
from reverie.replay.sampling import Component, Ends, OnlineQueue, Recency, Sampler, Uniform
from reverie.replay.sequence import Sequence
from reverie.replay.storage import Storage
from reverie.replay.window_index import AllStarts, Beginnings, EpisodeStarts, Starts


@dataclass(frozen=True, kw_only=True)
class BatchSamplerConfig(Config):
    """How the windows of a batch are chosen."""

    online: bool = True
    """Sample every newly collected window once, before windows drawn at random. No effect with `sequence`."""
    fractions: FractionsConfig = field(default_factory=FractionsConfig)
    """Fractions of all other windows that each way of sampling draws."""
    priority: PriorityConfig = field(default_factory=PriorityConfig)
    """Settings of prioritised sampling."""
    recency_exponent: Annotated[float, AtLeast(0)] = 1.0
    """Exponent, 0 or more, of `fractions.recency`: a window of age a has a probability of about (1 + a)^-exponent."""
    sequence: bool = False
    """Read whole episodes in order and carry the state on (truncated backpropagation through time), instead of all
    these ways."""
    reset_interval: Annotated[int, AtLeast(0)] = 0
    """With `sequence` and `algo.carry`: reset the state in the middle of episodes too, at the beginning of a window of
    T rows with probability T / (2 reset_interval); 0: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequence and self.fractions.shares() != {"uniform": 1.0}:
            raise ConfigError(
                f"replay.sequence = True, replay.fractions = {self.fractions.to_dict()}: with "
                "replay.sequence whole episodes are read in order, so no fractions apply. Set only one of the two."
            )

    def check(self, window: Window) -> None:
        """Raise ConfigError if a setting has no meaning for an algorithm that learns from ``window``.

        Raises:
            ConfigError: `sequence` without a state that is carried, or the other way round; or priorities for an
                algorithm that gives none.
        """
        if self.sequence and window.context == window.free and not window.carries:
            raise ConfigError(
                "replay.sequence = True, but the algorithm's windows have no context rows to carry state: expected "
                "algo.replay_context of 1 or more, algo.carry = True, or another algorithm that carries state."
            )
        if window.carries and not self.sequence:
            raise ConfigError(
                "algo.carry = True, but the next batch does not go on where the last one ended: set replay.sequence = "
                "True as well."
            )
        if self.reset_interval and not window.carries:
            raise ConfigError(
                f"replay.reset_interval = {self.reset_interval}: expected 0, or algo.carry = True and replay.sequence "
                "= True, as there is no state to reset otherwise."
            )
        if self.fractions.priority and not window.gives_priorities:
            raise ConfigError(
                f"replay.fractions.priority = {self.fractions.priority}, but the algorithm computes no priorities, "
                "so all windows would be sampled alike: expected 0, or an algorithm with a critic or a world model."
            )


class BatchSampler:
    """Keeps track of the windows of a storage and draws B of them at a time."""

    def __init__(self, rows: Storage, window: Window, seed: int, config: BatchSamplerConfig) -> None:
        """Draw windows of ``rows``, a storage that is still empty."""
        self.rows, self.window = rows, window
        starts = AllStarts if window.crosses_episodes else EpisodeStarts
        self.starts: Starts = starts(rows, window.rows, window.free)
        self.beginnings = Beginnings(rows)
        self.sampler = self._sequence(config, seed) if config.sequence else self._mixture(config, seed)
        online = config.online and not config.sequence
        self.online = OnlineQueue(self.starts, rows, window.rows, window.free) if online else None
        self.in_sequence = config.sequence
        """Whether a window starts from the state that the learner wrote back to the window before."""
        self.priorities = self.sampler.priority if isinstance(self.sampler, Mixture) else None
        """The sampler that receives priorities, if windows are drawn by them."""
        self.samplers: dict[str, Sampler] = {"sequence" if config.sequence else "mixture": self.sampler}
        """All samplers, by their names in checkpoints."""
        if self.online is not None:
            self.samplers["online"] = self.online

    def _sequence(self, config: BatchSamplerConfig, seed: int) -> Sequence:
        chance = self.window.length / (2 * config.reset_interval) if config.reset_interval else 0.0
        rng = np.random.default_rng(seed)
        return Sequence(self.starts, rng, self.rows, self.beginnings, self.window, chance)

    @property
    def resets(self) -> np.ndarray | None:
        """Which of the windows drawn last do not go on from a carried state, ``[B]``; None if no state is carried."""
        return self.sampler.resets if self.window.carries and isinstance(self.sampler, Sequence) else None

    def _mixture(self, config: BatchSamplerConfig, seed: int) -> Mixture:
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

    def add(self, is_first: np.ndarray, is_last: np.ndarray, lived: bool) -> None:
        """Register ``n`` more rows of each stream, ``[N, n]``, already stored. See ``Sampler.add``."""
        self.beginnings.add(is_first, is_last)
        fresh = self.starts.add(is_first)
        for sampler in self.samplers.values():
            sampler.add(fresh, lived)

    def add_one(self, is_first: list[bool], is_last: list[bool]) -> None:
        """Register one newly collected row of each of N streams; faster than ``add``."""
        fresh = self.starts.add_one(is_first)
        if self.online is not None:
            self.online.add_one(fresh)
        if self.sampler.listens:
            self.beginnings.add_one(is_first, is_last)
            self.sampler.add(np.array(fresh, np.int64), True)

    def clear(self) -> None:
        """Forget all windows: the storage is empty now."""
        self.starts.clear()
        for sampler in self.samplers.values():
            sampler.clear()

    def draw(self) -> tuple[Tensor, Tensor | None]:
        """Return handles ``[B]`` and importance weights ``[B]`` float32, or None in place of weights that are all 1.

        New windows from the online queue, each drawn once, have the weight 1.
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
        """Return the states of all samplers, and the shape of the storage that gives their handles a meaning."""
        states = {name: dict(sampler.state_dict()) for name, sampler in self.samplers.items()}
        return {"rows": self._rows(), "samplers": states}

    def load_state_dict(self, state: State) -> bool:
        """Restore all samplers if the storage holds the same rows, else only their generators. Return whether it does.

        Samplers that ``state`` does not have stay as they are.
        """
        same: bool = state.get("rows") == self._rows()
        for name, sampler in self.samplers.items():
            if name in state["samplers"]:
                whole = state["samplers"][name]
                sampler.load_state_dict(whole if same else generators_of(whole))
        return same

    def _rows(self) -> dict[str, Any]:
        """Return what must be equal for handles and windows to mean the same."""
        window, rows = self.window, self.rows
        known = {"count": rows.count, "streams": rows.streams, "length": window.rows}
        return known | {"crosses": window.crosses_episodes} | ({"free": window.free} if window.free else {})


def generators_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a sampler's state that does not depend on the rows: its generators."""
    kept = {key: value for key, value in state.items() if key == "rng"}
    if "samplers" in state:
        kept["samplers"] = {name: generators_of(inner) for name, inner in state["samplers"].items()}
    return kept
