"""Tables: roles of columns, ends of episodes, rows that are episodes."""

import io
import json
import re

import numpy as np
import pytest
import yaml
from gymnasium import spaces
from PIL import Image

from formats import save_table as save
from formats import table_columns as columns
from recordings import LIVED, Lived, assert_same, check, expected, joined
from reverie.cli import main
from reverie.core.errors import ConfigError, DataError
from reverie.datasets import transitions
from reverie.datasets.convert import write_dataset
from reverie.datasets.format_detection import open_reader
from reverie.datasets.reader import ReadOptions

pa = pytest.importorskip("pyarrow")

MAPPING = {
    "obs": "observation.state", "action": "action", "reward": "next.reward", "terminal": "next.done",
    "episode": "episode_index",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(transitions, "MIN_PART_TRANSITIONS", 3)
    monkeypatch.setattr(transitions, "PART_BYTES", 1)


def test_names_of_columns_are_what_is_written(tmp_path):
    (tmp_path / "a.csv").write_text("0,0.10,on\n1,5,0\n3,6,1\n4,6,1\n")
    assert main(["data", "info", str(tmp_path / "a.csv"), "--columns", "{obs: [0, 0.10], action: on}"]) == 0
    for number in (0, True):
        with pytest.raises(ConfigError, match=r"Quote names, such as '0\.10' or 'on'"):
            ReadOptions().merge({"columns": {"obs": number, "action": "on"}})


@pytest.mark.parametrize(("kind", "pieces"), [("stream", 1), ("file", 3), ("parquet", 3)])
def test_a_row_is_a_transition(tmp_path, kind, pieces):
    path = save(tmp_path / "d", columns(), kind=kind, pieces=pieces)
    for place in (path, path / "data-*"):  # an episode may go on in the next file
        reader = open_reader(str(place), ReadOptions(columns=MAPPING | {"next_obs": "after"}))
        check(reader, expected(LIVED))
        space, unused = spaces.Box(-1.0, 1.0, (1,), np.float32), ["left out: timeout, choice"]
        assert (reader.info().action, reader.remarks()) == (space, unused)


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_time_limit_ends_the_episodes_that_no_column_ends(tmp_path, pieces):
    lived = [Lived(1, 2), Lived(2, 3, "truncated"), Lived(3, 3, "truncated"), Lived(4, 3), Lived(5, 1)]
    path = str(save(tmp_path / "d", columns(lived), pieces=pieces))
    flags = {name: MAPPING[name] for name in ("obs", "action", "reward", "terminal")}
    unknown = open_reader(path, ReadOptions(columns=flags))
    assert unknown.rows() == 12 + 3
    assert any("pass --data.max-episode-steps" in line for line in unknown.remarks())
    known = open_reader(path, ReadOptions(columns=flags, max_episode_steps=3))
    check(known, expected(lived, last_seen=False))
    assert not any("max-episode-steps" in line for line in known.remarks())
    check(open_reader(path, ReadOptions(columns=flags | {"next_obs": "after"}, max_episode_steps=3)), expected(lived))
    with pytest.raises(ConfigError, match=r"data\.max_episode_steps = 3 has no effect on .*\(table\)"):
        open_reader(path, ReadOptions(columns=MAPPING, max_episode_steps=3))


@pytest.mark.parametrize("kind", ["stream", "parquet"])
@pytest.mark.parametrize("last_seen", [False, True])
def test_a_row_is_an_episode(tmp_path, kind, last_seen):
    fields = {"action": "actions", "reward": "rewards", "terminal": "terminals"}
    values = {role: [getattr(e, name).tolist() for e in LIVED] for role, name in fields.items()}
    values["obs"] = [e.observations[: e.steps + last_seen].tolist() for e in LIVED]

    def reader_of(name, values):
        path = save(tmp_path / name, values, kind=kind)
        return open_reader(str(path), ReadOptions(columns={role: role for role in values}))

    reader = reader_of("d", values)
    reader.info()
    check(reader, expected(LIVED, last_seen=last_seen))
    before = [[0] * e.steps for e in LIVED[:-1]]
    with pytest.raises(DataError, match=r"'terminal' has the value 2 in row 4, item 0: expected true or"):
        reader_of("e", values | {"terminal": [*before, [2] * 4]}).rows()
    with pytest.raises(DataError, match=r"'terminal' ends an episode in row 4, item 2, but the next step"):
        reader_of("f", values | {"terminal": [*before, [0, 0, 1, 1]]}).rows()


def test_episodes_without_steps_are_left_out(tmp_path):
    """Also where a group of rows has no others."""
    values = {"o": [[0], [1, 2, 3], [9], [4, 5]], "a": [[], [1, 0], [], [2]], "r": [[], [0.5, 1.0], [], [2.0]]}
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(values), tmp_path / "a.parquet", row_group_size=1)
    reader = open_reader(str(tmp_path / "a.parquet"), ReadOptions(columns={"obs": "o", "action": "a", "reward": "r"}))
    assert reader.rows() == 5
    assert joined(reader.parts())["obs"].tolist() == [1, 2, 3, 4, 5]
    assert "an episode without steps is omitted (2 times)" in reader.remarks()


