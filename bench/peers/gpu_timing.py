"""What the model-free scripts for a GPU share: sizes, random rows, environments, and one way to time and to report."""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from gate import wait_for_turn
from rates import ACTIONS, CHOICES, OBS
from torch import Tensor

REPLAYS = ("td3", "sac", "dqn", "dqn_atari")
ROLLOUTS = ("ppo_atari", "ppo_continuous")
LOOPS = ("td3_loop", "sac_loop", "ppo_atari_loop")
IMAGE = (4, 84, 84)
IMAGE_BATCH = 32


class Rollouts(NamedTuple):
    """Sizes of PPO."""

    envs: int
    steps: int
    minibatch: int
    epochs: int
    clip: float
    entropy: float
    rate: float


class Sizes(NamedTuple):
    """How much of everything; `TINY` is for a rehearsal on a CPU."""

    rows: int = 100_000
    image_rows: int = 4000
    start: int = 1000
    """Env steps with random actions, before updates."""
    warm: int = 300
    """Env steps or updates before the time counts."""
    window: int = 50
    """Updates of a window."""
    atari: Rollouts = Rollouts(8, 128, 256, 4, 0.1, 0.01, 2.5e-4)
    continuous: Rollouts = Rollouts(1, 2048, 64, 10, 0.2, 0.0, 3e-4)


TINY = Sizes(
    2000, 100, 60, 8, 3, Rollouts(8, 16, 32, 1, 0.1, 0.01, 2.5e-4), Rollouts(1, 128, 64, 2, 0.2, 0.0, 3e-4)
)  # fmt: skip


class Task(NamedTuple):
    """What one process measures."""

    name: str
    variant: str
    device: torch.device
    seconds: float
    sizes: Sizes

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    def wait(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def time_updates(self, update: Callable[[], object], prefix: str = "update") -> dict[str, float]:
        """Seconds of an update: the median of windows, which wait for the device at their ends, and of single ones."""
        for _ in range(max(12, self.sizes.warm)):
            update()
        wait_for_turn()
        windows: list[float] = []
        self.wait()
        began = time.perf_counter()
        while len(windows) < 5 or time.perf_counter() - began < self.seconds:
            started = time.perf_counter()
            for _ in range(self.sizes.window):
                update()
            self.wait()
            windows.append((time.perf_counter() - started) / self.sizes.window)
        return {f"{prefix}_s": statistics.median(windows), f"{prefix}_synced_s": self.time_singly(update, 50)}

    def time_singly(self, call: Callable[[], object], count: int) -> float:
        """Median seconds of a call, with the wait for the device."""
        singles = []
        for _ in range(count):
            started = time.perf_counter()
            call()
            self.wait()
            singles.append(time.perf_counter() - started)
        return statistics.median(singles)


class LoopClock:
    """Env steps a second of a loop, from its ``warm``-th step on."""

    def __init__(self, task: Task, warm: int) -> None:
        self.task, self.warm, self.began, self.steps_per_s = task, warm, 0.0, 0.0

    def is_over(self, count: int, every: int = 50) -> bool:
        """Whether the seconds are over after ``count`` steps; looks at the time at each ``every``-th step."""
        if count < self.warm or count % every:
            return False
        if not self.began:
            wait_for_turn()
        self.task.wait()
        now = time.perf_counter()
        if not self.began:
            self.began, self.first = now, count
            return False
        self.steps_per_s = (count - self.first) / (now - self.began)
        return now - self.began >= self.task.seconds


def random_rows(kind: str, count: int) -> dict[str, np.ndarray]:
    """Columns of ``count`` noisy rows of a stream, with one more observation: every 1000th row ends an episode."""
    noise = np.random.default_rng(0)
    if kind == "dqn_atari":
        obs = noise.integers(0, 256, (count + 1, *IMAGE), dtype=np.uint8)
    else:
        obs = noise.normal(size=(count + 1, OBS)).astype(np.float32)
    if kind.startswith("dqn"):
        action = noise.integers(0, CHOICES, count)
    else:
        action = noise.uniform(-1, 1, (count, ACTIONS)).astype(np.float32)
    reward, end = noise.normal(size=count).astype(np.float32), np.arange(1, count + 1) % 1000 == 0
    return {"obs": obs, "action": action, "reward": reward, "end": end}


class PretendCheetah:
    """HalfCheetah's spaces, and 20 us a step; episodes of 1000 steps. For machines without MuJoCo."""

    def __init__(self) -> None:
        self.noise, self.count = np.random.default_rng(0).normal(size=(1000, OBS)), 0

    def reset(self) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode."""
        self.count = 0
        return self.noise[0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Wait, and return noise."""
        until = time.perf_counter() + 20e-6
        self.count += 1
        obs = self.noise[self.count % 1000]
        while time.perf_counter() < until:
            pass
        return obs, float(action[0]), False, self.count == 1000, {}


def make_cheetah() -> tuple[Any, str]:
    """HalfCheetah-v5 and its name, or one that pretends to be it."""
    try:
        import gymnasium

        return gymnasium.make("HalfCheetah-v5"), "HalfCheetah-v5"
    except Exception as error:
        print(f"HalfCheetah-v5: {error!r}", file=sys.stderr)
        return PretendCheetah(), "pretend HalfCheetah"


def make_breakout(num_envs: int = 1) -> Any:
    """Breakout's vector environment of ale-py: frame skip 4, 84x84 gray, four frames stacked, the game's rewards."""
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    options = {"reward_clipping": False, "repeat_action_probability": 0.0}
    return gymnasium.make_vec("ALE/Breakout-v5", num_envs, "vector_entry_point", **options)


def check_learned(before: list[Tensor], after: list[Tensor]) -> None:
    """Fail unless all parameters are finite and have changed."""
    for old, new in zip(before, after, strict=True):
        assert torch.isfinite(new).all(), "a parameter is not finite"
        assert not torch.equal(old, new), f"a parameter {tuple(new.shape)} has not changed"


def main(measure: Callable[[Task], Mapping[str, Any]], variants: tuple[str, ...]) -> None:
    """Time tasks, one after the other, and print one line of JSON for each, the only thing on standard output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tasks", nargs="+", choices=(*REPLAYS, *ROLLOUTS, *LOOPS), metavar="TASK")
    parser.add_argument("--variant", default=variants[0], choices=variants)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints
    sys.stdout = sys.stderr
    torch.set_float32_matmul_precision("highest")
    seconds, sizes = (min(args.seconds, 0.2), TINY) if args.tiny else (args.seconds, Sizes())
    failed = False
    for name in args.tasks:
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002  # what scripts draw from
        task = Task(name, args.variant, torch.device(args.device), seconds, sizes)
        row: dict[str, Any] = {"task": name, "variant": task.variant, "torch": torch.__version__, "matmul": "float32"}
        row["convolutions"] = "tf32" if task.on_gpu and torch.backends.cudnn.allow_tf32 else "float32"
        if task.on_gpu:
            gc.collect()  # what the task before has captured
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            row |= measure(task)
        except Exception as error:
            traceback.print_exc()
            row["error"], failed = repr(error), True
        if task.on_gpu:
            row["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
            row["reserved_gb"] = torch.cuda.max_memory_reserved() / 1e9
        else:
            row["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        print(json.dumps(row), file=answer, flush=True)
    sys.exit(failed)
