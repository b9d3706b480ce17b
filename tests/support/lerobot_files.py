"""LeRobot datasets of both versions, written by hand."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from recordings import LIVED
from reverie.log.video import encode_mp4

SIDES = (48, 64)
CAMERA = "observation.images.top"


def frame(number, t):
    """A gray picture that is brighter with each step."""
    return np.full((*SIDES, 3), 20 * number + 10 * t, np.uint8)


def write_video(path, frames):
    path.parent.mkdir(parents=True, exist_ok=True)
    encode_mp4(frames, SIDES[::-1], path, 10)


def write_table(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pa.table(values), path)


def steps(lived, first=0):
    """The table of steps of episodes; the observation after the last action is not among them."""
    each = [(e, number, t) for number, e in enumerate(lived, first) for t in range(e.steps)]
    return {
        "observation.state": [e.obs(t) for e, _, t in each],
        "action": [[np.float32(e.action(t))] for e, _, t in each],
        "episode_index": [number for _, number, _ in each],
        "frame_index": [t for _, _, t in each],
        "task_index": [number % 2 for _, number, _ in each],
    }


def lerobot(folder, version, lived=LIVED, *, videos=True, more=lambda table, lived: table):
    """``more(table, lived)`` returns the table of steps with other columns."""
    (folder / "meta").mkdir(parents=True)
    tasks = [{"task_index": 0, "task": "lift"}, {"task_index": 1, "task": "put it down"}]
    table = more(steps(lived), lived)
    kinds = {"observation.state": ("float32", [2]), "action": ("float32", [1])}
    features = {
        name: {"dtype": kinds.get(name, ("int64", [1]))[0], "shape": kinds.get(name, ("", [1]))[1]} for name in table
    }
    if videos:
        features[CAMERA] = {"dtype": "video", "shape": [3, *SIDES], "names": ["channels", "height", "width"]}
    total = sum(e.steps for e in lived)
    about = {
        "codebase_version": f"v{version}.0",
        "fps": 10,
        "features": features,
        "total_frames": total,
        "robot_type": "arm",
    }
    (folder / "meta/info.json").write_text(json.dumps(about))
    rows = [{"episode_index": number, "length": e.steps} for number, e in enumerate(lived)]
    pictures = [[frame(e.number, t) for t in range(e.steps)] for e in lived]
    if version == 2:
        for name, lines in {"episodes": rows, "tasks": tasks}.items():
            (folder / f"meta/{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        for number in range(len(lived)):
            part = {name: [v for v, n in zip(values, table["episode_index"], strict=True) if n == number]
                    for name, values in table.items()}  # fmt: skip
            write_table(folder / f"data/chunk-000/episode_{number:06d}.parquet", part)
            if videos:
                write_video(folder / f"videos/chunk-000/{CAMERA}/episode_{number:06d}.mp4", pictures[number])
        return folder
    first = np.cumsum([0, *(e.steps for e in lived[:-1])])
    for row, start in zip(rows, first, strict=True):
        row |= {f"videos/{CAMERA}/chunk_index": 0, f"videos/{CAMERA}/file_index": 0,
                f"videos/{CAMERA}/from_timestamp": start / 10}  # fmt: skip
    write_table(
        folder / "meta/episodes/chunk-000/file-000.parquet", {name: [r[name] for r in rows] for name in rows[0]}
    )
    write_table(folder / "meta/tasks.parquet", {"task_index": [0, 1], "__index_level_0__": [t["task"] for t in tasks]})
    write_table(folder / "data/chunk-000/file-000.parquet", table)
    if videos:
        write_video(
            folder / f"videos/{CAMERA}/chunk-000/file-000.mp4", [picture for episode in pictures for picture in episode]
        )
    return folder
