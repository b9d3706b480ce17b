#!/usr/bin/env python3
"""Everything that is measured on one GPU, unattended: whether it works, how fast it is, and how fast others are.

    python bench/gpu.py [--peers FOLDER] [--only PATTERN] [--minutes 9.5] [--device cpu --tiny]

Stages come in order of value, each with a time limit of its own. Each result is written at once, and a stage that has a
result is skipped: the same command continues where it was stopped. Tests and short runs use the GPU together. What is
timed warms up beside others, and is then measured alone, one stage after the other (`peers/gate.py`). `--peers` is a
folder with checkouts of `dreamerv3` and `r2dreamer`; without them, and without JAX, TorchRL or Gymnasium's
environments, their stages fail and say why. `--device cpu --tiny` rehearses all of it on a computer without a GPU.

Whoever has a GPU for a quarter of an hour calls it with
`--minutes 9.5 --only '^(?!update/(dreamerv3|torchrl|r2)|rate/compiled|atari100k)'`, and then with `--only atari100k`
and the minutes that are left. The next time, with the same `--out` and `--logs`, that run continues.

Settings V and I as in `update.py`. `update_s` is the median time of an update within windows of many, the device waited
for at their ends only; `update_synced_s` that of one update which is waited for.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_stages import FIRST, LEARN, PLANS, PRECISIONS
from peers.gate import GATE
from results import save

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
DREAMERS = (
    ("I", "12m", "bfloat16"), ("I", "12m", "float32"), ("V", "1m", "bfloat16"), ("I", "50m", "bfloat16"),
    ("I", "200m", "bfloat16"), ("V", "1m", "float32"),
)  # fmt: skip
TASKS = ("td3", "sac", "dqn", "dqn_atari", "ppo_atari", "ppo_continuous", "td3_loop", "sac_loop")
WORLDS = ("device", "host", "jax", "ant_ppo", "ant_td3", "ant_brax")
ALONE = (
    *(f"profile/{name}" for name in ("I-bfloat16", "I-float32", "td3")),
    *(f"kernels/{name}" for name in ("I-bfloat16", "td3", "sac", "dqn", "dqn_atari", "ppo_continuous")),
)
"""Profiles, and updates without single families of kernels."""
TOGETHER = 12
"""Stages that run or warm up at the same time."""


@dataclass
class Stage:
    """One child process, whose last line of standard output is a JSON object."""

    name: str
    words: Sequence[str]
    limit: float = 120.0
    """Seconds until it has warmed up, or has ended if it is not timed."""
    timed: bool = True
    """Whether it is measured alone."""
    env: Mapping[str, str] = field(default_factory=dict)
    measuring: float = 45.0
    """Seconds that its measurement may take."""


def common(args: argparse.Namespace) -> list[str]:
    """What all stages are told."""
    return ["--device", args.device, *(["--tiny"] if args.tiny else [])]


def own(args: argparse.Namespace, name: str, limit: float = 150, **more: Any) -> Stage:
    """A stage of `gpu_stages.py`."""
    words = [str(HERE / "gpu_stages.py"), name, "--logs", str(args.logs), "--limit", str(limit), *common(args)]
    return Stage(name, words, limit, **more)


def dreamer(
    args: argparse.Namespace, system: str, row: tuple[str, str, str], *more: str, name: str = "", **how: Any
) -> Stage:
    """Updates of a system in a setting, at a size, in a precision."""
    setting, size, precision = row
    words = [str(HERE / "peers" / f"update_{system}.py"), setting, os.devnull, *common(args), "--size", size]
    words += ["--precision", precision, "--seconds", "2", *more]
    return Stage(f"update/{name or system}/{'-'.join(row)}", words, **how)


def rates(args: argparse.Namespace, tasks: Sequence[str], *variants: str) -> Iterator[Stage]:
    """Updates or loops of reverie, and of a script in some variants."""
    for task in tasks:
        for variant in variants:
            script = "gpu_reverie" if variant == "reverie" else "gpu_script"
            seconds = "2" if task.endswith("_loop") else "1"
            words = [str(HERE / "peers" / f"{script}.py"), task, *common(args), "--seconds", seconds]
            words += [] if variant == "reverie" else ["--variant", variant]
            yield Stage(f"rate/{variant}/{task}", words, 200)


def stages(args: argparse.Namespace) -> Iterator[Stage]:
    """In order of value: whether it works, how fast it and others are. The last one takes what time is left."""
    yield own(args, "tests", 200, timed=False)
    for name in (*(f"precision/{name}" for name in PRECISIONS), "learners"):
        yield own(args, name, timed=False)
    yield from rates(args, TASKS, "reverie", "captured")
    yield dreamer(args, "reverie", DREAMERS[0])
    for name in ("atari", *(f"first/{name}" for name in FIRST)):
        yield own(args, name, measuring=90)
    for name in (*(f"worlds/{name}" for name in WORLDS), *ALONE, *(f"plan/{name}" for name in PLANS)):
        yield own(args, name, 200, measuring=60)
    yield from rates(args, ["ppo_atari_loop"], "reverie", "captured")
    yield own(args, "replay")
    yield dreamer(args, "reverie", DREAMERS[0], "--cudnn-benchmark", name="reverie_cudnn_benchmark")
    for row in DREAMERS[1:]:
        yield dreamer(args, "reverie", row)
    for name in LEARN:
        yield own(args, f"learn/{name}", timed=False)
    yield from others(args)
    yield own(args, "atari100k/pong", measuring=3600)


def others(args: argparse.Namespace) -> Iterator[Stage]:
    """DreamerV3 elsewhere, and compiled scripts."""
    jax = {"PYTHONPATH": f"{args.peers}/dreamerv3", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    for row in DREAMERS:
        yield dreamer(args, "dreamerv3", row, name="dreamerv3_jax", limit=200, env=jax)
    free = ["--variant", "free"]
    yield dreamer(args, "dreamerv3", DREAMERS[0], *free, name="dreamerv3_jax_free", limit=200, env=jax)
    for row in DREAMERS[:2]:
        yield dreamer(args, "torchrl", row, limit=300)
        env = {"PYTHONPATH": f"{args.peers}/r2dreamer"}
        yield dreamer(args, "r2dreamer", row, "--variant", "compiled", limit=300, env=env)
    yield from rates(args, ["td3", "sac", "dqn"], "compiled")


class Table:
    """Results in a file that always holds all there are."""

    def __init__(self, path: Path, machine: dict[str, Any]):
        self.path = path
        self.stages: dict[str, Any] = json.loads(path.read_text())["stages"] if path.exists() else {}
        self.machine = machine

    def add(self, name: str, result: dict[str, Any]) -> None:
        self.stages[name] = {"gpu": self.machine["gpu"], **result}
        save(self.path, {"machine": self.machine, "stages": self.stages})
        short = {k: v for k, v in result.items() if k not in ("top", "said", "output", "readings")}
        print(f"[{time.perf_counter() - STARTED:5.0f} s] {name} {json.dumps(short)}"[:600], flush=True)


STARTED = time.perf_counter()


class Running:
    """A stage that has been started."""

    def __init__(self, stage: Stage, logs: Path):
        self.stage, self.started = stage, time.perf_counter()
        self.out, self.err = (logs / f"{stage.name.replace('/', '.')}.{kind}" for kind in ("out", "err"))
        self.gate = logs / stage.name.replace("/", ".")
        for suffix in (".ready", ".go"):
            Path(f"{self.gate}{suffix}").unlink(missing_ok=True)
        env = os.environ | dict(stage.env) | ({GATE: str(self.gate)} if stage.timed else {})
        paths = [stage.env.get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
        with self.out.open("w") as out, self.err.open("w") as err:
            self.child = subprocess.Popen(
                [sys.executable, *stage.words], stdout=out, stderr=err, env=env, start_new_session=True
            )

    def is_ready(self) -> bool:
        return Path(f"{self.gate}.ready").exists()

    def has_ended(self) -> bool:
        return self.child.poll() is not None

    def stop(self) -> None:
        """End it, and what it has started and left behind."""
        with suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()

    def result(self) -> dict[str, Any]:
        """What it printed, or why there is nothing."""
        lines = self.out.read_text().strip().splitlines()
        seconds = round(time.perf_counter() - self.started, 1)
        said = bool(lines) and lines[-1].startswith("{")  # the last thing that a stage does; its end may take long
        if said and self.child.returncode in (0, -signal.SIGKILL):
            return {**json.loads(lines[-1]), "stage_s": seconds}
        output = (self.out.read_text()[-500:] + self.err.read_text()[-2500:]).strip()
        reason = (output.splitlines() or [""])[-1][:300]
        return {"error": reason, "status": self.child.returncode, "output": output, "stage_s": seconds}


def run_batch(batch: Sequence[Stage], table: Table, logs: Path, end: float, limit: float) -> None:
    """Run what is not timed and warm the rest up, all together; then measure one after the other."""
    running = [Running(stage, logs) for stage in batch]
    waiting, ready = list(running), list[Running]()
    while waiting and time.perf_counter() < end:
        for it in list(waiting):
            late = time.perf_counter() - it.started > min(it.stage.limit, limit)
            if late or it.has_ended():
                it.stop()
                table.add(it.stage.name, it.result() | ({"late": True} if late else {}))
            elif it.is_ready():
                ready.append(it)
            else:
                continue
            waiting.remove(it)
        time.sleep(0.05)
    for it in waiting:
        it.stop()  # there is no time left, and the next time it starts anew
    for it in sorted(ready, key=running.index):
        if time.perf_counter() >= end:
            it.stop()
            continue
        until = min(end, time.perf_counter() + it.stage.measuring)
        Path(f"{it.gate}.time").write_text(str(until - time.perf_counter()), encoding="utf-8")
        Path(f"{it.gate}.time").rename(f"{it.gate}.go")
        while not it.has_ended() and time.perf_counter() < until:
            time.sleep(0.02)
        has_result = it.has_ended() or until < end
        it.stop()
        if has_result:
            table.add(it.stage.name, it.result())


def main() -> int:
    """Run the stages that have no result, or an unfinished one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--peers", type=Path, default=ROOT / "build" / "peers")
    parser.add_argument("--only", default="", help="stages whose name this regular expression matches")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--together", type=int, default=TOGETHER, help="stages that warm up at the same time")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that a stage may warm up at most")
    parser.add_argument("--out", type=Path, default=HERE / "gpu.json")
    parser.add_argument("--logs", type=Path, default=ROOT / "build" / "gpu")
    args = parser.parse_args()
    args.logs.mkdir(parents=True, exist_ok=True)
    import torch

    from reverie.core.hardware import describe_machine

    machine = {**describe_machine(torch.device(args.device)), "cuda": torch.version.cuda}
    table = Table(args.out, machine)
    ended = {name for name, row in table.stages.items() if not row.get("unfinished")}
    wanted = [s for s in stages(args) if s.name not in ended and re.search(args.only, s.name)]
    end = time.perf_counter() + 60 * args.minutes
    for i in range(0, len(wanted), args.together):
        if time.perf_counter() < end:
            run_batch(wanted[i : i + args.together], table, args.logs, end, args.limit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
