"""A person takes over from the policy: what is stored, counted and resumed, for learners of each kind."""

import functools
import itertools
import shutil

import numpy as np
import pytest
import torch

import reverie
from helped_env import Helped
from reverie.algos.table import algorithm_config
from reverie.core import wall_clock
from reverie.core.errors import ConfigError, DataError
from reverie.experiment import lifecycle
from reverie.run.takeovers import TakeoverCounter

ACTIONS = {"box": np.float32([-1, 1]), "discrete": 3, "dict": {"move": 1, "force": np.float32([0.5, -1.5])}}


class Script:
    """Takes over for 3 of 8 steps, also over the end of episodes of 5 steps."""

    def __init__(self, action):
        self.action, self.calls, self.resets = action, 0, 0

    def __call__(self, obs, action):
        assert obs.shape == (1,)
        self.calls += 1
        return self.action if self.calls % 8 in (3, 4, 5) else None

    def reset(self):
        self.resets += 1

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = int(state["calls"])


def collect(algo, space="box", turns=60, person=None, convention="never", **settings):
    config = algorithm_config(algo)()
    if not config.on_policy:
        config = config.merge({"batch_size": 8, "networks.units": (8,)})
        settings = {"learning_starts": 20, "human.min_rows": 5} | settings
    env = functools.partial(Helped, convention, space)
    return learn(reverie.Collector(env, config, steps=10_000, human=person, **settings), turns)


def learn(collector, turns):
    for _ in range(turns):
        num_updates = collector.collect()
        for _ in range(num_updates if len(collector) > 20 else 0):
            batch = collector.sample()
            collector.feedback(batch, collector.algo.update(batch))
    return collector


def stored_rows(collector):
    storage = collector.experiment.replay.storage
    return storage.read(storage.oldest, storage.count)


@pytest.mark.parametrize(
    ("algo", "space", "vector"),
    [("sac", "box", "sync"), ("dqn", "discrete", "sync"), ("sac", "dict", "sync"), ("sac", "box", "async")],
)
def test_a_persons_actions_are_executed_stored_and_tagged(algo, space, vector):
    person = Script(ACTIONS[space])
    with collect(algo, space, person=reverie.Person(person), **{"env.vectorization": vector}, envs=2) as collector:
        rows = stored_rows(collector)
    acted = np.flatnonzero(~rows["is_last"][0])
    calls = 1 + np.arange(len(acted))
    expected = np.isin(calls % 8, (3, 4, 5))
    np.testing.assert_array_equal(rows["is_intervention"][0, acted], expected)
    assert not rows["is_intervention"][1].any()
    assert not rows["is_intervention"][0, rows["is_last"][0]].any()
    taken = rows["action"][0, acted][expected]
    assert (taken == taken[0]).all()
    assert person.resets == rows["is_first"][0].sum()
    assert (rows["action"][0, acted][~expected] != taken[0]).any(1).mean() > 0.5


@pytest.mark.parametrize("turns", range(40, 48))
def test_a_run_that_resumes_within_a_takeover_is_bit_identical(turns, tmp_path):
    """At each phase of the script, whose state is in the checkpoint; batches have a part of the person's windows."""
    with collect("sac", turns=turns, person=reverie.Person(Script(ACTIONS["box"])), folder=tmp_path / "a") as collector:
        collector.save()
        shutil.copytree(tmp_path / "a", other := tmp_path / "b")
        expected = stored_rows(learn(collector, 20)), [*collector.algo.parameters()], collector.rows.takeovers.count
    with collect("sac", turns=20, person=reverie.Person(Script(ACTIONS["box"])), folder=other) as collector:
        rows, weights, count = stored_rows(collector), [*collector.algo.parameters()], collector.rows.takeovers.count
    assert all(np.array_equal(expected[0][name], x) for name, x in rows.items())
    assert all(map(torch.equal, weights, expected[1]))
    assert count == expected[2] > 5


