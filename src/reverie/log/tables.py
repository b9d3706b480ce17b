"""A comparison of settings as CSV, and as a table for LaTeX."""

from __future__ import annotations

import csv
import io
import re

import numpy as np

from reverie.core.statistics import IntervalEstimate, mean, median
from reverie.core.terminal import formula_free
from reverie.log.aggregate import Comparison

COLUMNS = ("label", "algorithm", "environment", "seeds", "steps", "mean", "median", "iqm", "iqm_low", "iqm_high")
ALL = "all, normalized"
"""Name of the row over all environments."""


def format_csv(comparison: Comparison) -> str:
    """Return the scores as CSV: a row for each label and environment, and with normalized scores one over all."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(COLUMNS)
    rows = [(x.title, x.algorithm, x.comparison_key, str(x.steps), x.scores, x.iqm()) for x in comparison.settings]
    rows += [(x.title, "", ALL, "", x.scores, x.iqm()) for x in comparison.normalized]
    for title, algorithm, env, steps, scores, middle in rows:
        numbers = [float(mean(scores)), float(median(scores)), *middle]
        cells = [f"{number:.8g}" if np.isfinite(number) else "" for number in numbers]
        table.writerow([*map(formula_free, (title, algorithm, env)), len(scores), steps, *cells])
    return out.getvalue()


def format_latex(comparison: Comparison) -> str:
    """Return a table with a row for each environment and a column for each label: the IQM and its 95 % interval.

    The best IQM of a row is bold. It needs the package booktabs.
    """
    titles = [*dict.fromkeys(setting.title for setting in comparison.settings)]
    rows = {env: {x.title: x.iqm() for x in comparison.settings if x.comparison_key == env}
            for env in comparison.environments}  # fmt: skip
    if comparison.normalized:
        rows[ALL] = {scores.title: scores.iqm() for scores in comparison.normalized}
    lines = ["% needs \\usepackage{booktabs}", f"\\begin{{tabular}}{{l{'r' * len(titles)}}}", "\\toprule"]
    lines += [_format_row(["", *map(_escape, titles)]), "\\midrule"]
    for env, estimates in rows.items():
        best = max(estimate.value for estimate in estimates.values())
        lines += ["\\midrule"] * (env == ALL)
        lines.append(_format_row([_escape(env), *(_format_cell(estimates.get(title), best) for title in titles)]))
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
