"""Analytic gradients of losses of small MLPs, in place of autograd, whose overhead takes as long as the arithmetic.

A method of an objective defines each loss. :data:`STEPS` holds, by the name of that method, a function that computes
the losses and their gradients without autograd:

1. a forward pass of each network that keeps the hidden layers' values (:func:`forward_kept`);
2. the losses and their gradients with respect to the networks' outputs, from a compiled function;
3. the backward pass through the layers by the chain rule (``kernels/perceptron.py: backward``).

:func:`fits` tells whether the loss is that method, in all that it rests on, and the networks are what it is written
for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from reverie.core.types import Batch
from reverie.kernels.call import cpu32
from reverie.kernels.losses import (
    cross_entropy_and_gradient,
    error_and_gradient,
    expected_and_advantage,
    losses_of,
    mean_and_shares,
    means,
    quantile_error_and_gradient,
)
from reverie.kernels.perceptron import Activations, backward, forward
from reverie.kernels.squashed import sample, sample_backward
from reverie.nn.actor_critic import (
    ChoicesActor,
    DeterministicActor,
    DiscreteQEnsemble,
    DiscreteQNetwork,
    Inputs,
    QEnsemble,
    TanhGaussianActor,
)
from reverie.nn.optim import Adam, Loss
from reverie.nn.perceptron import Layout, ReluMLP
from reverie.objectives.conservative import pressed
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, before, mean_over

Gradients = dict[str, Sequence[Tensor]]


class Step(NamedTuple):
    """The analytic gradients of a loss."""

    gradients: Callable[[Any, Batch], tuple[Losses, Gradients]]
    """Computes the losses and their gradients from an objective and a batch ``[B, T]``."""
    networks: Mapping[str, type[nn.Module]]
    """The objective's networks that it uses, and the exact classes that they must have."""
    inlines: tuple[str, ...] = ()
    """Members that it computes itself, so that the objective must have these very ones: ``module:Class.member``."""


def fits(loss: Loss, optims: Mapping[str, Adam], *inputs: Any) -> bool:
    """Return whether :func:`gradients` computes this loss."""
    step = STEPS.get(_name(loss))
    if step is None or len(inputs) != 1 or not _known(loss, step):
        return False
    batch, objective = inputs[0], loss.__self__  # type: ignore[attr-defined]  # a name is that of a method
    networks = [getattr(objective, name) for name in step.networks]
    if not all(plain(net.body, ReluMLP) and plain(net.inputs, Inputs) for net in networks):
        return False
    parts, thetas = [net.inputs for net in networks], [net.body.theta for net in networks]
    if any(x.encoder is not None or x.dtype is not torch.float32 for x in parts):
        return False
    trained = all(p.requires_grad for o in optims.values() if isinstance(o, Adam) for p in o.params)
    whole = batch.is_last.dtype is torch.bool and batch.reward.numel() > batch.reward.shape[0]
    hooked = any(theta._backward_hooks for theta in thetas)
    return trained and whole and not hooked and cpu32(batch.action, batch.reward, batch.weight, *thetas)


@torch.no_grad()
def gradients(loss: Loss, optims: Mapping[str, Adam], batch: Batch) -> tuple[Losses, Gradients]:
    """Compute ``optim.gradients``; the losses have no gradient."""
    losses, found = STEPS[_name(loss)].gradients(loss.__self__, batch)  # type: ignore[attr-defined]
    return losses, {name: grads for name, grads in found.items() if name in optims}


def _name(loss: Loss) -> str:
    """Return the name of the method that ``loss`` is, as in ``STEPS``; "" if it is none."""
    function = getattr(loss, "__func__", None)
    return f"{function.__module__}:{function.__qualname__}" if function else ""


def _known(loss: Any, step: Step) -> bool:
    """Return whether the objective is what ``step`` is written for, in all that its loss rests on."""
    objective = loss.__self__
    same = _defined(_name(loss)) is loss.__func__ and all(
        getattr(type(objective), name) is _defined(full) and name not in vars(objective)
        for full in step.inlines
        for name in [full.rsplit(".", 1)[1]]
    )
    return same and all(plain(getattr(objective, x), net) for x, net in step.networks.items())


def _defined(name: str) -> Any:
    """Return the member of a class that ``module:Class.member`` names."""
    module, owner, member = name.replace(":", ".").rsplit(".", 2)
    return getattr(getattr(importlib.import_module(module), owner), member)


def plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether ``module`` computes what its class ``kind`` defines: it is no subclass and nothing is attached.

    Hooks may be attached to it, or to all modules at once (``register_module_forward_hook`` and others of PyTorch).
    """
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    own = type(module) is kind and not any(hooks) and "forward" not in vars(module)
    return own and not any(getattr(torch_module, name, None) for name in _OF_ALL_MODULES)


_OF_ALL_MODULES = tuple(f"_global_{name}_hooks" for name in ("forward", "forward_pre", "backward", "backward_pre"))
"""Names of PyTorch's dictionaries of the hooks of all modules; it has no public function that tells whether any are."""

# ---------------------------------------------------------------------- the pieces


def forward_kept(network: Any, obs: Any, action: Tensor | None = None, copies: int | None = None) -> Activations:
    """Compute the forward pass of M rows for a network with ``inputs`` and a ``body``, and keep it for the backward.

    With ``copies``, only the first copy is computed.
    """
    parts = [network.inputs(obs), *([] if action is None else [action])]
    theta, layout = _of_first(network.body, copies)
    return forward(theta, layout, *(x.reshape(-1, x.shape[-1]) for x in parts))


def _of_first(body: ReluMLP, copies: int | None) -> tuple[Tensor, Layout]:
    """Return the parameters ``[K, P]`` and layout of all copies or, if ``copies`` is given, of the first one."""
    return (body.theta, body.layout) if copies is None else (body.theta[:1], body.alone)


def of_action(critic: Any, kept: Activations, grad: Tensor, copies: int | None = None) -> Tensor:
    """Return the gradient ``[M, A]`` with respect to the action, given that of a critic's output, ``grad``."""
    theta, layout = _of_first(critic.body, copies)
    dx, _ = backward(theta, layout, kept, grad, inputs=True, parameters=False)
    assert dx is not None
    return dx[:, critic.inputs.width :].contiguous()


def of_parameters(network: Any, kept: Activations, grad: Tensor) -> list[Tensor]:
    """Return the gradient of a network's parameters, given that of its output, ``[K, M, outputs]``."""
    _, dtheta = backward(network.body.theta, network.body.layout, kept, grad)
    assert dtheta is not None
    return [dtheta]


# ---------------------------------------------------------------------- critics and values


def regression(scale: float) -> Callable[[Any, Batch], tuple[Losses, Gradients]]:
    """Of critics Q_i(s, a): sum_i scale E[w (Q_i(s, a) - y)^2], with targets y and weights w."""

    def found(o: Any, batch: Batch) -> tuple[Losses, Gradients]:
        target = o.targets(batch)
        kept = forward_kept(o.critic, before(batch.obs), batch.action[:, :-1])
        values = kept.y.view(-1, *target.shape)  # [K, B, T-1]
        error, grad = error_and_gradient(values, target, batch, scale)
        return losses_of(error), {"critic": of_parameters(o.critic, kept, grad)}

    return found


def values(o: Any, batch: Batch) -> tuple[Losses, Gradients]:
    """Of Q(s, .) of discrete actions: E[w L(Q(s, a) - y)] for the action a taken, where L is the Huber loss."""
    target, taken = o.targets(batch), batch.action[:, :-1]
    kept = forward_kept(o.network, before(batch.obs))
    value = (kept.y.view(taken.shape) * taken).sum(-1)  # [B, T-1]
    error, grad = error_and_gradient(value, target, batch, kappa=o.cfg.kappa)
    return losses_of(error), {"critic": of_parameters(o.network, kept, grad.unsqueeze(-1) * taken)}


def quantiles(o: Any, batch: Batch) -> tuple[Losses, Gradients]:
    """Of quantiles theta_i of the return of the action taken: sum_i E_j[rho_i(y_j - theta_i(s, a))]."""
    target = o.targets(batch)  # y: [B, T-1, N]
    kept = forward_kept(o.network, before(batch.obs))
    theta = kept.y.view(*target.shape[:-1], *o.network.shape)  # [B, T-1, A, N]
    error, grad = quantile_error_and_gradient(theta, target, batch, o.cfg.kappa)
    return losses_of(error), {"critic": of_parameters(o.network, kept, grad)}


def conservative_quantiles(o: Any, batch: Batch) -> tuple[Losses, Gradients]:
    """Of quantiles of the return with CQL's penalty on the values of unseen actions, the means of the quantiles."""
    target = o.targets(batch)  # y: [B, T-1, N]
    kept = forward_kept(o.network, before(batch.obs))
    classes, n = o.network.shape
    theta = kept.y.view(*target.shape[:-1], classes, n)  # [B, T-1, A, N]
    error, grad = quantile_error_and_gradient(theta, target, batch, o.cfg.kappa)
    gap, dvalue = cross_entropy_and_gradient(means(theta), batch, (classes,))
    grad.add_((dvalue * (o.cfg.min_q_weight / n)).unsqueeze(-1))
    return pressed(losses_of(error), gap, o.cfg.min_q_weight), {"critic": of_parameters(o.network, kept, grad)}


