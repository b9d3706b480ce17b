"""The executed action, where the info of a step says that it was not the policy's, is what is stored and remembered."""

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import reverie
from helped_env import CONVENTIONS, FLAT, REPLACED, Helped
from reverie.agent.recording import record_episode
from reverie.algos.table import algorithm_config
from reverie.core.errors import DataError, EnvError
from reverie.datasets.config import DatasetConfig
from reverie.datasets.convert import write_dataset
from reverie.datasets.dataset import build_dataset, open_recorded
from reverie.datasets.format_detection import open_reader
from reverie.datasets.options import RecordConfig
from reverie.envs.config import EnvConfig
from reverie.envs.interventions import read_replacement
from reverie.envs.make import make_gym
from reverie.envs.slot_vector_env import make_vector_env
from reverie.envs.wrappers import ActionRepeat
from reverie.replay.sources import concat_batches
from reverie.run.collect import EnvCollector
from reverie.run.evaluate import evaluate


def stored_rows(collector):
    storage = collector.experiment.replay.storage
    return storage.read(storage.oldest, storage.count)


def check_rows(rows, space):
    """Every row before the newest one, whose action is not known yet, has the executed action."""
    count = rows["obs/observation"][:, :, 0]
    acted = ~rows["is_last"].astype(bool)
    acted[:, -1] = False
    is_replaced = acted & (count % 3 == 1)
    assert is_replaced.sum() > 5
    np.testing.assert_allclose(rows["action"][is_replaced], np.tile(FLAT[space], (is_replaced.sum(), 1)), atol=1e-6)
    others = rows["action"][acted & ~is_replaced]
    assert not np.isclose(others, FLAT[space], atol=1e-6).all(1).all()
    if "is_intervention" in rows:
        np.testing.assert_array_equal(rows["is_intervention"][:, :-1], is_replaced[:, :-1])


POLICIES = {"box": "sac", "discrete": "dqn", "dict": "sac"}


def collect(env, space="box", steps=60, **settings):
    config = algorithm_config(POLICIES[space])()
    collector = reverie.Collector(env, config, steps=steps, learning_starts=10**5, **settings)
    for _ in collector:
        pass
    return collector


@pytest.mark.parametrize(
    ("convention", "space", "vector", "envs"),
    [
        *((convention, "box", "sync", 1) for convention in CONVENTIONS if convention != "never"),
        ("gym_hil", "discrete", "sync", 2),
        ("filter", "dict", "sync", 2),
        ("filter", "dict", "async", 2),
    ],
)
def test_the_executed_action_is_stored(convention, space, vector, envs):
    """Vectors of arrays and tensors: ``tests/twin``."""
    make = functools.partial(Helped, convention, space)
    with collect(make, space, envs=envs, **{"env.vectorization": vector}) as collector:
        rows = stored_rows(collector)
    check_rows(rows, space)
    assert ("is_intervention" in rows) == (convention != "filter")


@pytest.mark.parametrize("space", ["box", "discrete"])
def test_rows_that_a_checkpoint_holds_are_settled(space, tmp_path):
    """The newest row of a checkpoint, too: it is saved before the environment has answered."""
    make, config = functools.partial(Helped, "gym_hil", space), algorithm_config(POLICIES[space])()
    for turns in (16, 1, 1, 40):  # one of the three ends with a replaced action
        with reverie.Collector(make, config, steps=100, learning_starts=99, folder=tmp_path) as collector:
            for _ in range(turns):
                collector.collect()
            collector.save()
            rows = stored_rows(collector)
    check_rows(rows, space)


def test_a_checkpoint_counts_the_replaced_actions_of_the_rows_that_it_waits_for():
    env = make_vector_env(EnvConfig(), seed=0, factory=functools.partial(Helped, "filter"))
    collector = EnvCollector(env, Remembering(), Rows())
    counts = []
    for _ in range(9):
        collector.collect()
        counts.append(collector.state_dict()["filtered"][0])
    assert counts == [0, 1, 1, 1, 2, 2, 2, 2, 3]


def test_a_policy_that_remembers_its_action_remembers_the_executed_one():
    env = make_vector_env(EnvConfig(), seed=0, factory=functools.partial(Helped, "filter"))
    policy = Remembering()
    collector = EnvCollector(env, policy, Rows())
    for _ in range(9):
        collector.collect()
    remembered = np.array(policy.remembered)
    is_replaced = np.array([count % 3 == 2 for count in policy.counts])  # the row behind it
    np.testing.assert_allclose(remembered[is_replaced], np.tile(FLAT["box"], (is_replaced.sum(), 1)), atol=1e-6)
    assert not remembered[~is_replaced].any()


