"""Hold SimbaV2 against a recording of its authors' code by ``tests/golden/record_simba_v2.py``.

Compared are losses and parameters of updates of normalized rows. The authors update the actor before the critics, ours
after them: an update of ours is the critics' part of one of theirs, then the actor's part of the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.algos.simba_v2 import SimbaV2Config
from reverie.core.types import Batch, Metrics, Step
from reverie.nn.bodies import SphericalHead, SphericalMLP

from .comparison import Comparison
from .offline import Arrays, build, transitions

TOLERANCES = (5e-5, 1e-4)
"""Of losses, relative to 1 or the recorded loss, and of parameters, relative to the largest number of each tensor."""
NETWORKS = {"actor": "actor", "critic": "critic", "target_critic": "target_critic.model"}
CRITIC = {"critic/loss": "loss/critic"}
ACTOR = {"actor/loss": "loss/actor", "actor/entropy": "train/entropy", "temperature/value": "train/temperature"}
"""The authors' losses and ours."""
UPDATES = 4


def head(part: SphericalHead, path: str, prefix: str, bias: str) -> dict[str, Tensor]:
    """The authors' names of a head of outputs, and ours, as views."""
    names = {"w1/hyper_dense/kernel": part.hidden.weight, "scaler/scaler": part.scaler.factor}
    names |= {"w2/hyper_dense/kernel": part.last.weight}
    return {f"{path}predictor/{prefix}{name}": x for name, x in names.items()} | {f"{path}predictor/{bias}": part.bias}


def layers(body: SphericalMLP, path: str) -> dict[str, Tensor]:
    """The authors' names of a network below ``path``, and ours, as views."""
    table: dict[str, Tensor] = {f"{path}embedder/w/hyper_dense/kernel": body.embed.weight}
    table |= {f"{path}embedder/scaler/scaler": body.scaler.factor}
    blocks: Any = enumerate(body.blocks)
    for k, block in blocks:
        names = {"mlp/w1/hyper_dense/kernel": block.expand.weight, "mlp/scaler/scaler": block.scaler.factor}
        names |= {"mlp/w2/hyper_dense/kernel": block.contract.weight, "alpha_scaler/scaler": block.share.factor}
        table |= {f"{path}encoder/layers_{k}/{name}": x for name, x in names.items()}
    heads: Any = body.heads
    if body.copies:
        return table | head(heads[0], path, "", "value_bias")
    return table | head(heads[0], path, "mean_", "mean_bias") | head(heads[1], path, "std_", "std_bias")


def parameters(agent: Any, arrays: Arrays, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the names of all recorded parameters below ``prefix``, and ours."""
    table = {f"{prefix}temperature/log_temp": agent.objective.log_temperature.detach()}
    for theirs, ours in NETWORKS.items():
        network: Any = agent.objective.get_submodule(ours)
        table |= layers(network.body, f"{prefix}{theirs}/{'VmapSimbaV2Critic_0/' if 'critic' in theirs else ''}")
    yield from ((path, table[path]) for path in arrays if path.startswith(prefix))


def count_steps(agent: Any, arrays: Arrays) -> None:
    """Count the recorded steps in the running statistics."""
    no = torch.zeros(1, dtype=torch.bool)
    for obs, reward in zip(arrays["data/steps/obs"], arrays["data/steps/reward"], strict=True):
        agent.preprocess.update_statistics(Step(
            obs={"state": torch.from_numpy(obs[None])}, reward=torch.from_numpy(reward[None]), is_first=no, is_last=no,
            is_terminal=no,
        ))  # fmt: skip


def recorded_batch(d: Mapping[str, Tensor]) -> Batch:
    """The rows of a recorded update."""
    obs, ends = torch.stack([d["observation"], d["next_observation"]], 1), d["terminated"] > 0
    return transitions(obs, F.pad(d["action"][:, None], (0, 0, 0, 1)), d["reward"], ends, ends)


def build_agent(arrays: Arrays, meta: Mapping[str, Any], result: Comparison) -> Any:
    """Our agent with the recorded settings and steps, its initial parameters compared, then with recorded ones."""
    rate = meta["learning_rate_init"]
    agent = build(SimbaV2Config().merge({
        "discount": meta["discount"], "tau": meta["target_tau"], "actor_lr": rate, "critic_lr": rate,
        "temperature_lr": rate, "temperature": meta["temp_initial_value"], "num_atoms": meta["critic_num_bins"],
        "networks.units": (meta["actor_hidden_dim"],), "networks.critic_units": (meta["critic_hidden_dim"],) * 2,
        "graph": False,
    }), {}, parameters)  # fmt: skip
    for path, ours in parameters(agent, arrays, "initial/"):
        result.add(path, ours.reshape(arrays[path].shape), arrays[path], "update")
    with torch.no_grad():
        for path, ours in parameters(agent, arrays, "param/"):
            ours.copy_(torch.from_numpy(arrays[path]).reshape(ours.shape))
    assert agent.objective.target_entropy == meta["target"]
    count_steps(agent, arrays)
    return agent


def updated(agent: Any, update: Mapping[str, Tensor] | None, following: Mapping[str, Tensor]) -> Metrics:
    """Learn the critics from a recorded update, if there is one, and the actor from the following one."""
    actor_batch = agent.prepare_batch(recorded_batch(following))
    draws = iter([*([] if update is None else [update["next"]]), following["policy"]])
    with mock.patch.object(torch, "randn_like", lambda x: next(draws).reshape(x.shape)):
        if update is None:
            metrics: Metrics = agent.minimize(agent.objective.actor_loss(actor_batch))
            return metrics
        with mock.patch.object(agent, "encode", lambda critic_batch: (critic_batch, actor_batch)):
            return dict(agent.update(recorded_batch(update)).metrics)


def compare(arrays: Arrays, meta: Mapping[str, Any], result: Comparison) -> None:
    """Four updates of the authors: the actor of the first, then updates of ours, whose actor is that of the next."""
    agent = build_agent(arrays, meta, result)
    updates = [
        {k.split("/")[-1]: torch.from_numpy(v) for k, v in arrays.items() if k.startswith(f"data/update{i}/")}
        for i in range(UPDATES)
    ]

    def add(i: int, metrics: Metrics, losses: Mapping[str, str], networks: tuple[str, ...]) -> None:
        for theirs, ours in losses.items():
            path = f"out/update{i}/{theirs}"
            result.add(path, metrics[ours], arrays[path], "output", unit=1.0)
        for path, value in parameters(agent, arrays, f"step{i + 1}/"):
            if path.split("/")[1] in networks:
                result.add(path, value.reshape(arrays[path].shape), arrays[path], "update")

    add(0, updated(agent, None, updates[0]), ACTOR, ("actor", "temperature"))
    for i, update in enumerate(updates):
        metrics = updated(agent, update, updates[min(i + 1, UPDATES - 1)])
        add(i, metrics, CRITIC, ("critic", "target_critic"))
        if i + 1 < UPDATES:
            add(i + 1, metrics, ACTOR, ("actor", "temperature"))
