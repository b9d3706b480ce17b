"""Windows with a person's actions: which there are, how many a batch has, and their rewards."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.columns import ColumnSpec
from reverie.core.specs import IS_IMITATED, IS_INTERVENTION
from reverie.core.types import Batch, Step, Update, Window
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.config import FractionsConfig, HumanConfig, ReplayConfig
from reverie.replay.human import TaggedSource, penalize_takeovers
from reverie.replay.storage import HostStorage

COLUMNS = {
    "obs/x": ColumnSpec((), "float32"), "action": ColumnSpec((1,), "float32"), "reward": ColumnSpec((), "float32"),
    **{f"is_{name}": ColumnSpec((), "bool") for name in ("first", "last", "terminal")},
}  # fmt: skip


def make_replay(streams=1, capacity=12, rows=2, batch=8, **options):
    window = Window(batch=batch, length=rows, **options)
    config = ReplayConfig(fractions=FractionsConfig(priority=1.0, uniform=0.0), online_queue=False)
    return ReplayBuffer(HostStorage(COLUMNS, streams, capacity), window, seed=0, config=config)


def add(replay, number, tags, is_last):
    """Add row ``number`` to each stream, and then tell where a person acted, as environments do."""
    flags = [torch.tensor(x) for x in (replay.ended.tolist(), is_last, [False] * len(tags))]
    x = torch.full((len(tags),), float(number))
    step = Step(obs={"x": x}, reward=x, is_first=flags[0], is_last=flags[1], is_terminal=flags[2])
    replay.add(step, x[:, None], {})
    if any(tags):
        replay.correct(x[:, None], torch.tensor(tags) & ~flags[1])


ROW = st.tuples(*[st.booleans()] * 4)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, max_size=40), st.sampled_from(["", "learns_rows", "crosses_episodes"]), st.booleans())
def test_tagged_windows_are_those_of_the_rows(rows, option, asks_often):
    replay = make_replay(2, rows=3, **({option: True} if option else {}))
    source = TaggedSource(replay, None, HumanConfig(), 0.5, seed=0)
    for number, row in enumerate(rows):
        add(replay, number, row[:2], row[2:])
        if asks_often and number < len(rows) - 3:
            len(source.tagged)
    expected = []
    for handle in replay.batch_sampler.windows.handles_at(np.arange(len(replay))).tolist():
        row, stream = divmod(handle, 2)
        width = 3 if option == "learns_rows" else 2
        if replay.has_tags and replay.storage.read(row, row + width)[IS_INTERVENTION][stream].any():
            expected.append(handle)
    number = len(source.tagged)
    if asks_often and option == "learns_rows":  # the newest row of a window can be tagged after the window is known
        assert set(source.tagged.queue.handles) <= set(expected)
        return
    assert number == len(expected)
    assert source.tagged.queue.handles.tolist() == expected


def filled_replay(rows=40, tagged=lambda t: t % 4 == 1, window=2, **options):
    replay = make_replay(capacity=100, rows=window, **options)
    for t in range(rows):
        add(replay, t, [tagged(t)], [t % 10 == 9])
    return replay


@pytest.mark.parametrize(("fraction", "min_rows", "expected"), [(0.5, 5, 4), (1.0, 5, 8), (0.1, 5, 1), (0.5, 11, 0)])
def test_a_batch_has_its_fraction_of_a_persons_windows(fraction, min_rows, expected):
    source = TaggedSource(filled_replay(), None, HumanConfig(min_rows=min_rows), fraction, seed=0)
    for _ in range(20):
        batch = source.sample()
        assert len(batch.index) == 8
        assert batch.extras[IS_INTERVENTION][:expected, 0].all()
        assert (batch.weight[:expected] == 1).all()


def test_a_persons_windows_are_drawn_uniformly_and_the_others_among_all():
    source = TaggedSource(filled_replay(batch=400), None, HumanConfig(min_rows=1), 0.5, seed=0)
    begins = source.sample().obs["x"][:, 0].long()
    tagged = np.bincount(begins[:200], minlength=40)
    assert set(np.flatnonzero(tagged)) == {t for t in range(39) if t % 4 == 1 and t % 10 != 9}
    assert tagged.max() < 50 > 200 / 8
    assert len(set(begins[200:].tolist())) > 30


def test_recorded_windows_share_the_persons_fraction():
    recorded = filled_replay(rows=21, tagged=lambda t: False)  # 18 windows; 8 are a person's
    source = TaggedSource(filled_replay(batch=26), recorded, HumanConfig(min_rows=1), 1.0, seed=0)
    batch = source.sample()
    assert batch.extras[IS_INTERVENTION][:, 0].tolist() == [False] * 18 + [True] * 8


def test_imitation_takes_a_persons_and_recorded_rows_and_those_drawn_from_all():
    recorded = filled_replay(rows=21, tagged=lambda t: False, window=3)
    source = TaggedSource(filled_replay(batch=20, window=3), recorded, HumanConfig(min_rows=1), 0.8, seed=0)
    batch = source.sample()
    tags, is_persons = batch.extras[IS_INTERVENTION], torch.zeros(20, 3, dtype=torch.bool)
    is_persons[(recorded := source._drawn[0][1]) : 16] = True
    assert tags[recorded:16, :-1].any(1).all()
    assert torch.equal(batch.extras[IS_IMITATED], tags | ~is_persons)


def test_a_person_alone_is_learned_from_once_there_are_enough_rows():
    replay = filled_replay(rows=12)
    source = TaggedSource(replay, None, HumanConfig(min_rows=3), 1.0, seed=0)
    assert len(source) == 0
    for t in range(12, 20):
        add(replay, t, [t % 4 == 1], [False])
    assert len(source) == len(replay)


def test_priorities_come_back_to_the_windows_they_are_of():
    replay = filled_replay()
    source = TaggedSource(replay, None, HumanConfig(min_rows=1), 0.5, seed=0)
    batch = source.sample()
    source.feedback(batch.index, Update(metrics={}, priority=torch.full((8,), 1e6)))
    drawn = replay.batch_sampler.draw(400)[0]
    assert np.isin(drawn, batch.index).mean() > 0.9


def test_sampling_goes_on_as_before_from_the_rows_and_the_saved_state():
    source = TaggedSource(replay := filled_replay(), None, HumanConfig(min_rows=1), 0.5, seed=0)
    for _ in range(3):
        source.sample()
    rows, state = replay.storage.read(0, 40), replay.state_dict()
    other = make_replay(capacity=100)
    resumed = TaggedSource(other, None, HumanConfig(min_rows=1), 0.5, seed=1)
    other.add_tags()
    other.extend(rows)
    other.load_state_dict(state)
    assert torch.equal(resumed.sample().index, source.sample().index)


@pytest.mark.parametrize(("kind", "expected"), [("add", [5, 4, 5, 5, 5, 4]), ("only", [0, -1, 0, 0, 0, -1])])
def test_actions_that_make_a_person_take_over_are_penalized(kind, expected):
    tags = torch.tensor([[False, True, True, False, True, True]])
    first = torch.tensor([[False, False, False, False, True, False]])
    tags[0, 4] = False
    rows = {name: torch.zeros(1, 6, dtype=torch.bool) for name in ("is_last", "is_terminal")}
    batch = Batch(
        obs={}, action=torch.zeros(1, 6, 1), reward=torch.full((1, 6), 5.0), is_first=first, weight=torch.ones(1),
        index=torch.zeros(1, dtype=torch.int64), extras={IS_INTERVENTION: tags}, **rows,
    )  # fmt: skip
    config = HumanConfig(intervention_reward=-1.0, reward=kind)
    assert penalize_takeovers(batch, config).reward.tolist() == [expected]
    begun = batch.extras[IS_INTERVENTION].clone()
    begun[0, 4] = True  # a person who begins an episode takes over from nobody
    batch = dataclasses.replace(batch, extras={IS_INTERVENTION: begun})
    assert penalize_takeovers(batch, config).reward[0, 4] == expected[0]
