"""Compare a world model's open-loop predictions with real episodes: it observes the beginning and imagines the rest."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.agent.agent import Agent
from reverie.agent.conversion import to_numpy
from reverie.agent.dream_figures import Arrays, draw_dream_figures, draw_strip
from reverie.agent.dream_strip import make_dream_strip
from reverie.agent.player import policy_mode
from reverie.algos.base import INTERNAL_PREFIX, prediction_name
from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError, RunError, count_noun
from reverie.core.files import check_writable, disk_errors_as_run_error, write_atomic, write_json
from reverie.core.logger import logger
from reverie.core.protocols import Env, Policy
from reverie.core.seeding import derived_seeds, seeded_rng
from reverie.core.specs import ObsPart, ObsSpec
from reverie.core.types import FLAGS, Batch, Mode
from reverie.datasets.data_path import DataLike
from reverie.experiment.environments import make_eval_env
from reverie.log.strip import Strip, check_strip_path
from reverie.replay.sources import concat_batches
from reverie.run.folder import RunFolder
from reverie.run.turn import take_turn, to_executed_action

CONTEXT = 8
"""Default maximum number of rows that the model observes."""
AT_ONCE = 16
"""Episodes that are played at a time: to make an environment can take as long as to play an episode."""
MAX_EPISODES = 50
"""Maximum number of episodes played to find some that are long enough."""

Episodes = tuple[Iterator[Batch], dict[str, str | bool]]
"""The rows of consecutive episodes, ``[1, T]`` each, and the description of their source in dream.json."""


@dataclass(frozen=True, kw_only=True)
class DreamReport:
    """Errors of open-loop predictions, and the files written about them."""

    context: int
    """Rows of each episode that the model has observed."""
    num_episodes: int
    """Number of episodes predicted; fewer than requested if others were too short."""
    errors: dict[str, np.ndarray]
    """Mean error by observation key, "reward" and "cont", at each imagined step ``[H]``, in ``units``. Observation keys
    that collide with these names, such as "reward", are prefixed with "obs/", here and in the files."""
    baseline_errors: dict[str, np.ndarray]
    """The same errors of a baseline that repeats the last observed row."""
    units: dict[str, str]
    """Definition of the error of each key."""
    files: dict[str, Path]
    """Written files by name: "numbers" (dream.json), "arrays" (dream.npz), "traces", "errors", "strip", and videos."""
    strip: Strip
    """The strip of the first episode: some rows and their dream, and how far each row of the dream is off."""


def dream(
    agent: Agent, *, context: int | None = None, horizon: int = 48, episodes: int = 6, deterministic: bool = True,
    seed: int | None = None, data: DataLike | None = None, strip: Path | str | None = None,
) -> DreamReport:  # fmt: skip
    """Let the model observe ``context`` rows of episodes and imagine the rest, and compare both.

    The agent plays the episodes, or they come from a dataset: then no environment is needed, and several models or
    checkpoints can be compared on the same rows. Videos, traces of vectors, the error at each step, and all arrays
    (:func:`_dream_arrays_npz`) are written to ``<run>/dream/``.

    Args:
        agent: an agent whose algorithm has a world model.
        context: rows of each episode that the model observes, at least 1. None: 8, or a third of the usual episode if
            that is less.
        horizon: maximum env steps to imagine after them, at least 1 (decisions of the policy, not counting action
            repeat).
        episodes: number of episodes to predict, at least 1. All are kept in memory, and predicted as one batch.
        deterministic: play the episodes with the policy's most likely actions. False: sample actions.
        seed: of environments and predictions. None: derived from the run's seed.
        data: recorded episodes to predict: a path, minari:NAME, data in memory, or a DatasetConfig. The first episodes
            with ``context + horizon`` rows are used; if there are fewer than ``episodes``, also the longest others.
            None: the agent plays.
        strip: file for the strip of the first episode: NAME.png or NAME.svg. None: strip.png beside the
            other files, if observations can be drawn.

    Raises:
        ConfigError: a number is out of range, ``deterministic`` is False with ``data``, the algorithm has no world
            model, or ``strip`` has another file type or observations that cannot be drawn.
        DataError: ``data`` cannot be read, or do not match the agent.
        RunError: no episode is longer than ``context`` rows, a prediction is NaN or infinite, or the run folder cannot
            be written.
        EnvError: the environment cannot be made.
    """
    for name, value in {"context": context, "horizon": horizon, "episodes": episodes}.items():
        AtLeast(1).check(name, value)
    folder, strip_path = RunFolder(agent.run).dream, None if strip is None else Path(strip)
    for path in (folder, *([] if strip_path is None else [check_strip_path(strip_path)])):
        check_writable(path)
    seed = derived_seeds(agent.config.seed)["evaluation"] if seed is None else seed
    mode, longest = policy_mode(deterministic), (CONTEXT if context is None else context) + horizon
    if data is not None and mode != "eval":
        raise ConfigError(
            "deterministic = False with data: recorded episodes keep their actions. Remove one of the two options."
        )
    if data is None:
        source = open_played_episodes(agent, longest, mode, seed)
    else:
        source = _open_recorded_episodes(agent, data, longest)
    with source as (beginnings, origin), seeded_rng(seed):
        if context is None:
            context, beginnings = choose_context(beginnings, episodes)
        batch = collect_beginnings(beginnings, context, episodes, context + (1 if data is None else horizon), horizon)
        predictions = predict_open_loop(agent, batch, context)
    predicted = {key: value for key, value in predictions.items() if not key.startswith(INTERNAL_PREFIX)}
    _check_finite(predicted, agent.checkpoint)
    truth = _dream_targets(batch, agent.obs_spec)
    errors, baseline_errors, units = dream_errors(truth, predicted, agent.obs_spec, context)
    first_strip = make_episode_strip(agent, batch, {key: x[0] for key, x in predicted.items()}, context)
    if (clip := agent.config.env.clip_reward) != "none":
        units["reward"] += f" of rewards after env.clip_reward = {clip}"
    report_data = {
        "updates" if agent.config.offline else "env_steps": agent.step,
        "checkpoint": agent.checkpoint.name,
        **origin,
        "episodes": batch.index.tolist(),
        "seed": seed,
        "context": context,
        "num_episodes": batch.shape[0],
        "units": units,
        "error_per_step": {key: value.tolist() for key, value in errors.items()},
        "last_row_repeated": {key: value.tolist() for key, value in baseline_errors.items()},
    }
    with disk_errors_as_run_error(folder):
        name = str(origin.get("data", ""))
        files = draw_dream_figures(agent, batch, predicted, context, errors, baseline_errors, units, name)
        files |= draw_strip(agent, first_strip, batch, predicted, strip_path)
        files |= {"numbers": folder / "dream.json", "arrays": folder / "dream.npz"}
        write_json(files["numbers"], report_data)
        write_atomic(files["arrays"], _dream_arrays_npz(batch, truth, predictions))
    return DreamReport(
        context=context,
        num_episodes=batch.shape[0],
        errors=errors,
        baseline_errors=baseline_errors,
        units=units,
        files=files,
        strip=first_strip,
    )


def predict_open_loop(agent: Agent, batch: Batch, context: int) -> Arrays:
    """Return the model's predictions ``[B, T, ...]``; ConfigError if the algorithm has no world model."""
    try:
        predictions = agent.algo.dream(batch, context)
    except NotImplementedError as error:
        raise ConfigError(str(error)) from None
    return {key: to_numpy(value) for key, value in predictions.items()}


