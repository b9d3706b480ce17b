"""Hold BMPC against a recording of its authors' code by ``tests/golden/record_bmpc.py``: a plan, and three updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.algos import tdmpc2
from reverie.algos.bmpc import BMPCConfig
from reverie.algos.tdmpc2_planner import PLANNED
from reverie.core.types import Batch

from . import tdmpc2 as planned
from .comparison import MISSING, Comparison

Arrays = dict[str, np.ndarray]
TOLERANCES = planned.TOLERANCES
INFO = {theirs: ours for theirs, ours in planned.INFO.items() if theirs != "termination_loss"}
"""The authors' metrics and ours."""
OWN = ("td_horizon", "reanalyze_interval", "reanalyze_batch_size")
"""Settings with one name in both."""


def split(flat: np.ndarray, shapes: Mapping[str, list[int]], prefix: str) -> Arrays:
    """The parameters of a recorded vector by name."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    parts = np.split(flat, ends[:-1])
    return {f"{prefix}/{k}": x.reshape(shape) for (k, shape), x in zip(shapes.items(), parts, strict=True)}


class Recording(planned.Recording):
    """A recording, and our agent with its weights."""

    base = BMPCConfig()

    def __init__(self, arrays: Arrays, meta: Mapping[str, Any], result: Comparison) -> None:
        s = meta["config"]
        self.base = BMPCConfig().merge({name: s[name] for name in OWN} | {
            "reanalyze_min_log_std": float(s["expl_log_std_min"]), "normalize_obs": None,
        })  # fmt: skip
        super().__init__(arrays, meta, result)
        # Where windows overlap the later one counts: ours plan anew for the last windows, theirs for the first.
        self.shift = -s["reanalyze_batch_size"]

    def rows(self, x: np.ndarray | Tensor) -> Tensor:
        """Windows ``[T, B, ...]`` of theirs as ours."""
        return torch.as_tensor(x).roll(self.shift, 1).transpose(0, 1)

    def batch(self, number: int) -> Batch:
        """Return a recorded batch as rows."""
        d = {k: self.rows(v) for k, v in self.under(f"data/update{number}/").items() if v.shape[:1] != (1,) and k in
             ("obs", "action", "reward", "planned")}  # fmt: skip
        obs, no = d["obs"], torch.zeros(d["obs"].shape[:2], dtype=torch.bool)
        known = F.pad(d["planned"].nan_to_num(0.0), (0, 0, 0, 1)).unflatten(-1, (2, -1))  # type: ignore[no-untyped-call]
        return Batch(
            obs={"state": obs}, action=F.pad(d["action"], (0, 0, 0, 1)), reward=F.pad(d["reward"][..., 0], (1, 0)),
            is_first=no, is_last=no, is_terminal=no, weight=torch.ones(len(obs)), index=torch.arange(len(obs)),
            extras={PLANNED: known},
        )  # fmt: skip

    def draws(self, prefix: str, planned_windows: int = 0) -> planned.Recorded:
        """Return what the authors drew; the first of it for plans of rows of ``planned_windows``."""
        d, s = self.under(f"{prefix}/"), self.settings
        normal, pairs = ([d[f"{k}{i}"] for i in range(sum(n.startswith(k) for n in d))] for k in ("normal", "pair"))
        gumbel = None
        if "exponential0" in d:
            length, count = s["horizon"], s["horizon"] + s["iterations"]

            def in_our_order(x: np.ndarray) -> np.ndarray:
                axes = (length, planned_windows or 1, *x.shape[1:])
                return x.reshape(axes).swapaxes(0, 1).reshape(x.shape) if planned_windows else x

            plan = [in_our_order(x) for x in normal[:count]]
            plan = [x.swapaxes(0, 1) if x.ndim == 4 else x for x in plan]
            last = [] if planned_windows else normal[count : count + 1]  # noise of an action that nobody takes
            normal = plan + last + normal[count + 1 :]
            gumbel = -np.log(in_our_order(d["exponential0"]))
        if not prefix.endswith("plan"):
            normal = [x if x.ndim != 3 or len(x) != s["horizon"] or x.shape[1] != s["batch_size"]
                      else np.roll(x, self.shift, 1) for x in normal]  # fmt: skip
        return planned.Recorded([np.ascontiguousarray(x) for x in normal], pairs, gumbel)

    def plan(self) -> None:
        """A plan that goes on with the one before it."""
        self.o.draws = self.draws("data/plan")
        obs = {"state": torch.from_numpy(self.arrays["data/plan/obs"])[None]}
        action, after = self.act(obs, torch.from_numpy(self.arrays["data/plan/before"]), "tn_train")
        self.add("out/plan/", {"action": action, "planned": after.planned.flatten(), "mean": after.mean})

    def update(self, number: int) -> None:
        """One update: targets, losses, metrics, new plans; and gradients of the first."""
        s = self.settings
        anew = (number + 1) % s["reanalyze_interval"] == 0
        self.o.draws = self.draws(f"data/update{number}", s["reanalyze_batch_size"] if anew else 0)
        names = {id(p): name for name, p in self.agent.named_parameters()}
        grads: dict[str, Tensor] = {}
        seen: dict[str, Any] = {}

        def gradient_steps(loss: Tensor, optims: Any, limit: float) -> Tensor:
            params = [p for optim in optims for p in optim.params]
            found = torch.autograd.grad(loss, params, retain_graph=True)
            grads.update({names[id(p)]: x for p, x in zip(params, found, strict=True)})
            seen.setdefault("total", loss.detach())
            return step(loss, optims, limit)

        step = tdmpc2.joint_gradient_step
        with (
            mock.patch.object(tdmpc2, "joint_gradient_step", gradient_steps),
            self.watched(self.o, "unroll", lambda found, batch: seen.update(target=found.target)),
            self.watched(self.o, "policy_loss", lambda found, z, batch: seen.update(policy=found[1])),
        ):
            update = self.agent.update(self.batch(number))
        said: dict[str, Any] = {theirs: update.metrics[ours] for theirs, ours in INFO.items()}
        policy = seen["policy"]
        said |= {"total_loss": seen["total"], "pi_scaled_entropy": policy.scaled_entropy.mean()}
        said |= {"pi_log_std": policy.log_std.mean(), "td_targets": seen["target"].roll(-self.shift, 1)}
        if anew:  # theirs are of rows 1 ... H, which hold the actions that led there
            plans = update.extras[PLANNED][self.shift :, :-1].flatten(2).transpose(0, 1)  # [H, b, 2 A]
            said["planned"] = F.pad(plans, (0, 0, 0, s["batch_size"] + self.shift, 1, 0))
        self.add(f"out/update{number}/", said)
        if number == 0:
            table = dict(self.names())
            for theirs, value in self.under("grad/").items():
                if not np.isnan(value).all():
                    ours = grads.get(table[theirs])
                    found = MISSING if ours is None else self.to_theirs(theirs, ours)
                    self.result.add(f"grad/{theirs}", found, value, "update")


def compare(arrays: Arrays, meta: Mapping[str, Any], result: Comparison) -> None:
    """Compare a recording of BMPC."""
    for name in ("param", "grad", "step3"):
        arrays |= split(arrays.pop(name), meta["parameters"], name)
    settings = meta["config"] | {"episodic": False, "termination_coef": 1.0}
    recording = Recording(arrays, {**meta, "config": settings}, result)
    recording.plan()
    for number in range(3):
        recording.update(number)
    recording.add("step3/", {k: recording.to_theirs(k, recording.agent.state_dict()["model"][v])
                             for k, v in recording.names()}, "update")  # fmt: skip
