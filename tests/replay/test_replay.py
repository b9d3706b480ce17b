"""The replay against a plain Python list of everything that was ever added."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_replay import ACTION, OBS, Lived
from reverie.core.columns import row_columns
from reverie.core.errors import ConfigError, DataError, RunError
from reverie.core.specs import ColumnSpec
from reverie.core.types import Update, Window
from reverie.replay.config import FractionsConfig, ReplayConfig
from reverie.replay.storage import DeviceStorage, HostStorage

KINDS = pytest.mark.parametrize("kind", [HostStorage, DeviceStorage])


@KINDS
def test_what_nobody_stored_is_blank(kind):
    extras = {"return": ColumnSpec(shape=(), dtype="float32", fill_value=-np.inf),
              "latent": ColumnSpec(shape=(2,), dtype="float32")}  # fmt: skip
    columns = {name: spec for name, spec in row_columns(OBS, ACTION, extras).items() if name.startswith("extras/")}
    storage = kind(columns, 2, 5, *([torch.device("cpu")] if kind is DeviceStorage else []))
    for _ in range(5):
        storage.add({"extras/return": torch.ones(2), "extras/latent": torch.ones(2, 2)})
    storage.make_room(2)
    storage.extend({"extras/latent": np.full((2, 2, 2), 3, np.float32)})
    held = storage.read(storage.oldest, storage.count)
    assert held["extras/return"].tolist() == [[1] + [-np.inf] * 4] * 2
    assert held["extras/latent"][0, :, 0].tolist() == [1, 0, 0, 3, 3]


@st.composite
def lived(draw):
    window = Window(
        batch=draw(st.integers(1, 5)),
        length=draw(st.integers(1, 5)),
        context=draw(st.integers(0, 2)),
        crosses_episodes=draw(st.booleans()),
        context_crosses=draw(st.booleans()),
    )
    capacity = window.rows + draw(st.integers(0, 12))
    kind = draw(st.sampled_from([HostStorage, DeviceStorage]))
    fractions = FractionsConfig(**{"uniform": 0.0, draw(st.sampled_from(["uniform", "priority", "recency"])): 1.0})
    config = ReplayConfig(online_queue=False, fractions=fractions)
    return Lived(draw(st.integers(1, 3)), capacity, window, draw(st.integers(0, 99)), kind, config)


@settings(max_examples=20, deadline=None)
@given(life=lived(), data=st.data())
def test_replay_agrees_with_a_list_of_rows(life, data):
    remembered = []
    life.replay.shares_batch = data.draw(st.booleans())
    for _ in range(data.draw(st.integers(5, 40))):
        chance = st.integers(0, 5).map(lambda x: x == 0)
        life.add(data.draw(st.lists(chance, min_size=life.streams, max_size=life.streams)))
        valid = life.valid()
        assert len(life.replay) == len(valid)
        all_starts = life.replay.batch_sampler.windows.handles_at(np.arange(len(valid)))
        assert {(int(h) % life.streams, int(h) // life.streams) for h in all_starts} == valid
        if valid and data.draw(st.booleans()):
            batch = life.replay.sample()
            life.check(batch)
            for x in batch.tensors:
                x.zero_()  # as a learner may
            sampled, batch = batch, life.replay.sample()
            assert (sampled is batch) == life.replay.shares_batch
            life.check(batch)
            assert batch.weight.all()
            remembered.append(batch.index.clone())
        if remembered and data.draw(st.booleans()):
            index = data.draw(st.sampled_from(remembered))  # perhaps of rows long evicted
            life.feedback(index, data.draw(st.integers(1, life.window.rows)), data.draw(st.integers(0, 255)))


@KINDS
def test_bfloat16_and_gradients_are_stored_and_written_back(kind):
    life = Lived(1, 8, Window(batch=1, length=4, crosses_episodes=True), kind=kind)
    for _ in range(4):
        life.add([False])
    index = life.replay.sample().index
    deter = torch.full((1, 2, 2), 0.5, dtype=torch.bfloat16, requires_grad=True)
    life.replay.feedback(index, Update(metrics={}, extras={"deter": deter}))
    assert life.replay.sample().extras["deter"][0, :, 0].tolist() == [0.0, 1.0, 0.5, 0.5]


def test_memory_is_computed_beforehand_and_more_than_there_is_refused():
    replay = Lived(2, 50, Window(batch=1, length=2)).replay
    row = 2 * 4 + 6 + 3 * 4 + 4 + 3 + 2 * 2 + 1
    assert replay.nbytes == 100 * (row + 2)  # floats of the next begin at a multiple of 4
    with pytest.raises(ConfigError, match="GB of memory"):
        Lived(1, 10**16, Window(batch=1, length=2))


def test_rows_without_a_declared_column_are_refused():
    life = Lived(2, 10, Window(batch=1, length=2))
    step, action, extras = life.row([True, True])
    with pytest.raises(DataError, match=r"missing \['extras/stoch'\]"):
        life.replay.add(step, action, {"deter": extras["deter"]})


def test_too_few_rows_is_an_error_that_says_what_is_missing():
    life = Lived(1, 30, Window(batch=2, length=4, context=1))
    for t in range(30):
        life.add([t % 3 == 0])
    assert len(life.replay) == 0
    with pytest.raises(RunError, match="no window of 5 rows"):
        life.replay.sample()
