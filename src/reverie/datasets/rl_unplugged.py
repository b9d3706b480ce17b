"""Reads RL Unplugged's Atari shards: TFRecord files of transitions, with four PNG frames before and after each action.

``d_t`` is a discount: 0 when the game is over. The format neither marks truncations nor guarantees an order. Therefore
an episode continues if the next record begins with exactly the final frames of this record. Otherwise it is truncated.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.core.rows import Rows
from reverie.core.specs import FLAGS
from reverie.datasets.reader import DatasetInfo, FilesReader
from reverie.datasets.source import Source
from reverie.datasets.tfrecord import TruncatedFileError, Values, iter_tfrecords, looks_like_records, parse_tf_example

REQUIRED_FEATURES = ("o_t", "o_tp1", "a_t", "r_t", "d_t")
UNUSED_FEATURES = ("a_tp1", "episode_id", "episode_return")
BLOCK = 512
"""Number of rows in one part: 14 MB of frames."""
SHARD = re.compile(r"run_\d+-\d{5}-of-\d{5}")
Decode = Callable[[bytes], np.ndarray]


class Record(NamedTuple):
    """One transition; its frames are still compressed."""

    before: list[bytes]
    after: list[bytes]
    action: int
    reward: float
    terminal: bool
    episode: int

    @classmethod
    def from_features(cls, values: dict[str, Values], label: str) -> Record:
        """Make a record from the features of a tf.Example; ``label`` is for messages."""
        if missing := [name for name in REQUIRED_FEATURES if name not in values or not len(values[name])]:
            raise DataError(f"{label} has no {', '.join(missing)}: expected transitions of RL Unplugged's Atari.")
        before, after = list(values["o_t"]), list(values["o_tp1"])
        episode = values.get("episode_id", [0])
        action, reward, discount = (values[name][0] for name in ("a_t", "r_t", "d_t"))
        return cls(before, after, int(action), float(reward), float(discount) == 0.0, int(episode[0]))

    def leads_to(self, record: Record) -> bool:
        """Return whether ``record`` continues the episode: it begins with the final frames of this record."""
        return not self.terminal and self.episode == record.episode and self.after == record.before


class ShardSummary(NamedTuple):
    """Result of one pass over all records: their number, the largest action plus 1, ``shape`` ``[H, W, frames]``."""

    transitions: int
    episodes: int
    actions: int
    shape: tuple[int, ...]


class RLUnpluggedReader(FilesReader):
    """Reads one shard, or several."""

    format = "RL Unplugged Atari (TFRecord)"
    suffixes: ClassVar[tuple[str, ...]] = (".tfrecord", ".tfrecords")

    @classmethod
    def matches(cls, source: Source) -> bool:
        return not source.is_folder and looks_like_records(source.path)

    @classmethod
    def files_in(cls, folder: Source) -> list[Path]:
        return sorted({*super().files_in(folder), *(path for path in folder.children if SHARD.fullmatch(path.name))})

    def supports_option(self, option: str) -> bool:
        return option == "partial"

    def info(self) -> DatasetInfo:
        scan, game = self._scan, self.paths[0].parent.name
        text = {"shards": f"{len(self.paths):,}", "transitions": f"{scan.transitions:,}"}
        text |= {"game": game} if game else {}
        observation, action = spaces.Box(0, 255, scan.shape, np.uint8), spaces.Discrete(max(2, scan.actions))
        return DatasetInfo(observation=observation, action=action, has_measured_bounds=True, text=text)

    def rows(self) -> int:
        return self._scan.transitions + self._scan.episodes

    @cached_property
    def _scan(self) -> ShardSummary:
        transitions = ends = actions = 0
        shape: tuple[int, ...] = ()
        for record, end in self._with_ends():
            shape = shape or _decode_frame_stack(record.before, _decode_gray_png).shape
            transitions, ends, actions = transitions + 1, ends + end, max(actions, record.action + 1)
        return ShardSummary(transitions, ends, actions, shape)

    def _records(self) -> Iterator[Record]:
        for path in self.paths:
            count = 0
            try:
                for record in iter_tfrecords(path):
                    values = parse_tf_example(record)
                    if not count and (unused := sorted(values.keys() - {*REQUIRED_FEATURES, *UNUSED_FEATURES})):
                        self.add_remark(f"left out: {', '.join(unused)}")
                    yield Record.from_features(values, f"{path}, record {count}")
                    count += 1
            except TruncatedFileError as reason:
                problem = f"{path} is incomplete: {reason}. Only {count:,} transitions can be read"
                if not self.options.partial:
                    advice = "Download the shard again, or pass --data.partial to use these."
                    raise DataError(f"{problem}. {advice}") from None
                self.add_remark(problem)

    def _with_ends(self) -> Iterator[tuple[Record, bool]]:
        """Yield every record, and whether its episode ends with it."""
        previous: Record | None = None
        for record in self._records():
            if previous is not None:
                yield previous, not previous.leads_to(record)
            previous = record
        if previous is not None:
            yield previous, True

    def parts(self) -> Iterator[Rows]:
        rows = self._rows()
        decode = lru_cache(64)(_decode_gray_png)  # a frame is in several neighboring stacks
        while chunk := list(itertools.islice(rows, BLOCK)):
            stacks, action, reward, *flags = zip(*chunk, strict=True)
            block: dict[str, np.ndarray] = {name: np.array(flag) for name, flag in zip(FLAGS, flags, strict=True)}
            block["obs"] = np.stack([_decode_frame_stack(stack, decode) for stack in stacks])
            block["action"], block["reward"] = np.array(action, np.int64), np.array(reward, np.float32)
            yield block

    def _rows(self) -> Iterator[tuple[list[bytes], int, float, bool, bool, bool]]:
        """Yield the compressed frames of each row, its action, its reward and its flags."""
        reward, first = 0.0, True
        for record, end in self._with_ends():
            yield record.before, record.action, reward, first, False, False
            reward, first = record.reward, False
            if end:
                yield record.after, 0, reward, False, True, record.terminal
                reward, first = 0.0, True


def _decode_frame_stack(pictures: list[bytes], decode: Decode) -> np.ndarray:
    """Return decoded frames as ``[H, W, frames]``, oldest first."""
    return np.stack([decode(picture) for picture in pictures], axis=-1)


def _decode_gray_png(picture: bytes) -> np.ndarray:
    """Decode an image to grayscale, uint8 ``[H, W]``."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(picture)).convert("L"), np.uint8)
