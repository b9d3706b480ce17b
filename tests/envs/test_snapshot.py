"""Environments are taken up in the middle of their episodes, exactly; or they begin a new one, and it is said why."""

import dataclasses
import functools
import importlib
import itertools
import pickle
import subprocess
import sys
import types

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import env_zoo
from env_steps import actions, as_bytes, go_on, play
from reverie.envs.config import EnvConfig
from reverie.envs.flat_env import make_flat
from reverie.envs.slot import derive_seeds, restart_seed
from reverie.envs.slot_vector_env import make_vector_env
from reverie.envs.snapshot import load_state, save_state

pytestmark = pytest.mark.usefixtures("warm")

ATARI = {
    "action_repeat": 4, "pool_frames": 2, "noop_max": 30, "max_episode_steps": 20, "resize": (32, 32),
    "grayscale": True, "frame_stack": 3, "kwargs": {"full_action_space": True, "repeat_action_probability": 0.7},
}  # fmt: skip
EXACT = {
    "CartPole-v1": {},
    "Pendulum-v1": {"max_episode_steps": 20, "clip_reward": "tanh"},
    "ALE/Pong-v5": ATARI,
    "ALE/Breakout-v5": {"action_repeat": 4, "terminal_on_life_loss": True, "fire_on_reset": True, "resize": (32, 32)},
    "HalfCheetah-v5": {"max_episode_steps": 20},
    "MinAtar/Breakout-v1": {},
    "MiniGrid-DoorKey-5x5-v0": {"max_episode_steps": 20, "mission": True},
    "dm_control/walker-walk-v0": {"max_episode_steps": 20},
    "CrafterReward-v1": {"max_episode_steps": 40, "kwargs": {"area": (16, 16)}},
    "reverie/Grid-v0": {"frame_stack": 2},
}


@pytest.mark.parametrize("env_id", [
    pytest.param(name, marks=pytest.mark.nightly if name == "ALE/Breakout-v5" else ()) for name in EXACT
])  # fmt: skip
def test_it_goes_on_exactly(make, env_id):
    if env_id.startswith("dm_control"):
        pytest.importorskip("dm_control")
    reference, env, fresh = (make(id=env_id, num=2, seed=3, **EXACT[env_id]) for _ in range(3))
    play(reference, 28, actions(reference))
    step = play(env, 28, actions(env))[-1]
    taken = env.snapshot()
    assert None not in taken
    expected = go_on(reference, 40)
    assert any(any(row[-4:-2]) for row in expected) or env_id == "ALE/Pong-v5"  # an episode ends
    assert go_on(env, 40) == expected  # it was not disturbed
    assert as_bytes(fresh.restore(taken, step)) == as_bytes(step)
    assert go_on(fresh, 40) == expected


def test_workers_go_on_exactly(make):
    env = make(id="ALE/Pong-v5", num=2, seed=3, vectorization="async", **ATARI)
    act = actions(env)
    play(env, 28, act)
    env.send(act())
    taken, step = env.snapshot(), env.receive()
    expected = go_on(env, 50)
    assert as_bytes(env.restore(taken, step)) == as_bytes(step)
    assert go_on(env, 50) == expected


SCRIPT = """
import pickle, sys, torch
from reverie.envs.config import EnvConfig
from reverie.envs.slot_vector_env import make_vector_env
from reverie.envs.snapshot import load_state, save_state
options, taken, step, action = pickle.load(open(sys.argv[1], 'rb'))
env = make_vector_env(EnvConfig().merge(options), seed=3)
step = env.restore(taken, step)
print([float(sum(v.double().sum() for v in env.step(action).obs.values())) for _ in range(40)])
"""


