"""Several seeds: each the run that it would be alone, none lost, none in another's way."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import reverie
from in_process import InProcess
from resumed_runs import assert_same
from reverie.algos.td3 import TD3Config
from reverie.api import train_config as train
from reverie.cli import main as cli
from reverie.cli.train import read_seeds
from reverie.core import signals
from reverie.core.clock import Clock
from reverie.core.errors import ConfigError, RunError
from reverie.core.lock import folder_lock
from reverie.distributed import run_processes
from reverie.distributed.run_processes import Child, exit_state
from reverie.distributed.seeds import run_seeds as train_seeds
from reverie.experiment.config import ExperimentConfig
from reverie.log.jsonl import JsonlSink, read_metrics
from reverie.run import signal_handling as run_signals
from reverie.run.signal_handling import Interrupt, collect_signals
from tiny_configs import SETTINGS

pytestmark = pytest.mark.usefixtures("warm")

CONFIG = ExperimentConfig().merge(SETTINGS).merge({"threads": 1, "schedule.eval_every": 40})


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, so that whatever is created is seen."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---------------------------------------------------------------- with stand-ins for the processes


class Actor:
    """Plays a process: it begins its run, and ends after some looks at it as the script says."""

    script: dict[int, tuple[int, str]]
    """Exit code and last words of each seed; it finishes otherwise."""
    signals: list[int]
    """Sent to this process, one at each look."""
    patience: int
    """How often it must be told a signal before it ends; 0 if it does by itself."""
    cast: list[Actor]
    """All that ever were."""
    most: int
    """How many there were at a time."""

    def __init__(self, command: list[str], log: Path) -> None:
        words = dict(zip(command[2::2], command[3::2], strict=False))
        self.seed, self.command, self.looks, self.ended = int(words["--seed"]), command, 0, False
        self.told: list[int] = []
        self.exit, self.last = self.script.get(self.seed, (0, "done"))
        log.write_text(self.last)
        run = Path(words["--run"])
        if not self.last.startswith(("reverie: refused", "ImportError")):
            run.mkdir(exist_ok=True)
            (run / "config.yaml").write_text("")
        if self.exit == 0:
            sink = JsonlSink(run / "metrics.jsonl")
            sink.write({"eval/score": 10.0 * self.seed, "episode/score": 1.0}, 120)
            sink.close()
            (run / "eval.json").write_text(json.dumps({"env_steps": 120, "score": {"mean": 10.0 * self.seed}}))
        Actor.cast.append(self)
        Actor.most = max(Actor.most, sum(not actor.ended for actor in Actor.cast))

    def poll(self) -> int | None:
        self.looks += 1
        if Actor.signals:
            os.kill(os.getpid(), Actor.signals.pop(0))
        elif self.looks >= 3 + self.seed and len(self.told) >= self.patience:  # one after the other
            self.ended = True
            return 128 + self.told[0] if self.told else self.exit
        return None

    def tell(self, number: int) -> None:
        self.told.append(number)

    def last_line(self) -> str:
        return self.last

    def wait(self) -> None:
        self.ended = True


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> type[Actor]:
    """Seeds are played, not trained."""
    monkeypatch.setattr(run_processes, "Child", Actor)
    monkeypatch.setattr(run_processes, "POLL", 0.0)
    Actor.script, Actor.signals, Actor.patience, Actor.cast, Actor.most = {}, [], 0, [], 0
    return Actor


def began(stage: type[Actor]) -> list[int]:
    """The seeds that were started since this was last asked."""
    seeds = [actor.seed for actor in stage.cast]
    stage.cast.clear()
    return seeds


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_as_many_at_a_time_as_jobs(stage: type[Actor]) -> None:
    result = train_seeds(CONFIG, range(5), jobs=2, run="all")
    assert (began(stage), stage.most) == ([0, 1, 2, 3, 4], 2)
    assert [seed.state for seed in result.seeds] == ["finished"] * 5
    assert result.aggregate is not None
    assert result.aggregate.score["iqm"].value == 20.0
    content = read(Path("all/aggregate.json"))
    assert content["runs"][3] == {"seed": 3, "run": "seed-3", "state": "finished", "steps": 120, "score": 30.0}
    assert content["score"]["iqm"]["low"] < 20.0 < content["score"]["iqm"]["high"]
    assert sorted(path.name for path in Path("all").iterdir() if path.is_file()) == [
        "aggregate.json", "curve.png", *(f"seed-{i}.log" for i in range(5)), "settings.yaml",
    ]  # fmt: skip
    assert set(result.files) == {"settings", "aggregate", "curve"}


def test_a_seed_that_fails_takes_no_other_with_it(stage: type[Actor]) -> None:
    stage.script = {0: (1, "reverie: the reward is nan"), 2: (137, "")}
    result = train_seeds(CONFIG, range(4), jobs=2, run="all")
    assert [seed.state for seed in result.seeds] == ["failed", "finished", "failed", "finished"]
    assert result.seeds[0].note == "failed: the reward is nan"
    assert result.seeds[2].note == "failed: killed by SIGKILL, possibly out of memory"
    assert result.seeds[0].log.read_text() == "reverie: the reward is nan"
    assert result.aggregate is not None
    assert result.aggregate.seeds == [1, 3]
    assert [run["score"] for run in read(Path("all/aggregate.json"))["runs"]] == [None, 10.0, None, 30.0]


def test_the_same_again_leaves_those_alone_that_have_finished(stage: type[Actor]) -> None:
    stage.script = {1: (1, "RuntimeError: no")}
    train_seeds(CONFIG, range(3), run="all")
    began(stage)
    stage.script = {}
    result = train_seeds(CONFIG, range(4), run="all")
    assert began(stage) == [1, 3]
    assert [seed.state for seed in result.seeds] == ["finished"] * 4
    assert result.seeds[0].note == "already finished"
    train_seeds(CONFIG, range(4), run="all")
    assert not began(stage)


def test_seeds_that_have_begun_keep_what_they_began_with(stage: type[Actor]) -> None:
    train_seeds(CONFIG.merge({"init_from": "one"}), range(2), run="all")
    settings = Path("all/settings.yaml").read_text()
    with pytest.raises(
        RunError, match=r"init_from = 'other' applies only to a new run, but all started with init_from = 'one'"
    ):
        train_seeds(CONFIG.merge({"init_from": "other"}), range(2), run="all")
    train_seeds(CONFIG, range(2), run="all")
    assert Path("all/settings.yaml").read_text() == settings


def test_what_no_seed_can_begin_with_is_an_error_that_leaves_nothing(stage: type[Actor], elsewhere: Path) -> None:
    stage.script = dict.fromkeys(range(5), (1, "reverie: refused, as it is wrong"))
    with pytest.raises(RunError, match=r"^refused, as it is wrong$"):
        train_seeds(CONFIG, range(5), jobs=2)
    assert began(stage) == [0, 1]
    assert not list(elsewhere.glob("runs/*"))


def test_what_is_not_ours_is_never_swept_away(stage: type[Actor]) -> None:
    train_seeds(CONFIG, [7], run="all")
    Path("all/seed-3").mkdir()
    Path("all/seed-3/thesis.tex").write_text("years of work")
    stage.script = {3: (1, "reverie: refused, it is not empty")}
    with pytest.raises(RunError, match="not empty"):
        train_seeds(CONFIG, [3], run="all")
    assert Path("all/seed-3/thesis.tex").exists()
    assert Path("all/seed-7/config.yaml").exists()


def test_a_signal_is_told_to_each_child_once(stage: type[Actor], said: list[str]) -> None:
    number = signal.SIGUSR1
    before, stage.signals, stage.patience = signal.getsignal(number), [number], 1
    result = train_seeds(CONFIG, range(4), jobs=2, run="all")
    assert [actor.told for actor in stage.cast] == [[number], [number]]
    assert result.signal == number
    assert [seed.state for seed in result.seeds] == ["stopped", "stopped", "waiting", "waiting"]
    assert result.seeds[0].note == f"stopped by {number.name}"
    assert any(text.startswith(f"{number.name}: the running seeds finish their iteration") for text in said)
    assert signal.getsignal(number) == before
    stage.patience = 0
    assert [seed.state for seed in train_seeds(CONFIG, range(4), run="all").seeds] == ["finished"] * 4


def test_the_second_signal_is_passed_on_and_the_third_kills(stage: type[Actor]) -> None:
    stage.signals, stage.patience = [signal.SIGINT, signal.SIGINT, signal.SIGTERM], 3
    train_seeds(CONFIG, [0], run="all")
    assert stage.cast[0].told == [signal.SIGINT, signal.SIGINT, signal.SIGKILL]


def test_an_error_here_lets_the_children_save_and_end(stage: type[Actor], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Actor) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(Actor, "last_line", fail)
    with pytest.raises(ZeroDivisionError):
        train_seeds(CONFIG, range(3), jobs=3, run="all")
    assert [actor.told for actor in stage.cast[1:]] == [[signal.SIGTERM], [signal.SIGTERM]]
    assert all(actor.ended for actor in stage.cast)
    with folder_lock(Path("all")):  # it is free
        pass


@pytest.mark.parametrize(
    ("values", "seeds", "message"),
    [
        ({}, [-1], r"seeds = \[-1\]: expected different whole numbers, 0 or more"),
        (
            {"replay.store_path": "s3://bucket/x"},
            [0, 1],
            r"replay.store_path = 's3://bucket/x': several seeds cannot write to",
        ),
    ],
)
def test_what_cannot_be_is_named(values: dict[str, Any], seeds: list[int], message: str, elsewhere: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train_seeds(CONFIG.merge(values), seeds)
    assert not list(elsewhere.iterdir())


def test_objects_of_python_cannot_be_told_to_a_process(elsewhere: Path) -> None:
    class Own(type(CONFIG.algo.encoder)):  # type: ignore[misc]
        pass

    with pytest.raises(ConfigError, match=r"algo\.encoder = .*Own: each seed runs in its own process"):
        train_seeds(CONFIG.merge({"algo": CONFIG.algo.merge({"encoder": Own()})}), [0, 1])
    with pytest.raises(ConfigError, match=r"<lambda>: .*pass 'module:Id'"):
        reverie.train_seeds("td3", env=lambda: None)  # type: ignore[arg-type]
    assert not list(elsewhere.iterdir())


def test_folders_of_something_else_are_left_alone(stage: type[Actor], elsewhere: Path) -> None:
    for name, content in {"file": None, "single": "config.yaml", "thesis": "thesis.tex"}.items():
        if content is None:
            Path(name).write_text("")
        else:
            Path(name).mkdir()
            Path(name, content).write_text("")
    for name, message in {"file": "not a writable", "single": "run of a single seed", "thesis": "is not a run"}.items():
        with pytest.raises(RunError, match=message):
            train_seeds(CONFIG, [0], run=name)
    train_seeds(CONFIG, [0], run="all")
    with pytest.raises(RunError, match="run with environment 'CartPole-v1', not 'Acrobot-v1'"):
        train_seeds(CONFIG.merge({"env.id": "Acrobot-v1"}), [0], run="all")
    with pytest.raises(RunError, match="run with algorithm 'dreamer_v3', not 'td3'"):
        train_seeds(ExperimentConfig(algo=TD3Config()), [0], run="all")
    with folder_lock(Path("all")), pytest.raises(RunError, match="is in use by process"):
        train_seeds(CONFIG, [0, 1], run="all")
    assert began(stage) == [0]


def test_the_children_know_the_settings_from_a_file(stage: type[Actor]) -> None:
    train_seeds(CONFIG, [4], run="all")
    words = ["--config", "all/settings.yaml", "--seed", "4", "--run", "all/seed-4"]
    assert stage.cast[0].command == ["train", "dreamer_v3", *words]
    content = yaml.safe_load(Path("all/settings.yaml").read_text())
    assert ExperimentConfig().merge(content["experiment"] | {"seed": 4}) == CONFIG.merge({"seed": 4})


@pytest.mark.parametrize(
    ("code", "words", "state", "note"),
    [
        (1, "", "failed", "failed: exit code 1"),
        (139, "loss 3.2", "failed", "failed: killed by SIGSEGV"),
        (163, "reverie: no", "failed", "failed: no"),  # a real-time signal has no name
    ],
)
def test_exit_codes_are_put_into_words(code: int, words: str, state: str, note: str) -> None:
    assert exit_state(code, words) == (state, note)


# ---------------------------------------------------------------- what people type


def test_seeds_are_so_many_or_these() -> None:
    assert read_seeds("3", 5) == [5, 6, 7]
    assert read_seeds("4, 1,9", 5) == [4, 1, 9]
    assert read_seeds("7,", 0) == [7]
    for text in ("0", "", ",", "-3", "a", "1-3", "1.5"):
        with pytest.raises(SystemExit, match="2"):
            read_seeds(text, 0)


@pytest.fixture
def tiny(elsewhere: Path) -> str:
    """A file of settings that make a run short."""
    (elsewhere / "tiny.yaml").write_text(yaml.safe_dump(CONFIG.to_dict() | {"replay": SETTINGS["replay"]}))
    return "tiny.yaml"


def test_the_command_says_what_came_of_it(stage: type[Actor], tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["train", "dreamer_v3", "--config", tiny, "--run", "all", "--console"]
    stage.script = {2: (1, "reverie: the reward is nan")}
    assert cli([*args, "--seeds", "3", "--seed", "1"]) == 1
    text = capsys.readouterr().out
    for piece in (
        "dreamer_v3 on CartPole-v1: 3 seeds, ",
        "seed 1  started",
        "seed 3  finished at 120 steps, score 30.00",
        "seed 2  failed: the reward is nan",
        "2 of 3 seeds finished",
        "   IQM       20.00   too few seeds",
        "seed 2: failed: the reward is nan; see all/seed-2.log",
        "Run the same command again, with --run all",
        "aggregate:      all/aggregate.json",
    ):
        assert piece in text
    stage.script = {}
    assert cli([*args, "--seeds", "3", "--seed", "1"]) == 0
    stage.signals, stage.patience = [signal.SIGTERM], 1
    assert cli([*args, "--seeds", "7,8", "--steps", "130"]) == 143
    assert cli([*args, "--seeds", "x"]) == 2
    assert cli([*args, "--seeds", "2", "--jobs", "-2"]) == 1
    assert "jobs = -2: expected at least 1" in capsys.readouterr().err


# ---------------------------------------------------------------- with real processes

SLOW = """
import os, time
import gymnasium, numpy as np

