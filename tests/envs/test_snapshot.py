"""Environments are taken up in the middle of their episodes, exactly; or they begin a new one, and it is said why."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pickle
import subprocess
import sys

import env_zoo
import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.protocols import Restorable
from reverie.envs.config import EnvConfig
from reverie.envs.restart import derive_seeds, seed_after
from reverie.envs.vector import make_env

ATARI = {
    "action_repeat": 4,
    "pool_frames": 2,
    "noop_max": 30,
    "time_limit": 20,
    "resize": (32, 32),
    "grayscale": True,
    "frame_stack": 3,
    "kwargs": {"full_action_space": True, "repeat_action_probability": 0.7},
}
EXACT = {
    "CartPole-v1": {},
    "Pendulum-v1": {"time_limit": 20, "clip_reward": "tanh"},
    "ALE/Pong-v5": ATARI,
    "ALE/Breakout-v5": {"action_repeat": 4, "life_loss": True, "fire": True, "resize": (32, 32)},
    "HalfCheetah-v5": {"time_limit": 20},
    "MinAtar/Breakout-v1": {},
    "MiniGrid-DoorKey-5x5-v0": {"time_limit": 20, "mission": True},
    "dm_control/walker-walk-v0": {"time_limit": 20},
    "CrafterReward-v1": {"time_limit": 40, "kwargs": {"area": (32, 32)}},
    "reverie/Grid-v0": {"frame_stack": 2},
}


def actions(env, seed):
    generator = torch.Generator().manual_seed(seed)
    return lambda: torch.randn(env.num_envs, env.action_spec.width, generator=generator)


def play(env, count, act):
    """Rows as bytes."""
    return [as_bytes(env.step(act())) for _ in range(count)]


def as_bytes(step):
    fields = (*step.obs.values(), step.reward, step.is_first, step.is_last, step.is_terminal)
    return b"".join(field.numpy().tobytes() for field in fields)


def ends(rows, num):
    """How many rows were the last of an episode."""
    return sum(sum(row[-2 * num : -num]) for row in rows)


NEEDED = {"dm_control/walker-walk-v0": "dm_control"}  # cannot be installed everywhere


@pytest.mark.parametrize("env_id", EXACT)
def test_it_goes_on_exactly(make, env_id):
    pytest.importorskip(NEEDED.get(env_id, "gymnasium"))
    options = {"id": env_id, "num": 2, "seed": 3, **EXACT[env_id]}
    reference, env = make(**options), make(**options)
    reference.reset()
    step = env.reset()
    act, same = actions(env, 0), actions(env, 0)
    play(reference, 27, same)
    for _ in range(27):
        step = env.step(act())
    assert isinstance(env, Restorable)
    taken = env.snapshot()
    assert None not in taken
    same, then = actions(env, 1), actions(env, 1)
    expected = play(reference, 64, same)
    assert ends(expected, 2) or env_id == "ALE/Pong-v5"
    assert play(env, 64, actions(env, 1)) == expected  # it was not disturbed
    fresh = make(**options)
    assert as_bytes(fresh.restore(taken, step)) == as_bytes(step)
    assert play(fresh, 64, then) == expected


def test_workers_go_on_exactly(make):
    env_id = "ALE/Pong-v5"
    env = make(id=env_id, num=2, seed=3, vector="process", **EXACT[env_id])
    step, act = env.reset(), actions(env, 0)
    for _ in range(27):
        step = env.step(act())
    env.send(act())
    taken = env.snapshot()
    step = env.receive()
    expected = play(env, 50, actions(env, 1))
    assert as_bytes(env.restore(taken, step)) == as_bytes(step)
    assert play(env, 50, actions(env, 1)) == expected


def test_another_process_goes_on_exactly(make, tmp_path):
    """With another seed of Python's hashes, and other addresses."""
    script = (
        "import pickle, sys, torch\nfrom reverie.envs.config import EnvConfig\n"
        "from reverie.envs.vector import make_env\n"
        "options, taken, step, action = pickle.load(open(sys.argv[1], 'rb'))\n"
        "env = make_env(EnvConfig().merge(options), seed=3)\nstep = env.restore(taken, step)\n"
        "print([float(sum(v.double().sum() for v in env.step(action).obs.values())) for _ in range(80)])\n"
    )
    options = {"id": "CrafterReward-v1", **EXACT["CrafterReward-v1"]}
    env = make(seed=3, **options)
    step, action = env.reset(), torch.zeros(1, env.action_spec.width)
    for _ in range(10):
        step = env.step(action)
    path = tmp_path / "state"
    path.write_bytes(pickle.dumps((options, env.snapshot(), step, action)))
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    rows = [env.step(action).obs.values() for _ in range(80)]
    assert done.stdout.strip() == str([float(sum(v.double().sum() for v in row)) for row in rows])


