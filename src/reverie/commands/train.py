"""``reverie train``: preset, then YAML files, then flags; every field of the configuration is a flag."""

from __future__ import annotations

import functools
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from reverie.api import train_config, train_seeds_of
from reverie.commands.args import affirmed, as_given, fail, flags_in, parse, print_files, score_line, unknown_option
from reverie.commands.asked import Common, flag_value, peek
from reverie.commands.train_help import help_screen
from reverie.core.discover import same_algorithm
from reverie.core.errors import RunError
from reverie.core.words import plural
from reverie.envs.config import EnvConfig
from reverie.experiment import ExperimentConfig, fitted
from reverie.log.aggregate import table
from reverie.log.console import tell
from reverie.presets import SHORT_NAMES, SUITES, layered
from reverie.run.folder import RunFolder, check_origin, read_saved, read_yaml


@dataclass(frozen=True, kw_only=True)
class TrainCommand:
    """Train an agent, or continue a run. Flags override files, files the preset."""

    common: Annotated[Common, arg(name="")]
    experiment: Annotated[ExperimentConfig, arg(name="")]


def train_command(args: list[str]) -> int:
    """Parse ``args``, train, and print the result."""
    wants_help, named = bool({"-h", "--help"} & {*args}), bool(args) and not args[0].startswith("-")
    refuse(None if wants_help else contradiction(args))
    said = at_its_run(peek(args), named=named)
    config = below_flags(args, said)
    if wants_help:
        print(help_screen(said, config, named=named))
        return 0
    shown = shown_by(config, said)
    default = TrainCommand(common=shown, experiment=config)
    refuse(wrong_words(args, default))
    words = ["--help" if word == "--help-all" else word for word in args]
    parsed = parse(TrainCommand, words, "train", default=default)
    if (late := parsed.common.algorithm) != said.algorithm:
        refuse(f"'{late}' comes after an option. Put the algorithm first: reverie train ALGORITHM ...")
    config = shortly_said(parsed.experiment, parsed.common, shown).merge({"preset": config.preset})
    refuse(question(args, said, config))
    config = fitted(config, functools.partial(flag_for, args), tell)
    return (one_run if parsed.common.seeds is None else seeds_command)(config, parsed.common)


def refuse(message: str | None) -> None:
    """End the command with this message about wrong usage, if there is one."""
    if message is not None:
        raise SystemExit(fail(message, 2))


def at_its_run(said: Common, *, named: bool) -> Common:
    """Return ``said`` with the settings of the run to resume, or the environment of an existing run of --run."""
    if said.resume is not None:
        return resumed(said, named=named)
    if said.env or said.data or said.config or said.run is None or not RunFolder(said.run).config.is_file():
        return said
    saved = read_saved(said.run)
    if saved.experiment["data"]["path"]:
        return said
    check_origin(saved, said.run, "algo", "data")
    return replace(said, env=saved.experiment["env"]["id"])


def below_flags(args: list[str], said: Common) -> ExperimentConfig:
    """Return the settings of the preset and the files."""
    data = {"data.path": said.data} if said.data else {}
    data |= {path: words[0] for path in ("data.reader", "experience") if (words := flag_value(args, path))}
    preset, device = (next(iter(flag_value(args, name) or []), None) for name in ("preset", "device"))
    config = layered(
        said.algorithm, env=said.env or None, preset=preset, size=said.size, files=said.config, data=data,
        device=device, run=said.run,
    )  # fmt: skip
    if sets_ratio(args):
        config = config.merge({"replay_ratio": None, "train_ratio": None})  # one of them is about to be set again
    return config


def one_run(config: ExperimentConfig, said: Common) -> int:
    """Train, print the result, and return 0, or the code of the signal that ended the run."""
    run = said.resume or said.run
    result = train_config(config, run=run)
    place = "" if config.offline else f"at env step {result.env_steps:,} "
    tell(f"\n{result.reason} {place}after {plural(result.updates, 'update')}")
    if result.evaluation is not None:
        print(score_line(result.evaluation))
    if result.estimate is not None:
        print(result.estimate.words())
    print_files(as_given(result.files, run))
    if result.signal is None:
        return 0
    tell(f"Continue with: reverie train --resume {shlex.quote(str(as_given({'run': result.run}, run)['run']))}")
    return 128 + result.signal


def wrong_words(args: list[str], default: TrainCommand) -> str | None:
    """Return the error message for a word that is no option and no value of one; None if there is none."""
    name = default.common.algorithm
    if args[1:] and not args[0].startswith("-") and not args[1].startswith("-"):
        return f"'{args[1]}' after the algorithm: expected options. For an environment, pass --env {args[1]}."
    known = [word for word in args if word != "--help-all"]
    message = unknown_option(known, default)
    return None if message is None else f"{message} `reverie train {name} --help-all` lists all options."


def sets_ratio(args: list[str]) -> bool:
    """Return whether ``args`` set ``replay_ratio`` or ``train_ratio``. The value None sets neither."""
    words = [word for name in ("replay-ratio", "train-ratio") for word in flag_value(args, name) or ()]
    return any(word != "None" for word in words)


SHORT = SHORT_NAMES | {"data": "data.path"}
"""Flags of ``Common`` that are other names of settings. That of the environment also chooses the preset."""


def shown_by(config: ExperimentConfig, said: Common) -> Common:
    """Return ``said`` with the settings as defaults, for the help."""
    found: dict[str, Any] = {"env": config.env.id, "envs": config.env.num, "data": config.data.path}
    return replace(said, **found)


def shortly_said(config: ExperimentConfig, said: Common, shown: Common) -> ExperimentConfig:
    """Return ``config`` with what was set by short flags."""
    changed = {path: getattr(said, name) for name, path in SHORT.items() if getattr(said, name) != getattr(shown, name)}
    return config.merge(changed)


