"""Environments that raise, die or hang are started again alone; too many failures end the run with their traceback."""

import functools
import signal
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import env_zoo
from env_steps import play, rows
from reverie.core.errors import ConfigError, DataError, EnvError
from reverie.envs.config import EnvConfig
from reverie.envs.slot import EnvFailure, Restarter, derive_seeds, restart_seed
from reverie.envs.slot_vector_env import make_vector_env

SEEDS = derive_seeds(0, 3)


class Clock:
    """A clock that goes on by the seconds that are slept, and by one second with every step."""

    def __init__(self, env):
        self.now, self.slept, self.send = 0.0, [], env.send
        env.vector._restarter._clock, env.vector._restarter._sleep, env.send = lambda: self.now, self.sleep, self.step

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def step(self, action):
        self.now += 1
        self.send(action)


@pytest.fixture
def faulty(make, said):
    """Environments with faults by number; their sleeps and sentences are kept in ``env.slept`` and ``env.said``."""

    def made(plan, more=(), num=3, **options):
        by_seed = {SEEDS[number]: fault for number, fault in plan.items()} | dict(more)
        env = make(functools.partial(env_zoo.Faulty, by_seed), num=num, **options)
        env.slept, env.said = Clock(env).slept, said
        return env

    return made


@pytest.fixture(scope="module")
def undisturbed():
    """Rows of the same environments without any fault."""
    env = make_vector_env(EnvConfig(num=3), seed=0, factory=functools.partial(env_zoo.Faulty, {}))
    return rows(env, 16)


def check(got, undisturbed, plan):
    """An environment that fails begins anew in the row that would have been the failing one, of 6 in each episode."""
    failed = {number: 6 * (episode - 1) + step for number, (episode, step, _) in plan.items()}
    for number in range(3):
        row = failed.get(number, 16)
        for name, value in undisturbed.items():
            assert torch.equal(got[name][:row, number], value[:row, number]), name
        if number in failed:
            rng = np.random.default_rng(restart_seed(SEEDS[number], 1))
            assert got["observation"][row, number] == rng.random(1).astype(np.float32)
            for name in ("is_first", "reward"):
                assert torch.equal(got[name][row:, number], undisturbed[name][: 16 - row, number])


FAULTS = st.tuples(st.integers(1, 2), st.integers(0, 5), st.sampled_from(["raise", "nan"]))


@given(plan=st.dictionaries(st.integers(0, 2), FAULTS.filter(lambda fault: fault[:2] > (1, 1))))
@settings(max_examples=15, deadline=None)
def test_any_failures(undisturbed, plan):
    factory = functools.partial(env_zoo.Faulty, {SEEDS[number]: fault for number, fault in plan.items()})
    env = make_vector_env(EnvConfig(num=3), seed=0, factory=factory)
    check(rows(env, 16), undisturbed, plan)
    assert env.restarts == len(plan)


@pytest.mark.parametrize("plan", [{0: (1, 3, "raise"), 1: (2, 0, "die"), 2: (2, 5, "sleep")}, {1: (1, 3, "nan")}])
def test_workers_that_fail_die_and_hang(faulty, undisturbed, plan):
    env = faulty(plan, vectorization="async")
    for slot in env.vector._slots:  # workers may take their time to start for the first time
        slot._timeout = 1.0
    check(rows(env, 16), undisturbed, plan)
    assert env.restarts == len(plan)
    expected = {"raise": "Unpicklable: a wheel", "die": r"exit code 7", "sleep": "no response", "nan": "is nan"}
    for (number, fault), line in zip(plan.items(), env.said, strict=True):
        assert f"environment {number}" in line
        assert expected[fault[2]] in line


