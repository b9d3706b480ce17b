"""Every format x every operation: the same five episodes in each, and what each must do with them.

A format may lack the final observations of episodes (``last_seen``) or continuous actions (``discrete``).
"""

import json
import re
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest

import formats
from d4rl_files import columns, write
from formats import named, save_table, table_columns
from recordings import FIELDS, LIVED, Lived, expected, joined
from recordings import FORMATS as WRITTEN
from reverie.core.errors import DataError, ReverieError
from reverie.core.rows import iter_episodes
from reverie.datasets import minari, replay_store, rl_unplugged
from reverie.datasets import transitions as transitions_
from reverie.datasets.convert import drop_invalid_episodes
from reverie.datasets.convert import write_dataset as convert
from reverie.datasets.dataset import RecordedEpisodes
from reverie.datasets.format_detection import open_reader
from reverie.datasets.reader import ReadOptions
from reverie.datasets.validate import validate


@dataclass(frozen=True)
class Format:
    """How to write ``LIVED``, and what is lost by that."""

    write: callable
    reader: str
    columns: dict = field(default_factory=dict)
    last_seen: bool = True
    discrete: bool = False
    pictures: bool = False

    def read(self, path):
        return open_reader(str(path), ReadOptions(columns=self.columns))


def hdf5(path, without="", **how):
    return write(path / "a.hdf5", {name: values for name, values in columns().items() if name != without}, **how)


def several(path):
    return [write(path / f"{i}.hdf5", columns([episode])).parent for i, episode in enumerate(LIVED)].pop()


def in_minari(path, storage="hdf5"):
    files = pytest.importorskip("minari_files")
    return files.write(path / "d", [files.buffer(episode) for episode in LIVED], storage=storage)


def one_by_one(path):
    for episode in LIVED:
        formats.save_npz(path / "npz", f"ep{episode.number:06}_000000-r0-0001", formats.pydreamer_arrays([episode]))
    return path / "npz"


def a_run(path):
    formats.stored(path / "run/replay", [named(LIVED)])
    (path / "run/spec.json").write_text(json.dumps(formats.SPEC))
    return path / "run"


def as_lists(path):
    rows = {"o": "observations", "a": "actions", "r": "rewards", "t": "terminals"}
    return save_table(path / "t", {k: [getattr(e, name).tolist() for e in LIVED] for k, name in rows.items()})


ROLES = {"obs": "observation.state", "next_obs": "after", "action": "action", "reward": "next.reward",
         "terminal": "next.done", "truncated": "timeout"}  # fmt: skip
EPISODES = {"obs": "observation.state", "action": "choice", "reward": "next.reward", "terminal": "next.done",
            "episode": "episode_index"}  # fmt: skip
LISTS = {"obs": "o", "action": "a", "reward": "r", "terminal": "t"}
D4RL, TABLE = "D4RL HDF5", "table"
KINDS = {
    "d4rl": Format(hdf5, D4RL),
    "d4rl, compressed": Format(partial(hdf5, compression="gzip", chunks=True), D4RL),
    "d4rl, no next observations": Format(partial(hdf5, without="next_observations"), D4RL, last_seen=False),
    "d4rl, no timeouts": Format(partial(hdf5, without="timeouts"), D4RL),
    "d4rl, several files": Format(several, "5 x D4RL HDF5"),
    "tianshou": Format(lambda p: formats.tianshou(p / "a.hdf5", [(20, formats.transitions_of(LIVED), 13, 14)]),
                       "Tianshou buffer (HDF5)"),
    "minari": Format(in_minari, "Minari (HDF5)"),
    "minari, arrow": Format(partial(in_minari, storage="arrow"), "Minari (Arrow)"),
    "minari, parquet": Format(partial(in_minari, storage="parquet"), "Minari (Arrow)"),
    "pydreamer": Format(one_by_one, "PyDreamer npz"),
    "rl_unplugged": Format(lambda p: formats.shard(p / "run_1-00000-of-00100", formats.transitions(LIVED)),
                           "RL Unplugged Atari (TFRecord)", discrete=True, pictures=True),
    "arrow": Format(lambda p: save_table(p / "t", table_columns(), pieces=3), TABLE, ROLES),
    "parquet, episode ids": Format(lambda p: save_table(p / "t", table_columns(), kind="parquet"), TABLE, EPISODES,
                                   last_seen=False, discrete=True),
    "table of episodes": Format(as_lists, TABLE, LISTS),
    "run": Format(a_run, "reverie store"),
}  # fmt: skip
COPIED = ["d4rl", "minari", "pydreamer", "rl_unplugged", "parquet, episode ids", "run"]
"""One of each kind of spaces and of ends, which is what copies depend on."""


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def path(kind, tmp_path):
    return kind.write(tmp_path)


@pytest.mark.parametrize("small", [False, True])
def test_rows_are_the_recorded_ones_whatever_the_parts(kind, path, monkeypatch, small):
    """A picture of RL Unplugged says in its corner which it is."""
    if small:
        monkeypatch.setattr(transitions_, "MIN_PART_TRANSITIONS", 3)
        monkeypatch.setattr(rl_unplugged, "BLOCK", 3)
        for module in (transitions_, minari, replay_store):
            monkeypatch.setattr(module, "PART_BYTES", 1)
    with kind.read(path) as reader:
        found = joined(reader.parts())
        assert (reader.format, reader.rows()) == (kind.reader, len(found["reward"]))
    (obs,) = (found.pop(name) for name in list(found) if name.startswith("obs"))
    found["obs"] = obs[:, 0, :2, -1] if kind.pictures else obs
    for name, values in expected(LIVED, last_seen=kind.last_seen, discrete=kind.discrete).items():
        np.testing.assert_array_equal(found[name], np.asarray(values), err_msg=name)


