"""Readers of one's own: named by module and class, and checked row by row."""

from importlib.metadata import EntryPoint

import numpy as np
import pytest

from recordings import LIVED, check, expected
from reverie.cli import main
from reverie.core import registry
from reverie.core.errors import ConfigError, DataError
from reverie.datasets import formats
from reverie.datasets.dataset import RecordedEpisodes
from reverie.datasets.format_detection import open_reader
from reverie.datasets.reader import ReadOptions

MODULE = """
import numpy as np
from gymnasium import spaces
from reverie.core.rows import episode_rows
from reverie.datasets.reader import DatasetInfo, Reader

class Folder(Reader):
    format = "ours"

    @classmethod
    def matches(cls, source):
        return source.is_folder and bool(source.files(".npz"))

    def __init__(self, path, options=None, *, change=""):
        super().__init__(path, options)
        self.change = change

    def files(self):
        return sorted(self.path.glob("*.npz"))

    def info(self):
        space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        return DatasetInfo(observation=space, action=spaces.Box(-1.0, 1.0, (1,)))

    def rows(self):
        return sum(len(np.load(file)["o"]) for file in self.files())

    def parts(self):
        for file in self.files():
            found = np.load(file)
            rows = episode_rows(found["o"], found["a"], found["r"], terminal=bool(found["end"]))
            exec(self.change)
            yield rows
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    name = f"mine_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "data").mkdir()
    for e in LIVED:
        np.savez(tmp_path / f"data/{e.number}.npz", o=e.observations, a=e.actions, r=e.rewards, end=e.end == "terminal")
    return tmp_path / "data", f"{name}:Folder"


def opened(folder, arguments=""):
    return open_reader(str(folder[0]), ReadOptions(reader=folder[1] + arguments))


def test_rows_and_tools(folder, tmp_path, capsys):
    for arguments in ("", "(change='')"):
        check(opened(folder, arguments), expected(LIVED))
    assert (
        main(["data", "convert", str(folder[0]), str(tmp_path / "c"), "--format", "store", "--reader", folder[1]]) == 0
    )
    assert len(list(RecordedEpisodes(open_reader(str(tmp_path / "c"))).parts())) == 1
    assert main(["data", "validate", str(folder[0]), "--reader", folder[1]]) == 0
    assert "19 rows in 5 episodes: sound" in capsys.readouterr().out


def test_a_mistake_in_a_reader_is_no_damaged_file(folder):
    path = str(folder[0])
    with (
        pytest.raises(KeyError),
        open_reader([path, path], ReadOptions(reader=f"{folder[1]}(change='rows[0]')")) as reader,
    ):
        list(reader.parts())


def test_readers_of_installed_packages_are_asked_first(folder, monkeypatch):
    path, target = folder
    with pytest.raises(DataError, match="contains a, end, o, r: expected"):
        open_reader(path)
    monkeypatch.setattr(registry, "entry_points_in", lambda group: [EntryPoint("mine", target, group)])
    assert formats.format_names().startswith("from installed packages: mine; folders: Minari")
    for options in (ReadOptions(), ReadOptions(reader="mine")):
        check(open_reader(path, options), expected(LIVED))
    np.savez(path.parent / "1.npz", observations=[[1.0]], actions=[[1.0]], terminals=[True])
    assert open_reader(path.parent / "1.npz").format == "OGBench npz"
    with pytest.raises(DataError, match=r"several formats: OGBench npz \(such as 1\.npz\); ours \(such as data\)"):
        open_reader(f"{path.parent}/[d1]*")


def test_names_that_are_wrong(folder):
    path, name = folder
    with pytest.raises(ConfigError, match="no subclass of Reader"):
        opened((path, name.replace("Folder", "Gone")))
    with pytest.raises(ConfigError, match=r"Folder\(change=word\)': expected one of name"):
        opened(folder, "(change=word)")
    with pytest.raises(DataError, match="there is no dataset at"):
        opened((path / "gone", name))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("del rows['reward']", "there is no column 'reward', only"),
        ("rows['obs'] = rows['obs'][1:]", r"column 'obs' has shape \[3, 2\], but 'is_first' has 4 rows"),
        ("rows['is_last'] = rows['is_last'].astype(int)", r"column 'is_last' has dtype int.*expected bool"),
        ("rows['reward'] = np.stack([rows['reward']] * 2, 1)", r"column 'reward' .*expected numbers of shape \[4\]"),
        ("rows['is_last'][-1] = False", r"data, episode 0, step 2: .* is wrong: is_terminal without is_last"),
    ],
)
def test_rows_that_are_wrong_are_told(folder, change, said):
    with pytest.raises(DataError, match=said):
        list(RecordedEpisodes(opened(folder, f"(change={change!r})")).parts())
