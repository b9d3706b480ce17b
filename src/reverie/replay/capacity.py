"""How many rows a run's replay gets, whether they fit into memory, and whether learning can start with them."""

from __future__ import annotations

from reverie.core.errors import ConfigError
from reverie.core.machine import available_memory
from reverie.replay.replay import Replay, ReplayConfig


def most_rows(config: ReplayConfig, steps: int, num_envs: int) -> int | None:
    """Return the most rows that ``steps`` env steps can give: one per env step, and one more per end of an episode.

    None if the replay begins with rows of other runs, whose number is not known yet.
    """
    return None if config.init else 2 * steps + num_envs


def check_capacity(config: ReplayConfig, replay: Replay, learning_starts: int) -> None:
    """Check that learning can start.

    Raises:
        ConfigError: the replay can never hold as many windows as ``learning_starts``.
    """
    rows, streams = config.rows(row_bytes(replay)), replay.storage.streams
    length = replay.window.rows - replay.window.free
    offered = (rows // streams - length + 1) * streams
    if learning_starts > offered:
        raise ConfigError(
            f"learning_starts = {learning_starts} windows, but replay.capacity = {config.capacity} ({rows} rows) over "
            f"{streams} envs holds at most {offered} windows of {length} rows, so learning would never start. Lower "
            "learning_starts or raise replay.capacity."
        )


def check_memory(config: ReplayConfig, replay: Replay, steps: int) -> None:
    """Check that the rows of ``steps`` env steps fit into memory.

    Raises:
        ConfigError: they do not; the message names needed and available bytes.
    """
    if config.device != "cpu" or config.storage != "ram":  # device.py, mapped.py check theirs
        return
    needed, free = replay_bytes(config, replay, steps), available_memory()
    if free is not None and needed > free:
        per_row = row_bytes(replay)
        raise ConfigError(
            f"replay.capacity = {config.capacity}: {config.rows(per_row)} rows of {per_row:,.0f} bytes "
            f"need {needed / 1e9:.1f} GB, but only {free / 1e9:.1f} GB of memory is available. Lower it to "
            f"{int(free * 0.8 / per_row)}, or use replay.storage = 'mmap', smaller observations or smaller networks."
        )


def replay_bytes(config: ReplayConfig, replay: Replay, steps: int) -> int:
    """Return the bytes that ``steps`` env steps will really take: memory of rows that never come is not used."""
    held = replay.storage.streams * replay.storage.capacity
    return int(row_bytes(replay) * (held if config.init else min(held, steps)))


def row_bytes(replay: Replay) -> float:
    """Return the bytes of one row."""
    return replay.nbytes / (replay.storage.streams * replay.storage.capacity)
