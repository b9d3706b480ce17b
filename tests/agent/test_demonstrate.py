"""A person plays by keys: which keys take which actions, and what is recorded."""

import contextlib
import io
import multiprocessing
import os
import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import reverie
from reverie.agent import demonstrate
from reverie.agent.demonstrate import play
from reverie.cli.main import main
from reverie.core.errors import ConfigError, DataError, RunError
from reverie.core.keymap import find_keymap
from reverie.datasets.format_detection import open_reader


class Counting(gymnasium.Env):
    """Observations count; each episode has 4 steps. Its second episode fails if ``fails``."""

    def __init__(self, fails=False, repeats=True):
        self.observation_space, self.action_space = spaces.Box(0, 100, (1,)), spaces.Discrete(3, start=1)
        self.fails, self.repeats, self.resets = fails, repeats, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.resets = 0, self.resets + 1
        return self._obs(), {}

    def _obs(self):
        return np.float32([self.time if self.repeats else 10 * self.resets + self.time])

    def step(self, action):
        if self.fails and self.resets > 1:
            raise RuntimeError("the simulator has crashed")
        self.time += 1
        return self._obs(), float(action), self.time == 4, False, {}


def episodes_of(path):
    with open_reader(str(path)) as reader:
        parts = [*reader.parts()]
    rows = {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0]}
    begins = np.flatnonzero(rows["is_first"])[1:]
    split = {name: np.split(column, begins) for name, column in rows.items()}
    return [{name: parts[i] for name, parts in split.items()} for i in range(len(begins) + 1)]


def played(tmp_path, keys, env=Counting, **options):
    play(env, out=tmp_path / "d", stream=io.StringIO("\n".join(keys)), **options)
    return [episode["action"][:-1].tolist() for episode in episodes_of(tmp_path / "d")]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("0 1 2 0 2 2 2 2", [[1, 2, 3, 1], [3, 3, 3, 3]]),
        ("ArrowLeft ArrowUp x ArrowRight 0 q", [[1, 3, 2, 1]]),
        ("0 1 u 2 u u 2 2 2 2 q", [[3, 3, 3, 3]]),
        ("0 1 Backspace 2 2 2 2 q", [[3, 3, 3, 3]]),
        ("0 1 Enter 2 2 2 2 0 q", [[1, 2], [3, 3, 3, 3]]),
        ("0 0 0 0 1 1", [[1, 1, 1, 1]]),
    ],
)
def test_keys_become_episodes(keys, expected, tmp_path):
    """An unfinished episode is left out; an undone step is taken again from the same observation."""
    assert played(tmp_path, keys.split(), episodes=2) == expected
    for episode, actions in zip(episodes_of(tmp_path / "d"), expected, strict=True):
        assert episode["obs"].ravel().tolist() == [*range(len(actions) + 1)]
        assert episode["reward"].tolist() == [0, *actions]
        assert episode["is_intervention"].tolist() == [True] * len(actions) + [False]
        assert bool(episode["is_terminal"][-1]) == (len(actions) == 4)


def test_what_was_played_is_kept_if_the_environment_fails(tmp_path, said):
    assert played(tmp_path, "0000111", lambda: Counting(fails=True)) == [[1, 1, 1, 1]]
    assert any("the simulator has crashed" in line and "The others are written" in line for line in said)


def test_steps_of_an_environment_that_does_not_repeat_itself_cannot_be_undone(tmp_path):
    with pytest.raises(DataError, match=r"does not repeat an episode.*cannot be undone"):
        played(tmp_path, "01u2222", lambda: Counting(repeats=False))


def test_a_killed_process_loses_only_the_episode_that_is_being_played(tmp_path):
    """Each episode is in the dataset once it is over. The second one replaces a dataset of one episode."""
    reader, writer = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), "rw", strict=True))
    writer.write("0\n" * 9)
    writer.flush()
    process = multiprocessing.get_context("fork").Process(
        target=play, args=(Counting,), kwargs={"out": tmp_path / "d", "stream": reader}
    )
    process.start()
    for _ in range(3000):
        with contextlib.suppress(Exception):  # it is not there yet, or replaced at this moment
            if len(episodes_of(tmp_path / "d")) == 2:
                break
        time.sleep(0.02)
    assert process.is_alive()
    process.kill()
    process.join()
    assert [episode["action"][:-1].tolist() for episode in episodes_of(tmp_path / "d")] == [[1] * 4] * 2
    writer.close()
    reader.close()


def test_episodes_are_added_to_a_dataset(tmp_path):
    for keys in ("0000", "1111"):
        with contextlib.nullcontext() if keys == "0000" else pytest.raises(RunError, match="exists"):
            played(tmp_path, keys, episodes=1)
    assert played(tmp_path, "1111", episodes=1, append=True) == [[1] * 4, [2] * 4]
    assert played(tmp_path, "2222q", append=True) == [[1] * 4, [2] * 4, [3] * 4]
    assert not [*tmp_path.glob(".*")]
    with pytest.raises(DataError, match=r"Discrete\(3, start=1\): expected"):
        played(tmp_path, "0", "CartPole-v1", append=True)
    assert len(episodes_of(tmp_path / "d")) == 3


