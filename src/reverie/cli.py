"""The command line: ``reverie train | eval | dream | data | bench ...``. Modules that need torch are imported late."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from reverie.commands.args import as_given, fail, parse, print_files, print_trouble, score_line
from reverie.commands.bench import bench_command
from reverie.commands.data import data_command
from reverie.commands.estimate import estimate_command
from reverie.core.discover import algorithms, outline, version
from reverie.core.errors import ReverieError, did_you_mean
from reverie.core.waiting import spin_briefly
from reverie.core.words import plural

ESTIMATE = "estimate/return"
"""Metric shown in place of evaluations, for a run on recorded data that has no environment."""


@dataclass(frozen=True, kw_only=True)
class EvalCommand:
    """Play whole episodes with a trained agent."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""
    episodes: int = 20
    """Number of episodes to play."""
    mode: Literal["mode", "sample"] = "mode"
    """Take the policy's most likely action, or sample one."""
    video: bool = False
    """Record the first episode as a video."""
    checkpoint: Path | None = None
    """Name of a folder in the run's checkpoints/, best, or a path. None: the newest."""
    device: str = "auto"
    """cpu, cuda, cuda:1, or auto for a GPU if there is one."""
    seed: int | None = None
    """Seed of environments and actions. None: derived from that of the run."""
    time_limit: int | None = None
    """Most decisions of an episode, where one may never end. None: the run's env.time_limit, or the environment's."""
    env: str | None = None
    """Environment to act in, for an agent that learned from recorded data alone."""


@dataclass(frozen=True, kw_only=True)
class DreamCommand:
    """Compare what the world model imagines with what happens."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""
    context: int = 8
    """Rows of each episode that the model sees first."""
    horizon: int = 48
    """Most env steps that it imagines after them; fewer where episodes are shorter."""
    sequences: int = 6
    """Number of episodes."""
    mode: Literal["mode", "sample"] = "mode"
    """Play the episodes with the policy's most likely actions, or with sampled ones."""
    checkpoint: Path | None = None
    """Name of a folder in the run's checkpoints/, best, or a path. None: the newest."""
    device: str = "auto"
    """cpu, cuda, cuda:1, or auto for a GPU if there is one."""
    seed: int | None = None
    """Seed of environments and dreams. None: derived from that of the run."""
    env: str | None = None
    """Environment to act in, for an agent that learned from recorded data alone."""


@dataclass(frozen=True, kw_only=True)
class ListCommand:
    """List all algorithms, their sizes, and the presets."""


@dataclass(frozen=True, kw_only=True)
class InfoCommand:
    """Describe a run: its settings, progress, results and files."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""


@dataclass(frozen=True, kw_only=True)
class CompareCommand:
    """Compare the seeds of several settings: scores, and which is probably better."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="FOLDER ...")]
    """Folders made by `reverie train --seeds`, one for each setting."""
    figure: Path | None = None
    """Draw the learning curves, with intervals, to this PNG file."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 an error, 2 wrong usage, 128 + n signal n."""
    spin_briefly()
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help"):
        print(overview())
        return 0 if args else 2
    if args[0] == "--version":
        print(f"reverie {version()}")
        return 0
    command = COMMANDS.get(args[0])
    if command is None:
        known = f"Available: {', '.join(COMMANDS)}."
        return fail(f"unknown command '{args[0]}'.{did_you_mean(args[0], COMMANDS)} {known}", 2)
    try:
        return command(args[1:]) or 0
    except ReverieError as error:
        return fail(str(error), 1)
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as interrupt:
        return fail(". ".join(["interrupted", *getattr(interrupt, "__notes__", [])]), 130)
    except SystemExit as stop:  # tyro has printed the error or the help; a user's module may say why it stops
        return fail(stop.code, 1) if isinstance(stop.code, str) else int(stop.code or 0)


def overview() -> str:
    """Return the text of ``reverie --help``."""
    about = {
        "train": "train an agent, or continue a run",
        "eval": "play whole episodes with a trained agent, and record a video",
        "estimate": "estimate the return of a trained agent from recorded data alone",
        "dream": "compare what a world model imagines with what happens",
        "data": "inspect, check, convert, subsample, record and download data",
        "bench": "measure this machine's speed, and forecast the time of a run",
        "list": "list all algorithms, sizes and presets",
        "info": "describe a run: its settings, progress, results and files",
        "compare": "compare the seeds of several settings",
    }
    lines = ["usage: reverie COMMAND [OPTIONS]", ""]
    lines += ["Reinforcement learning from experience: lived, recorded or imagined."]
    lines += ["", *(f"  {name:<10}{text}" for name, text in about.items()), "", "Try it:"]
    lines += ["  reverie train dreamer_v3 --env CartPole-v1 --run runs/first", "  reverie eval runs/first --video"]
    lines += ["  reverie dream runs/first", "", "`reverie COMMAND --help` lists the options of a command."]
    return "\n".join(lines)


