"""Checks of environments: each fault is found, and nothing else; in sound environments, nothing is."""

import mmap
import random
import threading

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

import env_zoo
from reverie.core.errors import EnvError
from reverie.envs import check
from reverie.envs.check import run_env_check
from reverie.envs.config import EnvConfig

SOUND = ("CartPole-v1", "MountainCar-v0", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1", "CliffWalking-v1",
         "LunarLander-v3", "HalfCheetah-v5")  # fmt: skip
NEEDS = {"LunarLander-v3": "Box2D", "HalfCheetah-v5": "mujoco"}


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """What a check plays and compares does not depend on how fast a busy machine is."""
    monkeypatch.setattr(check, "MAX_PLAY_SECONDS", np.inf)
    monkeypatch.setattr(check, "SLOW_RESET_MS", np.inf)


class Walk(gymnasium.Env):
    """A walk on a line with an end of its own at 3 and -3, where the reward is 1 or 0: nothing is wrong with it."""

    observation_space = spaces.Box(-4, 4, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.drawn()
        return self.seen(), {}

    def step(self, action):
        self.x += 2 * action - 1
        return self.seen(), float(self.x > 2), bool(abs(self.x) > 2), False, {}

    def drawn(self):
        return int(self.np_random.integers(3)) - 1

    def seen(self):
        return np.array([self.x], np.float32)


class Reused(Walk):
    def __init__(self):
        self.array = np.zeros(1, np.float32)

    def seen(self):
        self.array[0] = self.x
        return self.array


class Changed(Walk):  # changes one thing in what a step returns
    changed: dict = {}  # noqa: RUF012

    def step(self, action):
        names = ("obs", "reward", "terminated", "truncated", "info")
        answer = dict(zip(names, super().step(action), strict=True))
        return tuple(self.changed.get(name, lambda x: x)(value) for name, value in answer.items())


class NoSeed(Walk):
    def reset(self):
        return super().reset()


class Leaves(Walk):  # what an episode changes stays in the next one
    wind = 0

    def step(self, action):
        self.wind = min(self.wind + 0.125, 1.0)
        self.x += self.wind - 1
        return super().step(action)


class SeedlessAnew(Walk):  # a reset without a seed does not go on from the seed before
    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        if seed is None:
            self.x = float(np.random.default_rng().random())
            obs = self.seen()
        return obs, info


class Horizon(Walk):  # tells its time limit as a termination, as in MaximilianB2/pc-gym#45
    def reset(self, *, seed=None, options=None):
        self.time = 0
        return super().reset(seed=seed)

    def step(self, action):
        self.time += 1
        self.x = float(np.clip(self.x + action - 0.5, -3, 3))
        return self.seen(), 1.0, self.time == 25, False, {}


class Unsolved(Walk):
    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"is_success": False}


class Elsewhere(Walk):  # holds its state where no field is: a resumed one goes on from another
    def __init__(self):
        self.hidden = [0]

    x = property(lambda self: Elsewhere.place[id(self)], lambda self, x: Elsewhere.place.update({id(self): x}))
    place: dict[int, float] = {}  # noqa: RUF012


class Leaks(Walk):
    kept: list[mmap.mmap] = []  # noqa: RUF012  # of the class, as it cannot be saved with the state

    def step(self, action):
        self.kept.append(mmap.mmap(-1, 1 << 19))  # never memory that another test has freed
        self.kept[-1].write(bytes(1 << 19))
        return super().step(action)


class Alone(Walk):  # there can be only one
    made = 0

    def __init__(self):
        Alone.made += 1
        if Alone.made > 1:
            raise OSError("the port is taken")


class Masked(Walk):  # tells its legal actions in one of three ways, and refuses all others
    how = "info"

    def mask(self):
        return [self.x < 2, self.x > -2]

    def __init__(self):
        if self.how == "observation":
            self.observation_space = spaces.Dict({"x": Walk.observation_space, "action_mask": spaces.MultiBinary(2)})
        if self.how == "method":
            self.action_masks = lambda: self.told()

    def told(self):
        return np.array(self.mask(), np.int8)

    def info(self):
        return {"action_mask": self.told()} if self.how == "info" else {}

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], self.info()

    def step(self, action):
        if not self.mask()[action]:
            raise ValueError(f"{action} is illegal")
        return *super().step(action)[:4], self.info()

    def seen(self):
        x = super().seen()
        return {"x": x, "action_mask": self.told()} if self.how == "observation" else x


def walk(kind=Walk, **parts):
    """The walk with other parts."""
    return type(kind.__name__, (kind,), parts)


def masked(**how):
    return walk(Masked, **how)


def changed(**how):
    return walk(Changed, changed=how)


def shown(observation):
    """Shows what ``observation`` makes of the place."""
    return walk(seen=lambda self: observation(self.x))


STILL = walk(observation_space=spaces.Box(0, 255, (16, 16, 3), np.uint8),
             seen=lambda self: np.full((16, 16, 3), 99, np.uint8))  # fmt: skip
