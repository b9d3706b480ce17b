"""What MuZero reached, for `table.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from words import grid

TITLES = {
    "cartpole": "`CartPole-v1` until an evaluation of 20 episodes has 475",
    "empty": "`MiniGrid-Empty-5x5-v0` until 0.95",
    "doorkey": "`MiniGrid-DoorKey-5x5-v0` until 0.9",
    "tictactoe": "`reverie/TicTacToe-v0`",
    "connect4": "connect 4 on 4x4, twice the width and `steps`, up to 10 opening moves",
    "connect3": "connect 3 on 3x4",
    "hex": "`open_spiel/hex` on 3x3",
}
"""Tasks, with their presets if nothing else is said."""
VARIANTS = {
    "plain": "neither", "consistent": "`algo.consistency_coef` 2", "reanalyzed": "`algo.reanalyze_interval` 10",
    "both": "both", "": "both, `algo.gumbel_scale` 2",
}  # fmt: skip
SHORT = {"cartpole": "CartPole until 475: env steps", "doorkey": "DoorKey until 0.9: env steps",
         "connect4_short": "connect 4 on 4x4 after 100,000 env steps: optimal moves"}  # fmt: skip
GAMES = 200
"""Games against a perfect player."""
PRESETS = {"cartpole_reanalyzed": "cartpole", "doorkey_": "doorkey", "connect4_short_plain": "connect4_short"}
"""Variants that are the presets of the tasks behind them."""

Rows = Sequence[Mapping[str, Any]]


def join(numbers: Sequence[float], form: str) -> str:
    """Numbers of the seeds, or one and "each" if they are equal."""
    texts = [format(x, form) for x in numbers]
    return f"{texts[0]} each" if len(texts) > 1 and len({*texts}) == 1 else ", ".join(texts)


def runs_of(result: Mapping[str, Any], task: str) -> Rows:
    """The rows of a task by their seeds."""
    return sorted((row for row in result["rows"] if row["task"] == task), key=lambda row: int(row["seed"]))


def planning_table(result: Mapping[str, Any]) -> list[str]:
    """One row a task: env steps, seconds and strength of its seeds."""
    rows = []
    for task, title in TITLES.items():
        runs = runs_of(result, task)
        if "score" in runs[0]:
            steps, reached = join([run["env_steps"] for run in runs], ","), join([run["score"] for run in runs], ".4g")
        else:
            steps = f"{round(runs[0]['env_steps'], -3):,}"
            reached = f"optimal moves in {share(runs)} of the positions in which the move matters"
            if all("lost_to_perfect" in run for run in runs):
                lost = join([GAMES * run["lost_to_perfect"] for run in runs], ".0f")
                reached += f"; lost of {GAMES} games: {lost}"
        rows.append([title, steps, join([run["cpu_seconds"] for run in runs], ".0f"), reached])
    return grid(["task", "env steps", "seconds", "result"], rows)


def variants_table(result: Mapping[str, Any]) -> list[str]:
    """One row a variant, one column a task."""
    rows = []
    for variant, title in VARIANTS.items():
        cells = [runs_of(result, PRESETS.get(f"{task}_{variant}", f"{task}_{variant}")) for task in SHORT]
        texts = [share(runs) if runs and "score" not in runs[0] else join([run["env_steps"] for run in runs], ",")
                 for runs in cells]  # fmt: skip
        rows.append([title, *(text or "-" for text in texts)])
    return grid(["setting", *SHORT.values()], rows)


def share(runs: Rows) -> str:
    """Shares of optimal moves in percent, with two digits of those above 99.9."""
    shares = [100 * run["optimal_moves_hard"] for run in runs]
    return join(shares, ".2f" if min(shares) > 99.9 else ".1f") + " %"
