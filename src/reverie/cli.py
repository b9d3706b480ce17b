"""The command line: ``reverie train | eval | dream | data | bench ...``. Modules that need torch are imported late."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from reverie.commands.args import Trusting, as_given, fail, parse, print_files, print_trouble, score_line
from reverie.commands.asked import check_names
from reverie.commands.bench import bench_command
from reverie.commands.data import data_command
from reverie.commands.dream import dream_command
from reverie.commands.estimate import estimate_command
from reverie.commands.extract import extract_command
from reverie.commands.info import info_command
from reverie.core.discover import algorithms, outline, version
from reverie.core.errors import ReverieError, UntrustedError, did_you_mean
from reverie.core.importing import trusting
from reverie.core.signals import end_with_parent
from reverie.core.waiting import spin_briefly


@dataclass(frozen=True, kw_only=True)
class EvalCommand(Trusting):
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
    """Environment to act in, for an agent that learned from recorded data alone; or the run's own as `module:Id`, where
    only that module registers it."""


@dataclass(frozen=True, kw_only=True)
class ListCommand:
    """List all algorithms, their sizes, and the presets."""


@dataclass(frozen=True, kw_only=True)
class CompareCommand:
    """Compare the seeds of several settings: scores, and which is probably better."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="FOLDER ...")]
    """Folders made by `reverie train --seeds`, one for each setting."""
    figure: Path | None = None
    """Draw the learning curves, with intervals, to this PNG file."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 an error, 2 wrong usage, 128 + n signal n."""
    end_with_parent()
    spin_briefly()
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help"):
        print(overview())
        return 0 if args else 2
    if args[0] == "--version":
        print(f"reverie {version()}")
        return 0
    if args[0] not in COMMANDS:
        known = f"Available: {', '.join(COMMANDS)}."
        return fail(f"unknown command '{args[0]}'.{did_you_mean(args[0], COMMANDS)} {known}", 2)
    command, _ = COMMANDS[args[0]]
    try:
        with trusting("--trust" in args):
            return command(args[1:]) or 0
    except UntrustedError as error:
        return fail(f"{error} As in: {shlex.join(['reverie', *args, '--trust'])}", 1)
    except ReverieError as error:
        return fail(str(error), 1)
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as interrupt:  # of a run, it holds the number of the signal
        number = next((n for n in interrupt.args if isinstance(n, int)), signal.SIGINT)
        return fail(". ".join(["interrupted", *getattr(interrupt, "__notes__", [])]), 128 + number)
    except SystemExit as stop:  # tyro has printed the error or the help; a user's module may say why it stops
        return fail(stop.code, 1) if isinstance(stop.code, str) else int(stop.code or 0)


def overview() -> str:
    """Return the text of ``reverie --help``."""
    lines = ["usage: reverie COMMAND [OPTIONS]", ""]
    lines += ["Reinforcement learning from experience: lived, recorded or imagined."]
    lines += ["", *(f"  {name:<10}{about}" for name, (_, about) in COMMANDS.items()), "", "Try it:"]
    lines += ["  reverie train dreamer_v3 --env CartPole-v1 --run runs/first", "  reverie eval runs/first --video"]
    lines += ["  reverie dream runs/first", "", "`reverie COMMAND --help` lists the options of a command."]
    return "\n".join(lines)


def train_command(args: list[str]) -> int:
    """Run ``reverie train``."""
    check_names(args)
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
    print(f"  {'cpu':<24}The environment's, with small networks and a short run; without a GPU the default.")
    for module in ("published.dreamer", "published.model_free", "published.offline"):
        read = outline(module)
        for name in read.tables["PRESETS"]:
            starts = [start for start, preset in read.tables["SUITES"].items() if preset == name]
            chosen_by = f" [{', '.join(f'{start}*' for start in starts)}]" if starts else ""
            print(f"  {name:<24}{read.functions[name]}{chosen_by}")
    return 0


def compare_command(args: list[str]) -> int:
    """Run ``reverie compare``."""
    said = parse(CompareCommand, args, "compare")
    if not said.runs:
        return fail("no folders to compare. Pass folders created by reverie train --seeds.", 2)
    if said.figure is not None and said.figure.suffix != ".png":
        return fail(f"--figure {said.figure}: expected a file name ending in .png.", 2)
    from reverie.core.files import writing
    from reverie.log.aggregate import compared_figure, comparison, read_contenders  # numpy comes with it

    contenders = read_contenders(said.runs)
    print(comparison(contenders))
    if said.figure is not None:
        with writing(said.figure):
            drawn = compared_figure(contenders, said.figure)
        print_files([("figure", drawn)] if drawn else [])
        return 0 if drawn else fail("no figure: none of these folders has a learning curve (--schedule.eval-every).", 1)
    return 0


COMMANDS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "train": (train_command, "train an agent, or continue a run"),
    "eval": (eval_command, "play whole episodes with a trained agent, and record a video"),
    "estimate": (estimate_command, "estimate the return of a trained agent from recorded data alone"),
    "dream": (dream_command, "compare what a world model imagines with what happens"),
    "extract": (extract_command, "write a world model's states and predictions of recorded rows"),
    "data": (data_command, "inspect, check, convert, subsample, record and download data"),
    "bench": (bench_command, "measure this machine's speed, and forecast the time of a run"),
    "list": (list_command, "list all algorithms, sizes and presets"),
    "info": (info_command, "describe a run: its settings, progress, results and files"),
    "compare": (compare_command, "compare the seeds of several settings"),
}
"""Every command: the function that runs it, and its line in ``reverie --help``."""
