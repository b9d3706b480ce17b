"""Random seeds: every generator of a run is derived from one seed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from reverie.core.types import State


def derived_seeds(seed: int, start: int = 0, rank: int = 0) -> dict[str, int]:
    """Return a seed for each random component. The first four do not depend on ``start``, nor on the learner's rank.

    Evaluations during training use ``evaluation``, the confirmation of ``stop_score`` uses ``confirmation``, the final
    one ``test``.
    """
    fixed = np.random.SeedSequence(seed, spawn_key=(0,)).generate_state(4)
    moving = np.random.SeedSequence(seed, spawn_key=(1, start, rank) if rank else (1, start)).generate_state(4)
    names = ("algo", "evaluation", "test", "confirmation", "global", "env", "replay", "collector")
    return {name: int(value) // 2 for name, value in zip(names, [*fixed, *moving], strict=True)}


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and PyTorch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - environments of others use it
    torch.manual_seed(seed)


@contextlib.contextmanager
def seeded_rng(seed: int) -> Iterator[None]:
    """Seed the global generators within the context, and restore their states afterwards."""
    with preserve_rng_state():
        seed_everything(seed)
        yield


@contextlib.contextmanager
def preserve_pytorch_settings() -> Iterator[None]:
    """Restore PyTorch's number of threads, and how cuDNN chooses, when the context ends."""
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


@contextlib.contextmanager
def preserve_rng_state() -> Iterator[None]:
    """Save the states of the global random generators, and restore them on exit."""
    generators = RngState()
    saved_state = generators.state_dict()
    try:
        yield
    finally:
        generators.load_state_dict(saved_state)


class RngState:
    """States of the global generators of Python, NumPy and PyTorch, as a part of a checkpoint."""

    def state_dict(self) -> State:
        """Return the states of all global generators."""
        state: dict[str, Any] = {
            "python": random.getstate(),
            "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 - environments of others use it
            "cpu": torch.get_rng_state(),
        }
        if torch.cuda.is_available():
            state["cuda"] = {str(i): s for i, s in enumerate(torch.cuda.get_rng_state_all())}
        return state

    def load_state_dict(self, state: State) -> None:
        """Restore the states; skip GPUs that this machine does not have."""
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])  # noqa: NPY002
        torch.set_rng_state(state["cpu"])
        for index, saved in state.get("cuda", {}).items():
            if int(index) < torch.cuda.device_count():
                torch.cuda.set_rng_state(saved, int(index))


class GeneratorState:
    """A part of a checkpoint with a generator; everything else of it follows from the rows."""

    rng: np.random.Generator

    def state_dict(self) -> State:
        """Return the state of the generator."""
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        """Restore a saved state; the storage must contain the same rows."""
        self.rng.bit_generator.state = dict(state["rng"])
