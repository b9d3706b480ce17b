"""Runs of many configurations, and commands that write, killed at random moments in forks (``again.py``)."""

from __future__ import annotations

import itertools
import json
import math
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
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

STOPS = 4
"""How often a run is killed before it may end."""
NEVER = {"kill_after": math.inf, "longest": math.inf}
END = "\x1e"
"""Around an exit code, as in again.py."""


class Server:
    """A process that runs the command line in forks of itself (``again.py``), for one thread at a time."""

    def __init__(self, library: Path | None = None) -> None:
        environment = {**os.environ, **({} if library is None else {"LD_PRELOAD": str(library)})}
        script = Path(__file__).with_name("again.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def call(
        self, commands: list[list[str]], out: Path, environment: dict[str, str], **kill: float
    ) -> subprocess.CompletedProcess[str]:
        """Run commands; the exit code is negative if a signal has killed them, as here with ``kill``, in seconds.

        ``kill_after``: seconds of the processor; ``longest``: seconds.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        asked = {"commands": commands, "environment": environment, "out": str(out), **NEVER, **kill}
        out.touch()  # for a run that is killed before it says anything
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        code, seconds = self.process.stdout.readline().split()
        said = out.read_text(errors="replace")
        out.unlink()
        result = subprocess.CompletedProcess(commands, int(code), stdout=said, stderr="")
        result.seconds = float(seconds)  # type: ignore[attr-defined]
        return result

    def close(self) -> None:
        """No more runs."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Servers:
    """Such processes, each for one of as many threads."""

    def __init__(self, count: int, library: Path | None = None) -> None:
        self.count = count
        self._all = [Server(library) for _ in range(count)]
        self._free: queue.Queue[Server] = queue.Queue()
        for server in self._all:
            self._free.put(server)

    def call(
        self, arguments: list[str], out: Path, environment: dict[str, str] | None = None, **kill: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, as a server does."""
        return self._call([arguments], out, environment or {}, **kill)

    def _call(self, *given: Any, **kill: float) -> subprocess.CompletedProcess[str]:
        server = self._free.get()
        try:
            return server.call(*given, **kill)
        finally:
            self._free.put(server)

    def call_each(self, commands: list[list[str]], out: Path, seconds: float) -> list[tuple[int, str]]:
        """Run commands, in one process until it dies or takes too long; return exit codes and outputs."""
        done: list[tuple[int, str]] = []
        while len(done) < len(commands):
            run = self._call(commands[len(done) :], out, {}, longest=seconds)
            *pairs, said = run.stdout.split(END)
            done += [(int(code), said) for said, code in zip(pairs[::2], pairs[1::2], strict=True)]
            done.append((run.returncode, said))
        return done

    def close(self) -> None:
        """No more runs."""
        for server in self._all:
            server.close()


def words(name: str, run: Path, data: Path) -> list[str]:
    """The command of a configuration."""
    return ["train", *CONFIGURATIONS[name].replace("DATA", str(data)).split(), *COMMON.split(), "--run", str(run)]


def kill_configurations(count: int, folder: Path, data: Path, fingerprint: Any, servers: Servers) -> tuple[Any, Any]:
    """Kill ``count`` runs of each configuration, some times each; compare them with one that nobody disturbed."""
    whole = {}

    def undisturbed(name: str) -> None:
        run = folder / f"{name}-whole"
        done = servers.call(words(name, run, data), folder / f"{name}.txt")
        assert done.returncode == 0, done.stdout
        whole[name] = fingerprint(run), done.seconds  # type: ignore[attr-defined]

    with ThreadPoolExecutor(servers.count) as pool:
        list(pool.map(undisturbed, CONFIGURATIONS))

    def one(case: tuple[int, str]) -> dict[str, Any]:
        number, name = case
        run, out, (expected, seconds) = folder / f"{name}-{number}", folder / f"{name}-{number}.txt", whole[name]
        drawn, codes = random.Random(f"{name} {number}"), []
        moments = [drawn.uniform(0.0, seconds / 2) for _ in range(STOPS)]
        for after in (*moments, math.inf):
            done = servers.call(words(name, run, data), out, kill_after=after)
            codes.append(done.returncode)
        same = {*codes} <= {0, -signal.SIGKILL} and codes[-1] == 0 and fingerprint(run) == expected
        said = {} if same else {"after_s": moments, "codes": codes, "said": done.stdout[-2000:]}
        shutil.rmtree(run, ignore_errors=True)
        return {"of": name, "killed": codes.count(-signal.SIGKILL), "same": same, **said}

    return list(itertools.product(range(count), CONFIGURATIONS)), one


COMMANDS = {
    "export": ("export DATA --out OUT/policy.pt2", "policy.pt2"),
    "dream": ("dream OUT --episodes 1 --horizon 5", ""),
    "push": ("push RUN OUT/agent", "agent"),
    "extract": ("extract RUN --out OUT/rows.npz", "rows.npz"),
    "convert": ("data convert RUN OUT/rows.parquet", "rows.parquet"),
}
"""What writes to the folder OUT, which for dream is a copy of the run; and what is there when all is written."""


def kill_commands(run: Path, data: Path, count: int, folder: Path, servers: Servers) -> tuple[Any, Any]:
    """Kill commands that write at random moments: what they write is there as a whole or not at all, and written again.

    ``run``: of DreamerV3; ``data``: of SAC, whose export takes seconds. Their own files stay as they are.
    """
    before, whole = [contents(run), contents(data)], {}

    def call(name: str, place: Path, after: float = math.inf) -> Any:
        places = {"RUN": run, "DATA": data, "OUT": place}
        words = re.sub("RUN|DATA|OUT", lambda found: str(places[found[0]]), COMMANDS[name][0]).split()
        return servers.call(words, place.with_suffix(".txt"), kill_after=after)

    def prepare(name: str, place: Path) -> None:
        shutil.copytree(run, place) if name == "dream" else place.mkdir()

    def is_taken_for_whole(name: str, place: Path) -> bool:
        target = place / COMMANDS[name][1]
        if name == "push":
            return servers.call(["info", str(target)], place.with_suffix(".txt")).returncode == 0
        return name != "dream" and target.exists()

    for name in COMMANDS:
        place = folder / f"{name}-whole"  # files contain it, so that others are as long
        prepare(name, place)
        done = call(name, place)
        assert done.returncode == 0, done.stdout
        whole[name] = sizes(place), done.seconds

    def one(case: tuple[int, str]) -> dict[str, Any]:
        number, name = case
        place, (expected, seconds) = folder / f"{name}-{number:05}", whole[name]
        prepare(name, place)
        after = random.Random(f"{name} {number}").uniform(0.0, seconds)
        killed = call(name, place, after).returncode == -signal.SIGKILL
        there, is_whole = sizes(place), is_taken_for_whole(name, place)
        complete = all(expected.get(file, size) == size for file, size in there.items())  # others are temporary
        complete &= not is_whole or expected.keys() <= there.keys()
        again = None if is_whole and name != "push" else call(name, place)
        done = (again is None or again.returncode == 0) and expected.items() <= sizes(place).items()
        untouched = [contents(run), contents(data)] == before
        facts = {"of": name, "after_s": round(after, 2), "killed": killed, "complete": complete, "done": done}
        facts["same"] = complete and done and untouched
        if not facts["same"]:
            facts |= {"there": there, "expected": expected, "said": "" if again is None else again.stdout[-1500:]}
        shutil.rmtree(place)
        return facts

    return list(itertools.product(range(count), COMMANDS)), one


def sizes(path: Path) -> dict[str, int]:
    """The files of a file or folder."""
    files = (
        [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and file.suffix != ".lock"]
    )
    return {file.relative_to(path).as_posix(): file.stat().st_size for file in files}


def contents(run: Path) -> dict[str, bytes]:
    """The files of a run but its locks."""
    files = (file for file in run.rglob("*") if file.is_file() and not file.name.endswith(".lock"))
    return {file.relative_to(run).as_posix(): file.read_bytes() for file in files}
