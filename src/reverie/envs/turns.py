"""Two players move in turn: a check of games, since signs of rewards, values and searches assume it."""

from __future__ import annotations

from typing import Any

import gymnasium

from reverie.core.errors import EnvError
from reverie.core.specs import PLAYER_KEY
from reverie.envs.wrappers import Reset, Stepped


class AlternatingTurns(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A game whose observation ``player`` says who moves; EnvError if the same player moves twice in a row."""

    def reset(self, **kwargs: Any) -> Reset:
        """Start a game."""
        obs, info = self.env.reset(**kwargs)
        self._player = obs[PLAYER_KEY]
        return obs, info

    def step(self, action: object) -> Stepped:
        """Take an action, after which it is the other player's turn, even if the game is over."""
        obs, *rest = self.env.step(action)
        mover, self._player = self._player, obs[PLAYER_KEY]
        if mover == self._player:
            raise EnvError(
                f"player {mover} moves twice in a row: expected turns that alternate, and after the last move the view "
                "of the player who would be next. If 'player' is no turn, set env.exclude_keys = player."
            )
        return (obs, *rest)
