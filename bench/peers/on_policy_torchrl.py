"""TorchRL: PPO of its loss modules, its collector and its replay buffer, put together as its sota-implementations do.

    python on_policy_torchrl.py SETTINGS

See `on_policy_sb3.py`. It neither evaluates nor logs.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from typing import Any

import torch
from on_policy_wrapped import Pictures, made, ramp
from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import DoubleToFloat, GymWrapper, SerialEnv, TransformedEnv
from torchrl.modules import (
    MLP,
    ActorValueOperator,
    IndependentNormal,
    OneHotCategorical,
    ProbabilisticActor,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE


def perceptron(inputs: int, outputs: int, gain: float) -> MLP:
    """Two hidden layers of 64, orthogonal."""
    body = MLP(in_features=inputs, out_features=outputs, num_cells=(64, 64), activation_class=nn.Tanh)
    layers = [layer for layer in body if isinstance(layer, nn.Linear)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, gain if layer is layers[-1] else 2**0.5)
        nn.init.zeros_(layer.bias)
    return body


def head(inputs: int, units: int, outputs: int, gain: float) -> nn.Sequential:
    """One hidden layer above convolutions, orthogonal."""
    body = nn.Sequential(nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, outputs))
    for layer, scale in ((body[0], 2**0.5), (body[2], gain)):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return body


def sharing(env: Any, s: dict[str, Any]) -> tuple[Any, Any]:
    """Policy and value of images, on the same convolutions."""
    pictures = Pictures(made(s).observation_space, s["filters"])
    units, spec = s["units"][0], env.action_spec_unbatched
    actor = ProbabilisticActor(
        TensorDictModule(head(pictures.size, units, spec.shape[-1], 0.01), in_keys=["hidden"], out_keys=["logits"]),
        in_keys=["logits"], distribution_class=OneHotCategorical, return_log_prob=True, spec=spec,
    )  # fmt: skip
    value = ValueOperator(head(pictures.size, units, 1, 1.0), in_keys=["hidden"])
    common = TensorDictModule(pictures, in_keys=["observation"], out_keys=["hidden"])
    whole = ActorValueOperator(common, actor, value)
    return whole.get_policy_operator(), whole.get_value_operator()


def networks(env: Any, s: dict[str, Any]) -> tuple[Any, Any]:
    """Policy and value."""
    if s.get("filters"):
        return sharing(env, s)
    log_std = s["log_std"]
    inputs, spec = env.observation_spec["observation"].shape[-1], env.action_spec_unbatched
    body, keys, extra = perceptron(inputs, spec.shape[-1], 0.01), ["logits"], {}
    kind: Any = OneHotCategorical
    if spec.dtype.is_floating_point:
        body = nn.Sequential(body, AddStateIndependentNormalScale(spec.shape[-1]))
        nn.init.constant_(body[1].state_independent_scale, log_std)
        keys, kind = ["loc", "scale"], IndependentNormal
        extra = {"spec": None}
    actor = ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=keys),
        in_keys=keys, distribution_class=kind, return_log_prob=True, **(extra or {"spec": spec}),
    )  # fmt: skip
    return actor, ValueOperator(perceptron(inputs, 1, 1.0), in_keys=["observation"])


def main(s: dict[str, Any]) -> dict[str, Any]:
    """Train."""
    wall, cpu, learning = time.perf_counter(), time.process_time(), 0.0
    torch.manual_seed(s["seed"])
    env = TransformedEnv(SerialEnv(s["envs"], lambda: GymWrapper(made(s))), DoubleToFloat())
    env.set_seed(s["seed"])
    actor, critic = networks(env, s)
    rows = s["envs"] * s["rollout"]
    collector = Collector(env, actor, frames_per_batch=rows, total_frames=-(-s["steps"] // rows) * rows)
    advantages = GAE(gamma=s["discount"], lmbda=s["lambda"], value_network=critic)
    loss = ClipPPOLoss(
        actor, critic, clip_epsilon=0.2, entropy_coeff=s["entropy"], critic_coeff=0.5, loss_critic_type="l2",
        normalize_advantage=True,
    )  # fmt: skip
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(rows), sampler=SamplerWithoutReplacement(), batch_size=s["batch_size"]
    )
    optim = torch.optim.Adam(loss.parameters(), lr=1.0, eps=1e-5)
    rate, clips, taken = ramp(s["lr"], s["steps"]), ramp(s["clip"], s["steps"]), 0
    for data in collector:
        started = time.thread_time()
        optim.param_groups[0]["lr"] = rate(1 - taken / s["steps"])
        loss.clip_epsilon.fill_(clips(1 - taken / s["steps"]))
        taken += data.numel()
        with torch.no_grad():
            data = advantages(data)  # as TorchRL's examples do
        buffer.empty()
        buffer.extend(data.reshape(-1))
        for _ in range(s["epochs"]):
            for batch in buffer:
                found = loss(batch)
                total = found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]
                optim.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optim.step()
        learning += time.thread_time() - started
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    updates = taken // s["batch_size"] * s["epochs"]
    return {"steps": taken, "wall_s": wall, "cpu_s": cpu, "update_ms": 1e3 * learning / updates}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    print(json.dumps(main(json.loads(sys.argv[1]))))
