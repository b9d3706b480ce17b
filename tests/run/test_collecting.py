"""Collectors: rows hold what was seen, what was then done and what the policy held in mind, on each way to a replay."""

import functools
import json
import math
import subprocess
import sys
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

import reverie
import roads
from device_vectors import Tensors, TorchCycle, jax_task
from dreamer_configs import OBS, TINY
from dreamer_configs import build as build_dreamer
from finished_episodes import as_rows, episodes
from reverie.core.bounds import PiecewiseLinear
from reverie.core.clock import Clock
from reverie.core.columns import ColumnSpec
from reverie.core.errors import ConfigError, DataError, RunError
from reverie.core.specs import MASK_KEY, ActionPart, ActionSpec
from reverie.core.types import Step
from reverie.experiment import build
from reverie.nn.exploration import ChunkPolicy, EpsilonGreedy, Gaussian, GreedyPolicy, NoisyPolicy, OrnsteinUhlenbeck
from reverie.replay import build as replay_build
from reverie.replay.storage import DeviceStorage
from reverie.run.episodes import EpisodeCounter, join_episodes
from reverie.run.turn import random_actions_on
from reverie.store.store import ReplayStore
from roads import NUM, WRONG
from story_env import reward_at

pytestmark = pytest.mark.usefixtures("warm")

WAYS = {
    "slots": ("slots", {}), "arrays": ("arrays_next", {}), "tensors": ("torch_next", {}),
    "late": ("torch_next", {"late": True}), "rollouts": ("torch_next", {"turns": 5}), "jax": ("jax", {}),
    "jax late": ("jax", {"late": True}), "jax rollouts": ("jax", {"turns": 5}),
}  # fmt: skip
"""The environments' road, and how their rows are collected: ``late``, as on a GPU, or in whole rollouts."""
STORIES = [*WAYS][:5]
AGE = {"age": ColumnSpec((), "float32")}
DEVICE = ("tensors", "late", "rollouts")
EXCEPT = roads.cases(
    ("31 policy, 31 sink, 31 env", DEVICE, WRONG, "an error ends the episodes of a device, and drops a rollout"),
    ("29 resumed", ("arrays",), WRONG, "vectors begin new episodes"),
)


def each(name, ways=STORIES):
    """Test on these ways."""
    return pytest.mark.parametrize("way", [pytest.param(x, marks=roads.marks(EXCEPT, name, x)) for x in ways])


class Policy:
    """Acts by the first legal class and a push that tells the turn. Its state is the age of the row, and its action."""

    def __init__(self):
        self.seen, self.told = [], []

    def initial(self, num_envs):
        return torch.zeros(num_envs), torch.zeros(num_envs, 5)

    def act(self, step, state, mode):
        self.seen.append(step.obs["key"][:, :3].tolist())
        self.told.append(state[1].masked_fill(step.is_first[:, None], 0.0))
        age = (state[0] + 1).masked_fill(step.is_first, 0.0)
        choice = torch.eye(4)[step.obs["action_mask"][:, :4].int().argmax(1)]
        action = torch.cat([choice, step.obs["key"][:, 2:3] / 8], 1)
        return action, (age, action)

    def override(self, state, action):
        return state[0], action

    def extras(self, state):
        return {"age": state[0]}


class Still(Policy):
    """Has no extras."""

    def extras(self, state):
        return {}


class Watcher:
    """Statistics that remember the rows that they are shown, before the policy."""

    def __init__(self):
        self.seen = []

    def update_statistics(self, step):
        self.seen.append(step.obs["key"][:, :3].tolist())


@pytest.fixture
def make(way):
    """Make a collector of the test's way; ``options``: of the stories. ``config``: of the collector."""
    made, (road, how) = [], WAYS[way]

    def make(policy=None, config=None, **options):
        made.append(roads.open_env(road, **options))
        extras = None if isinstance(policy, Still) else AGE
        return roads.collector_of(made[-1], policy or Policy(), extras=extras, seed=0, **how, **(config or {}))

    yield make
    for env in made:
        env.close()


