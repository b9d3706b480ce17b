"""The options of ``reverie train`` and ``tune`` that are no settings of an experiment. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from reverie.algos.table import DEFAULT_ALGORITHM
from reverie.cli.parsing import Positional, TrustOption, iter_flags


@dataclass(frozen=True, kw_only=True)
class CommonOptions(TrustOption):
    """Train an agent, or continue a run. Flags override files, files the preset."""

    algorithm: Annotated[str, Positional("ALGORITHM")] = DEFAULT_ALGORITHM
    """Algorithm; `reverie list` names them all."""
    env: str = ""
    """Environment id in Gymnasium, or `module:Id`. Its suite determines the preset. With --data alone, it is used for
    evaluation; default: the environment named in the dataset. none: no environment; estimate the return from the
    data."""
    envs: int | None = None
    """Number of environments stepped together."""
    data: str | tuple[str, ...] = ""
    """Dataset: a file, folder, glob, run, minari:NAME or ogbench:NAME; or several, in any supported format. No rows are
    collected, unless --experience mixed(0.5) is set, and --env is used for evaluation."""
    human: str = ""
    """Who can take over from the policy while it learns: `page`, a page in the browser; or `module:function` of the
    observation and the policy's action, which returns another action or None."""
    size: str | None = None
    """Size of the networks, such as 12m; `reverie list` names them. None: the preset's."""
    config: tuple[Path, ...] = ()
    """YAML files with settings; --configs selects sections of them. Flags override files, later files override earlier
    files, and files override the preset."""
    configs: tuple[str, ...] = ()
    """Named sections of these files to use instead, in this order, as in `--configs defaults atari debug`. Without
    --config, the files are config/*.yaml."""
    run: Path | None = None
    """Run folder; a run found there is continued with its own settings, which other flags override. None: a new folder
    under runs/."""
    resume: Path | None = None
    """Run to continue: the same as --run, but the run must exist."""
    seeds: str | None = None
    """Number of seeds, or a list such as 1,5,7. A number counts up from --seed. Each seed is a separate run; the scores
    are aggregated. Repeat the command to continue unfinished seeds."""
    jobs: int = 0
    """Seeds to train at a time. 0: as many as the CPU cores allow with the threads of each; one on a GPU."""
    cluster: str = ""
    """`ray`: place learners and actors on the Ray cluster at RAY_ADDRESS, or else on this machine; `ray:HOST:PORT`: on
    the cluster at that address. The run folder must be on storage shared by all nodes."""
    resources: dict[str, float] = field(default_factory=dict)
    """Resources of each learner on the Ray cluster, '{CPU: 4, GPU: 1}'. Default: one core per thread (--threads), and a
    GPU if there is one for each learner or with --device cuda."""
    actor_resources: dict[str, float] = field(default_factory=dict)
    """Resources of each actor on the Ray cluster, '{CPU: 2}'. Default: one core."""
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """How Ray places learners and actors: packed on few nodes, or spread over many."""


@dataclass(frozen=True, kw_only=True)
class TuneOptions(CommonOptions):
    """Search for good settings. The base settings are those of `reverie train` with the same options."""

    space: str | dict[str, Any] = ""
    """The settings to search, or a YAML file with them: '{algo.lr: {low: 1e-5, high: 1e-2, log: true},
    algo.batch_size: [32, 64]}'."""
    grid: dict[str, Any] = field(default_factory=dict)
    """Try all combinations of these values instead: '{algo.lr: [1e-3, 3e-4], algo.batch_size: [32, 64]}'."""
    trials: int = 20
    """Total number of trials of a search; the same command with more trials continues the search."""
    seeds: str | None = None
    """Train each trial with several seeds and average their scores: the number of seeds, counted up from --seed, or a
    list such as 1,5,7."""
    jobs: int = 0
    """Runs to train at a time. 0: as many as the CPU cores allow with the threads of each; one on a GPU."""
    prune: bool = True
    """Stop the worse trials of a search early, by their evaluations during training."""


def parse_common(args: list[str]) -> CommonOptions:
    """Read the arguments that determine the defaults of all other flags, before those are parsed."""
    flags = dict(iter_flags(args))
    first = {name: words[0] for name, words in flags.items() if words}
    return CommonOptions(
        algorithm=args[0] if args and not args[0].startswith("-") else DEFAULT_ALGORITHM,
        env=first.get("env.id", first.get("env", "")),
        size=first.get("size"),
        config=tuple(map(Path, flags.get("config", ()))),
        configs=tuple(flags.get("configs", ())),
        run=Path(run) if (run := first.get("resume", first.get("run"))) else None,
        resume=Path(first["resume"]) if "resume" in first else None,
    )
