"""Hold a learner (a Dreamer, TD-MPC2, PPO, FQL and others) against a recording of other code, tensor by tensor.

    python tests/parity tests/golden/dreamerv3_image_discrete.npz [--tolerance 1e-4]

Builds our agent with the recorded sizes, loads the recorded weights, runs our code on the recorded batch with every
sample replaced by its mode, and compares every recorded tensor: outputs, loss terms, imagined trajectories, the
gradient of every parameter, metrics, and all parameters after three optimizer steps. Prints the largest relative error
of each tensor (relative to the tensor's own largest magnitude). Exits 1 if one is over its tolerance, 2 if the file
cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from . import bmpc, dreamer_v1_v2, dreamer_v3, offline, ogbench, pydreamer, r2dreamer, sb3, simba_v2, tdmpc2, xqc
from .comparison import TOLERANCES, Comparison


def compare(path: Path, output: float | None = None, update: float | None = None) -> Comparison:
    """The whole comparison of one recording, with the default tolerances of its kind unless others are given."""
    with np.load(path) as file:
        arrays = {k: file[k] for k in file.files}
    meta = json.loads(bytes(arrays.pop("meta")))
    module: Any = module_of(meta)
    of_output, of_update = getattr(module, "TOLERANCES", TOLERANCES)
    result = Comparison(output or of_output, update or of_update)
    module.compare(arrays, meta, result)
    return result


def module_of(meta: Mapping[str, Any]) -> ModuleType:
    """The module that compares a recording."""
    source, agent = str(meta.get("source", "")), str(meta.get("agent", ""))
    if "stable_baselines3" in meta.get("versions", {}):
        return sb3
    if source.startswith(("danijar/dreamer ", "danijar/dreamerv2 ")):
        return dreamer_v1_v2
    if source.startswith("jurgisp/pydreamer "):
        return pydreamer
    if source.split(" ")[0] in offline.COMPARISONS:
        return offline
    if source.startswith("seohongpark/ogbench "):
        return ogbench
    if source.startswith("danielpalenicek/xqc "):
        return xqc
    if source.startswith("DAVIAN-Robotics/SimbaV2 "):
        return simba_v2
    if agent.startswith("R2-Dreamer"):
        return r2dreamer
    if agent == "BMPC":
        return bmpc
    return tdmpc2 if agent == "TD-MPC2" else dreamer_v3


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a recording (.npz)")
    parser.add_argument(
        "--tolerance", type=float, help="default: outputs 1e-4, updates 1e-3; TD-MPC2 1e-4; PPO and A2C 1e-5, 5e-5"
    )
    args = parser.parse_args(argv)
    try:
        result = compare(args.file, args.tolerance, args.tolerance)
    except (OSError, KeyError, ValueError) as error:
        print(f"{args.file} cannot be compared: {error}", file=sys.stderr)
        return 2
    print(result)
    print(f"{len(result.lines)} tensors compared, {len(result.failed)} over tolerance")
    return 1 if result.failed else 0
