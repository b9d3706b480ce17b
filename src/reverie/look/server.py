"""The page behind ``reverie look``: a web server on this machine, for whoever has the token in the link.

Each page has one websocket and, through it, at most one session. The page asks and the server answers, one request
after the other. An answer is the length of a JSON header (4 bytes, little-endian), the header, and its pictures.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import secrets
import struct
import sys
import time
import traceback
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
from reverie.log.metrics import FINAL, metric_series, read_metrics
from reverie.look.export import exported, plain
from reverie.look.session import Session
from reverie.look.source import Recording
from reverie.run.checkpoint import Checkpoints, number_of
from reverie.run.folder import RunFolder, read_saved

AGENTS, LARGEST, DRAWN, STRIP = 4, 2**16, 24, 6
"""Agents kept in memory; bytes of a request; pictures that an answer brings unasked, and of a future."""
HERE = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?")
"""Names of this machine: another one may be a foreign page's that leads here."""
DEPTH, POINTS, LIVE = 3, 400, 90
"""How deep runs are looked for; most points of a curve; seconds after which a silent run counts as ended."""
SHORT = ("episode/score", "eval/score", "estimate/return")
"""Metrics of the table of runs."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self' ws://{}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Guard:
    """Lets in who has the token, from a page of this server, under a name of this machine."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app: ASGIApp = app
        self.token: str = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        given = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = given.get(b"host", ""), given.get(b"origin")
        named = secrets.compare_digest(f"{scope['path']}/".split("/")[1].encode(), self.token.encode())
        own = origin == f"http://{host}" or (origin is None and scope["type"] == "http")
        if not (named and own and HERE.fullmatch(host)):
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


# ---------------------------------------------------------------- runs


def runs_in(folder: Path) -> dict[str, Path]:
    """Return the runs in ``folder`` by their paths below it, "." for the folder itself; RunError if there are none."""
    if RunFolder(folder).config.is_file():
        return {".": folder}
    found: dict[str, Path] = {}
    for depth in range(1, DEPTH + 1):
        for config in sorted(folder.glob("*/" * depth + "config.yaml")):
            found[config.parent.relative_to(folder).as_posix()] = config.parent
    if not found:
        read_saved(folder)  # says what is wrong with a single run
        raise RunError(f"there is no run in {folder}.")
    return found


def curve(rows: list[dict[str, Any]], name: str) -> list[list[float]]:
    """Return the steps and values of a metric while training, averaged to at most ``POINTS`` points."""
    steps, values = metric_series([row for row in rows if not row.get(FINAL)], name)
    if len(steps) > POINTS:
        parts = np.array_split(np.arange(len(steps)), POINTS)
        steps, values = (np.array([x[part].mean() for part in parts]) for x in (steps, values))
    return [steps.astype(int).tolist(), values.tolist()]


def curves(run: Path, names: tuple[str, ...] | None = None) -> dict[str, list[list[float]]]:
    """Return the curves (:func:`curve`) of all metrics of a run, or of some, by name."""
    rows = read_metrics(RunFolder(run).metrics, names and (*names, FINAL))
    known = {name for row in rows for name in row} - {"step", FINAL}
    return {name: found for name in sorted(known) if len((found := curve(rows, name))[0])}


def is_live(run: Path) -> bool:
    """Return whether something was measured a moment ago."""
    metrics = RunFolder(run).metrics
    return metrics.is_file() and time.time() - metrics.stat().st_mtime < LIVE


def state(run: Path) -> dict[str, Any]:
    """Return the checkpoints and curves of a run; RunError if it is gone."""
    read_saved(run)
    checkpoints = Checkpoints(RunFolder(run).checkpoints)
    best = checkpoints.best()
    listed = [{"name": path.name, "step": number_of(path)} for path in checkpoints.all()]
    found = {"checkpoints": listed, "best": best.name if best else None, "live": is_live(run)}
    return found | {"curves": curves(run)}


def table(runs: dict[str, Path]) -> list[dict[str, Any]]:
    """Return a line for each run, for a table of runs; of broken ones, what is wrong."""
    lines: list[dict[str, Any]] = []
    for name, path in runs.items():
        line: dict[str, Any] = {"name": name}
        try:
            saved = read_saved(path)
            line |= {"algorithm": saved.algorithm, "env": saved.env, "seed": saved.experiment.get("seed")}
            line |= {"curves": curves(path, SHORT), "live": is_live(path)}
            line["changed"] = max(
                (int(p.stat().st_mtime) for p in (path, RunFolder(path).metrics) if p.exists()), default=0
            )
            ends = [steps[-1] for steps, _ in line["curves"].values()]
            line["step"] = max([*ends, *map(number_of, Checkpoints(RunFolder(path).checkpoints).all())], default=0)
        except (ReverieError, OSError) as error:
            line["error"] = str(error)
        lines.append(line)
    return lines


# ---------------------------------------------------------------- sessions