class Remembering:
    """A policy of zeros whose state is its last action."""

    def __init__(self):
        self.remembered, self.counts = [], []

    def initial(self, num_envs):
        return torch.zeros(num_envs, 2)

    def act(self, step, state, mode):
        if not step.is_first[0]:
            self.remembered.append(state[0].tolist())
            self.counts.append(int(step.obs["observation"][0, 0]))
        return torch.zeros_like(state), torch.zeros_like(state)

    def override(self, state, action):
        return action

    def extras(self, state):
        return {}


class Rows:
    """A sink that keeps the actions."""

    def __init__(self):
        self.actions, self.is_acted = [], []

    def add(self, step, action, extras):
        self.actions.append(action)
        self.is_acted.append((~step.is_last).tolist())

    def complete(self, step):
        pass

    def correct(self, action, is_takeover):
        self.actions[-1] = action


def test_filters_can_be_a_part_of_the_environment():
    """Not so a person, who does not depend on the policy's action."""
    for convention, is_stored in (("filter", False), ("hil_serl", True)):
        config = EnvConfig(filtered_action="policy")
        env = make_vector_env(config, seed=0, factory=functools.partial(Helped, convention))
        sink = Rows()
        collector = EnvCollector(env, Remembering(), sink)
        for _ in range(9):
            collector.collect()
        assert any(action.any() for action in sink.actions) == is_stored


@pytest.mark.parametrize(
    ("replacement", "message"),
    [
        (np.float32([0, 3.01]), r"beyond the bounds: .*Helped"),
        (np.float32([0, np.nan]), r"nan.*finite"),
        (np.float32([0, 0, 0]), r"'intervene_action'.*shape \(3,\).*outermost wrapper \(.*Helped\)"),
        ("left", r"of type str"),
    ],
)
def test_an_executed_action_that_is_none_is_an_error_with_its_place(replacement, message):
    factory = functools.partial(Helped, "hil_serl", replacement=replacement)
    env = make_vector_env(EnvConfig(restarts=0), seed=0, factory=factory)
    env.reset()
    env.step(torch.zeros(1, 2))
    with pytest.raises(DataError, match=f"(?s)step 2 of episode 1.*{message}"):
        env.step(torch.zeros(1, 2))


def test_rounding_beyond_the_bounds_is_clipped():
    env = make_vector_env(EnvConfig(), seed=0, factory=functools.partial(Helped, replacement=np.float64([-2.0002, 3])))
    env.reset()
    env.step(torch.zeros(1, 2))
    env.step(torch.zeros(1, 2))
    assert env.executed_actions.action.tolist() == [[-1, 1]]


def test_a_flag_without_an_action_is_an_error():
    with pytest.raises(DataError, match="does not say which action"):
        read_replacement({"is_intervention": True})
    assert read_replacement({"is_intervention": False}) is None
    assert read_replacement({"teleop_action": [0.0]}) is None


class Masked(Helped):
    """The class by which actions are replaced is legal only when ``is_legal(count)``."""

    is_legal = staticmethod(lambda count: count % 3 == 1)

    def _mask(self):
        return {"action_mask": np.int8([1, 1, 1, self.is_legal(self.count)])}

    def reset(self, **options):
        return super().reset(**options)[0], self._mask()

    def step(self, action):
        *answer, info = super().step(action)
        return *answer, info | self._mask()


def test_a_class_that_the_mask_forbids_is_an_error(monkeypatch):
    monkeypatch.setattr(Masked, "is_legal", staticmethod(lambda count: False))
    env = make_vector_env(EnvConfig(restarts=0), seed=0, factory=lambda: Masked("filter", "discrete"))
    env.reset()
    env.step(torch.eye(4)[:1])
    with pytest.raises(DataError, match=r"'executed_action'.*mask of its row forbids"):
        env.step(torch.eye(4)[:1])


def test_a_restored_environment_knows_the_mask_of_its_row():
    make = functools.partial(Masked, "filter", "discrete")
    env, other = (make_vector_env(EnvConfig(restarts=0), seed=0, factory=make) for _ in range(2))
    env.reset()
    step = env.step(torch.eye(4)[:1])
    other.reset()
    other.restore(env.snapshot(), step)
    other.step(torch.eye(4)[:1])
    assert other.executed_actions.action.tolist() == [[0, 0, 0, 1]]


