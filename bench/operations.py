#!/usr/bin/env python3
"""How many kernels one update of DreamerV3 would launch on a GPU, and which functions launch them. It needs no GPU.

    python bench/operations.py [--settings V I] [--precision float32 bfloat16] [--out bench/operations.json]

The learner stands on PyTorch's meta device, where operations have shapes and no numbers. Every operation that is not
merely a view counts as one kernel, as does every start of a Triton kernel. What PyTorch would launch without Triton is
counted as well. RMSNorm is then one operation on a GPU, forwards, and two backwards; elsewhere PyTorch takes it apart,
so it is counted by a stand-in. Settings are those of `update.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from results import save
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from update import SETTINGS, config

import reverie
from reverie.core.version import version
from reverie.experiment.bench import noise_batch
from reverie.kernels import gpu

PACKAGE = f"{Path(reverie.__file__).parent}{os.sep}"
"""Where the library lies; a clone's folder may have the same name."""
VIEWS = {
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "diagonal", "empty", "empty_like",
    "empty_strided", "expand", "lift_fresh", "new_empty", "new_empty_strided", "permute", "select", "slice", "split",
    "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze", "view",
}  # fmt: skip
"""Operations that launch nothing."""
SHOWN = 12
"""Functions that are listed by name; the rest is one number."""


class Norm(torch.autograd.Function):
    """As many operations as RMSNorm's on a GPU: one forwards, one backwards for each gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return x.neg()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        _, scale = ctx.saved_tensors
        return grad.neg(), scale.neg()


class Kernels(TorchDispatchMode):
    """Counts operations by the function of this library that asks for them; autograd's by the one that calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.by_function: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ not in VIEWS:
            self.launched()
        return func(*args, **(kwargs or {}))

    def launched(self, *args: Any, **constants: Any) -> None:
        """One kernel more."""
        own = [f for f in traceback.extract_stack(limit=16) if f.filename.startswith(PACKAGE)]
        place = own[-1].filename.removeprefix(PACKAGE) if own else "elsewhere"
        self.by_function[f"{place}: {own[-1].name}" if own else place] += 1


def count(name: str, precision: str, steps: int | None = None, triton: bool = True) -> Counter[str]:
    """Kernels of one update by function; ``steps``: the length of its windows; ``triton``: whether it is there."""
    _, obs, action, _ = SETTINGS[name]
    cfg = config(name, precision)
    agent = cfg.merge({"batch_length": steps or cfg.batch_length}).build(obs, action, device="meta")
    data = noise_batch(agent, obs, action).to(torch.device("meta"))
    ready = patch.object(gpu, "ready", lambda *tensors: triton)
    with ready, Kernels() as kernels, patch.object(gpu, "_launch", kernels.launched):
        agent.train_step(data)
    return kernels.by_function


def main() -> int:
    """Count, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="*", default=["V", "I"], choices=list(SETTINGS))
    parser.add_argument("--precision", nargs="*", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    os.environ["REVERIE_KERNELS"] = "off"  # compiled functions are for CPUs alone
    torch.nn.functional.rms_norm = lambda x, shape, weight=None, eps=None: Norm.apply(x, weight)
    rows = []
    for name, precision in [(n, p) for n in args.settings for p in args.precision]:
        found, plain = count(name, precision), count(name, precision, triton=False)
        first = dict(found.most_common(SHOWN))
        rest = found.total() - sum(first.values())
        half = config(name, precision).batch_length // 2
        shorter = count(name, precision, half)
        step = (found.total() - shorter.total()) / half  # of the recurrence, forwards and backwards
        row = {"setting": name, "precision": precision, "kernels": found.total(), "kernels_of_a_step": step}
        rows.append({**row, "kernels_without_triton": plain.total(), "by_function": first, "rest": rest})
        print(
            f"{name}, {precision}: {found.total():,} kernels, {plain.total():,} without Triton; "
            f"{step:.3g} for each of {2 * half} steps of the windows"
        )
        for place, number in first.items():
            print(f"  {number:6,}  {place}")
        print(f"  {rest:6,}  the rest", flush=True)
    save(args.out, {"torch": torch.__version__, "reverie": version(), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