def keeps_failing(number):
    """Faults of the first three restarts of an environment: in its reset, its first step, its reset."""
    faults = [(1, 0, "raise"), (1, 1, "nan"), (1, 0, "raise")]
    return {restart_seed(SEEDS[number], n): fault for n, fault in enumerate(faults, 1)}


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_one_that_keeps_failing_is_down_longer_and_longer_and_the_others_go_on(faulty, undisturbed, vectorization):
    """For 1, 2 and 4 seconds it shows its newest observation in episodes of a single row."""
    env = faulty({1: (1, 3, "raise")}, keeps_failing(1), vectorization=vectorization)
    got = rows(env, 16)
    assert (env.slept, env.restarts) == ([], 4)
    assert "restarting a failed environment in 4 seconds: environment 1" in env.said[-1]
    down, obs = [3, 5, 6, 7, 8, 9, 10], got["observation"][:, 1]
    assert got["is_first"][:, 1].nonzero().ravel().tolist() == [0, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert got["is_last"][:, 1].nonzero().ravel().tolist() == down
    assert [row for row in range(1, 16) if torch.equal(obs[row], obs[row - 1])] == down
    assert not got["reward"][down, 1].any()
    assert not got["is_terminal"].any()
    for number in (0, 2):
        for name, value in undisturbed.items():
            assert torch.equal(got[name][:, number], value[:, number]), name


def test_where_all_are_down_they_are_waited_for(faulty):
    env = faulty({0: (1, 3, "raise")}, keeps_failing(0), num=1)
    got = rows(env, 16)
    assert env.slept == [1.0, 2.0, 4.0]
    assert got["is_first"].nonzero()[:, 0].tolist() == [0, 3, 4, 10]


def test_one_that_is_down_has_no_snapshot_takes_no_request_and_can_be_reset(faulty):
    env = faulty({1: (1, 2, "raise")}, {restart_seed(SEEDS[1], n): (1, 0, "raise") for n in (1, 2)})
    play(env, 2)
    step = env.step(torch.zeros(3, 2))
    assert step.is_last.tolist() == [False, True, False]
    assert [snapshot is None for snapshot in env.snapshot()] == [False, True, False]
    assert env.call("raise_to", 3) == [3, None, 3]
    step = env.reset()
    assert (step.is_first.tolist(), step.is_last.tolist()) == ([True] * 3, [False, True, False])
    got = [env.step(torch.zeros(3, 2)) for _ in range(4)]
    assert [step.is_last[1].item() for step in got] == [True, True, False, False]
    assert env.call("level") == [3, 3, 3]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_too_many_failures_end_it_with_the_traceback(faulty, vectorization):
    more = {restart_seed(SEEDS[1], n): (1, 0, "raise") for n in (1, 2, 3)}
    env = faulty({1: (1, 2, "raise")}, more, restarts=2, restart_window=50.0, vectorization=vectorization)
    play(env, 3)
    said = r"3 environment failures within \d+ seconds: .* env.restarts = 2 .* = 50"
    with pytest.raises(EnvError, match=said) as caught:
        env.step(torch.zeros(3, 2))
    text = str(caught.value)
    assert "environment 1 ('Faulty'), step 0 of episode 1 failed with Unpicklable: a wheel and an axle" in text
    assert text.endswith("env_zoo.Unpicklable: a wheel and an axle")
    assert ("raise Unpicklable" in text, "flat.py" in text) == (True, False)
    assert (env.restarts, env.snapshot()) == (2, [None] * 3)
    for call in (lambda: env.send(torch.zeros(3, 2)), env.reset):
        with pytest.raises(EnvError, match="3 environment failures"):
            call()


@pytest.mark.parametrize("fault", [(1, 0, "raise"), (1, 1, "nan")])
def test_a_failure_before_the_first_step_is_counted_like_any_other(faulty, fault):
    env = faulty({1: fault}, {restart_seed(SEEDS[1], 1): fault})
    found = rows(env, 4)
    assert (env.restarts, env.slept) == (2, [])
    assert f"environment 1 ('Faulty'), step {fault[1]} of episode 1" in env.said[0]
    assert found["is_first"][fault[1]].tolist() == ([True] * 3 if fault[1] == 0 else [False, True, False])


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("fault", [(1, 0, "raise"), (1, 3, "raise"), (1, 1, "nan"), (1, 3, "nan")])
def test_the_same_failure_three_times_in_a_row_ends_it_and_names_the_check(faulty, fault, vectorization):
    again = {restart_seed(SEEDS[1], n): fault for n in range(1, 5)}
    env = faulty({1: (2, *fault[1:])}, again, vectorization=vectorization)
    said = "failed 3 times in a row for the same reason.*`reverie check-env`.*The last failure: environment 1"
    with pytest.raises(EnvError, match=said):
        play(env, 40)
    assert env.restarts == 2


def test_the_same_failure_after_a_complete_episode_is_a_new_one(faulty):
    env = faulty({1: (2, 3, "raise")}, {restart_seed(SEEDS[1], n): (2, 3, "raise") for n in range(1, 5)})
    rows(env, 60)
    assert env.restarts == 5


def test_a_worker_that_dies_again_is_restarted(faulty):
    die = (1, 2, "die")
    env = faulty({1: die}, {restart_seed(SEEDS[1], n): die for n in range(1, 5)}, vectorization="async")
    rows(env, 20)
    assert env.restarts == 5


@pytest.mark.parametrize("how", [("raise", "nan"), ("nan", "raise")])
def test_what_never_takes_a_step_ends_it_after_a_few_attempts(faulty, how):
    faults = [(1, 1, how[n % 2]) for n in range(5)]
    env = faulty({1: faults[0]}, {restart_seed(SEEDS[1], n): faults[n] for n in range(1, 5)})
    said = "failed 5 times in a row before its first step.* The last failure: environment 1"
    with pytest.raises(EnvError, match=said):
        play(env, 9)
    assert (env.restarts, env.slept) == (4, [])


@pytest.mark.parametrize("fault", [(1, 0, "raise"), (1, 1, "nan")])
def test_where_none_of_several_works_the_run_ends_at_once(faulty, fault):
    env = faulty({}, dict.fromkeys(SEEDS, fault))
    said = "^all 3 environments have failed before their first step. Check the environment with `reverie check-env`"
    with pytest.raises((EnvError, DataError), match=said) as raised:
        play(env, 9)
    assert "restarts" not in str(raised.value)
    assert (env.restarts, env.said) == (0, [])


def test_one_that_is_started_again_gets_what_was_set_in_the_others(faulty):
    env = faulty({1: (1, 3, "raise")})
    env.reset()
    for level in (1, 2):
        env.call("raise_to", level)
    env.set_attr("height", 5)
    for _ in range(4):
        env.step(torch.zeros(3, 2))
    assert (env.restarts, env.call("level"), env.call("height")) == (1, [2, 2, 2], [5, 5, 5])


def test_an_instance_is_reset_and_stays_open(make):
    env = make(env_zoo.Faulty({SEEDS[0]: (1, 3, "raise")}))
    env.reset()
    assert [env.step(torch.zeros(1, 2)).is_first.item() for _ in range(4)] == [False, False, True, False]


def test_after_an_interrupted_step_there_is_no_snapshot_but_a_new_start(make, monkeypatch):
    env = make(env_zoo.Seeded, num=2)
    env.reset()
    interrupted = env.vector._slots[1].env.unwrapped
    monkeypatch.setattr(interrupted, "step", lambda action: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        env.step(torch.zeros(2, 2))
    assert env.snapshot() == [None, None]
    assert env.reset().is_first.all()
    assert None not in env.snapshot()


EVENTS = st.lists(st.tuples(st.floats(0, 50), st.integers(0, 2)), max_size=40)


@given(events=EVENTS, most=st.integers(1, 8), window=st.floats(1, 100))
@settings(deadline=None)
def test_failures_within_a_window(events, most, window):
    now = 0.0
    restarter = Restarter([], None, [0] * 3, most, window)
    restarter.has_stepped, restarter._clock = [True] * 3, lambda: now
    past = []
    for passed, number in events:
        now += passed
        past.append((now, number))
        recent = [who for when, who in past if now - when < window]
        if len(recent) > most:
            with pytest.raises(EnvError, match=f"{len(recent)} environment failures"):
                restarter._wait(number, EnvFailure(EnvError("broken")))
            return
        in_vain = [who for _, who in past].count(number) - 1
        expected = min(2 ** (in_vain - 1), 60) if in_vain else 0
        assert restarter._wait(number, EnvFailure(EnvError("broken"))) == expected


def test_one_that_took_steps_since_it_was_started_is_not_waited_for(faulty):
    again = {restart_seed(SEEDS[1], n): (1, 2, how) for n, how in enumerate(("raise", "nan", "raise"), 1)}
    env = faulty({1: (1, 3, "raise")}, again)
    rows(env, 12)
    assert (env.restarts, env.slept) == (4, [])


# What is told of mistakes


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        (env_zoo.OldReset, {}, r"reset\(\) returned one value of type int: expected 2 values \(obs"),
        (env_zoo.OldStep, {"action_repeat": 2}, r"step 1 of episode 1: step\(\) returned 4 values.*shimmy"),
        (env_zoo.OldStep, {"max_episode_steps": 9}, r"step 1 .*a wrapper of Gymnasium found not enough values.*shimmy"),
    ],
)
def test_environments_of_old_gym_are_told_apart(make, factory, options, message):
    env = make(factory, restarts=0, **options)
    with pytest.raises(DataError, match=message):
        env.reset() and env.step(torch.zeros(1, 2))


