"""``reverie train`` and ``tune``: preset or existing run, then YAML files, then flags, one for every setting."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from reverie.api import train_config
from reverie.cli.help import help_screen
from reverie.cli.main import fail
from reverie.cli.options import Common, peek
from reverie.cli.parse import flags_in, parse, without
from reverie.cli.show import as_given, print_files, score_line
from reverie.core.discover import same_algorithm
from reverie.core.errors import RunError, plural
from reverie.core.logger import silent, tell
from reverie.envs.config import EnvConfig
from reverie.experiment.config import ExperimentConfig, fitted
from reverie.experiment.layers import SUITES, env_in, layered, sections, settings_in
from reverie.log.aggregate import table
from reverie.run.callback import import_callback
from reverie.run.folder import RunFolder, new_path, read_saved, read_yaml
from reverie.scale.launch import check, is_launched, launch, rank
from reverie.scale.ray import ClusterRequest, train_on_ray
from reverie.scale.search import tune_of
from reverie.scale.seeds import train_seeds_of

SHORT = {"env": "env.id", "envs": "env.num", "data": "data.path"}
"""Flags of ``Common`` that are other names of settings."""


@dataclass(frozen=True, kw_only=True)
class TrainCommand:
    """Train an agent, or continue a run. Flags override files, files the preset."""

    common: Annotated[Common, arg(name="")]
    experiment: Annotated[ExperimentConfig, arg(name="")]


def train(args: list[str], said: Common, kind: type[Any] = TrainCommand, end: Callable[..., int] | None = None) -> int:
    """Parse ``args``, of which ``said`` holds what decides the defaults of all others; train, and print the result.

    ``end``: does something else with the settings; ``kind``: the command that it belongs to.
    """
    named, flags = bool(args) and not args[0].startswith("-"), dict(flags_in(args))
    if named and args[1:] and not args[1].startswith("-"):
        return fail(f"'{args[1]}' after the algorithm: for an environment, pass --env {args[1]}.", 2)
    said = at_its_run(said, named=named)
    for text in flags.get("callbacks", ()):
        import_callback(text)
    if said.configs:
        said = replace(said, config=sections(said.configs, said.config))
    first = {name: words[0] for name, words in flags.items() if words}
    data = {path: first[path] for path in ("data.reader", "experience") if path in first}
    config = layered(
        said.algorithm, env=said.env or None, preset=first.get("preset"), size=said.size, files=said.config,
        data=data | ({"data.path": said.data} if said.data else {}), device=first.get("device"), run=said.run,
    )  # fmt: skip
    if {"-h", "--help"} & {*args}:
        print(help_screen(said, config, named=named))
        return 0
    if any(first.get(name, "None") != "None" for name in ("replay-ratio", "train-ratio")):
        config = config.merge({"replay_ratio": None, "train_ratio": None})  # one of them is about to be set again
    shown = replace(said, env=config.env.id, envs=config.env.num, data=config.data.path)
    name = "train" if end is None else "tune"
    words = ["--help" if word == "--help-all" else word for word in args]
    parsed = parse(kind, words, name, default=kind(common=shown, experiment=config), changes="--eval-env")
    if parsed.common.algorithm != said.algorithm:
        return fail("an algorithm comes first: reverie train ALGORITHM [OPTIONS]", 2)
    changed = {
        path: value for name, path in SHORT.items() if (value := getattr(parsed.common, name)) != getattr(shown, name)
    }
    found = parsed.experiment.merge(changed | {"preset": config.preset})
    if ask := question(first, said, found):
        return fail(ask, 2)
    # The first of the learners says it, not each, nor who starts them; the trials of a search start theirs themselves.
    common, alone = replace(parsed.common, run=said.run), found.learners == 1 and not parsed.common.on
    many = end is not None or common.seeds is not None  # runs, that start their own learners
    starts = not many and not alone and not is_launched()
    with silent(starts or rank() > 0):
        found = fitted(found, {name.replace("-", "_") for name in flags})
    if refused := misplaced(common, found.learners):
        return fail(refused, 2)
    if starts:
        return placed_on_ray(args, found, common) if common.on else launch(["train", *args], found)
    end = end or (one_run if common.seeds is None else several)
    return end(found, common)


def misplaced(said: Common, learners: int) -> str:
    """Return why the learners cannot be where they are asked to be; "" if they can."""
    if said.on and said.on.partition(":")[0] != "ray":
        return f"--on {said.on}: expected ray, or ray:HOST:PORT."
    if (said.resources or said.actor_resources) and not said.on:
        return "--resources without --on ray: only Ray places learners and actors by resources."
    if said.seeds is not None and learners > 1:
        return f"--seeds {said.seeds} with --learners {learners}: train the seeds one by one."
    return ""


def placed_on_ray(args: list[str], config: ExperimentConfig, said: Common) -> int:
    """Train on a Ray cluster; return the exit code."""
    check(config.merge({"device": "cpu"}), config.learners, config.learners)
    run = (said.run or new_path(config.subject, config.name)).absolute()
    words = ["train", *without(args, {"on", "resources", "actor-resources", "strategy", "run", "resume"})]
    return train_on_ray(words, config, run, on_ray(said) or ClusterRequest())


def on_ray(said: Common) -> ClusterRequest | None:
    """Return what is asked of Ray; None if nothing is."""
    if not said.on:
        return None
    place = said.on.partition(":")[2]
    return ClusterRequest(address=place, learner=said.resources, actor=said.actor_resources, strategy=said.strategy)


def at_its_run(said: Common, *, named: bool) -> Common:
    """Return ``said`` with the algorithm of an existing run, which it continues."""
    if said.run is None or not (said.resume or RunFolder.at(said.run).config.is_file()):
        return said
    saved = read_saved(said.run)
    if named and not same_algorithm(said.algorithm, saved.algorithm):
        raise RunError(f"{said.run} is a run of {saved.algorithm}, not of {said.algorithm}. Leave out the algorithm.")
    if saved.custom:
        listed = ", ".join(f"{place} = {what}" for place, what in saved.custom.items())
        raise RunError(
            f"{said.run} was trained with {listed}, a Python object that no flag can set. Continue the run in "
            "Python: reverie.train(..., run=...)."
        )
    return replace(said, algorithm=saved.algorithm)


def question(first: dict[str, str], said: Common, config: ExperimentConfig) -> str:
    """Return the question for the environment, or the data, if nothing that was said names them; "" otherwise."""
    preset = first.get("preset")
    of_preset = preset in SUITES.values() or (preset and config.env.id != EnvConfig().id)
    run = said.resume or (said.run is not None and RunFolder.at(said.run).config.is_file())
    in_files = any(env_in(settings_in(path, said.algorithm)) for path in said.config)
    if said.env or config.data.path or run or of_preset or in_files:
        return ""
    ask = f"reverie train {said.algorithm}"
    if config.algo.needs_data:
        return f"{said.algorithm} learns from recorded data: which? Try `{ask} --data PATH` or `--data minari:NAME`."
    kinds = config.algo.action_kinds
    one, two = ("CartPole-v1", "ALE/Pong-v5") if "discrete" in kinds else ("Pendulum-v1", "HalfCheetah-v5")
    two = "Pendulum-v1" if {"discrete", "continuous"} <= kinds else two
    return f"in which environment? Try `{ask} --env {one}` or `{ask} --env {two}`."


def one_run(config: ExperimentConfig, said: Common) -> int:
    """Train, print the result, and return 0, or the code of the signal that ended the run."""
    result = train_config(config, run=said.run)
    if rank():  # the first learner tells how the run ended
        return 0 if result.signal is None else 128 + result.signal
    place = "" if config.offline else f"at env step {result.env_steps:,} "
    why = f", by {result.stop_reason}" if result.stop_reason else ""
    tell(f"\n{result.reason} {place}after {plural(result.updates, 'update')}{why}")
    if result.evaluation is not None:
        print(score_line(result.evaluation))
    if result.estimate is not None:
        print(result.estimate.words())
    print_files(result.files, said.run or Path())
    if result.signal is None:
        return 0
    tell(f"Continue with: reverie train --resume {shlex.quote(str(as_given(result.run, said.run)))}")
    return 128 + result.signal


def several(config: ExperimentConfig, said: Common) -> int:
    """Train several seeds and print the result; return 0 if all have finished."""
    seeds = read_seeds(said.seeds or "", config.seed)
    if not seeds:
        return fail(NO_SEEDS.format(said.seeds), 2)
    result = train_seeds_of(config, seeds, jobs=said.jobs, run=said.run, on=on_ray(said))
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


NO_SEEDS = "--seeds {}: expected a number of seeds such as 5, or a list such as 1,5,7."


def read_seeds(text: str, first: int) -> list[int]:
    """Parse ``5`` as five seeds from ``first`` on, and ``1,5,7`` as these; nothing if it is neither."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() for word in words):
        return []
    numbers = list(map(int, words))
    return list(range(first, first + numbers[0])) if numbers and "," not in text else numbers


