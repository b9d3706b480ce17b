"""Discovery: file names are names on the command line, and listing runs nothing."""

import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from reverie.algos.settings import AlgorithmConfig
from reverie.core import discover, imports
from reverie.core.errors import ConfigError

FILES = {p.stem for p in (Path(discover.__file__).parents[1] / "algos").glob("*.py")} - discover.NON_ALGORITHM_FILES


@dataclass(frozen=True, kw_only=True)
class OutsideConfig(AlgorithmConfig):  # type: ignore[misc]
    """An algorithm that lives in somebody else's package."""


@pytest.fixture
def outside(monkeypatch):
    """An installed package that offers an algorithm."""
    point = EntryPoint("outside", f"{__name__}:OutsideConfig", discover.GROUP)
    monkeypatch.setattr(imports, "_entry_points_on", lambda path, group: [point])


def test_each_file_has_exactly_one_config():
    for name in FILES:
        config = discover.algorithm_config(name)
        assert issubclass(config, AlgorithmConfig)
        assert discover.algorithm_name(config) == name
        assert discover.algorithm_config(name.replace("_", "-")) is config


@pytest.mark.usefixtures("outside")
def test_third_parties_are_found():
    assert "outside" in discover.algorithms()
    assert discover.algorithm_config("outside") is OutsideConfig
    assert discover.algorithm_name(OutsideConfig) == "outside"


def test_a_class_nobody_offers_is_named_by_where_it_is():
    name = discover.algorithm_name(OutsideConfig)
    assert name == f"{__name__}:OutsideConfig"
    assert discover.algorithm_config(name) is OutsideConfig


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dreamer3", r"unknown algorithm 'dreamer3'\. Did you mean 'dreamer_v3'"),
        ("nowhere:Config", r"'nowhere' cannot be imported \(ModuleNotFoundError: .*to PYTHONPATH"),
        ("pathlib:Path", "'pathlib' has no subclass of AlgorithmConfig with that name"),
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
        discover.algorithm_config(name)


def test_entry_points_of_a_folder_that_joins_the_path(monkeypatch, tmp_path):
    assert "odd" not in discover.algorithms()
    folder = tmp_path / "somebodys-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{discover.GROUP}]\nodd = somebodys:Config\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert discover.algorithms()["odd"] == "somebodys:Config"


def test_entry_points_of_the_current_folder_are_not_those_of_a_package(monkeypatch, tmp_path):
    test_entry_points_of_a_folder_that_joins_the_path(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    imports._entry_points_on.cache_clear()
    assert "odd" not in discover.algorithms()
