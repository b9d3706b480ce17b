"""Every algorithm learns and acts with every kind of actions that it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from contracts import SPECS, batch, shown
from dreamer import EARLIER
from dreamer import TINY as DREAMER
from gymnasium import spaces

from reverie.core.discover import GROUP, algorithm_config, algorithms
from reverie.core.spaces import ActionCodec
from reverie.nn.actor_critic import kind_of

SPACES: dict[str, spaces.Space[Any]] = {
    "continuous": spaces.Tuple((spaces.Box(-1, 1, ()), spaces.Dict(a=spaces.Box(0, 9, (2,), np.uint8)))),
    "discrete": spaces.Discrete(5, start=-2),
    "multi_discrete": spaces.Dict(move=spaces.Discrete(3, start=1), hands=spaces.MultiBinary(2)),
    "mixed": spaces.Tuple((
        spaces.Dict(grip=spaces.Discrete(2, start=1), aim=spaces.Box(-1, 4, (1,))),
        spaces.Tuple((spaces.MultiDiscrete([[2, 3]]), spaces.Box(0, 7, (2,), np.int64))),
    )),
}  # fmt: skip
OURS = sorted(name for name, home in algorithms().items() if home.startswith(f"{GROUP}."))
SMALL = {
    "networks.units": (8,), "discriminator.units": (8,), "vae.units": (8,), "batch_size": 4, "quantiles": 3,
    "graph": False, "normalise": None, "samples": 2, "rollout": 4,
}  # fmt: skip
ENSEMBLE = {"ensemble.models": 2, "ensemble.head.units": 8}


def config_of(name: str) -> Any:
    """Settings so small that an update takes no time."""
    config = algorithm_config(name)()
    if hasattr(config, "rssm"):
        small = DREAMER if name.endswith("v3") or name == "r2dreamer" else EARLIER
        small = small | {"batch_size": 2, "batch_length": 4, "horizon": 2}
        return config.merge(small | {"graph": False} | (ENSEMBLE if name.startswith("plan2") else {}))
    known = {key: value for key, value in SMALL.items() if hasattr(config, key.split(".")[0])}
    if name == "tdmpc2":
        known |= {"policy_samples": 1, "elites": 2, "networks": {"latent": 8, "encoder_units": (8,), "critics": 2}}
    if name == "a2c":  # its batches are whole rollouts
        del known["batch_size"]
    return config.merge(known)


def extras(agent: Any, b: int, t: int) -> dict[str, torch.Tensor]:
    return {
        key: torch.zeros(b, t, *part.shape, dtype=getattr(torch, part.dtype)) for key, part in agent.extra_spec.items()
    }


@pytest.mark.parametrize("name", OURS)
def test_actions_of_every_kind_are_learned_and_taken(name: str) -> None:
    config = config_of(name)
    for kind in config.action_kinds:
        codec = ActionCodec(space := SPACES[kind])
        assert kind_of(codec.spec) == kind
        agent = config.build(SPECS["vector"], codec.spec, seed=1)
        agent.acts = codec.spec
        for seed in range(2):
            data = batch(agent, seed=seed)
            update = agent.update(data if config.on_policy else replace(data, extras=extras(agent, *data.shape)))
            assert all(torch.isfinite(x).all() for x in update.metrics.values()), kind
        for mode in ("explore", "eval"):
            state = agent.policy.initial(8)
            flat, _ = agent.policy.act(shown(envs=8), state, mode)
            assert all((flat[:, cut].sum(-1) == 1).all() for _, cut in codec.spec.choices()), kind
            for one in flat.numpy():
                assert space.contains(codec(one)), (kind, codec(one))
