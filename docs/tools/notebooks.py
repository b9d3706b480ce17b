#!/usr/bin/env python3
"""Run the tutorials as notebooks and keep them with their outputs: ``make notebooks``, or with names of tutorials.

The pages of docs/ hold the text. Each notebook runs in a folder of its own. The pictures that it saves become those of
its page.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from documentation import ROOT, homes, is_tutorial, kept_notebook, notebook
from figures import digest_of_page, save, shown
from nbclient import NotebookClient

LIMIT = 3600
"""Seconds that a cell may take."""
LINES = 40
"""Lines of printed output that a cell keeps, half of them from the start."""
STYLE = """import matplotlib
from reverie.log.style import SETTINGS

matplotlib.use("Agg")
matplotlib.rcParams.update(SETTINGS)"""
"""A cell before all others, which is not kept."""
PANEL = re.compile(r"(?:╭[^╯]*╯\s*(?:evaluating.*\s*)?)+(?=╭)")
"""Panels of progress, all of a sequence but the last one."""


def main() -> None:
    """Run those that are named, or all."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # !reverie, !python
    os.environ["COLUMNS"] = "100"
    for page in filter(is_tutorial, homes()):
        if not sys.argv[1:] or Path(page).stem in sys.argv[1:]:
            print(page, flush=True)
            text = nbformat.writes(nbformat.from_dict(executed(page)))
            kept_notebook(page).write_text(text.rstrip() + "\n", encoding="utf-8")


def executed(page: str) -> Any:
    """Return a page as a notebook that ran. The pictures of the page stay, after what a cell prints."""
    pictures = shown(ROOT / page)
    for path in pictures.values():
        path.touch()
    book = nbformat.reads(notebook(page), as_version=4)
    book.cells.insert(0, nbformat.v4.new_code_cell(STYLE))
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(book, timeout=LIMIT, resources={"metadata": {"path": folder}}).execute()
        for name, path in pictures.items():
            save(Path(folder, name).read_text(encoding="utf-8"), path, digest_of_page(ROOT / page))
    drawn = nbformat.reads(notebook(page), as_version=4).cells  # with the new pictures
    book.cells = book.cells[1:]
    for cell, picture in zip(book.cells, drawn, strict=True):
        cell.metadata.pop("execution", None)  # when it ran
        if cell.cell_type == "code":
            cell.execution_count -= 1
            text = printed("".join(output.text for output in cell.outputs if output.output_type == "stream"), folder)
            cell.outputs = [{"output_type": "stream", "name": "stdout", "text": text}] * bool(text) + picture.outputs
    book.metadata["language_info"] = {"name": "python"}
    return book


def printed(text: str, folder: str) -> str:
    """Return what a cell printed as a terminal shows it at the end, without colors, progress bars or a long middle."""
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r\n", "\n").replace(f"{folder}{os.sep}", "")
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.splitlines()]
    text = PANEL.sub("", "\n".join(line for line in lines if "━" not in line))
    lines = re.sub(r"\n{3,}", "\n\n", text).strip("\n").splitlines()
    if len(lines) > LINES:
        lines[LINES // 2 : -LINES // 2] = [f"[{len(lines) - LINES} lines more]"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
