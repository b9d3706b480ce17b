"""The page in which a person labels rows: its websocket. A message is an answer, and gets the next question."""

from __future__ import annotations

import asyncio
import functools
from contextlib import suppress
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.websockets import WebSocket, WebSocketDisconnect

from reverie.agent.dream_figures import to_uint8_image
from reverie.core.errors import ReverieError
from reverie.experiment.labeling import Clips, LabelSession
from reverie.log.video import shrink, to_rgb
from reverie.viewer.episode_source import SIDE, encode_png
from reverie.viewer.page_data import MAX_SHOWN_NUMBERS
from reverie.viewer.server import Pictures, make_app, pack_answer

UNDO = "undo"
"""The message that takes back the newest answer."""
WAIT_SECONDS = 0.5
"""Seconds until a run that has no rows yet is looked at again."""


def labels_app(session: LabelSession, token: str) -> Starlette:
    """Return the web application of the page that asks the questions of ``session``."""
    return make_app(functools.partial(_serve_page, session), token)


async def _serve_page(session: LabelSession, socket: WebSocket) -> None:
    """Ask until the page is closed. Each page has its own question."""
    await socket.accept()
    loop, problem = asyncio.get_running_loop(), ""

    async def propose() -> Clips:
        while (clips := await loop.run_in_executor(None, session.propose)) is None:
            await asyncio.sleep(WAIT_SECONDS)
        return clips

    clips = await propose()
    with suppress(WebSocketDisconnect):
        while True:
            head, pictures = await loop.run_in_executor(None, _describe_question, session, clips)
            await socket.send_bytes(pack_answer(head | {"problem": problem}, pictures))
            message, problem = await socket.receive_text(), ""
            try:
                if message == UNDO:
                    session.undo()
                else:
                    session.add(clips, message)
                    clips = await propose()
            except ReverieError as error:  # the question stays
                problem = str(error)


def _describe_question(session: LabelSession, clips: Clips) -> tuple[dict[str, Any], Pictures]:
    """Return the numbers and pictures of ``clips``, and the number of each answer so far."""
    rows, spec = session.read(clips), session.obs_spec
    columns = {key: rows[f"obs/{key}"] for key, part in spec.items() if part.kind in ("vector", "categorical")}
    columns |= {"action": rows["action"]} if session.file.steps else {}
    series = [_list_series({key: x[i] for key, x in columns.items()}) for i in range(len(clips))]
    head = {
        "kind": session.file.kind,
        "counts": session.count(),
        "names": [*map(session.name, clips)],
        "series": series,
    }
    image = next((key for key, part in spec.items() if part.kind == "image"), None)
    if image is None:
        return head, []
    frames = rows[f"obs/{image}"]  # [n, T, H, W, C]
    pictures = [
        ([i, t], encode_png(shrink(to_rgb(to_uint8_image(frame, spec[image]), 255), SIDE)))
        for i, clip in enumerate(frames)
        for t, frame in enumerate(clip)
    ]
    return head, pictures


def _list_series(columns: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return the numbers of a clip of T rows, each a name and T values, of ``columns`` ``[T, ...]`` of few numbers."""
    flat = {key: x.reshape(len(x), -1) for key, x in columns.items()}
    return [
        {"name": f"{key} {i}" if x.shape[1] > 1 else key, "values": x[:, i].tolist()}
        for key, x in flat.items()
        if x.shape[1] <= MAX_SHOWN_NUMBERS
        for i in range(x.shape[1])
    ]
