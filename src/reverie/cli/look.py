"""``reverie look``: the page in the browser."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from reverie.cli.parse import Trusting, parse
from reverie.core.errors import ConfigError

PORT = 8765


@dataclass(frozen=True, kw_only=True)
class LookCommand(Trusting):
    """Open a page in the browser: an episode beside its dream, or a table of runs."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder, or a folder of runs."""
    checkpoint: Path | None = None
    """Name of a folder in the run's checkpoints/, best, or a path. None: the newest."""
    device: str = "auto"
    """cpu, cuda, cuda:1, or auto for a GPU if there is one."""
    env: str | None = None
    """Environment to act in, for an agent that learned from recorded data alone."""
    data: str | None = None
    """Show recorded episodes in place of playing: any format that can be read, or minari:NAME."""
    port: int = PORT
    """Port on this machine; 0 takes any. If it is taken, another one is."""


def look_command(args: list[str]) -> int:
    """Run ``reverie look``, until Ctrl-C."""
    said = parse(LookCommand, args, "look")
    try:
        import uvicorn
    except ImportError as error:
        raise ConfigError(f"reverie look needs {error.name}: pip install 'reverie-rl[look]'.") from None
    from reverie.look.server import LARGEST, Looker, app

    options = {name: getattr(said, name) for name in ("checkpoint", "device", "env")}
    looker, token = Looker(said.run, options, said.data), secrets.token_urlsafe(16)
    listening = listen(said.port)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/{token}/", flush=True)
    print("Open this link in a browser on this machine. Who has it can use the page. Ctrl-C ends.", flush=True)
    config = uvicorn.Config(app(looker, token), log_level="warning", ws_max_size=LARGEST, access_log=False)
    uvicorn.Server(config).run([listening])
    return 0


def listen(port: int) -> socket.socket:
    """Return a socket on this machine alone, at ``port`` or, if that is taken, at any."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError:
        listening.bind(("127.0.0.1", 0))
    listening.listen()  # a browser that is faster than the server waits
    return listening
