"""Runs of many configurations, and commands that write, killed at random moments in forks (``again.py``)."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COMMON = (
    "--threads 1 --seed 3 --steps 240 --schedule.save-every 60 --schedule.log-every 40 --schedule.eval-every 120 "
    "--schedule.report-every 0 --eval-episodes 1 --no-console --no-tensorboard"
)
SMALL = "--learning-starts 40 --replay-ratio 0.1 --algo.batch-size 4 --algo.networks.units 8"
DISCRETE, CONTINUOUS = f"--env CartPole-v1 {SMALL}", f"--env Pendulum-v1 {SMALL}"
DATA = "--algo.batch-size 4 --algo.networks.units 8 --data DATA --env none --updates 60 --schedule.save-every 15"
MODEL = "--size nano --learning-starts 40 --replay-ratio 0.1 --algo.batch-size 4"
ROLLOUTS = "--env CartPole-v1 --envs 2 --algo.rollout 16 --algo.batch-size 16 --algo.networks.units 8"
CONFIGURATIONS = {
    "dreamer_v3": f"dreamer_v3 --env CartPole-v1 --envs 2 {MODEL} --algo.batch-length 16",
    "dreamer_v3 priorities": f"dreamer_v3 --env Pendulum-v1 {MODEL} --replay.fractions.priority 0.5",
    "r2dreamer": f"r2dreamer --env CartPole-v1 {MODEL} --algo.batch-length 8",
    "tdmpc2": f"tdmpc2 --env Pendulum-v1 {MODEL} --algo.num-samples 32 --algo.num-elites 4 --algo.num-policy-samples 3",
    "dqn": f"dqn {DISCRETE}",
    "dqn priorities": f"dqn {DISCRETE} --replay.fractions.priority 1.0",
    "dqn memory": f"dqn {DISCRETE} --algo.networks.memory gru(8) --algo.batch-length 8",
    "dqn async": f"dqn {DISCRETE} --envs 2 --env.vectorization async",
    "dqn hindsight": f"dqn --env reverie/BitFlip-v0 {SMALL} --replay.hindsight future",
    "c51": f"c51 {DISCRETE}",
    "qr_dqn": f"qr_dqn {DISCRETE}",
    "iqn": f"iqn {DISCRETE}",
    "discrete_sac": f"discrete_sac {DISCRETE}",
    "sac": f"sac {CONTINUOUS}",
    "ppo icm": f"ppo {ROLLOUTS} --algo.intrinsic-reward icm()",
    "sac mmap": f"sac {CONTINUOUS} --replay.storage mmap",
    "td3": f"td3 {CONTINUOUS} --envs 3",
    "tqc": f"tqc {CONTINUOUS}",
    "crossq": f"crossq {CONTINUOUS}",
    "ppo": f"ppo {ROLLOUTS}",
    "ppo memory": f"ppo {ROLLOUTS} --algo.networks.memory lstm(8) --algo.batch-length 8",
    "a2c": "a2c --env Pendulum-v1 --envs 4 --algo.rollout 10 --algo.networks.units 8",
    "bc": f"bc {DATA}",
    "iql": f"iql {DATA}",
    "cql": f"cql {DATA}",
    "mixed": f"sac {CONTINUOUS} --data DATA --experience mixed(0.5)",
}
"""Arguments of ``reverie train`` by name; DATA is a dataset of Pendulum-v1."""


REPEATED = ("push", "dream")
"""Commands that write again into a folder that has their files."""


class Server:
    """A process that runs the command line in forks of itself (``again.py``), for one thread at a time."""

    def __init__(self, library: Path | None = None) -> None:
        environment = {**os.environ, **({} if library is None else {"LD_PRELOAD": str(library)})}
        script = Path(__file__).with_name("again.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def call(
        self, arguments: list[str], out: Path, kill_after: float | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command; its exit code is negative if a signal has killed it, here after ``kill_after`` seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        asked = {"arguments": arguments, "environment": environment, "out": str(out), "kill_after": kill_after}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        code, seconds = self.process.stdout.readline().split()
        said = out.read_text(errors="replace")
        out.unlink()
        result = subprocess.CompletedProcess(arguments, int(code), stdout=said, stderr="")
        result.seconds = float(seconds)  # type: ignore[attr-defined]
        return result

    def close(self) -> None:
        """No more runs."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@contextmanager
