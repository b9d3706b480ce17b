"""Relabeled windows against a definition that looks at every row; goals name the row in which they were achieved."""

import numpy as np
import pytest
import torch

from reverie.core.columns import row_columns
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Step, Window
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.config import Episode, Final, Future, ReplayConfig
from reverie.replay.hindsight import GoalRelabeler
from reverie.replay.storage import DeviceStorage, HostStorage

GOAL = ObsPart(kind="vector", shape=(2,), dtype="float32")
ACTION = ActionSpec(parts={"a": ActionPart(kind="continuous", size=1)})
COLUMNS = row_columns({"achieved_goal": GOAL, "desired_goal": GOAL}, ACTION, {})
STREAMS, CAPACITY = 2, 40
CONFIG = ReplayConfig().merge({"fractions": {"uniform": 1, "priority": 1}})


def reward_of(achieved, desired):
    return achieved[..., 1] - 100 * desired[..., 1]


def goal_fn(achieved, desired):
    return reward_of(achieved, desired), (achieved == desired).all(-1)


def rows_of(stream, lengths, count):
    """Rows of episodes of these lengths, which repeat: the goal achieved in row t is (stream, t)."""
    rows, episode, left = [], -1, 0
    for t in range(count):
        first = left == 0
        if first:
            episode, left = episode + 1, lengths[(episode + 1) % len(lengths)]
        left -= 1
        goal = np.array([stream, -1 - episode], np.float32)
        achieved = np.array([stream, t], np.float32)
        reward = 0.0 if first else float(reward_of(achieved, goal))
        rows.append({"episode": episode, "achieved": achieved, "goal": goal, "reward": reward, "first": first,
                     "last": left == 0, "terminal": left == 0 and episode % 2 == 0})  # fmt: skip
    return rows


LIVES = [rows_of(0, [5, 1, 7], 70), rows_of(1, [4, 9], 70)]


def filled(hindsight, window, kind=HostStorage, count=61, seed=0, fn=goal_fn):
    """A replay of the first ``count`` rows, of which some were there before it relabeled, and some came at once."""
    where = () if kind is HostStorage else (torch.device("cpu"),)
    replay = ReplayBuffer(kind(COLUMNS, STREAMS, CAPACITY, *where), window, seed=seed, config=CONFIG)
    for t in range(count):
        if t == 20:
            replay.goals = GoalRelabeler(replay.storage, window, hindsight, fn, seed)
        if t < 30 or t >= 40:
            replay.add(*step(t), {})
        elif t == 30:
            replay.extend(block(30, 40))
    return replay


def step(t):
    def column(name, dtype=torch.float32):
        return torch.tensor(np.array([life[t][name] for life in LIVES])).to(dtype)

    obs = {"achieved_goal": column("achieved"), "desired_goal": column("goal")}
    flags = {f"is_{name}": column(name, torch.bool) for name in ("first", "last", "terminal")}
    return Step(obs=obs, reward=column("reward"), **flags), torch.zeros(STREAMS, 1)


def block(start, stop):
    steps = [step(t)[0] for t in range(start, stop)]
    names = ("reward", "is_first", "is_last", "is_terminal")
    rows = {name: np.stack([getattr(s, name).numpy() for s in steps], 1) for name in names}
    rows |= {f"obs/{key}": np.stack([s.obs[key].numpy() for s in steps], 1) for key in steps[0].obs}
    return rows | {"action": np.zeros((STREAMS, stop - start, 1), np.float32)}


def check_window(batch, b, replay, kind):
    """Compare a window with the definition; return how many of its runs could be relabeled, and how many were."""
    row, stream = divmod(int(batch.index[b]), STREAMS)
    life, context, length = LIVES[stream], replay.window.context, replay.window.length
    truth = [life[max(0, row + t)] for t in range(replay.window.rows)]
    begins = [t for t, x in enumerate(truth) if x["first"] or t == 0]
    possible = relabeled = 0
    for start, stop in zip(begins, [*begins[1:], len(truth)], strict=True):
        run = truth[start:stop]
        stored = [t for t in range(replay.oldest, replay.count) if life[t]["episode"] == run[0]["episode"]]
        learned = row + max(start, context)
        allowed = {Future: [t for t in stored if t > learned], Final: stored[-1:], Episode: stored[1:]}[kind]
        goals = batch.obs["desired_goal"][b, start:stop].numpy()
        assert (goals == goals[0]).all()
        possible += learned < stored[-1]
        is_new = goals[0, 1] >= 0
        relabeled += is_new
        if is_new:
            assert goals[0, 0] == stream
            assert goals[0, 1] in allowed
            assert learned < stored[-1]
        else:
            np.testing.assert_array_equal(goals[0], run[0]["goal"])
        behind = False
        for t, x in enumerate(run, start):
            assert batch.reward[b, t] == (0 if x["first"] else reward_of(x["achieved"], goals[0]))
            reached = bool((x["achieved"] == goals[0]).all()) and not x["first"]
            assert batch.is_terminal[b, t] == ((reached and is_new) or x["terminal"])  # ends for other reasons stay
            is_cut = t + 1 < len(truth) and truth[t + 1]["first"]  # also between copies of row 0
            if length > 2 or not behind:  # no transition begins in the last row
                assert batch.is_last[b, t] == (x["last"] or reached or is_cut or behind)
            behind = behind or (reached and t >= context)  # a relabeled episode ends at its goal
            assert batch.is_first[b, t] == x["first"]
    return possible, relabeled


