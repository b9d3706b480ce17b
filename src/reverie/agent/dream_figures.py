"""Videos and figures of dreams: real episodes next to the model's predictions."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import numpy as np

from reverie.agent.player import Player
from reverie.algos.base import prediction_name
from reverie.core.errors import ConfigError, EnvError
from reverie.core.files import key_to_filename
from reverie.core.specs import ObsPart, ObsSpec
from reverie.core.types import Batch
from reverie.envs.flat_env import make_flat
from reverie.envs.make import InstanceWrapper, close_quietly
from reverie.envs.render import RenderFn, limited_size, make_renderer
from reverie.log.strip import Strip
from reverie.log.video import dream_video, shrink, to_rgb, upscale, write_video
from reverie.run.folder import RunFolder

FPS = 8
MAX_IMAGE_KEYS, IMAGE_SIDE = 3, 256
"""Maximum number of episodes drawn as images, and the longer side of an image in pixels."""

Arrays = dict[str, np.ndarray]


def draw_dream_figures(
    player: Player, batch: Batch, predicted: Arrays, context: int, errors: Arrays, baseline_errors: Arrays,
    units: dict[str, str], data: str,
) -> dict[str, Path]:  # fmt: skip
    """Draw videos, traces of vectors over time, and errors; return the files.

    ``data``: a dataset name for titles, or "".
    """
    from reverie.log.plot import (  # matplotlib: not needed for acting or viewing
        plot_dream_errors,
        plot_dream_traces,
    )

    folder = RunFolder(player.run).dream
    title, files = f"dream on {Path(data).name or player.config.env.id}", dict[str, Path]()
    episodes = _distinct_episodes(batch)
    names = {key: prediction_name(key) for key in player.obs_spec if prediction_name(key) in predicted}
    sides = {key: batch.obs[key].numpy() for key in names}, {key: predicted[name] for key, name in names.items()}
    if pictures := _render_sides(
        player, *({key: x[episodes[:MAX_IMAGE_KEYS]] for key, x in side.items()} for side in sides)
    ):
        files["video"] = write_video(folder / "dream.mp4", dream_video(pictures[0], pictures[1], context), FPS)
    numbers: list[tuple[str, np.ndarray, np.ndarray]] = []
    for key, name in names.items():
        part, (real, guess) = player.obs_spec[key], (side[key] for side in sides)
        if part.kind == "image" and not pictures:
            images = [
                newest_frame(to_uint8_image(x[episodes], part), player.config.env.frame_stack) for x in (real, guess)
            ]
            video = dream_video(images[0], images[1], context)
            files[f"video of {name}"] = write_video(folder / f"{key_to_filename(name)}.mp4", video, FPS)
        elif part.kind == "vector":
            width = math.prod(part.shape)
            flat = real[0].reshape(-1, width), guess[0].reshape(-1, width)
            numbers += [(f"{name} {i}" if width > 1 else name, flat[0][:, i], flat[1][:, i]) for i in range(width)]
    numbers.append(("reward", batch.reward[0].numpy(), predicted["reward"][0]))
    titles, *traces = zip(*numbers, strict=True)
    real, guess = (np.stack(side, axis=1) for side in traces)
    trained = getattr(player.config.algo, "horizon", None)
    files["traces"] = plot_dream_traces(folder / "traces.png", real, guess, context, titles, title, trained)
    title = f"error of the {title}"
    files["errors"] = plot_dream_errors(folder / "errors.png", errors, baseline_errors, title, units, trained)
    return files


def draw_strip(player: Player, strip: Strip, batch: Batch, predicted: Arrays, path: Path | None) -> dict[str, Path]:
    """Draw the strip of the first episode; return its file, none if ``path`` is None and nothing can be drawn."""
    from reverie.log.strip_figure import write_strip  # matplotlib

    names = {key: prediction_name(key) for key in player.obs_spec if prediction_name(key) in predicted}
    try:
        with open_renderer_or_image(player, names) as draw:
            real = draw({key: batch.obs[key].numpy()[:1, strip.columns] for key in names})
            dreamt = draw({key: predicted[name][:1, strip.columns] for key, name in names.items()})
    except ConfigError:
        if path is not None:
            raise
        return {}
    return {"strip": write_strip(path or RunFolder(player.run).dream / "strip.png", strip, real[0], dreamt[0])}


def to_uint8_image(image: np.ndarray, part: ObsPart) -> np.ndarray:
    """Return an image observation, or its prediction, as uint8."""
    scaled = (image.astype(np.float32) - part.low) / (part.high - part.low) * 255.0
    out: np.ndarray = np.rint(scaled).clip(0, 255).astype(np.uint8)
    return out


def newest_frame(frames: np.ndarray, stacked: int) -> np.ndarray:
    """Return the newest of stacked images ``[..., stacked * C]``, which is the last: ``[..., C]``."""
    return frames[..., -(frames.shape[-1] // stacked) :]


def _distinct_episodes(batch: Batch) -> list[int]:
    """Return the indices of the distinct episodes: in a deterministic environment, all can be identical."""
    columns = [x.numpy() for x in (*batch.obs.values(), batch.action)]
    first: dict[bytes, int] = {}
    for number in range(batch.shape[0]):
        first.setdefault(b"".join(x[number].tobytes() for x in columns), number)
    return list(first.values())


def _render_sides(player: Player, *sides: Arrays) -> list[np.ndarray] | None:
    """Open a renderer for each side: true observations ``[B, T, ...]`` by key, and predictions."""
    with open_renderer(player, [key for key in player.obs_spec if all(key in side for side in sides)]) as paint:
        return None if paint is None else [paint(side) for side in sides]


DrawFn = Callable[[Arrays], np.ndarray]
"""Draws observations ``[B, T, ...]`` by key, or predictions of them, as images ``[B, T, H, W, 3]``."""


@contextlib.contextmanager
def open_renderer(player: Player, keys: Collection[str], side: int | None = None) -> Iterator[DrawFn | None]:
    """Return a renderer by the agent's environment for observations of these keys; None if it cannot draw them.

    ``side``: pictures need not be larger, if smaller ones are faster.
    """
    spec = {key: part for key, part in player.obs_spec.items() if key in keys}
    unknown = player.config.env.pixels != "none" or not spec
    if unknown or isinstance(player.factory, InstanceWrapper):  # a user's instance can be in the middle of an episode
        yield None
        return
    try:
        env = make_flat(player.config.env, player.factory, 0, True)
    except EnvError:  # for example of a dataset whose package is not installed
        yield None
        return
    try:
        with limited_size(env.env, side):
            paint = make_renderer(env.env, spec, spec.keys() == player.obs_spec.keys())
            yield None if paint is None else functools.partial(_pictures, paint, spec, player.config.env.frame_stack)
    finally:
        close_quietly(env)


def _pictures(paint: RenderFn, spec: ObsSpec, stacked: int, side: Arrays) -> np.ndarray:
    obs = {key: _observed(side[key], part, stacked) for key, part in spec.items()}
    count, steps = next(iter(obs.values())).shape[:2]
    rows = ([{key: x[b, t] for key, x in obs.items()} for t in range(steps)] for b in range(count))
    return np.stack([[shrink(paint(obs_at), IMAGE_SIDE) for obs_at in episode] for episode in rows])


@contextlib.contextmanager
def open_renderer_or_image(player: Player, keys: Collection[str], side: int | None = None) -> Iterator[DrawFn]:
    """Like :func:`open_renderer`, but fall back to the first image observation; ConfigError if there is none."""
    with open_renderer(player, keys, side) as paint:
        images = [key for key, part in player.obs_spec.items() if part.kind == "image" and key in keys]
        if paint is None and not images:
            if not keys:
                raise ConfigError(f"{player.config.name} has no decoder: its dreams have no pictures.")
            raise ConfigError(
                f"observations of {player.config.env.id} cannot be drawn: none of them is an image. Add a method "
                "render_observation to the environment (docs/env_options.md, Drawing observations)."
            )

        peaks = [0]

        def first_image(side: Arrays) -> np.ndarray:
            image = to_uint8_image(side[images[0]], player.obs_spec[images[0]])
            peaks.append(max(peaks[-1], int(image.max())))  # a symbol that a dream lacks does not brighten the others
            return upscale(to_rgb(newest_frame(image, player.config.env.frame_stack), peaks[-1]), IMAGE_SIDE)

        yield paint or first_image


def _observed(values: np.ndarray, part: ObsPart, stacked: int) -> np.ndarray:
    """Return values as one observation: the newest of stacked images, the most likely class of probabilities."""
    if part.kind == "image":
        return newest_frame(values, stacked)
    if part.kind == "categorical" and values.shape[2:] != part.shape:
        values = values.argmax(-1).reshape(*values.shape[:2], *part.shape)
    return values