def test_another_process_goes_on_exactly(make, tmp_path):
    """With another seed of Python's hashes, and other addresses."""
    options = {"id": "CrafterReward-v1", **EXACT["CrafterReward-v1"]}
    env = make(seed=3, **options)
    step, action = play(env, 11)[-1], torch.zeros(1, env.action_spec.width)
    (tmp_path / "state").write_bytes(pickle.dumps((options, env.snapshot(), step, action)))
    command = [sys.executable, "-c", SCRIPT, tmp_path / "state"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [env.step(action).obs.values() for _ in range(40)]
    assert done.stdout.strip() == str([float(sum(v.double().sum() for v in row)) for row in rows])


@given(
    first=st.integers(0, 25),
    after=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    name=st.sampled_from(["BitFlip", "Count", "Cue", "Grid", "Look", "Match"]),
)
@settings(max_examples=12, deadline=None)
def test_any_number_of_interruptions(first, after, name):
    config = EnvConfig(id=f"reverie/{name}-v0", num=2, frame_stack=2)
    env, reference = make_vector_env(config, seed=1), make_vector_env(config, seed=1)
    act, same = actions(env), actions(env)
    reference.reset()
    step = env.reset()
    for count in (first, *after):
        for _ in range(count):
            step = env.step(act())
            assert as_bytes(step) == as_bytes(reference.step(same()))
        taken, env = env.snapshot(), make_vector_env(config, seed=1)
        assert as_bytes(env.restore(taken, step)) == as_bytes(step)


# What cannot be taken up, and what can


def after_three(make, factory, **options):
    env = make(factory, **options)
    return env, play(env, 4)[-1]


def surfaces():
    return {"robot": [pytest.importorskip("pygame").Surface((2, 2))]}


def measured():
    """A function that holds a space."""
    space = gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(3))
    return lambda x: gymnasium.spaces.flatten(space, x)


KEPT = {
    "dictionary": dict,
    "function": lambda: np.sum,
    "module": lambda: np,
    "closure": measured,
    "defaults": lambda: lambda x, low=(0, 1), *, high=2.0: x,
    "pictures": surfaces,
    "array of other strides": lambda: np.array(np.zeros((2, 3, 4)).transpose(1, 2, 0))[1:, ::-1],
    "array of bytes": lambda: np.frombuffer(b"12", np.uint8),
    "windows of an array": lambda: np.lib.stride_tricks.sliding_window_view(np.zeros(5), 2),
    "masked array": lambda: np.ma.zeros(3),
    "tensors": lambda: [torch.zeros(2), torch.nn.Linear(2, 2)],
}


@pytest.mark.parametrize("what", KEPT)
def test_fields_that_are_kept(make, what):
    factory = functools.partial(env_zoo.Hiding, KEPT[what])
    env, step = after_three(make, factory)
    fresh = make(factory)
    assert not fresh.restore(env.snapshot(), step).is_last.any()
    value, again = (each.vector._slots[0].env.unwrapped.hidden for each in (env, fresh))
    assert type(again) is type(value)
    assert not isinstance(value, np.ndarray) or (again == value).all()


def sharing(part):
    """An array, and a part of it."""
    state = np.zeros((2, 3))
    return lambda: {"whole": state, "part": part(state)}


def rebinding_counter():
    """Counts in a variable of the function around it."""
    calls = 0

    def call():
        nonlocal calls
        calls += 1

    return call


LOST = {
    "counter": lambda: (lambda calls: lambda: calls.append(1))([]),
    "rebinding counter": rebinding_counter,
    "default that changes": lambda: lambda x, seen=[0]: seen,
    "keyword that changes": lambda: lambda x, *, seen={}: seen,
    "attributes": lambda: functools.wraps(lambda: [])(lambda: 0),
    "generator": lambda: (i for i in ()),
    "pickled as it was made": lambda: [env_zoo.Rebuilt()],
    "part of a picture": lambda: (1, *surfaces()["robot"]),
    "array of a tensor": lambda: torch.zeros(3).numpy(),
    "views of a tensor": lambda: torch.zeros(2, 3).unbind(),
    "view": sharing(lambda x: x[1:]),
    "view of other type": sharing(lambda x: x.view(np.uint8).T),
}


@pytest.mark.parametrize("what", LOST)
def test_fields_that_cannot_be_kept(make, what):
    env, _ = after_three(make, functools.partial(env_zoo.Hiding, LOST[what]))
    assert env.snapshot() == [None]
    assert not env.step(torch.zeros(1, 2)).is_first.item()


@pytest.mark.parametrize("factory", [env_zoo.Slotted, functools.partial(env_zoo.Own, "nothing")])
def test_environments_without_a_snapshot(make, factory):
    assert after_three(make, factory)[0].snapshot() == [None]


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


def test_references_between_layers_stay(make):
    env, step = after_three(make, lambda: Layer(Marked()))
    fresh = make(lambda: Layer(Marked()))
    fresh.restore(env.snapshot(), step)
    assert go_on(fresh, 9) == go_on(env, 9)
    layer = fresh.vector._slots[0].env.env
    assert layer.inner is layer.env
    assert layer.shared is layer.env.marks


