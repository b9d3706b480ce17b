"""Compare the seeds of several settings, as recorded in their folders: ``reverie compare``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reverie.core.errors import RunError, did_you_mean
from reverie.core.statistics import (
    FINAL_RESAMPLES,
    Interval,
    estimate,
    interval,
    iqm,
    mean,
    median,
    probability_of_improvement,
)


@dataclass(frozen=True)
class Contender:
    """One setting: its folder, and the final scores ``[R]`` of its R seeds, or the returns estimated for them."""

    path: Path
    measured: str
    """What can be compared: the environment, or for estimates the data and the discount."""
    scores: np.ndarray
    curve: Interval
    """Steps ``[K]``, IQM over the seeds ``[K]``, and lower and upper end of its interval ``[K]``, NaN where unknown."""


def read_contender(path: Path) -> Contender:
    """Read the seeds in the folder ``path``.

    Raises:
        RunError: it holds no seeds, or none of them has a score or an estimate.
    """
    file = path / "aggregate.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        scores = [float(run["score"]) for run in content["runs"] if run["score"] is not None]
        measured, curve = str(content["env"]), curve_in(content.get("curve"))
        if not scores and (estimated := content.get("estimate")):
            scores = [float(value) for value in estimated["seeds"].values() if value is not None]
            discount = estimated.get("discount")  # earlier versions wrote none
            factor = "" if discount is None else f", discount {discount:g}"
            measured = f"{content.get('data') or measured}: returns estimated by FQE{factor}"
    except FileNotFoundError:
        raise RunError(
            f"no seeds in {path}: it has no aggregate.json.{_instead(path)} Pass folders created by reverie train "
            "--seeds."
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{file} is damaged ({error!r}). Run the command that created it again to rewrite it."
        ) from error
    if not scores:
        raise RunError(f"{file} holds no scores: no seed has finished, or the seeds had no final evaluation.")
    return Contender(path, measured, np.array(scores), curve)


def read_contenders(paths: Sequence[Path]) -> list[Contender]:
    """Read the seeds in each of ``paths``.

    Raises:
        RunError: one of them cannot be read as by :func:`read_contender`, or two of them are the same folder.
    """
    for one, other in itertools.combinations(paths, 2):
        if one.resolve() == other.resolve():
            raise RunError(f"{one} and {other} are the same folder: pass each setting once.")
    return [read_contender(path) for path in paths]


def _instead(path: Path) -> str:
    """Return which folders were probably meant in place of ``path``, which holds no seeds; "" if none is known."""
    folder = path.absolute()
    if (path / "config.yaml").is_file() and (folder.parent / "aggregate.json").is_file():
        return f" It is the run of one seed of {folder.parent}."
    if inside := sorted(str(file.parent) for file in path.glob("*/aggregate.json")):
        return f" There are seeds in {', '.join(inside)}."
    if (path / "config.yaml").is_file():
        return " It is a single run."
    return did_you_mean(path.name, [file.parent.name for file in folder.parent.glob("*/aggregate.json")])


def curve_in(content: Mapping[str, Any] | None) -> Interval:
    """Return the learning curve in the content of ``aggregate.json``; empty arrays if it has none."""
    if content is None:
        return (np.empty(0),) * 4
    middle = content["iqm"]
    columns = (content["steps"], middle["value"], middle["low"], middle["high"])
    steps, value, low, high = (np.array(column, float) for column in columns)
    return steps, value, low, high


def compared_figure(contenders: Sequence[Contender], png: Path) -> Path | None:
    """Draw the learning curves of all contenders; return None if none of them has one."""
    from reverie.log.plot import compared_curves  # matplotlib comes with it

    groups: dict[str, dict[str, Interval]] = {}
    for contender in contenders:
        groups.setdefault(contender.measured, {})[str(contender.path)] = contender.curve
    return compared_curves(png, groups)


def comparison(contenders: Sequence[Contender]) -> str:
    """Format, for each environment, the scores of every contender and the probability of improvement of each pair.

    Estimated returns form groups of their own: they compare with each other, from the same data, but with no score.
    """
    parts = []
    for measured in dict.fromkeys(contender.measured for contender in contenders):
        group = [contender for contender in contenders if contender.measured == measured]
        width = max(len(measured) - 2, *(len(str(contender.path)) for contender in group))
        lines = [f"{measured:<{width + 2}}{'seeds':>7}{'mean':>11}{'median':>11}{'IQM':>11}   95 % interval"]
        lines += [f"  {contender.path!s:<{width}}{row(contender.scores)}" for contender in group]
        if len(group) > 1:
            lines += ["", "Probability that a seed of the first has a better score than a seed of the second:"]
        for one, other in itertools.combinations(group, 2):
            value = float(probability_of_improvement(one.scores, other.scores))
            low, high = interval(probability_of_improvement, one.scores, other.scores, resamples=FINAL_RESAMPLES)
            sure = np.isfinite([low, high]).all()
            ends = f"95 % {low:.2f} to {high:.2f}" if sure else "too few seeds for an interval"
            lines.append(f"  {value:.2f} ({ends})  {one.path} over {other.path}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def row(scores: np.ndarray) -> str:
    """Return the cells of one table row: number of scores, mean, median, and IQM with its interval."""
    middle = estimate(iqm, scores, FINAL_RESAMPLES)
    ends = f"{middle.low:.2f} to {middle.high:.2f}" if middle.sure else "too few seeds"
    return f"{len(scores):>7}{mean(scores):>11.2f}{median(scores):>11.2f}{middle.value:>11.2f}   {ends}"