def make_episode_strip(agent: Agent, batch: Batch, predicted: Arrays, context: int) -> Strip:
    """Return the strip of the first episode of a batch ``[B, T]`` and its dream ``[T, ...]`` after ``context`` rows."""
    real = {prediction_name(key): x[0].numpy() for key, x in batch.obs.items()} | {"reward": batch.reward[0].numpy()}
    origins = ["seen"] * context + ["imagined"] * (batch.shape[1] - context)
    is_terminal = bool(batch.is_terminal[0, -1])
    return make_dream_strip(agent.obs_spec, real, predicted, origins, is_terminal=is_terminal)


def _check_finite(predicted: Arrays, checkpoint: Path) -> None:
    """Raise RunError if a prediction ``[B, T, ...]`` is NaN or infinite, so that its error is undefined."""
    for key, values in predicted.items():
        if not np.isfinite(values).all():
            raise RunError(
                f"the world model of {checkpoint.name} predicts NaN or infinity for '{key}'; nothing was written. "
                "Use an earlier --checkpoint, or a smaller --horizon."
            )


def _dream_arrays_npz(batch: Batch, truth: Arrays, dreamt: Arrays) -> bytes:
    """Return an ``.npz`` of arrays ``[B, T, ...]``: the real rows and the model's predictions.

    ``truth/KEY`` and ``dream/KEY`` for each observation (``algos/base.py: prediction_name``), for ``reward``, and for
    ``cont``, which is 0 where an episode is terminal and 1 elsewhere; ``action``, ``is_first`` and ``is_last``;
    ``inside/deter``, ``inside/stoch`` and ``inside/value``. The model observed the first rows; ``context`` in
    dream.json is their number.
    """
    arrays = {"action": batch.action.numpy(), "is_first": batch.is_first.numpy(), "is_last": batch.is_last.numpy()}
    arrays |= {f"truth/{key}": value for key, value in truth.items()}
    arrays |= {key if key.startswith(INTERNAL_PREFIX) else f"dream/{key}": value for key, value in dreamt.items()}
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # its stubs take names for options
    return file.getvalue()


