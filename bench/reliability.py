#!/usr/bin/env python3
"""Whether a run can be lost: it is killed, its files are damaged, its disk is full; then it is resumed.

    python bench/reliability.py [--parts calls files] [--stride 1] [--each 12] [--damaged 62] [--jobs 2]

A short run on CartPole with the smallest DreamerV3 that saves every 50 env steps. Each part compares with a run that
nobody disturbed, by a SHA-256 over the weights, the optimizer, the latents and every row of the replay.

kills   SIGKILL at random moments; each is resumed once and must end as the undisturbed run, bit for bit.
calls   SIGKILL at each system call with which a checkpoint or a chunk or the manifest of the store is written (every
        `--stride`-th of them), half-way through it if it is a write (`faults/faults.c`); resumed as above. Here and
        below, runs are forks of a process that has imported everything (`faults/again.py`), since they are so many.
files   a bit flipped in, half cut off from, or the whole of each file of a finished run's newest checkpoint and of its
        store; the run is resumed for more steps. It must go on, and say which file or end as if nothing had been.
full    the disk is full for some seconds in the middle of the run, and while it saves.
configurations  as kills, for each of the configurations in `faults/kills.py`, up to four times for each run.
commands  SIGKILL while `export`, `dream`, `push`, `extract` and `data convert` write: what they write is there as a
        whole or not at all, the run is untouched, and the command can be repeated.
formats a bit, a block or the end of files of every format of datasets is damaged, at random: `data validate` reads the
        rows or says in a sentence why not.
agents  the same for the files of a run, which `info` and `eval` read.

The counts are written after each case: `stops` are cases that ended by SIGKILL before their end.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine, write

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from damage import damage_agents, damage_formats
from kills import Servers, kill_commands, kill_configurations

from reverie.run.checkpoint import Checkpoints, read_checkpoint
from reverie.store.store import ReplayStore

FAULTS = Path(__file__).parent / "faults" / "faults.c"
SAVE_EVERY = 50
SETTINGS = [
    *("--env", "CartPole-v1", "--size", "nano", "--threads", "1", "--envs", "2", "--seed", "3"),
    *("--learning-starts", "64", "--replay-ratio", "0.1", "--algo.batch-size", "4", "--algo.batch-length", "16"),
    *("--schedule.save-every", str(SAVE_EVERY), "--schedule.eval-every", "150", "--schedule.report-every", "0"),
    *("--schedule.log-every", "25", "--eval-episodes", "1", "--no-console", "--no-tensorboard"),
]
STEPS = 400
Outcome = dict[str, Any]
Train = Callable[[Path], subprocess.CompletedProcess[str]]
Part = tuple[Sequence[Any], Callable[[Any], Outcome | list[Outcome]]]
"""Cases, and what tries one of them, or some."""


def command(run: Path, steps: int = STEPS) -> list[str]:
    """A run from its start, or from where it is."""
    return [sys.executable, "-m", "reverie", "train", "dreamer_v3", *SETTINGS, "--steps", str(steps), "--run", str(run)]


def train(run: Path, steps: int = STEPS, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run(command(run, steps), capture_output=True, text=True, env={**os.environ, **environment})


def fingerprint(run: Path) -> str:
    """SHA-256 over everything that a finished run has learned and lived."""
    newest = Checkpoints(run / "checkpoints").latest()
    assert newest is not None, f"{run} has no checkpoint"
    digest = hashlib.sha256()
    for name, value in sorted(flat(read_checkpoint(newest, ["algo"])["algo"])):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode() + value.contiguous().numpy().tobytes())
    for file in sorted((newest / "replay").rglob("*.npy")):
        digest.update(file.name.encode() + file.read_bytes())
    store = ReplayStore(run / "replay")
    if not store.segments:  # rollouts and recorded rows are not stored
        return digest.hexdigest()
    chunks = [chunk for part in store.ancestor_parts(store.segments[-1].name) for chunk in store.read(*part)]
    for name in sorted(chunks[0].rows):
        digest.update(name.encode())
        for chunk in chunks:
            assert not chunk.damaged, chunk.damaged
            digest.update(np.ascontiguousarray(np.moveaxis(chunk.rows[name], 1, 0)).tobytes())
    return digest.hexdigest()


def flat(value: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    """Tensors by their paths."""
    if hasattr(value, "numpy"):
        yield name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name}/{key}")


def kill_at_random(folder: Path, count: int, expected: str, seconds: float) -> Part:
    """Part `kills`."""

    def one(number: int) -> Outcome:
        run, moment = folder / f"kill-{number}", random.Random(number).uniform(0.0, seconds)
        with subprocess.Popen(command(run), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(moment)
            process.send_signal(signal.SIGKILL)
        killed = process.returncode == -signal.SIGKILL
        return ended(run, expected, {"after_s": round(moment, 2), "killed": killed})

    return range(count), one


def kill_at_calls(folder: Path, stride: int, expected: str, servers: Servers) -> Part:
    """Part `calls`; ``servers`` have the library that injects faults."""
    counted, whole = folder / "calls.txt", folder / "counted"
    train(whole, LD_PRELOAD=str(compiled(folder)), FAULT_BELOW=str(whole), FAULT_COUNT=str(counted))
    total = int(counted.read_text().split()[0])

    def again(run: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return servers.call(command(run)[3:], run.with_suffix(".txt"), environment)

    def one(number: int) -> Outcome:
        run = folder / f"call-{number}"
        fault = {"FAULT_BELOW": str(run), "FAULT_AT": str(number), "FAULT_HALF": "1"}
        killed = again(run, **fault).returncode == -signal.SIGKILL
        return ended(run, expected, {"call": number, "killed": killed}, again)

    return range(1, total + 1, stride), one


def ended(run: Path, expected: str, facts: Outcome, resume: Train | None = None) -> Outcome:
    """Resume, and compare with the undisturbed run."""
    resumed = (resume or train)(run)
    facts["same"] = resumed.returncode == 0 and fingerprint(run) == expected
    if not facts["same"]:
        facts["said"] = (resumed.stdout + resumed.stderr)[-2000:]
    shutil.rmtree(run)
    return facts


def damage_files(folder: Path, whole: Path, servers: Servers) -> Part:
    """Part `files`."""
    newest = Checkpoints(whole / "checkpoints").latest()
    assert newest is not None
    files = [path for place in (newest, whole / "replay") for path in sorted(place.rglob("*")) if path.is_file()]
    cases = [(file.relative_to(whole), how) for file in files for how in DAMAGES if file.stat().st_size]
    shutil.copytree(whole, folder / "more")
    assert train(folder / "more", STEPS + 50).returncode == 0
    expected = fingerprint(folder / "more")

    def one(case: tuple[Path, str]) -> Outcome:
        file, how = case
        run = folder / f"damage-{abs(hash(case))}"
        shutil.copytree(whole, run)
        DAMAGES[how](run / file)
        resumed = servers.call(command(run, STEPS + 50)[3:], run.with_suffix(".txt"))
        said = resumed.stdout
        facts: Outcome = {"file": file.as_posix(), "how": how, "goes_on": resumed.returncode == 0}
        inside = "/".join(file.parts[2 if file.parts[0] == "checkpoints" else 1 :])
        facts["named"] = inside in said  # such as collector/environments.zip, 0/reward/c.1.0, manifest.json
        # A file that the library never reads, such as Zarr's description of a column for other programs, does no harm.
        facts["same"] = facts["goes_on"] and (facts["named"] or fingerprint(run) == expected)
        if not facts["same"]:
            facts["said"] = said[-1500:]
        shutil.rmtree(run)
        return facts

    return cases, one


def flip(path: Path) -> None:
    """One bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    """The second half is gone."""
    os.truncate(path, path.stat().st_size // 2)


DAMAGES: dict[str, Callable[[Path], None]] = {"flipped": flip, "cut": cut, "deleted": Path.unlink}


def fill_disk(folder: Path, expected: str, seconds: float) -> Part:
    """Part `full`: a full disk is a pause or an error; afterwards the run ends as if nothing had been."""
    library = compiled(folder)

    def one(share: float) -> Outcome:
        run, flag = folder / f"full-{share}", folder / f"full-{share}.flag"
        fault = {"LD_PRELOAD": str(library), "FAULT_BELOW": str(run), "FAULT_FULL": str(flag)}
        fault["FAULT_COUNT"] = str(folder / f"full-{share}.txt")
        process = subprocess.Popen(
            command(run), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **fault}
        )
        time.sleep(seconds * share)
        flag.touch()
        time.sleep(3.0)
        flag.unlink()
        said = process.communicate()[0]
        refused = int(Path(fault["FAULT_COUNT"]).read_text().split()[1])
        clear = refused > 0 and "No space left" in said
        facts = {"at": share, "refused": refused, "ended_by_itself": process.returncode == 0, "clear": clear}
        result = ended(run, expected, facts)
        return result if clear else {**result, "same": False, "said": said[-2000:]}

    return (0.5, 0.65, 0.8), one


