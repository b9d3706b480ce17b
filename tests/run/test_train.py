"""The loop with fakes: order, counters, periods, signals and losses that go wrong."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from finished_episodes import episodes
from reverie.core.clock import Clock
from reverie.core.errors import ActionError, DataError, RunError
from reverie.core.types import MetricVector
from reverie.run.collect import EnvCollector
from reverie.run.config import Schedule, parse_period
from reverie.run.loop import train_loop
from reverie.run.metrics_log import FiniteCheck
from reverie.run.schedule import Periodic


def setting(fakes, lengths=((3,),), algo=None, **clock):
    """A run ready to go, with every call of ``checkpoint`` written down."""
    run = SimpleNamespace(source=fakes.Source(), algo=algo or fakes.Algo(), meter=fakes.Meter(), sink=fakes.Sink())
    run.clock = Clock(**{"length": 40, "replay_ratio": 0.5, **clock})
    run.env = fakes.Env([list(x) for x in lengths])
    run.collector = EnvCollector(run.env, run.algo.policy, run.source, seed=0)
    run.saves = []

    def checkpoint(*, diverged: bool = False) -> Path:
        run.saves.append((run.clock.env_steps, diverged))
        return Path(f"saved-{run.clock.env_steps}")

    def go(**options):
        options = {"collector": run.collector, "checkpoint": checkpoint, "sinks": [run.sink], **options}
        return train_loop(run.algo, run.source, run.clock, run.meter, **options)

    run.go = go
    return run


def test_a_run_collects_updates_and_feeds_back(fakes):
    run = setting(fakes, lengths=[[3], [-2], [4]])
    ending = run.go(schedule=Schedule(log_every=0, save_every=0, report_every=0))
    assert ending.signal is None
    assert ending.checkpoint == Path(f"saved-{run.clock.env_steps}")
    assert 40 <= run.clock.env_steps < 43
    assert run.clock.updates == run.algo.updates == (run.clock.env_steps - 3) // 2
    assert [index for index, _ in run.source.fed_back] == list(range(1, run.clock.updates + 1))
    assert run.saves == [(run.clock.env_steps, False)]


def test_the_log_says_where_the_time_goes_and_how_much_is_explored(fakes, said):
    run = setting(fakes, lengths=[[20]])
    run.env.receive = slowed(run.env.receive, 0.01)
    run.algo.update = slowed(run.algo.update, 0.02)
    begin = time.perf_counter()
    run.go(schedule=Schedule(log_every=20, save_every=0, report_every=0), log_episodes=True)
    took = time.perf_counter() - begin
    entries = [values for _, values in run.sink.entries if "time/update_seconds" in values]
    kinds = ("acting", "environment", "update")
    acting, environment, update = (sum(x[f"time/{kind}_seconds"] for x in entries) for kind in kinds)
    assert environment >= 0.01 * 40
    assert update >= 0.02 * run.clock.updates
    assert acting > 0
    assert acting + environment + update < took
    assert [x["train/exploration"] for x in entries] == pytest.approx([1 / 21, 1 / 41])
    assert next(line for line in said if line.startswith("episode 2: return ")).endswith(" in 20 steps, env step 40")


def slowed(call, seconds):
    def slow(*args):
        time.sleep(seconds)
        return call(*args)

    return slow


def test_periods_in_env_steps(fakes):
    run = setting(fakes, lengths=[[100]])
    evaluated = []

    def evaluator(write):
        evaluated.append(run.clock.env_steps)
        write({"eval/score": 1.0})

    run.go(evaluator=evaluator, schedule=Schedule(log_every=8, eval_every=15, save_every=12, report_every=20))
    assert [step for step, values in run.sink.entries if "counters/env_steps" in values] == [8, 16, 24, 32, 40]
    assert evaluated == [15, 30]
    assert [step for step, values in run.sink.entries if "eval/score" in values] == [15, 30]
    assert [step for step, values in run.sink.entries if "report/video" in values] == [20, 40]
    assert run.saves == [(12, False), (24, False), (36, False), (40, False)]
    assert run.source.sampled == run.clock.updates  # reports look at a batch that was trained on


def test_episodes_that_ended_before_a_kill_are_logged_afterwards(fakes):
    run = setting(fakes, lengths=[[100]])
    run.collector.unlogged_episodes += [episodes((5.0, 3), (7.0, 5))]  # from the checkpoint
    run.go(schedule=Schedule(log_every=8))
    scores = [(step, values["episode/score"]) for step, values in run.sink.entries if "episode/score" in values]
    assert scores == [(8, 6.0)]
    assert run.collector.unlogged_episodes == []


@pytest.mark.parametrize("log_every", [0, 1, 40])
def test_an_episode_that_ends_with_the_run_is_counted_and_logged(fakes, log_every):
    run = setting(fakes, lengths=[[20]])
    run.go(schedule=Schedule(log_every=log_every))
    assert run.clock.env_steps == 40
    assert run.clock.episodes == 2
    assert run.sink.entries[-1][1]["counters/episodes"] == 2
    assert run.sink.entries[-1][1]["episode/length"] == 20
    assert run.collector.unlogged_episodes == []


def test_a_signal_finishes_the_turn_saves_and_says_where(fakes, capfd):
    number = signal.SIGTERM
    before = signal.getsignal(number)

    def losses(update):
        if update == 5:
            os.kill(os.getpid(), number)
        return {"loss/a": 1.0}

    run, evaluated = setting(fakes, algo=fakes.Algo(losses), replay_ratio=2.0), []

    def evaluator(write):
        evaluated.append(run.clock.env_steps)

    ending = run.go(evaluator=evaluator, schedule=Schedule(eval_every=1))
    assert evaluated == [1, 2, 3]  # nothing long is begun after the signal
    assert ending.signal is not None
    assert run.clock.updates == 6  # the turn had two updates
    assert run.saves == [(run.clock.env_steps, False)]
    assert ending.checkpoint == Path("saved-4")
    said = capfd.readouterr().err
    assert number.name in said
    assert "saved-4" in said
    assert signal.getsignal(number) == before


def test_a_second_signal_ends_it_at_once(fakes):
    def losses(update):
        if update in (5, 6):
            os.kill(os.getpid(), signal.SIGINT)
        return {"loss/a": 1.0}

    before = signal.getsignal(signal.SIGINT)
    run = setting(fakes, algo=fakes.Algo(losses), replay_ratio=100.0)
    with pytest.raises(KeyboardInterrupt):
        run.go()
    assert run.algo.updates == 6
    assert run.saves == []
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_bad_loss_stops_with_a_checkpoint_and_the_first_term(fakes, bad):
    def losses(update):
        return {"loss/a": bad if update >= 9 else 1.0, "loss/b": bad if update >= 7 else 1.0, "train/x": math.nan}

    run = setting(fakes, algo=fakes.Algo(losses))
    with pytest.raises(RunError, match=r"loss/b became -?(nan|inf) at update 7: .*saved-\d+"):
        run.go(schedule=Schedule(log_every=10))
    ((at, diverged),) = run.saves
    assert diverged
    assert at == 20  # update 7 is made at env step 15


def broken_at(fakes, number):
    """A learner whose losses are good, and whose weights are broken by update ``number``."""

    class Weighing(fakes.Algo, torch.nn.Module):
        def __init__(self):
            torch.nn.Module.__init__(self)
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(3))

        def update(self, batch):
            update = super().update(batch)
            if self.updates == number:
                self.weight.data[1] = math.nan
            return update

    return Weighing()


@pytest.mark.parametrize("schedule", [{"save_every": 10}, {"eval_every": 10, "save_every": 0}, {"save_every": 0}])
def test_bad_weights_are_never_saved_as_good_or_evaluated(fakes, schedule):
    run = setting(fakes, algo=broken_at(fakes, 3), length=12)
    with pytest.raises(RunError, match=r"weights in weight are not finite after update \d: .*saved-\d+"):
        run.go(schedule=Schedule(log_every=1, **schedule), evaluator=pytest.fail)
    assert [diverged for _, diverged in run.saves] == [True]


def test_moments_that_keep_a_weight_from_moving_are_never_saved_as_good(fakes):
    run = setting(fakes, length=12)
    run.algo.find_nonfinite_optimizer = lambda: "net.weight" if run.algo.updates >= 3 else None
    said = r"^the optimizer moments of net\.weight are not finite after update \d: the run was stopped\. .*saved-\d+"
    with pytest.raises(RunError, match=said):
        run.go(schedule=Schedule(log_every=1, save_every=10))
    assert [diverged for _, diverged in run.saves] == [True]


def test_an_error_because_of_bad_weights_is_not_saved_as_good(fakes):
    run = failing(setting(fakes, algo=broken_at(fakes, 3)), DataError("reward is nan."))
    with pytest.raises(DataError, match=r"could not be saved: weights in weight are not finite .*saved-9"):
        run.go(schedule=Schedule(log_every=0))
    assert run.saves == [(9, True)]


def test_an_action_that_is_not_finite_is_saved_as_diverged(fakes):
    run = failing(setting(fakes), ActionError("the action is nan; expected finite numbers."))
    with pytest.raises(
        RunError, match=r"^the action is nan; expected finite numbers: the run was .*saved-9\. Continue from"
    ):
        run.go(schedule=Schedule(log_every=0))
    assert run.saves == [(9, True)]
    assert run.sink.entries[-1][0] == 9


@pytest.mark.parametrize("form", [MetricVector, lambda names, vector: dict(zip(names, vector.unbind(), strict=True))])
@pytest.mark.parametrize("is_read", [True, False])
def test_the_first_bad_loss_is_found_where_it_is_read_and_where_it_is_watched_on_its_device(is_read, form, monkeypatch):
    monkeypatch.setattr("reverie.run.metrics_log.FOLD", 2)
    if not is_read:
        monkeypatch.setattr("reverie.run.metrics_log.read_scalars", lambda metrics: (tuple(metrics), None))
    guard = FiniteCheck()
    for update, value in enumerate((1.0, math.nan, 2.0, math.inf), 1):
        guard.add(form(("x", "loss/a", "loss/b"), torch.tensor([math.nan, 1.0, value])), update)
    assert guard.bad_loss() == "loss/b became nan at update 2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (1000, (1000, False)),
        ("1e3", (1000, False)),
        ("30s", (30, True)),
        ("1.5m", (90, True)),
        ("2h", (7200, True)),
        ("5E6", (5e6, False)),
    ],
)
def test_periods_are_steps_or_times(text, expected):
    assert parse_period(text) == expected


def failing(run, error, at=12):
    """Let the environment of ``run`` fail at its turn ``at``."""
    step = run.env.step

    def fail(action):
        if run.env.turn == at:
            raise error
        return step(action)

    run.env.step = fail
    return run


def test_an_error_of_the_environment_saves_first_and_says_where(fakes):
    run = failing(setting(fakes), DataError("reward is nan."))
    with pytest.raises(DataError, match=r"^reward is nan\. The run stopped at env step 9 and was saved as saved-9$"):
        run.go(schedule=Schedule(log_every=0, save_every=0))
    assert run.saves == [(9, False)]
    assert run.sink.entries[-1][0] == 9


def test_an_interrupt_that_nobody_sent_saves_and_one_of_the_impatient_does_not(fakes):
    run = failing(setting(fakes), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt) as caught:
        run.go()
    assert caught.value.__notes__ == ["The run stopped at env step 9 and was saved as saved-9"]
    run = setting(fakes)
    step = run.env.step

    def twice(action):
        if run.env.turn == 12:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return step(action)

    run.env.step = twice
    with pytest.raises(KeyboardInterrupt):
        run.go()
    assert run.saves == []


def test_updates_that_an_error_kept_from_being_made_are_made_when_the_run_goes_on(fakes):
    def losses(update):
        if update == 23:
            raise MemoryError
        return {"loss/a": 1.0}

    run = setting(fakes, algo=fakes.Algo(losses), replay_ratio=3.0)
    again, whole = (setting(fakes, replay_ratio=3.0) for _ in range(2))
    with pytest.raises(MemoryError):
        run.go()
    again.clock.load_state_dict(run.clock.state_dict())
    again.go()
    whole.go()
    assert again.clock.updates == whole.clock.updates == 3 * (40 - 1)


def test_a_period_that_ends_before_its_first_check_is_due_in_a_resumed_run():
    clock, resumed = Clock(length=1000), Clock(length=1000)
    Periodic(100, clock, "eval")
    clock.env_steps = 120  # then the process ends
    resumed.load_state_dict(clock.state_dict())
    assert Periodic(100, resumed, "eval")()


def test_an_evaluation_that_failed_is_due_when_the_run_goes_on(fakes):
    run, marks, evaluated = setting(fakes), [], []

    def evaluator(write):
        marks.append(dict(run.clock.last_events))  # for what is saved in it
        raise ValueError("eval")

    with pytest.raises(ValueError, match="eval"):
        run.go(evaluator=evaluator, schedule=Schedule(eval_every=15))
    assert (marks[0]["eval"], run.clock.last_events["eval"]) == (15, 0)
    assert run.saves == [(15, False)]
    again = setting(fakes)
    again.clock.load_state_dict(run.clock.state_dict())
    again.go(evaluator=lambda write: evaluated.append(again.clock.env_steps), schedule=Schedule(eval_every=15))
    assert evaluated == [15, 30]


def test_an_error_and_a_full_disk(fakes):
    def full(*, diverged=False):
        raise RunError("no space left")

    run = failing(setting(fakes), DataError("reward is nan."))
    with pytest.raises(DataError, match=r"env step 9 and could not be saved: no space left$"):
        run.go(checkpoint=full)
    with pytest.raises(RunError, match=r"^no space left\. .* could not be saved: no space left$"):
        setting(fakes).go(checkpoint=full, schedule=Schedule(save_every=10))


def test_logs_that_cannot_be_written_end_the_run_with_a_checkpoint(fakes):
    class Full(fakes.Sink):
        def write(self, values, step):
            raise OSError(28, "No space left on device", "metrics.jsonl")

    run = setting(fakes)
    with pytest.raises(RunError, match=r"cannot write metrics\.jsonl: No space left.* was saved as saved-10$"):
        run.go(sinks=[Full()], schedule=Schedule(log_every=10))
    assert run.saves == [(10, False)]
