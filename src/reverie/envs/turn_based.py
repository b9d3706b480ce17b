"""Games of two players in one stream of rows: every move is the caller's, seen by the player to move.

The reward of a row belongs to the player who moved before it: ``core/specs.py: mover_sign``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import EnvError, did_you_mean
from reverie.core.imports import import_module_of
from reverie.core.logger import logger
from reverie.core.specs import MASK_KEY, PLAYER_KEY
from reverie.envs.adapters import Adapter, SingleAgentEnv
from reverie.envs.wrappers import Env, Reset, Stepped

MAX_VECTOR_CELLS = 64
"""Boards with up to this many cells are vectors instead of images."""
CHARACTER = 16
"""Width of a character in pixels; its height is twice this."""
HIDDEN_INFORMATION = ("gin_rummy", "hanabi", "leduc_holdem", "rps", "texas_holdem")
"""Beginnings of the names of PettingZoo's games in which players do not see the whole state."""


def pettingzoo_env(name: str, agent: int | str = 0, opening_moves: int = 0, **kwargs: Any) -> Env:
    """Return one ``agent`` of a PettingZoo environment; with ``agent`` "all", a game of which all moves are chosen."""
    title = f"environment 'pettingzoo/{name}'"
    world = import_module_of(f"pettingzoo.{name}:env", title, EnvError).env(**kwargs)
    if agent == "all":
        _warn_hidden_information(name)
    return to_gymnasium(world, title, agent, opening_moves)


def to_gymnasium(world: Any, title: str, agent: int | str = "all", opening_moves: int = 0) -> Env:
    """Return a PettingZoo ``world``, whose errors begin with ``title``, as :func:`pettingzoo_env` does."""
    return TurnBasedGame(world, title, opening_moves) if agent == "all" else SingleAgentEnv(world, int(agent))


@functools.cache
def _warn_hidden_information(name: str) -> None:
    if name.rpartition(".")[2].startswith(HIDDEN_INFORMATION):
        logger.warning(
            f"'pettingzoo/{name}' hides a part of its state from players, but searches assume that they see it"
        )


class TwoPlayerGame(Adapter):
    """The base of games of two players who move in turn; subclasses implement what raises here."""

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 2}  # noqa: RUF012 - as in Gymnasium
    opening_moves: int
    """Each game begins after up to this many random moves, which are in no row."""

    def start(self) -> None:
        """Start a game."""
        raise NotImplementedError

    def is_over(self) -> bool:
        """Return whether the game is over."""
        raise NotImplementedError

    def find_mover(self) -> int:
        """Return who moves next, 0 or 1."""
        raise NotImplementedError

    def find_legal(self) -> np.ndarray:
        """Return the mask of legal actions ``[A]``."""
        raise NotImplementedError

    def play(self, action: int) -> float:
        """Take ``action``; return the mover's reward."""
        raise NotImplementedError

    def format(self) -> str:
        """Return the board as text."""
        raise NotImplementedError

    def _observe(self, player: int) -> dict[str, Any]:
        """Return the observation of ``player``."""
        raise NotImplementedError

    def _begin(self, seed: int | None) -> Reset:
        self.start()
        self._play_opening(self.opening_moves)
        return self._observe(self.find_mover()), {}

    def _play_opening(self, moves: int) -> None:
        """Play 0 to ``moves`` random legal moves; an opening that ends the game is dropped."""
        if not isinstance(moves, int) or moves < 0:
            raise EnvError(f"opening_moves = {moves!r}: expected a whole number, at least 0.")
        for _ in range(int(self.np_random.integers(moves + 1)) if moves else 0):
            self.play(int(self.np_random.choice(np.flatnonzero(self.find_legal()))))
            if self.is_over():
                self.start()
                return

    def step(self, action: int) -> Stepped:
        """Take ``action``. The reward is the mover's, the observation the other player's."""
        mover = self.find_mover()
        reward = self.play(int(action))
        if not self.is_over() and self.find_mover() == mover:
            raise EnvError(f"player {mover} moves twice in a row: expected turns that alternate.")
        return self._observe(1 - mover), reward, self.is_over(), False, {}

    def render(self) -> Any:
        return self.format() if self.render_mode == "ansi" else super().render()


