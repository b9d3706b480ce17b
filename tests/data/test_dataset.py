"""Recorded rows as a source of batches."""

import google_crc32c
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from d4rl_files import columns, write
from recordings import LIVED, Lived, expected
from reverie.core.errors import ConfigError, DataError
from reverie.core.specs import ActionPart, ActionSpec, ExtraPart, ObsPart
from reverie.core.types import Update, Window
from reverie.datasets.dataset import DatasetConfig, open_recorded
from reverie.envs.config import EnvConfig
from reverie.replay.batch_sampler import BatchSamplerConfig
from reverie.replay.config import ReplayConfig
from reverie.replay.dataset import Dataset
from reverie.replay.sources import MixedSource, split_window

OBS = {"vec": ObsPart(kind="vector", shape=(2,), dtype="float32")}
ACTION = ActionSpec(parts={"action": ActionPart(kind="continuous", size=1)})
WINDOW = Window(batch=64, length=3)


class Given:
    """Rows of episodes, in parts of some size."""

    obs_spec, action_spec = OBS, ACTION

    def __init__(self, lived=LIVED, block=4, announced=None):
        rows = expected(lived)
        kinds = {"obs": np.float32, "action": np.float32, "reward": np.float32}
        self.columns = {name: np.array(values, kinds.get(name, bool)) for name, values in rows.items()}
        self.columns["obs/vec"] = self.columns.pop("obs")
        self.block, self.announced = block, announced

    def rows(self):
        return self.announced or len(self.columns["reward"])

    def parts(self):
        for start in range(0, len(self.columns["reward"]), self.block):
            yield {name: values[start : start + self.block] for name, values in self.columns.items()}


def build(given=None, window=WINDOW, seed=0, config=None, **more):
    return (config or DatasetConfig(path="x")).build(given or Given(), window=window, seed=seed, **more)


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
            part = slice(start, start + 3)
            for name, found in {"obs/vec": batch.obs["vec"], "action": batch.action, "reward": batch.reward}.items():
                np.testing.assert_array_equal(found[b], given.columns[name][part])
            for name in ("is_first", "is_last", "is_terminal"):
                np.testing.assert_array_equal(getattr(batch, name)[b], given.columns[name][part])
            assert not batch.is_first[b, 1:].any()
    assert len(seen) == len(dataset)
    if storage == "mmap":
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("storage", ["ram", "mmap"])
@pytest.mark.parametrize("announced", [None, 100])
def test_the_windows_are_those_that_there_would_be_without_frames(tmp_path, storage, announced):
    config, given = DatasetConfig(path="x", storage=storage), Given(announced=announced)
    plain, stacked = (
        build(given, window, config=config, scratch=tmp_path)
        for window in (Window(batch=8, length=2), Window(batch=8, length=2, context=3, context_crosses=True))
    )
    handles = [one.batch_sampler.windows.at(np.arange(len(one))) for one in (plain, stacked)]
    assert np.array_equal(handles[0], handles[1] + 3)
    for one, other in [(plain.sample(), stacked.sample()) for _ in range(20)]:
        assert torch.equal(one.obs["vec"], other.rows(3).obs["vec"])
    with pytest.raises(DataError, match="more than the 17 rows"):  # what only frames need is no room for more
        build(Given(announced=17), Window(batch=8, length=2, context=3, context_crosses=True))


@settings(max_examples=30, deadline=None)
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


def test_it_goes_on_where_it_was():
    one = build()
    one.sample()
    state = one.state_dict()
    expected_next = one.sample()
    two = build(seed=7)
    two.load_state_dict(state)
    assert torch.equal(two.sample().index, expected_next.index)


def test_other_rows_have_another_fingerprint():
    prints = {build(Given(lived)).fingerprint for lived in (LIVED, LIVED[::-1], LIVED[:4])}
    changed = Given()
    changed.columns["reward"][5] += 1e-3
    assert len(prints | {build(changed).fingerprint}) == 4


def test_a_fingerprint_is_the_same_without_the_quick_checksums(monkeypatch):
    quick = build().fingerprint
    monkeypatch.setattr(google_crc32c, "implementation", "python")
    assert build().fingerprint == quick


