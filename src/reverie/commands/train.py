"""``reverie train``: preset, then YAML files, then flags; every field of the configuration is a flag."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from reverie.commands.args import Trusting, affirmed, as_given, fail, flags_in, parse, print_files, score_line
from reverie.core.discover import same_algorithm
from reverie.core.errors import RunError
from reverie.core.words import plural
from reverie.effect import learning_in_time, remark_on_files, without_effect
from reverie.experiment import ExperimentConfig
from reverie.folder import RunFolder
from reverie.log.console import tell
from reverie.offline import DEFAULT_FRACTION
from reverie.presets import SHORT_NAMES, files_say_fraction, layered
from reverie.saved import check_origin, read_saved
from reverie.training.aggregate import table
from reverie.training.run import train
from reverie.training.seeds import train_seeds

DEFAULT_ALGORITHM = "dreamer_v3"


@dataclass(frozen=True, kw_only=True)
class Common(Trusting):
    """The most common options."""

    algorithm: Annotated[Positional[str], arg(metavar="ALGORITHM")] = DEFAULT_ALGORITHM
    """Algorithm; `reverie list` names them all."""
    env: str = ""
    """Environment: an id of Gymnasium's registry, or `module:Id`. It chooses the preset of its suite."""
    envs: int = 1
    """Number of environments stepped together."""
    data: str = ""
    """Recorded data to learn from: a file, folder or glob of any format that can be read, or minari:NAME. With --env as
    well, half of each batch is collected there during training (--data-fraction)."""
    eval_env: str = "auto"
    """Environment to evaluate in, for a run on recorded data alone: auto for the data's own, an id, or none."""
    data_fraction: float = 1.0
    """Fraction of each batch that is recorded, above 0 and up to 1, rounded to whole windows. 1: nothing is
    collected. Beside --env, 0.5 unless given."""
    size: str | None = None
    """Size of the networks, such as 12m; `reverie list` names them. None: the preset's."""
    config: tuple[Path, ...] = ()
    """YAML files with settings. They override the preset, later files override earlier ones, and flags override all."""
    run: Path | None = None
    """Run folder; a run found there is continued. None: a new one under runs/."""
    resume: Path | None = None
    """Run folder of a run to continue with its own settings; other flags override these."""
    keep_newer: bool = False
    """On continuing, learn also from rows stored after the checkpoint. Otherwise they are set aside."""
    seeds: str | None = None
    """Train several seeds, each as a run of its own, and aggregate their scores: the number of seeds, from --seed on,
    or a list such as 1,5,7. The same command again continues those that have not finished."""
    jobs: int = 0
    """Seeds to train at a time. 0: as many as the CPU cores allow with the threads of each; one on a GPU."""


@dataclass(frozen=True, kw_only=True)
class TrainCommand:
    """Train an agent, or continue a run. Flags override files, files the preset."""

    common: Annotated[Common, arg(name="")]
    experiment: Annotated[ExperimentConfig, arg(name="")]


def train_command(args: list[str]) -> int:
    """Parse ``args``, train, and print the result."""
    contrary = contradiction(args)
    if contrary is not None:
        return fail(contrary, 2)
    said = peek(args)
    if said.resume is not None:
        said = resumed(said, named=bool(args) and not args[0].startswith("-"))
    data = {SHORT[name]: value for name in ("data", "eval_env") if (value := getattr(said, name)) not in ("", "auto")}
    data |= {"data.reader": name[0]} if (name := flag_value(args, "data.reader")) else {}
    preset, device = (next(iter(flag_value(args, name) or []), None) for name in ("preset", "device"))
    config = layered(
        said.algorithm, env=said.env or None, preset=preset, size=said.size, files=said.config, data=data,
        device=device, run=said.run,
    )  # fmt: skip
    chosen = config.preset
    if sets_ratio(args):
        config = config.merge({"replay_ratio": None, "train_ratio": None})  # one of them is about to be set again
    shown = shown_by(config, said)
    parsed = parse(TrainCommand, args, "train", default=TrainCommand(common=shown, experiment=config))
    if parsed.common.algorithm != said.algorithm:
        return fail(
            f"'{parsed.common.algorithm}' comes after an option. Put the algorithm first: reverie train ALGORITHM ...",
            2,
        )
    config = shortly_said(parsed.experiment, parsed.common, shown).merge({"preset": chosen})
    if config.data.alone and said.env and said.resume is None:
        config = config.merge(in_an_environment(args, said))
    named = functools.partial(flag_for, args)
    if (idle := without_effect(config, named, flag)) is not None:
        return fail(idle, 2)
    remark_on_files(config, said.config, named, flag)
    config = learning_in_time(config, named, tell)
    name_default(said, preset, config)
    if parsed.common.seeds is not None:
        return seeds_command(config, parsed.common)
    run = parsed.common.resume or parsed.common.run
    result = train(config, run=run, keep_newer=parsed.common.keep_newer)
    place = "" if config.data.alone else f"at env step {result.env_steps:,} "
    tell(f"\n{result.reason} {place}after {plural(result.updates, 'update')}")
    if result.evaluation is not None:
        print(score_line(result.evaluation))
    if result.estimate is not None:
        print(result.estimate.words())
    print_files(as_given(result.files, run))
    return 0 if result.signal is None else 128 + result.signal


