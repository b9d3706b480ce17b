"""``reverie data convert | subsample | record | download``: make new datasets."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from reverie.commands.args import Trusting, parse
from reverie.commands.datasets import Source, tell
from reverie.core.errors import ConfigError
from reverie.datasets.formats import Format

if TYPE_CHECKING:  # these import torch, which --help does not need
    from reverie.datasets.reader import Reader

Target = Annotated[Positional[str], arg(metavar="TARGET")]


@dataclass(frozen=True, kw_only=True)
class ConvertCommand(Source):
    """Write a dataset in another format."""

    target: Target
    """A folder that does not exist yet (a file for d4rl), or minari:NAME."""
    to: Format = "minari"
    """Format to write."""


@dataclass(frozen=True, kw_only=True)
class SubsampleCommand(Source):
    """Write a random part of a dataset. The same seed gives the same part."""

    target: Target
    """A folder that does not exist yet, or minari:NAME."""
    fraction: float | None = None
    """Fraction of the steps, such as 0.1."""
    steps: int | None = None
    """Number of steps, in place of a fraction."""
    by: Literal["episode", "step"] = "episode"
    """Draw whole episodes until their steps suffice, or single steps."""
    seed: int = 0
    """Seed of the drawing."""
    to: Format = "minari"
    """Format to write."""


@dataclass(frozen=True, kw_only=True)
class RecordCommand(Trusting):
    """Play with a trained agent and record the episodes as a Minari dataset."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""
    target: Target
    """A folder that does not exist yet, or minari:NAME."""
    episodes: int | None = None
    """Number of episodes."""
    steps: int | None = None
    """Number of env steps, in place of episodes; the last episode is truncated."""
    epsilon: float = 0.0
    """Probability that an action is drawn from the action space in place of the agent's."""
    noise: float = 0.0
    """Standard deviation of Gaussian noise on continuous actions, in units of half their range."""
    mode: Literal["mode", "sample"] = "mode"
    """Take the policy's most likely action, or sample one."""
    checkpoint: Path | None = None
    """Name of a folder in the run's checkpoints/, best, or a path. None: the newest."""
    env: str | None = None
    """Environment to play in, for an agent that was trained without one."""
    device: str = "auto"
    """cpu, cuda, cuda:1, or auto for a GPU if there is one."""
    seed: int = 0
    """Seed of environments and actions."""


@dataclass(frozen=True, kw_only=True)
class DownloadCommand:
    """Download a dataset; an interrupted download is continued."""

    name: Annotated[Positional[str], arg(metavar="NAME")]
    """minari:NAME, such as minari:D4RL/door/human-v2, or rl_unplugged:GAME, such as rl_unplugged:Breakout."""
    run: int = 1
    """RL Unplugged: which of the five runs, 1 to 5."""
    shards: tuple[int, ...] = (0,)
    """RL Unplugged: which of the hundred shards of the run, 0 to 99."""
    folder: Path = Path("datasets/rl_unplugged")
    """RL Unplugged: folder to write to."""
    server: str = ""
    """Server to use in place of the official one."""


def remarks_of(reader: Reader) -> None:
    """Print on stderr what had to be assumed while reading."""
    for remark in reader.remarks():
        print(f"remark   {remark}", file=sys.stderr)


def convert_command(args: list[str]) -> int:
    """Write a dataset in another format."""
    said = parse(ConvertCommand, args, "data convert")
    from reverie.datasets.convert import write

    with said.open() as reader:
        done = write(reader, said.target, said.to)
        remarks_of(reader)
    tell(done)
    return 0


def subsample_command(args: list[str]) -> int:
    """Write a part of a dataset."""
    said = parse(SubsampleCommand, args, "data subsample")
    from reverie.datasets.convert import Share, part, write
    from reverie.datasets.output import check_target

    share = Share(fraction=said.fraction, steps=said.steps, by=said.by, seed=said.seed)
    with said.open() as reader:
        check_target(said.target, said.to)
        done = write(reader, said.target, said.to, part(reader, share))
        remarks_of(reader)
    tell(done)
    return 0


def record_command(args: list[str]) -> int:
    """Play with a trained agent and record it."""
    said = parse(RecordCommand, args, "data record")
    from reverie.agent.loading import load
    from reverie.agent.recording import RecordConfig, record
    from reverie.datasets.output import check_target

    config = RecordConfig(episodes=said.episodes, steps=said.steps, epsilon=said.epsilon, noise=said.noise,
                          actions=said.mode, seed=said.seed)  # fmt: skip
    check_target(said.target, "minari")
    agent = load(said.run, env=said.env, checkpoint=said.checkpoint, device=said.device)
    done = record(agent, said.target, config)
    for remark in done.remarks:
        print(f"remark   {remark}", file=sys.stderr)
    tell(done)
    return 0


def download_command(args: list[str]) -> int:
    """Download a dataset."""
    said = parse(DownloadCommand, args, "data download")
    from reverie.core.files import writing
    from reverie.datasets.download import download_minari, download_shards

    kind, _, name = said.name.partition(":")
    if kind not in ("minari", "rl_unplugged") or not name:
        raise ConfigError(
            f"{said.name}: expected minari:NAME, such as minari:D4RL/door/human-v2, or rl_unplugged:GAME, such as "
            "rl_unplugged:Breakout."
        )
    with downloading() as progress, writing(said.folder):
        if kind == "minari":
            found = [download_minari(name, said.server, progress)]
        else:
            found = download_shards(name, said.run, list(said.shards), said.folder, said.server, progress)
    for path in found:
        print(path)
    return 0


@contextlib.contextmanager
def downloading() -> Iterator[Callable[[str, int, int], None]]:
    """Show the progress of each file, on a terminal. Yields what is told a file's name, its bytes so far and in all."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:

        def tell(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=done, total=total or None)

        yield tell
