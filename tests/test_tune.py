"""A search: each trial is trained once, bad ones end early, and what was interrupted goes on."""

from __future__ import annotations

import csv
import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

import reverie
from reverie import api
from reverie.cli import main
from reverie.core.errors import ConfigError, RunError
from reverie.experiment.layers import layered
from reverie.log.metrics import JsonlSink
from reverie.run.evaluate import Evaluation
from reverie.scale import seeds as processes
from tiny import SETTINGS

pytest.importorskip("optuna")
tune = importlib.import_module("reverie.scale.search")
SPACE = {"algo.lr": {"low": "1e-5", "high": 1e-2, "log": True}, "algo.networks.units": {"choices": [[8], [16, 16]]}}
CONFIG = layered("dqn", env="CartPole-v1").merge({
    "steps": 900, "schedule.eval_every": 100, "learning_starts": 20, "eval_episodes": 2, "threads": 1,
    "console": False, "tensorboard": False,
})  # fmt: skip


class Actor:
    """Plays the process of a trial, which is better the nearer the learning rate is to 1e-3."""

    cast: list[Actor]
    signals: list[int]
    """Sent to this process when a trial is at its middle."""
    fails: set[int]

    def __init__(self, command: list[str], log: Path) -> None:
        at = command.index("--config")
        self.run, own = Path(command[command.index("--run") + 1]), Path(command[at + 2])
        self.number = int(self.run.name.partition("-")[2])
        self.settings = yaml.safe_load(own.read_text())
        shared = yaml.safe_load(Path(command[at + 1]).read_text())["experiment"]
        self.every, self.length = shared["schedule"]["eval_every"], shared["steps"]
        self.score = -abs(math.log10(self.settings["algo.lr"]) + 3)
        self.step, self.ended, self.told = 0, None, []
        log.write_text("reverie: no" if self.number in self.fails else "")
        self.run.mkdir(exist_ok=True)
        (self.run / "config.yaml").write_text("")
        self.cast.append(self)

    def code(self) -> int | None:
        if self.number in self.fails:
            return 1
        if self.told:
            return 143
        self.step += self.every
        if self.step == 500 and self.signals:
            processes.os.kill(processes.os.getpid(), self.signals.pop())
        if self.step >= self.length:
            one = Evaluation(scores=[self.score], lengths=[7], mode="eval", info=[{"cost": -self.score}])
            (self.run / "eval.json").write_text(json.dumps({"env_steps": self.step, **one.to_dict()}))
            return 0
        sink = JsonlSink(self.run / "metrics.jsonl")
        sink.write({"eval/score": self.score, "eval/cost": -self.score, "eval/final": 0.0}, self.step)
        sink.close()
        return None

    def tell(self, number: int) -> None:
        self.told.append(number)

    def last_words(self) -> str:
        return "reverie: no" if self.number in self.fails else ""

    def wait(self) -> None:
        pass


