"""LeRobot datasets: steps, videos, tasks, and folders whose parts do not fit together."""

import io
import json
import re
import shutil
import subprocess
from dataclasses import replace

import imageio_ffmpeg
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from PIL import Image

from lerobot_files import CAMERA, SIDES, frame, lerobot
from recordings import LIVED, assert_same, expected, joined
from reverie.core.errors import ConfigError, DataError, ReverieError
from reverie.datasets import transitions
from reverie.datasets.convert import write_dataset
from reverie.datasets.dataset import RecordedEpisodes
from reverie.datasets.format_detection import open_reader
from reverie.datasets.reader import ReadOptions
from reverie.datasets.robot_writers import FINAL_FRAMES
from reverie.datasets.validate import validate

CUT = [replace(e, end="truncated") for e in LIVED]


@pytest.mark.parametrize("version", [2, 3])
def test_steps_videos_and_tasks(tmp_path, monkeypatch, version):
    monkeypatch.setattr(transitions, "MIN_PART_TRANSITIONS", 3)
    monkeypatch.setattr(transitions, "PART_BYTES", 1)
    with open_reader(lerobot(tmp_path / "d", version)) as reader:
        info, found, rows = reader.info(), joined(reader.parts()), expected(CUT, last_seen=False)
        assert (info.has_rewards, info.text["robot"], info.observation["images.top"].shape) == (
            False,
            "arm",
            (*SIDES, 3),
        )
        images, tasks, states = (found.pop(f"obs/{key}") for key in ("images.top", "task", "state"))
        seen = rows.pop("obs")
        assert_same(found | {"state": states}, rows | {"state": seen, "reward": np.zeros(len(seen))})
        truth = np.stack([frame(int(number), int(t)) for number, t in seen])
        assert np.abs(images.astype(int) - truth).max() <= 2
        assert tasks.tolist() == [("lift", "put it down")[int(number - 1) % 2] for number, _ in seen]
        assert set(validate(reader).findings) == {"episode without steps"}
        assert RecordedEpisodes(reader).obs_spec["task"].kind in ("categorical", "vector")


@pytest.mark.parametrize("name", ["next.reward", "next.success"])
def test_rewards_and_success(tmp_path, name):
    def more(table, lived):
        rewards = np.concatenate([e.rewards for e in lived]).tolist()
        success = np.concatenate([e.terminals for e in lived]).tolist()
        return table | {"next.success": success} | ({"next.reward": rewards} if name == "next.reward" else {})

    with open_reader(lerobot(tmp_path / "d", 3, videos=False, more=more)) as reader:
        found, rows = joined(reader.parts()), expected(LIVED, last_seen=False)
        assert found["is_terminal"].tolist() == rows["is_terminal"]
        assert found["reward"].tolist() == (rows["reward"] if name == "next.reward" else rows["is_terminal"])
        assert any("next.success is the reward" in line for line in reader.remarks()) == (name == "next.success")


def test_declared_shapes_are_kept_and_the_rest_is_named(tmp_path):
    """A table stores one joint as a number, and a depth image without its channel; so LeRobot 0.6.1 writes them."""
    folder = lerobot(tmp_path / "d", 3, videos=False, more=lambda table, _: with_depth(table))
    about = json.loads((folder / "meta/info.json").read_text())
    about["features"] |= {
        "observation.depth": {"dtype": "image", "shape": [4, 6, 1], "names": ["height", "width", "channels"]},
        "observation.hint": {"dtype": "string", "shape": [1]},
        "complementary_info": {"dtype": "float32", "shape": [1]},
    }
    file = folder / "meta/info.json"
    file.write_text(json.dumps(about))
    with open_reader(folder) as reader:
        info, rows = reader.info(), joined(reader.parts())
        assert (info.action.shape, info.observation["depth"].shape) == ((1,), (4, 6, 1))
        np.testing.assert_array_equal(rows["obs/depth"][:, 3, 5, 0], 1000 * rows["obs/state"][:, 1])
        assert "left out: observation.hint, complementary_info" in reader.remarks()
    features = about["features"]
    depth = features["observation.depth"]
    for change, said in [
        ({"fps": 1e300}, r"fps = 1e\+300: expected a number above 0"),
        ({"fps": 0}, "fps = 0: expected a number above 0"),
        ({"features": features | {"observation.depth": depth | {"shape": [4, 6, 2]}}}, r"\[4, 6, 2\], but has"),
        ({"features": features | {"observation.depth": depth | {"shape": [10**12, 6, 1]}}}, "shape = .*values"),
    ]:
        file.write_text(json.dumps(about | change))
        with pytest.raises(DataError, match=said):
            open_reader(folder).info()