def test_an_observation_outside_its_space_in_the_second_env(make):
    shown = [[0, 0, 0], [0, 7]]
    env = make(lambda: env_zoo.Scripted(spaces.Discrete(3), shown.pop(0)), num=2, restarts=0)
    env.reset()
    with pytest.raises(DataError, match=r"environment 1 .*step 1 .*'observation' is 7; its space declares 0..2"):
        env.step(torch.zeros(2, 2))


def test_a_worker_that_cannot_be_made_says_why():
    with pytest.raises(EnvError, match=r"environment [01] .*could not be created: OSError: no license for a second"):
        make_vector_env(EnvConfig(num=2, vectorization="async"), seed=0, factory=env_zoo.only_in_main)


def test_a_worker_that_cannot_have_processes_says_what_to_do_instead():
    with pytest.raises(EnvError, match=r"daemonic processes .* set env.vectorization = 'sync'"):
        make_vector_env(EnvConfig(num=2, vectorization="async"), seed=0, factory=env_zoo.Parent)


def test_instances(make):
    instance = env_zoo.Seeded()
    assert make(instance).reset().is_first.all()
    for factory, options, error, message in (
        (instance, {"num": 2}, ConfigError, r"env.num = 2, .* with an environment instance"),
        (instance, {"vectorization": "async"}, ConfigError, r"env.vectorization = 'async'"),
        (lambda: instance, {"num": 2}, EnvError, "returned the same environment twice"),
    ):
        with pytest.raises(error, match=message):
            make(factory, **options)


