"""The replay against a plain Python list of everything that was ever added."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lived import ACTION, EXTRA, OBS, Lived

from reverie.core.columns import columns_of
from reverie.core.errors import ConfigError, DataError, RunError
from reverie.core.specs import ExtraPart
from reverie.core.types import Step, Update, Window
from reverie.replay.config import ReplayConfig
from reverie.replay.device import DeviceStorage
from reverie.replay.replay import Replay
from reverie.replay.storage import HostStorage

KINDS = pytest.mark.parametrize("kind", [HostStorage, DeviceStorage])


def make(streams: int, capacity: int, window: Window, seed: int = 0, online: bool = False) -> Replay:
    config = ReplayConfig(capacity=capacity * streams, online=online)
    return config.build(obs_spec=OBS, action_spec=ACTION, extra_spec=EXTRA, num_envs=streams, window=window, seed=seed)


@KINDS
def test_what_nobody_stored_is_blank(kind):
    extras = {
        "return": ExtraPart(shape=(), dtype="float32", blank=-np.inf),
        "latent": ExtraPart(shape=(2,), dtype="float32"),
    }
    columns = {name: spec for name, spec in columns_of(OBS, ACTION, extras).items() if name.startswith("extras/")}
    storage = kind(columns, 2, 5, *([torch.device("cpu")] if kind is DeviceStorage else []))
    known = {"extras/return": torch.ones(2), "extras/latent": torch.ones(2, 2)}
    for _ in range(5):
        storage.add(known)
    storage.make_room(2)
    storage.extend({"extras/latent": np.full((2, 2, 2), 3, np.float32)})
    held = storage.read(storage.oldest, storage.count)
    assert held["extras/return"].tolist() == [[1] + [-np.inf] * 4] * 2
    assert held["extras/latent"][0, :, 0].tolist() == [1, 0, 0, 3, 3]


@st.composite
def lived(draw, online: bool = False):
    window = Window(
        batch=draw(st.integers(1, 5)),
        length=draw(st.integers(1, 5)),
        context=draw(st.integers(0, 2)),
        crosses_episodes=draw(st.booleans()),
        context_crosses=draw(st.booleans()),
    )
    capacity = window.rows + draw(st.integers(0, 12))
    kind = draw(st.sampled_from([HostStorage, DeviceStorage]))
    return Lived(draw(st.integers(1, 3)), capacity, window, draw(st.integers(0, 99)), online, kind)


def flags(data, streams: int) -> list[bool]:
    return data.draw(st.lists(st.integers(0, 5).map(lambda x: x == 0), min_size=streams, max_size=streams))


@settings(max_examples=120, deadline=None)
@given(life=lived(), data=st.data())
def test_replay_agrees_with_a_list_of_rows(life, data):
    remembered = []
    for _ in range(data.draw(st.integers(5, 40))):
        life.add(flags(data, life.streams))
        valid = life.valid()
        assert len(life.replay) == len(valid)
        all_starts = life.replay.batch_sampler.windows.at(np.arange(len(valid)))
        assert {(int(h) % life.streams, int(h) // life.streams) for h in all_starts} == valid
        if valid and data.draw(st.booleans()):
            batch = life.replay.sample()
            life.check(batch)
            remembered.append(batch.index)
        if remembered and data.draw(st.booleans()):
            index = data.draw(st.sampled_from(remembered))  # perhaps of rows long evicted
            life.feedback(index, data.draw(st.integers(1, life.window.rows)), data.draw(st.integers(0, 255)))


@settings(max_examples=80, deadline=None)
@given(life=lived(online=True), data=st.data())
def test_online_queue_hands_out_each_new_window_once_and_first(life, data):
    due, expected, delivered = [0] * life.streams, [], []
    for _ in range(data.draw(st.integers(5, 40))):
        life.add(flags(data, life.streams))
        start, free = len(life.rows[0]) - life.window.rows, life.window.free
        for i in range(life.streams):
            if (i, start) in life.valid() and start + free >= due[i]:
                expected.append((i, start))
                due[i] = start + life.window.rows
        expected = [s for s in expected if s[1] >= len(life.rows[0]) - life.capacity]
        if life.valid() and data.draw(st.booleans()):
            starts = life.check(life.replay.sample())
            fresh = expected[: life.window.batch]
            assert starts[: len(fresh)] == fresh
            delivered += fresh
            expected = expected[len(fresh) :]
    assert len(delivered) == len(set(delivered))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), crosses=st.booleans(), online=st.booleans())
def test_same_seed_same_batches_and_state_restores_the_stream(seed, crosses, online):
    window = Window(batch=4, length=3, crosses_episodes=crosses)
    a, b, c = (Lived(2, 30, window, s, online) for s in (seed, seed, seed + 1))
    for life in (a, b, c):
        for t in range(40):
            life.add([t % 7 == 0, t % 5 == 0])
    first = [a.replay.sample().index.tolist() for _ in range(15)]
    assert first == [b.replay.sample().index.tolist() for _ in range(15)]
    assert first != [c.replay.sample().index.tolist() for _ in range(15)]
    c.replay.load_state_dict(a.replay.state_dict())
    assert [a.replay.sample().index.tolist() for _ in range(3)] == [c.replay.sample().index.tolist() for _ in range(3)]


def test_draws_are_uniform_over_starts():
    life = Lived(2, 40, Window(batch=100, length=3), seed=3)
    for t in range(70):
        life.add([t % 5 == 0, t % 9 == 0])
    valid = life.valid()
    counts = dict.fromkeys(valid, 0)
    for _ in range(100):
        for start in ((int(h) % 2, int(h) // 2) for h in life.replay.sample().index):
            counts[start] += 1
    expected = 10_000 / len(valid)
    chi2 = sum((c - expected) ** 2 / expected for c in counts.values())
    assert chi2 < len(valid) + 5 * (2 * len(valid)) ** 0.5


@KINDS
def test_batch_keeps_dtypes_and_later_rows_do_not_change_it(kind):
    life = Lived(1, 6, Window(batch=2, length=4, context=1, crosses_episodes=True), kind=kind)
    for _ in range(6):
        life.add([False])
    batch = life.replay.sample()
    before = batch.map(torch.clone)
    for _ in range(6):
        life.add([False])
    assert torch.equal(batch.obs["id"], before.obs["id"])
    assert torch.equal(batch.extras["deter"], before.extras["deter"])
    assert batch.obs["pixels"].dtype == torch.uint8
    assert batch.extras["deter"].dtype == torch.float16
    assert batch.action.dtype == batch.reward.dtype == batch.weight.dtype == torch.float32
    assert batch.is_first.dtype == torch.bool
    assert batch.index.dtype == torch.int64
    assert batch.weight.tolist() == [1.0, 1.0]


@KINDS
def test_bfloat16_and_gradients_are_stored_and_written_back(kind):
    life = Lived(1, 8, Window(batch=1, length=4, crosses_episodes=True), kind=kind)
    for _ in range(4):
        life.add([False])
    index = life.replay.sample().index
    deter = torch.full((1, 2, 2), 0.5, dtype=torch.bfloat16, requires_grad=True)
    life.replay.feedback(index, Update(metrics={}, extras={"deter": deter}))
    assert life.replay.sample().extras["deter"][0, :, 0].tolist() == [0.0, 1.0, 0.5, 0.5]


def test_too_few_rows_is_an_error_that_says_what_is_missing():
    life = Lived(1, 10, Window(batch=2, length=4, context=1, crosses_episodes=True))
    life.add([True])
    assert len(life.replay) == 0
    with pytest.raises(RunError, match="1 row of each stream; a window needs 5"):
        life.replay.sample()


def test_memory_is_computed_beforehand_and_more_than_there_is_refused():
    replay = make(2, 50, Window(batch=1, length=2))
    row = 2 * 4 + 6 + 3 * 4 + 4 + 3 + 2 * 2 + 1
    assert replay.nbytes == 100 * (row + 2)  # floats of the next begin at a multiple of 4
    assert replay.nbytes == sum(replay.storage.columns["reward"].strides[:1]) * 2
    with pytest.raises(ConfigError, match="GB of memory"):
        make(1, 10**16, Window(batch=1, length=2))


def test_rows_that_are_not_as_declared_are_refused():
    good = Lived(2, 10, Window(batch=1, length=2))
    flag = torch.zeros(2, dtype=torch.bool)
    obs = {"id": torch.zeros(2, 2), "pixels": torch.zeros(2, 3, 2, 1, dtype=torch.uint8)}
    step = Step(obs=obs, reward=torch.zeros(2), is_first=flag, is_last=flag, is_terminal=flag)
    extras = {"deter": torch.zeros(2, 2), "stoch": torch.zeros(2, dtype=torch.uint8)}
    with pytest.raises(DataError, match=r"missing \['extras/stoch'\]"):
        good.replay.add(step, torch.zeros(2, 3), {"deter": extras["deter"]})
    with pytest.raises(DataError, match=r"action has shape \(2, 1\): expected \(2, 3\)"):
        good.replay.add(step, torch.zeros(2, 1), extras)
    assert len(good.replay) == 0
    with pytest.raises(ConfigError, match="bfloat16"):
        ReplayConfig().build(
            obs_spec=OBS,
            action_spec=ACTION,
            extra_spec={"deter": ExtraPart(shape=(2,), dtype="bfloat16")},
            num_envs=1,
            window=Window(batch=1, length=2),
            seed=0,
        )


@KINDS
def test_of_overlapping_windows_the_later_in_the_batch_holds(kind):
    life = Lived(1, 6, Window(batch=3, length=3, crosses_episodes=True), kind=kind)
    for _ in range(8):
        life.add([False])
    life.feedback(torch.tensor([4, 1, 3]), 3, value=0)  # row 1 is evicted; rows 3 to 6 come two or three times
    assert [row["stoch"] for row in life.rows[0][2:7]] == [4, 6, 7, 8, 2]
    life.check(life.replay.sample())


def test_episodes_shorter_than_the_window_are_explained():
    life = Lived(1, 30, Window(batch=2, length=4))
    for t in range(30):
        life.add([t % 3 == 0])
    assert len(life.replay) == 0
    with pytest.raises(RunError, match="no episode has the 4 rows"):
        life.replay.sample()
