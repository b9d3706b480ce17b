"""Writes episodes as a Tianshou ``ReplayBuffer``, in the layout of its ``save_hdf5``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.action_codec import ActionCodec
from reverie.core.rows import Rows
from reverie.datasets.output import WriteReport, check_room, staged_file, total_bytes
from reverie.datasets.reader import DatasetInfo
from reverie.datasets.robot_writers import check_one_action
from reverie.datasets.tianshou import is_bounded
from reverie.datasets.writers import (
    BUFFERED,
    append_to_hdf5,
    blocks_of,
    check_plain,
    declare,
    hdf5_file,
)

META = {"obs": "obs", "next_obs": "obs_next", "action": "act", "reward": "rew", "terminal": "terminated",
        "truncated": "truncated", "done": "done"}  # fmt: skip
COUNTERS: dict[str, bool | int | float] = {
    "stack_num": 1, "_save_obs_next": True, "_save_only_last_obs": False, "_sample_avail": False, "_ep_return": 0.0,
    "_ep_len": 0, "_ep_start_idx": 0,
}  # fmt: skip
"""Attributes of a buffer of single frames that also stores next observations."""
OPTIONS: dict[str, bool | int] = {
    "stack_num": 1,
    "ignore_obs_next": False,
    "save_only_last_obs": False,
    "sample_avail": False,
}
AS_RECORDED = "the action space is not declared: actions are as recorded, but Tianshou expects them in [-1, 1]"
NO_REWARDS = "there are no rewards: those in the buffer are 0"


def write_tianshou(episodes: Iterable[Rows], target: Path, info: DatasetInfo) -> WriteReport:
    """Write one HDF5 file that Tianshou's ``ReplayBuffer.load_hdf5`` opens; attributes declare environment and spaces.

    Continuous actions are scaled from their bounds to [-1, 1], as Tianshou stores the output of policies. The ring has
    room for one more transition: it never was full, so no episode has lost its beginning.
    """
    report = WriteReport(target)
    scale = ActionCodec(info.action) if is_bounded(info.action) and not info.has_measured_bounds else None
    if scale is None and isinstance(info.action, spaces.Box):
        report.remarks.append(AS_RECORDED)
    if not info.has_rewards:
        report.remarks.append(NO_REWARDS)

    def check(block: Rows) -> None:
        check_plain(block, "Tianshou's buffers", "arrays of numbers", 99, nested=True)
        check_one_action(block, "Tianshou's buffers")

    with staged_file(target) as staged, hdf5_file(staged) as file:
        for block in blocks_of(episodes, report, check):
            check_room(target, 2 * total_bytes(block) + BUFFERED)
            del block["episode"]
            block["done"] = block["terminal"] | block["truncated"]
            if scale is not None:
                rows = {"action": block["action"], "is_last": np.zeros(len(block["done"]), bool)}
                block["action"] = scale.flatten(rows).reshape(block["action"].shape)
            for name, values in block.items():
                root, _, key = name.partition("/")
                append_to_hdf5(file, f"_meta/{META[root]}/{key}".rstrip("/"), values)
        for item in _arrays_in(file["_meta"]):
            item.resize(report.steps + 1, axis=0)  # the free place
        _write_counters(file, report.steps)
        declare(file, info, report)
    return report


def _arrays_in(group: Any) -> list[Any]:
    """Return all arrays below ``group``, and mark arrays and groups with the types that Tianshou reads."""
    arrays = []

    def visit(_: str, item: Any) -> None:
        is_array = hasattr(item, "dtype")
        item.attrs["__data_type__"] = "ndarray" if is_array else "Batch"
        arrays.extend([item] * is_array)

    group.visititems(visit)
    return arrays


def _write_counters(file: Any, steps: int) -> None:
    """Write what a buffer holds beside transitions: its size, where the next one goes, and its settings."""
    meta = file["_meta"]
    meta.attrs["__data_type__"] = "Batch"
    for name in ("info", "policy"):
        meta.create_group(name).attrs["__data_type__"] = "Batch"
    for name, value in {"_indices": np.arange(steps + 1), "last_index": np.array([steps - 1])}.items():
        file.create_dataset(name, data=value).attrs["__data_type__"] = "ndarray"
    file.attrs.update({**COUNTERS, "maxsize": steps + 1, "_size": steps, "_insertion_idx": steps})
    file.create_group("options").attrs.update(OPTIONS)
