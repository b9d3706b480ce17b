"""Off-policy learning from environments on a device: the numbers of the host's path, resumed bit for bit."""

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from safetensors.torch import load_file
from torch import nn

import reverie
from device_vectors import Tensors, TorchCycle, check_rows, jax_env, jax_task, torch_env
from dreamer_configs import OBS, TINY
from dreamer_configs import build as build_dreamer
from reverie.core.bounds import PiecewiseLinear
from reverie.core.columns import row_columns
from reverie.core.errors import ConfigError, DataError, EnvError
from reverie.core.specs import MASK_KEY, ActionPart, ActionSpec
from reverie.core.types import Step, Window
from reverie.experiment import build
from reverie.nn.exploration import ChunkPolicy, EpsilonGreedy, Gaussian, GreedyPolicy, NoisyPolicy, OrnsteinUhlenbeck
from reverie.replay import build as replay_build
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.config import BatchSamplerConfig
from reverie.replay.storage import DeviceStorage, HostStorage
from reverie.run.collect_turns import COUNTED_TURNS, TurnCollector
from reverie.run.episodes import EpisodeCounter
from reverie.run.turn import random_actions_on
from reverie.store.store import ReplayStore

QUIET = {"console": False, "tensorboard": False, "eval_episodes": 0, "threads": 1, "device": "cpu", "env.num": 4,
         "env.vectorization": "native", "schedule.log_every": "1h"}  # fmt: skip
"""What is not logged yet is compared, so that the clock must log nothing."""
SMALL = QUIET | {"learning_starts": 24, "random_steps": 16, "train_freq": 8, "replay_ratio": 0.5,
                 "algo.batch_size": 8, "algo.networks.units": (16,)}  # fmt: skip
RESUMED = SMALL | {"train_freq": 1}  # the end of a run is the end of a period of updates
TINY_V3 = {f"algo.{name}": value for name, value in TINY.items()}
DREAMER = QUIET | TINY_V3 | {"env.num": 64, "learning_starts": 64, "random_steps": 64, "replay_ratio": 3 / 256}
STACKED = {"algo.frame_stack": 3, "algo.frame_stack_keys": ".*"}


def cartpole():
    return gymnasium.make("CartPole-v1", max_episode_steps=12)


def pendulum():
    return gymnasium.make("Pendulum-v1", max_episode_steps=12)


def host_vector(kind, num_envs):
    return SyncVectorEnv([kind] * num_envs)


def device_vector(kind, num_envs):
    return Tensors(host_vector(kind, num_envs))


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
    sums = [(x["collector/unlogged/score"] * x["collector/unlogged/count"]).sum().item() for x in (a, b)]
    assert sums[0] == pytest.approx(sums[1])


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("dqn", cartpole, SMALL | STACKED | {"replay.fractions.priority": 1.0}),
        ("dreamer_v3", cartpole, DREAMER | {"env.num": 4, "learning_starts": 40, "replay_ratio": 1 / 16}),
    ],
)
def test_weights_are_those_of_the_path_on_the_host(name, kind, settings, tmp_path):
    run = functools.partial(reverie.train, name, steps=160, **settings)
    device = run(env=functools.partial(device_vector, kind), run=tmp_path / "a")
    host = run(env=functools.partial(host_vector, kind), run=tmp_path / "b")
    assert (host.env_steps, host.updates) == (device.env_steps, device.updates)
    assert host.updates >= 3
    host, device = tensors(host.run), tensors(device.run)
    learned = [key for key in host if key.startswith("algo/")]
    assert [key for key in learned if not torch.equal(device[key], host[key])] == []


class Greedy:
    """Takes the first action."""

    def initial(self, num_envs):
        return ()

    def act(self, step, state, mode):
        return torch.eye(2)[[0] * len(step)], state

    def override(self, state, action):
        return state

    def extras(self, state):
        return {}


def collector_of(env, late, capacity=400, on_device=True, **options):
    columns, window = row_columns(env.obs_spec, env.action_spec, {}), Window(batch=4, length=2)
    storage = DeviceStorage(columns, env.num_envs, capacity, env.device) if on_device else None
    storage = storage or HostStorage(columns, env.num_envs, capacity)
    replay = ReplayBuffer(storage, window, seed=0, config=BatchSamplerConfig())
    return TurnCollector(env, Greedy(), replay, seed=3, late=late, **options)