# ---------------------------------------------------------------- errors


def _dream_targets(batch: Batch, spec: ObsSpec) -> Arrays:
    """Return the targets of the predictions, in the same units; categorical observations one-hot."""
    out: Arrays = {}
    for key, part in spec.items():
        values = batch.obs[key].numpy()
        classes = part.kind == "categorical"
        out[prediction_name(key)] = one_hot_classes(values, part) if classes else values.astype(np.float32)
    return out | {"reward": batch.reward.numpy(), "cont": 1.0 - batch.is_terminal.float().numpy()}


def one_hot_classes(index: np.ndarray, part: ObsPart) -> np.ndarray:
    """Return class indices ``[B, T, *shape]`` one-hot ``[B, T, n, C]``, where C is the largest number of classes.

    -1 gives zeros.
    """
    flat: np.ndarray = index.reshape(*index.shape[:2], -1, 1)
    hot: np.ndarray = flat == np.arange(max(part.classes))
    return hot.astype(np.float32)


def dream_errors(
    truth: Arrays, predicted: Arrays, spec: ObsSpec, context: int
) -> tuple[Arrays, Arrays, dict[str, str]]:
    """Return the error per imagined step ``[H]`` by key, for the dream and for repeating the last row, and its unit."""
    errors: Arrays = {}
    baseline_errors: Arrays = {}
    units: dict[str, str] = {}
    parts = {prediction_name(key): part for key, part in spec.items()}
    for key, values in predicted.items():
        part = parts.get(key)
        real = truth[key].reshape(*truth[key].shape[:2], -1)
        last_row = np.broadcast_to(real[:, context - 1 : context], real.shape)
        for out, guess in ((errors, values.reshape(real.shape)), (baseline_errors, last_row)):
            out[key] = prediction_error(guess[:, context:], real[:, context:], part)
        units[key] = error_unit(key, part)
    return errors, baseline_errors, units


def prediction_error(guess: np.ndarray, real: np.ndarray, part: ObsPart | None) -> np.ndarray:
    """Return the error ``[T]`` of predictions ``[B, T, n]`` in the unit of :func:`error_unit`."""
    if part is not None and part.kind == "categorical":
        shares: np.ndarray = np.abs(guess - real).sum(-1).mean(0) / 2 / len(part.classes)
        return shares
    wrong = np.subtract(guess, real, dtype=np.float64)  # float32 overflows on large squares
    return np.asarray(np.sqrt(np.square(wrong).mean((0, 2))))


def error_unit(key: str, part: ObsPart | None) -> str:
    """Return the unit of an observation's error; ``part`` is None for reward and continuation."""
    if part is None:
        return "root-mean-square error" if key == "reward" else "root-mean-square error of a probability"
    if part.kind == "categorical":
        return "probability not assigned to the true class"
    if part.kind == "vector":
        width_text = f", over all {width} numbers" if (width := math.prod(part.shape)) > 1 else ""
        return f"root-mean-square error in the environment's units{width_text}"
    return f"root-mean-square error in {part.low:g}..{part.high:g}"


# ---------------------------------------------------------------- episodes


def make_live_env(agent: Agent, episodes: int = 1, *, render: bool = False) -> Env:
    """Make the agent's environment, with rewards as in training; rendered games begin without opening moves.

    As in evaluations, there are ``eval_envs`` of them, but no more than ``episodes`` or ``AT_ONCE``.
    """
    config = agent.config.merge({"eval_episodes": min(episodes, AT_ONCE)})
    if render:
        kwargs = {name: value for name, value in config.env.kwargs.items() if name != "opening_moves"}
        config = config.merge({"env": {"kwargs": kwargs}})
    return make_eval_env(config, agent.factory, render=render, as_trained=True)


