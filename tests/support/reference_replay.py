"""A replay, and beside it a plain Python list of everything that was ever added."""

import torch

from reverie.core.columns import row_columns
from reverie.core.specs import ActionPart, ActionSpec, ColumnSpec, ObsPart
from reverie.core.types import Step, Update
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.config import ReplayConfig
from reverie.replay.storage import HostStorage

OBS = {
    "id": ObsPart(kind="vector", shape=(2,), dtype="float32"),
    "pixels": ObsPart(kind="image", shape=(3, 2, 1), dtype="uint8"),
}
ACTION = ActionSpec(parts={"a": ActionPart(kind="categorical", classes=(3,))})
EXTRA = {"deter": ColumnSpec(shape=(2,), dtype="float16"), "stoch": ColumnSpec(shape=(), dtype="uint8")}


class Lived:
    """A replay, and beside it a naive record: for each stream the list of all its rows."""

    def __init__(self, streams, capacity, window, seed=0, kind=HostStorage, config=None):
        self.streams, self.capacity, self.window = streams, capacity, window
        self.where = () if kind is HostStorage else (torch.device("cpu"),)
        self.config = config or ReplayConfig(online_queue=False)
        storage = kind(row_columns(OBS, ACTION, EXTRA), streams, capacity, *self.where)
        self.replay = ReplayBuffer(storage, window, seed=seed, config=self.config)
        self.rows = [[] for _ in range(streams)]

    def add(self, is_first, is_last=None):
        """One more row of each stream."""
        self.replay.add(*self.row(is_first, is_last))

    def row(self, is_first, is_last=None):
        """The next row of each stream, noted but not added. Without ``is_last`` no end is known before the next row."""
        t, n = len(self.rows[0]), self.streams
        for i, stream in enumerate(self.rows):
            if is_first[i] and stream and not stream[-1]["last"]:
                stream[-1] |= {"action": 0, "last": True}  # argmax of the zeros where nothing was taken
            row = {"id": [i, t], "pixel": (7 * t + i) % 256, "action": (t + i) % 3, "reward": float(10 * t + i)}
            deter = float(t % 50)
            row |= {"first": is_first[i] or t == 0, "last": bool(is_last and is_last[i])}
            stream.append({**row, "deter": [deter, -deter], "stoch": (3 * t + i) % 256})

        def newest(name, dtype=torch.float32):
            return torch.tensor([stream[-1][name] for stream in self.rows], dtype=dtype)

        step = Step(
            obs={"id": newest("id"), "pixels": newest("pixel", torch.uint8).reshape(n, 1, 1, 1).expand(n, 3, 2, 1)},
            reward=newest("reward"),
            is_first=newest("first", torch.bool),
            is_last=torch.tensor(is_last or [False] * n),
            is_terminal=torch.zeros(n, dtype=torch.bool),
        )
        action = torch.nn.functional.one_hot(newest("action", torch.int64), 3).float()
        return step, action, {"deter": newest("deter"), "stoch": newest("stoch", torch.uint8)}

    def valid(self):
        """Every (stream, row) whose window is held, complete and within what may be crossed.

        Free rows in front may be any, or not be there when nothing has been lived before.
        """
        count, rows, free = len(self.rows[0]), self.window.rows, self.window.num_free_rows
        return {
            (i, t)
            for i in range(self.streams)
            for t in range(max(-free, count - self.capacity), count - rows + 1)
            if self.window.crosses_episodes or not any(r["first"] for r in self.rows[i][t + free + 1 : t + rows])
        }

    def check(self, batch):
        """Every sampled window equals consecutive true rows; returns the starts."""
        starts = [(int(h) % self.streams, int(h) // self.streams) for h in batch.index]
        assert batch.shape == (self.window.batch, self.window.rows)
        assert set(starts) <= self.valid()
        found = {"id": batch.obs["id"], "pixel": batch.obs["pixels"][:, :, 2, 1, 0], "action": batch.action.argmax(-1),
                 "reward": batch.reward, "first": batch.is_first, **batch.extras}  # fmt: skip
        for b, (i, t) in enumerate(starts):
            truth = [self.rows[i][max(0, row)] for row in range(t, t + self.window.rows)]
            for name, values in found.items():
                assert values[b].tolist() == [row[name] for row in truth], name
            assert batch.is_last[b, :-1].tolist() == [row["first"] for row in truth[1:]]
        return starts

    def feedback(self, index, length, value):
        """Write numbers back to the last ``length`` rows of each window, here and in the record."""
        b = len(index)
        stoch = (torch.arange(b * length).reshape(b, length) + value) % 256
        deter = torch.stack([stoch % 100, -(stoch % 100)], -1).float()
        self.replay.feedback(index, Update(metrics={}, extras={"deter": deter, "stoch": stoch.to(torch.uint8)}))
        oldest = max(0, len(self.rows[0]) - self.capacity)
        for k, handle in enumerate(index.tolist()):
            i, t = handle % self.streams, handle // self.streams
            for j in range(length):
                row = t + self.window.rows - length + j
                if row >= oldest:
                    self.rows[i][row] |= {"stoch": int(stoch[k, j]), "deter": deter[k, j].tolist()}