FROM_1 = walk(observation_space=spaces.Discrete(7, start=1), seen=lambda self: self.x + 3)
CALLED_1 = walk(action_space=spaces.Discrete(2, start=1), step=lambda self, action: Walk.step(self, [0, 1][action]))
SATURATES = walk(action_space=spaces.Box(-1000, 1000, (1,)),
                 step=lambda self, action: Walk.step(self, 0.5 + np.clip(action[0], -1, 1) / 2))  # fmt: skip
FOUR = walk(step=lambda self, action: (*Walk.step(self, action)[:3], {}))
IGNORES_SEED = walk(  # and starts from no state twice
    reset=lambda self, *, seed=None, options=None: Walk.reset(self), drawn=lambda self: self.np_random.random()
)
DIFFERENT = lambda a, b: a != b  # noqa: E731
ENDLESS = walk(step=lambda self, action: (np.zeros(1, np.float32), 1.0, False, False, {}))

FAULTY = {
    "reused array": (Reused, "warning reused", "changed after it was returned"),  # google-deepmind/dm_control#34
    "float64": (shown(lambda x: np.array([x], np.float64)),  # learnsyslab/gym-pybullet-drones#87
                "warning dtype", "obs of reset() is of float64: expected an array of float32"),
    "list": (shown(lambda x: [float(x)]), "warning dtype", "is of list"),
    "bounds": (walk(observation_space=spaces.Box(-1, 1, (1,), np.float32)),
               "warning bounds", "at index (0,): expected -1 to 1"),
    "NaN": (shown(lambda x: np.array([np.nan if abs(x) > 1 else x], np.float32)),
            "fault refused", "is nan at index (0,)"),
    "shape": (shown(lambda x: np.full(1 + (abs(x) > 1), x, np.float32)),  # hill-a/stable-baselines#875
              "fault refused", "has shape (2,); its space declares (1,)"),
    "class": (FROM_1, "fault refused", "is 0; its space declares 1..7"),
    "start": (CALLED_1, "fault raises", "IndexError"),
    "action type": (walk(step=lambda self, action: Walk.step(self, action[0])), "fault raises", "of type int64"),
    "reward array": (changed(reward=lambda r: np.array([r])), "warning reward", "array([0.]), of type ndarray"),
    "reward NaN": (changed(reward=lambda r: float("nan")), "fault refused", "the reward is nan"),
    "reward None": (changed(reward=lambda r: None), "fault refused", "the reward is None"),
    "int end": (changed(terminated=int), "warning ends", "terminated is 0, of type int"),
    "array end": (changed(truncated=np.array), "warning ends", "truncated is array(False), of type ndarray"),
    "info": (changed(info=lambda info: None), "warning info", "the info of step() is None"),
    "four values": (FOUR, "fault refused", "step() returned 4 values: expected 5"),
    "no seed": (NoSeed, "fault refused", "Define reset(self, *, seed=None, options=None)"),
    "seed ignored": (IGNORES_SEED, "warning seed", "two copies play different episodes"),
    "seedless": (SeedlessAnew, "warning seed", "after reset(seed=None)"),  # Farama-Foundation/Gymnasium#1084
    "left over": (Leaves, "warning reset", "an episode after others is a different one"),
    "NumPy's generator": (walk(drawn=lambda self: np.random.randint(3) - 1),  # noqa: NPY002  # MaximilianB2/pc-gym#44
                          "warning generator", "reset() draws from the global generator of NumPy"),
    "Python's generator": (walk(drawn=lambda self: random.randint(-1, 1)),
                           "warning generator", "the global generator of Python"),
    "endless": (ENDLESS, "warning endless", "no episode ended within 1,500 steps"),  # learnables/learn2learn#349
    "horizon": (Horizon, "warning horizon", "no episode was longer than 25 steps, and 12 of 12 were terminated then. "
                "If that is a time limit, set env.truncate_at_limit = True, env.max_episode_steps = 25, or"),
    "unsolved": (Unsolved, "warning unsolved", "random episodes succeeded: learning begins when random actions do"),
    "unpicklable": (walk(__init__=lambda self: setattr(self, "lock", threading.Lock())),
                    "note unsaved", "its field 'lock' cannot be pickled"),
    "memory address": (walk(__init__=lambda self: setattr(self, "rules", [DIFFERENT])),
                       "note unsaved", "its field 'rules' cannot be pickled (\"Can't pickle <function <lambda>>: "),
    "state elsewhere": (Elsewhere, "warning state", "does not continue identically"),
    "still pixels": (STILL, "warning still", "the image 'image' did not change"),
    "unbounded": (walk(action_space=spaces.Box(-np.inf, np.inf, (1,), np.float32)),
                  "fault spaces", "action 'action' is unbounded"),
    "saturates": (SATURATES, "warning saturates", "at index 0 beyond half of its bounds change nothing"),
    "mask of 3": (masked(mask=lambda self: [1, 1, 0]), "fault refused", "has 3 values: expected 2, one for each class"),
    "no legal": (masked(mask=lambda self: [abs(self.x) < 2] * 2), "fault refused", "leaves no legal action"),
    "mask of 2.5": (masked(told=lambda self: np.array([1, 2.5])), "fault refused", "expected 1 for legal actions and"),
    "leak": (Leaks, "warning memory", "memory use grew by"),
    "alone": (Alone, "warning copies", "OSError: the port is taken"),
}  # fmt: skip