@pytest.mark.parametrize("algo", ["ppo", "a2c", "impala"])
def test_on_policy_learners_do_not_learn_from_the_actions_of_a_person(algo):
    """They are in the rows, and no weight depends on them."""
    config = algorithm_config(algo)().merge({"rollout": 20} | ({"batch_size": 20} if algo == "ppo" else {}))
    config = config.merge({"batch_size": 1} if algo == "impala" else {})
    weights, taken = [], []
    for action in ([-2.0, 3.0], [0.5, -1.0]):
        env = functools.partial(Helped, "gym_hil", replacement=np.float32(action))
        with reverie.Collector(env, config, steps=45, seed=1) as collector:
            for batch in collector:
                collector.feedback(batch, collector.algo.update(batch))
            rows, weights = stored_rows(collector), [*weights, [*collector.algo.parameters()]]
        taken.append(rows["action"][rows["is_intervention"]])
    assert (taken[0] != taken[1]).all()
    assert all(map(torch.equal, *weights))


def test_a_wrapper_that_resets_by_itself_is_refused():
    env = gymnasium.Wrapper(Helped("gym_hil"))
    env.auto_reset = True
    with pytest.raises(EnvError, match="auto_reset = True"):
        make_gym(EnvConfig(), lambda: env, False)


def test_on_policy_learners_keep_their_actions_under_a_filter():
    config = algorithm_config("ppo")().merge({"rollout": 20, "batch_size": 20})
    with reverie.Collector(functools.partial(Helped, "filter"), config, steps=20) as collector:
        batch = next(iter(collector))
        assert not torch.isclose(batch.action, torch.tensor(FLAT["box"]), atol=1e-6).all(-1).any()


@pytest.mark.parametrize(
    ("space", "policy", "infos", "executed", "is_takeover"),
    [
        (spaces.Box(-2, 3, (2,)), [1, 1], [{"intervene_action": [-1, 0]}, {}], [0, 0.5], True),
        (spaces.Box(-2, 3, (2,)), [1, 1], [{"executed_action": [-1, 0]}, {"is_intervention": False}], [0, 0.5], False),
        (spaces.Box(0, 5, (1,), int), [1], [{}, {"executed_action": [4]}], [2], False),
        (spaces.Discrete(3), 0, [{"intervene_action": 2}, {}], 0, True),
        (spaces.Discrete(3), 0, [{}, {"executed_action": 2}], 2, False),
    ],
)
def test_a_repeated_action_is_one(space, policy, infos, executed, is_takeover):
    """Numbers are averaged, the last class counts, and a person within is a person, also if the info is reused."""
    shared, told = {}, iter(infos)

    class Scripted(gymnasium.Env):
        observation_space, action_space = spaces.Discrete(2), space

        def step(self, action):
            shared.clear()
            shared.update(next(told) | {"other": 1})
            return 0, 0.0, False, False, shared

    *_, info = ActionRepeat(Scripted(), 2).step(np.asarray(policy))
    assert info["other"] == 1
    assert np.asarray(info["executed_action"]).tolist() == executed
    assert info.get("is_intervention", False) == is_takeover


def test_recorded_episodes_have_the_executed_action(tmp_path):
    small = {"algo.batch_size": 4, "algo.networks.units": (8,), "learning_starts": 10, "replay_ratio": 0.1}
    make = functools.partial(Helped, "hil_serl")
    reverie.train(
        "td3", make, run=tmp_path / "run", steps=20, eval_episodes=0, console=False, tensorboard=False, **small
    )
    agent = reverie.load(tmp_path / "run", env=make)
    episode, _ = record_episode(agent, make(), RecordConfig(episodes=1), np.random.default_rng(0), 0, 5)
    is_replaced = np.isclose(episode["actions"], REPLACED["box"], atol=1e-6).all(1)
    assert is_replaced.tolist() == [False, True, False, False, True]
    assert episode["infos"]["is_intervention"].tolist() == [*is_replaced.tolist(), False]


def test_an_evaluation_says_that_a_person_took_over(said):
    evaluate(make_vector_env(EnvConfig(), seed=0, factory=functools.partial(Helped, "gym_hil")), Remembering(), 1)
    assert any("a person took over in 2 steps" in line for line in said)


