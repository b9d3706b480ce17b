"""Files of every format, written by hand."""

import gzip
import io
import itertools
import json
import pickle
import struct
from functools import partial
from typing import NamedTuple

import google_crc32c
import h5py
import numcodecs
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import zarr
from PIL import Image

from d4rl_files import cat, columns
from d4rl_files import write as write_d4rl
from recordings import LIVED, expected
from reverie.core.columns import ColumnSpec
from reverie.datasets.format_detection import open_reader
from reverie.datasets.reader import ReadOptions
from reverie.store.store import ReplayStore

SIDE = 6
COLUMNS = {
    "obs/vec": ColumnSpec((2,), "float32"),
    "action": ColumnSpec((1,), "float32"),
    "reward": ColumnSpec((), "float32"),
    "is_first": ColumnSpec((), "bool"),
    "is_last": ColumnSpec((), "bool"),
    "is_terminal": ColumnSpec((), "bool"),
}
PART = {"kind": "vector", "shape": [2], "dtype": "float32", "classes": [], "low": 0.0, "high": 255.0}
SPEC = {"observation": {"vec": PART}, "action": {"action": {"kind": "continuous", "classes": [], "size": 1}}}


def tianshou(path, rings, *, next_obs=True, stack=1, extra=None):
    """A buffer as ``save_hdf5`` writes it. ``rings``: of each (maxsize, transitions by place, last_index, length)."""
    with h5py.File(path, "w") as file:
        meta = file.create_group("_meta")
        meta.attrs["__data_type__"] = "Batch"
        arrays = {}
        for maxsize, placed, _, _ in rings:
            for name, value in placed.items():
                room = np.full((maxsize, *value.shape[1:]), 77, value.dtype)  # what was never written
                room[: len(value)] = value
                arrays.setdefault(name, []).append(room)
        for name, values in arrays.items():
            if name == "obs_next" and not next_obs:
                continue
            meta.create_dataset(name, data=np.concatenate(values)).attrs["__data_type__"] = "ndarray"
        meta.create_group("info").attrs["__data_type__"] = "Batch"
        total = sum(ring[0] for ring in rings)
        file.attrs["maxsize"], file.attrs["stack_num"] = total, stack
        junk = np.frombuffer(pickle.dumps(object()), np.byte)
        file.create_dataset("_random_state", data=junk).attrs["__data_type__"] = "RandomState"
        if len(rings) > 1:
            edges = np.cumsum([0, *(ring[0] for ring in rings)])
            said = {"_extend_offset": edges, "_offset": edges[:-1], "_lengths": np.array([r[3] for r in rings])}
            said["last_index"] = np.array([start + r[2] for start, r in zip(edges, rings, strict=False)])
            file.create_dataset("buffers", data=junk).attrs["__data_type__"] = "pickled_ndarray"
        else:
            maxsize, _, newest, length = rings[0]
            file.attrs["_size"], file.attrs["_insertion_idx"] = length, (newest + 1) % maxsize
            said = {"last_index": np.array([newest])}
        for name, value in said.items():
            file.create_dataset(name, data=value).attrs["__data_type__"] = "ndarray"
        if extra:
            extra(file)
    return path


def transitions_of(lived):
    values = columns(lived)
    names = {"obs": "observations", "obs_next": "next_observations", "act": "actions", "rew": "rewards",
             "terminated": "terminals", "truncated": "timeouts"}  # fmt: skip
    out = {name: values[theirs] for name, theirs in names.items()}
    return out | {"done": out["terminated"] | out["truncated"]}


def rotated(values, by):
    return {name: np.roll(value, by, axis=0) for name, value in values.items()}


