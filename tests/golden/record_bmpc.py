"""Record a plan and a few updates of the authors' BMPC, for ``tests/parity``.

    python tests/golden/record_bmpc.py CHECKOUT tests/golden      # needs torch and tensordict

CHECKOUT is wertyuilife2/bmpc (d5dabc6). Its agent runs as it is, in float32 and without dropout, on the CPU: in a copy
of its code ``cuda:0`` is ``cpu``, and the optimizers do not wait to be captured. A list of batches replaces the replay.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import yaml

OBS, WINDOWS, UPDATES = 4, 6, 3
CHANGED = {
    "action_dim": 2, "obs_shape": {"state": [OBS]}, "episode_length": 500, "batch_size": WINDOWS, "dropout": 0.0,
    "enc_dim": 8, "mlp_dim": 8, "latent_dim": 8, "simnorm_dim": 4, "num_bins": 11, "num_q": 3, "num_samples": 12,
    "num_pi_trajs": 3, "num_elites": 4, "iterations": 2, "td_horizon": 2, "reanalyze_interval": 2,
    "reanalyze_batch_size": 2, "multitask": False, "tasks": ["synthetic"], "task_dim": 0, "lr": 1e-2, "tau": 0.1,
}  # fmt: skip
DRAWS = {"randn": torch, "randn_like": torch, "randperm": torch, "exponential_": torch.Tensor}


@contextmanager
def recorded_draws() -> Iterator[dict[str, list[np.ndarray]]]:
    """Collect all that is drawn: ``normal``, ``pair`` and ``exponential``."""
    found: dict[str, list[np.ndarray]] = {"normal": [], "pair": [], "exponential": []}
    names = {"randn": "normal", "randn_like": "normal", "randperm": "pair", "exponential_": "exponential"}

    def watched(name: str) -> Any:
        draw = getattr(DRAWS[name], name)

        def call(*args: Any, **kwargs: Any) -> torch.Tensor:
            x: torch.Tensor = draw(*args, **kwargs)
            found[names[name]].append(x.numpy().copy())
            return x

        return mock.patch.object(DRAWS[name], name, call)

    patches = [watched(name) for name in DRAWS]
    for patch in patches:
        patch.start()
    try:
        yield found
    finally:
        for patch in patches:
            patch.stop()


class Batches:
    """The batches, with the interface of the authors' buffer, and what is written to it."""

    def __init__(self, batches: list[dict[str, torch.Tensor]]) -> None:
        self.waiting = iter(batches)
        count = WINDOWS * len(batches[0]["obs"])
        stored = {
            "expert_action_dist": torch.zeros(count, 2 * CHANGED["action_dim"]),
            "expert_value": torch.zeros(count),
        }
        storage = SimpleNamespace(_storage=stored, device="cpu")
        self._buffer = SimpleNamespace(_replay_lock=mock.MagicMock(), _storage=storage)

    def sample(self) -> tuple[Any, ...]:
        """Return the next batch."""
        b = {k: v.clone() for k, v in next(self.waiting).items()}
        index = torch.arange(b["obs"].shape[0] * WINDOWS).view(-1, WINDOWS)
        return b["obs"], b["action"], b["reward"], None, {"expert_action_dist": b["planned"], "index": index}


def sample_windows(g: np.random.Generator, horizon: int) -> dict[str, torch.Tensor]:
    """Return random windows, time first; of some rows no plan is known."""
    shape, width = (horizon, WINDOWS), CHANGED["action_dim"]
    planned = np.concatenate([np.tanh(g.standard_normal((*shape, width))), g.uniform(0.05, 1, (*shape, width))], -1)
    planned[0, :2] = planned[2, 3] = np.nan
    batch = {
        "obs": g.standard_normal((horizon + 1, WINDOWS, OBS)), "planned": planned,
        "action": np.tanh(g.standard_normal((*shape, width))), "reward": g.standard_normal((*shape, 1)),
    }  # fmt: skip
    return {k: torch.from_numpy(v.astype(np.float32)) for k, v in batch.items()}


def weights(agent: Any) -> dict[str, torch.Tensor]:
    """Return all parameters by name, the targets and the scale."""
    model = agent.model
    found = {k: v for k, v in model.named_parameters() if "Qs" not in k}
    for name, params in (("_Qs", model._Qs.params), ("_target_Qs", model._target_Qs_params)):
        found |= {f"{name}.{k}": v for k, v in params.flatten_keys(".").items()}
    return found | {"scale.value": agent.scale.value}


