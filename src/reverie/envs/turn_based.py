"""Games of two players in one stream of rows: every move is the caller's, seen by the player to move.

The reward of a row belongs to the player who moved before it: ``core/specs.py: mover_sign``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import EnvError
from reverie.core.imports import import_module_of
from reverie.core.logger import logger
from reverie.core.specs import MASK_KEY, PLAYER_KEY
from reverie.envs.adapters import Adapter, GymEnv, SingleAgentEnv
from reverie.envs.wrappers import Reset, Stepped

MAX_VECTOR_CELLS = 64
"""Boards with up to this many cells are vectors instead of images."""
HIDDEN_INFORMATION = ("gin_rummy", "hanabi", "leduc_holdem", "rps", "texas_holdem")
"""Beginnings of the names of PettingZoo's games in which players do not see the whole state."""


def pettingzoo_env(name: str, agent: int | str = 0, **kwargs: Any) -> GymEnv:
    """Return one ``agent`` of a PettingZoo environment; with ``agent`` "all", a game of which all moves are chosen."""
    return TurnBasedGame(name, **kwargs) if agent == "all" else SingleAgentEnv(name, agent=int(agent), **kwargs)


@functools.cache
def _warn_hidden_information(name: str) -> None:
    if name.rpartition(".")[2].startswith(HIDDEN_INFORMATION):
        logger.warning(
            f"'pettingzoo/{name}' hides a part of its state from players, but searches assume that they see it"
        )


def play_opening(env: Any, moves: int) -> None:
    """Play 0 to ``moves`` random legal moves of a game with ``start``, ``is_over``, ``find_legal`` and ``play``.

    An opening that ends the game is dropped.

    Raises:
        EnvError: ``moves`` is no whole number from 0 on.
    """
    if not isinstance(moves, int) or moves < 0:
        raise EnvError(f"opening_moves = {moves!r}: expected a whole number, at least 0.")
    for _ in range(int(env.np_random.integers(moves + 1)) if moves else 0):
        env.play(int(env.np_random.choice(np.flatnonzero(env.find_legal()))))
        if env.is_over():
            env.start()
            return


class TurnBasedGame(Adapter):
    """A PettingZoo game of two players who move in turn, such as ``classic.tictactoe_v3``."""

    def __init__(self, name: str, opening_moves: int = 0, render_mode: str | None = None, **kwargs: Any) -> None:
        """``opening_moves``: each game begins after up to this many random moves, which are in no row."""
        module = import_module_of(f"pettingzoo.{name}:env", f"environment 'pettingzoo/{name}'", EnvError)
        _warn_hidden_information(name)
        self.render_mode: str | None = render_mode
        self.opening_moves: int = opening_moves
        self._world = module.env(render_mode=render_mode, **kwargs)
        self._players: list[Any] = list(self._world.possible_agents)
        if len(self._players) != 2:
            raise EnvError(
                f"environment 'pettingzoo/{name}' has the players {', '.join(map(str, self._players))}: expected 2 "
                "that move in turn. Without agent = all, one agent plays against random ones."
            )
        space = self._world.observation_space(self._players[0])
        self.action_space: spaces.Space[Any] = self._world.action_space(self._players[0])
        if not isinstance(space, spaces.Dict) or not isinstance(self.action_space, spaces.Discrete):
            raise EnvError(
                f"environment 'pettingzoo/{name}' has the spaces {space} and {self.action_space}: expected "
                f"observations with an {MASK_KEY} and one discrete action."
            )
        board: Any = space["observation"]
        self._board_shape: tuple[int, ...] = board.shape
        self._is_flat: bool = len(board.shape) == 3 and board.shape[0] * board.shape[1] <= MAX_VECTOR_CELLS
        if self._is_flat:
            board = spaces.Box(board.low.ravel(), board.high.ravel(), dtype=board.dtype.type)
        parts = {"observation": board, MASK_KEY: space[MASK_KEY], PLAYER_KEY: spaces.Discrete(2)}
        self.observation_space: spaces.Space[Any] = spaces.Dict(parts)

    def _begin(self, seed: int | None) -> Reset:
        self.start()
        play_opening(self, self.opening_moves)
        return self._observe(self._players.index(self._world.agent_selection)), {}

    def start(self) -> None:
        """Start a game."""
        self._world.reset(seed=self._seed())

    def is_over(self) -> bool:
        """Return whether the game is over."""
        return any(self._world.terminations.values()) or any(self._world.truncations.values())

    def find_legal(self) -> np.ndarray:
        """Return the mask of legal actions ``[A]``."""
        return np.asarray(self._world.observe(self._world.agent_selection)[MASK_KEY], bool)

    def play(self, action: int) -> float:
        """Take ``action``; return the mover's reward."""
        mover = self._world.agent_selection
        self._world.step(action)
        rewards = self._world.rewards
        if abs(sum(rewards.values())) > 1e-6:
            raise EnvError(f"the rewards of both players are {rewards}: expected a sum of 0.")
        if self._world.agent_selection == mover and not self.is_over():
            raise EnvError(f"{mover} moves twice in a row: expected turns that alternate.")
        return float(rewards[mover])

    def step(self, action: Any) -> Stepped:
        """Take ``action``. The reward is the mover's, the observation the other player's."""
        mover = self._players.index(self._world.agent_selection)
        reward = self.play(int(action))
        over = any(self._world.terminations.values())
        return self._observe(1 - mover), reward, over, not over and self.is_over(), {}

    def _observe(self, player: int) -> dict[str, Any]:
        obs = self._world.observe(self._players[player])
        mask = np.ones_like(obs[MASK_KEY]) if self.is_over() else obs[MASK_KEY]
        board = np.ravel(obs["observation"]) if self._is_flat else obs["observation"]
        return {"observation": board, MASK_KEY: mask, PLAYER_KEY: player}

    def find_cells(self, obs: Mapping[str, Any]) -> np.ndarray | None:
        """Return the board of an observation ``[rows, columns]``: 0 for empty cells, 1 and 2 for pieces of a player.

        The first two planes are the pieces of the player to move and of the opponent. None: there are no planes.
        """
        board, mover = np.reshape(obs["observation"], self._board_shape), int(obs[PLAYER_KEY])
        return np.select([board[..., 0] > 0, board[..., 1] > 0], [1 + mover, 2 - mover], 0) if board.ndim == 3 else None

    def format(self) -> str:
        """Return the board as text, if it has planes; else all numbers."""
        obs = self._observe(self._players.index(self._world.agent_selection))
        cells = self.find_cells(obs)
        return str(obs["observation"]) if cells is None else "\n".join("".join(".XO"[x] for x in row) for row in cells)

    def _render_image(self) -> Any:
        return self._world.render()

    def close(self) -> None:
        self._world.close()
