"""Gradient steps with hand-written backward passes instead of autograd, for small MLPs on CPUs.

A method of the objective defines each loss, and autograd can differentiate it. For small networks autograd's overhead
takes as long as parts of the computation. So each subclass of :class:`ExplicitStep` also does the update of one loss by
hand (``explicit``):

1. a forward pass of each network that keeps the hidden layers' values (:func:`asked`);
2. the loss and its gradient with respect to the networks' outputs, from a compiled function of ``objectives``;
3. the backward pass through the layers by the chain rule (``nn/perceptron.py: back``) and Adam (:func:`descend`).

This replaces autograd only where both hold, which is checked at every call:

* ``known()``: the objective's loss methods are the very ones that the step was written for (neither a subclass nor the
  object has overridden them), and its networks are exactly of the classes in ``networks``, without hooks;
* ``fits(batch)``: the networks are MLPs without a CNN, made of exactly ``Inputs`` and ``ReluMLP`` without hooks; all
  parameters are trained (``requires_grad``), everything is float32 on the CPU, and there is a C compiler.

``tests/nn/test_steps.py: test_numbers_are_those_of_the_definition`` holds every step equal to autograd: metrics,
parameters and optimiser state of five updates, within 1e-6. ``nn/choice_steps.py`` has the steps of further learners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from reverie.core.compiled import compiled
from reverie.core.errors import unwritten
from reverie.core.types import Batch
from reverie.nn.actor_critic import DeterministicActor, Inputs, QEnsemble
from reverie.nn.adam import Adam
from reverie.nn.perceptron import Layout, Pass, ReluMLP, back, forth
from reverie.nn.squashed import TanhGaussianActor, draw, draw_back
from reverie.nn.values import DiscreteQNetwork
from reverie.objectives import compiled_quantile, compiled_td
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, before, losses_of


class ExplicitStep:
    """A gradient step on a loss of an objective: by a hand-written backward pass where possible, else by autograd.

    ``step(batch)`` computes the loss, updates the parameters in ``optims`` and returns the loss before the update.
    """

    networks: ClassVar[Mapping[str, type[nn.Module]]] = {}
    """The objective's networks that the step uses, and the exact classes that they must have."""

    def __init__(self, objective: Any, optims: Mapping[str, Adam], *definitions: Callable[..., Any] | property) -> None:
        """``definitions``: what of the objective's class defines the loss, first the method that returns it.

        If ``objective`` or its class overrides one of them, autograd is used with the overriding method.
        """
        self.objective, self.optims = objective, optims
        named = (d.fget if isinstance(d, property) else d for d in definitions)
        self.definitions = {str(getattr(f, "__name__", "")): d for f, d in zip(named, definitions, strict=True)}

    def __call__(self, batch: Batch) -> Losses:
        """Update on a batch ``[B, T]``, and return its losses; those of a hand-written step have no gradient."""
        if self.known() and self.fits(batch):
            with torch.no_grad():
                return self.explicit(batch)
        losses: Losses = getattr(self.objective, next(iter(self.definitions)))(batch)
        for name, optim in self.optims.items():
            if name in losses.terms:
                optim.step(losses.terms[name])
        return losses

    def known(self) -> bool:
        """Return whether the objective's loss and networks are those that :meth:`explicit` is written for."""
        kind, own = type(self.objective), vars(self.objective)
        same = all(getattr(kind, name) is defined and name not in own for name, defined in self.definitions.items())
        networks = {key: getattr(self.objective, key) for key in self.networks} if same else {}
        return same and all(plain(net, self.networks[key]) for key, net in networks.items())

    def fits(self, batch: Batch) -> bool:
        """Return whether the compiled functions can be used for this batch and these networks."""
        networks = [getattr(self.objective, name) for name in self.networks]
        if not all(plain(net.body, ReluMLP) and plain(net.inputs, Inputs) for net in networks):
            return False
        inputs, thetas = [net.inputs for net in networks], [net.body.theta for net in networks]
        if any(x.encoder is not None or x.dtype is not torch.float32 for x in inputs):
            return False
        trained = all(p.requires_grad for o in self.optims.values() if isinstance(o, Adam) for p in o.params)
        whole = batch.is_last.dtype is torch.bool and batch.reward.numel() > batch.reward.shape[0]
        hooked = any(theta._backward_hooks for theta in thetas)
        return trained and whole and not hooked and compiled(batch.action, batch.reward, batch.weight, *thetas)

    def explicit(self, batch: Batch) -> Losses:
        """Do what ``__call__`` does, by a hand-written backward pass and without autograd."""
        raise unwritten(self, "explicit")


