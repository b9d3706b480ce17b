"""What the scripts of offline peers share: the recorded episodes, the work, and how a policy is asked for its actions.

Imported inside of the peers' own environments, so it knows nothing but h5py, NumPy and torch. The policy is judged by
``offline_peers.py``, which plays the episodes and asks for actions through the pipes of this process: everybody meets
the same environments, whatever is installed here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import h5py
import numpy as np
import torch
from offline_pipe import receive, send

LEAST = 1e-6
"""Standard deviations are taken to be no smaller than this."""
COPY_EVERY = 500
"""Updates after which targets are copied, where that is how they move: that of Tianshou's small problems."""
SAMPLES = 10
"""Of BCQ's targets: the paper."""


@dataclass(frozen=True)
class Episode:
    """T steps as they were recorded, but for units."""

    obs: np.ndarray
    """``[T + 1, D]`` float32, normalized."""
    action: np.ndarray
    """``[T, A]`` float32 in [-1, 1], or ``[T]`` int64."""
    reward: np.ndarray
    """``[T]`` float32."""
    terminated: bool
    """Whether it ended by itself; by the clock otherwise."""


@dataclass(frozen=True)
class Recorded:
    """A dataset, normalized for everybody alike, and how to get there and back."""

    episodes: Sequence[Episode]
    mean: np.ndarray
    """``[D]`` of the observations."""
    std: np.ndarray
    """``[D]``."""
    bounds: tuple[np.ndarray, np.ndarray] | None
    """``[A]`` each, of continuous actions."""
    actions: int
    """A, or how many there are to choose from."""

    @property
    def discrete(self) -> bool:
        """Whether actions are a choice."""
        return self.bounds is None

    def seen(self, obs: np.ndarray) -> np.ndarray:
        """``[N, D]`` as the networks see it."""
        out: np.ndarray = ((obs - self.mean) / self.std).astype(np.float32)
        return out

    def done(self, action: np.ndarray) -> np.ndarray:
        """``[N, A]`` in [-1, 1], or ``[N]``, as the environment takes it."""
        if self.bounds is None:
            return action.astype(np.int64).reshape(-1)
        low, high = self.bounds
        out: np.ndarray = (low + (np.clip(action, -1, 1) + 1) / 2 * (high - low)).astype(np.float32)
        return out


def read(path: Path) -> Recorded:
    """The Minari dataset at ``path``, kept in HDF5, of vectors and of bounded or discrete actions."""
    about = json.loads((path / "data" / "metadata.json").read_text())
    space = json.loads(about["action_space"])
    with h5py.File(path / "data" / "main_data.hdf5") as file:
        found = [{key: value[...] for key, value in file[f"episode_{i}"].items() if isinstance(value, h5py.Dataset)}
                 for i in range(about["total_episodes"])]  # fmt: skip
    every = np.concatenate([each["observations"] for each in found]).astype(np.float64)
    mean, std = every.mean(0), np.maximum(every.std(0), LEAST)
    bounds = None if space["type"] == "Discrete" else (np.array(space["low"]), np.array(space["high"]))

    def action(taken: np.ndarray) -> np.ndarray:
        if bounds is None:
            return taken.astype(np.int64) - int(space.get("start", 0))
        low, high = bounds
        scaled: np.ndarray = ((taken - low) / (high - low) * 2 - 1).astype(np.float32)
        return scaled

    episodes = [
        Episode(((each["observations"] - mean) / std).astype(np.float32), action(each["actions"]),
                each["rewards"].astype(np.float32), bool(each["terminations"][-1])) for each in found
    ]  # fmt: skip
    return Recorded(episodes, mean, std, bounds, int(space["n"]) if bounds is None else len(space["low"]))


@dataclass(frozen=True)
class Work:
    """What is to be learned, and with what: see ``offline_work.py``."""

    algorithm: str
    units: tuple[int, ...]
    lr: float
    batch: int
    discount: float
    vae: tuple[int, ...]
    """The layers of BCQ's model of actions."""
    quantiles: int = 64
    """Of discrete CQL."""


Update = Callable[[], object]
Act = Callable[[np.ndarray], np.ndarray]
"""The best actions ``[N, A]`` or ``[N]`` for normalized observations ``[N, D]``."""
Build = Callable[[Work, Recorded], tuple[Update, Act]]


def main(build: Build, package: str) -> None:
    """Train, say in a line of JSON that it is done, then answer observations with actions while anybody asks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("algorithm")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--units", type=int, nargs="+", required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--discount", type=float, default=0.99)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints
    sys.stdout = sys.stderr
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)  # noqa: NPY002  # what peers draw from
    recorded = read(args.data)
    wide = tuple(2 * units for units in args.units)
    work = Work(args.algorithm, tuple(args.units), args.lr, args.batch, args.discount, wide)
    update, act = build(work, recorded)
    for _ in range(args.updates):
        update()
    said = {name: version(name) for name in ("torch", package)}
    answer.write(json.dumps(said).encode() + b"\n")
    answer.flush()
    while (obs := receive(sys.stdin.buffer)) is not None:
        send(answer, recorded.done(act(recorded.seen(obs))))
