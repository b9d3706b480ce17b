"""Sentences that a run prints about itself: before it begins, and if it learned nothing."""

from __future__ import annotations

import math

from reverie.algos.base import Algorithm, AlgorithmConfig, ValueConfig
from reverie.core.compiler import trouble
from reverie.core.discover import algorithm_name
from reverie.core.machine import available_memory
from reverie.core.types import Window
from reverie.core.words import Say, plural
from reverie.experiment import Experiment, ExperimentConfig
from reverie.nn.rewards import Factor
from reverie.noise import Pace
from reverie.replay.capacity import replay_bytes
from reverie.replay.dataset import Statistics
from reverie.replay.mix import shares

FAR = 30.0
"""Size of recorded rewards, or its inverse, from which a setting in units of values no longer fits them."""


def say_nothing(text: str) -> None:
    """Ignore ``text``, for callers who want no output."""


def describe(experiment: Experiment, say: Say, speed: Pace | None = None) -> None:
    """Describe what is about to be trained, the memory that it takes, and by the learner's ``speed`` the time."""
    config, window = experiment.config, experiment.algo.window
    count = sum(p.numel() for p in experiment.algo.parameters() if p.requires_grad)
    needed, free = replay_bytes(config.replay, experiment.replay, config.steps), available_memory()
    room = "" if free is None else f" of {free / 1e9:.1f} GB available"
    if config.replay.device != "cpu" or config.replay.storage != "ram":
        room = f" on {config.replay.device}" if config.replay.device != "cpu" else " in mapped files"
    ratio = config.ratio(window)
    if config.stop_score is not None and not config.evaluates_on_the_way:
        say(f"stop_score = {config.stop_score:g} has no effect without evaluations during training")
    if inherited := inherited_learner(type(config.algo), experiment.algo):
        say(inherited)
    if experiment.algo.device.type == "cpu" and trouble():
        say(trouble())
    describe_data(experiment, say)
    if line := outlook(config, window, speed):
        say(line)
    if config.data.alone:
        say(
            f"{algorithm_name(type(config.algo))} from recorded data alone: {count / 1e6:.2f}M parameters on "
            f"{experiment.algo.device}, {plural(config.updates, 'update')}, {memory(needed)} of rows"
        )
        return
    say(
        f"{algorithm_name(type(config.algo))} on {config.env.id}: {count / 1e6:.2f}M parameters on "
        f"{experiment.algo.device}, {plural(config.env.num, 'env')}, "
        f"{ratio:g} update{'s' * (ratio != 1)} per env step (train ratio {ratio * window.batch * window.length:g}), "
        f"replay up to {memory(needed)}{room}"
    )


def outlook(config: ExperimentConfig, window: Window, speed: Pace | None) -> str:
    """Return the preset, why it was chosen, and how long the run will take, as far as these are known; "" if neither.

    The time is without the environment's own and without evaluations. A run of more than 12 hours, or one that was
    meant for a CPU and is not short there, gets a length for about an hour.
    """
    unit, length = ("updates", config.updates) if config.data.alone else ("steps", config.steps)
    published, _, small = config.preset.partition("+")
    words = [f"preset {config.preset}{' (for a machine without a GPU)' * bool(small)}"] if config.preset else []
    if speed is not None:
        updates, decisions = planned(config, window)
        hours = (updates * speed.update_s + decisions * speed.act_s) / 3600
        time = f"{max(1, 60 * hours):.0f} min" if hours < 1.5 else f"{hours:,.{int(hours < 10)}f} h"
        threads = plural(speed.threads, "thread")
        here = f"on this machine, as busy as it is, with {threads}"
        words.append(f"{length:,} {unit} take about {time} of learning and acting {here}")
        if hours > (3 if small else 12):
            an_hour = float(f"{length / hours:.1g}")
            smaller = "" if small else ", and --preset cpu has small networks and a short run"
            words.append(f"--{unit} {max(1, round(an_hour)):_} take about an hour{smaller}")
    return "; ".join([*words, *([f"published settings: --preset {published}"] if small else [])])


def planned(config: ExperimentConfig, window: Window) -> tuple[int, int]:
    """Return the updates of a run, and the policy's decisions, each for all environments."""
    if config.data.alone:
        return config.updates, 0
    return int(max(0, config.steps - config.learning_starts) * config.ratio(window)), config.steps // config.env.num


