"""Minari's datasets: spaces, pictures, ends, names."""

import json

import numpy as np
import pytest
from gymnasium import spaces

from minari_files import NESTED, buffer, nested, texts, write
from recordings import LIVED, check, expected, joined
from reverie.core.errors import DataError
from reverie.datasets import minari as readers
from reverie.datasets.format_detection import open_reader

BINARY = pytest.mark.parametrize("storage", ["hdf5", "arrow"])


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(readers, "PART_BYTES", 150)


def numbered(e, *shape):
    """For each row a number of its own, up to 55, in so many places."""
    return np.stack([np.full(shape, 10 * e.number + t) for t in range(e.steps + 1)])


OBSERVATIONS = {
    "discrete": (spaces.Discrete(90, start=5), lambda e: 5 + numbered(e)),
    "multi_discrete": (spaces.MultiDiscrete([9, 9]), lambda e: e.observations.astype(np.int64)),
    "multi_binary": (spaces.MultiBinary(6), lambda e: (numbered(e, 6) >> np.arange(6) & 1).astype(np.int8)),
    "small": (spaces.Box(0, 255, (3, 3), np.uint8), lambda e: numbered(e, 3, 3).astype(np.uint8)),
    "picture": (spaces.Box(0, 255, (32, 40, 3), np.uint8), lambda e: 4 * numbered(e, 32, 40, 3).astype(np.uint8)),
}


@BINARY
@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_kinds_of_observations(tmp_path, storage, kind):
    space, values = OBSERVATIONS[kind]
    truth = np.concatenate([values(e) for e in LIVED])
    path = write(tmp_path / "d", [buffer(e, values(e)) for e in LIVED], space, storage=storage)
    reader = open_reader(str(path))
    assert reader.info().observation == space
    check(reader, expected(LIVED) | {"obs": truth})
    if kind == "picture":
        file = path / "data/metadata.json"
        about = json.loads(file.read_text())
        del about["jpeg_encoding"]  # as Minari 0.5.2 wrote it
        file.write_text(json.dumps(about))
        check(open_reader(str(path)), expected(LIVED) | {"obs": truth})
        path = write(tmp_path / "jpeg", [buffer(e, values(e)) for e in LIVED], space, storage=storage, jpeg=True)
        found = joined(open_reader(str(path)).parts())["obs"]
        assert found.shape == truth.shape
        assert np.abs(found.astype(int) - truth).max() <= 1


@BINARY
def test_nested_observations_and_actions(tmp_path, storage):
    reader = open_reader(str(write(tmp_path / "d", [nested(e) for e in LIVED], *NESTED, storage)))
    assert (reader.info().observation, reader.info().action) == NESTED
    rows, chosen = expected(LIVED), expected(LIVED, discrete=True)["action"]
    seen, done = np.array(rows.pop("obs")), rows.pop("action")
    check(reader, rows | {
        "obs/arm/state": seen, "obs/arm/touch": seen[:, 1], "obs/pair/0": -seen,
        "obs/pair/1": [text for e in LIVED for text in texts(e)],
        "action/move": done, "action/grip": chosen,
    })  # fmt: skip


def test_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    write(tmp_path / "tests/written-v0", [buffer(e) for e in LIVED])
    check(open_reader("minari:tests/written-v0"), expected(LIVED))
    said = "no Minari dataset.*Did you mean 'tests/written-v0'.*Available: tests/written-v0.*download minari:tests/wr"
    with pytest.raises(DataError, match=said):
        open_reader("minari:tests/writen-v0")
    with pytest.raises(DataError, match="Did you mean 'minari:tests/written-v0'"):
        open_reader("tests/written-v0")


@pytest.mark.parametrize("storage", ["hdf5", "arrow", "parquet"])
def test_a_part_that_is_cut(tmp_path, storage):
    path = write(tmp_path / "d", [buffer(e) for e in LIVED], storage=storage)
    file = max(path.glob("data/**/*.[hap]*"), key=lambda file: (file.suffix != ".json", file.as_posix()))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"incomplete|cannot be read as HDF5"):
        list(open_reader(str(path)).parts())