def test_a_dataset_survives_a_kill_between_its_two_renames(tmp_path):
    played(tmp_path, "0000", episodes=1)
    (tmp_path / "d").rename(tmp_path / ".d.old")
    assert played(tmp_path, "1111", episodes=1, append=True) == [[1] * 4, [2] * 4]


def test_nothing_played_is_nothing_written(tmp_path):
    with pytest.raises(RunError, match="no episodes"):
        played(tmp_path, "q")
    assert not (tmp_path / "d").exists()


def test_bc_learns_from_what_a_person_played(tmp_path, monkeypatch, capsys):
    lines = io.StringIO("a\nd\n" * 60)
    (tmp_path / "keys.yaml").write_text("a: 0\nd: 1\n")
    monkeypatch.setattr("sys.stdin", lines)
    files = ["--out", str(tmp_path / "d"), "--keys", str(tmp_path / "keys.yaml")]
    assert main(["play", "CartPole-v1", "--episodes", "2", *files]) == 0
    assert main(["data", "info", str(tmp_path / "d")]) == 0
    assert "100.0% of the steps" in capsys.readouterr().out
    result = reverie.train("bc", env="CartPole-v1", data=str(tmp_path / "d"), updates=5, eval_episodes=0,
                           run=tmp_path / "run", console=False, tensorboard=False)  # fmt: skip
    assert result.updates == 5


BOX = spaces.Box(np.float32([-2, 0]), np.float32([2, 1]))


@pytest.mark.parametrize(
    ("text", "space", "keys", "action"),
    [
        ("{ArrowLeft: 1, a+w: 3, idle: 2}", spaces.Discrete(4), "w+a", 3),
        ("{ArrowLeft: 1, a+w: 3, idle: 2}", spaces.Discrete(4), "", 2),
        ("{ArrowLeft: 1}", spaces.Discrete(4), "a", None),
        ("{a: [-1, 0], d: [1.5, 0.5], w: [2, 1]}", BOX, "d+a", [0.5, 0.5]),
        ("{a: [-1, 0], d: [1.5, 0.5], w: [2, 1]}", BOX, "d+w", [2, 1]),
    ],
)
def test_keys_of_a_file(text, space, keys, action, tmp_path):
    (tmp_path / "keys.yaml").write_text(text)
    chosen = find_keymap(tmp_path / "keys.yaml", space, None).choose(frozenset(filter(None, keys.split("+"))))
    assert (chosen is None) == (action is None)
    assert action is None or np.asarray(chosen).tolist() == action


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 0\nb: 7", r"keys.yaml, line 2: b: the action 7 is not in Discrete\(4\)"),
        ("a: 0\nA: 1", "line 2: A has two actions"),
        ("a: left", "line 1: a: the action 'left' is not in"),
        ("[a, b]", "expected keys and their actions"),
    ],
)
def test_wrong_files_are_refused_with_their_line(text, message, tmp_path):
    (tmp_path / "keys.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        find_keymap(tmp_path / "keys.yaml", spaces.Discrete(4), None)


class Declaring:
    def get_keys_to_action(self):
        return {(): 0, ("w",): 2, (ord("a"), ord("w")): 3, (ord(" "),): 1}


class Both(Declaring):
    """As in Atari, whose keys are characters, also of the action that does nothing."""

    def get_keys_to_action(self):
        return {(ord("e"),): 0, (ord(" "),): 1}

    def get_action_meanings(self):
        return ["NOOP", "FIRE"]


class Named:
    metadata = {}  # noqa: RUF012

    def get_action_meanings(self):
        return ["NOOP", "FIRE", "UP", "LEFT"]


def test_default_keys():
    """Those of the environment; else arrows by the names of actions; else pairs for numbers."""
    keymap = find_keymap(None, spaces.Discrete(4), Declaring())
    assert [keymap.choose(frozenset(keys)) for keys in ("", "w", "wa", "x", ["Space"])] == [0, 2, 3, None, 1]
    assert find_keymap(None, spaces.Discrete(2), Both()).idle == 0
    keymap = find_keymap(None, spaces.Discrete(4), Named())
    assert [keymap.choose(frozenset({key})) for key in ("ArrowUp", "ArrowLeft", "ArrowRight", "1")] == [2, 3, None, 1]
    assert keymap.idle == 0
    keymap = find_keymap(None, BOX, object())
    assert keymap.choose(frozenset({"ArrowLeft", "ArrowUp"})).tolist() == [-2, 1]
    assert keymap.idle.tolist() == [0, 0]
    with pytest.raises(ConfigError, match="--keys FILE"):
        find_keymap(None, spaces.Box(-1, 1, (9,)), object())


def test_a_terminal_sends_keys_one_by_one(monkeypatch):
    """Arrows are an escape character and two more; nothing within the time is no key."""
    sent, ready = iter([b"a", b"\x1b", b"[D", b"\n", b"\x1b", b""]), iter([1, 1, 1, 0, 1, 1, 0, 1])
    monkeypatch.setattr(demonstrate.select, "select", lambda files, *_: (files if next(ready) else [], [], []))
    pressed = demonstrate._read_terminal(0, 0.1, lambda file, count: next(sent))
    assert [set(keys) for keys in pressed] == [{"a"}, {"ArrowLeft"}, set(), {"Enter"}, {"Escape"}]
