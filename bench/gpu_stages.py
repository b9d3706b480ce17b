#!/usr/bin/env python3
"""The stages of `gpu.py` that measure reverie alone: tests, short runs, profiles, kernels, plans, the replay, Atari.

    python bench/gpu_stages.py profile/I-bfloat16 --device cuda

The last line of standard output is a JSON object.
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from peers.gate import GATE, wait_for_turn

STARTED = time.perf_counter()
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
USES_GPU = "torch.cuda.is_available()"
"""Files of tests that use a GPU if there is one ask this. The others, such as `test_cuda.py`, pretend that there is."""
PRECISIONS = tuple(f"{task}-{precision}" for task in ("cartpole", "look") for precision in ("float32", "float16"))
FIRST = ("td3", "dreamer_v3")
PLANS = ("muzero", "lewm")
ROOTS = 256
WORTH = 1.3
"""A family of kernels below this factor is removed."""


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
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what nohup lets this process ignore, a child would, too
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        out, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=60)
    return child.returncode, out


def tests(args: argparse.Namespace) -> dict[str, Any]:
    """The tests that use a GPU if there is one; those that had failed, if there was no time for all."""
    files = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if USES_GPU in path.read_text(encoding="utf-8"))
    words = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "--tb=short"]
    words += ["-n", "0" if args.tiny else "8", "-k", "gpu or triton or solved_in_float16"]
    words += [str(path.relative_to(ROOT)) for path in (files[:1] if args.tiny else files)]
    log = args.logs / "pytest.txt"
    with log.open("w", encoding="utf-8") as out, suppress(subprocess.TimeoutExpired):
        seconds = STARTED + args.limit - 10 - time.perf_counter()
        subprocess.run(words, stdout=out, stderr=subprocess.STDOUT, check=False, cwd=ROOT, timeout=seconds)
    text = log.read_text(encoding="utf-8")
    failed = re.findall(r"^(?:FAILED|ERROR) .*$", text, re.MULTILINE) or re.findall(r"(?:FAILED|ERROR) tests/\S+", text)
    passed = len(re.findall(r"\bPASSED\b", text))
    return {"summary": (text.splitlines() or [""])[-1], "passed": passed, "failed": failed}


def profile(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The kernels of a captured update, and the share of the time in which one is running."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

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

    device, known, used = torch.device(args.device), gpu.triton_problem, set[str]()

    def without(off: str) -> AbstractContextManager[object]:
        """The family ``off`` cannot be used."""

        def problem(device: torch.device, family: Any = "recurrence") -> str:
            used.add(family)
            return "off" if family == off else known(device, family)

        return patch.object(gpu, "triton_problem", problem)

    def captured(off: str = "") -> Callable[[], object]:
        """An update whose graph was captured without the family ``off``."""
        with without(off):
            update = dreamer_update(name, args) if name[0] in "VI" else vector_update(name, args)
            for _ in range(12):
                update()
        return update

    updates = {"": captured()}
    updates |= {family: captured(family) for family in sorted(used)}
    wait_for_turn()
    seconds: dict[str, list[float]] = {family: [] for family in updates}
    count = 2 if args.tiny else 20 if name[0] in "VI" else 100
    for _ in range(5):
        for family, update in updates.items():
            with without(family):  # rows are gathered outside of graphs
                synchronize(device)
                started = time.perf_counter()
                for _ in range(count):
                    update()
                synchronize(device)
                seconds[family].append((time.perf_counter() - started) / count)
    factors = {
        family: median(a / b for a, b in zip(without, seconds[""], strict=True)) for family, without in seconds.items()
    }
    return {"update_s": median(seconds[""]), **judged({k: x for k, x in factors.items() if k})}


def judged(factors: Mapping[str, float]) -> dict[str, Any]:
    """Times that something takes without each family of kernels, over those with it; families that do not pay."""
    slower = {family: round(factor, 3) for family, factor in factors.items()}
    return {"slower_without": slower, "unworthy": [family for family, factor in slower.items() if factor < WORTH]}


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
    """An update of a model-free learner, as in `peers/gpu_reverie.py`: from a replay on the device, but for PPO."""
    sys.path.insert(0, str(HERE / "peers"))
    import torch
    from gpu_reverie import build, noise, updates
    from gpu_timing import TINY, Sizes, Task
    from rates_reverie import SEEN, acts

    from reverie.experiment.bench import noise_batch

    task = Task(name, "captured", torch.device(args.device), 0.0, TINY if args.tiny else Sizes())
    agent = build(task)
    if name.startswith("ppo"):
        data = noise_batch(agent, SEEN, acts(discrete=False)).to(agent.device)
        return lambda: agent.update(data)
    rows = noise(task, task.sizes.image_rows if name == "dqn_atari" else task.sizes.rows)
    return updates(task, agent, rows, args.device)


def replay(args: argparse.Namespace) -> dict[str, Any]:
    """Batches of images from memory of the computer and of the device, as a learner gets them."""
    import numpy as np
    import torch

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
    from gpu_worlds import Steady

    import reverie

    smi, steady = shutil.which("nvidia-smi"), Steady(2 if args.tiny else 50, 3 if args.tiny else 20)
    query = [smi, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "250"] if smi else ["true"]
    more = {"size": "nano", "learning_starts": 70} if args.tiny else {"size": "12m"}
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "busy").open("w+") as readings:
        watch = subprocess.Popen(query, stdout=readings)
        reverie.train(
            "dreamer_v3", env="ALE/Breakout-v5", device=args.device, run=Path(folder) / "run", eval_episodes=0,
            callbacks=[steady], console=False, steps=10_000_000, envs=16,
            **{"schedule.log_every": "0.5s", "algo.precision": "bfloat16", **more},
        )  # fmt: skip
        watch.terminate()
        readings.seek(0)
        busy = [float(line) for line in readings.read().split() if line.isdigit()]
    share = busy[-int(4 * (steady.notes[-1][0] - steady.notes[0][0])) :]
    return steady.rates() | {
        "gpu_busy_percent": sum(share) / len(share) if share else None, "readings": share[::8],
    }  # fmt: skip


def atari100k(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """As much of a run of Atari 100k at size 12m as there is time for. The same logs continue it."""
    from gpu_worlds import Clock

    import reverie

    clock = Clock(time.perf_counter() + min(20 if args.tiny else 3600, wait_for_turn() - 30))  # it saves what it has
    run, game = args.logs / f"atari100k-{name}", f"ALE/{name.capitalize()}-v5"
    more = {"size": "nano", "learning_starts": 40, "steps": 120} if args.tiny else {"size": "12m"}
    reverie.train(
        "dreamer_v3", env=game, preset="atari100k", device=args.device, run=run, callbacks=[clock], console=False,
        eval_episodes=0, **{"schedule.log_every": "1s", "algo.precision": "bfloat16", **more},
    )  # fmt: skip
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    returns: dict[int, list[float]] = {}
    for row in rows:
        if "episode/score" in row:
            returns.setdefault(row["step"] // 10_000 * 10_000, []).append(row["episode/score"])
    last = {key: row[key] for row in rows for key in ("counters/updates", "time/seconds") if key in row}
    means = {step: sum(x) / len(x) for step, x in returns.items()}
    return {"env_steps": rows[-1]["step"], "mean_returns": means, "unfinished": clock.is_over, **last}


def precision(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Evaluations of a short run in this precision, of the tasks of `precision.py`. CPUs have bfloat16 for float16."""
    from gpu_worlds import Clock
    from precision import TASKS

    import reverie

    task, _, wanted = name.partition("-")
    env = {"cartpole": "CartPole-v1", "look": "reverie/Look-v0"}[task]
    preset, settings = TASKS[env]
    used = "bfloat16" if wanted == "float16" and args.device == "cpu" else wanted
    settings = settings | {"algo.precision": used, "seed": 1, "schedule.log_every": "1s", "device": args.device}
    clock = Clock(STARTED + args.limit - 25)
    if args.tiny:
        settings |= {"steps": 200, "schedule.eval_every": 100, "eval_episodes": 2, "learning_starts": 20}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        reverie.train("dreamer_v3", env=env, preset=preset, run=run, callbacks=[clock], console=False, **settings)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = [[row["step"], row["eval/score"]] for row in rows if "eval/score" in row]
    return {"precision": used, "scores": scores, "stopped": clock.is_over}


