"""``reverie estimate``: estimate the return of a trained agent from recorded data alone."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Annotated, Literal, Self

from tyro.conf import arg

from reverie.cli.agent import OfRun
from reverie.cli.main import fail
from reverie.cli.parse import Reading, as_here, parse
from reverie.cli.show import print_files, print_trouble


@dataclass(frozen=True, kw_only=True)
class EstimateCommand(OfRun):
    """Estimate the discounted return of a trained agent from recorded data.

    The method is fitted Q evaluation (FQE); nothing is played.

    Ctrl-C ends its updates; the estimate is then that after those made.
    """

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
    seed: int | None = None
    """Seed of networks and batches. None: derived from that of the run."""
    reading: Annotated[Reading, arg(name="")] = field(default_factory=Reading)


def estimate_command(args: list[str]) -> int:
    """Run ``reverie estimate``."""
    said = parse(EstimateCommand, [as_here(word) for word in args], "estimate")
    data = said.reading.of(said.data, "the data that the run was trained on are read as they were then")
    from reverie.agent.estimate import estimate
    from reverie.core.machine import choose_device  # imports torch

    print_trouble(choose_device(said.device).partition(":")[0])
    names = ("updates", "draws", "discount", "checkpoint", "device", "seed")
    with Watched() as watch:
        options = {name: getattr(said, name) for name in names}
        report = estimate(said.run, data, actions=said.mode, watch=watch, **options)
    print(f"{said.run}, actions: {said.mode}")
    print(report.estimate.words())
    print_files(report.files, said.run)
    if watch.interrupted:
        return fail(f"interrupted: the estimate is that after {watch.made:,} of {said.updates:,} updates", 130)
    return 0


class Watched(contextlib.ExitStack):
    """Follows the updates of an estimate, on a terminal with a progress bar. Ctrl-C ends them.

    Before the first update, and the second time, Ctrl-C ends the command at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: int = 0
        self.interrupted: bool = False
        self._advance: Callable[[int], None] = lambda made: None

    def __enter__(self) -> Self:
        from reverie.run.signals import listening  # imports torch

        self.enter_context(listening(self._stop, [signal.SIGINT]))
        return super().__enter__()

    def __call__(self, made: int, updates: int) -> bool:
        """See ``agent/estimate.py: Watch``."""
        if not self.made and sys.stderr.isatty():  # not before: reading the data has a bar of its own
            self._advance = self.enter_context(bar("estimating", updates))
        self.made = made
        self._advance(made)
        return not self.interrupted

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted or not self.made:
            raise KeyboardInterrupt
        self.interrupted = True


@contextlib.contextmanager
def bar(what: str, total: int, unit: str = "updates") -> Iterator[Callable[[int], None]]:
    """Show a progress bar. Yields a function that is called with the number of units made so far."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as progress:
        task = progress.add_task(what, total=total)
        yield lambda made: progress.update(task, completed=made)
