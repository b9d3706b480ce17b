"""What an agent would do in recorded rows if their numbers were others: its program beside the rows, in a page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from reverie.agent.agent import Agent
from reverie.agent.program import Numbers
from reverie.core.specs import SPECIAL_KINDS, ObsPart
from reverie.core.types import Batch
from reverie.viewer.episode_source import action_names
from reverie.viewer.findings import format_number
from reverie.viewer.page import STATIC
from reverie.viewer.walk import Walk, export_parts

MAX_NUMBERS, MAX_ROWS, MAX_EPISODES, DIGITS = 12, 300, 3, 7
"""Numbers of an observation that one can change, rows and episodes that are in the page, and digits of a number."""
BOUNDS = re.compile(r"in (-?[\d.e+-]+)\.\.(-?[\d.e+-]+)$")
"""Finite bounds of all numbers of a vector, in ``ObsPart.declared_bounds``."""


def make_what_if(agent: Agent, episodes: Mapping[str, Batch], numbers: Numbers, steps: int) -> Walk | None:
    """Return the agent's program beside rows of ``episodes`` ``[1, T]``; None if observations are pictures or stacks.

    Raises:
        ConfigError: the agent cannot be a program.
    """
    parts = {key: part for key, part in agent.obs_spec.items() if part.kind not in SPECIAL_KINDS}
    has_only_numbers = all(part.kind in ("vector", "categorical") for part in parts.values())
    if not parts or not has_only_numbers or agent.config.env.frame_stack > 1 or not episodes:
        return None
    batches = {name: batch.slice_time(0, MAX_ROWS) for name, batch in [*episodes.items()][:MAX_EPISODES]}
    content, report = export_parts(agent, numbers, steps, world=False)
    names, choices = action_names(agent), agent.action_spec.categorical_slices()
    start = int(np.ravel(getattr(agent.action_space, "start", 0))[0])
    if len(choices) == 1 and not names:
        names = [f"action {start + i}" for i in range(choices[0][1].stop - choices[0][1].start)]
    data = {
        "sliders": [slider for key, part in parts.items() for slider in _sliders(key, part, batches)][:MAX_NUMBERS],
        "count": sum(int(np.prod(part.shape)) for part in parts.values()),
        "names": names,
        "states": {x["name"]: x["input"] for x in content["outputs"] if x["role"] == "state"},
        "start": start,
        "episodes": [{"name": name, **_rows(agent, batch, names)} for name, batch in batches.items()],
    }
    blocks = {"program": {name: content[name] for name in ("parts", "tensors")}, "what-if-rows": data}
    return Walk([STATIC / "program.js", STATIC / "what_if.js"], blocks, report)


def _sliders(key: str, part: ObsPart, episodes: Mapping[str, Batch]) -> list[dict[str, Any]]:
    """Return the numbers of an observation with their ranges: those of the space, or else of the rows."""
    rows = np.concatenate([_flatten(batch.obs[key]) for batch in episodes.values()])
    bounds = BOUNDS.search(part.declared_bounds)
    sliders = list[dict[str, Any]]()
    for i, column in enumerate(rows.T):
        low, high = float(column.min()), float(column.max())
        if bounds:
            low, high = float(bounds[1]), float(bounds[2])
        if part.kind == "categorical":
            low, high = 0.0, float(part.classes[i] - 1)
        name = f"{key} {i}" if rows.shape[1] > 1 else key
        step = 1.0 if part.kind == "categorical" else (high - low) / 200 or 1.0
        sliders.append({"name": name, "key": f"obs/{key}", "index": i, "low": low, "high": high, "step": step})
    return sliders


def _rows(agent: Agent, batch: Batch, names: list[str]) -> dict[str, Any]:
    """Return the observations and rewards of an episode's rows, and its actions in words."""
    obs = {f"obs/{key}": _round(_flatten(x)) for key, x in batch.obs.items()}
    actions = [_describe_action(agent, flat, names) for flat in batch.action[0, :-1].numpy()]
    return {"obs": obs, "reward": _round(batch.reward[0].numpy()), "actions": actions}


def _flatten(rows: Tensor) -> np.ndarray:
    """Return the numbers of rows ``[1, T, ...]``, ``[T, n]``."""
    return rows.reshape(rows.shape[1], -1).numpy()


def _round(values: np.ndarray) -> Any:
    """Return numbers with as many digits as float32 has, or fewer."""
    return [_round(x) if np.ndim(x) else float(f"{x:.{DIGITS}g}") for x in values]


def _describe_action(agent: Agent, flat: np.ndarray, names: list[str]) -> str:
    if names:
        return names[int(flat.argmax())]
    action = agent.codec(flat)
    return ", ".join(map(format_number, np.ravel(action))) if isinstance(action, np.ndarray) else str(action)
