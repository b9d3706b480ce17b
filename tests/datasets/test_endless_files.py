"""Data that would never end or fill the memory: refused by name, and by size unless the user lifts the limit."""

import functools
import gzip
import io
import os
import signal
import zlib
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from gymnasium import spaces
from PIL import Image

import formats
import reverie
from minari_files import buffer
from minari_files import write as write_minari
from recordings import LIVED
from reverie.core.errors import ConfigError, DataError, RunError
from reverie.core.space_json import space_from_json
from reverie.datasets.arrow_values import decode_images
from reverie.datasets.format_detection import open_reader
from reverie.datasets.reader import ReadOptions
from reverie.datasets.tfrecord import TruncatedFileError, iter_tfrecords, parse_tf_example

ROWS = 200_000
SAVED = Path(__file__).parents[1] / "golden" / "sb3"
COLUMNS = {"observations": "obs", "actions": "action", "rewards": "reward", "terminals": "terminal",
           "timeouts": "truncated"}  # fmt: skip
"""Names in the table of the columns of D4RL."""


@pytest.fixture(autouse=True)
def _ends():
    """Let a test that waits forever fail."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", ["x", "x.npz", "x.hdf5", "x.parquet", "x.arrow", "x.csv", "x.tfrecord"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_only_regular_files_are_read(kind, name, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    file = folder / name
    os.mkfifo(file) if kind == "pipe" else file.symlink_to("/dev/zero")
    for path in (file, folder, folder / "*")[: None if "." in name else 1]:
        with pytest.raises(RunError, match=f"{name} is (not a regular file|neither a file|a link to /dev/zero)"):
            list(open_reader(str(path)).parts())


def test_only_regular_files_of_a_dataset_in_a_folder_are_read(tmp_path):
    write_minari(tmp_path / "d", [buffer(e) for e in LIVED], action=spaces.Box(-2, 4, (1,), np.float32))
    file = tmp_path / "d" / "data" / "main_data.hdf5"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(RunError, match=r"main_data.hdf5 is neither a file nor a folder"):
        open_reader(str(tmp_path / "d"))


@pytest.mark.parametrize("flag", ["file", "vecnormalize"])
def test_pipes_are_no_agents(flag, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    files = {"file": SAVED / "ppo_cartpole.zip", "vecnormalize": None} | {flag: tmp_path / "pipe"}
    with pytest.raises(RunError, match="is not a regular file"):
        reverie.import_sb3(files["file"], "CartPole-v1", vecnormalize=files["vecnormalize"], run=tmp_path / "run")
    with pytest.raises(RunError, match="is a file: expected a run folder"):
        reverie.load(tmp_path / "pipe")


def zeros():
    """The columns of an episode of zeros, which almost any compression makes small."""
    columns = {"observations": np.zeros((ROWS, 4), np.float32), "actions": np.zeros((ROWS, 1), np.float32)}
    columns |= {"rewards": np.zeros(ROWS, np.float32)}
    return columns | {name: np.arange(ROWS) == ROWS - 1 for name in ("terminals", "timeouts")}


def write_npz(file):
    np.savez_compressed(file, **zeros())


def write_hdf5(file):
    with h5py.File(file, "w") as opened:
        for name, values in zeros().items():
            opened.create_dataset(name, data=values, compression="gzip")


def table_of_zeros():
    return pa.table({COLUMNS[name]: pa.array(list(values)) for name, values in zeros().items()})


def write_parquet(file):
    pyarrow.parquet.write_table(table_of_zeros(), file)


def write_arrow(file):
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(file, (table := table_of_zeros()).schema, options=options) as writer:
        writer.write_table(table)


def write_tfrecord(file):
    padded = [transition | {"more": [bytes(500_000)]} for transition in formats.transitions(LIVED)]
    formats.shard(file, padded)


@pytest.mark.parametrize("write", [write_npz, write_hdf5, write_parquet, write_arrow, write_tfrecord])
def test_what_expands_to_too_many_bytes_is_refused(write, tmp_path, monkeypatch):
    monkeypatch.setattr("reverie.core.files.MAX_EXPANDED", 1_000_000)
    monkeypatch.setattr("reverie.core.files.MAX_RATIO", 5)
    file = tmp_path / f"x.{write.__name__.removeprefix('write_')}"
    write(file)
    is_table = write in (write_parquet, write_arrow)
    options = ReadOptions(columns={name: name for name in COLUMNS.values()} if is_table else {})

    def read():
        return sum(len(part["reward"]) for part in open_reader(str(file), options).parts())

    with pytest.raises(RunError, match=r"expands to [\d,]+: .* the environment variable REVERIE_MAX_EXPANDED_GB=1"):
        read()
    monkeypatch.setenv("REVERIE_MAX_EXPANDED_GB", "many")
    with pytest.raises(ConfigError, match="REVERIE_MAX_EXPANDED_GB = 'many': expected a number"):
        read()
    monkeypatch.setenv("REVERIE_MAX_EXPANDED_GB", "1")
    assert read() > 0


def test_no_batch_of_an_arrow_file_is_expanded_before_all_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("reverie.core.files.MAX_EXPANDED", 1_000_000)
    monkeypatch.setattr("reverie.core.files.MAX_RATIO", 5)
    write_arrow(tmp_path / "x.arrow")
    for name in ("open_file", "open_stream"):
        monkeypatch.setattr(pa.ipc, name, lambda _: pytest.fail("it is expanded"))
    with pytest.raises(RunError, match="expands to"):
        open_reader(str(tmp_path / "x.arrow"), ReadOptions(columns={name: name for name in COLUMNS.values()}))


@pytest.mark.parametrize("record", [bytes(9), b"\x08" + b"\xff" * 20, b"\x0a\xff"])
def test_a_record_that_is_no_example_is_damage(record):
    with pytest.raises(TruncatedFileError, match=r"a record is not a tf\.Example"):
        parse_tf_example(record)


@pytest.mark.parametrize("records", [[b"\x0a\x00" * 70_000], [b""] * 1001])
def test_many_empty_values_or_records_are_refused(records, tmp_path, monkeypatch):
    """An empty value takes two bytes in a file and 16 in memory; an empty record takes time."""
    monkeypatch.setattr("reverie.core.files.MAX_EXPANDED", 1_000_000)
    (tmp_path / "x").write_bytes(gzip.compress(b"".join(map(formats.framed, records))))
    with pytest.raises(RunError, match="expands to"):
        list(iter_tfrecords(tmp_path / "x"))


def test_an_index_of_other_batches_than_there_are_is_damage(tmp_path):
    batch, files = table_of_zeros().to_batches()[0], [tmp_path / name for name in ("one.arrow", "two.arrow")]
    for count, file in enumerate(files, 1):
        with pa.ipc.new_file(file, batch.schema) as writer:
            for _ in range(count):
                writer.write_batch(batch)
    one, two = (file.read_bytes() for file in files)
    index = int.from_bytes(one[-10:-6], "little") + 10  # its last bytes: the index, its length, and ARROW1
    files[1].write_bytes(two[: -int.from_bytes(two[-10:-6], "little") - 10] + one[-index:])
    with pytest.raises(DataError, match=r"its index ends at byte [\d,]+, before its content: it seems damaged"):
        open_reader(str(files[1]), ReadOptions(columns={name: name for name in COLUMNS.values()}))


def test_a_chunk_of_hdf5_that_expands_beyond_its_own_bytes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("reverie.datasets.hdf5.LARGE_CHUNK", 100)
    write_hdf5(tmp_path / "x.hdf5")
    assert open_reader(str(tmp_path / "x.hdf5")).rows() > ROWS
    with h5py.File(tmp_path / "x.hdf5", "a") as file:
        file["observations"].id.write_direct_chunk((0, 0), zlib.compress(bytes(10**7)))
    with pytest.raises(DataError, match="'/observations' has a chunk that expands to more bytes than it has"):
        open_reader(str(tmp_path / "x.hdf5"))
    with h5py.File(tmp_path / "x.hdf5", "a") as file:
        del file["observations"]
        file.create_dataset("observations", (10**8, 1), np.uint8, chunks=(1, 1))
    with pytest.raises(DataError, match="'/observations': 100,000,000 of 100,000,000 chunks are missing"):
        open_reader(str(tmp_path / "x.hdf5"))


def test_groups_in_groups_in_groups_are_refused_before_they_are_walked(tmp_path):
    write_hdf5(tmp_path / "x.hdf5")
    with h5py.File(tmp_path / "x.hdf5", "a") as file:
        file.create_group("g/" * 3000)
    with pytest.raises(DataError, match="has groups inside each other: expected at most 100"):
        open_reader(str(tmp_path / "x.hdf5"))


@pytest.mark.parametrize("space", [
    {"type": "Box", "dtype": "float32", "shape": [10**10], "low": 0, "high": 1}, {"type": "MultiBinary", "n": 10**10},
    {"type": "MultiDiscrete", "shape": [10**5, 10**5], "nvec": 2},
    functools.reduce(lambda inner, _: {"type": "Tuple", "subspaces": [inner]}, range(2000), {}),
])  # fmt: skip
def test_a_space_that_would_fill_the_memory_is_refused(space):
    with pytest.raises(DataError, match="cannot read a space"):
        space_from_json(space, "the file")


def test_a_picture_of_many_pixels_is_refused(monkeypatch):
    monkeypatch.setattr("reverie.core.files.MAX_EXPANDED", 10**5)
    Image.new("L", (1000, 1000)).save(content := io.BytesIO(), "PNG")
    with pytest.raises(RunError, match=r"the column has .* and expands to 1,000,000"):
        decode_images([content.getvalue()], "the column")


def test_links_out_of_a_folder_are_refused_but_those_of_the_hub(tmp_path):
    hub = tmp_path / "datasets--me--poles"
    for name in ("blobs", "snapshots/1"):
        (hub / name).mkdir(parents=True)
    write_npz(hub / "blobs" / "x.npz")
    (hub / "snapshots/1/x.npz").symlink_to("../../blobs/x.npz")
    assert open_reader(str(hub / "snapshots/1")).rows() > ROWS
    (hub / "snapshots/1/config.yaml").touch()
    (hub / "snapshots/1/wandb").symlink_to(tmp_path)
    with pytest.raises(RunError, match="1/wandb is a link to"):
        open_reader(str(hub / "snapshots/1"))


def test_links_in_a_circle_are_refused(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    write_npz(tmp_path / "a" / "b" / "x.npz")
    assert open_reader(f"{tmp_path}/**/*.npz").rows() > ROWS
    for name in ("up", "again"):
        (tmp_path / "a" / "b" / name).symlink_to(tmp_path / "a")
    with pytest.raises(DataError, match=r"leads to .*/a, which another path reaches, too"):
        open_reader(f"{tmp_path}/**/*.npz")
