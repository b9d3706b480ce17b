"""Learners on a Ray cluster of nodes on this machine: a run that loses a learner and a node, and what is refused."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_learners_run import listening

from reverie.algos.dqn import DQNConfig
from reverie.cli import main
from reverie.cli.parsing import remove_flags
from reverie.core.documents import read_json
from reverie.distributed import ray_learners as on_ray
from reverie.experiment.config import ExperimentConfig
from reverie.run.checkpoint import Checkpoints
from reverie.run.manifest import checkpoint_step
from reverie.store.store import ReplayStore

DQN = ["dqn", "--env", "CartPole-v1"]
FLAGS = [
    *DQN, "--learners", "2", "--eval-episodes", "0", "--threads", "1", "--no-tensorboard", "--no-console",
    "--learning-starts", "40", "--algo.batch-size", "8", "--algo.networks.units", "8", "8", "--steps", "1000000",
    "--schedule.save-every", "500",
]  # fmt: skip


@pytest.fixture(scope="module")
def cluster():
    """A head that learners have no place on, and a node for each of two learners; it needs a token."""
    environment = pytest.MonkeyPatch()
    place = tempfile.mkdtemp(prefix="ray-")  # pytest's own are too long for Ray's sockets
    environment.setenv("RAY_TMPDIR", place)
    environment.setenv("RAY_AUTH_MODE", "token")
    environment.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    environment.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed: pip install 'reverie-rl[ray]'")
    found = utils.Cluster()
    try:
        found.add_node(num_cpus=0, include_dashboard=False, resources={"hall": 1})
        for _ in range(2):
            found.add_node(num_cpus=1, resources={"seat": 1})
        yield found
    finally:
        found.shutdown()
        environment.undo()
        shutil.rmtree(place, ignore_errors=True)


def wait(until, process=None, seconds=120):
    end = time.monotonic() + seconds
    while not (found := until()):
        assert time.monotonic() < end, "it did not happen"
        assert process is None or process.poll() is None, "the command has ended"
        time.sleep(0.2)
    return found


def learner(run: Path, rank: int) -> int:
    """Return the id of the process of a learner of the run; 0 if there is none."""
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_bytes().split(b"\0") if place.name.isdecimal() else []
            named = str(run).encode() in words and b"--cluster" not in words
            if named and f"RANK={rank}".encode() in (place / "environ").read_bytes().split(b"\0"):
                return int(place.name)
    return 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it finds the learners in /proc")
def test_a_run_outlives_a_learner_and_a_node_and_saves_at_a_signal(cluster, tmp_path):
    run, log = tmp_path / "run", tmp_path / "log"
    words = ["train", *FLAGS, "--run", str(run), "--cluster", f"ray:{cluster.address}", "--resources", "{seat: 1}"]
    with log.open("w") as out:
        command = subprocess.Popen([sys.executable, "-m", "reverie", *words], stdout=out, stderr=out)
    try:
        saved = Checkpoints(run / "checkpoints")
        wait(saved.paths, command)
        os.kill(learner(run, 1), signal.SIGKILL)
        wait(lambda: log.read_text().count("continuing") == 1, command)
        line = next(line for line in log.read_text().splitlines() if "was lost" in line)
        assert "learner 1 of 2" in line
        assert "(ended by SIGKILL): all restart from checkpoint step-" in line
        begun = line.rpartition("-")[2]
        assert f"continuing {run} from env step {int(begun):,}" in log.read_text()

        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        wait(lambda: log.read_text().count("was lost") == 2, command)
        cluster.add_node(num_cpus=1, resources={"seat": 1})
        wait(lambda: log.read_text().count("continuing") == 2, command)

        before = len(saved.paths())
        wait(lambda: len(saved.paths()) > before or checkpoint_step(saved.paths()[-1]) > int(begun) + 500, command)
        command.terminate()
        assert command.wait(60) == 128 + signal.SIGTERM
        assert "Continue with" in log.read_text()
        assert not learner(run, 0)
        assert not learner(run, 1)
    finally:
        command.kill()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it finds the learners in /proc")
def test_learners_of_one_machine_listen_on_loopback_alone(cluster, tmp_path):
    """Whoever reaches PyTorch's store can run code. The sockets of Ray's own processes are not looked at."""
    run, log, addresses = tmp_path / "run", tmp_path / "log", {}
    words = ["train", *FLAGS, "--run", str(run), "--cluster", f"ray:{cluster.address}", "--resources", "{seat: 1}"]
    with log.open("w") as out:
        command = subprocess.Popen([sys.executable, "-m", "reverie", *words], stdout=out, stderr=out)
    try:
        while not Checkpoints(run / "checkpoints").paths():
            assert command.poll() is None, log.read_text()
            for rank in range(2):
                if pid := learner(run, rank):
                    addresses.setdefault(rank, set()).update(listening(pid).values())
            time.sleep(0.05)
    finally:
        command.terminate()
        command.wait(60)
    assert addresses == {0: {"0100007F"}, 1: {"0100007F"}}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it finds the actors in /proc")
def test_a_run_outlives_actors_and_their_nodes(cluster, tmp_path):
    """One actor on each node; rows that were received are in the store, once."""
    run, log = tmp_path / "run", tmp_path / "log"
    words = [
        "train",
        *FLAGS,
        "--learners",
        "1",
        "--actors",
        "2",
        "--run",
        str(run),
        "--cluster",
        f"ray:{cluster.address}",
    ]
    words += [
        "--resources",
        "{CPU: 0, hall: 1}",
        "--actor-resources",
        "{CPU: 0, seat: 1}",
        "--placement-strategy",
        "SPREAD",
    ]
    with log.open("w") as out:
        command = subprocess.Popen([sys.executable, "-m", "reverie", *words], stdout=out, stderr=out)
    try:
        saved = Checkpoints(run / "checkpoints")
        wait(saved.paths, command)
        os.kill(wait_until_both_act(command)[0], signal.SIGKILL)
        wait(lambda: log.read_text().count("is restarted, with new episodes: its process on") == 1, command)
        wait_until_both_act(command)

        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        wait(lambda: log.read_text().count("is restarted, with") >= 2, command)
        before = checkpoint_step(saved.paths()[-1])
        wait(lambda: checkpoint_step(saved.paths()[-1]) > before + 500, command)  # the other goes on alone
        cluster.add_node(num_cpus=1, resources={"seat": 1})
        wait(lambda: len(processes("ray::RayActor")) == 2, command)

        command.terminate()
        assert command.wait(60) == 128 + signal.SIGTERM
        store = ReplayStore(run / "replay")
        parts = [part for history in store.histories() for part in history]
        rows = {
            key: np.concatenate([chunk.rows[key].ravel() for part in parts for chunk in store.read(*part)])
            for key in ("is_last", "is_terminal")
        }
        cut = int((rows["is_last"] & ~rows["is_terminal"]).sum())  # these were counted before they became the last
        assert int((~rows["is_last"]).sum()) + cut == checkpoint_step(saved.paths()[-1])
        assert cut <= log.read_text().count("is restarted, with")
        assert "was lost" not in log.read_text()
        assert "Continue with" in log.read_text()
    finally:
        command.kill()


def wait_until_both_act(command) -> list[int]:
    """Return the ids of two Ray actors that have begun: one that is lost before is placed anew, without a message."""
    begun = set()

    def both():
        begun.update(processes("ray::RayActor.next"))  # its other calls change the title, too
        acting = [pid for pid in processes("ray::RayActor") if pid in begun]
        return acting if len(acting) == 2 else None

    return wait(both, command)


def processes(title: str) -> list[int]:
    """Return the ids of the processes that have this title, as Ray gives its workers."""
    found = []
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if place.name.isdecimal() and (place / "cmdline").read_bytes().startswith(title.encode()):
                found.append(int(place.name))
    return found


def test_a_search_has_its_trials_on_the_nodes(cluster, tmp_path, capfd):
    space, run = tmp_path / "space.yaml", tmp_path / "search"
    space.write_text("algo.batch_size: {choices: [4]}")
    words = ["tune", *FLAGS, "--learners", "1", "--steps", "90", "--eval-episodes", "1", "--space", str(space)]
    asked = ["--trials", "1", "--run", str(run), "--cluster", f"ray:{cluster.address}"]
    assert main([*words, *asked, "--resources", "{lamp: 1}"]) == 1
    assert "1 learner with CPU 1, lamp 1 each" in capfd.readouterr().err
    assert main([*words, *asked, "--resources", "{seat: 1}"]) == 0
    assert "1 trial: 1 finished" in capfd.readouterr().out
    assert "finished at env step" in (run / "trial-0.log").read_text()


def test_a_seed_goes_on_on_another_node_and_all_save_at_a_signal(cluster, tmp_path):
    run, log = tmp_path / "seeds", tmp_path / "log"
    words = ["train", *FLAGS, "--learners", "1", "--seeds", "2", "--run", str(run), "--resources", "{seat: 1}"]
    with log.open("w") as out:
        command = [sys.executable, "-m", "reverie", *words, "--cluster", f"ray:{cluster.address}"]
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        for seed in (0, 1):
            wait(Checkpoints(run / f"seed-{seed}" / "checkpoints").paths, process)
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        wait(lambda: "it starts on another node" in log.read_text(), process)
        cluster.add_node(num_cpus=1, resources={"seat": 1})
        name = log.read_text().partition(": its node")[0].split()[-1]
        wait(lambda: "continuing" in (run / f"{name}.log").read_text(), process)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
        assert [entry["state"] for entry in read_json(run / "aggregate.json")["runs"]] == ["stopped"] * 2
    finally:
        process.kill()


def test_missing_resources_are_named(cluster, monkeypatch, capfd):
    monkeypatch.setattr(on_ray, "PLACEMENT_SECONDS", 2.0)
    asked = ["--cluster", f"ray:{cluster.address}", "--learners", "3", "--resources", "{seat: 1, lamp: 2}"]
    assert main(["train", *DQN, "--algo.batch-size", "9", "--envs", "3", *asked]) == 1
    said = capfd.readouterr().err
    assert "3 learners with CPU 1, seat 1, lamp 2 each. It has CPU 2, seat 2, lamp 0" in said
    assert main(["train", *DQN, *asked[:2], "--actors", "3", "--resources", "{seat: 1}"]) == 1
    assert "1 learner with CPU 1, seat 1 and 3 actors with CPU 1 each. It has CPU 2" in capfd.readouterr().err


def test_a_cluster_that_is_not_there_is_named(cluster, capfd):
    assert main(["train", *DQN, "--cluster", "ray:127.0.0.1:9"]) == 1
    assert "No connection to the Ray cluster at 127.0.0.1:9" in capfd.readouterr().err


def test_all_save_if_the_head_is_lost(monkeypatch, capfd):
    """Ray ends its processes without a word to them 60 seconds after the head has ended."""
    monkeypatch.setattr(on_ray, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(on_ray, "HEAD_POLL", 0.05)
    context, got = SimpleNamespace(gcs_address="127.0.0.1:9"), []
    with on_ray.watch_head(SimpleNamespace(get_runtime_context=lambda: context), got):
        wait(lambda: got, seconds=60)
    assert got == [signal.SIGTERM]
    assert "The head of the Ray cluster at 127.0.0.1:9 has not answered" in capfd.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as head:
        context.gcs_address = f"127.0.0.1:{head.getsockname()[1]}"
        with on_ray.watch_head(SimpleNamespace(get_runtime_context=lambda: context), got):
            for _ in range(3):
                head.accept()
    assert len(got) == 1


def test_a_failure_of_ray_is_no_traceback(cluster, monkeypatch, capfd):
    """As ``OutOfMemoryError``, which is neither an actor's death nor an error of a task."""

    def kill(*_):
        from ray.exceptions import OutOfMemoryError

        raise OutOfMemoryError("the node has 0.1 GB left")

    monkeypatch.setattr(on_ray, "wait_until_placed", kill)
    assert main(["train", *DQN, "--cluster", f"ray:{cluster.address}", "--resources", "{seat: 1}"]) == 1
    assert "OutOfMemoryError: the node has 0.1 GB left" in capfd.readouterr().err


