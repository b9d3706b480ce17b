"""Checkpoints come back as they went in, or not at all."""

from __future__ import annotations

import contextlib
import math
import os

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

from reverie.core.errors import RunError
from reverie.run import checkpoint as module
from reverie.run.checkpoint import Checkpoints, read_checkpoint


class Box:
    """Holds a state."""

    def __init__(self, state=None) -> None:
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def tensors_in(state) -> list[torch.Tensor]:
    if isinstance(state, dict | list | tuple):
        return [x for value in (state.values() if isinstance(state, dict) else state) for x in tensors_in(value)]
    return [state] if isinstance(state, torch.Tensor) else []


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return type(a) is type(b) and a == b


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
TENSORS = st.builds(
    lambda shape, dtype: torch.arange(math.prod(shape)).reshape(shape).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
)
ARRAYS = st.builds(
    lambda n, dtype: np.arange(n).astype(dtype),
    st.integers(0, 5),
    st.sampled_from(["u1", "u4", "u8", "i2", "i8", "f2", "f4", "f8", "?"]),
)
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
KEYS = st.one_of(st.text(max_size=6), st.sampled_from(["a/b", "a", "b", "__tensor__", "__tuple__"]), st.integers(0, 3))
STATES = st.recursive(
    st.one_of(PLAIN, TENSORS, ARRAYS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=st.dictionaries(KEYS, STATES, max_size=4))
@example(state={"a/b": torch.zeros(1), "a": {"b": torch.ones(2)}})  # whose tensors would have one name
def test_any_state_comes_back_as_it_was(tmp_path, state):
    store, back = Checkpoints(tmp_path), Box()
    store.load(store.save(1, {"it": Box(state)}), {"it": back})
    assert same(state, back.state)
    assert not any(x.data_ptr() % 64 for x in tensors_in(back.state)), "MKL's products depend on it"


def test_newest_are_kept_and_the_best(tmp_path):
    store = Checkpoints(tmp_path / "not" / "there", keep=2)
    assert store.latest() is None
    assert store.best() is None
    paths = [store.save(1, {"a": Box({"v": 1})})]
    store.mark_best(paths[0])
    paths += [store.save(step, {"a": Box({"v": step})}) for step in (2, 30, 4)]
    assert store.paths() == [paths[0], paths[3], paths[2]]
    assert store.best() == paths[0]
    assert store.latest() == paths[2]
    store.mark_best(paths[3])
    store.save(31, {"a": Box({"v": 31})})
    assert [p.name[-2:] for p in store.paths()] == ["04", "30", "31"]


def test_a_diverged_state_is_not_continued_from(tmp_path):
    store = Checkpoints(tmp_path)
    good = store.save(5, {"a": Box({"v": 1})})
    bad = store.save(9, {"a": Box({"v": math.nan})}, diverged=True)
    assert bad.name == "diverged-000000009"
    assert store.latest() == good


def test_what_a_crash_left_is_ignored_and_swept(tmp_path):
    store = Checkpoints(tmp_path)
    good = store.save(1, {"a": Box({"v": 1})})
    staged = tmp_path / ".tmp-step-000000002-99"
    staged.mkdir()
    (staged / "tensors.safetensors").write_bytes(b"half")
    (tmp_path / ".best.99.part").write_bytes(b"")
    assert Checkpoints(tmp_path).latest() == good
    newer = store.save(3, {"a": Box({"v": 3})})
    assert sorted(tmp_path.iterdir()) == [good, newer]


def test_a_crash_between_the_two_renames_loses_nothing(tmp_path):
    store = Checkpoints(tmp_path, keep=1)
    path = store.save(1, {"a": Box({"v": 1})})
    os.rename(path, tmp_path / ".tmp-old-step-000000001")
    aside = store.latest()
    assert aside.name == ".tmp-old-step-000000001"  # looking moves nothing
    assert read_checkpoint(aside, ["a"]) == {"a": {"v": 1}}
    store.recover()
    assert store.latest() == path
    assert read_checkpoint(path, ["a"]) == {"a": {"v": 1}}


def test_one_half_deleted_is_not_taken_for_damaged_and_is_swept(tmp_path, monkeypatch):
    def killed(path, **options):
        if path.exists():
            (path / "manifest.json").unlink()
            raise KeyboardInterrupt

    store = Checkpoints(tmp_path, keep=1)
    store.save(1, {"a": Box({"v": 1})})
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            store.save(2, {"a": Box({"v": 2})})
    after = Checkpoints(tmp_path, keep=1)
    assert [path.name for path in after.paths()] == ["step-000000002"]
    assert len(list(tmp_path.iterdir())) == 2
    after.recover()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000002"]


@pytest.mark.parametrize("moment", ["save_file", "fsync_path", "manifest_bytes", "_move"])
def test_a_failing_disk_leaves_earlier_checkpoints_alone(tmp_path, monkeypatch, moment):
    store = Checkpoints(tmp_path, keep=1)
    good = store.save(1, {"a": Box({"v": torch.ones(3)})})

    def full(*args):
        if moment == "save_file":
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch if moment == "save_file" else module, moment, full)
    with pytest.raises(RunError, match=r"step-000000002.*No space left on device.*Free space there"):
        store.save(2, {"a": Box({"v": torch.ones(3)})})
    monkeypatch.undo()
    assert store.latest() in (good, tmp_path / "step-000000002")
    assert good.is_dir()


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