SHOWN = 10
"""Trials of a search that are printed."""


@dataclass(frozen=True, kw_only=True)
class Tuning(Common):
    """What is asked of a search, besides the options of `reverie train`."""

    space: Path = Path()
    """YAML file with the settings to search: `algo.lr: {low: 1e-5, high: 1e-2, log: true}` or
    `algo.batch_size: [32, 64]`."""
    grid: dict[str, Any] = field(default_factory=dict)
    """Try all combinations of these values instead: '{algo.lr: [1e-3, 3e-4], algo.batch_size: [32, 64]}'."""
    trials: int = 20
    """Number of trials of a search in all; the same command with more of them goes on."""
    seeds: str | None = None
    """Train each trial with several seeds, of which its score is the mean: their number, from --seed on, or a list such
    as 1,5,7."""
    jobs: int = 0
    """Runs to train at a time. 0: as many as the CPU cores allow with the threads of each; one on a GPU."""
    prune: bool = True
    """End trials of a search early whose evaluations during training are among the worse."""


@dataclass(frozen=True, kw_only=True)
class TuneCommand:
    """Search for good settings. The base settings are those of `reverie train` with the same options."""

    common: Annotated[Tuning, arg(name="")]
    experiment: Annotated[ExperimentConfig, arg(name="")]


