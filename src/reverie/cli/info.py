"""``reverie info``: describe a run from its files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from reverie.cli.parse import parse
from reverie.cli.show import print_files
from reverie.core.errors import ReverieError
from reverie.core.words import plural

ESTIMATE = "estimate/return"
"""Metric shown in place of evaluations, for a run on recorded data that has no environment."""
SHOWN = ("counters/updates", "counters/episodes", "episode/score", "eval/score", ESTIMATE)
"""Metrics whose newest values are shown."""


@dataclass(frozen=True, kw_only=True)
class InfoCommand:
    """Describe a run: its settings, progress, results and files."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""


def info_command(args: list[str]) -> int:
    """Run ``reverie info``, from the files of the run."""
    said = parse(InfoCommand, args, "info")
    from reverie.core.accelerate import switched_off, trouble
    from reverie.log.metrics import read_metrics
    from reverie.run.folder import RunFolder, read_saved

    folder, saved = RunFolder(said.run), read_saved(said.run)
    settings = saved.experiment
    rows = read_metrics(folder.metrics, SHOWN)
    newest: dict[str, Any] = {}
    for row in rows:
        newest |= row
    facts = {
        "run": str(folder.path),
        "algorithm": saved.algorithm,
        "environment": settings["env"]["id"] + ("" if alone(settings) else f" x {settings['env']['num']}"),
        "progress": progress_line(settings, max([newest.get("step", 0), *saved_steps(folder.checkpoints)])),
        "updates": f"{int(newest.get('counters/updates', 0)):,}",
        "episodes": f"{int(newest.get('counters/episodes', 0)):,}",
        "return": f"{newest['episode/score']:.2f} (newest)" if "episode/score" in newest else "-",
        "evaluation": evaluation_line(folder.evaluation, newest.get("eval/score")),
        **({"estimate": f"{newest[ESTIMATE]:.2f} discounted, by FQE (newest)"} if ESTIMATE in newest else {}),
        "checkpoints": checkpoint_line(folder.checkpoints),
        "replay": replay_line(folder.replay),
        "kernels here": trouble() or ("off" if switched_off() else "compiled"),
    }
    for place, what in saved.custom.items():
        facts[f"from Python: {place}"] = what
    for name, value in facts.items():
        print(f"{name:<14}{value}")
    videos = [("video", path) for path in sorted(folder.videos.glob("[!.]*.mp4"))]
    dreams = [("dream", path) for path in sorted(folder.dream.glob("[!.]*.*"))]
    print_files([*folder.files().items(), *videos, *dreams])
    return 0


def alone(settings: dict[str, Any]) -> bool:
    """Return whether a run learns from recorded data alone."""
    return bool(settings["experience"] == "recorded")


def progress_line(settings: dict[str, Any], step: int) -> str:
    """Return how far a run is, in env steps or updates."""
    unit, name = ("updates", "updates") if alone(settings) else ("steps", "env steps")
    return f"{step:,} of {settings[unit]:,} {name}"


def evaluation_line(file: Path, logged: float | None) -> str:
    """Return the score of the newest evaluation: that of ``eval.json``, or else the last one in the log."""
    if not file.exists():
        return f"{logged:.2f} (newest)" if logged is not None else "-"
    own = json.loads(file.read_text(encoding="utf-8"))
    where = f", {own['checkpoint']}" if "checkpoint" in own else ""
    return f"{own['score']['mean']:.2f} over {plural(own['episodes'], 'episode')} (newest{where})"


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in ``folder``; the newest may be later than the last log entry."""
    from reverie.run.checkpoint import Checkpoints, number_of

    return [number_of(path) for path in Checkpoints(folder).all()]


def checkpoint_line(folder: Path) -> str:
    """Return the names of the checkpoints in ``folder``, with the reason for each that cannot be loaded."""
    from reverie.run.checkpoint import Checkpoints

    checkpoints = Checkpoints(folder)
    wrong = checkpoints.damaged()
    names = [path.name for path in checkpoints.all()]
    names = [name + (f" (cannot be used: {wrong[name]})" if name in wrong else "") for name in names]
    return ", ".join([*names, *sorted(path.name for path in folder.glob("diverged-*"))]) or "none yet"


def replay_line(folder: Path) -> str:
    """Return the number of rows stored in ``folder``."""
    from reverie.store.store import Store

    if not folder.is_dir():
        return "none in this folder"
    try:
        return plural(Store(folder).rows(), "row")
    except ReverieError as error:
        return str(error)
