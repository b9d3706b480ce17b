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
    return f"{time(seconds)} ({seconds / ours:.1f})"


def dreamers(stages: Stages) -> list[str]:
    """One row a setting and precision: the time of an update of DreamerV3."""
    rows = []
    for name, row in stages.items():
        if not name.startswith("update/reverie/"):
            continue
        setting = name.rpartition("/")[2]
        size, precision = setting.rsplit("-", 1)
        others = [cell(stages, f"update/{other}/{setting}", row["update_s"]) for other in DREAMERS]
        rows.append([f"{SETTINGS[size]}, {precision}", time(row["update_s"]), *others, f"{row['peak_gb']:.1f} GB"])
    return grid(["DreamerV3", "reverie", *DREAMERS.values(), "GPU memory of ours"], rows)


def learners(stages: Stages) -> list[str]:
    """One row an algorithm: the time of an update with its batch."""
    rows = []
    for task, title in TASKS.items():
        ours = stages.get(f"rate/reverie/{task}")
        if ours is None:
            continue
        seconds = ours["update_s"]
        host = time(ours["update_host_s"]) if "update_host_s" in ours else "-"
        others = [cell(stages, f"rate/{name}/{task}", seconds) for name in ("captured", "compiled")]
        rows.append([title, time(seconds), host, *others])
    head = ["update", "reverie, rows on the GPU", "rows in RAM", "script with CUDA graphs", "and `torch.compile`"]
    return grid(head, rows)


def loops(stages: Stages) -> list[str]:
    """One row a loop: env steps a second."""
    rows = []
    for task, title in LOOPS.items():
        ours, other = (stages.get(f"rate/{name}/{task}") for name in ("reverie", "captured"))
        if ours:
            rate = f"{other['env_steps_per_s']:,.0f}" if other else "-"
            rows.append([title, f"{ours['env_steps_per_s']:,.0f}", rate])
    return grid(["env steps a second", "reverie", "script with CUDA graphs"], rows)
