"""One rule for vectors of arrays and of tensors: each test runs over both."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from env_steps import play
from reverie.core.errors import ActionError, DataError, EnvError
from reverie.envs.config import EnvConfig
from reverie.envs.slot_vector_env import make_vector_env
from reverie.run.evaluate import evaluate

NUM, LENGTHS = 3, (4, 1, 2, 5)
NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
ARRAYS_OR_TENSORS = pytest.mark.parametrize("tensors", [False, True], ids=["arrays", "tensors"])
VALUE = spaces.Box(-9, 99, (2,), np.float32)


def legal(number, episode, time):
    """The mask of a state: one of the four classes is illegal, so another state's mask allows it."""
    return [(number + episode + time + k) % 4 > 0 for k in range(4)]


class Logged(VectorEnv):
    """Shows number, episode and time of each environment, and logs which class was executed where."""

    single_action_space = spaces.Discrete(4, start=1)

    def __init__(self, num_envs, tensors, mode=NEXT, declared=True, space=VALUE, bad=None, has_mask=True, info=None,
                 at_reset=True, truncates=False):  # fmt: skip
        """``bad``: a value of environment 1 in turn 5. ``info``: that of each step, and ``at_reset``."""
        self.num_envs, self.tensors, self.mode, self.has_mask, self.bad = num_envs, tensors, mode, has_mask, bad
        self.info, self.at_reset, self.truncates = info or {}, at_reset, truncates
        declares = {"ids": DISABLED}.get(mode, mode)
        self.metadata = {"autoreset_mode": declares} if declared else {}
        parts = {"key": spaces.Box(0, 99, (3,), np.float32), "value": space}
        self.single_observation_space = spaces.Dict(
            parts | ({"action_mask": spaces.MultiBinary(4)} if has_mask else {})
        )
        self.episode, self.time, self.turn = np.full(num_envs, -1), np.zeros(num_envs, int), 0
        self.ended, self.log = np.zeros(num_envs, bool), {}
        if tensors:
            self.device = torch.device("cpu")
        if mode == "ids":
            self.reset = self.reset_ids

    def has_choice(self, time, length):
        return True

    def _lengths(self):
        return [LENGTHS[(i + e) % 4] for i, e in enumerate(self.episode.tolist())]

    def _begin(self, chosen):
        self.episode, self.time = self.episode + chosen, np.where(chosen, 0, self.time)

    def _obs(self):
        space = self.single_observation_space["value"]
        value = np.full((self.num_envs, *space.shape), getattr(space, "start", 0), space.dtype)
        if self.bad is not None and self.turn == 5:
            value[1] = self.bad
        keys = [*zip(range(self.num_envs), self.episode.tolist(), self.time.tolist(), strict=True)]
        mask = [[x and self.has_choice(key[2], length) for x in legal(*key)]
                for key, length in zip(keys, self._lengths(), strict=True)]  # fmt: skip
        mask = {"action_mask": np.array(mask, np.int8)} if self.has_mask else {}
        return self._convert({"key": np.array(keys, np.float32), "value": value} | mask)

    def _convert(self, value):
        if isinstance(value, dict):
            return {key: self._convert(part) for key, part in value.items()}
        return torch.from_numpy(np.array(value)) if self.tensors else np.array(value)

    def reset(self, *, seed=None, options=None):
        chosen = options["reset_mask"].numpy() if options else np.ones(self.num_envs, bool)
        self._begin(chosen)
        self.ended = self.ended & ~chosen
        return self._obs(), self._convert(self.info if self.at_reset else {})

    def reset_ids(self, *, seed=None, options=None, env_ids=None):
        chosen = None if env_ids is None else {"reset_mask": torch.zeros(self.num_envs).index_fill(0, env_ids, 1) > 0}
        return Logged.reset(self, options=chosen)

    def step(self, action):
        self.turn += 1
        skips = self.ended & (self.mode in (NEXT, DISABLED))
        for i in np.flatnonzero(~skips).tolist():
            self.log[i, int(self.episode[i]), int(self.time[i])] = int(action[i]) - 1
        self.time = self.time + ~skips
        self._begin(skips & (self.mode == NEXT))
        self.ended = (self.time == self._lengths()) & ~skips
        reward, ends, none = self.time + 10.0, self.ended, np.zeros(self.num_envs, bool)
        info = self._convert(self.info)
        if self.mode == SAME and ends.any():
            info |= {"final_obs": self._obs(), "_final_obs": self._convert(ends)}
            self._begin(ends)
        flags = (none, ends) if self.truncates else (ends, none)
        return self._obs(), *map(self._convert, (reward, *flags)), info


