#!/usr/bin/env python3
"""Run the tutorials as notebooks and keep them with their outputs: ``make notebooks``, or with names of tutorials.

The pages of docs/ hold the text. Each notebook runs in a folder of its own.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from documentation import homes, is_tutorial, kept_notebook, notebook
from nbclient import NotebookClient

LIMIT = 3600
"""Seconds that a cell may take."""
LINES = 40
"""Lines of printed output that a cell keeps, half of them from the start."""


def main() -> None:
    """Run those that are named, or all."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # !reverie, !python
    os.environ["COLUMNS"] = "100"
    for page in filter(is_tutorial, homes()):
        if not sys.argv[1:] or Path(page).stem in sys.argv[1:]:
            print(page, flush=True)
            text = nbformat.writes(nbformat.from_dict(executed(nbformat.reads(notebook(page), as_version=4))))
            kept_notebook(page).write_text(text.rstrip() + "\n", encoding="utf-8")


def executed(book: Any) -> Any:
    """Run a notebook. The pictures of its page stay, after what a cell prints."""
    pictures = [cell.get("outputs", []) for cell in book.cells]
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(book, timeout=LIMIT, resources={"metadata": {"path": folder}}).execute()
    for cell, drawn in zip(book.cells, pictures, strict=True):
        cell.metadata.pop("execution", None)  # when it ran
        if cell.cell_type == "code":
            text = printed("".join(output.text for output in cell.outputs if output.output_type == "stream"), folder)
            cell.outputs = [{"output_type": "stream", "name": "stdout", "text": text}] * bool(text) + drawn
    book.metadata["language_info"] = {"name": "python"}
    return book


def printed(text: str, folder: str) -> str:
    """Return what a cell printed as a terminal shows it at the end, without colors, progress bars or a long middle."""
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r\n", "\n").replace(f"{folder}{os.sep}", "")
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.splitlines()]
    lines = [line for line in lines if "━" not in line]
    if len(lines) > LINES:
        lines[LINES // 2 : -LINES // 2] = [f"[{len(lines) - LINES} lines more]"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
