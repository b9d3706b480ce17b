"""The definition of a preset, as data: nothing here imports PyTorch, so that ``reverie list`` is fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Settings = dict[str, Any]
"""Values by dotted path; ``size`` is a named size of the algorithm."""
MUJOCO = (
    "HalfCheetah- Hopper- Walker2d- Ant- Humanoid- Swimmer- Reacher- Pusher- InvertedPendulum- "
    "InvertedDoublePendulum- HumanoidStandup-"
)
"""Prefixes of the ids of MuJoCo's tasks."""


class Preset(NamedTuple):
    """Settings of one algorithm."""

    algorithm: str
    settings: Settings
    description: str
    """One line for ``reverie list``."""
    env_prefixes: str = ""
    """Prefixes of the environment ids for which it is the default, separated by spaces."""
    cpu_changes: Settings | None = None
    """Changes for a machine without a GPU: smaller networks, shorter runs. None: no changes."""
    from_steps: Callable[[int], Settings] | None = None
    """Returns settings that follow the planned env steps of the run. None: there are none."""
    from_updates: Callable[[int], Settings] | None = None
    """Returns settings that follow the planned updates of a run on a dataset alone. None: there are none."""
