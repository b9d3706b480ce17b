"""``reverie estimate``: what a trained agent would earn, from recorded data alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from reverie.commands.args import parse, print_files, print_trouble


@dataclass(frozen=True, kw_only=True)
class EstimateCommand:
    """Estimate what a trained agent would earn; nothing is played."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""
    data: str = ""
    """Recorded data: a file, folder or glob of any format that can be read, or minari:NAME. Those that the run was
    trained on unless given."""
    updates: int = 20_000
    """Updates of fitted Q evaluation."""
    mode: Literal["mode", "sample"] = "mode"
    """Take the policy's most likely action, or draw some."""
    draws: int = 10
    """How many actions are drawn in each row."""
    discount: float | None = None
    """Gamma. None: the learner's, or 0.99 if it has none."""
    columns: dict[str, str | tuple[str, ...]] = field(default_factory=dict)
    """Tables: which column is what, '{obs: state, action: action, reward: reward, terminal: done}'; columns of numbers
    that are one vector are a list, '{obs: [x, y], ...}'."""
    time_limit: int | None = None
    """Steps after which episodes end, for files that do not say where their time ran out."""
    partial: bool = False
    """Use what can be read of files that were cut off in the middle."""
    checkpoint: Path | None = None
    """A folder in the run's checkpoints/. None: the newest."""
    device: str = "auto"
    """cpu, cuda, cuda:1, or auto for a GPU if there is one."""
    seed: int | None = None
    """Seed of networks and batches. None: follows from that of the run."""


def estimate_command(args: list[str]) -> int:
    """``reverie estimate``."""
    said = parse(EstimateCommand, args, "estimate")
    from reverie.agent.estimation import estimate
    from reverie.core.machine import choose_device  # torch comes with it
    from reverie.data.dataset import DatasetConfig

    reading = {"columns": said.columns, "time_limit": said.time_limit, "partial": said.partial}
    print_trouble(choose_device(said.device).partition(":")[0])
    report = estimate(
        said.run,
        DatasetConfig(path=said.data, **reading) if said.data else None,
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
    print_files(report.files)
    return 0
