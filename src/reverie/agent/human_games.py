"""A person plays a game against an agent in the terminal, and each finished game becomes a dataset."""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TextIO

import numpy as np

from reverie.agent.agent import Agent
from reverie.agent.demonstrate import CommandError, DemonstrationReader, KeyPolicy
from reverie.agent.own_policy import PolicyAgent
from reverie.agent.recording import rows_of
from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError, short_repr
from reverie.core.files import check_writable
from reverie.core.rows import Rows
from reverie.core.seeding import seeded_rng
from reverie.core.specs import IS_INTERVENTION, MASK_KEY, PLAYER_KEY, has_players
from reverie.core.terminal import show
from reverie.datasets.convert import write_dataset
from reverie.datasets.options import RecordConfig
from reverie.datasets.reader import DatasetInfo
from reverie.envs.make import close_quietly

WIDTH = 80
HELP = "a number: your move, ?: the agent's search, u: take back your move, q: leave"
WORDS = {"u": "undo", "q": "quit"}


class GamePolicy(KeyPolicy):
    """A policy in which a person has one seat of a game, and an agent the other."""

    game: Any
    """The environment without wrappers."""
    seat: int = 0
    """The person's."""

    def __init__(self, agent: Agent, stream: TextIO, simulations: int, hint: bool) -> None:
        super().__init__(iter(()))
        self.agent = agent
        self.stream = stream
        self.simulations = simulations
        self.hint = hint

    def _next_action(self, mask: Any) -> Any:
        obs = self.seen[-1]
        if int(obs[PLAYER_KEY]) == self.seat:
            return self._ask(obs)
        action = self.agent.search(obs, self.simulations).action
        show(f"the agent plays {self.describe(action)}")
        return action

    def _ask(self, obs: Any) -> int:
        """Return the person's move; CommandError: a command."""
        legal = np.flatnonzero(obs[MASK_KEY]).tolist()
        show(f"\n{self.game.format()}")
        moves = [self.describe(action).replace(" ", "\0") for action in legal]  # lines break between moves
        show(textwrap.fill(f"moves: {', '.join(moves)}", WIDTH).replace("\0", " "))
        if self.hint:
            self.show_search(obs)
        for line in iter(self.stream.readline, ""):
            word = line.strip().lower()
            if word in WORDS:
                raise CommandError(WORDS[word])
            if word.isdecimal() and int(word) in legal:
                return int(word)
            if word == "?":
                self.show_search(obs)
            else:
                show(f"{short_repr(word)} is no legal move\n{HELP}")
        raise CommandError("quit")

    def describe(self, action: int) -> str:
        """Return the number of an action, and what it means if the game says so."""
        rules = getattr(self.game, "rules", self.game)
        return f"{action} ({rules.format_action(action)})" if hasattr(rules, "format_action") else str(action)

    def show_search(self, obs: Any) -> None:
        """Print what the agent's search says of each move, the most visited first."""
        result = self.agent.search(obs, self.simulations)
        show(f"value of the position for the player to move: {result.value:.2f}\n  prior  visits  value  move")
        for action in np.lexsort((result.values, result.visits))[::-1].tolist():
            if not np.isnan(result.values[action]):
                numbers = f"{result.prior[action]:7.2f}{result.visits[action]:8}{result.values[action]:7.2f}"
                show(f"{numbers}  {self.describe(action)}")


class GameReader(DemonstrationReader):
    """A dataset reader of one game, which is played before it is read."""

    undone_steps = 2

    def play(self) -> str | None:
        """Play the game; return how it ended for the person, None if it did not end."""
        policy: GamePolicy = self.agent.policy  # type: ignore[attr-defined]  # of a PolicyAgent
        if (episode := self._play(self.config.seed)) is None:
            return None
        is_person = np.asarray(episode["observations"][PLAYER_KEY])[:-1] == policy.seat  # of each action
        episode |= {"infos": {IS_INTERVENTION: np.append(is_person, False)}}
        self.episodes: Sequence[Rows] = [rows_of(episode, (self.view.space, self.env.action_space))]
        result = float(np.sum(episode["rewards"] * np.where(is_person, 1, -1)))
        return "you win" if result > 0 else "you lose" if result < 0 else "a draw"

    def info(self) -> DatasetInfo:
        """Return the spaces and the environment, and who has played."""
        return replace(
            super().info(), text={"algorithm_name": "person and agent", "description": "games in a terminal"}
        )


def play_games(
    agent: Agent, *, seat: str = "random", simulations: int = 50, hint: bool = False, stream: TextIO | None = None
) -> None:
    """Let a person play games against ``agent`` until the input ends or says q.

    Finished games are datasets in the folder ``human_games`` of the run; rows in which the person moved are marked.

    Args:
        agent: has learned a game of two players.
        seat: the person's: "0" moves first, "1" second, "random" in each game.
        simulations: of the agent's searches.
        hint: show the agent's search before each move of the person.
        stream: lines with moves and commands. None: standard input.

    Raises:
        ConfigError: the environment of the agent is no game of two players, or there are fewer than 2 simulations.
        RunError: the run cannot be written.
    """
    if not has_players(agent.obs_spec):
        raise ConfigError(f"{agent.config.env.id} is no game of two players. Watch the agent: reverie view {agent.run}")
    AtLeast(2).check("simulations", simulations)
    check_writable(folder := agent.run / "human_games")
    policy, rng = GamePolicy(agent, stream or sys.stdin, simulations, hint), np.random.default_rng()
    settings = agent.config.eval_env_config.merge({"num": 1, "vectorization": "sync"})
    player = PolicyAgent(agent.config.merge({"env": settings.to_dict()}), policy, agent.eval_factory)
    env = player.make_env()
    policy.game = env.unwrapped
    show(HELP)
    try:
        while True:
            policy.seat = int(rng.integers(2)) if seat == "random" else int(seat)
            show(f"\na new game: you move {'second' if policy.seat else 'first'}")
            target = next(path for n in itertools.count(1) if not (path := folder / f"{n:06}").exists())
            with seeded_rng(0), GameReader(player, env, RecordConfig(episodes=1), str(target)) as reader:
                if (result := reader.play()) is None:
                    return
                report = write_dataset(reader, str(target), "minari")
                show(f"\n{policy.game.format()}\n{result}, written to {report.path}")
    finally:
        close_quietly(env)
