"""The spaces of recorded data, for an agent that was trained on these alone: it can act, but not play episodes."""

from __future__ import annotations

from typing import Any, NoReturn

import gymnasium
from gymnasium import spaces

from reverie.core.errors import EnvError


class NoEnvironment(EnvError):
    """There is no environment to play in. It is shown as it is: no environment, episode or step has failed."""


class Placeholder(gymnasium.Env[Any, Any]):
    """An environment that has spaces and nothing else."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any], run: object) -> None:
        """``run``: for messages, the run whose data have these spaces."""
        self.observation_space, self.action_space = observation, action
        self.run = run

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> NoReturn:
        """Raise NoEnvironment: there are no episodes to play."""
        raise NoEnvironment(
            f"{self.run} was trained on recorded data alone, so there is no environment to play episodes in. Pass one: "
            "--env ID, or reverie.load(run, env=...). reverie dream can predict recorded episodes instead: --data PATH"
        )

    def step(self, action: Any) -> NoReturn:
        """Raise NoEnvironment: there are no episodes to play."""
        self.reset()
