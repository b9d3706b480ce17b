#!/usr/bin/env python3
"""What each kernel is worth: how much slower are updates, actions, the replay and the store without it?

    python benchmarks/kernels.py [--headlines V I td3 ...] [--kernels optim.adam_cpu ...] [--rounds 5] [--out FILE]

A kernel stays if some headline takes at least 1.15 times as long without it. Those for GPUs stay as well, which cannot
be measured here, and oneDNN's products, which are for AMD's processors (`product.py`). Each headline is a process of
its own on one thread, in which every kernel that it calls is switched off in turn, in a copy that never sees it: with,
without, with, without. Compared are the least times of a call, which neighbors disturb least: of the processor, but
for the store, which waits for a disk. V and I are the settings of update.py. Kernels of one group are switched off
together: one is of no use without the other, or each is too small to be told from noise.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import store as durable
import torch
from machine import child, machine, write
from replay import FORCES, MUJOCO, SAMPLERS, one_step
from update import CONTINUOUS, DISCRETE, IMAGE, SETTINGS, VECTOR, build

from reverie.algos.table import algorithm_config
from reverie.core import kernel_dispatch
from reverie.core.hardware import keep_freed_memory
from reverie.core.kernel_dispatch import Kernel, use_only_kernels
from reverie.core.specs import ActionPart, ActionSpec
from reverie.core.types import Update, Window
from reverie.experiment.noise import noise_batch, noise_step
from reverie.kernels import images, matmul, relu_mlp, tape
from reverie.kernels.registry import KERNELS
from reverie.replay.config import ReplayConfig
from reverie.store.store import ReplayStore

LEAST = 1.15
"""A kernel stays if some headline takes this many times as long without it."""

INSIDE: dict[str, tuple[list[Any], str, Any, set[str]]] = {
    "tape_ops": ([tape], "plain_calls", lambda *_: None, {"capture.run_captured", "inference.infer_captured"}),
    "winograd": ([images], "MIN_TILES", math.inf,
                 {"images.conv_pool_norm_silu_cpu", "images.conv_unfold_norm_silu_cpu"}),
    "matrix units": ([relu_mlp, matmul], "has_amx", lambda: False,
                     {"relu_mlp.perceptron_cpu", "matmul.linear_cpu"}),
}  # fmt: skip
"""What kernels use that has no row: modules, its name there, what to put there to be without it, and who uses it."""

TOGETHER = {
    "strided": ("strided.strided_conv_cpu", "strided.transposed_conv_cpu"),
    "losses and steps": ("losses.td0_cpu", "losses.masked_mean_cpu", "losses.squared_error_cpu", "optim.adam_cpu",
                         "optim.polyak_cpu"),
    "quantiles": ("losses.greedy_quantiles_cpu", "losses.quantile_targets_cpu", "losses.quantile_error_cpu"),
    "layers": ("elementwise.norm_silu_cpu", "packing.mlp_forward_cpu", "matmul.linear_cpu"),
    "statistics": ("rows.add_and_standardize_cpu", "rows.add_returns_cpu"),
    "tree": ("rows.tree_set_cpu", "rows.tree_draw_cpu"),
}  # fmt: skip
"""Kernels that are switched off together."""

Call = Callable[[], object]
Switch = Callable[[], AbstractContextManager[Any]]
"""Within what it returns, something is off."""


def name_of(kernel: Kernel) -> str:
    return f"{kernel.run.__module__.rsplit('.', 1)[1]}.{kernel.run.__name__}"


def groups() -> dict[str, list[Kernel]]:
    """All kernels of CPUs, in their groups."""
    group_of = {name: group for group, names in TOGETHER.items() for name in names}
    out: dict[str, list[Kernel]] = {}
    for _, kernel in KERNELS:
        name = name_of(kernel)
        if not name.startswith("gpu.") and name != "optim.fused_adam":
            out.setdefault(group_of.get(name, name), []).append(kernel)
    return out


def switches(called: set[Kernel]) -> dict[str, Switch]:
    """Ways to be without each group of which a kernel is called, and without what kernels use."""

    def without(kernels: list[Kernel]) -> Switch:
        return lambda: use_only_kernels(*(kernel for _, kernel in KERNELS if kernel not in kernels))

    def inside(places: list[Any], name: str, value: Any) -> Switch:
        return lambda: patched(places, name, value)

    rows = {group: without(kernels) for group, kernels in groups().items() if called.intersection(kernels)}
    names = {name_of(kernel) for kernel in called}
    return rows | {name: inside(*where) for name, (*where, users) in INSIDE.items() if names & users}


@contextmanager
def patched(places: list[Any], name: str, value: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(patch.object(place, name, value))
        yield


# ---------------------------------------------------------------------- headlines


def updates(algorithm: str, obs: Any, action: ActionSpec, **changes: Any) -> Call:
    learner = algorithm_config(algorithm)().merge(changes).build(obs, action, "cpu")
    return partial(learner.update, noise_batch(learner, obs, action))


def dreamer(setting: str) -> Call:
    learner = build(setting)
    return partial(learner.update, noise_batch(learner, *SETTINGS[setting][1:3]))


def acts(learner: Any, obs: Any) -> Call:
    step = noise_step(obs, 1)
    state = learner.policy.initial(1)
    return lambda: learner.policy.act(step, state, "explore")


def normalized() -> Call:
    """A step of PPO with the settings of MuJoCo: statistics of the row, and an action."""
    settings = {"normalize_obs": "running", "reward_scale": "return_std"}
    learner = algorithm_config("ppo")().merge(settings).build(MUJOCO, FORCES, "cpu")
    step, act = noise_step(MUJOCO, 1), acts(learner, MUJOCO)

    def call() -> None:
        learner.preprocess.update_statistics(step)
        act()

    return call


def small(algorithm: str, action: ActionSpec) -> Any:
    return algorithm_config(algorithm)().build(MUJOCO, action, "cpu")


def rows() -> dict[str, np.ndarray]:
    flags = {name: np.zeros((1, 100_000), bool) for name in ("is_first", "is_last", "is_terminal")}
    flags["is_first"][:, ::1000] = True
    shapes = {"obs/observation": (17,), "action": (6,), "reward": ()}
    return {**flags, **{name: np.ones((1, 100_000, *shape), np.float32) for name, shape in shapes.items()}}


def replay(sampler: str) -> Any:
    config = ReplayConfig(capacity=100_000).merge(SAMPLERS[sampler])
    window = Window(batch=256, length=2)
    made = config.build(obs_spec=MUJOCO, action_spec=FORCES, extra_spec={}, num_envs=1, window=window, seed=0)
    made.extend(rows())
    return made


def extends() -> Call:
    return partial(replay("uniform").extend, rows())


def adds() -> Call:
    made = replay("uniform")
    return partial(made.add, *one_step(MUJOCO, {}, FORCES, 1))


def samples(sampler: str) -> Call:
    made, update = replay(sampler), Update(metrics={}, priority=torch.rand(256))
    return lambda: made.feedback(made.sample().index, update)


def collects() -> Call:
    """512 turns of a collector of 0.1 ms, while the store's thread writes."""
    rows = durable.rows_of(durable.noise(1024))
    single = [{k: torch.from_numpy(np.ascontiguousarray(c[:, i])) for k, c in rows.items()} for i in range(512)]
    made, work = ReplayStore(Path(tempfile.mkdtemp(dir=SCRATCH.name))), durable.rounds_of(1e-4)
    made.begin(durable.COLUMNS, durable.ENVS)

    def call() -> None:
        for row in single:
            durable.work(work)
            made.add({name: column.clone() for name, column in row.items()})

    return call