def masked(data):
    """The checksum of a record, as four bytes."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)


def framed(body):
    length = struct.pack("<Q", len(body))
    return length + masked(length) + body + masked(body)


def number(value):
    value %= 2**64
    out = bytearray()
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes([*out, value])


def field(index, body):
    return number(index << 3 | 2) + number(len(body)) + body


def feature(values, packed=True):
    if isinstance(values[0], bytes):
        return field(1, b"".join(field(1, value) for value in values))
    if isinstance(values[0], float):
        each = [struct.pack("<f", value) for value in values]
        return field(2, field(1, b"".join(each)) if packed else b"".join(number(1 << 3 | 5) + e for e in each))
    each = [number(value) for value in values]
    return field(3, field(1, b"".join(each)) if packed else b"".join(number(1 << 3) + e for e in each))


def message(features, packed=True):
    entries = [field(1, field(1, key.encode()) + field(2, feature(v, packed))) for key, v in features.items()]
    return field(1, b"".join(entries))


def png(*pixels):
    """A picture that says which it is in its corner."""
    picture = np.zeros((SIDE, SIDE), np.uint8)
    picture[0, : len(pixels)] = pixels
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def stack(episode, t):
    """Four frames, the oldest first, as an environment that stacks would show them."""
    return [png(episode.number, max(0, time)) for time in range(t - 3, t + 1)]


def transition(episode, t):
    last = t == episode.steps - 1
    return {
        "o_t": stack(episode, t),
        "o_tp1": stack(episode, t + 1),
        "a_t": [episode.choice(t)],
        "a_tp1": [episode.choice(t + 1)],
        "r_t": [episode.reward(t)],
        "d_t": [0.0 if last and episode.end == "terminal" else 1.0],
        "episode_id": [2**63 + episode.number],  # stored as a signed number
        "episode_return": [float(episode.rewards.sum())],
    }


def transitions(lived):
    return [transition(episode, t) for episode in lived for t in range(episode.steps)]


def shard(path, found, *, zipped=True, packed=True):
    data = b"".join(framed(message(features, packed)) for features in found)
    path.write_bytes(gzip.compress(data) if zipped else data)
    return path


def pydreamer_arrays(lived):
    """One file: for each row what was seen, and the action and reward that came before it."""
    rows = expected(lived)
    return {
        "vecobs": np.float32(rows["obs"]),
        "action": np.roll(np.float32(rows["action"]), 1, axis=0),  # of the last row of each episode it is 0
        "reward": np.float32(rows["reward"]),
        "terminal": np.array(rows["is_terminal"]),
        "reset": np.array(rows["is_first"]),
        "policy_value": np.full(len(rows["reward"]), np.nan),
    }


def save_npz(folder, name, values):
    folder.mkdir(exist_ok=True)
    np.savez_compressed(folder / f"{name}.npz", **values)
    return folder


def table_columns(lived=LIVED):
    names = {"observation.state": "observations", "after": "next_observations", "next.reward": "rewards",
             "next.done": "terminals", "timeout": "timeouts"}  # fmt: skip
    values = columns(lived)
    return {name: values[theirs].tolist() for name, theirs in names.items()} | {
        "action": list(values["actions"]),
        "choice": cat("choices", lived).tolist(),
        "episode_index": [e.number for e in lived for _ in range(e.steps)],
    }


def save_table(folder, values, *, kind="stream", pieces=1):
    """As ``datasets.save_to_disk`` (a stream), as an Arrow file, or as Parquet in groups."""
    folder.mkdir(parents=True, exist_ok=True)
    total = len(next(iter(values.values())))
    edges = np.linspace(0, total, pieces + 1).astype(int)
    for i, (start, stop) in enumerate(itertools.pairwise(edges)):
        table = pa.table({name: pa.array(column[start:stop]) for name, column in values.items()})
        name = f"data-{i:05d}-of-{pieces:05d}"
        if kind == "parquet":
            pyarrow.parquet.write_table(table, folder / f"{name}.parquet", row_group_size=4)
            continue
        new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        with pa.OSFile(str(folder / f"{name}.arrow"), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(json.dumps({"_data_files": []}))
    return folder


def named(lived, **how):
    rows = expected(lived, **how)
    return {("obs/vec" if name == "obs" else name): values for name, values in rows.items()}


def stored(folder, streams, begin=True, store=None):
    """Streams of rows ``[n, ...]`` by column, as many of each."""
    store = store or ReplayStore(folder)
    if begin:
        store.begin(COLUMNS, len(streams))
    rows = {n: np.stack([np.asarray(s[n]).astype(c.dtype) for s in streams]) for n, c in COLUMNS.items()}
    store.extend(rows)
    store.close(10)
    return folder


def _minari(folder, where="data"):
    (folder / where).mkdir(parents=True, exist_ok=True)
    space = {"type": "Box", "shape": [1], "low": [-1.0], "high": [1.0], "dtype": "float32"}
    about = {f"{name}_space": json.dumps(space) for name in ("observation", "action")}
    about |= {"data_format": "hdf5", "total_episodes": 1, "total_steps": 1}
    (folder / where / "metadata.json").write_text(json.dumps(about))
    _hdf5(f"{where}/main_data.hdf5", {"episode_0/rewards": np.zeros(1)})(folder)


def _hdf5(name, arrays):
    def write(folder):
        with h5py.File(folder / name, "w") as file:
            for key, values in arrays.items():
                file[key] = values

    return write


def _npz(name, *arrays):
    return lambda folder: np.savez(folder / f"{name}.npz", **{array: np.zeros((1, 1)) for array in arrays})


def _text(name, text="{}"):
    return lambda folder: (folder / name).write_text(text)


def _table(name):
    def write(folder):
        table = pa.table({"obs": [[[0.0], [0.0]]], "acts": [[[0.0]]], "infos": [["{}"]], "terminal": [True]})
        if name.endswith("parquet"):
            return pyarrow.parquet.write_table(table, folder / name)
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return None

    return write


def _all(*writers, inside="."):
    def write(folder):
        (folder / inside).mkdir(exist_ok=True)
        for writer in writers:
            writer(folder / inside)

    return write


def _lerobot(folder):
    (folder / "meta").mkdir()
    (folder / "data").mkdir(exist_ok=True)
    kinds = {"observation.state": "float32", "action": "float32", "episode_index": "int64"}
    features = {name: {"dtype": dtype, "shape": [1]} for name, dtype in kinds.items()}
    about = {"codebase_version": "v2.0", "fps": 10, "features": features}
    (folder / "meta/info.json").write_text(json.dumps(about))
    table = pa.table({name: [0] if dtype == "int64" else [[0.0]] for name, dtype in kinds.items()})
    pyarrow.parquet.write_table(table, folder / "data/episode.parquet")


def _store(folder):
    stored(folder, [named(LIVED[:1])])


def in_d4rl(path, without="", **how):
    values = {name: column for name, column in columns().items() if name != without}
    return write_d4rl(path / "d4rl.hdf5", values, **how)


def several(path):
    return [write_d4rl(path / f"{i}.hdf5", columns([episode])).parent for i, episode in enumerate(LIVED)].pop()


def in_minari(path, storage="hdf5"):
    files = pytest.importorskip("minari_files")
    return files.write(path / "d", [files.buffer(episode) for episode in LIVED], storage=storage)


def dreamer_arrays(lived, before=False):
    """Rows as Dreamer's replay has them; ``before``: each with the action before it, as DreamerV2's."""
    rows = expected(lived)
    arrays = {name: np.array(rows[name]) for name in ("is_first", "is_last", "is_terminal")}
    action = np.float32(rows["action"])
    arrays |= {
        "vec": np.float32(rows["obs"]),
        "reward": np.float32(rows["reward"]),
        "stepid": np.zeros((len(action), 20)),
    }
    return arrays | {"action": np.roll(action, 1, axis=0) if before else action}


def as_chunks(path):
    """Two streams of DreamerV3: one of three chunks, whose second begins within an episode, and one of one chunk."""
    first, last = dreamer_arrays(LIVED[:3]), dreamer_arrays(LIVED[3:])
    edges, ids = (0, 5, 8, 12), ("z", "b", "a", "0")
    for (start, stop), (one, successor) in zip(itertools.pairwise(edges), itertools.pairwise(ids), strict=True):
        values = {name: value[start:stop] for name, value in first.items()}
        save_npz(path / "replay", f"20260101T000000F0-{one}-{successor}-{stop - start}", values)
    save_npz(path / "replay", f"20260101T000001F0-c-0-{len(last['reward'])}", last)
    return path / "replay"


def as_episodes(path):
    for e in LIVED:
        save_npz(path / "episodes", f"2026010{e.number}T0-id{e.number}-{e.steps}", dreamer_arrays([e], before=True))
    return path / "episodes"


def _zarr(folder, lived=LIVED, **more):
    """As diffusion policy's ReplayBuffer, with room for more steps."""
    group = zarr.open_group(folder, mode="a", zarr_format=2)
    steps = columns(lived)
    arrays = {"data/state": steps["observations"], "data/action": steps["actions"]} | more
    arrays["meta/episode_ends"] = np.cumsum([e.steps for e in lived])
    for name, values in arrays.items():
        room = len(values) + 3 * name.startswith("data")
        compressors = numcodecs.Blosc("lz4") if name.startswith("data") else None
        shape, chunks = (room, *values.shape[1:]), (4, *values.shape[1:])
        array = group.create_array(name, shape=shape, chunks=chunks, dtype=values.dtype, compressors=compressors)
        array[:] = np.concatenate([values, np.full((room - len(values), *values.shape[1:]), 77, values.dtype)])
    return folder


