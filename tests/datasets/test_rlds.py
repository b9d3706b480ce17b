"""RLDS datasets as TensorFlow Datasets stores them, written by hand."""

import io
import json

import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

import formats
from recordings import joined
from reverie.core.errors import DataError
from reverie.datasets.format_detection import open_reader

TENSOR = {"state": ([3], "float32"), "action": ([2], "float32"), "reward": ([], "float32"), "is_last": ([], "bool"),
          "is_terminal": ([], "bool")}  # fmt: skip


def described(shape, dtype):
    return {"tensor": {"shape": {"dimensions": [str(n) for n in shape]} if shape else {}, "dtype": dtype}}


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


@pytest.fixture
def folder(tmp_path):
    parts = {name: described(*TENSOR[name]) for name in TENSOR}
    image = {"image": {"shape": {"dimensions": ["4", "5", "3"]}, "dtype": "uint8", "encodingFormat": "png"}}
    parts["observation"] = {"featuresDict": {"features": {"state": parts.pop("state"), "image": image}}}
    parts["language_instruction"] = {"text": {}}
    steps = {"sequence": {"feature": {"featuresDict": {"features": parts}}, "length": "-1"}}
    metadata = {"featuresDict": {"features": {"file_path": {"text": {}}}}}
    features = {"featuresDict": {"features": {"steps": steps, "episode_metadata": metadata}}}
    (tmp_path / "features.json").write_text(json.dumps(features))
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