def class_critics(o: Any, batch: Batch) -> tuple[Losses, Gradients]:
    """Of critics of discrete actions: sum_i E[w (Q_i(s, a) - y)^2] + alpha gap_i, where gap_i is CQL's penalty."""
    target, taken = o.targets(batch), batch.action[:, :-1]
    kept = forward_kept(o.critic, before(batch.obs))
    every = kept.y.view(-1, *taken.shape)  # [K, B, T-1, A]
    error, dtaken = error_and_gradient((every * taken).sum(-1), target, batch)
    grad, losses = dtaken.unsqueeze(-1) * taken, losses_of(error)  # [K, B, T-1, A]
    if o.cfg.min_q_weight:
        classes, gaps = (taken.shape[-1],), []
        for of_one, dof_one in zip(every, grad, strict=True):
            gap, dvalue = cross_entropy_and_gradient(of_one, batch, classes)
            dof_one.add_(dvalue, alpha=o.cfg.min_q_weight)
            gaps.append(gap)
        losses = pressed(losses, torch.stack(gaps).sum(), o.cfg.min_q_weight)
    return losses, {"critic": of_parameters(o.critic, kept, grad)}


def cloned_values(o: Any, batch: Batch) -> tuple[Losses, Gradients]:
    """Of Q-values and a behaviour clone G in one network: E[w L(Q(s, a) - y)] + E[-ln G(a | s)] + c E[i^2].

    i are the logits of G, and c is the objective's ``logit_weight``.
    """
    target, taken = o.targets(batch), batch.action[:, :-1]
    kept = forward_kept(o.network, before(batch.obs))
    value, logits = kept.y.view(2, *taken.shape).unbind()
    error, dvalue = error_and_gradient((value * taken).sum(-1), target, batch, kappa=o.cfg.kappa)
    imitation, dlogits = cross_entropy_and_gradient(logits, batch, (taken.shape[-1],), square=o.cfg.logit_weight)
    grad = torch.stack([dvalue.unsqueeze(-1) * taken, dlogits])
    losses = losses_of(error)
    metrics = {**losses.metrics, "loss/imitation": imitation}
    terms = {"network": losses.terms["critic"] + imitation}
    return Losses(terms, metrics, losses.priority), {"network": of_parameters(o.network, kept, grad)}


# ---------------------------------------------------------------------- actors


def policy_gradient(o: Any, batch: Batch) -> tuple[Losses, Gradients]:
    """Of an actor mu(s), by the deterministic policy gradient of the first critic: E[-Q_1(s, mu(s))]."""
    obs, mask = before(batch.obs), transition_mask(batch.is_last)
    acted = forward_kept(o.actor, obs)
    valued = forward_kept(o.critic, obs, acted.y.view(*mask.shape, -1), copies=1)
    value, share = mean_and_shares(valued.y.view(mask.shape), mask)
    grad = of_parameters(o.actor, acted, of_action(o.critic, valued, -share, copies=1))
    return Losses({"actor": -value}, {"loss/actor": -value}), {"actor": grad}


def soft_policy(o: Any, batch: Batch) -> tuple[Losses, Gradients]:
    """Of SAC's policy, by the smallest critic and the entropy, and of the temperature alpha, by a target entropy.

    E[alpha ln pi(a | s) - min_i Q_i(s, a)] and E[-alpha (ln pi(a | s) + target entropy)], with the same sampled a.
    """
    obs, mask = before(batch.obs), transition_mask(batch.is_last)
    acted = forward_kept(o.actor, obs)
    mean, raw = acted.y[0].chunk(2, -1)  # [M, A]
    noise = torch.randn(*mask.shape, mean.shape[-1], dtype=mean.dtype, device=mean.device)  # [B, T-1, A]
    action, log_pi = sample(mean, raw, noise)  # [B, T-1, A], [B, T-1]
    valued = forward_kept(o.critic, obs, action)
    alpha, value = o.temperature, valued.y.view(-1, *mask.shape)  # [], [K, B, T-1]
    least = value.amin(0)  # [B, T-1]
    loss, share = mean_and_shares(least - alpha * log_pi, mask)
    lesser = (value == least).to(share.dtype)  # [K, B, T-1]; equal critics share the gradient, as in autograd
    daction = of_action(o.critic, valued, -share * lesser / lesser.sum(0))
    dy = torch.empty_like(acted.y[0])  # [M, 2 A]
    sample_backward(raw, noise, action, daction, alpha * share, *dy.chunk(2, -1))
    entropy = mean_and_shares(-log_pi, mask)[0]
    term = alpha * (entropy - o.target_entropy)
    metrics = {"loss/actor": -loss, "loss/temperature": term, "train/entropy": entropy, "train/temperature": alpha}
    # The term is its own gradient with respect to ln alpha, the parameter.
    found: Gradients = {"actor": of_parameters(o.actor, acted, dy), "temperature": [term]}
    return Losses({"actor": -loss, "temperature": term}, metrics), found


