"""The page in which a person watches a run and takes over: its websocket, in a thread of the process that trains."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.websockets import WebSocket, WebSocketDisconnect

from reverie.core import wall_clock
from reverie.log.video import shrink
from reverie.run.channel import PageChannel
from reverie.viewer.episode_source import encode_png
from reverie.viewer.page_data import describe_actions
from reverie.viewer.server import make_app, pack_answer

MAX_SIDE, MAX_MESSAGES = 384, 200
"""Pixels of the longer side of a picture; messages of a page in a second, after which it is closed. At most."""
DRAWN = "drawn"
"""The message of a page that has drawn the newest row, and can take another."""


def live_app(channel: PageChannel, title: str, questions: str, token: str) -> Starlette:
    """Return the web application of the page through which a person takes over by ``channel``.

    ``questions``: address of the page that asks about the run's rows; "": there is none.
    """
    return make_app(functools.partial(_serve_page, channel, title, questions), token)


async def _serve_page(channel: PageChannel, title: str, questions: str, socket: WebSocket) -> None:
    """Answer the messages of a page, and send what it shows, until it is closed or sends too many messages."""
    await socket.accept()
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(changed.set)

    page, drawn = channel.join(wake), asyncio.Event()
    drawn.set()
    sender = asyncio.create_task(_send_rows(channel, page, socket, changed, drawn))
    begin, count = wall_clock.monotonic(), 0
    try:
        await socket.send_text(json.dumps({"about": _describe_channel(channel, title) | {"questions": questions}}))
        while count < MAX_MESSAGES and (text := (await socket.receive()).get("text")) is not None:
            begin, count = (time, 0) if (time := wall_clock.monotonic()) >= begin + 1 else (begin, count + 1)
            if text == DRAWN:
                drawn.set()
            else:
                await socket.send_text(json.dumps(channel.handle(page, text)))
        await socket.close(1008)
    except (WebSocketDisconnect, RuntimeError):  # it is closed already
        pass
    finally:
        channel.leave(page)
        sender.cancel()


async def _send_rows(
    channel: PageChannel, page: int, socket: WebSocket, changed: asyncio.Event, drawn: asyncio.Event
) -> None:
    """Send the newest row whenever something has changed, and the one before is drawn: a slow page leaves rows out."""
    loop, number = asyncio.get_running_loop(), -1
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        while await drawn.wait() and await changed.wait():
            drawn.clear()
            changed.clear()
            head, picture = channel.describe(page, number)
            number = head["number"]
            pictures = [] if picture is None else [([0, 0], await loop.run_in_executor(None, _encode, picture))]
            await socket.send_bytes(pack_answer(head, pictures))


def _encode(picture: np.ndarray) -> bytes:
    return encode_png(shrink(picture, MAX_SIDE))


def _describe_channel(channel: PageChannel, title: str) -> dict[str, Any]:
    """Return the facts of a page: the actions, their names, and the keys with their flat actions ``[A]``."""
    keys = [
        {"keys": sorted(keys), "action": channel.flatten(action).tolist()}
        for keys, action in channel.keymap.actions.items()
    ]
    return {"title": title, "names": channel.names, "keys": keys, **describe_actions(channel.spec)}
