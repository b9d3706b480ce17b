"""Entries of Gymnasium's registry."""

from __future__ import annotations

import gymnasium


def register_env(
    env_id: str, maker: str, module: str = "adapters", *, max_episode_steps: int | None = None, **kwargs: object
) -> None:
    """Register a class or function of ``reverie.envs``; ``kwargs`` are its arguments."""
    if env_id not in gymnasium.registry:
        entry_point = f"reverie.envs.{module}:{maker}"
        gymnasium.register(env_id, entry_point=entry_point, max_episode_steps=max_episode_steps, kwargs=kwargs)