def test_latents_and_priorities_are_kept_beside_the_rows():
    config = BatchSamplerConfig().merge({"fractions.priority": 1.0, "fractions.uniform": 0.0, "priority.alpha": 1.0})
    extra = {"deter": ExtraPart(shape=(2,), dtype="float32")}
    dataset = build(batch_sampler=config, extra_spec=extra)
    batch = dataset.sample()
    assert not batch.extras["deter"].any()
    chosen = batch.index == batch.index[0]
    dataset.feedback(
        batch.index,
        Update(metrics={}, priority=torch.where(chosen, 1e4, 1e-4), extras={"deter": torch.ones(64, 3, 2)}),
    )
    again = dataset.sample()
    assert (again.index == batch.index[0]).float().mean() > 0.3
    assert again.extras["deter"][(again.index == batch.index[0])].eq(1).all()


def test_nothing_is_new_so_there_is_no_online_queue():
    assert build(batch_sampler=ReplayConfig(online=True)).batch_sampler.online is None


def test_statistics():
    found = build().statistics()
    rewards = np.concatenate([e.rewards for e in LIVED])
    assert found.reward == (rewards.min(), rewards.max())
    scores = [float(e.rewards.sum()) for e in LIVED]
    assert found.scores == pytest.approx((min(scores), np.mean(scores), max(scores)))
    assert (found.episodes, found.terminal, found.steps) == (5, 3, 14)
    assert found.reward_size == pytest.approx(np.sqrt(np.square(rewards).mean()))


def test_statistics_are_of_episodes_with_a_step():
    lone = Lived(6, 0, "truncated")
    for lived in ([lone, *LIVED], [*LIVED[:2], lone, *LIVED[2:]], [*LIVED, lone]):
        assert build(Given(lived)).statistics() == build().statistics()


def test_statistics_read_no_observations(monkeypatch):
    """A start looks at them, and observations may be larger than the memory."""
    dataset, read, column = build(), set(), Dataset.column
    monkeypatch.setattr(Dataset, "column", lambda self, name: (read.add(name), column(self, name))[1])
    dataset.statistics()
    assert read == {"is_first", "is_terminal", "reward"}


def test_datasets_that_cannot_be():
    with pytest.raises(DataError, match="contains no step: every episode is a single row"):
        build(Given([Lived(1, 0, "truncated"), Lived(2, 0, "truncated")] * 5))
    with pytest.raises(DataError, match="more than the 10 rows that it declares"):
        build(Given(announced=10))
    build(Given(announced=100))  # fewer may come, where some are damaged
    with pytest.raises(DataError, match=r"no episode of the dataset has the 9 rows of a window"):
        build(window=Window(batch=2, length=9))
    with pytest.raises(DataError, match=r"the dataset does not have the 99 rows of a window"):
        build(window=Window(batch=2, length=99, crosses_episodes=True))
    with pytest.raises(DataError, match="contains no rows"):
        build(Given([], announced=1))
    for values in ({"fraction": 0.0}, {"fraction": 1.5}, {"time_limit": 0}, {"storage": "tape"}):
        with pytest.raises(ConfigError, match=next(iter(values))):
            DatasetConfig().merge(values)


# ---------------------------------------------------------------- recorded and lived


def mixed(batch=8, fraction=0.25):
    recorded = build(window=Window(batch=round(batch * fraction), length=3))
    lived = ReplayConfig(online=False).build(
        obs_spec=OBS, action_spec=ACTION, extra_spec={}, num_envs=1,
        window=Window(batch=batch - round(batch * fraction), length=3), seed=1,
    )  # fmt: skip
    return MixedSource(recorded, lived)


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
        numbers = batch.obs["vec"][:, 0, 0]
        assert (numbers[:2] < 8).all()
        assert (numbers[2:] >= 8).all()


