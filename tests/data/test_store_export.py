"""Reading a store episode by episode, and as others read it."""

from dataclasses import replace

import numpy as np
import pytest

from reverie.core.errors import ConfigError, DataError, RunError
from reverie.datasets.detect import open_reader
from reverie.datasets.export import to_minari, to_pydreamer
from reverie.datasets.output import size_of
from reverie.datasets.pydreamer import PyDreamerReader
from reverie.datasets.reader import ReadOptions
from reverie.replay.storage import Column
from reverie.store.check import validate
from reverie.store.episodes import LOST, STEPLESS, Episode, episodes
from reverie.store.store import Store
from store_rows import COLUMNS, small_chunks

minari = pytest.importorskip("minari")

SPEC = {
    "observation": {
        "image": {"kind": "image", "shape": [4, 4, 3], "dtype": "uint8", "classes": [], "low": 0.0, "high": 255.0},
        "arm/angle": {"kind": "vector", "shape": [2], "dtype": "float32", "classes": [], "low": 0.0, "high": 255.0},
    },
    "action": {"action": {"kind": "categorical", "classes": [3], "size": 0}},
}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_chunks(monkeypatch)


def quiet(text):
    pass


def lived(lengths, rng, *, open_end=0):
    """The rows of one stream: episodes of so many rows each, every second one terminal."""
    rows = {name: [] for name in COLUMNS}
    for index, length in enumerate([*lengths, open_end] if open_end else lengths):
        for t in range(length):
            last = t == length - 1 and index < len(lengths)
            action = np.zeros(3, "float32")
            action[rng.integers(3)] = not last
            values = {
                "obs/image": rng.integers(0, 256, (4, 4, 3), dtype=np.uint8),
                "obs/arm/angle": rng.normal(size=2).astype("float32"),
                "action": action,
                "reward": np.float32(rng.normal() if t else 0),
                "is_first": t == 0,
                "is_last": last,
                "is_terminal": last and index % 2 == 0,
            }
            for name, value in values.items():
                rows[name].append(value)
    return {name: np.stack(values).astype(COLUMNS[name].dtype) for name, values in rows.items()}


@pytest.fixture
def streams():
    """Two streams of 30 rows: three episodes and an open one; two episodes and an open one."""
    rng = np.random.default_rng(0)
    return [lived([5, 12, 9], rng, open_end=4), lived([20, 2], rng, open_end=8)]


@pytest.fixture
def store(tmp_path, streams):
    store = Store(tmp_path / "replay", say=quiet)
    store.begin(COLUMNS, 2)
    store.extend({name: np.stack([stream[name] for stream in streams]) for name in COLUMNS})
    store.close(10)
    return store


def test_episodes(store, streams):
    found = list(episodes(store))
    assert [(e.stream, e.start, len(e), e.complete) for e in found] == [
        (0, 0, 5, True), (0, 5, 12, True), (0, 17, 9, True), (0, 26, 4, False),
        (1, 0, 20, True), (1, 20, 2, True), (1, 22, 8, False),
    ]  # fmt: skip
    for stream, rows in enumerate(streams):
        mine = [episode for episode in found if episode.stream == stream]
        for name in COLUMNS:
            np.testing.assert_array_equal(np.concatenate([episode.rows[name] for episode in mine]), rows[name])


def test_an_episode_that_was_cut_and_rows_that_were_copied(tmp_path, streams):
    store = Store(tmp_path, say=quiet)
    store.begin(COLUMNS, 1)
    one = {name: value[None, :8] for name, value in streams[0].items()}  # 3 rows into the second episode
    store.extend(one)
    store.begin(COLUMNS, 1, imported=8)
    store.extend(one)
    store.extend({name: value[None, :5] for name, value in streams[0].items()})
    store.close(10)
    found = [(e.segment, e.start, len(e), e.begun, e.ended) for e in episodes(store)]
    assert found == [("0", 0, 5, True, True), ("0", 5, 3, True, False), ("1", 8, 5, True, True)]
    assert validate(store).sound


def test_damaged_rows_are_left_out(store, tmp_path):
    path = tmp_path / "replay/0/action/c.0.1.0"  # rows 8 to 15 of stream 0
    path.write_bytes(path.read_bytes()[:-1])
    damage = []
    found = [(e.start, len(e), e.begun, e.ended) for e in episodes(store, on_damage=damage.append) if e.stream == 0]
    assert found == [(0, 5, True, True), (5, 3, True, False), (16, 1, False, True), (17, 9, True, True),
                     (26, 4, True, False)]  # fmt: skip
    assert [(d.file, d.start, d.stop, d.stream) for d in damage] == [("0/action/c.0.1.0", 8, 16, 0)]


