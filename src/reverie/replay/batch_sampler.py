"""Choosing the windows of each batch: the batch sampler mixes the samplers that the settings name.

It also registers new rows with ``FirstFlags``, ``Windows`` and the samplers (invariant 5 of ``windows.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.core.types import State, Window
from reverie.replay.config import BatchSamplerConfig
from reverie.replay.prioritized import PrioritizedSampler
from reverie.replay.samplers import (
    EpisodeEndSampler,
    OnlineQueue,
    RecencySampler,
    Sampler,
    SequentialSampler,
    UniformSampler,
    check_draws,
)
from reverie.replay.storage import Storage
from reverie.replay.windows import FirstFlags, Windows


class BatchSampler:
    """Tracks the windows of a storage and draws B at a time: first from the online queue, then by mixed samplers."""

    def __init__(
        self, storage: Storage, window: Window, seed: int, config: BatchSamplerConfig, online: bool = True
    ) -> None:
        """Sample windows of ``storage``, which is still empty. ``online`` False: no online queue for new rows."""
        self.storage = storage
        self.window = window
        self.rng: np.random.Generator = np.random.default_rng(seed)
        windows = Windows(storage, window.rows, window.num_free_rows, window.crosses_episodes)
        self.windows: Windows = windows
        self.flags: FirstFlags = FirstFlags(storage)
        makers: dict[str, Callable[[np.random.Generator], Sampler]] = {
            "uniform": lambda rng: UniformSampler(windows, rng),
            "priority": lambda rng: PrioritizedSampler(windows, rng, config.priority),
            "recency": lambda rng: RecencySampler(windows, rng, config.recency_exponent),
            "episode_ends": lambda rng: EpisodeEndSampler(windows, rng, self.flags),
        }
        rngs = {name: np.random.default_rng([seed, i]) for i, name in enumerate(makers)}
        shares = config.fractions.normalize()
        self.shares: np.ndarray = np.array(list(shares.values()))
        self.samplers: dict[str, Sampler] = {name: makers[name](rngs[name]) for name in shares}
        self.sequence: SequentialSampler | None = None  # the sampler of whole episodes, instead of all others
        if config.sequential:
            chance = window.length / (2 * config.reset_interval) if config.reset_interval else 0.0
            self.sequence = SequentialSampler(windows, np.random.default_rng(seed), self.flags, window, chance)
            self.samplers = {"sequential": self.sequence}
        elif config.sampler is not None:
            self.samplers = {"custom": check_draws(config.sampler.build(windows, np.random.default_rng(seed)))}
        self.priorities: PrioritizedSampler | None = next(
            (sampler for sampler in self.samplers.values() if isinstance(sampler, PrioritizedSampler)), None
        )
        """The sampler that receives priorities, if windows are drawn by them."""
        self.listens: bool = any(sampler.listens for sampler in self.samplers.values())
        queued = online and config.online_queue and not config.sequential
        self.online: OnlineQueue | None = OnlineQueue(windows, window.stride) if queued else None

    @property
    def state_resets(self) -> np.ndarray | None:
        """Mask ``[B]`` of the latest windows that do not continue a carried state; None if no state is carried."""
        return self.sequence.resets if self.sequence is not None and self.window.carries else None

    def _all(self) -> dict[str, Sampler]:
        return self.samplers if self.online is None else {**self.samplers, "online": self.online}

    def add(self, is_first: np.ndarray, is_last: np.ndarray, collected: bool) -> None:
        """Register ``n`` more rows of each stream, ``[N, n]``, already stored. See ``Sampler.add``."""
        self.flags.add(is_first, is_last)
        new = self.windows.add(is_first)
        for sampler in self._all().values():
            sampler.add(new, collected)

    def add_one(self, is_first: list[bool], is_last: list[bool]) -> None:
        """Register one newly collected row of each of N streams; faster than ``add``."""
        new = self.windows.add_one(is_first)
        if self.online is not None:
            self.online.add_one(new)
        if self.listens:
            self.flags.add_one(is_first, is_last)
            for sampler in self.samplers.values():
                sampler.add(np.array(new, np.int64), True)

    def clear(self) -> None:
        """Forget all windows: the storage is empty now."""
        self.windows.clear()
        for sampler in self._all().values():
            sampler.clear()

    def draw(self, count: int | None = None, out: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return ``count`` handles (None: B) and their importance weights, 1 for the online queue; None: all are 1.

        ``out``: see ``Sampler.draw``.
        """
        batch = self.window.batch if count is None else count
        queued = self.online.draw_queued(batch) if self.online is not None and self.online.queue else []
        new = len(queued)
        if len(self.samplers) == 1:  # independent draws: some are replaced, as joining tensors takes 15 us
            handles = next(iter(self.samplers.values())).draw(batch, out)
            if new:
                handles.numpy()[:new] = queued[0] if new == 1 else queued  # a list takes longer
        else:
            counts = self.rng.multinomial(batch - new, self.shares).tolist()
            drawn = [sampler.draw(n) for sampler, n in zip(self.samplers.values(), counts, strict=True)]
            handles = torch.cat([torch.tensor(queued, dtype=torch.int64, device="cpu"), *drawn])
        if self.priorities is None:
            return handles, None
        weights = np.ones(batch, np.float32)
        if new < batch:  # importance weights (1 / P)^beta over the batch maximum: Schaul et al. 2016, 3.4
            probability = self.probability(handles.numpy()[new:])
            weights[new:] = (probability.min() / probability) ** self.priorities.beta()
            self.priorities.drawn += batch - new
        return handles, torch.from_numpy(weights)

    def probability(self, handles: np.ndarray) -> np.ndarray:
        """Return the probability ``[B]`` of each of ``handles`` ``[B]`` in one draw, without the online queue."""
        return np.asarray(self.shares @ np.stack([sampler.probability(handles) for sampler in self.samplers.values()]))

    def state_dict(self) -> State:
        """Return the states of all samplers, and the layout of the storage that their handles refer to."""
        states: dict[str, Any] = {name: dict(sampler.state_dict()) for name, sampler in self.samplers.items()}
        if self.sequence is None:
            states = {"mixture": {"rng": self.rng.bit_generator.state, "samplers": states}}
        online = {} if self.online is None else {"online": dict(self.online.state_dict())}
        return {"rows": self._layout(), "samplers": states | online}

    def load_state_dict(self, state: State) -> bool:
        """Restore the samplers in ``state`` if the storage contains the same rows. Return whether it does."""
        if state["rows"] != self._layout():
            return False
        states = state["samplers"]
        if "mixture" in states:
            self.rng.bit_generator.state = dict(states["mixture"]["rng"])
            states = {**states, **states["mixture"]["samplers"]}
        for name, sampler in self._all().items():
            if name in states:
                sampler.load_state_dict(states[name])
        return True

    def _layout(self) -> dict[str, Any]:
        """Return the numbers on which the meaning of handles and windows depends."""
        window, storage = self.window, self.storage
        return {"count": storage.count, "streams": storage.streams, "length": window.rows,
                "crosses": window.crosses_episodes, "free": window.num_free_rows}  # fmt: skip
