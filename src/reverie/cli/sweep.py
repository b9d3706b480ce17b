"""``reverie sweep``: named settings in several environments with several seeds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np

from reverie.cli.parsing import Positional, TrustOption, options_for
from reverie.core.errors import count_noun
from reverie.core.logger import print_line
from reverie.core.terminal import show

if TYPE_CHECKING:  # imports torch, which --help does not need
    from reverie.distributed.sweep import SweepPlan


@dataclass(frozen=True, kw_only=True)
class SweepCommand(TrustOption):
    """Train named settings in several environments with several seeds. Repeat the command to continue."""

    source: Annotated[Path, Positional("FILE")]
    """YAML file: `settings` and `environments` map names to settings of a run, which override `defaults`."""
    run: Path | None = None
    """Folder of the sweep, with the runs in SETTING/ENVIRONMENT/seed-0. None: the `run` of the file, or else runs/ and
    its name."""
    seeds: str | None = None
    """Number of seeds, counted up from 0, or a list such as 1,5,7. None: the `seeds` of the file."""
    jobs: int = 0
    """Runs to train at a time. 0: as many as the CPU cores allow with the threads of each; one on a GPU."""
    only: tuple[str, ...] = ()
    """Names of settings or environments: leave out all others."""
    status: bool = False
    """Print how far the runs are, and train nothing."""

    def __call__(self) -> int:
        from reverie.cli.train import read_seeds
        from reverie.distributed.sweep import SweepPlan, sweep

        seeds = None if self.seeds is None else read_seeds(self.seeds, 0)
        if self.status:
            show(_format_status(SweepPlan(self.source, self.run, seeds, self.only)))
            return 0
        result = sweep(**options_for(sweep, self) | {"seeds": seeds})
        runs = [run for cell in result.cells.values() for run in cell.seeds]
        unfinished = [run for run in runs if run.state != "finished"]
        print_line(f"\n{len(runs) - len(unfinished)} of {count_noun(len(runs), 'run')} finished")
        for run in unfinished:
            show(f"{run.name}: {run.note or run.state}" + (f"; see {run.log}" if run.log.exists() else ""))
        if unfinished:
            show("Run the same command again to continue the unfinished runs.")
        show(f"Compare them: reverie compare {result.run}")
        return 128 + result.signal if result.signal is not None else int(bool(unfinished))


def _format_status(plan: SweepPlan) -> str:
    """Return a table of the runs of a sweep: how many have finished, how far the others are, and their scores."""
    from reverie.core.lock import is_in_use

    rows = [("setting", "environment", "finished", "active", "progress", "mean score")]
    for (setting, env), folder in plan.open_folders().items():
        finished = [run for run in folder.runs if run.state == "finished"]
        active = sum(run not in finished and run.has_begun and is_in_use(run.run) for run in folder.runs)
        share = np.mean([run in finished or min(1.0, run.position / run.length) for run in folder.runs])
        scores = [run.values["eval/score"] for run in finished if "eval/score" in run.values]
        score = f"{np.mean(scores):.2f}" if scores else "-"
        rows.append((setting, env, f"{len(finished)} of {len(folder.runs)}", f"{active}", f"{share:.0%}", score))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            f"{cell:<{n}}" if i < 2 else f"{cell:>{n}}" for i, (cell, n) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
