"""Recorded rows as a source of batches."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from d4rl_files import columns, write
from recordings import LIVED, Lived, expected
from reverie.core.errors import DataError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Update, Window
from reverie.datasets.config import DatasetConfig
from reverie.datasets.dataset import build_dataset, open_recorded
from reverie.replay.build import build_replay
from reverie.replay.config import ReplayConfig
from reverie.replay.sources import MixedSource

OBS = {"vec": ObsPart(kind="vector", shape=(2,), dtype="float32")}
ACTION = ActionSpec(parts={"action": ActionPart(kind="continuous", size=1)})
WINDOW = Window(batch=64, length=3)


class Given:
    """Rows of episodes, in parts of some size."""

    obs_spec, action_spec, label, tags = OBS, ACTION, "somewhere", ()

    def __init__(self, lived=LIVED, block=4, announced=None):
        rows = expected(lived)
        kinds = {"obs": np.float32, "action": np.float32, "reward": np.float32}
        self.columns = {name: np.array(values, kinds.get(name, bool)) for name, values in rows.items()}
        self.columns["obs/vec"] = self.columns.pop("obs")
        self.block, self.total = block, announced or len(self.columns["reward"])

    def rows(self):
        return self.total

    def parts(self):
        for start in range(0, len(self.columns["reward"]), self.block):
            yield {name: values[start : start + self.block] for name, values in self.columns.items()}


def build(given=None, window=WINDOW, seed=0, config=None, **more):
    return build_dataset(config or DatasetConfig(path="x"), given or Given(), window=window, seed=seed, **more)


@pytest.mark.parametrize("storage", ["ram", "mmap"])
def test_windows_are_rows_that_follow_each_other_in_one_episode(tmp_path, storage):
    given = Given()
    dataset = build(given, config=DatasetConfig(path="x", storage=storage), scratch=tmp_path)
    assert len(dataset) == sum(max(0, e.steps + 1 - 2) for e in LIVED)
    seen = set()
    for _ in range(20):
        batch = dataset.sample()
        assert batch.shape == (64, 3)
        for b, start in enumerate(batch.index.tolist()):
            seen.add(start)
            for name, rows in given.columns.items():
                found = batch.obs["vec"] if name == "obs/vec" else getattr(batch, name)
                np.testing.assert_array_equal(found[b], rows[start : start + 3])
            assert not batch.is_first[b, 1:].any()
    assert len(seen) == len(dataset)
    if storage == "mmap":
        assert not list(tmp_path.iterdir())


@settings(max_examples=15, deadline=None)
@given(
    lived=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    blocks=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    crosses=st.booleans(),
)
def test_the_same_whatever_the_parts(lived, blocks, crosses):
    episodes = [Lived(1, 6), *(Lived(i, steps) for i, steps in enumerate(lived, start=2))]
    window = Window(batch=8, length=3, crosses_episodes=crosses)
    one, two = (build(Given(episodes, block), window) for block in blocks)
    assert one.fingerprint == two.fingerprint
    for _ in range(3):
        a, b = one.sample(), two.sample()
        assert torch.equal(a.index, b.index)
        assert torch.equal(a.obs["vec"], b.obs["vec"])


def test_other_rows_have_another_fingerprint():
    changed = Given()
    changed.columns["reward"][5] += 1e-3
    others = (Given(), Given(LIVED[::-1]), Given(LIVED[:4]), changed)
    assert len({build(rows).fingerprint for rows in others}) == 4


def test_actions_beyond_the_bounds_are_read_as_what_environments_did():
    raw, given = Given(), Given()
    given.columns["action"] = 100 * given.columns["action"]
    dataset = build(given)
    np.testing.assert_array_equal(dataset.column("action"), np.clip(given.columns["action"], -1, 1))
    assert dataset.fingerprint != build(raw).fingerprint  # of what is there


def test_datasets_that_cannot_be():
    build(Given(announced=100))  # fewer rows may come, where some are damaged
    for rows, window, said in [
        (Given([Lived(1, 0, "truncated")] * 10), WINDOW, "somewhere: 10 of the 10 rows are"),
        (Given(announced=10), WINDOW, "more than the 10 rows that it declares"),
        (Given(), Window(batch=2, length=9), "somewhere: there is no window of 9 rows"),
        (Given([], announced=1), WINDOW, "there is no window"),
    ]:
        with pytest.raises(DataError, match=said):
            build(rows, window)


# ---------------------------------------------------------------- recorded and lived


def mixed():
    """Two of eight windows are recorded ones."""
    lived = build_replay(
        ReplayConfig(online_queue=False),
        obs_spec=OBS,
        action_spec=ACTION,
        extra_spec={},
        num_envs=1,
        window=Window(batch=6, length=3),
        seed=1,
    )
    return MixedSource(build(window=Window(batch=2, length=3)), lived)


def fill(lived):
    rows = Given([Lived(8, 6), Lived(9, 6)]).columns
    lived.extend({name: values[None] for name, values in rows.items()})


def test_a_part_of_each_batch_is_recorded():
    mix = mixed()
    assert len(mix) == 0  # nothing has been lived yet
    fill(mix.collected)
    assert len(mix) == len(mix.collected) > 0  # what was recorded does not make learning begin sooner
    for _ in range(5):
        batch = mix.sample()
        assert batch.shape == (8, 3)
        assert (batch.obs["vec"][:, 0, 0] >= 8).tolist() == [False] * 2 + [True] * 6


def test_feedback_goes_to_where_the_windows_came_from():
    told, mix, index = [], mixed(), torch.arange(8)
    fill(mix.collected)
    mix.sample()
    for name in ("recorded", "collected"):
        getattr(mix, name).feedback = lambda index, update, name=name: told.append(
            (name, index.tolist(), update.priority.tolist(), update.extras["x"].tolist())
        )
    mix.feedback(index, Update(metrics={}, priority=torch.arange(8.0), extras={"x": torch.arange(8.0)}))
    assert told == [("recorded", *[[0, 1]] * 3), ("collected", *[[2, 3, 4, 5, 6, 7]] * 3)]


@pytest.mark.parametrize(
    ("name", "said"),
    [("observations", "observation 'observation' is nan"), ("rewards", "the reward is nan")],
)
def test_nan_is_an_error_that_says_where(tmp_path, name, said):
    values = columns()
    values[name][5] = np.nan  # the sixth transition: two episodes of 3 and 1 before it
    with pytest.raises(DataError, match=rf"episode 2, step 1: {said}.*reverie data validate.*--write-valid"):
        list(open_recorded(DatasetConfig(path=str(write(tmp_path / "a.hdf5", values)))).parts())
