"""CartPole that kills the process which steps it: once, in the second learner, where ``MORTAL`` names a file."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class Mortal(CartPoleEnv):
    """Its process has no time to say anything; that of the other learner waits until the next one has rows."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if place := os.environ.get("MORTAL"):
            self._die_or_wait(Path(place), Path(f"{place}-alive"))
        return super().step(action)

    def _die_or_wait(self, mark: Path, alive: Path) -> None:
        if os.environ.get("RANK") == "1":
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if self.steps == 40:
                alive.touch()
        else:
            while not alive.exists():
                time.sleep(0.02)


gymnasium.register("Mortal-v0", entry_point=Mortal, max_episode_steps=500)