def agent_of_the_authors(checkout: Path) -> Any:
    """Return their agent with random weights."""
    with tempfile.TemporaryDirectory() as copied:
        shutil.copytree(checkout / "bmpc", copied, dirs_exist_ok=True)
        for path in Path(copied).rglob("*.py"):
            text = path.read_text().replace("cuda:0", "cpu").replace(", capturable=True", "")
            path.write_text(text.replace("WorldModel(cfg).to(self.device)", "WorldModel(cfg)"))  # is there already
        sys.path.insert(0, copied)
        import bmpc as authors
    defaults = yaml.safe_load((checkout / "bmpc" / "config.yaml").read_text().replace("???", "null"))
    config: dict[str, Any] = {k: v for k, v in defaults.items() if v is not None and k != "defaults"} | CHANGED
    config["bin_size"] = (config["vmax"] - config["vmin"]) / (config["num_bins"] - 1)
    settings = SimpleNamespace(**{k: float(v) if k == "entropy_coef" else v for k, v in config.items()})  # "1e-4"
    settings.get = lambda name, default=None: getattr(settings, name, default)
    agent = authors.BMPC(settings)
    with torch.no_grad():
        for x in weights(agent).values():
            x.add_(0.3 * torch.randn_like(x)) if x.numel() > 1 else x.fill_(1.0)
    return agent


def flat(tensors: dict[str, torch.Tensor]) -> np.ndarray:
    """Return all tensors in one vector."""
    return torch.cat([x.detach().flatten() for x in tensors.values()]).numpy().copy()


def numbered(prefix: str, draws: dict[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    """Return what was drawn, by kind and number."""
    return {f"{prefix}/{k}{i}": x for k, xs in draws.items() for i, x in enumerate(xs)}


def record_plan(agent: Any, g: np.random.Generator) -> dict[str, np.ndarray]:
    """Return a plan that goes on with another one."""
    obs, before = g.standard_normal(OBS).astype(np.float32), np.tanh(g.standard_normal((3, 2))).astype(np.float32)
    agent._prev_mean.copy_(torch.from_numpy(before))
    with recorded_draws() as found:
        action, info = agent.act(torch.from_numpy(obs))
    return {
        "data/plan/obs": obs, "data/plan/before": before, **numbered("data/plan", found),
        "out/plan/action": action.numpy(), "out/plan/planned": info["action_dist"][0].numpy(),
        "out/plan/mean": agent._prev_mean[0].numpy().copy(),
    }  # fmt: skip


def record_updates(agent: Any, g: np.random.Generator) -> dict[str, np.ndarray]:
    """Return batches, draws, losses and targets of all updates, gradients of the first, and plans of the second."""
    arrays: dict[str, np.ndarray] = {}
    batches = [sample_windows(g, agent.cfg.horizon) for _ in range(UPDATES)]
    buffer = Batches(batches)
    clip, targets = torch.nn.utils.clip_grad_norm_, agent._td_target_V
    grads: dict[int, torch.Tensor] = {}

    def clipped(parameters: Any, limit: float) -> torch.Tensor:
        grads.update({id(p): p.grad.clone() for p in agent.parameters() if p.grad is not None})
        return clip(parameters, limit)

    def td_target(zs: torch.Tensor, task: None) -> torch.Tensor:
        y: torch.Tensor = targets(zs, task)
        arrays[f"out/update{i}/td_targets"] = y.numpy()
        return y

    agent._td_target_V = td_target
    for i, batch in enumerate(batches):
        with recorded_draws() as found, mock.patch.object(torch.nn.utils, "clip_grad_norm_", clipped):
            info = agent.update(buffer)
        arrays |= numbered(f"data/update{i}", found) | {f"data/update{i}/{k}": v.numpy() for k, v in batch.items()}
        arrays |= {f"out/update{i}/{k}": v.numpy() for k, v in info.items()}
        if i == 0:
            of = {k: grads.get(id(x), torch.full_like(x, torch.nan)) for k, x in weights(agent).items()}
            arrays["grad"] = flat(of)
    stored = buffer._buffer._storage._storage["expert_action_dist"]  # 0 in all rows but the written ones
    arrays["out/update1/planned"] = stored.view(-1, WINDOWS, stored.shape[-1]).numpy().copy()
    return arrays


def main(checkout: Path, folder: Path) -> None:
    """Write ``bmpc.npz``."""
    torch.manual_seed(0)
    g = np.random.default_rng(0)
    agent = agent_of_the_authors(checkout)
    arrays = {"param": flat(weights(agent))} | record_plan(agent, g) | record_updates(agent, g)
    arrays["step3"] = flat(weights(agent))
    config = {k: v for k, v in vars(agent.cfg).items() if k != "get"}
    meta = {
        "agent": "BMPC", "source": "wertyuilife2/bmpc d5dabc6", "config": config, "obs_shape": CHANGED["obs_shape"],
        "discount": agent.discount, "parameters": {k: list(x.shape) for k, x in weights(agent).items()},
    }  # fmt: skip
    np.savez_compressed(folder / "bmpc.npz", meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
