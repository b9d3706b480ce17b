"""Sentences about a run that begins: its data, its settings, and how long it will take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from reverie.core.errors import RunError, count_noun
from reverie.core.hardware import available_memory
from reverie.core.kernel_dispatch import kernel_problem
from reverie.core.logger import logger
from reverie.core.specs import ObsSpec
from reverie.core.types import Window
from reverie.experiment.bench import Forecast
from reverie.experiment.config import ExperimentConfig
from reverie.replay.config import replay_bytes
from reverie.replay.sources import split_window

LONG_HOURS = 12.0
"""Hours above which a run is not begun without a question."""


def describe_experiment(experiment: Any) -> list[str]:
    """Describe what is about to be trained: its data, the time by the learner's speed, and the memory that it takes.

    ``experiment``: that of ``experiment/build.py``, which imports this module.
    """
    config, window, algo = experiment.config, experiment.algo.window, experiment.algo
    lines = [f"{config.data.label}: {remark}" for remark in experiment.remarks]
    if config.eval_env is not None:
        lines.append(f"evaluations take place in {config.eval_env_config.label()}: eval_env = {config.eval_env}")
    if algo.device.type == "cpu" and kernel_problem():
        lines.append(kernel_problem())
    if experiment.dataset is not None:
        statistics = experiment.dataset.statistics()
        num_recorded = split_window(window, config.offline_fraction)[0].batch if not config.offline else 0
        part = f", {num_recorded} of the {window.batch} windows of a batch" if num_recorded else ""
        low, mean, high = statistics.scores
        returns = (
            f"returns {low:.1f} to {high:.1f}, mean {mean:.1f}" if experiment.dataset.has_rewards else "no rewards"
        )
        lines.append(
            f"{count_noun(statistics.steps, 'recorded step')} in {count_noun(statistics.episodes, 'episode')} of "
            f"{config.data.label}{part}: {returns}"
        )
        lines += [line] if (line := motionless(config, experiment.obs_spec)) else []
    elif config.algo.needs_data:
        lines.append(
            f"{config.name} is meant for recorded data, but there is none: it learns only from the rows that it "
            "collects. Pass --data PATH to add recorded data"
        )
    if experiment.estimator is not None:
        lines.append(
            f"the policy's return will be estimated from the data by FQE ({config.data.estimate_updates:,} updates "
            "per estimate); set data.estimate_updates = 0 to disable this"
        )
    if line := describe_forecast(config, window, experiment.forecast, experiment.obs_spec):
        lines.append(line)
    count = sum(p.numel() for p in algo.parameters() if p.requires_grad)
    needed = format_bytes(replay_bytes(config.replay, experiment.replay, config.steps))
    network = f"{count / 1e6:.2f}M parameters on {algo.device}"
    if config.offline:
        updates = count_noun(config.updates, "update")
        return [*lines, f"{config.name} from recorded data alone: {network}, {updates}, {needed} of rows"]
    free = available_memory()
    room = "" if free is None else f" of {free / 1e9:.1f} GB available"
    if config.replay.device != "cpu" or config.replay.storage != "ram":
        room = f" on {config.replay.device}" if config.replay.device != "cpu" else " in mapped files"
    ratio = config.updates_per_step(window)
    rate = f"{ratio:g} update{'s' * (ratio != 1)} per env step (train ratio {ratio * window.batch * window.length:g})"
    envs = count_noun(config.env.num, "env")
    if config.actors:
        envs = f"{count_noun(config.actors, 'actor')} with {envs} each"
    return [*lines, f"{config.name} on {config.env.id}: {network}, {envs}, {rate}, replay up to {needed}{room}"]


def motionless(config: ExperimentConfig, spec: ObsSpec) -> str:
    """Return a remark if recorded images are learned from one by one, so that no motion is seen; "" if not."""
    single = [key for key, part in spec.items() if part.kind == "image" and part.shape[-1] in (1, 3)]
    if not single or getattr(config.algo, "frame_stack", 0) != 1:
        return ""
    return (
        f"each decision sees a single image ({', '.join(single)}), and so no motion: algo.frame_stack = 4 stacks the "
        "latest four, as Atari's presets do"
    )


def describe_forecast(config: ExperimentConfig, window: Window, forecast: Forecast | None, spec: ObsSpec) -> str:
    """Return the preset, what it does to images, and how long the run will take, as far as these are known, or "".

    The time is without evaluations. A run of more than 12 hours, or one that was
    meant for a CPU and is not short there, gets a length for about an hour.
    """
    published, _, shrink_frame = config.preset.partition("+")
    words = [f"preset {config.preset}{' (for a machine without a GPU)' * bool(shrink_frame)}"] if config.preset else []
    if (size := config.env.max_image_size) and any(part.shape[:2] == size for part in spec.values()):
        words.append(f"images larger than {size[0]} x {size[1]} are resized to that (env.max_image_size)")
    if not config.planned_counts(window)[0] and not window.rollout:
        why = f"the first update comes after {config.first_update_step(window):,}"
        why = why if config.updates_per_step(window) else "the replay ratio is 0"
        words.append(f"nothing will be learned in {config.length:,} steps: {why}")
    if forecast is not None and config.hours is None:  # the hours have been reported
        hours = forecast.hours
        env_text = " besides the environment's steps" if forecast.envs_h is None and not config.offline else ""
        threads = count_noun(config.threads or torch.get_num_threads(), "thread")
        machine = f"on this machine, as busy as it is, with {threads}"
        words.append(f"{config.length:,} {config.unit} take about {format_hours(hours)}{env_text} {machine}")
        if hours > (3 if shrink_frame else LONG_HOURS):
            smaller = "" if shrink_frame else ", and --preset cpu has small networks and a short run"
            words.append(f"{hour_text(config, hours)}{smaller}")
    return "; ".join([*words, *([f"published settings: --preset {published}"] if shrink_frame else [])])


def hour_text(config: ExperimentConfig, hours: float) -> str:
    """Return what to set so that a run of so many ``hours`` takes about one."""
    return f"--{config.unit} {max(1, round(float(f'{config.length / hours:.1g}'))):_} take about an hour"


def long_run_text(config: ExperimentConfig, forecast: Forecast | None) -> str:
    """Return that a run is forecast to take more than ``LONG_HOURS``, and what takes less; "" if it is not."""
    if forecast is None or forecast.hours <= LONG_HOURS or config.hours is not None:
        return ""
    length = f"{config.length:,} {config.unit} of {config.name}"
    return f"{length} take about {format_hours(forecast.hours)} on this machine; {hour_text(config, forecast.hours)}"


def format_hours(hours: float) -> str:
    """Return a time in minutes, or from an hour and a half on in hours."""
    return f"{max(1, 60 * hours):.0f} min" if hours < 1.5 else f"{hours:,.{int(hours < 10)}f} h"


def format_bytes(size: int) -> str:
    """Return a number of bytes in GB, or in MB or kB where that would be less than a tenth."""
    unit, name = next(((u, n) for u, n in ((1e9, "GB"), (1e6, "MB")) if size >= 0.1 * u), (1e3, "kB"))
    return f"{size / unit:.2f} {name}"


def check_long_run(experiment: Any, confirm: Callable[[str], bool] | None) -> None:
    """Warn of a run that is forecast to take more than 12 hours; RunError, and it is closed, if ``confirm`` says no."""
    if text := long_run_text(experiment.config, experiment.forecast):
        try:
            confirm_long_run(text, confirm)
        except BaseException:
            experiment.close(failed=True)
            raise


def confirm_long_run(text: str, confirm: Callable[[str], bool] | None) -> None:
    """Warn with ``text`` of a long run; RunError if ``confirm`` says no."""
    if confirm is None:
        logger.warning(text)
    elif not confirm(text):
        raise RunError(f"{text}. Pass --yes to begin it")
