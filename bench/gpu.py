#!/usr/bin/env python3
"""Everything that is measured on one GPU, unattended: whether it works, how fast it is, and how fast others are.

    python bench/gpu.py [--peers FOLDER] [--only PATTERN] [--minutes 7] [--device cpu --tiny]

Stages come in order of value, each with a time limit of its own. Each result is written at once, and a stage that has a
result is skipped: the same command continues where it was stopped. Tests and short runs use the GPU together. What is
timed warms up beside others, and is then measured alone, one stage after the other (`peers/gate.py`). `--peers` is a
folder with checkouts of `dreamerv3` and `r2dreamer`; without them, and without JAX, TorchRL or Gymnasium's
environments, their stages fail and say why. `--device cpu --tiny` rehearses all of it on a computer without a GPU.

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_stages import LEARN
from peers.gate import GATE
from results import save

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
DREAMERS = (("I", "12m"), ("V", "1m"), ("I", "50m"), ("I", "200m"))
SCRIPTS = ("td3", "sac", "dqn", "dqn_atari", "ppo_atari", "ppo_continuous", "td3_loop", "sac_loop", "ppo_atari_loop")
ALONE = (
    *(f"profile/{name}" for name in ("I-bfloat16", "I-float32", "td3")),
    *(f"kernels/{name}" for name in ("I-bfloat16", "td3", "sac", "dqn", "ppo")),
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


def stages(args: argparse.Namespace) -> Iterator[Stage]:
    """In order of value."""
    common = ["--device", args.device, *(["--tiny"] if args.tiny else [])]
    own = [str(HERE / "gpu_stages.py"), "--logs", str(args.logs), *common]
    yield Stage("tests", [*own, "tests"], 150, timed=False)
    for name in LEARN:
        yield Stage(f"learn/{name}", [*own, f"learn/{name}"], 150, timed=False)

    def dreamer(script: str, setting: str, size: str, precision: str, *more: str) -> list[str]:
        words = [str(HERE / "peers" / f"update_{script}.py"), setting, os.devnull, *common, "--size", size]
        return [*words, "--precision", precision, "--seconds", "2", *more]

    jax = {"PYTHONPATH": f"{args.peers}/dreamerv3", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    r2 = {"PYTHONPATH": f"{args.peers}/r2dreamer"}
    brief = ["--seconds", "2"]
    script, ours = str(HERE / "peers" / "gpu_script.py"), str(HERE / "peers" / "gpu_reverie.py")

    def updates(setting: str, size: str, precision: str) -> Iterator[Stage]:
        row = f"{setting}-{size}-{precision}"
        yield Stage(f"update/reverie/{row}", dreamer("reverie", setting, size, precision))
        yield Stage(f"update/dreamerv3_jax/{row}", dreamer("dreamerv3", setting, size, precision), 200, env=jax)

    yield from updates("I", "12m", "bfloat16")
    tuned = dreamer("reverie", "I", "12m", "bfloat16", "--cudnn-benchmark")
    yield Stage("update/reverie_cudnn_benchmark/I-12m-bfloat16", tuned)
    free = dreamer("dreamerv3", "I", "12m", "bfloat16", "--variant", "free")
    yield Stage("update/dreamerv3_jax_free/I-12m-bfloat16", free, 200, env=jax)
    yield from updates("I", "12m", "float32")
    for task in ("td3", "sac", "dqn", "td3_loop", "dqn_atari"):
        yield Stage(f"rate/reverie/{task}", [ours, task, *common, *brief])
        yield Stage(f"rate/captured/{task}", [script, task, "--variant", "captured", *common, *brief])
    for name in ALONE:
        yield Stage(name, [*own, name], 200)
    for precision in ("bfloat16", "float32"):
        row = f"I-12m-{precision}"
        yield Stage(f"update/torchrl/{row}", dreamer("torchrl", "I", "12m", precision), 300)
        words = dreamer("r2dreamer", "I", "12m", precision, "--variant", "compiled")
        yield Stage(f"update/r2dreamer/{row}", words, 300, env=r2)
    for task in ("ppo_atari", "ppo_continuous", "sac_loop", "ppo_atari_loop"):
        yield Stage(f"rate/reverie/{task}", [ours, task, *common, *brief])
        yield Stage(f"rate/captured/{task}", [script, task, "--variant", "captured", *common, *brief])
    for setting, size in DREAMERS[1:]:
        yield from updates(setting, size, "bfloat16")
    yield from updates("V", "1m", "float32")
    yield Stage("replay", [*own, "replay"])
    for task in ("td3", "sac", "dqn"):
        yield Stage(f"rate/compiled/{task}", [script, task, "--variant", "compiled", *common, *brief], 200)
    yield Stage("atari", [*own, "atari"], measuring=100)


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
        if not self.has_ended():
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()

    def result(self) -> dict[str, Any]:
        """What it printed, or why there is nothing."""
        lines = self.out.read_text().strip().splitlines()
        seconds = round(time.perf_counter() - self.started, 1)
        if self.child.returncode == 0 and lines and lines[-1].startswith("{"):
            return {**json.loads(lines[-1]), "stage_s": seconds}
        output = (self.out.read_text()[-500:] + self.err.read_text()[-2500:]).strip()
        reason = (output.splitlines() or [""])[-1][:300]
        return {"error": reason, "status": self.child.returncode, "output": output, "stage_s": seconds}


def run_batch(batch: Sequence[Stage], table: Table, logs: Path, end: float, limit: float) -> None:
    """Run what is not timed and warm the rest up, all together; then measure one after the other."""
    running = [Running(stage, logs) for stage in batch]
    waiting = list(running)
    while waiting and time.perf_counter() < end:
        for it in list(waiting):
            late = time.perf_counter() - it.started > min(it.stage.limit, limit)
            if late:
                it.stop()
            if it.has_ended():
                table.add(it.stage.name, it.result() | ({"late": True} if late else {}))
            if it.has_ended() or it.is_ready():
                waiting.remove(it)
        time.sleep(0.05)
    for it in running:
        if it in waiting:
            it.stop()  # it is not ready, and there is no time left
        if it.has_ended():
            continue
        Path(f"{it.gate}.go").touch()
        until = min(end, time.perf_counter() + it.stage.measuring)
        while not it.has_ended() and time.perf_counter() < until:
            time.sleep(0.02)
        it.stop()
        table.add(it.stage.name, it.result())


def main() -> int:
    """Run the stages that have no result."""
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
    wanted = [s for s in stages(args) if s.name not in table.stages and re.search(args.only, s.name)]
    end = time.perf_counter() + 60 * args.minutes
    untimed = [stage for stage in wanted if not stage.timed]
    timed = [stage for stage in wanted if stage.timed]
    first = max(0, args.together + 2 - len(untimed))
    batches = [untimed + timed[:first]]
    batches += [timed[i : i + args.together] for i in range(first, len(timed), args.together)]
    for batch in batches:
        if batch and time.perf_counter() < end:
            run_batch(batch, table, args.logs, end, args.limit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
