"""Choose the size, the replay ratio and the length of a run that takes so many ``hours``, by timing its learner."""

from __future__ import annotations

import contextlib
import importlib
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from reverie.algos import sizes
from reverie.core.config import flatten
from reverie.core.errors import ConfigError, count_noun
from reverie.core.logger import logger, silence_logger
from reverie.core.protocols import Env
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Window
from reverie.experiment.bench import Cost, Forecast, forecast, learner_window, measure_cost, thread_choices
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.config_layers import base_config, with_network_size
from reverie.experiment.describe import format_hours
from reverie.experiment.memory import MIN_RATIO, CountedLearner, check_fits_memory, count_learner
from reverie.experiment.presets import CPU_SUFFIX
from reverie.experiment.resolve import fit_learning_starts

TIME_SHARE = 0.9
"""Part of the hours that a forecast run takes: the rest is for evaluations and checkpoints."""
MAX_LENGTH = 10**9
"""Length of a run that is long enough for any hours."""
GROWTH = 2.0
"""How many times as long an update of the next larger size takes at least."""


class TimedLearner(NamedTuple):
    """Settings of a run, and what its learner costs on this machine."""

    config: ExperimentConfig
    window: Window
    cost: Cost
    counted: CountedLearner | None
    """None on a GPU."""

    def forecast(self) -> Forecast:
        """Forecast the run."""
        return forecast(self.config, self.window, self.cost)

    def merge(self, **changes: float | None) -> TimedLearner:
        """Return the same learner in a run with ``changes`` of its settings; learning starts early in a short run."""
        config = self.config.merge(changes)
        with silence_logger():
            return self._replace(config=fit_learning_starts(config) if config.is_open("learning_starts") else config)


def fit_hours(
    config: ExperimentConfig,
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    env: Env | None,
    device: str,
    started: float,
    confirm: Callable[[str], bool] | None = None,
) -> tuple[ExperimentConfig, Forecast]:
    """Return ``config`` with what takes ``config.hours`` since ``started`` by a forecast, and that forecast.

    What the user has set stays, except that the run can be shorter. ConfigError if it does not fit into memory.
    """
    assert config.hours is not None

    def time_learner(config: ExperimentConfig, size: str = "") -> TimedLearner | None:
        logger.info(f"hours = {config.hours:g}: timing updates and env steps{f' of size {size}' if size else ''}")
        config = with_network_size(config, size) if size else config
        counted = count_learner(config, obs_spec, action_spec) if device == "cpu" else None
        if device == "cpu":
            check_fits_memory(config, obs_spec, action_spec, counted, None if size else confirm)
        cost = measure_cost(config, obs_spec, action_spec, thread_choices(config), None if config.offline else env)
        window = counted.window if counted else learner_window(config, obs_spec, action_spec)
        return None if cost is None else TimedLearner(config, window, cost, counted)

    if (learner := time_learner(config)) is None:
        raise ConfigError(f"hours = {config.hours:g}: the learner cannot be timed. Set {config.unit} instead.")
    limit = TIME_SHARE * (config.hours - (time.perf_counter() - started) / 3600)
    learner, size = fit_size(learner, limit, time_learner)
    torch.set_num_threads(learner.cost.threads)
    if device == "cpu" and not config.threads:
        learner = learner.merge(threads=learner.cost.threads)
    chosen, longer = fit_ratio_and_length(learner, limit), fit_ratio_and_length(learner, 2 * limit)
    if device == "cpu":
        check_fits_memory(chosen.config, obs_spec, action_spec, chosen.counted, confirm)
    words, more = describe_choice(chosen, size), describe_choice(longer, size)
    logger.info(f"hours = {config.hours:g}: {', '.join(words)}")
    twice = ", ".join(word for word in more if word not in words)
    twice = twice and f"; twice the time would buy {twice}"
    logger.info(f"they take about {format_hours(chosen.forecast().hours)} on this machine{twice}")
    return fit_learning_starts(chosen.config), chosen.forecast()


