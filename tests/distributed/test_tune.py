"""A search: each trial is trained once, bad ones end early, and what was interrupted goes on."""

from __future__ import annotations

import csv
import importlib
import math
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

import reverie
from in_process import InProcess
from reverie import api
from reverie.cli import main
from reverie.core.errors import ConfigError, RunError
from reverie.distributed import run_processes, search_space
from reverie.distributed.seeds import run_seeds
from reverie.experiment.settings import Request, merge_layers
from reverie.log.jsonl import JsonlSink
from tiny_configs import SETTINGS

pytest.importorskip("optuna")
tune = importlib.import_module("reverie.distributed.tune")
SPACE = {"algo.lr": {"low": "1e-5", "high": 1e-2, "log": True}, "algo.networks.units": {"choices": [[8], [16, 16]]}}
CONFIG = merge_layers(Request(algorithm="dqn", env="CartPole-v1")).merge({
    "steps": 900, "schedule.eval_every": 100, "learning_starts": 20, "eval_episodes": 2, "threads": 1,
    "console": False, "tensorboard": False,
})  # fmt: skip


class Actor:
    """Plays the process of a run, which is better the nearer the learning rate is to 1e-3, and the larger the seed."""

    cast: list[Actor]
    signals: list[int]
    """Sent to this process when a trial is at its middle."""
    fails: set[str]
    """Names of their logs."""

    def __init__(self, command: list[str], log: Path) -> None:
        at = command.index("--config")
        self.run, own = Path(command[command.index("--run") + 1]), Path(command[at + 2])
        self.number, self.fail = int(own.stem.partition("-")[2]), log.stem in self.fails
        self.seed = int(command[command.index("--seed") + 1]) if "--seed" in command else 0
        self.settings = yaml.safe_load(own.read_text())
        shared = yaml.safe_load(Path(command[at + 1]).read_text())["experiment"]
        self.every, self.length = shared["schedule"]["eval_every"], shared["steps"]
        self.score = self.seed - abs(math.log10(self.settings["algo.lr"]) + 3)
        self.step, self.ended, self.told = 0, None, []
        log.write_text(self.last_line())
        self.run.mkdir(parents=True, exist_ok=True)
        if not self.fail:
            (self.run / "config.yaml").write_text("")
        self.cast.append(self)

    def poll(self) -> int | None:
        if self.fail:
            return 1
        if self.told:
            return 143
        self.step += self.every
        if self.step == 500 and self.signals:
            run_processes.os.kill(run_processes.os.getpid(), self.signals.pop())
        if self.step >= self.length:
            self.ended = 0
        sink = JsonlSink(self.run / "metrics.jsonl")
        final = float(self.ended == 0)
        sink.write({"eval/score": self.score, "eval/cost": -self.score, "eval/final": final}, self.step)
        sink.close()
        return self.ended

    def tell(self, number: int) -> None:
        self.told.append(number)

    def last_line(self) -> str:
        return "reverie: no" if self.fail else ""

    def wait(self) -> None:
        pass


