"""Seeds, or trials of a search, on a Ray cluster: Ray Tune places their runs, and restarts runs that lost a node.

``tune.py`` decides on the next settings and on pruning, as on one machine and from the same study, so an interrupted or
extended search can continue in either place.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher

from reverie.core.logger import logger
from reverie.distributed.ray_learners import MAX_RESTARTS, RayLearner, wait_until_unlocked, watch_head


class _TuneTrial(tune.Trainable):  # type: ignore[misc]  # Ray's classes are Any here
    """The process of a run on a node. All of its state is in its folder, so any node can continue it."""

    def setup(self, config: Mapping[str, Any]) -> None:
        """Start the process, once no other process writes to its folder."""
        self.log: Path = Path(config["log"])
        self.last: str = ""
        self.process: RayLearner = RayLearner()
        wait_until_unlocked(Path(config["run"]))
        self.process.start(config["words"], {}, config["folder"])

    def step(self) -> dict[str, Any]:
        """Append its output to its log; return its exit code, None while it runs, and its last line."""
        text, code = self.process.poll()
        with self.log.open("ab") as log:
            log.write(text)
        *_, self.last = [self.last, *filter(None, map(str.strip, text.decode(errors="replace").split("\n")))]
        return {"code": code, "last": self.last, "done": code is not None}

    def cleanup(self) -> None:
        """Ask the process to save and end."""
        self.process.tell(signal.SIGTERM)
        while not self.step()["done"]:
            pass


class _QueueSearcher(Searcher, tune.Stopper):  # type: ignore[misc]
    """The callbacks of Ray Tune: the next run, whether a run has to end, and whether all have to end."""

    def __init__(self, queue: Any) -> None:
        """``queue``: a ``run_processes.py: RunQueue``."""
        super().__init__()
        self.queue = queue
        self.running: dict[str, Any] = {}
        self.begun: set[str] = set()
        self.signals_sent: bool = False

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Ray Tune's saved state is not needed, since the run folders determine what is left to do."""
        return {}

    def suggest(self, trial_id: str) -> Any:
        """Return the next run as the configuration of :class:`_TuneTrial`."""
        if (run := self.queue.next()) is None:
            return Searcher.FINISHED
        self.running[trial_id], words = run, self.queue.begin(run)
        return {"words": words, "folder": os.getcwd(), "run": str(run.run), "log": str(run.log)}

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        """Record how a run has ended. Without an exit code, it was stopped, or was lost too often."""
        metrics = result or {}
        code = int(
            128 + (signal.SIGKILL if error else signal.SIGTERM) if metrics.get("code") is None else metrics["code"]
        )
        self.queue.end(self.running.pop(trial_id), 128 - code if code < 0 else code, metrics.get("last", ""))

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Return whether a run has to save and end."""
        run = self.running[trial_id]
        if result["training_iteration"] == 1 and trial_id in self.begun:
            logger.warning(
                f"{run.log.stem}: its node, or the Ray process on it, had ended; it continues on {result['node_ip']}"
            )
        self.begun.add(trial_id)
        return result["code"] is None and self.queue.drop(run)

    def stop_all(self) -> bool:
        """Return whether all runs have to save and end, after a signal. Ray Tune calls this many times a second."""
        self.queue.board.update()
        if self.queue.received_signals and not self.signals_sent:
            self.signals_sent = True
            logger.info(f"{signal.Signals(self.queue.received_signals[0]).name}: all running seeds save and end")
        return self.signals_sent


def train_placed(queue: Any, jobs: int, *, resources: Mapping[str, float]) -> None:
    """Train the runs of ``queue``, a ``run_processes.py: RunQueue``, on the cluster. ``resources``: of each run."""
    if queue.next() is None:
        return
    os.environ |= {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_AIR_NEW_OUTPUT": "0"}  # runs have their own logs
    searcher = _QueueSearcher(queue)
    apart = ThreadPoolExecutor(1)  # so that Ray Tune does not change the signal handlers
    with watch_head(ray, queue.received_signals), apart:
        apart.submit(
            tune.run, _TuneTrial, name="ray", storage_path=str(queue.runs[0].log.parent), search_alg=searcher,
            stop=searcher, num_samples=len(queue.runs), max_concurrent_trials=jobs, max_failures=MAX_RESTARTS,
            verbose=0, resources_per_trial=tune.PlacementGroupFactory([dict(resources)]), raise_on_failed_trial=False,
            trial_dirname_creator=lambda trial: trial.trial_id,
        ).result()  # fmt: skip
    for trial_id in list(searcher.running):
        searcher.on_trial_complete(trial_id)
