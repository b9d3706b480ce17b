"""Named settings in several environments with several seeds: each the run that it would be alone, from one file."""

from __future__ import annotations

import functools
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import reverie
from in_process import InProcess
from reverie.cli import main
from reverie.core.errors import ConfigError, RunError, UntrustedError
from reverie.distributed import run_processes
from reverie.distributed.sweep import SweepPlan, prepare_commands
from reverie.run.folder import list_sweep, read_saved_config

DEFAULTS = {"steps": 60, "learning_starts": 20, "eval_episodes": 1, "tensorboard": False, "console": False,
            "algo.networks.units": [4], "schedule.eval_every": 30}  # fmt: skip
SWEEP: dict[str, Any] = {
    "algorithm": "dqn",
    "seeds": 2,
    "defaults": DEFAULTS,
    "environments": {
        "CartPole-v1": {},
        "hard": {"env": {"id": "CartPole-v0", "kwargs": {"sutton_barto_reward": True}}},
    },
    "settings": {"base": {}, "wide net": {"algo.networks.units": [8], "steps": 40}},
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder, in which processes are played."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_processes, "Child", InProcess)
    monkeypatch.setattr(run_processes, "POLL", 0.0)


def write(content: Any = SWEEP, name: str = "ablation.yaml") -> Path:
    path = Path(name)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return path


def test_a_sweep_goes_on_in_parts_and_gets_more_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    write()
    assert main(["sweep", "ablation.yaml", "--only", "base", "CartPole-v1"]) == 0
    capsys.readouterr()
    assert main(["sweep", "ablation.yaml", "--status"]) == 0
    table = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    assert [[cell.strip() for cell in row if cell.strip()][2:5] for row in table] == [
        ["finished", "active", "progress"], ["2 of 2", "0", "100%"], *[["0 of 2", "0", "0%"]] * 3,
    ]  # fmt: skip
    result = reverie.sweep("ablation.yaml")
    notes = {cell: {run.note.partition(" at")[0] for run in seeds.seeds} for cell, seeds in result.cells.items()}
    assert notes.pop(("base", "CartPole-v1")) == {"already finished"}
    assert [*notes.values()] == [{"finished"}] * 3
    folder = Path("runs/ablation")
    assert list_sweep(folder)["wide net", "hard"] == folder / "wide_net/hard"
    saved = read_saved_config(folder / "wide_net/hard/seed-1").experiment
    assert (saved["steps"], saved["seed"], saved["env"]["id"]) == (40, 1, "CartPole-v0")
    assert saved["env"]["kwargs"] == {"sutton_barto_reward": True}
    alone = ["dqn", "--env", "CartPole-v1", "--config", "alone.yaml", "--seed", "1", "--run", "alone"]
    write(DEFAULTS, "alone.yaml")
    assert main(["train", *alone]) == 0
    assert read_saved_config(Path("alone")) == read_saved_config(folder / "base/CartPole-v1/seed-1")
    assert main(["sweep", "ablation.yaml", "--seeds", "3"]) == 0
    found = reverie.compare("runs/ablation", labels={"wide net": "Wide"})
    assert [(x.title, x.comparison_key, len(x.scores)) for x in found.settings] == [
        ("base", "CartPole-v1", 3), ("base", "CartPole-v0", 3), ("Wide", "CartPole-v1", 3), ("Wide", "CartPole-v0", 3),
    ]  # fmt: skip
    frame = reverie.logs("runs/ablation")
    assert {*frame["setting"]} == {"base", "wide net"}
    assert (frame.groupby(["setting", "env", "seed"])["step"].max().unique() == [60, 40]).all()
    assert np.isfinite(reverie.logs("runs/ablation", episodes=True)["return"]).all()


def test_names_are_what_is_written() -> None:
    names = ["on", "true", "off", "0.10", "1e2", "2026-03-30"]
    lines = "".join(f"  {name}: {{algo.lr: {number}e-4}}\n" for number, name in enumerate(names, 1))
    plan = SweepPlan(write(f"algorithm: dqn\nenvironments: {{no: {{env: CartPole-v1}}}}\nsettings:\n{lines}"))
    assert {name: config.algo.lr for (name, env), config in plan.cells.items() if env == "no"} == {
        name: pytest.approx(number * 1e-4) for number, name in enumerate(names, 1)
    }
    plan.path.mkdir(parents=True)
    plan.write()
    assert [name for name, _ in list_sweep(plan.path)] == names


def test_each_job_of_an_array_is_a_run_of_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    submitit = pytest.importorskip("submitit")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "deploy"))
    import slurm

    here = functools.partial(submitit.AutoExecutor, "logs", cluster="debug")  # its jobs run in this process
    monkeypatch.setattr(submitit, "AutoExecutor", lambda folder, cluster, **more: here())
    monkeypatch.setattr(slurm, "Training", lambda words: functools.partial(main, ["train", *words]))
    write()
    assert slurm.main(["--local", "--sweep", "ablation.yaml", "--seeds", "1"]) == 0
    assert prepare_commands(SweepPlan("ablation.yaml", seeds=1)) == []
    assert len(prepare_commands(SweepPlan("ablation.yaml"))) == 4
    assert len(reverie.compare("runs/ablation").settings) == 4


