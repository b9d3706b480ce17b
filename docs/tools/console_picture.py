"""Take a picture of a run's display in a terminal, docs/images/console.svg: what it shows after so many steps.

The run is ended as by Ctrl-C. `product_pictures.py` calls this.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

OUT = Path(__file__).resolve().parents[2] / "docs" / "images" / "console.svg"
COLUMNS, LINES = 100, 24
REDRAWN = re.compile(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)+")
"""What Rich writes before it draws anew: each line of the old drawing is erased, from below."""


def shown(words: list[str], steps: int, folder: Path) -> str:
    """Return what the terminal shows of ``reverie train`` once it has made ``steps``: text with codes of colors."""
    terminal, end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    command = [sys.executable, "-m", "reverie", "train", *words]
    run = subprocess.Popen(command, stdin=end, stdout=end, stderr=end, cwd=folder, env=environment, close_fds=True)
    os.close(end)
    seen, drawn = "", ""
    while not drawn:
        seen += os.read(terminal, 65536).decode("utf-8", "replace")
        *whole, _ = REDRAWN.split(seen)  # the last drawing may be incomplete
        made = re.search(r"([\d,]+) / [\d,]+ steps", whole[-1] if whole else "")
        if made and int(made[1].replace(",", "")) >= steps:
            said = "".join(part.partition("╭")[0] for part in whole)  # above the panel
            drawn = said + "╭" + whole[-1].partition("╭")[2]
    run.send_signal(signal.SIGINT)
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:  # it has ended
        run.wait()
    return drawn.replace("\r", "").replace(f"{folder}{os.sep}", "")


def picture(command: str, drawn: str) -> str:
    """Return an SVG that needs no font from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}", style="bold"))
    console.print(Text.from_ansi(re.sub(r"\x1b\[\?25[lh]", "", drawn).rstrip()))
    svg = re.sub(r"@font-face \{.*?\}\n?", "", console.export_svg(title="reverie train"), flags=re.DOTALL)
    return svg.replace("Fira Code", "DejaVu Sans Mono")


def draw(words: list[str], steps: int) -> None:
    """Write the picture of ``reverie train`` with these words, after so many steps."""
    with tempfile.TemporaryDirectory() as folder:
        drawn = shown(words, steps, Path(folder))
    OUT.write_text(picture(shlex.join(["reverie", "train", *words]), drawn), encoding="utf-8")
