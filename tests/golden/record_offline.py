"""Record a few updates of the authors' code of ReBRAC, FQL and QC-FQL, for ``tests/parity``.

    python tests/golden/record_offline.py CHECKOUTS tests/golden      # needs jax, flax, optax, distrax, ml_collections

CHECKOUTS holds tinkoff-ai/CORL (6afec90), seohongpark/fql (719d044) and ColinQiyangLi/qc (48283b4), each in a folder of
the repository's name. Their functions run as they are, in float32 and without compilation, so that each number that
they draw can be recorded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import flax
import jax
import numpy as np
import optax

Arrays = dict[str, np.ndarray]
STATE, ACTION, BATCH, UPDATES = 5, 2, 16, 4
UNITS = 8
DRAWS = ("next", "start", "time", "policy")
"""What FQL draws in an update, in this order: noise of the target, of the flow, its time, noise of the policy."""


def flat(tree: Any, prefix: str) -> Arrays:
    """The leaves of nested dictionaries, by path."""
    return {f"{prefix}{k}": np.array(v) for k, v in flax.traverse_util.flatten_dict(dict(tree), sep="/").items()}


def disturb(tree: Any, seed: int) -> Any:
    """Add noise to biases and norms, so that a forgotten one shows."""
    g = np.random.default_rng(seed)
    return jax.tree_util.tree_map(lambda x: x + (0.1 * g.standard_normal(x.shape)).astype(np.float32), tree)


@contextmanager
def recorded_draws() -> Iterator[list[np.ndarray]]:
    """Collect all that is drawn by ``jax.random.normal`` and ``uniform``."""
    found: list[np.ndarray] = []

    def watched(draw: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            x = draw(*args, **kwargs)
            if not isinstance(x, jax.core.Tracer):  # Flax traces initializers to check shapes
                found.append(np.array(x))
            return x

        return call

    patches = [
        mock.patch.object(jax.random, name, watched(getattr(jax.random, name))) for name in ("normal", "uniform")
    ]
    with jax.disable_jit(), patches[0], patches[1]:
        yield found


def rows(g: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal float32 numbers."""
    return g.standard_normal(shape).astype(np.float32)


def save(path: Path, arrays: Arrays, meta: Mapping[str, Any]) -> None:
    """Write a recording."""
    np.savez_compressed(path, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays)


# ---------------------------------------------------------------- ReBRAC


