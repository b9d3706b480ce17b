"""Steps down the losses of objectives without autograd, for perceptrons over vectors on CPUs.

An objective says what is computed, and autograd would find its gradient. Where all networks are perceptrons the
gradient is a few calls of compiled functions, and going through autograd takes as long as some of them. The steps here
make those calls themselves, in the same order and to the same numbers, wherever an objective's loss is the one they
know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from reverie.core.compiled import compiled
from reverie.core.types import Batch
from reverie.nn.adam import Adam
from reverie.nn.mlp import ActionCritic, DeterministicActor
from reverie.nn.perceptron import Layout, Pass, Perceptron, back, forth
from reverie.nn.squashed import GaussianActor, draw, draw_back
from reverie.nn.values import ActionValues
from reverie.objectives import compiled_quantile, compiled_td
from reverie.objectives.returns import followed
from reverie.objectives.td import Losses, before, losses_of


class Step:
    """One step down a loss of an objective, by autograd from its definition, or where it can be without.

    ``step(batch)`` computes the loss, moves what ``optims`` hold and returns the loss as it was before.
    """

    networks: ClassVar[Mapping[str, type[nn.Module]]] = {}
    """The objective's networks that must be of these very classes."""

    def __init__(self, objective: Any, optims: Mapping[str, Adam], *definitions: Callable[..., Any]) -> None:
        """``definitions``: the loss, a method of ``objective``, and others that it rests on.

        Where the objective's class has another method of one of these names, that one counts, and autograd is used.
        """
        self.objective, self.optims, self.definitions = objective, optims, definitions

    def __call__(self, batch: Batch) -> Losses:
        """The losses of a batch ``[B, T]``; without autograd there is no gradient in them."""
        if self.known() and self.fits(batch):
            with torch.no_grad():
                return self.explicit(batch)
        losses: Losses = getattr(self.objective, self.definitions[0].__name__)(batch)
        for name, optim in self.optims.items():
            if name in losses.terms:
                optim.step(losses.terms[name])
        return losses

    def known(self) -> bool:
        """Whether this objective computes what is known here."""
        kind = type(self.objective)
        same = all(getattr(kind, method.__name__) is method for method in self.definitions)
        return same and all(type(getattr(self.objective, key)) is net for key, net in self.networks.items())

    def fits(self, batch: Batch) -> bool:
        """Whether compiled functions can read the batch and the networks."""
        networks = [getattr(self.objective, name) for name in self.networks]
        if not all(isinstance(net.body, Perceptron) and net.inputs.encoder is None for net in networks):
            return False
        numbers = (batch.action, batch.reward, batch.weight, *(net.body.theta for net in networks))
        whole = batch.is_last.dtype is torch.bool and batch.reward.numel() > batch.reward.shape[0]
        return whole and compiled(*numbers) and all(net.inputs.dtype is torch.float32 for net in networks)

    def explicit(self, batch: Batch) -> Losses:
        """What ``__call__`` does, without autograd."""
        raise NotImplementedError


class RegressionStep(Step):
    """Critics Q_i(s, a) towards targets: scale E[w (Q_i(s, a) - y)^2], summed over them."""

    networks: ClassVar = {"critic": ActionCritic}

    def __init__(
        self, objective: Any, optims: Mapping[str, Adam], *definitions: Callable[..., Any], scale: float = 1.0
    ) -> None:
        """``scale``: 0.5 where a paper has it."""
        super().__init__(objective, optims, *definitions)
        self.scale = scale

    def explicit(self, batch: Batch) -> Losses:
        """See :class:`Step`."""
        critic, target = self.objective.critic, self.objective.targets(batch)
        passed = asked(critic, before(batch.obs), batch.action[:, :-1])
        values = passed.y.view(-1, *target.shape)  # [K, B, T-1]
        error, grad = compiled_td.error_and_gradient(values, target, batch.is_last, batch.weight, self.scale)
        descend(critic, self.optims["critic"], passed, grad)
        return losses_of(error)


class ValuesStep(Step):
    """A network Q(s, .) of all classes towards targets of the one that was taken: E[w L(Q(s, a) - y)], Huber's loss."""

    networks: ClassVar = {"network": ActionValues}

    def explicit(self, batch: Batch) -> Losses:
        """See :class:`Step`."""
        network, target, taken = self.objective.network, self.objective.targets(batch), batch.action[:, :-1]
        passed = asked(network, before(batch.obs))
        values = (passed.y.view(taken.shape) * taken).sum(-1)  # [B, T-1]
        error, grad = compiled_td.error_and_gradient(
            values, target, batch.is_last, batch.weight, kappa=self.objective.kappa
        )
        descend(network, self.optims["critic"], passed, grad.unsqueeze(-1) * taken)
        return losses_of(error)