def plan(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Updates a second, decisions of 256 roots at once, and how often one waits for the device."""
    import torch
    from gpu_worlds import count_waits

    from reverie.algos.table import algorithm_config
    from reverie.core.specs import ActionPart, ActionSpec, ObsPart
    from reverie.experiment.bench import noise_batch, noise_step
    from reverie.kernels import gpu

    device, roots = torch.device(args.device), 4 if args.tiny else ROOTS
    seen = {"observation": ObsPart(kind="vector", shape=(24,), dtype="float32")}
    act = {"muzero": ActionPart(kind="categorical", classes=(9,)), "lewm": ActionPart(kind="continuous", size=4)}[name]
    config, spec = algorithm_config(name)(), ActionSpec(parts={"action": act})
    learner = config.build(config.network_spec(seen) if name == "lewm" else seen, spec, args.device)
    data = noise_batch(learner, seen, spec).to(device)
    step = noise_step(learner.preprocess.spec if name == "lewm" else seen, roots)
    known = gpu.triton_problem

    def decide() -> object:
        return learner.policy.act(step, learner.policy.initial(roots), "eval")

    def seconds(call: Callable[[], object], count: int) -> float:
        each = []
        for _ in range(5):
            synchronize(device)
            began = time.perf_counter()
            for _ in range(count):
                call()
            synchronize(device)
            each.append((time.perf_counter() - began) / count)
        return median(each)

    for _ in range(12):
        learner.update(data)
    for _ in range(4):
        decide()
    wait_for_turn()
    result = {
        "updates_per_s": 1 / seconds(lambda: learner.update(data), 2 if args.tiny else 50),
        "decision_s": seconds(decide, 1 if args.tiny else 20), "roots": roots,
        "waits_a_decision": count_waits(decide, device),
    }  # fmt: skip
    if name == "muzero":  # the same without the kernels of trees
        with patch.object(
            gpu,
            "triton_problem",
            lambda device, family="recurrence": "off" if family == "search" else known(device, family),
        ):
            learner = config.build(seen, spec, args.device)
            for _ in range(4):
                decide()
            slow = seconds(decide, 1 if args.tiny else 5)
        result |= judged({"search": slow / result["decision_s"]} if device.type == "cuda" else {})
    return result


def learners(args: argparse.Namespace) -> dict[str, Any]:
    """Two learners on one GPU: they train, or are refused in one line."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "sac", "--env", "Pendulum-v1", "--learners", "2", "--device", args.device, "--steps", "400"]
        words += ["--learning-starts", "200", "--eval-episodes", "0", "--threads", "1", "--run", f"{folder}/run"]
        words, seconds = [sys.executable, "-m", "reverie", *words], args.limit - 20
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=seconds)
    return {"status": done.returncode, "output": (done.stdout + done.stderr)[-600:].replace(folder, "")}


