"""What deploy/ has for clusters: manifests with the fields that Kubernetes knows, and the Slurm script really run."""

from __future__ import annotations

import functools
import os
import re
import shlex
import signal
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import reverie
from reverie.cli import main
from reverie.cli import train as commands
from reverie.log.jsonl import read_metrics
from reverie.run.folder import read_saved_config

pytestmark = pytest.mark.usefixtures("warm")

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
META = {"name"}
CONTAINER = {"name", "image", "args", "securityContext", "resources", "volumeMounts"}
POD = {
    "restartPolicy", "terminationGracePeriodSeconds", "automountServiceAccountToken", "securityContext", "containers",
    "volumes",
}  # fmt: skip
KNOWN = {
    "PersistentVolumeClaim": {"accessModes", "resources"},
    "Job": {"backoffLimit", "podFailurePolicy", "template"},
    "RayJob": {
        "entrypoint", "entrypointNumGpus", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished",
        "rayClusterSpec",
    },
}  # fmt: skip
"""Fields of ``spec`` in batch/v1, v1 and ray.io/v1, as far as they are used here."""


def manifests(name: str) -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())}


def pods() -> list[tuple[dict[str, Any], list[str]]]:
    """Each pod with the words that follow ``reverie`` in it."""
    job, ray = manifests("job.yaml")["Job"]["spec"], manifests("rayjob.yaml")["RayJob"]["spec"]
    head = ray["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    pod = job["template"]["spec"]
    return [(pod, pod["containers"][0]["args"]), (head, shlex.split(ray["entrypoint"])[1:])]


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("name", ["job.yaml", "rayjob.yaml"])
def test_manifests_have_known_fields(name: str) -> None:
    for kind, one in manifests(name).items():
        assert one.keys() == {"apiVersion", "kind", "metadata", "spec"}
        assert one["metadata"].keys() <= META
        assert one["spec"].keys() <= KNOWN[kind]
        assert one["apiVersion"] == {"PersistentVolumeClaim": "v1", "Job": "batch/v1", "RayJob": "ray.io/v1"}[kind]
    for pod, _ in pods():
        assert pod.keys() <= POD
        (container,) = pod["containers"]
        assert container.keys() <= CONTAINER
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        claims = [one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"] if "persistentVolumeClaim" in one]
        assert claims == [manifests("job.yaml")["PersistentVolumeClaim"]["metadata"]["name"]]


class Understood(Exception):
    """The command line was read to its end."""


def test_pods_run_commands_that_go_on_as_another_user_than_root(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: Any, **kwargs: Any) -> None:
        raise Understood

    monkeypatch.setattr(commands, "train_config", stop)
    for pod, words in pods():
        with pytest.raises(Understood):
            main(words)
        run = words[words.index("--run") + 1]
        mounts = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
        assert run.startswith(mounts[0])
        assert pod["terminationGracePeriodSeconds"] >= 60
        user = {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000}
        assert pod["securityContext"] == user | {"seccompProfile": {"type": "RuntimeDefault"}}
        assert pod["automountServiceAccountToken"] is False
        (container,) = pod["containers"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert container["image"].endswith(f":{project()['version']}")


def test_the_image_has_stages_for_both_machines_and_known_extras() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    stages = dict(re.findall(r"^FROM (\S+) AS (\S+)", text, re.MULTILINE))
    names = re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE)
    assert {"cpu", "gpu"} <= {*names}
    for source in re.findall(r"--from=(\S+)", text):
        assert source in names
    assert len(stages) >= 3
    for stage in text.split("\nFROM ")[-2:]:
        assert stage.index("USER 1000") < stage.index("RUN python")
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        assert all(list(ROOT.glob(path)) for path in line.split() if path != "deploy/*.txt")  # of make hashes
    assert f"-t reverie:{project()['version']} " in text


@pytest.mark.nightly  # as make licenses, which CI runs, too: it reads all programs of all packages
def test_the_image_needs_no_copyleft(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import licenses

    assert licenses.main() == 0
    names = capsys.readouterr().out
    assert "ale-py" in names
    assert "numpy" in names
    assert [line.partition(" ")[0] for line in names.splitlines() if "its program ffmpeg" in line] == ["imageio-ffmpeg"]
    copyleft = ["GPL-2.0-only", "GNU General Public License v3 (GPLv3)", "AGPL-3.0-or-later", "MIT AND GPL-3.0"]
    assert all(licenses.COPYLEFT.search(text) for text in copyleft)
    assert not any(licenses.COPYLEFT.search(text) for text in ("MIT", "LGPL-2.1", "GNU Lesser General Public License"))


def test_the_workflow_runs_what_ci_runs_and_may_only_read() -> None:
    content = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert content["permissions"] == {"contents": "read"}
    (job,) = content["jobs"].values()
    assert job["steps"][-1] == {"run": ".ci/run"}
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name) for name in used)


def test_the_recipe_for_conda_needs_what_the_wheel_needs() -> None:
    wanted = project()
    recipe = yaml.safe_load((DEPLOY / "conda" / "recipe.yaml").read_text())
    there = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    bounds = [re.split("(?=>=)", one.partition(";")[0].strip()) for one in wanted["dependencies"]]
    expected = [f"{there.get(name, name)} {bound}" for name, bound in bounds]
    assert recipe["requirements"]["run"] == [f"python {wanted['requires-python']}", *expected]
    assert recipe["context"]["version"] == wanted["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == wanted["version"]


# ---------------------------------------------------------------- Slurm's script, by submitit's local executor

TRAIN = (
    "dqn --env CartPole-v1 --threads 1 --eval-episodes 0 --no-tensorboard --algo.networks.units 4 --steps 1500 "
    "--schedule.log-every 50 --run"
)


def test_a_job_that_is_preempted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitit = pytest.importorskip("submitit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(DEPLOY))
    monkeypatch.setenv("PYTHONPATH", f"{DEPLOY}:{Path(reverie.__file__).parents[1]}")
    from slurm import Training  # of deploy/

    executor = submitit.LocalExecutor("logs")
    executor.update_parameters(timeout_min=5)
    words = f"{TRAIN} {tmp_path / 'run'}"
    job = executor.submit(Training(words.split()))
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not read_metrics(metrics):
        assert job.state == "RUNNING", job.stderr()
        time.sleep(0.1)
    listed = subprocess.run(["ps", "-axwwo", "pid=,ppid=,command="], capture_output=True, text=True, check=True).stdout
    (child,) = [line.split() for line in listed.splitlines() if f"-m reverie train {words}" in line]
    for pid in child[:2]:  # Slurm signals each process of the job
        os.kill(int(pid), signal.SIGUSR2)
    assert job.result() == 0
    assert read_metrics(metrics)[-1]["step"] == 1500
    assert re.search(r"continuing \S+ from env step \d+", job.stdout())
    assert "SIGTERM: finishing this iteration" in job.stderr()


def test_each_job_of_an_array_trains_a_seed_of_one_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    submitit = pytest.importorskip("submitit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(DEPLOY))
    import slurm

    here = functools.partial(submitit.AutoExecutor, "logs", cluster="debug")  # its jobs run in this process
    monkeypatch.setattr(submitit, "AutoExecutor", lambda folder, cluster, **more: here())
    monkeypatch.setattr(slurm, "Training", lambda words: functools.partial(main, ["train", *words]))
    words = [*TRAIN.replace("1500", "40").replace("--eval-episodes 0", "--eval-episodes 1").split(), "array"]
    assert slurm.main(["--local", "--seeds", "2", "--", *words, "--seed=3"]) == 0
    assert [path.name for path in sorted(Path("array").iterdir())] == ["seed-3", "seed-4"]
    assert read_saved_config(Path("array/seed-4")).experiment["seed"] == 4
    assert len(reverie.compare("array").settings[0].scores) == 2
    for wrong, said in (
        (["--seeds", "x", "--", *words], "--seeds = x: expected a number"),
        (["--", "dqn"], "no --run"),
    ):
        with pytest.raises(SystemExit):
            slurm.main(["--local", *wrong])
        assert said in capsys.readouterr().err
