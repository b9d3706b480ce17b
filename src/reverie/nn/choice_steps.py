"""Hand-written gradient steps, as in ``nn/steps.py``, for offline learners with discrete actions.

They serve behaviour cloning, discrete BCQ, CQL and CRR. ``nn/steps.py`` says when they replace autograd. The test
``tests/nn/test_choice_steps.py: test_numbers_are_those_of_the_definition`` holds them equal to it.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from reverie.core.types import Batch
from reverie.nn.choices import ChoicesActor
from reverie.nn.steps import ExplicitStep, asked, descend
from reverie.nn.values import DiscreteQEnsemble, DiscreteQNetwork
from reverie.objectives import compiled_choices, compiled_quantile, compiled_td
from reverie.objectives.conservative import pressed
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import Losses, before, losses_of, mean_over


class LikelihoodStep(ExplicitStep):
    """Update an actor by behaviour cloning: E[-ln pi(a | s)] of the recorded actions."""

    networks: ClassVar = {"actor": ChoicesActor}

    def explicit(self, batch: Batch) -> Losses:
        """Update by a hand-written backward pass, see :class:`~reverie.nn.steps.ExplicitStep`."""
        actor, taken = self.objective.actor, batch.action[:, :-1]
        passed = asked(actor, before(batch.obs))
        logits = passed.y.view(taken.shape)
        loss, grad = compiled_choices.loss_and_gradient(logits, batch.action, batch.is_last, actor.classes)
        descend(actor, self.optims["actor"], passed, grad)
        return Losses({"actor": loss}, {"loss/actor": loss})


class ClonedValuesStep(ExplicitStep):
    """Update Q-values and a behaviour clone G in one network: E[w L(Q(s, a) - y)] + E[-ln G(a | s)] + c E[i^2].

    i are the logits of G, and c is the objective's ``logit_weight``.
    """

    networks: ClassVar = {"network": DiscreteQEnsemble}

    def explicit(self, batch: Batch) -> Losses:
        """Update by a hand-written backward pass, see :class:`~reverie.nn.steps.ExplicitStep`."""
        o, target, taken = self.objective, self.objective.targets(batch), batch.action[:, :-1]
        passed = asked(o.network, before(batch.obs))
        values, logits = passed.y.view(2, *taken.shape).unbind()
        error, dvalue = compiled_td.error_and_gradient(
            (values * taken).sum(-1), target, batch.is_last, batch.weight, kappa=o.kappa
        )
        imitation, dlogits = compiled_choices.loss_and_gradient(
            logits, batch.action, batch.is_last, (taken.shape[-1],), square=o.logit_weight
        )
        descend(o.network, self.optims["network"], passed, torch.stack([dvalue.unsqueeze(-1) * taken, dlogits]))
        losses = losses_of(error)
        metrics = {**losses.metrics, "loss/imitation": imitation}
        return Losses({"network": error.loss + imitation}, metrics, losses.priority)


class ConservativeQuantilesStep(ExplicitStep):
    """Update quantiles of the return with CQL's penalty on the Q-values of unseen actions; Q is the quantiles' mean."""

    networks: ClassVar = {"network": DiscreteQNetwork}

    def explicit(self, batch: Batch) -> Losses:
        """Update by a hand-written backward pass, see :class:`~reverie.nn.steps.ExplicitStep`."""
        o, target = self.objective, self.objective.targets(batch)  # y: [B, T-1, N]
        passed = asked(o.network, before(batch.obs))
        classes, n = o.network.shape
        quantiles = passed.y.view(*target.shape[:-1], classes, n)  # [B, T-1, A, N]
        error, grad = compiled_quantile.error_and_gradient(quantiles, target, batch, o.kappa)
        values = compiled_quantile.means(quantiles)  # [B, T-1, A]
        gap, dvalue = compiled_choices.loss_and_gradient(values, batch.action, batch.is_last, (classes,))
        grad.add_((dvalue * (o.min_q_weight / n)).unsqueeze(-1))
        descend(o.network, self.optims["critic"], passed, grad)
        return pressed(losses_of(error), gap, o.min_q_weight)


class ClassCriticsStep(ExplicitStep):
    """Update critics of discrete actions: sum_i E[w (Q_i(s, a) - y)^2] + alpha gap_i, where gap_i is CQL's penalty."""

    networks: ClassVar = {"critic": DiscreteQEnsemble}

    def explicit(self, batch: Batch) -> Losses:
        """Update by a hand-written backward pass, see :class:`~reverie.nn.steps.ExplicitStep`."""
        o, target, taken = self.objective, self.objective.targets(batch), batch.action[:, :-1]
        passed = asked(o.critic, before(batch.obs))
        values = passed.y.view(-1, *taken.shape)  # [K, B, T-1, A]
        error, dtaken = compiled_td.error_and_gradient((values * taken).sum(-1), target, batch.is_last, batch.weight)
        grad, losses = dtaken.unsqueeze(-1) * taken, losses_of(error)  # [K, B, T-1, A]
        if o.min_q_weight:
            gaps = [self._gap(batch, of_one, of_its) for of_one, of_its in zip(values, grad, strict=True)]
            losses = pressed(losses, torch.stack(gaps).sum(), o.min_q_weight)
        descend(o.critic, self.optims["critic"], passed, grad)
        return losses

    def _gap(self, batch: Batch, values: Tensor, grad: Tensor) -> Tensor:
        """Return CQL's penalty of one critic, and add its gradient to ``grad``."""
        gap, dvalue = compiled_choices.loss_and_gradient(values, batch.action, batch.is_last, (values.shape[-1],))
        grad.add_(dvalue, alpha=self.objective.min_q_weight)
        return gap


class FilteredLikelihoodStep(ExplicitStep):
    """Update an actor by cloning recorded actions, weighted by a filter f of the advantage: E[-f(A) ln pi(a | s)]."""

    networks: ClassVar = {"actor": ChoicesActor, "critic": DiscreteQEnsemble}

    def explicit(self, batch: Batch) -> Losses:
        """Update by a hand-written backward pass, see :class:`~reverie.nn.steps.ExplicitStep`."""
        o, obs, taken, mask = self.objective, before(batch.obs), batch.action[:, :-1], transition_mask(batch.is_last)
        passed = asked(o.actor, obs)
        logits = passed.y.view(taken.shape)
        _, advantage = compiled_choices.expected_least(logits, o.critic(obs), taken)  # [B, T-1]
        weight = o.filter(advantage)
        loss, grad = compiled_choices.loss_and_gradient(
            logits, batch.action, batch.is_last, o.actor.classes, weight=weight
        )
        descend(o.actor, self.optims["actor"], passed, grad)
        metrics = {
            "loss/actor": loss,
            "train/advantage": mean_over(advantage, mask),
            "train/weight": mean_over(weight, mask),
        }
        return Losses({"actor": loss}, metrics)