def collect(collector, turns):
    """Collect at least this many turns; return the env steps, and the rows ``[N, T, ...]`` by column."""
    size = collector.rollout or 1
    steps, parts = 0, []
    for _ in range(-(-turns // size)):
        steps += collector.collect()
        if size > 1:
            rows = {name: x[:-1].transpose(0, 1).numpy().copy() for name, x in collector.sink.columns.items()}
            parts.append(rows)
    if size > 1:
        return steps, {name: np.concatenate([part[name] for part in parts], 1) for name in parts[0]}
    return steps, roads.stored_rows(collector)


def sums(collector):
    """Return the totals of the episodes so far."""
    return roads.totals(collector.pop_episodes(at_the_end=True))


@each("rows")
@pytest.mark.parametrize("random", [0, 20])
def test_rows_are_what_was_seen_done_and_in_mind(make, way, random):
    """Random actions, too, are executed, stored and told to the policy, and each row is watched once."""
    policy, watcher = Policy(), Watcher()
    collector = make(policy, {"random_steps": random, "running_statistics": watcher})
    steps, rows = collect(collector, 40)
    count, last, first = rows["is_last"].shape[1], rows["is_last"], rows["is_first"]
    assert count == 40 - (way == "late")
    assert steps == collector.env_steps == (~last).sum()
    assert policy.seen == watcher.seen
    assert [rows["obs/key"][:, t, :3].tolist() for t in range(count)] == policy.seen[:count]
    assert not rows["action"][last].any()
    key, action, told = rows["obs/key"], rows["action"], torch.stack(policy.told, 1).numpy()
    went_on = ~first[:, 1:]
    np.testing.assert_array_equal(action[:, :-1, :4].argmax(2)[went_on] + 1, key[:, 1:, 3][went_on])
    np.testing.assert_allclose(action[:, :-1, 4][went_on] * 2, key[:, 1:, 4][went_on])
    np.testing.assert_array_equal(told[:, 1:count][went_on], action[:, :-1][went_on])
    np.testing.assert_array_equal(rows["extras/age"], key[:, :, 2])
    is_random = ~last & (action[:, :, 4] != key[:, :, 2] / 8)
    assert not (action[:, :, :4] > rows["obs/action_mask"][:, :, :4]).any()
    assert is_random.sum() == pytest.approx(random, abs=NUM * (9 if way == "rollouts" else 2))


@each("16 counted")
def test_episodes_are_counted_once(make, way):
    """As those of arrays, however often they are asked for, and with those that end with the current rows."""
    often, seldom, totals = make(), make(), []
    for _ in range(8 if way == "rollouts" else 40):
        often.collect(), seldom.collect()
        totals.append(sums(often))
    assert sum(total[0] > 0 for total in totals) > 5
    right = roads.collector_of(roads.open_env("arrays_next"), Policy(), extras=AGE)
    collect(right, 40)
    parts, right_parts = seldom.pop_episodes(at_the_end=True), right.pop_episodes(at_the_end=True)
    assert np.sum(totals, 0) == pytest.approx(roads.totals(parts), rel=1e-9)
    assert roads.totals(parts) == pytest.approx(roads.totals(right_parts), rel=1e-6)
    assert max(part.longest.max() for part in parts) == max(part.longest.max() for part in right_parts)


def only_where_episodes_end(answer):
    ends = (answer[2] | answer[3]).any()
    return answer if ends else [*answer[:4], {}]


@each("10 success", ["arrays", *DEVICE])
def test_successes_that_only_ends_of_episodes_tell_are_counted(make):
    one, other = make(), make(spoil=only_where_episodes_end)
    collect(one, 40), collect(other, 40)
    assert sums(one) == pytest.approx(sums(other))


@each("13 exact")
def test_scores_are_sums_of_rewards_before_they_were_rounded(make):
    collector = make(lengths=((3,),))
    collect(collector, 30)
    count, score, *_ = sums(collector)
    assert score == pytest.approx(count * sum(map(reward_at, range(1, 4))), rel=1e-12)


@each("14 finite")
def test_a_reward_that_is_not_finite_is_named_before_it_is_learned_from(make):
    with pytest.raises(DataError, match="reward"):
        collect(make(bad_reward=math.nan), 40)


class Fails:
    """Does once, in the third turn, what ends a turn."""

    def __init__(self, owner, name, error):
        self.calls, self.function, self.error = 0, getattr(owner, name), error
        setattr(owner, name, self)

    def __call__(self, *args):
        self.calls += 1
        if self.calls == 3:
            raise self.error
        return self.function(*args)


def broken(collector, stage):
    if stage == "env":
        return Fails(collector.env, "send", KeyboardInterrupt())
    return Fails(*{"policy": (collector.policy, "act"), "sink": (collector.sink, "add")}[stage], RunError("broken"))


@pytest.mark.parametrize(
    ("stage", "way"),
    [pytest.param(stage, way, marks=roads.marks(EXCEPT, f"31 {stage}", way))
     for stage in ("policy", "sink", "env") for way in STORIES],
)  # fmt: skip
def test_a_turn_that_an_error_ends_is_completed_by_the_next(make, stage, way):
    """Each row is watched, acted on, stored and counted once."""
    watchers = [Watcher(), Watcher()]
    one, other = (make(config={"running_statistics": watcher}) for watcher in watchers)
    broken(one, stage)
    with pytest.raises((RunError, KeyboardInterrupt)):
        collect(one, 20)
    (_, found), (_, right) = collect(one, 18), collect(other, 20)
    assert watchers[0].seen == watchers[1].seen
    assert one.env_steps == other.env_steps
    for name, values in right.items():
        np.testing.assert_array_equal(found[name], values)
    assert sums(one) == sums(other)


RESUMED = [("", way) for way in WAYS if way not in DEVICE] + [("policy", "slots"), ("sink", "slots")]


@pytest.mark.parametrize(
    ("stage", "way"), [pytest.param(*case, marks=roads.marks(EXCEPT, "29 resumed", case[1])) for case in RESUMED]
)
def test_episodes_go_on_in_a_resumed_run(make, stage, way, tmp_path):
    """Also in one that an error has ended: rows and counters are those of an undisturbed run."""
    config = {"random_steps": 60} if way == "slots" else {}  # on devices, PyTorch's generator draws
    whole, cut, other = (make(config=config) for _ in range(3))
    (_, right), (_, found) = collect(whole, 30), collect(cut, 15)
    if stage:
        broken(cut, stage)
        with pytest.raises(RunError):
            collect(cut, 15)
        found = roads.stored_rows(cut)
    before = roads.totals(cut.pop_episodes(at_the_end=way == "slots" and not stage))
    state = cut.state_dict()
    cut.save_files(tmp_path)
    other.load_state_dict(state)
    other.load_files(tmp_path)
    _, more = collect(other, 30 - 17 if stage else 15)
    for name, values in right.items():
        np.testing.assert_array_equal(np.concatenate([found[name], more[name]], 1), values)
    assert np.sum([before, roads.totals(other.unlogged_episodes), sums(other)], 0) == pytest.approx(
        sums(whole), rel=1e-12
    )
    assert other.env_steps == whole.env_steps


@each("29 partly", ["slots"])
def test_an_episode_that_cannot_be_resumed_ends(make):
    one, other = (make(lengths=((9,), (5,), (3,))) for _ in range(2))
    for _ in range(3):
        one.collect()
    assert sums(one) == [1, pytest.approx(sum(map(reward_at, (1, 2, 3)))), 3, 0]
    state, snapshots = one.state_dict(), one.snapshots()
    other.load_state_dict(state)
    assert other.resume(state, [snapshots[0], None, snapshots[2]]) == 1
    assert other.step.is_last.tolist() == [False, True, True]
    assert sums(other) == [1, pytest.approx(sum(map(reward_at, (1, 2, 3)))), 3, 0]
    other.collect()
    assert not sums(other)[0]


@each("another number")
def test_with_another_number_of_environments_new_episodes_begin(make):
    one, other = make(num=2), make()
    collect(one, 20)
    other.load_state_dict(one.state_dict())
    assert other.env_steps == one.env_steps > 20
    _, rows = collect(other, 20)
    assert rows["is_first"][:, 0].all()
    assert other.env_steps - one.env_steps == (~rows["is_last"]).sum()


def read_store(path):
    """All rows of the only history of a store, as bytes by column."""
    store = ReplayStore(path)
    [parts] = store.histories()
    chunks = [chunk for segment, start, stop in parts for chunk in store.read(segment, start, stop)]
    return {name: np.concatenate([chunk.rows[name] for chunk in chunks], 1).tobytes() for name in chunks[0].rows}


@each("31 ends", ["late"])
@pytest.mark.parametrize("is_stored", [True, False])
def test_an_error_ends_the_episodes_in_the_replay_and_in_its_store(make, is_stored, tmp_path):
    watcher, store = Watcher(), ReplayStore(tmp_path / "store")
    collector = make(Still(), {"running_statistics": watcher}, lengths=((9,),))
    replay = collector.sink
    store.begin(replay.storage.specs, NUM)
    replay.store_turns = 2
    replay.attach(store)
    collector.collect()
    broken(collector, "env")
    with pytest.raises(KeyboardInterrupt):
        collect(collector, 3)
    collector.collect()
    if is_stored:
        replay.store_rows()
    collector.collect()
    assert len(watcher.seen) == 6
    rows = roads.stored_rows(collector)
    assert rows["is_last"].T.tolist() == [[False] * NUM] * 3 + [[True] * NUM, [False] * NUM]
    assert rows["is_first"].T.tolist() == [[True] * NUM] + [[False] * NUM] * 3 + [[True] * NUM]
    replay.store_rows()
    store.close()
    assert read_store(tmp_path / "store")["is_last"] == rows["is_last"].tobytes()


@each("31 dropped", ["rollouts"])
def test_a_rollout_that_an_error_ends_is_dropped(make):
    collector = make(lengths=((9,),))
    broken(collector, "env")
    with pytest.raises(KeyboardInterrupt):
        collector.collect()
    _, rows = collect(collector, 5)
    assert rows["is_first"][:, 0].all()


@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=7),
    ratio=st.sampled_from([0.125, 0.3, 0.5, 1.0, 1.5]),
)
def test_replay_ratio_holds_for_any_number_of_envs(lengths, ratio):
    env = roads.open_env("slots", num=len(lengths), lengths=lengths)
    collector, clock, updates, base = roads.collector_of(env, Still()), Clock(length=10**6, replay_ratio=ratio), 0, None
    for _ in range(40):
        clock.env_steps += collector.collect()
        base = clock.env_steps if base is None else base
        updates += clock.updates_due(windows=1)
        assert updates == int(ratio * (clock.env_steps - base) + 1e-9)
    assert clock.env_steps == (~roads.stored_rows(collector)["is_last"]).sum()


