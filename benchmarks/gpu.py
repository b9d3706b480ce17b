#!/usr/bin/env python3
"""Everything that is measured on one GPU, unattended: whether it works, how fast it is, and how fast others are.

    python benchmarks/gpu.py [--peers FOLDER] [--only PATTERN] [--minutes 7] [--device cpu --tiny]

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
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.gate import GATE
from results import save

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
DREAMERS = (("I", "12m"), ("V", "1m"), ("I", "50m"), ("I", "200m"))
SCRIPTS = ("td3", "sac", "dqn", "dqn_atari", "ppo_atari", "ppo_continuous", "td3_loop", "sac_loop", "ppo_atari_loop")
LEARN = {
    "dreamer_v3": ("CartPole-v1", "--steps", "8000"),
    "td3": ("Pendulum-v1", "--steps", "8000"),
    "dqn": ("CartPole-v1", "--steps", "30000"),
    "ppo": ("CartPole-v1", "--steps", "100000"),
    "tdmpc2": ("Pendulum-v1", "--steps", "8000"),
    "cql": ("Pendulum-v1", "--updates", "20000"),
}
"""Short runs: the environment and the length."""
TESTS = (
    "tests/kernels/test_gpu.py", "tests/test_cuda.py", "tests/kernels/test_definitions.py",
    "tests/algos/test_algorithms.py::test_graphs_of_a_gpu_learn_what_updates_learn",
    "tests/algos/test_dreamers.py::test_graphs_of_a_gpu_learn_what_updates_learn",
)  # fmt: skip
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
    own = [str(HERE / "gpu.py"), *common, "--child"]
    yield Stage("tests", [*own, "tests"], 150, timed=False)
    for name in LEARN:
        yield Stage(f"learn/{name}", [*own, f"learn/{name}"], 110, timed=False)

    def dreamer(script: str, setting: str, size: str, precision: str, *more: str) -> list[str]:
        words = [str(HERE / "peers" / f"update_{script}.py"), setting, os.devnull, *common, "--size", size]
        return [*words, "--precision", precision, "--seconds", "3", *more]

    jax = {"PYTHONPATH": f"{args.peers}/dreamerv3", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    r2 = {"PYTHONPATH": f"{args.peers}/r2dreamer"}
    script, ours = str(HERE / "peers" / "gpu_script.py"), str(HERE / "peers" / "gpu_reverie.py")

    def updates(setting: str, size: str, precision: str) -> Iterator[Stage]:
        row = f"{setting}-{size}-{precision}"
        yield Stage(f"update/reverie/{row}", dreamer("reverie", setting, size, precision))
        yield Stage(f"update/dreamerv3_jax/{row}", dreamer("dreamerv3", setting, size, precision), 200, env=jax)

    yield from updates("I", "12m", "bfloat16")
    free = dreamer("dreamerv3", "I", "12m", "bfloat16", "--variant", "free")
    yield Stage("update/dreamerv3_jax_free/I-12m-bfloat16", free, 200, env=jax)
    yield from updates("I", "12m", "float32")
    for task in ("td3", "sac", "dqn", "dqn_atari"):
        yield Stage(f"rate/reverie/{task}", [ours, task, *common])
        yield Stage(f"rate/captured/{task}", [script, task, "--variant", "captured", *common])
    for name in ("I-bfloat16", "I-float32", "td3"):
        yield Stage(f"profile/{name}", [*own, f"profile/{name}"])
    for precision in ("bfloat16", "float32"):
        row = f"I-12m-{precision}"
        yield Stage(f"update/torchrl/{row}", dreamer("torchrl", "I", "12m", precision), 240)
        yield Stage(f"update/r2dreamer/{row}", dreamer("r2dreamer", "I", "12m", precision), 240, env=r2)
    for task in ("ppo_atari", "ppo_continuous", "td3_loop", "sac_loop", "ppo_atari_loop"):
        yield Stage(f"rate/reverie/{task}", [ours, task, *common])
        yield Stage(f"rate/captured/{task}", [script, task, "--variant", "captured", *common])
    for setting, size in DREAMERS[1:]:
        yield from updates(setting, size, "bfloat16")
    yield from updates("V", "1m", "float32")
    yield Stage("replay", [*own, "replay"])
    for task in ("td3", "sac", "dqn"):
        yield Stage(f"rate/compiled/{task}", [script, task, "--variant", "compiled", *common], 200)
    yield Stage("atari", [*own, "atari"], measuring=100)


# ---------------------------------------------------------------- children


def learn(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """A run by the command line, interrupted and resumed; what it said, learned and warned of."""
    env, *length = LEARN[name]
    seconds = (30, 20) if args.tiny else (45, 25)
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        program = [sys.executable, "-m", "reverie"]
        command = [*program, "train", name, "--env", env, "--device", args.device, "--run", run, *length]
        if name == "cql":
            data = str(Path(folder) / "data")
            made = [*program, "train", "sac", "--env", env, "--device", "cpu", "--run", data, "--steps", "2000"]
            subprocess.run([*made, "--eval-episodes", "0", "--yes"], capture_output=True, check=True)
            command += ["--data", data]
        said = [interrupted([*command, "--yes"], limit) for limit in seconds]
        ended = subprocess.run(
            [*program, "eval", run, "--episodes", "10", "--device", args.device],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        metrics = Path(run) / "metrics.jsonl"
        rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    latest = {key: value for row in rows for key, value in row.items()}
    kept = ("time/env_steps_per_second", "time/updates_per_second", "eval/score", "step", "updates", "loss/critic")
    text = "\n".join(output for _, output in said) + ended.stderr
    return {
        "statuses": [status for status, _ in said] + [ended.returncode],
        "latest": {key: latest[key] for key in latest if key in kept or key.startswith("time/")},
        "scores": [round(row["eval/score"], 1) for row in rows if "eval/score" in row],
        "warnings": sorted(set(re.findall(r"^.*(?:[Ww]arning|slower|Error).*$", text, re.MULTILINE)))[:8],
        "evaluation": ended.stdout.strip().splitlines()[-3:], "said": [text[-600:] for _, text in said],
    }  # fmt: skip


def interrupted(command: Sequence[str], seconds: float) -> tuple[int, str]:
    """The status and the output of a command that Ctrl-C reaches after so many seconds."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        out, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=60)
    return child.returncode, out