def found(report):
    return {f"{one.severity} {one.name}": one.text for one in report.findings}


@pytest.mark.parametrize("what", FAULTY)
def test_each_fault_is_found_and_nothing_else(what, monkeypatch):
    make, name, text = FAULTY[what]
    monkeypatch.setattr(check, "MAX_PLAY_FACTOR", 5)
    Alone.made = 0
    report = run_env_check(make, EnvConfig(), 600 if make is Leaks else 300)
    Leaks.kept.clear()
    always = {"warning constant"} if make is Horizon else set()
    assert {*found(report)} == {name, *always}
    assert text in found(report)[name]
    assert report.ok is not name.startswith("fault")


@pytest.mark.parametrize("name", SOUND)
def test_sound_environments_have_no_fault_and_no_warning(name):
    pytest.importorskip(NEEDS.get(name, "gymnasium"))
    report = run_env_check(None, EnvConfig(id=name), 1_000)
    assert report.ok
    hard = {"constant"} if name == "MountainCar-v0" else set()  # random actions never reach its goal
    assert {one.name for one in report.findings if one.severity != "note"} == hard
    assert report.measurements["steps"] >= 1_000
    assert report.measurements["steps_per_second"] > 0


def test_returns_of_games_are_the_first_players():
    """Each mover earns 1 or nothing: without the player, all returns would be 1."""
    report = run_env_check(None, EnvConfig(id="reverie/Nim-v0"), 1_000)
    assert set(report.measurements["returns"]) == {-1.0, 1.0}
    assert all(one.severity == "note" for one in report.findings)


def test_what_is_seen_of_a_sound_environment():
    watched = []
    report = run_env_check(Walk, EnvConfig(), 300, worker=True, watch=watched.append)
    facts = report.measurements
    assert (report.env, report.findings, watched) == ("Walk", (), [*range(1, 301)])
    assert (facts["steps"], facts["plays_in_worker"], facts["max_episode_steps"]) == (300, True, None)
    assert (facts["least_reward"], facts["largest_reward"]) == (0, 1)
    assert facts["terminated"] == facts["episodes"] == len(facts["lengths"]) == len(facts["returns"]) > 10
    assert sum(facts["returns"]) == facts["rewards_not_0"]
    assert 280 < sum(facts["lengths"]) <= 300
    assert facts["bytes_of_state"] > 100
    limited = run_env_check(None, EnvConfig(id="CartPole-v1", max_episode_steps=7), 100)
    assert (limited.measurements["max_episode_steps"], max(limited.measurements["lengths"])) == (7, 7)


@pytest.mark.parametrize(("when", "named"), [("__init__", False), ("reset", True)])
def test_large_states_are_named_unless_a_new_environment_has_them_too(when, named):
    def act(self, *args, **kwargs):
        self.table = np.random.default_rng(0).normal(size=200_000)
        return getattr(super(Large, self), when)(*args, **kwargs)

    Large = type("Large", (Walk,), {when: act})
    report = run_env_check(Large, EnvConfig(), 100)
    assert [(one.name, "takes 1.5 MB of each checkpoint" in one.text) for one in report.findings] == (
        [("state_size", True)] if named else []
    )


@pytest.mark.parametrize("how", ["info", "observation", "method"])
def test_random_actions_are_those_that_masks_allow(how):
    report = run_env_check(masked(how=how), EnvConfig(), 300, worker=True)
    assert {one.severity for one in report.findings} <= {"note"}
    assert report.measurements["masks"] == how
    assert 0.5 < report.measurements["legal_share"] < 1.0
    assert report.obs_spec["action_mask"].kind == "mask"
    assert "masks" not in run_env_check(Walk, EnvConfig(), 10).measurements


@pytest.mark.parametrize("env", [None, CartPoleEnv])
def test_settings_change_what_is_seen(env):
    report = run_env_check(env, EnvConfig(id="CartPole-v1", pixels="only", resize=(16, 24)), 50)
    assert {key: part.shape for key, part in report.obs_spec.items()} == {"image": (16, 24, 3)}
    assert (
        run_env_check(None, EnvConfig(id="Blackjack-v1", exclude_keys="1"), 50).measurements["learners_ignore"] == "1"
    )


def test_an_instance_is_played_and_left_open():
    env = Walk()
    report = run_env_check(env, EnvConfig(), 100, worker=True)
    assert report.findings == ()
    assert "plays_in_worker" not in report.measurements
    env.reset(seed=3)
    assert [*found(run_env_check(Leaves(), EnvConfig(), 100))] == ["warning reset"]


def test_there_must_be_an_environment():
    with pytest.raises(EnvError, match="unknown environment 'CartPol-v1'"):
        run_env_check(None, EnvConfig(id="CartPol-v1"), 10)
    with pytest.raises(EnvError, match="no seat"):
        run_env_check(env_zoo.without_a_seat, EnvConfig(), 10)
