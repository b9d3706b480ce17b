"""Where the rows of an episode come from, an environment or a recording, and the pictures of them and of dreams."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from reverie.agent.agent import Agent
from reverie.agent.dream_figures import light, newest, painting
from reverie.algos.base import dreamt_name
from reverie.core.errors import EnvError
from reverie.core.protocols import Env
from reverie.core.types import FLAGS, Batch, Obs, Step
from reverie.datasets.dataset import DatasetConfig
from reverie.envs.make import put_away
from reverie.experiment.build import make_eval_env
from reverie.log.video import shrink, to_rgb

SIDE = 256
"""Longer side of the pictures that an environment draws, at most."""


class Live:
    """The agent's environment, with rewards as the agent sees them."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.name: str = agent.config.env.id
        config = agent.config.merge({"eval_envs": 1, "eval_episodes": 1})
        self.env: Env = make_eval_env(config, agent.factory, render=True, true_rewards=False)

    def reset(self, seed: int) -> Step:
        """Begin an episode."""
        return self.env.reset(seed)

    def step(self, number: int, action: Tensor) -> Step:
        """Take an action ``[1, A]`` in row ``number``, the newest one."""
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
        self.env.close()


class Recording:
    """A recorded episode: its actions are what they were."""

    env: None = None
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


class Pictures:
    """Draws observations: as the environment does, if it can; else the first image among them; else not at all."""

    def __init__(self, agent: Agent, dreamt: Collection[str] | None) -> None:
        """``dreamt``: the observations that dreams have. None: there are none, and the environment's pictures do."""
        self.agent: Agent = agent
        self.dreamt: Collection[str] | None = dreamt
        self._closing = contextlib.ExitStack()
        self._paint = None if dreamt is None else self._closing.enter_context(painting(agent, dreamt))
        self._image = next((key for key, part in agent.obs_spec.items() if part.kind == "image"), None)

    def real(self, env: Env | None, obs: Obs) -> bytes | None:
        """Return a picture of the current row ``[1, ...]``; None if there is no way to draw it."""
        if self.dreamt is None and env is not None and (frame := env.render()) is not None:
            return png(shrink(frame, SIDE))
        shown = self._drawn({key: value.numpy()[None] for key, value in obs.items()})
        if shown is None and env is not None and (frame := env.render()) is not None:
            shown = png(shrink(frame, SIDE))
        return shown

    def dream(self, said: Mapping[str, np.ndarray]) -> bytes | None:
        """Return a picture of what the networks say, ``[...]`` each by the names of a dream."""
        names = {key: dreamt_name(key) for key in self.agent.obs_spec}
        return self._drawn({key: said[name][None, None] for key, name in names.items() if name in said})

    def _drawn(self, obs: Mapping[str, np.ndarray]) -> bytes | None:
        spec, stacked = self.agent.obs_spec, self.agent.config.env.frame_stack
        if self._paint is not None:
            return png(self._paint(dict(obs))[0, 0])
        if self._image is None or self._image not in obs:
            return None
        picture = newest(light(obs[self._image][0, 0], spec[self._image]), stacked)
        return png(to_rgb(picture, 255))

    def close(self) -> None:
        """Close the environment that draws."""
        self._closing.close()


def png(picture: np.ndarray) -> bytes:
    """Return ``[H, W, 3]`` uint8 as PNG, compressed little: it only goes to a browser on the same machine."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG", compress_level=1)
    return file.getvalue()


def pixels(picture: bytes) -> np.ndarray:
    """Return ``[H, W, 3]`` uint8 of a PNG."""
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))