def test_an_environments_own_way_comes_first(make):
    env, step = after_three(make, env_zoo.Own)
    fresh = make(env_zoo.Own)
    fresh.restore(env.snapshot(), step)
    assert go_on(fresh, 9) == go_on(env, 9)


def test_what_has_no_snapshot_begins_anew(make):
    _, step = after_three(make, functools.partial(env_zoo.Own, "nothing"), num=2)
    fresh = make(env_zoo.Seeded, num=2, seed=7)
    now = fresh.restore([None, None], step)
    assert (now.is_last.all(), now.is_terminal.any()) == (True, False)
    assert torch.equal(now.obs["observation"], step.obs["observation"])
    begun = fresh.step(torch.zeros(2, 2))
    assert as_bytes(begun) == as_bytes(make(env_zoo.Seeded, num=2, seed=7).reset())


def test_a_row_that_was_the_last_stays_so(make):
    env = make(env_zoo.Seeded, num=2)
    step = dataclasses.replace(play(env, 6)[-1], is_terminal=torch.tensor([True, False]))
    assert step.is_last.all()
    fresh = make(env_zoo.Seeded, num=2)
    now = fresh.restore([None, env.snapshot()[1]], step)
    assert as_bytes(now) == as_bytes(step)
    first = fresh.step(torch.zeros(2, 2))
    assert first.is_first.all()
    assert first.obs["observation"][1] == env.step(torch.zeros(2, 2)).obs["observation"][1]


@dataclasses.dataclass
class Drag:
    x: float


class Tuned(env_zoo.Seeded):  # has constants, and a field that changes
    def __init__(self, weight=1.0, speeds=(1, float("nan")), level=0):
        super().__init__()
        self.weight, self.speeds, self.level = weight, speeds, level

    def step(self, action):
        self.level = 3
        return super().step(action)


def tuned(**changed):
    return functools.partial(Tuned, **changed)


@pytest.fixture
def resumed(make, said):
    """Take up an environment as another one: return that, whether it goes on, and what is said."""

    def resumed(before, after, ended=False, **options):
        env, step = after_three(make, before)
        taken, fresh = env.snapshot(), make(after, **options)
        now = fresh.restore(taken, dataclasses.replace(step, is_last=torch.tensor([ended])))
        return fresh, not now.is_last.item(), said

    return resumed


@pytest.mark.parametrize(
    ("before", "after", "options", "why"),
    [
        (env_zoo.Seeded, env_zoo.Seeded, {"ended": True}, "a different row"),
        (env_zoo.Seeded, env_zoo.Global, {}, "a different environment"),
        (env_zoo.Seeded, env_zoo.Seeded, {"clip_reward": "sign"}, "with different settings"),
        (Tuned, tuned(weight=7.0), {}, "used: weight of Tuned has changed since"),
        (Tuned, tuned(weight=1), {}, "used: weight of Tuned has changed since"),
        (Tuned, tuned(speeds=(2, float("nan"))), {}, "used: speeds of Tuned has changed since"),
        (tuned(weight=[1]), tuned(weight=[2]), {}, "used: weight of Tuned has changed since"),
        (tuned(weight=np.ones(3)), tuned(weight=np.zeros(3)), {}, "used: weight of Tuned has changed since"),
        (tuned(weight={"a": {1: 2}}), tuned(weight={"a": {1: 3}}), {}, "used: weight.a.1 of Tuned has changed"),
        (tuned(weight=Drag(1)), tuned(weight=Drag(2)), {}, "used: weight.x of Tuned has changed since"),
    ],
)
def test_what_does_not_fit_is_said(resumed, before, after, options, why):
    fresh, goes_on, (said,) = resumed(before, after, **options)
    assert why in said
    assert not goes_on
    assert fresh.step(torch.zeros(1, 2)).is_first.all()


@pytest.mark.parametrize("after", [Tuned, tuned(level=1)])
def test_fields_that_change_are_no_constants(resumed, after):
    assert resumed(Tuned, after)[1:] == (True, [])


def test_the_number_of_environments_is_no_setting_of_one():
    assert "num" not in EnvConfig().single_env_text()


def test_a_class_that_was_edited_meanwhile(resumed, tmp_path, monkeypatch):
    source = "import env_zoo\nclass Base(env_zoo.Seeded):\n    {}\nclass Edited(Base):\n    pass\n"
    monkeypatch.syspath_prepend(tmp_path)

    def edited(body):
        (tmp_path / "edited_env.py").write_text(source.format(body))
        monkeypatch.delitem(sys.modules, "edited_env", raising=False)
        importlib.invalidate_caches()
        return importlib.import_module("edited_env").Edited

    _, goes_on, (said,) = resumed(edited("bonus = 1"), lambda: edited("bonus = 10")())
    assert said.endswith("the source of edited_env.Base has changed since")
    assert not goes_on