def with_depth(table):
    """Return the table of steps with depth images, and with the action as a number."""

    def image(t):
        data = io.BytesIO()
        Image.fromarray(np.full((4, 6), 1000 * t, np.uint16)).save(data, "PNG")
        return {"bytes": data.getvalue(), "path": None}

    depths = [image(int(t)) for _, t in table["observation.state"]]
    return table | {"action": [value for (value,) in table["action"]], "observation.depth": depths}


def test_only_the_videos_of_named_columns_are_needed(tmp_path):
    folder = lerobot(tmp_path / "d", 2)
    video = folder / f"videos/chunk-000/{CAMERA}/episode_000002.mp4"
    video.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(DataError, match=r"episode_000002\.mp4 does not decode as a video: .* a pointer"):
        list(open_reader(folder).parts())
    video.unlink()
    with pytest.raises(DataError, match=r"episode_000002\.mp4 is missing"):
        list(open_reader(folder).parts())
    names = {"obs": "observation.state", "action": "action"}
    assert open_reader(folder, ReadOptions(columns=names)).info().observation.shape == (2,)


def test_folders_whose_parts_disagree(tmp_path):
    for name, path, change, said in [
        ("a", "meta/info.json", {"total_frames": 15}, r"meta/info\.json declares 15 steps, but data has 14"),
        ("b", "meta/info.json", {"codebase_version": "v1.6"}, r"codebase_version = v1\.6: expected v2 or v3"),
        ("c", "meta/episodes.jsonl", {"length": 4}, "episode 0 has 3 steps in data, but 4 in meta"),
        ("d", "meta/episodes.jsonl", None, r"episodes\.jsonl, line 1 cannot be read"),
        ("e", "meta/info.json", None, r"meta/info\.json is damaged"),
    ]:
        file = lerobot(tmp_path / name, 2, videos=False) / path
        first, *others = file.read_text().splitlines()
        file.write_text("\n".join(["{" if change is None else json.dumps(json.loads(first) | change), *others]))
        with pytest.raises(ReverieError, match=said):
            open_reader(tmp_path / name).info()


@pytest.mark.parametrize("videos", [False, True])
def test_the_order_of_frames_is_the_order_of_time(tmp_path, videos):
    """Rows in another order are refused; a gap ends the episode, and pictures are those of their frames."""

    def without(table, lived):
        table = table | {"timestamp": [t / 10 for t in table["frame_index"]]}
        return {name: [v for i, v in enumerate(values) if i != 6] for name, values in table.items()}  # of the third

    def turned(table, lived):
        return {name: [values[i] for i in (0, 2, 1, *range(3, 14))] for name, values in table.items()}

    short = [*LIVED[:2], replace(LIVED[2], steps=4), *LIVED[3:]]
    folder = lerobot(tmp_path / "d", 3, more=without, videos=videos)
    table = {"episode_index": range(5), "length": [e.steps for e in short]}
    old = pyarrow.parquet.read_table(folder / "meta/episodes/chunk-000/file-000.parquet").to_pydict()
    pyarrow.parquet.write_table(pa.table(old | table), folder / "meta/episodes/chunk-000/file-000.parquet")
    file = folder / "meta/info.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"total_frames": 13}))
    with open_reader(folder) as reader:
        rows = joined(reader.parts())
        assert "frame_index skips frames within an episode, which is truncated there" in reader.remarks()
        seen = rows["obs/state"]
        assert seen[rows["is_first"]].tolist() == [[1, 0], [2, 0], [3, 0], [3, 3], [4, 0], [5, 0]]
        if videos:
            truth = np.stack([frame(int(number), int(t)) for number, t in seen])
            assert np.abs(rows["obs/images.top"].astype(int) - truth).max() <= 2
    with pytest.raises(
        DataError, match=r"row 2 has frame 1 of episode 0, after frame 2 .*Sort the tables by episode_in"
    ):
        open_reader(lerobot(tmp_path / "e", 3, videos=False, more=turned)).info()