@pytest.mark.parametrize("empty", [[], None])
def test_one_empty_episode_leaves_the_others(tmp_path, empty):
    """Lists of observations have one more value than those of rewards, but not of an episode that never began."""
    values = {"o": [[1, 2, 3], empty, [4, 5]], "a": [[1, 0], empty, [2]], "r": [[0.5, 1.0], empty, [2.0]]}
    options = ReadOptions(columns={"obs": "o", "action": "a", "reward": "r"})
    rows = joined(open_reader(str(save(tmp_path / "a", values)), options).parts())
    assert (rows["obs"].tolist(), rows["reward"].tolist()) == ([1, 2, 3, 4, 5], [0, 0.5, 1, 0, 2])
    wrong = values | {"a": [[1, 0], [1], [2]], "r": [[0.5, 1.0], [1.0], [2.0]]}
    without = {name: [column[1] or []] for name, column in values.items()}
    for name, table, said in [
        ("b", wrong, r"row 1 has 1 rewards, but 0 values in 'o'"),
        ("c", without, "has no steps: all lists of 'r' are empty"),
    ]:
        with pytest.raises(DataError, match=said):
            open_reader(str(save(tmp_path / name, table)), options).rows()


def test_a_flag_for_each_episode(tmp_path):
    """As imitation stores trajectories: whether each ended for good."""
    names = {"o": "observations", "a": "actions", "r": "rewards"}
    values = {name: [getattr(e, field).tolist() for e in LIVED] for name, field in names.items()}
    values["t"] = [e.end == "terminal" for e in LIVED]
    check(
        open_reader(
            str(save(tmp_path / "d", values)),
            ReadOptions(columns={"obs": "o", "action": "a", "reward": "r", "terminal": "t"}),
        ),
        expected(LIVED),
    )


def test_tables_that_cannot_be(tmp_path):
    (tmp_path / "head.csv").write_text("x,a,r\n")
    (tmp_path / "twice.csv").write_text("x,x,a,r\n1,1,0,1\n")
    save(tmp_path / "mixed", {"x": [1.0], "a": [0], "r": [1.0]})
    pa.parquet.write_table(pa.table({"task": ["a"]}), tmp_path / "mixed/tasks.parquet")
    save(tmp_path / "other", {"x": [1.0], "a": [0], "r": [1.0]})
    pa.parquet.write_table(pa.table({"task": ["a"]}), tmp_path / "other/a.pq")  # the first one
    for name, said in {
        "head.csv": r"head\.csv has no rows, only column names: x, a, r",
        "twice.csv": r"twice\.csv has 2 columns called 'x'",
        "other": r"other has tables of different columns: 1 such as .*a\.pq with task; 1 such as .* with x, a, r",
        "mixed": r"mixed has tables of different columns: 1 such as .* with x, a, r; 1 such as .*tasks.* with task",
    }.items():
        with pytest.raises(DataError, match=said):
            open_reader(str(tmp_path / name), ReadOptions(columns={"obs": "x", "action": "a", "reward": "r"})).rows()


@pytest.mark.parametrize(
    ("kind", "shape", "unit", "space"),
    [
        ("PNG", (4, 6, 3), np.uint8(1), spaces.Box(0, 255, (4, 6, 3), np.uint8)),
        ("PNG", (4, 6), np.uint16(300), spaces.Box(-np.inf, np.inf, (4, 6), np.float32)),
        ("TIFF", (4, 6), np.float32(0.25), spaces.Box(-np.inf, np.inf, (4, 6), np.float32)),
    ],
)
def test_several_observations_and_pictures(tmp_path, kind, shape, unit, space):
    """Pictures of 16 bits and of floats keep their values."""

    def picture(number, t):
        file = io.BytesIO()
        Image.fromarray(np.full(shape, (10 * number + t) * unit, unit.dtype)).save(file, kind)
        return {"bytes": file.getvalue(), "path": None}

    values = columns() | {"camera": [picture(e.number, t) for e in LIVED for t in range(e.steps)]}
    mapping = {"obs.state": "observation.state", "obs.camera": "camera", "action": "choice", "reward": "next.reward",
               "terminal": "next.done", "episode": "episode_index"}  # fmt: skip
    reader = open_reader(str(save(tmp_path / "d", values)), ReadOptions(columns=mapping))
    rows, found = expected(LIVED, last_seen=False, discrete=True), joined(reader.parts())
    seen = np.array(rows.pop("obs"))
    corner = found.pop("obs/camera").reshape(len(seen), -1)[:, -1]
    assert_same(found | {"corner": corner}, rows | {"obs/state": seen, "corner": seen @ [10, 1] * unit})
    assert reader.info().action == spaces.Discrete(5)
    assert reader.info().observation["camera"] == space


