#!/usr/bin/env python3
"""How long a million recorded steps take to load, and what memory, beside plain h5py, Minari's library and others.

    python bench/readers.py [--steps 1000000] [--shard 20000] [--peers] [--where FOLDER]

17 + 6 float32 numbers a step, episodes of a thousand, from the cache of the system. Each reader has a process of its
own, which first reads a small file, so that libraries are there; then the file is read again and again.

load     seconds until all is in memory: of ours a dataset that can be sampled from, of others what they make of it.
         The first time takes memory that is new to the process, the median of the others memory that it has had.
peak     the most memory while it was read the first time, beyond what the process had, over the bytes of our rows.
shard    of RL Unplugged, made here: microseconds a transition, and what the 500,000 of a real one come to. Looked
         through first, then decoded; neighbors share frames in ``ordered`` ones and not in ``shuffled`` ones.
peers    with --peers: Tianshou's buffer and d3rlpy's dataset of the same arrays, each in an environment of its own.
         d3rlpy joins the T + 1 observations of Minari's episodes to T actions, so what it loads is another thing.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
OBS, ACTION, EPISODE, ROUNDS = 17, 6, 1000, 7
ARRAYS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")


# ---------------------------------------------------------------- files


def make_d4rl(path: Path, steps: int) -> None:
    """Six contiguous arrays."""
    import h5py

    rng = np.random.default_rng(0)
    obs = rng.standard_normal((steps + 1, OBS), dtype=np.float32)
    with h5py.File(path, "w") as file:
        file["observations"], file["next_observations"] = obs[:-1], obs[1:]
        file["actions"] = np.tanh(rng.standard_normal((steps, ACTION), dtype=np.float32))
        file["rewards"] = rng.standard_normal(steps, dtype=np.float32)
        file["terminals"], file["timeouts"] = np.zeros(steps, bool), np.arange(steps) % EPISODE == EPISODE - 1


def make_minari(path: Path, steps: int, storage: str) -> None:
    """By Minari's own library."""
    import minari
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    rng = np.random.default_rng(0)
    path.mkdir(parents=True)
    made = MinariStorage.new(
        path / "data",
        observation_space=spaces.Box(-np.inf, np.inf, (OBS,), np.float32),
        action_space=spaces.Box(-1, 1, (ACTION,), np.float32),
        data_format=storage,
        jpeg_encoding=False,
    )
    made.update_metadata({"dataset_id": f"{path.name}-v0", "minari_version": minari.__version__})
    end = np.arange(EPISODE) == EPISODE - 1
    made.update_episodes(
        EpisodeBuffer(
            observations=rng.standard_normal((EPISODE + 1, OBS), dtype=np.float32),
            actions=np.tanh(rng.standard_normal((EPISODE, ACTION), dtype=np.float32)),
            rewards=rng.standard_normal(EPISODE),
            terminations=np.zeros(EPISODE, bool),
            truncations=end,
        )
        for _ in range(steps // EPISODE)
    )


def frame(number: int, rng: np.random.Generator) -> bytes:
    """A picture that compresses as a game's do."""
    from PIL import Image

    picture = np.zeros((84, 84), np.uint8)
    picture[20:30], picture[:, :3] = 100, 142
    y, x = number * 3 % 80, number * 7 % 80
    picture[y : y + 4, x : x + 4] = 200
    picture[5:12, 10:60] = rng.integers(0, 2, (7, 50)) * 180
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def make_shard(path: Path, count: int, shuffled: bool) -> None:
    """Transitions as RL Unplugged frames them."""
    from google_crc32c import value

    def masked(data: bytes) -> bytes:
        crc = value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    def number(n: int) -> bytes:
        out = bytearray()
        while n >= 128:
            out.append(n % 128 + 128)
            n //= 128
        return bytes([*out, n])

    def field(index: int, body: bytes) -> bytes:
        return number(index << 3 | 2) + number(len(body)) + body

    def feature(given: Any) -> bytes:
        if isinstance(given, list):
            return field(1, b"".join(field(1, one) for one in given))
        return (
            field(2, field(1, struct.pack("<f", given)))
            if isinstance(given, float)
            else field(3, field(1, number(given)))
        )

    rng = np.random.default_rng(0)
    frames = [frame(i, rng) for i in range(count + 4)]
    with gzip.open(path, "wb", compresslevel=6) as file:
        for i in rng.permutation(count).tolist() if shuffled else range(count):
            features = {"o_t": frames[i : i + 4], "o_tp1": frames[i + 1 : i + 5], "a_t": i % 4, "a_tp1": (i + 1) % 4,
                        "r_t": float(i % 3), "d_t": 1.0, "episode_id": 5, "episode_return": 3.0}  # fmt: skip
            body = field(
                1, b"".join(field(1, field(1, k.encode()) + field(2, feature(v))) for k, v in features.items())
            )
            length = struct.pack("<Q", len(body))
            file.write(length + masked(length) + body + masked(body))


# ---------------------------------------------------------------- readers, each in a process of its own


def ours(path: Path) -> Any:
    """A dataset that can be sampled from."""
    from reverie.core.types import Window
    from reverie.datasets.config import DatasetConfig
    from reverie.datasets.dataset import build_dataset, open_recorded

    recorded = open_recorded(DatasetConfig(path=str(path)))
    dataset = build_dataset(DatasetConfig(), recorded, window=Window(batch=256, length=2), seed=0)
    recorded.close()
    return dataset


def h5py_arrays(path: Path) -> Any:
    """All arrays of the file, and nothing else."""
    import h5py

    with h5py.File(path, "r") as file:
        return {name: file[name][()] for name in ARRAYS}


def minari_library(path: Path) -> Any:
    """Every episode, and the arrays joined."""
    import minari

    episodes = list(minari.MinariDataset(path / "data").iterate_episodes())
    return [np.concatenate([getattr(e, name) for e in episodes]) for name in ("observations", "actions", "rewards")]


def tianshou(path: Path) -> Any:
    """As its examples load such files."""
    import h5py
    from tianshou.data import ReplayBuffer

    with h5py.File(path, "r") as file:
        values = {name: file[name] for name in ARRAYS}
        return ReplayBuffer.from_data(
            obs=values["observations"],
            act=values["actions"],
            rew=values["rewards"],
            done=values["terminals"],
            obs_next=values["next_observations"],
            terminated=values["terminals"],
            truncated=np.zeros(len(values["terminals"])),
        )


def d3rlpy(path: Path) -> Any:
    """Its dataset of the arrays."""
    import d3rlpy

    if path.is_dir():
        import minari

        episodes = list(minari.MinariDataset(path / "data"))
        arrays = [
            [getattr(e, n) for e in episodes]
            for n in ("observations", "actions", "rewards", "terminations", "truncations")
        ]
        obs, act, rew, end, cut = (np.concatenate(found) for found in arrays)
    else:
        found = h5py_arrays(path)
        obs, act, rew, end, cut = (found[name] for name in ARRAYS[:5])
    return d3rlpy.dataset.MDPDataset(observations=obs, actions=act, rewards=rew, terminals=end, timeouts=cut)


READERS = {"reverie": ours, "h5py": h5py_arrays, "minari": minari_library, "tianshou": tianshou, "d3rlpy": d3rlpy}


def status(field: str) -> float:
    """Megabytes of this process, as Linux counts them."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1e3


def measure(reader: str, path: Path, small: Path, rows_mb: float) -> dict[str, Any]:
    """In this process."""
    READERS[reader](small)
    before = status("VmRSS")
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        held = READERS[reader](path)
        times.append(time.perf_counter() - started)
        if len(times) == 1:
            peak = (status("VmHWM") - before) / rows_mb
        del held
    return {"first_s": times[0], "load_s": float(np.median(times[1:])), "peak": peak}


def measure_shard(path: Path) -> dict[str, Any]:
    """Looking through, and reading."""
    from reverie.datasets.options import ReadOptions
    from reverie.datasets.rl_unplugged import RLUnpluggedReader

    reader = RLUnpluggedReader(path, ReadOptions())
    started = time.perf_counter()
    reader.rows()
    between = time.perf_counter()
    count = int(reader.info().text["transitions"].replace(",", ""))
    for _ in reader.parts():
        pass
    ended = time.perf_counter()
    scan, read = (between - started) / count, (ended - between) / count
    return {"look_us": scan * 1e6, "read_us": read * 1e6, "shard_s": (scan + read) * 500_000}


def in_a_process(python: Path | str, *words: str) -> dict[str, Any]:
    """One measurement."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [str(python), str(Path(__file__).resolve()), *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--shard", type=int, default=20_000)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--where", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--measure", nargs=4, metavar=("READER", "PATH", "SMALL", "MB"), help=argparse.SUPPRESS)
    parser.add_argument("--measure-shard", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        reader, path, small, rows_mb = given.measure
        print(json.dumps(measure(reader, Path(path), Path(small), float(rows_mb))))
        return
    if given.measure_shard:
        print(json.dumps(measure_shard(given.measure_shard)))
        return
    compare(given)


def compare(given: argparse.Namespace) -> None:
    """Make the files, measure, write."""
    from machine import machine, write
    from peers.installed import WHERE, installed

    pythons: dict[str, Path | str] = dict.fromkeys(("reverie", "h5py", "minari"), sys.executable)
    if given.peers:
        wanted = {"tianshou": ["tianshou==2.0.1", "h5py"], "d3rlpy": ["d3rlpy==2.8.1", "minari[hdf5]", "pillow"]}
        pythons |= installed(wanted, given.where or WHERE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {"d4rl": folder / "big.hdf5", "minari hdf5": folder / "big_hdf5", "minari arrow": folder / "big_arrow"}
        small = {
            "d4rl": folder / "small.hdf5",
            "minari hdf5": folder / "small_hdf5",
            "minari arrow": folder / "small_arrow",
        }
        for paths, steps in ((files, given.steps), (small, 2 * EPISODE)):
            make_d4rl(paths["d4rl"], steps)
            make_minari(paths["minari hdf5"], steps, "hdf5")
            make_minari(paths["minari arrow"], steps, "arrow")
        who = {"d4rl": ("reverie", "h5py", "tianshou", "d3rlpy"), "minari hdf5": ("reverie", "minari", "d3rlpy"),
               "minari arrow": ("reverie", "minari")}  # fmt: skip
        rows_mb = (given.steps + given.steps // EPISODE) * (4 * (OBS + ACTION + 1) + 3) / 1e6
        rows = []
        for kind, readers in who.items():
            for reader in readers:
                if reader in pythons:
                    words = ("--measure", reader, str(files[kind]), str(small[kind]), str(rows_mb))
                    rows.append({"file": kind, "reader": reader, **in_a_process(pythons[reader], *words)})
                    print(rows[-1], flush=True)
        for kind in ("ordered", "shuffled"):
            path = folder / kind
            make_shard(path, given.shard, kind == "shuffled")
            rows.append(
                {
                    "file": f"shard, {kind}",
                    "reader": "reverie",
                    **in_a_process(sys.executable, "--measure-shard", str(path)),
                }
            )
            print(rows[-1], flush=True)
    write(given.out, machine(), rows)


if __name__ == "__main__":
    main()
