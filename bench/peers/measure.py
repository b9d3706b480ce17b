"""What every system's script shares: the settings, and one way to time a learner.

Imported inside of the systems' own environments, so it knows nothing but torch. Scripts whose learners can be elsewhere
than on the CPU say so to `main`; their numbers are the last line of the standard output too.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from gate import wait_for_turn

BATCH, LENGTH, HORIZON, ACTIONS = 16, 64, 15, 6
EARLIER = 50
"""Rows of a window of DreamerV1 and V2."""


@dataclass(frozen=True)
class Sizes:
    """The widths of a world model; those of `V` and `I` are `bench/update.py`'s."""

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
    batch: int = BATCH
    length: int = LENGTH


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
SIZES["V-12m"] = replace(SIZES["I"], image=False, continuous=True)
SIZES["I-50m"] = Sizes(image=True, deter=4096, dense_deter=2048, hidden=512, classes=32, depth=32, units=512)
SIZES["I-200m"] = Sizes(image=True, deter=8192, dense_deter=4096, hidden=1024, classes=64, depth=64, units=1024)
TINY = {"deter": 64, "dense_deter": 64, "hidden": 16, "classes": 4, "depth": 4, "units": 16, "batch": 2, "length": 8}
SIZES |= {f"{setting}-tiny": replace(SIZES[setting], **TINY) for setting in ("V", "I")}
"""DreamerV3's other sizes, as its authors name them, and one for rehearsals."""
USUAL = {"V": "1m", "I": "12m"}
"""The size that a setting has when none is named."""
SIZES |= {"R2-vector": SIZES["V"], "R2-image": SIZES["I"]}
"""R2-Dreamer, with its Barlow Twins loss, at the sizes of DreamerV3."""


@dataclass(frozen=True)
class Planned:
    """The task of TD-MPC2, at its authors' five million parameters."""

    vector: int = 24
    actions: int = 6


PLANNED = Planned()
PLANNING = {"T": (1, 8, 64), "B": (1,)}
"""The settings of TD-MPC2 and of BMPC, and for how many environments they act. BMPC plans as TD-MPC2 does."""
REANALYZED = 2
"""Windows that get new plans in each update of BMPC: the authors' 20 in each tenth, spread evenly."""


@dataclass(frozen=True)
class Place:
    """Where a learner computes, and how precisely."""

    device: str = "cpu"
    """``cpu`` or ``cuda``."""
    half: bool = False
    """Whether with its system's own mixed precision; all in float32 otherwise."""

    def prepare(self) -> None:
        """Make PyTorch's float32 mean float32, in convolutions too."""
        if not self.half:
            torch.set_float32_matmul_precision("highest")
            torch.backends.cudnn.allow_tf32 = False

    def peak(self) -> float:
        """Most of the GPU's memory that tensors held at once, in gigabytes."""
        return torch.cuda.max_memory_allocated() / 1e9 if self.device == "cuda" else 0.0

    def wait(self) -> None:
        """Until the GPU has done everything."""
        if self.device == "cuda":
            torch.cuda.synchronize()


