"""The web server behind ``reverie view``, on this machine, for clients with the token in the link.

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
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from reverie.agent.agent import Agent
from reverie.agent.loading import load
from reverie.algos.base import INTERNAL_PREFIX
from reverie.algos.lewm import LeWM
from reverie.core import wall_clock
from reverie.core.errors import DataError, ReverieError, RunError, short_repr
from reverie.core.kernel_dispatch import needs_compilation
from reverie.distributed.compare import AXES
from reverie.log.video import shrink
from reverie.run.checkpoint import Checkpoints
from reverie.run.folder import RunFolder
from reverie.run.manifest import checkpoint_problem
from reverie.viewer.comparison import compare_settings
from reverie.viewer.episode_source import SIDE, RecordedEnv, crop, decode_png, encode_png
from reverie.viewer.export import export_episode
from reverie.viewer.goals import GoalStates, as_goal, has_env, is_goal_agent
from reverie.viewer.page import to_json_value
from reverie.viewer.page_data import MAX_SHOWN_NUMBERS
from reverie.viewer.runs import find_checkpoints, find_runs, run_state, runs_table
from reverie.viewer.session import Session

MAX_AGENTS, MAX_REQUEST_BYTES, MAX_PICTURES, NUM_STRIP_PICTURES = 4, 2**16, 24, 6
"""Maximum number of agents kept in memory; bytes of a request; pictures in an answer, and pictures per future."""
GOAL_SIDE = 2
"""Second number of the address of the goal's picture, after 0 for real rows and 1 for the dream."""
LOOPBACK_HOSTS = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?")
"""Host names of this machine: other names could belong to a foreign page that resolves to this machine."""
MAX_STEP_SECONDS, MAX_PREVIEW_ROWS = 0.2, 1000
"""Maximum seconds of a request that plays several rows; maximum rows of an episode in the gallery."""
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self' ws://{}; "
    "base-uri 'none'; form-action 'none'; frame-src 'self'; "
    "frame-ancestors 'self' http://127.0.0.1:* http://localhost:* vscode-webview:"
)


