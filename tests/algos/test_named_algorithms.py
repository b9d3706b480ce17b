"""Algorithms by name: in the table, of installed packages, or module:Class. Listing imports none."""

import re
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from reverie.algos import table
from reverie.algos.settings import AlgorithmConfig
from reverie.core import imports
from reverie.core.errors import ConfigError
from reverie.core.registry import Entry


@dataclass(frozen=True, kw_only=True)
class OutsideConfig(AlgorithmConfig):  # type: ignore[misc]
    """An algorithm that lives in somebody else's package."""


@pytest.fixture
def outside(monkeypatch):
    """An installed package that offers an algorithm."""
    point = EntryPoint("outside", f"{__name__}:OutsideConfig", table.ENTRY_POINTS)
    monkeypatch.setattr(imports, "_entry_points_on", lambda path, group: [point])


def test_each_row_names_the_config_of_its_file():
    for name, target, group in table.ALGORITHMS:
        config = table.algorithm_config(name)
        assert issubclass(config, AlgorithmConfig)
        assert (target.partition(":")[0], config.__module__) == (f"reverie.algos.{name}",) * 2
        assert table.algorithm_name(config) == name
        assert table.algorithm_config(name.replace("_", "-")) is config
        assert group != Entry._field_defaults["group"]


def test_each_file_that_makes_a_learner_has_a_row():
    files = Path(table.__file__).parent.glob("*.py")
    learners = {file.stem for file in files if re.search(r"^\w+Config\.learner = ", file.read_text(), re.MULTILINE)}
    others = {"fqe", "custom_policy"}  # one evaluates policies, one is trained by the loop of its user
    assert learners - others == {entry.name for entry in table.ALGORITHMS}


@pytest.mark.usefixtures("outside")
def test_third_parties_are_found():
    assert "outside" in table.algorithms()
    assert table.algorithm_config("outside") is OutsideConfig
    assert table.algorithm_name(OutsideConfig) == "outside"


def test_a_class_nobody_offers_is_named_by_where_it_is():
    name = table.algorithm_name(OutsideConfig)
    assert name == f"{__name__}:OutsideConfig"
    assert table.algorithm_config(name) is OutsideConfig


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dreamer3", r"unknown algorithm 'dreamer3'\. Did you mean 'dreamer_v3'"),
        ("nowhere:Config", r"'nowhere' cannot be imported \(ModuleNotFoundError: .*to PYTHONPATH"),
        ("pathlib:Path", "'pathlib' has no subclass of LearnerConfig with that name"),
        ("somebodys:Mine", r"with that name\. Did you mean 'MineConfig'\? It has: MineConfig, OtherConfig\.$"),
        ("somebodys.py:MineConfig", r"not the name of a module: expected identifiers .*, as in 'somebodys:MineConfig'"),
    ],
)
def test_a_name_or_class_that_is_not_there(name, said, monkeypatch):
    module = ModuleType("somebodys")
    module.AlgorithmConfig, module.Mine = AlgorithmConfig, type("Mine", (), {})  # type: ignore[attr-defined]
    for own in ("MineConfig", "OtherConfig"):
        setattr(module, own, type(own, (AlgorithmConfig,), {"__module__": "somebodys"}))
    monkeypatch.setitem(sys.modules, "somebodys", module)
    with pytest.raises(ConfigError, match=said):
        table.algorithm_config(name)


def test_entry_points_of_a_folder_that_joins_the_path(monkeypatch, tmp_path):
    assert "odd" not in table.algorithms()
    folder = tmp_path / "somebodys-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{table.ENTRY_POINTS}]\nodd = somebodys:Config\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert table.algorithms()["odd"].target == "somebodys:Config"


def test_entry_points_of_the_current_folder_are_not_those_of_a_package(monkeypatch, tmp_path):
    test_entry_points_of_a_folder_that_joins_the_path(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    imports._entry_points_on.cache_clear()
    assert "odd" not in table.algorithms()