@pytest.fixture(autouse=True)
def cast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Actor]:
    """Who has acted, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_processes, "POLL", 0.0)
    Actor.cast, Actor.signals, Actor.fails = [], [], set()
    return Actor.cast


@pytest.fixture
def acted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_processes, "Child", Actor)


def search(trials: int = 20, space: Any = SPACE, **more: Any) -> Any:
    return tune.run_tuning(CONFIG, space, **{"trials": trials, "jobs": 1, "run": "found", **more})


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
    config = CONFIG.merge({"score_metric": "eval/cost:min", "env.log_info": ["cost"]})
    result = tune.run_tuning(config, SPACE, trials=16, jobs=1, run="found")
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
    with pytest.raises(RunError, match=r"found contains a search with other settings \(steps: 900 -> 901"):
        tune.run_tuning(CONFIG.merge({"steps": 901}), SPACE, trials=5, run="found", prune=False)
    space = SPACE | {"algo.lr": {"low": "1e-5", "high": 0.1, "log": True}}
    with pytest.raises(RunError, match=r"other settings \(algo.lr.high: 0.01 -> 0.1"):
        tune.run_tuning(CONFIG, space, trials=5, run="found", prune=False)


@pytest.mark.usefixtures("acted")
def test_a_resumed_search_proposes_what_an_undisturbed_one_does(cast: list[Actor]) -> None:
    search(14, prune=False)
    for trials in (5, 6, 14):
        search(trials, prune=False, run="resumed")
    assert [actor.settings for actor in cast[:14]] == [actor.settings for actor in cast[14:]]


@pytest.mark.usefixtures("acted")
def test_a_trial_that_fails_ends_no_search() -> None:
    Actor.fails = {"trial-1"}
    found = [(trial.number, trial.state) for trial in search(3, prune=False).trials]
    assert found[-1] == (1, "failed")
    assert [state for _, state in found[:2]] == ["finished", "finished"]


@pytest.mark.usefixtures("acted")
def test_what_no_trial_can_begin_with_is_an_error_that_leaves_nothing() -> None:
    Actor.fails = {"trial-0"}
    with pytest.raises(RunError, match=r"^no$"):
        search(3)
    assert not Path("found").exists()


@pytest.mark.usefixtures("acted")
def test_a_search_and_seeds_do_not_share_a_folder() -> None:
    search(1)
    settings = Path("found/settings.yaml").read_text()
    with pytest.raises(RunError, match="found contains a search, not several seeds: choose another --run"):
        run_seeds(CONFIG, [0], run="found")
    assert Path("found/settings.yaml").read_text() == settings
    Path("found/study.db").unlink()
    with pytest.raises(RunError, match="found contains several seeds, not a search: choose another --run"):
        search(1)


FEW = {"algo.lr": [1e-3, "3e-4", 0.0003], "algo.batch_size": {"low": 8, "high": 24, "step": 8}}
ALL = [(lr, size) for lr in (1e-3, 3e-4) for size in (8, 16, 24)]


def tried(actors: list[Actor]) -> list[Any]:
    return [tuple(actor.settings[name] for name in FEW) for actor in actors]


@pytest.mark.usefixtures("acted")
def test_no_settings_are_tried_twice(cast: list[Actor]) -> None:
    search(4, FEW, prune=False)
    result = search(20, FEW, prune=False)
    assert sorted(tried(cast)) == sorted(ALL)
    assert [trial.state for trial in result.trials] == ["finished"] * 6
    assert tried(cast) != ALL  # Optuna proposes
    flat = search(20, {"algo.lr": {"low": 1e-3, "high": 1e-3}}, run="flat", prune=False)
    assert [trial.settings for trial in flat.trials] == [{"algo.lr": 1e-3}]


@pytest.mark.usefixtures("acted")
def test_a_grid_is_tried_in_order_to_its_end(cast: list[Actor]) -> None:
    Actor.signals = [15]
    assert search(1, FEW, grid=True).signal == 15
    result = search(1, FEW, grid=True)
    assert tried(cast) == [ALL[0], *ALL]
    assert not any(actor.told for actor in cast[1:])
    assert [trial.settings["algo.lr"] for trial in result.trials] == [1e-3] * 3 + [3e-4] * 3
    with pytest.raises(ConfigError, match="space: expected at most 10,000 runs, but these are 1,000,000"):
        search(space={name: {"low": 1, "high": 1000} for name in ("algo.batch_size", "steps")}, grid=True, run="bad")
    with pytest.raises(ConfigError, match=r"space: algo.lr = .*'low'.*: a grid cannot contain infinitely many values"):
        search(space=SPACE, grid=True, run="bad")
    assert not Path("bad").exists()


@pytest.mark.usefixtures("acted", "drawn")
def test_the_score_of_a_trial_is_the_mean_of_its_seeds(cast: list[Actor]) -> None:
    Actor.fails = {"trial-1-seed-2"}
    grid = {"algo.lr": [1e-3, 1e-4, 1e-5]}
    result = search(space=grid, grid=True, seeds=[2, 5, 6])
    found = [(trial.number, trial.state, trial.score) for trial in result.trials]
    assert found == [(0, "finished", pytest.approx(13 / 3)), (2, "finished", pytest.approx(7 / 3)), (1, "failed", None)]
    assert [(actor.number, actor.seed) for actor in cast] == [(0, 2), (0, 5), (0, 6), (1, 2), (2, 2), (2, 5), (2, 6)]
    assert (result.best.run, cast[1].run) == (Path("found/trial-0"), Path("found/trial-0/seed-5"))
    with pytest.raises(RunError, match=r"other seeds \(\[2, 5, 6\] -> \[2, 5\]\)"):
        search(space=grid, grid=True, seeds=[2, 5])
    with pytest.raises(ConfigError, match=r"space: seed = \[1, 2\]: each trial already has the seeds \[2, 5\]"):
        search(space={"seed": [1, 2]}, seeds=[2, 5], run="bad")


@pytest.mark.usefixtures("acted")
@pytest.mark.parametrize("jobs", [1, 3])
def test_a_trial_is_pruned_with_all_of_its_seeds(cast: list[Actor], jobs: int) -> None:
    """By their mean so far: of those that have begun."""
    result = search(16, seeds=[0, 4, 1], jobs=jobs)
    assert {trial.state for trial in result.trials} == {"finished", "pruned"}
    numbers = set()
    for trial in result.trials:
        runs = [actor for actor in cast if actor.number == trial.number]
        assert trial.score == pytest.approx(sum(actor.score for actor in runs) / len(runs))
        assert all(bool(actor.told) == (trial.state == "pruned") for actor in runs)
        numbers.add((trial.state, len(runs)))
    assert ("pruned", jobs) in numbers
    assert {number for state, number in numbers if state == "finished"} == {3}


@pytest.mark.filterwarnings("error:The reported value is ignored")
@pytest.mark.usefixtures("acted")
def test_a_trial_of_several_seeds_that_was_interrupted_goes_on(cast: list[Actor]) -> None:
    Actor.signals = [2]
    result = search(2, seeds=[0, 1], jobs=2, prune=False)
    assert [(trial.number, trial.state) for trial in result.trials] == [(0, "unfinished")]
    result = search(2, seeds=[0, 1], jobs=2, prune=False)
    assert [(actor.number, actor.seed) for actor in cast] == [(0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (1, 1)]
    assert cast[0].settings == cast[3].settings
    assert [trial.state for trial in result.trials] == ["finished"] * 2


@pytest.mark.parametrize(("space", "message"), [
    ({"algo.lrr": {"low": 1, "high": 2}}, "s.yaml: unknown option 'algo.lrr'. Did you mean 'algo.lr'"),
    ({"algo.lr": {"low": 2, "high": 1}}, "s.yaml: algo.lr = .*low <= high"),
    ({"algo.lr": {"low": -1, "high": 1}}, "s.yaml: algo.lr = -1.0: expected a finite number above 0"),
    ({"algo.lr": {"choices": ["a"]}}, "s.yaml: algo.lr = 'a'"),
    ({"algo.lr": {"choices": []}}, "expected a list of values, or {low: 1"),
    ({"algo.lr": {"low": "x", "high": 1}}, "could not convert string to float: 'x'"),
    ({"algo.lr": 3}, "expected a list"),
])  # fmt: skip
def test_spaces_that_cannot_be_searched(space: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tune.run_tuning(CONFIG, space, trials=1, run="bad", space_name="s.yaml")
    assert not Path("bad").exists()


def test_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = mock.create_autospec(tune.run_tuning)  # refuses what that does not take
    monkeypatch.setattr(api, "run_tuning", taken)
    Path("s.yaml").write_text("algo.lr: {low: 1, high: 2}\n")
    reverie.tune("dqn", "Acrobot-v1", space="s.yaml", trials=3, steps=70, jobs=2)
    reverie.tune("dqn", "Acrobot-v1", grid=FEW, steps=70, seeds=2, seed=4)
    got = [(*call.args, call.kwargs) for call in taken.call_args_list]
    assert [config.steps for config, _, _ in got] == [70, 70]
    assert [space for _, space, _ in got] == [{"algo.lr": {"low": 1, "high": 2}}, FEW]
    names = ("trials", "jobs", "space_name", "grid", "seeds")
    assert [[more[name] for name in names] for _, _, more in got] == [
        [3, 2, "s.yaml", False, None], [20, 0, "grid", True, [4, 5]]
    ]  # fmt: skip
    for both in ({}, {"space": SPACE, "grid": FEW}):
        with pytest.raises(ConfigError, match="no settings to search"):
            reverie.tune("dqn", "Acrobot-v1", **both)  # type: ignore[arg-type]


def test_whole_numbers_are_those_of_settings_that_are() -> None:
    space = {"algo.batch_size": {"low": 8, "high": 64, "step": 8}, "algo.lr": {"low": 1, "high": 2}}
    size, lr = (found.distribution for found in search_space.read_space(space, CONFIG, "s").values())
    assert [type(one).__name__ for one in (size, lr)] == ["IntDistribution", "FloatDistribution"]
    assert (size.low, size.high, size.step) == (8, 64, 8)
    rate = search_space.dimension("algo.lr", {"low": 0.1, "high": 0.3, "step": 0.1}, CONFIG)
    assert [rate.drawn(i) for i in range(rate.size)] == [0.1, 0.2, 0.3]  # not 0.30000000000000004, beyond the end


BASE = ["tune", "dqn", "--env", "CartPole-v1", "--config", "base.yaml", "--threads", "1"]


@pytest.fixture
def _base() -> None:
    """The settings of all trials."""
    Path("base.yaml").write_text(yaml.safe_dump({**SETTINGS, "steps": 60, "algo": {"networks": {"units": [4]}}}))


@pytest.mark.usefixtures("acted", "_base")
def test_the_command_searches_a_space(cast: list[Actor], capsys: pytest.CaptureFixture[str]) -> None:
    Path("space.yaml").write_text("algo.lr: {choices: [1e-3]}\nalgo.batch_size: {choices: [4]}\n")
    assert main([*BASE, "--space", "space.yaml", "--trials", "1", "--run", "s"]) == 0
    said = capsys.readouterr().out
    for piece in ("1 trial: 1 finished", "reverie train dqn --config s/trial-0/config.yaml"):
        assert piece in said
    assert [actor.settings for actor in cast] == [{"algo.lr": 1e-3, "algo.batch_size": 4}]
    grid = ["--grid", "{algo.lr: [1e-3]}"]
    wrong = ([], [*grid, "--space", "space.yaml"], [*grid, "--seeds", "x"])
    assert [main([*BASE, *words]) for words in wrong] == [2, 2, 2]
    assert main([*BASE, "--grid", "{algo.lr: {low: 1e-5, high: 1}}"]) == 1
    assert "grid: algo.lr = {'high': 1, 'low': 1e-05}: a grid cannot" in capsys.readouterr().err


@pytest.mark.usefixtures("_base")
def test_the_command_tries_a_grid(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its runs are those of ``reverie train`` with the settings of the trial."""
    monkeypatch.setattr(run_processes, "Child", InProcess)
    assert main([*BASE, "--grid", "{algo.lr: [1e-3]}", "--seeds", "2", "--seed", "3", "--run", "g"]) == 0
    assert "reverie compare g/trial-*/" in capsys.readouterr().out
    (found,) = reverie.compare("g/trial-*/").settings
    assert (found.name, len(found.scores)) == ("g/trial-0", 2)
    saved = yaml.safe_load(Path("g/trial-0/seed-4/config.yaml").read_text())["experiment"]
    assert (saved["algo"]["lr"], saved["seed"]) == (1e-3, 4)
