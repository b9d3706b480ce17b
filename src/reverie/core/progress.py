"""Progress bars on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bars(unit: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show progress bars on a terminal; yields a function of a name, how many units are done, and their total or 0."""
    if not sys.stderr.isatty():
        yield lambda name, num_done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description}", markup=False)  # a file name can contain brackets
    columns = (text, BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as bars:

        def show_progress(name: str, num_done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=num_done, total=total or None)

        yield show_progress
