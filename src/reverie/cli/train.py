"""``reverie train`` and ``tune``: preset or existing run, then YAML files, then flags, one for every setting."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from reverie.algos.table import same_algorithm
from reverie.api import choose_search, train_config
from reverie.cli.help import help_screen
from reverie.cli.main import print_error
from reverie.cli.output import print_files, relative_like, score_line
from reverie.cli.parsing import exit_on_wrong_usage, iter_flags, parse, parse_values, remove_flags
from reverie.cli.train_options import CommonOptions, TuneOptions, parse_common
from reverie.core.errors import ConfigError, RunError, count_noun
from reverie.core.logger import print_line, silence_logger
from reverie.core.terminal import show
from reverie.distributed.launch import check_divisible, is_launched, launch_learners, launcher_rank
from reverie.distributed.ray_learners import ClusterRequest, train_on_ray
from reverie.distributed.seeds import run_seeds
from reverie.distributed.tune import run_tuning
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.dataset_env import complete, find_env_id
from reverie.experiment.settings import Request, merge_layers, named_sections
from reverie.log.aggregate import format_seeds_table
from reverie.run.callback import import_callback
from reverie.run.folder import RunFolder, new_path, read_saved_config

HELP = {"-h", "--help", "--help-all"}
SHORT = ("envs", "data", "human")
"""Options that are short names of settings."""


def parse_and_train(args: list[str], options: CommonOptions, end: Callable[..., int] | None = None) -> int:
    """Parse ``args``, train, and print the result.

    ``options``: those of ``args`` that determine the defaults of all others. ``end``: called with the settings instead
    of training, by ``reverie tune``.
    """
    has_algorithm, name = bool(args) and not args[0].startswith("-"), "train" if end is None else "tune"
    if misplaced := _misplaced_word(args):
        return print_error(misplaced, 2)
    options = with_run_algorithm(options, has_algorithm=has_algorithm)
    if options.configs:
        options = replace(options, config=named_sections(options.configs, options.config))
    request = Request(
        algorithm=options.algorithm, env=options.env or None, size=options.size, files=options.config, run=options.run
    )
    for text in dict(iter_flags(args)).get("callbacks", ()):  # named by the user, so the run may name them too
        import_callback(text)
    words = [text for text in args if text not in HELP]
    given, settings = parse_values(words, name, options, merge_layers(request))
    if given.get("algorithm", options.algorithm).replace("-", "_") != options.algorithm.replace("-", "_"):
        return print_error("no algorithm given. Pass it as the first argument: reverie train ALGORITHM [OPTIONS]", 2)
    common = replace(options, **{**given, "config": options.config, "run": options.run, "algorithm": options.algorithm})
    preset, short = settings.pop("preset", None), {x: given[x] for x in SHORT if given.get(x) is not None}
    request = replace(request, preset=preset, overrides=settings | short)
    with exit_on_wrong_usage():
        config = merge_layers(request, find_env_id)
    if "--help-all" in args:
        env, person = config.env, config.human.person
        common = replace(common, env=env.id, envs=env.num, data=config.data.path, human=person)
        parse(["--help"], name, common, config)
    if HELP & {*args}:
        show(help_screen(common, config, has_algorithm=has_algorithm))
        return 0
    # Only the first learner prints this, not the process that starts the learners; trials of a search start their own.
    is_single = config.learners == 1 and not common.cluster
    runs_children = end is not None or common.seeds is not None  # runs, that start their own learners
    starts = not runs_children and not is_single and not is_launched()
    with silence_logger(starts or launcher_rank() > 0):
        config = complete(config, request)
    if refused := _placement_error(common, config.learners):
        return print_error(refused, 2)
    if starts:
        return _run_on_ray(args, config, common) if common.cluster else launch_learners(["train", *args], config)
    end = end or (_train_one if common.seeds is None else _train_several_seeds)
    return end(config, common)


def _misplaced_word(args: list[str]) -> str:
    """Return what to write instead of an environment without its flag, or of an algorithm with one; "" if neither."""
    flags = dict(iter_flags(args))
    if args[1:] and not args[0].startswith("-") and not args[1].startswith("-"):
        return f"'{args[1]}' after the algorithm: for an environment, pass --env {args[1]}."
    if name := " ".join(flags.get("algo", flags.get("algorithm", ()))):
        return f"an algorithm comes first: reverie train {name} [OPTIONS]"
    return ""


def _placement_error(options: CommonOptions, learners: int) -> str:
    """Return why the learners cannot be placed as requested; "" if they can."""
    if options.cluster and options.cluster.partition(":")[0] != "ray":
        return f"--cluster {options.cluster}: expected ray, or ray:HOST:PORT."
    if (options.resources or options.actor_resources) and not options.cluster:
        return "--resources without --cluster ray: only Ray places learners and actors by resources."
    if options.seeds is not None and learners > 1:
        return f"--seeds {options.seeds} with --learners {learners} is not supported: train the seeds one by one."
    return ""


def _run_on_ray(args: list[str], config: ExperimentConfig, options: CommonOptions) -> int:
    """Train on a Ray cluster; return the exit code."""
    check_divisible(config.merge({"device": "cpu"}), config.learners, config.learners)
    run = (options.run or new_path(config.task_label, config.name)).absolute()
    train_args = [
        "train",
        *remove_flags(args, {"cluster", "resources", "actor-resources", "placement-strategy", "run", "resume"}),
    ]
    return train_on_ray(train_args, config, run, _cluster_request(options) or ClusterRequest())


def _cluster_request(options: CommonOptions) -> ClusterRequest | None:
    """Return the options for Ray; None if there are none."""
    if not options.cluster:
        return None
    address = options.cluster.partition(":")[2]
    return ClusterRequest(
        address=address, learner=options.resources, actor=options.actor_resources, strategy=options.placement_strategy
    )


def with_run_algorithm(options: CommonOptions, *, has_algorithm: bool) -> CommonOptions:
    """Return ``options`` with the algorithm of an existing run, if they continue one."""
    if options.run is None or not (options.resume or RunFolder.from_path(options.run).config.is_file()):
        return options
    saved = read_saved_config(options.run)
    if has_algorithm and not same_algorithm(options.algorithm, saved.algorithm):
        raise RunError(f"{options.run} is a run of {saved.algorithm}, not of {options.algorithm}. Omit the algorithm.")
    if saved.custom:
        listed = ", ".join(f"{key_path} = {class_name}" for key_path, class_name in saved.custom.items())
        raise RunError(
            f"{options.run} was trained with {listed}, a Python object that no flag can set. Continue the run in "
            "Python: reverie.train(..., run=...)."
        )
    return replace(options, algorithm=saved.algorithm)


def _train_one(config: ExperimentConfig, options: CommonOptions) -> int:
    """Train, print the result, and return 0, or the code of the signal that ended the run."""
    result = train_config(config, run=options.run)
    if launcher_rank():  # the first learner reports how the run ended
        return 0 if result.signal is None else 128 + result.signal
    position = "" if config.offline else f"at env step {result.env_steps:,} "
    stop_reason = f", by {result.stop_reason}" if result.stop_reason else ""
    print_line(f"\n{result.reason} {position}after {count_noun(result.updates, 'update')}{stop_reason}")
    if result.evaluation is not None:
        show(score_line(result.evaluation))
    if result.estimate is not None:
        show(result.estimate.format())
    for name, value in result.heldout.items():
        show(f"  {name} {value:.4g}")
    print_files(result.files, options.run or Path())
    if result.signal is None:
        return 0
    print_line(f"Continue with: reverie train --resume {shlex.quote(str(relative_like(result.run, options.run)))}")
    return 128 + result.signal


def _train_several_seeds(config: ExperimentConfig, options: CommonOptions) -> int:
    """Train several seeds and print the result; return 0 if all have finished."""
    seeds = read_seeds(options.seeds or "", config.seed)
    result = run_seeds(config, seeds, jobs=options.jobs, run=options.run, request=_cluster_request(options))
    unfinished = [seed for seed in result.seeds if seed.state != "finished"]
    print_line(f"\n{len(seeds) - len(unfinished)} of {count_noun(len(seeds), 'seed')} finished")
    if result.aggregate is not None:
        show(f"\n{format_seeds_table(result.aggregate)}\n")
    for seed in unfinished:
        show(f"seed {seed.seed}: {seed.note or seed.state}" + (f"; see {seed.log}" if seed.log.exists() else ""))
    if unfinished:
        show(f"Run the same command again, with --run {result.run}, to continue the unfinished seeds.")
    print_files(result.files)
    return 128 + result.signal if result.signal is not None else int(bool(unfinished))


def read_seeds(text: str, first: int) -> list[int]:
    """Parse ``5`` as five seeds counted up from ``first``, and ``1,5,7`` as a list; exit if it is neither."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    numbers = [int(part) for part in parts if part.isdecimal()]
    seeds = numbers if "," in text else [*range(first, first + sum(numbers))]
    with exit_on_wrong_usage():
        if len(numbers) < len(parts) or not seeds:
            raise ConfigError(f"seeds = {text}: expected a number of seeds such as 5, or a list such as 1,5,7.")
    return seeds


