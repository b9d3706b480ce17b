"""What every system's script shares: the settings, and one way to time a learner.

Imported inside of the systems' own environments, so it knows nothing but torch.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

BATCH, LENGTH, HORIZON, ACTIONS = 16, 64, 15, 6
EARLIER = 50
"""Rows of a window of DreamerV1 and V2."""


@dataclass(frozen=True)
class Sizes:
    """The widths of a world model; those of `V` and `I` are `benchmarks/update.py`'s."""

    image: bool
    deter: int
    dense_deter: int
    """The width at which a dense GRU is about as large; for systems without the block-diagonal one."""
    hidden: int
    classes: int
    depth: int
    units: int
    stoch: int = 32
    vector: int = 24
    continuous: bool = False
    """Whether the six actions are numbers; six choices otherwise."""


def earlier(image: bool, stoch: int, classes: int, depth: int) -> Sizes:
    """Those of DreamerV1 and V2, all alike but for the latents; V1's actions are numbers, as in its paper."""
    sizes = {"deter": 200, "dense_deter": 200, "hidden": 200, "units": 400}
    return Sizes(image=image, stoch=stoch, classes=classes, depth=depth, continuous=classes == 1, **sizes)


SIZES = {
    "V": Sizes(image=False, deter=512, dense_deter=288, hidden=64, classes=4, depth=4, units=64, continuous=True),
    "I": Sizes(image=True, deter=2048, dense_deter=1024, hidden=256, classes=16, depth=16, units=256),
    "V1-vector": earlier(image=False, stoch=30, classes=1, depth=32),
    "V1-image": earlier(image=True, stoch=30, classes=1, depth=32),
    "V2-vector": earlier(image=False, stoch=32, classes=32, depth=48),
    "V2-image": earlier(image=True, stoch=32, classes=32, depth=48),
}
"""By setting; V1 and V2 name DreamerV1 and V2, the others are DreamerV3's."""
SIZES |= {"R2-vector": SIZES["V"], "R2-image": SIZES["I"]}
"""R2-Dreamer, with its Barlow Twins loss, at the sizes of DreamerV3."""


@dataclass(frozen=True)
class Planned:
    """The task of TD-MPC2, at its authors' five million parameters."""

    vector: int = 24
    actions: int = 6


PLANNED = Planned()
PLANNING = "T"
"""The setting of TD-MPC2."""


@dataclass(frozen=True)
class Subject:
    """A learner with a batch of noise at hand."""

    parameters: int
    """What the optimizers train; no targets."""
    update: Callable[[], object]
    """World model, actor, critic, optimizers and target, once."""
    actor: Callable[[int], Callable[[], object]]
    """For so many environments, the function that decides once."""


def count(*modules: torch.nn.Module) -> int:
    """How many numbers these modules train."""
    unique = {id(p): p for module in modules for p in module.parameters() if p.requires_grad}
    return sum(p.numel() for p in unique.values())


def actions(sizes: Sizes, *lead: int) -> torch.Tensor:
    """Noise as actions: numbers in [-1, 1], or one-hot."""
    if sizes.continuous:
        return torch.rand(*lead, ACTIONS) * 2 - 1
    return torch.nn.functional.one_hot(torch.randint(0, ACTIONS, lead), ACTIONS).float()


def median(call: Callable[[], object], seconds: float, least: int) -> tuple[float, float]:
    """Seconds of one call and of the processors in it: medians of as many as fit into `seconds`, at least `least`."""
    times: list[tuple[float, float]] = []
    while sum(wall for wall, _ in times) < seconds or len(times) < least:
        started = time.perf_counter(), time.process_time()
        call()
        times.append((time.perf_counter() - started[0], time.process_time() - started[1]))
    wall, processor = (statistics.median(column) for column in zip(*times, strict=True))
    return wall, processor


def timed(build: Callable[[str], Subject], setting: str, seconds: float) -> dict[str, float]:
    """Every number of one learner; the first update includes building it, and no import."""
    started = time.perf_counter()
    subject = build(setting)
    subject.update()
    out = {"parameters": subject.parameters, "first_update_s": time.perf_counter() - started}
    least = 8 if setting == PLANNING else 3  # of which ours records the first ones, and repeats the others
    out["update_s"], out["update_cpu_s"] = median(subject.update, seconds, least)
    for envs in (1, 8, 64) if setting == PLANNING else (1, 8):
        least = 3 // envs + 1 if setting == PLANNING else 50  # a plan takes as long as an update
        act = subject.actor(envs)
        act()  # ours records the first plan
        wall, processor = median(act, seconds / 8, least)
        out |= {f"act_{envs}_ms": 1e3 * wall, f"act_{envs}_cpu_ms": 1e3 * processor}
    out["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return out


def main(variants: dict[str, Callable[[str], Subject]]) -> None:
    """Time one variant in one setting, into a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("setting", choices=[*SIZES, PLANNING])
    parser.add_argument("out", type=Path)
    parser.add_argument("--variant", choices=list(variants), default=next(iter(variants)))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="of updates; an eighth of it for each way to act")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    args.out.write_text(json.dumps(timed(variants[args.variant], args.setting, args.seconds)))
