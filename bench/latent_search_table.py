"""What a tree search in a Dreamer's latents gained, for `table.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from words import digits, grid

TITLES = {"rooms": "`reverie/Rooms-v0`: share of the goal reached", "cartpole": "`CartPole-v1`: return"}


def latent_search_table(result: Mapping[str, Any]) -> list[str]:
    """One row a checkpoint, one column a number of simulations: mean scores and their 95 % intervals."""
    counts = sorted({row["simulations"] for row in result["rows"]})
    found: dict[tuple[str, int, int], dict[int, str]] = {}
    for row in result["rows"]:
        text = f"{digits(row['score'])} ({digits(row['low'])} to {digits(row['high'])})"
        found.setdefault((row["task"], row["env_steps"], row["episodes"]), {})[row["simulations"]] = text
    heads = ["actor" if not count else f"{count} simulations" for count in counts]
    rows = [
        [f"{TITLES[task]}, {episodes} episodes", f"{steps:,}", *(cells[count] for count in counts)]
        for (task, steps, episodes), cells in found.items()
    ]
    return grid(["task", "trained for env steps", *heads], rows)