def make(tensors, config=None, warns=False, **options):
    """Return the environments, and the vector behind them."""
    made = []
    env = make_vector_env(
        EnvConfig(num=NUM, vectorization="native").merge(config or {}), seed=0, warns=warns,
        factory=lambda num_envs: made.append(Logged(num_envs, tensors, **options)) or made[-1],
    )  # fmt: skip
    assert env.defers == tensors
    return env, made[-1]


def play_all(env, action=None):
    """Return some rows, after their check."""
    steps = play(env, 20, action)
    check(env)
    return steps


def check(env):
    if env.defers:
        env.check()


def choose(step, rng):
    """Return random legal actions."""
    scores = torch.rand(NUM, 4, generator=rng)
    return torch.eye(4)[scores.masked_fill(step.obs["action_mask"] == 0, -1.0).argmax(1)]


@pytest.mark.parametrize(
    ("tensors", "mode", "declared"),
    [(False, NEXT, True), (False, NEXT, False), (False, SAME, True), (False, SAME, False), (True, NEXT, True),
     (True, SAME, True), (True, SAME, False), (True, DISABLED, True), (True, "ids", True)],
)  # fmt: skip
def test_each_action_is_executed_in_the_state_in_which_it_was_chosen(tensors, mode, declared):
    """Also where the step behind a reset is hidden: no illegal action, no reward or row of another step."""
    env, vector = make(tensors, mode=mode, declared=declared)
    hides, rng = mode in (SAME, "ids"), torch.Generator().manual_seed(0)
    step, before, hidden = env.reset(), [None] * NUM, 0
    for _ in range(60):
        keys = [tuple(map(int, key)) for key in step.obs["key"].tolist()]
        for i, key in enumerate(keys):
            assert step.obs["action_mask"][i].bool().tolist() == legal(*key)
            if step.is_first[i]:
                assert step.reward[i] == 0
                assert key[2] <= int(hides)
                hidden += key[2]
            else:
                old, action = before[i]
                assert (old[:2], old[2] + 1) == (key[:2], key[2])
                assert vector.log[old] == action
                assert step.reward[i] == key[2] + 10
        assert not (step.is_last & step.is_first).any()
        action = choose(step, rng)
        before = [*zip(keys, action.argmax(1).tolist(), strict=True)]
        step = env.step(action)
    check(env)
    assert (hidden > 9) == hides
    assert all(legal(*key)[action] for key, action in vector.log.items() if vector.mode != DISABLED)


VALUES = [
    (spaces.Discrete(5), 7, r"7; its space declares 0\.\.4"),
    (spaces.Discrete(5, start=2), 1, r"1; its space declares 2\.\.6"),
    (spaces.MultiDiscrete([2, 3]), 2, r"2 at index \(0,\); its space declares 0\.\.1"),
    (VALUE, np.nan, r"nan at index \(0,\): expected finite float32 numbers"),
    (VALUE, -np.inf, r"-inf at index \(0,\): expected finite float32 numbers"),
    (spaces.Box(-np.inf, np.inf, (2,), np.float64), 1e308, r"1e\+308 at index"),
    (spaces.Box(-np.inf, np.inf, (2,), np.float64), -1e308, r"-1e\+308 at index"),
    (spaces.Box(0, 1, (4, 4, 3), np.float32), 3, r"values .*3; its space declares 0\.\.1"),
    (spaces.Box(0, 7, (4, 4, 3), np.uint8), 9, r"values .*9; its space declares 0\.\.7"),
]


