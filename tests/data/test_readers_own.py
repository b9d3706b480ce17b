"""Readers that a user wrote: how they are named, and what is said about their mistakes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gymnasium import spaces

import reverie
from reverie.cli import main
from reverie.core import discover
from reverie.core.errors import ConfigError, DataError
from reverie.datasets.config import DatasetConfig
from reverie.datasets.convert import write
from reverie.datasets.dataset import Recorded, open_recorded
from reverie.datasets.detect import open_reader
from reverie.datasets.episodes import episode_rows, joined
from reverie.datasets.own import OwnReader
from reverie.datasets.reader import About, Reader, ReadOptions, Rows
from reverie.experiment import ExperimentConfig

SMALL: dict[str, Any] = {
    "threads": 1, "eval_episodes": 1, "tensorboard": False, "console": False, "data.estimate_updates": 0,
}  # fmt: skip
NETS: dict[str, Any] = {"algo.batch_size": 4, "algo.networks.units": (8,)}

MODULE = '''
import numpy as np
from gymnasium import spaces

from reverie.datasets.episodes import episode_rows
from reverie.datasets.reader import About, Reader


class Folder(Reader):
    """One file for each episode."""

    format = "our npz"

    def __init__(self, path, options=None, *, stride=1, suffix=".npz"):
        super().__init__(path, options)
        self.stride, self.suffix = stride, suffix

    def files(self):
        return sorted(self.path.glob("*" + self.suffix))[:: self.stride] if self.path.is_dir() else [self.path]

    def about(self):
        return About(observation=spaces.Box(-9, 9, (2,), np.float32), action=spaces.Discrete(3), env="CartPole-v1")

    def rows(self):
        return sum(len(np.load(file)["seen"]) for file in self.files())

    def parts(self):
        for file in self.files():
            found = np.load(file)
            yield episode_rows(found["seen"], found["done"], found["reward"], terminal=bool(found["dead"]))


class Unfinished(Folder.__base__):
    def about(self):
        return None


class Other:
    pass
'''


def quiet(text: str) -> None:
    pass


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Four episodes of 3, 4, 5 and 6 steps, and the module ``ownreader_<test>`` that reads them."""
    path = tmp_path / "recordings"
    path.mkdir()
    rng = np.random.default_rng(0)
    for number in range(4):
        n = number + 3
        columns = {"seen": rng.uniform(-1, 1, (n + 1, 2)), "done": rng.integers(0, 3, n), "reward": np.ones(n)}
        np.savez(path / f"{number}.npz", dead=number % 2 == 0, **columns)  # type: ignore[arg-type]
    (tmp_path / "ownreader.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return path


def train(run: Path, data: Any, **more: Any) -> reverie.Result:
    return reverie.train(more.pop("algorithm", "bc"), data=data, run=run, say=quiet, **{**SMALL, **NETS, **more})


def the_class() -> type[Reader]:
    from ownreader import Folder  # type: ignore[import-not-found]

    found: type[Reader] = Folder
    return found


# ---------------------------------------------------------------- naming


def test_a_reader_is_named_by_its_module_and_class(folder: Path) -> None:
    with open_reader(str(folder), ReadOptions(reader="ownreader:Folder")) as reader:
        assert (reader.format, reader.env_id()) == ("our npz", "CartPole-v1")
        rows = joined(list(reader.parts()))
    assert len(rows["reward"]) == 4 + 5 + 6 + 7
    assert rows["is_first"].sum() == rows["is_last"].sum() == 4
    assert rows["is_terminal"].sum() == 2
    with open_reader(str(folder), ReadOptions(reader="ownreader:Folder(stride=3, suffix='.npz')")) as reader:
        assert reader.rows() == 4 + 7


def test_a_glob_is_read_file_by_file(folder: Path) -> None:
    with open_reader(f"{folder}/[13].npz", ReadOptions(reader="ownreader:Folder")) as reader:
        assert reader.rows() == 5 + 7
        assert reader.format == "2 x our npz"


def test_a_folder_with_brackets_is_no_glob(folder: Path) -> None:
    named = folder.with_name("run[1]")
    shutil.copytree(folder, folder.with_name("run1"))
    folder.rename(named)
    with open_reader(str(named), ReadOptions(reader="ownreader:Folder")) as reader:
        assert reader.path == named


def test_a_place_where_nothing_is_found_is_told(folder: Path) -> None:
    (folder / "empty").mkdir()
    said = r"empty, read by Folder: rows\(\) returned 0, so nothing was found there\. .*with a glob, each match"
    with (
        pytest.raises(DataError, match=said),
        open_reader(f"{folder}/empty", ReadOptions(reader="ownreader:Folder")) as r,
    ):
        r.rows()


def test_packages_name_readers_by_entry_points(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"reverie.readers": [EntryPoint("ours", "ownreader:Folder", "reverie.readers"),
                                  EntryPoint("broken", "ownreader:Gone", "reverie.readers")]}  # fmt: skip
    monkeypatch.setattr(discover, "entry_points", lambda group: points.get(group, []))
    with open_reader(str(folder), ReadOptions(reader="ours(stride=2)")) as reader:
        assert reader.rows() == 4 + 6
    with pytest.raises(ConfigError, match=r"'our': .*Did you mean 'ours'.*packages have broken, ours"):
        open_reader(str(folder), ReadOptions(reader="our"))
    with pytest.raises(ConfigError, match=r"'broken = ownreader:Gone' \(reverie\.readers\).* cannot be loaded"):
        open_reader(str(folder), ReadOptions(reader="broken"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:Folder", r"data\.reader = 'nowhere:Folder': module 'nowhere' cannot be imported"),
        ("ownreader.Folder", r"expected module:Class.*Did you mean 'ownreader:Folder'"),
        ("ownreader:Foldr", r"no subclass of Reader with that name\. Did you mean 'Folder'"),
        ("ownreader:Other", r"no subclass of Reader with that name"),
        ("ownreader:Unfinished", r"Unfinished lacks parts\(\) and rows\(\) of reverie\.datasets\.reader\.Reader"),
        (
            "ownreader:Folder(strid=2)",
            r"unexpected keyword argument 'strid'\)\. It takes \(path, options=None, \*, stride=1",
        ),
        ("ownreader:Folder(2)", r"expected module:Class, or module:Class\(setting=value\)"),
        ("ownreader:Folder(stride=n)", r"expected module:Class, or module:Class\(setting=value\)"),
        ("ownreader.py", r"expected module:Class"),
        ("own reader", r"expected module:Class"),
    ],
)
def test_a_wrong_name_is_told(folder: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_reader(str(folder), ReadOptions(reader=name))


def test_a_path_that_does_not_exist_is_told(folder: Path) -> None:
    with pytest.raises(
        DataError, match=r"nothing at .*recording, which ownreader:Folder is to read\. Did you mean 're"
    ):
        open_reader(str(folder)[:-1], ReadOptions(reader="ownreader:Folder"))
    with pytest.raises(DataError, match=r"pass the path of the data here, and the class as data\.reader"):
        open_reader("ownreader:Folder(recordings)")


def test_a_reader_without_data_has_no_effect(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.reader has no effect without data"):
        reverie.train("dqn", env="CartPole-v1", run=folder / "run", **{"data.reader": "ownreader:Folder"})
    whole = ExperimentConfig(data=DatasetConfig(reader="ownreader:Folder"))
    with pytest.raises(ConfigError, match=r"data\.reader = 'ownreader:Folder' has no effect without data\.path"):
        reverie.train(whole, env="CartPole-v1", run=folder / "run")


# ---------------------------------------------------------------- runs


def saved(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((run / "config.yaml").read_text())["experiment"]["data"]
    return found


def test_a_run_finds_its_reader_again(folder: Path, tmp_path: Path) -> None:
    run, flags = tmp_path / "run", ["--threads", "1", "--eval-env", "none", "--algo.networks.units", "8"]
    command = ["train", "bc", "--data", "recordings", "--data.reader", "ownreader:Folder(stride=2)", "--run", str(run)]
    assert main([*command, *flags, "--updates", "2", "--data.estimate-updates", "0"]) == 0
    assert saved(run)["reader"] == "ownreader:Folder(stride=2)"
    assert main(["train", "--resume", str(run), "--updates", "4"]) == 0
    assert len(list((run / "checkpoints").iterdir())) >= 1


def test_an_object_is_read_from_and_named_in_the_settings(folder: Path, tmp_path: Path) -> None:
    kind = the_class()
    assert train(tmp_path / "run", kind(folder, stride=2), updates=2, eval_env="none").updates == 2  # type: ignore[call-arg]
    assert saved(tmp_path / "run")["reader"] == "ownreader:Folder(stride=2)"
    by_name = {"data.reader": "ownreader:Folder(stride=2)", "eval_env": "none"}
    assert train(tmp_path / "run", folder, updates=3, **by_name).updates == 3
    config = DatasetConfig(reader=kind(folder))
    assert config.path == str(folder)
    assert open_recorded(config).rows() == 22
    assert train(tmp_path / "two", config, updates=2, **{"data.eval_env": "none"}).updates == 2
    options = ReadOptions(time_limit=7)
    train(tmp_path / "three", kind(folder, options), updates=1, eval_env="none")
    assert saved(tmp_path / "three")["time_limit"] == 7


def test_an_object_that_no_file_can_hold_is_passed_again(folder: Path, tmp_path: Path) -> None:
    class Held(the_class()):  # type: ignore[misc]
        closed = 0

        def __init__(self, files: list[Path]) -> None:
            super().__init__("memory")
            self.held = files

        def files(self) -> list[Path]:
            return self.held

        def close(self) -> None:
            self.closed += 1

    run, files = tmp_path / "run", sorted(folder.iterdir())
    reader = Held(files)
    assert train(run, reader, updates=2, eval_env="none").updates == 2
    assert not reader.closed  # it is the user's
    assert saved(run)["path"] == "memory"
    assert saved(run)["reader"].endswith("Held(...)")
    with pytest.raises(ConfigError, match=r"cannot hold\. Make it again and pass it: .*data=Held\(\.\.\.\)"):
        main_raises(["train", "--resume", str(run), "--updates", "3"])
    assert train(run, Held(files), updates=3, eval_env="none").updates == 3
    with pytest.raises(ConfigError, match=r"each seed runs in its own process, which must make the reader"):
        reverie.train_seeds("bc", data=Held(files), seeds=2, run=tmp_path / "seeds", say=quiet)


def main_raises(args: list[str]) -> None:
    from reverie.commands.train import train_command

    train_command(args[1:])


def test_a_world_model_learns_from_it_and_dreams(folder: Path, tmp_path: Path) -> None:
    """Of observations and actions like those of CartPole, whose data name it."""

    class Poles(the_class()):  # type: ignore[misc]
        def about(self) -> About:
            space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
            return About(observation=space, action=spaces.Discrete(2), env="CartPole-v1")

        def parts(self) -> Iterator[Rows]:
            for rows in super().parts():
                yield rows | {"obs": np.tile(rows["obs"], (1, 2)), "action": rows["action"] % 2}

    more = {"algo.batch_size": 2, "algo.batch_length": 3, "size": "nano", "updates": 2}
    result = reverie.train("dreamer_v3", data=Poles(folder), run=tmp_path / "run", say=quiet, **SMALL, **more)
    assert result.evaluation is not None
    agent = reverie.load(tmp_path / "run")
    assert agent.evaluate(episodes=1).scores
    assert reverie.dream(agent, context=2, horizon=2, sequences=1).errors


def test_returns_are_estimated_from_it(folder: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", the_class()(folder), updates=2, eval_env="none")
    for data in (None, the_class()(folder)):
        report = reverie.estimate(tmp_path / "run", data, updates=2, say=quiet)
        assert report.estimate.episodes == 4


# ---------------------------------------------------------------- tools


def test_tools_read_it(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["recordings", "--reader", "ownreader:Folder"]
    assert main(["data", "info", *given]) == 0
    assert "our npz" in capsys.readouterr().out
    assert main(["data", "validate", *given]) == 0
    assert "22 rows in 4 episodes: sound" in capsys.readouterr().out
    assert main(["data", "convert", *given, "copy.hdf5", "--to", "d4rl"]) == 0
    assert main(["data", "subsample", *given, "part", "--steps", "4", "--by", "step", "--to", "pydreamer"]) == 0
    one, two = (Recorded(open_reader(str(path), options)).parts() for path, options in
                ((folder, ReadOptions(reader="ownreader:Folder")), (tmp_path / "copy.hdf5", None)))  # fmt: skip
    a, b = joined(list(one)), joined(list(two))
    for name in ("action", "reward", "is_last"):
        np.testing.assert_array_equal(a[name], b[name])


# ---------------------------------------------------------------- mistakes

Change = Callable[[Rows], Any]


def reader_with(folder: Path, change: Change | None = None, **methods: Any) -> Reader:
    base = the_class()

    def parts(self: Reader) -> Iterator[Any]:
        for rows in base.parts(self):
            yield rows if change is None else change(dict(rows))

    return type("Mine", (base,), {"parts": parts, **methods})(folder)  # type: ignore[no-any-return]


def changed(name: str, by: Callable[[np.ndarray], Any]) -> Change:
    return lambda rows: rows | {name: by(rows[name])}


def without(name: str) -> Change:
    return lambda rows: {key: values for key, values in rows.items() if key != name}


def put(values: np.ndarray, at: int, value: Any) -> np.ndarray:
    values = values.copy()
    values[at] = value
    return values


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed("is_first", lambda x: x.astype(np.uint8)), r"'is_first' has dtype uint8 and shape \[4\]: expected"),
        (changed("is_last", lambda x: x.astype(float)), r"'is_last' has dtype float64.*is_last\.astype\(bool\)"),
        (changed("is_terminal", lambda x: x[:, None]), r"'is_terminal' has dtype bool and shape \[4, 1\]: expected"),
        (without("is_last"), r"row 0 on: there is no column 'is_last', only obs, action, reward, is_first, is_term"),
        (lambda x: without("obs")(x) | {"obs_": x["obs"]}, r"there is no column 'obs', .*Did you mean 'obs_'"),
        (without("reward"), r"there is no column 'reward'"),
        (changed("is_last", lambda x: x & False), r"is_terminal, but not is_last"),
        (lambda x: x | {"is_last": x["is_last"] & False, "is_terminal": x["is_terminal"] & False},
         r"row 4 is is_first, but the row before it is not is_last\. Set is_last in the last row"),
        (changed("is_terminal", lambda x: put(x, 1, True)), r"row 1 is is_terminal, but not is_last"),
        (lambda x: x | {"is_last": x["is_last"] & (len(x["is_last"]) < 7), "is_terminal": x["is_terminal"] & False},
         r"row 21 is the last one, but not is_last"),
        (changed("is_last", lambda x: put(x, 1, True)), r"row 2 is not is_first, but the row before it is is_last"),
        (changed("is_first", lambda x: x & False), r"row 0 begins the first episode, but its is_first is False"),
        (changed("reward", lambda x: x + 1), r"row 0 is is_first, but its reward is not 0\. Rewards belong"),
        (changed("reward", lambda x: x[:, None]), r"'reward' has dtype float64 and shape \[4, 1\]: expected one"),
        (changed("reward", lambda x: x.astype(str)), r"'reward' has dtype <U"),
        (changed("obs", lambda x: x[:-1]), r"'obs' has 3 rows, but 'is_first' has 4\. An episode of n steps has"),
        (changed("action", lambda x: x[:-1]), r"'action' has 3 rows, but 'is_first' has 4"),
        (changed("obs", lambda x: x[:, :1]), r"'obs' has shape \[4, 1\]: expected \[4, 2\], as its space in about\(\)"),
        (changed("action", lambda x: np.stack([x, x], 1)), r"'action' has shape \[4, 2\]: expected \[4\]"),
        (changed("obs", lambda x: x.astype(object)), r"'obs' has dtype object: expected numbers"),
        (lambda x: {name: v.tolist() for name, v in x.items()}, r"'obs' is a list: expected a NumPy array"),
        (lambda x: list(x.items()), r"parts\(\) yielded \[.*expected a dictionary of arrays"),
        (changed("action", lambda x: x + 5), r"action 'action' of row 0 is .*its space declares 0\.\.2"),
        (changed("obs", lambda x: x * np.nan), r"observation 'observation' of row 0 is .*expected finite"),
    ],
)  # fmt: skip
def test_rows_that_are_wrong_are_told(folder: Path, change: Change, said: str) -> None:
    with pytest.raises(DataError, match=said) as told:
        list(Recorded(OwnReader(reader_with(folder, change))).parts())
    assert str(folder) in str(told.value)


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ({"rows": lambda self: 30}, r"rows\(\) returned 30, but parts\(\) yielded 22 rows"),
        ({"rows": lambda self: 20}, r"rows\(\) returned 20, but parts\(\) yielded 22 rows"),
        ({"rows": lambda self: None}, r"rows\(\) returned None: expected a whole number"),
        ({"about": lambda self: None}, r"about\(\) returned None: expected About\("),
        ({"about": lambda self: About(observation=(2,), action=spaces.Discrete(3))},  # type: ignore[arg-type]
         r"about\(\)\.observation is \(2,\): expected a space of Gymnasium"),
    ],
)  # fmt: skip
def test_methods_that_return_something_else_are_told(folder: Path, methods: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        list(Recorded(OwnReader(reader_with(folder, **methods))).parts())


def test_a_reader_that_forgets_to_call_the_base_class_is_told(folder: Path) -> None:
    kind = type("Mine", (the_class(),), {"__init__": lambda self, path, options=None: None})
    with pytest.raises(ConfigError, match=r"Mine\.__init__ must call super\(\)\.__init__\(path, options\)"):
        open_reader(str(folder), ReadOptions(reader=kind(folder)))


def test_rows_that_can_only_be_read_once_are_told(folder: Path) -> None:
    reader = reader_with(folder)
    parts = iter(list(reader.parts()))
    reader.parts = lambda: parts  # type: ignore[method-assign]
    own = OwnReader(reader)
    assert sum(len(part["reward"]) for part in own.parts()) == 22
    with pytest.raises(DataError, match=r"parts\(\) yielded 0 rows.*must begin anew on each call"):
        list(own.parts())


def test_validation_finds_flags_that_contradict_each_other_and_copies_leave_them_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = MODULE.replace(
        'terminal=bool(found["dead"]))',
        'terminal=False) | ({"is_last": found["seen"][:, 0] > 9} if file.stem == "1" else {})',
    )
    (tmp_path / "openreader.py").write_text(text)
    given = ["recordings", "--reader", "openreader:Folder"]
    assert main(["data", "validate", *given, "--quarantine", "good", "--to", "store"]) == 1
    said = capsys.readouterr().out
    assert "episode ends without is_last: 1 row in 1 episode, first in row 8, episode 1" in said
    assert open_reader("good").rows() == 4 + 6 + 7
    with pytest.raises(DataError, match=r"row 9 is is_first, but the row before it is not is_last"):
        write(open_reader("recordings", ReadOptions(reader="openreader:Folder")), "bad", "minari")
    assert not Path("bad").exists()


def test_what_a_reader_notes_is_reported(folder: Path) -> None:
    def parts(self: Reader) -> Iterator[Rows]:
        self.note("half of it was dark", 2)
        yield from the_class().parts(self)

    recorded = Recorded(OwnReader(reader_with(folder, parts=parts)))
    list(recorded.parts())
    assert recorded.remarks() == ["half of it was dark (2 times)"]


# ---------------------------------------------------------------- rows of an episode


def test_an_episode_becomes_rows() -> None:
    seen = {"arm": np.arange(8.0).reshape(4, 2), "camera": np.zeros((4, 3, 3), np.uint8)}
    rows = episode_rows(seen, np.array([2, 1, 2]), np.array([0.5, 1.0, 2.0], np.float32), terminal=True)
    assert list(rows) == ["obs/arm", "obs/camera", "action", "reward", "is_first", "is_last", "is_terminal"]
    assert rows["action"].tolist() == [2, 1, 2, 0]
    assert rows["reward"].tolist() == [0.0, 0.5, 1.0, 2.0]
    assert rows["reward"].dtype == np.float32
    assert rows["is_terminal"].tolist() == rows["is_last"].tolist() == [False, False, False, True]
    assert not episode_rows(seen, np.zeros(3), np.zeros(3), terminal=False)["is_terminal"].any()


@pytest.mark.parametrize(
    ("obs", "action", "reward", "named"),
    [(3, 3, 3, "obs"), (4, 4, 3, "action"), (4, 3, 4, "obs"), (1, 0, 0, "obs")],
)
def test_an_episode_of_the_wrong_lengths_is_told(obs: int, action: int, reward: int, named: str) -> None:
    with pytest.raises(DataError, match=rf"^{named} has shape .*expected n >= 1 rewards \[n\], n actions"):
        episode_rows(np.zeros((obs, 2)), np.zeros(action), np.zeros(reward), terminal=True)