def test_what_is_half_restored_is_made_anew(resumed):
    fresh, goes_on, (said,) = resumed(env_zoo.Fragile, env_zoo.Fragile)
    assert "it does not fit this environment (KeyError: 'wheel')" in said
    assert not goes_on
    made = fresh.vector._slots[0].env.unwrapped
    assert made.time == 0
    assert made.np_random_seed == restart_seed(derive_seeds(0, 1)[0], 1)  # the run's seed decides what follows
    assert fresh.step(torch.zeros(1, 2)).is_first.all()


def test_seeds_after_failures_go_on_too(make):
    seed = derive_seeds(0, 1)[0]
    factory = functools.partial(env_zoo.Faulty, {seed: (1, 2, "raise"), restart_seed(seed, 1): (2, 1, "raise")})
    env, fresh = make(factory), make(factory, seed=5)
    env.vector._restarter._sleep = lambda seconds: None
    step = play(env, 5)[-1]
    fresh.restore(env.snapshot(), step)
    assert go_on(fresh, 12) == go_on(env, 12)
    assert (env.restarts, fresh.restarts) == (2, 1)


class Stamped:
    """What is pickled of it is another text each time, as of a tensor."""

    def __getstate__(self):
        return {"text": str(next(STAMPS)).zfill(100_000)}


STAMPS = itertools.count()


class Market(gymnasium.Env):
    """Constant tables among its fields, nested and equal ones, and a text; ``counts`` changes."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)
    drift = 0.0

    def __init__(self):
        self.prices = np.random.default_rng(0).normal(self.drift, size=20_000)
        self.history = {"prices": [self.prices], "text": str(self.prices.tolist())}
        self.volume, self.counts, self.t = np.zeros(20_000), np.zeros(20_000), 0
        self.frame = types.SimpleNamespace(raw=self.prices.astype(np.float32), again=self.volume)
        self.weights = Stamped()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.history["prices"] = [self.prices, self.prices.copy()]  # more equal arrays than a new one has
        return np.zeros(3), {}

    def step(self, action):
        self.t += 1
        self.counts[self.t] += 1
        return np.array([self.prices[self.t], self.volume.sum(), self.counts.sum()]), 0.0, False, False, {}


def test_large_constants_of_a_new_environment_are_left_out(monkeypatch):
    monkeypatch.setattr(Market, "reset", lambda self, **_: (np.zeros(3), {}))
    env, fresh = (make_flat(EnvConfig(), Market, number, render=False) for number in range(2))
    play_flat(env, 3)
    snapshot = save_state(env)
    assert len(snapshot) < 20_000  # of 240 kB that cannot be compressed
    assert load_state(fresh, snapshot) == (None, "")
    assert play_flat(fresh, 5) == play_flat(env, 5)
    inner = fresh.unwrapped
    assert inner.history["prices"][0] is inner.prices
    assert inner.frame.again is inner.volume
    assert inner.counts is not inner.volume  # which a new environment has as equal arrays
    monkeypatch.setattr(Market, "drift", 1.0)
    changed = make_flat(EnvConfig(), Market, 2, render=False)
    assert "a large array or text of the environment has changed" in load_state(changed, snapshot)[1]


def test_large_values_that_a_new_environment_lacks_are_saved():
    env, fresh = (make_flat(EnvConfig(), Market, number, render=False) for number in range(2))
    play_flat(env, 3)
    env.unwrapped.prices[7] = 5.0
    assert load_state(fresh, save_state(env)) == (None, "")
    first, copy = fresh.unwrapped.history["prices"]
    assert (first is fresh.unwrapped.prices, copy is first) == (True, False)
    assert (first[7], copy[7]) == (5.0, Market().prices[7])
    assert play_flat(fresh, 5) == play_flat(env, 5)


def play_flat(env, steps):
    """Observations of an episode that begins if there is none."""
    obs = {"observation": np.zeros(3, np.float32)}
    if not env.episode:
        env.reset_into(1, obs)
    return [(env.step_into(np.array([1.0, 0.0], np.float32), obs), obs["observation"].tolist()) for _ in range(steps)]