SHOWN = 10
"""Number of trials of a search that are printed."""


def tune_command(args: list[str]) -> int:
    """Run ``reverie tune``."""
    if {"-h", "--help"} & {*args}:
        parse(["--help"], "tune", TuneOptions)
    return parse_and_train(args, TuneOptions(**vars(parse_common(args))), run_search)


def run_search(config: ExperimentConfig, options: TuneOptions) -> int:
    """Search, print the best trials (all trials of a grid), and return 0 if all requested trials have ended."""
    with exit_on_wrong_usage():
        space, space_name = choose_search(options.space or None, options.grid or None)
    seeds = None if options.seeds is None else read_seeds(options.seeds, config.seed)
    result = run_tuning(
        config, space, grid=bool(options.grid), space_name=space_name, trials=options.trials, seeds=seeds,
        jobs=options.jobs, prune=options.prune, run=options.run, request=_cluster_request(options),
    )  # fmt: skip
    counts = {state: sum(trial.state == state for trial in result.trials) for state in ("finished", "pruned", "failed")}
    print_line(
        f"\n{count_noun(len(result.trials), 'trial')}: {', '.join(f'{n} {state}' for state, n in counts.items() if n)}"
    )
    for trial in result.trials[: None if options.grid else SHOWN]:
        score = "-" if trial.score is None else f"{trial.score:.2f}"
        settings = [f"{name} {x:.4g}" if isinstance(x, float) else f"{name} {x}" for name, x in trial.settings.items()]
        show(f"  trial {trial.number:<4} {trial.state:<10} {score:>10}  {', '.join(settings)}")
    print_files(result.files)
    if (best := result.best) is not None and seeds is None:
        show(f"Train with the best: reverie train {config.name} --config {best.run / 'config.yaml'} --seed 1")
    elif best is not None:
        show(f"Compare them with intervals: reverie compare {result.run}/trial-*/")
    if result.signal is not None:
        print_line(f"Continue with the same command and --run {result.run}")
        return 128 + result.signal
    return int(counts["finished"] == 0)
