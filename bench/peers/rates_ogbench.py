"""OGBench's agents in JAX, with its sampling of goals, from a checkout of its repository on Python's path."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

if os.environ.get("OMP_NUM_THREADS") == "1":  # XLA reads it once, and starts a thread for each core otherwise
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
from rates import BATCH, UNITS, Update, experience, main

sys.path += [str(Path(folder) / "impls") for folder in sys.path]


def build(task: str, variant: str) -> Update:
    """With its dataset."""
    module, datasets = importlib.import_module(f"agents.{task}"), importlib.import_module("utils.datasets")
    config, rows = module.get_config(), experience(task)
    config.update(batch_size=BATCH, actor_hidden_dims=tuple(UNITS), value_hidden_dims=tuple(UNITS))
    data = datasets.Dataset.create(
        observations=rows.obs, next_observations=rows.next_obs, actions=rows.action,
        terminals=rows.terminated | rows.truncated,
    )  # fmt: skip
    sampler = getattr(datasets, config.dataset_class)(data, config)
    agent = getattr(module, f"{task.upper()}Agent").create(0, rows.obs[:1], rows.action[:1], config)

    def update() -> int:
        nonlocal agent
        agent, _ = agent.update(sampler.sample(BATCH))
        jax.block_until_ready(agent.network.params)
        return 1

    return update


if __name__ == "__main__":
    main(build, packages=("jax", "jaxlib", "flax", "optax"))