def train_command(args: list[str]) -> int:
    """Run ``reverie train``."""
    from reverie.commands.train import train_command as command  # torch comes with it

    return command(args)


def eval_command(args: list[str]) -> int:
    """Run ``reverie eval``."""
    said = parse(EvalCommand, args, "eval")
    from reverie.agent.evaluation import evaluate_run
    from reverie.agent.loading import load

    agent = load(said.run, env=said.env, checkpoint=said.checkpoint, device=said.device)
    print_trouble(agent.algo.device.type)
    report = evaluate_run(
        agent, said.episodes, actions=said.mode, video=said.video, seed=said.seed, time_limit=said.time_limit
    )
    print(f"{agent.config.env.id}, {agent.checkpoint.name}, actions: {said.mode}")
    print(score_line(report.evaluation))
    if said.video and "video" not in report.files and not report.unwritten:
        print("no video: this environment cannot render images")
    print_files(as_given(report.files, said.run))
    return 0


def dream_command(args: list[str]) -> int:
    """Run ``reverie dream``."""
    said = parse(DreamCommand, args, "dream")
    from reverie.agent.dreaming import dream
    from reverie.agent.loading import load

    agent = load(said.run, env=said.env, checkpoint=said.checkpoint, device=said.device)
    print_trouble(agent.algo.device.type)
    report = dream(
        agent,
        context=said.context,
        horizon=said.horizon,
        sequences=said.sequences,
        actions=said.mode,
        seed=said.seed,
    )
    fewer = f" of {said.sequences} (the other episodes were too short)" if report.sequences < said.sequences else ""
    dreams = f"{plural(report.sequences, 'dream')}{fewer}"
    print(f"{agent.config.env.id}, {agent.checkpoint.name}: {dreams} after {report.context} observed rows")
    print("error per imagined step; in brackets, the error of repeating the last observed row")
    trained = getattr(agent.config.algo, "horizon", None)
    print("" if trained is None else f"(during training, the model imagines only {trained} steps ahead)\n")
    print(error_table(report.errors, report.repeated))
    print()
    for key, unit in report.units.items():
        print(f"  {key}: {unit}")
    print_files(as_given(report.files, said.run))
    return 0


def list_command(args: list[str]) -> int:
    """Run ``reverie list``. Reads the source files, so that nothing heavy is imported."""
    parse(ListCommand, args, "list")
    print("algorithms")
    for name, home in sorted(algorithms().items()):
        own = home.startswith("reverie.algos.")
        read = outline(home.removeprefix("reverie.")) if own else None
        print(f"  {name:<14}{read.summary if read else f'from an installed package: {home}'}")
        if read and "SIZES" in read.tables:
            print(f"  {'':<14}sizes: {', '.join(read.tables['SIZES'])}")
    print("\npresets (--preset NAME; by default chosen by the environment's id, whose prefixes are in brackets)")
    for module in ("published.dreamer", "published.model_free", "published.offline"):
        read = outline(module)
        for name in read.tables["PRESETS"]:
            starts = [start for start, preset in read.tables["SUITES"].items() if preset == name]
            chosen_by = f" [{', '.join(f'{start}*' for start in starts)}]" if starts else ""
            print(f"  {name:<22}{read.functions[name]}{chosen_by}")
    return 0


def info_command(args: list[str]) -> int:
    """Run ``reverie info``, from the files of the run."""
    said = parse(InfoCommand, args, "info")
    from reverie.core.compiler import state, trouble
    from reverie.folder import RunFolder
    from reverie.log.sinks import read_metrics
    from reverie.saved import read_saved

    folder, saved = RunFolder(said.run), read_saved(said.run)
    settings = saved.experiment
    rows = read_metrics(folder.metrics)
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
        "kernels here": trouble() or state(),
    }
    for place, what in saved.custom.items():
        facts[f"from Python: {place}"] = what
    for name, value in facts.items():
        print(f"{name:<14}{value}")
    videos = [("video", path) for path in sorted(folder.videos.glob("[!.]*.mp4"))]
    dreams = [("dream", path) for path in sorted(folder.dream.glob("[!.]*.*"))]
    print_files([*folder.files().items(), *videos, *dreams])
    return 0