@pytest.mark.parametrize(("strategy", "kind"), [(Future, HostStorage), (Final, HostStorage), (Episode, DeviceStorage)])
@pytest.mark.parametrize(
    ("length", "context", "crosses", "count"),
    [(2, 0, False, 61), (4, 2, True, 61), (3, 2, False, 25), (6, 0, True, 70)],
)
def test_windows_are_relabeled_as_defined(strategy, kind, length, context, crosses, count):
    window = Window(batch=100, length=length, context=context, crosses_episodes=crosses, context_crosses=context > 0)
    replay = filled(strategy(share=0.7), window, kind, count)
    counts = []
    for _ in range(3):
        batch = replay.sample()
        counts += [check_window(batch, b, replay, strategy) for b in range(len(batch.index))]
    possible, relabeled = map(sum, zip(*counts, strict=True))
    assert abs(relabeled - 0.7 * possible) < 4 * np.sqrt(0.21 * possible)


def test_an_end_whose_mask_is_unknown_keeps_its_goal():
    """All classes are legal in a terminal row whose mask is unknown: learners would bootstrap from illegal ones."""
    mask = ObsPart(kind="mask", shape=(1,), dtype="bool")
    columns = row_columns({"achieved_goal": GOAL, "desired_goal": GOAL, "action_mask": mask}, ACTION, {})
    for is_known in (False, True):
        window = Window(batch=200, length=2)
        storage = HostStorage(columns, 1, CAPACITY)
        replay = ReplayBuffer(storage, window, seed=0, config=CONFIG)
        replay.goals = GoalRelabeler(storage, window, Episode(share=1.0), goal_fn, 0)
        for t in range(30):
            row, goal = t % 5, torch.tensor([[0.0, 4.0]])  # each episode ends at its goal
            achieved = torch.tensor([[0.0, row]])
            obs = {"achieved_goal": achieved, "desired_goal": goal, "action_mask": torch.tensor([[not is_known]])}
            flags = {"is_first": row == 0, "is_last": row == 4, "is_terminal": row == 4}
            reward = reward_of(achieved, goal) * (row > 0)
            step = Step(obs=obs, reward=reward, **{name: torch.tensor([x]) for name, x in flags.items()})
            replay.add(step, torch.zeros(1, 1), {})
        batch = replay.sample()
        ends, goals = batch.obs["achieved_goal"][:, 1, 1] == 4, batch.obs["desired_goal"][:, 1, 1]
        assert (goals[~ends] != 4).any()
        assert (goals[ends] != 4).any() == is_known
        assert torch.equal(batch.is_terminal[:, 1], batch.obs["achieved_goal"][:, 1, 1] == goals)
        torch.testing.assert_close(batch.reward[:, 1], batch.obs["achieved_goal"][:, 1, 1] - 100 * goals)


def test_every_later_row_is_equally_likely():
    replay = filled(Future(share=1.0), Window(batch=20_000, length=2))
    batch = replay.sample()
    row = batch.index.numpy() // STREAMS
    offset = batch.obs["desired_goal"][:, 0, 1].numpy() - row
    of_nine = (batch.index.numpy() % STREAMS == 1) & (row == 44)  # rows 43 to 51 are an episode
    assert [LIVES[1][t]["first"] for t in (43, 52)] == [True, True]
    counts = np.bincount(offset[of_nine].astype(int), minlength=8)
    assert counts[0] == 0
    expected = of_nine.sum() / 7
    assert (np.abs(counts[1:] - expected) < 5 * np.sqrt(expected)).all()


def test_goals_go_on_as_they_were():
    window = Window(batch=50, length=2)
    one = filled(Future(), window)
    one.sample()
    two = filled(Future(), window, count=30, seed=7)
    two.restart_at(one.oldest)
    two.extend(block(one.oldest, one.count))
    two.load_state_dict(one.state_dict())
    for _ in range(2):
        a, b = one.sample(), two.sample()
        assert torch.equal(a.obs["desired_goal"], b.obs["desired_goal"])
        assert torch.equal(a.reward, b.reward)


def test_without_terminations_recorded_ends_stay():
    replay = filled(Future(share=1.0), Window(batch=300, length=2), fn=lambda *goals: (reward_of(*goals), None))
    batch = replay.sample()
    for b, handle in enumerate(batch.index.tolist()):
        assert batch.is_terminal[b, 1] == LIVES[handle % STREAMS][handle // STREAMS + 1]["terminal"]


def test_rewards_that_do_not_follow_from_goals_are_refused():
    replay = filled(Future(), Window(batch=50, length=2), fn=lambda *goals: (reward_of(*goals) + 1, None))
    with pytest.raises(ConfigError, match=r"compute_reward returns [\d.e+]+ for a row whose reward is [\d.e+]+, and"):
        replay.sample()


@pytest.mark.parametrize(("knows", "warnings"), [(False, 1), (True, 0)])
def test_goals_that_end_episodes_need_a_method(knows, warnings, said):
    def ends_at(achieved, desired):
        return np.zeros(len(achieved)), np.zeros(len(achieved), bool) if knows else None

    relabeler = filled(Future(), Window(batch=50, length=2), fn=ends_at).goals
    rows = {"obs/achieved_goal": torch.zeros(1, 2, 2), "reward": torch.zeros(1, 2)}
    for is_terminal in (False, True):
        rows["is_terminal"] = torch.tensor([[False, is_terminal]])
        relabeler.check_terminations(rows, np.zeros((1, 2), bool))
        assert relabeler.has_terminations == is_terminal
        assert bool(said) == (is_terminal and not knows)
    assert ["Give the environment a method compute_terminated" in line for line in said] == [True] * warnings


def test_terminations_that_are_none_are_refused():
    fn = lambda *goals: (reward_of(*goals), np.ones(len(goals[0]), bool))  # noqa: E731
    with pytest.raises(ConfigError, match=r"compute_terminated returns True for [\d,]+ of [\d,]+ rows that do not"):
        filled(Future(), Window(batch=50, length=2), fn=fn).sample()
