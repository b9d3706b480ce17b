"""Board games for two players with exact solutions: tic-tac-toe, connect k, Nim.

A position is seen by the player to move. Values are those of perfect play for this player: 1, 0 or -1.
"""

from __future__ import annotations

import contextlib
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from reverie.core.errors import EnvError
from reverie.core.specs import MASK_KEY, PLAYER_KEY
from reverie.envs.turn_based import TwoPlayerGame

Position = tuple[int, ...]
COLORS = np.array([(242, 240, 235), (31, 98, 180), (224, 123, 26)], np.uint8)
"""RGB of a board, and of the pieces of the first and the second player."""
CELL_PIXELS = 48
DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))
MAX_SOLVED = 1_000_000
"""Bound of the number of positions up to which a game is solved: connect four on 4x4 takes seconds."""
MAX_MEASURED = 5000
"""Positions in which the strength of a player is measured; of more, a sample that is always the same."""
ChooseFn = Callable[[Mapping[str, np.ndarray]], np.ndarray]
"""Chooses legal actions ``[N]`` for observations ``[N, ...]``."""


class Move(NamedTuple):
    """The result of a move."""

    position: Position
    """Seen by the other player."""
    reward: float
    """Of the player who moved."""
    is_over: bool


class Rules(ABC):
    """The rules of a game whose positions are tuples of integers."""

    @property
    @abstractmethod
    def num_actions(self) -> int:
        """A."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the board, whose cells or columns are the actions."""

    @property
    @abstractmethod
    def max_positions(self) -> int:
        """A bound of the number of positions."""

    @property
    def is_solved(self) -> bool:
        """Whether the game is so small that its exact solution is known."""
        return self.max_positions <= MAX_SOLVED

    @abstractmethod
    def start(self) -> Position:
        """Return the first position."""

    @abstractmethod
    def find_legal(self, position: Position) -> list[int]:
        """Return the legal actions, in ascending order."""

    @abstractmethod
    def play(self, position: Position, action: int) -> Move:
        """Return the result of a legal ``action``."""

    @abstractmethod
    def board(self, position: Position) -> np.ndarray:
        """Return the board as the player to move sees it, float32 of 0 and 1."""

    @abstractmethod
    def format(self, position: Position, player: int) -> str:
        """Return the board as text, with ``player`` to move."""

    @abstractmethod
    def format_action(self, action: int) -> str:
        """Return what an action means."""

    def measure_strength(self, choose: ChooseFn, games: int = 200, seed: int = 0) -> dict[str, float]:
        """Return how well ``choose`` plays, with perfect play as the measure.

        ``optimal_moves`` and ``optimal_moves_hard`` are the shares of positions, and of those in which some legal
        action is not optimal, in which its action is optimal. ``lost_to_perfect`` is the share of ``games`` that it
        loses to a player who takes random optimal actions, half of them as the first player.
        """
        solutions, rng = solve(self), np.random.default_rng(seed)
        positions = [*solutions]
        if len(positions) > MAX_MEASURED:
            positions = [positions[i] for i in rng.choice(len(positions), MAX_MEASURED, replace=False)]
        actions = choose(_stack_observations(self, positions, 0)).tolist()
        right = np.array([a in solutions[p].optimal for p, a in zip(positions, actions, strict=True)])
        hard = np.array([solutions[p].is_hard for p in positions])
        lost = _play_perfect(self, solutions, choose, games, np.random.default_rng(seed)) < 0
        shares = {"optimal_moves": right, "optimal_moves_hard": right[hard], "lost_to_perfect": lost}
        return {name: float(share.mean()) for name, share in shares.items() if len(share)}


