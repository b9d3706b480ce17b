"""Files of other libraries: OGBench, imitation, Stable-Baselines 2, robots' episodes, Dreamer."""

import json
import os
import zipfile
from dataclasses import replace

import h5py
import numcodecs
import numpy as np
import pytest
import zarr
from gymnasium import spaces

from d4rl_files import cat, columns
from formats import FORMATS, save_table, write_act, write_zarr
from recordings import LIVED, check, expected, joined
from reverie.core import files
from reverie.core.errors import DataError, RunError
from reverie.datasets import imitation, transitions
from reverie.datasets.convert import write_dataset
from reverie.datasets.format_detection import open_reader
from reverie.datasets.reader import ReadOptions
from reverie.datasets.robomimic import RobomimicReader
from reverie.datasets.validate import validate

CUT = [replace(e, end="truncated") for e in LIVED]


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_ogbench(tmp_path):
    """Terminals mark where trajectories end; their last step has the last observation and an action of no use."""
    last = np.concatenate([np.arange(e.steps + 1) == e.steps for e in LIVED])
    actions = np.concatenate([np.append(e.actions, [[0.7]], axis=0) for e in LIVED]).astype(np.float32)
    path = saved(tmp_path / "a.npz", observations=cat("observations"), actions=actions, terminals=last,
                 qpos=np.zeros((len(last), 3)))  # fmt: skip
    with open_reader(path) as reader:
        rows = expected(CUT)
        check(reader, rows | {"reward": np.zeros(len(rows["reward"]))})
        assert (reader.format, reader.info().has_rewards) == ("OGBench npz", False)
        assert reader.remarks() == ["left out: qpos"]


def test_transitions_of_ogbench():
    """Terminals mark where trajectories end; masks are 0 where the task succeeds, also within a trajectory."""
    steps = columns()
    done = steps["terminals"].astype(bool)
    kept = {name: steps[name] for name in ("observations", "actions", "rewards", "next_observations")}
    some = {"terminals": np.float32(done | steps["timeouts"]), "masks": np.float32(~done)}
    with open_reader(kept | some) as reader:
        check(reader, expected(LIVED))
        assert reader.remarks() == []
    some["terminals"][np.flatnonzero(done)[0]] = 0
    with open_reader(kept | some) as reader:
        check(reader, expected(LIVED))


def test_compact_data_of_ogbench_are_refused():
    """There, the last two states of a trajectory are terminal."""
    steps = columns()
    kept = {name: steps[name] for name in ("observations", "actions", "terminals")}
    with pytest.raises(DataError, match=r"'valids' seems to mark final states\. Load it with compact_dataset=False"):
        open_reader(kept | {"valids": 1 - steps["terminals"]})


def test_stable_baselines_2(tmp_path):
    starts = np.concatenate([np.arange(e.steps) == 0 for e in LIVED])
    path = saved(tmp_path / "a.npz", obs=np.concatenate([e.observations[:-1] for e in LIVED]), actions=cat("actions"),
                 rewards=cat("rewards"), episode_starts=starts, episode_returns=np.ones(5))  # fmt: skip
    with open_reader(path) as reader:
        check(reader, expected(CUT, last_seen=False))
        assert any("do not mark which episodes terminated" in remark for remark in reader.remarks())


@pytest.fixture
def trajectories(tmp_path):
    """As imitation stores them; the third has no step."""
    return {
        "obs": cat("observations"), "acts": cat("actions"), "rews": cat("rewards"),
        "terminal": np.array([e.end == "terminal" for e in LIVED]),
        "indices": np.cumsum([e.steps for e in LIVED])[:-1], "infos": np.array([{}] * 14, object),
    }  # fmt: skip


@pytest.mark.parametrize("has_rewards", [True, False])
def test_imitation_1(tmp_path, has_rewards):
    """As trajectories_to_dataset(...).save_to_disk writes them: a row is an episode, and infos are pickled in text."""
    whole = [e for e in LIVED if e.steps]
    table = {
        "obs": [e.observations.tolist() for e in whole], "acts": [e.actions.tolist() for e in whole],
        "infos": [["{}"] * e.steps for e in whole], "terminal": [e.end == "terminal" for e in whole],
    } | ({"rews": [list(e.rewards) for e in whole]} if has_rewards else {})  # fmt: skip
    path = str(save_table(tmp_path / "d", table))
    with open_reader(path) as reader:
        assert reader.info().has_rewards == has_rewards
        if has_rewards:
            check(reader, expected(whole))
        assert imitation.NO_TRUNCATIONS in reader.remarks()
    limit = whole[0].steps
    with open_reader(path, ReadOptions(max_episode_steps=limit)) as reader:
        rows = expected([replace(e, end="truncated") if e.steps == limit else e for e in whole])
        assert joined(reader.parts())["is_terminal"].tolist() == list(rows["is_terminal"])