class TokenGuard:
    """Accepts only requests that carry the token, come from a page of this server, and address a loopback host name."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app: ASGIApp = app
        self.token: str = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or reject it."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        request_headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = request_headers.get(b"host", ""), request_headers.get(b"origin")
        named = secrets.compare_digest(f"{scope['path']}/".split("/")[1].encode(), self.token.encode())
        is_same_origin = origin == f"http://{host}" or (origin is None and scope["type"] == "http")
        if not (named and is_same_origin and LOOPBACK_HOSTS.fullmatch(host)):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                refused = PlainTextResponse("Use the link that `reverie view` has printed.", 403)
                await refused(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *headers(host, scope["path"])]
            await send(message)

        await self.app(scope, receive, answer)


def headers(host: str, path: str) -> list[tuple[bytes, bytes]]:
    """Return the security headers of every answer: load nothing from other hosts, send no referrer, store nothing.

    The icon alone may be loaded by other pages: a notebook learns from it that the server answers.
    """
    values = {
        "content-security-policy": CONTENT_SECURITY_POLICY.format(host),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "cross-origin" if path.endswith("/icon.svg") else "same-origin",
        "cache-control": "no-store",
    }
    return [(name.encode(), value.encode()) for name, value in values.items()]


# ---------------------------------------------------------------- sessions


class Viewer:
    """Shared by all pages: the runs, the agents in memory, and one thread that computes for all pages."""

    def __init__(self, folder: Path, options: Mapping[str, Any] | None = None, data: str | None = None) -> None:
        """``options`` of :func:`reverie.load`. ``data``: source of recorded episodes; None: the run."""
        self.folder: Path = folder
        self.options: dict[str, Any] = dict(options or {})
        self.data: str | None = data
        self.runs: dict[str, Path] = find_runs(folder)
        self.single: bool = list(self.runs) == ["."]
        self.worker: ThreadPoolExecutor = ThreadPoolExecutor(1, "viewer")
        self.printed: set[tuple[str, str, int]] = set()  # types and places of errors
        self._loaded = functools.lru_cache(MAX_AGENTS)(
            lambda run, checkpoint: load(run, **{**self.options, "checkpoint": checkpoint})
        )

        self.goal_states: Callable[[Agent], GoalStates] = functools.lru_cache(1)(
            lambda agent: GoalStates(agent, self.data)
        )

    def path(self, name: str) -> Path:
        """Return the folder of a run by its name in the table; no other folder is accessible."""
        if name not in self.runs:
            self.runs |= find_runs(self.folder)  # a run that started later
        if name not in self.runs:
            raise RunError(f"there is no run {short_repr(name)} in {self.folder}.")
        return self.runs[name]

    def agent(self, name: str, checkpoint: str | None) -> Agent:
        """Return the agent of a run at one of its checkpoints; None: the newest one."""
        path = self.path(name)
        if checkpoint is None:
            chosen = self.options.get("checkpoint") if self.single else None
            return self._loaded(path, Checkpoints(RunFolder(path).checkpoints).select(chosen))
        if (checkpoint_path := find_checkpoints(path).get(checkpoint)) is None:
            raise RunError(f"there is no checkpoint {short_repr(checkpoint)} in this run (any more).")
        return self._loaded(path, checkpoint_path)

    def print_once(self, error: Exception) -> None:
        """Print the traceback of an error, unless one from the same line of code was printed before."""
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        place = type(error).__name__, frame.f_code.co_filename, line
        if place not in self.printed:
            self.printed.add(place)
            traceback.print_exception(error, file=sys.stderr)


Pictures = list[tuple[Any, bytes]]
"""Address and PNG of each picture; the numbers of the address depend on the request."""
Response = tuple[dict[str, Any], Pictures]


class Page:
    """One open page: its session, and the answers to its requests."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer
        self.name = "."
        self.session: Session | None = None
        self.preview: Session | None = None

    def answer(self, text: str) -> bytes:
        """Handle a request. Errors are returned in the answer."""
        head: dict[str, Any] = {}
        try:
            request = json.loads(text)
            head = {"id": request.pop("id", None)}
            if (name := request.pop("do")) in CHANGES:
                done, pictures = self.rows_since(getattr(self.open(), name)(**request))
            else:
                done, pictures = COMMANDS[name](self, **request)
        except ReverieError as error:
            done, pictures = {"error": str(error), "kind": type(error).__name__}, []
        except Exception as error:  # an environment's or a model's error: show it on the page, which stays open
            self.viewer.print_once(error)
            done, pictures = {"error": f"{type(error).__name__}: {error}"}, []
        return pack_answer(head | done, pictures)

    def open(self) -> Session:
        """Return the session; DataError if none has been started."""
        if self.session is None:
            raise DataError("nothing is open: choose a run.")
        return self.session

    def rows_since(self, first: int) -> Response:
        """Return the rows from ``first`` on and the previous row, whose action may differ; few rows with pictures."""
        session = self.open()
        head = {"first": first, "rows": session.rows(max(0, first - 1)), "context": session.timeline.num_seen()}
        head |= {"lanes": session.describe_lanes(), "lane": session.lanes.index(session.timeline)}
        head |= {"edits": len(session.timeline.edits), "end": session.timeline.dream_end(), "seed": session.seed}
        changed = range(first, len(session))
        pictures = self.row_pictures(changed if len(changed) <= MAX_PICTURES else [])
        if not first and is_goal_agent(session.agent) and (goal := session.pictures.goal(session.goal)) is not None:
            pictures.append(([0, GOAL_SIDE], goal))
        return head, pictures

    def goal_states(self) -> GoalStates:
        """Return the recorded states of the session's agent, which are read once."""
        return self.viewer.goal_states(self.open().agent)

    def row_pictures(self, rows: Iterable[int]) -> Pictures:
        """Return the pictures of rows; an address is the row, and 0 for the real row or 1 for the dream."""
        session = self.open()
        pictures = [(number, session.picture(number)) for number in rows]
        return [([number, side], png) for number, both in pictures for side, png in enumerate(both) if png is not None]

    def close(self) -> None:
        """End the session."""
        for session in (self.session, self.preview):
            if session is not None:
                session.close()
        self.session = self.preview = None


