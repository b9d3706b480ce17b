"""Short forms of environment ids. Nothing is imported here, so that presets are found fast."""

from __future__ import annotations


def expand_env_id(env_id: str) -> str:
    """Return ``pettingzoo/classic.NAME`` for ``pettingzoo:NAME``; other ids unchanged."""
    return env_id.replace(":", "/classic.", 1) if env_id.startswith("pettingzoo:") else env_id
