"""Videos and figures of dreams: what happened beside what the model predicted."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from reverie.agent.agent import Agent
from reverie.algos.base import dreamt_name
from reverie.core.files import file_stem
from reverie.core.types import Batch
from reverie.envs.base import put_away
from reverie.envs.factory import Single
from reverie.envs.flat import make_flat
from reverie.envs.render import Paint, painter
from reverie.folder import RunFolder
from reverie.log.plot import dream_errors, dream_traces
from reverie.log.video import dream_video, shrink, write_video

FPS = 8
PAINTED, SIDE = 3, 256
"""Number of episodes drawn as pictures, and the longer side of a picture in pixels."""

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
    if pictures := painted(agent, batch, predicted):
        files["video"] = write_video(folder / "dream.mp4", dream_video(*pictures, context, error=False), FPS)
    names: list[str] = []
    columns: list[tuple[np.ndarray, np.ndarray]] = []
    parts = {dreamt_name(key): (batch.obs[key].numpy(), part) for key, part in agent.obs_spec.items()}
    for key, (real, part) in parts.items():
        if key not in predicted:
            continue
        guess = predicted[key]
        if part.kind == "image":
            real, guess = (newest(x, agent.config.env.frame_stack) for x in (real, guess))
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


def painted(agent: Agent, batch: Batch, predicted: Arrays) -> tuple[np.ndarray, np.ndarray] | None:
    """Draw vectors as pictures ``[B, T, H, W, 3]``, true and predicted, of the first episodes.

    None if observations are images already, or if there is no way to draw this environment from them.
    """
    spec = agent.obs_spec
    told = all(part.kind == "vector" and dreamt_name(key) in predicted for key, part in spec.items())
    if not told or isinstance(agent.factory, Single):  # the user's instance may be in the middle of an episode
        return None
    env = make_flat(agent.config.env, agent.factory, 0, True)
    try:
        paint = painter(env.env, spec)
        if paint is None:
            return None
        real = {key: batch.obs[key].numpy() for key in spec}
        return _pictures(paint, real), _pictures(paint, {key: predicted[dreamt_name(key)] for key in spec})
    finally:
        put_away(env)


def _pictures(paint: Paint, obs: Arrays) -> np.ndarray:
    episodes, steps = next(iter(obs.values())).shape[:2]
    rows = [
        [shrink(paint({key: x[b, t] for key, x in obs.items()}), SIDE) for t in range(steps)]
        for b in range(min(PAINTED, episodes))
    ]
    return np.stack([np.stack(row) for row in rows])
