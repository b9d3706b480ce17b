"""Start the viewer: for the command line, or in a thread of a notebook."""

from __future__ import annotations

import contextlib
import functools
import html
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reverie.core.bounds import Within
from reverie.core.errors import ConfigError, ReverieError
from reverie.core.logger import logger
from reverie.core.signals import PARENT_PID
from reverie.core.terminal import show
from reverie.run.channel import PageChannel
from reverie.run.folder import RunFolder
from reverie.run.signal_handling import SignalStop

try:
    import uvicorn

    from reverie.viewer.export import standalone_page
    from reverie.viewer.labels import labels_app
    from reverie.viewer.live import live_app
    from reverie.viewer.server import MAX_REQUEST_BYTES, Viewer, app, open_episode
except ImportError as _error:
    raise ConfigError(f"the viewer needs {_error.name}: pip install 'reverie-rl[viewer]'.") from None

if TYPE_CHECKING:
    from reverie.experiment.labeling import LabelSession

NOTEBOOK_ROWS = 60
"""Maximum rows of the episode that a notebook keeps."""
GO_LIVE = """<script>(() => {
  const frame = document.getElementById("%s"), probe = new Image(), { hostname: host, protocol } = location;
  probe.onload = () => (frame.removeAttribute("srcdoc"), (frame.src = "%s"));
  if (["localhost", "127.0.0.1", "[::1]"].includes(host) || protocol === "vscode-webview:") probe.src = "%sicon.svg";
})()</script>"""
"""Shows the live page in a frame if the browser can reach the server. Only pages of this machine try: others would ask
for the permission to access it."""


class LoopbackServer:
    """A server on this machine of the web application that ``make_app`` returns for a token.

    Attributes:
        url: address of the page. Anyone on this machine who knows it has access.
    """

    def __init__(self, make_app: Callable[[str], Any], port: int) -> None:
        """``port``: 0 is any free one, which also replaces one in use."""
        token, self._socket = secrets.token_urlsafe(16), bind_loopback_socket(port)
        self.url: str = f"http://127.0.0.1:{self._socket.getsockname()[1]}/{token}/"
        config = uvicorn.Config(
            make_app(token), log_level="warning", ws_max_size=MAX_REQUEST_BYTES, access_log=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Serve until Ctrl-C."""
        self._server.run([self._socket])

    def start(self) -> None:
        """Serve in a thread until :meth:`close`, or until the process ends."""
        threading.Thread(target=self.run, name="viewer", daemon=True).start()

    def close(self) -> None:
        """Stop the server."""
        self._server.should_exit = True


class ViewerServer(LoopbackServer):
    """A server of the viewer on this machine, made by :func:`reverie.view`. A notebook shows its page."""

    def __init__(self, run: Path | str, *, data: str | None, port: int, **options: Any) -> None:
        """``options`` of :func:`reverie.load`; ``port``: see :class:`LoopbackServer`."""
        Within("[0, 65535]").check("port", port)
        self._viewer: Viewer = Viewer(Path(run), options, data)
        viewer = self._viewer
        if viewer.single:  # raise the error of a wrong option here, not in the browser
            agent = viewer.agent(".", None)
            if data is not None:
                agent.load_episode(0, data)
        elif options.get("checkpoint"):
            raise ConfigError(f"checkpoint: {run} is a folder of runs. Pass one of them.")
        super().__init__(functools.partial(app, viewer), port)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url})"

    def _repr_html_(self) -> str:
        """Return a frame for the output of a cell: the page of an episode, without a server; live where it answers."""
        page, name = "", f"viewer-{secrets.token_hex(4)}"
        if self._viewer.single:
            try:
                page = self._viewer.worker.submit(self._play_episode).result()
            except ReverieError as error:
                logger.warning(f"the output has no page that works without a server: {error}")
        source = f'srcdoc="{html.escape(page)}"' if page else f'src="{self.url}"'
        return (
            f'<iframe id="{name}" {source} title="The viewer" width="100%" height="760" style="border: 0"></iframe>'
            f'<p><a href="{self.url}" target="_blank">Open it in a tab</a></p>'
            + (GO_LIVE % (name, self.url, self.url) if page else "")
        )

    def _play_episode(self) -> str:
        """Return the self-contained page of an episode, up to ``NOTEBOOK_ROWS`` rows."""
        viewer = self._viewer
        agent = viewer.agent(".", None)
        session = open_episode(viewer, agent, None if viewer.data is None else 0, None)
        with contextlib.closing(session):
            session.start_longest()
            while not session.timeline.real[-1].values["last"] and len(session) < NOTEBOOK_ROWS:
                session.step()
            return standalone_page(session, viewer.path(".").name)


@contextlib.contextmanager
def open_page(channel: PageChannel, run: Path, title: str, questions: LabelSession | None = None) -> Iterator[str]:
    """Serve the page through which a person takes over by ``channel``, inside the context; yield its address.

    It is printed, and written to ``live.json`` in the folder ``run``, which only this user can read. The page has a
    link to another one, which asks the ``questions``.
    """
    asking = None if questions is None else LoopbackServer(functools.partial(labels_app, questions), 0)
    link = "" if asking is None else f"{asking.url}labels.html"
    server, file = LoopbackServer(functools.partial(live_app, channel, title, link), 0), RunFolder(run).live
    servers, url = [server, *([asking] if asking else [])], f"{server.url}live.html"
    for opened in servers:
        opened.start()
    file.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as content:
            json.dump({"url": url}, content)
        # Others can read the log of a seed.
        logger.info(f"take over at {f'the link of reverie view {run} --live' if PARENT_PID else url}")
        yield url
    finally:
        file.unlink(missing_ok=True)
        for opened in servers:
            opened.close()


def serve_labels(session: LabelSession, port: int) -> None:
    """Serve the page that asks the questions of ``session`` until Ctrl-C; print its address."""
    server = LoopbackServer(functools.partial(labels_app, session), port)
    show(f"{server.url}labels.html\nAnswers are written to {session.file.path}. Press Ctrl-C to stop.", flush=True)
    with contextlib.suppress(SignalStop):
        server.run()
    if advice := session.advice():
        show(advice)


def bind_loopback_socket(port: int) -> socket.socket:
    """Return a loopback socket at ``port``, or at any free port if ``port`` is in use."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError:
        listening.bind(("127.0.0.1", 0))
    listening.listen()  # a browser that connects before the server is ready waits
    return listening


def view(
    run: Path | str, *, data: str | None = None, checkpoint: Path | str | None = None, device: str = "auto",
    env: str | Mapping[str, Any] | None = None, port: int = 8765,
) -> ViewerServer:  # fmt: skip
    """Open the viewer on this machine: as the last line of a notebook cell, it shows the page below the cell.

    Args:
        run: a run folder, or a folder of runs.
        data: show recorded episodes of this dataset instead of playing: any supported format, or minari:NAME.
        checkpoint: name of a checkpoint, or "best". None: the newest.
        device: where the agent computes: "cpu", "cuda", or "auto" for a GPU if there is one.
        env: another environment to play in: its id, or the settings that differ.
        port: port on this machine; if it is in use, another one is chosen. 0: any free port.

    Returns:
        The server, whose ``url`` opens in a browser. ``close()`` stops it.

    Raises:
        ConfigError: an option is invalid, or Starlette or Uvicorn is not installed.
        RunError: there is no run, or no usable checkpoint.
    """
    server = ViewerServer(run, data=data, port=port, checkpoint=checkpoint, device=device, env=env)
    server.start()
    return server
