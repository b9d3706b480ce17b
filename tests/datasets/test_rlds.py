"""RLDS datasets as TensorFlow Datasets stores them, written by hand."""

import io
import json
import tracemalloc
import zlib

import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

import formats
from recordings import joined
from reverie.core.errors import DataError
from reverie.datasets.format_detection import open_reader
from reverie.datasets.transitions import UNMARKED

TENSOR = {"state": ([3], "float32"), "action": ([2], "float32"), "reward": ([], "float32"), "is_last": ([], "bool"),
          "is_terminal": ([], "bool")}  # fmt: skip


def described(shape, dtype, kind="tensor", **more):
    return {kind: {"shape": {"dimensions": [str(n) for n in shape]} if shape else {}, "dtype": dtype, **more}}


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def episode(images, rewards, *, terminal):
    """The record of an episode whose step t has the state [t, t, t] and the action [t, -t] / 8."""
    n = len(images)
    return {
        "steps/observation/image": [png(image) for image in images],
        "steps/observation/state": np.repeat(np.arange(float(n)), 3).tolist(),
        "steps/action": (np.stack([np.arange(n), -np.arange(n)], 1) / 8).ravel().tolist(),
        "steps/reward": rewards,
        "steps/is_last": [0] * (n - 1) + [1],
        "steps/is_terminal": [0] * (n - 1) + [int(terminal)],
        "steps/language_instruction": [b"pick up the block"] * n,
        "episode_metadata/file_path": [b"/data/0.h5"],
    }


def describe(folder, **observation):
    """Write the features of steps with these observations."""
    parts = {name: described(*TENSOR[name]) for name in TENSOR}
    image = described([4, 5, 3], "uint8", "image", encodingFormat="png")
    default = {"state": parts.pop("state"), "image": image}
    parts["observation"] = {"featuresDict": {"features": default | observation}}
    parts["language_instruction"] = {"text": {}}
    steps = {"sequence": {"feature": {"featuresDict": {"features": parts}}, "length": "-1"}}
    metadata = {"featuresDict": {"features": {"file_path": {"text": {}}}}}
    features = {"featuresDict": {"features": {"steps": steps, "episode_metadata": metadata}}}
    (folder / "features.json").write_text(json.dumps(features))


@pytest.fixture
def folder(tmp_path):
    describe(tmp_path)
    return tmp_path


def shard(folder, number, *records, split="train"):
    return formats.shard(folder / f"lift-{split}.tfrecord-{number:05}-of-00002", records, zipped=False)


def test_episodes_become_rows(folder):
    images = np.random.default_rng(0).integers(0, 256, (7, 4, 5, 3), np.uint8)
    shard(folder, 0, episode(images[:4], [0.5, 1.0, 2.0, np.nan], terminal=True))
    shard(folder, 1, episode(images[4:], [0.0, 0.0, 1.0], terminal=False))
    shard(folder, 0, episode(images[:3], [9.0, 9.0, 0.0], terminal=False), split="val")
    reader = open_reader(str(folder))
    info, rows = reader.info(), joined(reader.parts())
    assert info.observation["image"] == spaces.Box(0, 255, (4, 5, 3), np.uint8)
    assert info.observation["state"].shape == (3,)
    assert info.action == spaces.Box(-1, 1, (2,), np.float32)
    assert reader.rows() == len(rows["reward"]) == 8
    np.testing.assert_array_equal(rows["obs/image"], images[[0, 1, 2, 3, 4, 5, 6, 6]])
    assert rows["obs/state"][:, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 2]
    assert (8 * rows["action"]).tolist() == [[0, 0], [1, -1], [2, -2], [0, 0]] * 2
    assert rows["reward"].tolist() == [0, 0.5, 1, 2, 0, 0, 0, 1]
    assert np.flatnonzero(rows["is_first"]).tolist() == [0, 4]
    assert np.flatnonzero(rows["is_last"]).tolist() == [3, 7]
    assert np.flatnonzero(rows["is_terminal"]).tolist() == [3]
    remarks = " ".join(reader.remarks())
    assert "only the split 'train' is read, not val" in remarks
    assert "the last step of an episode has a reward" in remarks


