"""``reverie tune``: what ``reverie train`` takes, and a space of settings to search."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from reverie.cli.main import fail
from reverie.cli.options import Common, peek
from reverie.cli.parse import parse
from reverie.cli.show import print_files
from reverie.core.words import plural
from reverie.experiment.config import ExperimentConfig

SHOWN = 10
"""Trials that are printed."""


@dataclass(frozen=True, kw_only=True)
class Tuning(Common):
    """What is asked of a search, besides the options of `reverie train`."""

    space: Path = Path()
    """YAML file with the settings to search: `algo.lr: {low: 1e-5, high: 1e-2, log: true}` or
    `algo.batch_size: {choices: [32, 64]}`."""
    trials: int = 20
    """Number of trials in all; the same command with more of them goes on."""
    prune: bool = True
    """End trials early whose evaluations during training are among the worse."""


@dataclass(frozen=True, kw_only=True)
class TuneCommand:
    """Search for good settings. The base settings are those of `reverie train` with the same options."""

    common: Annotated[Tuning, arg(name="")]
    experiment: Annotated[ExperimentConfig, arg(name="")]


def tune_command(args: list[str]) -> int:
    """Run ``reverie tune``."""
    if {"-h", "--help"} & {*args}:
        parse(Tuning, ["--help"], "tune")
    from reverie.cli.train import train  # torch comes with it

    return train(args, Tuning(**vars(peek(args))), TuneCommand, search)


def search(config: ExperimentConfig, said: Tuning) -> int:
    """Search, print the best trials, and return 0 if all trials that were wanted have ended."""
    from reverie.cli.train import on_ray
    from reverie.core.logger import tell
    from reverie.run.folder import read_yaml
    from reverie.scale.search import tune_of

    if said.seeds is not None or said.space == Path():
        missing = "--seeds has no effect on a search." if said.seeds else "which settings? Pass --space FILE."
        return fail(missing, 2)
    asked = {name: getattr(said, name) for name in ("trials", "jobs", "prune", "run")}
    result = tune_of(config, read_yaml(said.space), where=str(said.space), on=on_ray(said), **asked)
    counts = {state: sum(one.state == state for one in result.trials) for state in ("finished", "pruned", "failed")}
    tell(f"\n{plural(len(result.trials), 'trial')}: {', '.join(f'{n} {state}' for state, n in counts.items() if n)}")
    for one in result.trials[:SHOWN]:
        score = "-" if one.score is None else f"{one.score:.2f}"
        settings = ", ".join(
            f"{name} {x:.4g}" if isinstance(x, float) else f"{name} {x}" for name, x in one.settings.items()
        )
        print(f"  trial {one.number:<4} {one.state:<10} {score:>10}  {settings}")
    print_files(result.files)
    if (best := result.best) is not None:
        print(f"Train with the best: reverie train {config.name} --config {best.run / 'config.yaml'} --seed 1")
    if result.signal is not None:
        tell(f"Continue with the same command and --run {result.run}")
        return 128 + result.signal
    return int(counts["finished"] == 0)
