"""Tianshou's buffers: rings, frame stacks, objects, and those that are written."""

import pickle

import h5py
import numpy as np
import pytest
from gymnasium import spaces

from formats import rotated, tianshou, transitions_of
from recordings import LIVED, Lived, assert_same, check, expected, joined
from reverie.core.errors import DataError
from reverie.datasets import transitions
from reverie.datasets.dataset import RecordedEpisodes
from reverie.datasets.format_detection import open_reader
from reverie.datasets.reader import DatasetInfo
from reverie.datasets.writers import write_tianshou


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


@pytest.mark.parametrize(("room", "length"), [(14, 10**12), (10**12, 0)])
def test_more_steps_than_there_are_fill_no_memory(tmp_path, room, length):
    path = tianshou(tmp_path / "a.hdf5", [(14, transitions_of(LIVED), 13, 14)])
    with h5py.File(path, "a") as file:
        file.attrs.update({"maxsize": room, "_size": length})
    with pytest.raises(DataError, match="describes more steps than it has, 14"):
        list(open_reader(str(path)).parts())


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


def test_tianshou_stacks_frames_with_channels_first(tmp_path):
    values = transitions_of(LIVED)
    values["obs"] = np.random.default_rng(0).integers(0, 256, (14, 3, 8, 9), dtype=np.uint8)
    del values["obs_next"]
    path = tianshou(tmp_path / "a.hdf5", [(14, values, 13, 14)], next_obs=False, stack=2)
    dataset = RecordedEpisodes(open_reader(str(path)))
    image = np.concatenate([rows["obs/image"] for rows in dataset.parts()])[1]
    assert (image == np.concatenate([values["obs"][0], values["obs"][1]]).transpose(1, 2, 0)).all()


def test_noisy_outputs_of_a_policy_keep_its_bounds(tmp_path):
    """Tianshou stores an action before it is clipped to [-1, 1] and scaled."""
    values = transitions_of(LIVED)
    values["act"] = np.linspace(-1.3, 1.3, 14, dtype=np.float32)[:, None]
    path = tianshou(tmp_path / "a.hdf5", [(14, values, 13, 14)])
    dataset = RecordedEpisodes(open_reader(str(path)), action_space=spaces.Box(-2, 2, (1,)))
    rows = joined(dataset.parts())
    assert (rows["action"][~rows["is_last"]] == values["act"].clip(-1, 1)).all()


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


def test_a_buffer_holds_actions_of_policies_and_has_room_for_one_more_step(tmp_path):
    """Bounds of actions are declared; ``load_hdf5`` reads the attributes as they are."""
    box = spaces.Box(np.float32([0, -2]), np.float32([4, 2]))
    at, target = np.arange(6), tmp_path / "buffer.hdf5"
    action = np.float32([[1, 2], [2, 0], [3, -1], [0, 0], [4, 1], [0, 0]])
    rows = {"obs": at[:, None] + np.float32(0.5), "action": action, "reward": np.float32(at)}
    rows |= {"is_first": at == 0, "is_last": at == 5, "is_terminal": at == 5}
    info = DatasetInfo(observation=spaces.Box(-9, 9, (1,)), action=box, env="Count-v0")
    assert write_tianshou([rows], target, info).steps == 5
    with h5py.File(target) as file:
        assert file["_meta/act"][:5].tolist() == [[-0.5, 1], [0, 0], [0.5, -0.5], [-1, 0], [1, 0.5]]
        assert file["_meta/done"][:].tolist() == [False, False, False, False, True, False]
        assert {name: file.attrs[name] for name in ("maxsize", "_size", "_insertion_idx")} == {
            "maxsize": 6, "_size": 5, "_insertion_idx": 5,
        }  # fmt: skip
        assert (file["last_index"][:].tolist(), file["_indices"].shape) == ([4], (6,))
        kinds = {name: item.attrs["__data_type__"] for name, item in file["_meta"].items()}
        assert {name for name, kind in kinds.items() if kind == "Batch"} == {"info", "policy"}
    reader = open_reader(str(target))
    assert_same(joined(reader.parts()), rows)
    assert (reader.info().action, reader.info().env, reader.remarks()) == (box, "Count-v0", [])