def fit_size(
    learner: TimedLearner, hours: float, time_learner: Callable[[ExperimentConfig, str], TimedLearner | None]
) -> tuple[TimedLearner, str]:
    """Return the largest learner, up to the published size, whose run takes ``hours``, and its size; "" if none."""
    config, (names, index) = learner.config, list_sizes(learner.config)
    if learner.forecast().updates_h > hours:
        while index > 0 and learner.forecast().updates_h > hours and (timed := time_learner(config, names[index - 1])):
            index, learner = index - 1, timed
        return learner, names[index] if names else ""
    while index < len(names) - 1 and GROWTH * learner.forecast().hours <= hours:
        timed = None
        with contextlib.suppress(ConfigError):  # it does not fit into memory
            timed = time_learner(config, names[index + 1])
        if timed is None or timed.forecast().hours > hours:
            break
        index, learner = index + 1, timed
    return learner, names[index] if names else ""


def list_sizes(config: ExperimentConfig) -> tuple[list[str], int]:
    """Return the names of sizes up to the published one, and the index of that of ``config``; none if it is fixed."""
    module = importlib.import_module(type(config.algo).__module__)
    if not config.preset or not config.is_open("size") or not hasattr(module, "with_size"):
        return [], 0
    names = [name for name in getattr(module, "SIZES", sizes.SIZES) if name.islower()]

    def find(config: ExperimentConfig) -> int:
        same = (i for i, name in enumerate(names) if with_network_size(config, name).algo == config.algo)
        return next(same, -1)

    index, published = find(config), find(published_config(config))
    return ([], 0) if index < 0 else (names[: max(index, published) + 1], index)


def published_config(config: ExperimentConfig) -> ExperimentConfig:
    """Return the preset of ``config`` without changes for a machine without a GPU."""
    return base_config(config.name, config.env.id, config.preset.removesuffix(CPU_SUFFIX))


def fit_ratio_and_length(learner: TimedLearner, hours: float) -> TimedLearner:
    """Return ``learner`` in a run of ``hours``: updates per env step with which its length fits, then the length."""
    config, run = learner.config, learner.forecast()
    ratio, has_ratio = config.updates_per_step(learner.window), not config.offline and not config.algo.on_policy
    if has_ratio and config.preset and config.is_open("replay_ratio", "train_ratio") and run.updates_h:
        algo = published_config(config).algo
        published = published_config(config).updates_per_step(Window(batch=algo.batch_size, length=algo.batch_length))
        fitting = ratio * (hours - (run.hours - run.updates_h)) / run.updates_h
        chosen = min(max(fitting, min(MIN_RATIO, ratio)), max(ratio, published))
        if not math.isclose(chosen, ratio):
            digits = 10 ** (1 - math.floor(math.log10(chosen)))
            learner = learner.merge(replay_ratio=math.floor(chosen * digits + 1e-9) / digits, train_ratio=None)
    longest = max_length(config)
    low, high = max(1, learner.window.rollout * config.env.num), longest
    while low + 1 < high:
        middle = min((low + high) // 2, 2 * low)
        fits = learner.merge(**{config.unit: middle}).forecast().hours <= hours
        low, high = (middle, high) if fits else (low, middle)
    digit = 10 ** max(0, len(str(low)) - 2)
    return learner.merge(**{config.unit: longest if high == longest else low // digit * digit})


def describe_choice(learner: TimedLearner, size: str) -> list[str]:
    """Return the settings of a run that depend on its hours."""
    config = learner.config
    words = [f"{config.length:,} {config.unit}", *([f"size {size}"] if size else [])]
    if config.offline:
        return words
    ratio = f"{config.updates_per_step(learner.window):.2g} updates per step"
    return [*words, *([ratio] if not config.algo.on_policy else []), count_noun(config.env.num, "env")]


def max_length(config: ExperimentConfig) -> int:
    """Return the longest useful run: the user's, or until a schedule, such as that of a learning rate, ends at 0."""
    if not config.preset or not config.is_open(config.unit):
        return config.length
    values = [value for value in flatten(config.algo.to_dict()).values() if isinstance(value, list) and value]
    ends = [int(value[-1][0]) for value in values if isinstance(value[-1], list) and value[-1][1] == 0]
    return min([*ends, MAX_LENGTH])