def writes() -> Call:
    """A block of 512 rows of noise from 8 environments."""
    rows = durable.rows_of(durable.noise(1024))
    made = ReplayStore(Path(tempfile.mkdtemp(dir=SCRATCH.name)))
    made.begin(durable.COLUMNS, durable.ENVS)

    def call() -> None:
        made.extend(rows)
        made.flush()

    return call


SCRATCH = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # the thread of a store may still write
CHOICE = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(4,))})
FEW = {"batch_size": 4, "batch_length": 16}
HEADLINES: dict[str, Callable[[], Call]] = {
    "V": partial(dreamer, "V"),
    "dreamer_v2 V": partial(updates, "dreamer_v2", VECTOR, CONTINUOUS, **FEW),
    "dreamer_v2 I": partial(updates, "dreamer_v2", IMAGE, DISCRETE, **FEW),
    "dreamer_v1 V": partial(updates, "dreamer_v1", VECTOR, CONTINUOUS, **FEW),
    "act V": lambda: acts(build("V"), VECTOR),
    "act I": lambda: acts(build("I"), IMAGE),
    "act td3": lambda: acts(small("td3", FORCES), MUJOCO),
    "step ppo": normalized,
    **{name: partial(updates, name, MUJOCO, FORCES) for name in ("ddpg", "td3", "sac", "crossq", "cql", "iql", "bc")},
    **{
        name: partial(updates, name, MUJOCO, CHOICE)
        for name in ("dqn", "qr_dqn", "discrete_cql", "discrete_bcq", "discrete_crr")
    },
    "bc discrete": partial(updates, "bc", MUJOCO, CHOICE),
    "add": adds,
    "extend": extends,
    "sample": partial(samples, "uniform"),
    "sample by priority": partial(samples, "priority"),
    "collect": collects,
    "write": writes,
    "I": partial(dreamer, "I"),
}
"""What makes a call of each; V1 and V2 with small batches."""
WAITING = ("collect", "write")
"""Those that wait for a disk."""


