"""``reverie train``: preset, then YAML files, then flags; every field of the configuration is a flag."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from reverie.cli_args import fail, parse, print_files, score_line
from reverie.core.errors import RunError
from reverie.experiment import ExperimentConfig
from reverie.folder import RunFolder, read_saved
from reverie.presets import layered
from reverie.training import train

DEFAULT_ALGORITHM = "dreamer_v3"


@dataclass(frozen=True, kw_only=True)
class Common:
    """What most people want to say."""

    algorithm: Annotated[Positional[str], arg(metavar="ALGORITHM")] = DEFAULT_ALGORITHM
    """Which algorithm; `reverie list` names them all."""
    env: str = ""
    """Environment: an id of Gymnasium's registry, or `module:Id`. Chooses the preset of its suite."""
    envs: int = 1
    """How many environments are stepped together."""
    size: str | None = None
    """Size of the networks, such as 12m; `reverie list` names them. None: the preset's."""
    preset: str | None = None
    """Published settings to start from. None: those of the environment's suite."""
    config: tuple[Path, ...] = ()
    """YAML files with settings, over the preset and under these flags; the later ones win."""
    run: Path | None = None
    """Run folder; a run found there is continued. None: a new one under runs/."""
    resume: Path | None = None
    """Run folder of a run to continue with its own settings, under these flags."""
    keep_newer: bool = False
    """On continuing, learn also from rows that came after the checkpoint. They are set aside otherwise."""


@dataclass(frozen=True, kw_only=True)
class TrainCommand:
    """Train an agent, or go on with a run. Flags win over files, files over presets."""

    common: Annotated[Common, arg(name="")]
    experiment: Annotated[ExperimentConfig, arg(name="")]


def train_command(args: list[str]) -> int:
    """Read ``args``, train, and say what came of it."""
    contrary = contradiction(args)
    if contrary is not None:
        return fail(contrary, 2)
    said = peek(args)
    if said.resume is not None:
        said = resumed(said, named=bool(args) and not args[0].startswith("-"))
    config = layered(said.algorithm, env=said.env or None, preset=said.preset, size=said.size, files=said.config)
    if flag_value(args, "replay-ratio") or flag_value(args, "train-ratio"):
        config = config.merge({"replay_ratio": None, "train_ratio": None})  # one of them is about to be said anew
    shown = replace(said, env=config.env.id, envs=config.env.num)
    parsed = parse(TrainCommand, args, "train", default=TrainCommand(common=shown, experiment=config))
    if parsed.common.algorithm != said.algorithm:
        return fail(f"'{parsed.common.algorithm}' comes late: name the algorithm first, reverie train ALGORITHM ...", 2)
    config = parsed.experiment
    if parsed.common.envs != shown.envs:
        config = config.merge({"env.num": parsed.common.envs})
    result = train(config, run=parsed.common.resume or parsed.common.run, keep_newer=parsed.common.keep_newer)
    print(f"\n{result.reason} at env step {result.env_steps:,} after {result.updates:,} updates")
    if result.evaluation is not None:
        print(score_line(result.evaluation))
    print_files(result.files)
    return 0 if result.signal is None else 128 + result.signal


def resumed(said: Common, *, named: bool) -> Common:
    """``said`` with the algorithm and the settings of the run that is to be continued.

    Raises:
        RunError: there is no run, it needs objects that only Python can give, or it is another algorithm's.
    """
    assert said.resume is not None
    saved = read_saved(said.resume)
    if named and said.algorithm.replace("-", "_") != saved.algorithm:
        raise RunError(f"{said.resume} is a run of {saved.algorithm}, not of {said.algorithm}: leave the name away.")
    if saved.custom:
        listed = ", ".join(f"{place} = {what}" for place, what in saved.custom.items())
        raise RunError(
            f"{said.resume} was trained with {listed}, handed over in Python, which no flag can say: continue it "
            "there, reverie.train(..., run=...)."
        )
    return replace(said, algorithm=saved.algorithm, config=(RunFolder(said.resume).config, *said.config))


def peek(args: list[str]) -> Common:
    """What decides on the defaults of all the other flags, read before these can be parsed."""
    named = args[0] if args and not args[0].startswith("-") else DEFAULT_ALGORITHM
    values = {name: next(iter(flag_value(args, name) or []), None) for name in ("env", "env.id", "size", "preset")}
    files = tuple(Path(name) for name in flag_value(args, "config") or ())
    env = values["env.id"] or values["env"] or ""
    resume = Path(words[0]) if (words := flag_value(args, "resume")) else None
    return Common(algorithm=named, env=env, size=values["size"], preset=values["preset"], config=files, resume=resume)


def contradiction(args: list[str]) -> str | None:
    """What is wrong with ``args`` if they say one thing in two ways that do not agree."""
    for short, full in (("env", "env.id"), ("envs", "env.num")):
        said = {f"--{name}": " ".join(flag_value(args, name) or ()) for name in (short, full)}
        if all(said.values()) and len(set(said.values())) > 1:
            both = " and ".join(f"{flag} {value}" for flag, value in said.items())
            return f"{both} contradict each other: they are two ways to say the same thing; give one of them."
    if flag_value(args, "run") and flag_value(args, "resume"):
        return "--run and --resume: both name the folder of the run; --resume also takes over its settings. Give one."
    return None


def flag_value(args: list[str], name: str) -> list[str] | None:
    """The words after ``--name`` up to the next flag, of its last appearance; None if it does not appear."""
    found: list[str] | None = None
    for i, word in enumerate(args):
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") == f"--{name}":
            rest = args[i + 1 :]
            end = next((j for j, other in enumerate(rest) if other.startswith("--")), len(rest))
            found = [value] if equals else rest[:end]
    return found