def test_imitation(tmp_path, trajectories):
    with open_reader(saved(tmp_path / "a.npz", **trajectories)) as reader:
        check(reader, expected(LIVED))
        assert reader.remarks() == ["left out: infos", imitation.NO_TRUNCATIONS]
    ends = replace(LIVED[0], end="truncated")
    with open_reader(tmp_path / "a.npz", ReadOptions(max_episode_steps=ends.steps)) as reader:
        check(reader, expected([replace(e, end="truncated") if e.steps == ends.steps else e for e in LIVED]))
        assert reader.remarks() == ["left out: infos"]
    del trajectories["rews"]
    assert not open_reader(saved(tmp_path / "b.npz", **trajectories)).info().has_rewards
    wrong = trajectories | {"obs": trajectories["obs"][:-1]}
    with pytest.raises(
        DataError, match=r"c\.npz: 'obs' has length 18: expected 19, for 5 trajectories with 14 actions"
    ):
        open_reader(saved(tmp_path / "c.npz", **wrong)).info()


@pytest.fixture
def demos(tmp_path):
    with h5py.File(tmp_path / "demo.hdf5", "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "env_kwargs": {}})
        for k, e in zip((1, 2, 3, 10, 11), LIVED, strict=True):
            demo = data.create_group(f"demo_{k}")
            demo["obs/state"], demo["next_obs/state"] = e.observations[:-1], e.observations[1:]
            demo["actions"], demo["rewards"], demo["dones"] = e.actions, e.rewards, np.int64(e.terminals)
        file["mask/valid"] = np.array([b"demo_10", b"demo_2"])
    return tmp_path / "demo.hdf5"


def as_state(lived):
    rows = expected(lived)
    return {("obs/state" if name == "obs" else name): values for name, values in rows.items()}


@pytest.mark.parametrize("has_several", [False, True])
def test_d3rlpy_2(tmp_path, has_several):
    """As ReplayBuffer.dump of d3rlpy 2.8 writes episodes, the second without steps."""
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["num_episodes"], file["version"] = len(LIVED) + 1, "2.1"
        file["columns"] = ["observations", "actions", "rewards", "terminated"]
        for number, e in zip((0, 2, 3, 4, 5), LIVED, strict=True):
            file[f"actions_{number}"], file[f"rewards_{number}"] = np.int64(e.choices)[:, None], e.rewards[:, None]
            file[f"terminated_{number}"] = e.end == "terminal"
            for name in ["_0", "_1"] if has_several else [""]:
                file[f"observations_{number}{name}"] = e.observations[:-1]
        file["actions_1"], file["rewards_1"] = np.zeros((0, 1), int), np.zeros((0, 1))
    with open_reader(tmp_path / "d.h5") as reader:
        rows = expected(LIVED, last_seen=False, discrete=True)
        check(reader, {"obs/0": rows["obs"], "obs/1": rows.pop("obs")} | rows if has_several else rows)
        assert reader.info().action == spaces.Discrete(5)


def test_robomimic(demos):
    with open_reader(demos) as reader:
        check(reader, as_state(LIVED))
        assert reader.info().text["masks"] == "valid (2)"
        assert validate(reader).is_valid
    with RobomimicReader(demos, mask="valid") as reader:
        check(reader, as_state([LIVED[1], LIVED[3]]))


def test_discrete_actions_are_vectors_for_robomimic(tmp_path):
    """robomimic 0.3 reads the number of actions from the second axis."""
    last = np.arange(12) % 6 == 5
    arrays = {"observations": np.ones((12, 3)), "actions": np.arange(12) % 3, "rewards": np.ones(12), "terminals": last}
    with open_reader(arrays) as reader:
        report = write_dataset(reader, str(tmp_path / "copy.hdf5"), "robomimic")
        assert any("actions are stored as [steps, 1]" in remark for remark in report.remarks)
        with h5py.File(tmp_path / "copy.hdf5") as file, open_reader(tmp_path / "copy.hdf5") as copy:
            assert file["data/demo_0/actions"].shape == (6, 1)
            assert copy.info().action == reader.info().action
            np.testing.assert_array_equal(joined(copy.parts())["action"], joined(reader.parts())["action"])


def test_robomimic_that_cannot_be(demos):
    with pytest.raises(DataError, match=r"has no mask/train\. It has: valid"):
        RobomimicReader(demos, mask="train")
    with h5py.File(demos, "a") as file:
        del file["data/demo_3/rewards"]
    with pytest.raises(DataError, match=r"demo\.hdf5: data/demo_3/rewards is missing"):
        open_reader(demos).info()
    with h5py.File(demos, "a") as file:
        file["data/demo_3/rewards"] = np.zeros(4)
    with pytest.raises(DataError, match=r"data/demo_3/rewards has shape \[4\]: expected \[5\]"):
        open_reader(demos).info()


@pytest.mark.parametrize("name", ["rewards", "dones", "next_obs/eef", "obs/cameras/wrist"])
def test_arrays_that_the_first_demo_lacks_are_named(tmp_path, name):
    with h5py.File(tmp_path / "d.hdf5", "w") as file:
        for k in range(2):
            demo = file.create_group(f"data/demo_{k}")
            demo.attrs["num_samples"] = 4
            demo["obs/eef"], demo["obs/cameras/top"], demo["actions"] = (
                np.ones((3, 2)),
                np.ones((3, 2)),
                np.ones((3, 1)),
            )
        demo[name] = np.zeros(3)
    with open_reader(tmp_path / "d.hdf5") as reader:
        reader.info()
        assert f"left out: {name}, which only 1 of 2 episodes have" in reader.remarks()
        assert any("num_samples of an episode differs" in line for line in reader.remarks())


def test_robots_that_differ_are_named(tmp_path):
    for name, robot, rate in (("a", ["Panda"], 20), ("b", "Sawyer", 10)):
        with h5py.File(tmp_path / f"{name}.hdf5", "w") as file:
            demo = file.create_group("data/demo_0")
            demo["obs/eef"], demo["actions"] = np.ones((3, 2)), np.ones((3, 1))
            settings = {"robots": robot, "control_freq": rate, "controller_configs": {"type": robot}}
            file["data"].attrs["env_args"] = json.dumps({"env_name": "Lift", "env_kwargs": settings})
    with open_reader([str(tmp_path / "a.hdf5"), str(tmp_path / "b.hdf5")]) as reader:
        assert reader.info().text["task"] == "Lift"
        for remark in ("robot: Panda, Sawyer", "frames per second: 20, 10", "differ in controller"):
            assert any(remark in line for line in reader.remarks()), remark


def test_episodes_that_a_counter_does_not_count_are_named(tmp_path):
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["num_episodes"], file["version"] = 1, 2.0
        for k in range(2):
            file[f"observations_{k}"], file[f"actions_{k}"] = np.ones((3, 2)), np.ones((3, 1))
            file[f"rewards_{k}"], file[f"terminated_{k}"] = np.ones((3, 1)), True
    with open_reader(tmp_path / "d.h5") as reader:
        assert any("has 2 episodes, but num_episodes is 1" in line for line in reader.remarks())


COPIES = {"act": "qpos", "diffusion policy": "state"}


@pytest.mark.parametrize("name", COPIES)
def test_robot_data_without_rewards_and_ends(tmp_path, name, monkeypatch):
    monkeypatch.setattr(transitions, "MIN_PART_TRANSITIONS", 3)
    monkeypatch.setattr(transitions, "PART_BYTES", 1)
    FORMATS[name].write(tmp_path)
    with open_reader(str(tmp_path)) as reader:
        rows = expected(CUT, last_seen=False)
        rows[f"obs/{COPIES[name]}"] = rows.pop("obs")
        check(reader, rows | {"reward": np.zeros(len(rows["reward"]))})
        assert not reader.info().has_rewards
        assert transitions.UNMARKED in reader.remarks()


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zarr_in_a_zip_file_is_read_as_the_folder(tmp_path, compression):
    (tmp_path / "folder").mkdir()
    write_zarr(tmp_path / "folder")
    file = zip_folder(tmp_path / "folder", tmp_path / "pusht.zarr.zip", compression)
    with open_reader(str(file)) as reader, open_reader(str(tmp_path / "folder")) as folder:
        rows, expected_rows = joined(reader.parts()), joined(folder.parts())
        assert rows.keys() == expected_rows.keys()
        assert all(np.array_equal(rows[name], x) for name, x in expected_rows.items())
        assert reader.info().text == folder.info().text


def zip_folder(folder, file, compression):
    with zipfile.ZipFile(file, "w", compression) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(folder))
    return file


