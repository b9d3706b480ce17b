"""A replay that is put together from its rows, its extras and its state is the one they came from."""

import tempfile
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_replay import ACTION, OBS, Lived
from reverie.core.columns import row_columns
from reverie.core.types import Update, Window
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.config import ReplayConfig
from reverie.replay.sources import Feedback
from reverie.replay.storage import DeviceStorage, HostStorage
from reverie.run.manifest import decode_state, encode_state
from reverie.store.read import Chunk, Damage

CONFIGS = [
    ReplayConfig(online_queue=False),
    ReplayConfig(),
    ReplayConfig(sequential=True),
    ReplayConfig().merge({"fractions.priority": 2.0, "priority.beta_anneal_windows": 50}),
    ReplayConfig().merge({"fractions": {"uniform": 1, "priority": 1, "recency": 1, "episode_ends": 1}}),
]


@st.composite
def lives(draw):
    config = draw(st.sampled_from(CONFIGS))
    window = Window(
        batch=draw(st.integers(1, 4)),
        length=draw(st.integers(1, 4)),
        context=draw(st.integers(1, 2)),
        crosses_episodes=draw(st.booleans()),
        context_crosses=not config.sequential and draw(st.booleans()),
    )
    kind = draw(st.sampled_from([HostStorage, DeviceStorage]))
    capacity = window.rows + draw(st.integers(0, 12))
    return Lived(draw(st.integers(1, 3)), capacity, window, draw(st.integers(0, 99)), kind=kind, config=config)


def copy_of(life):
    """Another replay with its rows, its extras and its state, by way of a checkpoint's encoding."""
    old = life.replay
    storage = type(old.storage)(old.storage.specs, life.streams, life.capacity, *life.where)
    new = ReplayBuffer(storage, life.window, seed=12345, config=life.config)
    new.restart_at(old.oldest)
    rows = {
        name: column
        for name, column in old.storage.read(old.oldest, old.count).items()
        if not name.startswith("extras/")
    }
    assert new.add_chunks(chunks_of(rows, old.oldest, new))
    with tempfile.TemporaryDirectory() as folder:
        old.save_extras(Path(folder))
        new.load_extras(Path(folder))
    tensors = {}
    encoded = encode_state(old.state_dict(), "replay", tensors)
    new.load_state_dict(decode_state(encoded, lambda name: tensors[name].clone()))
    return new


def chunks_of(rows, start, replay, size=5):
    """As a store would read them for ``replay``: into their places where that can be."""
    streams, total = rows["is_first"].shape
    for low in range(0, total, size):
        piece = {name: column[:, low : low + size] for name, column in rows.items()}
        n = piece["is_first"].shape[1]
        room = replay.reserve(n)
        for name in room or {}:
            room[name][...] = piece[name]
        placed = piece if room is None else dict(room)
        yield Chunk(start + low, start + low + n, tuple(range(streams)), placed, [], in_buffer=room is not None)


def blank(streams):
    """Five rows."""
    return {
        name: np.zeros((streams, 5, *spec.shape), spec.dtype) for name, spec in row_columns(OBS, ACTION, {}).items()
    }


def test_a_damaged_chunk_is_not_taken():
    life, rows = Lived(2, 20, Window(batch=1, length=2), 0), blank(2)
    damage = Damage("0/reward/c.0.0", 0, 3, 5, "is missing")
    good, bad = Chunk(0, 5, (0, 1), rows, []), Chunk(5, 10, (0, 1), rows, [damage])
    assert life.replay.add_chunks([good])
    assert not life.replay.add_chunks([bad, good])
    assert life.replay.count == 5


@pytest.mark.parametrize("placed", [True, False])
def test_hindsight_sees_all_rows_before_they_are_sampled(placed):
    life, rows, seen = Lived(1, 100, Window(batch=1, length=2), 0), blank(1), []
    replay = life.replay
    replay.annotator = SimpleNamespace(
        on_add=lambda storage, step: seen.append(f"row {storage.count - 1}"),
        on_extend=lambda storage: seen.append(f"all to {storage.count}"),
    )

    def fill():
        room = replay.reserve(5) if placed else None
        for name, column in (room or {}).items():
            column[...] = rows[name]
        assert replay.add_chunks([Chunk(replay.count, replay.count + 5, (0,), rows, [], in_buffer=placed)])

    fill()
    assert not seen
    replay.sample()
    life.add([True])
    replay.sample()
    fill()
    life.add([True])
    replay.sample()
    assert seen == ["all to 5", "row 5", "all to 12"]


