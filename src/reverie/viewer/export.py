"""An episode and its dream as a file to share: mp4, GIF, a self-contained page, or arrays."""

from __future__ import annotations

import base64
import io
import math
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from reverie.core.errors import DataError
from reverie.core.files import key_to_filename
from reverie.log.video import (
    BACKGROUND,
    EDITED_COLOR,
    IMAGINED_COLOR,
    OBSERVED_COLOR,
    border,
    caption,
    shrink,
    upscale,
    write_video,
)
from reverie.viewer.episode_source import SIDE, decode_png
from reverie.viewer.page import STATIC, make_page, to_json_value
from reverie.viewer.session import Session
from reverie.viewer.timeline import CONTEXT

ORIGIN_COLORS = {"": OBSERVED_COLOR, "seen": OBSERVED_COLOR, "imagined": IMAGINED_COLOR, "edited": EDITED_COLOR}
ORIGIN_WORDS = {"": "what happens", "seen": "sees", "imagined": "imagines", "edited": "edited"}
"""Edge and caption of a row by the origin of its dream; "" for the environment."""


def export_episode(session: Session, kind: str, name: str) -> tuple[str, bytes]:
    """Return the name and content of a file: ``kind`` is "mp4", "gif", "html" or "npz"."""
    stem = f"{key_to_filename(name)}-{session.agent.checkpoint.name}-{session.seed}"
    if kind == "npz":
        return f"{stem}.npz", arrays(session)
    if kind == "html":
        return f"{stem}.html", standalone_page(session, name).encode()
    frames = _episode_frames(session)
    if kind == "gif":
        return f"{stem}.gif", _encode_gif(frames, session.agent.frames_per_second)
    with tempfile.TemporaryDirectory() as folder:
        path = write_video(Path(folder) / "dream.mp4", frames, session.agent.frames_per_second)
        return f"{stem}.mp4", path.read_bytes()


Cell = tuple[bytes | None, str, str]
"""What a picture of a video shows: PNG, origin and caption."""


def _episode_frames(session: Session) -> np.ndarray:
    """Return ``[T, H, W, 3]`` uint8: the real episode next to the dream, or the truth and all lanes in a grid."""
    lanes = len(session.lanes) > 1
    cells = _lane_cells(session) if lanes else _side_cells(session)
    first, side = next((png for cell in cells for png, *_ in cell if png is not None), None), 192 if lanes else SIDE
    if first is None:
        raise DataError("this environment cannot be drawn: export the numbers (npz) or the page (html).")
    blank = np.full_like(shrink(upscale(decode_png(first)), side), BACKGROUND[0])
    across, videos = math.ceil(len(cells) ** 0.5), list[np.ndarray]()
    for cell in cells:
        video = np.stack([blank if png is None else shrink(upscale(decode_png(png)), side) for png, *_ in cell])
        framed = border(video, [ORIGIN_COLORS[origin] for _, origin, _ in cell])
        text = np.stack([caption(title, framed.shape[2]) for *_, title in cell])
        videos.append(np.concatenate([text, framed], 1))
    videos += [np.full_like(videos[0], BACKGROUND[0])] * (-len(videos) % across)
    lines = [np.concatenate(videos[i : i + across], 2) for i in range(0, len(videos), across)]
    return np.concatenate(lines, 1)


def _side_cells(session: Session) -> list[list[Cell]]:
    """Return the cells of each row: of the real episode, and of the dream."""
    rows, texts, dream = range(len(session)), session.strip().texts, session.timeline.dream
    pictures, cells = [session.picture(row) for row in rows], list[list[Cell]]()
    for side in (0, 1) if session.inspector is not None else (0,):
        origins = [dream[row].origin if side and row < len(dream) else "" for row in rows]
        titles = [f"{ORIGIN_WORDS[origin]}, row {row}" for row, origin in enumerate(origins)]
        judged = [f"{title}: {words}" if side and words else title for title, words in zip(titles, texts, strict=True)]
        cells.append([(both[side], how, title) for both, how, title in zip(pictures, origins, judged, strict=True)])
    return cells


def _lane_cells(session: Session) -> list[list[Cell]]:
    """Return the cells of each row, of the truth and of each lane, from shortly before the first lane leaves.

    A lane that has ended shows its last picture.
    """
    lines, rows = session.lanes, range(max(map(len, session.lanes)))
    first, cells = max(0, min(line.at for line in lines[1:]) + 1 - CONTEXT), list[list[Cell]]()
    for name, line in zip((lane["name"] for lane in session.describe_lanes()), lines, strict=True):
        cell = list[Cell]()
        for row in rows[first:]:
            shown = min(row, len(line) - 1)
            is_real = not line.dream or (line.kind == "hands" and shown < len(line.real))
            title = f"{name}, row {row}" if row == shown else f"{name}, ended"
            origin = "" if is_real else line.dream[shown].origin
            origin = "edited" if line.kind == "edited" and shown > line.at else origin
            cell.append((session.lane_picture(line, shown), origin, title))
        cells.append(cell)
    if lines[0].dream:
        real, last = lines[0].real, len(lines[0].real) - 1
        titles = [f"truth, row {row}" if row <= last else "truth, ended" for row in rows[first:]]
        cells.insert(
            0, [(real[min(row, last)].picture, "", title) for row, title in zip(rows[first:], titles, strict=True)]
        )
    return cells


def _encode_gif(pictures: np.ndarray, fps: int) -> bytes:
    """Return pictures ``[T, H, W, 3]`` as a GIF that repeats forever."""
    file = io.BytesIO()
    first, *rest = [Image.fromarray(frame) for frame in pictures]
    first.save(file, "GIF", save_all=True, append_images=rest, duration=max(20, 1000 // fps), loop=0)
    return file.getvalue()


def arrays(session: Session) -> bytes:
    """Return an ``.npz``: real rows as ``real/...``, rows of the dream as ``dream/...``, and ``action``."""
    line, columns = session.timeline, dict[str, np.ndarray]()
    for key in session.agent.obs_spec:
        columns[f"real/{key}"] = np.stack([row.step.obs[key][0].numpy() for row in line.real])
    for name in ("reward", "terminal", "kl", "value"):
        if name in line.real[0].values:
            columns[f"real/{name}"] = np.array([row.values[name] for row in line.real])
    if line.dream:
        for name in line.dream[0].predictions:
            columns[f"dream/{name.replace('inside/', '')}"] = np.stack([row.predictions[name] for row in line.dream])
        columns["dream/how"] = np.array([row.origin for row in line.dream])
    if line.actions:
        columns["action"] = np.concatenate([action.numpy() for action in line.actions])
    file = io.BytesIO()
    np.savez_compressed(file, **columns)  # type: ignore[arg-type]  # its stubs take names for options
    return file.getvalue()


def standalone_page(session: Session, name: str) -> str:
    """Return a self-contained page that plays the episode and its dream."""
    rows = []
    for row in session.rows():
        pngs = session.picture(row["t"])
        rows.append(row | {"png": [None if png is None else _encode_base64(png) for png in pngs]})
    content = {"name": name, "about": session.info(), "rows": rows, "strip": vars(session.strip())}
    scripts = [STATIC / name for name in ("strip_canvas.js", "shared.js")]
    return make_page("shared", name, scripts, {"data": to_json_value(content)}, styles=["style"])


def _encode_base64(png: bytes) -> str:
    """Return a picture as text, compressed as far as possible."""
    file = io.BytesIO()
    Image.open(io.BytesIO(png)).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
