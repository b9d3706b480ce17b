#!/usr/bin/env python3
"""PPO on CartPole with environments on the learner's device, beside Gymnasium's vector, and beside PPO in JAX alone.

    python bench/device.py [--envs 64 1024 8192] [--repeats 5] [--out bench/device.json]

Needs gymnax. Processor time of one core, compilation and the first rollouts excluded; medians over processes that take
turns. All systems have the same settings: rollouts of 32 rows, 4 epochs of 4 minibatches, networks of 64 x 64 units
with tanh, lr 2.5e-3, entropy 0.01, GAE(0.95), discount 0.99, exact values at time limits. PPO in JAX is one compiled
function for collecting and learning.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import child, machine, write

ROLLOUT, EPOCHS, BATCHES, LR, ENTROPY, LAMBDA, DISCOUNT = 32, 4, 4, 2.5e-3, 0.01, 0.95, 0.99
WARM_UP, SECONDS = 3, 4.0
"""Rollouts before counting begins, and the least processor time that is counted."""
SYSTEMS = ("device", "native", "jax")
"""reverie with gymnax, reverie with Gymnasium's vector, and JAX alone."""


def reverie_ppo(system: str, num: int, place: str = "cpu") -> tuple[Callable[[], int], Callable[[], dict[str, float]]]:
    """Return a function that makes one rollout and its updates and returns its env steps, and one that tells parts."""
    from reverie.experiment.build import build
    from reverie.experiment.settings import Request, merge_layers
    from reverie.run.device_rows import DeviceRow

    env = {"device": "gymnax/CartPole-v1", "native": "CartPole-v1"}[system]
    changes = {
        "env.num": num, "env.vectorization": "native", "algo.rollout": ROLLOUT, "algo.epochs": EPOCHS,
        "algo.batch_size": ROLLOUT * num // BATCHES, "algo.lr": LR, "algo.entropy_coef": ENTROPY,
        "algo.discount": DISCOUNT, "algo.normalize_obs": None,
        "algo.value_estimator": f"gae({LAMBDA})", "steps": 10**9, "eval_episodes": 0,
        "device": place, "threads": 1,
    }  # fmt: skip
    experiment = build(merge_layers(Request(algorithm="ppo", env=env)).merge(changes))
    collector, source, algo = experiment.collector, experiment.source, experiment.algo
    assert collector is not None

    def rollout() -> int:
        steps = 0
        while not len(source):
            steps += collector.collect()
            collector.pop_episodes()
        for _ in range(len(source)):
            batch = source.sample()
            source.feedback(batch.index, algo.update(batch))
        return steps

    def parts() -> dict[str, float]:
        """Microseconds a turn: the counters and the copies of rows on the device."""
        if system != "device":
            return {}
        sink, step = collector.sink, collector.step
        action = torch.zeros(num, 2)
        rows, counted = [], []
        for _ in range(10):
            begin = time.process_time()
            for _ in range(ROLLOUT):
                sink.add(step, action, {})
            sink.complete(step)
            middle = time.process_time()
            collector._uncounted += [DeviceRow.of(collector.env, step, None)] * ROLLOUT
            collector.count()
            rows.append(1e6 * (middle - begin) / ROLLOUT)
            counted.append(1e6 * (time.process_time() - middle) / ROLLOUT)
        return {"rows_us": statistics.median(rows), "counters_us": statistics.median(counted)}

    return rollout, parts


