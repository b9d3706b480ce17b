"""A comparison of settings as CSV, and as a table for LaTeX."""

from __future__ import annotations

import csv
import io
import math
import re

from reverie.core.statistics import IntervalEstimate, mean, median
from reverie.core.terminal import formula_free
from reverie.log.aggregate import Comparison

COLUMNS = ("label", "algorithm", "environment", "seeds", "steps", "mean", "median", "iqm", "iqm_low", "iqm_high")


def format_csv(comparison: Comparison) -> str:
    """Return the scores as CSV: a row for each label and environment, or all environments."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(COLUMNS)
    for setting in (*comparison.settings, *comparison.normalized):
        texts = map(formula_free, (setting.title, setting.algorithm, setting.comparison_key))
        numbers = (float(mean(setting.scores)), float(median(setting.scores)), *setting.iqm())
        cells = [f"{number:.8g}" if math.isfinite(number) else "" for number in numbers]
        table.writerow([*texts, len(setting.scores), setting.steps, *cells])
    return out.getvalue()


def format_latex(comparison: Comparison) -> str:
    """Return a table with a row for each environment and a column for each label: the IQM and its 95 % interval.

    The best IQM of a row is bold. It needs the package booktabs.
    """
    titles = [*dict.fromkeys(setting.title for setting in comparison.settings)]
    lines = [f"\\begin{{tabular}}{{l{'r' * len(titles)}}}  % \\usepackage{{booktabs}}", "\\toprule"]
    lines += [_format_row(["", *map(_escape, titles)]), "\\midrule"]
    for key, group in comparison.groups.items():
        estimates = {setting.title: setting.iqm() for setting in group}
        best = max(estimate.value for estimate in estimates.values())
        lines += ["\\midrule"] * (group[0] in comparison.normalized)
        lines.append(_format_row([_escape(key), *(_format_cell(estimates.get(title), best) for title in titles)]))
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _format_row(cells: list[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _format_cell(estimate: IntervalEstimate | None, best: float) -> str:
    """Return an IQM, bold if it is the ``best``, with its interval if there is one."""
    if estimate is None:
        return "--"
    value = f"\\textbf{{{estimate.value:.2f}}}" if estimate.value == best else f"{estimate.value:.2f}"
    return f"{value} [{estimate.low:.2f}, {estimate.high:.2f}]" if estimate.has_interval else value


def _escape(text: str) -> str:
    """Return ``text`` with the characters escaped that LaTeX reads as commands."""
    words = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return re.sub(r"[\\~^&%$#_{}]", lambda match: words.get(match[0], f"\\{match[0]}"), text)
