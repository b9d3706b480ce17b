"""What a run says of itself before it begins."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import reverie
from reverie.algos.td3 import TD3, TD3Config
from reverie.experiment import ExperimentConfig
from reverie.training.messages import memory
from reverie.training.run import train
from shared_generators import Paying
from tiny import FEW, SMALL


def test_what_a_run_says_of_itself_has_units_that_fit(tmp_path: Path) -> None:
    said: list[str] = []
    config = ExperimentConfig().merge(SMALL).merge({"replay_ratio": 1.0, "train_ratio": None, "eval_episodes": 1})
    train(config.merge({"steps": 20, "learning_starts": 100}), run=tmp_path / "run", say=said.append)
    assert re.search(r", 1 update per env step \(.*, replay up to \d+\.\d\d [kM]B", "\n".join(said))
    assert "evaluating: 1 episode" in said
    assert [memory(size) for size in (512, 99_000_000, 250_000_000)] == ["0.51 kB", "99.00 MB", "0.25 GB"]


@pytest.mark.parametrize(("starts", "few"), [(11, "no"), (10, "hardly any"), (9, "")])
def test_a_run_that_ends_before_it_learns_says_so_before_it_begins(tmp_path: Path, starts: int, few: str) -> None:
    said: list[str] = []
    more = FEW | {"learning_starts": starts, "eval_episodes": 0, "say": said.append}
    reverie.train("td3", env=Paying, run=tmp_path / "run", **more)
    found = [line for line in said if "there will be" in line]
    expected = (
        f"there will be {few} updates: learning starts after {starts} windows, but the run has only 10 env steps. "
        "Lower learning_starts, or take more steps"
    )
    assert found == ([expected] if few else [])


@dataclass(frozen=True, kw_only=True)
class Forgetful(TD3Config):
    """Perhaps its line ``Forgetful.learner = ...`` was forgotten."""


@dataclass(frozen=True, kw_only=True)
class Mindful(TD3Config):
    """Says what it builds."""


class Minded(TD3):
    """A learner of somebody's own."""


Mindful.learner = Minded


@pytest.mark.parametrize(("config", "told"), [(Forgetful, True), (Mindful, False), (TD3Config, False)])
def test_a_run_says_whose_learner_it_trains_if_its_class_does_not(tmp_path: Path, config: type, told: bool) -> None:
    said: list[str] = []
    reverie.train(config(), env=Paying, run=tmp_path / "run", **FEW | {"eval_episodes": 0, "say": said.append})
    found = [line for line in said if "learner of" in line]
    line = "Forgetful trains TD3, the learner of TD3Config; if you wrote another one, set Forgetful.learner to its"
    assert [line in one for one in found] == [True] * told
