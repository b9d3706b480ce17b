"""What a run says of itself before it begins."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from reverie.api import check_long_run
from reverie.core.errors import RunError
from reverie.core.specs import ObsPart
from reverie.core.types import Window
from reverie.distributed import run_processes
from reverie.experiment.bench import Cost, forecast
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.describe import describe_forecast
from reverie.experiment.settings import make_preset


@pytest.mark.parametrize(
    ("preset", "more", "update_s", "before", "after"),
    [
        ("minigrid+cpu", {}, 0.1, "preset minigrid+cpu (for a machine without a GPU); 101,000 steps take about 85 min",
         "; published settings: --preset minigrid"),
        ("dreamer_v3", {}, 0.01, "preset dreamer_v3; 101,000 steps take about 10 min", ""),
        ("", {"threads": 2}, 1.0, "101,000 steps take about 14 h",
         "; --steps 7_000 take about an hour, and --preset cpu has small networks and a short run"),
        ("cql+cpu", {"data.path": "a", "updates": 7000}, 1.8,
         "preset cql+cpu (for a machine without a GPU); 7,000 updates take about 3.5 h",
         "; --updates 2_000 take about an hour; published settings: --preset cql"),
    ],
)  # fmt: skip
def test_the_outlook_of_a_run(preset: str, more: dict[str, Any], update_s: float, before: str, after: str) -> None:
    values = {"steps": 101_000, "learning_starts": 1000, "replay_ratio": 0.5, "env.num": 4, "preset": preset}
    config, window = ExperimentConfig().merge({"threads": 1} | values | more), Window(batch=16, length=64)
    run = forecast(config, window, Cost(update_s=update_s, turn_s=0.004, env_step_s=1e-6))
    found = describe_forecast(config, window, run, {})
    threads = "2 threads" if more.get("threads") == 2 else "1 thread"
    assert found == f"{before} on this machine, as busy as it is, with {threads}{after}"


def test_a_run_too_short_for_an_update_says_so() -> None:
    """16 windows of 64 rows in 4 streams exist after 16 + 4 * 63 steps."""
    values = {"learning_starts": 16, "replay_ratio": 1.0, "env.num": 4}
    config, window = ExperimentConfig().merge(values), Window(batch=16, length=64)
    message = "nothing will be learned in 268 steps: the first update comes after 268"
    assert message in describe_forecast(config.merge({"steps": 268}), window, None, {})
    assert not describe_forecast(config.merge({"steps": 269}), window, None, {})
    assert config.merge({"steps": 300}).planned_counts(window) == (32, 75)


@pytest.mark.parametrize(("side", "is_said"), [(84, True), (64, False)])
def test_the_preset_says_that_it_resizes_images(side: int, is_said: bool) -> None:
    config = make_preset("sac")
    spec = {"eye": ObsPart(kind="image", shape=(side, side, 3), dtype="uint8")}
    found = describe_forecast(config.merge({"preset": "sac"}), Window(batch=256, length=2), None, spec)
    said = "preset sac; images larger than 84 x 84 are resized to that (env.max_image_size)"
    assert found.startswith(said) == is_said


@pytest.mark.parametrize(("hours", "confirmed", "begins"), [(11, None, True), (13, None, True), (13, True, True),
                                                            (13, False, False)])  # fmt: skip
def test_a_run_of_more_than_12_hours_is_asked_for(hours: float, confirmed: bool | None, begins: bool) -> None:
    texts, closed = list[str](), list[bool]()
    config, window = ExperimentConfig().merge({"steps": 3600, "env.num": 1}), Window(batch=1, length=1)
    run = forecast(config, window, Cost(update_s=0.0, turn_s=float(hours)))
    experiment: Any = SimpleNamespace(config=config, forecast=run, close=lambda failed: closed.append(failed))
    confirm = None if confirmed is None else lambda text: (texts.append(text), confirmed)[1]
    with (
        contextlib.nullcontext() if begins else pytest.raises(RunError, match=r"--steps 300 take about an hour.*--yes")
    ):
        check_long_run(experiment, confirm)
    assert (len(texts), closed) == (int(hours > 12 and confirmed is not None), [] if begins else [True])


@pytest.mark.parametrize(("jobs", "asked"), [(1, True), (2, False)])
def test_several_runs_are_asked_for_together(monkeypatch: pytest.MonkeyPatch, jobs: int, asked: bool) -> None:
    """Three of five hours: 15 hours one by one, 10 hours two at a time."""
    config = ExperimentConfig().merge({"steps": 3600})
    built = SimpleNamespace(config=config, forecast=SimpleNamespace(hours=5.0), close=lambda: None)
    monkeypatch.setattr(run_processes, "build", lambda _, confirm: built)
    monkeypatch.setattr(run_processes, "with_forecast", lambda experiment: experiment)
    with pytest.raises(RunError, match=r"3 seeds take about 15 h.*--yes") if asked else contextlib.nullcontext():
        assert run_processes.forecast_runs(config, 3, "seed", jobs, lambda _: False) == config
