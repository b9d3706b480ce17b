"""Tables: roles of columns, ends of episodes, rows that are episodes."""

import io

import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from formats import save_table as save
from formats import table_columns as columns
from recordings import FIELDS, LIVED, Lived, check, expected, joined
from reverie.core.errors import ConfigError, DataError
from reverie.datasets import transitions
from reverie.datasets.detect import open_reader
from reverie.datasets.reader import ReadOptions

pa = pytest.importorskip("pyarrow")

MAPPING = {
    "obs": "observation.state", "action": "action", "reward": "next.reward", "terminal": "next.done",
    "episode": "episode_index",
}  # fmt: skip


PERMUTED = [0, 4, 1, 5, 2, 6, 3, 7, 8, 9, 10, 11, 12, 13]
"""Rows of which those of the first and the third episode take turns."""


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(transitions, "LEAST", 3)
    monkeypatch.setattr(transitions, "PART_BYTES", 1)


@pytest.mark.parametrize(("kind", "pieces"), [("stream", 1), ("file", 3), ("parquet", 3)])
def test_a_row_is_a_transition(tmp_path, kind, pieces):
    path = save(tmp_path / "d", columns(), kind=kind, pieces=pieces)
    mapping = MAPPING | {"next_obs": "after"}
    reader = open_reader(str(path), ReadOptions(columns=mapping))
    check(reader, expected(LIVED))
    assert reader.about().action == spaces.Box(-1.0, 1.0, (1,), np.float32)
    assert not reader.remarks()
    files = path / ("*.parquet" if kind == "parquet" else "*.arrow")  # an episode may go on in the next one
    check(open_reader(str(files), ReadOptions(columns=mapping)), expected(LIVED))


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_time_limit_ends_the_episodes_that_no_column_ends(tmp_path, pieces):
    lived = [Lived(1, 3), Lived(2, 3, "truncated"), Lived(3, 3, "truncated"), Lived(4, 2)]
    path = str(save(tmp_path / "d", columns(lived), pieces=pieces))
    flags = {name: MAPPING[name] for name in ("obs", "action", "reward", "terminal")}
    unknown = open_reader(path, ReadOptions(columns=flags))
    assert unknown.rows() == 11 + 2
    assert any("pass --data.time-limit" in line for line in unknown.remarks())
    known = open_reader(path, ReadOptions(columns=flags, time_limit=3))
    check(known, expected(lived, last_seen=False))
    assert not any("time-limit" in line for line in known.remarks())
    check(open_reader(path, ReadOptions(columns=flags | {"next_obs": "after"}, time_limit=3)), expected(lived))
    with pytest.raises(ConfigError, match=r"data\.time_limit = 3 has no effect on .*\(table \(Arrow or P"):
        open_reader(path, ReadOptions(columns=MAPPING, time_limit=3))


@pytest.mark.parametrize("kind", ["stream", "parquet"])
@pytest.mark.parametrize("last_seen", [False, True])
def test_a_row_is_an_episode(tmp_path, kind, last_seen):
    values = {
        "observations": [e.observations[: e.steps + last_seen].tolist() for e in LIVED],
        "actions": [e.actions.tolist() for e in LIVED],
        "rewards": [e.rewards.tolist() for e in LIVED],
        "dones": [e.terminals.tolist() for e in LIVED],
    }
    mapping = {"obs": "observations", "action": "actions", "reward": "rewards", "terminal": "dones"}
    reader = open_reader(str(save(tmp_path / "d", values, kind=kind)), ReadOptions(columns=mapping))
    reader.about()
    check(reader, expected(LIVED, last_seen=last_seen))
    values["dones"] = [[0] * e.steps for e in LIVED[:-1]] + [[2] * LIVED[-1].steps]
    reader = open_reader(str(save(tmp_path / "e", values, kind=kind)), ReadOptions(columns=mapping))
    with pytest.raises(DataError, match=r"'dones', of all steps, has the value 2 in row 10: expected true or"):
        reader.rows()
    values["dones"] = [[0] * e.steps for e in LIVED[:-1]] + [[0, 0, 1, 1]]
    reader = open_reader(str(save(tmp_path / "f", values, kind=kind)), ReadOptions(columns=mapping))
    with pytest.raises(DataError, match=r"'dones' ends an episode in step 12 of the table, but the next step"):
        reader.rows()


def test_episodes_without_steps_are_left_out(tmp_path):
    """Also where a group of rows has no others."""
    values = {"o": [[0], [1, 2, 3], [9], [4, 5]], "a": [[], [1, 0], [], [2]], "r": [[], [0.5, 1.0], [], [2.0]]}
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(values), tmp_path / "a.parquet", row_group_size=1)
    reader = open_reader(str(tmp_path / "a.parquet"), ReadOptions(columns={"obs": "o", "action": "a", "reward": "r"}))
    assert reader.rows() == 5
    assert joined(reader.parts())["obs"].tolist() == [1, 2, 3, 4, 5]
    assert "an episode without steps is left out (2 times)" in reader.remarks()


