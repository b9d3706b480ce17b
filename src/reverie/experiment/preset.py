"""What a preset is, as data: nothing here imports PyTorch, so that ``reverie list`` is quick."""

from __future__ import annotations

from typing import Any, NamedTuple

Settings = dict[str, Any]
"""Values by dotted path; ``size`` is a named size of the algorithm."""


class Preset(NamedTuple):
    """Settings of one algorithm."""

    algorithm: str
    settings: Settings
    about: str
    """One line for ``reverie list``."""
    envs: str = ""
    """Beginnings of the ids of environments for which it is the default, apart by spaces."""
    cpu: Settings | None = None
    """Changes for a machine without a GPU: smaller networks, shorter runs. None: none are needed."""


NATURE_ATARI: Settings = {
    "env.id": "ALE/Pong-v5",
    "env.action_repeat": 4,
    "env.pool_frames": 2,
    "env.noop_max": 30,
    "env.life_loss": True,
    "env.resize": (84, 84),
    "env.grayscale": True,
    "env.clip_reward": "sign",
    "env.time_limit": 27_000,
    "env.kwargs": {"repeat_action_probability": 0.0, "full_action_space": False},
    "algo.frames": 4,
    "algo.networks.encoder": "nature",
}
"""Atari as model-free agents see it: Mnih et al. 2015, extended data table 1; lives from its section "Training
details"."""
