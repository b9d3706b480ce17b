"""Short runs that learn from recorded data, and the weights that they end with."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import reverie
from reverie.run.checkpoint import Checkpoints

SMALL: dict[str, Any] = {
    "threads": 1, "eval_episodes": 1, "tensorboard": False, "console": False,
    "algo.batch_size": 8, "algo.batch_length": 2, "algo.networks.units": (8,),
}  # fmt: skip
ON_DATA = SMALL | {"data.estimate_updates": 0}


def train(data: Any, run: Path, **more: Any) -> reverie.TrainResult:
    return reverie.train(more.pop("algorithm", "td3"), data=data, run=run, **ON_DATA | more)


def weights(run: Path) -> dict[str, torch.Tensor]:
    files = sorted(Checkpoints(run / "checkpoints").latest().rglob("*.safetensors"))
    return {f"{file.parent.name}/{name}": value for file in files for name, value in load_file(file).items()}