DAMAGE = {
    "flipped": flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "deleted": lambda path: path.unlink(),
}


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_and_the_one_before_used(tmp_path, name, damage, said):
    store = Checkpoints(tmp_path)
    before = store.save(1, {"a": Box({"v": torch.arange(1000)})})
    newest = store.save(2, {"a": Box({"v": torch.arange(1000)})})
    DAMAGE[damage](newest / name)
    with pytest.raises(RunError, match=name):
        store.load(newest, {"a": Box()})
    assert Checkpoints(tmp_path).latest() == before
    assert len(said) == 1
    assert said[0].startswith(f"checkpoint step-000000002 cannot be used ({name} is ")
    assert said[0].endswith("): using step-000000001 instead")
    assert list(store.find_damaged()) == ["step-000000002"]


def test_every_bit_of_the_manifest_counts(tmp_path):
    path = Checkpoints(tmp_path).save(1, {"a": Box({})})
    whole = (path / "manifest.json").read_bytes()
    for at in range(len(whole)):
        if whole[at : at + 1] == b" ":
            continue
        (path / "manifest.json").write_bytes(whole[:at] + bytes([whole[at] ^ 2]) + whole[at + 1 :])
        with pytest.raises(RunError, match=r"manifest\.json|format"):
            read_checkpoint(path, ["a"])


def test_what_is_not_data_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(RunError, match=r"cannot save algo/net/fn: .* not function"):
        Checkpoints(tmp_path / "x").save(1, {"algo": Box({"net": {"fn": lambda: 0}})})
    assert not (tmp_path / "x").exists()


def spoil(path):
    flip(path / "tensors.safetensors")


def test_all_damaged_is_an_error_that_names_them(tmp_path):
    store = Checkpoints(tmp_path)
    for step in (100, 200):
        spoil(store.save(step, {"a": Box({"v": torch.ones(9)})}))
    with pytest.raises(RunError, match=r"no checkpoint in .* can be used: step-000000100 \(tensors.*step-000000200"):
        Checkpoints(tmp_path).latest()
    assert list(Checkpoints(tmp_path).find_damaged()) == ["step-000000100", "step-000000200"]


def test_a_state_that_does_not_fit_is_told(tmp_path):
    store, narrow = Checkpoints(tmp_path), torch.nn.Linear(5, 2)

    class Net(Box):
        def __init__(self, net):
            self.net = net

        state_dict = property(lambda self: self.net.state_dict)
        load_state_dict = property(lambda self: self.net.load_state_dict)

    path = store.save(1, {"net": Net(narrow)})
    with pytest.raises(RunError, match=r"does not fit these settings: .*size mismatch.*Use the settings"):
        store.load(path, {"net": Net(torch.nn.Linear(6, 2))})


class Boxed(Box):
    """Holds a state, and bytes in files of its own."""

    def __init__(self, state=None, files=None, spare=True) -> None:
        super().__init__(state)
        self.files, self.prunable = files or {}, spare

    def save_files(self, folder):
        for name, data in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)

    def load_files(self, folder):
        self.files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


FILES = {"a.npy": b"123", "below/b.npy": b"4567"}


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_of_a_part_is_named(tmp_path, name, said):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"box": Boxed({"x": 1}, FILES)})
    path = checkpoints.save(2, {"box": Boxed({"x": 2}, FILES)})
    flip(path / "box" / name)
    assert Checkpoints(tmp_path).latest().name == "step-000000001"
    assert name in said[0]


@pytest.mark.parametrize(("spare", "large", "kept"), [(True, 1, {}), (True, 1000, FILES), (False, 1, FILES)])
def test_large_spare_files_are_only_in_the_newest_checkpoint(tmp_path, monkeypatch, spare, large, kept):
    monkeypatch.setattr(module, "PRUNABLE_MIN_BYTES", large)
    checkpoints = Checkpoints(tmp_path)
    older, newer = (checkpoints.save(step, {"box": Boxed({"x": step}, FILES, spare)}) for step in (1, 2))
    assert checkpoints.find_damaged() == {}
    for path, files in ((older, kept), (newer, FILES)):
        Checkpoints(tmp_path).load(path, {"box": (box := Boxed())})
        assert box.files == files


@pytest.mark.parametrize("call", range(8))
def test_dropping_spare_files_can_be_stopped_anywhere(tmp_path, monkeypatch, call):
    monkeypatch.setattr(module, "PRUNABLE_MIN_BYTES", 1)
    path = Checkpoints(tmp_path).save(1, {"box": Boxed({"x": 1}, FILES)})
    calls = iter(range(100))

    def interrupted(function):
        def wrapper(*args, **kwargs):
            if next(calls) == call:
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return wrapper

    with monkeypatch.context() as patch:
        for name in ("replace", "unlink", "open", "fsync"):
            patch.setattr(os, name, interrupted(getattr(os, name)))
        with contextlib.suppress(KeyboardInterrupt):
            module.prune_checkpoint(path)
    assert Checkpoints(tmp_path).latest() == path