def compare_command(args: list[str]) -> int:
    """Run ``reverie compare``."""
    said = parse(CompareCommand, args, "compare")
    if not said.runs:
        return fail("no folders to compare. Pass folders created by reverie train --seeds.", 2)
    if said.figure is not None and said.figure.suffix != ".png":
        return fail(f"--figure {said.figure}: expected a file name ending in .png.", 2)
    from reverie.training.compare import compared_figure, comparison, read_contender  # numpy comes with it

    contenders = [read_contender(path) for path in said.runs]
    print(comparison(contenders))
    if said.figure is not None:
        drawn = compared_figure(contenders, said.figure)
        print_files([("figure", drawn)] if drawn else [])
        return 0 if drawn else fail("no figure: none of these folders has a learning curve.", 1)
    return 0


def alone(settings: dict[str, Any]) -> bool:
    """Return whether a run learns from recorded data alone."""
    data = settings.get("data", {})
    return bool(data.get("path")) and data.get("fraction", 1.0) == 1.0


def progress_line(settings: dict[str, Any], step: int) -> str:
    """Return how far a run is, in env steps or updates."""
    unit, name = ("updates", "updates") if alone(settings) else ("steps", "env steps")
    return f"{step:,} of {settings[unit]:,} {name}"


def evaluation_line(file: Path, logged: float | None) -> str:
    """Return the score of the newest evaluation: that of ``eval.json``, or else the last one in the log."""
    try:
        own = json.loads(file.read_text(encoding="utf-8"))
        where = f", {own['checkpoint']}" if "checkpoint" in own else ""
        return f"{own['score']['mean']:.2f} over {plural(own['episodes'], 'episode')} (newest{where})"
    except (OSError, ValueError, KeyError, TypeError):
        return f"{logged:.2f} (newest)" if logged is not None else "-"


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in ``folder``; the newest may be later than the last log entry."""
    from reverie.run.checkpoint import Checkpoints, number_of

    return [number_of(path) for path in Checkpoints(folder).all()]


def checkpoint_line(folder: Path) -> str:
    """Return the names of the checkpoints in ``folder``, with the reason for each that cannot be loaded."""
    from reverie.run.checkpoint import Checkpoints
    from reverie.run.verify import is_newer

    checkpoints = Checkpoints(folder)
    wrong = checkpoints.damaged()
    names = [path.name for path in checkpoints.all()]
    words = {name: f" ({why if is_newer(why) else f'damaged: {why}'})" for name, why in wrong.items()}
    names = [name + words.get(name, "") for name in names]
    return ", ".join([*names, *sorted(path.name for path in folder.glob("diverged-*"))]) or "none yet"


def replay_line(folder: Path) -> str:
    """Return the number of rows stored in ``folder``."""
    from reverie.data.store.store import Store

    if not folder.is_dir():
        return "none in this folder"
    said: list[str] = []
    try:
        store = Store(folder, say=said.append)
    except ReverieError as error:
        return str(error)
    rows, aside = (sum(s.own_rows for s in part) for part in (store.segments, store.aside))
    return "; ".join([f"{plural(rows, 'row')}" + (f", {aside:,} set aside" if aside else ""), *said])


COMMANDS = {
    "train": train_command,
    "eval": eval_command,
    "estimate": estimate_command,
    "dream": dream_command,
    "data": data_command,
    "bench": bench_command,
    "list": list_command,
    "info": info_command,
    "compare": compare_command,
}


def error_table(errors: Mapping[str, Any], repeated: Mapping[str, Any]) -> str:
    """Format the errors at steps 1, 2, 4, 8 ... and the last as a table."""
    horizon = len(next(iter(errors.values())))
    steps = sorted({2**i for i in range(horizon.bit_length()) if 2**i <= horizon} | {horizon})
    width = max(12, *(len(key) for key in errors)) + 2
    lines = [f"{'step':<{width}}" + "".join(f"{step:>20}" for step in steps)]
    for key, error in errors.items():
        cells = (f"{error[s - 1]:.4g} ({repeated[key][s - 1]:.4g})" for s in steps)
        lines.append(f"{key:<{width}}" + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join(lines)
