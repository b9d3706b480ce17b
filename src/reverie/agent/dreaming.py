"""Compare a world model's open-loop predictions with what happens: it sees how episodes begin and imagines the rest."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.agent.agent import Actions, Agent, mode_of
from reverie.algos.base import INSIDE, dreamt_name
from reverie.core.errors import ConfigError, RunError, brief, warn
from reverie.core.files import file_stem, write_atomic
from reverie.core.protocols import Env
from reverie.core.randomness import derived_seeds, reproducible
from reverie.core.specs import ObsPart, ObsSpec
from reverie.core.types import Batch, Mode, Step
from reverie.core.words import Say, plural
from reverie.data.dataset import DatasetConfig
from reverie.data.readers.base import Reader
from reverie.envs.base import put_away
from reverie.envs.factory import Single
from reverie.envs.flat import make_flat
from reverie.envs.render import Paint, painter
from reverie.experiment import make_eval_env
from reverie.folder import RunFolder, check_writable, write_json, writing
from reverie.log.plot import dream_errors, dream_traces
from reverie.log.video import dream_video, shrink, write_video
from reverie.run.collect import executed

FPS = 8
MAX_EPISODES = 50
PAINTED, SIDE = 3, 256
"""Number of episodes drawn as pictures, and the longer side of a picture in pixels."""

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class DreamReport:
    """Errors of open-loop predictions, and the files written about them."""

    context: int
    """Rows of each episode that the model has seen."""
    sequences: int
    """Number of episodes predicted; fewer than asked for if others were too short."""
    errors: dict[str, np.ndarray]
    """Mean error by observation key, "reward" and "cont", at each imagined step ``[H]``, in ``units``. Keys that are
    names of the dream themselves, such as "reward", have "obs/" before them, here and in the files."""
    repeated: dict[str, np.ndarray]
    """The same errors of a baseline that repeats the last row seen."""
    units: dict[str, str]
    """Definition of the error of each key."""
    files: dict[str, Path]
    """Written files by name: "numbers" (dream.json), "arrays" (dream.npz), "traces", "errors", and videos."""


def dream(
    agent: Agent,
    *,
    context: int = 8,
    horizon: int = 48,
    sequences: int = 6,
    actions: Actions = "mode",
    seed: int | None = None,
    data: DatasetConfig | Reader | Path | str | None = None,
    say: Say = warn,
) -> DreamReport:
    """Show the model ``context`` rows of episodes, let it imagine the rest, and compare the two.

    The agent plays the episodes, or they are recorded ones: then nothing is played and no environment is needed, and
    several models or checkpoints can be compared on the same rows.

    Videos of images, traces of vectors, the error at each step, and all arrays with latents and values
    (:func:`packed`) go to ``<run>/dream/``. Where vectors suffice to draw the environment (envs/render.py), there is
    a video of that as well.

    Args:
        agent: an agent whose algorithm has a world model.
        context: rows of each episode that the model sees, at least 1.
        horizon: most env steps to imagine after them, at least 1: decisions of the policy, action repeat not counted.
        sequences: episodes to predict, at least 1. All are held in memory, and predicted as one batch.
        actions: the episodes are played with the policy's most likely actions ("mode"), or with drawn ones ("sample").
        seed: of environments and predictions. None: follows from the run's seed.
        data: recorded episodes to predict: a path, minari:NAME, settings with further options of reading, or a reader
            of your own. The first ones with ``context + horizon`` rows count, or, if they are fewer than ``sequences``,
            also the longest others. None: the agent plays.
        say: called with a sentence for each remark about ``data``. Default: a line on stderr.

    Returns:
        The errors at each imagined step, H = at most ``horizon`` of them, and the files.

    Raises:
        ConfigError: ``agent`` is no agent, a number is out of range, ``actions`` are asked for with ``data``, or the
            algorithm has no world model.
        DataError: ``data`` cannot be read, or do not fit the agent.
        RunError: no episode is longer than ``context`` rows, a prediction is NaN or infinite, or the run folder cannot
            be written.
        EnvError: the environment cannot be made.
    """
    given: Any = agent
    if not isinstance(given, Agent):
        raise ConfigError(f"agent = {brief(agent)}: expected an agent, as reverie.load(run) returns it.")
    numbers: dict[str, Any] = {"context": context, "horizon": horizon, "sequences": sequences}
    for name, value in numbers.items():
        if not isinstance(value, Integral) or value < 1:
            raise ConfigError(f"{name} = {brief(value)}: expected a whole number, at least 1.")
    folder = RunFolder(agent.run).dream
    check_writable(folder)
    seed = derived_seeds(agent.config.seed)["evaluation"] if seed is None else seed
    mode, longest = mode_of(actions), context + horizon
    if data is not None and mode != "eval":
        raise ConfigError(
            f"actions = {actions!r} with data: recorded episodes are predicted under the recorded actions, and nothing "
            "is played. Leave one of the two out."
        )
    source = played(agent, longest, mode, seed) if data is None else recorded(agent, data, longest, say)
    with source as (episodes, about), reproducible(seed):
        batch = gather(episodes, context, sequences, context + 1 if data is None else longest)
        dreamt = imagined(agent, batch, context)
    predicted = {key: value for key, value in dreamt.items() if not key.startswith(INSIDE)}
    check_finite(predicted, context, agent.checkpoint)
    truth = truths(batch, agent.obs_spec)
    errors, repeated, units = measure(truth, predicted, agent.obs_spec, context)
    if (clip := agent.config.env.clip_reward) != "none":
        units["reward"] += f" of rewards after env.clip_reward = {clip}"
    found = {
        "updates" if agent.config.data.alone else "env_steps": agent.step,
        "checkpoint": agent.checkpoint.name,
        **about,
        "episodes": batch.index.tolist(),
        "seed": seed,
        "context": context,
        "sequences": batch.shape[0],
        "units": units,
        "error_per_step": {key: value.tolist() for key, value in errors.items()},
        "last_row_repeated": {key: value.tolist() for key, value in repeated.items()},
    }
    with writing(folder):
        files = draw(agent, batch, predicted, context, errors, repeated, units, about.get("data", ""))
        files |= {"numbers": folder / "dream.json", "arrays": folder / "dream.npz"}
        write_json(files["numbers"], found)
        write_atomic(files["arrays"], packed(batch, truth, dreamt))
    return DreamReport(
        context=context, sequences=batch.shape[0], errors=errors, repeated=repeated, units=units, files=files
    )


Episodes = tuple[Iterator[Batch], dict[str, str]]
"""The rows of one episode after the other, ``[1, T]`` each, and what dream.json says of where they are from."""


@contextlib.contextmanager
def played(agent: Agent, longest: int, mode: Mode, seed: int) -> Iterator[Episodes]:
    """Make the environment, to play up to ``MAX_EPISODES`` episodes, each cut off after ``longest`` rows."""
    config = agent.config.merge({"eval_envs": 1, "eval_episodes": 1})
    env = make_eval_env(config, agent.factory, true_rewards=False)
    try:
        yield _episodes(env, agent, longest, mode, seed), {"actions": "mode" if mode == "eval" else "sample"}
    finally:
        env.close()


@contextlib.contextmanager
def recorded(agent: Agent, data: DatasetConfig | Reader | Path | str, longest: int, say: Say) -> Iterator[Episodes]:
    """Open recorded data, to read their episodes, each cut off after ``longest`` rows; then say their remarks."""
    with agent.recorded(data) as found:
        yield found.beginnings(longest), {"data": str(found.reader.path)}
        for remark in found.remarks():
            say(f"{found.reader.path}: {remark}")


def gather(episodes: Iterable[Batch], context: int, sequences: int, enough: int) -> Batch:
    """Return the beginnings of up to ``sequences`` episodes ``[1, T]`` as one batch ``[B, T]``, cut to one length T.

    They are the first with ``enough`` rows or, if ``episodes`` end before there are so many, also the longest others.

    Raises:
        RunError: no episode has more rows than ``context``.
    """
    long: list[Batch] = []
    count = 0
    for episode in episodes:
        count += 1
        if rows_of(episode) > context:
            long.append(episode)
        if len(long) > sequences:
            del long[min(range(len(long)), key=lambda i: (rows_of(long[i]), -i))]  # the latest of the shortest
        if sum(rows_of(episode) >= enough for episode in long) == sequences:
            break
    if not long:
        raise RunError(
            f"none of {plural(count, 'episode')} is longer than context = {context} rows, so no rows are left to "
            "predict. Use a smaller --context."
        )
    # A few long dreams are better than many short ones: cut to the length that half of the episodes have.
    lengths = sorted(rows_of(episode) for episode in long)
    length = lengths[len(lengths) // 2]
    return stacked([episode.rows(0, length) for episode in long if rows_of(episode) >= length])


def rows_of(batch: Batch) -> int:
    """Return T of a batch ``[B, T]``."""
    return batch.shape[1]


def stacked(batches: list[Batch]) -> Batch:
    """Return batches ``[1, T]`` of one length as one ``[B, T]``."""

    def column(read: Callable[[Batch], Tensor]) -> Tensor:
        return torch.cat([read(batch) for batch in batches])

    return Batch(
        obs={key: column(lambda x, key=key: x.obs[key]) for key in batches[0].obs},  # type: ignore[misc]
        action=column(lambda x: x.action),
        reward=column(lambda x: x.reward),
        is_first=column(lambda x: x.is_first),
        is_last=column(lambda x: x.is_last),
        is_terminal=column(lambda x: x.is_terminal),
        weight=column(lambda x: x.weight),
        index=column(lambda x: x.index),
    )


def _episodes(env: Env, agent: Agent, longest: int, mode: Mode, seed: int) -> Iterator[Batch]:
    """Yield one episode after the other as rows ``[1, T]``, each cut off after ``longest`` rows."""
    policy = agent.algo.policy
    for number in range(MAX_EPISODES):
        step, state = env.reset(seed if number == 0 else None), agent.initial_state(1)
        rows: list[tuple[Step, Tensor]] = []
        while True:
            action, state = policy.act(step, state, mode)
            action = executed(action, step)
            rows.append((step, action))
            if len(rows) == longest or bool(step.is_last[0]):
                break
            step = env.step(action)
        steps = [step for step, _ in rows]
        yield Batch(
            obs={key: torch.stack([step.obs[key] for step in steps], 1) for key in step.obs},
            action=torch.stack([action for _, action in rows], 1),
            reward=torch.stack([step.reward for step in steps], 1),
            is_first=torch.stack([step.is_first for step in steps], 1),
            is_last=torch.stack([step.is_last for step in steps], 1),
            is_terminal=torch.stack([step.is_terminal for step in steps], 1),
            weight=torch.ones(1),
            index=torch.tensor([number]),
        )


def imagined(agent: Agent, batch: Batch, context: int) -> Arrays:
    """Return the model's predictions ``[B, T, ...]``.

    Raises:
        ConfigError: the algorithm has no world model.
    """
    try:
        predictions = agent.algo.dream(batch, context)
    except NotImplementedError as error:
        raise ConfigError(str(error)) from None
    return {key: value.detach().float().cpu().numpy() for key, value in predictions.items()}


def check_finite(predicted: Arrays, context: int, checkpoint: Path) -> None:
    """Raise RunError if a prediction ``[B, T, ...]`` is NaN or infinite: it has no error that could be shown.

    Raises:
        RunError: one is; names the first such row.
    """
    for key, values in predicted.items():
        bad = ~np.isfinite(values.reshape(*values.shape[:2], -1)).all((0, 2))  # [T]
        if bad.any():
            row = int(bad.argmax())
            at = f"imagined step {row - context + 1}" if row >= context else f"row {row + 1}, which the model has seen"
            wrong = values[:, row][~np.isfinite(values[:, row])].flat[0]
            raise RunError(
                f"the world model of {checkpoint.name} predicts {wrong} for '{key}' at {at}: expected finite numbers. "
                "Nothing was written. Use an earlier --checkpoint"
                + (", or a --horizon below that step." if row > context else ".")
            )


def packed(batch: Batch, truth: Arrays, dreamt: Arrays) -> bytes:
    """Return an ``.npz`` of arrays ``[B, T, ...]``: what happened, and what the model predicted, row by row.

    ``truth/KEY`` and ``dream/KEY`` for each observation (``algos/base.py: dreamt_name``), for ``reward``, and for
    ``cont``, which is 0 where an episode is terminal and 1 elsewhere; ``action``, taken at each row; ``is_first`` and
    ``is_last``; ``inside/deter``, ``inside/stoch`` and ``inside/value``. The first rows, ``context`` in dream.json,
    were seen; the others imagined.
    """
    arrays = {"action": batch.action.numpy(), "is_first": batch.is_first.numpy(), "is_last": batch.is_last.numpy()}
    arrays |= {f"truth/{key}": value for key, value in truth.items()}
    arrays |= {key if key.startswith(INSIDE) else f"dream/{key}": value for key, value in dreamt.items()}
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # its stubs take names for options
    return file.getvalue()


def truths(batch: Batch, spec: ObsSpec) -> Arrays:
    """Return the targets of the predictions, in the same units; categorical observations one-hot."""
    out: Arrays = {}
    for key, part in spec.items():
        array = batch.obs[key].numpy()
        exact = one_hot(array, part) if part.kind == "categorical" else array.astype(np.float32)
        out[dreamt_name(key)] = exact
    return out | {"reward": batch.reward.numpy(), "cont": 1.0 - batch.is_terminal.float().numpy()}


def one_hot(index: np.ndarray, part: ObsPart) -> np.ndarray:
    """Return class indices ``[B, T, *shape]`` one-hot ``[B, T, n, C]``, C the most classes of any; -1 gives zeros."""
    flat: np.ndarray = index.reshape(*index.shape[:2], -1, 1)
    hot: np.ndarray = flat == np.arange(max(part.classes))
    return hot.astype(np.float32)


def measure(truth: Arrays, predicted: Arrays, spec: ObsSpec, context: int) -> tuple[Arrays, Arrays, dict[str, str]]:
    """Return by key the error per imagined step ``[H]``, of the dream and of repeating the last row, and its unit.

    Raises:
        ConfigError: a prediction has another shape than what it predicts, or it predicts nothing that is there.
    """
    errors: Arrays = {}
    repeated: Arrays = {}
    units: dict[str, str] = {}
    parts = {dreamt_name(key): part for key, part in spec.items()}
    for key in predicted:
        check_prediction(key, predicted[key], truth, spec)
        real = truth[key].reshape(*truth[key].shape[:2], -1)
        guess = predicted[key].reshape(real.shape)
        held = np.broadcast_to(real[:, context - 1 : context], real.shape)
        part = parts.get(key)
        pairs = ((errors, guess), (repeated, held))
        for out, values in pairs:
            if part is not None and part.kind == "categorical":
                out[key] = np.abs(values - real)[:, context:].sum(-1).mean(0) / 2 / max(1, len(part.classes))
            else:
                wrong = np.subtract(values, real, dtype=np.float64)[:, context:]  # float32 does not hold large squares
                out[key] = np.sqrt(np.square(wrong).mean((0, 2)))
        units[key] = _unit(key, part)
    return errors, repeated, units


def check_prediction(key: str, guess: np.ndarray, truth: Arrays, spec: ObsSpec) -> None:
    """Raise ConfigError unless ``guess`` is a prediction of ``truth[key]`` ``[B, T, *shape]``.

    All but images may be flat, ``[B, T, n]``. Pictures with their channels first have as many numbers, in other places.

    Raises:
        ConfigError: it is not.
    """
    if key not in truth:
        raise ConfigError(
            f"the dream predicts {key!r}, which is no observation: expected some of {', '.join(truth)}. Let the names "
            f"of other values that dream() returns begin with '{INSIDE}'."
        )
    shape = truth[key].shape
    shapes = [shape]
    if key not in spec or spec[key].kind != "image":
        shapes.append((*shape[:2], math.prod(shape[2:])))
    if guess.shape not in shapes:
        wanted = " or ".join(str(list(x)) for x in dict.fromkeys(shapes))
        raise ConfigError(
            f"the prediction of {key!r} has shape {list(guess.shape)}: expected {wanted}, [B, T, ...] like what it "
            "predicts. The decoder's predictions have value(), which must return it; images have their channels last."
        )


def _unit(key: str, part: ObsPart | None) -> str:
    if part is None:
        return "root-mean-square error" if key == "reward" else "root-mean-square error of a probability"
    if part.kind == "categorical":
        return "probability not assigned to the true class"
    if part.kind == "vector":
        many = f", over all {width} numbers" if (width := math.prod(part.shape)) > 1 else ""
        return f"root-mean-square error in the environment's units{many}"
    return f"root-mean-square error in {part.low:g}..{part.high:g}"


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