def question(args: list[str], said: Common, config: ExperimentConfig) -> str | None:
    """Return the question for the environment, or the data, if nothing that was said names them; None otherwise."""
    preset = flag_value(args, "preset") or ()
    of_preset = {*preset} & {*SUITES.values()} or (preset and config.env.id != EnvConfig().id)
    named = said.env or said.data or config.data.path or said.resume or of_preset
    if named or any(names_env(path) for path in said.config):
        return None
    ask = f"reverie train {said.algorithm}"
    if config.algo.needs_data:
        return f"{said.algorithm} learns from recorded data: which? Try `{ask} --data PATH` or `--data minari:NAME`."
    kinds = config.algo.action_kinds
    one, two = ("CartPole-v1", "ALE/Pong-v5") if "discrete" in kinds else ("Pendulum-v1", "HalfCheetah-v5")
    two = "Pendulum-v1" if {"discrete", "continuous"} <= kinds else two
    return f"in which environment? Try `{ask} --env {one}` or `{ask} --env {two}`."


def names_env(path: Path) -> bool:
    """Return whether a YAML file of settings names the environment."""
    values = read_yaml(path)
    env = values.get("experiment", values).get("env")
    return "env.id" in values or isinstance(env, str) or (isinstance(env, dict) and "id" in env)


def flag_for(args: list[str], path: str) -> str | None:
    """Return the flag by which ``args`` set the option at ``path``, short or with its whole name; None if by none."""
    given = {affirmed(name) for name, _ in flags_in(args)}
    names = [*(short for short, whole in SHORT.items() if whole == path), path]
    return next((flag(name) for name in names if name.replace("_", "-") in given), None)


def flag(name: str) -> str:
    """Return the flag of an option: ``--learning-starts``."""
    return f"--{name.replace('_', '-')}"


def seeds_command(config: ExperimentConfig, said: Common) -> int:
    """Train several seeds and print the result; return 0 if all have finished."""
    assert said.seeds is not None
    seeds = read_seeds(said.seeds, config.seed)
    if seeds is None:
        return fail(f"--seeds {said.seeds}: expected a number of seeds such as 5, or a list such as 1,5,7.", 2)
    result = train_seeds_of(config, seeds, jobs=said.jobs, run=said.run)
    unfinished = [seed for seed in result.seeds if seed.state != "finished"]
    tell(f"\n{len(seeds) - len(unfinished)} of {plural(len(seeds), 'seed')} finished")
    if result.aggregate is not None:
        print(f"\n{table(result.aggregate)}\n")
    for seed in unfinished:
        print(f"seed {seed.seed}: {seed.note or seed.state}" + (f"; see {seed.log}" if seed.log.exists() else ""))
    if unfinished:
        print(f"Run the same command again, with --run {result.run}, to continue the unfinished seeds.")
    print_files(result.files)
    return 128 + result.signal if result.signal is not None else int(bool(unfinished))


def read_seeds(text: str, first: int) -> list[int] | None:
    """Parse ``5`` as five seeds from ``first`` on, and ``1,5,7`` as these; None if it is neither."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() for word in words):
        return None
    numbers = [int(word) for word in words]
    return numbers if "," in text else list(range(first, first + numbers[0])) or None


def resumed(said: Common, *, named: bool) -> Common:
    """Return ``said`` with the algorithm and the settings of the run to be continued.

    Raises:
        RunError: there is no run, it needs objects that only Python can give, or it is another algorithm's.
    """
    assert said.resume is not None
    saved = read_saved(said.resume)
    if named and not same_algorithm(said.algorithm, saved.algorithm):
        raise RunError(
            f"{said.resume} is a run of {saved.algorithm}, not of {said.algorithm}. Leave out the algorithm."
        )
    check_origin(saved, said.resume, *(["algo"] if named else []), *(["env"] if said.env else []))
    if saved.custom:
        listed = ", ".join(f"{place} = {what}" for place, what in saved.custom.items())
        raise RunError(
            f"{said.resume} was trained with {listed}, a Python object that no flag can set. Continue the run in "
            "Python: reverie.train(..., run=...)."
        )
    return replace(said, algorithm=saved.algorithm, config=(RunFolder(said.resume).config, *said.config))


def contradiction(args: list[str]) -> str | None:
    """Return the error message if ``args`` contradict each other; None otherwise."""
    twice = {"env": "env.id"} | {short.replace("_", "-"): full.replace("_", "-") for short, full in SHORT.items()}
    for short, full in twice.items():
        said = {f"--{name}": " ".join(flag_value(args, name) or ()) for name in (short, full)}
        if all(said.values()) and len(set(said.values())) > 1:
            both = " and ".join(f"{flag} {value}" for flag, value in said.items())
            return f"{both} contradict each other: both set the same option. Set only one of them."
    if flag_value(args, "run") and flag_value(args, "resume"):
        return "--run and --resume both name the run folder, and --resume also uses its settings. Set only one of them."
    if flag_value(args, "resume") and flag_value(args, "preset"):
        return "--preset has no effect with --resume: a run keeps its settings. Change single settings by their flags."
    return lone_flags(args)


def lone_flags(args: list[str]) -> str | None:
    """Return the error message if flags of several seeds are misused; None otherwise."""
    seeds = flag_value(args, "seeds")
    if seeds is None:
        return "--jobs has no effect without --seeds: one run is one process." if flag_value(args, "jobs") else None
    if flag_value(args, "resume"):
        return "--resume continues a single run. To continue seeds, pass their folder as --run, with their settings."
    if flag_value(args, "seed") and "," in "".join(seeds):
        return "--seed and a list of --seeds contradict each other. Set only one of them."
    return None