@contextlib.contextmanager
def open_played_episodes(
    agent: Agent, longest: int, mode: Mode, seed: int, policy: Policy[Any] | None = None, episodes: int = MAX_EPISODES
) -> Iterator[Episodes]:
    """Make the environment, to play up to ``episodes`` of at most ``longest`` rows with the agent's or any policy."""
    env = make_live_env(agent, episodes)
    try:
        chosen = agent.algo.policy if policy is None else policy
        yield _iter_episodes(env, agent, chosen, longest, mode, seed, episodes), {"deterministic": mode == "eval"}
    finally:
        env.close()


def _iter_episodes(
    env: Env, agent: Agent, policy: Policy[Any], longest: int, mode: Mode, seed: int, episodes: int
) -> Iterator[Batch]:
    for begun in range(0, episodes, env.num_envs):
        step, state = env.reset(seed if begun == 0 else None), agent.initial_state(env.num_envs)
        steps, actions, is_over = [step], list[Tensor](), step.is_last
        while len(steps) < longest and not is_over.all():
            action, step, state = take_turn(env, policy, step, state, mode)
            actions.append(action)
            steps.append(step)
            is_over = is_over | step.is_last
        actions.append(to_executed_action(policy.act(step, state, mode)[0], step))
        columns = {f"obs/{key}": torch.stack([step.obs[key] for step in steps], 1) for key in step.obs}
        columns |= {name: torch.stack([getattr(step, name) for step in steps], 1) for name in ("reward", *FLAGS)}
        columns["action"] = torch.stack(actions, 1)  # [N, T, A]
        for number in range(begun, min(begun + env.num_envs, episodes)):
            row = number - begun
            ends = columns["is_last"][row].nonzero()[:1, 0] + 1  # rows of further episodes follow
            length = int(ends[0]) if len(ends) else len(steps)
            yield Batch.from_columns(
                {name: x[row : row + 1, :length] for name, x in columns.items()}, torch.tensor([number])
            )


@contextlib.contextmanager
def _open_recorded_episodes(agent: Agent, data: DataLike, longest: int) -> Iterator[Episodes]:
    """Open a dataset to read its episodes, each cut off after ``longest`` rows; afterwards, log its remarks."""
    with agent.open_dataset(data) as dataset:
        yield dataset.beginnings(longest), {"data": str(dataset.reader.path)}
        for remark in dataset.remarks():
            logger.warning(f"{dataset.reader.path}: {remark}")


def choose_context(episodes: Iterator[Batch], num_episodes: int) -> tuple[int, Iterator[Batch]]:
    """Return the number of context rows, a third of the median length, 1 to ``CONTEXT``.

    And all episodes ``[1, T]``.
    """
    first = list(itertools.islice(episodes, num_episodes))
    lengths = sorted(episode.shape[1] for episode in first) or [0]
    return max(1, min(CONTEXT, lengths[len(lengths) // 2] // 3)), itertools.chain(first, episodes)


def collect_beginnings(episodes: Iterable[Batch], context: int, num_episodes: int, enough: int, horizon: int) -> Batch:
    """Return the beginnings of up to ``num_episodes`` episodes ``[1, T]`` as one batch ``[B, T]``, cut to one length T.

    T is at most ``context + horizon``. These are the first episodes with ``enough`` rows; if there are too few, also
    the longest others.
    """
    long: list[Batch] = []
    count = 0
    for episode in episodes:
        count += 1
        if episode.shape[1] > context:
            long.append(episode)
        if len(long) > num_episodes:
            del long[min(range(len(long)), key=lambda i: (long[i].shape[1], -i))]  # the last one of the shortest
        if sum(episode.shape[1] >= enough for episode in long) == num_episodes:
            break
    if not long:
        raise RunError(
            f"none of {count_noun(count, 'episode')} is longer than context = {context} rows. Use a smaller --context."
        )
    # A few long dreams are better than many short ones: cut to the length that half of the episodes have.
    lengths = sorted(episode.shape[1] for episode in long)
    length = min(lengths[len(lengths) // 2], context + horizon)
    chosen = [episode.slice_time(0, length) for episode in long if episode.shape[1] >= length]
    return stack_windows(chosen)


def stack_windows(windows: Sequence[Batch]) -> Batch:
    """Return windows ``[B, T]`` of one length as one batch, without extras."""
    return concat_batches([replace(window, extras={}, goals={}) for window in windows])
