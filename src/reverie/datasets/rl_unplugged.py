"""Reads RL Unplugged's Atari shards: TFRecord files of transitions, with four PNG frames before and after each action.

``d_t`` is a discount: 0 where the game is over. The format neither marks truncations nor guarantees an order. So each
record is compared with the next: the episode continues if the next one begins with exactly the frames that this one
led to. Otherwise the episode is truncated here. The rows are thus right whatever the order of the records is, and
shards may have any length.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.datasets.concat import files_of
from reverie.datasets.reader import About, Reader, ReadOptions, Rows
from reverie.datasets.tfrecord import CutOff, Values, example, records
from reverie.datasets.transitions import Carried, Places

NEEDED = ("o_t", "o_tp1", "a_t", "r_t", "d_t")
BLOCK = 512
"""Number of transitions in one part: 14 MB of frames."""
SHARD = re.compile(r"run_\d+-\d{5}-of-\d{5}")


@dataclass(frozen=True, slots=True)
class Record:
    """One transition; its frames are still compressed."""

    before: list[bytes]
    after: list[bytes]
    action: int
    reward: float
    terminal: bool
    episode: int

    @classmethod
    def of(cls, values: dict[str, Values], where: str) -> Record:
        """Make a record from the features of a tf.Example; ``where`` is for messages.

        Raises:
            DataError: a feature is missing or of another type.
        """
        missing = [name for name in NEEDED if name not in values or not len(values[name])]
        if missing:
            raise DataError(f"{where} has no {', '.join(missing)}: a record of RL Unplugged has {', '.join(NEEDED)}.")
        before, after = values["o_t"], values["o_tp1"]
        if not isinstance(before, list) or not isinstance(after, list) or len(before) != len(after):
            raise DataError(f"{where}: o_t and o_tp1 must be lists with the same number of images.")
        episode = values.get("episode_id", [0])
        action, reward, discount = (values[name][0] for name in ("a_t", "r_t", "d_t"))
        return cls(before, after, int(action), float(reward), float(discount) == 0.0, int(episode[0]))

    def leads_to(self, other: Record | None) -> bool:
        """Return True if ``other`` continues the episode: it begins with the frames that this one led to."""
        return (
            other is not None
            and not self.terminal
            and self.episode == other.episode
            and self.after[-1] == other.before[-1]
            and self.after == other.before
        )


@dataclass(frozen=True)
class Scan:
    """What one pass over all records finds."""

    transitions: int
    rows: int
    episodes: int
    actions: int
    """Number of actions: the largest one plus 1."""
    shape: tuple[int, ...]
    """Shape of observations, ``[H, W, frames]``."""


class RLUnpluggedReader(Reader):
    """Reads one shard, or all shards of a folder."""

    format = "RL Unplugged Atari (TFRecord)"

    def __init__(self, path: Path, options: ReadOptions) -> None:
        super().__init__(path, options)
        self.paths = shards_in(path) if path.is_dir() else [path]
        if not self.paths:
            raise DataError(f"{path} contains no shards such as run_1-00000-of-00100.")

    def uses(self, option: str) -> bool:
        """See ``Reader``."""
        return option == "partial"

    def files(self) -> Sequence[Path]:
        """See ``Reader``: the shards, sorted by name."""
        return self.paths

    def about(self) -> About:
        """See ``Reader``. The number of actions and the size of frames are those found in the records."""
        scan = self._scan
        text = {"shards": f"{len(self.paths):,}", "transitions": f"{scan.transitions:,}"}
        if self.paths[0].parent.name:
            text["game"] = self.paths[0].parent.name
        return About(
            observation=spaces.Box(0, 255, scan.shape, np.uint8),
            action=spaces.Discrete(max(2, scan.actions)),
            measured=True,
            episodes=scan.episodes,
            text=text,
        )

    def rows(self) -> int:
        """See ``Reader``. Counted in a pass over all records, without decoding their frames."""
        return self._scan.rows

    @cached_property
    def _scan(self) -> Scan:
        transitions = ends = actions = 0
        shape: tuple[int, ...] = ()
        for record, end in self._linked():
            if not transitions:
                shape = Frames().stack(record.before).shape
            transitions, ends, actions = transitions + 1, ends + end, max(actions, record.action + 1)
        if not transitions:
            raise DataError(f"{self.path} contains no transitions.")
        return Scan(transitions, transitions + ends, ends, actions, shape)

    def _records(self) -> Iterator[Record]:
        for path in self.paths:
            count = 0
            try:
                for record in records(path):
                    yield Record.of(example(record), f"{path}, record {count}")
                    count += 1
            except CutOff as reason:
                size = path.stat().st_size
                said = f"{path} is incomplete: {reason}. Only {count:,} transitions can be read (it has {size:,} bytes)"
                if not self.options.partial:
                    raise DataError(
                        f"{said}. Download the shard again (`reverie data download`), or pass --data.partial to use "
                        "these."
                    ) from None
                self.notes[said] = 1  # once, however often they are read

    def _linked(self) -> Iterator[tuple[Record, bool]]:
        """Yield every record, and whether its episode ends with it."""
        held: Record | None = None
        for record in self._records():
            if held is not None:
                yield held, not held.leads_to(record)
            held = record
        if held is not None:
            yield held, True

    def parts(self) -> Iterator[Rows]:
        """Yield the rows of ``BLOCK`` transitions at a time."""
        carried = Carried()
        block: list[tuple[Record, bool]] = []
        with ThreadPoolExecutor(1) as ahead:  # decodes frames while the next records are read
            waiting: Any = None
            for linked in self._linked():
                block.append(linked)
                if len(block) == BLOCK:
                    ready, waiting = waiting, ahead.submit(rows_of, block, carried)
                    if ready is not None:
                        yield ready.result()
                    block = []
            if waiting is not None:
                yield waiting.result()
        if block:
            yield rows_of(block, carried)


def rows_of(block: list[tuple[Record, bool]], carried: Carried) -> Rows:
    """Return the rows of consecutive transitions, given with whether an episode ends with each; updates ``carried``.

    Raises:
        DataError: frames cannot be decoded, or differ in size.
    """
    found = [record for record, _ in block]
    ends = np.array([end for _, end in block])
    terminal = np.array([record.terminal for record in found])
    place = Places.of(ends, terminal, adds=ends)
    frames = Frames()
    shown = {int(row): found[index] for row, index in zip(place.added, place.shown, strict=True)}
    pictures = [
        frames.stack(shown[row].after if row in shown else found[index].before)
        for row, index in enumerate(place.source.tolist())
    ]
    if any(picture.shape != pictures[0].shape for picture in pictures):
        raise DataError("the frames of the shard have different sizes.")
    action = np.array([record.action for record in found], np.int64)[place.source]
    action[place.last] = 0
    rewards = np.array([record.reward for record in found], np.float32)
    rows = {"obs": np.stack(pictures), "action": action, **place.flags(carried.inside)}
    rows["reward"] = place.rewards(rewards, carried.reward)
    carried.inside = not ends[-1]
    carried.reward = float(rewards[-1]) if carried.inside else 0.0
    return rows


class Frames:
    """Decodes frames; a frame that is in several neighbouring stacks is decoded once."""

    KEPT = 64

    def __init__(self) -> None:
        self.known: dict[bytes, np.ndarray] = {}

    def stack(self, pictures: list[bytes]) -> np.ndarray:
        """Return decoded frames as ``[H, W, frames]``, oldest first."""
        return np.stack([self.frame(picture) for picture in pictures], axis=-1)

    def frame(self, picture: bytes) -> np.ndarray:
        """Return a decoded frame, uint8 ``[H, W]``.

        Raises:
            DataError: it cannot be decoded.
        """
        found = self.known.get(picture)
        if found is None:
            if len(self.known) >= self.KEPT:
                for old in list(self.known)[: self.KEPT // 2]:
                    del self.known[old]
            found = self.known[picture] = png(picture)
        return found


def png(picture: bytes) -> np.ndarray:
    """Decode a picture to grey values, uint8 ``[H, W]``.

    Raises:
        DataError: it cannot be decoded.
    """
    from PIL import Image

    try:
        return np.asarray(Image.open(io.BytesIO(picture)).convert("L"), np.uint8)
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"a frame cannot be read as an image: {error}.") from None


def shards_in(path: Path) -> list[Path]:
    """Return the shards in a folder, sorted by name."""
    return sorted({*files_of(path, "TFRecord"), *(p for p in path.iterdir() if SHARD.fullmatch(p.name))})
