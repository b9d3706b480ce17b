"""The format is told by what is inside, and what cannot be read is said with what was expected."""

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from test_readers_hdf5 import tianshou, transitions_of

from d4rl_files import columns, write
from recordings import LIVED, check, expected
from reverie.core.errors import ConfigError, DataError
from reverie.datasets.concat import by_number, files_of, wide_enough
from reverie.datasets.detect import open_reader
from reverie.datasets.reader import ReadOptions
from reverie.datasets.rl_unplugged import shards_in


def test_a_name_says_nothing(tmp_path):
    """Without a suffix that claims something else, the content decides."""
    check(open_reader(str(write(tmp_path / "expert", columns()))), expected(LIVED))
    check(open_reader(str(tianshou(tmp_path / "buffer.dat", [(14, transitions_of(LIVED), 13, 14)]))), expected(LIVED))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.npz", None, r"a\.npz has the suffix \.npz, but its content is HDF5"),
        ("a.hdf5", b"PK\x03\x04" + bytes(50), r"a\.hdf5 has the suffix \.hdf5, but its content is npz"),
        ("a.hdf5", b"<html>404 not found</html>", r"has the suffix \.hdf5, but its content is not HDF5"),
        ("a.parquet", b"nonsense" * 9, r"its content is not Parquet"),
        ("a.txt", b"1, 2, 3, 4, 5, 6, 7", r"its format is not known .*b'1, 2, 3,'.*Expected a Minari dataset"),
        ("a.csv", b"x,action\n1,0\n", r"its format is not known .*A table in text becomes a Parquet file by pandas"),
        ("a.hdf5", b"", r"a\.hdf5 is empty"),
        ("a.npz", b"PK\x03\x04" + bytes(50), r"a\.npz is damaged or incomplete"),
    ],
)
def test_files_that_are_not_what_their_name_says(tmp_path, name, content, said):
    path = tmp_path / name
    if content is None:
        write(path, columns())
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        open_reader(str(path))


def test_hdf5_of_something_else(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["weights"] = np.zeros(3)
    with pytest.raises(DataError, match=r"is an HDF5 file that contains weights: expected observations.* or _meta"):
        open_reader(str(tmp_path / "a.hdf5"))
    with h5py.File(tmp_path / "b.hdf5", "w") as file:
        file["num_episodes"], file["observations_0"] = 1, np.zeros((2, 3))
    with pytest.raises(DataError, match=r"is a buffer saved by d3rlpy: convert it to D4RL's layout, see docs/datasets"):
        open_reader(str(tmp_path / "b.hdf5"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"time_limit": 3},
            r"data\.time_limit = 3: this option has no effect on .*\(D4RL HDF5\): the ends of its episodes are known",
        ),
        (
            {"columns": {"obs": "x"}},
            r"data\.columns = \{'obs': 'x'\}: .*\(D4RL HDF5\): only tables have columns to name",
        ),
        ({"partial": True}, r"data\.partial = True: .*\(D4RL HDF5\): only RL Unplugged's shards .*Leave it out"),
    ],
)
def test_options_without_effect_are_refused(tmp_path, options, said):
    with pytest.raises(ConfigError, match=said):
        open_reader(str(write(tmp_path / "a.hdf5", columns())), ReadOptions(**options))


def test_an_option_must_have_an_effect_on_one_of_several_files(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / f"{name}.hdf5", columns())
    with pytest.raises(ConfigError, match=r"time_limit = 50: .* has no effect on .*\(2 x D4RL HDF5\)"):
        open_reader(str(tmp_path), ReadOptions(time_limit=50))
    write(tmp_path / "b.hdf5", {name: values for name, values in columns().items() if name != "timeouts"})
    assert open_reader(str(tmp_path), ReadOptions(time_limit=50)).rows() == 2 * len(expected(LIVED)["reward"])