class Slow(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = np.zeros(2, np.float32), 0
        return self.x.copy(), {}

    def step(self, action):
        time.sleep(0.15 * os.path.exists("slow"))
        self.x += self.np_random.normal(size=2).astype(np.float32) + action - 0.5
        self.t += 1
        return self.x.copy(), float(self.x[0]), False, self.t == 15, {}

gymnasium.register("Slow-v0", entry_point=Slow)
"""


def until(condition: Any) -> None:
    """Wait for it; five minutes at most."""
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("it never came to this")


class Signaled(Child):
    """A seed's process. A scheduler signals the parent once the run has metrics."""

    has_signaled = False

    def poll(self) -> int | None:
        if not Signaled.has_signaled and read_metrics(Path("all/seed-4/metrics.jsonl")):
            Signaled.has_signaled = True
            os.kill(os.getpid(), signal.SIGTERM)
        return super().poll()


def test_a_seed_that_was_stopped_ends_as_the_run_that_it_would_be_alone(
    elsewhere: Path, tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Started by the command line, stopped by a scheduler, gone on with; then compared with a run of the same seed."""
    monkeypatch.setattr(run_processes, "Child", Signaled)
    (elsewhere / "slow_env_module.py").write_text(SLOW)
    monkeypatch.syspath_prepend(str(elsewhere))
    (elsewhere / "slow").write_text("")
    args = ["train", "dreamer_v3", "--config", tiny, "--env", "slow_env_module:Slow-v0", "--run", "all"]
    args += ["--seeds", "4,", "--schedule.log-every", "10"]
    run = Path("all/seed-4")
    assert cli(args) == 143
    assert "SIGTERM: the running seeds finish their iteration, then save" in capsys.readouterr().out
    assert [run["state"] for run in read(Path("all/aggregate.json"))["runs"]] == ["stopped"]
    assert list((run / "checkpoints").glob("step-*"))
    assert "interrupted at env step" in Path("all/seed-4.log").read_text()
    (elsewhere / "slow").unlink()
    monkeypatch.setattr(run_processes, "Child", InProcess)
    assert cli(args) == 0
    assert "1 of 1 seed finished" in capsys.readouterr().out
    alone = CONFIG.merge({"seed": 4, "env.id": "slow_env_module:Slow-v0", "schedule.log_every": 10})
    train(alone, run="alone")
    assert_same(run, Path("alone"))
    own = [
        re.sub(r"preset: .*", "", file.read_text())
        for file in (Path("all/seed-4/config.yaml"), Path("alone/config.yaml"))
    ]
    assert own[0] == own[1]  # the one began with settings by name, the other with a configuration
    assert Path("all/seed-4/eval.json").read_text() == Path("alone/eval.json").read_text()
    assert {path.name for path in run.iterdir()} == {path.name for path in Path("alone").iterdir()}


CHILD = """
import signal, sys, time
from reverie.core import signals
signals.SAVE_SECONDS = 0.0
if {hangs}:
    signal.signal(signal.SIGTERM, lambda *_: None)
signals.die_with_parent()
print("ready", flush=True)
time.sleep(600)
"""
PARENT = """
import os, signal, subprocess, sys
env = os.environ | {"REVERIE_PARENT_PID": str(os.getpid())}
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, env=env)
child.stdout.readline()
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("hangs", [False, True])
def test_a_child_ends_with_its_parent_however_that_ended(hangs: bool) -> None:
    command = [sys.executable, "-c", PARENT, CHILD.format(hangs=hangs)]
    parent = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout)

    def gone() -> bool:
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"

    until(gone)