def test_a_shard_alone_and_damaged_ones(folder):
    images = np.zeros((3, 4, 5, 3), np.uint8)
    path = shard(folder, 0, episode(images, [1.0, 0.0, 0.0], terminal=False))
    assert open_reader(str(path)).rows() == 3
    shard(folder, 1, episode(images, [1.0, 0.0], terminal=False))
    with pytest.raises(DataError, match=r"00001-of-00002, episode 0: steps/reward has 2 values for 3 steps"):
        open_reader(str(folder)).rows()
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match="00000-of-00002 is incomplete"):
        open_reader(str(folder)).rows()


@pytest.mark.parametrize(("encoding", "encode"), [("bytes", bytes), ("zlib", zlib.compress)])
@pytest.mark.parametrize("size", [1, 3])
def test_numbers_stored_as_bytes(tmp_path, encoding, encode, size):
    describe(tmp_path, state=described([size], "float32", encoding=encoding))
    states = np.arange(3 * size, dtype=np.float32).reshape(3, size)
    record = episode(np.zeros((3, 4, 5, 3), np.uint8), [1.0, 2.0, 0.0], terminal=True)
    record["steps/observation/state"] = [encode(state.tobytes()) for state in states]
    shard(tmp_path, 0, record)
    np.testing.assert_array_equal(joined(open_reader(str(tmp_path)).parts())["obs/state"], states)


@pytest.mark.parametrize(("shape", "message"), [([3], "cannot be read"), ([-1], "expected fixed sizes")])
def test_decompression_is_bounded(tmp_path, shape, message):
    describe(tmp_path, state=described(shape, "uint8", encoding="zlib"))
    record = episode(np.zeros((1, 4, 5, 3), np.uint8), [0.0], terminal=True)
    record["steps/observation/state"] = [zlib.compress(bytes(2**24))]
    shard(tmp_path, 0, record)
    tracemalloc.start()
    with pytest.raises(DataError, match=f"episode 0: steps/observation/state.*{message}"):
        list(open_reader(str(tmp_path)).parts())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_images_become_as_declared(tmp_path):
    kinds = {"gray": ([4, 5, 1], "uint8"), "color": ([4, 5, 3], "uint8"), "depth": ([4, 5, 1], "float32")}
    describe(tmp_path, **{name: described(*kinds[name], "image") for name in kinds})
    gray = np.random.default_rng(0).integers(0, 256, (3, 4, 5), np.uint8)
    color = np.repeat(gray[..., None], 4, axis=-1)
    depth = np.random.default_rng(1).normal(size=(3, 4, 5, 1)).astype(np.float32)
    record = episode(gray, [1.0, 2.0, 0.0], terminal=True)
    record |= {
        "steps/observation/gray": [png(pixels) for pixels in color[..., :3]],
        "steps/observation/color": [png(pixels) for pixels in color],
        "steps/observation/depth": [png(pixels.view(np.uint8)) for pixels in depth],
    }
    shard(tmp_path, 0, record)
    rows = joined(open_reader(str(tmp_path)).parts())
    for name, truth in {
        "image": color[..., :3],
        "gray": gray[..., None],
        "color": color[..., :3],
        "depth": depth,
    }.items():
        np.testing.assert_array_equal(rows[f"obs/{name}"], truth)
    record["steps/observation/gray"] = [png(pixels.astype(np.uint16)) for pixels in gray]
    shard(tmp_path, 0, record)
    with pytest.raises(DataError, match="the image has 16 bits, not 8 as declared"):
        list(open_reader(str(tmp_path)).parts())


