"""Hold goal-conditioned learners against recordings of OGBench's code: losses and parameters of three updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.algos.table import algorithm_config
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch

from .comparison import Comparison
from .offline import PLAIN, TOLERANCES, Arrays, layers, transitions

__all__ = ["TOLERANCES", "compare"]

NETWORKS = {
    "actor/actor_net": "actor", "value/value_net": "value", "target_value/value_net": "target_value.model",
    "critic/value_net": "critic", "target_critic/value_net": "target_critic.model", "goal_rep/layers_0": "phi.network",
    "low_actor/actor_net": "actor.low", "high_actor/actor_net": "actor.high", "critic/phi": "critic.phi",
    "critic/psi": "critic.psi", "value/phi": "value.phi", "value/psi": "value.psi", "dynamics": "dynamics",
}  # fmt: skip
"""The authors' networks, without ``modules_``, and ours."""
SCALARS = {"value/alpha/value": "distance.mixture", "lam/log_value": "log_multiplier"}
SETTINGS = {
    "lr": "lr", "discount": "discount", "tau": "tau", "expectile": "expectile", "alpha": "alpha",
    "low_alpha": "low_alpha", "high_alpha": "high_alpha", "rep_dim": "representation_width",
    "latent_dim": "representation_width", "low_actor_rep_grad": "actor_trains_phi", "eps": "tolerance",
}  # fmt: skip
GOALS = {
    "value_goals": "value", "actor_goals": "actor", "low_actor_goals": "low", "high_actor_goals": "actor",
    "high_actor_targets": "high",
}  # fmt: skip
STATE, CLASSES = 5, 3


def losses(metrics: Mapping[str, Tensor], meta: Mapping[str, Any]) -> dict[str, Tensor]:
    """Our losses by the authors' names."""
    m = {name.removeprefix("loss/"): x for name, x in metrics.items()}
    found = {
        "actor/actor_loss": "actor", "low_actor/actor_loss": "actor/low", "high_actor/actor_loss": "actor/high",
        "value/value_loss": "value", "critic/critic_loss": "critic", "critic/contrastive_loss": "critic",
        "value/contrastive_loss": "value", "value/lam_loss": "lagrange_multiplier",
        "dynamics/dynamics_loss": "dynamics",
    }  # fmt: skip
    out = {theirs: m[ours] for theirs, ours in found.items() if ours in m}
    if "bc" in m:
        out["actor/bc_loss"] = meta["alpha"] * m["bc"]
        out["actor/q_loss"] = m["actor"] - out["actor/bc_loss"]
    if meta["agent"] == "qrl":
        multiplier = m["train/lagrange_multiplier"]
        out["value/total_loss"] = m["value"] + m["lagrange_multiplier"]
        out["value/d_pos_loss"] = meta["eps"] - m["lagrange_multiplier"] / multiplier
        out["value/d_neg_loss"] = m["value"] - multiplier * out["value/d_pos_loss"]
    return out


def in_our_order(path: str, array: np.ndarray, meta: Mapping[str, Any]) -> np.ndarray:
    """A first layer with the goal, or its representation, before the state, where the authors' read it after that."""
    if not path.endswith("Dense_0/kernel") or not any(name in path for name in ("value_net", "actor_net", "goal_rep")):
        return array
    end = STATE + (meta["rep_dim"] if "rep_dim" in meta and array.shape[-2] < 2 * STATE else STATE)
    state, goal, rest = np.split(array, [STATE, end], -2)
    return np.concatenate([goal, state, rest], -2)


def parameters(agent: Any, arrays: Arrays, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the names of all recorded parameters below ``prefix``, and ours."""
    for path in (k for k in arrays if k.startswith(prefix)):
        name = path.removeprefix(f"{prefix}modules_")
        if name in SCALARS:
            yield path, agent.objective.get_parameter(SCALARS[name])
            continue
        *network, layer, part = name.split("/")
        is_output = layer in ("mean_net", "logit_net")
        name = "/".join([*network, "actor_net"] if is_output else network)
        ours = "phi" if name == "value/phi" and hasattr(agent.objective, "distance") else NETWORKS[name]
        mlp = agent.objective.get_submodule(ours).body
        yield path, dict(layers(mlp))[f"{f'Dense_{len(mlp.layers()) - 1}' if is_output else layer}/{part}"]


def transitions_with_goals(data: Mapping[str, Tensor]) -> Batch:
    """Our rows ``[B, 2]`` of the authors' batch."""
    obs = torch.stack([data["observations"], data["next_observations"]], 1)
    action = data["actions"]
    action = action if action.is_floating_point() else F.one_hot(action, CLASSES).float()
    reached = data["masks"] == 0
    batch = transitions(obs, F.pad(action[:, None], (0, 0, 0, 1)), data["rewards"], reached, reached)
    goals = {f"{ours}/state": data[theirs][:, None] for theirs, ours in GOALS.items() if theirs in data}
    return replace(batch, goals=goals)


def compare(arrays: Arrays, meta: Mapping[str, Any], result: Comparison) -> None:
    """Three updates on other batches."""
    arrays = {k: in_our_order(k, v, meta) for k, v in arrays.items()}
    settings = {ours: meta[theirs] for theirs, ours in SETTINGS.items() if theirs in meta}
    settings["actor_loss"] = meta.get("actor_loss", "").replace("ddpgbc", "ddpg_bc")
    config = algorithm_config(meta["agent"])
    known = {k: v for k, v in settings.items() if hasattr(config, k)}
    units = {"networks.units": tuple(meta["actor_hidden_dims"])}
    action = {"kind": "categorical", "classes": (CLASSES,)} if meta["discrete"] else {"kind": "continuous", "size": 2}
    agent: Any = config().merge(known | units | PLAIN).build(
        {"state": ObsPart(kind="vector", shape=(STATE,), dtype="float32")},
        ActionSpec(parts={"action": ActionPart(**action)}),
    )  # fmt: skip
    with torch.no_grad():
        for path, ours in parameters(agent, arrays, "param/"):
            ours.copy_(torch.from_numpy(arrays[path]).reshape(ours.shape))
    for i in range(3):
        prefix = f"data/update{i}/"
        data = {k.removeprefix(prefix): torch.from_numpy(v) for k, v in arrays.items() if k.startswith(prefix)}
        ours_of = losses(agent.update(transitions_with_goals(data)).metrics, meta)
        for path in (k for k in arrays if k.startswith(f"out/update{i}/")):
            result.add(path, ours_of[path.removeprefix(f"out/update{i}/")], arrays[path], "output")
        for path, ours in parameters(agent, arrays, f"step{i + 1}/"):
            result.add(path, ours.reshape(arrays[path].shape), arrays[path], "update")
