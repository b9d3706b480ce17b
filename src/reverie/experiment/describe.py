"""Lines about a run that begins: its data and its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reverie.core.errors import count_noun
from reverie.core.hardware import available_memory
from reverie.core.kernel_dispatch import kernel_problem
from reverie.core.specs import GOAL, ObsSpec
from reverie.experiment.config import ExperimentConfig
from reverie.replay.build import replay_bytes
from reverie.replay.sources import split_window


def describe_experiment(experiment: Any, folder: Path) -> list[str]:
    """Describe what is about to be trained in ``folder``: its data, its settings, and the bytes of its replay."""
    config, window, algo = experiment.config, experiment.algo.window, experiment.algo
    lines = [f"{config.data.label}: {remark}" for remark in experiment.offline.remarks]
    if algo.device.type == "cpu" and kernel_problem():
        lines.append(kernel_problem())
    if experiment.offline.dataset is not None:
        statistics = experiment.offline.dataset.statistics()
        is_split = not (config.offline or config.human_fraction)
        num_recorded = split_window(window, config.offline_fraction)[0].batch if is_split else 0
        part = f", {num_recorded} of the {window.batch} windows of a batch" if num_recorded else ""
        low, mean, high = statistics.scores
        returns = f"returns {low:.1f} to {high:.1f}, mean {mean:.1f}"
        lines.append(
            f"{count_noun(statistics.steps, 'recorded step')} in {count_noun(statistics.episodes, 'episode')} of "
            f"{config.data.label}{part}: {returns if experiment.offline.dataset.has_rewards else 'no rewards'}"
        )
        lines += [line] if (line := motionless(config, experiment.obs_spec)) else []
    elif config.algo.needs_data:
        lines.append(
            f"{config.name} is meant for recorded data, but there is none: it learns only from the rows that it "
            "collects. Pass --data PATH to add recorded data"
        )
    if experiment.offline.estimator is not None:
        updates = config.data.estimate_updates
        per_estimate = f" ({updates:,} updates per estimate)" if updates is not None else ""
        lines.append(
            f"the policy's return will be estimated from the data by FQE{per_estimate}; set data.estimate_updates = 0 "
            "to disable this"
        )
    count = sum(p.numel() for p in algo.parameters() if p.requires_grad)
    preset = f" (preset {config.preset})" if config.preset else ""
    lines.append(f"{config.name}{preset}: {count / 1e6:.2f}M parameters on {algo.device}, in {folder}")
    length = count_noun(config.planned_updates(window), "update")
    if config.offline:
        return [*lines, f"{length}, {_format_bytes(experiment.replay.nbytes)} of recorded rows"]
    rows = _format_bytes(replay_bytes(config.replay, experiment.replay, config.steps // config.learners))
    return [*lines, f"{config.steps:,} env steps, {length}, replay up to {rows}{_replay_room(config)}"]


def _replay_room(config: ExperimentConfig) -> str:
    """Return where the rows of the replay lie, or how many bytes of memory are available for them."""
    if config.replay.device != "cpu":
        return f" on {config.replay.device}"
    if config.replay.storage != "ram":
        return " in mapped files"
    free = available_memory()
    return "" if free is None else f" of {_format_bytes(free)} available"


def motionless(config: ExperimentConfig, spec: ObsSpec) -> str:
    """Return a remark if recorded images are learned from one by one, so that no motion is seen; "" if not."""
    images = {key: part for key, part in spec.items() if part.kind == "image" and not key.startswith(GOAL)}
    single = [key for key, part in images.items() if part.shape[-1] in (1, 3)]
    if not single or getattr(config.algo, "frame_stack", 0) != 1:
        return ""
    return (
        f"each decision sees a single image ({', '.join(single)}), and so no motion: algo.frame_stack = 4 stacks the "
        "latest four, as Atari's presets do"
    )


def _format_bytes(size: int) -> str:
    """Return a number of bytes in GB, or in MB or kB where that would be less than a tenth."""
    unit, name = next(((u, n) for u, n in ((1e9, "GB"), (1e6, "MB")) if size >= 0.1 * u), (1e3, "kB"))
    return f"{size / unit:.2f} {name}"
