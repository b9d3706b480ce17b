"""Every format x every operation: the same five episodes in each, and what each must do with them.

A format may lack the final observations of episodes (``last_seen``) or continuous actions (``discrete``).
"""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from formats import FORMATS
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
from reverie.datasets.validate import validate

KINDS = {name: row for name, row in FORMATS.items() if row.reader}
COPIED = ["d4rl", "minari, hdf5", "pydreamer, files", "rl unplugged", "table, parquet", "run, spec"]
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


def test_no_reader_imports_torch(tmp_path):
    """`data info` and `data validate` start with a quarter of the time that torch takes."""
    commands = []
    for name, kind in KINDS.items():
        folder = tmp_path / re.sub(r"\W", "_", name)
        folder.mkdir()
        words = [str(kind.write(folder)), *([f"--columns={json.dumps(kind.columns)}"] if kind.columns else [])]
        commands += [["data", command, *words] for command in ("info", "validate")]
    code = f"import sys\nfrom reverie.cli import main\nfor args in {commands}:\n main(args)\n"
    code += " assert 'torch' not in sys.modules, args"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.stderr, len(re.findall(r"rows in \d+ episodes: ", done.stdout))) == ("", len(KINDS))
    assert not [line for line in done.stdout.splitlines() if line.endswith(" ")]  # nothing is padded


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
    "d4rl": r"d4rl\.hdf5, episode 3, step 0",
    "d4rl, several files": r"3\.hdf5, episode 0, step 0",
    "minari, hdf5": r"d, episode 3, step 0",
    "pydreamer, files": r"npz, episode 3, step 0",
    "table, lists": r"t, episode 3, step 0",
    "run, spec": "run, episode 3, step 0",
}


@pytest.mark.parametrize("name", PLACES)
def test_a_wrong_value_is_found_at_its_place_in_the_files(tmp_path, monkeypatch, name):
    right = Lived.reward
    monkeypatch.setattr(Lived, "reward", lambda self, t: np.nan if self.number == 4 else right(self, t))
    with KINDS[name].read(KINDS[name].write(tmp_path)) as reader:
        with pytest.raises(DataError, match=f"{PLACES[name]}: the reward is nan"):
            list(RecordedEpisodes(reader).parts())
        (finding,) = validate(reader).findings.values()
        assert finding.first == "in episode 3, step 0"


def test_wrong_flags_stop_learning_and_copies(tmp_path, monkeypatch, d4rl):
    """Such as those that a reader made; a copy of the good episodes is learned from."""
    with open_reader(str(d4rl)) as reader:
        rows = joined(reader.parts())
        rows["reward"][0] = 5.0
        for name in ("parts", "as_recorded"):
            monkeypatch.setattr(reader, name, lambda: iter([rows]))
        with pytest.raises(DataError, match=r"a\.hdf5, episode 0, step 0: .*wrong: non-zero reward on .*--write-valid"):
            list(RecordedEpisodes(reader).parts())
        with pytest.raises(DataError, match=r"episode 0, step 0: a flag or reward is wrong"):
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
