"""The wall clock where it decides something: how much is played or read, when a run ends, what counts as live.

Tests replace these functions. Ruff refuses all other readers of the time, except in the files that ``pyproject.toml``
lists: they measure durations, or wait for other processes, threads and machines.
"""

from datetime import datetime
from time import monotonic as monotonic
from time import time as time


def now() -> datetime:
    """Return the time in the local zone."""
    return datetime.now().astimezone()