def likelihood(o: Any, batch: Batch) -> tuple[Losses, Gradients]:
    """Of an actor, by behaviour cloning: E[-ln pi(a | s)] of the recorded actions."""
    kept = forward_kept(o.actor, before(batch.obs))
    logits = kept.y.view(*batch.action[:, :-1].shape)
    loss, grad = cross_entropy_and_gradient(logits, batch, o.actor.classes)
    return Losses({"actor": loss}, {"loss/actor": loss}), {"actor": of_parameters(o.actor, kept, grad)}


def filtered_likelihood(o: Any, batch: Batch) -> tuple[Losses, Gradients]:
    """Of an actor, by cloning recorded actions weighted by a filter f of the advantage: E[-f(A) ln pi(a | s)]."""
    obs, taken, mask = before(batch.obs), batch.action[:, :-1], transition_mask(batch.is_last)
    kept = forward_kept(o.actor, obs)
    logits = kept.y.view(taken.shape)
    _, advantage = expected_and_advantage(logits, o.critic(obs), taken)  # [B, T-1]
    weight = o.cfg.filter(advantage)
    loss, grad = cross_entropy_and_gradient(logits, batch, o.actor.classes, weight=weight)
    metrics = {
        "loss/actor": loss,
        "train/advantage": mean_over(advantage, mask),
        "train/weight": mean_over(weight, mask),
    }
    return Losses({"actor": loss}, metrics), {"actor": of_parameters(o.actor, kept, grad)}


_CRITIC, _ACTOR_CRITIC = {"critic": QEnsemble}, {"actor": DeterministicActor, "critic": QEnsemble}
_SAC, _DISCRETE_CRR = "reverie.algos.sac:SACObjective", "reverie.algos.discrete_crr:DiscreteCRRObjective"
STEPS = {
    "reverie.algos.ddpg:DDPGObjective.critic_loss": Step(regression(1.0), _CRITIC),
    "reverie.algos.ddpg:DDPGObjective.actor_loss": Step(policy_gradient, _ACTOR_CRITIC),
    "reverie.algos.td3:TD3Objective.critic_loss": Step(regression(1.0), _CRITIC),
    "reverie.algos.td3:TD3Objective.actor_loss": Step(policy_gradient, _ACTOR_CRITIC),
    "reverie.algos.sac:SACObjective.critic_loss": Step(
        regression(0.5), _CRITIC, ("reverie.algos.sac:SACObjective.values",)
    ),
    f"{_SAC}.actor_loss": Step(
        soft_policy, {"actor": TanhGaussianActor, "critic": QEnsemble}, (f"{_SAC}.policy_value", f"{_SAC}.temperature")
    ),
    "reverie.algos.dqn:DQNObjective.critic_loss": Step(values, {"network": DiscreteQNetwork}),
    "reverie.algos.qr_dqn:QRDQNObjective.critic_loss": Step(quantiles, {"network": DiscreteQNetwork}),
    "reverie.algos.discrete_cql:DiscreteCQLObjective.critic_loss": Step(
        conservative_quantiles, {"network": DiscreteQNetwork}
    ),
    "reverie.algos.discrete_bcq:DiscreteBCQObjective.loss": Step(
        cloned_values, {"network": DiscreteQEnsemble}, ("reverie.algos.discrete_bcq:DiscreteBCQObjective.forward",)
    ),
    f"{_DISCRETE_CRR}.critic_loss": Step(class_critics, {"critic": DiscreteQEnsemble}),
    "reverie.algos.crr:CRRObjective.actor_loss": Step(
        filtered_likelihood,
        {"actor": ChoicesActor, "critic": DiscreteQEnsemble},
        (f"{_DISCRETE_CRR}.advantage",),
    ),
    "reverie.algos.bc:BCObjective.forward": Step(likelihood, {"actor": ChoicesActor}),
}
"""The analytic gradients of losses, by the module and name of the method that defines each."""
