"""What a run does to its folder when things go wrong: damage, two writers, other settings, other spaces, no room."""

import hashlib
import itertools
import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml

from reverie import api
from reverie.agent import evaluating
from reverie.agent.dream_report import dream
from reverie.agent.evaluating import evaluate_run
from reverie.agent.loading import load
from reverie.api import train_config as train
from reverie.cli import main
from reverie.core import documents
from reverie.core.action_codec import ActionCodec
from reverie.core.errors import ConfigError, DataError, RunError
from reverie.core.files import check_links, write_json
from reverie.core.lock import folder_lock
from reverie.core.specs import ActionSpec, ObsPart, spec_to_dict
from reverie.experiment import lifecycle
from reverie.experiment.config import ExperimentConfig
from reverie.log import plot, sinks
from reverie.log.jsonl import FINAL, read_metrics
from reverie.run.checkpoint import Checkpoints
from reverie.run.folder import RunFolder, check_spec
from reverie.run.manifest import MANIFEST, manifest_bytes
from tiny_configs import SETTINGS

CONFIG = ExperimentConfig().merge(SETTINGS).merge({"steps": 60, "learning_starts": 5, "env.id": "Steps"})


class Steps(gymnasium.Env[Any, Any]):
    """A vector of ``width`` numbers; ends after nine steps. Subclasses change one thing."""

    width, actions, breaks_at, taken = 5, 2, 10**9, 0

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Dict(vec=gymnasium.spaces.Box(-1, 1, (self.width,), np.float32))
        self.action_space = gymnasium.spaces.Discrete(self.actions)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        return {"vec": np.zeros(self.width, np.float32)}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t, self.taken = self.t + 1, self.taken + 1
        value = np.nan if self.taken == self.breaks_at else self.t / 10
        return {"vec": np.full(self.width, value, np.float32)}, 1.0, self.t == 9, False, {}


class Wider(Steps):
    width = 6


class Freer(Steps):
    actions = 3


