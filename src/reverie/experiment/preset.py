"""What a preset is, as data: nothing here imports PyTorch, so that ``reverie list`` is quick."""

from __future__ import annotations

from typing import Any, NamedTuple

Settings = dict[str, Any]
"""Values by dotted path; ``size`` is a named size of the algorithm."""


class Preset(NamedTuple):
    """Settings of one algorithm."""

    algorithm: str
    settings: Settings
    description: str
    """One line for ``reverie list``."""
    env_prefixes: str = ""
    """Beginnings of the ids of environments for which it is the default, apart by spaces."""
    cpu_changes: Settings | None = None
    """Changes for a machine without a GPU: smaller networks, shorter runs. None: none are needed."""
