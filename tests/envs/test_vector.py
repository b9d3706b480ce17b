"""Environments that are stepped one by one, in this process or in workers: at once and later."""

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import env_zoo
from env_steps import as_bytes, go_on, play, rows
from reverie.agent.conversion import obs_to_step
from reverie.core.errors import DataError, EnvError
from reverie.envs import slot
from reverie.envs.dummy import Count, Grid
from reverie.envs.limits import DeclaredBounds, LimitCheck

BOTH = pytest.mark.parametrize("vectorization", ["sync", "async"])


def test_time_limit_is_never_terminal_and_replaces_the_registered_one(make):
    got = rows(make(id="CartPole-v1", max_episode_steps=4), 11)
    assert got["is_last"][:, 0].nonzero().ravel().tolist() == [4, 9]
    assert not got["is_terminal"].any()
    longer = rows(make(id="MountainCar-v0", max_episode_steps=250), 253)
    assert longer["is_last"][:, 0].nonzero().ravel().tolist() == [250]


class Game(gymnasium.Env):
    """Ends by its own time limit: NetHack only terminates then, ViZDoom sets both flags; both show nothing."""

    observation_space = spaces.Dict(screen=spaces.Box(0, 255, (8, 8, 3), np.uint8), time=spaces.Box(0, 99, (1,)))
    action_space = spaces.Discrete(2)

    def __init__(self, both=False, deaths=(9,), **stated):
        self.both, self.deaths = both, list(deaths)
        vars(self).update(stated)

    def seen(self):
        screen = np.arange(192, dtype=np.uint8).reshape(8, 8, 3) * (self.time < 25)
        return {"screen": screen, "time": np.array([self.time], np.float32)}

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return self.seen(), {}

    def step(self, action):
        self.time += 1
        over = self.time == 25
        if died := self.time in self.deaths[:1]:
            self.deaths.pop(0)
        return self.seen(), 1.0, over or died, over and self.both, {}