def pack_answer(head: dict[str, Any], pictures: Pictures) -> bytes:
    """Pack an answer as described at the top of this file."""
    head["pictures"] = [[*address, len(png)] for address, png in pictures]
    text = json.dumps(to_json_value(head), separators=(",", ":")).encode()
    return b"".join([struct.pack("<I", len(text)), text, *(png for _, png in pictures)])


# ---------------------------------------------------------------- requests


def _describe_agent(page: Page) -> Response:
    """Return the single run, or a table of several runs."""
    viewer = page.viewer
    viewer.runs |= find_runs(viewer.folder)
    head: dict[str, Any] = {"single": viewer.single, "folder": viewer.folder.name, "data": viewer.data is not None}
    head["compiling"] = not torch.cuda.is_available() and needs_compilation()
    return head | ({} if viewer.single else {"runs": runs_table(viewer.runs)}), []


def _compare_runs(page: Page, runs: Sequence[str], axis: str = "steps", same_budget: bool = False) -> Response:
    """Return which settings are best, runs as settings with seeds, and how the settings differ."""
    if axis not in AXES:
        raise DataError(f"axis = {short_repr(axis)}: expected {', '.join(AXES)}.")
    return compare_settings({name: page.viewer.path(name) for name in runs}, axis, bool(same_budget)), []


def _start_session(
    page: Page, run: str, checkpoint: str | None = None, episode: int | None = None, seed: int | None = None
) -> Response:
    """Open a run and begin an episode; ``episode``: number of a recorded episode to show instead."""
    viewer = page.viewer
    agent = viewer.agent(run, checkpoint)
    plays = viewer.data is None and has_env(agent)
    session = open_episode(viewer, agent, 0 if episode is seed is None and not plays else episode, seed)
    tried = session.start_longest() if seed is None and not is_goal_agent(agent) else 1  # a goal ends it early
    page.close()
    page.session, page.name = session, run
    head, pictures = _describe_session(page)
    head["tried"] = tried
    newest = Checkpoints(RunFolder(viewer.path(run)).checkpoints).paths()[-1:]
    if checkpoint is None and newest and (problem := checkpoint_problem(newest[0])):
        head["remark"] = (
            f"The newest checkpoint, {newest[0].name}, cannot be used ({problem}): this is {agent.checkpoint.name}. "
            "Resume the run to save another one."
        )
    return head, pictures


def open_episode(viewer: Viewer, agent: Agent, episode: int | None, seed: int | None) -> Session:
    """Return a session with a recorded episode, or, if ``episode`` is None, with the agent's environment."""
    source = None if episode is None else RecordedEnv(agent, viewer.data, episode)
    return Session(agent, seed=seed, source=source)


def step(page: Page, at: int | None = None, action: Any = None, steps: int = 1) -> Response:
    """Step the environment: ``steps`` times, until the episode ends or ``MAX_STEP_SECONDS`` are over."""
    session = page.open()
    first = session.step(at, action)
    play(session, steps - 1)
    return page.rows_since(first)


def play(session: Session, steps: int) -> None:
    """Step the environment until the episode ends, ``MAX_STEP_SECONDS`` are over, or for ``steps``."""
    deadline = wall_clock.monotonic() + MAX_STEP_SECONDS
    for _ in range(steps):
        if session.timeline.real[-1].values["last"] or wall_clock.monotonic() > deadline:
            break
        session.step()


