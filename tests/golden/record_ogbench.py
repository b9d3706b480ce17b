"""Record three updates of OGBench's goal-conditioned learners, its encoder of pictures and its goals, for the tests.

    python tests/golden/record_ogbench.py CHECKOUTS tests/golden      # jax, flax, optax, distrax, ml_collections, chex

CHECKOUTS holds seohongpark/ogbench (1d41409) in a folder of its name. Its agents run as they are, in float32.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
from record_offline import ACTION, BATCH, STATE, Arrays, disturb, flat, load_agent, rows, save, settings_of

SETTINGS = {
    "lr": 1e-2, "batch_size": BATCH, "actor_hidden_dims": (16, 12), "value_hidden_dims": (16, 12), "discount": 0.97,
    "tau": 0.05, "rep_dim": 4, "latent_dim": 16,
}  # fmt: skip
"""What differs from the settings of their files."""
CLASSES = 3
"""Number of discrete actions."""
UPDATES = 3
AGENTS = ("gcbc", "gcivl", "hiql", "gciql", "crl", "qrl")
STEPS = (4, 1, 40, 2)
"""Actions of each episode whose goals are sampled; it has one row more."""
SAMPLED = {
    "flat": ((0.2, 0.5, 0.3, True), (0.0, 1.0, 0.0, False)), "stitch": ((0.0, 0.0, 1.0, True), (0.0, 0.5, 0.5, False)),
    "hiql": ((0.2, 0.5, 0.3, True), (0.0, 1.0, 0.0, False)),
    "hiql_stitch": ((0.0, 1.0, 0.0, False), (0.0, 0.5, 0.5, True)),
}  # fmt: skip
"""Goals of values and of actors: shares of the current row, of the episode and of all rows, and whether geometric."""
GOALS = ("value_goals", "actor_goals", "low_actor_goals", "high_actor_goals", "high_actor_targets")


def draw_batch(g: np.random.Generator, config: Any) -> Arrays:
    """Transitions with all goals; some of them have reached the goal of the values."""
    batch = {"observations": rows(g, BATCH, STATE), "next_observations": rows(g, BATCH, STATE)}
    batch["actions"] = g.integers(0, CLASSES, BATCH) if config["discrete"] else np.tanh(rows(g, BATCH, ACTION))
    batch |= {name: rows(g, BATCH, STATE) for name in GOALS}
    reached = g.random(BATCH) < 0.3
    batch["value_goals"][reached] = batch["observations"][reached]
    batch["masks"] = 1 - reached.astype(np.float32)
    batch["rewards"] = reached - np.float32(config["gc_negative"])
    return batch


def disturb_network(parameters: Any, g: np.random.Generator) -> Any:
    """Add noise to all parameters, so that a forgotten one shows; some actions lie outside of [-1, 1]."""
    for seed, name in enumerate(parameters):
        parameters[name] = disturb(parameters[name], seed)
    for actor in (parameters.get("modules_actor", {}), parameters.get("modules_low_actor", {})):
        if "mean_net" in actor:
            actor["mean_net"]["bias"] = actor["mean_net"]["bias"] + 2 * rows(g, ACTION)
    return parameters


def record(checkouts: Path, folder: Path, name: str, changes: dict[str, Any], suffix: str = "") -> None:
    """Three updates on other batches."""
    module, _ = load_agent(checkouts / "ogbench/impls", name)
    config = module.get_config()
    config.update({k: v for k, v in SETTINGS.items() if k in config} | changes)
    g = np.random.default_rng(5)
    batches = [draw_batch(g, config) for _ in range(UPDATES)]
    first = batches[0]
    actions = np.full(1, CLASSES - 1) if config["discrete"] else first["actions"]  # the largest class, for their number
    agent = getattr(module, f"{name.upper()}Agent").create(0, first["observations"][: len(actions)], actions, config)
    parameters = disturb_network(agent.network.params, g)
    agent = agent.replace(network=agent.network.replace(params=parameters))
    arrays = flat(parameters, "param/")
    for i, batch in enumerate(batches):
        agent, info = agent.update(batch)
        used = batch if name == "hiql" else {k: v for k, v in batch.items() if "actor_" not in k or k == "actor_goals"}
        arrays |= {f"data/update{i}/{k}": v for k, v in used.items()}
        arrays |= {f"out/update{i}/{k}": np.array(v) for k, v in info.items() if k.endswith("_loss")}
        arrays |= {} if i == 1 else flat(agent.network.params, f"step{i + 1}/")
    meta = {"source": f"seohongpark/ogbench 1d41409 impls/agents/{name}.py", "agent": name, **settings_of(config)}
    save(folder / f"ogbench_{name}{suffix}.npz", arrays, meta)


def record_encoder(checkouts: Path, folder: Path) -> None:
    """Features of pictures: the encoder impala_small."""
    encoder = load_agent(checkouts / "ogbench/impls", "gcbc")[0].encoder_modules["impala_small"]()
    g = np.random.default_rng(5)
    images = g.integers(0, 256, (BATCH // 2, 9, 6, 6)).astype(np.uint8)
    parameters = disturb(encoder.init(jax.random.PRNGKey(0), images)["params"], 1)
    features = np.array(encoder.apply({"params": parameters}, images))
    arrays = {"data/images": images, "out/features": features} | flat(parameters, "param/")
    save(folder / "ogbench_impala.npz", arrays, {"source": "seohongpark/ogbench 1d41409 impls/utils/encoders.py"})


def record_goals(checkouts: Path, folder: Path) -> None:
    """Rows of sampled goals, and the uniform numbers, by which all draws are made, in their order."""
    module = load_agent(checkouts / "ogbench/impls", "gcbc")[1]
    lasts = np.cumsum([steps + 1 for steps in STEPS]) - 1
    rows, is_last = np.arange(lasts[-1] + 1), np.isin(np.arange(lasts[-1] + 1), lasts)
    data = module.Dataset.create(  # the two last rows are terminal: ogbench/utils.py
        observations=rows, valids=1 - is_last, terminals=is_last | np.roll(is_last, -1)
    )
    starts, g = np.repeat(rows[~is_last], 5), np.random.default_rng(5)
    arrays: Arrays = {"data/steps": np.array(STEPS), "data/starts": starts}
    for name, mixes in SAMPLED.items():
        config = {"discount": 0.9, "gc_negative": True, "p_aug": None, "frame_stack": None, "subgoal_steps": 5}
        for kind, mix in zip(("value", "actor"), mixes, strict=True):
            keys = ("p_curgoal", "p_trajgoal", "p_randomgoal", "geom_sample")
            config |= {f"{kind}_{key}": x for key, x in zip(keys, mix, strict=True)}
        sampler = (module.HGCDataset if name.startswith("hiql") else module.GCDataset)(data, config)
        numbers: list[np.ndarray] = []

        def rand(size: int, numbers: list[np.ndarray] = numbers) -> np.ndarray:
            u = g.random(size)
            u[::2] = (2 * np.floor(8 * u[::2]) + 1) / 16  # so that some rows are halves, which are rounded
            numbers.append(u)
            return u

        with mock.patch.multiple(
            np.random, rand=rand, randint=lambda n, size, rand=rand: (rand(size) * n).astype(int),
            geometric=lambda p, size, rand=rand: np.ceil(np.log1p(-rand(size)) / np.log1p(-p)).astype(int),
        ):  # fmt: skip
            batch = sampler.sample(len(starts), starts)
        arrays[f"data/{name}/uniform"] = np.array(numbers)
        arrays |= {f"out/{name}/{k}": batch[k] for k in (*GOALS, "rewards", "masks") if k in batch}
    save(folder / "ogbench_goals.npz", arrays, {
        "source": "seohongpark/ogbench 1d41409 impls/utils/datasets.py", "discount": 0.9, "subgoal_steps": 5,
        "shares": SAMPLED,
    })  # fmt: skip


if __name__ == "__main__":
    places = Path(sys.argv[1]), Path(sys.argv[2])
    record_encoder(*places)
    record_goals(*places)
    for agent_name in AGENTS:
        takes_gradients = agent_name in ("gciql", "crl", "qrl")  # of the critic by actions, unless it weights them
        record(*places, agent_name, {})
        discrete = {"discrete": True} | ({"actor_loss": "awr"} if takes_gradients else {})
        discrete |= {"low_actor_rep_grad": True} if agent_name == "hiql" else {}
        record(*places, agent_name, discrete, "_discrete")
        if takes_gradients:
            record(*places, agent_name, {"actor_loss": "awr"}, "_awr")