def test_a_child_writes_its_output_into_a_file_and_keeps_what_is_there(elsewhere: Path) -> None:
    log = elsewhere / "x.log"
    log.write_text("from before\n")
    child = Child(["lst"], log)
    until(lambda: child.poll() is not None)
    assert child.poll() == 2
    assert log.read_text().startswith("from before\nreverie: unknown command 'lst'")
    assert child.last_line() == log.read_text().splitlines()[-1]
    assert child.begin == len("from before\n")
    child.tell(signal.SIGTERM)  # nobody is there: no error


def test_signals_that_come_together_are_one_for_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler may signal all processes, the parent among them, which passes it on."""
    clock = Clock(length=10)
    monkeypatch.setattr(signals, "PARENT_PID", children := [1])
    monkeypatch.setattr(run_signals, "PARENT_PID", children)
    with Interrupt(clock) as interrupt:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.received == signal.SIGTERM
        assert clock.stop
        children.clear()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("ignored", [False, True])
def test_a_hangup_counts_once_and_not_where_it_is_to_be_ignored(ignored: bool) -> None:
    """The system and the shell both tell the end of a terminal; nohup wants to hear nothing of it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        with Interrupt(Clock(length=10)) as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupt.received == (None if ignored else signal.SIGHUP)
        with collect_signals() as got:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGHUP)
            assert got == ([] if ignored else [signal.SIGHUP])
    finally:
        signal.signal(signal.SIGHUP, before)