def test_without_ray_the_extra_is_named(monkeypatch, capfd):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # put back afterwards
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["train", *DQN, "--cluster", "ray"]) == 1
    assert "pip install 'reverie-rl[ray]'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cluster", "slurm"], "expected ray, or ray:HOST:PORT"),
        (["--resources", "{CPU: 1}"], "--resources without --cluster ray"),
    ],
)
def test_what_cannot_be_placed_is_refused(words, message, capfd):
    assert main(["train", *DQN, *words]) == 2
    assert message in capfd.readouterr().err


def test_a_learner_needs_its_threads_and_a_gpu_if_there_are_enough():
    config = ExperimentConfig(algo=DQNConfig(), learners=2, threads=3)
    assert on_ray.learner_resources(config, {}, 2) == {"CPU": 3, "GPU": 1}
    assert on_ray.learner_resources(config, {"CPU": 1, "seat": 1}, 1) == {"CPU": 1, "GPU": 0, "seat": 1}
    assert on_ray.learner_resources(config.merge({"device": "cuda"}), {}, 0)["GPU"] == 1


def test_what_is_asked_of_ray_is_not_asked_of_the_learners():
    words = ["dqn", "--cluster=ray", "--envs", "2", "--run", "a", "--algo.networks.units", "8", "8", "--resume", "b"]
    assert remove_flags(words, {"cluster", "run", "resume"}) == [
        "dqn",
        "--envs",
        "2",
        "--algo.networks.units",
        "8",
        "8",
    ]
