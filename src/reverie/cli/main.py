"""The command line: ``reverie train | eval | dream | data | bench ...``. Each command is imported when it is called."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from reverie.core.errors import ReverieError, UntrustedError, did_you_mean, short_repr
from reverie.core.files import DISK_FULL_ERRORS, disk_error_advice
from reverie.core.imports import trust_modules
from reverie.core.logger import wrap_words
from reverie.core.openmp import limit_openmp_spinning
from reverie.core.signals import die_with_parent
from reverie.core.terminal import show
from reverie.core.version import version

COMMANDS = {
    "train": ("train_command:train_command", "train an agent, or continue a run"),
    "reach": ("agent:ReachCommand", "play toward a goal, a state or a picture, and film it"),
    "eval": ("agent:EvalCommand", "play whole episodes with a trained agent, and record a video"),
    "arena": ("agent:ArenaCommand", "let agents play a game against each other, and rate them by Elo"),
    "estimate": ("agent:EstimateCommand", "estimate the return of a trained agent from a dataset"),
    "report": ("agent:ReportCommand", "write a page about a run: findings, curves, episodes, dreams"),
    "dream": ("agent:DreamCommand", "compare imagined trajectories of a world model with real episodes"),
    "view": ("agent:ViewCommand", "watch an agent and its dreams in a browser, inspect its world model, compare runs"),
    "play": ("play:PlayCommand", "play an environment by keys, and record demonstrations"),
    "extract": ("agent:ExtractCommand", "write a world model's states and predictions for recorded rows"),
    "export": ("agent:ExportCommand", "export a trained policy to a file for ONNX Runtime or PyTorch"),
    "data": ("data:data_command", "inspect, check, convert, subsample, record, download and make datasets"),
    "check-env": (
        "check:check_env_command",
        "check an environment: its faults, how learners see it, which algorithms suit it",
    ),
    "bench": ("bench:BenchCommand", "measure the speed of a learner on this machine"),
    "list": (
        "runs:ListCommand",
        "list all algorithms, sizes and presets; or the agents at a location, such as hf://USER",
    ),
    "info": ("runs:InfoCommand", "describe a run: its settings, progress, results and files"),
    "tune": ("train:tune_command", "search for good settings, with Optuna or in a grid"),
    "sweep": ("sweep:SweepCommand", "train named settings in several environments with several seeds, from a file"),
    "import": ("runs:ImportCommand", "import a Stable-Baselines3 agent as a run, to evaluate, export or train further"),
    "push": ("runs:PushCommand", "upload a trained agent to the Hugging Face Hub, cloud storage or a folder"),
    "pull": ("runs:PullCommand", "download a shared agent"),
    "register": ("runs:RegisterCommand", "add a trained agent to the model registry of MLflow or W&B"),
    "compare": ("runs:CompareCommand", "compare the seeds of several settings"),
    "help": ("help:help_command", "explain a command, an algorithm, a preset or a setting"),
    "completion": ("help:CompletionCommand", "print a completion script for bash, zsh or fish"),
}
"""Each command: where it is defined, and its line in ``reverie --help``.

