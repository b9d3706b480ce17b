"""Runs whose settings have former names are read, resumed and used as configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import reverie
from reverie.core.discover import algorithm_config
from reverie.core.renamed import ALGORITHMS, OPTIONS, present_names
from reverie.saved import read_saved


def test_present_names_exist() -> None:
    for algorithm, renamed in OPTIONS.items():
        assert set(renamed.values()) <= algorithm_config(algorithm)().to_dict().keys()
    assert all(algorithm_config(name) for name in ALGORITHMS.values())


@pytest.mark.parametrize("algorithm", OPTIONS)
def test_options_of_earlier_runs_are_renamed_and_others_stay(algorithm: str) -> None:
    for former, present in OPTIONS[algorithm].items():
        _, experiment = present_names(algorithm, {"seed": 3, "algo": {former: 0.5, "lr": 1.0}})
        assert experiment == {"seed": 3, "algo": {present: 0.5, "lr": 1.0}}


def test_damage_is_left_to_those_who_look_for_it() -> None:
    assert present_names("bcq", "nonsense") == ("bcq", "nonsense")  # type: ignore[arg-type]
    assert present_names("bcq", {"algo": 3}) == ("bcq", {"algo": 3})


def test_a_run_of_an_algorithm_with_a_former_name_resumes(tmp_path: Path) -> None:
    given = {"env": "CartPole-v1", "run": tmp_path / "run", "eval_episodes": 0, "learning_starts": 8, "threads": 1,
             "console": False, "tensorboard": False, "say": lambda _: None, "algo.networks.units": (8,),
             "algo.batch_size": 4}  # fmt: skip
    reverie.train("discrete_sac", steps=20, **given)
    config = tmp_path / "run" / "config.yaml"
    saved = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**saved, "algorithm": "sac_discrete"}))
    assert read_saved(tmp_path / "run").algorithm == "discrete_sac"
    result = reverie.train("discrete_sac", steps=30, config=config, **given)
    assert result.env_steps == 30
    assert yaml.safe_load(config.read_text())["algorithm"] == "discrete_sac"