def jax_ppo(num: int) -> tuple[Callable[[], int], Callable[[], dict[str, float]]]:  # noqa: C901  # one program
    """PPO whose whole iteration is one compiled function; time limits are no terminations."""
    import gymnax
    import jax
    import jax.numpy as jnp
    import optax

    env, params = gymnax.make("CartPole-v1")

    def layers(key: Any, outputs: int, gain: float) -> list[tuple[Any, Any]]:
        widths, gains = [4, 64, 64, outputs], [2**0.5, 2**0.5, gain]
        keys = jax.random.split(key, 3)
        return [(jax.nn.initializers.orthogonal(g)(k, (a, b)), jnp.zeros(b))
                for k, a, b, g in zip(keys, widths, widths[1:], gains, strict=False)]  # fmt: skip

    def mlp(weights: Any, x: Any) -> Any:
        for w, b in weights[:-1]:
            x = jnp.tanh(x @ w + b)
        return x @ weights[-1][0] + weights[-1][1]

    def loss(nets: Any, batch: Any) -> Any:
        log_probs = jax.nn.log_softmax(mlp(nets[0], batch["obs"]))
        log_prob = jnp.take_along_axis(log_probs, batch["action"][:, None], 1)[:, 0]
        advantage = (batch["advantage"] - batch["advantage"].mean()) / (batch["advantage"].std() + 1e-8)
        ratio = jnp.exp(log_prob - batch["log_prob"])
        actor = -jnp.minimum(ratio * advantage, ratio.clip(0.8, 1.2) * advantage).mean()
        error = jnp.square(batch["target"] - mlp(nets[1], batch["obs"])[:, 0]).mean()
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
        return actor + 0.5 * error - ENTROPY * entropy

    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(LR, eps=1e-5))

    def turn(carry: Any, key: Any) -> Any:
        nets, obs, state = carry
        k_act, k_step, k_reset = jax.random.split(key, 3)
        logits = mlp(nets[0], obs)
        action = jax.random.categorical(k_act, logits)
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
        final, moved, reward, terminal, _ = jax.vmap(env.step_env, (0, 0, 0, None))(
            jax.random.split(k_step, num), state, action, params
        )
        last = terminal | jax.vmap(env.is_truncated, (0, None))(moved, params)
        begun = jax.vmap(env.reset_env, (0, None))(jax.random.split(k_reset, num), params)

        def pick(a: Any, b: Any) -> Any:
            return jnp.where(last.reshape(-1, *[1] * (a.ndim - 1)), a, b)

        next_obs, state = jax.tree.map(pick, begun, (final, moved))
        row = {"obs": obs, "action": action, "log_prob": log_prob, "reward": reward, "terminal": terminal, "last": last}
        return (nets, next_obs, state), row | {"final": final}

    def iteration(nets: Any, moments: Any, obs: Any, state: Any, key: Any) -> Any:
        key, k_rows, k_order = jax.random.split(key, 3)
        (_, obs, state), rows = jax.lax.scan(turn, (nets, obs, state), jax.random.split(k_rows, ROLLOUT))
        value, after = (mlp(nets[1], rows[name])[..., 0] for name in ("obs", "final"))
        delta = rows["reward"] + DISCOUNT * after * ~rows["terminal"] - value

        def back(gae: Any, x: Any) -> Any:
            gae = x[0] + DISCOUNT * LAMBDA * gae * ~x[1]
            return gae, gae

        _, advantage = jax.lax.scan(back, jnp.zeros(num), (delta, rows["last"]), reverse=True)
        batch = {name: rows[name] for name in ("obs", "action", "log_prob")}
        batch |= {"advantage": advantage, "target": advantage + value}
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)

        def update(carry: Any, chosen: Any) -> Any:
            nets, moments = carry
            gradient = jax.grad(loss)(nets, jax.tree.map(lambda x: x[chosen], flat))
            changes, moments = optimizer.update(gradient, moments, nets)
            return (optax.apply_updates(nets, changes), moments), None

        orders = [jax.random.permutation(k, ROLLOUT * num) for k in jax.random.split(k_order, EPOCHS)]
        (nets, moments), _ = jax.lax.scan(
            update, (nets, moments), jnp.concatenate(orders).reshape(EPOCHS * BATCHES, -1)
        )
        return (nets, moments, obs, state, key), rows["last"].sum()

    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    nets = (layers(keys[0], 2, 0.01), layers(keys[1], 1, 1.0))
    obs, state = jax.vmap(env.reset_env, (0, None))(jax.random.split(keys[2], num), params)
    carry = [(nets, optimizer.init(nets), obs, state, keys[3])]
    compiled = jax.jit(iteration)

    def rollout() -> int:
        carry[0], ends = compiled(*carry[0])
        ends.block_until_ready()
        return ROLLOUT * num

    return rollout, dict


def measure(system: str, num: int) -> dict[str, Any]:
    """Env steps a second of processor time, and milliseconds of processor time a rollout, on one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rollout, parts = jax_ppo(num) if system == "jax" else reverie_ppo(system, num)
    for _ in range(WARM_UP):
        rollout()
    begin, steps, rollouts = time.process_time(), 0, 0
    while time.process_time() < begin + SECONDS:
        steps, rollouts = steps + rollout(), rollouts + 1
    spent = time.process_time() - begin
    return {"steps_per_second": steps / spent, "ms_a_rollout": 1e3 * spent / rollouts, **parts()}


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="*", type=int, default=[64, 1024, 8192])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--child", choices=SYSTEMS, help="measure this system here and print it")
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.child, args.envs[0])))
        return 0
    rows = []
    for num in args.envs:
        runs: dict[str, list[dict[str, float]]] = {system: [] for system in SYSTEMS}
        for _ in range(args.repeats):
            for system in SYSTEMS:
                runs[system].append(child(Path(__file__), "--child", system, "--envs", str(num)))
        for system, values in runs.items():
            medians = {name: statistics.median(value[name] for value in values) for name in values[0]}
            rows.append({"system": system, "envs": num, **medians})
            print(json.dumps(rows[-1]), flush=True)
    write(args.out, machine(1), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