def tests(args: argparse.Namespace) -> dict[str, Any]:
    """The tests that use a GPU if there is one."""
    chosen = TESTS[1:2] if args.tiny else TESTS
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0" if args.tiny else "5", "--tb=short", *chosen]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=ROOT)
    failed = re.findall(r"^(?:FAILED|ERROR) .*$", done.stdout, re.MULTILINE)
    (args.logs / "pytest.txt").write_text(done.stdout + done.stderr)
    return {"summary": (done.stdout.strip().splitlines() or [done.stderr[-300:]])[-1], "failed": failed}


def profile(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The kernels of a captured update, and the share of the time in which one is running."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    sys.path.insert(0, str(HERE / "peers"))
    from gate import wait_for_turn

    from reverie.core.kernel_dispatch import kernel_status

    device = torch.device(args.device)
    update = dreamer_update(name, args) if name[0] in "VI" else vector_update(name, args)
    for _ in range(12):
        update()
    synchronize(device)
    wait_for_turn()
    count = 2 if args.tiny else 20
    started = time.perf_counter()
    for _ in range(count):
        update()
    synchronize(device)
    seconds = (time.perf_counter() - started) / count
    with profiler(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA][device.type == "cuda" :]) as found:
        for _ in range(count):
            update()
        synchronize(device)
    time_of = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    rows = sorted(found.key_averages(), key=lambda row: -getattr(row, time_of))
    busy = sum(getattr(row, time_of) for row in rows) / 1e6 / count
    return {
        "update_s": seconds, "kernels": kernel_status(device), "kernels_s": busy, "launches": sum(row.count for row in rows) / count,
        "top": [[row.key[:90], row.count / count, round(getattr(row, time_of) / count, 2)] for row in rows[:45]],
    }  # fmt: skip


def dreamer_update(name: str, args: argparse.Namespace) -> Any:
    """An update of DreamerV3 in setting V or I."""
    import update as bench

    from reverie.algos.dreamer_v3 import DreamerV3Config, with_size

    setting, _, precision = name.partition("-")
    _, obs, action, changes = bench.SETTINGS[setting]
    size = "nano" if args.tiny else bench.SETTINGS[setting][0]
    config = with_size(size, DreamerV3Config().merge({**changes, "precision": precision}))
    agent = config.build(obs, action, args.device)
    data = bench.noise_batch(agent, obs, action).to(agent.device)
    return lambda: agent.update(data)


def vector_update(name: str, args: argparse.Namespace) -> Any:
    """An update of a model-free learner, as in `peers/rates.py`."""
    sys.path.insert(0, str(HERE / "peers"))
    from rates_reverie import SEEN, acts, config

    from reverie.experiment.noise import noise_batch

    agent = config(name).build(SEEN, acts(discrete=False), args.device)
    data = noise_batch(agent, SEEN, acts(discrete=False)).to(agent.device)
    return lambda: agent.update(data)


