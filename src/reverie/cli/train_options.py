"""What a call of ``reverie train`` asks for, read before PyTorch is imported: mistakes in names are told at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from reverie.cli.parsing import TrustOption, iter_flags, str_or_tuple

DEFAULT_ALGORITHM = "dreamer_v3"


@dataclass(frozen=True, kw_only=True)
class CommonOptions(TrustOption):
    """The most common options."""

    algorithm: Annotated[Positional[str], arg(metavar="ALGORITHM")] = DEFAULT_ALGORITHM
    """Algorithm; `reverie list` names them all."""
    env: str = ""
    """Id of the environment in Gymnasium, or `module:Id`. It chooses the preset of its suite. With --data alone
    it is for evaluations, by default the one that the data name; none: the return is estimated from the data."""
    envs: int = 1
    """Number of environments stepped together."""
    data: str | tuple[str, ...] = ""
    """Recorded data: a file, folder, glob, run or minari:NAME; or several, in any format that can be read. Nothing is
    collected, unless --experience mixed(0.5) says so; --env is for evaluations then."""
    size: str | None = None
    """Size of the networks, such as 12m; `reverie list` names them. None: the preset's."""
    config: tuple[Path, ...] = ()
    """YAML files with settings; --configs takes sections of them. They override the preset, later files override
    earlier ones, and flags override all."""
    configs: tuple[str, ...] = ()
    """Named sections of these files to use instead, in this order, as in `--configs defaults atari debug`. Without
    --config, the files are config/*.yaml."""
    run: Path | None = None
    """Run folder; a run found there goes on. It keeps its own settings, which other flags override. None: a new one
    under runs/."""
    resume: Path | None = None
    """Run to continue: another name of --run, for a run that must be there."""
    seeds: str | None = None
    """Number of seeds, or a list such as 1,5,7. A number counts from --seed on. Each seed is a run of its own;
    their scores are aggregated. The same command again continues those that have not finished."""
    jobs: int = 0
    """Seeds to train at a time. 0: as many as the CPU cores allow with the threads of each; one on a GPU."""
    cluster: str = ""
    """`ray`: place learners and actors on a Ray cluster, that of RAY_ADDRESS or of this machine; `ray:HOST:PORT`: on
    that one. The run folder must be on storage that all nodes see."""
    resources: dict[str, float] = field(default_factory=dict)
    """Resources of each learner on the Ray cluster, '{CPU: 4, GPU: 1}'. By default a core for each of --threads, and a
    GPU if there is one for each learner or --device cuda."""
    actor_resources: dict[str, float] = field(default_factory=dict)
    """Resources of each actor on the Ray cluster, '{CPU: 2}'. By default a core."""
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """How Ray places learners and actors: on few nodes, or spread over many."""


def parse_common(args: list[str]) -> CommonOptions:
    """Read the arguments that decide the defaults of all other flags, before those can be parsed."""
    flags = dict(iter_flags(args))
    first = {name: words[0] for name, words in flags.items() if words}
    return CommonOptions(
        algorithm=args[0] if args and not args[0].startswith("-") else DEFAULT_ALGORITHM,
        env=first.get("env.id", first.get("env", "")),
        data=str_or_tuple(flags.get("data.path", flags.get("data", []))),
        size=first.get("size"),
        config=tuple(map(Path, flags.get("config", ()))),
        configs=tuple(flags.get("configs", ())),
        run=Path(run) if (run := first.get("resume", first.get("run"))) else None,
        resume=Path(first["resume"]) if "resume" in first else None,
    )
