"""Pages take over: who acts, for how long, at which pace, and what is stored."""

import functools
import json
import shutil
import sys
from random import Random

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import reverie
from device_vectors import TorchCycle
from helped_env import Helped
from masked_env import Masked
from reverie.algos.table import algorithm_config
from reverie.core.errors import ConfigError
from reverie.envs.config import EnvConfig
from reverie.envs.slot_vector_env import make_vector_env
from reverie.run.channel import LEASE_SECONDS, PageChannel

LEFT, RIGHT = {"keys": ["ArrowLeft"]}, {"keys": ["ArrowRight"]}


class Scripted(PageChannel):
    """Waits by setting its clock forward. Meanwhile, a script of times, pages and messages is carried out."""

    def __init__(self, hz=10.0, script=(), **more):
        self.now, self.script, self.answers = 0.0, [*script], []
        super().__init__(hz, clock=lambda: self.now, **more)
        self.rows = []  # when each was due, and the person's action

    def wait(self, seconds):
        begin, self.now = self.now, self.now + seconds
        assert self.now < 1000, "it waits for ever"
        if self.script and self.script[0][0] <= self.now:  # a message wakes it
            self.now = max(begin, self.script[0][0])
        while self.script and self.script[0][0] <= self.now:
            _, page, message = self.script.pop(0)
            self.answers.append(self.ask(page, **message))

    def ask(self, page, do, **given):
        return self.handle(page, json.dumps({"do": do, **given}))

    def choose(self, step, action):
        chosen = super().choose(step, action)
        self.rows.append((round(self.now, 6), None if chosen is None else chosen.action[0].tolist()))
        return chosen


def alive(page, until, start=0.0):
    return [(start + 0.1 * i, page, {"do": "ping"}) for i in range(round((until - start) * 10))]


@pytest.fixture
def play():
    """Returns a channel that is connected to an environment, and plays it for some turns."""
    envs = []

    def connected(channel, env, pages=1):
        envs.append(make_vector_env(EnvConfig(), seed=1, factory=env))
        channel.connect(envs[-1], lambda: False)
        for _ in range(pages):
            channel.join(lambda: None)
        step, width = [envs[-1].reset(1)], envs[-1].action_spec.width

        def turns(count):
            del channel.rows[:]
            for _ in range(count):
                action = step[0].reward.new_zeros(1, width)
                chosen = channel.choose(step[0], action)
                step[0] = envs[-1].step(action if chosen is None else chosen.replace_in(action))
                channel.judge(step[0])
            return [action for _, action in channel.rows]

        return turns

    yield connected
    for env in envs:
        env.close()