@pytest.mark.parametrize("values", [(0, 3, 12), ("a b", "c/d", "e")])
def test_names_of_folders_are_a_column(tmp_path, values):
    """As pandas and Hive write partitions."""
    parquet = pytest.importorskip("pyarrow.parquet")
    steps = range(9)
    table = pa.table({"x": [[float(t)] for t in steps], "a": [t % 2 for t in steps], "r": [float(t) for t in steps],
                      "episode": [values[t // 3] for t in steps]})  # fmt: skip
    parquet.write_to_dataset(table, tmp_path / "d", partition_cols=["episode"])
    roles = {"obs": "x", "action": "a", "reward": "r", "episode": "episode"}
    rows = joined(open_reader(str(tmp_path / "d"), ReadOptions(columns=roles)).parts())
    assert rows["obs"][rows["is_first"]][:, 0].tolist() == [0, 3, 6]


@pytest.mark.parametrize("line", ['#{"t_start": 1.5, "gym_version": "0.21", "env_id": "A"}', "# seed 7", ""])
def test_comments_before_a_header_are_skipped(tmp_path, line):
    (tmp_path / "d.csv").write_text(f"{line}\n" * bool(line) + "x,a,r\n0.5,1,2.0\n1.5,0,3.0\n")
    rows = joined(
        open_reader(str(tmp_path / "d.csv"), ReadOptions(columns={"obs": "x", "action": "a", "reward": "r"})).parts()
    )
    assert (rows["obs"].tolist(), rows["reward"].tolist()) == ([0.5, 1.5], [0, 2])


def test_categories_are_episodes(tmp_path):
    """Polars stores the texts of categories as views."""
    episodes = pa.DictionaryArray.from_arrays(
        pa.array([1, 1, 0, 0], pa.uint32()), pa.array(["a", "b"], pa.string_view())
    )
    table = pa.table({"x": [0.0, 1, 2, 3], "a": [0, 1, 0, 1], "r": [0.0, 1, 2, 3], "e": episodes})
    rows = joined(
        open_reader(table, ReadOptions(columns={"obs": "x", "action": "a", "reward": "r", "episode": "e"})).parts()
    )
    assert rows["obs"][rows["is_first"]].tolist() == [0, 2]


COLORS = np.repeat(np.uint8([[[200, 30, 10], [10, 220, 90]], [[255, 255, 0], [0, 0, 0]]]), 8, axis=1).repeat(8, axis=0)
ROTATED = Image.Exif()
ROTATED[0x0112] = 6  # the orientation: turned by 90 degrees


@pytest.mark.parametrize(
    ("mode", "kind", "truth"),
    [
        ("P", "PNG", COLORS),
        ("P", "GIF", COLORS),
        ("1", "PNG", np.where(COLORS[..., 1] > 128, 255, 0)),
        ("CMYK", "TIFF", COLORS),
        ("RGB", "PNG", np.rot90(COLORS, -1)),
    ],
)
def test_images_are_read_by_their_mode_and_orientation(tmp_path, mode, kind, truth):
    def image(mode):
        file, colors = io.BytesIO(), Image.fromarray(COLORS)
        with_mode = colors.quantize(4) if mode == "P" else colors.convert(mode, dither=Image.Dither.NONE)
        with_mode.save(file, kind, **({"exif": ROTATED} if mode == "RGB" else {}))
        return {"bytes": file.getvalue(), "path": None}

    images = [image(mode)] * sum(e.steps for e in LIVED)
    mapping = MAPPING | {"obs": "image"}
    seen = joined(
        open_reader(str(save(tmp_path / "d", columns() | {"image": images})), ReadOptions(columns=mapping)).parts()
    )
    np.testing.assert_array_equal(seen["obs"][0], truth)
    if kind == "PNG":
        images[2] = image("RGBA")
        reader = open_reader(str(save(tmp_path / "mixed", columns() | {"image": images})), ReadOptions(columns=mapping))
        with pytest.raises(DataError, match=r"'image' has .* in row 2, but .*before"):
            list(reader.parts())


def frame():
    """A column for each number, as pandas has them, some of them whole."""
    values = columns()
    times = [t for _, t in values["observation.state"]]
    return values | {
        "number": values["episode_index"],
        "t": times,
        "after": [t + 1 for t in times],
        "done": [action[0] for action in values["action"]],
    }


FRAME = {"obs": ["number", "t"], "next_obs": ["number", "after"], "action": ["done"], "reward": "next.reward",
         "terminal": "next.done", "episode": "episode_index"}  # fmt: skip


@pytest.mark.parametrize("kind", ["stream", "parquet"])
def test_columns_of_numbers_are_one_vector(tmp_path, kind):
    path = str(save(tmp_path / "d", frame(), kind=kind, pieces=3))
    reader = open_reader(path, ReadOptions(columns=FRAME))
    check(reader, expected(LIVED))
    assert reader.info().action == spaces.Box(-1.0, 1.0, (1,), np.float32)
    both = FRAME | {"action": ["choice", "number"]}
    assert open_reader(path, ReadOptions(columns=both)).info().action == spaces.MultiDiscrete([5, 6])


def test_propensities_stand_beside_the_actions_that_they_belong_to(tmp_path):
    steps = sum(e.steps for e in LIVED)
    values = columns() | {"prob": [(i + 1) / steps for i in range(steps)]}
    mapping = MAPPING | {"next_obs": "after", "propensity": "prob"}
    reader = open_reader(str(save(tmp_path / "d", values, pieces=3)), ReadOptions(columns=mapping))
    rows = {name: np.concatenate([part[name] for part in reader.parts()]) for name in ("propensity", "is_last")}
    np.testing.assert_allclose(rows["propensity"][~rows["is_last"]], values["prob"])
    assert (rows["propensity"][rows["is_last"]] == 1).all()
    path = str(save(tmp_path / "rounded", values | {"prob": [1.0000001, *values["prob"][1:]]}))
    assert joined(open_reader(path, ReadOptions(columns=mapping)).parts())["propensity"].max() == 1
    for wrong in (0.0, 1.5, float("nan")):
        path = str(save(tmp_path / f"e{wrong}", values | {"prob": [0.5, wrong, *values["prob"][2:]]}))
        with pytest.raises(
            DataError,
            match=f"the propensity of step 1 is {wrong}: expected the probability of the recorded action, above 0",
        ):
            open_reader(path, ReadOptions(columns=mapping)).rows()


@pytest.mark.parametrize(
    "names",
    [
        ("obs", "new_obs", "actions", "rewards", "terminateds", "truncateds", "eps_id"),  # RLlib
        ("observation", "next.observation", "action", "next.reward", "next.terminated", "next.truncated", "traj_ids"),
        ("Observation", "next_state", "Action", "Reward", "Done", "Timeouts", "session_id"),
    ],
)
def test_the_columns_that_an_error_proposes_are_read(names):
    values = columns()
    own = ("observation.state", "after", "action", "next.reward", "next.done", "timeout", "episode_index")
    table = pa.table({name: values[column] for name, column in zip(names, own, strict=True)})
    with pytest.raises(ConfigError, match="no column is assigned") as error:
        open_reader(table)
    proposal = yaml.safe_load(re.search(r"--data.columns '(.*?)'", str(error.value))[1])
    check(open_reader(table, ReadOptions(columns=proposal)), expected(LIVED))


@pytest.mark.parametrize(("method", "advice"), [("collect", r"data\.collect\(\)"), ("compute", r"data\.compute\(\)")])
def test_tables_that_are_not_in_memory_are_no_damaged_files(method, advice):
    lazy = type("LazyFrame", (), {"columns": ["a"], method: lambda self: None})()
    with pytest.raises(ConfigError, match=rf"data = LazyFrame: it is no table in memory .*Pass {advice}"):
        open_reader(lazy)


def test_what_must_be_said(tmp_path):
    path = str(save(tmp_path / "d", columns()))
    values = {"left" if name == "action" else name: column for name, column in frame().items()}
    proposal = r"obs\.pair: \[t, number\], action: COLUMN, reward: next\.reward, terminal: done, truncated: timeout"
    with pytest.raises(ConfigError, match=rf"no column is assigned to action\..*{proposal}.*replace COLUMN by"):
        open_reader(str(save(tmp_path / "e", values)), ReadOptions(columns={"obs.pair": ["t", "number"]}))
    for named, said in [
        ({}, r"to obs, action\..*obs: observation.state, action: action, reward: next.reward, terminal: next.d"),
        (MAPPING | {"action": "actoin"}, "no column 'actoin'. Did you mean 'action'"),
        (MAPPING | {"obs.b": "action"}, "both obs and obs.b are named"),
        (MAPPING | {"prize": "action"}, "data.columns.prize = action: expected one column for .* such as obs.camera"),
    ]:
        with pytest.raises(ConfigError, match=said):
            open_reader(path, ReadOptions(columns=named))


def test_episodes_that_take_turns_are_refused(tmp_path):
    """Each of their steps would become an episode otherwise."""
    turns = [0, 4, 1, 5, 2, 6, 3, *range(7, 14)]  # of the first and the third episode
    values = {name: [column[i] for i in turns] for name, column in columns().items()}
    said = r"of episode 1 \('episode_index'\) are not contig.*row 0 of data-0.* in row 2 of data-0.*\. Sort the table"
    with pytest.raises(DataError, match=said):
        open_reader(str(save(tmp_path / "t", values, pieces=2)), ReadOptions(columns=MAPPING)).info()


@pytest.mark.parametrize(("role", "column"), [("terminal", "next.done"), ("truncated", "timeout"), ("end", "timeout")])
def test_an_episode_that_continues_after_its_end_is_refused(tmp_path, role, column):
    values = columns()
    values[column][5] = values[column][11] = True
    said = rf"'{column}' ends an episode in row 5, but the next step belongs .*\(2 such steps\)"
    with pytest.raises(DataError, match=said):
        open_reader(str(save(tmp_path / "t", values)), ReadOptions(columns=MAPPING | {role: column})).info()


@pytest.mark.parametrize(("size", "place"), [(2, 7), (3, 3)], ids=["list", "text"])
def test_places_in_an_arrow_file_that_are_wrong(tmp_path, size, place):
    """Arrow itself would end the process, or read memory that is not its own."""
    file, steps = tmp_path / "a.arrow", np.arange(7)
    named = {"episode": ["abc"] * 7, "obs": [[0.5, 1.5]] * 7, "action": steps, "reward": steps, "terminal": steps == 6}
    table = pa.table(named)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    content, begins = file.read_bytes(), np.arange(8, dtype=np.int32) * size
    whole, begins[place] = begins.tobytes(), 1 << 30
    options = ReadOptions(columns={name: name for name in named})
    assert list(open_reader(str(file), options).parts())
    assert whole in content
    file.write_bytes(content.replace(whole, begins.tobytes()))
    with pytest.raises((DataError, pa.ArrowInvalid)):
        list(open_reader(str(file), options).parts())


IDS = {"obs": "o", "action": "a", "reward": "r", "episode": "user"}


def write_logs(folder, suffix, files):
    """Write a table of two steps for each id of each file."""
    folder.mkdir()
    separator = "\t" if suffix == "tsv" else ","
    for number, ids in enumerate(files):
        rows = [[user, f"{number}.{t}", str(t), "1", "0"] for user in ids for t in range(2)]
        lines = [separator.join(row) for row in [["user", "o", "a", "r", "flag"], *rows]]
        (folder / f"{number}.{suffix}").write_text("\n".join(lines) + "\n")
    return str(folder)


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
@pytest.mark.parametrize("ids", [("12345678901234567100", "12345678901234567200"), ("007", "7"), ("1e2", "100")])
def test_ids_in_text_are_read_as_text(tmp_path, suffix, ids):
    rows = joined(open_reader(write_logs(tmp_path / "d", suffix, [ids]), ReadOptions(columns=IDS)).parts())
    assert rows["is_first"].sum() == 2


def test_ids_of_other_types_are_different_episodes(tmp_path):
    """UUIDs, and names of folders; of floats above 2^53, a remark says that several can be the same."""
    values = {"o": [0.0, 1, 2, 3], "a": [0, 1, 0, 1], "r": [1.0] * 4}
    users = pa.array([bytes([n // 2] * 16) for n in range(4)], pa.binary(16)).cast(pa.uuid())
    for ids, remark in (([2.0**60, 2.0**60, 2.0**61, 2.0**61], "floats above 2\\^53"), (users, None)):
        reader = open_reader(pa.table(values | {"user": ids}), ReadOptions(columns=IDS))
        assert joined(reader.parts())["is_first"].sum() == 2
        assert (remark is None) or any(re.search(remark, line) for line in reader.remarks())
    for name in ("user=007", "user=7"):
        (tmp_path / "d" / name).mkdir(parents=True)
        pa.parquet.write_table(pa.table(values), tmp_path / "d" / name / "part.parquet")
    assert joined(open_reader(str(tmp_path / "d"), ReadOptions(columns=IDS)).parts())["is_first"].sum() == 2


@pytest.mark.parametrize("files", [("0", "0", "0"), ("012", "012"), ("01", "12")])
def test_an_id_that_two_files_have_is_two_episodes(tmp_path, files):
    """A remark names the files. It is one episode if a column marks truncations, but none there."""
    path = write_logs(tmp_path / "d", "csv", files)
    reader = open_reader(path, ReadOptions(columns=IDS))
    assert joined(reader.parts())["is_first"].sum() == sum(map(len, files))
    said = r"'user' has the id . in 0\.csv and in 1\.csv: "
    assert any(re.search(f"{said}these are read as different", line) for line in reader.remarks())
    reader = open_reader(path, ReadOptions(columns=IDS | {"end": "flag"}))
    is_adjacent = files[0][-1] == files[1][0]
    assert joined(reader.parts())["is_first"].sum() == (
        1 if files == ("0",) * 3 else sum(map(len, files)) - is_adjacent
    )
    consequence = "this is read as one episode" if is_adjacent else "these are read as different"
    assert any(re.search(f"{said}{consequence}", line) for line in reader.remarks())


@pytest.mark.parametrize(
    ("steps", "remark"), [([0, 2, 1, 3], "does not grow"), ([0, 1, 3, 4], "skips steps"), ([0, 4, 8, 12], "")]
)
def test_step_numbers_that_are_not_in_order_are_named(steps, remark):
    table = pa.table(
        {"o": [0.0, 1, 2, 3] * 2, "a": [0, 1] * 4, "r": [1.0] * 8, "user": list("aaaabbbb"), "step": steps * 2}
    )
    reader = open_reader(table, ReadOptions(columns=IDS))
    reader.info()
    assert [line for line in reader.remarks() if "'step'" in line and remark in line] or not remark
    assert remark or not any("'step'" in line for line in reader.remarks())


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_arrow_files_are_read_by_their_index(tmp_path, compression):
    """Polars 2.1 begins them without the message that begins a stream."""
    users = pa.array(["a", "a", "b", "b"]).dictionary_encode()
    table = pa.table({"o": [[0.0, 1], [2, 3], [4, 5], [6, 7]], "a": [0, 1, 0, 1], "r": [1.0] * 4, "user": users})
    file = tmp_path / "d.arrow"
    with pa.ipc.new_file(file, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, 2)
    content = file.read_bytes()
    begin = 16 + int.from_bytes(content[12:16], "little")  # of the message after the schema
    file.write_bytes(content[:8] + bytes(begin - 8) + content[begin:])
    rows = joined(open_reader(str(file), ReadOptions(columns=IDS)).parts())
    assert rows["obs"][rows["is_first"]].tolist() == [[0, 1], [4, 5]]


PIXELS = np.arange(12 * 8 * 10 * 3, dtype=np.uint32).astype(np.uint8).reshape(12, 8, 10, 3)


def tensors(permuted):
    if not permuted:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(PIXELS)
    stored = pa.array(np.ascontiguousarray(PIXELS.transpose(0, 3, 1, 2)).reshape(-1))
    kind = pa.fixed_shape_tensor(pa.uint8(), [3, 8, 10], permutation=[1, 2, 0])
    return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(stored, 240))


def ray_tensors(name):
    """As Ray Data stores them, read without Ray."""
    metadata = {b"ARROW:extension:name": name, b"ARROW:extension:metadata": b"[8, 10, 3]"}
    flat = pa.array(PIXELS.reshape(12, -1).tolist(), pa.list_(pa.uint8()))
    return pa.field("o", flat.type, metadata=metadata), flat


@pytest.mark.parametrize("kind", ["plain", "permuted", "ray.data.arrow_tensor", "ray.data.arrow_tensor_v2", "episodes"])
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_declared_shapes_of_tensors_are_used(tmp_path, kind, suffix):
    ends = np.arange(12) % 6 == 5
    others = {"a": np.arange(12) % 3, "r": np.ones(12), "d": ends}
    if kind == "episodes":  # a list of tensors in each row
        fields = {"o": tensors(True)} | {name: pa.array(values) for name, values in others.items()}
        lists = {name: pa.ListArray.from_arrays([0, 6, 12], values) for name, values in fields.items()}
        table = pa.table(lists)
    elif kind.startswith("ray"):
        field, column = ray_tensors(kind.encode())
        fields = [field, *(pa.field(name, pa.array(values).type) for name, values in others.items())]
        table = pa.table([column, *map(pa.array, others.values())], schema=pa.schema(fields))
    else:
        table = pa.table({"o": tensors(kind == "permuted")} | others)
    file = tmp_path / f"d.{suffix}"
    if suffix == "parquet":
        pa.parquet.write_table(table, file)
    else:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    reader = open_reader(str(file), ReadOptions(columns={"obs": "o", "action": "a", "reward": "r", "terminal": "d"}))
    rows = joined(reader.parts())
    np.testing.assert_array_equal(rows["obs"][~rows["is_last"]], PIXELS)
    assert reader.info().observation == spaces.Box(0, 255, (8, 10, 3), np.uint8)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("as_list", [False, True])
def test_dotted_names_are_fields_of_structs(tmp_path, suffix, as_list):
    """Such as nested features of Hugging Face, and episodes that are lists of structs."""
    steps = [{"observation": {"state": [float(t), 0.5]}, "choice": t % 2, "r": 1.0, "other": t} for t in range(4)]
    values = {"steps": [steps[:2], steps[2:]] if as_list else steps}
    table, file = pa.table(values), tmp_path / f"d.{suffix}"
    if suffix == "parquet":
        pa.parquet.write_table(table, file, row_group_size=1)
    else:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, 1)
    roles = {"obs": "steps.observation.state", "action": "steps.choice", "reward": "steps.r"}
    reader = open_reader(str(file), ReadOptions(columns=roles))
    rows = joined(reader.parts())
    assert rows["obs"][~rows["is_last"]][:, 0].tolist() == ([0, 2] if as_list else [0, 1, 2])  # the last steps are lost
    assert reader.info()
    assert "left out: steps.other" in reader.remarks()
    whole = {"obs": "steps.observation", "action": "steps.choice", "reward": "steps.r"}
    with pytest.raises(DataError, match=r"steps.observation' is a struct with the fields state: expected one of them"):
        open_reader(str(file), ReadOptions(columns=whole)).info()
    with pytest.raises(ConfigError, match=r"has no column 'steps.choise'. Did you mean 'steps.choice'"):
        open_reader(str(file), ReadOptions(columns=roles | {"action": "steps.choise"}))


@pytest.mark.parametrize("as_text", [False, True])
def test_images_are_read_by_their_paths(tmp_path, as_text):
    """In the folder of the table, as some Hugging Face datasets store them; never outside of it."""
    folder = tmp_path / "d"
    (folder / "images").mkdir(parents=True)
    for t in range(3):
        Image.fromarray(COLORS + np.uint8(t)).save(folder / f"images/{t}.png")
    Image.fromarray(COLORS).save(tmp_path / "secret.png")

    def opened(paths):
        images = paths if as_text else [{"bytes": None, "path": path} for path in paths]
        kind = pa.string() if as_text else pa.struct({"bytes": pa.binary(), "path": pa.string()})
        table = pa.table({"o": pa.array(images, kind), "a": [0, 1, 0], "r": [1.0] * 3, "d": [False, False, True]})
        pa.parquet.write_table(table, folder / "d.parquet")
        roles = {"obs": "o", "action": "a", "reward": "r", "terminal": "d"}
        return joined(open_reader(str(folder), ReadOptions(columns=roles)).parts())["obs"]

    names = [f"images/{t}.png" for t in range(3)]
    np.testing.assert_array_equal(opened(names)[:3], [COLORS + np.uint8(t) for t in range(3)])
    for wrong in ("../secret.png", str(tmp_path / "secret.png"), "images/9.png"):
        with pytest.raises(
            DataError, match=r"'o' has the path of an image, .*\.png, which is not in .*Copy the images th"
        ):
            opened([*names[:2], wrong])


def test_files_that_are_counted_in_their_names_are_one_table(tmp_path):
    """An episode continues in the next one, although no column tells so."""
    steps = {"o": [0.0, 1.0, 2.0, 3.0], "a": [0, 1, 0, 1], "r": [1.0] * 4, "user": ["x"] * 4}
    reader = open_reader(str(save(tmp_path / "d", steps, pieces=2)), ReadOptions(columns=IDS))
    assert joined(reader.parts())["is_first"].sum() == 1
    assert not any("has the id" in line for line in reader.remarks())


def flagged(**changes):
    """A table of two episodes of four steps, some of its columns replaced."""
    steps = np.arange(8)
    columns = {"o": steps / 2, "a": steps % 2, "r": np.ones(8), "user": steps // 4, "flag": steps % 4 == 3}
    return pa.table(columns | changes)


FLAGGED = IDS | {"terminal": "flag"}


def runs(values):
    import pyarrow.compute

    return pyarrow.compute.run_end_encode(pa.array(values))


VIEWS = pa.array(["x"] * 4 + ["y"] * 4, pa.string_view())
LISTS = pa.array([[k / 2] for k in range(8)], pa.list_view(pa.float64()))


@pytest.mark.parametrize(
    "changes",
    [
        {"a": pa.array(np.arange(8) % 2).dictionary_encode(), "user": VIEWS},
        {"a": runs(np.arange(8) % 2), "user": runs([0] * 4 + [1] * 4)},
        {"r": pa.array([1] * 8).cast(pa.decimal128(20, 1)), "o": LISTS},
    ],
)
def test_other_layouts_of_arrow_are_the_same_values(tmp_path, changes):
    table = flagged(**changes)
    with pa.ipc.new_file(str(tmp_path / "d.arrow"), table.schema) as writer:
        writer.write_table(table)
    rows, plain = (
        joined(open_reader(data, ReadOptions(columns=FLAGGED)).parts()) for data in (tmp_path / "d.arrow", flagged())
    )
    for name, values in plain.items():
        np.testing.assert_array_equal(rows[name].reshape(values.shape), values)


def test_images_as_binary_views(tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (8, 4, 5, 3)).astype(np.uint8)
    table = flagged(o=pa.array([png(image) for image in images], pa.binary_view()))
    with pa.ipc.new_file(str(tmp_path / "d.arrow"), table.schema) as writer:
        writer.write_table(table)
    rows = joined(open_reader(tmp_path / "d.arrow", ReadOptions(columns=FLAGGED)).parts())
    np.testing.assert_array_equal(rows["obs"][~rows["is_last"]], images)


def png(image):
    Image.fromarray(image).save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def test_bytes_that_are_no_images_are_named():
    with pytest.raises(DataError, match=r"'o' has bytes that are no image from row 0 on.*Store arrays as lists"):
        open_reader(flagged(o=[np.zeros(4).tobytes()] * 8), ReadOptions(columns=FLAGGED)).info()


def test_an_episode_that_runs_into_the_next_file_is_named(tmp_path):
    """A file for each run, whose end no column marks."""
    for number in range(3):
        pa.parquet.write_table(flagged().slice(0, 3 + number), tmp_path / f"run-{number}.parquet")
    flags = {role: name for role, name in FLAGGED.items() if role != "episode"}
    reader = open_reader(str(tmp_path), ReadOptions(columns=flags))
    assert joined(reader.parts())["is_first"].sum() == 3
    assert any("continues from run-0.parquet into run-1.parquet" in line for line in reader.remarks())
    assert not any("run-1.parquet into" in line for line in reader.remarks())


def test_missing_files_and_columns_of_later_files_are_named(tmp_path):
    for number, table in ((0, flagged()), (2, flagged(extra=np.ones(8)))):
        pa.parquet.write_table(table, tmp_path / f"train-{number:05}-of-00003.parquet")
    reader = open_reader(str(tmp_path), ReadOptions(columns=IDS | {"end": "flag"}))
    reader.info()
    assert any("only 2 of the 3 files" in line for line in reader.remarks())
    assert "left out: extra" in reader.remarks()


def test_files_of_earlier_writes_are_not_read(tmp_path):
    """Hugging Face lists its files in state.json; a Delta table has deleted rows."""
    for name, table in (("00000-of-00001", flagged()), ("00000-of-00002", flagged().slice(0, 4))):
        pa.parquet.write_table(table, tmp_path / f"data-{name}.parquet")
    with pytest.raises(DataError, match="some of these are files of 1 and of 2: two writes left them"):
        open_reader(str(tmp_path), ReadOptions(columns=FLAGGED))
    state = {"_data_files": [{"filename": "data-00000-of-00001.parquet"}]}
    (tmp_path / "state.json").write_text(json.dumps(state))
    assert joined(open_reader(str(tmp_path), ReadOptions(columns=FLAGGED)).parts())["is_first"].sum() == 2
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(DataError, match="is a Delta table, whose folder also has deleted rows"):
        open_reader(str(tmp_path), ReadOptions(columns=FLAGGED))


def test_numbers_of_another_type_in_a_later_file(tmp_path):
    """A CSV file of whole numbers has integers."""
    for number, reward in enumerate((1, 0.5)):
        lines = [f"{number},{step}.5,{step % 2},{reward}" for step in range(2)]
        (tmp_path / f"{number}.csv").write_text("\n".join(["user,o,a,r", *lines]))
    rows = joined(open_reader(str(tmp_path), ReadOptions(columns=IDS)).parts())
    assert rows["reward"].tolist() == [0, 1, 0, 0.5]


def labeled(*names):
    features = {"a": {"names": names, "_type": "ClassLabel"}, "o": {"dtype": "float64", "_type": "Value"}}
    return flagged().replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def test_class_labels_of_hugging_face_are_all_classes():
    info = open_reader(labeled("left", "right", "up"), ReadOptions(columns=FLAGGED | {"obs": "a"})).info()
    assert (info.action, info.observation, info.has_measured_bounds) == (spaces.Discrete(3), spaces.Discrete(3), False)


def test_class_labels_in_another_order_are_named(tmp_path):
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, names in zip(paths, (["left", "right"], ["right", "left"]), strict=True):
        pa.parquet.write_table(labeled(*names), path)
    reader = open_reader([*map(str, paths)], ReadOptions(columns=FLAGGED))
    reader.info()
    assert any("the parts differ in classes of action: left, right, right, left" in line for line in reader.remarks())
    with pytest.raises(DataError, match="the files declare different classes of 'a'"):
        open_reader(str(tmp_path), ReadOptions(columns=FLAGGED))


def test_a_folder_of_several_conversions_is_refused(tmp_path):
    """Their vectors can have another order of elements."""
    for number, names in enumerate((("o", "r"), ("r", "o"))):
        with open_reader(flagged(), ReadOptions(columns=FLAGGED | {"obs": names})) as reader:
            write_dataset(reader, str(tmp_path / f"both/{number}"), "parquet")
    with pytest.raises(DataError, match=r"declares other columns, spaces or environments than .*Pass their paths as a"):
        open_reader(str(tmp_path / "both"))


def test_a_flag_that_is_early_since_steps_are_turned_is_named_by_their_order():
    table = flagged(step=[3, 2, 1, 0] * 2, flag=[True, False, False, False] * 2)
    with pytest.raises(DataError, match=r"'flag' ends an episode in row 0, but .*'step' does not grow.*sort the steps"):
        open_reader(table, ReadOptions(columns=FLAGGED)).info()


def test_ids_that_are_not_a_number_are_refused():
    with pytest.raises(DataError, match=r"'user' is empty or NaN in some rows"):
        open_reader(flagged(user=[0.0] * 4 + [np.nan] * 4), ReadOptions(columns=FLAGGED)).info()


@pytest.mark.parametrize(
    ("head", "separator", "comma"),
    [("", ";", False), ("", ";", True), ("", "|", False), ("\ufeff# Monday\n", ",", False)],
)
def test_text_of_spreadsheets(tmp_path, head, separator, comma):
    lines = [
        separator.join(map(str, row))
        for row in (("user", "o", "a", "r"), *((0, k + 0.5, k % 2, 1.5) for k in range(3)))
    ]
    text = "\n".join(lines)
    (tmp_path / "d.csv").write_text(head + (text.replace(".", ",") if comma else text), encoding="utf-8")
    rows = joined(open_reader(tmp_path / "d.csv", ReadOptions(columns=IDS)).parts())
    assert (rows["obs"].tolist(), rows["reward"].tolist()) == ([0.5, 1.5, 2.5], [0, 1.5, 1.5])