class RegressionStep(ExplicitStep):
    """Update critics Q_i(s, a): sum_i scale E[w (Q_i(s, a) - y)^2], with targets y and weights w."""

    networks: ClassVar = {"critic": QEnsemble}

    def __init__(
        self, objective: Any, optims: Mapping[str, Adam], *definitions: Callable[..., Any], scale: float = 1.0
    ) -> None:
        """``scale``: factor of the loss; some papers have 0.5."""
        super().__init__(objective, optims, *definitions)
        self.scale = scale

    def explicit(self, batch: Batch) -> Losses:
        """Update by a hand-written backward pass, see :class:`ExplicitStep`."""
        critic, target = self.objective.critic, self.objective.targets(batch)
        passed = asked(critic, before(batch.obs), batch.action[:, :-1])
        values = passed.y.view(-1, *target.shape)  # [K, B, T-1]
        error, grad = compiled_td.error_and_gradient(values, target, batch.is_last, batch.weight, self.scale)
        descend(critic, self.optims["critic"], passed, grad)
        return losses_of(error)


class ValuesStep(ExplicitStep):
    """Update Q(s, .) of discrete actions: E[w L(Q(s, a) - y)] for the action a taken, where L is the Huber loss."""

    networks: ClassVar = {"network": DiscreteQNetwork}

    def explicit(self, batch: Batch) -> Losses:
        """Update by a hand-written backward pass, see :class:`ExplicitStep`."""
        network, target, taken = self.objective.network, self.objective.targets(batch), batch.action[:, :-1]
        passed = asked(network, before(batch.obs))
        values = (passed.y.view(taken.shape) * taken).sum(-1)  # [B, T-1]
        error, grad = compiled_td.error_and_gradient(
            values, target, batch.is_last, batch.weight, kappa=self.objective.kappa
        )
        descend(network, self.optims["critic"], passed, grad.unsqueeze(-1) * taken)
        return losses_of(error)


class QuantilesStep(ExplicitStep):
    """Update quantiles theta_i of the return of the action taken: sum_i E_j[rho_i(y_j - theta_i(s, a))]."""

    networks: ClassVar = {"network": DiscreteQNetwork}

    def explicit(self, batch: Batch) -> Losses:
        """Update by a hand-written backward pass, see :class:`ExplicitStep`."""
        network, target = self.objective.network, self.objective.targets(batch)  # y: [B, T-1, N]
        passed = asked(network, before(batch.obs))
        quantiles = passed.y.view(*target.shape[:-1], *network.shape)  # [B, T-1, A, N]
        error, grad = compiled_quantile.error_and_gradient(quantiles, target, batch, self.objective.kappa)
        descend(network, self.optims["critic"], passed, grad)
        return losses_of(error)


class PolicyGradientStep(ExplicitStep):
    """Update an actor mu(s) by the deterministic policy gradient of the first critic: E[-Q_1(s, mu(s))]."""

    networks: ClassVar = {"actor": DeterministicActor, "critic": QEnsemble}

    def explicit(self, batch: Batch) -> Losses:
        """Update by a hand-written backward pass, see :class:`ExplicitStep`."""
        actor, critic, obs = self.objective.actor, self.objective.critic, before(batch.obs)
        mask = transition_mask(batch.is_last)
        acted = asked(actor, obs)
        valued = asked(critic, obs, acted.y.view(*mask.shape, -1), copies=1)
        value, share = compiled_td.mean_and_shares(valued.y.view(mask.shape), mask)
        descend(actor, self.optims["actor"], acted, along_action(critic, valued, -share, copies=1))
        return Losses({"actor": -value}, {"loss/actor": -value})


