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

ELO_PER_LOGIT = 400 / np.log(10)
NORMAL_95 = 1.96
"""Half of a 95 % interval in standard deviations."""


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
            scores = np.sign(agent.evaluate(games, env=env, seed=seed, opponent=opponent).scores)
            counts[first, second] = [(scores[::2] == sign).sum() for sign in (1, 0, -1)]
            counts[second, first] = [(scores[1::2] == sign).sum() for sign in (-1, 0, 1)]
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


def rate(counts: np.ndarray, anchor: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the Elo ratings ``[P]`` of P players, and half the widths of their 95 % intervals.

    Bradley and Terry, "Rank analysis of incomplete block designs", 1952, with an advantage h of the first player: the
    probability that i, who moves first, beats j is 1 / (1 + exp(-(r_i - r_j + h))). A draw is half a win. The penalty
    of Firth, "Bias reduction of maximum likelihood estimates", 1993, adds a draw per parameter, so that ratings are
    finite and nearly unbiased. Intervals follow from the Fisher information.

    Args:
        counts: games that i has won, drawn and lost as the first player against j, ``[P, P, 3]``.
        anchor: the player whose rating is 0; None: the mean of all is 0.
    """
    first, second = np.nonzero(counts.sum(-1))
    won, drawn, _ = counts[first, second].T
    games, points = counts[first, second].sum(-1), won + drawn / 2
    x = np.eye(len(counts))[first] - np.eye(len(counts))[second]
    x = np.concatenate([x, np.ones((len(x), 1))], 1)  # [pairs, P + 1]
    beta = np.zeros(x.shape[1])
    for _ in range(100):  # Newton's method; a rating of all players may be added
        p = 1 / (1 + np.exp(-x @ beta))
        weight = games * p * (1 - p)
        covariance = np.linalg.pinv((x.T * weight) @ x, rcond=1e-9, hermitian=True)
        leverage = weight * np.einsum("ni,ij,nj->n", x, covariance, x)
        step = covariance @ x.T @ (points - games * p + leverage * (0.5 - p))
        beta += np.clip(step, -1, 1) / 2  # whole steps can oscillate, with few games
    contrast = np.eye(len(counts)) - (1 / len(counts) if anchor is None else np.eye(len(counts))[anchor])
    deviation = np.sqrt(np.diag(contrast @ covariance[:-1, :-1] @ contrast.T).clip(min=0))
    return ELO_PER_LOGIT * contrast @ beta[:-1] + 0.0, ELO_PER_LOGIT * NORMAL_95 * deviation