def _act(folder, lived=LIVED, **more):
    """As ACT records them: a file for each episode."""
    for e in lived:
        arrays = {"observations/qpos": e.observations[:-1], "action": e.actions}
        _hdf5(f"episode_{e.number}.hdf5", arrays | {name: values[: e.steps] for name, values in more.items()})(folder)
    return folder


write_act, write_zarr = _act, _zarr


def one_by_one(path):
    for episode in LIVED:
        save_npz(path / "npz", f"ep{episode.number:06}_000000-r0-0001", pydreamer_arrays([episode]))
    return path / "npz"


def a_run(path):
    stored(path / "run/replay", [named(LIVED)])
    (path / "run/spec.json").write_text(json.dumps(SPEC))
    return path / "run"


def as_lists(path):
    rows = {"o": "observations", "a": "actions", "r": "rewards", "t": "terminals"}
    return save_table(path / "t", {k: [getattr(e, name).tolist() for e in LIVED] for k, name in rows.items()})


class Format(NamedTuple):
    """Files of a format: all of ``LIVED``, with what is lost by that, or little more than what tells the format."""

    write: callable
    """Writes into a folder, and returns what is to be opened, if it wrote ``LIVED``."""
    reader: str = ""
    """Format of the reader that opens ``LIVED``; without it, the files are only opened."""
    columns: dict | None = None
    last_seen: bool = True
    discrete: bool = False
    pictures: bool = False

    def read(self, path):
        return open_reader(str(path), ReadOptions(columns=self.columns or {}))