class Endless(gymnasium.Env):
    """Goes on for ever."""

    def __init__(self, space=None):
        self.observation_space, self.action_space = spaces.Box(0, 1, (1,)), space or spaces.Box(-1, 3, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_a_page_acts_until_its_lease_ends(play, said):
    channel = Scripted(script=alive(1, 0.5))
    turns = play(channel, Endless)
    assert turns(3) == [None] * 3
    assert channel.now == 0  # at full speed
    assert channel.ask(1, "take") == {"done": "take"}
    channel.ask(1, "act", **LEFT)
    idle = [-0.5, -0.5]  # zeros
    actions = turns(20)
    count = actions.index(None)
    assert actions == [[-1.0, -0.5]] * count + [None] * (20 - count)
    assert channel.now == pytest.approx(0.4 + LEASE_SECONDS, abs=0.11)  # since the last sign of life
    assert count == pytest.approx(10 * channel.now, abs=1)
    assert any("the page that held the environment is gone" in line for line in said)
    channel.ask(1, "take")
    assert turns(1) == [idle]  # without a key
    channel.ask(1, "give")
    assert turns(1) == [None]


def test_one_page_acts_at_a_time(play):
    channel = Scripted()
    turns = play(channel, Endless, pages=3)
    assert "done" in channel.ask(1, "take")
    for message in ({"do": "take"}, {"do": "act", **LEFT}, {"do": "mark", "success": True}, {"do": "give"},
                    {"do": "pause", "on": True}, {"do": "pace", "hz": 0}):  # fmt: skip
        assert channel.ask(2, **message) == {"refused": "another page acts."}
    assert [channel.describe(page, 0)[0]["owner"] for page in (1, 2)] == ["you", "other"]
    channel.leave(1)  # it vanishes
    assert turns(1) == [None]
    assert "done" in channel.ask(2, "take")
    channel.now += LEASE_SECONDS
    assert "done" in channel.ask(3, "take")
    assert channel.ask(2, "act", **LEFT) == {"refused": "another page acts."}
    channel.ask(3, "give")
    assert channel.ask(3, "act", **LEFT) == {"refused": "take over first."}


def test_rows_are_due_at_the_pace_and_an_input_wakes_the_run_by_half_a_row(play):
    press = [(0.27, 1, {"do": "act", **RIGHT}), (0.28, 1, {"do": "act"}), (0.62, 1, {"do": "act", **LEFT})]
    channel = Scripted(script=sorted(alive(1, 9.0) + press, key=lambda event: event[0]))
    turns = play(channel, Endless)
    channel.ask(1, "take")
    turns(10)
    times, actions = zip(*channel.rows, strict=True)
    assert times == pytest.approx([0, 0.1, 0.2, 0.27, 0.4, 0.5, 0.6, 0.65, 0.8, 0.9], abs=0.001)
    assert [action[0] for action in actions[3:]] == [1.0, -0.5, -0.5, -0.5, -1.0, -1.0, -1.0]


@pytest.mark.parametrize("size", [1, 9])
def test_numbers_are_zero_without_a_key(size, play):
    """Also where there are more numbers than keys."""
    channel = Scripted()
    turns = play(channel, lambda: Endless(spaces.Box(-2, 2, (size,))))
    channel.ask(1, "take")
    assert turns(2) == [[0.0] * size] * 2


@pytest.mark.parametrize(("hz", "space"), [(0, None), (10.0, spaces.Discrete(2))])
def test_a_row_waits_for_a_key_by_setting_or_if_no_action_is_idle(hz, space, play):
    script = [(2.0, 1, {"do": "act", **RIGHT}), (2.05, 1, {"do": "act"}), (4.0, 1, {"do": "act", **LEFT})]
    channel = Scripted(hz, script=sorted(alive(1, 9.0) + script, key=lambda event: event[0]))
    turns = play(channel, lambda: Endless(space))
    channel.ask(1, "take")
    turns(2)
    assert [time for time, _ in channel.rows] == pytest.approx([2.0, 4.0], abs=0.11)
    assert channel.rows[0][1] != channel.rows[1][1]


def test_a_pause_ends_with_its_page(play):
    channel = Scripted(script=[(3.0, 1, {"do": "pause", "on": False}), (3.0, 1, {"do": "ping"})])
    turns = play(channel, Endless, pages=2)  # the other one watches
    channel.ask(1, "pause", on=True)
    turns(2)
    assert [time for time, _ in channel.rows] == pytest.approx([3.0, 3.0], abs=0.11)
    channel.ask(1, "pause", on=True)
    channel.leave(1)
    assert turns(1) == [None]


@pytest.mark.parametrize("number", [-(2**63), 1.5, float("nan")])
def test_numbers_beyond_the_bounds_are_refused(number, play):
    channel = Scripted()
    play(channel, Endless)
    channel.ask(1, "take")
    assert [*channel.ask(1, "act", action=[number, 0])] == ["refused"]


def test_a_stop_ends_every_wait(play):
    channel = Scripted(hz=0.0)
    turns = play(channel, Endless)
    channel.ask(1, "take")
    channel.ask(1, "pause", on=True)
    channel._stop = lambda: True
    assert turns(2) == [None] * 2


def test_actions_that_the_mask_forbids_are_refused(play):
    channel = Scripted()
    turns = play(channel, Masked)
    channel.ask(1, "take")
    channel.ask(1, "pace", hz=5)
    legal = channel.describe(1, 0)[0]["legal"]
    assert legal is None  # before the first row
    channel.script = [(0.0, 1, {"do": "give"})]
    turns(1)
    legal = channel.describe(1, 0)[0]["legal"]
    forbidden, allowed = (legal.index(flag) for flag in (False, True))
    channel.ask(1, "take")
    assert "forbids" in channel.ask(1, "act", action=np.eye(len(legal))[forbidden].tolist())["refused"]
    assert "done" in channel.ask(1, "act", action=np.eye(len(legal))[allowed].tolist())


VALUES = [None, True, False, 0, -1, 10**400, float("nan"), float("inf"), 1e300, 7.5, "", "a", "ArrowUp", [], ["a", "b"],
          [[1]], ["a"] * 9, [1, "a"], {}, {"do": "take"}]  # fmt: skip
NUMBERS = [0, 1, -1, 0.5, 1.5, -(2**63), float("nan"), True, 10**400]
LIKELY = [{"do": "take"}, {"do": "act", "action": [0.5, -1, 0, 1, 0]}, {"do": "act", "keys": ["a"]}, {"do": "give"}]
FIELDS = ["action", "keys", "success", "on", "hz"]


def random_message(rng):
    if rng.random() < 0.4:
        return rng.choice(LIKELY)
    message = {name: rng.choice(VALUES) for name in rng.sample(FIELDS, rng.randrange(3))}
    if rng.random() < 0.3:
        classes = rng.choice([[0, 0, 1], [0, 1, 1], [0, 0, 0], [0, 0.5, 0.5], [0, 1], rng.sample(NUMBERS, 3)])
        return {"do": "act", "action": rng.sample(NUMBERS, 2) + classes}
    return rng.choice([message | {"do": rng.choice([*PageChannel.COMMANDS, "fly"])}] * 9 + VALUES[:1])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_no_message_leads_to_an_action_outside_of_the_space_or_to_two_owners(seed):
    """10,000 messages of three pages, which come and go, and rows in between."""
    env, rng = make_vector_env(EnvConfig(), seed=1, factory=functools.partial(Helped, "never", "dict")), Random(seed)
    channel = Scripted()
    channel.connect(env, lambda: False)
    pages, step, space = [channel.join(lambda: None) for _ in range(3)], env.reset(1), env.call("action_space")[0]
    owners = lambda: [channel.describe(page, 0)[0]["owner"] for page in pages].count("you")  # noqa: E731
    for _ in range(100):
        before, page, message = channel._owner, rng.choice(pages), random_message(rng)
        answer = channel.handle(page, json.dumps(message))
        assert len(answer) == 1
        assert owners() <= 1
        assert channel._owner in (before, None) or (before is None and answer == {"done": "take"})
        if rng.random() < 0.05:
            channel.leave(pages.pop(rng.randrange(3)))
            pages.append(channel.join(lambda: None))
        if channel._paused_by is not None:
            channel.handle(channel._owner or page, '{"do": "pause", "on": false}')
        has_input = channel._tapped is not None or rng.random() < 0.1  # else it waits until the lease ends
        if has_input and (chosen := channel.choose(step, step.reward.new_zeros(1, 5))) is not None:
            flat = chosen.action[0].numpy()
            assert (np.abs(flat) <= 1).all()
            assert sorted(flat[2:]) == [0, 0, 1]
            assert space.contains(channel._codec(flat))
        channel.judge(step)
    env.close()


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, '{"do": []}', '{"do": "take", "page": 2}', "\x00"])
def test_what_is_no_message_is_refused(text, play):
    channel = Scripted()
    play(channel, Endless)
    assert [*channel.handle(1, text)] == ["refused"]