def first(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds from the start of a process to its first updates, with an empty cache of kernels and with a full one."""
    wait_for_turn()
    words = [sys.executable, __file__, f"start/{name}", "--device", args.device, *(["--tiny"] if args.tiny else [])]
    with tempfile.TemporaryDirectory() as folder:
        env = {k: v for k, v in os.environ.items() if k != GATE} | {"TRITON_CACHE_DIR": folder}
        found = [
            json.loads(subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout)
            for _ in range(2)
        ]
        kernels = [*Path(folder).rglob("*.cubin")]
        sizes = {"kernels": len(kernels), "cache_mb": sum(x.stat().st_size for x in Path(folder).rglob("*.*")) / 1e6}
    return {"empty": found[0], "full": found[1], **sizes}


def start(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds since the start at the ends of the parts of a first update."""
    began = time.perf_counter()
    import torch

    device, parts = torch.device(args.device), {}
    torch.zeros(1, device=device)
    parts["pytorch"] = time.perf_counter() - began
    import reverie.kernels.registry  # noqa: F401

    parts["reverie"] = time.perf_counter() - began
    update = dreamer_update("I-bfloat16", args) if name == "dreamer_v3" else vector_update(name, args)
    parts["learner"] = time.perf_counter() - began
    for part, count in (("first_update", 1), ("captured", 3), ("replays", 6)):
        for _ in range(count):
            update()
        synchronize(device)
        parts[part] = time.perf_counter() - began
    return parts


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
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that it has, if it is not timed")
    args = parser.parse_args()
    kind, _, name = args.stage.partition("/")
    named: dict[str, Callable[..., dict[str, Any]]] = {
        "learn": learn, "profile": profile, "kernels": kernels, "precision": precision, "plan": plan, "first": first,
        "start": start, "atari100k": atari100k,
    }  # fmt: skip
    if kind == "worlds":
        from gpu_worlds import worlds

        named["worlds"] = worlds
    whole = {"tests": tests, "replay": replay, "atari": atari, "learners": learners}
    result = named[kind](name, args) if kind in named else whole[kind](args)
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