def test_what_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "none"))
    write(tmp_path / "halfcheetah-medium.hdf5", columns())
    with pytest.raises(
        DataError, match=r"no dataset at .*Did you mean 'halfcheetah-medium\.hdf5'.*reverie data download"
    ):
        open_reader(str(tmp_path / "halfcheetah-expert.hdf5"))
    with pytest.raises(DataError, match=r"contains: halfcheetah-medium\.hdf5"):
        open_reader(str(tmp_path / "zzz"))
    with pytest.raises(DataError, match="no dataset at"):
        open_reader(str(tmp_path / "*.npz"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="contains no dataset, only nothing"):
        open_reader(str(tmp_path / "empty"))
    with pytest.raises(DataError, match="the path of the dataset is empty"):
        open_reader("")
    with pytest.raises(DataError, match="There are none yet"):
        open_reader("minari:door-v0")


def test_a_folder_of_several_formats_is_not_read_in_part(tmp_path):
    write(tmp_path / "a.hdf5", columns())
    (tmp_path / "notes.txt").write_text("of no matter")
    check(open_reader(str(tmp_path)), expected(LIVED))
    (tmp_path / "b.npz").touch()
    (tmp_path / "c.parquet").touch()
    with pytest.raises(DataError, match=r"formats \(HDF5: a\.hdf5; npz: b\.npz; tables: c\.parquet\)\. Pass one"):
        open_reader(str(tmp_path))
    check(open_reader(str(tmp_path / "*.hdf5")), expected(LIVED))


def test_several_files_in_the_order_of_their_numbers(tmp_path):
    for name, lived in {"part-10.hdf5": LIVED[3:], "part-9.hdf5": LIVED[1:3], "part-1.hdf5": LIVED[:1]}.items():
        write(tmp_path / name, columns(lived))
    check(open_reader(str(tmp_path)), expected(LIVED))
    check(open_reader(str(tmp_path / "part-?.hdf5")), expected(LIVED[:3]))


def test_suffixes_in_upper_case_and_hidden_files(tmp_path):
    """A folder is the same dataset whatever the case of the suffixes; hidden files are nobody's."""
    write(tmp_path / "a.hdf5", columns(LIVED[:2]))
    write(tmp_path / "B.HDF5", columns(LIVED[2:]))
    write(tmp_path / ".c.hdf5", columns())
    names = sorted(file.name for file in open_reader(str(tmp_path)).files())
    assert names == ["B.HDF5", "a.hdf5"]
    for folder, suffixes in (("npz", (".NPZ",)), ("TFRecord", (".TFRecord", ".tfrecords"))):
        (tmp_path / folder).mkdir()
        for number, suffix in [(10, suffixes[0]), (9, suffixes[-1]), (".1", suffixes[0])]:
            (tmp_path / folder / f"{number}{suffix}").touch()
        found = files_of(tmp_path / folder, folder)
        assert [file.name for file in found] == [f"9{suffixes[-1]}", f"10{suffixes[0]}"]
    assert shards_in(tmp_path / "TFRecord") == sorted(found)


def test_names_with_digits_that_are_no_numbers(tmp_path):
    paths = [tmp_path / name for name in ("3²4.hdf5", "3²10.hdf5")]
    assert sorted(paths, key=by_number) == paths


def test_several_files_that_do_not_belong_together(tmp_path):
    write(tmp_path / "a.hdf5", columns())
    other = columns() | {name: np.zeros((14, 5), np.float32) for name in ("observations", "next_observations")}
    write(tmp_path / "b.hdf5", other)
    with pytest.raises(DataError, match=r"b\.hdf5 has observations .*5.*not parts of the same dataset"):
        open_reader(str(tmp_path)).about()
    tianshou(tmp_path / "c.hdf5", [(14, transitions_of(LIVED), 13, 14)])
    with pytest.raises(DataError, match="contains several formats"):
        open_reader(str(tmp_path))


@pytest.mark.parametrize(("one", "two"), [((0, 3), (0, 5)), ((-1.0, 1.0), (-2.0, 2.0))])
def test_actions_that_files_declare_must_be_the_same(tmp_path, one, two):
    for name, (low, high) in {"a": one, "b": one, "c": two}.items():
        values = columns() | ({"actions": np.arange(14) % 3} if isinstance(high, int) else {})
        with h5py.File(write(tmp_path / f"{name}.hdf5", values), "a") as file:
            said = (
                {"action_classes": high}
                if isinstance(high, int)
                else {"action_low": np.float32([low]), "action_high": np.float32([high])}
            )
            file.attrs.update(said)
    with pytest.raises(
        DataError, match=r"c\.hdf5 declares actions .*, but .*a\.hdf5 declares .*: these are not parts of"
    ):
        open_reader(str(tmp_path)).about()
    write(tmp_path / "c.hdf5", values)  # declares none
    assert open_reader(str(tmp_path)).about().measured


def test_spaces_of_several_files_are_wide_enough_for_all(tmp_path):
    for i, most in enumerate([2, 4, 3]):
        write(tmp_path / f"{i}.hdf5", columns() | {"actions": np.arange(14) % most})
    assert open_reader(str(tmp_path)).about().action.n == 4
    for i, most in enumerate([2.0, 4.0, 3.0]):
        write(tmp_path / f"{i}.hdf5", columns() | {"actions": np.linspace(-most, 1, 14)[:, None]})
    box = open_reader(str(tmp_path)).about().action
    assert (box.low.item(), box.high.item()) == (-4.0, 1.0)
    for i, most in enumerate([[2, 5], [4, 2], [3, 3]]):
        write(tmp_path / f"{i}.hdf5", columns() | {"actions": np.arange(14)[:, None] % most})
    assert open_reader(str(tmp_path)).about().action == spaces.MultiDiscrete([4, 5])


def test_types_of_several_files_are_wide_enough_for_all(tmp_path):
    kinds = [np.float32, np.int16, np.float64]
    for i, kind in enumerate(kinds):
        write(tmp_path / f"{i}.hdf5", {name: v.astype(kind) if "obs" in name else v for name, v in columns().items()})
        dtype = np.result_type(np.float32, *kinds[: i + 1])
        assert open_reader(str(tmp_path)).about().observation == spaces.Box(-np.inf, np.inf, (2,), dtype.type)


def test_nested_spaces_are_widened_leaf_by_leaf():
    def nest(n, high):
        return spaces.Dict(a=spaces.Tuple([spaces.Discrete(n), spaces.MultiDiscrete([2, n])]), b=spaces.Box(0, high))

    assert wide_enough(nest(2, 3.0), nest(4, 1.0), "") == nest(4, 3.0)
    for one in (spaces.Dict(a=spaces.Discrete(2)), spaces.Tuple([spaces.Discrete(2)]), spaces.MultiDiscrete([2, 2])):
        for other in (spaces.Dict(b=spaces.Discrete(2)), spaces.Tuple([]), spaces.MultiDiscrete([2, 2], start=[1, 1])):
            with pytest.raises(DataError, match="not parts of the same dataset"):
                wide_enough(one, other, "x")
