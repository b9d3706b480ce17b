"""Agents play a game against each other: their results, and Elo ratings with intervals."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reverie.agent.agent import Agent
from reverie.agent.loading import load_opponent
from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError, count_noun
from reverie.envs.config import EnvLike
from reverie.run.rating import count_results, rate


@dataclass(frozen=True, kw_only=True)
class Arena:
    """The results of P players."""

    table: np.ndarray
    """Games that each player has won, drawn and lost against each other player, ``[P, P, 3]``."""
    elo: dict[str, float]
    """Elo ratings by the names of the players, in their order; relative to random, or to the mean of all."""
    intervals: dict[str, tuple[float, float]]
    """The 95 % intervals of these ratings."""

    def __str__(self) -> str:
        names, width = [*self.elo], 2 + len("--") + 3 * len(str(self.table.max()))
        heads = "".join(f"{number:>{width}}" for number in range(1, len(names) + 1))
        lines = ["won-drawn-lost against", f"{'':4}{heads}"]
        for number, row in enumerate(self.table, 1):
            cells = ["-".join(map(str, x)) if any(x) else "" for x in row.tolist()]
            lines.append(f"{number:>4}" + "".join(f"{cell:>{width}}" for cell in cells))
        lines += ["", f"{'':4}{'Elo':>8}{'95 %':>18}"]
        for number, name in enumerate(names, 1):
            low, high = self.intervals[name]
            lines += textwrap.wrap(f"{number:>4}{self.elo[name]:>8.0f}{f'{low:.0f} to {high:.0f}':>18}  {name}", 80)
        return "\n".join(lines)


def arena(
    players: Sequence[Agent | Path | str], env: EnvLike | Mapping[str, Any] | None = None, games: int = 100, *,
    seed: int = 0, device: str = "auto",
) -> Arena:  # fmt: skip
    """Let agents play a game of two players against each other, and rate them.

    Each pair plays ``games`` games, half of them in each seat. Two games at a time begin with the same random moves,
    with seats changed.

    Args:
        players: at least two: agents; runs, perhaps with a checkpoint, ``"runs/first@20000"`` or ``"runs/first@best"``;
            ``"random"``; or ``"perfect"`` in games with a known solution. The last two do not play each other.
        env: the game, as for :meth:`Agent.evaluate`. None: that of the first agent's evaluations.
        games: number of games of each pair, at least 2.
        seed: of the random moves.
        device: where networks compute.

    Raises:
        ConfigError: there are fewer than two players or no agent, the environment is no game of two players, or the
            agents have other spaces.
    """
    AtLeast(2).check("games", games)
    loaded = [player if isinstance(player, Agent) else load_opponent(str(player), device) for player in players]
    host = next((player for player in loaded if isinstance(player, Agent)), None)
    if host is None or len(loaded) < 2:
        raise ConfigError(f"{count_noun(len(loaded), 'player')}: expected at least two, among them an agent.")
    if env is None and host.eval_factory is None:
        env = {"id": host.config.eval_env_config.id, "kwargs": host.config.eval_env_config.kwargs}
    counts = np.zeros((len(loaded), len(loaded), 3), int)  # of the row's player, who moves first
    for i, j in itertools.combinations(range(len(loaded)), 2):
        first, second = (i, j) if isinstance(loaded[i], Agent) else (j, i)
        agent, opponent = loaded[first], loaded[second]
        if isinstance(agent, Agent):
            scores = agent.evaluate(games, env=env, seed=seed, opponent=opponent).scores
            counts[first, second], counts[second, first] = count_results(scores)
    names = _name_players(loaded)
    is_random = [isinstance(player, str) and player == "random" for player in loaded]
    elo, half = rate(counts, is_random.index(True) if any(is_random) else None)
    intervals = {name: (x - h, x + h) for name, x, h in zip(names, elo.tolist(), half.tolist(), strict=True)}
    table = counts + counts.swapaxes(0, 1)[..., ::-1]
    return Arena(table=table, elo=dict(zip(names, elo.tolist(), strict=True)), intervals=intervals)


def _name_players(players: Sequence[Agent | str]) -> list[str]:
    """Return different names: the run and the step."""
    names = [player if isinstance(player, str) else f"{player.run.name}@{player.step}" for player in players]
    return [f"{name} ({i + 1})" if names.count(name) > 1 else name for i, name in enumerate(names)]