class Looker:
    """What all pages share: the runs, the agents in memory, and one thread that computes for all of them."""

    def __init__(self, folder: Path, options: Mapping[str, Any] | None = None, data: str | None = None) -> None:
        """``options`` of :func:`reverie.load`. ``data``: what recorded episodes are read from; None: from the run."""
        self.folder: Path = folder
        self.options: dict[str, Any] = dict(options or {})
        self.data: str | None = data
        self.runs: dict[str, Path] = runs_in(folder)
        self.single: bool = list(self.runs) == ["."]
        self.worker: ThreadPoolExecutor = ThreadPoolExecutor(1, "look")
        self._loaded = functools.lru_cache(AGENTS)(
            lambda run, checkpoint: load(run, **{**self.options, "checkpoint": checkpoint})
        )

    def path(self, name: str) -> Path:
        """Return the folder of a run by the name that the table shows; no other folder can be reached."""
        if name not in self.runs:
            self.runs |= runs_in(self.folder)  # one that has begun since
        if name not in self.runs:
            raise RunError(f"there is no run {brief(name)} in {self.folder}.")
        return self.runs[name]

    def agent(self, name: str, checkpoint: str | None) -> Agent:
        """Return the agent of a run at a checkpoint of its own, or at the newest one."""
        path = self.path(name)
        checkpoints = Checkpoints(RunFolder(path).checkpoints)
        if checkpoint is None and self.single:
            checkpoint = self.options.get("checkpoint")
        elif checkpoint is not None and checkpoint not in [one.name for one in checkpoints.all()]:
            raise RunError(f"there is no checkpoint {brief(checkpoint)} in this run (any more).")
        return self._loaded(path, checkpoints.select(checkpoint))


Pictures = list[tuple[Any, bytes]]
"""PNG, and its place before the page: numbers that depend on the request."""
Answer = tuple[dict[str, Any], Pictures]


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

    def changed(self, first: int) -> Answer:
        """Return the rows from ``first`` on and the one before, which has another action; few rows with pictures."""
        session = self.open()
        told = {"first": first, "rows": session.rows(max(0, first - 1)), "context": session.line.context}
        told |= {"edits": len(session.line.edits), "held": len(session.line.held), "seed": session.seed}
        few = range(first, min(len(session), first + DRAWN)) if len(session) - first <= DRAWN else range(0)
        return told, self.drawn(few)

    def drawn(self, rows: Any) -> Pictures:
        """Return the pictures of rows, with their places: the row, and 0 for what happened or 1 for the dream."""
        session = self.open()
        found = [(number, session.picture(number)) for number in rows]
        return [([number, side], png) for number, both in found for side, png in enumerate(both) if png is not None]

    def close(self) -> None:
        """End the session."""
        if self.session is not None:
            self.session.close()
        self.session = None


def packed(head: dict[str, Any], pictures: Pictures) -> bytes:
    """Return an answer: see the top of this file."""
    head["pictures"] = [[*place, len(png)] for place, png in pictures]
    said = json.dumps(plain(head), separators=(",", ":")).encode()
    return b"".join([struct.pack("<I", len(said)), said, *(png for _, png in pictures)])


# ---------------------------------------------------------------- requests


def hello(page: Page) -> Answer:
    """Say what there is: a single run, or a table of several."""
    looker = page.looker
    looker.runs |= runs_in(looker.folder)
    said: dict[str, Any] = {"single": looker.single, "folder": looker.folder.name, "data": looker.data is not None}
    return said | ({} if looker.single else {"runs": table(looker.runs)}), []


def begin(page: Page, run: Any, checkpoint: Any = None, episode: Any = None) -> Answer:
    """Open a run and begin an episode; ``episode``: the number of a recorded one in place of playing."""
    agent = page.looker.agent(run, checkpoint)
    if episode is None and page.looker.data is not None:
        episode = 0
    recorded = None if episode is None else Recording(agent, page.looker.data, episode)
    session = Session(agent, source=recorded)
    page.close()
    page.session, page.name = session, run
    return about(page)


def about(page: Page) -> Answer:
    """Say all of the session, as after another agent has come."""
    told, pictures = page.changed(0)
    return {"about": page.open().about(), "name": page.looker.path(page.name).name} | told, pictures


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


def use(page: Page, checkpoint: Any) -> Answer:
    """Let another checkpoint's agent dream the same episode."""
    page.open().use(page.looker.agent(page.name, checkpoint))
    return about(page)


def judge(page: Page, checkpoint: Any) -> Answer:
    """Say how wrong another checkpoint's dream of this episode would be."""
    return {"errors": page.open().judged(page.looker.agent(page.name, checkpoint))}, []


def export(page: Page, kind: Any) -> Answer:
    """Send the episode and its dream as a file."""
    name, content = exported(page.open(), kind, page.looker.path(page.name).name)
    return {"file": name}, [([0, 0], content)]


COMMANDS: dict[str, Callable[..., Answer]] = {
    **{command.__name__: command for command in (hello, begin, mode, branch, use, judge, export)},
    "run": lambda page: (state(page.looker.path(page.name)), []),
    "pictures": lambda page, rows: ({}, page.drawn([row for row in rows if 0 <= row < len(page.open())])),
    "start": lambda page, seed=None: page.changed(page.open().start(seed)),
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
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                text = await socket.receive_text()
                await socket.send_bytes(await loop.run_in_executor(looker.worker, page.answer, text))
    finally:
        await loop.run_in_executor(looker.worker, page.close)


def app(looker: Looker, token: str) -> Starlette:
    """Return the web application."""
    pages = Mount("/", StaticFiles(directory=Path(__file__).with_name("static"), html=True))
    inside = [WebSocketRoute("/ws", functools.partial(talk, looker)), pages]
    return Starlette(routes=[Mount(f"/{token}", routes=inside)], middleware=[Middleware(Guard, token=token)])