# ---------------------------------------------------------------- rows


def collect(channel, folder=None, **settings):
    config = algorithm_config("sac")().merge({"batch_size": 8, "networks.units": (8,)})
    env = functools.partial(Helped, "never")
    collector = reverie.Collector(
        env, config, steps=10_000, learning_starts=20, human=channel, folder=folder, **settings
    )
    if channel._count == 0:
        channel.join(lambda: None)
    return collector


def stored(collector):
    storage = collector.experiment.replay.storage
    return storage.read(storage.oldest, storage.count)


def test_a_marked_episode_ends_with_its_reward_and_another_begins():
    channel = Scripted()
    with collect(channel) as collector:
        for success in (True, False):
            collector.collect()
            channel.ask(1, "take")
            channel.ask(1, "act", action=[1.0, -1.0])
            collector.collect()
            assert channel.ask(1, "mark", success=success) == {"done": "mark"}
            channel.ask(1, "give")  # the mark counts
            collector.collect()
            channel.ask(1, "take")
            assert channel.ask(1, "mark", success=success) == {"refused": "the episode is over."}
            channel.ask(1, "give")
        collector.collect()
        rows, episodes = stored(collector), collector.pop_episodes()
    assert rows["is_first"][0].tolist() == [True, False, False, True, False, False, True]
    assert rows["is_last"][0].tolist() == rows["is_terminal"][0].tolist() == [False, False, True] * 2 + [False]
    assert rows["reward"][0].tolist() == [0, 0, 1, 0, 0, 0, 0]
    assert (episodes.means()["episode/score"], episodes.means()["episode/length"]) == (0.5, 2)
    assert episodes.means()["episode/success_rate_assisted"] == 0.5
    assert rows["is_intervention"][0].tolist() == [False, True, False] * 2 + [False]  # no action follows an end
    np.testing.assert_array_equal(rows["action"][0, [1, 4]], [[1, -1], [1, -1]])


