"""Entries of Gymnasium's registry, among them reverie's own environments, without their modules."""

from __future__ import annotations

from importlib.util import find_spec

import gymnasium

OWN_ENVS = {
    "BitFlip": "dummy:BitFlip", "Count": "dummy:Count", "Cue": "dummy:Cue", "Grid": "dummy:Grid", "Look": "dummy:Look",
    "Match": "dummy:Match", "TicTacToe": "board_games:tic_tac_toe", "ConnectFour": "board_games:connect_four",
    "Nim": "board_games:nim", "TwoRooms": "two_rooms:TwoRooms", "Rooms": "rooms:Rooms",
}  # fmt: skip
"""Where the environments ``reverie/NAME-v0`` are, in ``reverie.envs``."""


def register_env(
    env_id: str, maker: str, module: str = "adapters", *, max_episode_steps: int | None = None, **kwargs: object
) -> None:
    """Register a class or function of ``reverie.envs``; ``kwargs`` are its arguments."""
    if env_id not in gymnasium.registry:
        entry_point = f"reverie.envs.{module}:{maker}"
        gymnasium.register(env_id, entry_point=entry_point, max_episode_steps=max_episode_steps, kwargs=kwargs)


def register_own_envs() -> None:
    """Register them, except for those whose packages are not installed."""
    for name, place in OWN_ENVS.items():
        if name != "Rooms" or find_spec("minigrid"):
            module, _, maker = place.partition(":")
            steps = 100 if name == "TwoRooms" else None
            register_env(f"reverie/{name}-v0", maker, module, max_episode_steps=steps)