def test_a_persons_and_the_environments_takeovers_add_up():
    """In one step of two environments, the person may act in the first, and the second may report one."""
    person = reverie.Person(Script(ACTIONS["box"]))
    with collect("sac", person=person, convention="hil_serl", envs=2) as collector:
        rows, counter = stored_rows(collector), collector.rows.takeovers
    told = (rows["obs/observation"][:, :, 0] % 3 == 1) & ~rows["is_last"]
    told[:, -1] = False
    calls = np.cumsum(~rows["is_last"][0])
    told[0] |= ~rows["is_last"][0] & np.isin(calls % 8, (3, 4, 5))
    np.testing.assert_array_equal(rows["is_intervention"], told)
    assert counter.steps in (told.sum(), told[:, :-1].sum())


class Succeeding(Helped):
    """Each second episode succeeds."""

    def step(self, action):
        *row, info = super().step(action)
        return *row, info | {"is_success": self.count % 10 == 0}


def test_the_seconds_of_a_person_are_those_from_their_rows_to_the_next(monkeypatch):
    counter, time = TakeoverCounter(2), itertools.count(10.0)
    monkeypatch.setattr(wall_clock, "monotonic", lambda: next(time))
    nobody = torch.zeros(2, dtype=torch.bool)
    for taken in (True, True, False, True):
        counter.add(torch.tensor([taken, False]), nobody)
    assert counter.seconds == 2
    resumed = TakeoverCounter(2)
    resumed.load_state_dict(counter.state_dict())
    resumed.add(None, nobody)
    assert (resumed.seconds, resumed.pop_metrics(4)["human/seconds"]) == (3, 3)  # the pause between does not count


def test_a_takeover_goes_on_in_the_next_episode():
    counter = TakeoverCounter(2)
    for taken, begins in ((True, False), (False, True), (True, False), (False, False), (True, False)):
        counter.add(torch.tensor([taken, False]), torch.tensor([begins, False]))
    assert (counter.count, counter.steps) == (2, 3)


class Slow(Helped):
    """Each step takes some seconds."""

    def __init__(self, clock, seconds):
        super().__init__("never")
        self.clock, self.seconds = clock, seconds

    def step(self, action):
        self.clock[0] += self.seconds
        return super().step(action)


