"""Games of two policies against each other, each in its seat, as one policy; and the strength of a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from reverie.core.errors import EnvError
from reverie.core.protocols import Env, Memoryless, Policy
from reverie.core.specs import MASK_KEY, PLAYER_KEY, ActionSpec, has_players
from reverie.core.types import Mode, Step
from reverie.run.turn import initial_state, random_flat_actions

OPENING_MOVES = 2
"""Moves at the beginning of a game that are drawn at random, as deterministic players would repeat one game."""


class RandomPolicy:
    """A policy that takes random legal actions."""

    def __init__(self, spec: ActionSpec, seed: int) -> None:
        self.spec = spec
        self.rng: np.random.Generator = np.random.default_rng(seed)

    def initial(self, num_envs: int) -> tuple[()]:
        return ()

    def act(self, step: Step, state: tuple[()], mode: Mode) -> tuple[Tensor, tuple[()]]:
        return random_flat_actions(self.spec, len(step), self.rng, _legal(step)).to(step.is_first.device), state

    def override(self, state: tuple[()], action: Tensor) -> tuple[()]:
        return state

    def extras(self, state: tuple[()]) -> dict[str, Tensor]:
        return {}


def _legal(step: Step) -> Tensor | None:
    return step.obs[MASK_KEY].cpu() if MASK_KEY in step.obs else None


class MatchState(NamedTuple):
    """The state of :class:`Match`."""

    policies: tuple[Any, Any]
    game: np.ndarray  # [N], number of the running game
    move: np.ndarray  # [N], moves made in it; -1 before the first row


class Match:
    """Two policies that play games against each other, seen as a policy.

    Games are numbered over all environments. In even ones, the first policy moves first. Games 2k and 2k + 1 begin with
    the same random moves, so that neither policy has the better openings.
    """

    def __init__(
        self, policies: tuple[Policy[Any], Policy[Any]], spec: ActionSpec, quota: Sequence[int], seed: int
    ) -> None:
        """``quota``: number of games in each environment."""
        self.policies = policies
        self.spec = spec
        self.first_games: np.ndarray = np.cumsum([0, *quota[:-1]])
        self.seed = seed

    def initial(self, num_envs: int) -> MatchState:
        first, second = (initial_state(policy, num_envs) for policy in self.policies)
        return MatchState((first, second), self.first_games, np.full(num_envs, -1))

    def advance_schedule(self, state: MatchState, env_steps: int) -> MatchState:
        first, second = (initial_state(policy, len(state.move), env_steps) for policy in self.policies)
        return state._replace(policies=(first, second))

    def act(self, step: Step, state: MatchState, mode: Mode) -> tuple[Tensor, MatchState]:
        """Return the actions ``[N, A]`` of the players to move. Both policies know of them."""
        is_first, is_last = step.is_first.numpy(force=True), step.is_last.numpy(force=True)
        move = np.where(is_first, 0, state.move + 1)
        (first, second), states = zip(
            *map(lambda p, s: p.act(step, s, mode), self.policies, state.policies), strict=True
        )
        player = step.obs[PLAYER_KEY].to(first.device)
        action = torch.where(
            (player == torch.from_numpy(state.game % 2).to(player.device)).unsqueeze(-1), first, second
        )
        legal = _legal(step)
        for i in np.flatnonzero(move < OPENING_MOVES):
            rng = np.random.default_rng([self.seed, state.game[i] // 2, move[i]])
            action[i] = random_flat_actions(self.spec, 1, rng, None if legal is None else legal[i : i + 1])[0]
        game = state.game + (is_last & (move > 0))  # an episode of a single row is no game
        return action, self.override(MatchState(states, game, move), action)

    def override(self, state: MatchState, action: Tensor) -> MatchState:
        first, second = (p.override(s, action) for p, s in zip(self.policies, state.policies, strict=True))
        return state._replace(policies=(first, second))

    def extras(self, state: MatchState) -> dict[str, Tensor]:
        return {}


def with_opponent(
    env: Env, policy: Policy[Any], opponent: Policy[Any] | None, quota: Sequence[int], seed: int
) -> Policy[Any]:
    """Return ``policy``; in games of two players its match against ``opponent``. None: against random moves."""
    if not has_players(env.obs_spec):
        return policy
    rival = RandomPolicy(env.action_spec, seed) if opponent is None else opponent
    return Match((policy, rival), env.action_spec, quota, seed)


def to_results(scores: Sequence[float], info: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return the first policy's ``scores``, given the first players', and ``info`` with whether each game was won."""
    results = [score if game % 2 == 0 else -score for game, score in enumerate(scores)]
    names = {"won": 1, "drawn": 0, "lost": -1}
    shares = [{name: float(np.sign(x) == sign) for name, sign in names.items()} for x in results]
    return {"scores": results, "info": [{**a, **b} for a, b in zip(info or [{}] * len(shares), shares, strict=True)]}


def find_solved_rules(env: Env) -> Any:
    """Return the rules of a game whose solution is known, see ``envs/board_games.py: Rules``; None: it is not.

    None, too, if settings change the observation.
    """
    try:
        rules = env.call("rules")[0]
    except EnvError:
        return None
    shapes = {key: part.shape for key, part in env.obs_spec.items()}
    unchanged = {"board": rules.board(rules.start()).shape, MASK_KEY: (rules.num_actions,), PLAYER_KEY: ()}
    return rules if rules.is_solved and shapes == unchanged else None


def measure_strength(env: Env, policy: Policy[Any]) -> dict[str, float]:
    """Return how well ``policy`` plays, with perfect play as the measure; {} if the solution of the game is unknown."""
    has_memory = isinstance(policy, Memoryless) and not policy.memoryless("eval")  # positions do not tell earlier rows
    if has_memory or (rules := find_solved_rules(env)) is None:
        return {}

    def choose(obs: Mapping[str, np.ndarray]) -> np.ndarray:
        parts = {key: torch.as_tensor(obs[key], dtype=getattr(torch, x.dtype)) for key, x in env.obs_spec.items()}
        count = len(parts[PLAYER_KEY])
        begins = torch.ones(count, dtype=torch.bool)
        step = Step(obs=parts, reward=torch.zeros(count), is_first=begins, is_last=~begins, is_terminal=~begins)
        action, _ = policy.act(step, policy.initial(count), "eval")
        return action.argmax(-1).numpy(force=True)

    strength: dict[str, float] = rules.measure_strength(choose)
    return strength
