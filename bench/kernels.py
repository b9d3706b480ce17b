#!/usr/bin/env python3
"""What each group of kernels is worth: how much slower are updates, actions, the replay and the store without it?

    python bench/kernels.py [--headlines V I td3 ...] [--groups optim relu_mlp ...] [--rounds 5] [--out FILE]

A group stays if some headline takes at least 1.3 times as long without it, or if it makes some headline 1.3 times as
fast beside `capture` and `optim` alone, or if it saves a third of a headline's memory, as `images` does of I. Those for
GPUs stay as well, which cannot be measured here. Each headline is a
process of its own on one thread. In it, each group that it calls is switched off alone, and switched on alone beside
`capture` and `optim`, in copies of the learner: with, without, with, without. A factor is the median of the rounds'
ratios; the time of a round is the least of its calls, which neighbors disturb least: of the processor, but for the
store, which waits for a disk. V is the setting of update.py, I as well but with batches of 4 x 16.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import store as durable
import torch
from machine import child, machine, write
from replay import FORCES, MUJOCO, SAMPLERS, one_step
from update import CONTINUOUS, DISCRETE, IMAGE, SETTINGS, VECTOR, build, config

from reverie.algos.table import algorithm_config
from reverie.core import kernel_dispatch
from reverie.core.hardware import keep_freed_memory
from reverie.core.kernel_dispatch import Kernel, use_only_kernels
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Update, Window
from reverie.experiment.bench import noise_batch, noise_step
from reverie.kernels import tape
from reverie.kernels.capture import WARM_UPS
from reverie.kernels.registry import KERNELS
from reverie.replay.build import build_replay
from reverie.replay.config import ReplayConfig
from reverie.store.store import ReplayStore

LEAST = 1.3
"""A group stays if it makes some headline this many times as fast."""

INSIDE: dict[str, tuple[list[Any], str, Any, str]] = {
    "tape_ops": ([tape], "plain_calls", lambda *_: None, "capture inference"),
}
"""What kernels use that has no row: modules, its name there, what to put there to be without it, and which groups
use it."""

APART = {
    "perceptron_by_layers_cpu": "relu_mlp by layers", "normed_perceptron_cpu": "relu_mlp by layers",
}  # fmt: skip
"""Kernels that are not of the group of their file, and their groups."""

RECORDING = {"capture", "inference"}
"""Groups that record the first calls, which takes long."""

BASE = ("capture", "optim")
"""Groups beside which another is switched on alone."""

Call = Callable[[], object]
Switch = Callable[[], AbstractContextManager[Any]]
"""Within what it returns, something is off."""


def groups() -> dict[str, list[Kernel]]:
    """All kernels of CPUs, in their groups: by file, but for `APART`."""
    out: dict[str, list[Kernel]] = {}
    for _, kernel in KERNELS:
        file, name = kernel.run.__module__.rsplit(".", 1)[1], kernel.run.__name__
        if not file.endswith(("gpu", "policy_graphs")) and name != "fused_adam":
            out.setdefault(APART.get(name, file), []).append(kernel)
    return out


def without(group: str) -> Switch:
    """All kernels but those of ``group``."""
    off = groups()[group]
    return lambda: use_only_kernels(*(kernel for _, kernel in KERNELS if kernel not in off))


def only(*names: str) -> Switch:
    """No kernels but those of these groups."""
    return lambda: use_only_kernels(*(kernel for name in names for kernel in groups()[name]))


def pairs(used: set[str], chosen: list[str]) -> Iterator[tuple[str, str, Switch, Switch]]:
    """For each group that is ``used`` and ``chosen``: with it and without it, in each of the two ways."""
    for group in groups():
        if group in used and (not chosen or group in chosen):
            base = [name for name in BASE if name != group]
            yield group, "slower", nullcontext, without(group)
            yield group, "alone", only(*base, group), only(*base)
    for name, (places, attribute, value, users) in INSIDE.items():
        if used.intersection(users.split()) and (not chosen or name in chosen):
            yield name, "slower", nullcontext, partial(patched, places, attribute, value)


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


def dreamer(setting: str, **changes: Any) -> Call:
    _, obs, action, _ = SETTINGS[setting]
    learner = config(setting).merge(changes).build(obs, action, "cpu")
    return partial(learner.update, noise_batch(learner, obs, action))


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
    made = build_replay(config, obs_spec=MUJOCO, action_spec=FORCES, extra_spec={}, num_envs=1, window=window, seed=0)
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


SCRATCH = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # the thread of a store may still write
CHOICE = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(4,))})
FEW = {"batch_size": 4, "batch_length": 16}
CONTINUOUS_LEARNERS = ("td3", "sac", "ppo", "crossq", "rebrac", "fql", "tdmpc2")
DROQ = {"networks.critic_norm": "before_relu", "networks.critic_dropout": 0.01}
FRAMES = {"image": ObsPart(kind="image", shape=(84, 84, 4), dtype="uint8")}
COLORS = {"image": ObsPart(kind="image", shape=(84, 84, 3), dtype="uint8")}
NATURE = {"batch_size": 32, "networks.units": (512,), "networks.encoder": "nature"}
SHARED = {"networks.share_encoder": True, "networks.activation": "relu"}
HEADLINES: dict[str, Callable[[], Call]] = {
    "V": partial(dreamer, "V"),
    "I": partial(dreamer, "I", **FEW),
    "dreamer_v2 V": partial(updates, "dreamer_v2", VECTOR, CONTINUOUS, **FEW),
    "dreamer_v2 I": partial(updates, "dreamer_v2", IMAGE, DISCRETE, **FEW),
    "dreamer_v1 V": partial(updates, "dreamer_v1", VECTOR, CONTINUOUS, **FEW),
    "act V": lambda: acts(build("V"), VECTOR),
    "act I": lambda: acts(build("I"), IMAGE),
    "act td3": lambda: acts(small("td3", FORCES), MUJOCO),
    "step ppo": normalized,
    **{name: partial(updates, name, MUJOCO, FORCES) for name in CONTINUOUS_LEARNERS},
    **{name: partial(updates, name, MUJOCO, CHOICE) for name in ("dqn", "qr_dqn")},
    "add": adds,
    "extend": extends,
    "sample": partial(samples, "uniform"),
    "sample by priority": partial(samples, "priority"),
    "collect": collects,
    "droq": partial(updates, "sac", MUJOCO, FORCES, **DROQ),
    "dqn images": partial(updates, "dqn", FRAMES, CHOICE, **NATURE),
    "ppo images": partial(updates, "ppo", FRAMES, CHOICE, **NATURE | {"batch_size": 256, **SHARED}),
    "sac images": partial(updates, "sac", COLORS, FORCES, **{"batch_size": 64, "networks.encoder": "drq"}),
}
"""What makes a call of each; images of world models and V1 and V2 with small batches."""
WAITING = ("collect",)
"""Those that wait for a disk."""


# ---------------------------------------------------------------------- measuring


@contextmanager
def counted() -> Iterator[set[str]]:
    """Fills up with the groups of which a kernel is called, whether or not another fits before it."""
    used: set[str] = set()

    def spy(kernel: Kernel, group: str) -> Kernel:
        def fits(*args: Any, **kwargs: Any) -> bool:
            if group not in used and kernel.fits(*args, **kwargs):
                used.add(group)
            return False

        return Kernel(fits, kernel.run)

    group_of = {id(kernel.run): name for name, kernels in groups().items() for kernel in kernels}
    with use_only_kernels(*(kernel for _, kernel in KERNELS)):  # puts back what is changed here
        for kernels in kernel_dispatch._kernels.values():
            kernels[:] = [spy(k, group_of[id(k.run)]) for k in kernels if id(k.run) in group_of]
        yield used


def ready(make: Callable[[], Call], switch: Switch, calls: int) -> Call:
    """A call within ``switch``, after ``calls`` that choose and record what later ones replay."""
    with switch():
        call = make()
        for _ in range(calls):
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
    """One row for each group that the headline calls."""
    make, clock = HEADLINES[headline], time.perf_counter if headline in WAITING else time.process_time
    with counted() as used:
        make()()
    begin = partial(ready, make, calls=2 * (WARM_UPS + 2) if used & RECORDING else 2)  # twice: actors that wait
    usual = begin(nullcontext)
    calls = max(1, round(1e-3 / least_of(usual, 1, seconds, clock)))
    rows: dict[str, dict[str, Any]] = {}
    for group, way, on, off in pairs(used, chosen):
        both = (usual if on is nullcontext else begin(on), on), (begin(off), off)
        times = []
        for _ in range(rounds):
            for call, switch in both:
                with switch():
                    times.append(least_of(call, calls, seconds, clock))
        row = rows.setdefault(group, {"group": group, "headline": headline, "ms": 1e3 * median(times[::2])})
        row[way] = median([without / with_it for with_it, without in zip(times[::2], times[1::2], strict=True)])
    return list(rows.values())


def worth(row: dict[str, Any]) -> float:
    """How many times as fast a group makes a headline, in the better of the two ways."""
    return max(row["slower"], row.get("alone", 0.0))


def verdicts(rows: list[dict[str, Any]]) -> Iterator[str]:
    """For each group the headline that it matters most to, largest first."""
    best = {name: max((r for r in rows if r["group"] == name), key=worth, default=None)
            for name in [*groups(), *INSIDE]}  # fmt: skip
    for name, row in sorted(best.items(), key=lambda item: -worth(item[1]) if item[1] else 0):
        if row is None:
            yield f"{name:32} not called"
        else:
            yield f"{name:32} {worth(row):5.2f} x  {row['headline']}{'' if worth(row) >= LEAST else '  below 1.3'}"


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--headlines", nargs="*", default=list(HEADLINES), choices=list(HEADLINES))
    parser.add_argument("--groups", nargs="*", default=[], choices=[*groups(), *INSIDE], help="only these")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.05, help="of calls in each half of a round, at least one")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--child", action="store_true", help="measure the one headline here and print it")
    args = parser.parse_args()
    if args.child:
        torch.set_num_threads(1)
        keep_freed_memory()
        print(json.dumps(measure(args.headlines[0], args.groups, args.rounds, args.seconds)))
        return 0
    rows: list[dict[str, Any]] = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    here = machine(1)
    words = ["--child", "--rounds", str(args.rounds), "--seconds", str(args.seconds), "--groups", *args.groups]
    for headline in args.headlines:
        found = child(Path(__file__), *words, "--headlines", headline)
        new = {(row["group"], row["headline"]) for row in found}
        rows = [row for row in rows if (row["group"], row["headline"]) not in new] + found
        write(args.out, here, rows)
        print(headline, file=sys.stderr, flush=True)
    print("\n".join(verdicts(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
