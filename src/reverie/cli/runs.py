"""``reverie list``, ``register`` and ``compare``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from reverie.cli.main import fail
from reverie.cli.parse import parse
from reverie.cli.show import print_files
from reverie.core.discover import algorithms, outline


@dataclass(frozen=True, kw_only=True)
class ListCommand:
    """List all algorithms, their sizes, and the presets; or the agents at a place."""

    place: Annotated[Positional[str], arg(metavar="PLACE")] = ""
    """List the agents at hf://USER, in a folder, or at s3://BUCKET/FOLDER, instead."""


@dataclass(frozen=True, kw_only=True)
class CompareCommand:
    """Compare the seeds of several settings: scores, and which is probably better."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="FOLDER ...")]
    """Folders made by `reverie train --seeds`, one for each setting."""
    figure: Path | None = None
    """Draw the learning curves, with intervals, to this PNG file."""


@dataclass(frozen=True, kw_only=True)
class RegisterCommand:
    """Add the agent of a run to a model registry."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""
    name: str
    """Name of the model, which gets another version."""
    checkpoint: Path | None = None
    """Name of a folder in the run's checkpoints/, best, or a path. None: the best if there is one, else the newest."""
    alias: str | None = None
    """Another name of this version: with --alias best it is models:/NAME@best."""
    to: Literal["mlflow", "wandb"] = "mlflow"
    """Tracker: MLflow's model registry at MLFLOW_TRACKING_URI, or an artifact of W&B."""


def list_command(args: list[str]) -> int:
    """Run ``reverie list``. Reads the source files, so that nothing heavy is imported."""
    said = parse(ListCommand, args, "list")
    if said.place:
        from reverie.cli.share import print_shared

        return print_shared(said.place)
    print("algorithms")
    for name, home in sorted(algorithms().items()):
        own = home.startswith("reverie.algos.")
        summary, sizes = outline(home.removeprefix("reverie.")) if own else (f"from an installed package: {home}", [])
        print(f"  {name:<16}{summary}")
        if sizes:
            print(f"  {'':<16}sizes: {', '.join(sizes)}")
    print("\npresets (--preset NAME; by default chosen by the environment's id, whose prefixes are in brackets)")
    print(f"  {'cpu':<24}The environment's, with small networks and a short run; without a GPU the default.")
    from reverie.experiment.presets import TABLE

    for name, one in TABLE.items():
        starts = ", ".join(f"{start}*" for start in one.envs.split())
        print(f"  {name:<24}{one.about}" + (f" [{starts}]" if starts else ""))
    return 0


def register_command(args: list[str]) -> int:
    """Run ``reverie register``."""
    said = parse(RegisterCommand, args, "register")
    from reverie.agent.registry import register

    place = register(said.run, said.name, checkpoint=said.checkpoint, alias=said.alias, to=said.to)
    print(f"registered {place}")
    return 0


def compare_command(args: list[str]) -> int:
    """Run ``reverie compare``."""
    said = parse(CompareCommand, args, "compare")
    if not said.runs:
        return fail("no folders to compare. Pass folders created by reverie train --seeds.", 2)
    if said.figure is not None and said.figure.suffix != ".png":
        return fail(f"--figure {said.figure}: expected a file name ending in .png.", 2)
    from reverie.core.files import writing
    from reverie.log.aggregate import comparison, read_contender  # numpy comes with it

    contenders = [read_contender(path) for path in said.runs]
    print(comparison(contenders))
    if said.figure is not None:
        from reverie.log.plot import compared_curves  # matplotlib comes with it

        with writing(said.figure):
            drawn = compared_curves(said.figure, contenders)
        print_files([("figure", drawn)] if drawn else [])
        return 0 if drawn else fail("no figure: none of these folders has a learning curve (--schedule.eval-every).", 1)
    return 0
