#!/usr/bin/env python3
"""Why ``kernels/matmul.py`` exists: float32 matrix products through MKL and through oneDNN, in pairs.

python benchmarks/product.py [--threads 1]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from results import save

from reverie.kernels import matmul

SHAPES = [(16, 256, 64), (128, 128, 64), (512, 256, 64), (8192, 256, 64), (8192, 64, 255), (16384, 640, 64)]


def seconds(call: object, times: int) -> float:
    """Of one call."""
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times


def main() -> None:
    """Print and write one row a shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if matmul._product is None:
        raise SystemExit("this build of PyTorch does not have the operator")
    rows = []
    for m, k, n in SHAPES:
        x, weight, bias = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
        pair = (
            lambda x=x, w=weight, b=bias: F.linear(x, w, b),
            lambda x=x, w=weight, b=bias: matmul._product(x, w, b, "none", [], ""),
        )
        times = max(3, int(2e9 / (2 * m * k * n) / 10))
        samples = [[seconds(call, times) for call in pair] for _ in range(7)]  # A B A B ...
        mkl, onednn = (statistics.median(s[i] for s in samples) for i in (0, 1))
        rows.append({"shape": [m, k, n], "mkl_us": mkl * 1e6, "onednn_us": onednn * 1e6, "ratio": mkl / onednn})
        print(json.dumps({key: v if key == "shape" else round(v, 2) for key, v in rows[-1].items()}), flush=True)
    out = {"torch": torch.__version__, "threads": args.threads, "rows": rows}
    save(Path(__file__).with_suffix(".json"), out)


if __name__ == "__main__":
    main()