def test_episodes_of_a_single_row_are_no_episodes():
    """An environment that is down shows them."""
    counter, on, off = EpisodeCounter(2), torch.tensor([True, True]), torch.tensor([False, False])
    shown = Step(obs={}, reward=torch.zeros(2), is_first=on, is_last=off, is_terminal=off)
    assert not counter.add(shown, np.array([0.0, 0.0])).size
    over = replace(shown, is_first=torch.tensor([True, False]), is_last=on)
    assert counter.add(over, np.array([0.0, 2.0])).tolist() == [1]
    assert counter.totals[:, 1].tolist() == [2.0, 1.0]


def test_means_are_over_the_episodes_that_have_a_value():
    one, two = episodes((1.0, 2, {"cost": 3.0}), (2.0, 4, {})), episodes((6.0, 3, {"cost": 5.0, "rare": 7.0}))
    means = {"score": 3.0, "length": 3.0, "cost": 4.0, "rare": 7.0}
    assert join_episodes([one, two]).means() == {f"episode/{name}": value for name, value in means.items()}
    assert as_rows([one, two])[1:] == [(2.0, 4), (6.0, 3, {"cost": 5.0, "rare": 7.0})]


# Runs: the numbers of the host's path, resumed bit for bit


QUIET = {"console": False, "tensorboard": False, "eval_episodes": 0, "threads": 1, "device": "cpu", "env.num": 4,
         "env.vectorization": "native", "schedule.log_every": "1h"}  # fmt: skip