@pytest.mark.parametrize(
    ("game", "options"),
    [
        ({"_max_episode_steps": 25}, {}),
        ({"_max_episode_steps": 25}, {"action_repeat": 4}),
        ({"both": True}, {}),
        ({}, {"max_episode_steps": 25}),
    ],
)
def test_a_time_limit_that_is_told_as_a_termination(make, said, game, options):
    make_game, last = functools.partial(Game, **game), -(-25 // options.get("action_repeat", 1))
    told = rows(make(make_game, **options), 100)
    [warning] = said
    assert f"no episode was longer than {last} steps, and" in warning
    assert "set env.truncate_at_limit = True" in warning
    said.clear()
    got = rows(make(make_game, **options, truncate_at_limit=True), 100)
    assert said == []
    assert got["is_last"].equal(told["is_last"])
    assert got["is_terminal"].sum() == 1  # the death
    ends = got["is_last"][:, 0] & ~got["is_terminal"][:, 0]
    assert got["screen"][ends].float().std() > 0
    assert got["time"][ends].unique().tolist() == [24 - 24 % options.get("action_repeat", 1)]
    assert got["reward"].equal(told["reward"])


def test_terminations_at_most_three_times_after_the_same_steps_are_no_coincidence(make, said):
    rows(make(functools.partial(Game, deaths=(9, 21, 21))), 54)
    assert said == []
    rows(make(functools.partial(Game, deaths=(9, 21, 21, 21))), 90)
    assert ["and 3 of 4 were terminated then. If that is a time limit" in text for text in said] == [True]


ZOO = spaces.Dict(
    camera=spaces.Box(0, 255, (5, 6, 3), np.uint8), depth=spaces.Box(0.0, 1.0, (5, 6, 1), np.float32),
    joints=spaces.Box(-np.inf, np.inf, (2, 3), np.float64), gear=spaces.Discrete(3, start=1),
    slots=spaces.MultiDiscrete([2, 5]), lamps=spaces.MultiBinary(4), note=spaces.Text(6, min_length=0),
    nested=spaces.Tuple((spaces.Discrete(2), spaces.Dict({"x": spaces.Box(-1, 1, ())}))),
)  # fmt: skip


@BOTH
def test_every_kind_of_space_through_shared_memory(make, vectorization):
    ZOO.seed(3)
    samples = [ZOO.sample() for _ in range(4)]
    env = make(functools.partial(env_zoo.Scripted, ZOO, samples, truncated=(3,)), num=2, vectorization=vectorization)
    got = rows(env, 4)
    for key, part in env.obs_spec.items():
        assert (got[key].shape, str(got[key].dtype)) == ((4, 2, *part.shape), f"torch.{part.dtype}")
    for t, sample in enumerate(samples):
        shown = {name: sample[name] for name in ("camera", "joints", "slots")}
        shown |= {"gear": sample["gear"] - 1, "nested/0": sample["nested"][0]}
        for key, value in shown.items():
            np.testing.assert_allclose(got[key][t], [value, value], rtol=1e-6)


# Actions sent now and answered later: the same rows, the same errors, and an end that does not hang


def processes(env):
    return [slot.process for slot in env.vector._slots]


def test_an_environment_in_this_process_steps_when_its_row_is_received(make):
    """By then a GPU is at work on the updates."""
    taken = []

    class Noting(Count):
        def step(self, action):
            taken.append(action)
            return super().step(action)

    env = make(Noting)
    env.reset()
    env.send(torch.tensor([[0.0, 1.0]]))
    assert taken == []
    env.receive()
    assert len(taken) == 1


def test_send_does_not_wait_for_the_workers(make, tmp_path):
    gate = tmp_path / "gate"
    env = make(functools.partial(env_zoo.Waiting, gate), num=2, vectorization="async")
    env.reset()
    env.send(torch.zeros(2, 2))
    gate.touch()
    assert env.receive().obs["observation"].tolist() == [1, 1]


@BOTH
def test_what_is_asked_between_send_and_receive(make, vectorization):
    env = make(functools.partial(Grid, render_mode="rgb_array"), vectorization=vectorization)
    env.reset(seed=3)
    action = torch.eye(4)[:1]
    env.send(action)
    frame = env.render()
    after = env.receive()
    assert (frame[::8, ::8] == after.obs["image"][0].numpy()).all()
    env.send(action)
    assert env.reset(seed=3).is_first.all()
    assert as_bytes(env.step(action)) == as_bytes(after)


@BOTH
def test_methods_and_attributes_of_environments_between_two_steps(make, vectorization):
    settings = {}, {"vectorization": vectorization, "max_episode_steps": 50}
    reference, env = (make(env_zoo.Seeded, num=2, **options) for options in settings)
    for each in (reference, env):
        each.reset(), each.send(torch.zeros(2, 2))
    assert env.call("raise_to", 2, twice=True) == [4, 4]
    env.set_attr("level", 7)
    assert (env.call("level"), len({*env.call("np_random_seed")})) == ([7, 7], 2)
    for method, message in {
        ("call", "levle"): r"environment 0 .* has no 'levle'.*'level'",
        ("call", "broken"): r"'broken'\): environment 0 .*ValueError: a wall",
        ("call", "reset"): r"'reset'\) is reserved for the run",
        ("set_attr", "levle", 1): r"environment 0 .* has no 'levle'.*'level'",
    }.items():
        with pytest.raises(EnvError, match=message):
            getattr(env, method[0])(*method[1:])
    assert None not in env.snapshot()  # a mistake of who calls is no failure of theirs
    assert as_bytes(reference.receive()) == as_bytes(env.receive())


def failing(how):
    return functools.partial(env_zoo.Faulty, {"any": (1, 2, how)})


@pytest.mark.parametrize(
    ("factory", "error", "message"),
    [
        (env_zoo.nan_in_second, DataError, r"environment [01] .*step 2 of episode 1: .* 'a' is nan at index \(1,\)"),
        (failing("die"), EnvError, r"worker process of environment [01] died \(exit code 7\)"),
        (failing("raise"), EnvError, r"environment [01] .*step 2 .*: a wheel and an axle .*env_zoo.py:\d+"),
    ],
)
def test_a_workers_error_is_raised_where_its_answer_is_received(make, factory, error, message):
    env = make(factory, num=2, vectorization="async", restarts=0)
    play(env, 2)
    env.send(torch.zeros(2, 2))
    with pytest.raises(error, match=message):
        env.receive()
    assert not any(process.is_alive() for process in processes(env))


def test_a_step_that_never_ends_does_not_keep_the_run_from_ending(make, tmp_path, monkeypatch):
    monkeypatch.setattr(slot.close, "__defaults__", (0.2,))
    env = make(functools.partial(env_zoo.Waiting, tmp_path / "never"), num=2, vectorization="async")
    env.reset()
    env.send(torch.zeros(2, 2))
    workers = processes(env)
    env.close()
    assert [process.exitcode for process in workers] == [-9, -9]


class Drawing(env_zoo.Seeded):
    """Seeds PyTorch when it is made, and shows what it draws from it in ``reset``, or seeds it there as well."""

    def __init__(self, seed=None):
        super().__init__()
        self.seed = seed
        torch.manual_seed(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.seed is not None:
            torch.manual_seed(self.seed)
        return torch.rand(1).numpy(), {}


def test_making_and_resetting_environments_leaves_the_generator_as_it_was(make):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    for seed in (None, 0, 7):
        env = make(lambda seed=seed: Drawing(seed), num=2)
        numbers = {x for row in play(env, 13) if row.is_first.all() for x in row.obs["observation"][:, 0].tolist()}
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.initial_seed() == 7
        assert len(numbers) == (6 if seed is None else 1)  # its own seed counts


def test_what_resets_draw_goes_on_from_a_snapshot(make):
    env, fresh = make(Drawing), make(Drawing)
    step = play(env, 9)[-1]
    assert not fresh.restore(env.snapshot(), step).is_last.any()
    assert go_on(env, 9) == go_on(fresh, 9)


def test_later_rows_are_looked_at_in_each_31st_turn(said):
    check = LimitCheck({"a": DeclaredBounds(-np.ones(1), np.ones(1), False)})
    for turn in range(527):  # of 2 rows; number 527 is 17 * 31
        assert said == []
        check({"a": np.full((2, 1), 0.0 if turn < 500 else 3.0, np.float32)}, str)
    (line,) = said
    assert "observation 'a' is 3 at index (0,), but its space declares -1 to 1" in line


def test_the_most_steps_of_an_episode_are_known_where_they_are_stated(make):
    assert make(id="CartPole-v1").max_episode_steps == 500
    assert make(id="CartPole-v1", max_episode_steps=7).max_episode_steps == 7
    assert make(Count).max_episode_steps is None
    stated = env_zoo.Scripted(spaces.Discrete(2), [0])
    stated.max_steps = 30
    assert make(lambda: stated).max_episode_steps == 30


def test_agents_read_aligned_rows():
    rows = [obs_to_step({"obs": np.zeros((1, n), np.float32)}, np.ones(1, bool), 0.0) for n in range(1, 20)]
    assert not any(row.obs["obs"].data_ptr() % 64 for row in rows)