def test_actions_that_do_not_fit(make):
    env = make(num=2)
    env.reset()
    with pytest.raises(DataError, match=r"shape \(2, 3\): expected \[N, A\] = \(2, 2\)"):
        env.step(torch.zeros(2, 3))
    with pytest.raises(DataError, match=r"the action for environment 1 is \[0.0, nan\]"):
        env.step(torch.tensor([[0.0, 0.0], [0.0, float("nan")]]))


# What is no Exception, and what is no longer as it was


def ends(how):
    """A change that raises ``how`` in the third step."""

    def change(env, method):
        if method == "step" and env.time == 3:
            raise how

    return change


@pytest.mark.parametrize(
    ("vectorization", "how"),
    [("sync", SystemExit(0)), ("sync", SystemExit("enough")), ("sync", GeneratorExit()), ("sync", KeyboardInterrupt()),
     ("async", KeyboardInterrupt())],
)  # fmt: skip
def test_what_ends_a_program_is_a_failure(make, said, monkeypatch, vectorization, how):
    handler = signal.signal(signal.SIGINT, lambda *_: None)  # as in a run, which handles Ctrl-C itself
    try:
        env = make(functools.partial(env_zoo.Changing, ends(how)), vectorization=vectorization)
        assert rows(env, 8)["is_first"][:, 0].nonzero().ravel().tolist() == [0, 3, 6]
        assert f"step 3 of episode 1 failed with {type(how).__name__}" in said[0]
        env = make(functools.partial(env_zoo.Changing, ends(how)), vectorization=vectorization, restarts=0)
        with pytest.raises(EnvError, match=type(how).__name__):
            play(env, 8)
    finally:
        signal.signal(signal.SIGINT, handler)