ROLES = {"obs": "observation.state", "next_obs": "after", "action": "action", "reward": "next.reward",
         "terminal": "next.done", "truncated": "timeout"}  # fmt: skip
EPISODES = {"obs": "observation.state", "action": "choice", "reward": "next.reward", "terminal": "next.done",
            "episode": "episode_index"}  # fmt: skip
LISTS = {"obs": "o", "action": "a", "reward": "r", "terminal": "t"}
D4RL, TABLE = "D4RL HDF5", "table"
_TENSOR = {"tensor": {"shape": {"dimensions": ["1"]}, "dtype": "float32"}}
_STEPS = {"sequence": {"feature": {"featuresDict": {"features": {"observation": _TENSOR, "action": _TENSOR}}}}}
_RLDS = _text("features.json", json.dumps({"featuresDict": {"features": {"steps": _STEPS}}}))
_RLDS_SHARD = "lift-train.tfrecord-00000-of-00001"
_EPISODE_ARRAYS = ("action", "reward", "terminal", "reset", "vecobs")
FORMATS = {
    "minari": Format(_minari),
    "minari data": Format(lambda folder: _minari(folder, ".")),
    "minari, hdf5": Format(in_minari, "Minari (HDF5)"),
    "minari, arrow": Format(partial(in_minari, storage="arrow"), "Minari (Arrow)"),
    "minari, parquet": Format(partial(in_minari, storage="parquet"), "Minari (Arrow)"),
    "minari file": Format(_hdf5("main_data.hdf5", {"episode_0/rewards": np.zeros(1)})),
    "store": Format(_store),
    "run": Format(_all(_store, inside="replay")),
    "run, spec": Format(a_run, "reverie store"),
    "lerobot": Format(_lerobot),
    "rlds": Format(_all(_RLDS, lambda folder: shard(folder / _RLDS_SHARD, [{"steps/action": [0.0]}]))),
    "folder of minari": Format(_all(_minari, inside="sub")),
    "folder of stores": Format(_all(_store, inside="sub")),
    "tianshou": Format(lambda folder: tianshou(folder / "tianshou.hdf5", [(20, transitions_of(LIVED), 13, 14)]),
                       "Tianshou buffer (HDF5)"),
    "d3rlpy": Format(_hdf5("d3rlpy.h5", {"num_episodes": 1, "actions_0": np.zeros(1), "rewards_0": np.zeros(1)})),
    "robomimic": Format(_hdf5("robomimic.hdf5", {"data/demo_0/actions": np.zeros((1, 1))})),
    "d4rl": Format(in_d4rl, D4RL),
    "d4rl, compressed": Format(partial(in_d4rl, compression="gzip", chunks=True), D4RL),
    "d4rl, no next observations": Format(partial(in_d4rl, without="next_observations"), D4RL, last_seen=False),
    "d4rl, no timeouts": Format(partial(in_d4rl, without="timeouts"), D4RL),
    "d4rl, several files": Format(several, "5 x D4RL HDF5"),
    "other hdf5": Format(_hdf5("other.hdf5", {"x": np.zeros(1)})),
    "d4rl npz": Format(_npz("d4rl", "observations", "actions", "rewards", "terminals")),
    "ogbench": Format(_npz("ogbench", "observations", "actions", "terminals")),
    "stable-baselines": Format(_npz("sb2", "obs", "actions", "episode_starts")),
    "imitation": Format(_npz("imitation", "obs", "acts", "terminal", "indices")),
    "act": Format(_act),
    "diffusion policy": Format(_zarr),
    "dreamer": Format(_npz("20260101T000000F0-a-0-1", "action", "reward", "is_first", "is_last", "is_terminal", "vec")),
    "dreamer, chunks": Format(as_chunks, "Dreamer npz"),
    "dreamer, episodes": Format(as_episodes, "Dreamer npz"),
    "pydreamer": Format(_npz("pydreamer", *_EPISODE_ARRAYS)),
    "pydreamer, files": Format(one_by_one, "PyDreamer npz"),
    "own pydreamer": Format(_all(
        _npz("own", *_EPISODE_ARRAYS), _text("spec.json", json.dumps(SPEC)), _text("about.json"),
    )),
    "other npz": Format(_npz("other", "x")),
    "npz without suffix": Format(lambda folder: _npz("plain", "observations", "actions", "terminals")(folder)
                                 or (folder / "plain.npz").rename(folder / "plain")),
    "rl unplugged": Format(lambda folder: shard(folder / "run_1-00000-of-00100", transitions(LIVED)),
                           "RL Unplugged Atari (TFRecord)", discrete=True, pictures=True),
    "other tfrecord": Format(lambda folder: shard(folder / "other.tfrecord", transitions(LIVED[:1]), zipped=False)),
    "arrow": Format(_table("table.arrow")),
    "parquet": Format(_table("table.parquet")),
    "csv": Format(_text("table.csv", "o,a\n1,2\n")),
    "tables below": Format(_all(_table("0.parquet"), inside="below")),
    "table, arrow": Format(lambda folder: save_table(folder / "t", table_columns(), pieces=3), TABLE, ROLES),
    "table, parquet": Format(lambda folder: save_table(folder / "t", table_columns(), kind="parquet"), TABLE, EPISODES,
                             last_seen=False, discrete=True),
    "table, lists": Format(as_lists, TABLE, LISTS),
    "other text": Format(_text("notes.txt", "1, 2, 3, 4, 5, 6")),
    "damaged npz": Format(lambda folder: (folder / "damaged.npz").write_bytes(b"PK\x03\x04" + bytes(50))),
    "html": Format(_text("page.hdf5", "<html>404 not found</html>")),
}  # fmt: skip
"""A name with a comma is a variant: test_pairs_of_formats.py opens the others, alone and with each other."""