def test_validate_names_rows_that_cannot_be(tmp_path, streams):
    rows = {name: value.copy()[None] for name, value in streams[0].items()}
    rows["reward"][0, 5] = 1.0
    rows["obs/arm/angle"][0, 6:8, 1] = np.nan
    rows["action"][0, 16] = 0.5
    rows["is_first"][0, 17] = False
    rows["is_terminal"][0, 20] = True
    store = Store(tmp_path, say=quiet)
    store.begin(COLUMNS, 1)
    store.extend(rows)
    store.close(10)
    report = validate(store)
    assert not report.damaged
    assert sorted(report.broken) == sorted(
        f"segment 0, stream 0: {what}"
        for what in (
            "non-zero reward on an is_first row (row 5)",
            "obs/arm/angle is NaN or infinite (row 6 and 1 more)",
            "non-zero action on an is_last row (row 16)",
            "episode continues after its is_last row (row 17)",
            "is_terminal without is_last (row 20)",
        )
    )


def test_validate_names_damaged_files(store, tmp_path):
    assert validate(store).sound
    (tmp_path / "replay/0/zarr.json").unlink()
    (tmp_path / "replay/0/obs/image/c.1.2.0.0.0").write_bytes(b"")
    report = validate(store)
    assert report.damaged == [
        "0/zarr.json is missing",
        "0/obs/image/c.1.2.0.0.0 has only 0 bytes (rows 16 to 23 of stream 1)",
    ]


