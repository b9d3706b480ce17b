"""The authors' own DreamerV3 in JAX, from a checkout of its repository on Python's path."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import dreamerv3
import elements
import embodied
import jax
import numpy as np
from dreamerv3.agent import Agent
from measure import ACTIONS, BATCH, LENGTH, SIZES, Sizes, Subject, main
from ruamel.yaml import YAML

CONTEXT = 1
"""Rows in front of each window, whose latents begin it."""
RNG = np.random.default_rng(0)
TRAINED = ("enc/", "dyn/", "dec/", "rew/", "con/", "pol/", "val/")
"""What its optimizer trains; the rest is targets, statistics and the optimizer itself."""


def spaces(s: Sizes) -> tuple[dict[str, elements.Space], dict[str, elements.Space]]:
    """Of observations and actions."""
    flags = {key: elements.Space(bool) for key in ("is_first", "is_last", "is_terminal")}
    shown = elements.Space(np.uint8, (64, 64, 3)) if s.image else elements.Space(np.float32, (s.vector,))
    chosen = elements.Space(np.float32, (ACTIONS,), -1, 1) if s.continuous else elements.Space(np.int32, (), 0, ACTIONS)
    return {"shown": shown, "reward": elements.Space(np.float32)} | flags, {"action": chosen}


def configured(setting: str) -> elements.Config:
    """What its `main.py` gives the agent, on the CPU and in float32; only what an update needs is compiled."""
    configs = YAML(typ="safe").load((Path(dreamerv3.__file__).parent / "configs.yaml").read_text())
    config = elements.Config(configs["defaults"]).update(configs[{"V": "size1m", "I": "size12m"}[setting]])
    config = config.update({"batch_size": BATCH, "batch_length": LENGTH, "replay_context": CONTEXT})
    quiet = {"platform": "cpu", "compute_dtype": "float32", "profiler": False, "precompile": False, "prealloc": False}
    rest = ("seed", "batch_size", "batch_length", "replay_context", "report_length", "replica", "replicas")
    known = {**config.jax, **quiet}
    return elements.Config(**config.agent, jax=known, logdir="unused", **{key: config[key] for key in rest})


def noise(space: elements.Space, *lead: int) -> np.ndarray:
    """As the replay would give it."""
    shape = (*lead, *space.shape)
    if space.dtype == bool:
        return np.zeros(shape, bool)
    if space.discrete:
        return RNG.integers(0, 256 if space.dtype == np.uint8 else ACTIONS, shape).astype(space.dtype)
    return RNG.uniform(-1, 1, shape).astype(space.dtype)


def learner(setting: str) -> Subject:
    """Its agent with `train` and `policy`, as its training loop calls them."""
    logging.disable(logging.WARNING)
    observed, chosen = spaces(SIZES[setting])
    agent = Agent(observed, chosen, configured(setting))
    data = {key: noise(space, BATCH, LENGTH + CONTEXT) for key, space in agent.spaces.items()}
    data["consec"] = np.zeros((BATCH, LENGTH + CONTEXT), np.int32)
    stream = iter(agent.stream(embodied.streams.Stateless(lambda: data)))
    ready, held = next(stream), {"carry": agent.init_train(BATCH)}

    def update() -> None:
        held["carry"], _, _ = agent.train(held["carry"], dict(ready))
        jax.block_until_ready(agent.params)

    def actor(envs: int) -> Callable[[], object]:
        shown = {key: noise(space, envs) for key, space in observed.items()}
        acting = {"carry": agent.init_policy(envs)}

        def act() -> object:
            acting["carry"], action, _ = agent.policy(acting["carry"], shown, "train")
            return action

        return act

    count = sum(value.size for key, value in agent.params.items() if key.startswith(TRAINED))
    return Subject(int(count), update, actor)


if __name__ == "__main__":
    main({"dreamer_v3": learner})
