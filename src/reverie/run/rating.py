"""Elo ratings of players from the results of their games, and the rating of an agent during its training."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from reverie.core.protocols import Learner
from reverie.core.statistics import Z95
from reverie.core.types import State
from reverie.run.dream_snapshots import LearnerWeights

ELO_PER_LOGIT = 400 / np.log(10)


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
    return np.round(ELO_PER_LOGIT * contrast @ beta[:-1], 9) + 0.0, ELO_PER_LOGIT * Z95 * deviation


def count_results(scores: Sequence[float]) -> np.ndarray:
    """Return the games that the first player of each game has won, drawn and lost, ``[2, 3]``.

    ``scores``: results of a player who moves first in every other game. The first row: of this player; the second: of
    the opponent.
    """
    signs = np.sign(scores)
    return np.array([[(signs[::2] == sign).sum(), (signs[1::2] == -sign).sum()] for sign in (1, 0, -1)]).T


class Rating:
    """The agent of the evaluation before, which is an opponent in the next one, and its rating.

    Before the first evaluation, this agent is the one that moves at random, whose rating is 0.
    """

    def __init__(self) -> None:
        self.weights: State = {}
        self.elo: float = 0.0

    def state_dict(self) -> State:
        """Return weights and rating."""
        return {"weights": self.weights, "elo": self.elo}

    def load_state_dict(self, state: State) -> None:
        """Restore what ``state_dict`` returned."""
        self.weights, self.elo = state["weights"], state["elo"]

    def keep(self, algo: Learner, elo: float) -> None:
        """Keep a copy of the agent that was evaluated, with its rating."""
        self.weights, self.elo = copy.deepcopy(LearnerWeights(algo).state_dict()), elo

    def measure(self, scores: Sequence[float]) -> dict[str, float]:
        """Return the strength of an agent, given its ``scores`` in games against the kept one."""
        counts = np.zeros((2, 2, 3), int)
        counts[0, 1], counts[1, 0] = count_results(scores)
        return {"score_previous": float(np.mean(scores)), "elo": self.elo + float(rate(counts, anchor=1)[0][0])}
