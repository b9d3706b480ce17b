"""Advice on settings for an environment, from the measurements of random play."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from reverie.core.hardware import choose_device
from reverie.core.seeding import preserve_num_threads
from reverie.envs.check import EnvReport
from reverie.envs.findings import Finding, Findings
from reverie.experiment import bench
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.goals import has_world_model
from reverie.experiment.memory import check_fits_memory, fit_default_length

SMALL, LARGE = 0.1, 10.0
"""Typical sizes of observations and rewards below and above which networks learn slowly."""
SPARSE, HORIZONS = 0.01, 3
"""Share of rewards other than 0 below which rewards are sparse; and the length of episodes, in effective horizons of
the discount, from which the last reward hardly counts at the beginning."""


def advise(config: ExperimentConfig, measurements: Mapping[str, Any]) -> tuple[tuple[Finding, ...], dict[str, Any]]:
    """Return notes on an environment with these ``measurements``, and the settings by path that they recommend."""
    findings, changes, algo = Findings(), dict[str, Any](), config.algo
    sizes = {key: value for key, value in measurements["observation_sizes"].items() if is_far_from_1(value)}
    if sizes and getattr(algo, "normalize_obs", 0) is None:
        changes["algo.normalize_obs"] = "running"
        findings.add("scale", values=", ".join(f"'{key}' {value:.3g}" for key, value in sizes.items()))
    if measurements.get("goal_environment") and not (algo.on_policy or has_world_model(algo.learner)):
        changes["replay.hindsight"] = "future"
        findings.add("hindsight")
    size = measurements["reward_size"]
    if is_far_from_1(size) and getattr(algo, "reward_scale", 0) is None:
        changes["algo.reward_scale"] = "return_std"
        findings.add("rewards", value=size)
    steps, count = measurements["steps"], measurements["rewards_not_0"]
    if count >= SPARSE * steps:
        return tuple(findings.values()), changes
    if count:
        findings.add("rare", count=count, steps=steps)
    name = next((name for name in ("discount", "discount_horizon") if hasattr(algo, name)), "")
    length = measurements["max_episode_steps"] or max(measurements["lengths"], default=0)
    horizon = _effective_horizon(getattr(algo, name)) if name == "discount" else getattr(algo, name, length)
    if length > HORIZONS * horizon:
        value = round(1 - 1 / length, 5) if name == "discount" else float(length)
        changes[f"algo.{name}"] = value
        findings.add("discount", steps=length, name=name, horizon=horizon, now=getattr(algo, name), value=value)
    return tuple(findings.values()), changes


def is_far_from_1(size: float) -> bool:
    """Return whether a typical size is small or large; 0 is neither, as scaling cannot change it."""
    return 0.0 < size < SMALL or size > LARGE


def _effective_horizon(discount: float) -> float:
    """Return the number of steps within which rewards count, 1 / (1 - discount)."""
    return 1.0 / max(1.0 - discount, 1e-9)


def estimate_hours(config: ExperimentConfig, report: EnvReport) -> float | None:
    """Return the hours that a run will take in the environment of ``report``; None if its learner cannot be timed.

    ConfigError if the run does not fit into memory.
    """
    assert report.action_spec is not None
    specs = report.obs_spec, report.action_spec
    if choose_device(config.device) == "cpu":
        config, counted = fit_default_length(config, *specs)
        check_fits_memory(config, *specs, counted)
    with preserve_num_threads():
        if config.threads:
            torch.set_num_threads(config.threads)
        cost = bench.measure_cost(config, *specs, [torch.get_num_threads()])
    if cost is None:
        return None
    cost = dataclasses.replace(cost, env_step_s=1 / report.measurements["steps_per_second"])
    return bench.forecast(config, bench.learner_window(config, *specs), cost).hours
