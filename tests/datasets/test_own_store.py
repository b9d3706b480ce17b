"""Stores and runs as datasets."""

import json
import re

import pytest
import yaml

from formats import SPEC, named, stored
from recordings import LIVED, Lived, check
from reverie.core.errors import DataError
from reverie.datasets import replay_store as reader_file
from reverie.datasets.format_detection import open_reader
from reverie.datasets.replay_store import StoreReader
from reverie.store import zarr
from reverie.store.store import FIRST_ROW_MISSING


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(zarr, "CHUNK_BYTES", 64)  # eight rows of what is seen
    monkeypatch.setattr(reader_file, "PART_BYTES", 150)


def test_rows_of_a_run(tmp_path):
    lived, env = [Lived(1, 3), Lived(2, 4), Lived(3, 5, "truncated"), Lived(4, 2)], {"id": "Ant-v5", "frame_stack": 2}
    stored(tmp_path / "run/replay", [named(lived[:2]), named(lived[2:])])
    (tmp_path / "run/config.yaml").write_text(yaml.safe_dump({"algorithm": "sac", "experiment": {"env": env}}))
    (tmp_path / "run/spec.json").write_text(json.dumps(SPEC))
    for place in ("run", "run/replay"):
        reader = open_reader(str(tmp_path / place))
        assert isinstance(reader, StoreReader)
        check(reader, named(lived))
        about = reader.info()
        assert (about.env, about.text, about.env_settings) == ("Ant-v5", {"algorithm": "sac"}, env)
        assert (about.specs[0]["vec"].shape, about.specs[1].parts["action"].kind) == ((2,), "continuous")
    assert not reader.remarks()


def test_what_was_still_going_on_is_cut_off_and_what_has_no_beginning_left_out(tmp_path):
    rows = named([Lived(1, 5), Lived(2, 3), Lived(3, 6)])  # from the middle of the first to the middle of the third
    stored(tmp_path, [{name: values[2:14] for name, values in rows.items()}])
    reader = open_reader(str(tmp_path))
    check(reader, named([Lived(2, 3), Lived(3, 3, "truncated")]))
    assert set(reader.remarks()) == {FIRST_ROW_MISSING, reader_file.OPEN_EPISODE, reader_file.NO_METADATA}


@pytest.mark.parametrize(("name", "one", "other"), [
    ("action_repeat", 1, 4), ("kwargs", {"weight": 0.5}, {}), ("truncate_at_limit", False, True),
    ("fire_on_reset", False, True),
])  # fmt: skip
def test_runs_of_one_dataset_were_recorded_with_the_same_settings(tmp_path, name, one, other):
    for run, value in {"a": one, "b": one, "c": other}.items():
        stored(tmp_path / run / "replay", [named(LIVED)])
        env = {"id": "Ant-v5", "noop_max": len(str(value)), name: value}
        (tmp_path / run / "config.yaml").write_text(yaml.safe_dump({"experiment": {"env": env}}))
        (tmp_path / run / "spec.json").write_text(json.dumps(SPEC))
    assert open_reader(str(tmp_path / "[ab]")).info().env_settings[name] == one
    values = [re.escape(str(value)) for value in (other, one)]
    said = rf"c has the environment {{'{name}': .*{values[0]}.* others have {{'{name}': .*{values[1]}.*}}:"
    with pytest.raises(DataError, match=said):
        open_reader(str(tmp_path)).info()


def test_a_store_without_metadata_says_so_and_keeps_the_name_of_its_observation(tmp_path):
    stored(tmp_path, [named(LIVED)])
    with open_reader(str(tmp_path)) as reader:
        assert list(reader.info().observation.spaces) == ["vec"]
        assert "obs/vec" in next(reader.as_recorded())
        assert reader.remarks() == [reader_file.NO_METADATA]