def preview(page: Page, episode: int | None = None, seed: int | None = None, again: bool = False) -> Response:
    """Play an episode for the gallery, up to ``MAX_STEP_SECONDS``; ``again``: continue the previous preview.

    Return its score, how it ended, where its value fell, its largest surprise, and the picture of its middle row.
    """
    if not again or page.preview is None:
        if page.preview is not None:
            page.preview.close()
            page.preview = None
        page.preview = open_episode(page.viewer, page.open().agent, episode, seed)
        page.preview.timeline.context = MAX_PREVIEW_ROWS + 1  # nothing is imagined
    session, line = page.preview, page.preview.timeline
    play(session, MAX_PREVIEW_ROWS + 1 - len(line.real))
    rows = [row.values for row in line.real]
    head = {"rows": len(rows), "score": line.score(), "episode": session.info()["episode"]}
    head |= {"last": rows[-1]["last"], "surprise": max((row["kl"] for row in rows[1:] if "kl" in row), default=None)}
    head |= {"ending": session.describe_ending(), "fall": session.find_value_fall()}
    head |= {"done": rows[-1]["last"] or len(rows) > MAX_PREVIEW_ROWS, "seed": session.seed}
    picture = line.real[len(rows) // 2].picture
    return head, [([0, 0], picture)] if head["done"] and picture is not None else []


def _describe_session(page: Page) -> Response:
    """Return everything about the session, as after a change of the agent."""
    head, pictures = page.rows_since(0)
    return {"about": page.open().info(), "name": page.viewer.path(page.name).name} | head, pictures


def _choose_actions(page: Page, deterministic: bool) -> Response:
    """Let the policy take its most likely actions, or sample them."""
    page.open().deterministic = bool(deterministic)
    return {}, []


def branch(page: Page, at: int, by: str = "sample", steps: int = 15) -> Response:
    """Imagine futures; the address of a picture is the number of the future, and of its row."""
    session = page.open()
    futures = session.branch(at, by, steps)
    strip = np.unique(np.linspace(0, len(futures[0].rows) - 1, NUM_STRIP_PICTURES).astype(int)).tolist()
    pictures = [
        ([number, t], png)
        for number, future in enumerate(futures)
        for t in strip
        if (png := session.dream_picture(future.rows[t])) is not None
    ]
    entries = [
        {
            "return": future.predicted_return,
            "rewards": [row.predictions["reward"] for row in future.rows],
            "values": [row.predictions[f"{INTERNAL_PREFIX}value"] for row in future.rows],
            "conts": [row.predictions["cont"] for row in future.rows],
            "action": future.actions[0],
            "actions": [int(action[0].argmax()) for action in future.actions],
        }
        for future in futures
    ]
    head = {"futures": entries, "at": at, "shown": strip}
    return head, list(zip([address for address, _ in pictures], crop([png for _, png in pictures]), strict=True))


def _lane_pictures(page: Page, places: Sequence[tuple[int, int]]) -> Response:
    """Return small pictures of rows of lanes; an address is the lane and the row. Lane -1: the truth of the episode."""
    session, count = page.open(), len(page.open().lanes)
    lines = [(lane, row, session.lanes[max(0, lane)]) for lane, row in places[:MAX_PICTURES] if -1 <= lane < count]
    pngs = [
        ([lane, row], session.lane_picture(line, row, lane < 0)) for lane, row, line in lines if 0 <= row < len(line)
    ]
    return {}, [(address, encode_png(shrink(decode_png(png), SIDE // 2))) for address, png in pngs if png is not None]


def switch_checkpoint(page: Page, checkpoint: str | None) -> Response:
    """Let another checkpoint's agent dream the same episode."""
    page.open().switch_agent(page.viewer.agent(page.name, checkpoint))
    return _describe_session(page)


def compare_checkpoint(page: Page, checkpoint: str | None) -> Response:
    """Return the errors of another checkpoint's dream of this episode."""
    return {"errors": page.open().evaluate_agent(page.viewer.agent(page.name, checkpoint))}, []


def _goal_map(page: Page, x: str | None = None, y: str | None = None) -> Response:
    """Return recorded states on two axes, with their estimated distances to the goal, and the goal."""
    session, states = page.open(), page.goal_states()
    known = states.axes
    x, y = (given if given in known else usual for given, usual in zip((x, y), states.default_axes, strict=True))
    goal = session.goal
    head: dict[str, Any] = {"axes": [*known], "x": x, "y": y, "points": np.stack([known[x], known[y]], -1)}
    head |= {"colors": states.estimate(as_goal(session.agent, goal, 0)), "goal": states.coordinates(goal, x, y)[0]}
    numbers = {key: values.flatten() for key, values in goal.items() if key in states.vectors}
    return head | {"numbers": {k: v.tolist() for k, v in numbers.items() if len(v) <= MAX_SHOWN_NUMBERS}}, []


def _goal_path(page: Page, x: str, y: str, first: int) -> Response:
    """Return the places of the real rows from ``first`` on."""
    rows = [row.step.obs for row in page.open().timeline.real[first:]]
    obs = {key: torch.cat([row[key] for row in rows]) for key in page.goal_states().obs} if rows else {}
    return {"first": first, "path": page.goal_states().coordinates(obs, x, y) if rows else []}, []


def _goal_plan(page: Page, at: int) -> Response:
    """Return what the agent aims at in a row: the point of HIQL's subgoal, or LeWM's plan with its pictures."""
    session, states = page.open(), page.goal_states()
    at = min(int(at), len(session.timeline.real) - 1)
    step, before = session.timeline.real[at].step, session.state_before(at)
    if not isinstance(session.agent.algo, LeWM):
        return {"at": at, "subgoal": states.subgoal(step, before)}, []
    strip, pictures = states.plan(step, before)
    return {"at": at, "strip": vars(strip)}, [([i, 0], encode_png(x)) for i, x in enumerate(pictures) if x is not None]


def _pursue(page: Page, number: int) -> Response:
    """Make a recorded state the goal, and begin an episode to it, in the environment if there is one."""
    session, goal = page.open(), page.goal_states().goal(number)
    if session.recorded is not None and has_env(session.agent):
        session = Session(session.agent)
        page.close()
        page.session = session
    session.pursue(goal)
    session.start(session.seed)
    return _describe_session(page)


def _export_file(page: Page, kind: str) -> Response:
    """Send the episode and its dream as a file."""
    name, content = export_episode(page.open(), kind, page.viewer.path(page.name).name)
    return {"file": name}, [([0, 0], content)]


COMMANDS: dict[str, Callable[..., Response]] = {
    "hello": _describe_agent,
    "compare_runs": _compare_runs,
    "begin": _start_session,
    "step": step,
    "preview": preview,
    "choose_actions": _choose_actions,
    "branch": branch,
    "switch_checkpoint": switch_checkpoint,
    "compare_checkpoint": compare_checkpoint,
    "export_file": _export_file,
    "goal_map": _goal_map,
    "goal_path": _goal_path,
    "goal_plan": _goal_plan,
    "pursue": _pursue,
    "run": lambda page: (run_state(page.viewer.path(page.name)), []),
    "pictures": lambda page, rows: ({}, page.row_pictures([row for row in rows if 0 <= row < len(page.open())])),
    "lane_pictures": _lane_pictures,
    "search": lambda page, at, simulations: (page.open().search(at, simulations), []),
    "strip": lambda page, columns: (vars(page.open().strip(columns)), []),
    "latent": lambda page, at: (page.open().latent(at), []),
}
"""The requests by name."""
CHANGES = frozenset({"start", "dream", "switch_lane", "set_context", "pick", "edit", "follow", "undo"})
"""Requests that are methods of the session, which return the first row that they change: these rows are sent."""


async def _serve_page(viewer: Viewer, socket: WebSocket) -> None:
    """Answer the requests of a page until it is closed."""
    await socket.accept()
    page, loop = Page(viewer), asyncio.get_running_loop()
    try:
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                text = await socket.receive_text()
                await socket.send_bytes(await loop.run_in_executor(viewer.worker, page.answer, text))
    finally:
        await loop.run_in_executor(viewer.worker, page.close)


def app(viewer: Viewer, token: str) -> Starlette:
    """Return the web application of the viewer."""
    return make_app(functools.partial(_serve_page, viewer), token)


def make_app(serve_page: Callable[[WebSocket], Awaitable[None]], token: str) -> Starlette:
    """Return a web application of the static pages, whose websockets ``serve_page`` serves."""
    pages = Mount("/", StaticFiles(directory=Path(__file__).with_name("static"), html=True))
    inside = [WebSocketRoute("/ws", serve_page), pages]
    return Starlette(routes=[Mount(f"/{token}", routes=inside)], middleware=[Middleware(TokenGuard, token=token)])
