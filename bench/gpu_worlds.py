"""The stages of `gpu.py` whose environments are on the learner's device: CartPole beside its host path, and Brax's ant.

    python bench/gpu_stages.py worlds/device --device cuda

`device`, `host` and `jax` are the systems of `device.py`, with 8,192 environments and learning included. `ant_ppo` and
`ant_td3` are runs of reverie, `ant_brax` is Brax's own PPO. They need gymnax and Brax.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from peers.gate import wait_for_turn

import reverie
from reverie.core.hardware import synchronize
from reverie.envs.jax_vector import import_jax

ANT: dict[str, dict[str, Any]] = {
    "ant_ppo": {"envs": 4096, "algo.rollout": 16, "algo.batch_size": 16_384, "algo.epochs": 4},
    "ant_td3": {
        "envs": 1024, "replay_ratio": 2 / 1024, "algo.batch_size": 8192, "learning_starts": 10_240, "random_steps": 0,
        "replay.capacity": 1_000_000,
    },
}  # fmt: skip
TINY: dict[str, dict[str, Any]] = {
    "ant_ppo": {"envs": 4, "algo.rollout": 8, "algo.batch_size": 16, "algo.epochs": 1},
    "ant_td3": {"envs": 4, "replay_ratio": 0.25, "algo.batch_size": 8, "learning_starts": 16, "replay.capacity": 1000},
}


class Clock(reverie.Callback):
    """Interrupts a run when its time is over, as Ctrl-C does: the same command continues it, unlike one that ended."""

    def __init__(self, end: float) -> None:
        """``end``: by `time.perf_counter`."""
        self.end, self.is_over = end, False

    def on_log(self, run: reverie.TrainingRun, values: Mapping[str, Any]) -> None:
        """Look at the clock."""
        if not self.is_over and time.perf_counter() > self.end:
            self.is_over = True
            signal.raise_signal(signal.SIGINT)


class Steady(reverie.Callback):
    """Notes env steps, updates and the time once learning has begun; ends the run after some seconds."""

    def __init__(self, updates: int, seconds: float) -> None:
        """``updates``: those before the time counts."""
        self.updates, self.seconds, self.notes = updates, seconds, list[tuple[float, int, int]]()

    def on_log(self, run: reverie.TrainingRun, values: Mapping[str, Any]) -> None:
        """Look at the clock."""
        if run.updates < self.updates:
            return
        if not self.notes:
            wait_for_turn()
        self.notes.append((time.perf_counter(), run.env_steps, run.updates))
        if self.notes[-1][0] - self.notes[0][0] > self.seconds:
            run.stop("measured")

    def rates(self) -> dict[str, float]:
        """Env steps and updates a second."""
        (began, steps, updates), (last, final_steps, final_updates) = self.notes[0], self.notes[-1]
        seconds = last - began
        return {
            "env_steps_per_s": (final_steps - steps) / seconds, "updates_per_s": (final_updates - updates) / seconds,
        }  # fmt: skip


def count_waits(call: Callable[[], object], device: torch.device) -> dict[str, int] | None:
    """Call, and return how often the host waited for the device, by place; None on a CPU."""
    if device.type != "cuda":
        call()
        return None
    waits = Counter[str]()

    def counted(wait: Callable[..., Any]) -> Callable[..., Any]:
        """The debug mode of PyTorch does not see those that a program calls itself."""

        def waiting(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1)
            waits[f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"] += 1
            torch.cuda.set_sync_debug_mode("default")
            try:
                return wait(*args, **kwargs)
            finally:
                torch.cuda.set_sync_debug_mode("warn")

        return waiting

    with (
        warnings.catch_warnings(record=True) as caught,
        patch.object(torch.cuda, "synchronize", counted(torch.cuda.synchronize)),
        patch.object(torch.cuda.Event, "synchronize", counted(torch.cuda.Event.synchronize)),
        patch.object(torch.cuda.Stream, "synchronize", counted(torch.cuda.Stream.synchronize)),
    ):
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits.update(f"{Path(w.filename).name}:{w.lineno}" for w in caught if "called a synchronizing" in str(w.message))
    return dict(waits)


def memory(device: torch.device) -> dict[str, float]:
    """Peaks of PyTorch and JAX, and what is taken of the GPU by all, in GB."""
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    jax = sys.modules.get("jax")  # the host's environments have none
    stats = (jax.devices()[0].memory_stats() if jax else None) or {}
    return {
        "torch_peak_gb": torch.cuda.max_memory_allocated() / 1e9, "torch_gb": torch.cuda.max_memory_reserved() / 1e9,
        "jax_peak_gb": stats.get("peak_bytes_in_use", 0) / 1e9, "all_gb": (total - free) / 1e9,
    }  # fmt: skip


def worlds(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Env steps a second, updates included."""
    if name != "host":
        import_jax()  # leaves memory of the GPU to PyTorch, and to what warms up beside it
    if name.startswith("ant"):
        return ant_brax(args) if name == "ant_brax" else ant(name, args)
    import device as bench

    device, num = torch.device(args.device), 16 if args.tiny else 8192
    system = {"host": "native"}.get(name, name)
    rollout, _ = bench.jax_ppo(num) if system == "jax" else bench.reverie_ppo(system, num, args.device)
    for _ in range(2 if args.tiny else 6):
        rollout()
    wait_for_turn()
    seconds, steps, each = 0.0, 0, []
    while seconds < (0.2 if args.tiny else 3):
        synchronize(device)
        began = time.perf_counter()
        count = rollout()
        synchronize(device)
        each.append(time.perf_counter() - began)
        seconds, steps = seconds + each[-1], steps + count
    return {
        "env_steps_per_s": steps / seconds, "rollout_s": median(each), "turns": bench.ROLLOUT,
        "waits_a_rollout": count_waits(rollout, device), **memory(device),
    }  # fmt: skip