@dataclass(frozen=True)
class Subject:
    """A learner with a batch of noise at hand."""

    parameters: int
    """What the optimizers train; no targets."""
    update: Callable[[], object]
    """World model, actor, critic, optimizers and target, once."""
    actor: Callable[[int], Callable[[], object]]
    """For so many environments, the function that decides once: on a GPU from observations and to actions outside."""
    precision: str = "float32"
    """What it computes in."""
    wait: Callable[[], object] = lambda: None
    """Returns when the device has done everything."""
    peak: Callable[[], float] = lambda: 0.0
    """Most of the device's memory that it took at once, in gigabytes."""
    recorded: int = 1
    """Updates during which it is recorded or compiled: these are not timed."""


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
    for _ in range(subject.recorded - 1):
        subject.update()
    out["update_s"], out["update_cpu_s"] = median(subject.update, seconds, 3)
    for envs in PLANNING.get(setting, (1, 8)):
        least = 3 // envs + 1 if setting in PLANNING else 50  # a plan takes as long as an update
        act = subject.actor(envs)
        act()  # ours records the first plan
        wall, processor = median(act, seconds / 8, least)
        out |= {f"act_{envs}_ms": 1e3 * wall, f"act_{envs}_cpu_ms": 1e3 * processor}
    out["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return out


WINDOWS = 5
"""Of updates without a wait between them."""


def timed_far(build: Callable[[], Subject], seconds: float, tiny: bool) -> dict[str, object]:
    """Every number of a learner on a device that works while Python goes on.

    Args:
        build: makes it.
        seconds: that all windows of updates take together, about; a window has two to fifty updates.
        tiny: whether one window and few calls do.
    """
    started = time.perf_counter()
    subject = build()
    subject.update()
    subject.wait()
    out: dict[str, object] = {"parameters": subject.parameters, "precision": subject.precision}
    out["first_update_s"] = time.perf_counter() - started
    for _ in range(1 if tiny else 8):  # some compile or record again in their first updates
        subject.update()
    subject.wait()
    acts = {envs: subject.actor(envs) for envs in (1, 16, 256)}
    for act in acts.values():
        for _ in range(1 if tiny else 5):
            act()
    wait_for_turn()
    out |= far_updates(subject, seconds, tiny)
    for envs, act in acts.items():
        out[f"act_{envs}_ms"] = 1e3 * median(act, 0.0 if tiny else 0.5, 3 if tiny else 20)[0]
    out["peak_gb"] = subject.peak()
    return out


def far_updates(subject: Subject, seconds: float, tiny: bool) -> dict[str, object]:
    """Seconds of an update, among others and alone."""

    def window(updates: int) -> float:
        started = time.perf_counter()
        for _ in range(updates):
            subject.update()
        subject.wait()
        return (time.perf_counter() - started) / updates

    alone = statistics.median(window(1) for _ in range(2 if tiny else 10))
    size = 2 if tiny else round(min(50, max(2, seconds / WINDOWS / alone)))
    times = [window(size) for _ in range(1 if tiny else WINDOWS)]
    return {"update_s": statistics.median(times), "update_synced_s": alone, "window": size, "windows_s": times}


def main(variants: dict[str, Callable[..., Subject]], movable: bool = False) -> None:
    """Time one variant in one setting, into a file.

    Args:
        variants: by name, what makes a learner from a setting.
        movable: whether they take a `Place` besides.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("setting", choices=[*SIZES, *PLANNING])
    parser.add_argument("out", type=Path)
    parser.add_argument("--variant", choices=list(variants), default=next(iter(variants)))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="of updates; an eighth of it for each way to act")
    if movable:
        parser.add_argument("--size", choices=["1m", "12m", "50m", "200m"], help="V: 1m, or 12m; I: 12m, or larger")
        parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
        parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
        parser.add_argument("--tiny", action="store_true", help="rehearse what is done on a GPU")
        parser.add_argument("--cudnn-benchmark", action="store_true", help="cuDNN times its convolutions and chooses")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if not movable:
        args.out.write_text(json.dumps(timed(variants[args.variant], args.setting, args.seconds)))
        return
    place = Place(args.device, args.precision == "bfloat16")
    torch.backends.cudnn.benchmark = args.cudnn_benchmark
    usual = args.size in (None, USUAL.get(args.setting))
    setting = f"{args.setting}-tiny" if args.tiny else args.setting if usual else f"{args.setting}-{args.size}"
    if setting not in SIZES and setting not in PLANNING:
        parser.error(f"no such size: {setting}")

    def build(setting: str) -> Subject:
        place.prepare()
        return variants[args.variant](setting, place)

    if args.device == "cuda" or args.tiny:
        words = {"script": Path(sys.argv[0]).stem, "variant": args.variant, "setting": setting, "device": args.device}
        numbers = words | timed_far(lambda: build(setting), args.seconds, args.tiny)
    else:
        numbers = timed(build, setting, args.seconds)
    args.out.write_text(json.dumps(numbers))
    print(json.dumps(numbers), flush=True)
