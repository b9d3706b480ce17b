"""Actors on the nodes of a Ray cluster: rows are sent through Ray's object store, weights as safetensors.

A ``RayActor`` is a Ray actor that runs an actor of the run in a thread: it is the actor's connection and weight board,
and answers the learner. A learner requests the next block from each of its Ray actors, and receives it as soon as there
is one.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from reverie.core.columns import ColumnSpec
from reverie.core.logger import logger
from reverie.core.version import version
from reverie.distributed.actor_connection import (
    MAX_SPINS,
    NO_STEP_LIMIT,
    POLL_SECONDS,
    ActorSignals,
    ActorStop,
    Failure,
    RowBlock,
    Rows,
    num_slots,
)
from reverie.distributed.actors import ActorTask, run_actor
from reverie.distributed.local_actors import PUBLISH_TIME_SHARE
from reverie.distributed.ray_learners import PLACEMENT_VAR, connect, ray_options
from reverie.run.episodes import Episodes

SIGNAL_INTERVAL = 0.01
"""Minimum seconds between two updates of the actors' step limits."""
LATE_SECONDS = 60.0
"""Seconds after which the user is informed that an actor has not started."""
PLACE_INTERVAL = 2.0
"""Seconds between two attempts to place a Ray actor."""


class RayActor:
    """An actor as a Ray actor. Ray calls its methods in threads."""

    def __init__(self) -> None:
        self.signs: ActorSignals = ActorSignals(0, 0, 0, 0, 0)
        self.weights: tuple[int, bytes] = (-1, b"")
        self.sent: queue.Queue[RowBlock | Failure] = queue.Queue()

    def begin(self, work: Callable[[], ActorTask], columns: Mapping[str, ColumnSpec], envs: int, expected: str) -> str:
        """Start acting; return the address of this node. ``expected``: the learner's version of reverie."""
        import ray.util

        if expected != version():
            raise RuntimeError(
                f"its node has reverie {version()}, but the learner's node has {expected}: install the same version."
            )
        self.columns = columns
        self.envs = envs
        self.slots: int = num_slots(columns, envs)
        self.thread: threading.Thread = threading.Thread(target=run_actor, args=(work, self, self), daemon=True)
        self.thread.start()
        return str(ray.util.get_node_ip_address())

    def next(self) -> tuple[RowBlock | Failure, int]:
        """Return the next message, and the number of waiting messages."""
        return self.sent.get(), self.sent.qsize()

    def set_signals(self, signs: Sequence[int]) -> None:
        """Set the learner's signals."""
        self.signs = ActorSignals(*signs)

    def adopt(self, number: int, data: bytes) -> None:
        """Set the weights and their version."""
        self.weights = (number, data)

    def over(self) -> None:
        """Wait until the actor has ended."""
        self.thread.join()

    # ----------------------------- what the actor sees: ``actor_connection.py: ActorConnection``, and a board

    def check(self) -> ActorSignals:
        if self.signs.stop:
            raise ActorStop
        return self.signs

    def next_block(self) -> Rows:
        while self.sent.qsize() >= self.slots:
            self.check()
            time.sleep(POLL_SECONDS)
        return {name: np.empty((self.envs, MAX_SPINS, *x.shape), x.dtype) for name, x in self.columns.items()}

    def send(self, rows: Rows, turns: int, number: int, episodes: Episodes, restarts: int) -> None:
        self.sent.put(RowBlock({name: x[:, :turns] for name, x in rows.items()}, number, episodes, restarts))

    def fail(self, failure: Failure) -> None:
        self.sent.put(failure)

    def read(self, known_version: int) -> tuple[int, bytes] | None:
        newest = self.weights
        return None if newest[0] == known_version or not newest[1] else newest


