"""The authors' own DreamerV3 in JAX, from a checkout of its repository on Python's path."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import dreamerv3
import elements
import embodied
import jax
import numpy as np
from dreamerv3.agent import Agent
from measure import ACTIONS, SIZES, Place, Sizes, Subject, main
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


def keep_positions() -> None:
    """Let `jax.jit` of today take by position what the one that it was written for took so."""
    real = jax.jit
    if inspect.signature(real).parameters["in_shardings"].kind is not inspect.Parameter.KEYWORD_ONLY:
        return
    names = ("in_shardings", "out_shardings", "static_argnums", "static_argnames", "donate_argnums")

    def jit(function: Callable, *rest: object, **named: object) -> Callable:
        return real(function, **dict(zip(names, rest, strict=False)), **named)

    jax.jit = jit


def configured(s: Sizes, place: Place, deterministic: bool) -> elements.Config:
    """What its `main.py` gives the agent; only what an update needs is compiled."""
    configs = YAML(typ="safe").load((Path(dreamerv3.__file__).parent / "configs.yaml").read_text())
    sizes = {r".*\.rssm": {"deter": s.deter, "hidden": s.hidden, "classes": s.classes}}
    sizes |= {r".*\.depth": s.depth, r".*\.units": s.units}
    config = elements.Config(configs["defaults"]).update(sizes)
    config = config.update({"batch_size": s.batch, "batch_length": s.length, "replay_context": CONTEXT})
    quiet = {"platform": place.device, "compute_dtype": "bfloat16" if place.half else "float32"}
    quiet |= {"deterministic": deterministic, "profiler": False, "precompile": False, "prealloc": False}
    if place.device == "cuda":  # its guard against copies that it does not mean, of rules that have changed
        quiet["transfer_guard"] = False
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


def learner(setting: str, place: Place, deterministic: bool = True) -> Subject:
    """Its agent with `train` and `policy`, as its training loop calls them; on a GPU its default is deterministic."""
    logging.disable(logging.WARNING)
    keep_positions()
    if not place.half:
        jax.config.update("jax_default_matmul_precision", "highest")
    s = SIZES[setting]
    lead = (s.batch, s.length + CONTEXT)
    observed, chosen = spaces(s)
    agent = Agent(observed, chosen, configured(s, place, deterministic))
    data = {key: noise(space, *lead) for key, space in agent.spaces.items()}
    data["consec"] = np.zeros(lead, np.int32)
    stream = iter(agent.stream(embodied.streams.Stateless(lambda: data)))
    ready, held = next(stream), {"carry": agent.init_train(s.batch)}

    def wait() -> None:
        jax.block_until_ready(agent.params)

    def update() -> None:
        held["carry"], _, _ = agent.train(held["carry"], dict(ready))
        if place.device == "cpu":
            wait()

    def actor(envs: int) -> Callable[[], object]:
        shown = {key: noise(space, envs) for key, space in observed.items()}
        acting = {"carry": agent.init_policy(envs)}

        def act() -> object:
            acting["carry"], action, _ = agent.policy(acting["carry"], shown, "train")
            return action

        return act

    def peak() -> float:
        return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9

    count = sum(value.size for key, value in agent.params.items() if key.startswith(TRAINED))
    precision = "bfloat16 compute" if place.half else "float32, highest"
    return Subject(int(count), update, actor, precision, wait, peak)


if __name__ == "__main__":
    main({"dreamer_v3": learner, "free": partial(learner, deterministic=False)}, movable=True)