class QuantilesStep(Step):
    """The same of quantiles of the return in place of values: sum_i E_j[rho_i(y_j - theta_i(s, a))]."""

    networks: ClassVar = {"network": ActionValues}

    def explicit(self, batch: Batch) -> Losses:
        """See :class:`Step`."""
        network, target = self.objective.network, self.objective.targets(batch)  # y: [B, T-1, N]
        passed = asked(network, before(batch.obs))
        quantiles = passed.y.view(*target.shape[:-1], *network.shape)  # [B, T-1, A, N]
        error, grad = compiled_quantile.error_and_gradient(quantiles, target, batch, self.objective.kappa)
        descend(network, self.optims["critic"], passed, grad)
        return losses_of(error)


class PolicyGradientStep(Step):
    """An actor mu(s) up the first critic: E[-Q_1(s, mu(s))], the deterministic policy gradient."""

    networks: ClassVar = {"actor": DeterministicActor, "critic": ActionCritic}

    def explicit(self, batch: Batch) -> Losses:
        """See :class:`Step`."""
        actor, critic, obs = self.objective.actor, self.objective.critic, before(batch.obs)
        mask = followed(batch.is_last)
        acted = asked(actor, obs)
        valued = asked(critic, obs, acted.y.view(*mask.shape, -1), copies=1)
        value, share = compiled_td.mean_and_shares(valued.y.view(mask.shape), mask)
        descend(actor, self.optims["actor"], acted, along_action(critic, valued, -share, copies=1))
        return Losses({"actor": -value}, {"loss/actor": -value})


class SoftPolicyStep(Step):
    """A squashed normal policy up the lesser critic and its entropy, and the temperature towards a target entropy.

    E[alpha ln pi(a | s) - min_i Q_i(s, a)] and E[-alpha (ln pi(a | s) + target entropy)], of actions drawn once.
    """

    networks: ClassVar = {"actor": GaussianActor, "critic": ActionCritic}

    def explicit(self, batch: Batch) -> Losses:
        """See :class:`Step`."""
        o, obs, mask = self.objective, before(batch.obs), followed(batch.is_last)
        acted = asked(o.actor, obs)
        mean, raw = acted.y[0].chunk(2, -1)  # [M, A]
        noise = torch.randn(*mask.shape, mean.shape[-1])  # [B, T-1, A]
        action, log_pi = draw(mean, raw, noise)  # [B, T-1, A], [B, T-1]
        valued = asked(o.critic, obs, action)
        alpha, values = o.temperature, valued.y.view(-1, *mask.shape)  # [], [K, B, T-1]
        least = values.amin(0)  # [B, T-1]
        loss, share = compiled_td.mean_and_shares(least - alpha * log_pi, mask)
        lesser = (values == least).to(share.dtype)  # [K, B, T-1]; of equal ones each gets its part, as from autograd
        daction = along_action(o.critic, valued, -share * lesser / lesser.sum(0))
        dy = torch.empty_like(acted.y[0])  # [M, 2 A]
        draw_back(raw, noise, action, daction, alpha * share, *dy.chunk(2, -1))
        descend(o.actor, self.optims["actor"], acted, dy)
        return self._with_temperature(batch, -loss, compiled_td.mean_and_shares(-log_pi, mask)[0])

    def _with_temperature(self, batch: Batch, actor: Tensor, entropy: Tensor) -> Losses:
        o, before_step = self.objective, self.objective.temperature
        term = before_step * (entropy - o.target_entropy)
        if "temperature" in self.optims:
            self.optims["temperature"].apply_to([term])  # its own gradient: ln alpha is what is learned
        metrics = {"loss/actor": actor, "loss/temperature": term,
                   "train/entropy": entropy, "train/temperature": before_step}  # fmt: skip
        return Losses({"actor": actor, "temperature": term}, metrics)


# ---------------------------------------------------------------------- the pieces


def asked(network: Any, obs: Any, action: Tensor | None = None, copies: int | None = None) -> Pass:
    """What a network with ``inputs`` and a ``body``, or its first copies, says of M rows, and how to get back."""
    parts = [network.inputs(obs), *([] if action is None else [action])]
    theta, layout = of_first(network.body, copies)
    return forth(theta, layout, *(x.reshape(-1, x.shape[-1]) for x in parts))


def of_first(body: Perceptron, copies: int | None) -> tuple[Tensor, Layout]:
    """All parameters ``[K, P]``, or those of the first copy alone."""
    return (body.theta, body.layout) if copies is None else (body.theta[:1], body.alone)


def along_action(critic: Any, passed: Pass, grad: Tensor, copies: int | None = None) -> Tensor:
    """The gradient ``[M, A]`` of what was asked of a critic with respect to the action, the last of its inputs."""
    theta, layout = of_first(critic.body, copies)
    dx, _ = back(theta, layout, passed, grad, inputs=True, parameters=False)
    assert dx is not None
    return dx[:, critic.inputs.width :].contiguous()


def descend(network: Any, optim: Adam, passed: Pass, grad: Tensor) -> None:
    """A step of the optimiser of a network's parameters, from the gradient of what it said ``[K, M, outputs]``."""
    _, dtheta = back(network.body.theta, network.body.layout, passed, grad)
    assert dtheta is not None
    optim.apply_to([dtheta])