@pytest.mark.parametrize("on_device", [True, False])
def test_rows_are_exact_and_the_newest_is_offered_one_turn_late(on_device):
    late, prompt = (collector_of(torch_env(16), late, on_device=on_device, random_steps=900) for late in (True, False))
    for turn in range(100):
        steps = [late.collect(), prompt.collect()]
        assert (late.sink.count, prompt.sink.count) == (turn, turn + 1)
        assert late.env_steps + steps[1] == prompt.env_steps or turn == 0
    rows = late.sink.storage.read(0, 99)
    for name, values in prompt.sink.storage.read(0, 99).items():
        assert (values == rows[name]).all(), name
    rows = {name.replace("obs/observation", "obs"): torch.tensor(x).transpose(0, 1) for name, x in rows.items()}
    assert (rows["is_last"].sum(1) > 1).any()  # streams that end in the same turn
    rows["action"][rows["is_last"]] = torch.eye(2)[0]
    check_rows(rows)
    firsts = rows["is_first"].sum(0)
    assert len(late.sink) == int((98 - (firsts - 1)).sum())  # windows of two rows of one episode


def test_scores_are_those_counted_row_by_row():
    pytest.importorskip("jax")
    collector, env = collector_of(jax_env(16), True), jax_env(16)
    counter, step, ended = EpisodeCounter(16), env.reset(3), []
    for turn in range(COUNTED_TURNS + 7):
        collector.collect()
        step = env.step(torch.eye(2)[[0] * 16])
        ended += counter.totals[:, counter.add(step, step.reward.double().numpy())].T.tolist()
        if turn == COUNTED_TURNS // 2:  # resumed
            state = collector.state_dict()
            collector = collector_of(jax_env(16), True)
            collector.load_state_dict(state)
        if turn == COUNTED_TURNS - 2:
            assert not collector.pop_episodes()  # nothing was read
    means = collector.pop_episodes(at_the_end=True)
    assert max(x.longest for x in means) == max(length for _, length in ended)
    assert sum(map(len, means)) == len(ended)
    assert sum(x.count * x.score for x in means) == pytest.approx(sum(score for score, _ in ended), rel=1e-14)


def test_successes_are_counted_though_resets_do_not_tell_them():
    def spoil(answer):
        answer[4] = {"success": answer[2].clone()}
        return answer

    collector = collector_of(torch_env(16, spoil=spoil), False)
    for _ in range(100):
        collector.collect()
    means = collector.pop_episodes(at_the_end=True)
    rows = collector.sink.storage.read(0, 100)
    last, terminal = rows["is_last"][:, 1:], rows["is_terminal"][:, 1:]
    episodes = sum(map(len, means))
    assert episodes == last.sum() + int(collector.step.is_last.sum())
    reached = sum(x.count * x.info["success_rate"] for x in means)
    assert reached == pytest.approx(terminal.sum() + int(collector.step.is_terminal.sum()))


def test_rewards_that_are_not_finite_are_named():
    def spoil(answer):
        answer[1][2] = torch.nan
        return answer

    collector = collector_of(torch_env(4, spoil=spoil), False)
    for _ in range(COUNTED_TURNS - 1):
        collector.collect()
    with pytest.raises(DataError, match="reward"):
        collector.collect()


def failing_step(action):
    raise OSError("lost")


def read_store(path):
    """All rows of the only history of a store, as bytes by column."""
    store = ReplayStore(path)
    [parts] = store.histories()
    chunks = [chunk for segment, start, stop in parts for chunk in store.read(segment, start, stop)]
    return {name: np.concatenate([chunk.rows[name] for chunk in chunks], 1).tobytes() for name in chunks[0].rows}


class Watcher:
    rows = 0

    def update_statistics(self, step):
        self.rows += 1