def record_rebrac(checkouts: Path, folder: Path) -> None:
    """Four updates on other batches, of which the first and the third update the actor and the targets."""
    stubs = {name: mock.MagicMock() for name in ("d4rl", "gym", "pyrallis", "tqdm", "tqdm.auto", "wandb")}
    with mock.patch.dict(sys.modules, stubs):
        source = (checkouts / "CORL/algorithms/offline/rebrac.py").read_text()
        module = ModuleType("rebrac")
        sys.modules["rebrac"] = module  # its dataclasses look it up
        exec(compile(source, "rebrac.py", "exec"), module.__dict__)
    r: Any = module
    g, key = np.random.default_rng(0), jax.random.PRNGKey(0)
    settings = {
        "gamma": 0.97, "tau": 0.05, "actor_bc_coef": 0.4, "critic_bc_coef": 0.3, "policy_noise": 0.2,
        "noise_clip": 0.25, "actor_learning_rate": 1e-2, "critic_learning_rate": 2e-2,
    }  # fmt: skip
    states, actions = np.zeros((1, STATE), np.float32), np.zeros((1, ACTION), np.float32)
    actor_module = r.DetActor(ACTION, UNITS, layernorm=False, n_hiddens=3)
    critic_module = r.EnsembleCritic(UNITS, num_critics=2, layernorm=True, n_hiddens=3)
    parameters = [
        disturb(module.init(key, *inputs), seed)
        for seed, (module, inputs) in enumerate([(actor_module, (states,)), (critic_module, (states, actions))] * 2)
    ]
    rates = settings["actor_learning_rate"], settings["critic_learning_rate"]
    kinds = (r.ActorTrainState, actor_module), (r.CriticTrainState, critic_module)
    actor, critic = (
        kind.create(apply_fn=net.apply, params=parameters[i], target_params=parameters[i + 2], tx=optax.adam(rates[i]))
        for i, (kind, net) in enumerate(kinds)
    )

    def weights(prefix: str) -> Arrays:
        nets = {"actor": actor.params, "critic": critic.params}
        nets |= {"target_actor": actor.target_params, "target_critic": critic.target_params}
        return {k: v for name, tree in nets.items() for k, v in flat(tree["params"], f"{prefix}/{name}/").items()}

    arrays = weights("param")
    names = ("critic_loss", "q_min", "actor_loss", "bc_mse_policy", "bc_mse_random", "action_mse")
    common = {k: settings[k] for k in ("gamma", "actor_bc_coef", "critic_bc_coef", "tau", "policy_noise", "noise_clip")}
    for i in range(UPDATES):
        batch = {
            "states": rows(g, BATCH, STATE), "actions": np.tanh(rows(g, BATCH, ACTION)), "rewards": rows(g, BATCH),
            "next_states": rows(g, BATCH, STATE), "next_actions": np.tanh(rows(g, BATCH, ACTION)),
            "dones": (g.random(BATCH) < 0.3).astype(np.float32),
        }  # fmt: skip
        batch["next_actions"] *= 1 - batch["dones"][:, None]  # which a terminal state does not have
        step = r.update_td3_no_targets if i % 2 else r.update_td3
        extra = {} if i % 2 else {"normalize_q": True}
        with recorded_draws() as draws:
            key, actor, critic, metrics = step(
                key, actor, critic, batch, metrics=r.Metrics.create(names), **common, **extra
            )
        arrays |= {f"data/update{i}/{k}": v for k, v in batch.items()} | {f"data/update{i}/noise": draws[0]}
        seen = ("critic_loss",) if i % 2 else ("critic_loss", "actor_loss", "bc_mse_policy")
        arrays |= {f"out/update{i}/{k}": np.array(metrics.accumulators[k][0][0]) for k in seen}
        arrays |= weights(f"step{i + 1}") if i % 2 else {}
    save(folder / "rebrac.npz", arrays, {"source": "tinkoff-ai/CORL 6afec90 algorithms/offline/rebrac.py", **settings})


# ---------------------------------------------------------------- FQL and QC-FQL


def load_agent(folder: Path, name: str) -> Any:
    """Import ``agents/NAME.py`` of a checkout."""
    for module in [m for m in sys.modules if m.split(".")[0] in ("agents", "utils")]:
        del sys.modules[module]
    package = ModuleType("agents")
    package.__path__ = [str(folder / "agents")]  # without its __init__, which imports all agents
    with mock.patch.dict(sys.modules, {"agents": package}), mock.patch.object(sys, "path", [str(folder), *sys.path]):
        return __import__(f"agents.{name}", fromlist=["agents"]), __import__("utils.datasets", fromlist=["utils"])


def record_agent(agent: Any, batches: list[Mapping[str, np.ndarray]]) -> Arrays:
    """Update an agent on each batch; return all parameters, draws and losses."""
    parameters = agent.network.params
    for seed, name in enumerate(parameters):
        parameters[name] = disturb(parameters[name], seed)
    agent = agent.replace(network=agent.network.replace(params=parameters))
    arrays = flat(parameters, "param/")
    for i, batch in enumerate(batches):
        with recorded_draws() as draws:
            agent, info = agent.update(batch)
        arrays |= {f"data/update{i}/noise/{name}": x for name, x in zip(DRAWS, draws, strict=False)}
        losses = ("critic/critic_loss", "actor/bc_flow_loss", "actor/distill_loss", "actor/actor_loss")
        arrays |= {f"out/update{i}/{name.split('/')[1]}": np.array(info[name]) for name in losses}
        arrays |= {} if i == 1 else flat(agent.network.params, f"step{i + 1}/")
    return arrays