@given(
    first=st.integers(0, 25),
    after=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    name=st.sampled_from(["Count", "Cue", "Grid", "Look", "Match"]),
)
@settings(max_examples=12, deadline=None)
def test_any_number_of_interruptions(first, after, name):
    config = EnvConfig(id=f"reverie/{name}-v0", num=2, frame_stack=2)
    env, reference = make_env(config, seed=1), make_env(config, seed=1)
    act, same = actions(env, 0), actions(env, 0)
    reference.reset()
    step = env.reset()
    for count in (first, *after):
        for _ in range(count):
            step = env.step(act())
            assert as_bytes(step) == as_bytes(reference.step(same()))
        taken, env = env.snapshot(), make_env(config, seed=1)
        assert as_bytes(env.restore(taken, step)) == as_bytes(step)


# What cannot be taken up, and what can


def after_three(make, factory, **options):
    env = make(factory, **options)
    env.reset()
    for _ in range(2):
        env.step(torch.zeros(env.num_envs, 2))
    return env, env.step(torch.zeros(env.num_envs, 2))


def measured(space: gymnasium.Space):
    """A function that holds a space."""
    return lambda x: gymnasium.spaces.flatten(space, x)


def surfaces():
    return {"robot": [pytest.importorskip("pygame").Surface((2, 2))]}


def part_of_a_picture():
    return (1, *surfaces()["robot"])


@pytest.mark.parametrize(
    ("hidden", "can"),
    [
        (dict, True),
        (lambda: np.sum, True),
        (lambda: np, True),
        (lambda: measured(gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(3))), True),
        (lambda: lambda x, low=(0, 1), *, high=2.0: x, True),
        (env_zoo.counter, False),
        (env_zoo.rebinding_counter, False),
        (lambda: lambda x, seen=[0]: seen, False),
        (lambda: lambda x, *, seen={}: seen, False),
        (lambda: functools.wraps(lambda: [])(lambda: 0), False),
        (lambda: (i for i in ()), False),
        (lambda: [env_zoo.Rebuilt()], False),
        (surfaces, True),
        (part_of_a_picture, False),
    ],
)
def test_fields_that_can_be_kept(make, hidden, can):
    env, _ = after_three(make, functools.partial(env_zoo.Hiding, hidden))
    assert (env.snapshot()[0] is not None) == can
    assert env.step(torch.zeros(1, 2)).is_first.item() is False


def test_values_in_slots_are_not_fields(make):
    assert after_three(make, env_zoo.Slotted)[0].snapshot() == [None]


def test_references_between_layers_stay(make):
    class Layer(gymnasium.Wrapper):
        def __init__(self, env):
            super().__init__(env)
            self.inner, self.shared, self.act = env, env.marks, env.step

        def step(self, action):
            self.shared.append(1)
            return self.act(action)

    class Marked(env_zoo.Seeded):
        def __init__(self):
            super().__init__()
            self.marks = []

        def _draw(self):
            return np.array([len(self.marks) / 100], np.float32)

    env, step = after_three(make, lambda: Layer(Marked()))
    fresh = make(lambda: Layer(Marked()))
    fresh.restore(env.snapshot(), step)
    assert play(fresh, 9, actions(env, 0)) == play(env, 9, actions(env, 0))
    layer = fresh._slots[0].env.env
    assert layer.inner is layer.env
    assert layer.shared is layer.env.marks


def sharing(part):
    def hidden():
        state = np.zeros((2, 3))
        return {"whole": state, "part": part(state)}

    return hidden


@pytest.mark.parametrize(
    ("hidden", "can"),
    [
        (lambda: np.array(np.zeros((2, 3, 4)).transpose(1, 2, 0))[1:, ::-1], True),
        (lambda: np.frombuffer(b"12", np.uint8), True),
        (lambda: np.lib.stride_tricks.sliding_window_view(np.zeros(5), 2), True),
        (lambda: np.ma.zeros(3), True),
        (lambda: torch.zeros(3).numpy(), False),
        (lambda: [torch.zeros(2), torch.nn.Linear(2, 2)], True),
        (lambda: torch.zeros(2, 3).unbind(), False),
        (sharing(lambda x: x[1:]), False),
        (sharing(lambda x: x.view(np.uint8).T), False),
    ],
)
def test_arrays_are_kept_unless_they_share_memory(make, hidden, can):
    env, step = after_three(make, functools.partial(env_zoo.Hiding, hidden))
    taken = env.snapshot()
    assert (taken[0] is not None) == can
    value = env._slots[0].env.unwrapped.hidden
    if can and isinstance(value, np.ndarray):
        fresh = make(functools.partial(env_zoo.Hiding, hidden))
        fresh.restore(taken, step)
        again = fresh._slots[0].env.unwrapped.hidden
        assert type(again) is type(value)
        assert (again == value).all()


def test_an_environments_own_way_comes_first(make):
    env, step = after_three(make, env_zoo.Own)
    fresh = make(env_zoo.Own)
    fresh.restore(env.snapshot(), step)
    assert play(fresh, 9, actions(env, 0)) == play(env, 9, actions(env, 0))
    assert after_three(make, functools.partial(env_zoo.Own, "nothing"))[0].snapshot() == [None]