class Breaking(Steps):
    breaks_at = 15


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with two checkpoints."""
    run = tmp_path_factory.mktemp("runs") / "steps"
    train(CONFIG.merge({"schedule.save_every": 40}), env=Steps, run=run)
    return run


@pytest.fixture
def run(done: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(done, tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_whose_checkpoints_are_all_damaged_is_left_alone(run: Path) -> None:
    one, two = Checkpoints(run / "checkpoints").paths()
    for path in (one, two):
        (path / "state.json").write_text("{")
    before = contents(run)
    told = rf"no checkpoint in .* can be used: {one.name}.*{two.name}.* another run fol"
    for attempt in (lambda: train(CONFIG.merge({"steps": 90}), Steps, run), lambda: load(run, env=Steps)):
        with pytest.raises(RunError, match=told):
            attempt()
    assert contents(run) == before


def test_a_run_that_is_being_written_can_be_read_but_not_trained(run: Path) -> None:
    with folder_lock(run):
        with pytest.raises(RunError, match=r"run is in use by process \d+ on host"):
            train(CONFIG.merge({"steps": 90}), env=Steps, run=run)
        agent = load(run, env=Steps)
        assert evaluate_run(agent, episodes=1).evaluation.scores == [9.0]
        assert dream(agent, context=2, horizon=4, episodes=1).files["numbers"].exists()
    assert train(CONFIG.merge({"steps": 70}), env=Steps, run=run).env_steps >= 70
    assert not (run / ".lock").exists()


def test_a_folder_in_which_a_run_was_begun_meanwhile_is_refused(done, tmp_path, monkeypatch):
    build = api.build

    def slow(*args: Any, **options: Any) -> Any:
        built = build(*args, **options)
        shutil.copytree(done, tmp_path / "run")
        return built

    monkeypatch.setattr(api, "build", slow)
    with pytest.raises(RunError, match="another process has just created a run"):
        train(CONFIG, env=Steps, run=tmp_path / "run")
    assert contents(tmp_path / "run") == contents(done)


def test_what_a_process_left_that_was_killed_as_it_began_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in (".lock", "spec.json", ".config.yaml.77.part"):
        (tmp_path / "run" / name).write_text("{}")
    assert train(CONFIG, env=Steps, run=tmp_path / "run").reason == "finished"


def test_an_environment_that_breaks_leaves_a_checkpoint_to_go_on_from(tmp_path: Path, said: list[str]) -> None:
    with pytest.raises(DataError, match=r"nan.* was saved as (.*step-\d+)$") as caught:
        train(CONFIG.merge({"env.restarts": 0}), env=Breaking, run=tmp_path / "run")
    path = Path(str(caught.value).rpartition(" as ")[2])
    assert Checkpoints(tmp_path / "run" / "checkpoints").latest() == path
    said.clear()
    train(CONFIG, env=Steps, run=tmp_path / "run")
    assert ("continuing" in said[0], "from env step 0" in said[0]) == (True, False)


def test_a_final_evaluation_that_a_killed_process_had_only_logged_is_made_again_and_counts_once(run, monkeypatch):
    """The score is written last, as it is taken for a sign that nothing is missing."""
    write, log, logged = lifecycle.write_result, run / "metrics.jsonl", []
    monkeypatch.setattr(lifecycle, "write_result", lambda *args: logged.append(log.read_text()) or write(*args))
    (run / "eval.json").unlink()
    before = log.read_text()
    assert train(CONFIG, env=Steps, run=run).evaluation is not None
    assert [*logged, log.read_text()] == [before, before]
    assert (run / "metrics-aside.jsonl").read_text() == before.splitlines(keepends=True)[-1]
    assert read_metrics(run / "metrics-aside.jsonl")[0][FINAL] == 1.0
    assert (run / "eval.json").exists()


def test_changed_settings_are_told_and_the_former_ones_kept(run: Path, said: list[str]) -> None:
    former = (run / "config.yaml").read_bytes()
    step = json.loads((run / "eval.json").read_text())["env_steps"]
    changed = CONFIG.merge({"steps": 80, "algo.batch_length": 4, "env.kwargs": {}, "schedule.save_every": 40})
    train(changed, env=Steps, run=run)
    assert {line for line in said if " -> " in line} == {"steps: 60 -> 80", "algo.batch_length: 8 -> 4"}
    assert (run / f"config-{step:09d}.yaml").read_bytes() == former
    assert yaml.safe_load((run / "config.yaml").read_text())["experiment"]["algo"]["batch_length"] == 4


def test_other_versions_of_the_environments_packages_are_told_once(run: Path, said: list[str]) -> None:
    config, packages = run / "config.yaml", yaml.safe_load((run / "config.yaml").read_text())["packages"]
    assert packages.keys() == {"gymnasium"}
    text = config.read_text()
    config.write_text(text.replace(f"gymnasium: {packages['gymnasium']}", "gymnasium: 0.29.1\n  gone: '1.0'"))
    provenance = run / "provenance.json"
    provenance.write_text(
        provenance.read_text().replace(f'"gymnasium": "{packages["gymnasium"]}"', '"gymnasium": "0.29.1"')
    )
    load(run, env=Steps)
    train(CONFIG.merge({"steps": 80}), env=Steps, run=run)
    assert yaml.safe_load(config.read_text())["packages"] == packages
    train(CONFIG.merge({"steps": 90}), env=Steps, run=run)
    changes = [line for line in said if "other versions" in line]
    assert len(changes) == 2
    assert all(f"gymnasium: 0.29.1 -> {packages['gymnasium']}. It" in line for line in changes)


@pytest.mark.parametrize(("env", "message"), [
    (Wider, r"observation 'vec' is vector \(5,\) in the run, but \(6,\) in this environment: the environment"),
    (Freer, r"action '.*' is .* of 2 classes in the run, but of 3 classes in this environment: the environment"),
])  # fmt: skip
def test_an_environment_that_changed_is_told(run: Path, env: type[Steps], message: str) -> None:
    before = contents(run)
    with pytest.raises(RunError, match=message):
        load(run, env=env)
    with pytest.raises(RunError, match=message):
        train(CONFIG.merge({"steps": 90}), env=env, run=run)
    assert contents(run) == before


def bounded(limit: float) -> ActionSpec:
    return ActionCodec(gymnasium.spaces.Box(-limit, limit, (2,), np.float32)).spec


def test_other_bounds_of_actions_are_refused_except_by_runs_that_do_not_know_theirs(tmp_path: Path) -> None:
    folder, seen = RunFolder(tmp_path), {"vec": ObsPart(kind="vector", shape=(5,), dtype="float32")}
    write_json(folder.spec, spec_to_dict(seen, bounded(1.0)))
    check_spec(folder, spec_to_dict(seen, bounded(1.0)))
    with pytest.raises(RunError, match=r"2 numbers in -1\.\.1 in the run, but of 2 numbers in -5\.\.5 in this"):
        check_spec(folder, spec_to_dict(seen, bounded(5.0)))
    saved = json.loads(folder.spec.read_text())
    del saved["action"]["action"]["low"], saved["action"]["action"]["high"]
    folder.spec.write_text(json.dumps(saved))
    check_spec(folder, spec_to_dict(seen, bounded(5.0)))


def refuse(*args: Any, **options: Any) -> None:
    raise PermissionError(13, "Permission denied", "somewhere")


def test_scores_are_not_lost_in_a_read_only_folder(run, monkeypatch, capsys):
    monkeypatch.setattr(evaluating, "write_result", refuse)
    report = evaluate_run(load(run, env=Steps), episodes=2)
    assert (report.evaluation.scores, report.files) == ([9.0, 9.0], {})
    assert "cannot write somewhere: Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize("sink", ["JsonlSink", "TensorBoardSink"])
def test_logs_that_cannot_be_written_end_no_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sink: str,
    said: list[str],
) -> None:
    monkeypatch.setattr(getattr(sinks, sink), "write", refuse)
    config = CONFIG.merge({"tensorboard": True, "schedule.log_every": 10})
    assert train(config, env=Steps, run=tmp_path / "run").reason == "finished"
    assert len([line for line in said if "The run continues" in line]) == 1


def test_a_disk_that_is_full_at_the_end_takes_no_score_away(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: list[str],
) -> None:
    monkeypatch.setattr(lifecycle, "write_result", refuse)
    monkeypatch.setattr(plot, "plot_learning_curve", refuse)
    result = train(CONFIG, env=Steps, run=tmp_path / "run")
    assert result.evaluation is not None
    assert sum("cannot write: [Errno 13] Permission denied" in line for line in said) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [("schema: 99\nalgorithm: dreamer_v3\nexperiment: {}\n", "schema 99"), ("steps: 3\n", "has no schema, algorithm")],
)
def test_a_config_of_another_time_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(RunError, match=message):
        load(tmp_path)


@pytest.mark.parametrize("words", ["eval seeds", "train --resume seeds"])
def test_a_folder_of_several_runs_names_them(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    for name in ("seed-1", "seed-2"):
        (tmp_path / "seeds" / name).mkdir(parents=True)
        (tmp_path / "seeds" / name / "config.yaml").touch()
    assert main(words.split()) == 1
    assert capsys.readouterr().err.endswith("There are runs inside: seed-1, seed-2.\n")


# ---------------------------------------------------------------- a folder of a stranger


@pytest.fixture
def strange(trained, tmp_path, monkeypatch, capsys, _no_collection):
    """Run a command on a copy of a run that ``change`` has changed; nothing outside changes, and all ends."""
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(trained, run)
    outside.mkdir()
    monkeypatch.chdir(tmp_path)

    def late(*_: object) -> None:
        raise AssertionError("it does not end")

    def refused(change, command="eval run"):
        change(run, outside)
        before = {path: path.stat().st_size for path in outside.rglob("*")}
        former = signal.signal(signal.SIGALRM, late)
        signal.alarm(60)
        try:
            assert main(command.split()) == 1
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, former)
        assert {path: path.stat().st_size for path in outside.rglob("*")} == before
        return capsys.readouterr().err

    return refused


@pytest.mark.parametrize("name", ["metrics.jsonl", "tensorboard", ".lock", "videos", "replay", "eval.json",
                                  "checkpoints/best", "config.yaml"])  # fmt: skip
@pytest.mark.parametrize("command", ["eval run", "train --resume run --steps 300", "info run"])
def test_links_out_of_a_run_are_refused_by_name(name, command, strange):
    def link(run, outside):
        target = outside / "mine"
        if (run / name).is_dir():
            shutil.rmtree(run / name)
            target.mkdir()
        else:
            (run / name).unlink(missing_ok=True)
            target.write_text("{}")
        (run / name).symlink_to(target)

    assert re.search(rf"{name} is a link to .*outside/mine, outside of ", strange(link, command))


def test_a_run_may_be_a_link_and_hold_links_to_itself(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "disk" / "run")
    (tmp_path / "link").symlink_to(run)
    (run / "newest").symlink_to("checkpoints")
    (run / "wandb").mkdir()
    (run / "wandb" / "debug.log").symlink_to("/somewhere/else")  # of W&B, which reads and writes that itself
    load(tmp_path / "link")
    check_links(tmp_path / "disk")  # as if it were one of several seeds


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "eval.json", "config.yaml", "spec.json", ".lock", "checkpoints/best"]
)
def test_pipes_in_a_run_are_refused_by_name(name, strange):
    def pipe(run, outside):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    assert f"{name} is neither a file nor a folder" in strange(pipe, "info run")


@pytest.mark.parametrize(("name", "command"), [
    ("metrics.jsonl", "info run"), ("metrics.jsonl", "train --resume run --steps 300"), ("config.yaml", "eval run"),
    ("spec.json", "eval run"), ("eval.json", "info run"),
])  # fmt: skip
def test_files_of_a_terabyte_are_refused_by_name(name, command, strange):
    assert f"{name} has 1,000,000,000,000 bytes" in strange(lambda run, _: os.truncate(run / name, 10**12), command)


LETTERS = "abcdefghij"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in itertools.pairwise(LETTERS)
)
MERGED = "a: &a {p: 1}\n" + "".join(
    f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 10)}]}}\n" for a, b in itertools.pairwise(LETTERS)
)
DEEP = "[" * 20_000 + "]" * 20_000


@pytest.mark.parametrize("command", ["eval run", "train dqn --config run/config.yaml --env CartPole-v1"])
@pytest.mark.parametrize(("content", "message"), [
    (BOMB, "more than 500,000 values"), (MERGED, "more than 500,000 values"), (f"a: {DEEP}", "nested too deeply"),
    ("a: &a [*a]", "contains itself"), ("a: 2001-99-99", "month"), ("[1]", "contains a list"), ("a: {", "line 1"),
    ("!!python/object/apply:os.system ['touch outside/mark']", "could not determine a constructor"),
    ("schema: x\nalgorithm: dqn\nexperiment: {}", "schema"),
    ("schema: 1\nalgorithm: dqn\nexperiment: 5", "expected a mapping"),
])  # fmt: skip
def test_a_damaged_config_is_refused_by_name(content, message, command, strange):
    said = strange(lambda run, _: (run / "config.yaml").write_text(content), command)
    assert "config.yaml" in said
    assert message in said


@pytest.mark.parametrize(("opening", "closing"), [
    ("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", ""), ("[{a: ", "}]"), (None, ""),
])  # fmt: skip
def test_libyaml_reads_no_deep_nesting(opening, closing, tmp_path, monkeypatch):
    """It recurses without a limit, and 20,000 levels crash some processes."""
    monkeypatch.setattr(documents, "_FastLoader", None)
    depth = documents.MAX_DEPTH
    steps = "".join(f"{' ' * level}a:\n" for level in range(depth)) if opening is None else f"a:\n  {opening * depth}"
    (tmp_path / "deep.yaml").write_text(f"{steps}1{closing * depth}")
    with pytest.raises(ConfigError, match="nested too deeply"):
        documents.read_yaml(tmp_path / "deep.yaml")


def test_a_changed_file_is_read_again_and_nobody_changes_it_for_others(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text("a: {b: 1}")
    documents.read_yaml(path)["a"]["b"] = 2
    assert documents.read_yaml(path) == {"a": {"b": 1}}
    path.write_text("a: {b: 10}")
    assert documents.read_yaml(path) == {"a": {"b": 10}}


SECTIONS = "a:\n  b:\n    c: 1\n  d:\n  - 2\ne: {f: 3}\n"


@pytest.mark.parametrize("text", [
    SECTIONS, f"# first\n{SECTIONS}", "a: |\n  x\n\nb: 1\n", "a:\n  b: |\n    x\n  c: >-\n    y\n    z\n",
    "on: 1\n1:\n  2: 3\n", 'a: "x\nb: 1"\n', 'a: "x\n  b: 1"\nc: 2\n', "a:\n  x\n  y\nb:\n", "a: &x\n  b: 1\nc: *x\n",
    "a:\n  - b: 1\n    c: 2\n",
    "a:\n  # no value\n",
])  # fmt: skip
def test_sections_are_read_as_the_whole_file_is(text, tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text(text)
    assert documents.read_yaml(path) == yaml.safe_load(text)


@pytest.mark.parametrize("text", [
    "a: 1\n...\nb: 2\n", "a: 1\nb: 2\na: 3\n", "  a: 1\nb: 2\n", "a:\n    b: 1\n  c: 2\n",
    "a: !!set [1]\n",
])  # fmt: skip
def test_sections_that_are_no_yaml_together_are_refused(text, tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="cannot be read as YAML"):
        documents.read_yaml(path)


@pytest.mark.parametrize("command", ["eval run", "info run", "push run pushed"])
@pytest.mark.parametrize("content", ['{"a": ', DEEP, "[]", "", '{"observation": 3, "score": 1}'])
def test_damaged_results_and_spaces_are_refused_by_name(content, command, strange):
    name = "eval.json" if command == "info run" else "spec.json"
    assert f"{name} is damaged" in strange(lambda run, _: (run / name).write_text(content), command)


@pytest.mark.parametrize(("name", "content"), [
    ("tensors.safetensors", b"\xff" * 100), ("state.json", b"{"), ("state.json", DEEP.encode()), ("state.json", b"[]"),
])  # fmt: skip
def test_a_damaged_checkpoint_with_a_new_seal_is_refused_by_name(name, content, strange):
    def damage(run, outside):
        for path in (run / "checkpoints").glob("step-*"):
            (path / name).write_bytes(content)
            reseal(path, {name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}})

    assert re.search(r"step-\d+ is damaged", strange(damage))


@pytest.mark.parametrize("name", ["../../../outside/victim", "{outside}/victim", "algo/../../../../outside/victim"])
@pytest.mark.parametrize("command", ["eval run", "train --resume run --steps 300"])
def test_a_manifest_lists_no_files_outside_of_its_checkpoint(name, command, strange):
    def list_victim(run, outside):
        name_there, victim = name.format(outside=outside), outside / "victim"
        victim.write_bytes(b"x")
        os.truncate(victim, 200_000_000)
        digest = hashlib.sha256(victim.read_bytes()).hexdigest()
        for path in (run / "checkpoints").glob("step-*"):
            reseal(path, {name_there: {"bytes": 200_000_000, "sha256": digest, "spare": True}})

    assert "outside/victim', which is not the name of a file in it" in strange(list_victim, command)


SEEDS, SEARCH = (
    "train dqn --env CartPole-v1 --seeds 2 --run runs",
    "tune dqn --env CartPole-v1 --space s.yaml --run runs",
)


@pytest.mark.parametrize(("command", "names"), [
    (SEEDS, ["seed-0.log", "aggregate.json", ".lock", "settings.yaml", "curve.png", "seed-0/metrics.jsonl"]),
    (SEARCH, ["trial-0.log", "study.db", ".lock", "space.yaml", "tune.png"]),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_folders_of_seeds_and_of_a_search_are_checked_as_runs_are(kind, command, names, strange):
    (Path("runs") / "seed-0").mkdir(parents=True)
    Path("s.yaml").write_text("algo.lr: [1e-3, 1e-4]")
    for path in (Path("runs") / name for name in names):

        def put(_, outside, path=path):
            (outside / "mine").write_text("{}")
            path.symlink_to(outside / "mine") if kind == "link" else os.mkfifo(path)

        said = f"{path} is {'a link to .*outside/mine' if kind == 'link' else 'neither a file nor a folder'}"
        assert re.search(said, strange(put, command))
        path.unlink()


SAVED = "schema: 1\nalgorithm: dqn\nexperiment: {env: {id: CartPole-v1}"


@pytest.mark.parametrize(("command", "name", "content", "said"), [
    *((SEEDS, "aggregate.json", x, "aggregate.json is damaged") for x in ("[]", "{}", '{"runs": [3]}', DEEP)),
    (SEEDS, "settings.yaml", f"{SAVED}, steps: x}}", "steps = 'x': expected a whole number"),
    (SEARCH, "study.db", "no database", "study.db is damaged"),
    (SEARCH, "settings.yaml", f"{SAVED}, algo: 3}}", "expected a mapping"),
    ("compare runs", "seed-0/eval.json", '{"score": {"mean": "9"}}', "eval.json is damaged"),
    ("compare runs", "seed-0/eval.json", '{"checkpoint": "a", "final": 7}', "eval.json is damaged"),
    ("compare runs", "seed-0/config.yaml", f"{SAVED}, seed: [1]}}", "seed = "),
    ("compare runs", "seed-0/config.yaml", f"{SAVED}}}", "the settings of dqn lack schedule, experience"),
])  # fmt: skip
def test_damaged_files_of_seeds_and_of_a_search_are_named(command, name, content, said, trained, strange):
    def damage(run, outside):
        Path("s.yaml").write_text("algo.lr: [1e-3, 1e-4]")
        shutil.copytree(trained, "runs/seed-0")
        Path("runs/settings.yaml").write_text(f"{SAVED}}}")
        (Path("runs") / name).write_text(content)

    assert said in strange(damage, command)


@pytest.mark.parametrize("line", [
    "7", '{"step": NaN}', '{"step": 1e999}', '{"step": 3, "episode/score": "x"}', '{"step": 3, "episode/score": [1]}',
    f'{{"step": 3, "episode/score": 1{"0" * 400}}}',
])  # fmt: skip
def test_lines_of_the_log_that_hold_no_numbers_are_skipped(line, tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(f'{{"step": 2, "episode/score": 1.5}}\n{line}\n{{"step": 4, "episode/score": null}}\n')
    assert [row["step"] for row in read_metrics(file)] == [2, 4]


def reseal(checkpoint, files):
    """Let the manifest of a checkpoint list ``files`` too."""
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    del manifest["seal"]
    (checkpoint / MANIFEST).write_bytes(manifest_bytes({**manifest, "files": manifest["files"] | files}))
