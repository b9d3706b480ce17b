"""Hold ReBRAC, FQL, QC-FQL and Decision Transformer against recordings of their authors' code.

Losses and all parameters of a few updates are compared. All that the authors draw is recorded, and takes the place of
our draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.algos.decision_transformer import DecisionTransformerConfig
from reverie.algos.fql import FQLConfig
from reverie.algos.model_free import ModelFree
from reverie.algos.rebrac import ReBRACConfig
from reverie.core.bounds import PiecewiseLinear
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch, Step
from reverie.nn.relu_mlp import ReluMLP

from .comparison import Comparison

Arrays = Mapping[str, np.ndarray]
TOLERANCES = (1e-5, 1e-4)
"""Of losses and of parameters, relative to the largest recorded number of each tensor."""
NETWORKS = {
    "actor": "actor", "critic": "critic", "target_actor": "target_actor.model", "target_critic": "target_critic.model",
    "modules_critic": "critic", "modules_target_critic": "target_critic.model", "modules_actor_bc_flow": "flow",
    "modules_actor_onestep_flow": "actor",
}  # fmt: skip
"""The authors' networks and ours."""
PLAIN = {"normalize_obs": None, "graph": False}


def layers(mlp: ReluMLP) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters, as views, with the authors' names of them in their networks."""
    for k, (weight, bias) in enumerate(mlp.layers()):
        yield f"Dense_{k}/kernel", weight
        yield f"Dense_{k}/bias", bias
    if mlp.norms is not None:
        for k, part in enumerate(torch.split(mlp.norms, list(mlp.layout.widths[1:-1]), -1)):
            yield f"LayerNorm_{k}/scale", part[:, 0]
            yield f"LayerNorm_{k}/bias", part[:, 1]


