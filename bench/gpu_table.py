"""The table of what one GPU was measured to do, for `table.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from words import grid, time

SETTINGS = {
    "I-12m": "64 x 64 x 3 image, 12m",
    "I-50m": "64 x 64 x 3 image, 50m",
    "I-200m": "64 x 64 x 3 image, 200m",
    "V-1m": "vector of 24, 1m",
}
DREAMERS = {
    "dreamerv3_jax": "authors' JAX code",
    "dreamerv3_jax_free": "the same, not deterministic",
    "torchrl": "TorchRL, compiled",
    "r2dreamer": "r2dreamer, compiled",
}
SCRIPTS = {"captured": "script with CUDA graphs, rows on the GPU", "compiled": "the same with `torch.compile`"}
TASKS = {
    "td3": "TD3", "sac": "SAC", "dqn": "DQN", "dqn_atari": "DQN, 84 x 84 x 4 images",
    "ppo_continuous": "PPO, minibatch of 64",
    "ppo_atari": "PPO, 84 x 84 x 4 images, minibatch of 256",
}  # fmt: skip
LOOPS = {
    "td3_loop": "TD3, HalfCheetah, an update after each env step",
    "sac_loop": "SAC, HalfCheetah, an update after each env step",
    "ppo_atari_loop": "PPO, Breakout, 8 environments",
}
Stages = Mapping[str, Mapping[str, Any]]


def gpu_table(result: Mapping[str, Any]) -> list[str]:
    """Updates of DreamerV3, updates of model-free agents, and whole loops, each beside others."""
    stages: Stages = {name: row for name, row in result["stages"].items() if "error" not in row}
    parts = [dreamers(stages), learners(stages), loops(stages)]
    return [line for part in parts for line in [*part, ""]][:-1]


def cell(stages: Stages, name: str, ours: float, key: str = "update_s") -> str:
    """A time, and its ratio to ours."""
    if name not in stages:
        return "-"
    seconds = stages[name][key]
    return f"{time(seconds)}{card(stages[name])} ({seconds / ours:.1f})"


def card(row: Mapping[str, Any]) -> str:
    """The GPU of a row if it is not that of most."""
    return ", H100" if "H100" in row["gpu"] else ""


def dreamers(stages: Stages) -> list[str]:
    """One row a setting and precision: the time of an update of DreamerV3."""
    measured = [other for other in DREAMERS if any(name.startswith(f"update/{other}/") for name in stages)]
    rows = []
    for name, row in stages.items():
        if not name.startswith("update/reverie/"):
            continue
        setting = name.rpartition("/")[2]
        size, precision = setting.rsplit("-", 1)
        others = [cell(stages, f"update/{other}/{setting}", row["update_s"]) for other in measured]
        rows.append([f"{SETTINGS[size]}, {precision}", time(row["update_s"]), *others, f"{row['peak_gb']:.1f} GB"])
    return grid(["DreamerV3", "reverie", *(DREAMERS[other] for other in measured), "GPU memory of ours"], rows)


def learners(stages: Stages) -> list[str]:
    """One row an algorithm: the time of an update with its batch."""
    measured = [kind for kind in SCRIPTS if any(name.startswith(f"rate/{kind}/") for name in stages)]
    rows = []
    for task, title in TASKS.items():
        ours = stages.get(f"rate/reverie/{task}")
        if ours is None:
            continue
        places = [ours["update_s"], ours.get("update_host_s")]
        best = min(seconds for seconds in places if seconds is not None)
        others = [cell(stages, f"rate/{kind}/{task}", best) for kind in measured]
        rows.append([title, *("-" if seconds is None else time(seconds) for seconds in places), *others])
    head = ["update", "reverie, rows on the GPU", "rows in RAM"]
    return grid([*head, *(SCRIPTS[kind] for kind in measured)], rows)


def loops(stages: Stages) -> list[str]:
    """One row a loop: env steps a second."""
    rows = []
    for task, title in LOOPS.items():
        ours, other = (stages.get(f"rate/{name}/{task}") for name in ("reverie", "captured"))
        if ours:
            rate = f"{other['env_steps_per_s']:,.0f}" if other else "-"
            rows.append([title, f"{ours['env_steps_per_s']:,.0f}", rate])
    return grid(["env steps a second", "reverie", "script with CUDA graphs"], rows)