def test_minari(store, tmp_path, monkeypatch):
    """Through Minari and back: the same rows."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    done = to_minari(episodes(store), "tests/lived-v0", store.segments[0], SPEC)
    ours = list(episodes(store))
    assert (done.episodes, done.steps) == (7, sum(e.steps for e in ours))
    dataset = minari.load_dataset("tests/lived-v0")
    assert dataset.total_episodes == 7
    assert dataset.total_steps == done.steps
    assert dataset.action_space.n == 3
    for theirs, mine in zip(dataset.iterate_episodes(), ours, strict=True):
        np.testing.assert_array_equal(theirs.observations["image"], mine.rows["obs/image"])
        np.testing.assert_array_equal(theirs.observations["arm"]["angle"], mine.rows["obs/arm/angle"])
        np.testing.assert_array_equal(np.eye(3, dtype="float32")[theirs.actions], mine.rows["action"][:-1])
        np.testing.assert_array_equal(theirs.rewards, mine.rows["reward"][1:])
        np.testing.assert_array_equal(theirs.terminations, mine.rows["is_terminal"][1:])
        last = mine.rows["is_last"][1:].copy()
        last[-1] = True  # what was still going on is truncated
        np.testing.assert_array_equal(theirs.terminations | theirs.truncations, last)
    with pytest.raises(RunError, match="lived-v0 exists"):
        to_minari(episodes(store), "tests/lived-v0", store.segments[0], SPEC)


def test_minari_in_a_folder_without_a_spec(store, tmp_path):
    done = to_minari(episodes(store), str(tmp_path / "lived"), store.segments[0], None)
    dataset = minari.MinariDataset(done.path / "data")
    np.testing.assert_array_equal(dataset[0].actions, next(iter(episodes(store))).rows["action"][:-1])


def test_pydreamer(store, tmp_path):
    """Read as PyDreamer does: the action of row t + 1 is the one taken in row t."""
    done = to_pydreamer(episodes(store), tmp_path / "npz")
    files = sorted((tmp_path / "npz").iterdir())
    ours = list(episodes(store))
    assert done.episodes == len(files) == 7
    for file, mine in zip(files, ours, strict=True):
        assert file.name.endswith(f"-{mine.steps:04}.npz")
        with np.load(file) as theirs:
            action_next = np.concatenate([theirs["action"][1:], np.zeros((1, 3), "float32")])
            image, vector = theirs["image_t"].transpose(3, 0, 1, 2), theirs["vecobs"]
            reset, terminal, reward = theirs["reset"], theirs["terminal"], theirs["reward"]
        if mine.ended:
            np.testing.assert_array_equal(action_next, mine.rows["action"])
        else:  # the outcome of the newest action is not known
            np.testing.assert_array_equal(action_next[:-1], mine.rows["action"][:-1])
        np.testing.assert_array_equal(image, mine.rows["obs/image"])
        np.testing.assert_array_equal(vector, mine.rows["obs/arm/angle"])
        np.testing.assert_array_equal(reset, mine.rows["is_first"])
        np.testing.assert_array_equal(terminal, mine.rows["is_terminal"])
        np.testing.assert_array_equal(reward, mine.rows["reward"])


@pytest.mark.parametrize("to", ["pydreamer", "minari"])
def test_episodes_without_a_beginning_or_a_step_are_left_out(store, tmp_path, to):
    """As ``StoreReader`` does: with an observation from its middle at first, an episode would be another one."""

    def export(found, name):
        target = tmp_path / name
        return (
            to_pydreamer(found, target) if to == "pydreamer" else to_minari(found, str(target), store.segments[0], None)
        )

    (tmp_path / "replay/0/action/c.0.1.0").unlink()  # rows 8 to 15 of stream 0, in the second episode
    found = list(episodes(store))
    alone = replace(found[0], rows={name: values[:1] for name, values in found[0].rows.items()})
    done = export([alone, *found, alone], "out")
    whole = [episode for episode in found if episode.begun]
    assert (done.episodes, done.steps) == (len(whole), sum(episode.steps for episode in whole))
    assert done.remarks == [f"{STEPLESS} (2 times)", LOST]
    with pytest.raises(RunError, match="contains no episodes to write"):
        export([alone], "none")
    assert not (tmp_path / "none").exists()


def one_episode(obs):
    """An episode of three rows with these observations by key; all of its rewards are 0."""
    rows = {f"obs/{key}": values for key, values in obs.items()}
    rows |= {"action": np.eye(3, dtype=np.float32), "reward": np.zeros(3, np.float32)}
    for name, row in {"is_first": 0, "is_last": 2, "is_terminal": 2}.items():
        rows[name] = np.arange(3) == row
    return Episode("0", 0, 0, rows)


VECTORS, IMAGES = np.ones((3, 2), np.float32), np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5, 1)


@pytest.mark.parametrize(
    ("obs", "both"),
    [
        ({"reward": VECTORS, "pos": VECTORS}, "reward and obs/reward 'reward'"),
        ({"terminal": VECTORS, "pos": VECTORS}, "is_terminal and obs/terminal 'terminal'"),
        ({"action_next": VECTORS, "pos": VECTORS}, "action_next and obs/action_next 'action_next'"),
        ({"a/b": VECTORS, "a_b": VECTORS}, "obs/a/b and obs/a_b 'a_b'"),
        ({"camera": IMAGES, "image_t": VECTORS, "pos": VECTORS}, "obs/camera and obs/image_t 'image_t'"),
    ],
)
def test_pydreamer_has_one_name_for_two_columns(tmp_path, obs, both):
    """One would replace the other: an observation the rewards, say."""
    with pytest.raises(ConfigError, match=rf"would call both {both}\. .*--to minari"):
        to_pydreamer([one_episode(obs)], tmp_path / "npz")
    assert not (tmp_path / "npz").exists()


def test_pydreamer_images_whose_names_say_that_time_comes_last(tmp_path):
    done = to_pydreamer([one_episode({"left_t": IMAGES, "right": IMAGES})], tmp_path / "npz")
    rows = next(iter(PyDreamerReader(done.path, ReadOptions()).parts()))
    np.testing.assert_array_equal(rows["obs/left"], IMAGES)
    np.testing.assert_array_equal(rows["obs/right"], IMAGES)


def test_pydreamer_observations_with_the_names_of_numpys_arguments(tmp_path):
    obs = {"file": VECTORS, "allow_pickle": 2 * VECTORS}
    done = to_pydreamer([one_episode(obs)], tmp_path / "npz")
    with np.load(next(done.path.iterdir())) as found:
        for key, value in obs.items():
            np.testing.assert_array_equal(found[key], value)


def test_sizes_of_what_is_nested():
    values = {"a": (np.zeros(3, np.float32), {"b": np.zeros((2, 2))}), "c": 1.0}
    assert size_of(values) == 12 + 32 + 8


@pytest.mark.parametrize("keys", [("camera", "camera/depth"), ("camera/depth", "camera")])
def test_keys_that_cannot_be_nested_are_named(tmp_path, keys):
    """Environments' own keys were once not checked; either order, as the second one must not replace the first."""
    columns = COLUMNS | {f"obs/{key}": Column((2,), "float32") for key in keys}
    store = Store(tmp_path / "replay", say=quiet)
    store.begin(columns, 1)
    rows = {name: np.zeros((1, 3, *column.shape), column.dtype) for name, column in columns.items()}
    rows["is_first"][0, 0] = rows["is_last"][0, 2] = True
    store.extend(rows)
    store.close(10)
    said = r"'camera' and 'camera/depth' cannot both be keys: .* --to pydreamer"
    with pytest.raises(DataError, match=said):
        to_minari(episodes(store), str(tmp_path / "copy"), store.segments[-1], None)
    with pytest.raises(DataError, match=said):
        open_reader(str(tmp_path / "replay")).about()
    assert not (tmp_path / "copy").exists()
    assert to_pydreamer(episodes(store), tmp_path / "npz").steps == 2