def parameters(agent: ModelFree, arrays: Arrays, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the names of all recorded parameters below ``prefix``, and ours."""
    for name in sorted({k.split("/")[1] for k in arrays if k.startswith(prefix)}):
        network: Any = agent.objective.get_submodule(NETWORKS[name])
        table = dict(layers(network.body))
        paths = [k for k in arrays if k.startswith(f"{prefix}{name}/")]
        assert {"/".join(k.split("/")[-2:]) for k in paths} == set(table)
        yield from ((k, table["/".join(k.split("/")[-2:])]) for k in paths)


def build(cfg: Any, arrays: Arrays, named: Callable[..., Iterator[tuple[str, Tensor]]]) -> Any:
    """Our agent with the recorded weights, which ``named`` yields."""
    obs = {"state": ObsPart(kind="vector", shape=(5,), dtype="float32")}
    agent = cfg.build(obs, ActionSpec(parts={"action": ActionPart(kind="continuous", size=2)}))
    with torch.no_grad():
        for path, ours in named(agent, arrays, "param/"):
            ours.copy_(torch.from_numpy(arrays[path]).reshape(ours.shape))
    return agent


def update(agent: ModelFree, batch: Batch, noise: list[np.ndarray]) -> dict[str, Tensor]:
    """Update with recorded draws, and return the metrics."""
    draws = iter(noise)

    def draw(like: Tensor) -> Tensor:
        return torch.from_numpy(next(draws)).reshape(like.shape)

    with mock.patch.object(torch, "randn_like", draw), mock.patch.object(torch, "rand_like", draw):
        return dict(agent.update(batch).metrics)


def compare_parameters(agent: ModelFree, arrays: Arrays, prefix: str, result: Comparison) -> None:
    """Compare all recorded parameters below ``prefix``."""
    for path, ours in parameters(agent, arrays, prefix):
        result.add(path, ours.reshape(arrays[path].shape), arrays[path], "update")


def transitions(obs: Tensor, action: Tensor, reward: Tensor, last: Tensor, terminal: Tensor) -> Batch:
    """Rows ``[B, 2]`` of transitions; the first argument is ``[B, 2, ...]``, as ``action``, the others ``[B]``."""
    count = len(reward)
    return Batch(
        obs={"state": obs}, action=action, reward=F.pad(reward[:, None], (1, 0)),
        is_first=torch.zeros(count, 2, dtype=torch.bool), is_last=F.pad(last[:, None], (1, 0)),
        is_terminal=F.pad(terminal[:, None], (1, 0)), weight=torch.ones(count), index=torch.arange(count),
    )  # fmt: skip


def chunks(arrays: Arrays, horizon: int) -> Batch:
    """Our rows ``[B, horizon + 1]`` of the dataset: an episode ends with a row more than it has transitions."""
    d = {k.removeprefix("data/"): torch.from_numpy(v) for k, v in arrays.items() if k.startswith("data/")}
    last = d["terminals"].bool()
    number = torch.arange(len(last)) + F.pad(last.cumsum(0), (1, -1))  # the row in which a transition begins
    ends = number[last] + 1
    size = int(ends[-1]) + 1
    stream = {
        "state": torch.zeros(size, 5), "action": torch.zeros(size, 2), "reward": torch.zeros(size),
        "is_last": torch.zeros(size, dtype=torch.bool), "is_terminal": torch.zeros(size, dtype=torch.bool),
    }  # fmt: skip
    stream["state"][number], stream["state"][ends] = d["observations"], d["next_observations"][last]
    stream["action"][number], stream["reward"][number + 1] = d["actions"], d["rewards"]
    stream["is_last"][ends], stream["is_terminal"][ends] = True, d["masks"][last] == 0
    rows = {k: x[number[d["index"]].unsqueeze(1) + torch.arange(horizon + 1)] for k, x in stream.items()}
    is_first = F.pad(rows["is_last"][:, :-1], (1, 0))
    count = len(is_first)
    return Batch(
        obs={"state": rows.pop("state")}, is_first=is_first, weight=torch.ones(count), index=torch.arange(count), **rows
    )


# ---------------------------------------------------------------- what is compared


def compare_rebrac(arrays: Arrays, meta: Mapping[str, Any], result: Comparison) -> None:
    """ReBRAC, whose authors update actor and targets at the first of two updates."""
    agent = build(ReBRACConfig().merge({
        "discount": meta["gamma"], "tau": meta["tau"], "actor_bc_coef": meta["actor_bc_coef"],
        "critic_bc_coef": meta["critic_bc_coef"], "target_policy_noise": meta["policy_noise"],
        "target_noise_clip": meta["noise_clip"], "actor_lr": meta["actor_learning_rate"],
        "critic_lr": meta["critic_learning_rate"], "networks.units": (8, 8, 8), **PLAIN,
    }), arrays, parameters)  # fmt: skip
    agent.updates = 1
    names = {"critic_loss": "loss/critic", "actor_loss": "loss/actor", "bc_mse_policy": "loss/bc"}
    for i in range(4):
        d = {k.split("/")[-1]: torch.from_numpy(v) for k, v in arrays.items() if k.startswith(f"data/update{i}/")}
        obs, action = (torch.stack([d[k], d[f"next_{k}"]], 1) for k in ("states", "actions"))
        ends = d["dones"] > 0
        metrics = update(agent, transitions(obs, action, d["rewards"], ends, ends), [arrays[f"data/update{i}/noise"]])
        for path in (k for k in arrays if k.startswith(f"out/update{i}/")):
            result.add(path, metrics[names[path.split("/")[-1]]], arrays[path], "output")
        compare_parameters(agent, arrays, f"step{i + 1}/", result)


def compare_fql(arrays: Arrays, meta: Mapping[str, Any], result: Comparison) -> None:
    """FQL, or QC-FQL with chunks. Its authors take means over the critics and also over what is not valid."""
    horizon = meta.get("horizon_length", 1)
    agent = build(FQLConfig().merge({
        "discount": meta["discount"], "tau": meta["tau"], "alpha": meta["alpha"], "lr": meta["lr"],
        "flow_steps": meta["flow_steps"], "normalize_q": meta["normalize_q_loss"], "target_reduction": meta["q_agg"],
        "chunk_size": horizon, "batch_length": horizon + 1, "networks.units": (8, 8), **PLAIN,
    }), arrays, parameters)  # fmt: skip
    for i in range(3):
        if horizon == 1:
            d = {k.split("/")[-1]: torch.from_numpy(v) for k, v in arrays.items() if k.startswith(f"data/update{i}/")}
            obs = torch.stack([d["observations"], d["next_observations"]], 1)
            ends = d["masks"] == 0
            batch = transitions(obs, F.pad(d["actions"][:, None], (0, 0, 0, 1)), d["rewards"], ends, ends)
        else:
            batch = chunks(arrays, horizon)
        taken = (~batch.is_last[:, :-1]).cumprod(1).float()  # [B, horizon]
        metrics = update(
            agent, batch, [arrays[f"data/update{i}/noise/{k}"] for k in ("next", "start", "time", "policy")]
        )
        theirs = {k.split("/")[-1]: v for k, v in arrays.items() if k.startswith(f"out/update{i}/")}
        ours = {
            "critic_loss": metrics["loss/critic"] / 2 * taken[:, -1].mean(),
            "bc_flow_loss": metrics["loss/flow"] * taken.mean(),
            "distill_loss": metrics["loss/distillation"],
            "actor_loss": metrics["loss/actor"] + metrics["loss/flow"] * taken.mean(),
        }
        for name, loss in theirs.items():
            result.add(f"out/update{i}/{name}", ours[name], loss, "output")
        compare_parameters(agent, arrays, f"step{i + 1}/", result)


# ---------------------------------------------------------------- Decision Transformer


LAYERS = {
    "ln_1": "norms.0", "attn.c_attn": "attend", "attn.c_proj": "out", "ln_2": "norms.1", "mlp.c_fc": "mlp.0",
    "mlp.c_proj": "mlp.2",
}  # fmt: skip
EMBEDDINGS = {
    "embed_timestep": "embed_time", "embed_return": "embed_return", "embed_state": "embed_obs",
    "embed_action": "embed_action", "embed_ln": "embed_norm", "transformer.ln_f": "norm",
}  # fmt: skip


def context_parameters(agent: Any, arrays: Arrays, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the names of all recorded parameters below ``prefix``, and ours; a layer of GPT-2 is ``[in, out]``."""
    memory, body = agent.objective.actor.inputs.memory, agent.objective.actor.body
    table = {f"{theirs}.{part}": f"{ours}.{part}" for theirs, ours in EMBEDDINGS.items() for part in ("weight", "bias")}
    del table["embed_timestep.bias"]
    for k in range(len(memory.blocks)):
        table |= {f"transformer.h.{k}.{theirs}.{part}": f"blocks.{k}.{ours}.{part}"
                  for theirs, ours in LAYERS.items() for part in ("weight", "bias")}  # fmt: skip
    (weight, bias), *_ = body.layers()
    paths = [k for k in arrays if k.startswith(prefix)]
    assert not paths or set(table) == {k.removeprefix(prefix) for k in paths if "predict_action" not in k}
    for path in paths:
        name = path.removeprefix(prefix)
        if name.startswith("predict_action.0"):
            yield path, weight[0].T if name.endswith("weight") else bias[0, 0]
        else:
            ours = memory.get_parameter(table[name])
            yield path, ours.T if ".c_" in name and ours.ndim == 2 else ours


def context_rows(d: Mapping[str, Tensor]) -> Batch:
    """Our rows ``[B, T + 1]`` of the authors' windows: an episode that ends is followed by others, not padded."""
    count, length = d["mask"].shape
    obs, action, to_go = (
        torch.zeros(count, length + 1, 5),
        torch.zeros(count, length + 1, 2),
        torch.zeros(count, length + 1),
    )
    time, last = to_go.clone(), torch.zeros(count, length + 1, dtype=torch.bool)
    for i, n in enumerate(d["mask"].sum(1).tolist()):
        obs[i, :n], action[i, :n] = d["states"][i, length - n :], d["actions"][i, length - n :]
        to_go[i, :n], to_go[i, n + 1 :] = d["returns"][i, length - n : length, 0], -torch.inf
        time[i, : n + 1], last[i, n] = d["timesteps"][i, length - n] + torch.arange(n + 1), n < length
    is_first = F.pad(last[:, :-1], (1, 0)) | (time == 0) & to_go.isfinite() & (torch.arange(length + 1) == 0)
    return Batch(
        obs={"state": obs}, action=action, reward=torch.zeros(count, length + 1), is_first=is_first, is_last=last,
        is_terminal=last, weight=torch.ones(count), index=torch.arange(count),
        extras={"return": to_go, "timestep": time},
    )  # fmt: skip


def compare_decision_transformer(arrays: Arrays, meta: Mapping[str, Any], result: Comparison) -> None:
    """Three updates, and the actions of an episode longer than the window."""
    rate, warmup = meta["learning_rate"], meta["warmup_steps"]
    rows = arrays["data/update0/mask"].shape[1]
    agent = build(DecisionTransformerConfig().merge({
        "lr": PiecewiseLinear(((0, rate / warmup), (warmup - 1, rate))), "weight_decay": meta["weight_decay"],
        "dropout": 0.0, "return_scale": 1.0, "max_episode_length": meta["max_ep_len"], "batch_length": rows + 1,
        "target_return": meta["target_return"],
        "networks.memory": f"transformer({rows}, {meta['hidden_size']}, {meta['n_head']}, {meta['n_layer']})", **PLAIN,
    }), arrays, context_parameters)  # fmt: skip
    for i in range(3):
        prefix = f"data/update{i}/"
        batch = context_rows({k.removeprefix(prefix): torch.from_numpy(v) for k, v in arrays.items() if prefix in k})
        agent.position = lambda i=i: i
        result.add(
            f"out/update{i}/loss", agent.update(batch).metrics["loss/actor"], arrays[f"out/update{i}/loss"], "output"
        )
        for path, ours in context_parameters(agent, arrays, f"step{i + 1}/"):
            theirs = arrays[path]
            if path.endswith("c_attn.bias"):  # no bias of keys changes the attention: its gradient is rounding
                ours, theirs = (x.reshape(3, -1)[[0, 2]] for x in (ours, theirs))
            result.add(path, ours, theirs, "update")
    d = {k.removeprefix("data/act/"): torch.from_numpy(v) for k, v in arrays.items() if k.startswith("data/act/")}
    policy, taken = agent.policy, []
    state, no = policy.initial(1), torch.zeros(1, dtype=torch.bool)
    for t, obs in enumerate(d["states"]):
        reward = d["rewards"][t - 1 : t] if t else torch.zeros(1)
        step = Step(obs={"state": obs[None]}, reward=reward, is_first=no | (t == 0), is_last=no, is_terminal=no)
        action, state = policy.act(step, state, "eval")
        taken.append(action[0])
        state = policy.override(state, d["actions"][t : t + 1])
    result.add("out/act/action", torch.stack(taken), arrays["out/act/action"], "update")


COMPARISONS = {
    "tinkoff-ai/CORL": compare_rebrac, "seohongpark/fql": compare_fql, "ColinQiyangLi/qc": compare_fql,
    "kzl/decision-transformer": compare_decision_transformer,
}  # fmt: skip


def compare(arrays: Arrays, meta: Mapping[str, Any], result: Comparison) -> None:
    """Compare a recording of one of these."""
    COMPARISONS[meta["source"].split()[0]](arrays, meta, result)