def test_labels_and_sequences_are_read_and_the_rest_is_named(tmp_path):
    """As TFDS 4.9 stores them: a sequence in a step under its flat values."""
    label, text = {"classLabel": {"numClasses": "4"}}, {"text": {}}
    scalar, image = described([], "float32"), described([4, 5, 3], "uint8", "image")
    parts = {"history": (scalar, 3), "phases": (label, 2), "frames": (image, 2), "tokens": (scalar, -1)}
    sequences = {name: {"sequence": {"feature": part, "length": str(n)}} for name, (part, n) in parts.items()}
    describe(tmp_path, phase=label, words=text, **sequences)
    images = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), np.uint8)
    record = episode(images, [1.0, 2.0, 0.0], terminal=True)
    record["steps/observation/phase"] = [3, 0, 1]
    record["steps/observation/history/ragged_flat_values"] = np.arange(9.0).tolist()
    record["steps/observation/phases/ragged_flat_values"] = [0, 1, 2, 3, 0, 1]
    record["steps/observation/frames/ragged_flat_values"] = [png(images[k]) for k in (0, 1, 1, 2, 2, 0)]
    shard(tmp_path, 0, record)
    reader = open_reader(str(tmp_path))
    info, rows = reader.info(), joined(reader.parts())
    assert info.observation["phase"] == spaces.Discrete(4)
    assert info.observation["phases"] == spaces.MultiDiscrete([4, 4])
    assert info.observation["history"].shape == (3,)
    assert rows["obs/phase"].tolist() == [3, 0, 1]
    assert rows["obs/history"].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert rows["obs/phases"].tolist() == [[0, 1], [2, 3], [0, 1]]
    np.testing.assert_array_equal(rows["obs/frames"], images[[[0, 1], [1, 2], [2, 0]]])
    left_out = "left out: obs/words, obs/tokens, language_instruction, episode_metadata"
    assert left_out in " ".join(reader.remarks())


def test_a_label_is_a_discrete_action(tmp_path):
    describe(tmp_path)
    features = json.loads((tmp_path / "features.json").read_text())
    steps = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    steps["action"] = {"classLabel": {"numClasses": "5"}}
    (tmp_path / "features.json").write_text(json.dumps(features))
    record = episode(np.zeros((3, 4, 5, 3), np.uint8), [1.0, 2.0, 0.0], terminal=True)
    shard(tmp_path, 0, record | {"steps/action": [3, 1, 0]})
    reader = open_reader(str(tmp_path))
    assert (reader.info().action, reader.info().has_measured_bounds) == (spaces.Discrete(5), False)
    assert joined(reader.parts())["action"].tolist() == [3, 1, 0]
    for path in tmp_path.glob("*.tfrecord*"):
        path.rename(str(path).replace("tfrecord", "array_record"))
    with pytest.raises(DataError, match=r"no TFRecord shards, but .*array_record"):
        open_reader(str(tmp_path))


def test_flags_that_are_missing_or_early_and_shards_that_are_missing_are_named(folder):
    images = np.zeros((4, 4, 5, 3), np.uint8)
    record = episode(images, [1.0, 1.0, 1.0, 0.0], terminal=False)
    shard(folder, 0, record | {"steps/is_last": [0, 1, 0, 1], "steps/is_terminal": [0, 1, 0, 0]})
    splits = [{"name": "train", "shardLengths": ["2", "3"]}]
    (folder / "dataset_info.json").write_text(json.dumps({"splits": splits}))
    with open_reader(str(folder)) as reader:
        list(reader.parts())
        for remark in (
            "only 1 of the 2 files",
            "declares 5 episodes, but there are 1",
            "has is_last before its last step",
            "has is_terminal before its last",
        ):
            assert any(remark in line for line in reader.remarks())
    description = json.loads((folder / "features.json").read_text())
    steps = description["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    del steps["is_terminal"], steps["is_last"]
    (folder / "features.json").write_text(json.dumps(description))
    shard(folder, 0, {name: values for name, values in record.items() if not name.startswith("steps/is_")})
    with open_reader(str(folder)) as reader:
        assert len(joined(reader.parts())["reward"]) == 4
        assert UNMARKED in reader.remarks()
