"""Tianshou's buffers: rings, frame stacks, objects."""

import pickle

import numpy as np
import pytest
from gymnasium import spaces

from formats import rotated, tianshou, transitions_of
from recordings import LIVED, Lived, check, expected, joined
from reverie.core.errors import DataError
from reverie.datasets import transitions
from reverie.datasets.format_detection import open_reader


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    """Parts of three transitions, so that episodes reach over their edges."""
    monkeypatch.setattr(transitions, "MIN_PART_TRANSITIONS", 3)
    monkeypatch.setattr(transitions, "PART_BYTES", 1)


@pytest.mark.parametrize("by", [1, 5, 13])
def test_tianshou_full_ring(tmp_path, by):
    """The oldest transition lies right behind the newest."""
    path = tianshou(tmp_path / "a.hdf5", [(14, rotated(transitions_of(LIVED), by), (13 + by) % 14, 14)])
    reader = open_reader(str(path))
    check(reader, expected(LIVED))
    assert any("lost its first steps" in line for line in reader.remarks())


def test_tianshou_vector_buffer(tmp_path):
    """Three rings: a full one that has wrapped, one with room, an empty one. An episode is going on in two of them."""
    first, second = [Lived(1, 3), Lived(2, 2, "truncated"), Lived(3, 2, "open")], [Lived(4, 2), Lived(5, 1, "open")]
    empty = {name: value[:0] for name, value in transitions_of(first).items()}
    rings = [(7, rotated(transitions_of(first), 4), 3, 7), (7, transitions_of(second), 2, 3), (7, empty, 0, 0)]
    check(open_reader(str(tianshou(tmp_path / "a.hdf5", rings))), expected([*first, *second]))


def test_tianshou_stacks_frames(tmp_path):
    """Frames kept one by one are seen as the last three of their episode, the first one repeated before it."""
    lived = [Lived(1, 4), Lived(2, 1), Lived(3, 3)]
    values = transitions_of(lived)
    frames = np.concatenate([[e.number * 10 + t for t in range(e.steps)] for e in lived]).astype(np.uint8)
    values["obs"] = np.broadcast_to(frames[:, None, None], (8, 2, 3)).copy()
    del values["obs_next"]
    path = tianshou(tmp_path / "a.hdf5", [(8, rotated(values, 3), 2, 8)], next_obs=False, stack=3)
    reader = open_reader(str(path))
    found = joined(reader.parts())
    assert found["obs"].shape == (11, 2, 3, 3)
    assert reader.info().observation == spaces.Box(0, 255, (2, 3, 3), np.uint8)
    seen = [row[0, 0].tolist() for row in found["obs"]]
    assert seen == [[10, 10, 10], [10, 10, 11], [10, 11, 12], [11, 12, 13], [11, 12, 13],
                    [20, 20, 20], [20, 20, 20], [30, 30, 30], [30, 30, 31], [30, 31, 32], [30, 31, 32]]  # fmt: skip


def test_tianshou_objects_are_refused_and_never_unpickled(tmp_path):
    """A pickle that would leave a trace."""

    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "trap"), "w"))

    def trapped(file):
        del file["_meta"]["obs"]
        data = np.frombuffer(pickle.dumps(Trap()), np.byte)
        file["_meta"].create_dataset("obs", data=data).attrs["__data_type__"] = "pickled_ndarray"
        file.create_dataset("trap", data=data).attrs["__data_type__"] = "Trap"

    path = tianshou(tmp_path / "a.hdf5", [(14, transitions_of(LIVED), 13, 14)], extra=trapped)
    with pytest.raises(DataError, match=r"'_meta/obs' is a pickled ndarray, which is not read"):
        list(open_reader(str(path)).parts())
    assert not (tmp_path / "trap").exists()
