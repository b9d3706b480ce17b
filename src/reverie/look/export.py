"""An episode and its dream as a file to share: mp4, GIF, a page that needs nothing else, or arrays."""

from __future__ import annotations

import base64
import html
import io
import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from reverie.core.errors import DataError
from reverie.core.files import file_stem
from reverie.log.video import BACKGROUND_COLOR, IMAGINED_COLOR, OBSERVED_COLOR, border, caption, upscale, write_video
from reverie.look.session import Session
from reverie.look.source import pixels


def exported(session: Session, kind: Any, name: str) -> tuple[str, bytes]:
    """Return the name and content of a file: ``kind`` is "mp4", "gif", "html" or "npz"."""
    stem = f"{file_stem(name)}-{session.agent.checkpoint.name}-{session.seed}"
    if kind == "npz":
        return f"{stem}.npz", arrays(session)
    if kind == "html":
        return f"{stem}.html", page(session, name).encode()
    shown = frames(session)
    if kind == "gif":
        return f"{stem}.gif", gif(shown, session.agent.frames_per_second)
    with tempfile.TemporaryDirectory() as folder:
        path = write_video(Path(folder) / "dream.mp4", shown, session.agent.frames_per_second)
        return f"{stem}.mp4", path.read_bytes()


def frames(session: Session) -> np.ndarray:
    """Return ``[T, H, W, 3]`` uint8: what happened beside the dream, green where the model saw and red else."""
    rows = [session.picture(number) for number in range(len(session))]
    first = next((png for both in rows for png in both if png is not None), None)
    if first is None:
        raise DataError("this environment cannot be drawn: export the numbers (npz) or the page (html).")
    blank = np.full_like(upscale(pixels(first)), BACKGROUND_COLOR[0])
    sides = (0, 1) if session.mind is not None else (0,)
    videos = []
    for side in sides:
        video = np.stack([blank if (png := both[side]) is None else upscale(pixels(png)) for both in rows])
        seen = [r < len(session.line.dream) and session.line.dream[r].how == "seen" for r in range(len(rows))]
        framed = border(video, [OBSERVED_COLOR if one or not side else IMAGINED_COLOR for one in seen])
        titles = ["what happens"] * len(rows) if not side else [("sees" if x else "imagines") for x in seen]
        text = np.stack([caption(f"{title}, row {row}", framed.shape[2]) for row, title in enumerate(titles)])
        videos.append(np.concatenate([text, framed], 1))
    return np.concatenate(videos, 2)


def gif(shown: np.ndarray, fps: int) -> bytes:
    """Return frames ``[T, H, W, 3]`` as a GIF that repeats for ever."""
    file = io.BytesIO()
    first, *others = [Image.fromarray(frame) for frame in shown]
    first.save(file, "GIF", save_all=True, append_images=others, duration=max(20, 1000 // fps), loop=0)
    return file.getvalue()


def arrays(session: Session) -> bytes:
    """Return an ``.npz``: ``real/...`` of what happened, ``dream/...`` of the dream, row by row, and ``action``."""
    line, found = session.line, dict[str, np.ndarray]()
    for key in session.agent.obs_spec:
        found[f"real/{key}"] = np.stack([row.step.obs[key][0].numpy() for row in line.real])
    for name in ("reward", "terminal", "kl", "value"):
        if name in line.real[0].facts:
            found[f"real/{name}"] = np.array([row.facts[name] for row in line.real])
    if line.dream:
        for name in line.dream[0].said:
            found[f"dream/{name.replace('inside/', '')}"] = np.stack([row.said[name] for row in line.dream])
        found["dream/how"] = np.array([row.how for row in line.dream])
    if line.actions:
        found["action"] = np.concatenate([action.numpy() for action in line.actions])
    file = io.BytesIO()
    np.savez_compressed(file, **found)  # type: ignore[arg-type]  # its stubs take names for options
    return file.getvalue()


def page(session: Session, name: str) -> str:
    """Return a page that plays the episode and its dream, and needs nothing from elsewhere."""
    rows = []
    for told in session.rows():
        both = session.picture(told["t"])
        rows.append(told | {"png": [None if png is None else base64.b64encode(png).decode() for png in both]})
    data = json.dumps(plain({"name": name, "about": session.about(), "rows": rows})).replace("<", "\\u003c")
    template = (Path(__file__).with_name("static") / "shared.html").read_text(encoding="utf-8")
    return template.replace("{{title}}", html.escape(name)).replace("{{data}}", data)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: numbers with six digits, null where they are not finite."""
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, Tensor):
        value = value.flatten()
    if isinstance(value, np.ndarray | Tensor):
        return plain(value.tolist())
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value
