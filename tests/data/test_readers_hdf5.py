"""D4RL's files and Tianshou's buffers, written by hand with h5py."""

import errno
import math
import os
import pickle

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from d4rl_files import cat, columns, write
from recordings import LIVED, Lived, assert_same, check, expected, joined
from reverie.core.errors import DataError
from reverie.core.specs import ObsPart
from reverie.datasets import hdf5, transitions
from reverie.datasets.d4rl import D4RLReader
from reverie.datasets.dataset import Recorded
from reverie.datasets.detect import open_reader
from reverie.datasets.reader import ReadOptions
from reverie.datasets.tianshou import TianshouReader
from reverie.datasets.transitions import limited
from reverie.envs.wrappers import FrameStack


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of three transitions, so that episodes reach over their edges."""
    monkeypatch.setattr(transitions, "block_of", lambda size: 3)


# ---------------------------------------------------------------- D4RL


@pytest.mark.parametrize("how", [{}, {"chunks": (4,) * 1}, {"compression": "gzip"}], ids=["plain", "chunks", "gzip"])
@pytest.mark.usefixtures("small_parts")
def test_d4rl(tmp_path, how):
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        for name, value in columns().items():
            chunks = {"chunks": (4, *value.shape[1:])} if "chunks" in how else how
            file.create_dataset(name, data=value, **chunks)
    reader = open_reader(str(path))
    assert isinstance(reader, D4RLReader)
    check(reader, expected(LIVED))
    assert not reader.remarks()
    about = reader.about()
    assert about.observation == spaces.Box(-np.inf, np.inf, (2,), np.float32)
    assert about.action == spaces.Box(-1.0, 1.0, (1,), np.float32)
    assert about.measured  # nothing is declared: an environment knows better


@pytest.mark.usefixtures("small_parts")
def test_d4rl_without_next_observations(tmp_path):
    """What a terminal end led to is never asked for; what time cut off cannot be made up."""
    values = columns()
    del values["next_observations"]
    reader = open_reader(str(write(tmp_path / "a.hdf5", values)))
    check(reader, expected(LIVED, last_seen=False))
    assert [line.rpartition(" (")[0] for line in reader.remarks()] == [transitions.DROPPED, transitions.REPEATED]
    assert list(reader.notes.values()) == [2, 3]


@pytest.mark.usefixtures("small_parts")
def test_d4rl_without_timeouts_sees_them_in_next_observations(tmp_path):
    values = columns()
    del values["timeouts"]
    check(open_reader(str(write(tmp_path / "a.hdf5", values))), expected(LIVED))


def test_d4rl_takes_a_time_limit_where_it_has_no_timeouts(d4rl, tmp_path):
    with open_reader(str(d4rl)) as reader:
        assert not any(map(reader.uses, ("time_limit", "columns")))
    values = {name: column for name, column in columns().items() if name != "timeouts"}
    with open_reader(str(write(tmp_path / "b.hdf5", values))) as reader:
        assert reader.uses("time_limit")
        assert not reader.uses("columns")


def test_d4rl_that_can_not_know_says_so(tmp_path):
    lived = [Lived(1, 3), Lived(2, 3, "truncated"), Lived(3, 3, "truncated"), Lived(4, 2)]
    values = columns(lived)
    del values["timeouts"], values["next_observations"]
    path = write(tmp_path / "a.hdf5", values)
    reader = open_reader(str(path))
    assert reader.rows() == 11 + 2
    assert any("only terminal ends of episodes are known" in line for line in reader.remarks())
    known = open_reader(str(path), ReadOptions(time_limit=3))
    check(known, expected(lived, last_seen=False))


@pytest.mark.usefixtures("small_parts")
def test_an_episode_without_an_end_is_cut_off(tmp_path):
    lived = [*LIVED, Lived(6, 2, "open")]
    reader = open_reader(str(write(tmp_path / "a.hdf5", columns(lived))))
    check(reader, expected(lived))
    assert reader.remarks() == [transitions.OPEN]


def test_terminals_win_and_shapes_of_one_column_do_not_matter(tmp_path):
    values = columns()
    values["timeouts"] |= values["terminals"]
    values = {name: v[:, None] if v.ndim == 1 else v for name, v in values.items()}
    check(open_reader(str(write(tmp_path / "a.hdf5", values))), expected(LIVED))


@settings(max_examples=60, deadline=None)
@given(
    lived=st.lists(st.tuples(st.integers(1, 7), st.sampled_from(["terminal", "truncated"])), min_size=1, max_size=8),
    block=st.integers(1, 9),
    seen=st.booleans(),
)
def test_transitions_in_parts_of_any_size(lived, block, seen):
    """Whatever the edges of parts cut through, the rows are those of the slow way."""
    episodes = [Lived(i, steps, end) for i, (steps, end) in enumerate(lived, start=1)]
    values = columns(episodes)

    def column(name):
        return transitions.ArrayColumn(values[name])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transitions, "block_of", lambda size: block)
        found = transitions.Transitions(
            obs={"obs": column("observations")},
            next_obs={"obs": column("next_observations")} if seen else {},
            action={"action": column("actions")},
            reward=column("rewards"),
            end=values["timeouts"],
            terminal=values["terminals"],
            note=lambda what, times=1: None,
            where="here",
        )
        rows = expected(episodes, last_seen=seen)
        assert_same(joined(found.parts()), rows)
        assert found.rows == len(rows["reward"])


def steps_of(rows):
    """Each transition of rows: what was seen, done, won, whether it ended terminally, what was seen after it."""
    here = np.flatnonzero(~rows["is_last"])
    after = here + 1
    columns = (rows["obs"][here], rows["action"][here], rows["reward"][after], rows["is_terminal"][after])
    return sorted(
        (*map(float, seen), float(done[0]), float(won), bool(end), *map(float, then))
        for seen, done, won, end, then in zip(*columns, rows["obs"][after], strict=True)
    )


@settings(max_examples=25, deadline=None)
@given(data=st.data(), times=st.booleans())
def test_transitions_in_any_order_keep_what_they_led_to(tmp_path_factory, data, times):
    """Shuffled, or some left out: an episode is cut where the next transition is not what came of the one before."""
    whole = columns([Lived(1, 6), Lived(2, 4, "truncated"), Lived(3, 5)])
    chosen = data.draw(st.lists(st.integers(0, 14), min_size=1, max_size=15, unique=True))
    values = {name: column[chosen] for name, column in whole.items() if times or name != "timeouts"}
    with open_reader(str(write(tmp_path_factory.mktemp("d") / "a.hdf5", values))) as reader:
        rows = joined(reader.parts())
        assert reader.rows() == len(rows["reward"])
        told = values.get("timeouts", np.zeros(len(chosen), bool)) | values["terminals"]
        torn = [i for i in range(len(chosen) - 1) if chosen[i + 1] != chosen[i] + 1 and not told[i]]
        assert [line.partition(" (")[0] for line in reader.remarks() if "truncated there" in line] == (
            [transitions.TORN] if times and torn else []
        )
        assert len(reader.disordered()) == (len(torn) if times else 0)
    assert steps_of(rows) == sorted(
        (*map(float, o), float(a[0]), float(r), bool(e), *map(float, n))
        for o, a, r, e, n in zip(
            values["observations"], values["actions"], values["rewards"], values["terminals"],
            values["next_observations"], strict=True,
        )
    )  # fmt: skip


def test_what_is_no_number_cuts_nothing(tmp_path):
    values = columns([Lived(1, 5)])
    values["observations"][3, 0] = np.nan
    with open_reader(str(write(tmp_path / "a.hdf5", values))) as reader:
        assert reader.rows() == 6
        assert not reader.remarks()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda v: v.update(rewards=np.zeros((14, 2), np.float32)),
            r"rewards have shape \[14, 2\]: expected one for each",
        ),
        (
            lambda v: v.update(next_observations=np.zeros((14, 3), np.float32)),
            r"have shape \[3\], .* observations is \[2\]: expected",
        ),
        (lambda v: v.update(terminals=np.full(14, 2)), r"'terminals' has the value 2 in row 0: expected true or false"),
        (lambda v: v.update(timeouts=np.full(14, np.nan)), r"'timeouts' has no value in row 0: expected true or false"),
    ],
)
def test_columns_that_cannot_be_what_they_are_called(tmp_path, change, said):
    values = columns()
    change(values)
    with pytest.raises(DataError, match=rf"a\.hdf5.*{said}"):
        open_reader(str(write(tmp_path / "a.hdf5", values))).rows()


@given(terminal=st.lists(st.booleans(), min_size=1, max_size=30), limit=st.integers(1, 6))
def test_limited(terminal, limit):
    out, count = [], 0
    for ends in terminal:
        count += 1
        out.append(not ends and count == limit)
        count = 0 if ends or count == limit else count
    assert limited(np.array(terminal), limit).tolist() == out


def test_actions_out_of_the_usual_bounds_are_measured(tmp_path):
    values = columns() | {"actions": np.linspace(-2, 3, 28).reshape(14, 2)}
    about = open_reader(str(write(tmp_path / "a.hdf5", values))).about()
    assert about.measured
    np.testing.assert_allclose(about.action.low, [-2, values["actions"][0, 1]], rtol=1e-6)
    np.testing.assert_allclose(about.action.high, [values["actions"][-1, 0], 3], rtol=1e-6)
    whole = open_reader(str(write(tmp_path / "b.hdf5", columns() | {"actions": cat("choices")}))).about()
    assert whole.action == spaces.Discrete(5)
    assert whole.measured


@pytest.mark.parametrize("wrong", [1e39, -1e308, np.inf, np.nan])
def test_bounds_are_measured_without_what_float32_does_not_hold(tmp_path, wrong):
    values = columns() | {"actions": np.linspace(-2, 3, 28).reshape(14, 2)}
    values["actions"][6, 1] = wrong
    with open_reader(str(write(tmp_path / "a.hdf5", values))) as reader:
        np.testing.assert_allclose(reader.about().action.high, [values["actions"][-1, 0], 3], rtol=1e-6)
        with pytest.raises(DataError, match=r"action 'action' of row 8 is \[.*\]: expected finite float32 numbers"):
            list(Recorded(reader).parts())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v.pop("actions"), "has no actions"),
        (lambda v: v.update(rewards=v["rewards"][:-1]), "have different lengths"),
        (lambda v: v.update({name: value[:0] for name, value in v.items()}), "contains no transitions"),
        (lambda v: v.update(actions=np.zeros((14, 0), np.float32)), "contains no actions"),
        (lambda v: v.update(actions=np.full((14, 1), np.nan, np.float32)), "contains no actions"),
        (lambda v: v.update(actions=np.full((14, 1), -1e308)), "contains no actions, or none that are finite float32"),
        (lambda v: v.update(actions=np.full(14, -1)), "class numbers, 0 or more"),
        (lambda v: v.update(observations=[b"text"] * 14), "contains objects|contains text"),
    ],
)
def test_d4rl_that_cannot_be(tmp_path, change, said):
    values = columns()
    change(values)
    path = write(tmp_path / "a.hdf5", values)
    with pytest.raises(DataError, match=said):
        open_reader(str(path)).about()


def test_a_file_cut_in_the_middle(tmp_path):
    path = write(tmp_path / "a.hdf5", columns())
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"a\.hdf5 is incomplete: it has 3,000 bytes"):
        open_reader(str(path))


# ---------------------------------------------------------------- Tianshou


def tianshou(path, rings, *, next_obs=True, old=False, stack=1, attrs=None, extra=None):
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
            if (old and name in ("terminated", "truncated")) or (name == "obs_next" and not next_obs):
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
        for name, value in (attrs or {}).items():
            file.attrs[name] = value
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


@pytest.mark.usefixtures("small_parts")
def test_tianshou_with_room_left(tmp_path):
    path = tianshou(tmp_path / "a.hdf5", [(20, transitions_of(LIVED), 13, 14)])
    reader = open_reader(str(path))
    assert isinstance(reader, TianshouReader)
    check(reader, expected(LIVED))
    assert not reader.remarks()


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("by", [1, 5, 13])
def test_tianshou_full_ring(tmp_path, by):
    """The oldest transition lies right behind the newest."""
    path = tianshou(tmp_path / "a.hdf5", [(14, rotated(transitions_of(LIVED), by), (13 + by) % 14, 14)])
    reader = open_reader(str(path))
    check(reader, expected(LIVED))
    assert any("lost its first steps" in line for line in reader.remarks())


@pytest.mark.usefixtures("small_parts")
def test_tianshou_vector_buffer(tmp_path):
    """Three rings: a full one that has wrapped, one with room, an empty one. An episode is going on in two of them."""
    first, second = [Lived(1, 3), Lived(2, 2, "truncated"), Lived(3, 2, "open")], [Lived(4, 2), Lived(5, 1, "open")]
    empty = {name: value[:0] for name, value in transitions_of(first).items()}
    rings = [
        (7, rotated(transitions_of(first), 4), 3, 7),
        (7, transitions_of(second), 2, 3),
        (7, empty, 0, 0),
    ]
    check(open_reader(str(tianshou(tmp_path / "a.hdf5", rings))), expected([*first, *second]))


@pytest.mark.usefixtures("small_parts")
def test_tianshou_without_next_observations(tmp_path):
    path = tianshou(tmp_path / "a.hdf5", [(20, transitions_of(LIVED), 13, 14)], next_obs=False)
    check(open_reader(str(path)), expected(LIVED, last_seen=False))


def test_tianshou_of_old(tmp_path):
    path = tianshou(tmp_path / "a.hdf5", [(20, transitions_of(LIVED), 13, 14)], old=True)
    reader = open_reader(str(path))
    check(reader, expected([Lived(e.number, e.steps) for e in LIVED]))
    assert any("does not distinguish truncated from terminated" in line for line in reader.remarks())


@pytest.mark.usefixtures("small_parts")
def test_tianshou_stacks_frames(tmp_path):
    """Frames kept one by one are seen as the last three of their episode, the first one repeated before it."""
    lived = [Lived(1, 4), Lived(2, 1), Lived(3, 3)]
    values = transitions_of(lived)
    frames = np.concatenate([[e.number * 10 + t for t in range(e.steps)] for e in lived]).astype(np.uint8)
    values["obs"] = np.broadcast_to(frames[:, None, None], (8, 2, 3)).copy()
    del values["obs_next"]
    path = tianshou(tmp_path / "a.hdf5", [(8, rotated(values, 3), 2, 8)], next_obs=False, stack=3)
    reader = open_reader(str(path))
    found = joined(reader.parts())
    assert found["obs"].shape == (11, 2, 3, 3)
    assert reader.about().observation == spaces.Box(0, 255, (2, 3, 3), np.uint8)
    seen = [row[0, 0].tolist() for row in found["obs"]]
    assert seen == [[10, 10, 10], [10, 10, 11], [10, 11, 12], [11, 12, 13], [11, 12, 13],
                    [20, 20, 20], [20, 20, 20], [30, 30, 30], [30, 30, 31], [30, 31, 32], [30, 31, 32]]  # fmt: skip


@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (2, 3, 4), (2, 1, 3, 2)])
def test_tianshou_stacks_as_environments_do(tmp_path, shape):
    """Images along their channels, all else along a new first axis."""
    values = transitions_of([Lived(1, 4)])
    values["obs"] = np.arange(4 * math.prod(shape), dtype=np.uint8).reshape(4, *shape)
    del values["obs_next"]
    found = joined(
        open_reader(str(tianshou(tmp_path / "a.hdf5", [(4, values, 3, 4)], next_obs=False, stack=3))).parts()
    )
    image = len(shape) in (2, 3)
    frames = values["obs"][..., None] if len(shape) == 2 else values["obs"]
    part = ObsPart(kind="image" if image else "vector", shape=frames.shape[1:], dtype="uint8")
    stack = FrameStack({"o": part}, 3)
    for t, frame in enumerate(frames):
        np.testing.assert_array_equal(found["obs"][t], stack({"o": frame}, t == 0)["o"])


def test_tianshou_dictionaries(tmp_path):
    values = transitions_of(LIVED)

    def nest(file):
        for name in ("obs", "obs_next"):
            del file["_meta"][name]
            group = file["_meta"].create_group(name)
            group.attrs["__data_type__"] = "Batch"
            for index, key in enumerate(("number", "time")):
                group.create_dataset(key, data=values[name][:, index]).attrs["__data_type__"] = "ndarray"

    path = tianshou(tmp_path / "a.hdf5", [(14, values, 13, 14)], extra=nest)
    reader = open_reader(str(path))
    found = joined(reader.parts())
    both = np.stack([found["obs/number"], found["obs/time"]], axis=1)
    np.testing.assert_array_equal(both, expected(LIVED)["obs"])
    assert set(reader.about().observation.spaces) == {"number", "time"}


def test_tianshou_objects_are_refused_and_never_unpickled(tmp_path):
    """A pickle that would leave a trace."""

    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "trap"), "w"))

    def trapped(file):
        del file["_meta"]["obs"]
        data = np.frombuffer(pickle.dumps(Trap()), np.byte)
        file["_meta"].create_dataset("obs", data=data).attrs["__data_type__"] = "pickled_ndarray"
        file.create_dataset("trap", data=data).attrs["__data_type__"] = "Trap"

    path = tianshou(tmp_path / "a.hdf5", [(14, transitions_of(LIVED), 13, 14)], extra=trapped)
    with pytest.raises(DataError, match=r"'_meta/obs' is a pickled ndarray, which is not read"):
        list(open_reader(str(path)).parts())
    assert not (tmp_path / "trap").exists()


def test_tianshou_that_was_never_filled(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_group("_meta")
    with pytest.raises(DataError, match="saved before any transition was added"):
        open_reader(str(tmp_path / "a.hdf5"))


# ---------------------------------------------------------------- many files


def test_each_of_many_files_is_open_only_while_it_is_read(tmp_path):
    """A process may have about a thousand files open, and each map of a file counts as one."""
    for kind in ("d4rl", "tianshou"):
        (tmp_path / kind).mkdir()
    for i in range(6):
        write(tmp_path / "d4rl" / f"{i}.hdf5", columns())
        tianshou(tmp_path / "tianshou" / f"{i}.hdf5", [(20, transitions_of(LIVED), 13, 14)])
    for kind in ("d4rl", "tianshou"):
        before = len(os.listdir("/dev/fd"))
        with open_reader(str(tmp_path / kind)) as reader:
            reader.about(), reader.disordered(), reader.rows()
            assert len(os.listdir("/dev/fd")) == before
            assert max(len(os.listdir("/dev/fd")) for _ in reader.parts()) <= before + 2  # h5py's, and that of the map
            assert_same(joined(reader.parts()), expected(LIVED * 6))
        assert len(os.listdir("/dev/fd")) == before


def test_a_file_that_cannot_be_opened_is_named(tmp_path, monkeypatch):
    def full(*given, **named):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    reader = open_reader(str(write(tmp_path / "a.hdf5", columns())))
    monkeypatch.setattr(hdf5.mmap, "mmap", full)
    with pytest.raises(DataError, match=r"a\.hdf5 cannot be read: Too many open files\."):
        reader.rows()