"""What is not logged yet is compared, so that the clock must log nothing."""
PPO = QUIET | {"algo.rollout": 16, "algo.networks.units": (16,), "algo.batch_size": 32, "algo.epochs": 2}
DQN = QUIET | {"learning_starts": 24, "random_steps": 16, "train_freq": 1, "replay_ratio": 0.5,
               "algo.batch_size": 8, "algo.networks.units": (16,)}  # fmt: skip
"""The end of a run is the end of a period of updates."""
TINY_V3 = {f"algo.{name}": value for name, value in TINY.items()}
DREAMER = QUIET | TINY_V3 | {"env.num": 64, "learning_starts": 64, "random_steps": 64, "replay_ratio": 3 / 256}
STACKED = {"algo.frame_stack": 3, "algo.frame_stack_keys": ".*"}
SCALED = {"algo.normalize_obs": "running", "algo.reward_scale": "return_std"}


def cartpoles(num_envs):
    return SyncVectorEnv([functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=12)] * num_envs)


def newest(run):
    return max((run / "checkpoints").glob("step-*"))


def tensors(run):
    return load_file(newest(run) / "tensors.safetensors")


def assert_same(run, other):
    """Everything but the global generator of NumPy, from which imports draw, and the groups of scores."""
    a, b = tensors(run), tensors(other)
    assert a.keys() == b.keys()
    differing = {key for key, x in a.items() if not torch.equal(x, b[key])} - {"random/numpy/state/key"}
    assert not {key for key in differing if "collector/unlogged" not in key}
    scores = [(x["collector/unlogged/score"] * x["collector/unlogged/count"]).sum().item() for x in (a, b)]
    assert scores[0] == pytest.approx(scores[1])


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("ppo", PPO | STACKED | SCALED),
        ("dqn", DQN | STACKED | {"train_freq": 8, "replay.fractions.priority": 1.0}),
        ("dreamer_v3", DREAMER | {"env.num": 4, "learning_starts": 40, "replay_ratio": 1 / 16}),
    ],
)
def test_weights_and_statistics_are_those_of_the_path_on_the_host(name, own, tmp_path):
    steps = 300 if name == "ppo" else 160
    device = reverie.train(name, lambda num_envs: Tensors(cartpoles(num_envs)), run=tmp_path / "a", steps=steps, **own)
    host = reverie.train(name, cartpoles, run=tmp_path / "b", steps=device.env_steps, **own)  # of whole rollouts
    assert (host.env_steps, host.updates) == (device.env_steps, device.updates)
    assert host.updates >= 3
    host, device = tensors(host.run), tensors(device.run)
    learned = [key for key in host if key.startswith("algo/")]
    assert learned
    exact = {"rtol": 1e-5, "atol": 1e-6} if name == "ppo" else {"rtol": 0, "atol": 0}
    for key in learned:
        torch.testing.assert_close(device[key], host[key], **exact)