def test_times_that_are_not_those_of_the_frames_are_named(tmp_path):
    def more(table, lived):
        return table | {"timestamp": [t / 5 for t in table["frame_index"]]}

    report = validate(open_reader(lerobot(tmp_path / "d", 3, videos=False, more=more)))
    assert any("timestamp does not advance by 1 / fps = 0.1 s" in line for line in report.remarks)


def test_videos_that_do_not_fit(tmp_path):
    (other := lerobot(tmp_path / "fps", 2, LIVED[:1]) / "meta/info.json").write_text(
        json.dumps(json.loads(other.read_text()) | {"fps": 20})
    )
    with pytest.raises(DataError, match=r"episode_000000\.mp4 has 10 frames per second: expected 20"):
        list(open_reader(tmp_path / "fps").parts())
    folder = lerobot(tmp_path / "d", 3)
    short = lerobot(tmp_path / "e", 3, LIVED[:4])
    (short / f"videos/{CAMERA}/chunk-000/file-000.mp4").replace(folder / f"videos/{CAMERA}/chunk-000/file-000.mp4")
    with pytest.raises(DataError, match=r"file-000\.mp4: frame 10 is missing or does not decode"):
        list(open_reader(folder).parts())


def test_a_copy_has_the_same_rows_and_tasks(tmp_path):
    """Images are stored without loss, and LeRobot finds the tasks by their text."""
    with open_reader(lerobot(tmp_path / "d", 2, LIVED[::2])) as reader:
        assert FINAL_FRAMES in write_dataset(reader, str(tmp_path / "copy"), "lerobot").remarks
        assert not any("does not store the robot" in line for line in reader.remarks())
        rows = joined(reader.parts())
        with open_reader(tmp_path / "copy") as copy:
            assert_same(joined(copy.parts()), rows)
            assert (copy.remarks(), copy.info().observation) == ([], reader.info().observation)
    tasks = pytest.importorskip("pandas").read_parquet(tmp_path / "copy/meta/tasks.parquet")
    assert (list(tasks.index), tasks.task_index.tolist()) == (["lift", "put it down"], [0, 1])
    statistics = json.loads((tmp_path / "copy/meta/stats.json").read_text())
    states = rows["obs/state"]
    np.testing.assert_allclose(statistics["observation.state"]["mean"], states.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(statistics["observation.state"]["std"], states.std(axis=0), rtol=1e-6)
    expected_mean = rows["obs/images.top"].mean(axis=(0, 1, 2)) / 255
    np.testing.assert_allclose(np.ravel(statistics[CAMERA]["mean"]), expected_mean, rtol=1e-6)


@pytest.mark.parametrize(
    ("pix_fmt", "info", "high", "scale"),
    [
        ("gray12le", {"is_depth_map": True, "video.shift": None}, 10, lambda depth: np.log(depth + 3.5)),
        ("yuv420p12le", {"video.is_depth_map": True, "video.depth_max": 5, "video.use_log": False}, 5, np.asarray),
    ],
)
def test_depth_videos_are_in_millimeters(tmp_path, pix_fmt, info, high, scale):
    """The luma is a code of 12 bits, on a logarithmic scale or not."""
    folder, count = lerobot(tmp_path / "d", 3), sum(e.steps for e in LIVED)
    about = json.loads((folder / "meta/info.json").read_text())
    about["features"][CAMERA] |= {"shape": [*SIDES, 1], "names": ["height", "width", "channels"], "info": info}
    (folder / "meta/info.json").write_text(json.dumps(about))
    depths, height, width = np.linspace(0.2, 4.8, count), *SIDES
    codes = np.rint((scale(depths) - scale(0.01)) / (scale(high) - scale(0.01)) * 4095)
    frames = np.full((count, height * (3 if "yuv" in pix_fmt else 2) // 2, width), 2048, "<u2")  # colors are neutral
    frames[:, :height] = codes[:, None, None]
    raw = ["-f", "rawvideo", "-pix_fmt", pix_fmt, "-s", f"{width}x{height}", "-r", "10", "-i", "-"]
    coded = ["-c:v", "libx265", "-x265-params", "lossless=1:log-level=error:pools=1", "-pix_fmt", pix_fmt]
    file = folder / f"videos/{CAMERA}/chunk-000/file-000.mp4"
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-v", "error", *raw, *coded, str(file)]
    subprocess.run(command, input=frames.tobytes(), check=True)
    with open_reader(folder) as reader:
        steps = reader.column("obs.images.top").read(0, count)
        np.testing.assert_allclose(
            steps, np.broadcast_to(1000 * depths[:, None, None, None], (count, *SIDES, 1)), atol=2
        )
        part = RecordedEpisodes(reader).obs_spec["images.top"]
        assert (part.kind, part.low, part.high) == ("image", 10, 1000 * high)


def of_images(*shape):
    images = np.random.default_rng(0).integers(0, 255, (6, *shape), np.uint8)
    return {"observations": images, "actions": np.ones((6, 1)), "rewards": np.ones(6), "terminals": np.arange(6) == 5}


@pytest.mark.parametrize(
    ("shape", "stored"), [((16, 8), [16, 8, 1]), ((16, 8, 1), [16, 8, 1]), ((3, 16, 8), [16, 8, 3])]
)
def test_images_are_written_with_channels_last(tmp_path, shape, stored):
    with open_reader(of_images(*shape)) as reader:
        write_dataset(reader, str(tmp_path / "copy"), "lerobot")
        about = json.loads((tmp_path / "copy/meta/info.json").read_text())
        assert about["features"]["observation.image"]["shape"] == stored
        with open_reader(tmp_path / "copy") as copy:
            assert_same(joined(copy.parts()), joined(reader.parts()))


def test_images_of_too_many_channels_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"1 to 4 channels, not observation\.image \(shape \[16, 8, 12\]\)"):
        write_dataset(open_reader(of_images(16, 8, 12)), str(tmp_path / "copy"), "lerobot")
    assert not (tmp_path / "copy").exists()


def changed(folder, **changes):
    """Change ``meta/info.json``; ``names``: of the elements of features."""
    file = folder / "meta/info.json"
    about = json.loads(file.read_text())
    for feature, names in changes.pop("names", {}).items():
        about["features"][feature]["names"] = names
    file.write_text(json.dumps(about | changes))
    return str(folder)


def test_joined_datasets_have_the_same_elements(tmp_path):
    """The same joints in another order are refused; other names, robots and frames per second are named."""
    names = {"observation.state": {"motors": ["left", "right"]}, "action": ["grip"]}
    first, second, third = (lerobot(tmp_path / name, 3, LIVED, videos=False) for name in "abc")
    changed(first, names=names)
    for places in ({"right": 1, "left": 0}, {"1": "right", "0": "left"}):
        changed(second, names={"observation.state": places, "action": {"grip": 0}})
        assert open_reader([str(first), str(second)]).info().element_names["obs/state"] == ("left", "right")
    changed(third, names={"observation.state": ["state"]})
    assert "obs/state" not in open_reader(third).info().element_names
    changed(second, names={"observation.state": ["right", "left"]})
    with pytest.raises(
        DataError, match=r"b names the elements of obs/state right, left, but .*a has the order left, ri"
    ):
        open_reader([str(first), str(second)]).info()
    changed(third, names={"observation.state": ["x", "y"]}, robot_type="so100", fps=30)
    reader = open_reader([str(first), str(third)])
    assert reader.info().element_names == {"action": ("grip",)}
    for remark in (
        "robot: arm, so100",
        "frames per second: 10, 30",
        "elements of obs/state differ: x, y and left, right",
    ):
        assert any(remark in line for line in reader.remarks()), remark


@pytest.mark.parametrize("action", ["action", "actions"])
def test_the_task_is_no_observation_alone(tmp_path, action):
    """openpi's names of features: the columns that an error proposes are right."""

    def more(table, lived):
        return {{"observation.state": "state", "action": action}.get(name, name): table[name] for name in table}

    folder = lerobot(tmp_path / "d", 2, videos=False, more=more)
    float_features = {"state": {"dtype": "float32", "shape": [2]}, action: {"dtype": "float32", "shape": [1]}}
    changed(folder, features=json.loads((folder / "meta/info.json").read_text())["features"] | float_features)
    with pytest.raises(ConfigError, match="no column is assigned to obs") as error:
        open_reader(folder)
    columns = yaml.safe_load(re.search(r"--data.columns '(.*?)'", str(error.value))[1])
    reader = open_reader(folder, ReadOptions(columns=columns))
    assert set(reader.info().observation) == {"state", "task"}
    assert joined(reader.parts())["obs/task"][0] == "lift"
    del columns["obs.task"]
    reader = open_reader(folder, ReadOptions(columns=columns))
    reader.info()
    assert "the episodes have different tasks, which are not observed" in reader.remarks()


@pytest.mark.parametrize(
    ("version", "path"),
    [
        (2, "films/{episode_chunk:03d}-{video_key}-{episode_index:06d}.mp4"),
        (3, "films/{video_key}-{chunk_index}-{file_index:03d}.mp4"),
    ],
)
def test_declared_paths_of_videos_are_used(tmp_path, version, path):
    folder = lerobot(tmp_path / "d", version, LIVED)
    plain = joined(open_reader(str(folder)).parts())
    (folder / "films").mkdir()
    for file in sorted((folder / "videos").rglob("*.mp4")):
        number = int(re.findall(r"\d+", file.stem)[-1])
        key = next(part for part in file.parts if part.startswith("observation"))
        name = f"films/000-{key}-{number:06d}.mp4" if version == 2 else f"films/{key}-0-{number:03d}.mp4"
        file.rename(folder / name)
    changed(folder, video_path=path)
    for name, values in joined(open_reader(str(folder)).parts()).items():
        np.testing.assert_array_equal(values, plain[name])
    for wrong, said in (
        ("../{video_key}.mp4", "expected a path in this"),
        ("{name}.mp4", "video_path = .* cannot be read"),
    ):
        changed(folder, video_path=wrong)
        with pytest.raises(DataError, match=said):
            list(open_reader(str(folder)).parts())


def test_splits_undeclared_columns_and_names_of_one_part_are_named(tmp_path):
    first, second = (lerobot(tmp_path / name, 3, LIVED, videos=False) for name in "ab")
    changed(first, names={"action": ["grip"]}, splits={"train": "0:1", "test": "1:2"})
    table = next((first / "data").rglob("*.parquet"))
    columns = pa.parquet.read_table(table)
    pa.parquet.write_table(columns.append_column("force", pa.array(np.ones(len(columns)))), table)
    reader = open_reader([str(first), str(second)])
    list(reader.parts())
    for remark in ("only 1 of 2 parts name the elements of action", "a: all splits are read: train, test", "force"):
        assert any(remark in line for line in reader.remarks()), remark


def test_single_tasks_that_are_joined_are_observed(tmp_path):
    """A dataset of one task does not observe it; several together do."""

    def more(table, lived):
        return table | {"task_index": [0] * len(table["task_index"])}

    folders = [lerobot(tmp_path / task, 2, videos=False, more=more) for task in ("lift", "put")]
    for folder in folders:
        (folder / "meta/tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": folder.name}) + "\n")
        assert "task" not in open_reader(folder).info().observation.spaces
    reader = open_reader([str(folder) for folder in folders])
    assert set(joined(reader.parts())["obs/task"]) == {"lift", "put"}
    assert reader.info().text["tasks"] == "lift; put"
    write_dataset(reader, str(tmp_path / "copy"), "lerobot")
    with open_reader(tmp_path / "copy") as copy:
        assert set(joined(copy.parts())["obs/task"]) == {"lift", "put"}
    (tmp_path / "both").mkdir()
    for folder in folders:
        shutil.copytree(folder, tmp_path / "both" / folder.name)
    shutil.copytree(folders[0], third := tmp_path / "third")
    (third / "meta/tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": "push"}) + "\n")
    nested = open_reader([str(tmp_path / "both"), str(third)])
    nested.info()
    assert set(joined(nested.parts())["obs/task"]) == {"lift", "put", "push"}


def test_tasks_without_names_are_named(tmp_path):
    folder = lerobot(tmp_path / "d", 3, videos=False)
    (folder / "meta/tasks.parquet").unlink()
    reader = open_reader(folder)
    assert "task" not in reader.info().observation.spaces
    assert any("task_index has several tasks, but meta/tasks" in line for line in reader.remarks())
