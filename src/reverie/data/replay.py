"""The replay: takes rows as they are lived and deals them out again in windows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reverie.core.config import Config
from reverie.core.errors import ConfigError, RunError
from reverie.core.specs import ActionSpec, ExtraPart, ObsSpec
from reverie.core.types import Batch, State, Step, Update, Window
from reverie.data.device import storage_on
from reverie.data.sampling import AllStarts, EpisodeStarts, OnlineQueue, Sampler, Starts, Uniform
from reverie.data.storage import HostStorage, Storage, as_numpy, columns_of


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(Config):
    """A replay in memory."""

    capacity: int = 1_000_000
    """Rows to keep, all streams together; the oldest make room for new ones."""
    online: bool = True
    """Deal out every newly lived window once before drawing at random from all of them."""
    device: str = "cpu"
    """Where rows are kept: cpu, or cuda if all of them fit on the GPU that learns from them."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"replay.device = '{self.device}': expected cpu, cuda or cuda:<number>.")
        if self.capacity < 1:
            raise ConfigError(f"replay.capacity = {self.capacity}: expected a number of rows, 1 or more.")

    def build(
        self,
        *,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        extra_spec: Mapping[str, ExtraPart],
        num_envs: int,
        window: Window,
        seed: int,
    ) -> Replay:
        """A replay of ``num_envs`` streams that deals out batches of ``window``.

        Raises:
            ConfigError: a stream cannot hold one window, or the memory or the device cannot be had.
        """
        per_stream = self.capacity // num_envs
        if per_stream < window.rows:
            raise ConfigError(
                f"replay.capacity = {self.capacity} rows over {num_envs} envs is {per_stream} rows for each, but a "
                f"window has {window.rows} ({window.context} context + {window.length}): "
                f"expected replay.capacity of at least {window.rows * num_envs}."
            )
        columns = columns_of(obs_spec, action_spec, extra_spec)
        storage = storage_on(self.device, columns, num_envs, per_stream)
        return Replay(storage, window, seed=seed, online=self.online)


class Replay:
    """Rows of N streams, in memory, dealt out in windows. A ``Source`` and a ``RowSink``."""

    def __init__(self, storage: Storage, window: Window, *, seed: int, online: bool) -> None:
        """``storage`` is empty; its columns are named as by ``storage.columns_of``."""
        self.window, self.storage = window, storage
        streams = storage.streams
        kind = AllStarts if window.crosses_episodes else EpisodeStarts
        self.starts: Starts = kind(streams, storage.capacity, window.rows)
        self.samplers: list[Sampler] = [Uniform(self.starts, seed)]
        if online:
            self.samplers.insert(0, OnlineQueue(streams, window.rows))
        self.pending: list[tuple[np.ndarray, dict[str, Tensor], torch.cuda.Event]] = []
        names = list(storage.specs)
        self.obs_names = {name: name.removeprefix("obs/") for name in names if name.startswith("obs/")}
        self.extra_names = {name: name.removeprefix("extras/") for name in names if name.startswith("extras/")}

    def __len__(self) -> int:
        """Valid window starts, which is what the authors count before they begin to learn."""
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """Bytes that the replay takes once it is full."""
        return self.storage.nbytes

    def add(self, step: Step, action: Tensor, extras: Mapping[str, Tensor]) -> None:
        """One row for each of N streams: what was seen, the action ``[N, A]`` taken then, and the policy's extras.

        Raises:
            DataError: on the first call only: a column is missing, unknown or of another shape.
        """
        rows = {f"obs/{key}": value for key, value in step.obs.items()}
        rows["action"], rows["reward"] = action, step.reward
        rows["is_first"], rows["is_last"], rows["is_terminal"] = step.is_first, step.is_last, step.is_terminal
        for key, value in extras.items():
            rows[f"extras/{key}"] = value
        self.storage.add(rows)
        fresh = self.starts.add(step.is_first.numpy())
        oldest = self.storage.oldest * self.storage.streams
        for sampler in self.samplers:
            sampler.add(fresh, oldest)

    def sample(self) -> Batch:
        """B windows of T rows, copied out of the storage, on its device; ``index`` is on the CPU, where it is needed.

        Raises:
            RunError: there is no complete window yet.
        """
        if len(self) == 0:
            raise self._too_few()
        handles = np.empty(0, np.int64)
        for sampler in self.samplers:
            handles = np.concatenate([handles, sampler.draw(self.window.batch - len(handles))])
        rows = self.storage.gather(handles, self.window.rows)
        # A stream may have been cut without a last row: nothing must be bootstrapped over that seam either.
        rows["is_last"][:, :-1] |= rows["is_first"][:, 1:]
        return Batch(
            obs={key: rows[name] for name, key in self.obs_names.items()},
            action=rows["action"],
            reward=rows["reward"],
            is_first=rows["is_first"],
            is_last=rows["is_last"],
            is_terminal=rows["is_terminal"],
            weight=torch.ones(len(handles), device=rows["reward"].device),
            index=torch.from_numpy(handles),
            extras={key: rows[name] for name, key in self.extra_names.items()},
        )

    def feedback(self, index: Tensor, update: Update) -> None:
        """Write ``update.extras`` ``[B, T', ...]`` to the last T' rows of the windows ``index`` ``[B]``.

        Rows evicted meanwhile are skipped; where windows overlap, the later one in the batch holds.

        Rows in this computer's memory get extras of a GPU one feedback later. The host would have to wait for the
        update otherwise, while it could be sampling the next batch; that batch sees latents one update older, always
        and whatever the timing, as nothing but the next feedback writes them.
        """
        self.flush()
        extras = {key: value.detach() for key, value in update.extras.items()}
        if isinstance(self.storage, HostStorage) and any(value.is_cuda for value in extras.values()):
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has not typed it
            copies = {key: pinned_copy(value) for key, value in extras.items()}
            event.record()
            self.pending.append((as_numpy(index), copies, event))
        else:
            self._write(as_numpy(index), extras)

    def flush(self) -> None:
        """Write what feedback has left pending."""
        for handles, extras, event in self.pending:
            event.synchronize()
            self._write(handles, extras)
        self.pending.clear()

    def _write(self, handles: np.ndarray, extras: Mapping[str, Tensor]) -> None:
        for key, value in extras.items():
            self.storage.write(f"extras/{key}", handles, self.window.rows - value.shape[1], value)

    def state_dict(self) -> State:
        """The samplers' generators. Rows are not part of it: a replay that is loaded starts empty.

        What feedback has left pending stays so, or a run would depend on when it is saved.
        """
        return {"samplers": {type(sampler).__name__: dict(sampler.state_dict()) for sampler in self.samplers}}

    def load_state_dict(self, state: State) -> None:
        """Draw on with the saved generators."""
        for sampler in self.samplers:
            sampler.load_state_dict(state["samplers"].get(type(sampler).__name__, sampler.state_dict()))

    def _too_few(self) -> RunError:
        rows, needed = self.storage.count, self.window.rows
        if rows < needed:
            return RunError(f"the replay has {rows} rows of each stream, a window needs {needed}: collect more first.")
        return RunError(
            f"no episode has had the {needed} rows of a window yet, and windows may not cross the end of an episode: "
            "collect longer episodes or choose shorter windows."
        )


def pinned_copy(value: Tensor) -> Tensor:
    """A copy on the host that arrives in its own time; the device goes on working."""
    if not value.is_cuda:
        return value
    host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    return host.copy_(value, non_blocking=True)
