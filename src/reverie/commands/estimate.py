"""``reverie estimate``: estimate the return of a trained agent from recorded data alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from reverie.commands.args import as_given, fail, parse, print_files, print_trouble
from reverie.commands.datasets import Reading, as_here


@dataclass(frozen=True, kw_only=True)
class EstimateCommand:
    """Estimate the discounted return of a trained agent from recorded data.

    The method is fitted Q evaluation (FQE); nothing is played.
    """

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""
    data: str = ""
    """Recorded data: a file, folder or glob of any format that can be read, or minari:NAME. Empty: the data that the
    run was trained on."""
    updates: int = 20_000
    """Gradient updates of FQE."""
    mode: Literal["mode", "sample"] = "mode"
    """Evaluate the policy's most likely actions, or sampled ones."""
    draws: int = 10
    """Actions per row, if they are sampled; their values are averaged."""
    discount: float | None = None
    """Discount factor gamma. None: the learner's, or 0.99 if it has none."""
    checkpoint: Path | None = None
    """Name of a folder in the run's checkpoints/, best, or a path. None: the newest."""
    device: str = "auto"
    """cpu, cuda, cuda:1, or auto for a GPU if there is one."""
    seed: int | None = None
    """Seed of networks and batches. None: derived from that of the run."""
    reading: Annotated[Reading, arg(name="")] = field(default_factory=Reading)


def estimate_command(args: list[str]) -> int:
    """Run ``reverie estimate``."""
    said = parse(EstimateCommand, [as_here(word) for word in args], "estimate")
    if not said.data and (unused := said.reading.given()):
        return fail(f"{unused} without --data: the data that the run was trained on are read as they were then.", 2)
    from reverie.agent.estimation import estimate
    from reverie.core.machine import choose_device  # imports torch
    from reverie.data.dataset import DatasetConfig

    print_trouble(choose_device(said.device).partition(":")[0])
    report = estimate(
        said.run,
        DatasetConfig(path=said.data, **asdict(said.reading)) if said.data else None,
        updates=said.updates,
        actions=said.mode,
        draws=said.draws,
        discount=said.discount,
        checkpoint=said.checkpoint,
        device=said.device,
        seed=said.seed,
    )
    print(f"{said.run}, actions: {said.mode}")
    print(report.estimate.words())
    print_files(as_given(report.files, said.run))
    return 0
