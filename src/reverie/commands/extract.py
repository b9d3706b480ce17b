"""``reverie extract``: write what the world model makes of each recorded row."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from reverie.commands.args import Trusting, fail, parse, print_trouble
from reverie.commands.data import Reading, as_here
from reverie.core.words import plural


@dataclass(frozen=True, kw_only=True)
class ExtractCommand(Trusting):
    """Write a world model's states and predictions of recorded rows."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""
    out: Path
    """What is written: a Zarr group, NAME.zarr, for any amount of data; or NAME.npz, which is held in memory."""
    data: str = ""
    """Recorded data: a file, folder or glob of any format that can be read, or minari:NAME. Empty: the rows that the
    run collected, or the data that it was trained on."""
    checkpoint: Path | None = None
    """Name of a folder in the run's checkpoints/, best, or a path. None: the newest."""
    device: str = "auto"
    """cpu, cuda, cuda:1, or auto for a GPU if there is one."""
    seed: int | None = None
    """Seed of the states, which are sampled. None: derived from that of the run."""
    overwrite: bool = False
    """Replace an earlier extraction of that name."""
    reading: Annotated[Reading, arg(name="")] = field(default_factory=Reading)


def extract_command(args: list[str]) -> int:
    """Run ``reverie extract``."""
    said = parse(ExtractCommand, [as_here(word) for word in args], "extract")
    if not said.data and (unused := said.reading.given()):
        return fail(f"{unused} without --data: the run's own rows are read as they were written.", 2)
    from reverie.agent.extract import extract
    from reverie.core.machine import choose_device
    from reverie.datasets.dataset import DatasetConfig

    print_trouble(choose_device(said.device).partition(":")[0])
    done = extract(
        said.run,
        out=said.out,
        data=DatasetConfig(path=said.data, **asdict(said.reading)) if said.data else None,
        checkpoint=said.checkpoint,
        device=said.device,
        seed=said.seed,
        overwrite=said.overwrite,
    )
    about = done.manifest
    size = f"{plural(about['rows'], 'row')} in {plural(about['episodes'], 'episode')}"
    print(f"{about['checkpoint']} on {about['data']}: {size}")
    width = max(map(len, about["arrays"]), default=0)
    for name, one in about["arrays"].items():
        print(f"  {name:<{width}}  {one['dtype']:<7} {one['shape']!s:<20} {one['unit']}")
    print(f"  written to {done.path}")
    return 0
