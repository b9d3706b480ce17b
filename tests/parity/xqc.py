"""Hold XQC against its authors' code as ``tests/golden/record_xqc.py`` recorded it: losses, parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.algos.xqc import XQCConfig, XQCObjective
from reverie.core.types import Batch
from reverie.nn.batch_norm import BatchNormLayer, BatchNormMLP
from reverie.objectives.td import Losses

from .comparison import Comparison
from .offline import PLAIN, Arrays, build, transitions

TOLERANCES = (1e-5, 1e-4)
"""Of losses and of parameters, relative to the largest recorded number of each tensor."""
NETWORKS = {"actor": "actor", "critic": "critic", "target_critic": "target_critic.model"}
LOSSES = {"critic_loss": "loss/critic", "actor_loss": "loss/actor", "entropy": "train/entropy"}
"""The authors' losses and ours."""
INPUT_SHIFT = "BatchNormEmbedder_0/BatchNorm_0/bias"
"""A shift of the inputs, whose gradient is rounding: the norm behind the first layer removes it."""


def norm(layer: BatchNormLayer, path: str) -> dict[str, Tensor]:
    """The authors' names of a norm, and ours."""
    ours = {"scale": layer.scale, "bias": layer.shift, "mean": layer.mean, "var": layer.var}
    return {f"{path}BatchNorm_0/{name}": x for name, x in ours.items()}


def layers(body: BatchNormMLP, path: str) -> dict[str, Tensor]:
    """The authors' names of a network below ``path``, and ours, as views."""
    table = norm(body.norm, f"{path}BatchNormEmbedder_0/")
    blocks: Any = enumerate(zip(body.layers, body.norms, strict=True))
    for k, (linear, after) in blocks:
        block = f"{path}MLP_0/XQCBlock_{k}/"
        table |= {f"{block}Dense_0/kernel": linear.weight} | norm(after, block)
    outputs = {"predictor_tanh_gauss/mean": slice(0, 2), "predictor_tanh_gauss/log_std": slice(2, 4)}
    for name, place in ({"predictor_scalar/value": slice(None)} if body.copies else outputs).items():
        table |= {f"{path}{name}/kernel": body.head.weight[..., place], f"{path}{name}/bias": body.bias[..., place]}
    return table


def parameters(agent: Any, arrays: Arrays, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the names of all recorded parameters below ``prefix``, and ours."""
    objective: XQCObjective = agent.objective
    table = {f"{prefix}temperature/log_temp": objective.log_temperature.detach()}
    for theirs, ours in NETWORKS.items():
        network: Any = objective.get_submodule(ours)
        table |= layers(network.body, f"{prefix}{theirs}/{'VmapCritic_0/' if 'critic' in theirs else ''}")
    yield from ((path, table[path]) for path in arrays if path.startswith(prefix))


def compare(arrays: Arrays, meta: Mapping[str, Any], result: Comparison) -> None:
    """Four updates, of which the authors' first and last also update the actor and the temperature."""
    agent = build(XQCConfig().merge({
        "discount": meta["discount"], "tau": meta["tau"], "actor_lr": meta["actor_lr"], "critic_lr": meta["critic_lr"],
        "temperature_lr": meta["temp_lr"], "temperature": meta["init_temperature"], "max_value": meta["max_v"],
        "target_update_interval": meta["target_net_update_freq"], "policy_delay": meta["policy_delay"],
        "networks.units": meta["hidden_dims_actor"], "networks.critic_units": meta["hidden_dims_critic"],
        "reward_scale": None, **PLAIN,
    }), arrays, parameters)  # fmt: skip
    assert agent.objective.target_entropy == meta["target"]
    agent.updates = meta["policy_delay"] - 1
    for i in range(4):
        d = {k.split("/")[-1]: torch.from_numpy(v) for k, v in arrays.items() if k.startswith(f"data/update{i}/")}
        obs, ends = torch.stack([d["observations"], d["next_observations"]], 1), d["masks"] == 0
        batch = transitions(obs, F.pad(d["actions"][:, None], (0, 0, 0, 1)), d["rewards"], ends, ends)
        draws = iter([d["next"], d["policy"]])
        after = dict(parameters(agent, arrays, f"step{i + 1}/"))

        def copy_input_shifts(network: str, after: Mapping[str, Tensor] = after) -> None:
            for path, ours in after.items():
                if path.endswith(INPUT_SHIFT) and network in path:
                    ours.detach().copy_(torch.from_numpy(arrays[path]).view_as(ours))

        def actor_loss(batch: Batch) -> Losses:
            copy_input_shifts("/critic/")
            return XQCObjective.actor_loss(agent.objective, batch)

        with (
            mock.patch.object(torch, "randn_like", lambda x, draws=draws: next(draws).reshape(x.shape)),
            mock.patch.object(agent.objective, "actor_loss", actor_loss),
        ):
            metrics = agent.update(batch).metrics
        for theirs, ours in LOSSES.items():
            if ours in metrics:
                path = f"out/update{i}/{theirs}"
                result.add(path, metrics[ours], arrays[path], "output")
        copy_input_shifts("/")
        for path, value in after.items():
            if not path.endswith(INPUT_SHIFT):
                result.add(path, value.reshape(arrays[path].shape), arrays[path], "update")
