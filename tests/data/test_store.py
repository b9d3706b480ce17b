import tempfile

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.columns import Column
from reverie.core.errors import ConfigError, DataError, RunError
from reverie.store.store import Store
from reverie.store.zarr import chunk_rows
from store_rows import COLUMNS, STREAMS, assert_rows, contents, row, small_chunks, stacked


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_chunks(monkeypatch)


@pytest.fixture
def said():
    return []


@pytest.fixture
def store(tmp_path, said):
    store = Store(tmp_path / "replay", say=said.append)
    yield store
    store.close(5)


def fill(store, start, stop, life=0):
    for number in range(start, stop):
        store.add(row(number, life=life))


def test_rows_come_back(store, tmp_path, said):
    assert store.begin(COLUMNS, STREAMS) == "0"
    fill(store, 0, 20)
    assert store.flush(10)
    assert store.count == store.committed == 20
    again = Store(tmp_path / "replay", say=said.append)
    (segment,) = again.segments
    assert (segment.name, segment.streams, segment.rows, segment.first, segment.imported) == ("0", STREAMS, 20, 0, 0)
    assert dict(segment.columns) == COLUMNS
    found, damaged = contents(again, "0")
    assert_rows(found, stacked(range(20)))
    assert not damaged
    assert not said


def test_reads_a_part(store):
    store.begin(COLUMNS, STREAMS)
    store.extend(stacked(range(30)))
    store.flush(10)
    found = list(store.read("0", 5, 21, [1]))
    assert [(c.start, c.stop, c.streams) for c in found] == [(5, 8, (1,)), (8, 16, (1,)), (16, 21, (1,))]
    for chunk in found:
        expected = stacked(range(chunk.start, chunk.stop))
        assert_rows(chunk.rows, {name: value[1:] for name, value in expected.items()})


def test_a_row_counts_only_once_it_is_committed(store, tmp_path, said):
    store.begin(COLUMNS, STREAMS)
    fill(store, 0, 5)
    assert Store(tmp_path / "replay", say=said.append).segments[0].rows == 0
    assert_rows(store.pending(), stacked(range(5)))
    store.flush(10)
    assert Store(tmp_path / "replay", say=said.append).segments[0].rows == 5
    fill(store, 5, 7)
    assert_rows(store.pending(), stacked(range(5, 7)))


def test_zarr_opens_it(store, tmp_path):
    store.begin(COLUMNS, STREAMS)
    fill(store, 0, 20)
    store.flush(10)
    fill(store, 20, 22)  # not committed: not in the shapes
    group = zarr.open(tmp_path / "replay", mode="r")
    for name, expected in stacked(range(20)).items():
        array = group[f"0/{name}"]
        assert array.shape == expected.shape
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array[:], expected)
    assert set(group["0"].keys()) >= {"obs", "reward"}


def test_resume_goes_on_within_a_chunk(store, tmp_path, said):
    store.begin(COLUMNS, STREAMS)
    fill(store, 0, 21)
    store.close(10)
    again = Store(tmp_path / "replay", say=said.append)
    assert again.resume("0", 21, COLUMNS, STREAMS) == 21
    fill(again, 21, 27)
    assert again.close(10)
    assert_rows(contents(again, "0")[0], stacked(range(27)))
    assert not said


def test_rows_beyond_the_checkpoint_are_set_aside(store, tmp_path, said):
    store.begin(COLUMNS, STREAMS)
    fill(store, 0, 30)
    store.close(10)
    again = Store(tmp_path / "replay", say=said.append)
    assert again.resume("0", 11, COLUMNS, STREAMS) == 11
    assert f"{19 * STREAMS} rows" in said[0]
    assert "aside/0" in said[0]
    fill(again, 11, 18, life=1)
    assert again.close(10)
    expected = {name: np.concatenate([old, new], axis=1)
                for (name, old), new in zip(stacked(range(11)).items(), stacked(range(11, 18), life=1).values(),
                                            strict=True)}  # fmt: skip
    assert_rows(contents(again, "0")[0], expected)
    (aside,) = again.aside
    assert (aside.origin, aside.offset + aside.first) == ("0", 11)
    assert_rows(contents(again, aside)[0], stacked(range(11, 30)))
    array = zarr.open(tmp_path / "replay", mode="r")["aside/0/reward"]
    np.testing.assert_array_equal(array[:, aside.first :], stacked(range(11, 30))["reward"])


