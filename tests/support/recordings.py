"""Recorded episodes whose every number says where it belongs, and the rows they must become, written the slow way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reverie.datasets.convert import OUTPUT_FORMATS, write_dataset
from reverie.datasets.dataset import RecordedEpisodes
from reverie.datasets.format_detection import open_reader

FIELDS = ("reward", "is_first", "is_last", "is_terminal")
FORMATS = [*OUTPUT_FORMATS]
"""That a dataset can be written in."""


@dataclass(frozen=True)
class Lived:
    """One episode: how many actions it had, and how it ended: terminal, truncated, or open."""

    number: int
    steps: int
    end: str = "terminal"

    def obs(self, t: int) -> list[float]:
        """What was seen at time t of 0 .. steps."""
        return [float(self.number), float(t)]

    def action(self, t: int) -> float:
        """What was done after seeing it."""
        return (100 * self.number + t + 1) / 1000

    def choice(self, t: int) -> int:
        return (3 * self.number + t) % 5

    def reward(self, t: int) -> float:
        """What action t was answered with."""
        return 10 * self.number + t + 0.5

    @property
    def observations(self) -> np.ndarray:
        return np.array([self.obs(t) for t in range(self.steps + 1)], np.float32)

    @property
    def actions(self) -> np.ndarray:
        return np.array([[self.action(t)] for t in range(self.steps)], np.float32).reshape(self.steps, 1)

    @property
    def choices(self) -> np.ndarray:
        return np.array([self.choice(t) for t in range(self.steps)], np.int64)

    @property
    def rewards(self) -> np.ndarray:
        return np.array([self.reward(t) for t in range(self.steps)], np.float32)

    @property
    def terminals(self) -> np.ndarray:
        return np.array([self.end == "terminal" and t == self.steps - 1 for t in range(self.steps)], bool)

    @property
    def timeouts(self) -> np.ndarray:
        return np.array([self.end == "truncated" and t == self.steps - 1 for t in range(self.steps)], bool)


LIVED = [Lived(1, 3), Lived(2, 1, "truncated"), Lived(3, 5, "truncated"), Lived(4, 1), Lived(5, 4)]


def expected(lived, *, last_seen=True, discrete=False):
    """The rows of episodes, one after the other, as lists by column.

    Without ``last_seen`` what the last action led to is not known: after a terminal end the observation before is
    shown again, and of an end by time the last step is missing.
    """
    rows = {name: [] for name in ("obs", "action", *FIELDS)}
    nothing = 0 if discrete else [0.0]
    for episode in lived:
        terminal = episode.end == "terminal"
        steps = episode.steps - (not last_seen and not terminal)
        for t in range(steps + 1):
            done = t == steps
            repeated = done and terminal and not last_seen
            rows["obs"].append(episode.obs(t - 1 if repeated else t))
            taken = episode.choice(t) if discrete else [np.float32(episode.action(t))]
            rows["action"].append(nothing if done else taken)
            fields = (episode.reward(t - 1) if t else 0.0, t == 0, done, done and terminal)
            for name, value in zip(FIELDS, fields, strict=True):
                rows[name].append(value)
    return rows


def joined(parts):
    """All parts of a reader as one."""
    parts = list(parts)
    assert parts
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def assert_same(found, rows):
    """Columns of a reader are these rows."""
    assert found.keys() == rows.keys()
    for name, values in rows.items():
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(values), err_msg=name)


def check(reader, rows):
    """A reader gives these rows, as many as it says, and those of all its parts make one stream."""
    found = joined(reader.parts())
    assert_same(found, rows)
    assert reader.rows() == len(rows["reward"])
    assert found["is_first"][0]
    assert found["is_last"][-1]
    return found


def copied(source, target, to="minari", **how):
    """Write a copy, and return the remarks on it."""
    with open_reader(str(source)) as reader:
        report = write_dataset(reader, str(target), to, **how)
        return reader.remarks() + report.remarks


def same_rows(one, two):
    """Both give the same rows to a learner, whatever the observation is called."""
    a, b = (joined(RecordedEpisodes(open_reader(str(path))).parts()) for path in (one, two))
    names = {name: sorted(n for n in rows if n.startswith("obs/")) for name, rows in (("a", a), ("b", b))}
    for mine, theirs in [*zip(names["a"], names["b"], strict=True), *((n, n) for n in ("action", *FIELDS))]:
        np.testing.assert_array_equal(a[mine], b[theirs], err_msg=mine)