# ---------------------------------------------------------------------- measuring


@contextmanager
def counted() -> Iterator[set[Kernel]]:
    """Fills up with the kernels that are called."""
    called: set[Kernel] = set()

    def spy(kernel: Kernel) -> Kernel:
        def run(*args: Any, **kwargs: Any) -> Any:
            called.add(kernel)
            return kernel.run(*args, **kwargs)

        return kernel._replace(run=run)

    with use_only_kernels(*(kernel for _, kernel in KERNELS)):  # puts back what is changed here
        for kernels in kernel_dispatch._kernels.values():
            kernels[:] = [spy(kernel) for kernel in kernels]
        yield called


def ready(make: Callable[[], Call], warm_up: int = 5, seconds: float = 2.0) -> Call:
    """A call that has captured what it captures."""
    call, end = make(), time.perf_counter() + seconds
    for done in range(warm_up):
        if done < 2 or time.perf_counter() < end:
            call()
    return call


def least_of(call: Call, calls: int, seconds: float, clock: Callable[[], float]) -> float:
    """The least seconds of a call, over groups of so many for about ``seconds``: what neighbors disturb least."""
    best, end = math.inf, clock() + seconds
    while best == math.inf or clock() < end:
        begun = clock()
        for _ in range(calls):
            call()
        best = min(best, (clock() - begun) / calls)
    return best


def measure(headline: str, chosen: list[str], rounds: int, seconds: float) -> list[dict[str, Any]]:
    """One row for each kernel that the headline calls."""
    make, clock = HEADLINES[headline], time.perf_counter if headline in WAITING else time.process_time
    with counted() as called:
        ready(make)
    usual, out = ready(make), []
    calls = max(1, round(1e-3 / least_of(usual, 1, seconds, clock)))
    for group, switch in switches(called).items():
        if chosen and group not in chosen:
            continue
        with switch():
            without = ready(make)
        times = []
        for _ in range(rounds):
            first = least_of(usual, calls, seconds, clock)
            with switch():
                times.append((first, least_of(without, calls, seconds, clock)))
        on, off = (min(each) for each in zip(*times, strict=True))
        out.append({"kernel": group, "headline": headline, "ms": 1e3 * on, "slower": off / on})
    return out


def verdicts(rows: list[dict[str, Any]]) -> Iterator[str]:
    """For each kernel the headline that it matters most to, largest first."""
    best = {name: max((r for r in rows if r["kernel"] == name), key=lambda r: r["slower"], default=None)
            for name in [*groups(), *INSIDE]}  # fmt: skip
    for name, row in sorted(best.items(), key=lambda item: -item[1]["slower"] if item[1] else 0):
        if row is None:
            yield f"{name:32} not called"
        else:
            stays = "" if row["slower"] >= LEAST else "  below 1.15"
            yield f"{name:32} {row['slower']:5.2f} x  {row['headline']}{stays}"


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--headlines", nargs="*", default=list(HEADLINES), choices=list(HEADLINES))
    parser.add_argument("--kernels", nargs="*", default=[], choices=[*groups(), *INSIDE], help="only these")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.05, help="of calls in each half of a round, at least one")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--child", action="store_true", help="measure the one headline here and print it")
    args = parser.parse_args()
    if args.child:
        torch.set_num_threads(1)
        keep_freed_memory()
        print(json.dumps(measure(args.headlines[0], args.kernels, args.rounds, args.seconds)))
        return 0
    rows: list[dict[str, Any]] = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    here = machine(1)
    words = ["--child", "--rounds", str(args.rounds), "--seconds", str(args.seconds), "--kernels", *args.kernels]
    for headline in args.headlines:
        found = child(Path(__file__), *words, "--headlines", headline)
        new = {(row["kernel"], row["headline"]) for row in found}
        rows = [row for row in rows if (row["kernel"], row["headline"]) not in new] + found
        write(args.out, here, rows)
        print(headline, file=sys.stderr, flush=True)
    print("\n".join(verdicts(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
