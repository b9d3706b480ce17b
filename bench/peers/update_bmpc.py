"""The authors' BMPC, from a checkout of its repository (its folder ``bmpc``) on Python's path, on the CPU.

It is a fork of TD-MPC2, and changed alike. Every update makes new plans for two windows: their 20 of ten updates.
"""

from __future__ import annotations

import contextlib
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import update_tdmpc2 as base
from measure import PLANNED, REANALYZED, main


class Noise(base.Noise):
    """A replay whose batch is always the same noise with plans, and which new plans can be written to."""

    def __init__(self, cfg: SimpleNamespace):
        super().__init__(cfg)
        h, b, width = cfg.horizon, cfg.batch_size, 2 * PLANNED.actions
        rows = (h + 1) * b
        self.extras = {"expert_action_dist": torch.rand(h, b, width), "index": torch.arange(rows).view(h + 1, b)}
        columns = {"expert_action_dist": torch.zeros(rows, width), "expert_value": torch.zeros(rows)}
        storage = SimpleNamespace(_storage=columns, device="cpu")
        self._buffer = SimpleNamespace(_replay_lock=contextlib.nullcontext(), _storage=storage)

    def sample(self) -> tuple[Any, ...]:
        """The batch."""
        obs, action, reward, _, task = self.batch
        return obs, action, reward, task, self.extras


if __name__ == "__main__":
    main({"bmpc": partial(base.learner, name="bmpc", kind="BMPC", noise=Noise, reanalyze_interval=1,
                          reanalyze_batch_size=REANALYZED)})  # fmt: skip