def test_cameras_of_act(tmp_path):
    frames = np.random.default_rng(0).integers(0, 255, (5, 8, 10, 3)).astype(np.uint8)
    write_act(tmp_path, **{"observations/images/top": frames, "rewards": np.ones(5), "compress_len": np.zeros(5)})
    with open_reader(str(tmp_path)) as reader:
        rows = joined(reader.parts())
        last = np.flatnonzero(rows["is_last"])[2]  # of an episode of five steps
        np.testing.assert_array_equal(rows["obs/images/top"][last - 4 : last + 1], frames)
        assert "left out: compress_len" in reader.remarks()
        assert reader.info().has_rewards
    with h5py.File(tmp_path / "episode_3.hdf5", "a") as file:
        del file["observations/qpos"]
    with pytest.raises(
        DataError, match=r"episode_3\.hdf5 has .*, but .*episode_1\.hdf5 has .*: expected the same arrays"
    ):
        open_reader(str(tmp_path))


def test_zarr_that_runs_code_lacks_chunks_or_leads_elsewhere_is_refused(tmp_path, monkeypatch):
    """Zarr would unpickle, read zeros, or read any file."""
    for name, change, error, said in [
        (
            "a",
            lambda f: _set(f, filters=[{"id": "pickle", "protocol": 5}]),
            DataError,
            "is encoded by pickle: expected",
        ),
        ("b", lambda f: (f / "1.0").unlink() or _set(f, fill_value=None), DataError, "1 of 5 chunks are missing"),
        ("c", lambda f: (f / "1.0").unlink() or (f / "1.0").symlink_to("/etc/passwd"), RunError, "is a link"),
        ("cc", lambda f: f.rename(tmp_path / "state") and f.symlink_to(tmp_path / "state"), RunError, "is a link"),
        ("d", lambda f: (f / "1.0").unlink() or os.mkfifo(f / "1.0"), RunError, "is neither a file"),
        ("e", lambda f: _set(f, shape=[10**12, 2], chunks=[10**12, 2]), RunError, r"expands to [\d,]+"),
        ("f", lambda f: (f / "1.0").write_bytes(b"no chunk"), DataError, "f: data/state/1.0 expands to"),
        ("g", lambda f: _set(f, chunks=[10**12, 2]), RunError, r"expands to [\d,]+"),
        ("h", lambda f: _set(f, shape=[10**8, 2], chunks=[1, 2], dtype="|i1"), DataError, "chunks are missing"),
        ("i", lambda f: _set(f, compressor={"id": "zlib"}, filters=[{"id": "zlib"}]), DataError, "zlib and zlib"),
    ]:
        (tmp_path / name).mkdir()
        write_zarr(tmp_path / name)
        change(tmp_path / name / "data/state")
        with pytest.raises(error, match=said):
            list(open_reader(str(tmp_path / name)).parts())
        if name not in ("c", "cc", "d"):  # no files of a zip file
            file = zip_folder(tmp_path / name, tmp_path / f"{name}.zarr.zip", zipfile.ZIP_DEFLATED)
            with pytest.raises(error, match=said.replace("f:", r"f\.zarr\.zip:")):
                list(open_reader(str(file)).parts())
    with zipfile.ZipFile(tmp_path / "a.zarr.zip", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/more", bytes(10**6))
    monkeypatch.setattr(files, "MAX_EXPANDED", 10)
    monkeypatch.setattr(files, "MAX_RATIO", 10)
    with pytest.raises(RunError, match=r"a\.zarr\.zip has .* and expands to"):
        open_reader(str(tmp_path / "a.zarr.zip"))


@pytest.mark.parametrize("codec", ["blosc", "gzip", "lz4", "zstd", "zstd in parts", "zlib", "bz2", "lzma"])
def test_a_chunk_that_expands_beyond_its_own_bytes_is_refused(codec, tmp_path):
    write_zarr(tmp_path)
    name, array = codec.partition(" ")[0], tmp_path / "data/state"
    _set(array, compressor={"id": name})
    chunks = [numcodecs.get_codec({"id": name}).encode(x) for x in (np.zeros((2, 2)), np.zeros(10**6, np.uint8))]
    for file in array.glob("?.?"):
        file.write_bytes(chunks[0])
    with open_reader(str(tmp_path)) as reader:
        assert len(joined(reader.parts())["reward"])
    (array / "1.0").write_bytes(b"".join(chunks) if "parts" in codec else chunks[1])
    with pytest.raises(DataError, match=r": data/state/1\.0 expands to more bytes than the chunk has"):
        list(open_reader(str(tmp_path)).parts())


@pytest.mark.parametrize("version", [2, 3])
def test_chunks_of_zeros_that_zarr_does_not_store_are_zeros(tmp_path, version):
    """A remark says so, since chunks can be lost, too. Flags are used, and groups are named."""
    group = zarr.open_group(tmp_path, mode="w", zarr_format=version)
    arrays = {"state": np.ones((6, 2)), "action": np.ones((6, 1)), "reward": np.float32([0, 0, 0, 0, 0, 1])}
    for name, values in (arrays | {"done": np.arange(6) == 5, "camera/rgb": np.ones((6, 2))}).items():
        group.create_array(f"data/{name}", data=values, chunks=(2, *values.shape[1:]))
    group.create_array("meta/episode_ends", data=np.array([3, 6]))
    with open_reader(str(tmp_path)) as reader:
        rows = joined(reader.parts())
        assert rows["reward"].tolist() == [0, 0, 0, 0, 0, 0, 1]
        assert (rows["is_terminal"].sum(), "obs/done" in rows) == (1, False)
        assert any("data/reward: some of 3 chunks are not stored: their values are 0" in r for r in reader.remarks())
        assert "left out: camera, which are groups" in reader.remarks()


@pytest.mark.parametrize("is_dreamer", [True, False])
def test_observations_that_only_some_files_have_are_named(tmp_path, is_dreamer):
    first, last = np.arange(3) == 0, np.arange(3) == 2
    flags = {"is_first": first, "is_last": last} if is_dreamer else {"reset": first, "terminal": last}
    arrays = {"vector": np.ones((3, 2)), "action": np.ones((3, 1)), "reward": np.ones(3)} | flags
    names = [f"20260101T{k}-a-0-3" if is_dreamer else f"ep00000{k}_00000{k}-r3-0003" for k in range(3)]
    saved(tmp_path / f"{names[0]}.npz", **arrays)
    saved(tmp_path / f"{names[1]}.npz", **arrays, speed=np.ones(3))
    with open_reader(str(tmp_path)) as reader:
        assert len(joined(reader.parts())["reward"]) == 6
        assert "left out: obs/speed, which the first file lacks" in reader.remarks()
    del arrays["vector"]
    saved(tmp_path / f"{names[2]}.npz", **arrays)
    with open_reader(str(tmp_path)) as reader, pytest.raises(DataError, match=r"lacks obs/vector, which the first one"):
        list(reader.parts())


def test_files_of_an_episode_whose_shapes_differ_are_named(tmp_path):
    for k in range(2):
        with h5py.File(tmp_path / f"episode_{k}.hdf5", "w") as file:
            file["observations/qpos"], file["action"] = np.ones((3, 2)), np.ones((3, 1 + k))
    with pytest.raises(DataError, match=r"episode_1\.hdf5: action has shape \[2\], but \[1\] in .*episode_0\.hdf5"):
        open_reader(str(tmp_path)).info()


def _set(folder, **changes):
    file = folder / ".zarray"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_dreamer_replays_with_one_hot_actions_and_latents(tmp_path):
    """As DreamerV3 stores them: the row of the last observation has no action."""
    choices = np.eye(3, dtype=np.float32)[[0, 2, 1, 0, 1, 0]]
    ends = np.array([False, False, True] * 2)
    choices[ends] = 0
    arrays = {"image": np.arange(6 * 4 * 4 * 3, dtype=np.uint8).reshape(6, 4, 4, 3), "action": choices}
    arrays |= {"is_first": np.roll(ends, 1), "is_last": ends, "is_terminal": ends & (np.arange(6) > 3)}
    arrays |= {"reward": np.arange(6, dtype=np.float32), "dyn/deter": np.zeros((6, 8)), "log/x": np.zeros(6)}
    with open_reader(saved(tmp_path / "20260101T0-a-0-6.npz", **arrays)) as reader:
        rows = joined(reader.parts())
        assert rows["action"].tolist() == [0, 2, 0, 0, 1, 0]
        assert rows["reward"].tolist() == [0, 1, 2, 0, 4, 5]
        assert rows["is_terminal"].tolist() == [False] * 5 + [True]
        assert reader.info().action == spaces.Discrete(3)
        assert list(reader.info().observation.spaces) == ["image"]
        assert reader.remarks() == ["left out: dyn/deter, log/x"]
    for name in ("is_last", "is_first"):
        rest = {key: values for key, values in arrays.items() if key != name}
        with open_reader(saved(tmp_path / f"20260101T0-{name}-0-6.npz", **rest)) as reader:
            np.testing.assert_equal(joined(reader.parts()), rows)
            assert f"there is no {name}: an episode ends where the next one begins" in reader.remarks()