def tune_command(args: list[str]) -> int:
    """Run ``reverie tune``."""
    if {"-h", "--help"} & {*args}:
        parse(Tuning, ["--help"], "tune")
    return train(args, Tuning(**vars(peek(args))), TuneCommand, search)


def search(config: ExperimentConfig, said: Tuning) -> int:
    """Search, print the best trials, of a grid all, and return 0 if all trials that were wanted have ended."""
    if bool(said.grid) == (said.space != Path()):
        return fail("which settings? Pass --space FILE to search, or --grid '{algo.lr: [1e-3, 3e-4]}'.", 2)
    seeds = None if said.seeds is None else read_seeds(said.seeds, config.seed)
    if seeds == []:
        return fail(NO_SEEDS.format(said.seeds), 2)
    space, where = (said.grid, "--grid") if said.grid else (read_yaml(said.space), str(said.space))
    asked = {name: getattr(said, name) for name in ("trials", "jobs", "prune", "run")}
    result = tune_of(config, space, grid=bool(said.grid), seeds=seeds, space_name=where, on=on_ray(said), **asked)
    counts = {state: sum(one.state == state for one in result.trials) for state in ("finished", "pruned", "failed")}
    tell(f"\n{plural(len(result.trials), 'trial')}: {', '.join(f'{n} {state}' for state, n in counts.items() if n)}")
    for one in result.trials[: None if said.grid else SHOWN]:
        score = "-" if one.score is None else f"{one.score:.2f}"
        settings = [f"{name} {x:.4g}" if isinstance(x, float) else f"{name} {x}" for name, x in one.settings.items()]
        print(f"  trial {one.number:<4} {one.state:<10} {score:>10}  {', '.join(settings)}")
    print_files(result.files)
    if (best := result.best) is not None and seeds is None:
        print(f"Train with the best: reverie train {config.name} --config {best.run / 'config.yaml'} --seed 1")
    elif best is not None:
        print(f"Compare them with intervals: reverie compare {result.run}/trial-*/")
    if result.signal is not None:
        tell(f"Continue with the same command and --run {result.run}")
        return 128 + result.signal
    return int(counts["finished"] == 0)
