"""A run that does not fit into memory is refused before anything is allocated, with a command that fits."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from typing import Any

import pytest

from reverie.cli import main
from reverie.core.discover import algorithms
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.experiment import memory
from reverie.experiment.config_layers import base_config
from reverie.experiment.resolve import complete_settings

pytestmark = pytest.mark.usefixtures("counted")
CHOICES = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(4,))})
MOVES = ActionSpec(parts={"action": ActionPart(kind="continuous", size=2)})
LARGE = {"image": ObsPart(kind="image", shape=(512, 288, 3), dtype="uint8")}
VECTOR = {"vector": ObsPart(kind="vector", shape=(8,), dtype="float32")}


@pytest.mark.parametrize("algorithm", ["dqn", "ppo", "sac", "tdmpc2", "dreamer_v3"])
def test_large_images_are_forecast_to_need_more_than_vectors(algorithm: str) -> None:
    config = base_config(algorithm, "Mine-v0", device="cpu").merge({"algo.batch_size": 8})
    actions = CHOICES if "discrete" in config.algo.action_kinds else MOVES
    large, small = (memory.forecast_memory(config, spec, actions) for spec in (LARGE, VECTOR))
    assert large is not None
    assert small is not None
    assert small.total < 2e9 < 4e9 < large.total
    assert large.row > 512 * 288 * 3


@pytest.mark.parametrize("free", [3e9, 8e9])
def test_a_command_that_fits_is_named(monkeypatch: pytest.MonkeyPatch, free: float) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: int(free))
    config = base_config("dqn", "Mine-v0", device="cpu").merge({"env.id": "Mine-v0"})
    with pytest.raises(ConfigError) as refused:
        memory.check_fits_memory(config, LARGE, CHOICES)
    text = str(refused.value)
    assert all(name in text for name in ("env.resize", "algo.batch_size", "replay.capacity", "GB is available"))
    command = text.partition("as in: ")[2]
    assert command.startswith("reverie train dqn --env Mine-v0")
    flags = dict(re.findall(r"--([\w.-]+) ((?:\d+ ?)+)", command))
    changes: dict[str, Any] = {
        name.replace("-", "_"): [int(n) for n in shlex.split(value)] for name, value in flags.items()
    }
    changed = config.merge({name: value if len(value) > 1 else value[0] for name, value in changes.items()})
    assert changed.env.resize == (64, 64)
    small = {"image": ObsPart(kind="image", shape=(64, 64, 3), dtype="uint8")}
    memory.check_fits_memory(changed, small, CHOICES)


def test_a_run_is_refused_before_it_begins(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 10_000_000)
    assert main(["train", "dqn", "--env", "reverie/Grid-v0", "--device", "cpu", "--algo.batch-size", "512"]) == 1
    assert "of memory" in capsys.readouterr().err


def test_the_start_of_a_run_does_not_import_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    config = base_config("dqn", "Mine-v0", device="cpu").merge({"algo.batch_size": 3})  # not counted before
    assert memory.count_learner(config, VECTOR, CHOICES) is not None
    assert "torch._dynamo" not in sys.modules


IMAGE = {"image": ObsPart(kind="image", shape=(64, 64, 3), dtype="uint8")}
GRID = {"grid": ObsPart(kind="categorical", shape=(7, 7, 3), dtype="int64", classes=(11,) * 147)}
KINDS = {"vector": VECTOR, "image": IMAGE, "grid": GRID}
ONLINE_TOO = {"gail"}
"""Algorithms for recorded data that collect rows as well."""


@pytest.mark.parametrize("algorithm", sorted(algorithms()))
def test_without_a_gpu_every_default_run_ends_within_an_hour(algorithm: str) -> None:
    config = base_config(algorithm, "Mine-v0", device="cpu").merge({"env.id": "Mine-v0"})
    if config.algo.needs_data and algorithm not in ONLINE_TOO:
        config = config.merge({"data.path": "data"})
    actions = CHOICES if "discrete" in config.algo.action_kinds else MOVES
    for kind, spec in KINDS.items():
        fitted, counted = memory.fit_default_length(config, spec, actions)
        assert counted is not None, kind
        assert memory.nominal_hours(fitted, counted) <= 1.0, kind
        assert fitted.length >= 100, kind
        chosen = config.merge({config.unit: config.length + 1})
        assert memory.fit_default_length(chosen, spec, actions)[0] == chosen
        same = complete_settings(config, [config.unit])  # the user has set what the preset has
        assert memory.fit_default_length(same, spec, actions)[0].length == config.length
        if algorithm.startswith(("bmpc", "dreamer", "plan2explore", "r2dreamer", "tdmpc2")):
            break  # they take seconds to count


def test_a_default_run_on_a_gpu_keeps_its_length() -> None:
    config = base_config("sac", "Mine-v0", device="cuda").merge({"env.id": "Mine-v0"})
    assert config.steps == memory.fit_default_length(config, IMAGE, MOVES)[0].steps == 1_000_000


@pytest.mark.parametrize(("free", "confirmed", "begins"), [(0.7, True, True), (0.7, False, False), (0.6, True, False),
                                                            (0.7, None, False)])  # fmt: skip
def test_a_run_that_may_fit_begins_with_yes(
    monkeypatch: pytest.MonkeyPatch, free: float, confirmed: bool | None, begins: bool
) -> None:
    """``free``: the memory as a share of the forecast."""
    config = base_config("dqn", "Mine-v0", device="cpu").merge({"env.id": "Mine-v0"})
    needed = memory.forecast_memory(config, VECTOR, CHOICES)
    assert needed is not None
    monkeypatch.setattr(memory, "available_memory", lambda: int(free * needed.total))
    confirm = None if confirmed is None else lambda text: confirmed
    with contextlib.nullcontext() if begins else pytest.raises(ConfigError):
        memory.check_fits_memory(config, VECTOR, CHOICES, confirm=confirm)