def replay(args: argparse.Namespace) -> dict[str, Any]:
    """Batches of images from memory of the computer and of the device, as a learner gets them."""
    import numpy as np
    import torch

    sys.path.insert(0, str(HERE / "peers"))
    from gate import wait_for_turn

    from reverie.core.specs import ActionPart, ActionSpec, ObsPart
    from reverie.core.types import Window
    from reverie.replay.config import ReplayConfig
    from reverie.replay.sources import prefetch

    rows, device = 2_000 if args.tiny else 100_000, torch.device(args.device)
    obs = {"image": ObsPart(kind="image", shape=(64, 64, 3), dtype="uint8")}
    action = ActionSpec(parts={"action": ActionPart(kind="continuous", size=6)})
    chunk = {key: np.zeros((1, 1000), bool) for key in ("is_first", "is_last", "is_terminal")}
    image = np.random.default_rng(0).integers(0, 256, (1, 1000, 64, 64, 3), dtype=np.uint8)
    chunk |= {
        "obs/image": image,
        "reward": np.zeros((1, 1000), np.float32),
        "action": np.zeros((1, 1000, 6), np.float32),
    }
    numbers: dict[str, Any] = {}
    sources = {}
    for where in ("cpu", args.device):
        filled = ReplayConfig(capacity=rows, device=where).build(
            obs_spec=obs, action_spec=action, extra_spec={}, num_envs=1, window=Window(batch=16, length=64), seed=0
        )
        for _ in range(rows // 1000):
            filled.extend(chunk)
        sources[where] = prefetch(filled, device)
    wait_for_turn()
    for where, source in sources.items():
        for _ in range(10):
            source.sample()
        synchronize(device)
        started, count = time.perf_counter(), 20 if args.tiny else 300
        for _ in range(count):
            batch = source.sample()
        synchronize(device)
        assert batch.action.device.type == device.type
        numbers[f"batches_per_s_{where}"] = count / (time.perf_counter() - started)
    return numbers


def atari(args: argparse.Namespace) -> dict[str, Any]:
    """A run on Breakout with 16 environments: env steps a second after learning began, and how busy the GPU was."""
    import reverie

    class Steady(reverie.Callback):
        """Notes env steps, updates and the time once learning has begun; ends the run after a while."""

        def __init__(self) -> None:
            self.notes: list[tuple[float, int, int]] = []

        def on_log(self, run: reverie.TrainingRun, values: Mapping[str, Any]) -> None:
            if run.updates >= (2 if args.tiny else 50):
                self.notes.append((time.perf_counter(), run.env_steps, run.updates))
            if self.notes and time.perf_counter() - self.notes[0][0] > (3 if args.tiny else 40):
                run.stop("measured")

    sys.path.insert(0, str(HERE / "peers"))
    from gate import wait_for_turn

    wait_for_turn()
    smi, noted = shutil.which("nvidia-smi"), Steady()
    query = [smi, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "250"] if smi else ["true"]
    more = {"size": "nano", "learning_starts": 70} if args.tiny else {"size": "12m"}
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "busy").open("w+") as readings:
        watch = subprocess.Popen(query, stdout=readings)
        reverie.train(
            "dreamer_v3", env="ALE/Breakout-v5", device=args.device, run=Path(folder) / "run", eval_episodes=0,
            callbacks=[noted], console=False, steps=10_000_000, envs=16,
            **{"schedule.log_every": "0.5s", "algo.precision": "bfloat16", **more},
        )  # fmt: skip
        watch.terminate()
        readings.seek(0)
        busy = [float(line) for line in readings.read().split() if line.isdigit()]
    (began, steps, updates), (last, final_steps, final_updates) = noted.notes[0], noted.notes[-1]
    share = busy[-int(4 * (last - began)) :]
    return {
        "env_steps_per_s": (final_steps - steps) / (last - began),
        "updates_per_s": (final_updates - updates) / (last - began),
        "gpu_busy_percent": sum(share) / len(share) if share else None, "readings": share[::8],
    }  # fmt: skip


def synchronize(device: Any) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def child(args: argparse.Namespace) -> dict[str, Any]:
    """The result of one of this file's own stages."""
    kind, _, name = args.child.partition("/")
    named = {"learn": learn, "profile": profile}
    return named[kind](name, args) if kind in named else {"tests": tests, "replay": replay, "atari": atari}[kind](args)


# ---------------------------------------------------------------- the parent


class Table:
    """Results in a file that always holds all there are."""

    def __init__(self, path: Path, machine: dict[str, Any]):
        self.path = path
        self.stages: dict[str, Any] = json.loads(path.read_text())["stages"] if path.exists() else {}
        self.machine = machine

    def add(self, name: str, result: dict[str, Any]) -> None:
        self.stages[name] = result
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


def run_batch(batch: Sequence[Stage], table: Table, logs: Path, end: float) -> None:
    """Run what is not timed and warm the rest up, all together; then measure one after the other."""
    running = [Running(stage, logs) for stage in batch]
    waiting = list(running)
    while waiting and time.perf_counter() < end:
        for it in list(waiting):
            late = time.perf_counter() - it.started > it.stage.limit
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
        limit = min(end, time.perf_counter() + it.stage.measuring)
        while not it.has_ended() and time.perf_counter() < limit:
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
    parser.add_argument("--out", type=Path, default=HERE / "gpu.json")
    parser.add_argument("--logs", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.logs.mkdir(parents=True, exist_ok=True)
    if args.child:
        result = child(args)
        print(json.dumps(result), flush=True)
        return 0
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
            run_batch(batch, table, args.logs, end)
    return 0


if __name__ == "__main__":
    sys.exit(main())