def test_a_cell_keeps_its_preset_and_refuses_other_settings_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {**SWEEP, "environments": ["CartPole-v1"], "settings": {"base": {}}, "seeds": 1}
    commands = prepare_commands(SweepPlan(one, device="cuda"))
    assert commands[0][-3:] == ["0", "--run", "runs/sweep/base/CartPole-v1/seed-0"]
    assert (
        not SweepPlan({**one, "defaults": {**DEFAULTS, "device": "cpu"}})
        .cells["base", "CartPole-v1"]
        .preset.endswith("+cpu")
    )
    reverie.sweep({**one, "defaults": {**DEFAULTS, "device": "cpu"}})
    with pytest.raises(RunError, match=r"seeds 0 finished with other settings \(algo.lr: "):
        reverie.sweep({**one, "settings": {"base": {"algo.lr": 0.5}}})


@pytest.mark.parametrize(("change", "message"), [
    ("seeds: 2", "no.yaml, line 1: unknown key 'sedes'. Did you mean 'seeds'"),
    ("  steps: 60", "no.yaml, line 3: unknown option 'stebs'. Did you mean 'steps'"),
    ("  CartPole-v1:", "no.yaml, line 5: unknown environment 'CartPole-v7'"),
    ("    env.kwargs: {}", "no.yaml, line 5: .*unexpected keyword argument 'load'"),
    ("  base: {}", "no.yaml cannot be read as YAML: line 9: 'wide' was set in line 8 already"),
    ("  wide:", "no.yaml, line 9: 'BASE' and 'base' would have the same folder"),
    ("    algo.lr: 0.1", "no.yaml, line 10: algo.lr = 'fast'"),
    ("    algorithm: dqn", "no.yaml, line 11: unknown algorithm 'dqm'"),
])  # fmt: skip
def test_errors_name_the_line_before_the_first_run(change: str, message: str) -> None:
    lines = """
        seeds: 2
        defaults:
          steps: 60
        environments:
          CartPole-v1:
            env.kwargs: {}
        settings:
          base: {}
          wide:
            algo.lr: 0.1
            algorithm: dqn
    """
    wrong = {
        "seeds: 2": "sedes: 2", "  steps: 60": "  stebs: 60", "  CartPole-v1:": "  CartPole-v7:",
        "    env.kwargs: {}": "    env.kwargs: {load: 2}", "  base: {}": "  wide: {}", "  wide:": "  BASE:",
        "    algo.lr: 0.1": "    algo.lr: fast", "    algorithm: dqn": "    algorithm: dqm",
    }  # fmt: skip
    text = textwrap.dedent(lines).strip()
    assert change in text
    path = write(text.replace(change, wrong[change], 1), "no.yaml")
    with pytest.raises(reverie.ReverieError, match=message):
        reverie.sweep(path)
    assert [*Path().iterdir()] == [path]