class RayActors:
    """The equivalent of ``LocalActors`` on a Ray cluster: places actors in the bundles created for them."""

    def __init__(self, columns: Mapping[str, ColumnSpec], envs: int) -> None:
        """``envs``: environments of each actor, whose rows have these ``columns``."""
        self.columns = columns
        self.envs = envs
        self.places: dict[str, Any] = json.loads(os.environ[PLACEMENT_VAR])
        self.ray: Any = connect(self.places["address"], self.places["namespace"])
        self.group: Any = self.ray.util.get_placement_group(self.places["group"])
        self.newest: tuple[int, Any] = (-1, None)
        self.links: list[RayActorConnection] = []
        self.due: float = 0.0

    def start(self, work: Callable[[], ActorTask], number: int) -> RayActorConnection:
        self.links.append(RayActorConnection(self, work, number))
        return self.links[-1]

    def ready(self, seconds: float) -> Iterable[RayActorConnection]:
        self.send_signals(seconds)
        links = {link.coming: link for link in self.links if link.is_pending()}
        if not links:
            time.sleep(seconds)
            return []
        if seconds:
            self.ray.wait(list(links), timeout=seconds)
        done, _ = self.ray.wait(list(links), num_returns=len(links), timeout=0)
        return [links[reference] for reference in done if links[reference].has_message()]

    def publish(self, data: bytes, number: int) -> None:
        """Send these weights to all actors; each node gets one copy, through Ray's object store."""
        self.newest = number, self.ray.put(data)
        for link in self.links:
            link.adopt()

    def send_signals(self, seconds: float) -> None:
        """Send the signals to the actors, unless they were sent recently; wait for it if there is time."""
        start = time.monotonic()
        if start < self.due and seconds:
            time.sleep(min(self.due - start, seconds))
            start = time.monotonic()
        if start >= self.due:
            for link in self.links:
                link.send_signals()
            self.due = start + max(SIGNAL_INTERVAL, (time.monotonic() - start) / PUBLISH_TIME_SHARE)


class RayActorConnection:
    """The equivalent of ``local_actors.py: LocalActorConnection`` for a Ray actor."""

    def __init__(self, home: RayActors, work: Callable[[], ActorTask], number: int) -> None:
        self.home = home
        self.work = work
        self.number = number
        self.signs: ActorSignals = ActorSignals(0, 0, 0, 0, 0)
        self.signals_sent: bool = False
        self.waiting: int = 0
        self.node: str = ""
        self.since: float = time.monotonic()
        self.create()

    def create(self) -> None:
        """Request the Ray actor, which is created as soon as there are resources."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        home = self.home
        bundle = PlacementGroupSchedulingStrategy(home.group, home.places["first"] + self.number)
        actor_class = home.ray.remote(
            **ray_options(home.places["each"]), max_concurrency=4, scheduling_strategy=bundle
        )(RayActor)
        self.post: Any = actor_class.remote()
        self.tried: float = time.monotonic()
        self.coming: Any = self.post.begin.remote(self.work, home.columns, home.envs, version())

    def is_pending(self) -> bool:
        """Return whether an answer is pending; create the Ray actor if it does not exist."""
        if self.coming is None and time.monotonic() > self.tried + PLACE_INTERVAL:
            self.create()
        return self.coming is not None

    def has_message(self) -> bool:
        """Return whether a message has arrived, other than the confirmation of the start."""
        if self.node:
            return True
        try:
            self.node = self.home.ray.get(self.coming)
        except self.home.ray.exceptions.RayTaskError:
            return True
        except self.home.ray.exceptions.RayError:  # Ray has not yet noticed that the node is lost
            self.coming = None
            return False
        self.coming = self.post.next.remote()
        self.adopt()
        return False

    def adopt(self) -> None:
        """Send the newest weights to the actor, if it has started."""
        if self.node and self.home.newest[0] >= 0:
            self.post.adopt.remote(*self.home.newest)

    def send_signals(self) -> None:
        """Send the signals to the actor, if it has started and the signals have changed."""
        if self.node and not self.signals_sent:
            self.post.set_signals.remote(tuple(self.signs))
            self.signals_sent = True
        elif not self.node and time.monotonic() > self.since + LATE_SECONDS:
            self.since = float("inf")
            logger.warning(f"actor {self.number} waits for free resources on the Ray cluster; the others continue")

    def receive(self) -> RowBlock | Failure:
        errors = self.home.ray.exceptions
        try:
            message, self.waiting = self.home.ray.get(self.coming)
        except errors.RayTaskError as error:
            return Failure(str(error.cause), is_permanent=True)
        except errors.RayError as error:
            raise EOFError from error
        self.coming = self.post.next.remote()
        if isinstance(message, Failure):
            return message
        block: RowBlock = message
        return block._replace(rows={name: np.array(x) for name, x in block.rows.items()})  # Ray's memory is read-only

    def free(self) -> None:
        """Do nothing: Ray frees the memory."""

    def sign(self, name: str, value: int) -> None:
        signs = self.signs._replace(**{name: min(value, NO_STEP_LIMIT)})
        self.signals_sent, self.signs = self.signals_sent and signs == self.signs, signs

    def end(self, deadline: float) -> str:
        ray = self.home.ray
        self.send_signals()
        if self.node:
            ray.wait([self.post.over.remote()], timeout=max(0.0, deadline - time.monotonic()))
        ray.kill(self.post)
        self.home.links.remove(self)
        return f"its process on {self.node}, or that node, has ended"