def test_a_factory_that_ends_the_program(make):
    with pytest.raises(EnvError, match=r"could not be created.*SystemExit: 5"):
        make(lambda: sys.exit(5))


@pytest.mark.parametrize("number", [(), (2,)])
def test_ctrl_c_is_no_failure(make, number):
    env = make(functools.partial(env_zoo.Changing, ends(KeyboardInterrupt(*number))))
    with pytest.raises(KeyboardInterrupt):
        play(env, 8)


def masks(when):
    """A change that tells a mask ``when(env, method)``."""
    return lambda env, method: {"action_mask": np.array([1, 0], np.int8)} if when(env, method) else None


def shrinks(when, in_place=False):
    def change(env, method):
        if when(env, method):
            env.action_space = spaces.Discrete(1)
            if in_place:
                env.action_space = env.kept
        if in_place and method == "reset":
            env.kept = env.action_space
            env.kept.n = np.int64(1 if env.resets > 2 else 2)

    return change


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (masks(lambda env, method: method == "step"), r"step 1 of episode 1: the info of step\(\) has an action_mask"),
        (masks(lambda env, method: env.resets > 2), r"step 0 of episode 2: the info of reset\(\) has an action_mask"),
        (
            shrinks(lambda env, method: env.resets > 2),
            r"reset\(\) replaced the action space Discrete\(2\) by Discrete\(1",
        ),
        (shrinks(lambda env, method: env.time == 2), r"step 2 of episode 1: step\(\) replaced the action space"),
        (shrinks(lambda *_: False, in_place=True), r"step 0 of episode 2: reset\(\) replaced the action space"),
    ],
)
def test_masks_and_actions_that_change_are_told_at_once(make, said, change, message, vectorization):
    """Another environment in its place would not help."""
    env = make(functools.partial(env_zoo.Changing, change), vectorization=vectorization)
    with pytest.raises(EnvError, match=message):
        play(env, 14)
    assert said == []


def test_masks_may_be_left_out_and_a_first_reset_may_fail(make):
    seen = masks(lambda env, method: method == "step")
    assert len(play(make(functools.partial(env_zoo.Changing, seen), exclude_keys="action_mask"), 8)) == 8

    def fails_once(env, method):
        if env.resets == 1:
            raise OSError("not yet")
        return masks(lambda *_: True)(env, method)

    assert "action_mask" in make(functools.partial(env_zoo.Changing, fails_once)).obs_spec


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (spaces.Text(3, charset="ab"), "abc", r"'observation' is 'abc'; its space declares a text of at most 3 .*'ab'"),
        (spaces.Text(3, charset="ab"), "abab", r"'observation' is 'abab'; its space declares a text of at most 3"),
        (spaces.Text(3, charset="ab"), None, r"'observation' is None; its space declares a text"),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(2)), {"a": 0}, r"'b' is missing: .* there is only 'a'"),
        (spaces.Dict(a=spaces.Discrete(2)), None, r"'a' is missing: its space declares 'a', .* None"),
        (spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2))), (0,), r"'1' is missing"),
    ],
)
def test_observations_that_lack_what_their_space_declares(make, space, obs, message):
    env = make(lambda: env_zoo.Scripted(space, [space.sample(), obs]), restarts=0)
    with pytest.raises(DataError, match=f"step 1 of episode 1: observation {message}"):
        play(env, 2)


def test_an_info_that_is_none_is_told_where_it_is_read(make):
    class Silent(env_zoo.Scripted):
        def step(self, action):
            *answer, _ = super().step(action)
            return *answer, None

    factory = functools.partial(Silent, spaces.Discrete(2), [0, 1])
    assert len(play(make(factory), 3)) == 3
    with pytest.raises(DataError, match=r"env.log_info: the info of step\(\) is None: expected a dictionary"):
        play(make(factory, log_info=("cost",), restarts=0), 3)


def test_a_wrapper_may_keep_one_space_around_others(make):
    class Padded(gymnasium.Wrapper):
        def __init__(self):
            inner = env_zoo.Changing(
                lambda env, method: setattr(env, "infer_action_space", spaces.Discrete(2 + env.resets))
            )
            super().__init__(inner)
            self.action_space = spaces.Discrete(9)

    assert len(play(make(Padded), 14)) == 14
