"""Stores and runs as datasets."""

import json
import re

import numpy as np
import pytest
import yaml

from formats import PART, SPEC, cut, named, stored
from recordings import LIVED, Lived, check
from reverie.core.errors import DataError
from reverie.datasets import own_store as reader_file
from reverie.datasets.convert import write
from reverie.datasets.detect import open_reader
from reverie.datasets.own_store import StoreReader
from reverie.store import zarr
from reverie.store.episodes import LOST


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(zarr, "CHUNK_BYTES", 64)  # eight rows of what is seen
    monkeypatch.setattr(reader_file, "PART_BYTES", 150)


def test_rows_of_a_run(tmp_path):
    two = [named([Lived(1, 3), Lived(2, 4)]), named([Lived(3, 5, "truncated"), Lived(4, 2)])]
    stored(tmp_path / "run/replay", two)
    (tmp_path / "run/config.yaml").write_text(
        yaml.safe_dump({"algorithm": "sac", "experiment": {"env": {"id": "Ant-v5", "frame_stack": 2}}})
    )
    (tmp_path / "run/spec.json").write_text(json.dumps(SPEC))
    lived = [Lived(1, 3), Lived(2, 4), Lived(3, 5, "truncated"), Lived(4, 2)]
    for place in ("run", "run/replay"):
        reader = open_reader(str(tmp_path / place))
        assert isinstance(reader, StoreReader)
        check(reader, named(lived))
        about = reader.about()
        assert (about.env, about.text) == ("Ant-v5", {"algorithm": "sac"})
        assert about.env_settings == {"id": "Ant-v5", "frame_stack": 2}
        assert about.specs is not None
        assert about.specs[0]["vec"].shape == (2,)
        assert about.specs[1].parts["action"].kind == "continuous"
    assert not reader.remarks()


def test_the_environment_of_a_run_in_an_object_has_no_name(tmp_path):
    """A class or an instance may have changed the environment that is registered under its id."""
    stored(tmp_path / "replay", [named(LIVED)])
    env = {"id": "Pendulum-v1", "clip_reward": "sign"}
    saved = {"algorithm": "sac", "custom": {"env": "Pendulum-v1"}, "experiment": {"env": env}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(saved))
    reader = open_reader(str(tmp_path))
    assert reader.env_id() == reader.about().env == ""
    assert reader.about().env_settings == {"clip_reward": "sign"}
    assert reader.remarks() == [reader_file.OBJECT.format("Pendulum-v1")]
    write(reader, str(tmp_path / "copy"), "parquet")
    assert reader_file.NAMELESS.format("the data do not name one") in reader.remarks()
    assert open_reader(str(tmp_path / "copy")).about().env == ""


def test_what_was_still_going_on_is_cut_off_and_what_has_no_beginning_left_out(tmp_path):
    rows = named([Lived(1, 5), Lived(2, 3), Lived(3, 6)])
    stored(tmp_path, [cut(rows, 2, 14)])  # from the middle of the first to the middle of the third
    reader = open_reader(str(tmp_path))
    truth = named([Lived(2, 3), Lived(3, 3, "truncated")])
    check(reader, truth)
    assert set(reader.remarks()) == {LOST, reader_file.OPEN}


def test_damaged_rows_are_left_out_and_named(tmp_path):
    lived = [Lived(1, 5), Lived(2, 12), Lived(3, 5)]
    stored(tmp_path, [named(lived)])
    (file,) = tmp_path.glob("0-*/action/c.0.1.0")
    file.write_bytes(b"?")  # rows 8 to 15
    reader = open_reader(str(tmp_path))
    found = list(reader.parts())
    kept = np.concatenate([part["obs/vec"] for part in found])
    assert kept[:, 0].tolist() == [1.0] * 6 + [2.0] * 2 + [3.0] * 6
    assert any("/action/c.0.1.0" in line for line in reader.remarks())


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("id", "Ant-v5", "Ant-v4"),
        ("clip_reward", "sign", "none"),
        ("action_repeat", 1, 4),
        ("kwargs", {"ctrl_cost_weight": 0.5}, {}),
        ("time_limit", 100, 200),
    ],
)
def test_runs_of_one_dataset_were_recorded_with_the_same_settings(tmp_path, name, one, other):
    for run, value in {"a": one, "b": one, "c": other}.items():
        stored(tmp_path / run / "replay", [named(LIVED)])
        env = {"id": "Ant-v5", "noop_max": len(str(value)), name: value}
        (tmp_path / run / "config.yaml").write_text(yaml.safe_dump({"experiment": {"env": env}}))
        (tmp_path / run / "spec.json").write_text(json.dumps(SPEC))
    assert open_reader(str(tmp_path / "[ab]")).about().env_settings[name] == one
    values = [re.escape(str(value)) for value in (other, one)]
    said = rf"c has the environment {{'{name}': .*{values[0]}.* others have {{'{name}': .*{values[1]}.*}}:"
    with pytest.raises(DataError, match=said):
        open_reader(str(tmp_path)).about()


def test_a_converted_store_in_the_folder_of_a_run_keeps_its_own_environment(tmp_path):
    stored(tmp_path / "run/mine", [named(LIVED)])
    (tmp_path / "run/mine/about.json").write_text(json.dumps({"env": {"id": "Ant-v5"}}))
    (tmp_path / "run/mine/spec.json").write_text(json.dumps(SPEC))
    other = {"algorithm": "sac", "experiment": {"env": {"id": "Other-v0"}}}
    (tmp_path / "run/config.yaml").write_text(yaml.safe_dump(other))
    (tmp_path / "run/spec.json").write_text(json.dumps({**SPEC, "observation": {"vec": {**PART, "kind": "image"}}}))
    reader = open_reader(str(tmp_path / "run/mine"))
    assert (reader.env_id(), reader.about().env, reader.about().text) == ("Ant-v5", "Ant-v5", {})
    assert reader.about().specs[0]["vec"].kind == "vector"


def test_without_a_spec(tmp_path):
    stored(tmp_path, [named(LIVED)])
    obs, action = open_reader(str(tmp_path)).about().specs
    assert obs["vec"].kind == "vector"
    assert (action.parts["action"].kind, action.width) == ("continuous", 1)
