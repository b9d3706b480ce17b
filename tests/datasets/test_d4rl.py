"""D4RL's files: ends, next observations, inferred action spaces."""

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from d4rl_files import columns, write
from recordings import LIVED, Lived, assert_same, check, expected, joined
from reverie.core.errors import DataError
from reverie.datasets import transitions
from reverie.datasets.convert import write_dataset
from reverie.datasets.format_detection import open_reader


@settings(max_examples=20, deadline=None)
@given(
    lived=st.lists(st.tuples(st.integers(1, 7), st.sampled_from(["terminal", "truncated"])), min_size=1, max_size=8),
    block=st.integers(1, 9),
    seen=st.booleans(),
)
def test_transitions_in_parts_of_any_size(tmp_path_factory, lived, block, seen):
    """Whatever the edges of parts cut through, the rows are those of the slow way."""
    episodes = [Lived(i, steps, end) for i, (steps, end) in enumerate(lived, start=1)]
    values = {name: column for name, column in columns(episodes).items() if seen or name != "next_observations"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transitions, "MIN_PART_TRANSITIONS", block)
        patch.setattr(transitions, "PART_BYTES", 1)
        with open_reader(str(write(tmp_path_factory.mktemp("d") / "a.hdf5", values))) as reader:
            assert_same(joined(reader.parts()), rows := expected(episodes, last_seen=seen))
            assert reader.rows() == len(rows["reward"])


ENDS = [e.steps for e in LIVED]
LAST = np.isin(np.arange(14), np.cumsum(ENDS) - 1)


def test_d3rlpy_1_tells_ends_beside_terminals(tmp_path):
    """Its files may set terminals in several of the last rows; a truncated episode has no last observation."""
    values = {n: v for n, v in columns().items() if n not in ("timeouts", "next_observations")}
    values["terminals"] = np.float32(values["terminals"])
    values["terminals"][[1, 12]] = 1  # the last step but one of the first and of the last episode
    more = {"episode_terminals": np.float32(LAST), "discrete_action": False, "version": "1.0"}
    with open_reader(str(write(tmp_path / "a.hdf5", values | more))) as reader:
        check(reader, expected(LIVED, last_seen=False))
        assert any(remark.startswith(transitions.EARLY_END_REMARK) for remark in reader.remarks())
        assert not any(remark.startswith("left out") for remark in reader.remarks())


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("dones", LAST),
        ("truncations", np.float32(LAST)),
        ("masks", 1 - LAST),
        ("episode_starts", np.roll(LAST, 1)),
        ("episode", np.repeat(range(5), ENDS)),
        ("trajectory", np.repeat([b"a", b"b", b"c", b"d", b"e"], ENDS)),
        ("episode_step", np.concatenate([np.arange(n) for n in ENDS])),
        ("meta/episode_ends", np.cumsum(ENDS)),
        ("episode_lengths", np.array(ENDS)),
    ],
)
def test_ends_under_another_name_are_not_passed_over(tmp_path, name, values):
    """But an array that tells no more than terminals does is only named."""
    whole = {n: v for n, v in columns().items() if n not in ("timeouts", "next_observations")}
    with pytest.raises(DataError, match=f"'{name}' seems to mark ends of episodes that 'terminals' does not"):
        open_reader(str(write(tmp_path / "a.hdf5", whole | {name: values}))).rows()
    for i, more in enumerate([{"terminals": LAST}, {"timeouts": LAST & ~whole["terminals"]}]):
        with open_reader(str(write(tmp_path / f"{i}.hdf5", whole | {name: values} | more))) as reader:
            assert joined(reader.parts())["is_first"].sum() == 5
            assert f"left out: {name}" in reader.remarks()


def test_a_filter_of_hdf5_that_is_missing_is_named(tmp_path):
    file = h5py.File(write(tmp_path / "a.hdf5", columns()), "a")
    del file["rewards"]
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk((7,))
    settings.set_filter(40_000, h5py.h5z.FLAG_OPTIONAL, ())
    h5py.h5d.create(file.id, b"rewards", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((14,)), settings)
    file.close()
    with pytest.raises(DataError, match=r"a\.hdf5: 'rewards' is compressed with the HDF5 filter number 40000"):
        open_reader(str(tmp_path / "a.hdf5"))


def in_order(seen, done, won, ended, then):
    """Transitions as rows of numbers, sorted."""
    return sorted(np.column_stack([seen, done, won, ended, then]).tolist())


