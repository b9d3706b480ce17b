"""The public names of ``reverie``: each is imported from its module on first use."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing

import pytest

import reverie
from reverie.agent.loading import load
from reverie.algos.dreamer_v3 import DreamerV3Config
from reverie.core.discover import algorithm_config, algorithms


def test_each_name_is_that_of_its_module() -> None:
    for name in reverie.__all__:
        found = getattr(reverie, name)
        assert (found.__name__, found.__module__) == (name, reverie._HOMES[name])
        assert found.__doc__, name
        assert name in dir(reverie)


def test_each_algorithm_has_its_configuration_there() -> None:
    for name in algorithms():
        config = algorithm_config(name)
        assert getattr(reverie, config.__name__, None) is config, name
        assert config.__name__ in reverie.__all__


def test_what_functions_return_is_there() -> None:
    for function in (
        reverie.load, reverie.train, reverie.train_seeds, reverie.dream, reverie.estimate, reverie.extract
    ):  # fmt: skip
        assert typing.get_type_hints(function)["return"].__name__ in reverie.__all__


def test_public_names() -> None:
    assert reverie.load is load
    assert reverie.DreamerV3Config is DreamerV3Config
    assert reverie.__version__.count(".") >= 1
    assert {"train", "load", "DreamerV3Config"} <= set(dir(reverie))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = reverie.trian


def test_dir_lists_public_names_alone() -> None:
    assert [name for name in dir(reverie) if not name.startswith("__")] == sorted(reverie.__all__)
    assert "__version__" in dir(reverie)


def test_the_common_arguments_of_train_are_in_its_signature_and_docstring() -> None:
    parameters = {name: p for name, p in inspect.signature(reverie.train).parameters.items() if name != "overrides"}
    assert {"steps", "seed", "envs", "run", "device", "replay_ratio", "data", "eval_episodes"} <= parameters.keys()
    assert all(f"        {name}: " in str(reverie.train.__doc__) for name in parameters)


def test_importing_reverie_imports_nothing_heavy() -> None:
    code = "import sys, reverie; sys.exit(any(name in sys.modules for name in ('torch', 'gymnasium', 'reverie.api')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