def test_evaluations_are_none_of_a_persons_seconds(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(wall_clock, "monotonic", lambda: clock[0])
    script, seconds = reverie.Person(lambda obs, action: ACTIONS["box"]), []

    class Watch(reverie.Callback):
        def on_log(self, run, entry):
            seconds.append(entry["human/seconds"])

    reverie.train(
        "sac", functools.partial(Slow, clock, 1.0), eval_env=functools.partial(Slow, clock, 100.0), steps=20,
        learning_starts=19, eval_episodes=1, console=False, human=script, callbacks=[Watch()], run=tmp_path / "run",
        **{"schedule.eval_every": 7, "schedule.log_every": 20},
    )  # fmt: skip
    assert seconds[-1] == 18  # all steps, as the reset takes none, but for the newest ones


@pytest.mark.parametrize(("seconds", "steps"), [(0.0, [10, 20, 40]), (1e6, [40])])
def test_what_a_person_did_is_saved_once_they_give_back(seconds, steps, tmp_path, monkeypatch):
    monkeypatch.setattr(lifecycle, "HAND_BACK_SECONDS", seconds)
    numbers = itertools.count(1)
    script = lambda obs, action: ACTIONS["box"] if next(numbers) in (7, 8, 17, 18) else None  # noqa: E731
    env = functools.partial(Helped, "never")
    settings = {"steps": 40, "learning_starts": 39, "keep_checkpoints": 9, "eval_episodes": 0, "console": False}
    reverie.train("sac", env, human=reverie.Person(script), run=tmp_path / "run", **settings)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert names == [f"step-{step:09}" for step in steps]


def test_successes_of_a_person_are_told_apart():
    script = lambda obs, action: ACTIONS["box"] if obs[0] % 20 == 7 else None  # noqa: E731
    env = functools.partial(Succeeding, "never")
    config = algorithm_config("sac")()
    with reverie.Collector(env, config, steps=99, learning_starts=99, human=reverie.Person(script)) as collector:
        for _ in range(49):  # 8 episodes of 6 rows, 40 steps
            collector.collect()
        episodes, rates = collector.pop_episodes().means(), collector.rows.pop_action_rates()
    assert (rates["human/steps"], rates["human/takeovers"], rates["human/rate"]) == (2, 2, 2 / 41)
    assert episodes["episode/success_rate"] == 1 / 2
    assert episodes["episode/success_rate_assisted"] == 1
    assert 0 < episodes["episode/success_rate_alone"] < 1


@pytest.mark.parametrize(("chosen", "message"), [([0, np.nan], "finite"), ([9, 0], "bounds"), ([0], r"shape \(1,\)")])
def test_an_action_that_is_none_is_an_error(chosen, message):
    with pytest.raises(DataError, match=message):
        collect("sac", person=reverie.Person(lambda obs, action: np.float32(chosen)))


@pytest.mark.parametrize(
    ("algo", "settings", "message"),
    [
        ("ppo", {"human.fraction": 0.5}, "ppo cannot learn from a person's rows.*sac, td3, dqn and bc"),
        ("sac", {"human.fraction": 1.0}, "human.fraction = 1: sac also needs windows of its own"),
        ("sac", {"human.reward": "only"}, "all rewards would be 0"),
        ("sac", {"human": "mine:help", "actors": 1}, "a person takes over in this process"),
        ("sac", {"human.fraction": 0.5, "actors": 1}, "the rows of actors are in several replays"),
        ("sac", {"data": "none.hdf5", "experience": "mixed(0.5)", "human.fraction": 0.5}, "both set the recorded part"),
        ("sac", {"human": "no_such_module:help"}, "human.person = 'no_such_module:help'.*cannot be imported"),
        ("sac", {"human": "object"}, "Pass it again"),
        ("bc", {}, "no dataset was given.*--human"),
        ("dreamer_v3", {"human.intervention_reward": -1.0, "size": "nano"}, "expected a learner of transitions"),
        ("sac", {"human.fraction": 0.5, "replay.sequential": True}, "human.fraction = 0.5, replay.sequential"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(algo, settings, message, tmp_path):
    env = functools.partial(Helped, "never")
    with pytest.raises(ConfigError, match=message):
        reverie.train(algo, env, run=tmp_path / "run", steps=10, console=False, **settings)


def test_on_policy_learners_take_a_persons_rows_but_do_not_learn_from_them():
    person = reverie.Person(Script(ACTIONS["box"]))
    config = algorithm_config("ppo")().merge({"rollout": 20, "batch_size": 20})
    with reverie.Collector(functools.partial(Helped, "never"), config, steps=60, human=person) as collector:
        for batch in collector:
            collector.feedback(batch, collector.algo.update(batch))
            assert batch.is_last.sum() > 6


def test_bc_imitates_the_person_alone():
    """HG-DAgger: a person who always does the same in every third step; the agent's own actions are not imitated."""
    person = reverie.Person(lambda obs, action: np.float32([3, -2]) if obs[0] % 3 == 1 else None)
    config = algorithm_config("bc")().merge({"batch_size": 16, "networks.units": (16,), "lr": 1e-2})
    settings = {"human": person, "human.min_rows": 5, "learning_starts": 20}
    with reverie.Collector(functools.partial(Helped, "never"), config, steps=10**4, **settings) as collector:
        learn(collector, 120)
        with torch.no_grad():
            action = collector.algo.objective.actor({"observation": torch.rand(50, 1) * 100}).mean(0)
    torch.testing.assert_close(action, torch.tensor([1.0, -1.0]), atol=0.2, rtol=0)
