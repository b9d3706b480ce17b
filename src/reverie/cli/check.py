"""``reverie check-env``: the faults of an environment, how learners see it, and a command to start with."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from reverie.algos.table import DEFAULT_ALGORITHM
from reverie.cli.main import print_error
from reverie.cli.output import print_sections
from reverie.cli.parsing import Positional, TrustOption, iter_flags, options_for, parse
from reverie.core.errors import short_repr
from reverie.core.logger import wrap_words
from reverie.core.progress import progress_bars
from reverie.core.terminal import show
from reverie.core.version import version
from reverie.envs.config import EnvConfig, Mark, marked

if TYPE_CHECKING:  # it imports torch, which --help does not need
    from reverie.core.specs import ObsPart
    from reverie.envs.check import EnvReport


@dataclass(frozen=True, kw_only=True)
class CheckEnvCommand(TrustOption):
    """Play random episodes; report faults, and how learners see the spaces.

    Exit code 1: there are faults, so that training would fail or learn from wrong data.
    """

    id: Annotated[str, Positional("ENV")]
    """Environment: an id in Gymnasium's registry, or `module:Id`."""
    algorithm: str | None = None
    """Algorithm to train; it determines the preset. None: an algorithm that suits the spaces."""
    config: tuple[Path, ...] = ()
    """YAML files with settings, as for `reverie train`."""
    steps: int = 2_000
    """Steps to play, for at most about 10 seconds, or until the first episode ends if that is later."""
    worker: bool = True
    """Also play in a worker process."""
    json: Path | None = None
    """Also write the report to this JSON file."""
    env: EnvConfig = field(default_factory=EnvConfig)


def check_env_command(args: list[str]) -> int:
    """Run ``reverie check-env``, with the settings that ``reverie train`` would have."""
    if {"-h", "--help"} & {*args}:
        parse(args, "check-env", CheckEnvCommand)
    if not args or args[0].startswith("-"):
        return print_error("no environment given. Pass it as the first argument: `reverie check-env CartPole-v1`.", 2)
    if ":" not in args[0]:
        from reverie.envs.suites import check_id  # imports Gymnasium

        check_id(args[0])
    from reverie.api import check_env  # imports torch
    from reverie.experiment.settings import Request, merge_layers

    flags = dict(iter_flags(args))
    algorithm = next(iter(flags.get("algorithm", ())), DEFAULT_ALGORITHM)
    request = Request(algorithm=algorithm, env=args[0], files=[Path(text) for text in flags.get("config", ())])
    usual = CheckEnvCommand(id=args[0], env=merge_layers(request).env)
    (options,) = parse(args, "check-env", usual)
    show(f"checking {options.id} ...", flush=True)
    env = {"env": options.id, "env_options": options.env.merge({"id": options.id})}
    with progress_bars("steps") as show_progress:
        report = check_env(
            **options_for(check_env, options) | env,
            watch=lambda num_done: show_progress("playing", num_done, options.steps),
        )
    _print_report(report, options.env)
    if report.starts:
        env_flags = [(flag, words) for flag, words in flags.items() if flag == "config" or flag.startswith("env.")]
        words = [text for flag, words in env_flags for text in (f"--{flag}", *words)]
        show("\nStart with:")
        for name, steps, reason in report.starts:
            command = ["reverie", "train", name, "--env", options.id, *words, "--steps", str(steps)]
            show(wrap_words(f"  {shlex.join(command)}" + (f"\n    {reason}" if reason else "")))
    if options.json is not None:
        from reverie.core.files import disk_errors_as_run_error, write_json

        with disk_errors_as_run_error(options.json):
            write_json(options.json, {"reverie": version(), "ok": report.ok, **asdict(report)})
    return 0 if report.ok else 1


def _print_report(report: EnvReport, settings: EnvConfig) -> None:
    """Print how learners see an environment, its statistics, the algorithms that support it, and the findings."""
    actions = {} if report.action_spec is None else report.action_spec.parts
    changed = settings.changed({*vars(settings)} - {*marked(Mark.COPIES), "id"})
    sections = {
        "settings": sorted((name, str(value)) for name, value in changed.items()),
        "learners see": [(key, _format_obs(key, x, report.measurements)) for key, x in report.obs_spec.items()],
        "learners choose": [(key, f"{x.kind} {short_repr(x.classes or (x.size,))}") for key, x in actions.items()],
        "environment": [
            (name.replace("_", " "), _format_fact(value))
            for name, value in report.measurements.items()
            if not isinstance(value, dict)
        ],
        "algorithms": [(name, ", ".join(names)) for name, names in report.algorithms.items()],
    }
    print_sections(sections)
    for finding in report.findings:
        show(wrap_words(f"{finding.severity}: {finding.text.rstrip('.')}."))
    if all(finding.severity == "note" for finding in report.findings):
        show("no faults, no warnings")


def _format_obs(key: str, part: ObsPart, measurements: Mapping[str, Any]) -> str:
    """Describe an observation; of a vector also the least and largest value, and how large its numbers usually are."""
    text = f"{part.kind} {short_repr(part.classes or part.shape)}"
    if key not in measurements.get("observation_ranges", ()):
        return text
    low, high, small, large = map(
        _format_fact, (*measurements["observation_ranges"][key], *measurements["observation_sizes"][key])
    )
    sizes = f"size {large}" if small == large else f"sizes {small} to {large}"
    return f"{text}, values {low} to {high}, {sizes}"


def _format_fact(value: object) -> str:
    """Format a fact; a list of numbers as its range and mean."""
    if isinstance(value, list) and value:
        return f"{_format_fact(min(value))} to {_format_fact(max(value))}, mean {_format_fact(sum(value) / len(value))}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value or "none")