def test_the_manifest_grows_by_the_same_with_each_resume(tmp_path, said):
    store = Store(tmp_path / "replay", say=said.append)
    store.begin(COLUMNS, STREAMS)
    sizes = []
    for resumes in range(12):
        fill(store, 5 * resumes, 5 * resumes + 10)
        store.close(10)
        sizes.append((tmp_path / "replay" / "manifest.json").stat().st_size)
        store.resume("0", 5 * resumes + 5, COLUMNS, STREAMS)
    store.close(10)
    assert all(len(group.sittings) == 1 for group in store.aside)
    grown = np.diff(sizes)
    assert grown[-1] < grown[1] + 20  # a digit more here and there, not another sitting


def test_newer_rows_are_kept_if_asked_for(store):
    store.begin(COLUMNS, STREAMS)
    fill(store, 0, 30)
    assert store.resume("0", 11, COLUMNS, STREAMS, keep_newer=True) == 30
    assert not store.aside


def test_segments_begun_after_the_checkpoint_are_set_aside(store, said):
    store.begin(COLUMNS, STREAMS)
    fill(store, 0, 12)
    store.begin(COLUMNS, 3)
    store.extend(stacked(range(9), 3, life=1))
    assert store.resume("0", 12, COLUMNS, STREAMS) == 12
    assert [segment.name for segment in store.segments] == ["0"]
    assert [segment.name for segment in store.aside] == ["1"]
    assert f"{9 * 3} rows" in said[0]
    assert store.begin(COLUMNS, 4) == "2"


def test_fewer_rows_than_the_checkpoint_has(store):
    store.begin(COLUMNS, STREAMS)
    fill(store, 0, 12)
    assert store.resume("0", 15, COLUMNS, STREAMS) == 12


def test_a_segment_may_begin_at_any_row(store):
    store.begin(COLUMNS, STREAMS, first=13, imported=4)
    store.extend(stacked(range(13, 29)))
    store.flush(10)
    (segment,) = store.segments
    assert (segment.start, segment.first, segment.rows, segment.imported) == (13, 13, 29, 4)
    assert_rows(contents(store, "0")[0], stacked(range(13, 29)))


def test_drop_deletes_whole_chunks(tmp_path, said):
    store = Store(tmp_path, say=said.append, keep="replay")
    store.begin(COLUMNS, STREAMS)
    fill(store, 0, 40)
    store.flush(10)
    store.drop(19)
    assert store.close(10)
    again = Store(tmp_path, say=said.append)
    assert again.segments[0].first == 16
    assert_rows(contents(again, "0")[0], stacked(range(16, 40)))
    assert again.resume("0", 40, COLUMNS, STREAMS) == 40
    assert not (tmp_path / "0/reward/c.0.1").exists()
    assert (tmp_path / "0/reward/c.0.2").exists()
    again.close(5)


def test_all_rows_are_kept_unless_said_otherwise(store):
    store.begin(COLUMNS, STREAMS)
    fill(store, 0, 40)
    store.flush(10)
    store.drop(30)
    store.close(10)
    assert store.segments[0].first == 0


def test_rows_may_be_changed_once_they_are_added(store):
    store.begin(COLUMNS, STREAMS)
    rows = row(0)
    store.add(rows)
    for value in rows.values():
        value[...] = 0
    store.flush(10)
    assert_rows(contents(store, "0")[0], stacked(range(1)))


def test_wrong_rows_are_refused(store):
    store.begin(COLUMNS, STREAMS)
    with pytest.raises(DataError, match=r"missing \['action'\], unknown \['aktion'\]"):
        store.add({("aktion" if name == "action" else name): value for name, value in row(0).items()})
    with pytest.raises(DataError, match=r"reward has shape \(3,\): expected \(2,\)"):
        store.add({**row(0), "reward": np.zeros(3)})
    with pytest.raises(DataError, match="reward has shape"):
        store.extend({**stacked(range(4)), "reward": np.zeros((2, 3))})
    store.add(row(0))
    assert store.flush(10)


