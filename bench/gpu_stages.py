#!/usr/bin/env python3
"""The stages of `gpu.py` that measure reverie alone: tests, short runs, profiles, kernels, the replay, Breakout.

    python bench/gpu_stages.py profile/I-bfloat16 --device cuda

The last line of standard output is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
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
    "tests/kernels/test_gpu.py", "tests/kernels/test_gpu_images.py", "tests/kernels/test_definitions.py",
    "tests/kernels/test_replays.py",
)  # fmt: skip
"""Of these, the tests with `gpu` or `triton` in their names."""


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
            subprocess.run([*made, "--eval-episodes", "0"], capture_output=True, check=True)
            command += ["--data", data]
        said = [interrupted(command, limit) for limit in seconds]
        ended = subprocess.run(
            [*program, "eval", run, "--episodes", "10", "--device", args.device],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        metrics = Path(run) / "metrics.jsonl"
        rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    latest = {key: value for row in rows for key, value in row.items()}
    kept = ("time/env_steps_per_second", "time/updates_per_second", "eval/score", "step", "updates", "loss/critic")
    text = ("\n".join(output for _, output in said) + ended.stderr).replace(f"{ROOT}/", "")
    return {
        "statuses": [status for status, _ in said] + [ended.returncode],
        "latest": {key: latest[key] for key in latest if key in kept or key.startswith("time/")},
        "scores": [round(row["eval/score"], 1) for row in rows if "eval/score" in row],
        "warnings": sorted(set(re.findall(r"^.*(?:[Ww]arning|slower|Error).*$", text, re.MULTILINE)))[:8],
        "evaluation": ended.stdout.strip().splitlines()[-3:-1], "said": [text[-600:] for _, text in said],
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
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-n", "0" if args.tiny else "6", "--tb=short", *chosen]
    words += ["-k", "gpu or triton"]
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
        "update_s": seconds, "kernels": kernel_status(device), "kernels_s": busy,
        "launches": sum(row.count for row in rows) / count,
        "top": [[row.key[:90], row.count / count, round(getattr(row, time_of) / count, 2)] for row in rows[:45]],
    }  # fmt: skip


def kernels(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """How many times as long an update takes without each family of Triton kernels that it uses."""
    import torch

    from reverie.kernels import gpu

    sys.path.insert(0, str(HERE / "peers"))
    from gate import wait_for_turn

    device, known, used = torch.device(args.device), gpu.triton_problem, set[str]()

    def captured(off: str = "") -> Callable[[], object]:
        """An update whose graph was captured without the family ``off``."""

        def problem(device: torch.device, family: Any = "recurrence") -> str:
            used.add(family)
            return "off" if family == off else known(device, family)

        with patch.object(gpu, "triton_problem", problem):
            update = dreamer_update(name, args) if name[0] in "VI" else vector_update(name, args)
            for _ in range(12):
                update()
        return update

    updates = {"": captured()}
    updates |= {family: captured(family) for family in sorted(used)}
    wait_for_turn()
    seconds: dict[str, list[float]] = {family: [] for family in updates}
    count = 2 if args.tiny else 100
    for _ in range(5):
        for family, update in updates.items():
            synchronize(device)
            started = time.perf_counter()
            for _ in range(count):
                update()
            synchronize(device)
            seconds[family].append((time.perf_counter() - started) / count)
    factors = {
        family: median(a / b for a, b in zip(without, seconds[""], strict=True)) for family, without in seconds.items()
    }
    return {"update_s": median(seconds.pop("")), "slower_without": {k: round(factors[k], 3) for k in seconds}}


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

    from reverie.experiment.bench import noise_batch

    action = acts(discrete=name == "dqn")
    agent = config(name).build(SEEN, action, args.device)
    data = noise_batch(agent, SEEN, action).to(agent.device)
    return lambda: agent.update(data)


def replay(args: argparse.Namespace) -> dict[str, Any]:
    """Batches of images from memory of the computer and of the device, as a learner gets them."""
    import numpy as np
    import torch

    sys.path.insert(0, str(HERE / "peers"))
    from gate import wait_for_turn

    from reverie.core.specs import ActionPart, ActionSpec, ObsPart
    from reverie.core.types import Window
    from reverie.replay.build import build_replay
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
        filled = build_replay(
            ReplayConfig(capacity=rows, device=where),
            obs_spec=obs,
            action_spec=action,
            extra_spec={},
            num_envs=1,
            window=Window(batch=16, length=64),
            seed=0,
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


def main() -> int:
    """Run one stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    kind, _, name = args.stage.partition("/")
    named = {"learn": learn, "profile": profile, "kernels": kernels}
    whole = {"tests": tests, "replay": replay, "atari": atari}
    result = named[kind](name, args) if kind in named else whole[kind](args)
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
