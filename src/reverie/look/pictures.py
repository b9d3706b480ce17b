"""Pictures of what happens and of what is dreamed, as PNG, drawn the same way so that they can be compared."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Collection, Mapping

import numpy as np
from PIL import Image

from reverie.agent.agent import Agent
from reverie.agent.dream_figures import light, newest, painting
from reverie.algos.base import dreamt_name
from reverie.core.protocols import Env
from reverie.core.types import Obs
from reverie.log.video import shrink, to_rgb

SIDE = 256
"""Longer side of the pictures that an environment draws, at most."""


class Pictures:
    """Draws observations: as the environment does, if it can; else the first image among them; else not at all."""

    def __init__(self, agent: Agent, dreamt: Collection[str] | None) -> None:
        """``dreamt``: the observations that dreams have. None: there are none, and the environment's pictures do."""
        self.agent = agent
        self.dreamt = dreamt
        self._closing = contextlib.ExitStack()
        self._paint = None if dreamt is None else self._closing.enter_context(painting(agent, dreamt))
        images = [key for key, part in agent.obs_spec.items() if part.kind == "image"]
        self._image = images[0] if images else None

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