def test_what_has_no_snapshot_begins_anew(make):
    _, step = after_three(make, functools.partial(env_zoo.Own, "nothing"), num=2)
    fresh = make(env_zoo.Seeded, num=2, seed=7)
    now = fresh.restore([None, None], step)
    assert now.is_last.all()
    assert not now.is_terminal.any()
    assert torch.equal(now.obs["observation"], step.obs["observation"])
    begun = fresh.step(torch.zeros(2, 2))
    assert begun.is_first.all()
    assert not begun.reward.any()
    assert as_bytes(begun) == as_bytes(make(env_zoo.Seeded, num=2, seed=7).reset())


def test_a_row_that_was_the_last_stays_so(make):
    env, _ = after_three(make, env_zoo.Seeded, num=2)
    env.step(torch.zeros(2, 2))
    step = dataclasses.replace(env.step(torch.zeros(2, 2)), is_terminal=torch.tensor([True, False]))
    assert step.is_last.all()
    fresh = make(env_zoo.Seeded, num=2)
    now = fresh.restore([None, env.snapshot()[1]], step)
    assert as_bytes(now) == as_bytes(step)
    first = fresh.step(torch.zeros(2, 2))
    assert first.is_first.all()
    assert first.obs["observation"][1] == env.step(torch.zeros(2, 2)).obs["observation"][1]


def test_what_does_not_fit_is_said(said, make):
    env, step = after_three(make, env_zoo.Seeded)
    taken = env.snapshot()[0]
    ended = dataclasses.replace(step, is_last=torch.tensor([True]))

    def why(fresh, snapshot, step=step):
        now = fresh.restore([snapshot], step)
        assert now.is_last.all()
        assert fresh.step(torch.zeros(1, fresh.action_spec.width)).is_first.all()
        assert len(said) == 1
        return said.pop()

    assert "a different row" in why(make(env_zoo.Seeded), taken, ended)
    assert "a different environment" in why(make(env_zoo.Global), taken)
    assert "with different settings" in why(make(env_zoo.Seeded, clip_reward="sign"), taken)
    assert "num" not in EnvConfig().one()


class Tuned(env_zoo.Seeded):
    """Has constants, and a field that changes."""

    def __init__(self, weight=1.0, speeds=(1, float("nan")), level=0):
        super().__init__()
        self.weight, self.speeds, self.level = weight, speeds, level

    def step(self, action):
        self.level = 3
        return super().step(action)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"weight": 7.0}, "weight of Tuned has changed since"),
        ({"weight": 1}, "weight of Tuned has changed since"),
        ({"speeds": (2, float("nan"))}, "speeds of Tuned has changed since"),
        ({}, ""),
        ({"level": 1}, ""),
    ],
)
def test_constants_that_were_changed_meanwhile(said, make, changed, why):
    env, step = after_three(make, Tuned)
    fresh = make(functools.partial(Tuned, **changed))
    assert fresh.restore(env.snapshot(), step).is_last.item() == bool(why)
    assert [line.rpartition("used: ")[2] for line in said] == ([why] if why else [])


def test_a_class_that_was_edited_meanwhile(said, make, tmp_path, monkeypatch):
    source = "import env_zoo\nclass Base(env_zoo.Seeded):\n    {}\nclass Edited(Base):\n    pass\n"
    monkeypatch.syspath_prepend(tmp_path)

    def edited(body):
        (tmp_path / "edited_env.py").write_text(source.format(body))
        monkeypatch.delitem(sys.modules, "edited_env", raising=False)
        importlib.invalidate_caches()
        return importlib.import_module("edited_env").Edited

    env, step = after_three(make, edited("bonus = 1"))
    taken = env.snapshot()
    now = edited("bonus = 10")
    fresh = make(now)
    assert fresh.restore(taken, step).is_last.all()
    assert said[0].endswith("the source of edited_env.Base has changed since")


def test_what_is_half_restored_is_made_anew(said, make):
    env, step = after_three(make, env_zoo.Fragile)
    fresh = make(env_zoo.Fragile)
    broken = fresh._slots[0].env
    assert fresh.restore(env.snapshot(), step).is_last.all()
    assert "it does not fit this environment (KeyError: 'wheel')" in said[0]
    made = fresh._slots[0].env
    assert made is not broken
    assert made.unwrapped.np_random_seed == seed_after(derive_seeds(0, 1)[0], 1)  # the run's seed decides what follows
    assert fresh.step(torch.zeros(1, 2)).is_first.all()


def test_seeds_after_failures_go_on_too(make):
    seed = derive_seeds(0, 1)[0]
    plan = {seed: (1, 2, "raise"), seed_after(seed, 1): (2, 1, "raise")}
    factory = functools.partial(env_zoo.Faulty, plan)
    env = make(factory)
    fresh = make(factory, seed=5)
    env._restarter._say = fresh._restarter._say = lambda line: None
    env._restarter._sleep = lambda seconds: None
    step = env.reset()
    for _ in range(4):
        step = env.step(torch.zeros(1, 2))
    fresh.restore(env.snapshot(), step)
    assert play(fresh, 12, actions(env, 0)) == play(env, 12, actions(env, 0))
    assert (env.restarts, fresh.restarts) == (2, 1)
