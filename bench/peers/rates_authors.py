"""The authors' own SimbaV2 and XQC in JAX, from checkouts of their repositories on Python's path.

Agents, normalization of rewards and replays are theirs, with the settings of their files.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

if os.environ.get("OMP_NUM_THREADS") == "1":  # XLA reads it once, and starts a thread for each core otherwise
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import numpy as np
from gymnasium.spaces import Box
from omegaconf import OmegaConf
from rates import ACTIONS, BATCH, OBS, ROWS, Experience, Update, experience, main

STEPS = 1_000_000
"""Env steps of a run, over which learning rates decay."""
PER_STEP = 2
"""Updates for each env step; XQC makes them in one call."""
DISCOUNT = 0.995
"""Of both for episodes of 1,000 env steps."""


def settings(package: str, *names: str) -> Any:
    """Settings of the agents of these names in the repository of ``package``, the later ones winning."""
    folder = Path(sys.modules[package].__file__ or "").parents[1]
    (agents,) = (path for path in (folder / "configs/agent", folder / "conf/agent") if path.exists())
    return OmegaConf.merge(*[OmegaConf.load(agents / f"{name}.yaml") for name in names])


def simba_v2(rows: Experience) -> Update:
    """Its agent behind its normalization of observations and rewards, with its replay."""
    import scale_rl
    from scale_rl.agents import create_agent
    from scale_rl.buffers import NpyUniformBuffer

    OmegaConf.register_new_resolver("eval", lambda formula: eval(formula, {"math": math}))
    cfg = OmegaConf.create({
        "agent": settings(scale_rl.__name__, "simbaV2"), "seed": 0, "gamma": DISCOUNT, "n_step": 1,
        "env": {"episodic": True}, "num_interaction_steps": STEPS, "updates_per_interaction_step": PER_STEP,
    })  # fmt: skip
    OmegaConf.resolve(cfg)
    spaces = Box(-np.inf, np.inf, (1, OBS), np.float32), Box(-1, 1, (1, ACTIONS), np.float32)
    agent, replay = create_agent(*spaces, cfg.agent), NpyUniformBuffer(*spaces, 1, DISCOUNT, ROWS, BATCH, BATCH)
    replay.reset()
    replay._observations[:], replay._next_observations[:], replay._actions[:] = rows.obs, rows.next_obs, rows.action
    replay._rewards[:], replay._terminateds[:], replay._truncateds[:] = rows.reward, rows.terminated, rows.truncated
    replay._num_in_buffer = ROWS

    def update() -> int:
        agent.update(0, replay.sample())
        return 1

    return update


def xqc(rows: Experience) -> Update:
    """Its agent with its normalization of rewards and its replay, for a single seed."""
    sys.modules["xqc.logging"] = mock.MagicMock()  # which needs all that it logs to
    import xqc
    from xqc.agents import XQCLearner
    from xqc.normalization import RewardNormalizer
    from xqc.replay_buffer import ParallelReplayBuffer

    cfg: dict[str, Any] = OmegaConf.to_container(settings(xqc.__name__, "base_agent", "xqc"))
    del cfg["defaults"]
    agent = XQCLearner(
        seed=0, num_seeds=1, updates_per_step=PER_STEP, num_interactions=STEPS,
        observations=np.zeros((1, OBS), np.float32), actions=np.zeros((1, ACTIONS), np.float32), **cfg,
    )  # fmt: skip
    spaces = Box(-np.inf, np.inf, (1, OBS), np.float32), Box(-1, 1, (1, ACTIONS), np.float32)
    replay = ParallelReplayBuffer(*spaces, capacity=ROWS, num_seeds=1, n_steps=1, gamma=DISCOUNT)
    replay.observations[0], replay.next_observations[0], replay.actions[0] = rows.obs, rows.next_obs, rows.action
    replay.rewards[0], replay.masks[0], replay.timeouts[0] = rows.reward, ~rows.terminated, rows.truncated
    replay.size = ROWS
    rewards = RewardNormalizer(n_seeds=1, gamma=DISCOUNT, max_v=cfg["max_v"])

    def update() -> int:
        batches = replay.sample_parallel_multibatch(BATCH, PER_STEP)
        agent.update(batches._replace(rewards=rewards.normalize(batches.rewards)), num_updates=PER_STEP)
        jax.block_until_ready((agent.actor.params, agent.critic.params))
        return PER_STEP

    return update


def build(task: str, variant: str) -> Update:
    """With its replay filled."""
    return {"simba_v2": simba_v2, "xqc": xqc}[task](experience(task))


if __name__ == "__main__":
    main(build, packages=("jax", "jaxlib", "flax", "optax"))