def collected(folder: Path) -> Path:
    """A run of SAC on Pendulum-v1, for algorithms that learn from datasets."""
    if (folder / "data").exists():
        return folder / "data"
    collect = "train sac --env Pendulum-v1 --steps 400 --replay-ratio 0 --eval-episodes 0 --no-console --no-tensorboard"
    subprocess.run([sys.executable, "-m", "reverie", *collect.split(), "--run", str(folder / "data")], check=True)
    return folder / "data"


def compiled(folder: Path) -> Path:
    """The library that injects faults."""
    library = folder / "faults.so"
    if not library.exists():
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", str(FAULTS), "-o", str(library), "-ldl"], check=True)
    return library


def each(one: Callable[[Any], Outcome | list[Outcome]], cases: Sequence[Any], jobs: int) -> Iterator[Outcome]:
    """``one`` of every case, some at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        for outcomes in pool.map(one, cases):
            yield from outcomes if isinstance(outcomes, list) else [outcomes]


def count(row: Outcome, outcome: Outcome) -> None:
    """One more case of a part."""
    row["cases"] += 1
    row["good"] += outcome["same"]
    row["stops"] += outcome.get("killed", False)
    if "of" in outcome:  # a configuration, a command or a format
        row["each"][outcome["of"]] = row["each"].get(outcome["of"], 0) + outcome.get("killed", True)
    if not outcome["same"]:
        row["failed"].append(outcome)
        print(json.dumps(outcome, indent=1))
    print("." if outcome["same"] else "F", end="", flush=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", help="default: all")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--each", type=int, default=12, help="runs of a configuration, or stops of a command")
    parser.add_argument("--damaged", type=int, default=62, help="damaged files of a format, or runs")
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args()
    former = json.loads(given.out.read_text())["rows"] if given.out.exists() else []
    results: dict[str, Outcome] = {row["part"]: row for row in former}
    with tempfile.TemporaryDirectory(prefix="reliability-") as name, contextlib.ExitStack() as stack:
        folder, measured = Path(name), machine()
        whole = folder / "whole"
        started = time.perf_counter()
        reference = train(whole)
        seconds = time.perf_counter() - started
        assert reference.returncode == 0, reference.stdout + reference.stderr
        expected = fingerprint(whole)
        print(f"undisturbed: {seconds:.1f} s, {expected[:16]}")

        def servers(library: Path | None = None) -> Servers:
            return stack.enter_context(contextlib.closing(Servers(given.jobs, library)))

        def place(part: str) -> Path:
            (folder / part).mkdir()
            return folder / part

        parts: dict[str, Callable[[], Part]] = {
            "kills": lambda: kill_at_random(folder, given.kills, expected, seconds),
            "calls": lambda: kill_at_calls(folder, given.stride, expected, servers(compiled(folder))),
            "files": lambda: damage_files(folder, whole, servers()),
            "full": lambda: fill_disk(folder, expected, seconds),
            "configurations": lambda: kill_configurations(
                given.each, place("configurations"), collected(folder), fingerprint, servers()
            ),
            "commands": lambda: kill_commands(whole, collected(folder), given.each, place("commands"), servers()),
            "formats": lambda: damage_formats(given.damaged, place("formats"), servers()),
            "agents": lambda: damage_agents(whole, given.damaged, place("agents"), servers()),
        }
        for part in given.parts or parts:
            row = results[part] = {"part": part, "cases": 0, "good": 0, "stops": 0, "each": {}, "failed": []}
            cases, one = parts[part]()
            for outcome in each(one, cases, given.jobs):
                count(row, outcome)
                write(given.out, measured, list(results.values()))
            print(f"\n{part}: {row['good']} of {row['cases']}, {row['stops']} of them stopped")


if __name__ == "__main__":
    main()
