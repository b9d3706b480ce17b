"""CartPole that kills the process which steps it: once, in the second learner, where ``MORTAL`` names a file."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class Mortal(CartPoleEnv):
    """Its process has no time to say anything."""

    def step(self, action: Any) -> Any:
        if os.environ.get("RANK") == "1" and not (mark := Path(os.environ["MORTAL"])).exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


gymnasium.register("Mortal-v0", entry_point=Mortal, max_episode_steps=500)
