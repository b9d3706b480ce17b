"""A run of two learners from outside: its checkpoints, its continuation, and another number of learners."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from reverie.algos.dqn import DQNConfig
from reverie.algos.sac import SACConfig
from reverie.api import train_config
from reverie.cli import main
from reverie.core.bounds import PiecewiseLinear
from reverie.core.errors import ConfigError, UntrustedError
from reverie.core.seeding import derived_seeds
from reverie.core.signals import SIGNALS
from reverie.distributed import learners
from reverie.distributed.launch import check_divisible, log_rules, open_store, scaled_hyperparameters
from reverie.distributed.learners import ReplayPart
from reverie.experiment.config import ExperimentConfig
from reverie.replay.persistent import iter_every_nth_episode
from reverie.run.checkpoint import Checkpoints
from reverie.run.folder import read_saved_config
from reverie.run.signal_handling import handle_signals
from reverie.store.store import ReplayStore

pytestmark = pytest.mark.usefixtures("warm")

FLAGS = [
    "--env", "CartPole-v1", "--learners", "2", "--eval-episodes", "0", "--threads", "1", "--no-tensorboard",
    "--no-console", "--learning-starts", "40", "--algo.batch-size", "8", "--algo.networks.units", "8", "8",
    "--schedule.save-every", "100", "--schedule.log-every", "50",
]  # fmt: skip


def launch(*words, **environ):
    """Run the command line in this process, which starts learners and then handles signals as before."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    with mock.patch.dict(os.environ, environ):
        assert main(list(words)) == 0
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def run_and_addresses(tmp_path_factory) -> tuple[Path, set[str]]:
    """A finished run of two learners, with a checkpoint on the way; the addresses that its processes listened on."""
    path, before, sockets, ended = (
        tmp_path_factory.mktemp("runs") / "two",
        listening(os.getpid()),
        {},
        threading.Event(),
    )

    def watch():
        while not ended.wait(0.2):
            sockets.update(listening(os.getpid()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        launch("train", "dqn", *FLAGS, "--steps", "200", "--run", str(path))
    finally:
        ended.set()
        watcher.join()
    return path, {address for socket, address in sockets.items() if socket not in before}


@pytest.fixture(scope="module")
def run(run_and_addresses) -> Path:
    return run_and_addresses[0]


def listening(pid: int) -> dict[str, str]:
    """The sockets on which a process and its children listen, with their addresses as Linux writes them."""
    children = " ".join(file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children")).split()
    inodes = set()
    for link in (link for each in (pid, *children) for link in Path(f"/proc/{each}/fd").glob("*")):
        with contextlib.suppress(OSError):  # closed meanwhile
            inodes.add(os.readlink(link))
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {row[9]: row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's tables of sockets")
def test_learners_of_one_machine_listen_on_loopback_alone(run_and_addresses):
    assert run_and_addresses[1] == {"0100007F"}


def test_learners_that_meet_by_environment_variables_listen_on_the_named_address_alone(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    names = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": str(port)}
    for name, value in {**names, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}.items():
        monkeypatch.setenv(name, value)
    for unspecified in ("0.0.0.0", "::"):
        monkeypatch.setenv("MASTER_ADDR", unspecified)
        with pytest.raises(ConfigError, match="exposes them to every network"):
            open_store()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    store, *_ = open_store()
    store.set("key", "value")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)


def test_no_thread_outlives_the_process_group(tmp_path):
    """A thread that still frees a tensor when Python ends aborts a finished run, with exit code 134."""
    code = f"""
import pathlib, torch, torch.distributed as dist
from reverie.distributed.process_group import ProcessGroup
ProcessGroup.join("cpu", dist.FileStore({str(tmp_path / "store")!r}, 1), 0, 1)
import torch.distributed.nn.functional  # as PyTorch's optimizers do
dist.destroy_process_group()
print(*(name.read_text() for name in pathlib.Path("/proc/self/task").glob("*/comm")))
"""
    assert "gloo" not in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_a_resumed_run_of_two_learners_goes_on_bit_for_bit(run, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(run, again)
    _, late = Checkpoints(run / "checkpoints").paths()
    shutil.rmtree(again / "checkpoints" / late.name)
    launch("train", "--resume", str(again))
    for part in ("", "ranks/1"):
        one, two = (load_file(path / "checkpoints" / late.name / part / "tensors.safetensors") for path in (run, again))
        assert one.keys() == two.keys()
        assert not [name for name in one if not torch.equal(one[name], two[name])]
    assert "random/cpu" in one  # of the second learner
    mine, its = (load_file(late / part / "tensors.safetensors")["random/cpu"] for part in ("", "ranks/1"))
    assert not torch.equal(mine, its)


def test_another_number_of_learners_shares_the_rows_and_says_so(run, tmp_path, said):
    alone = tmp_path / "alone"
    shutil.copytree(run, alone)
    config = ExperimentConfig(algo=DQNConfig()).merge(read_saved_config(alone).experiment)
    train_config(config.merge({"learners": 1, "steps": 210}), run=alone)
    assert any("saved with 2 learners and now has 1 learner" in line for line in said)
    count = ReplayStore(alone / "replay").segments[-1].rows
    assert 95 <= count <= 120  # of each of two environments: of both learners, without the last episode's end


def test_a_store_that_a_checkpoint_names_elsewhere_is_not_contacted(run, monkeypatch):
    named = {"replay": {"lanes": [{"place": "http://localhost:9/rows/rank-0"}]}}
    monkeypatch.setattr("reverie.distributed.learners.read_checkpoint", lambda *_, **__: named)
    monkeypatch.setattr("reverie.distributed.learners.ReplayStore", lambda location: pytest.fail(f"opened {location}"))
    team = mock.Mock(before=2, count=1, rank=0, loaded=run)
    with pytest.raises(UntrustedError, match="names 'http://localhost:9/rows'"):
        ReplayPart(team, mock.Mock(), run).load_state_dict({})


@contextlib.contextmanager
def printed_to(path):
    """What this process and its children print goes to a file."""
    before = {number: os.dup(number) for number in (1, 2)}
    with path.open("w") as file:
        for number in before:
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        for number, copy in before.items():
            os.dup2(copy, number)
            os.close(copy)
        print(path.read_text())


@pytest.fixture(
    scope="module", params=[pytest.param(1, marks=pytest.mark.nightly), 2], ids=("a player", "an actor each")
)
def acted(request, tmp_path_factory) -> Path:
    """A finished run of two learners and one actor for both, or one for each, of which the second is lost once."""
    path = tmp_path_factory.mktemp("runs") / "acted"
    flags = [*FLAGS, "--actors", str(request.param), "--algo.normalize-obs", "running", "--steps", "200"]
    flags += ["--algo.reward-scale", "None"]
    flags += ["--env", "failing_env:Mortal-v0"] if request.param == 2 else []
    names = {"MORTAL": f"{path}-mark", "PYTHONPATH": os.pathsep.join(sys.path)}
    with printed_to(Path(f"{path}-said")):
        launch("train", "dqn", *flags, "--run", str(path), **names)
    return path


def test_two_learners_learn_from_the_rows_of_actors(acted):
    """Each from its own, which count once, and from the statistics of all."""
    rows = [flags_of(folder) for folder in (acted / "replay", acted / "ranks/1/replay")]
    assert min(len(first) for first, _ in rows) > 0
    assert sum(int((~last).sum()) for _, last in rows) == logged(acted)["counters/env_steps"]
    assert logged(acted)["train/staleness"] >= 0
    assert logged(acted)["replay/windows"] > 0  # of the learner that has fewer, whose actor may have begun late
    late = Checkpoints(acted / "checkpoints").paths()[-1]
    assert not [name for name in load_file(late / "ranks/1/tensors.safetensors") if "algo" in name]
    moments = [x for name, x in load_file(late / "tensors.safetensors").items() if name.endswith("moments")]
    assert [int(x[0, 0]) for x in moments] == [sum(len(first) for first, _ in rows)]


@pytest.mark.parametrize("acted", [2], indirect=True, ids=["an actor each"])
def test_one_learner_goes_on_with_the_rows_of_two_and_another_actor(acted, tmp_path, said):
    alone = tmp_path / "alone"
    shutil.copytree(acted, alone)
    before = sum(len(flags_of(folder)[0]) for folder in (acted / "replay", acted / "ranks/1/replay"))
    config = ExperimentConfig(algo=DQNConfig()).merge(read_saved_config(alone).experiment)
    steps = int(logged(acted)["counters/env_steps"]) + 10  # actors may have been ahead of its end
    made = train_config(config.merge({"learners": 1, "actors": 1, "steps": steps}), run=alone)
    assert made.env_steps >= steps
    assert any("saved with 2 learners and now has 1 learner" in line for line in said)
    assert before <= logged(alone)["replay/windows"] + 40 <= before + 150


@pytest.mark.parametrize("acted", [2], indirect=True, ids=["an actor each"])
def test_a_lost_actor_of_any_learner_is_told(acted):
    said = Path(f"{acted}-said").read_text()
    assert said.count("is restarted, with") == 1
    assert "learner 1: actor " in said


def flags_of(folder):
    """Whether each stored row is the first, and the last, of an episode."""
    store = ReplayStore(folder)
    chunks = [chunk.rows for each in store.histories() for part in each for chunk in store.read(*part)]
    return tuple(np.concatenate([rows[name].ravel() for rows in chunks]) for name in ("is_first", "is_last"))


def logged(run):
    """The last entry of the log."""
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


def test_episodes_are_dealt_to_learners_one_by_one():
    """Three episodes in two pieces, then a gap, whose rest belongs to no known episode, and one more."""
    first = [[1, 0, 0, 1, 0], [0, 1, 0], [0, 0, 1, 0]]
    pieces, row = [], 0
    for number, flags in enumerate(first):
        rows = {"is_first": np.array(flags, bool), "row": np.arange(row, row + len(flags))}
        pieces.append((number != 1, rows))
        row += len(flags)
    found = [
        [(broken, rows["row"].tolist()) for broken, rows in iter_every_nth_episode(pieces, rank, 2)]
        for rank in range(2)
    ]
    assert found[0] == [(True, [0, 1, 2]), (False, [6, 7]), (True, [8, 9])]
    assert found[1] == [(False, [3, 4]), (False, [5]), (False, [10, 11])]


def test_learners_draw_otherwise_but_begin_with_the_same_weights():
    one, two = (derived_seeds(3, 0, rank) for rank in range(2))
    same = {name for name in one if one[name] == two[name]}
    assert same == {"algo", "evaluation", "test", "confirmation"}
    assert one == derived_seeds(3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algo.batch_size": 9}, r"algo.batch_size = 9: .* such as 10"),
        ({"env.num": 3}, r"envs = 3: .* such as 4"),
    ],
)
def test_what_learners_cannot_divide_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        check_divisible(ExperimentConfig().merge(changes), 2, 2)


def test_more_learners_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr("reverie.core.hardware.num_gpus", lambda: 1)
    monkeypatch.setattr("reverie.distributed.launch.num_gpus", lambda: 1)
    with pytest.raises(ConfigError, match="which has 1 GPU"):
        check_divisible(ExperimentConfig(), 2, 2)


def test_several_learners_need_a_launcher(tmp_path):
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node 2"):
        train_config(ExperimentConfig(learners=2), run=tmp_path / "run")


def test_rllibs_rules_scale_batches_environments_and_learning_rates(said):
    config = ExperimentConfig(steps=1000, scale_hyperparameters=True, algo=DQNConfig(batch_size=32, lr=1e-3)).merge(
        {"env.num": 2}
    )
    found = config.merge(scaled_hyperparameters(config, 4))
    log_rules(config, 4)
    assert (found.algo.batch_size, found.env.num) == (128, 8)
    assert found.algo.lr == PiecewiseLinear(((0.0, 0.0), (100.0, 2e-3)))
    assert said == [
        "scale_hyperparameters for 4 learners: env.num: 2 -> 8; algo.batch_size: 32 -> 128; "
        "algo.lr: 0.001 -> [[0.0, 0.0], [100.0, 0.002]]"
    ]
    assert scaled_hyperparameters(config.merge({"scale_hyperparameters": False}), 4) == {}
    sac = ExperimentConfig(scale_hyperparameters=True, algo=SACConfig(temperature_lr=0.0, actor_lr=[[0, 1], [5, 2]]))
    found = sac.merge(scaled_hyperparameters(sac, 4)).algo
    assert (found.actor_lr.to_list(), found.temperature_lr) == ([[0.0, 2.0], [5.0, 4.0]], 0.0)


def test_a_signal_that_arrives_after_the_others_have_stopped_ends_no_learner(monkeypatch):
    """It waits for learner 0, which may still save."""
    team = mock.MagicMock()
    team.broadcast_object.side_effect = [("build", None), ("begin",), "result"]
    team.await_command.side_effect = lambda: signal.raise_signal(signal.SIGTERM)
    monkeypatch.setattr(learners.training, "train_loop", mock.Mock())
    monkeypatch.setattr(learners, "Follower", mock.Mock())
    with handle_signals(lambda *_: pytest.fail("the signal was not handled")):
        assert learners.run_follower(team, mock.MagicMock(), mock.Mock()) == "result"