def test_other_spaces_are_refused(store):
    store.begin(COLUMNS, STREAMS)
    other = {**COLUMNS, "action": Column((5,), "float32"), "obs/new": Column((), "float32")}
    del other["reward"]
    with pytest.raises(ConfigError) as error:
        store.resume("0", 0, other, 3)
    for words in ("the store has no obs/new", "only the store has reward", "not float32 [5]", "2 streams, not 3"):
        assert words in str(error.value)


def test_what_is_no_store_is_left_alone(tmp_path, said):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match=r"not empty and is not a replay store .*letter.txt"):
        Store(tmp_path, say=said.append).begin(COLUMNS, STREAMS)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_nothing_is_written_by_looking(tmp_path, said):
    store = Store(tmp_path / "nothing", say=said.append)
    assert store.segments == []
    assert store.close(1)
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(RunError, match=r"call begin\(\) or resume\(\)"):
        store.add(row(0))
    with pytest.raises(RunError, match="no segment '7'; there are: none"):
        store.resume("7", 0, COLUMNS, STREAMS)


def test_chunks_are_a_few_megabytes(monkeypatch):
    monkeypatch.undo()
    image, number = Column((64, 64, 3), "uint8"), Column((), "float32")
    assert chunk_rows([image, number], 8) == 256  # 3 MB
    assert chunk_rows([number], 8) == 4096
    assert chunk_rows([image], 1024) == 16  # of all streams together 200 MB
    assert chunk_rows([Column((2000, 2000, 3), "uint8")], 1) == 1


def test_a_newer_format_is_refused(store, tmp_path, said, monkeypatch):
    monkeypatch.setattr("reverie.store.manifest.FORMAT", 99)
    store.begin(COLUMNS, STREAMS)
    store.close(5)
    monkeypatch.undo()
    with pytest.raises(RunError, match=r"manifest.json cannot be read: it has format 99.*upgrade"):
        Store(tmp_path / "replay", say=said.append)


operations = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 12)),
    st.tuples(st.just("extend"), st.integers(0, 30)),
    st.tuples(st.just("flush"), st.just(0)),
    st.tuples(st.just("drop"), st.integers(0, 20)),
    st.tuples(st.just("reopen"), st.integers(0, 25)),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(operations, max_size=12), st.integers(0, 20))
def test_whatever_the_order_of_operations(operations, first):
    """The store holds what a list holds to which the same was done."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder, say=lambda text: None, keep="replay", buffer_bytes=1)
        store.begin(COLUMNS, STREAMS, first=first)
        rows, life, oldest = {}, 0, first
        for name, n in operations:
            if name in ("add", "extend"):
                numbers = range(store.count, store.count + n)
                fill(store, numbers.start, numbers.stop, life) if name == "add" else (
                    n and store.extend(stacked(numbers, life=life))
                )
                rows |= dict.fromkeys(numbers, life)
            elif name == "flush":
                assert store.flush(20)
            elif name == "drop":
                store.drop(store.count - n)
                oldest = max(oldest, store.count - n)
            else:
                cut, life = max(store.count - n, oldest), life + 1
                store = reopened(store, folder, cut)
                rows = {number: life for number, life in rows.items() if number < cut}
            assert store.count == max(rows, default=first - 1) + 1
        assert store.close(20)
        (segment,) = Store(folder, say=lambda text: None).segments
        assert segment.rows == max(rows, default=first - 1) + 1
        assert segment.first <= oldest or segment.first == first
        found, damaged = contents(store, "0")
        assert not damaged
        kept = range(segment.first, segment.rows)
        for index, number in enumerate(kept):
            expected = row(number, life=rows[number])
            for name in COLUMNS:
                np.testing.assert_array_equal(found[name][:, index], expected[name])


def reopened(store, folder, cut):
    assert store.close(20)
    again = Store(folder, say=lambda text: None, keep="replay", buffer_bytes=1)
    assert again.resume("0", cut, COLUMNS, STREAMS) == cut
    return again
