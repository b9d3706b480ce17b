"""Minari's datasets: spaces, pictures, ends, names."""

import numpy as np
import pytest
from gymnasium import spaces

from minari_files import ACTION, PLAIN, buffer, texts, write
from recordings import LIVED, check, expected, joined
from reverie.core.errors import DataError
from reverie.datasets import minari as readers
from reverie.datasets.detect import open_reader

STORAGES = ["hdf5", "arrow", "parquet"]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(readers, "PART_BYTES", 150)


def bits(numbers):
    return (numbers[:, None] >> np.arange(6) & 1).astype(np.int8)


OBSERVATIONS = {
    "discrete": (spaces.Discrete(90, start=5), lambda e: 5 + 10 * e.number + np.arange(e.steps + 1)),
    "multi_discrete": (spaces.MultiDiscrete([9, 9]), lambda e: e.observations.astype(np.int64)),
    "multi_binary": (spaces.MultiBinary(6), lambda e: bits(8 * e.number + np.arange(e.steps + 1))),
    "small": (spaces.Box(0, 255, (3, 3), np.uint8), lambda e: np.stack([np.full((3, 3), 10 * e.number + t, np.uint8)
                                                                       for t in range(e.steps + 1)])),
    "picture": (spaces.Box(0, 255, (32, 40, 3), np.uint8), lambda e: np.stack(
        [np.full((32, 40, 3), 40 * e.number + t, np.uint8) for t in range(e.steps + 1)])),
}  # fmt: skip


@pytest.mark.parametrize("storage", ["hdf5", "arrow"])
@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_kinds_of_observations(tmp_path, storage, kind):
    space, values = OBSERVATIONS[kind]
    truth = np.concatenate([values(e) for e in LIVED])
    path = write(tmp_path / "d", [buffer(e, values(e)) for e in LIVED], space, storage=storage)
    reader = open_reader(str(path))
    assert reader.about().observation == space
    check(reader, expected(LIVED) | {"obs": truth})
    if kind == "picture":
        path = write(tmp_path / "jpeg", [buffer(e, values(e)) for e in LIVED], space, storage=storage, jpeg=True)
        found = joined(open_reader(str(path)).parts())["obs"]
        assert found.shape == truth.shape
        assert np.abs(found.astype(int) - truth).max() <= 1


@pytest.mark.parametrize("storage", ["hdf5", "arrow"])
def test_nested_observations_and_actions(tmp_path, storage):
    observation = spaces.Dict({
        "arm": spaces.Dict({"state": PLAIN, "touch": spaces.Discrete(100)}),
        "pair": spaces.Tuple((PLAIN, spaces.Text(8, charset="0123456789."))),
    })  # fmt: skip
    action = spaces.Dict({"move": ACTION, "grip": spaces.Discrete(5)})

    def nest(episode):
        times = np.arange(episode.steps + 1)
        return buffer(
            episode,
            {"arm": {"state": episode.observations, "touch": times}, "pair": (-episode.observations, texts(episode))},
            {"move": episode.actions, "grip": episode.choices},
        )

    path = write(tmp_path / "d", [nest(e) for e in LIVED], observation, action, storage)
    reader = open_reader(str(path))
    assert (reader.about().observation, reader.about().action) == (observation, action)
    rows, chosen = expected(LIVED), expected(LIVED, discrete=True)["action"]
    check(reader, {
        "obs/arm/state": rows["obs"], "obs/arm/touch": np.array(rows["obs"])[:, 1],
        "obs/pair/0": -np.array(rows["obs"]), "obs/pair/1": [text for e in LIVED for text in texts(e)],
        "action/move": rows["action"], "action/grip": chosen,
        **{name: rows[name] for name in ("reward", "is_first", "is_last", "is_terminal")},
    })  # fmt: skip


def test_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    write(tmp_path / "tests/written-v0", [buffer(e) for e in LIVED])
    check(open_reader("minari:tests/written-v0"), expected(LIVED))
    said = r"no Minari dataset 'tests/writen-v0'.*Did you mean 'tests/written-v0'.*Available: tests/written-v0\. Download it with `reverie data download minari:tests/writen-v0`"  # noqa: E501
    with pytest.raises(DataError, match=said):
        open_reader("minari:tests/writen-v0")
    with pytest.raises(DataError, match="Did you mean 'minari:tests/written-v0'"):
        open_reader("tests/written-v0")


@pytest.mark.parametrize("storage", STORAGES)
def test_a_part_that_is_cut(tmp_path, storage):
    path = write(tmp_path / "d", [buffer(e) for e in LIVED], storage=storage)
    file = max(path.glob("data/**/*.[hap]*"), key=lambda file: (file.suffix != ".json", file.as_posix()))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"incomplete|cannot be read as HDF5"):
        list(open_reader(str(path)).parts())