def serving(library: Path | None = None) -> Iterator[Server]:
    """A server, to the end of the context."""
    server = Server(library)
    try:
        yield server
    finally:
        server.close()


def words(name: str, run: Path, data: Path) -> list[str]:
    """The command of a configuration."""
    return ["train", *CONFIGURATIONS[name].replace("DATA", str(data)).split(), *COMMON.split(), "--run", str(run)]


def kill_configuration(name: str, count: int, folder: Path, data: Path, fingerprint: Any) -> list[dict[str, Any]]:
    """Kill a configuration ``count`` times at random moments; resume each, and compare with an undisturbed run."""
    results, drawn = [], random.Random(name)
    with serving() as server:
        whole, out = folder / f"{name}-whole", folder / f"{name}.txt"
        undisturbed = server.call(words(name, whole, data), out)
        if undisturbed.returncode:
            return [{"configuration": name, "same": False, "said": undisturbed.stdout[-2000:]}]
        expected = fingerprint(whole)
        for number in range(count):
            run, after = folder / f"{name}-{number}", drawn.uniform(0.0, undisturbed.seconds)  # type: ignore[attr-defined]
            killed = server.call(words(name, run, data), out, after).returncode == -signal.SIGKILL
            resumed = server.call(words(name, run, data), out)
            same = resumed.returncode == 0 and fingerprint(run) == expected
            said = {} if same else {"said": resumed.stdout[-2000:]}
            results.append({"configuration": name, "after_s": round(after, 2), "killed": killed, "same": same, **said})
            shutil.rmtree(run, ignore_errors=True)
    return results


def kill_commands(run: Path, count: int, folder: Path) -> list[dict[str, Any]]:
    """Kill commands that write at random moments: what they write is there as a whole or not at all, and written again.

    ``run``: of DreamerV3. Its own files stay as they are.
    """
    commands = {
        "export": (["export", str(run), "--out", "OUT.pt2"], "OUT.pt2"),
        "dream": (["dream", "OUT", "--episodes", "1", "--horizon", "5"], "OUT"),
        "push": (["push", str(run), "OUT"], "OUT"),
        "extract": (["extract", str(run), "--out", "OUT.npz"], "OUT.npz"),
        "convert": (["data", "convert", str(run), "OUT.parquet"], "OUT.parquet"),
    }
    before, results = contents(run), []
    with serving() as server:
        for name, (arguments, target) in commands.items():
            drawn, out = random.Random(name), folder / f"{name}.txt"

            def call(place: str, after: float | None = None, *, given: list[str] = arguments, out: Path = out) -> Any:
                return server.call([word.replace("OUT", str(folder / place)) for word in given], out, after)

            if name == "dream":
                shutil.copytree(run, folder / f"{name}-whole")
            whole = call(f"{name}-whole")
            if whole.returncode:
                results.append({"command": name, "same": False, "said": whole.stdout[-2000:]})
                continue
            expected = sizes(folder / target.replace("OUT", f"{name}-whole"))
            for number in range(count // 10 if name == "export" else count):  # which takes minutes
                place, after = f"{name}-{number}", drawn.uniform(0.0, whole.seconds)
                path = folder / target.replace("OUT", place)
                if name == "dream":
                    shutil.copytree(run, path)
                call(place, after)
                complete = name in REPEATED or not path.exists() or sizes(path).keys() == expected.keys()
                again = call(place) if name in REPEATED or not path.exists() else None
                done = again is None or again.returncode == 0
                facts = {"command": name, "after_s": round(after, 2), "complete": complete, "done": done}
                facts["same"] = complete and done and sizes(path).keys() == expected.keys() and contents(run) == before
                results.append(facts if facts["same"] or again is None else {**facts, "said": again.stdout[-1500:]})
                shutil.rmtree(path, ignore_errors=True)
    return results


def sizes(path: Path) -> dict[str, int]:
    """The files of a file or folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return {file.relative_to(path).as_posix(): file.stat().st_size for file in files}


def contents(run: Path) -> dict[str, bytes]:
    """The files of a run but its locks."""
    files = (file for file in run.rglob("*") if file.is_file() and not file.name.endswith(".lock"))
    return {file.relative_to(run).as_posix(): file.read_bytes() for file in files}
