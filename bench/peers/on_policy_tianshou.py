"""Tianshou: PPO of its algorithms, its collector and its trainer, put together as its examples do.

    python on_policy_tianshou.py SETTINGS

See `on_policy_sb3.py`. It neither evaluates nor logs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from on_policy_wrapped import Pictures, made, ramp
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import ModuleWithVectorOutput, Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch import nn


class Timed(PPO):
    """Counts the seconds of this thread that updates take."""

    learning = 0.0

    def update(self, *given: Any, **more: Any) -> Any:
        started = time.thread_time()
        found = super().update(*given, **more)
        self.learning += time.thread_time() - started
        return found


class Features(ModuleWithVectorOutput):
    """The convolutions of ours, which policy and value share."""

    def __init__(self, space: Any, filters: Any) -> None:
        pictures = Pictures(space, filters)
        super().__init__(pictures.size)
        self.pictures = pictures

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[torch.Tensor, Any]:
        return self.pictures(torch.as_tensor(obs)), state


def learner(s: dict[str, Any], env: gymnasium.Env) -> Timed:
    """Networks, policy and algorithm."""
    seen, acts = env.observation_space, env.action_space

    def body() -> Net:
        return Net(state_shape=seen.shape, hidden_sizes=(64, 64), activation=nn.Tanh)

    if isinstance(acts, gymnasium.spaces.Discrete):
        shared, hidden = (Features(seen, s["filters"]), s["units"]) if s.get("filters") else (None, [])
        more = {"hidden_sizes": hidden}
        actor: Any = DiscreteActor(
            preprocess_net=shared or body(), action_shape=int(acts.n), softmax_output=False, **more
        )
        critic: Any = DiscreteCritic(preprocess_net=shared or body(), **more)
        policy: Any = DiscreteActorPolicy(actor=actor, action_space=acts, observation_space=seen)
    else:
        actor = ContinuousActorProbabilistic(preprocess_net=body(), action_shape=acts.shape, unbounded=True)
        nn.init.constant_(actor.sigma_param, s["log_std"])
        critic = ContinuousCritic(preprocess_net=body())
        policy = ProbabilisticActorPolicy(
            actor=actor, dist_fn=normal, action_space=acts, observation_space=seen, action_scaling=False
        )
    for module in (*actor.modules(), *critic.modules()):
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight, 2**0.5)
            nn.init.zeros_(module.bias)
    rate = ramp(s["lr"], s["steps"])(1.0)  # its schedules are of PyTorch, by the update
    return Timed(
        policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=rate, eps=1e-5), gamma=s["discount"],
        gae_lambda=s["lambda"], eps_clip=ramp(s["clip"], s["steps"])(1.0), vf_coef=0.5, ent_coef=s["entropy"],
        max_grad_norm=0.5,
    )  # fmt: skip


def normal(found: tuple[torch.Tensor, torch.Tensor]) -> torch.distributions.Distribution:
    """The policy of means and deviations."""
    return torch.distributions.Independent(torch.distributions.Normal(*found), 1)


def main(s: dict[str, Any]) -> dict[str, Any]:
    """Train."""
    torch.manual_seed(s["seed"])
    np.random.seed(s["seed"])  # noqa: NPY002  # what it draws from
    algorithm = learner(s, made(s))  # compiles with Numba, which is no part of a long run
    wall, cpu = time.perf_counter(), time.process_time()
    envs, rows = DummyVectorEnv([lambda: made(s) for _ in range(s["envs"])]), s["envs"] * s["rollout"]
    envs.seed(s["seed"])
    collector = Collector(algorithm, envs, VectorReplayBuffer(rows, s["envs"]))
    taken = -(-s["steps"] // rows) * rows
    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=taken,
            batch_size=s["batch_size"],
            collection_step_num_env_steps=rows,
            update_step_num_repetitions=s["epochs"],
            verbose=False,
            show_progress=False,
        )
    )
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    updates = taken // s["batch_size"] * s["epochs"]
    return {"steps": taken, "wall_s": wall, "cpu_s": cpu, "update_ms": 1e3 * algorithm.learning / updates}


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    print(json.dumps(main(json.loads(sys.argv[1]))))