@pytest.mark.parametrize(("text", "message"), [
    ("run: [a]", r"line 1: run = \['a'\]: expected the path of a folder"),
    ("run:", "line 1: run = None"),
    ('run: "a\\0b"', "line 1: the character NUL"),
    ("seeds: 1000000000", "line 1: expected at most 10,000 runs, but these are 1,000,000,000"),
    ("defaults: {data: rows}", "line 1: data = 'rows'"),
    ("defaults: {replay: 3}", "line 1: replay = 3"),
    ("defaults: {env.id: 5}", "line 1: env.id = 5"),
    ("defaults: {preset: 5}", "line 3: unknown preset '5'"),
    ("defaults: {1: 2}", "line 1: unknown option '1'"),
    ("defaults: {data: " + 400 * "[\n " + 400 * "]" + "}", "line 1: data = "),
])  # fmt: skip
def test_a_wrong_value_is_an_error_with_its_line(text: str, message: str) -> None:
    path = write(f"{text}\nenvironments: [CartPole-v1]\nsettings: {{s: {{}}}}\n", "no.yaml")
    with pytest.raises(reverie.ReverieError, match=rf"^no\.yaml.* {message}"):
        SweepPlan(path)


def test_a_file_names_no_folder_elsewhere_unless_the_user_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("here").mkdir()
    monkeypatch.chdir("here")
    content = {**SWEEP, "run": str(tmp_path / "there")}
    with pytest.raises(UntrustedError, match=r"ablation\.yaml, line 25 names .*/there'"):
        SweepPlan(write(content))
    SweepPlan(content).write()  # in a program
    SweepPlan(write(content)).open_folders()
    (tmp_path / "there/base").symlink_to(tmp_path / "state")
    with pytest.raises(RunError, match=r"there/base is a link to .*state"):
        SweepPlan(content).open_folders()


def test_the_folder_of_a_sweep_does_not_list_millions_of_cells() -> None:
    names = [f"x{i}" for i in range(3000)]
    write({"settings": names, "environments": names}, "sweep.yaml")
    with pytest.raises(ConfigError, match="expected at most 10,000 runs, but these are 9,000,000"):
        reverie.compare(".")


def test_modules_that_a_file_names_are_trusted_modules(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "import gymnasium\ngymnasium.register('Pole-v0', entry_point='gymnasium.envs.classic_control:CartPoleEnv')\n"
    Path("pole_of_a_sweep.py").write_text(text)
    content = {**SWEEP, "seeds": 1, "environments": ["pole_of_a_sweep:Pole-v0"], "settings": {"base": {}}}
    write(content)
    assert main(["sweep", "ablation.yaml"]) == 1
    assert "ablation.yaml, line 13 names 'pole_of_a_sweep:Pole-v0'" in capsys.readouterr().err
    assert not Path("runs").exists()
    (cell,) = reverie.sweep(content).cells.values()  # in a program, the user names it
    assert cell.seeds[0].state == "finished"
    assert main(["sweep", "ablation.yaml", "--trust-code"]) == 0


def test_what_is_no_sweep_is_named() -> None:
    with pytest.raises(ConfigError, match=r"sweep: defaults = \[1\]: expected settings"):
        reverie.sweep({**SWEEP, "defaults": [1]})
    with pytest.raises(ConfigError, match=r"sweep: dqn is for discrete or multi_discrete actions"):
        reverie.sweep({**SWEEP, "environments": ["Pendulum-v1"]})
    Path("full").mkdir()
    Path("full/file").touch()
    with pytest.raises(RunError, match="full is not empty, and no sweep"):
        reverie.sweep(SWEEP, run="full")
    with pytest.raises(
        ConfigError, match=r"only = bas: sweep has no such setting or environment\. Did you mean 'base'"
    ):
        reverie.sweep(SWEEP, only=["bas"])
    with pytest.raises(ConfigError, match=r"settings = None: expected names"):
        reverie.sweep({"environments": ["CartPole-v1"]})
