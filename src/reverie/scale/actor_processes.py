"""Where actors live: as processes of this machine here, on the nodes of a Ray cluster in ``ray_actors.py``."""

from __future__ import annotations

import multiprocessing
import selectors
import time
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any, Protocol

from gymnasium.vector.utils import CloudpickleWrapper

from reverie.core.columns import Column
from reverie.scale.actors import Work, act
from reverie.scale.wire import Block, Board, Failure, Wire

PATIENCE = 5.0
"""Seconds that actors have to end."""
SHARE = 0.05
"""Part of a learner's time that publishing weights may take."""


class Link(Protocol):
    """The learner's connection with one process of an actor."""

    @property
    def waiting(self) -> int:
        """Number of blocks that wait."""

    def receive(self) -> Block | Failure:
        """Return the next message. EOFError or OSError: the actor is gone."""

    def free(self) -> None:
        """Let the actor use the memory of the block received last again."""

    def sign(self, name: str, value: int) -> None:
        """Tell the actor a number of ``wire.py: Signs``."""

    def end(self, deadline: float) -> str:
        """End the actor, by force at the ``deadline`` of ``time.monotonic``; return how it has ended. Once only."""


class Home(Protocol):
    """Where the actors of a learner live."""

    def start(self, work: Callable[[], Work], number: int) -> Link:
        """Start actor ``number``."""

    def ready(self, seconds: float) -> Iterable[Link]:
        """Return those with a message, as soon as there is one, or after so many ``seconds``."""

    def publish(self, data: bytes, version: int) -> None:
        """Give all actors these weights."""


class Processes:
    """Processes beside the learner: a :class:`Home`."""

    def __init__(self, columns: Mapping[str, Column], envs: int) -> None:
        """``envs``: environments of each actor, whose rows have these ``columns``."""
        self.columns = columns
        self.envs = envs
        self.selector: selectors.DefaultSelector = selectors.DefaultSelector()
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self.context: Any = multiprocessing.get_context(method)
        self.board: Board | None = None  # not before the weights are those that the run begins with

    def start(self, work: Callable[[], Work], number: int) -> Link:
        return Child(self, work)

    def ready(self, seconds: float) -> Iterable[Link]:
        return [key.data for key, _ in self.selector.select(seconds)]

    def publish(self, data: bytes, version: int) -> None:
        self.board = self.board or Board(self.context, len(data))
        self.board.publish(data, version)


class Child(Wire):
    """A process of this machine: a :class:`Link`."""

    def __init__(self, home: Processes, work: Callable[[], Work]) -> None:
        super().__init__(home.context, home.columns, home.envs)
        made: Any = work  # Gymnasium's wrapper is meant for environments
        self.process: Any = home.context.Process(target=act, args=(CloudpickleWrapper(made), self.port, home.board))
        self.process.start()
        self.far.close()
        self.kill: Finalize[None] = Finalize(self, kill, (self.process, self.pipe), exitpriority=0)
        self.selector: selectors.DefaultSelector = home.selector
        self.selector.register(self.pipe, selectors.EVENT_READ, self)

    def end(self, deadline: float) -> str:
        self.selector.unregister(self.pipe)
        self.process.join(max(0.0, deadline - time.monotonic()))
        self.kill()
        return f"its process died (exit code {self.process.exitcode}); its output is above, if any"


def kill(process: Any, pipe: Connection) -> None:
    """End a process at once."""
    pipe.close()
    process.kill()
    process.join()