@pytest.mark.parametrize("is_stored", [True, False])
def test_an_error_ends_the_episodes_in_the_replay_and_in_its_store(is_stored, tmp_path):
    watcher, store = Watcher(), ReplayStore(tmp_path / "store")
    collector = collector_of(torch_env(4, chances=(0.0, 0.0)), True, running_statistics=watcher)
    replay, vector, step = collector.sink, collector.env.vector.vector, TorchCycle.step
    store.begin(replay.storage.specs, 4)
    replay.store_turns = 2
    replay.attach(store)
    for _ in range(3):
        collector.collect()
    vector.step = failing_step
    with pytest.raises(EnvError, match="lost"):
        collector.collect()
    assert "environments" not in collector.state_dict()
    vector.step = functools.partial(step, vector)
    collector.collect()
    if is_stored:
        replay.store_rows()
    collector.collect()
    assert watcher.rows == 6
    rows = collector.sink.storage.read(0, 5)
    assert rows["is_last"].T.tolist() == [[False] * 4] * 3 + [[True] * 4, [False] * 4]
    assert rows["is_first"].T.tolist() == [[True] * 4] + [[False] * 4] * 3 + [[True] * 4]
    replay.store_rows()
    store.close()
    assert read_store(tmp_path / "store")["is_last"] == rows["is_last"].tobytes()


@pytest.fixture
def like_a_gpu(monkeypatch):
    """Rows in ``DeviceStorage``, added one turn late, and given to a store in blocks."""
    monkeypatch.setattr(build, "TurnCollector", functools.partial(TurnCollector, late=True))
    monkeypatch.setattr(build, "STORED_TURNS", 8)

    def storage_on(device, *args):
        return DeviceStorage(*args, torch.device(device))

    monkeypatch.setattr(replay_build, "storage_on", storage_on)


def jax_cycles(num_envs):
    pytest.importorskip("jax")
    from reverie.envs.jax_vector import JaxVector

    return JaxVector(jax_task(), num_envs)


@pytest.mark.parametrize("store", ["auto", "rows"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [("dqn", RESUMED | {"replay.capacity": 40}), ("dreamer_v3", DREAMER | {"replay.capacity": 640})],
)
def test_runs_resume_bit_for_bit(name, settings, store, tmp_path, like_a_gpu):
    """After the replay has dropped rows; DreamerV3 with 64 streams."""
    path = {} if store == "auto" else {"replay.store_path": str(tmp_path / store)}
    steps = 200 if name == "dqn" else 1000
    run = functools.partial(reverie.train, name, env=jax_cycles, **settings)
    whole = run(run=tmp_path / "whole", steps=steps, **{key: f"{x}2" for key, x in path.items()})
    run(run=tmp_path / "cut", steps=steps // 2 + 3, **path)
    cut = run(run=tmp_path / "cut", steps=steps, **path)
    assert cut.updates == whole.updates >= 3
    assert_same(cut.run, whole.run)
    assert any((newest(cut.run) / "replay" / "rows").glob("*")) == (store == "auto")
    if store == "rows":
        assert read_store(tmp_path / "rows") == read_store(tmp_path / "rows2")


def test_runs_resume_with_rows_on_the_cpu_or_without_them(tmp_path, capsys):
    run = functools.partial(reverie.train, "dqn", env=jax_cycles, **RESUMED)
    whole = run(run=tmp_path / "whole", steps=200)
    for name in ("cut", "empty"):
        run(run=tmp_path / name, steps=103, **{"replay.save": name == "cut"})
    assert run(run=tmp_path / "cut", steps=200).updates == whole.updates
    assert_same(tmp_path / "cut", whole.run)
    capsys.readouterr()
    empty = run(run=tmp_path / "empty", steps=200, **{"replay.save": False})
    assert "the replay buffer starts empty" in capsys.readouterr().err
    assert not (newest(empty.run) / "replay" / "rows").exists()


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
    assert random_actions_on(torch.device("meta"), spec, 4, legal[:4].to("meta")).shape == (4, 6)


@pytest.mark.parametrize(
    ("name", "own", "message"),
    [
        ("dqn", {"replay.hindsight": "future"}, "hindsight"),
        ("dqn", {"replay.device": "cuda"}, "cuda"),
        ("dqn", {"actors": 2, "algo.reward_scale": None}, r"actors = 2\. This is not supported"),
        ("impala", {}, "queue"),
    ],
)
def test_what_is_not_supported_is_one_error(name, own, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        reverie.train(name, env=TorchCycle, run=tmp_path / "run", steps=200, **QUIET | own)
