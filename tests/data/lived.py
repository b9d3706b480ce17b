"""A replay, and beside it a plain Python list of everything that was ever added."""

from __future__ import annotations

import torch

from reverie.core.columns import columns_of
from reverie.core.specs import ActionPart, ActionSpec, ExtraPart, ObsPart
from reverie.core.types import Step, Update, Window
from reverie.replay.config import ReplayConfig
from reverie.replay.replay import Replay
from reverie.replay.storage import HostStorage

OBS = {
    "id": ObsPart(kind="vector", shape=(2,), dtype="float32"),
    "pixels": ObsPart(kind="image", shape=(3, 2, 1), dtype="uint8"),
}
ACTION = ActionSpec(parts={"a": ActionPart(kind="categorical", classes=(3,))})
EXTRA = {"deter": ExtraPart(shape=(2,), dtype="float16"), "stoch": ExtraPart(shape=(), dtype="uint8")}


class Lived:
    """A replay, and beside it a naive record: for each stream the list of all its rows."""

    def __init__(
        self,
        streams: int,
        capacity: int,
        window: Window,
        seed: int = 0,
        online: bool = False,
        kind: type = HostStorage,
        config: ReplayConfig | None = None,
    ) -> None:
        self.streams, self.capacity, self.window = streams, capacity, window
        self.where = () if kind is HostStorage else (torch.device("cpu"),)
        self.config = config or ReplayConfig(online=online)
        storage = kind(columns_of(OBS, ACTION, EXTRA), streams, capacity, *self.where)
        self.replay = Replay(storage, window, seed=seed, config=self.config)
        self.rows: list[list[dict]] = [[] for _ in range(streams)]

    def add(self, is_first: list[bool], is_last: list[bool] | None = None) -> None:
        """One more row of each stream."""
        self.replay.add(*self.row(is_first, is_last))

    def row(
        self, is_first: list[bool], is_last: list[bool] | None = None
    ) -> tuple[Step, torch.Tensor, dict[str, torch.Tensor]]:
        """The next row of each stream, noted but not added. Without ``is_last`` no end is known before the next row."""
        t = len(self.rows[0])
        first = [f or t == 0 for f in is_first]
        for i in range(self.streams):
            row = {"id": (i, t), "pixel": (7 * t + i) % 256, "action": (t + i) % 3, "reward": float(10 * t + i)}
            self.rows[i].append({**row, "first": first[i], "deter": float(t % 50), "stoch": (3 * t + i) % 256})
        newest = [stream[-1] for stream in self.rows]
        n = self.streams
        step = Step(
            obs={
                "id": torch.tensor([r["id"] for r in newest], dtype=torch.float32),
                "pixels": torch.tensor([r["pixel"] for r in newest], dtype=torch.uint8)
                .reshape(n, 1, 1, 1)
                .expand(n, 3, 2, 1),
            },
            reward=torch.tensor([r["reward"] for r in newest]),
            is_first=torch.tensor(first),
            is_last=torch.tensor(is_last or [False] * n),
            is_terminal=torch.zeros(n, dtype=torch.bool),
        )
        action = torch.nn.functional.one_hot(torch.tensor([r["action"] for r in newest]), 3).float()
        deter = torch.tensor([[r["deter"], -r["deter"]] for r in newest])
        stoch = torch.tensor([r["stoch"] for r in newest], dtype=torch.uint8)
        return step, action, {"deter": deter, "stoch": stoch}

    def valid(self) -> set[tuple[int, int]]:
        """Every (stream, row) whose window is held, complete and within what may be crossed.

        Free rows in front may be any, or not be there when nothing has been lived before.
        """
        count, rows, free = len(self.rows[0]), self.window.rows, self.window.free
        return {
            (i, t)
            for i in range(self.streams)
            for t in range(max(-free, count - self.capacity), count - rows + 1)
            if self.window.crosses_episodes or not any(r["first"] for r in self.rows[i][t + free + 1 : t + rows])
        }

    def check(self, batch) -> list[tuple[int, int]]:
        """Every sampled window equals consecutive true rows; returns the starts."""
        starts = [(int(h) % self.streams, int(h) // self.streams) for h in batch.index]
        assert batch.shape == (self.window.batch, self.window.rows)
        for b, (i, t) in enumerate(starts):
            assert (i, t) in self.valid()
            truth = [self.rows[i][max(0, row)] for row in range(t, t + self.window.rows)]
            assert batch.obs["id"][b].tolist() == [list(map(float, r["id"])) for r in truth]
            assert batch.obs["pixels"][b, :, 2, 1, 0].tolist() == [r["pixel"] for r in truth]
            assert batch.action[b].argmax(-1).tolist() == [r["action"] for r in truth]
            assert batch.reward[b].tolist() == [r["reward"] for r in truth]
            assert batch.is_first[b].tolist() == [r["first"] for r in truth]
            assert batch.extras["deter"][b].tolist() == [[r["deter"], -r["deter"]] for r in truth]
            assert batch.extras["stoch"][b].tolist() == [r["stoch"] for r in truth]
            assert batch.is_last[b, :-1].tolist() == [r["first"] for r in truth[1:]]
        return starts

    def feedback(self, index: torch.Tensor, length: int, value: int) -> None:
        """Write numbers back to the last ``length`` rows of each window, here and in the record."""
        b = len(index)
        stoch = (torch.arange(b * length).reshape(b, length) + value) % 256
        deter = (stoch % 100).float()
        extras = {"deter": torch.stack([deter, -deter], -1), "stoch": stoch.to(torch.uint8)}
        self.replay.feedback(index, Update(metrics={}, extras=extras))
        oldest = max(0, len(self.rows[0]) - self.capacity)
        for k, handle in enumerate(index.tolist()):
            i, t = handle % self.streams, handle // self.streams
            for j in range(length):
                row = t + self.window.rows - length + j
                if row >= oldest:
                    self.rows[i][row] |= {"stoch": int(stoch[k, j]), "deter": float(deter[k, j])}
