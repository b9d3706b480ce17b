#!/usr/bin/env python3
"""How long do short runs take, compared with the forecast that `reverie train` prints before them?

    python benchmarks/forecasts.py [--cases a2c_cartpole sac_pendulum] [--seconds 60]

Each run has the preset without a GPU, in a process of its own, and as many steps as a first forecast finds for
`--seconds`. `ratio` is the time of the training loop divided by the forecast, without evaluations. On a busy machine
both are several times the processor time: `slowdown` is this factor, during the forecast and during the run, and
`cpu_ratio` is the ratio of processor times. `load` is the number of busy processes, before the run and after it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import child, machine, write

import reverie.api as api
from reverie.envs.slot_vector_env import make_vector_env
from reverie.experiment import bench, build
from reverie.experiment.arguments import resolve_settings
from reverie.experiment.hours import TimedLearner
from reverie.experiment.memory import fit_default_length
from reverie.run import loop

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dreamer_v3_cartpole": ("dreamer_v3", "CartPole-v1", {"stop_score": None}),
    "dreamer_v3_minigrid": ("dreamer_v3", "MiniGrid-DoorKey-5x5-v0", {}),
    "dreamer_v3_images": ("dreamer_v3", "reverie/Grid-v0", {"env.kwargs": {"size": 64}}),
    "dreamer_v2_cartpole": ("dreamer_v2", "CartPole-v1", {}),
    "tdmpc2_pendulum": ("tdmpc2", "Pendulum-v1", {}),
    "sac_pendulum": ("sac", "Pendulum-v1", {}),
    "td3_cheetah": ("td3", "HalfCheetah-v5", {}),
    "dqn_minatar": ("dqn", "MinAtar/Breakout-v1", {}),
    "ppo_cheetah": ("ppo", "HalfCheetah-v5", {}),
    "a2c_cartpole": ("a2c", "CartPole-v1", {}),
}
"""Algorithm, environment and further settings of a run."""
TOLERANCE = 0.3
"""Share of the true time by which a good forecast is wrong at most."""
QUIET = {"device": "cpu", "console": False, "tensorboard": False, "schedule.eval_every": 0, "eval_episodes": 1}


def run(case: str, seconds: float) -> dict[str, Any]:
    """Train once; the forecast and the time."""
    algorithm, env_id, changes = CASES[case]
    settings = resolve_settings(algorithm, env_id, None, None, None, QUIET | changes)
    config = resolve_settings(
        algorithm, env_id, None, None, None, QUIET | changes | {"steps": find_steps(settings, seconds)}
    )
    forecasts, slowdowns, times = list[bench.Forecast | None](), list[float](), list[float]()
    with_forecast, train_loop = api.with_forecast, loop.train_loop

    def forecast(experiment: Any) -> Any:
        started, begin = time.perf_counter(), time.process_time()
        experiment = with_forecast(experiment)
        slowdowns.append((time.perf_counter() - started) / (time.process_time() - begin))
        forecasts.append(experiment.forecast)
        return experiment

    def timed(*args: Any, **options: Any) -> Any:
        started, begin = time.perf_counter(), time.process_time()
        result = train_loop(*args, **options)
        times.append(time.perf_counter() - started)
        slowdowns.append(times[0] / (time.process_time() - begin))
        return result

    api.with_forecast, loop.train_loop, build.SHORT_RUN_UPDATES = forecast, timed, 0
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        result = api.train_config(config, run=Path(folder, "run"))
    assert forecasts[0] is not None
    expected = forecasts[0].hours * 3600
    return {
        "case": case, "steps": result.env_steps, "updates": result.updates, "forecast_s": round(expected, 1),
        "run_s": round(times[0], 1), "ratio": round(times[0] / expected, 2),
        "slowdown": [round(value, 2) for value in slowdowns],
        "cpu_ratio": round(times[0] / slowdowns[1] / (expected / slowdowns[0]), 2),
        "good": abs(times[0] - expected) <= TOLERANCE * times[0],
        "load": [round(before, 1), round(os.getloadavg()[0], 1)],
    }  # fmt: skip


def find_steps(settings: Any, seconds: float) -> int:
    """Find the env steps that take so long."""
    env = make_vector_env(settings.env, seed=0)
    specs = env.obs_spec, env.action_spec
    config, counted = fit_default_length(settings, *specs)
    assert counted is not None
    cost = bench.measure_cost(config, *specs, bench.thread_choices(config), env)
    env.close()
    assert cost is not None
    learner = TimedLearner(config, counted.window, cost, counted)
    for _ in range(5):
        steps = learner.config.steps * seconds / 3600 / learner.forecast().hours
        learner = learner.merge(steps=max(500, int(steps)))
    return learner.config.steps


def main() -> None:
    """Print and write one row a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--run", choices=CASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(args.run, args.seconds)))
        return
    rows = []
    for case in args.cases:
        rows.append(child(Path(__file__), "--run", case, "--seconds", str(args.seconds)))
        print(json.dumps(rows[-1]), flush=True)
    good = sum(row["good"] for row in rows)
    print(f"{good} of {len(rows)} within {TOLERANCE:.0%}")
    write(Path(__file__).with_suffix(".json"), machine(), rows)


if __name__ == "__main__":
    main()