@pytest.mark.parametrize("kind", map(KINDS.get, COPIED), ids=COPIED, indirect=False)
@pytest.mark.parametrize("to", WRITTEN)
def test_copies_hold_the_same_rows(kind, tmp_path, to):
    """In each format that can be written, and in Minari's from there: nothing is lost, so far as it was there."""
    if to == "minari":
        pytest.importorskip("minari")
    path, target = kind.write(tmp_path), tmp_path.with_name(f"{tmp_path.name}-copy")
    with kind.read(path) as reader:
        if kind.pictures and to == "parquet":
            with pytest.raises(ReverieError, match=r"tables can only store numbers and vectors"):
                convert(reader, str(target), to)
            return
        done = convert(reader, str(target), to)
        assert done.steps == sum(len(rows["reward"]) - 1 for rows in iter_episodes(reader.parts()))
    if kind.pictures and to == "d4rl":  # without next observations
        assert len(joined(RecordedEpisodes(open_reader(str(target))).parts())["reward"]) == len(
            expected(LIVED, last_seen=False)["reward"]
        )
        return
    whole, copy = (
        joined(episode for episode in iter_episodes(RecordedEpisodes(reader).parts()) if len(episode["reward"]) > 1)
        for reader in (kind.read(path), open_reader(str(target)))
    )
    (mine,), (theirs,) = ([name for name in rows if name.startswith("obs")] for rows in (whole, copy))
    for one, two in ((mine, theirs), *((name, name) for name in ("action", *FIELDS))):
        np.testing.assert_allclose(whole[one], copy[two], rtol=2e-7, err_msg=one)


def test_validation_finds_no_fault(kind, path):
    with kind.read(path) as reader:
        short = kind.last_seen or kind.pictures  # without final observations, an episode of one step has none
        assert (not validate(reader).findings) == short


PLACES = {
    "d4rl": r"a\.hdf5, episode 3, step 0 \(index 9\)",
    "d4rl, several files": r"\d, episode 3, step 0 \(index 0 of .*3\.hdf5\)",
    "tianshou": r"a\.hdf5, episode 3, step 0 \(index 9\)",
    "minari": r"d, episode 3, step 0 \(index 0 in episode_3\)",
    "minari, arrow": r"d, episode 3, step 0 \(index 0 in episode_3\)",
    "pydreamer": r"npz, episode 3, step 0 \(index 1 of ep000004_000000-r0-0001\.npz\)",
    "arrow": r"t, episode 3, step 0 \(row 0 of data-00002-of-00003\.arrow\)",
    "table of episodes": r"t, episode 3, step 0 \(row 3, item 0\)",
    "run": "run, episode 3, step 0",
}


@pytest.mark.parametrize("name", PLACES)
def test_a_wrong_value_is_found_at_its_place_in_the_files(tmp_path, monkeypatch, name):
    right = Lived.reward
    monkeypatch.setattr(Lived, "reward", lambda self, t: np.nan if self.number == 4 else right(self, t))
    with KINDS[name].read(KINDS[name].write(tmp_path)) as reader:
        with pytest.raises(DataError, match=f"{PLACES[name]}: the reward is nan"):
            list(RecordedEpisodes(reader).parts())
        (finding,) = validate(reader).findings.values()
        assert re.fullmatch(f"in {PLACES[name].partition(', ')[2]}", finding.first)


def test_wrong_flags_stop_learning_and_copies(tmp_path, monkeypatch, d4rl):
    """Such as those that a reader made; a copy of the good episodes is learned from."""
    with open_reader(str(d4rl)) as reader:
        rows = joined(reader.parts())
        rows["reward"][0] = 5.0
        monkeypatch.setattr(reader, "parts", lambda: iter([rows]))
        with pytest.raises(DataError, match=r"a\.hdf5, episode 0, step 0 .*wrong: non-zero reward on .*--write-valid"):
            list(RecordedEpisodes(reader).parts())
        with pytest.raises(DataError, match=r"episode 0, step 0 \(index 0\): a flag or reward is wrong"):
            convert(reader, str(tmp_path / "all"), "store")
        assert not (tmp_path / "all").exists()
        report = validate(reader)
        assert report.invalid_episodes == [0]
        assert convert(reader, str(tmp_path / "good"), "store", drop_invalid_episodes(report)).episodes == 4
    assert list(RecordedEpisodes(open_reader(str(tmp_path / "good"))).parts())


def test_a_damaged_file_is_named_and_never_read_as_a_shorter_one_in_silence(kind, path):
    """Cut at every tenth of its length, or overwritten there."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix not in (".json", ".yaml"))
    file = max((f for f in files if f.is_file()), key=lambda f: f.stat().st_size)
    content, whole = file.read_bytes(), kind.read(path).rows()
    for tenth in range(10):
        at = len(content) * tenth // 10
        for damaged in (content[:at], content[:at] + b"\xff" * 40 + content[at + 40 :]):
            file.write_bytes(damaged)
            found, said = -1, ""
            try:
                with kind.read(path) as reader:
                    found = sum(len(part["reward"]) for part in RecordedEpisodes(reader).parts())
            except ReverieError as error:
                said = str(error)
            silent = not said and "damaged" not in str(reader.remarks()) and len(damaged) < len(content)
            assert path.name in said or found == whole or not silent
