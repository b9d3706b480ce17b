"""The authors' TD-MPC2, from a checkout of its repository (its folder ``tdmpc2``) on Python's path, on the CPU.

Its device is fixed as ``cuda:0``, and its Adam as one that a CUDA graph may hold: both are changed, nothing else.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
import yaml
from measure import PLANNED, Subject, count, main

CHANGES = {"cuda:0": "cpu", "capturable=True": "capturable=False"}


def authors(name: str) -> Path:
    """The folder with the module ``name`` of the same name, on Python's path."""
    return next(Path(place) / name for place in sys.path if (Path(place) / name / f"{name}.py").exists())


def settings(name: str, **changes: object) -> SimpleNamespace:
    """Their configuration, with ``changes``, at five million parameters, for a single task of states."""
    plain = (
        (authors(name) / "config.yaml").read_text().replace("10_000_000", "10000000").replace("1_000_000", "1000000")
    )
    held = {k: v for k, v in yaml.safe_load(plain).items() if v != "???"}
    for key, value in held.items():
        if isinstance(value, str) and value.replace("e-", "").replace(".", "").isdigit():
            held[key] = float(value)  # YAML reads 3e-4 as text
    spaces = {"obs_shape": {"state": (PLANNED.vector,)}, "action_dim": PLANNED.actions, "episode_length": 500}
    more = {"multitask": False, "tasks": ["noise"], "task_dim": 0, "compile": False}
    found = SimpleNamespace(**{**held, **spaces, **more, **changes})
    found.bin_size = (found.vmax - found.vmin) / (found.num_bins - 1)
    found.get = lambda name, default=None: getattr(found, name, default)
    return found


def changed(name: str) -> str:
    """A copy of their folder, for the CPU."""
    folder = Path(tempfile.mkdtemp()) / name
    shutil.copytree(authors(name), folder)
    for file in folder.rglob("*.py"):
        text = file.read_text()
        for old, new in CHANGES.items():
            text = text.replace(old, new)
        file.write_text(text)
    return str(folder)


class Noise:
    """A replay whose batch is always the same noise."""

    def __init__(self, cfg: SimpleNamespace):
        h, b = cfg.horizon, cfg.batch_size
        self.batch = (
            torch.randn(h + 1, b, PLANNED.vector), torch.rand(h, b, PLANNED.actions) * 2 - 1, torch.randn(h, b, 1),
            torch.zeros(h, b, 1), None,
        )  # fmt: skip

    def sample(self) -> tuple[torch.Tensor | None, ...]:
        """The batch."""
        return self.batch


def learner(
    setting: str, name: str = "tdmpc2", kind: str = "TDMPC2", noise: type[Noise] = Noise, **changes: object
) -> Subject:
    """Its ``update``, and its ``act``, which knows one environment: for several it is called one after the other.

    The agent is the class ``kind`` of the module ``name``.
    """
    cfg = settings(name, **changes)
    sys.path.insert(0, changed(name))
    agent = getattr(importlib.import_module(name), kind)(cfg)
    replay, m = noise(cfg), agent.model

    def actor(envs: int) -> Callable[[], object]:
        shown = torch.randn(envs, PLANNED.vector)
        return lambda: [agent.act(one, t0=False) for one in shown]

    trained = count(m._encoder, m._dynamics, m._reward, m._pi, m._Qs)
    return Subject(trained, lambda: agent.update(replay), actor)


if __name__ == "__main__":
    main({"tdmpc2": learner})