@settings(max_examples=12, deadline=None)
@given(data=st.data(), times=st.booleans())
def test_transitions_in_any_order_keep_what_they_led_to(tmp_path_factory, data, times):
    """Shuffled, or some left out: an episode is cut where the next transition is not what came of the one before."""
    whole = columns([Lived(1, 6), Lived(2, 4, "truncated"), Lived(3, 5)])
    chosen = data.draw(st.lists(st.integers(0, 14), min_size=1, max_size=15, unique=True))
    values = {name: column[chosen] for name, column in whole.items() if times or name != "timeouts"}
    with open_reader(str(write(tmp_path_factory.mktemp("d") / "a.hdf5", values))) as reader:
        rows = joined(reader.parts())
        assert reader.rows() == len(rows["reward"])
        after = np.flatnonzero(~rows["is_last"]) + 1
        told = values.get("timeouts", np.zeros(len(chosen), bool)) | values["terminals"]
        torn = [i for i in range(len(chosen) - 1) if chosen[i + 1] != chosen[i] + 1 and not told[i]]
        assert [line.partition(" (")[0] for line in reader.remarks() if "truncated there" in line] == (
            [transitions.NEXT_OBS_MISMATCH] if times and torn else []
        )
        assert len(reader.cut_episodes()) == (len(torn) if times else 0)
    columns_in_time = (values[name] for name in ("observations", "actions", "rewards", "terminals"))
    assert in_order(
        *(rows[name][after - 1] for name in ("obs", "action")),
        *(rows[name][after] for name in ("reward", "is_terminal", "obs")),
    ) == in_order(*columns_in_time, values["next_observations"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v.pop("actions"), "expected observations, actions, terminals"),
        (lambda v: v.update(rewards=v["rewards"][:-1]), "have different lengths"),
        (lambda v: v.update({name: value[:0] for name, value in v.items()}), "contains no actions"),
        (lambda v: v.update(actions=np.full((14, 1), -1e308)), "contains no actions, or none that are finite float32"),
        (lambda v: v.update(actions=np.full(14, -1)), "class indices, 0 or more"),
        (lambda v: v.update(observations=[b"text"] * 14), "contains object: expected"),
        (lambda v: v.update(rewards=np.zeros((14, 2))), r"rewards have shape \[14, 2\]: expected one for each"),
        (lambda v: v.update(next_observations=np.zeros((14, 3))), r"next observations have shapes .*: expected"),
        (lambda v: v.update(terminals=np.full(14, 2)), r"'terminals' has the value 2 in row 0: expected true or false"),
    ],
)
def test_d4rl_that_cannot_be(tmp_path, change, said):
    values = columns()
    change(values)
    path = write(tmp_path / "a.hdf5", values)
    with pytest.raises(DataError, match=said):
        open_reader(str(path)).info()


@pytest.mark.parametrize("kind", ["link", "missing", "external", "virtual"])
def test_values_in_other_files_are_refused(tmp_path, kind):
    """They can name any file of this machine, and HDF5 returns zeros for what is missing."""
    values = columns()
    rewards = values.pop("rewards")
    path = write(tmp_path / "d.h5", values)
    other = write(tmp_path / "other.h5", {"rewards": rewards})
    with h5py.File(path, "r+") as file:
        if kind == "external":
            file.create_dataset("rewards", (8,), np.uint8, external=[(str(other), 0, 8)])
        elif kind == "virtual":
            layout = h5py.VirtualLayout(rewards.shape, rewards.dtype)
            layout[:] = h5py.VirtualSource("other.h5", "rewards", rewards.shape)
            file.create_virtual_dataset("rewards", layout)
        else:
            file["rewards"] = h5py.ExternalLink("other.h5" if kind == "link" else "nowhere.h5", "rewards")
    with pytest.raises(DataError, match=r"'rewards' is .*Copy them into the file"):
        open_reader(str(path))


@pytest.mark.parametrize("name", ["observations", "infos/more", "actions"])
@pytest.mark.parametrize("target", ["/nowhere", "/rewards/x", "itself"])
def test_links_inside_a_file_that_lead_nowhere_are_named(name, target, tmp_path):
    values = {key: value for key, value in columns().items() if key != name}
    path = write(tmp_path / "d.h5", values)
    with h5py.File(path, "r+") as file:
        file[name] = h5py.SoftLink(f"/{name}" if target == "itself" else target)
    with pytest.raises(DataError, match=rf"'{name}' is a link to /[a-z/]+: expected values"):
        open_reader(str(path))


@pytest.mark.parametrize("to", ["d4rl", "robomimic", "tianshou", "minari"])
def test_no_format_reads_zeros_for_missing_parts(tmp_path, to):
    target = tmp_path / ("d" if to == "minari" else "d.h5")
    with open_reader(columns()) as reader:
        write_dataset(reader, str(target), to)
    with h5py.File(target / "data/main_data.hdf5" if to == "minari" else target, "r+") as file:
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if hasattr(item, "dtype") and item.shape else None)
        for name in names:
            layout = h5py.VirtualLayout(file[name].shape, file[name].dtype)
            layout[:] = h5py.VirtualSource("nowhere.h5", name, file[name].shape)
            attributes = dict(file[name].attrs)
            del file[name]
            file.create_virtual_dataset(name, layout).attrs.update(attributes)
    with (
        pytest.raises(DataError, match="is stored in other files"),
        open_reader(target) as reader,
    ):
        list(reader.parts())


@pytest.mark.parametrize("name", ["episode_id", "infos/traj_index", "user_ids"])
def test_ids_that_end_more_episodes_than_the_flags_are_refused(tmp_path, name):
    values = {n: v for n, v in columns().items() if n != "next_observations"} | {name: np.repeat(range(5), ENDS)}
    assert open_reader(str(write(tmp_path / "a.hdf5", values))).info()
    values["timeouts"] = values["timeouts"] & (np.arange(14) != 3)
    with pytest.raises(DataError, match=f"'{name}' seems to mark ends of episodes that 'terminals' does not"):
        open_reader(str(write(tmp_path / "b.hdf5", values))).info()
