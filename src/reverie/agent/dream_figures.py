"""Videos and figures of dreams: what happened beside what the model predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reverie.agent.agent import Agent
from reverie.algos.base import dreamt_name
from reverie.core.errors import EnvError
from reverie.core.files import file_stem
from reverie.core.specs import ObsPart
from reverie.core.types import Batch
from reverie.envs.flat import make_flat
from reverie.envs.make import Single, put_away
from reverie.envs.render import Paint, painter
from reverie.log.plot import dream_errors, dream_traces
from reverie.log.video import dream_video, shrink, write_video
from reverie.run.folder import RunFolder

FPS = 8
PAINTED, SIDE = 3, 256
"""Most episodes drawn as pictures, and the longer side of a picture in pixels."""

Arrays = dict[str, np.ndarray]


def draw(
    agent: Agent,
    batch: Batch,
    predicted: Arrays,
    context: int,
    errors: Arrays,
    repeated: Arrays,
    units: dict[str, str],
    data: str = "",
) -> dict[str, Path]:
    """Draw the videos, the traces of all numbers over time, and the errors; return the files.

    ``data``: where recorded episodes are from, for the titles; "" for played ones.
    """
    folder = RunFolder(agent.run).dream
    title = f"dream on {Path(data).name or agent.config.env.id}"
    files: dict[str, Path] = {}
    several = distinct(batch)
    if pictures := painted(agent, batch, predicted, several[:PAINTED]):
        files["video"] = write_video(folder / "dream.mp4", dream_video(*pictures, context), FPS)
    names: list[str] = []
    columns: list[tuple[np.ndarray, np.ndarray]] = []
    parts = {dreamt_name(key): (batch.obs[key].numpy(), part) for key, part in agent.obs_spec.items()}
    for key, (real, part) in parts.items():
        if key not in predicted:
            continue
        guess = predicted[key]
        if part.kind == "image" and not pictures:
            real, guess = (newest(x[several], agent.config.env.frame_stack) for x in (real, guess))
            pair = [(x - part.low) / (part.high - part.low) * 255.0 for x in (real.astype(np.float32), guess)]
            video = dream_video(np.rint(pair[0]).clip(0, 255).astype(np.uint8), pair[1], context)
            files[f"video of {key}"] = write_video(folder / f"{file_stem(key)}.mp4", video, FPS)
        elif part.kind == "vector":
            width = math.prod(part.shape)
            names += [f"{key} {i}" if width > 1 else key for i in range(width)]
            flat = [x[0].reshape(len(x[0]), -1) for x in (real, guess)]
            columns += [(flat[0][:, i], flat[1][:, i]) for i in range(width)]
    names.append("reward")
    columns.append((batch.reward[0].numpy(), predicted["reward"][0]))
    real, guess = (np.stack(side, axis=1) for side in zip(*columns, strict=True))
    trained = getattr(agent.config.algo, "horizon", None)
    files["traces"] = dream_traces(folder / "traces.png", real, guess, context, names, title, trained)
    title = f"error of the {title}"
    files["errors"] = dream_errors(folder / "errors.png", errors, repeated, title, units, trained)
    return files


def newest(frames: np.ndarray, stacked: int) -> np.ndarray:
    """Return the newest of stacked pictures ``[..., stacked * C]``, which is the last: ``[..., C]``."""
    return frames[..., -(frames.shape[-1] // stacked) :]


def distinct(batch: Batch) -> list[int]:
    """Return the numbers of the episodes that differ from all before: where nothing is random, all may be the same."""
    columns = [x.numpy() for x in (*batch.obs.values(), batch.action)]
    first: dict[bytes, int] = {}
    for number in range(batch.shape[0]):
        first.setdefault(b"".join(x[number].tobytes() for x in columns), number)
    return list(first.values())


def painted(
    agent: Agent, batch: Batch, predicted: Arrays, episodes: Sequence[int]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Draw observations of ``episodes`` as pictures ``[B, T, H, W, 3]``, true and predicted.

    None if there is no way to draw this environment from all that is predicted, as for images of any other kind than
    MiniGrid's and MinAtar's.
    """
    spec = {key: part for key, part in agent.obs_spec.items() if dreamt_name(key) in predicted}
    unknown = agent.config.env.pixels != "none" or not spec
    if unknown or isinstance(agent.factory, Single):  # a user's instance may be in the middle of an episode
        return None
    try:
        env = make_flat(agent.config.env, agent.factory, 0, True)
    except EnvError:  # as of recorded data, if its package is missing
        return None
    try:
        paint = painter(env.env, spec, spec.keys() == agent.obs_spec.keys())
        if paint is None:
            return None
        real = {key: batch.obs[key].numpy() for key in spec}
        guess = {key: _likeliest(predicted[dreamt_name(key)], part) for key, part in spec.items()}
        stacked = {key: agent.config.env.frame_stack if part.kind == "image" else 0 for key, part in spec.items()}
        sides = [{key: newest(x, stacked[key]) if stacked[key] else x for key, x in y.items()} for y in (real, guess)]
        return _pictures(paint, sides[0], episodes), _pictures(paint, sides[1], episodes)
    finally:
        put_away(env)


def _likeliest(values: np.ndarray, part: ObsPart) -> np.ndarray:
    """Return a prediction in the form of the observation: of class probabilities ``[B, T, n, C]``, the index."""
    if part.kind != "categorical":
        return values
    index: np.ndarray = values.argmax(-1)  # [B, T, n]
    return index.reshape(*values.shape[:2], *part.shape)


def _pictures(paint: Paint, obs: Arrays, episodes: Sequence[int]) -> np.ndarray:
    steps = next(iter(obs.values())).shape[1]
    rows = [[shrink(paint({key: x[b, t] for key, x in obs.items()}), SIDE) for t in range(steps)] for b in episodes]
    return np.stack([np.stack(row) for row in rows])