def inherited_learner(config: type[AlgorithmConfig], algo: Algorithm) -> str:
    """Return whose learner ``algo`` is, if its configuration says nothing of it; else "".

    A class that only changes defaults may leave it so, but one whose line ``MyConfig.learner = MyLearner`` was
    forgotten looks the same.
    """
    owner = next((kind for kind in config.__mro__ if "learner" in vars(kind)), config)
    if owner is config or type(algo) is not config.learner:
        return ""
    return (
        f"{algorithm_name(config)} trains {config.learner.__name__}, the learner of {owner.__name__}; if you wrote "
        f"another one, set {config.__name__}.learner to its class"
    )


def memory(size: int) -> str:
    """Return a number of bytes in GB, or in MB or kB where that would be less than a tenth."""
    unit, name = next(((u, n) for u, n in ((1e9, "GB"), (1e6, "MB")) if size >= 0.1 * u), (1e3, "kB"))
    return f"{size / unit:.2f} {name}"


def describe_data(experiment: Experiment, say: Say) -> None:
    """Describe the recorded data of the run, and the assumptions made about them."""
    config = experiment.config
    for remark in experiment.remarks:
        say(f"{config.data.path}: {remark}")
    if experiment.dataset is not None:
        statistics = experiment.dataset.statistics()
        say(data_in_words(experiment, statistics))
        if remark := rewards_far_from_1(config.algo, statistics.reward_size):
            say(remark)
    elif config.algo.needs_data:
        say(
            f"{algorithm_name(type(config.algo))} is meant for recorded data, but there is none: it learns only from "
            "the rows that it collects. Pass --data PATH to add recorded data"
        )
    if experiment.estimator is not None:
        say(
            f"the policy's return will be estimated from the data by FQE ({config.data.estimate_updates:,} updates "
            "per estimate); set data.estimate_updates = 0 to disable this"
        )


def data_in_words(experiment: Experiment, statistics: Statistics) -> str:
    """Describe the recorded data in a sentence."""
    data, window = experiment.config.data, experiment.algo.window
    part = "" if data.alone else f", {shares(window, data.fraction)[0].batch} of the {window.batch} windows of a batch"
    low, mean, high = statistics.scores
    steps = plural(statistics.steps, "recorded step")
    return (
        f"{steps} in {plural(statistics.episodes, 'episode')} of {data.path}{part}: "
        f"returns {low:.1f} to {high:.1f}, mean {mean:.1f}"
    )


def rewards_far_from_1(config: AlgorithmConfig, size: float) -> str:
    """Return that rewards do not fit a setting in units of values, and what to do; "" if they do or it was changed.

    ``size``: ``Statistics.reward_size``.
    """
    if not isinstance(config, ValueConfig) or not config.in_units_of_values:
        return ""
    name, scale = config.in_units_of_values, config.reward_scale
    default = getattr(config, name) == getattr(type(config)(), name)
    if not default or not isinstance(scale, Factor | None):  # return_std finds the scale itself
        return ""
    learned = size * (scale.factor if scale is not None else 1.0)
    if not learned or 1 / FAR <= learned <= FAR:
        return ""
    scaled = "" if scale is None else f", after scaling by {scale.factor:g}"
    return (
        f"the rewards are far from 1: {learned:.4g} as root mean square of those that are not 0{scaled}. algo.{name} "
        f"is in units of values and its default fits rewards near 1, so {algorithm_name(type(config))} may learn "
        f"badly. Pass --algo.reward-scale 'factor({10.0 ** round(-math.log10(size)):g})', or set algo.{name} to fit"
    )


def why_idle(experiment: Experiment) -> str:
    """Return why a finished run has made no update, or "" if it made some or its settings asked for none."""
    config, window, offered = experiment.config, experiment.algo.window, len(experiment.replay)
    expected = config.data.alone or config.ratio(window) == 0
    if experiment.clock.updates or expected or offered >= config.learning_starts:
        return ""
    within = "" if window.crosses_episodes else f" of {window.rows - window.free} rows within one episode"
    return (
        f"no updates were made: learning starts after {config.learning_starts} windows{within}, but the replay offers "
        f"only {offered}. Lower learning_starts, or use shorter windows (algo.batch_length)"
    )