def record_fql(checkouts: Path, folder: Path) -> None:
    """Three updates on other batches."""
    module, _ = load_agent(checkouts / "fql", "fql")
    g = np.random.default_rng(1)
    batches = [
        {"observations": rows(g, BATCH, STATE), "actions": np.tanh(rows(g, BATCH, ACTION)), "rewards": rows(g, BATCH),
         "next_observations": rows(g, BATCH, STATE), "masks": (g.random(BATCH) > 0.3).astype(np.float32)}
        for _ in range(3)
    ]  # fmt: skip
    config = module.get_config()
    config.update(
        lr=1e-2, batch_size=BATCH, actor_hidden_dims=(UNITS, UNITS), value_hidden_dims=(UNITS, UNITS), discount=0.97,
        tau=0.05, alpha=3.0, flow_steps=4, normalize_q_loss=True,
    )  # fmt: skip
    agent = module.FQLAgent.create(0, batches[0]["observations"], batches[0]["actions"], config)
    arrays = record_agent(agent, batches)
    arrays |= {f"data/update{i}/{k}": v for i, batch in enumerate(batches) for k, v in batch.items()}
    save(folder / "fql.npz", arrays, {"source": "seohongpark/fql 719d044 agents/fql.py", **settings_of(config)})


def record_qc(checkouts: Path, folder: Path) -> None:
    """Three updates on the same chunks of three actions, which the authors' own sampler cuts from a dataset."""
    module, datasets = load_agent(checkouts / "qc", "acfql")
    g, size, horizon = np.random.default_rng(2), 60, 3
    observations, ends = rows(g, size, STATE), rows(g, size, STATE)
    terminals = np.isin(np.arange(size), (6, 13, 15, 24, 33, 41, 50, size - 1)).astype(np.float32)
    dataset = datasets.Dataset.create(
        observations=observations, actions=np.tanh(rows(g, size, ACTION)), rewards=rows(g, size), terminals=terminals,
        next_observations=np.where(terminals[:, None], ends, np.roll(observations, -1, 0)),
        masks=1 - terminals * (g.random(size) < 0.5).astype(np.float32),
    )  # fmt: skip
    np.random.seed(3)  # noqa: NPY002 - theirs
    index = np.random.randint(size - horizon + 1, size=BATCH)  # noqa: NPY002 - the first that the sampler draws
    np.random.seed(3)  # noqa: NPY002
    batch = {k: np.array(v) for k, v in dataset.sample_sequence(BATCH, horizon, 0.97).items()}
    batch["actions"] *= batch["valid"][..., None].astype(np.float32)
    config = module.get_config()
    config.update(
        lr=1e-2, batch_size=BATCH, actor_hidden_dims=(UNITS, UNITS), value_hidden_dims=(UNITS, UNITS), discount=0.97,
        tau=0.05, alpha=3.0, flow_steps=4, q_agg="min", horizon_length=horizon,
    )  # fmt: skip
    agent = module.ACFQLAgent.create(0, batch["observations"][0], batch["actions"][0, 0], config)
    arrays = record_agent(agent, [batch] * 3)
    arrays |= {f"data/{k}": np.array(v) for k, v in dataset.items()} | {"data/index": index}
    save(folder / "qc_fql.npz", arrays, {"source": "ColinQiyangLi/qc 48283b4 agents/acfql.py", **settings_of(config)})


def settings_of(config: Any) -> dict[str, Any]:
    """The authors' settings as JSON."""
    return {k: v for k, v in config.items() if isinstance(v, (bool, int, float, str, tuple)) and k != "agent_name"}


if __name__ == "__main__":
    for record in (record_rebrac, record_fql, record_qc):
        record(Path(sys.argv[1]), Path(sys.argv[2]))