def test_several_observations_and_pictures(tmp_path):
    def png(number, t):
        file = io.BytesIO()
        Image.fromarray(np.full((4, 6, 3), 10 * number + t, np.uint8)).save(file, "PNG")
        return {"bytes": file.getvalue(), "path": None}

    values = columns() | {"camera": [png(e.number, t) for e in LIVED for t in range(e.steps)]}
    mapping = {"obs.state": "observation.state", "obs.camera": "camera", "action": "choice", "reward": "next.reward",
               "terminal": "next.done", "episode": "episode_index"}  # fmt: skip
    reader = open_reader(str(save(tmp_path / "d", values)), ReadOptions(columns=mapping))
    rows, found = expected(LIVED, last_seen=False, discrete=True), joined(reader.parts())
    np.testing.assert_array_equal(found["obs/state"], rows["obs"])
    seen = np.array(rows["obs"])
    np.testing.assert_array_equal(found["obs/camera"][:, 3, 5, 2], 10 * seen[:, 0] + seen[:, 1])
    for name in ("action", *FIELDS):
        np.testing.assert_array_equal(found[name], rows[name], err_msg=name)
    assert reader.about().action == spaces.Discrete(5)
    assert reader.about().observation["camera"] == spaces.Box(0, 255, (4, 6, 3), np.uint8)


def frame():
    """A column for each number, as pandas has them, some of them whole."""
    steps = [(e, t) for e in LIVED for t in range(e.steps)]
    return columns() | {
        "number": [e.number for e, _ in steps],
        "t": [float(t) for _, t in steps],
        "after": [float(t + 1) for _, t in steps],
        "done": [np.float32(e.action(t)) for e, t in steps],
    }


FRAME = {"obs": ["number", "t"], "next_obs": ["number", "after"], "action": ["done"], "reward": "next.reward",
         "terminal": "next.done", "episode": "episode_index"}  # fmt: skip


@pytest.mark.parametrize("kind", ["stream", "parquet"])
def test_columns_of_numbers_are_one_vector(tmp_path, kind):
    path = str(save(tmp_path / "d", frame(), kind=kind, pieces=3))
    reader = open_reader(path, ReadOptions(columns=FRAME))
    check(reader, expected(LIVED))
    assert reader.about().action == spaces.Box(-1.0, 1.0, (1,), np.float32)
    both = FRAME | {"action": ["choice", "number"]}
    assert open_reader(path, ReadOptions(columns=both)).about().action == spaces.MultiDiscrete([5, 6])


def test_what_must_be_said(tmp_path):
    path = str(save(tmp_path / "d", columns()))
    proposal = "obs: observation.state, action: action, reward: next.reward, terminal: next.done"
    with pytest.raises(ConfigError, match=f"no column is named for obs, action, reward.*{proposal}"):
        open_reader(path)
    values = {"left" if name == "action" else name: column for name, column in frame().items()}
    proposal = (
        r"'\{obs\.pair: \[t, number\], action: COLUMN, reward: next\.reward, terminal: done, truncated: timeout, epis"
    )
    with pytest.raises(ConfigError, match=f"no column is named for action, reward.*{proposal}.*COLUMN stands for"):
        open_reader(str(save(tmp_path / "e", values)), ReadOptions(columns={"obs.pair": ["t", "number"]}))
    with pytest.raises(ConfigError, match=r"no column 'actoin'\. Did you mean 'action'"):
        open_reader(path, ReadOptions(columns=MAPPING | {"action": "actoin"}))
    with pytest.raises(ConfigError, match=r"both obs and obs\.b are named.*Expected one"):
        open_reader(path, ReadOptions(columns={"obs.b": "action"} | MAPPING))
    with pytest.raises(
        ConfigError, match=r"data\.columns\.prize = action: expected one column for .* such as obs.camera"
    ):
        open_reader(path, ReadOptions(columns=MAPPING | {"prize": "action"}))


def test_episodes_that_take_turns_are_refused(tmp_path):
    """Each of their steps would become an episode otherwise."""
    values = {name: [column[i] for i in PERMUTED] for name, column in columns().items()}
    said = r"of episode 1 \('episode_index'\) are not contiguous: .*row 0 and continue in row 2.*\. Sort the table"
    with pytest.raises(DataError, match=said):
        open_reader(str(save(tmp_path / "t", values, pieces=2)), ReadOptions(columns=MAPPING)).about()


@pytest.mark.parametrize(("role", "column"), [("terminal", "next.done"), ("truncated", "timeout"), ("end", "timeout")])
def test_an_episode_that_continues_after_its_end_is_refused(tmp_path, role, column):
    values = columns()
    values[column][5] = values[column][11] = True
    path = save(tmp_path / "t", values, pieces=2)
    with pytest.raises(
        DataError,
        match=rf"'{column}' ends an episode in step 5 of the table, but the next step belongs .*\(2 such steps\)",
    ):
        open_reader(str(path), ReadOptions(columns=MAPPING | {role: column})).about()


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