class Lucky(Helped):
    """Reports the success of each second episode."""

    def step(self, action):
        *row, info = super().step(action)
        return *row, info | {"is_success": self.count % 10 == 0}


def test_a_policy_of_ones_own_is_scored_as_an_agent(said):
    make = functools.partial(Lucky, "gym_hil")
    scored = reverie.evaluate(make, lambda obs: np.zeros(2, np.float32), 3)
    env = make_vector_env(EnvConfig(), seed=0, factory=make)
    assert scored.metrics() == evaluate(env, Remembering(), 3).metrics()
    assert (scored.info[1], scored.intervention_rate) == ({"success_rate": 1.0}, 5 / 15)
    assert sum("a person took over in 5 steps" in line for line in said) == 2


def test_rates_are_logged_only_where_actions_are_replaced():
    for convention, eval_rate, filtered_rate in (
        ("gym_hil", 2 / 5, None),
        ("filter", None, 3 / 10),
        ("never", None, None),
    ):
        env = make_vector_env(EnvConfig(), seed=0, factory=functools.partial(Helped, convention))
        assert evaluate(env, Remembering(), 1).metrics().get("eval/intervention_rate") == eval_rate
        collector = EnvCollector(env, Remembering(), Rows())
        for _ in range(11):
            collector.collect()
        collector.settle()
        assert collector.pop_action_rates().get("env/filtered_rate") == filtered_rate
        assert not collector.pop_action_rates()


class HelpedLate(Helped):
    """Nobody takes over in the first 17 steps."""

    def step(self, action):
        convention = self.tell
        self.tell = convention if self.count > 17 else CONVENTIONS["never"]
        answer = super().step(action)
        self.tell = convention
        return answer


@pytest.mark.parametrize("num_envs", [1, 2])
def test_tags_of_takeovers_survive_resuming_and_conversions(num_envs, tmp_path):
    """They begin in the middle of the run, at the first takeover."""
    config, rows = algorithm_config("sac")(), []
    for number, turns in enumerate((30, 1, 1, 20)):
        with reverie.Collector(
            functools.partial(HelpedLate, "gym_hil"),
            config,
            steps=200,
            envs=num_envs,
            learning_starts=30,
            folder=tmp_path / "run",
        ) as collector:
            replay = collector.experiment.replay
            if number:
                assert all(np.array_equal(rows[-1][name], x) for name, x in stored_rows(collector).items())
            for _ in range(turns):
                collector.collect()
            collector.save()
            rows.append(stored_rows(collector))
            assert replay.sample().extras["is_intervention"].any()
    is_taken = (rows[-1]["obs/observation"][:, :, 0] % 3 == 1) & ~rows[-1]["is_last"].astype(bool)
    is_taken &= rows[-1]["obs/observation"][:, :, 0] > 17
    np.testing.assert_array_equal(rows[-1]["is_intervention"][:, :-1], is_taken[:, :-1])
    times = set(rows[-1]["obs/observation"][is_taken][:-1].ravel())
    paths = [tmp_path / "run"]
    for to in ("store", "minari", "store"):
        with open_reader(str(paths[-1])) as reader:
            paths.append(write_dataset(reader, str(tmp_path / f"{to}{len(paths)}"), to).path)
    for data in (*paths, (paths[2], record_converted(tmp_path))):
        config = DatasetConfig(path=data)
        recorded = open_recorded(config)
        parts = [*recorded.parts()]
        tagged = np.concatenate([part["obs/observation"][part["is_intervention"]] for part in parts])
        assert times <= set(tagged.ravel())
        dataset = build_dataset(config, recorded, window=collector.algo.window, seed=0)
        assert concat_batches([replay.sample(3), dataset.sample(3)]).extras["is_intervention"].shape == (6, 2)


def record_converted(tmp_path):
    """A Minari dataset of a run without takeovers."""
    with reverie.Collector(
        functools.partial(Helped, "never"),
        algorithm_config("sac")(),
        steps=30,
        learning_starts=10,
        folder=tmp_path / "alone",
    ) as collector:
        for _ in collector:
            pass
        batch = concat_batches([collector.experiment.replay.sample(2)])
        assert "is_intervention" not in batch.extras
    with open_reader(str(tmp_path / "alone")) as reader:
        return write_dataset(reader, str(tmp_path / "untagged"), "minari").path