def ant(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Env steps a second of a run."""
    steady = Steady(2 if args.tiny else 50, 0.5 if args.tiny else 6)
    settings = (TINY if args.tiny else ANT)[name]
    with tempfile.TemporaryDirectory() as folder:
        reverie.train(
            name.removeprefix("ant_"), env="brax/ant", device=args.device, run=Path(folder) / "run", eval_episodes=0,
            callbacks=[steady], console=False, steps=1_000_000_000, **{"schedule.log_every": "0.2s", **settings},
        )  # fmt: skip
        return {**steady.rates(), **memory(torch.device(args.device))}


def ant_brax(args: argparse.Namespace) -> dict[str, Any]:
    """Env steps a second of Brax's PPO, without its evaluations, as it reports them once it has compiled."""
    import jax
    import jax.numpy as jnp
    from brax import envs
    from brax.training.agents.ppo.train import train

    if not hasattr(jax, "device_put_replicated"):  # Brax 0.14.2 calls what JAX 0.11 has no longer
        jax.device_put_replicated = lambda tree, devices: jax.tree.map(
            lambda x: jax.device_put(jnp.stack([x] * len(devices)), devices[0]), tree
        )
    told = list[float]()

    def progress(steps: int, metrics: Mapping[str, Any]) -> None:
        if len(told) == 3:  # two reports are of compiling
            wait_for_turn()
        told.append(float(metrics.get("training/sps", 0)))

    sizes = {"num_envs": 4, "batch_size": 4, "num_minibatches": 2, "num_timesteps": 1200}
    if not args.tiny:
        sizes = {"num_envs": 4096, "batch_size": 2048, "num_minibatches": 32, "num_timesteps": 16_000_000}
    train(
        environment=envs.get_environment("ant"), episode_length=1000, unroll_length=5, num_updates_per_batch=4,
        num_evals=7, num_eval_envs=4 if args.tiny else 128, learning_rate=3e-4, entropy_cost=1e-2, discounting=0.97,
        reward_scaling=10.0, normalize_observations=True, seed=0, **sizes,
        progress_fn=progress,
    )  # fmt: skip
    return {"env_steps_per_s": median(told[3:]), "reports": told}
