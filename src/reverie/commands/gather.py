"""``reverie data convert | subsample | record | download``: datasets that are made out of others, or brought here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from reverie.commands.args import parse
from reverie.commands.datasets import Format, Source, tell
from reverie.core.errors import ConfigError

if TYPE_CHECKING:  # torch comes with these, and the help does without
    from reverie.data.readers.base import Reader

Target = Annotated[Positional[str], arg(metavar="TARGET")]


@dataclass(frozen=True, kw_only=True)
class ConvertCommand(Source):
    """Write a dataset in another format."""

    target: Target
    """A folder that does not exist yet (a file for d4rl), or minari:NAME."""
    to: Format = "minari"
    """Which format."""


@dataclass(frozen=True, kw_only=True)
class SubsampleCommand(Source):
    """Write a part of a dataset, the same one for the same seed."""

    target: Target
    """A folder that does not exist yet, or minari:NAME."""
    fraction: float | None = None
    """Which part of its steps, such as 0.1."""
    steps: int | None = None
    """How many steps, in place of a fraction."""
    by: Literal["episode", "step"] = "episode"
    """Whole episodes, until they have as many steps together; or single steps."""
    seed: int = 0
    """Of what is drawn."""
    to: Format = "minari"
    """The format of what is written."""


@dataclass(frozen=True, kw_only=True)
class RecordCommand:
    """Play with a trained agent and record what happens as a Minari dataset."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""
    target: Target
    """A folder that does not exist yet, or minari:NAME."""
    episodes: int | None = None
    """How many."""
    steps: int | None = None
    """How many steps, in place of episodes."""
    epsilon: float = 0.0
    """With this probability an action is drawn from the space in place of the agent's."""
    noise: float = 0.0
    """Standard deviation of what is added to continuous actions, in half of their range."""
    mode: Literal["mode", "sample"] = "mode"
    """Take the policy's most likely action, or draw one."""
    checkpoint: Path | None = None
    """A folder in the run's checkpoints/. None: the newest."""
    env: str | None = None
    """Where to play, for an agent that was trained without an environment."""
    device: str = "auto"
    """cpu, cuda, cuda:1, or auto for a GPU if there is one."""
    seed: int = 0
    """Of environments and actions."""


@dataclass(frozen=True, kw_only=True)
class DownloadCommand:
    """Get a dataset: whole or not at all, going on where a download was cut off."""

    name: Annotated[Positional[str], arg(metavar="NAME")]
    """minari:D4RL/door/human-v2, or rl_unplugged:Breakout."""
    run: int = 1
    """RL Unplugged: which of the five runs."""
    shards: tuple[int, ...] = (0,)
    """RL Unplugged: which of the hundred shards of the run."""
    folder: Path = Path("datasets/rl_unplugged")
    """RL Unplugged: where to."""
    server: str = ""
    """Another server than the official one."""


def remarks_of(reader: Reader) -> None:
    """Say what had to be assumed while reading."""
    for remark in reader.remarks():
        print(f"remark   {remark}", file=sys.stderr)


def convert_command(args: list[str]) -> int:
    """Write a dataset in another format."""
    said = parse(ConvertCommand, args, "data convert")
    from reverie.datasets import write

    with said.open() as reader:
        done = write(reader, said.target, said.to)
        remarks_of(reader)
    tell(done)
    return 0


def subsample_command(args: list[str]) -> int:
    """Write a part of a dataset."""
    said = parse(SubsampleCommand, args, "data subsample")
    from reverie.data.export import fresh_enough
    from reverie.datasets import Share, part, write

    share = Share(fraction=said.fraction, steps=said.steps, by=said.by, seed=said.seed)
    with said.open() as reader:
        fresh_enough(said.target)
        done = write(reader, said.target, said.to, part(reader, share))
        remarks_of(reader)
    tell(done)
    return 0


def record_command(args: list[str]) -> int:
    """Play with a trained agent and record it."""
    said = parse(RecordCommand, args, "data record")
    from reverie.agent.agent import load
    from reverie.agent.recording import RecordConfig, record
    from reverie.data.export import fresh_enough

    config = RecordConfig(episodes=said.episodes, steps=said.steps, epsilon=said.epsilon, noise=said.noise,
                          actions=said.mode, seed=said.seed)  # fmt: skip
    fresh_enough(said.target)
    agent = load(said.run, env=said.env, checkpoint=said.checkpoint, device=said.device)
    done = record(agent, said.target, config)
    for remark in done.remarks:
        print(f"remark   {remark}", file=sys.stderr)
    tell(done)
    return 0


def download_command(args: list[str]) -> int:
    """Get a dataset."""
    said = parse(DownloadCommand, args, "data download")
    from reverie.data.download import download_minari, download_shards
    from reverie.folder import writing

    kind, _, name = said.name.partition(":")
    if kind not in ("minari", "rl_unplugged") or not name:
        raise ConfigError(
            f"{said.name}: expected minari:NAME, such as minari:D4RL/door/human-v2, or rl_unplugged:GAME."
        )
    with downloading() as progress, writing(said.folder):
        if kind == "minari":
            found = [download_minari(name, said.server, progress)]
        else:
            found = download_shards(name, said.run, list(said.shards), said.folder, said.server, progress)
    for path in found:
        print(path)
    return 0


class downloading:
    """Shows how far files are, if there is a terminal."""

    def __enter__(self) -> Callable[[str, int, int], None]:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        console = Console(stderr=True)
        self.bars = Progress(*columns, console=console, disable=not console.is_terminal)
        self.tasks: dict[str, int] = {}
        self.bars.start()
        return self.tell

    def tell(self, name: str, done: int, total: int) -> None:
        """A file is so far."""
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(name)
        self.bars.update(self.tasks[name], completed=done, total=total or None)  # type: ignore[arg-type]  # an id

    def __exit__(self, *error: object) -> None:
        self.bars.stop()