class TurnBasedGame(TwoPlayerGame):
    """A PettingZoo game of two players who move in turn, such as ``classic.tictactoe_v3``."""

    def __init__(self, world: Any, title: str, opening_moves: int = 0) -> None:
        """``title`` begins errors."""
        self.render_mode: str | None = getattr(world, "render_mode", None)
        self.opening_moves: int = opening_moves
        self._world = world
        self._players: list[Any] = list(world.possible_agents)
        if len(self._players) != 2:
            raise EnvError(
                f"{title} has the players {', '.join(map(str, self._players))}: expected 2 that move in turn. With "
                "env.kwargs = {agent: 0}, one agent plays against random ones."
            )
        space = self._world.observation_space(self._players[0])
        self.action_space: spaces.Space[Any] = self._world.action_space(self._players[0])
        if not isinstance(space, spaces.Dict) or not isinstance(self.action_space, spaces.Discrete):
            raise EnvError(
                f"{title} has the spaces {space} and {self.action_space}: expected observations with an {MASK_KEY} "
                "and one discrete action."
            )
        board: Any = space["observation"]
        self._board_shape: tuple[int, ...] = board.shape
        self._is_flat: bool = len(board.shape) == 3 and board.shape[0] * board.shape[1] <= MAX_VECTOR_CELLS
        if self._is_flat:
            board = spaces.Box(board.low.ravel(), board.high.ravel(), dtype=board.dtype.type)
        parts = {"observation": board, MASK_KEY: space[MASK_KEY], PLAYER_KEY: spaces.Discrete(2)}
        self.observation_space: spaces.Space[Any] = spaces.Dict(parts)

    def start(self) -> None:
        self._world.reset(seed=self._seed())

    def is_over(self) -> bool:
        return any(self._world.terminations.values()) or any(self._world.truncations.values())

    def find_mover(self) -> int:
        return self._players.index(self._world.agent_selection)

    def find_legal(self) -> np.ndarray:
        return np.asarray(self._world.observe(self._world.agent_selection)[MASK_KEY], bool)

    def play(self, action: int) -> float:
        mover = self._world.agent_selection
        self._world.step(action)
        rewards = self._world.rewards
        if abs(sum(rewards.values())) > 1e-6:
            raise EnvError(f"the rewards of both players are {rewards}: expected a sum of 0.")
        return float(rewards[mover])

    def step(self, action: int) -> Stepped:
        obs, reward, over, *_ = super().step(action)
        is_terminal = any(self._world.terminations.values())
        return obs, reward, is_terminal, over and not is_terminal, {}

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
        obs = self._observe(self.find_mover())
        cells = self.find_cells(obs)
        return str(obs["observation"]) if cells is None else "\n".join("".join(".XO"[x] for x in row) for row in cells)

    def _render_image(self) -> Any:
        return self._world.render()

    def close(self) -> None:
        self._world.close()


class OpenSpielGame(TwoPlayerGame):
    """A game of OpenSpiel without chance and hidden information, such as ``breakthrough``; observed as a vector."""

    def __init__(self, name: str, opening_moves: int = 0, render_mode: str | None = None, **kwargs: object) -> None:
        """``kwargs``: the game's parameters, such as ``rows``."""
        import pyspiel

        title = f"environment 'open_spiel/{name}'"
        if name not in pyspiel.registered_names():  # which would print them all
            raise EnvError(f"unknown {title}.{did_you_mean(name, pyspiel.registered_names())}")
        try:
            self._game = pyspiel.load_game(name, kwargs)
        except pyspiel.SpielError as error:
            raise EnvError(f"{title} with {kwargs}: {str(error).strip()}") from None
        kind, types = self._game.get_type(), pyspiel.GameType
        properties = {
            "for two players": self._game.num_players() == 2,
            "sequential": kind.dynamics == types.Dynamics.SEQUENTIAL,
            "deterministic": kind.chance_mode == types.ChanceMode.DETERMINISTIC,
            "of perfect information": kind.information == types.Information.PERFECT_INFORMATION,
            "zero-sum": kind.utility == types.Utility.ZERO_SUM,
            "observed as numbers": kind.provides_observation_tensor,
        }
        if wrong := [name for name, is_so in properties.items() if not is_so]:
            raise EnvError(f"{title} is not {' and not '.join(wrong)}: expected a game {', '.join(properties)}.")
        self.opening_moves: int = opening_moves
        self.render_mode: str | None = render_mode
        self._count: int = self._game.num_distinct_actions()
        self.action_space: spaces.Space[Any] = spaces.Discrete(self._count)
        size = int(np.prod(self._game.observation_tensor_shape())) + 1
        board, flags = spaces.Box(-np.inf, np.inf, (size,), np.float32), spaces.MultiBinary(self._count)
        parts = {"observation": board, MASK_KEY: flags, PLAYER_KEY: spaces.Discrete(2)}
        self.observation_space: spaces.Space[Any] = spaces.Dict(parts)
        self.start()
        lines = self.format().splitlines()
        self._size: tuple[int, int] = max(map(len, lines)), len(lines)

    def start(self) -> None:
        self._state = self._game.new_initial_state()

    def is_over(self) -> bool:
        return bool(self._state.is_terminal())

    def find_mover(self) -> int:
        return int(self._state.current_player())

    def find_legal(self) -> np.ndarray:
        mask = np.full(self._count, self.is_over())
        mask[self._state.legal_actions()] = True
        return mask

    def play(self, action: int) -> float:
        mover, legal = self.find_mover(), self._state.legal_actions()
        if action not in legal:
            raise EnvError(f"action {action} is illegal: expected one of {legal}.")
        self._state.apply_action(action)
        return float(self._state.rewards()[mover])

    def _observe(self, player: int) -> dict[str, Any]:
        """The last number is the player: in some games both see the same board, and no network reads ``player``."""
        board = np.array([*self._state.observation_tensor(player), player], np.float32)
        return {"observation": board, MASK_KEY: self.find_legal().astype(np.int8), PLAYER_KEY: player}

    def format(self) -> str:
        return str(self._state)

    def format_action(self, action: int) -> str:
        """Return what a legal action means."""
        return str(self._state.action_to_string(action))

    def _render_image(self) -> np.ndarray:
        """Draw the text, whose first board determines the size."""
        from PIL import Image, ImageDraw, ImageFont

        x, y = self._size
        picture = Image.new("RGB", (CHARACTER * x, 2 * CHARACTER * y), "white")
        draw, font = ImageDraw.Draw(picture), ImageFont.load_default(1.4 * CHARACTER)
        for row, line in enumerate(self.format().splitlines()):
            for column, character in enumerate(line):
                center = ((column + 0.5) * CHARACTER, (2 * row + 1) * CHARACTER)
                draw.text(center, character, fill="black", font=font, anchor="mm")
        return np.asarray(picture)
