"""Where the rows of an episode come from: an environment that is played, or a recording."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from reverie.agent.agent import Agent
from reverie.core.errors import EnvError
from reverie.core.protocols import Env
from reverie.core.types import FLAGS, Batch, Step
from reverie.datasets.dataset import DatasetConfig
from reverie.envs.make import put_away
from reverie.experiment.build import make_eval_env


class Live:
    """The agent's environment, with rewards as the agent sees them."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.name: str = agent.config.env.id
        config = agent.config.merge({"eval_envs": 1, "eval_episodes": 1})
        self.env: Env | None = make_eval_env(config, agent.factory, render=True, true_rewards=False)

    def reset(self, seed: int) -> Step:
        """Begin an episode."""
        assert self.env is not None
        return self.env.reset(seed)

    def step(self, number: int, action: Tensor) -> Step:
        """Take an action ``[1, A]`` in row ``number``, the newest one."""
        assert self.env is not None
        return self.env.step(action)

    def action(self, number: int) -> Tensor | None:
        """Return the action that must be taken: None, as any may be."""
        return None

    @functools.cached_property
    def action_names(self) -> list[str]:
        """The names of discrete actions, if the environment has them."""
        try:
            env: Any = self._agent.make_env().unwrapped
        except EnvError:
            return []
        try:
            if callable(named := getattr(env, "get_action_meanings", None)):
                return [str(name).lower() for name in named()]
            return [one.name for one in getattr(env, "actions", ())]
        except (AttributeError, TypeError):  # it means something else by these names
            return []
        finally:
            put_away(env)

    def close(self) -> None:
        """Close the environment."""
        if self.env is not None:
            self.env.close()


class Recording:
    """A recorded episode: its actions are what they were."""

    env: Env | None = None
    action_names: Sequence[str] = ()

    def __init__(self, agent: Agent, data: DatasetConfig | str | None, number: int) -> None:
        """``data``, ``number`` and errors: see ``Agent.episode``."""
        self.batch: Batch = agent.episode(number, data)
        self.name: str = f"episode {int(self.batch.index[0])} of {data or 'the run'}"

    def reset(self, seed: int) -> Step:
        """Return the first row."""
        return self._row(0)

    def step(self, number: int, action: Tensor) -> Step:
        """Return the row after row ``number``."""
        return self._row(number + 1)

    def action(self, number: int) -> Tensor | None:
        """Return the action that was taken in row ``number``."""
        return self.batch.action[:, number]

    def close(self) -> None:
        """Nothing is open."""

    def _row(self, number: int) -> Step:
        batch = self.batch
        flags = {name: getattr(batch, name)[:, number] for name in FLAGS}
        return Step(obs={k: v[:, number] for k, v in batch.obs.items()}, reward=batch.reward[:, number], **flags)