@dataclass(frozen=True)
class ConnectRules(Rules):
    """``connect`` pieces in a row win; with ``gravity``, an action is a column, and pieces fall.

    A position is the player's pieces and the opponent's, as bits of the cells, row by row from the top.
    """

    rows: int = 3
    columns: int = 3
    connect: int = 3
    gravity: bool = False

    def __post_init__(self) -> None:
        if min(self.rows, self.columns, self.connect) < 1 or self.connect > max(self.rows, self.columns):
            raise EnvError(
                f"rows = {self.rows}, columns = {self.columns}, connect = {self.connect}: expected a board on which "
                f"{self.connect} pieces fit in a row."
            )

    @property
    def num_actions(self) -> int:
        """A: the columns with gravity, otherwise all cells."""
        return self.columns if self.gravity else self.rows * self.columns

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the board."""
        return self.rows, self.columns

    @property
    def max_positions(self) -> int:
        """A bound: each cell has three states; with gravity, a column of h pieces has 2^h."""
        return int((2 ** (self.rows + 1) - 1) ** self.columns if self.gravity else 3 ** (self.rows * self.columns))

    @functools.cached_property
    def lines(self) -> tuple[int, ...]:
        """The bits of each row of ``connect`` cells."""
        lines = set()
        for y, x, (dy, dx) in ((y, x, d) for y in range(self.rows) for x in range(self.columns) for d in DIRECTIONS):
            cells = [(y + k * dy, x + k * dx) for k in range(self.connect)]
            if all(0 <= a < self.rows and 0 <= b < self.columns for a, b in cells):
                lines.add(sum(1 << (a * self.columns + b) for a, b in cells))
        return tuple(sorted(lines))

    def start(self) -> Position:
        return 0, 0

    def find_legal(self, position: Position) -> list[int]:
        occupied = position[0] | position[1]  # with gravity, a column is full if its top cell is taken
        return [action for action in range(self.num_actions) if not occupied >> action & 1]

    def play(self, position: Position, action: int) -> Move:
        mine, theirs = position
        occupied, cell = mine | theirs, action
        if self.gravity:
            cells = range(self.columns * (self.rows - 1) + action, -1, -self.columns)
            cell = next(cell for cell in cells if not occupied >> cell & 1)
        mine |= 1 << cell
        won = any(line >> cell & 1 and mine & line == line for line in self.lines)
        return Move((theirs, mine), float(won), won or (mine | theirs) == (1 << self.rows * self.columns) - 1)

    def board(self, position: Position) -> np.ndarray:
        count = self.rows * self.columns
        return np.array([pieces >> cell & 1 for pieces in position for cell in range(count)], np.float32)

    def format(self, position: Position, player: int) -> str:
        pieces = dict(zip("XO" if player == 0 else "OX", position, strict=True))
        marks = [
            next((mark for mark, bits in pieces.items() if bits >> cell & 1), ".")
            for cell in range(self.rows * self.columns)
        ]
        return "\n".join("".join(marks[y * self.columns : (y + 1) * self.columns]) for y in range(self.rows))

    def format_action(self, action: int) -> str:
        row, column = divmod(action, self.columns)
        return f"column {column + 1}" if self.gravity else f"row {row + 1}, column {column + 1}"


@dataclass(frozen=True)
class NimRules(Rules):
    """Players take any number of objects from one heap; who takes the last one wins.

    Action ``heap * largest + k - 1`` takes k of a heap, where ``largest`` is the size of the largest heap.
    """

    heaps: Position = (1, 2, 3)

    def __post_init__(self) -> None:
        is_valid = all(isinstance(size, int) and size >= 0 for size in self.heaps) and any(self.heaps)
        if not is_valid:
            raise EnvError(f"heaps = {self.heaps}: expected sizes of heaps, at least one above 0, such as (1, 2, 3).")

    @property
    def num_actions(self) -> int:
        """A: heaps times the size of the largest."""
        return len(self.heaps) * max(self.heaps)

    @property
    def shape(self) -> tuple[int, int]:
        """A row for each heap, a column for each of its objects."""
        return len(self.heaps), max(self.heaps)

    @property
    def max_positions(self) -> int:
        """The product of the numbers of sizes of each heap."""
        return math.prod(size + 1 for size in self.heaps)

    def start(self) -> Position:
        return self.heaps

    def find_legal(self, position: Position) -> list[int]:
        largest = max(self.heaps)
        return [heap * largest + k for heap, size in enumerate(position) for k in range(size)]

    def play(self, position: Position, action: int) -> Move:
        heap, k = divmod(action, max(self.heaps))
        after = tuple(size - (k + 1) * (i == heap) for i, size in enumerate(position))
        return Move(after, float(not any(after)), not any(after))

    def board(self, position: Position) -> np.ndarray:
        """Return a thermometer for each heap: 1 for each of its objects."""
        return (np.array(position)[:, None] > np.arange(max(self.heaps))).astype(np.float32).ravel()

    def format(self, position: Position, player: int) -> str:
        return "\n".join(f"{heap}: {'|' * size}" for heap, size in enumerate(position))

    def format_action(self, action: int) -> str:
        heap, k = divmod(action, max(self.heaps))
        return f"take {k + 1} of heap {heap}"


# ---------------------------------------------------------------------- the environment


class BoardGame(TwoPlayerGame):
    """A game with known rules."""

    def __init__(self, rules: Rules, opening_moves: int = 0, render_mode: str | None = None) -> None:
        self.rules = rules
        self.opening_moves = opening_moves
        self.render_mode = render_mode
        board = spaces.Box(0, 1, rules.board(rules.start()).shape, np.float32)
        flags = spaces.MultiBinary(rules.num_actions)
        self.observation_space: spaces.Dict = spaces.Dict(
            {"board": board, MASK_KEY: flags, PLAYER_KEY: spaces.Discrete(2)}
        )
        self.action_space: spaces.Discrete = spaces.Discrete(rules.num_actions)
        self.start()

    def start(self) -> None:
        self.position: Position = self.rules.start()
        self.player: int = 0
        self._over: bool = False

    def is_over(self) -> bool:
        return self._over

    def find_mover(self) -> int:
        return self.player

    def find_legal(self) -> np.ndarray:
        legal: np.ndarray = self._observe(self.player)[MASK_KEY]
        return legal

    def play(self, action: int) -> float:
        if self._over or action not in self.rules.find_legal(self.position):
            raise EnvError(f"action {action} is illegal: expected one of {self.rules.find_legal(self.position)}.")
        self.position, reward, self._over = self.rules.play(self.position, action)
        self.player = 1 - self.player
        return reward

    def _observe(self, player: int) -> dict[str, Any]:
        return _observe_position(self.rules, self.position, player, self._over)

    def format(self) -> str:
        return self.rules.format(self.position, self.player)

    def get_action_meanings(self) -> list[str]:
        """Return what each action means."""
        return [self.rules.format_action(action) for action in range(self.rules.num_actions)]

    def find_cells(self, obs: Mapping[str, Any]) -> np.ndarray:
        """Return the board of an observation ``[rows, columns]``: 0 for empty cells, 1 and 2 for pieces of a player."""
        planes = np.reshape(obs["board"], (-1, *self.rules.shape)) > 0
        mover = int(obs[PLAYER_KEY]) if len(planes) > 1 else 0  # the heaps of Nim are nobody's
        return np.select([planes[0], planes[-1]], [1 + mover, 2 - mover], 0)

    def _render_image(self) -> np.ndarray:
        return _draw_cells(self.find_cells(self._observe(self.player)))


def _observe_position(rules: Rules, position: Position, player: int, is_over: bool = False) -> dict[str, Any]:
    """Return the observation of a position; after the end, all actions are marked as legal."""
    mask = np.full(rules.num_actions, is_over, np.int8)
    mask[rules.find_legal(position)] = 1
    return {"board": rules.board(position), MASK_KEY: mask, PLAYER_KEY: player}


def _draw_cells(cells: np.ndarray) -> np.ndarray:
    """Return a picture ``[H, W, 3]`` uint8 of a board, with a disc for each piece."""
    offset = np.abs(np.arange(CELL_PIXELS) - (CELL_PIXELS - 1) / 2)
    radius = np.hypot(offset[:, None], offset)  # [CELL_PIXELS, CELL_PIXELS]
    rows = cells.repeat(CELL_PIXELS, 0).repeat(CELL_PIXELS, 1)
    picture: np.ndarray = COLORS[rows * np.tile(radius < 0.38 * CELL_PIXELS, cells.shape)]
    is_edge = np.maximum(offset[:, None], offset) > CELL_PIXELS / 2 - 1
    picture[np.tile(is_edge, cells.shape)] = 160
    return picture


def tic_tac_toe(**options: Any) -> BoardGame:
    """Return tic-tac-toe."""
    return BoardGame(ConnectRules(), **options)


def connect_four(rows: int = 6, columns: int = 7, connect: int = 4, **options: Any) -> BoardGame:
    """Return connect four, or connect k on a board of another size."""
    return BoardGame(ConnectRules(rows, columns, connect, gravity=True), **options)


def nim(heaps: Position = (1, 2, 3), **options: Any) -> BoardGame:
    """Return Nim with these heaps."""
    return BoardGame(NimRules(tuple(heaps)), **options)


GAMES: dict[str, Callable[..., BoardGame]] = {
    "reverie/TicTacToe-v0": tic_tac_toe, "reverie/ConnectFour-v0": connect_four, "reverie/Nim-v0": nim,
}  # fmt: skip
"""The games by their ids in Gymnasium."""


def has_solution(env_id: str, kwargs: Mapping[str, Any]) -> bool:
    """Return whether an environment is a game whose exact solution is known."""
    with contextlib.suppress(TypeError, EnvError):  # for wrong arguments
        return env_id in GAMES and GAMES[env_id](**kwargs).rules.is_solved
    return False


# ---------------------------------------------------------------------- exact play


class Solution(NamedTuple):
    """Perfect play in a position."""

    value: float
    optimal: tuple[int, ...]
    """The actions that keep the value."""
    is_hard: bool
    """Whether some legal action does not."""


@functools.lru_cache(2)
def solve(rules: Rules) -> dict[Position, Solution]:
    """Return the solutions of all positions that can be reached and are not over."""
    solutions: dict[Position, Solution] = {}

    def find_value(position: Position) -> float:
        if position not in solutions:
            moves = {action: rules.play(position, action) for action in rules.find_legal(position)}
            values = {
                a: move.reward - (0.0 if move.is_over else find_value(move.position)) for a, move in moves.items()
            }
            best = max(values.values())
            optimal = tuple(action for action, value in values.items() if value == best)
            solutions[position] = Solution(best, optimal, len(optimal) < len(values))
        return solutions[position].value

    find_value(rules.start())
    return solutions


def _stack_observations(rules: Rules, positions: list[Position], player: int) -> dict[str, np.ndarray]:
    """Return the observations ``[N, ...]`` of positions."""
    rows = [_observe_position(rules, position, player) for position in positions]
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def _play_perfect(
    rules: Rules, solutions: Mapping[Position, Solution], choose: ChooseFn, games: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the results ``[games]`` of ``choose`` against a perfect player, the first half as the first player."""
    positions, results, turn = dict.fromkeys(range(games), rules.start()), np.zeros(games), 0
    while positions:
        our_games = [game for game in positions if (turn + (game >= games // 2)) % 2 == 0]
        actions = {
            game: int(rng.choice(solutions[at].optimal)) for game, at in positions.items() if game not in our_games
        }
        if our_games:
            obs = _stack_observations(rules, [positions[game] for game in our_games], turn % 2)
            actions |= dict(zip(our_games, choose(obs).tolist(), strict=True))
        for game, action in actions.items():
            positions[game], reward, is_over = rules.play(positions[game], action)
            results[game] += reward if game in our_games else -reward
            if is_over:
                del positions[game]
        turn += 1
    return results
