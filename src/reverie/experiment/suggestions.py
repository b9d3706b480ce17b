"""Runs to start with in an unknown environment: a fast one, and a thorough one.

The reasons are results of docs/results.md; a test compares them with the measurements.
"""

from __future__ import annotations

from collections.abc import Sequence

from reverie.envs.check import Start
from reverie.experiment.config import ExperimentConfig

MAX_STEPS = {"ppo": 50_000, "sac": 100_000, "dqn": 100_000}
"""Env steps after which the reasons were measured; a shorter preset of the environment counts."""
REASONS = {
    "ppo": "fast: little processor time for an env step; better than random actions after 50,000 env steps in all ten "
    "environments of docs/results.md",
    "sac": "thorough: reuses each row; a higher score than ppo after the same env steps in 4 of 6 tasks of "
    "docs/results.md with continuous actions, for five to fourteen times the processor time",
    "dqn": "thorough: reuses each row; a higher score than ppo after the same env steps in 3 of 4 tasks of "
    "docs/results.md with discrete actions, for three to eleven times the processor time",
    "muzero": "plays both sides of games of two players (docs/planning.md)",
    "dreamer_v3": "thorough: learns a world model, for expensive env steps, images and memory (docs/world_models.md)",
}
"""Why an algorithm is one to start with."""


def suggest_starts(runs: Sequence[ExperimentConfig]) -> tuple[Start, ...]:
    """Return the runs with these settings, their env steps and the reasons."""
    names = [(run.name, min(run.steps, MAX_STEPS.get(run.name, run.steps))) for run in runs]
    return tuple(Start(name, steps, REASONS[name]) for name, steps in names)