@pytest.fixture(autouse=True)
def cast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Actor]:
    """Who has acted, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(processes, "POLL", 0.0)
    Actor.cast, Actor.signals, Actor.fails = [], [], set()
    return Actor.cast


@pytest.fixture
def acted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "Child", Actor)


def search(trials: int, **more: Any) -> Any:
    return tune.tune_of(CONFIG, SPACE, **{"trials": trials, "jobs": 1, "run": "found", **more})


@pytest.mark.usefixtures("acted", "drawn")
def test_a_search_finds_what_is_good_and_ends_what_is_not(cast: list[Actor]) -> None:
    result = search(16)
    states = [trial.state for trial in result.trials]
    assert [actor.number for actor in cast] == list(range(16))
    pruned = [actor for actor in cast if actor.told]
    assert {*states} == {"finished", "pruned"}
    assert 3 < len(pruned) == states.count("pruned")
    assert all(actor.step < 900 and actor.told == [15] for actor in pruned)
    assert result.best.score == max(actor.score for actor in cast) > -0.3
    assert all(1e-5 <= actor.settings["algo.lr"] <= 1e-2 for actor in cast)
    assert {tuple(actor.settings["algo.networks.units"]) for actor in cast} == {(8,), (16, 16)}
    table = list(csv.DictReader(Path("found/trials.csv").read_text().splitlines()))
    assert [int(row["trial"]) for row in table] == [trial.number for trial in result.trials]
    assert float(table[0]["algo.lr"]) == result.best.settings["algo.lr"]
    assert Path("found/tune.png").stat().st_size > 1000


@pytest.mark.usefixtures("acted")
def test_a_search_for_the_lowest_number_prunes_and_sorts_by_it(cast: list[Actor]) -> None:
    result = tune.tune_of(CONFIG.merge({"score": "eval/cost:min"}), SPACE, trials=16, jobs=1, run="found")
    found = [trial.score for trial in result.trials if trial.state == "finished"]
    assert found == sorted(found)
    assert result.best.score == min(-actor.score for actor in cast) < 0.3
    assert any(actor.told for actor in cast)


@pytest.mark.usefixtures("acted")
def test_an_interrupted_search_goes_on_with_the_trial_that_it_left(cast: list[Actor]) -> None:
    Actor.signals = [2]
    result = search(3, prune=False)
    assert (result.signal, [trial.state for trial in result.trials]) == (2, ["unfinished"])
    result = search(3, prune=False)
    assert [actor.number for actor in cast] == [0, 0, 1, 2]
    assert cast[0].settings == cast[1].settings
    assert [trial.state for trial in result.trials] == ["finished"] * 3
    search(4, prune=False)
    assert [actor.number for actor in cast[4:]] == [3]
    assert len({actor.settings["algo.lr"] for actor in cast}) == 4  # none is proposed twice
    with pytest.raises(RunError, match=r"found holds a search with other settings \(steps: 900 -> 901"):
        tune.tune_of(CONFIG.merge({"steps": 901}), SPACE, trials=5, run="found", prune=False)
    space = SPACE | {"algo.lr": {"low": "1e-5", "high": 0.1, "log": True}}
    with pytest.raises(RunError, match=r"other settings \(algo.lr.high: 0.01 -> 0.1"):
        tune.tune_of(CONFIG, space, trials=5, run="found", prune=False)


@pytest.mark.usefixtures("acted")
def test_a_trial_that_fails_ends_no_search() -> None:
    Actor.fails = {1}
    found = [(trial.number, trial.state) for trial in search(3, prune=False).trials]
    assert found[-1] == (1, "failed")
    assert [state for _, state in found[:2]] == ["finished", "finished"]


@pytest.mark.parametrize(("space", "message"), [
    ({"algo.lrr": {"low": 1, "high": 2}}, "s.yaml: unknown option 'algo.lrr'. Did you mean 'algo.lr'"),
    ({"algo.lr": {"low": 2, "high": 1}}, "s.yaml: algo.lr = .*low <= high"),
    ({"algo.lr": {"low": -1, "high": 1}}, "s.yaml: algo.lr = -1.0: expected a finite number above 0"),
    ({"algo.lr": {"choices": ["a"]}}, "s.yaml: algo.lr = 'a'"),
    ({"algo.lr": {"choices": []}}, "expected {choices: .a, b.}, or {low: 1"),
    ({"algo.lr": {"low": "x", "high": 1}}, "could not convert string to float: 'x'"),
    ({"algo.lr": [1, 2]}, "expected {choices"),
])  # fmt: skip
def test_spaces_that_cannot_be_searched(space: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tune.tune_of(CONFIG, space, trials=1, run="bad", where="s.yaml")
    assert not Path("bad").exists()


def test_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[Any] = []
    monkeypatch.setattr(api, "tune_of", lambda config, space, **more: got.append((config, space, more)))
    Path("s.yaml").write_text("algo.lr: {low: 1, high: 2}\n")
    reverie.tune("dqn", "Acrobot-v1", space="s.yaml", trials=3, steps=70, jobs=2)
    reverie.tune("dqn", "Acrobot-v1", space=SPACE, steps=70)
    assert [config.steps for config, _, _ in got] == [70, 70]
    assert [space for _, space, _ in got] == [{"algo.lr": {"low": 1, "high": 2}}, SPACE]
    assert (got[0][2]["trials"], got[0][2]["jobs"], got[0][2]["where"]) == (3, 2, "s.yaml")


def test_whole_numbers_are_those_of_settings_that_are() -> None:
    space = {"algo.batch_size": {"low": 8, "high": 64, "step": 8}, "algo.lr": {"low": 1, "high": 2}}
    size, lr = (found.distribution for found in tune.read_space(space, CONFIG, "s").values())
    assert [type(one).__name__ for one in (size, lr)] == ["IntDistribution", "FloatDistribution"]
    assert (size.low, size.high, size.step) == (8, 64, 8)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """A real process, whose run is that of ``reverie train`` with the settings of the trial."""
    Path("space.yaml").write_text("algo.batch_size: {choices: [4]}\n")
    Path("base.yaml").write_text(yaml.safe_dump({**SETTINGS, "steps": 60, "algo": {"networks": {"units": [4]}}}))
    words = ["tune", "dqn", "--env", "CartPole-v1", "--config", "base.yaml", "--space", "space.yaml"]
    assert main([*words, "--trials", "1", "--run", "s", "--threads", "1"]) == 0
    said = capsys.readouterr().out
    for piece in ("1 trial: 1 finished", "reverie train dqn --config s/trial-0/config.yaml"):
        assert piece in said
    assert yaml.safe_load(Path("s/trial-0/config.yaml").read_text())["experiment"]["algo"]["batch_size"] == 4
    assert [main(["tune", "dqn", "--env", "CartPole-v1"]), main([*words, "--seeds", "3"])] == [2, 2]
