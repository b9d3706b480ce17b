"""Record four updates of the authors' code of SimbaV2, for ``tests/parity``.

    python tests/golden/record_simba_v2.py CHECKOUTS tests/golden      # jax, flax, optax, omegaconf as they pin them

CHECKOUTS holds DAVIAN-Robotics/SimbaV2 (86899c2) in a folder of its name. Its functions run as they are, in float32 and
without compilation, so that each number that they draw can be recorded.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from omegaconf import OmegaConf
from record_offline import ACTION, BATCH, STATE, UPDATES, Arrays, disturb, flat, recorded_draws, rows, save

SETTINGS = {
    "learning_rate_init": 1e-2, "learning_rate_end": 1e-2, "actor_hidden_dim": 6, "critic_hidden_dim": 8,
    "critic_num_bins": 21, "target_tau": 0.05, "temp_initial_value": 0.1,
}  # fmt: skip
"""What differs from the settings of their file."""
DISCOUNT = 0.97
STEPS = 100
"""Steps in the environment before the first update, which the authors' statistics count."""


def build(checkouts: Path) -> Any:
    """The authors' agent, behind their normalization of observations and rewards."""
    sys.path.insert(0, str(checkouts / "SimbaV2"))
    from scale_rl.agents import create_agent

    OmegaConf.register_new_resolver("eval", lambda formula: eval(formula, {"math": math}))
    published = OmegaConf.load(checkouts / "SimbaV2/configs/agent/simbaV2.yaml")
    cfg = OmegaConf.create({
        "agent": OmegaConf.merge(published, SETTINGS), "seed": 0, "gamma": DISCOUNT, "n_step": 1,
        "env": {"episodic": True}, "num_interaction_steps": UPDATES, "updates_per_interaction_step": 1,
    })  # fmt: skip
    OmegaConf.resolve(cfg)
    spaces = [Box(-1, 1, (1, size), np.float32) for size in (STATE, ACTION)]
    return create_agent(*spaces, cfg.agent)


def parameters(agent: Any, prefix: str) -> Arrays:
    """All parameters of all networks."""
    names = ("actor", "critic", "target_critic", "temperature")
    return {k: v for name in names for k, v in flat(getattr(agent, f"_{name}").params, f"{prefix}/{name}/").items()}


def record(checkouts: Path, folder: Path) -> None:
    """Four updates on other batches, after steps that count in the statistics of observations and rewards."""
    wrapped = build(checkouts)
    from scale_rl.agents.simbaV2.simbaV2_update import l2normalize_network

    agent, g = wrapped.agent.agent, np.random.default_rng(3)
    arrays = {k: v for k, v in parameters(agent, "initial").items() if "kernel" not in k}
    for seed, name in enumerate(("_actor", "_critic", "_target_critic")):
        network = getattr(agent, name)
        setattr(agent, name, l2normalize_network(network.replace(params=disturb(network.params, seed))))
    arrays |= parameters(agent, "param")
    arrays |= {"data/steps/obs": rows(g, STEPS, STATE) * 3 + 1, "data/steps/reward": rows(g, STEPS)}
    arrays["data/steps/reward"][-1] = 40.0  # so that the largest return sets the scale, not the standard deviation
    going = {"terminated": np.zeros(1), "truncated": np.zeros(1)}
    for obs, reward in zip(arrays["data/steps/obs"], arrays["data/steps/reward"], strict=True):
        wrapped.sample_actions(0, {"next_observation": obs[None], "reward": reward[None], **going}, training=True)
    for i in range(UPDATES):
        batch = {
            "observation": rows(g, BATCH, STATE) * 3 + 1, "action": np.tanh(rows(g, BATCH, ACTION)),
            "reward": rows(g, BATCH), "terminated": (g.random(BATCH) < 0.3).astype(np.float32),
            "next_observation": rows(g, BATCH, STATE) * 3 + 1,
        }  # fmt: skip
        arrays |= {f"data/update{i}/{k}": v for k, v in batch.items()}
        with recorded_draws() as draws:
            info = wrapped.update(i, dict(batch))
        arrays |= {f"data/update{i}/noise/{name}": x.T for name, x in zip(("policy", "next"), draws, strict=True)}
        losses = ("actor/loss", "actor/entropy", "critic/loss", "temperature/value")
        arrays |= {f"out/update{i}/{name}": np.float32(info[name]) for name in losses}
        arrays |= parameters(agent, f"step{i + 1}")
    settings = {"discount": DISCOUNT, "target": agent._cfg.temp_target_entropy, **SETTINGS}
    save(folder / "simba_v2.npz", arrays, {"source": "DAVIAN-Robotics/SimbaV2 86899c2 agents/simbaV2", **settings})


if __name__ == "__main__":
    record(Path(sys.argv[1]), Path(sys.argv[2]))
