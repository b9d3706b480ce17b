"""Imagination into one block of memory; the actor's hidden layers are kept, or recomputed for all steps at once.

``algos/imagination.py`` defines the computation: there the policy is computed twice, without gradient to act and with
gradient for the losses. On CPUs the hidden layer of each step is kept with its gradient. On GPUs, where each step would
be several kernels, it is recomputed as one product.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from reverie.algos.imagination import Trajectory
from reverie.algos.world_model import WorldModel
from reverie.kernels import gpu, rssm
from reverie.kernels.steps import StepLayers, prepare, prepared_class
from reverie.nn.actor import DreamerActor
from reverie.nn.layers import MLP, Linear, RMSNormSiLU
from reverie.nn.modules import has_hook, is_plain
from reverie.nn.state_space import Latent


def supports_imagine(
    world: WorldModel, actor: DreamerActor, *_: object, through_time: bool = False, **__: object
) -> bool:
    """Return whether :func:`imagine_prepared` can be used: both networks are the library's."""
    has_own_forward = type(actor).forward is not DreamerActor.forward or "forward" in vars(actor) or has_hook(actor)
    return not (through_time or has_own_forward) and prepared_class(world.rssm) is not None


def _has_standard_layers(mlp: nn.Module) -> bool:
    """Return whether no layer was added or changed."""
    layers = enumerate(mlp._modules.values())
    return is_plain(mlp, MLP) and all(is_plain(m, RMSNormSiLU if i % 2 else Linear) for i, m in layers if m is not None)


def imagine_prepared(
    world: WorldModel, actor: DreamerActor, start: Latent, horizon: int, policies: int | None = None, **_: object
) -> Trajectory:
    """Compute ``imagination.imagine`` without gradient through time."""
    lead, latent = start.deter.shape[:-1], start.map(lambda x: x.flatten(0, 1))  # [B, T], [M, ...]
    is_recomputed = gpu.can_use_triton(latent.deter) and _has_standard_layers(actor.mlp)
    hidden, actions, masks = [], [], []
    with torch.no_grad():
        steps = prepare(world.rssm, latent.deter.dtype)
        body = StepLayers(cast(MLP, actor.mlp), latent.deter.dtype) if is_recomputed else actor.mlp
        compiled = rssm.supports_dream_step(world.rssm, latent)
        features = latent.deter.new_empty(horizon + 1, len(latent.deter), world.rssm.feature_width)
        _write_feature(latent, features[0])
        for step, feature in enumerate(features):
            with torch.set_grad_enabled(not is_recomputed):
                hidden.append(body(feature))  # [M, units]
            masks += [] if world.predict_mask is None else [world.predict_mask(feature)]  # [M, A]
            policy = actor.heads(hidden[-1], *masks[-1:])
            actions.append(policy.sample() if actor.draw is None else actor.draw(policy))  # [M, A]
            if step == horizon:
                break
            if compiled:
                rssm.dream_step(world.rssm, steps, feature, actions[-1], features[step + 1])
            else:
                _write_feature(steps.imagine(world.rssm.split(feature), actions[-1]), features[step + 1])
    count = horizon if policies is None else policies
    with torch.enable_grad():
        units = actor.mlp(features[:count]) if is_recomputed else torch.stack(hidden[:count])  # [K, M, units]
        legal = torch.stack(masks).view(horizon + 1, *lead, -1) if masks else None
        policy = actor.heads(units.view(count, *lead, -1), None if legal is None else legal[:count])
    action = torch.stack(actions).view(horizon + 1, *lead, -1)
    return Trajectory(features.view(horizon + 1, *lead, -1), action, policy, legal)


def _write_feature(latent: Latent, out: Tensor) -> None:
    """Write ``latent.feature`` into ``out`` ``[M, D + S*C]``."""
    # ``out.data`` hides the write from autograd, which may have saved other rows of this memory and would raise.
    torch.cat([latent.deter, latent.stoch.flatten(-2)], -1, out=out.data)
