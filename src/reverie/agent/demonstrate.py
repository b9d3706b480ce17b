"""A person plays by keys, and each episode becomes demonstrations."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from gymnasium import spaces

from reverie.agent.own_policy import make_player
from reverie.agent.play import first_seed
from reverie.agent.recording import PlayedReader, record_episode, rows_of
from reverie.core.errors import DataError, format_error
from reverie.core.keymap import KeyMap, Keys, find_keymap
from reverie.core.logger import logger
from reverie.core.rows import Rows, iter_episodes
from reverie.core.seeding import seeded_rng
from reverie.core.specs import IS_INTERVENTION
from reverie.core.terminal import show
from reverie.datasets.convert import check_target, write_dataset
from reverie.datasets.format_detection import open_reader
from reverie.datasets.options import RecordConfig
from reverie.datasets.output import WriteReport, replacing, target_path
from reverie.datasets.reader import DatasetInfo
from reverie.envs.config import EnvLike
from reverie.envs.make import close_quietly

COMMANDS = {"Enter": "end", "Backspace": "discard", "u": "undo", "q": "quit", "Escape": "quit"}
"""Keys that take no action, unless a file or the environment gives them one."""
HELP = "Enter ends the episode, Backspace discards it, u undoes the newest step, q quits"
ESCAPES = {"[A": "ArrowUp", "[B": "ArrowDown", "[C": "ArrowRight", "[D": "ArrowLeft"}
"""What terminals send after an escape character, by the key."""


class CommandError(Exception):
    """A command instead of an action; its argument is one of ``COMMANDS``."""


class KeyPolicy:
    """A policy that repeats given actions, and then takes those of the keys."""

    keymap: KeyMap

    def __init__(self, keys: Iterator[Keys]) -> None:
        self.keys: Iterator[Keys] = keys
        self.start([])

    def start(self, actions: Iterable[Any]) -> None:
        """Begin an episode whose first actions are ``actions``."""
        self.actions: list[Any] = [*actions]
        self.taken: int = 0
        self.seen: list[Any] = [] if not self.actions else self.seen[: len(self.actions)]

    def __call__(self, obs: Any, action_mask: Any = None) -> Any:
        """Return the next action. DataError if an environment does not repeat an episode; CommandError: a command."""
        number, self.taken = self.taken, self.taken + 1
        if number < len(self.seen):
            try:
                np.testing.assert_equal(obs, self.seen[number])
            except AssertionError:
                raise DataError(
                    "the environment does not repeat an episode after the same seed and actions, so steps cannot be "
                    "undone. Discard the episode (Backspace)."
                ) from None
        else:
            self.seen.append(deepcopy(obs))
        if number == len(self.actions):
            self.actions.append(self._next_action(action_mask))
        return self.actions[number]

    def _next_action(self, mask: Any) -> Any:
        for keys in self.keys:
            action, space = self.keymap.choose(keys), self.keymap.space
            if mask is not None and action is not None and isinstance(space, spaces.Discrete):
                action = action if mask[action - space.start] else None
            if action is not None:
                return action
            if len(keys) == 1 and (command := COMMANDS.get(next(iter(keys)))):
                raise CommandError(command)
            show(f"no action for {'+'.join(sorted(keys)) or 'no key'}. {self.keymap.describe()}", sys.stderr)
        raise CommandError("quit")


class DemonstrationReader(PlayedReader):
    """A dataset reader of the episodes that a person has played."""

    undone_steps: int = 1
    """Steps that an undo takes back."""
    episodes: Sequence[Rows] = ()

    def parts(self) -> Iterator[Rows]:
        """Yield the episodes."""
        return iter(self.episodes)

    def read_episodes(self, target: str) -> list[Rows]:
        """Return the episodes of the dataset ``target``; DataError if they have other spaces."""
        with open_reader(target) as reader:
            info = reader.info()
            if (info.observation, info.action) != (self.view.space, self.env.action_space):
                raise DataError(
                    f"{target} has observations in {info.observation} and actions in {info.action}: expected "
                    f"{self.view.space} and {self.env.action_space}, as the environment. Choose another name."
                )
            return [*iter_episodes(reader.as_recorded())]

    def play_episodes(self) -> Iterator[Rows]:
        """Let a person play; yield each episode that was neither discarded nor left unfinished."""
        pair, seed = (self.view.space, self.env.action_space), first_seed(self.config) + len(self.episodes)
        for number in range(self.config.episodes or 0):
            try:
                episode = self._play(seed + number)
            except (Exception, KeyboardInterrupt) as error:
                if number == 0:
                    raise
                logger.warning(f"episode {number + 1} is lost: {format_error(error)}. The others are written")
                return
            if episode is None:
                return
            show(f"episode {number + 1}: return {episode['rewards'].sum():g} in {len(episode['rewards'])} steps")
            tags = np.ones(len(episode["rewards"]) + 1, bool)
            tags[-1] = False
            yield rows_of(episode | {"infos": {IS_INTERVENTION: tags}}, pair)

    def _play(self, seed: int) -> dict[str, Any] | None:
        """Return an episode from ``seed``; None if the person quits."""
        policy: KeyPolicy = self.agent.policy  # type: ignore[attr-defined]  # of a PolicyAgent
        rng, limit = np.random.default_rng(seed), self.limit
        policy.start([])
        while True:
            try:
                return record_episode(self.agent, self.env, self.config, rng, seed, limit)[0]
            except CommandError as command:
                if (name := str(command)) == "quit":
                    return None
                count = len(policy.actions)
                num_kept = {"end": count, "undo": max(0, count - self.undone_steps)}.get(name, 0)
                limit = num_kept if name == "end" and num_kept else self.limit
                policy.start(policy.actions[:num_kept])

    def info(self) -> DatasetInfo:
        """Return the spaces and the environment; nothing about the person."""
        text: Mapping[str, str] = {"algorithm_name": "person", "description": "recorded by a person, by keys"}
        return replace(super().info(), text=dict(text))


def play(
    env: EnvLike, *, out: Path | str, append: bool = False, episodes: int = 10, keys: Path | None = None, seed: int = 0,
    hz: float = 0.0, format: str = "auto", env_options: Mapping[str, Any] | None = None, stream: TextIO | None = None,
) -> WriteReport:  # fmt: skip
    """Let a person play ``env`` by keys, and write the episodes as a dataset of demonstrations, after each episode.

    Args:
        env: the environment, as for :func:`reverie.train`.
        out: a folder that does not exist yet, a file for d4rl, robomimic and tianshou, or ``minari:NAME``.
        append: add the episodes to those of ``out``, if it exists.
        episodes: number of episodes to play; fewer if the person quits.
        keys: YAML file with actions by key. None: those of the environment, or else digits and arrows.
        seed: of the first episode.
        hz: env steps a second on a terminal; without a key, the idle action is taken. 0: each step waits for a key.
        format: output format. "auto": by the suffix of ``out``, .hdf5 (d4rl) or .parquet, else Minari.
        env_options: settings of the environment, such as ``{"kwargs": {"render_mode": "human"}}``.
        stream: where the keys come from: a terminal, or text with the keys of one step in each line, such as ``a+w``.
            None: standard input.

    Raises:
        ReverieError: the keys do not fit the actions, the environment fails, or ``out`` exists; RunError if no episode
            was finished.
    """
    with replacing(str(out)) if append else contextlib.nullcontext():
        check_target(str(out), format)
    stream = sys.stdin if stream is None else stream
    with _read_keys(stream, hz) as pressed:
        policy = KeyPolicy(pressed)
        agent = make_player(env, policy, env_options)
        played = agent.make_env()
        try:
            policy.keymap = find_keymap(keys, played.action_space, played.unwrapped)
            show(f"{policy.keymap.describe()}\n{HELP}")
            config = RecordConfig(episodes=episodes, seed=seed)
            report = WriteReport(target_path(str(out)))
            with seeded_rng(seed), DemonstrationReader(agent, played, config, str(out)) as reader, replacing(str(out)):
                reader.undone_steps = max(1, round(hz))
                reader.episodes = reader.read_episodes(str(out)) if report.path.exists() else []
                for rows in reader.play_episodes():
                    reader.episodes = [*reader.episodes, rows]
                    report = write_dataset(reader, str(out), format)
                report.check()
                report.remarks += reader.remarks()
            return report
        finally:
            close_quietly(played)


@contextlib.contextmanager
def _read_keys(stream: TextIO, hz: float) -> Iterator[Iterator[Keys]]:
    """Yield an iterator of the keys of each step; it ends with the input, or when the person interrupts."""
    if not stream.isatty():
        yield (frozenset(filter(None, line.strip().split("+"))) for line in stream)
        return
    import termios
    import tty

    saved = termios.tcgetattr(stream)
    try:
        tty.setcbreak(stream)
        yield _read_terminal(stream.fileno(), 1 / hz if hz else None)
    finally:
        termios.tcsetattr(stream, termios.TCSADRAIN, saved)


def _read_terminal(file: int, seconds: float | None, read: Callable[[int, int], bytes] = os.read) -> Iterator[Keys]:
    """Yield the key of each step; no key if none was pressed for this many ``seconds``. None: wait for one."""
    names = {"\n": "Enter", "\r": "Enter", "\x7f": "Backspace", "\x08": "Backspace", " ": "Space"}
    while True:
        try:
            if seconds is not None and not select.select([file], [], [], seconds)[0]:
                yield frozenset()
                continue
            text = read(file, 1).decode(errors="replace")
            if text == "\x1b" and select.select([file], [], [], 0.01)[0]:
                text = ESCAPES.get(read(file, 2).decode(errors="replace"), "unknown")
        except KeyboardInterrupt:
            return
        if not text:
            return
        yield frozenset({names.get(text, "Escape" if text == "\x1b" else text if len(text) > 1 else text.lower())})
