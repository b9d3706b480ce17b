"""Steps of ``nn/steps.py`` for learners of recorded choices: clones, values pressed down, policies that filter."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from reverie.core.types import Batch
from reverie.nn.choices import ChoicesActor
from reverie.nn.steps import Step, asked, descend
from reverie.nn.values import ActionValues, ClassValues
from reverie.objectives import compiled_choices, compiled_quantile, compiled_td
from reverie.objectives.conservative import pressed
from reverie.objectives.returns import followed
from reverie.objectives.td import Losses, before, losses_of, mean_over


class LikelihoodStep(Step):
    """An actor towards the classes that were chosen: E[-ln pi(a | s)]."""

    networks: ClassVar = {"actor": ChoicesActor}

    def explicit(self, batch: Batch) -> Losses:
        """See :class:`~reverie.nn.steps.Step`."""
        actor, taken = self.objective.actor, batch.action[:, :-1]
        passed = asked(actor, before(batch.obs))
        logits = passed.y.view(taken.shape)
        loss, grad = compiled_choices.loss_and_gradient(logits, batch.action, batch.is_last, actor.classes)
        descend(actor, self.optims["actor"], passed, grad)
        return Losses({"actor": loss}, {"loss/actor": loss})


class ClonedValuesStep(Step):
    """Values and a clone of one network: E[w L(Q(s, a) - y)] + E[-ln G(a | s) + square E[i^2]], i its logits."""

    networks: ClassVar = {"network": ClassValues}

    def explicit(self, batch: Batch) -> Losses:
        """See :class:`~reverie.nn.steps.Step`."""
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


class ConservativeQuantilesStep(Step):
    """Quantiles of the return, whose means are pressed down where nothing was tried."""

    networks: ClassVar = {"network": ActionValues}

    def explicit(self, batch: Batch) -> Losses:
        """See :class:`~reverie.nn.steps.Step`."""
        o, target = self.objective, self.objective.targets(batch)  # y: [B, T-1, N]
        passed = asked(o.network, before(batch.obs))
        classes, n = o.network.shape
        quantiles = passed.y.view(*target.shape[:-1], classes, n)  # [B, T-1, A, N]
        error, grad = compiled_quantile.error_and_gradient(quantiles, target, batch, o.kappa)
        gap, dvalue = compiled_choices.loss_and_gradient(quantiles.mean(-1), batch.action, batch.is_last, (classes,))
        grad.add_(dvalue.unsqueeze(-1), alpha=o.min_q_weight / n)
        descend(o.network, self.optims["critic"], passed, grad)
        return pressed(losses_of(error), gap, o.min_q_weight)


class ClassCriticsStep(Step):
    """Critics of all classes towards targets, pressed down or not: sum_i E[w (Q_i(s, a) - y)^2] + alpha gap_i."""

    networks: ClassVar = {"critic": ClassValues}

    def explicit(self, batch: Batch) -> Losses:
        """See :class:`~reverie.nn.steps.Step`."""
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
        """The gap of one critic; its gradient is added to ``grad``."""
        gap, dvalue = compiled_choices.loss_and_gradient(values, batch.action, batch.is_last, (values.shape[-1],))
        grad.add_(dvalue, alpha=self.objective.min_q_weight)
        return gap


class FilteredLikelihoodStep(Step):
    """An actor towards the classes that were chosen, each as much as its advantage says: E[-f(A) ln pi(a | s)]."""

    networks: ClassVar = {"actor": ChoicesActor, "critic": ClassValues}

    def explicit(self, batch: Batch) -> Losses:
        """See :class:`~reverie.nn.steps.Step`."""
        o, obs, taken, mask = self.objective, before(batch.obs), batch.action[:, :-1], followed(batch.is_last)
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