@ARRAYS_OR_TENSORS
@pytest.mark.parametrize(("space", "bad", "message"), VALUES, ids=[f"{space} {bad}" for space, bad, _ in VALUES])
def test_a_value_that_its_space_cannot_have_is_named(tensors, space, bad, message):
    with pytest.raises(DataError, match=f"observation 'value'.* {message}"):
        play_all(make(tensors, space=space, bad=bad)[0])


@ARRAYS_OR_TENSORS
def test_an_evaluation_checks_its_rows(tensors):
    with pytest.raises(DataError, match="nan at index"):
        evaluate(make(tensors, bad=np.nan)[0], FirstClass(), 9)


class FirstClass:
    """Takes the first class."""

    def initial(self, num_envs):
        return ()

    def act(self, step, state, mode):
        return torch.eye(4)[[0] * len(step)], state


@ARRAYS_OR_TENSORS
def test_a_value_outside_of_its_box_is_used_and_said_once(tensors, said):
    for warns in (True, False):
        env, _ = make(tensors, bad=-20, warns=warns)
        rows = [step.obs["value"].min() for step in play_all(env)]
        assert min(rows) == -20
    (line,) = said
    assert "observation 'value' is -20 at index (0,), but its space declares -9 to 99. It is used unchanged" in line


@ARRAYS_OR_TENSORS
def test_an_action_that_is_not_finite_is_the_learners_fault(tensors):
    env, _ = make(tensors)
    env.reset()
    for bad in (torch.nan, torch.inf, -torch.inf):
        action = torch.zeros(NUM, 4)
        action[1, 2] = bad
        with pytest.raises(ActionError, match="the action for environment 1 is "):
            play_all(env, action)


@ARRAYS_OR_TENSORS
@pytest.mark.parametrize("at_reset", [True, False])
def test_a_mask_in_the_info_is_refused_unless_it_is_excluded(tensors, at_reset):
    info = {"action_mask": np.ones((NUM, 4), int)}
    options = {"has_mask": False, "info": info, "at_reset": at_reset}
    with pytest.raises(EnvError, match=r"the info has an action_mask.*observation action_mask.*exclude_keys"):
        play_all(make(tensors, **options)[0])
    play_all(make(tensors, {"exclude_keys": "action_mask"}, **options)[0])
    if not tensors:
        env, vector = make(tensors, has_mask=False)
        vector.step = lambda _: (*Logged.step(vector, [0] * NUM)[:4], [{}, {"action_mask": np.ones(4)}, {}])
        with pytest.raises(EnvError, match="the info has an action_mask"):
            play_all(env)


@ARRAYS_OR_TENSORS
@pytest.mark.parametrize("mode", [NEXT, SAME])
@pytest.mark.parametrize("where", ["terminal", "truncated", "inside"])
def test_without_a_legal_action_a_row_is_terminal(tensors, mode, where):
    env, vector = make(tensors, mode=mode, truncates=where == "truncated")
    vector.has_choice = (lambda time, length: time < 1) if where == "inside" else (lambda time, length: time < length)
    if where == "terminal":
        assert all(step.obs["action_mask"][step.is_last].all() for step in play_all(env))
        return
    with pytest.raises(DataError, match=r"action_mask leaves no legal action \(part 'action'\).*not terminal"):
        play_all(env)


@ARRAYS_OR_TENSORS
@pytest.mark.parametrize("declared", [True, False])
def test_hidden_steps_are_said_once(tensors, declared, said):
    play_all(make(tensors, mode=SAME, declared=declared, warns=False)[0])
    play_all(make(tensors, mode=NEXT, warns=True)[0])
    assert not said
    play_all(make(tensors, mode=SAME, declared=declared, warns=True)[0])
    (line,) = said
    assert "Logged resets in the step that ends an episode, so an episode begins one step later" in line
