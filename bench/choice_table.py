"""The table of which algorithm to begin with, and why, for `table.py`: each figure is from a file of results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from defaults import CONTINUOUS, DISCRETE
from words import digits, grid, time

from reverie.core.statistics import iqm

Row = Mapping[str, Any]
DEFAULTS = "[Defaults](results.md#do-the-defaults-work-in-my-environment)"
EFFICIENCY = "[Scores](results.md#which-algorithm-learns-most-from-few-steps-or-little-time)"
MODELS, ON_POLICY = (
    "[World models](results.md#what-do-world-models-score)",
    "[On-policy](results.md#does-ppo-score-as-in-stable-baselines3)",
)
GOALS, MASKS = "[Goals](results.md#what-do-goals-cost)", "[Masks](environments.md#masks-of-legal-actions)"


def choice_table(defaults: Row, beside: Callable[[str], Any]) -> list[str]:
    """One row a kind of environment: what to begin with, a measurement, and the page that has its command."""
    efficiency, models, goals = (beside(name)["rows"] for name in ("sample_efficiency", "dreamers", "hindsight"))
    on_policy = {row["task"]: row for row in beside("on_policy")["rows"] if row["system"] == "reverie"}
    tasks = {row["task"]: row for row in defaults["tasks"]}

    def default(algorithm: str, task: str, key: str = "score") -> float:
        return float(np.mean([
            row[key] for row in defaults["rows"]
            if (row["algorithm"], row["task"], row["library"]) == (algorithm, task, "reverie")
        ]))  # fmt: skip

    def best_share(tasks: Iterable[str], algorithms: Iterable[str]) -> str:
        first, *others = algorithms
        best = [default(first, task) > max(default(other, task) for other in others) for task in tasks]
        return f"best in {sum(best)} of {len(best)} tasks"

    def seconds(algorithm: str, task: str) -> str:
        return time(default(algorithm, task, "cpu_seconds"))

    def learned(task: str, method: str) -> str:
        rows = [row for row in efficiency if (row["task"], row["method"]) == (task, method)]
        seconds = float(np.mean([row["cpu_seconds"] for row in rows]))
        return f"`{method}` {digits(float(iqm([row['score'] for row in rows])))} in {time(seconds)}"

    def model(task: str, algorithm: str) -> str:
        return digits(float(np.mean([r["score"] for r in models if (r["task"], r["algorithm"]) == (task, algorithm)])))

    def reached(system: str) -> str:
        steps = [r["steps_to_goal"] for r in goals if (r["env"], r["system"]) == ("FetchReach-v4", system)]
        return " and ".join(f"{x:,}" if x else "not in 10,000" for x in steps)

    def random_and_heuristic(task: str) -> str:
        return f"random {digits(tasks[task]['random'])}, heuristic {digits(tasks[task]['heuristic'])}"

    lines = [
        ["continuous actions; steps are cheap", "`ppo`",
         f"after 50,000 steps, {seconds('ppo', 'SwingUp')}: {best_share(CONTINUOUS, ('ppo', 'sac', 'td3'))}, beside "
         f"`sac` and `td3` after 5,000, {seconds('sac', 'SwingUp')}", DEFAULTS],
        ["continuous actions; steps are slow or expensive", "`sac`",
         f"HalfCheetah, 100,000 steps: {learned('cheetah', 'sac')}, {learned('cheetah', 'ppo')}", EFFICIENCY],
        ["the same, and updates may take long", "`tdmpc2`",
         f"walker-walk, 50,000 steps: {learned('walker_walk', 'tdmpc2')}, {learned('walker_walk', 'sac')}", EFFICIENCY],
        ["discrete actions; steps are cheap", "`ppo`",
         f"after 50,000 steps, {seconds('ppo', 'Admission')}: {best_share(DISCRETE, ('ppo', 'dqn'))}, beside `dqn` "
         f"after 10,000, {seconds('dqn', 'Admission')}", DEFAULTS],
        ["discrete actions; steps are slow or expensive", "`dqn`",
         f"MinAtar Breakout, 100,000 steps: {learned('breakout', 'dqn')}, {learned('breakout', 'ppo')}; a queue, "
         f"10,000: {digits(default('dqn', 'Admission'))} ({random_and_heuristic('Admission')})",
         f"{EFFICIENCY}, {DEFAULTS}"],
        ["a mask of legal actions", "`ppo`; few steps: `dreamer_v3`",
         f"scheduling: `ppo` {digits(default('ppo', 'Scheduling'))}, `dqn` {digits(default('dqn', 'Scheduling'))} "
         f"({random_and_heuristic('Scheduling')}); items of a workshop after 4,000 steps: `dreamer_v3` "
         f"{model('workshop_mask', 'dreamer_v3')}, `dqn` {model('workshop_mask', 'dqn')}", f"{DEFAULTS}, {MASKS}"],
        ["several choices at once (`MultiDiscrete`)", "`ppo`",
         f"allocation: {digits(default('ppo', 'Allocation'))} ({random_and_heuristic('Allocation')})", DEFAULTS],
        ["small pictures", "`dqn`; few steps: `r2dreamer`",
         f"MinAtar Breakout, 100,000 steps: `r2dreamer` {model('models_breakout', 'r2dreamer')}, `qr_dqn` "
         f"{model('models_breakout', 'qr_dqn')}, `dreamer_v3` {model('models_breakout', 'dreamer_v3')}", MODELS],
        ["one observation is not enough: memory", "`ppo` with a [memory](networks.md#memory); `dreamer_v3`",
         f"Cue, 20,000 steps: `ppo` {digits(on_policy['cue_memory']['mean']['value'])} with an LSTM, "
         f"{digits(on_policy['cue']['mean']['value'])} without", ON_POLICY],
        ["goals to reach, success is rare", "`sac` with [hindsight](replay.md#goals-in-hindsight)",
         f"FetchReach, steps to a success rate of 0.9: {reached('sac')}; without hindsight: {reached('plain_sac')}",
         GOALS],
        ["one reward, after several right actions", "`ppo`, with many steps; few steps: `dqn`",
         f"DoorKey, 100,000 steps: {learned('door_key', 'dqn')}, {learned('door_key', 'ppo')}; `ppo` after 300,000: "
         f"{digits(on_policy['doors']['mean']['value'])} in {time(float(np.mean(on_policy['doors']['cpu_s'])))}",
         f"{EFFICIENCY}, {ON_POLICY}"],
    ]  # fmt: skip
    rows = [[kind, algorithm, f"{measured} ({page})"] for kind, algorithm, measured, page in lines]
    return grid(["your environment", "begin with", "measured"], rows)