class SoftPolicyStep(ExplicitStep):
    """Update SAC's policy by the smallest critic and the entropy, and the temperature alpha by a target entropy.

    E[alpha ln pi(a | s) - min_i Q_i(s, a)] and E[-alpha (ln pi(a | s) + target entropy)], with the same sampled a.
    """

    networks: ClassVar = {"actor": TanhGaussianActor, "critic": QEnsemble}

    def explicit(self, batch: Batch) -> Losses:
        """Update by a hand-written backward pass, see :class:`ExplicitStep`."""
        o, obs, mask = self.objective, before(batch.obs), transition_mask(batch.is_last)
        acted = asked(o.actor, obs)
        mean, raw = acted.y[0].chunk(2, -1)  # [M, A]
        noise = torch.randn(*mask.shape, mean.shape[-1], dtype=mean.dtype, device=mean.device)  # [B, T-1, A]
        action, log_pi = draw(mean, raw, noise)  # [B, T-1, A], [B, T-1]
        valued = asked(o.critic, obs, action)
        alpha, values = o.temperature, valued.y.view(-1, *mask.shape)  # [], [K, B, T-1]
        least = values.amin(0)  # [B, T-1]
        loss, share = compiled_td.mean_and_shares(least - alpha * log_pi, mask)
        lesser = (values == least).to(share.dtype)  # [K, B, T-1]; equal critics share the gradient, as in autograd
        daction = along_action(o.critic, valued, -share * lesser / lesser.sum(0))
        dy = torch.empty_like(acted.y[0])  # [M, 2 A]
        draw_back(raw, noise, action, daction, alpha * share, *dy.chunk(2, -1))
        descend(o.actor, self.optims["actor"], acted, dy)
        return self._with_temperature(batch, -loss, compiled_td.mean_and_shares(-log_pi, mask)[0])

    def _with_temperature(self, batch: Batch, actor: Tensor, entropy: Tensor) -> Losses:
        o, before_step = self.objective, self.objective.temperature
        term = before_step * (entropy - o.target_entropy)
        if "temperature" in self.optims:
            self.optims["temperature"].apply_to([term])  # its own gradient with respect to ln alpha, the parameter
        metrics = {"loss/actor": actor, "loss/temperature": term,
                   "train/entropy": entropy, "train/temperature": before_step}  # fmt: skip
        return Losses({"actor": actor, "temperature": term}, metrics)


# ---------------------------------------------------------------------- the pieces


def plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether ``module`` computes what its class ``kind`` defines: it is no subclass and nothing is attached.

    Hooks may be attached to it, or to all modules at once (``register_module_forward_hook`` and others of PyTorch).
    """
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    own = type(module) is kind and not any(hooks) and "forward" not in vars(module)
    return own and not any(getattr(torch_module, name, None) for name in _OF_ALL_MODULES)


_OF_ALL_MODULES = tuple(f"_global_{name}_hooks" for name in ("forward", "forward_pre", "backward", "backward_pre"))
"""Names of PyTorch's dictionaries of the hooks of all modules; it has no public function that tells whether any are."""


def asked(network: Any, obs: Any, action: Tensor | None = None, copies: int | None = None) -> Pass:
    """Compute the forward pass of M rows for a network with ``inputs`` and a ``body``, and keep it for ``back``.

    With ``copies``, only the first copy is computed.
    """
    parts = [network.inputs(obs), *([] if action is None else [action])]
    theta, layout = of_first(network.body, copies)
    return forth(theta, layout, *(x.reshape(-1, x.shape[-1]) for x in parts))


def of_first(body: ReluMLP, copies: int | None) -> tuple[Tensor, Layout]:
    """Return the parameters ``[K, P]`` and layout of all copies or, if ``copies`` is given, of the first one."""
    return (body.theta, body.layout) if copies is None else (body.theta[:1], body.alone)


def along_action(critic: Any, passed: Pass, grad: Tensor, copies: int | None = None) -> Tensor:
    """Return the gradient ``[M, A]`` with respect to the action, given that of a critic's output, ``grad``."""
    theta, layout = of_first(critic.body, copies)
    dx, _ = back(theta, layout, passed, grad, inputs=True, parameters=False)
    assert dx is not None
    return dx[:, critic.inputs.width :].contiguous()


def descend(network: Any, optim: Adam, passed: Pass, grad: Tensor) -> None:
    """Update a network's parameters, given the gradient ``[K, M, outputs]`` of its output."""
    _, dtheta = back(network.body.theta, network.body.layout, passed, grad)
    assert dtheta is not None
    optim.apply_to([dtheta])