It is a ``parsing.py: Command``, or a function that parses its own arguments.
"""
SHARING = ("push", "pull", "list")
"""Commands to which remote locations are passed unchanged."""
AGENT_COMMANDS = ("eval", "dream", "extract", "export", "info", "view")
"""Commands whose first word may be the URL of an agent in storage."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 an error, 2 wrong usage, 128 + n signal n."""
    _open_closed_streams()
    die_with_parent()
    limit_openmp_spinning()
    try:
        code = _run_main(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except MemoryError as error:
        details = f" ({error})" if str(error) else ""
        code = print_error(_with_notes(f"not enough memory{details}.", error), 1)
    except OSError as error:
        has_ended = isinstance(error, BrokenPipeError)  # the process that reads the output
        code = 0 if has_ended else print_error(_with_notes(_describe_os_error(error), error), 1)
        try:
            sys.stdout.flush()
        except OSError:  # Python tries again when it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


LONGEST_PATH = 500
"""Characters from which a path is shortened in messages."""


def _open_closed_streams() -> None:
    """Open the null device as the standard streams that the caller has closed, before a file gets their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest free number
            setattr(sys, name, os.fdopen(nowhere, "w" if number else "r", encoding="utf-8"))


def _describe_os_error(error: OSError) -> str:
    """Return what could not be read or written, and what to do."""
    name = str(error.filename or "")
    name = name if len(name) < LONGEST_PATH else short_repr(name)
    if error.errno in DISK_FULL_ERRORS:
        return f"cannot write {name or 'the output'}: {error.strerror}. {disk_error_advice(error)}"
    return f"{name}: {error.strerror}." if name and error.strerror else f"{type(error).__name__}: {error}."


def _with_notes(text: str, error: BaseException) -> str:
    """Add what a run adds to the error."""
    return " ".join([text, *(f"{note}." for note in getattr(error, "__notes__", []))])


def _run_main(args: list[str]) -> int:
    """Run the command of ``args``; return its exit code."""
    if not args or args[0] in ("-h", "--help"):
        show(overview())
        return 0 if args else 2
    if args[0] == "--version":
        show(f"reverie {version()}", flush=True)
        _print_environment()
        return 0
    if args[0] not in COMMANDS:
        available = f"Available: {', '.join(COMMANDS)}."
        return print_error(f"unknown command '{args[0]}'.{did_you_mean(args[0], COMMANDS)} {available}", 2)
    try:
        command = load_command(args[0])
        with trust_modules("--trust-code" in args, args):
            command_args = localize_args(args[0], args[1:])
            if not isinstance(command, type):
                return int(command(command_args))
            from reverie.cli.parsing import run_command

            return run_command(command, command_args, args[0])
    except UntrustedError as error:
        return print_error(f"{error} As in: {shlex.join(['reverie', *args, '--trust-code'])}", 1)
    except ReverieError as error:
        return print_error(str(error), 1)
    except KeyboardInterrupt as interrupt:  # in a run, it contains the number of the signal
        number = next((n for n in interrupt.args if isinstance(n, int)), signal.SIGINT)
        return print_error(". ".join(["interrupted", *getattr(interrupt, "__notes__", [])]), 128 + number)
    except SystemExit as stop:  # help was printed, the usage was wrong, or a user's module exits with a reason
        return print_error(stop.code, 1) if isinstance(stop.code, str) else int(stop.code or 0)


def load_command(name: str) -> Any:
    """Import the class or the function of a command."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    return getattr(importlib.import_module(f"reverie.cli.{module}"), attribute)


def localize_args(command: str, args: Sequence[str]) -> list[str]:
    """Return the arguments of a command, with remote runs and agents replaced by local folders."""
    if command in SHARING:
        return list(args)
    if args and command in AGENT_COMMANDS and "://" in args[0]:
        from reverie.log.artifacts import download_agent

        return [str(download_agent(args[0])), *localize_args(command, args[1:])]
    return [_localize_arg(text) for text in args]


def _localize_arg(text: str) -> str:
    """Return an argument of the command line; for a run or an agent at a tracker, its local folder."""
    flag, location = re.fullmatch(r"(--[\w.-]+=)?(.*)", text, re.DOTALL).groups("")  # type: ignore[union-attr]
    if not re.match(r"(runs|models):/|wandb:.+/|hf://.+/", location):
        return text
    from reverie.log.artifacts import download_run

    return f"{flag}{download_run(location)}"


def _print_environment() -> None:
    """Print the versions of Python and PyTorch, the devices and the state of the kernels."""
    import platform

    import torch

    from reverie.core.hardware import num_gpus
    from reverie.core.kernel_dispatch import kernel_problem, kernels_disabled

    devices = [torch.cuda.get_device_name(index) for index in range(num_gpus())]
    system = f"{platform.system()} {platform.machine()}"
    show(f"  Python {platform.python_version()}, PyTorch {torch.__version__}, {system}")
    show(f"  devices: {', '.join([f'cpu with {os.cpu_count()} cores', *devices])}")
    show(f"  kernels: {kernel_problem() or ('off' if kernels_disabled() else 'compiled')}")


def print_error(message: str, code: int) -> int:
    """Print a message on stderr and return ``code``."""
    show(wrap_words(f"reverie: {message}", sys.stderr), sys.stderr)
    return code


def overview() -> str:
    """Return the text of ``reverie --help``."""
    lines = ["usage: reverie COMMAND [OPTIONS]", ""]
    lines += ["Reinforcement learning from experience: collected, recorded or imagined."]
    entries = (textwrap.wrap(text, max(20, shutil.get_terminal_size().columns - 13)) for _, text in COMMANDS.values())
    descriptions = (f"\n{'':13}".join(entry) for entry in entries)
    lines += ["", *(f"  {name:<10} {text}" for name, text in zip(COMMANDS, descriptions, strict=True)), "", "Try it:"]
    lines += ["  reverie train dreamer_v3 --env CartPole-v1 --run runs/first", "  reverie eval runs/first --video"]
    lines += ["  reverie view runs/first", "", "`reverie COMMAND --help` lists the options of a command,"]
    lines += ["`reverie help TOPIC` explains."]
    return "\n".join(lines)
