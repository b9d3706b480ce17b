"""The page behind ``reverie look``: a web server on this machine, for whoever has the token in the link.

Each page has one websocket and, through it, at most one session. The page asks and the server answers, one request
after the other; nothing is sent unasked, so a slow browser slows its own session and nothing piles up. An answer is
binary: the length of a JSON header (4 bytes, little-endian), the header, and the pictures that it lists.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import secrets
import struct
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from reverie.agent.agent import Agent
from reverie.agent.loading import load
from reverie.core.errors import DataError, ReverieError, RunError, brief
from reverie.look import runs
from reverie.look.export import exported, plain
from reverie.look.session import Session
from reverie.look.source import Recording

STATIC = Path(__file__).with_name("static")
AGENTS, LARGEST, DRAWN, STRIP = 4, 2**16, 24, 6
"""Agents kept in memory; bytes of a request; pictures that an answer brings unasked, and of a future."""
HERE = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?")
"""Names of this machine: another one may be a foreign page's that leads here."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self' ws://{}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Guard:
    """Lets in who has the token, from a page of this server, under a name of this machine."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        given = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = given.get(b"host", ""), given.get(b"origin")
        if not self._admits(scope, host, origin):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                refused = PlainTextResponse("Use the link that `reverie look` has printed.", 403)
                await refused(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *headers(host)]
            await send(message)

        await self.app(scope, receive, answer)

    def _admits(self, scope: Scope, host: str, origin: str | None) -> bool:
        named = secrets.compare_digest(f"{scope['path']}/".split("/")[1].encode(), self.token.encode())
        own = origin == f"http://{host}" or (origin is None and scope["type"] == "http")
        return named and own and HERE.fullmatch(host) is not None


def headers(host: str) -> list[tuple[bytes, bytes]]:
    """Return what every answer says to browsers: load nothing from elsewhere, tell nobody, keep nothing."""
    said = {
        "content-security-policy": POLICY.format(host),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
    }
    return [(name.encode(), value.encode()) for name, value in said.items()]


class Looker:
    """What all pages share: the runs, the agents in memory, and one thread that computes for all of them."""

    def __init__(self, folder: Path, options: Mapping[str, Any] | None = None, data: str | None = None) -> None:
        """``options`` of :func:`reverie.load`. ``data``: what recorded episodes are read from; None: from the run."""
        self.folder = folder
        self.options: dict[str, Any] = dict(options or {})
        self.data = data
        self.runs: dict[str, Path] = runs.runs_in(folder)
        self.single: bool = list(self.runs) == ["."]
        self.worker: ThreadPoolExecutor = ThreadPoolExecutor(1, "look")
        self._agents: OrderedDict[tuple[str, str | None], Agent] = OrderedDict()

    def look_again(self) -> None:
        """Find runs that have begun since."""
        self.runs |= runs.runs_in(self.folder)

    def path(self, name: str) -> Path:
        """Return the folder of a run by the name that the table shows; no other folder can be reached."""
        if name not in self.runs:
            self.look_again()
        if name not in self.runs:
            raise RunError(f"there is no run {brief(name)} in {self.folder}.")
        return self.runs[name]

    def agent(self, name: str, checkpoint: str | None) -> Agent:
        """Return the agent of a run at a checkpoint of its own, or at the newest one."""
        path = self.path(name)
        known = [one["name"] for one in runs.state(path)["checkpoints"]]
        if checkpoint is None and self.single:
            checkpoint = self.options.get("checkpoint")
        elif checkpoint is not None and checkpoint not in known:
            raise RunError(f"there is no checkpoint {brief(checkpoint)} in this run (any more).")
        key = name, checkpoint or (known[-1] if known else None)
        if key not in self._agents:
            self._agents[key] = load(path, **{**self.options, "checkpoint": checkpoint})
            if len(self._agents) > AGENTS:
                self._agents.popitem(last=False)
        self._agents.move_to_end(key)
        return self._agents[key]


class Page:
    """One open page: its session, and the answers to its requests."""

    def __init__(self, looker: Looker) -> None:
        self.looker = looker
        self.name = "."
        self.session: Session | None = None

    def answer(self, text: str) -> bytes:
        """Return the answer to a request; whatever is wrong with it, or goes wrong, is said in the answer."""
        head: dict[str, Any] = {}
        try:
            request = json.loads(text)
            head = {"id": request.pop("id", None)}
            done, pictures = COMMANDS[request.pop("do")](self, **request)
        except ReverieError as error:
            done, pictures = {"error": str(error)}, []
        except Exception as error:  # an environment's or a model's: the page says it and lives
            traceback.print_exc(file=sys.stderr)
            done, pictures = {"error": f"{type(error).__name__}: {error}"}, []
        return packed(head | done, pictures)

    def open(self) -> Session:
        """Return the session; DataError before one has begun."""
        if self.session is None:
            raise DataError("nothing is open: choose a run.")
        return self.session

    def changed(self, first: int) -> tuple[dict[str, Any], list[tuple[Any, bytes]]]:
        """Return the rows from ``first`` on and the one before, which has another action; few rows with pictures."""
        session = self.open()
        told = {"first": first, "rows": session.rows(max(0, first - 1)), "context": session.line.context}
        told |= {"edits": len(session.line.edits), "held": len(session.line.held), "seed": session.seed}
        few = range(first, min(len(session), first + DRAWN)) if len(session) - first <= DRAWN else range(0)
        return told, self.drawn(few)

    def drawn(self, rows: Any) -> list[tuple[Any, bytes]]:
        """Return the pictures of rows, with their places: the row, and 0 for what happened or 1 for the dream."""
        session = self.open()
        found = [(number, session.picture(number)) for number in rows]
        return [([number, side], png) for number, both in found for side, png in enumerate(both) if png is not None]

    def close(self) -> None:
        """End the session."""
        if self.session is not None:
            self.session.close()
        self.session = None


def packed(head: dict[str, Any], pictures: list[tuple[Any, bytes]]) -> bytes:
    """Return an answer: see the top of this file."""
    head["pictures"] = [[*place, len(png)] for place, png in pictures]
    said = json.dumps(plain(head), separators=(",", ":")).encode()
    return b"".join([struct.pack("<I", len(said)), said, *(png for _, png in pictures)])


# ---------------------------------------------------------------- requests

Answer = tuple[dict[str, Any], list[tuple[Any, bytes]]]


def hello(page: Page) -> Answer:
    """Say what there is: a single run, or a table of several."""
    looker = page.looker
    looker.look_again()
    said: dict[str, Any] = {"single": looker.single, "folder": looker.folder.name, "data": looker.data is not None}
    return said | ({} if looker.single else {"runs": runs.table(looker.runs)}), []


def begin(page: Page, run: Any, checkpoint: Any = None, episode: Any = None) -> Answer:
    """Open a run and begin an episode; ``episode``: the number of a recorded one in place of playing."""
    agent = page.looker.agent(run, checkpoint)
    if episode is None and page.looker.data is not None:
        episode = 0
    recorded = None if episode is None else Recording(agent, page.looker.data, episode)
    session = Session(agent, source=recorded)
    page.close()
    page.session, page.name = session, run
    return about(page, 0)


def about(page: Page, first: int) -> Answer:
    """Say all of the session, as after another agent has come."""
    told, pictures = page.changed(first)
    return {"about": page.open().about(), "name": page.looker.path(page.name).name} | told, pictures


def start(page: Page, seed: Any = None) -> Answer:
    """Begin another episode."""
    return page.changed(page.open().start(seed))


def mode(page: Page, mode: Any) -> Answer:
    """Let the policy take its most likely actions ("mode"), or draw them ("sample")."""
    page.open().mode = mode
    return {}, []


def branch(page: Page, at: Any, by: Any = "sample", steps: Any = 15) -> Answer:
    """Imagine futures; their pictures have the number of the future, and of its row."""
    session = page.open()
    futures = session.branch(at, by, steps)
    shown = np.unique(np.linspace(0, len(futures[0].rows) - 1, STRIP).astype(int)).tolist()
    pictures = [([number, t], session.drawn(one.rows[t])) for number, one in enumerate(futures) for t in shown]
    told = [
        {
            "return": one.total,
            "rewards": [row.said["reward"] for row in one.rows],
            "conts": [row.said["cont"] for row in one.rows],
            "action": one.actions[0],
            "actions": [action[0].argmax() for action in one.actions],
        }
        for one in futures
    ]
    return {"futures": told, "at": at, "shown": shown}, [(place, png) for place, png in pictures if png is not None]


def run_state(page: Page) -> Answer:
    """Say which checkpoints and curves the run has now."""
    return runs.state(page.looker.path(page.name)), []


def use(page: Page, checkpoint: Any) -> Answer:
    """Let another checkpoint's agent dream the same episode."""
    session = page.open()
    session.use(page.looker.agent(page.name, checkpoint))
    return about(page, 0)


