"""Reads the npz files of Dreamer's own replay. Nothing is unpickled.

| array | shape | what |
|---|---|---|
| `is_first`, `is_last`, `is_terminal` | `[n]` | flags of rows, as reverie's |
| `reward` | `[n]` | the reward that came with the row |
| `action` | `[n, ...]` | DreamerV3: taken in this row; DreamerV2: taken in the row before |
| others | `[n, ...]` | observations, except logs, latents and counters |

DreamerV3 writes chunks of streams, ``TIME-ID-SUCCESSOR-LENGTH.npz``: an episode continues in the successor. DreamerV2
writes a file for each episode, ``TIME-ID-LENGTH.npz``. Sources: github.com/danijar/dreamerv3, embodied/core/chunk.py
and driver.py; github.com/danijar/dreamerv2, common/replay.py and driver.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.core.rows import Rows
from reverie.core.specs import FLAGS
from reverie.datasets.inferred_spaces import MeasuredAction, measured_action, seen_space
from reverie.datasets.npz import arrays_in, is_observation, open_npz
from reverie.datasets.options import PROPENSITY
from reverie.datasets.pydreamer import FIRST_STEPS_MISSING, is_one_hot
from reverie.datasets.reader import DatasetInfo, FilesReader, ReadOptions, to_bool_column
from reverie.datasets.source import Source
from reverie.datasets.transitions import OPEN, UNMARKED

NOT_OBSERVED = frozenset(
    {*FLAGS, "action", "reward", "reset", "discount", "stepid", "consec", "id", "logprob", PROPENSITY}
)
NOT_OBSERVED_PREFIXES = ("log_", "log/", "dyn/", "enc/", "dec/")
"""Names of logs, and of latents that the agent stored with the rows."""
ONE_FLAG = "there is no {}: an episode ends where the next one begins"


class DreamerReader(FilesReader):
    """See the top of this file."""

    format = "Dreamer npz"
    suffixes: ClassVar[tuple[str, ...]] = (".npz",)
    required_names: ClassVar[Sequence[str]] = ("action", "is_first", "is_last")
    """One of the flags is enough."""

    @classmethod
    def matches(cls, source: Source) -> bool:
        is_pydreamer = not source.names.isdisjoint(("reset", "terminal"))
        num_flags = len(source.names.intersection(FLAGS[:2]))
        return "action" in source.names and num_flags > is_pydreamer

    def __init__(self, path: Path, options: ReadOptions | None = None, paths: Sequence[Path] = ()) -> None:
        super().__init__(path, options, paths)
        self.streams: list[list[Path]] = _streams(self.paths)
        self.paths: list[Path] = list(itertools.chain.from_iterable(self.streams))

    def supports_option(self, option: str) -> bool:
        return option == "classes"

    def _load(self, path: Path, *names: str) -> Rows:
        with open_npz(path) as file:
            wanted_names = {*names, *FLAGS} if names else {*file.files}
            arrays = arrays_in(file, [name for name in file.files if name in wanted_names])
        if missing := sorted({*FLAGS[:2]} - arrays.keys()):
            self.add_remark(ONE_FLAG.format(*missing))
            arrays |= _other_flag(arrays)
        wanted = {"action", "is_first", "is_last", "reward"} & {*(names or NOT_OBSERVED)}
        for name in sorted(wanted | arrays.keys()):
            shape = arrays[name].shape if name in arrays else None
            if shape is None or shape[:1] != arrays["is_first"].shape[:1] or not shape:
                expected = "expected an array with one value for each row"
                raise DataError(f"{path}: '{name}' has shape {shape and list(shape)}: {expected}.")
        return arrays

    @cached_property
    def acts_before(self) -> bool:
        """Whether a row has the action before it: no action is stored in first rows, and some are in last rows."""
        firsts = lasts = False
        for path in self.paths:
            rows = self._load(path, *self.required_names)
            taken: np.ndarray = (rows["action"].reshape(len(rows["is_first"]), -1) != 0).any(axis=1)
            firsts |= bool(taken[rows["is_first"].astype(bool)].any())
            lasts |= bool(taken[rows["is_last"].astype(bool)].any())
        return lasts and not firsts

    @cached_property
    def one_hot(self) -> bool:
        """Whether actions are classes, stored as one-hot vectors."""
        unused = "is_first" if self.acts_before else "is_last"
        answers = (is_one_hot(rows["action"], rows[unused]) for rows in self._actions())
        return all(answer is not False for answer in answers)

    def _actions(self) -> Iterator[Rows]:
        return (self._load(path, *self.required_names) for path in self.paths)

    def info(self) -> DatasetInfo:
        first = self._load(self.paths[0])
        arrays = {name: (values.shape[1:], values.dtype) for name, values in self._obs(first).items()}
        observation = seen_space(arrays, self.options, self.env_spaces, self.path)
        if self.one_hot:
            action = MeasuredAction(spaces.Discrete(first["action"].shape[-1]), False, False)
        else:
            action = measured_action(self, lambda: (rows["action"] for rows in self._actions()))
        space, measured, numbered = action
        text = {"files": f"{len(self.paths):,}", "streams": f"{len(self.streams):,}"}
        return DatasetInfo(
            observation=observation, action=space, inferred=not self.options.classes, has_measured_bounds=measured,
            numbered=numbered, text=text,
        )  # fmt: skip

    def rows(self) -> int:
        return sum(len(self._load(path, "is_first")["is_first"]) for path in self.paths)

    def _obs(self, arrays: Rows) -> Rows:
        names = [n for n in arrays if n not in NOT_OBSERVED and not n.startswith(NOT_OBSERVED_PREFIXES)]
        names = [name for name in names if is_observation(name, arrays[name])]
        if unused := sorted(arrays.keys() - {*names, *FLAGS, "action", "reward"}):
            self.add_remark(f"left out: {', '.join(unused)}")
        return self.common_columns({f"obs/{name}": arrays[name] for name in names})

    def parts(self) -> Iterator[Rows]:
        missing = unfinished = 0
        for stream in self.streams:
            inside = False
            for path, following in itertools.pairwise([*stream, None]):
                assert path is not None
                values, coming = self._load(path), self._load(following, *self.required_names) if following else None
                continues = coming is not None and len(coming["is_first"]) > 0 and not coming["is_first"][0]
                if not len(values["is_first"]):
                    continue
                rows = self._rows(values, coming["action"][:1] if coming and continues else None, path)
                missing += int(not rows["is_first"][0] and not inside)
                unfinished += int(not rows["is_last"][-1] and not continues)
                rows["is_first"][0] |= not inside
                rows["is_last"][-1] |= not continues
                rows["is_terminal"] &= rows["is_last"]
                rows["action"][rows["is_last"]] = 0
                rows["reward"][rows["is_first"]] = 0
                yield rows
                inside = not rows["is_last"][-1]
        self.add_remark(FIRST_STEPS_MISSING, missing)
        self.add_remark(OPEN, unfinished)

    def _rows(self, values: Rows, next_action: np.ndarray | None, path: Path) -> Rows:
        """Return the rows of one file; ``next_action``: the first one of the next file, if the episode continues."""
        self.add_remark(UNMARKED, int("is_terminal" not in values))
        values = {"is_terminal": np.zeros_like(values["is_last"])} | values
        first, last, terminal = (to_bool_column(values[name], f"{path}: '{name}'") for name in FLAGS)
        last[:-1] |= first[1:]
        first[1:] |= last[:-1]
        action = values["action"].copy()
        if self.acts_before:
            action = np.concatenate([action[1:], np.zeros_like(action[:1]) if next_action is None else next_action])
        action = action.argmax(axis=1) if self.one_hot else action
        reward = values["reward"].reshape(-1).astype(np.float32)
        flags = {"is_first": first, "is_last": last, "is_terminal": terminal}
        return self._obs(values) | {"action": action, "reward": reward} | flags


def _other_flag(arrays: Rows) -> Rows:
    """Return ``is_last`` or ``is_first``, of which ``arrays`` have the other."""
    if "is_first" not in arrays:
        return {"is_first": np.append(True, arrays["is_last"].astype(bool)[:-1])[: len(arrays["is_last"])]}
    last = np.append(arrays["is_first"].astype(bool)[1:], False)[: len(arrays["is_first"])]
    return {"is_last": last | arrays.get("is_terminal", last).astype(bool)}


def _streams(paths: Sequence[Path]) -> list[list[Path]]:
    """Return the files of each stream, in its order: a name has four parts if the third is the id of its successor."""
    names = {path: path.stem.split("-") for path in paths}
    by_id = {parts[1]: path for path, parts in names.items() if len(parts) == 4}
    following = {path: by_id.get(parts[2]) if len(parts) == 4 else None for path, parts in names.items()}
    streams, visited = [], set[Path]()
    for head in [*(path for path in paths if path not in following.values()), *paths]:  # the last ones: a circle
        stream, path = list[Path](), head
        while path is not None and path not in visited:
            visited.add(path)
            stream.append(path)
            path = following[path]  # type: ignore[assignment]
        streams += [stream] if stream else []
    return streams
