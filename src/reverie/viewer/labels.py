"""The page in which a person labels rows: its websocket. A message is an answer, and gets the next question."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.websockets import WebSocket, WebSocketDisconnect

from reverie.agent.dream_figures import to_uint8_image
from reverie.core.errors import ReverieError
from reverie.core.logger import logger
from reverie.datasets.dataset_env import check_env_code
from reverie.envs.flat_env import make_flat
from reverie.envs.render import RenderFn, make_renderer
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
    thread = ThreadPoolExecutor(1)  # some environments draw only in the thread that has made them
    return make_app(
        functools.partial(_serve_page, session, thread, functools.cache(lambda: find_paint(session))), token
    )


def find_paint(session: LabelSession) -> RenderFn | None:
    """Return what draws an observation, by the environment of the rows; None: they have images, or it cannot."""
    if session.env is None or any(part.kind == "image" for part in session.obs_spec.values()):
        return None
    try:
        check_env_code(session.env)
        env = make_flat(session.env.merge({"num": 1, "vectorization": "sync"}), None, 0, True)
        return make_renderer(env.env, session.obs_spec) if env.obs_spec == session.obs_spec else None
    except ReverieError as error:
        logger.info(f"no pictures: {error}")
        return None


async def _serve_page(
    session: LabelSession, thread: ThreadPoolExecutor, get_paint: Callable[[], RenderFn | None], socket: WebSocket
) -> None:
    """Ask until the page is closed. Each page has its own question."""
    await socket.accept()
    loop, problem = asyncio.get_running_loop(), ""

    async def propose() -> Clips:
        while (clips := await loop.run_in_executor(thread, session.propose)) is None:
            await socket.send_bytes(pack_answer({"problem": session.find_obstacle()}, []))
            await asyncio.sleep(WAIT_SECONDS)
        return clips

    with suppress(WebSocketDisconnect):
        clips = await propose()
        while True:
            head, pictures = await loop.run_in_executor(
                thread, lambda clips: _describe_question(session, clips, get_paint()), clips
            )
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


def _describe_question(session: LabelSession, clips: Clips, paint: RenderFn | None) -> tuple[dict[str, Any], Pictures]:
    """Return the numbers and pictures of ``clips``, and the number of each answer so far."""
    rows, spec = session.read(clips), session.obs_spec
    columns = {key: rows[f"obs/{key}"] for key, part in spec.items() if part.kind in ("vector", "categorical")}
    columns |= {"action": rows["action"]} if session.file.steps else {}
    series = [_list_series({key: x[i] for key, x in columns.items()}) for i in range(len(clips))]
    head = {
        "kind": session.file.kind,
        "counts": session.count(),
        "advice": session.advice(),
        "names": [*map(session.name, clips)],
        "series": series,
    }
    image = next((key for key, part in spec.items() if part.kind == "image"), None)
    if image is None and paint is None:
        return head, []

    def draw(i: int, t: int) -> np.ndarray:
        if paint is not None:
            return paint({key: rows[f"obs/{key}"][i, t] for key in spec})
        assert image is not None
        return to_rgb(to_uint8_image(rows[f"obs/{image}"][i, t], spec[image]), 255)

    places = np.ndindex(rows["reward"].shape)  # [n, T]
    return head, [([i, t], encode_png(shrink(draw(i, t), SIDE))) for i, t in places]


def _list_series(columns: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return the numbers of a clip of T rows, each a name and T values, of ``columns`` ``[T, ...]`` of few numbers."""
    flat = {key: x.reshape(len(x), -1) for key, x in columns.items()}
    return [
        {"name": f"{key} {i}" if x.shape[1] > 1 else key, "values": x[:, i].tolist()}
        for key, x in flat.items()
        if x.shape[1] <= MAX_SHOWN_NUMBERS
        for i in range(x.shape[1])
    ]