@pytest.fixture
def like_a_gpu(monkeypatch):
    """Rows in ``DeviceStorage``, added one turn late, and given to a store in blocks."""
    monkeypatch.setattr(build, "EnvCollector", functools.partial(build.EnvCollector, late=True))
    monkeypatch.setattr(build, "STORED_TURNS", 8)

    def storage_on(device, *args):
        return DeviceStorage(*args, torch.device(device))

    monkeypatch.setattr(replay_build, "storage_on", storage_on)


def jax_cycles(num_envs):
    from reverie.envs.jax_vector import JaxVector

    return JaxVector(jax_task(), num_envs)


@pytest.mark.parametrize("store", ["auto", "rows"])
@pytest.mark.parametrize(
    ("name", "own"), [("dqn", DQN | {"replay.capacity": 40}), ("dreamer_v3", DREAMER | {"replay.capacity": 640})]
)
def test_runs_resume_bit_for_bit(name, own, store, tmp_path, like_a_gpu):
    """After the replay has dropped rows; DreamerV3 with 64 streams."""
    pytest.importorskip("jax")
    path = {} if store == "auto" else {"replay.store_path": str(tmp_path / store)}
    steps = 200 if name == "dqn" else 1000
    run = functools.partial(reverie.train, name, env=jax_cycles, **own)
    whole = run(run=tmp_path / "whole", steps=steps, **{key: f"{x}2" for key, x in path.items()})
    run(run=tmp_path / "cut", steps=steps // 2 + 3, **path)
    cut = run(run=tmp_path / "cut", steps=steps, **path)
    assert cut.updates == whole.updates >= 3
    assert_same(cut.run, whole.run)
    assert any((newest(cut.run) / "replay" / "rows").glob("*")) == (store == "auto")
    if store == "rows":
        assert read_store(tmp_path / "rows") == read_store(tmp_path / "rows2")


def test_a_run_on_a_device_that_stops_early_loses_no_episode(tmp_path):
    options = DQN | {"eval_episodes": 1, "schedule.eval_every": 20, "stop_score": -1e9}
    run = reverie.train("dqn", env=TorchCycle, run=tmp_path / "run", steps=200, **options)
    lines = (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    assert run.env_steps < 100
    assert 0.5 * run.env_steps < sum(json.loads(line)["length"] for line in lines) <= run.env_steps


def test_runs_resume_with_rows_on_the_cpu_or_without_them(tmp_path, capsys):
    pytest.importorskip("jax")
    run = functools.partial(reverie.train, "dqn", env=jax_cycles, **DQN)
    whole = run(run=tmp_path / "whole", steps=200)
    for name in ("cut", "empty"):
        run(run=tmp_path / name, steps=103, **{"replay.save": name == "cut"})
    assert run(run=tmp_path / "cut", steps=200).updates == whole.updates
    assert_same(tmp_path / "cut", whole.run)
    capsys.readouterr()
    empty = run(run=tmp_path / "empty", steps=200, **{"replay.save": False})
    assert "the replay buffer starts empty" in capsys.readouterr().err
    assert not (newest(empty.run) / "replay" / "rows").exists()


CYCLE = "import device_vectors, reverie; from reverie.envs.jax_vector import JaxVector\n"
CYCLE += "make = lambda num_envs: JaxVector(device_vectors.jax_task(), num_envs)\n"


@pytest.mark.parametrize("other", ["resumed", pytest.param("in another process", marks=pytest.mark.nightly)])
def test_rollouts_resume_bit_for_bit_and_are_the_same_in_another_process(other, tmp_path, monkeypatch):
    pytest.importorskip("jax")
    (tmp_path / "jax_cycles.py").write_text(CYCLE)
    monkeypatch.syspath_prepend(tmp_path)
    steps = int(3 * 4 * 16 * 0.75)  # some rows have no action
    run = functools.partial(reverie.train, "ppo", "jax_cycles:make", **PPO)
    whole = run(run=tmp_path / "whole", steps=steps)
    if other == "resumed":
        run(run=tmp_path / "other", steps=64)
        assert run(run=tmp_path / "other", steps=steps).updates == whole.updates
    else:
        code = f"import reverie, sys; sys.path[:0] = {sys.path}\n"
        code += f"reverie.train('ppo', 'jax_cycles:make', run='other', steps={steps}, **{PPO})"
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert_same(whole.run, tmp_path / "other")


META = torch.device("meta")
NO = torch.zeros(5, dtype=torch.bool, device=META)


class Column(nn.Module):
    def forward(self, obs):
        return obs["state"]


@pytest.mark.parametrize(
    "policy",
    [
        NoisyPolicy(Column(), Gaussian(0.1, 0.2, 100), 2, META),
        NoisyPolicy(Column(), OrnsteinUhlenbeck(), 2, META),
        GreedyPolicy(Column(), EpsilonGreedy(PiecewiseLinear(((0, 1.0), (100, 0.1)))), (2,), META),
        ChunkPolicy(lambda obs, noise: torch.zeros(5, 8, device=META), 4, 2, META),
        build_dreamer("continuous", device="meta").policy,
    ],
)
def test_policies_never_read_from_the_device(policy):
    """Numbers of PyTorch's device without memory cannot be read."""
    state = policy.initial(5)
    obs = {key: torch.zeros(5, *part.shape, dtype=getattr(torch, part.dtype), device=META) for key, part in OBS.items()}
    if not hasattr(policy, "learner"):
        obs[MASK_KEY] = ~NO[:, None].expand(5, 2)
    step = Step(obs=obs, reward=NO.float(), is_first=NO, is_last=NO, is_terminal=NO)
    for _ in range(2):
        state = policy.advance_schedule(state, 7) if hasattr(policy, "advance_schedule") else state
        action, state = policy.act(step, state, "explore")
        policy.extras(state)
        assert (action.device.type, action.shape) == ("meta", (5, 2))


def test_random_actions_on_a_device_are_legal():
    parts = {"a": ActionPart(kind="categorical", classes=(3, 2)), "b": ActionPart(kind="continuous", size=1)}
    spec = ActionSpec(parts=parts)
    legal = torch.ones(400, 6, dtype=torch.bool)
    legal[:, 1] = False
    action = random_actions_on(torch.device("cpu"), spec, 400, legal)
    assert action[:, :3].sum(0).gt(100).tolist() == [True, False, True]
    assert action[:, 1].sum() == 0
    assert (action[:, :3].sum(1) == 1).all()
    assert (action[:, 3:5].sum(1) == 1).all()
    assert action[:, 5].min() < -0.9
    assert action[:, 5].max() > 0.9
    assert random_actions_on(META, spec, 4, legal[:4].to("meta")).shape == (4, 6)


@pytest.mark.parametrize(
    ("name", "own", "message"),
    [
        ("ppo", PPO | {"replay.store_path": "rows"}, "store_path"),
        ("ppo", PPO | {"log_episodes": True}, "log_episodes"),
        ("ppo", PPO | {"algo.batch_size": 48}, "batch_size"),
        ("dqn", {"replay.hindsight": "future"}, "hindsight"),
        ("dqn", {"replay.device": "cuda"}, "cuda"),
        ("dqn", {"actors": 2, "algo.reward_scale": None}, r"actors = 2\. This is not supported"),
        ("impala", {}, "queue"),
    ],
)
def test_what_is_not_supported_is_one_error(name, own, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        reverie.train(name, env=TorchCycle, run=tmp_path / "run", steps=200, **QUIET | own)