def judge(page: Page, checkpoint: Any) -> Answer:
    """Say how wrong another checkpoint's dream of this episode would be."""
    return {"errors": page.open().judged(page.looker.agent(page.name, checkpoint))}, []


def pictures(page: Page, rows: Any) -> Answer:
    """Send the pictures of rows."""
    session = page.open()
    return {}, page.drawn([row for row in rows if 0 <= row < len(session)])


def export(page: Page, kind: Any) -> Answer:
    """Send the episode and its dream as a file."""
    name, content = exported(page.open(), kind, page.looker.path(page.name).name)
    return {"file": name}, [([0, 0], content)]


COMMANDS: dict[str, Callable[..., Answer]] = {
    "hello": hello,
    "begin": begin,
    "start": start,
    "mode": mode,
    "branch": branch,
    "run": run_state,
    "use": use,
    "judge": judge,
    "pictures": pictures,
    "export": export,
    "step": lambda page, at=None, action=None: page.changed(page.open().step(at, action)),
    "dream": lambda page, at, steps=15, action=None: page.changed(page.open().dream(at, steps, action)),
    "see": lambda page, rows: page.changed(page.open().see(rows)),
    "pick": lambda page, number: page.changed(page.open().pick(number)),
    "edit": lambda page, at, latent, value, keep=False: page.changed(page.open().edit(at, latent, value, keep)),
    "undo": lambda page: page.changed(page.open().undo()),
    "latent": lambda page, at: (page.open().latent(at), []),
}
"""The requests by name."""


async def talk(looker: Looker, socket: WebSocket) -> None:
    """Answer the requests of a page until it is closed."""
    await socket.accept()
    page, loop = Page(looker), asyncio.get_running_loop()
    try:
        while True:
            text = await socket.receive_text()
            await socket.send_bytes(await loop.run_in_executor(looker.worker, page.answer, text))
    except WebSocketDisconnect:
        pass
    finally:
        await loop.run_in_executor(looker.worker, page.close)


def app(looker: Looker, token: str) -> Starlette:
    """Return the web application."""
    inside = [
        WebSocketRoute("/ws", functools.partial(talk, looker)),
        Mount("/", StaticFiles(directory=STATIC, html=True)),
    ]
    return Starlette(routes=[Mount(f"/{token}", routes=inside)], middleware=[Middleware(Guard, token=token)])