def test_a_mark_ends_the_wait_for_a_key():
    """The policy takes the action that leads to the last row."""
    channel = Scripted(hz=0.0, script=[(3.0, 1, {"do": "mark", "success": True})])
    with collect(channel) as collector:
        channel.ask(1, "take")
        channel.script[:0] = alive(1, 3.0)
        for _ in range(3):
            collector.collect()
        rows = stored(collector)
    assert channel.rows[0] == (3.0, None)
    assert rows["is_terminal"][0].tolist() == [False, True, False]
    assert "is_intervention" not in rows


def test_a_checkpoint_behind_a_mark_has_it(tmp_path):
    channel = Scripted()
    with collect(channel, tmp_path / "a") as collector:
        for _ in range(3):
            collector.collect()
        channel.ask(1, "take")
        channel.ask(1, "mark", success=True)
        collector.save()
        channel.ask(1, "give")
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        for _ in range(4):
            collector.collect()
        expected = stored(collector)
    with collect(Scripted(), tmp_path / "b") as collector:
        for _ in range(4):
            collector.collect()
        rows = stored(collector)
    assert expected["reward"][0, 3] == 1
    assert all(np.array_equal(expected[name], rows[name]) for name in expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": "none", "data": "none.hdf5"}, "human.person = 'page', but this run collects no rows"),
        ({"actors": 1}, "actors = 1"),
        ({"learners": 2}, "learners = 2"),
        ({"human": {"person": "page", "hz": 31}}, "human.hz = 31"),
        (
            {"algorithm": "tdmpc2", "algo.episodic": False},
            "plans must know .*algo.episodic = True",
        ),
        ({"env": TorchCycle, "envs": 2, "env.vectorization": "native"}, "environments on a device"),
        ({"env": "CartPole-v1", "envs": 2, "env.vectorization": "native"}, "S and F end one episode, .* env.num = 1"),
    ],
)
def test_what_excludes_a_page_is_named(settings, message, tmp_path):
    algorithm = "dqn" if "envs" in settings else "sac"
    given = {"algorithm": algorithm, "env": functools.partial(Helped, "never"), "human": "page", "console": False}
    with pytest.raises(ConfigError, match=message):
        reverie.train(run=tmp_path / "run", steps=10, **given | settings)


def test_a_page_without_its_packages_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "reverie.viewer.launch", raising=False)
    with pytest.raises(ConfigError, match=r"reverie-rl\[viewer\]"):
        reverie.train("sac", functools.partial(Helped, "never"), human="page", run=tmp_path / "run", console=False)