def test_feedback_goes_to_where_the_windows_came_from():
    told = []

    class Told:
        def __init__(self, source, name):
            self.source, self.name = source, name

        def __getattr__(self, name):
            return getattr(self.source, name)

        def __len__(self):
            return len(self.source)

        def feedback(self, index, update):
            told.append((self.name, index.tolist(), update.priority.tolist(), update.extras["x"].tolist()))

    mix = mixed()
    fill(mix.collected)
    mix.sample()
    mix.recorded, mix.collected = Told(mix.recorded, "recorded"), Told(mix.collected, "lived")
    index = torch.arange(8)
    mix.feedback(index, Update(metrics={}, priority=torch.arange(8.0), extras={"x": torch.arange(8.0)}))
    assert told == [
        ("recorded", [0, 1], [0.0, 1.0], [0.0, 1.0]),
        ("lived", [2, 3, 4, 5, 6, 7], [2.0, 3.0, 4.0, 5.0, 6.0, 7.0], [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
    ]


# ---------------------------------------------------------------- from files


def test_a_file_as_a_source(tmp_path):
    recorded = open_recorded(DatasetConfig(path=str(write(tmp_path / "a.hdf5", columns()))))
    assert recorded.obs_spec == {"observation": ObsPart(kind="vector", shape=(2,), dtype="float32")}
    assert recorded.action_spec == ACTION
    dataset = DatasetConfig().build(recorded, window=WINDOW, seed=0)
    assert isinstance(dataset, Dataset)
    np.testing.assert_array_equal(dataset.column("obs/observation"), Given().columns["obs/vec"])
    np.testing.assert_array_equal(dataset.column("action"), Given().columns["action"])
    assert dataset.sample().obs["observation"].shape == (64, 3, 2)


@pytest.mark.parametrize("shape", [(14,), (14, 1)])
@pytest.mark.parametrize("space", [spaces.Discrete(9), spaces.MultiDiscrete([9])])
def test_the_environment_says_how_many_actions_there_are(tmp_path, shape, space):
    values = columns() | {"actions": (np.arange(14) % 3).reshape(shape)}
    config = DatasetConfig(path=str(write(tmp_path / "a.hdf5", values)))
    assert open_recorded(config, action_space=space).action_spec.parts["action"].classes == (9,)


def test_bounds_of_actions_come_from_the_environment_where_data_do_not_say_theirs(tmp_path):
    values = columns() | {"actions": np.linspace(-1.5, 1.5, 14, dtype=np.float32)[:, None]}
    config = DatasetConfig(path=str(write(tmp_path / "a.hdf5", values)))
    measured = open_recorded(config)
    parts = list(measured.parts())
    assert max(part["action"].max() for part in parts) == 1.0
    assert any("action space is not declared" in line for line in measured.remarks())
    known = open_recorded(config, action_space=spaces.Box(-3, 3, (1,), np.float32))
    assert max(part["action"].max() for part in known.parts()) == 0.5
    assert not known.remarks()


def test_actions_that_happen_to_be_small_are_still_in_units_of_the_environment(tmp_path):
    """All lie within [-1, 1], which says nothing: an environment that takes -2 to 2 got them as they are."""
    values = columns()
    config = DatasetConfig(path=str(write(tmp_path / "a.hdf5", values)))
    assert np.abs(values["actions"]).max() <= 1
    for space, scale in ((None, 1.0), (spaces.Box(-2, 2, (1,), np.float32), 0.5)):
        parts = [part["action"][~part["is_last"]] for part in open_recorded(config, action_space=space).parts()]
        np.testing.assert_allclose(np.concatenate(parts), values["actions"] * scale, rtol=1e-6)


def test_what_an_environment_leaves_out_or_clips_is_left_out_and_clipped(tmp_path):
    config = DatasetConfig(path=str(write(tmp_path / "a.hdf5", columns())))
    env = EnvConfig(clip_reward="sign")
    rewards = np.concatenate([part["reward"] for part in open_recorded(config, env).parts()])
    np.testing.assert_array_equal(rewards, np.sign(Given().columns["reward"]))
    with pytest.raises(DataError, match="no observations are left to learn from"):
        open_recorded(config, EnvConfig(exclude="observation"))


@pytest.mark.parametrize(
    ("name", "said"),
    [("observations", "observation 'observation' of row 7 "), ("rewards", "the reward of row 8 is nan")],
)
def test_nan_is_an_error_that_says_where(tmp_path, name, said):
    values = columns()
    values[name][5] = np.nan  # the sixth transition: two episodes of 3 and 1 before it
    with pytest.raises(DataError, match=rf"{said}.*reverie data validate.*--quarantine"):
        list(open_recorded(DatasetConfig(path=str(write(tmp_path / "a.hdf5", values)))).parts())


@pytest.mark.parametrize(
    ("batch", "fraction", "expected"), [(8, 0.5, (4, 4)), (10, 0.25, (2, 8)), (3, 0.9, None), (1, 0.5, None)]
)
def test_shares_of_a_batch(batch, fraction, expected):
    window = Window(batch=batch, length=3, context=1)
    if expected is None:
        with pytest.raises(ConfigError, match=r"experience"):
            split_window(window, fraction)
    else:
        found = split_window(window, fraction)
        assert tuple(part.batch for part in found) == expected
        assert all((part.length, part.context) == (3, 1) for part in found)