def live(life, others, rng, steps):
    """Add rows, sample and give feedback, all at random, and hold the others against the first at each step."""
    replays = [life.replay, *others]
    for _ in range(steps):
        step, action, extras = life.row((rng.random(life.streams) < 0.2).tolist())
        for replay in replays:
            replay.add(step, action, extras)
        assert len({len(replay) for replay in replays}) == 1
        if len(life.replay) and rng.random() < 0.7:
            batches = [replay.sample() for replay in replays]
            for batch in batches[1:]:
                assert_same(batches[0], batch)
            update = random_update(life, rng, batches[0].index)
            for replay in replays:
                if (
                    life.replay.count % 2 and not life.config.sequential
                ):  # half of all comes late, as that of a GPU does
                    replay.flush()
                    replay.pending.append(Feedback(batches[0].index.numpy(), update.extras, update.priority))
                else:
                    replay.feedback(batches[0].index, update)


def random_update(life, rng, index):
    shape = (len(index), int(rng.integers(1, life.window.rows + 1)))
    deter = torch.from_numpy(rng.integers(0, 100, (*shape, 2))).half()
    stoch = torch.from_numpy(rng.integers(0, 255, shape).astype(np.uint8))
    priority = torch.from_numpy(rng.random(len(index)) * 3)
    return Update(metrics={}, extras={"deter": deter, "stoch": stoch}, priority=priority.float())


def assert_same(a, b):
    torch.testing.assert_close(asdict(a), asdict(b), rtol=0, atol=0)


@settings(max_examples=15, deadline=None)
@given(life=lives(), seed=st.integers(0, 2**31), steps=st.integers(0, 40))
def test_a_restored_replay_is_the_same_for_ever(life, seed, steps):
    rng = np.random.default_rng(seed)
    live(life, [], rng, steps)
    once = copy_of(life)
    live(life, [once], rng, 25)
    live(life, [once, copy_of(life)], rng, 10)


def test_rows_in_one_piece_need_not_be_copied():
    life = Lived(2, 10, Window(batch=1, length=2), config=ReplayConfig())
    for _ in range(8):
        life.add([False, False])
    storage = life.replay.storage
    itself = storage.read(2, 7, ["reward"], copy=False)["reward"]
    assert np.shares_memory(itself, storage.columns["reward"])
    for _ in range(6):
        life.add([False, False])
    for stream in (None, 1):  # rows 5 to 13 lie in two pieces
        apart = storage.read(5, 13, stream=stream, copy=False)
        for name, column in storage.read(5, 13, stream=stream).items():
            assert np.array_equal(apart[name], column)


@pytest.mark.parametrize("config", CONFIGS)
def test_state_of_other_rows_is_left_out(config):
    window = Window(batch=3, length=3, context=1, crosses_episodes=True)
    life = Lived(2, 30, window, seed=1, config=config)
    live(life, [], np.random.default_rng(0), 40)
    longer = Window(batch=3, length=4, context=1, crosses_episodes=True)
    for streams, rows, other in [(3, 40, window), (2, 40, longer), (2, 12, window)]:
        fresh = Lived(streams, 30, other, seed=2, config=config)
        for _ in range(rows):
            fresh.add([False] * streams)
        fresh.replay.load_state_dict(life.replay.state_dict())
        assert fresh.replay.pending == []
        fresh.check(fresh.replay.sample())


def test_rows_from_elsewhere_are_not_dealt_out_as_new_and_extras_are_zeros():
    life = Lived(2, 40, Window(batch=4, length=3, context=1, crosses_episodes=True), config=ReplayConfig())
    for t in range(25):
        life.add([t % 6 == 0, t % 4 == 0])
    rows = life.replay.storage.read(0, 25)
    new = Lived(2, 40, life.window, config=ReplayConfig())
    new.replay.extend({name: column for name, column in rows.items() if not name.startswith("extras/")})
    assert not new.replay.batch_sampler.online.queue
    assert not any(extra.any() for extra in new.replay.sample().extras.values())
    for t in range(4):
        new.replay.add(*life.row([t == 0, t == 0]))
    assert list(new.replay.batch_sampler.online.queue) == [25 * 2, 25 * 2 + 1]
