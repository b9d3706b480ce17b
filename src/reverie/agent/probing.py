"""Probes of a world model's states: their predictions, and states edited to change these predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.agent.conversion import to_numpy
from reverie.agent.player import AgentState, Player
from reverie.agent.world_model_inspector import (
    ModelState,
    broadcast_like,
    model_state,
    require_world_model,
    state_to_latent,
)
from reverie.core.errors import ConfigError, DataError
from reverie.nn.probe import Probe


def probe(
    player: Player, state: ModelState | AgentState, inputs: Mapping[str, Any] | None = None
) -> dict[str, np.ndarray]:
    """Return the predictions of the probes for states: see ``Agent.probe``."""
    heads = _require_probe(player)
    feature = state_to_latent(require_world_model(player).world, model_state(state)).feature
    with torch.no_grad():
        obs = _obs_to_tensors(player, inputs or {}, len(feature))
        keys = [key for key, needed in heads.given.items() if needed.keys() <= obs.keys()]
        return {key: to_numpy(prediction.value()) for key, prediction in heads(feature, obs, keys).items()}


def steer(
    player: Player, state: ModelState | AgentState, target: Mapping[str, Any], inputs: Mapping[str, Any] | None, *,
    steps: int, lr: float,
) -> ModelState:  # fmt: skip
    """Return states for which the probes predict ``target``: see ``Agent.steer``."""
    heads, state = _require_probe(player), model_state(state)
    latent = state_to_latent(require_world_model(player).world, state)
    if unknown := target.keys() - heads.parts.keys():
        raise DataError(f"there is no probe for {', '.join(unknown)}: expected some of {', '.join(heads.parts)}.")
    obs = _obs_to_tensors(player, {**(inputs or {}), **target}, len(state.deter))
    deter = latent.deter.clone().requires_grad_()
    optim = torch.optim.Adam([deter], lr)
    with torch.enable_grad():
        for _ in range(steps):
            predictions = heads(latent._replace(deter=deter).feature, obs, target)
            loss = torch.stack([prediction.loss(obs[key]).sum() for key, prediction in predictions.items()]).sum()
            (deter.grad,) = torch.autograd.grad(loss, deter)
            optim.step()
            deter.detach().clamp_(-1, 1)  # index of h in each cell
    return ModelState(to_numpy(deter), state.stoch)


def _require_probe(player: Player) -> Probe:
    """Return the agent's probes; ConfigError if it has none."""
    probe = getattr(player.algo, "probe", None)
    if not isinstance(probe, Probe):
        raise ConfigError(f"{player} has no probes: train DreamerV2 or V3 with algo.probe.heads.")
    return probe


def _obs_to_tensors(player: Player, values: Mapping[str, Any], count: int) -> dict[str, Tensor]:
    """Return observations by key as tensors ``[B, *shape]``."""
    tensors = {}
    for key, value in values.items():
        part = player.obs_spec[key]
        like = np.zeros((count, *part.shape), np.int64 if part.kind == "categorical" else np.float32)
        tensors[key] = torch.from_numpy(broadcast_like(like, value)).to(player.algo.device)
    return tensors
