"""What ``actors.py`` and its peers share. Peers have environments of their own, so it knows nothing but Gymnasium."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import gymnasium

WARM_UP, SECONDS, LEAST = 100, 8.0, 160
"""Updates before counting begins; seconds and env steps of counting, at least."""
BLOCK, STARTS, UNITS, BATCH, RATE, ROWS = 16, 500, (256, 256), 256, 3e-4, 100_000
"""Rows sent at a time, rows before learning, networks, batch, learning rate, rows in the replay: for ours and peers."""
CASES = {"cheetah": "HalfCheetah-v5", "sleeping": "Pendulum-v1"}
"""Environments; the second sleeps 5 ms a step."""


class Sleeping(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that takes 5 ms a step without working, as a robot or a server does."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make(CASES["sleeping"]))

    def step(self, action: Any) -> Any:
        """Sleep, then step."""
        time.sleep(0.005)
        return self.env.step(action)


def made(case: str) -> gymnasium.Env[Any, Any]:
    """The environment of a case."""
    return Sleeping() if case == "sleeping" else gymnasium.make(CASES[case])


def family_seconds() -> float:
    """Processor seconds that this process and all below it have had; Linux."""
    found: dict[int, tuple[int, float]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with contextlib.suppress(OSError):
                words = (place / "stat").read_text().rpartition(") ")[2].split()
                found[int(place.name)] = int(words[1]), int(words[11]) + int(words[12])
    ours = {os.getpid()}
    while more := {pid for pid, (parent, _) in found.items() if parent in ours} - ours:
        ours |= more
    return sum(found[pid][1] for pid in ours) / os.sysconf("SC_CLK_TCK")


class Count:
    """Counts rows and updates from some update on."""

    def __init__(self) -> None:
        self.begun: list[float] = []

    def over(self, rows: int, updates: int) -> bool:
        """Whether it has been long enough; ``rows`` and ``updates`` so far. Then it prints the rates."""
        now = [time.perf_counter(), rows, updates, family_seconds()]
        if not self.begun and updates >= WARM_UP:
            self.begun = now
        if not self.begun or now[0] - self.begun[0] < SECONDS or rows - self.begun[1] < LEAST:
            return False
        spent, taken, learned, own = (new - old for new, old in zip(now, self.begun, strict=True))
        print(json.dumps({"env_steps_per_second": taken / spent, "updates_per_second": learned / spent,
                          "processor_ms_per_env_step": 1000 * own / taken}))  # fmt: skip
        return True
