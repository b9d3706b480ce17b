"""The source of an episode's rows, an environment or a recording; and pictures of rows and dreams."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from reverie.agent.agent import Agent
from reverie.agent.dream_figures import newest_frame, open_renderer, to_uint8_image
from reverie.agent.world_model_inspector import predicted_observations
from reverie.core.errors import EnvError
from reverie.core.protocols import Env
from reverie.core.specs import GOAL
from reverie.core.types import FLAGS, Batch, Obs, Step
from reverie.datasets.config import DatasetConfig
from reverie.envs.make import close_quietly
from reverie.log.video import shrink, to_rgb

SIDE = 256
"""Maximum length of the longer side of an environment's pictures, in pixels."""


def action_names(agent: Agent) -> list[str]:
    """Return the name of each class of the only choice, if the agent's environment has them.

    Environments may name more actions than they accept: the first ones are those of the choice.
    """
    choices = agent.action_spec.categorical_slices()
    if len(choices) != 1:
        return []
    count = choices[0][1].stop - choices[0][1].start
    try:
        env: Any = agent.make_env().unwrapped
    except EnvError:
        return []
    try:
        if callable(named := getattr(env, "get_action_meanings", None)):
            names = [str(name).lower() for name in named()]
        else:
            names = [action.name for action in getattr(env, "actions", ())]
        return names[:count] if len(names) >= count else []
    except (AttributeError, TypeError):  # another attribute of the same name
        return []
    finally:
        close_quietly(env)


class RecordedEnv:
    """A recorded episode instead of an environment: its actions cannot be changed."""

    executed_actions = None

    def __init__(self, agent: Agent, data: DatasetConfig | str | None, number: int) -> None:
        """``data``, ``number`` and errors: see ``Agent.load_episode``."""
        self.batch: Batch = agent.load_episode(number, data)
        self.number: int = int(self.batch.index[0])
        self.name: str = f"episode {self.number} of {data or 'the run'}"
        self._at = 0

    def reset(self, seed: int | None = None) -> Step:
        """Return the first row."""
        self._at = -1
        return self.step(self.batch.action[:, 0])

    def step(self, action: Tensor) -> Step:
        """Return the next row."""
        self._at += 1
        batch = self.batch
        flags = {name: getattr(batch, name)[:, self._at] for name in FLAGS}
        return Step(obs={k: v[:, self._at] for k, v in batch.obs.items()}, reward=batch.reward[:, self._at], **flags)

    def render(self) -> None:
        """Return nothing: only the recorded images are shown."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class PictureRenderer:
    """Draws observations: with the environment's renderer, else the first image observation, else nothing."""

    def __init__(self, agent: Agent, dreamt: Collection[str] | None) -> None:
        """``dreamt``: the observations in dreams. None: there are no dreams, and the environment renders itself."""
        self.agent: Agent = agent
        self.dreamt_keys: Collection[str] | None = dreamt
        self._closing = contextlib.ExitStack()
        self._paint = None if dreamt is None else self._closing.enter_context(open_renderer(agent, dreamt))
        images = [key for key, part in agent.obs_spec.items() if part.kind == "image" and not key.startswith(GOAL)]
        self._image = images[0] if images else None

    def real(self, env: Env | RecordedEnv, obs: Obs) -> bytes | None:
        """Return a picture of the current row ``[1, ...]``; None if it cannot be drawn."""
        row = {key: value.numpy()[None] for key, value in obs.items()}
        if self.dreamt_keys is not None and (picture := self._draw(row)) is not None:
            return picture
        frame = env.render()
        return self._draw(row) if frame is None else encode_png(shrink(frame, SIDE))

    def goal(self, obs: Obs) -> bytes | None:
        """Return a picture of a goal ``[1, ...]`` by key; None if it is no picture."""
        return self._draw({key: value.numpy()[None] for key, value in obs.items()})

    def dream(self, predictions: Mapping[str, np.ndarray]) -> bytes | None:
        """Return a picture of the networks' predictions ``[...]``, by the names of a dream."""
        return self._draw(
            {key: x[None, None] for key, x in predicted_observations(predictions, self.agent.obs_spec).items()}
        )

    def _draw(self, obs: Mapping[str, np.ndarray]) -> bytes | None:
        spec, stacked = self.agent.obs_spec, self.agent.config.env.frame_stack
        if self._paint is not None:
            return encode_png(self._paint(dict(obs))[0, 0])
        if self._image is None or self._image not in obs:
            return None
        picture = newest_frame(to_uint8_image(obs[self._image][0, 0], spec[self._image]), stacked)
        return encode_png(to_rgb(picture, 255))

    def close(self) -> None:
        """Close the environment that draws."""
        self._closing.close()


def encode_png(picture: np.ndarray) -> bytes:
    """Return ``[H, W, 3]`` uint8 as PNG with little compression: the browser runs on the same machine."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG", compress_level=1)
    return file.getvalue()


def decode_png(picture: bytes) -> np.ndarray:
    """Return ``[H, W, 3]`` uint8 of a PNG."""
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))


MIN_DIFFERENCE = 12
"""Pixels of 0 to 255 that differ less look the same."""


def crop(pngs: list[bytes]) -> list[bytes]:
    """Crop pictures of one size to the square around all pixels in which they differ, with a margin."""
    if not pngs:
        return pngs
    pictures = np.stack([decode_png(png) for png in pngs])
    differs = (pictures.max(0) - pictures.min(0)).max(-1) > MIN_DIFFERENCE  # [H, W]
    if not differs.any():
        return pngs
    ends = [np.flatnonzero(differs.any(axis))[[0, -1]] for axis in (1, 0)]  # of rows, and of columns
    side = max(int(max(high - low for low, high in ends) * 1.2) + 1, max(differs.shape) // 3)
    centers = [(low + high - side) // 2 for low, high in ends]
    y, x = (max(0, min(size - side, start)) for start, size in zip(centers, differs.shape, strict=True))
    return [encode_png(picture) for picture in pictures[:, y : y + side, x : x + side]]
