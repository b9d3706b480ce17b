"""Record four updates of the authors' code of XQC, for ``tests/parity``.

    python tests/golden/record_xqc.py CHECKOUTS tests/golden  # jax, flax, optax, tensorflow_probability, pinned

CHECKOUTS holds danielpalenicek/xqc (9a6832b) in a folder of its name. Its functions run as they are, in float32 and
without compilation, so that each number that they draw can be recorded.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
from record_offline import ACTION, BATCH, STATE, UPDATES, Arrays, disturb, flat, recorded_draws, rows, save

SETTINGS = {
    "actor_lr": 1e-2, "critic_lr": 1e-2, "temp_lr": 1e-2, "lr_end": 1e-2, "policy_delay": 3, "tau": 0.05,
    "hidden_dims_critic": (8, 8), "hidden_dims_actor": (6, 6), "target_entropy": "auto", "init_temperature": 0.1,
    "max_v": 2.0, "min_v": -2.0, "target_net_update_freq": 2, "n_critics": 2, "num_interactions": 1,
    "updates_per_step": 2,
}  # fmt: skip
PUBLISHED = {
    "critic_loss": "categorical", "pre_activation_bn": True, "weight_decay": 0.0, "normalize_last_layer": True,
    "use_layer_norm": False, "use_batch_norm": True, "decay_bn": False, "use_weight_norm": True,
    "skip_connections": False, "num_seeds": 1, "seed": 0,
}  # fmt: skip
DISCOUNT = 0.97


def parameters(models: dict[str, Any], prefix: str) -> Arrays:
    """All parameters, and the running statistics that the authors read."""
    arrays: Arrays = {}
    for name, model in models.items():
        arrays |= flat(model.params, f"{prefix}/{name}/")
        arrays |= flat(model.batch_stats, f"{prefix}/{name}/") if name in ("actor", "critic") else {}
    return arrays


def record(checkouts: Path, folder: Path) -> None:
    """Four updates on other batches, of which the first and the last update the actor and the temperature."""
    sys.path.insert(0, str(checkouts / "xqc"))
    sys.modules["xqc.logging"] = mock.MagicMock()
    from xqc.agents.xqc import xqc_learner
    from xqc.replay_buffer import Batch

    g = np.random.default_rng(2)
    agent = xqc_learner.XQCLearner(
        observations=np.zeros((1, STATE), np.float32), actions=np.zeros((1, ACTION), np.float32), **SETTINGS,
        **PUBLISHED,
    )  # fmt: skip
    names = ("actor", "critic", "target_critic", "temperature")
    models = {name: jax.tree_util.tree_map(lambda x: x[0], getattr(agent, name)) for name in names}  # the only seed
    models |= {
        name: xqc_learner.norm_network(models[name].replace(params=disturb(models[name].params, seed)))
        for seed, name in enumerate(names[:3])
    }
    arrays, key = parameters(models, "param"), jax.random.PRNGKey(0)
    for i in range(UPDATES):
        batch = {
            "observations": rows(g, BATCH, STATE) * 3 + 1, "actions": np.tanh(rows(g, BATCH, ACTION)),
            "rewards": rows(g, BATCH), "masks": (g.random(BATCH) > 0.3).astype(np.float32),
            "next_observations": rows(g, BATCH, STATE) * 3 + 1,
        }  # fmt: skip
        arrays |= {f"data/update{i}/{k}": v for k, v in batch.items()}
        with recorded_draws() as draws:
            key, *updated, info = xqc_learner._update.__wrapped__(
                key, *models.values(), Batch(**batch, discount=np.full((BATCH, 1), DISCOUNT, np.float32)),
                SETTINGS["tau"], SETTINGS["target_net_update_freq"], i + 1, agent.target_entropy, True,
            )  # fmt: skip
        models = dict(zip(("actor", "critic", "target_critic", "temperature"), updated, strict=True))
        arrays |= {f"data/update{i}/noise/{name}": x.T for name, x in zip(("next", "policy"), draws, strict=True)}
        arrays |= {f"out/update{i}/{k}": np.array(info[k]) for k in ("critic_loss", "actor_loss", "entropy")}
        arrays |= parameters(models, f"step{i + 1}")
    settings = {"discount": DISCOUNT, "target": agent.target_entropy, **SETTINGS}
    save(folder / "xqc.npz", arrays, {"source": "danielpalenicek/xqc 9a6832b xqc/agents/xqc", **settings})


if __name__ == "__main__":
    record(Path(sys.argv[1]), Path(sys.argv[2]))
