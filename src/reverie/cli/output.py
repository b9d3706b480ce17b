"""Print results and files, the same way for every command."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from reverie.core.errors import count_noun
from reverie.core.terminal import printable, show

if TYPE_CHECKING:  # imports torch, which --help does not need
    from reverie.run.evaluate import Evaluation


def score_line(evaluation: Evaluation) -> str:
    """Format mean, interquartile mean with its interval, and spread of an evaluation."""
    metrics, scores, middle = evaluation.metrics(), evaluation.scores, evaluation.iqm()
    means = {**evaluation.info_means(), **evaluation.strength}
    logged = [f"\n  {name} {value:.4g}" for name, value in means.items()]
    sure = f"95 % {middle.low:.2f} to {middle.high:.2f}" if middle.has_interval else "too few episodes for an interval"
    return (
        f"mean return {metrics['eval/score']:.2f} (IQM {middle.value:.2f}, {sure}) over "
        f"{count_noun(len(scores), 'episode')}\n"
        f"  median {metrics['eval/score_median']:.2f}, std {metrics['eval/score_std']:.2f}, "
        f"min {min(scores):.2f}, max {max(scores):.2f}; mean length {metrics['eval/length']:.1f}"
        + (f"\n  {evaluation.cut_text()}" if evaluation.cut_off else "")
        + "".join(logged)
    )


def print_files(files: Mapping[str, Path] | Iterable[tuple[str, Path]], run: Path | None = None) -> None:
    """Print the files that were written; relative to the working folder where ``run`` was given by a relative path."""
    named = list(files.items() if isinstance(files, Mapping) else files)
    width = max([14, *(len(label) for label, _ in named)]) + 2
    for label, path in named:
        show(f"  {label + ':':<{width}}{path if run is None else relative_like(path, run)}")


def relative_like(path: Path, run: Path | None) -> Path:
    """Return ``path`` relative to the working folder, unless ``run`` was given by an absolute path."""
    cwd = Path.cwd()
    return path.relative_to(cwd) if path.is_relative_to(cwd) and not (run and run.is_absolute()) else path


def print_sections(sections: Mapping[str, Sequence[tuple[str, ...]]]) -> None:
    """Print titles with their lines below them; on a terminal wrapped, elsewhere whole lines without padding."""
    rows = [row for title, lines in sections.items() if lines for row in [(title,), *lines]]
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
        for row in rows:
            cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)]
            show(f"  {'    '.join(cells)}".rstrip())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2))
    for row in rows:
        table.add_row(*(Text(printable(cell), "" if row[1:] else "bold", overflow="fold") for cell in row))
    Console(markup=False, emoji=False).print(table)


def print_kernel_problem(device: str) -> None:
    """Print why there are no compiled kernels, if the device is a CPU, where they matter."""
    from reverie.core.kernel_dispatch import kernel_problem  # imports torch

    if device == "cpu" and kernel_problem():
        show(kernel_problem())