def sets_ratio(args: list[str]) -> bool:
    """Return whether ``args`` set ``replay_ratio`` or ``train_ratio``. The value None sets neither."""
    words = [word for name in ("replay-ratio", "train-ratio") for word in flag_value(args, name) or ()]
    return any(word != "None" for word in words)


SHORT = SHORT_NAMES | {"data": "data.path"}
"""Flags of ``Common`` that are other names of settings. That of the environment also chooses the preset."""


def shown_by(config: ExperimentConfig, said: Common) -> Common:
    """Return ``said`` with the settings as defaults, for the help."""
    found: dict[str, Any] = {"env": config.env.id, "envs": config.env.num, "data": config.data.path}
    return replace(said, **found, eval_env=config.data.eval_env, data_fraction=config.data.fraction)


def shortly_said(config: ExperimentConfig, said: Common, shown: Common) -> ExperimentConfig:
    """Return ``config`` with what was set by short flags."""
    changed = {path: getattr(said, name) for name, path in SHORT.items() if getattr(said, name) != getattr(shown, name)}
    return config.merge(changed)


def name_default(said: Common, preset: str | None, config: ExperimentConfig) -> None:
    """Name the environment on the terminal if nothing that was said chooses one."""
    if not (said.env or said.data or said.config or preset):
        tell(f"no --env was given: training in {config.env.id}")


def flag_for(args: list[str], path: str) -> str | None:
    """Return the flag by which ``args`` set the option at ``path``, short or with its whole name; None if by none."""
    given = {affirmed(name) for name, _ in flags_in(args)}
    names = [*(short for short, whole in SHORT.items() if whole == path), path]
    return next((flag(name) for name in names if name.replace("_", "-") in given), None)


def flag(name: str) -> str:
    """Return the flag of an option: ``--data-fraction``."""
    return f"--{name.replace('_', '-')}"


def in_an_environment(args: list[str], said: Common) -> dict[str, Any]:
    """Return the settings that --env implies beside --data: collect in it, or with a fraction of 1 evaluate in it."""
    flags = flag_value(args, "data-fraction") or flag_value(args, "data.fraction")
    alone = flags or files_say_fraction(said.config, said.algorithm)
    return {"data.eval_env": said.env} if alone else {"data.fraction": DEFAULT_FRACTION}


def seeds_command(config: ExperimentConfig, said: Common) -> int:
    """Train several seeds and print the result; return 0 if all have finished."""
    assert said.seeds is not None
    seeds = read_seeds(said.seeds, config.seed)
    if seeds is None:
        return fail(f"--seeds {said.seeds}: expected a number of seeds such as 5, or a list such as 1,5,7.", 2)
    result = train_seeds(config, seeds, jobs=said.jobs, run=said.run, keep_newer=said.keep_newer)
    unfinished = [seed for seed in result.seeds if seed.state != "finished"]
    tell(f"\n{len(seeds) - len(unfinished)} of {plural(len(seeds), 'seed')} finished")
    if result.aggregate is not None:
        print(f"\n{table(result.aggregate)}\n")
    for seed in unfinished:
        print(f"seed {seed.seed}: {seed.note or seed.state}" + (f"; see {seed.log}" if seed.log.exists() else ""))
    if unfinished:
        print("Run the same command again to continue the unfinished seeds.")
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


def peek(args: list[str]) -> Common:
    """Read the arguments that decide the defaults of all other flags, before those can be parsed."""
    named = args[0] if args and not args[0].startswith("-") else DEFAULT_ALGORITHM
    flags = ("env", "env.id", "size", "data", "data.path", "eval-env", "data.eval-env")
    values = {name: next(iter(flag_value(args, name) or []), None) for name in flags}
    run, resume = (Path(words[0]) if (words := flag_value(args, name)) else None for name in ("run", "resume"))
    return Common(
        algorithm=named,
        env=values["env.id"] or values["env"] or "",
        data=values["data.path"] or values["data"] or "",
        eval_env=values["data.eval-env"] or values["eval-env"] or "auto",
        size=values["size"],
        config=tuple(Path(name) for name in flag_value(args, "config") or ()),
        run=run,
        resume=resume,
    )


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


def flag_value(args: list[str], name: str) -> list[str] | None:
    """Return the words after ``--name`` up to the next flag, at its last appearance; None if it is missing."""
    return dict(flags_in(args)).get(name)
