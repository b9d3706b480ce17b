"""Categorical distributions, and distributions of mixed actions, which have continuous and discrete parts.

All of them compute in float32. ``log_prob`` and ``entropy`` sum over the action's axis, so their shape is ``[...]``.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.core.kernel_dispatch import accelerated
from reverie.core.specs import ActionSpec
from reverie.nn.functional import ILLEGAL, one_hot, sample_classes
from reverie.nn.normals import Normal, Summary
from reverie.objectives.categorical import join_choices, split_choices

# ---------------------------------------------------------------------- classes


def softmax(logits: Tensor) -> Tensor:
    """Return the softmax over the last axis, in float32.

    PyTorch's CPU kernel works row by row. For rows of a few classes that takes three times as long as the operations
    here, each of which passes over the whole tensor.
    """
    logits = logits.float()
    if logits.device.type != "cpu" or logits.shape[-1] > 64:
        return torch.softmax(logits, -1)
    weights = (logits - logits.detach().amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True)


def safe_log(probs: Tensor) -> Tensor:
    """Return ln p ``[...]``, finite also where p underflows to 0, as it can without unimix."""
    return probs.clamp(min=torch.finfo(probs.dtype).tiny).log()


class _StraightThrough(torch.autograd.Function):
    """The straight-through estimator: forward a one-hot vector, backward the identity to the probabilities."""

    @staticmethod
    def forward(ctx: Any, probs: Tensor, index: Tensor) -> Tensor:
        return one_hot(index, probs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def straight_through(probs: Tensor, index: Tensor) -> Tensor:
    """Return the one-hot of ``index``, ``[..., C]``, whose gradient passes unchanged to ``probs``."""
    if not (torch.is_grad_enabled() and probs.requires_grad):
        return one_hot(index, probs)
    out: Tensor = _StraightThrough.apply(probs, index)
    return out


class Categoricals:
    """Independent categorical variables; the flat value is the concatenation of their one-hot vectors.

    Variables with fewer classes than the largest are padded with classes of probability 0.
    """

    def __init__(
        self, logits: Tensor, classes: tuple[int, ...], unimix: float = 0.0, legal: Tensor | None = None
    ) -> None:
        """``logits`` are ``[..., sum(classes)]``; ``unimix`` is the share of the uniform distribution mixed in.

        ``legal`` ``[..., sum(classes)]``: the possible classes, at least one of each variable. None: all.
        """
        self.classes = classes
        self.unimix = unimix
        self.ragged: bool = len(set(classes)) > 1
        self.padded: Tensor = self._pad(logits.float(), ILLEGAL)  # [..., n, C]
        if legal is None and self.ragged:
            legal = torch.ones_like(logits, dtype=torch.bool)
        self.legal: Tensor | None = None if legal is None else self._pad(legal, False)  # [..., n, C]
        if self.legal is not None:
            self.padded = self.padded.masked_fill(~self.legal, ILLEGAL)

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities of the classes, ``[..., n, C]``."""
        with self._graph():
            return self._mix_uniform(softmax(self.padded))

    @cached_property
    def log_probs(self) -> Tensor:
        """Log-probabilities of the classes, ``[..., n, C]``."""
        with self._graph():
            return self.probs.clamp(min=1e-30).log() if self.unimix else torch.log_softmax(self.padded, -1)

    def _graph(self) -> torch.set_grad_enabled:
        """Enable gradients if the logits have them, because results are cached for calls that may need gradients."""
        return torch.set_grad_enabled(self.padded.requires_grad)

    def _mix_uniform(self, probs: Tensor) -> Tensor:
        if not self.unimix:
            return probs
        if self.legal is None:
            return (1 - self.unimix) * probs + self.unimix / self.classes[0]
        count = self.legal.sum(-1, keepdim=True)  # [..., n, 1]
        share = self.unimix / count if self.ragged else (self.unimix / count.double()).float()  # as without a mask
        return torch.where(self.legal, (1 - self.unimix) * probs + share, 0.0)

    def _pad(self, flat: Tensor, value: float) -> Tensor:
        if not self.ragged:
            return flat.reshape(*flat.shape[:-1], len(self.classes), self.classes[0])
        widest = max(self.classes)
        parts = torch.split(flat, list(self.classes), -1)
        return torch.stack([F.pad(p, (0, widest - p.shape[-1]), value=value) for p in parts], -2)

    def _flat(self, padded: Tensor) -> Tensor:
        if not self.ragged:
            return padded.flatten(-2)
        return torch.cat([padded[..., i, :c] for i, c in enumerate(self.classes)], -1)

    def _onehot(self, index: Tensor) -> Tensor:
        every = torch.arange(self.probs.shape[-1], device=index.device)
        return self._flat((index.unsqueeze(-1) == every).float())

    @accelerated
    def sample(self) -> Tensor:
        """Return a sample ``[..., sum(classes)]``, one-hot for each variable."""
        return self._onehot(sample_classes(self.probs, self.legal is not None))

    def rsample(self) -> Tensor:
        """Return a sample ``[..., sum(classes)]`` with the straight-through gradient."""
        return self._flat(straight_through(self.probs, sample_classes(self.probs, self.legal is not None)))

    def uniform_sample(self) -> Tensor:
        """Return uniformly random classes ``[..., sum(classes)]`` among the legal ones, one-hot for each variable."""
        legal = None if self.legal is None else self._flat(self.legal)
        return Categoricals(torch.zeros_like(self._flat(self.padded)), self.classes, legal=legal).sample()

    def mode(self) -> Tensor:
        """Return the most probable classes ``[..., sum(classes)]``, one-hot for each variable."""
        return self._onehot(self.probs.argmax(-1))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability ``[...]`` of one-hot values ``[..., sum(classes)]``, which get no gradient."""
        return (self._pad(value.detach().float(), 0.0) * self.log_probs).sum((-2, -1))

    def log_prob_index(self, index: Tensor) -> Tensor:
        """Return the log-probability ``[...]`` of class indices ``[..., n]``; indices of -1 (absent) are left out."""
        picked = self.log_probs.gather(-1, index.clamp(min=0).unsqueeze(-1)).squeeze(-1)  # [..., n]
        return torch.where(index >= 0, picked, 0.0).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]`` in nats, summed over the variables."""
        return -(self.probs * self.log_probs).sum((-2, -1))

    def summary(self, squashed: bool = True) -> Summary:
        """Return the probabilities."""
        probs = self._flat(self.probs)
        return probs, torch.zeros_like(probs)


class GumbelCategoricals:
    """Independent categorical variables of model-free actors, as :class:`Categoricals`, with the Gumbel trick."""

    def __init__(self, logits: Tensor, classes: tuple[int, ...]) -> None:
        """``logits`` are ``[..., A]``, where A is the sum of ``classes``, the number of classes of each variable."""
        self.classes = classes
        self.logits = logits
        self._log_probs: dict[bool, Tensor] = {}  # with gradients and without

    @property
    def log_probs(self) -> Tensor:
        """The ln pi of every class, ``[..., A]``."""
        needs_gradients = torch.is_grad_enabled()
        if needs_gradients not in self._log_probs:
            parts = [part.log_softmax(-1) for part in split_choices(self.logits, self.classes)]
            self._log_probs[needs_gradients] = torch.cat(parts, -1)
        return self._log_probs[needs_gradients]

    def sample(self) -> tuple[Tensor, Tensor]:
        """Return one-hot actions ``[..., A]`` and their log-probabilities ``[...]``."""
        noise = -torch.empty_like(self.log_probs).exponential_().log()
        action = self._highest(self.log_probs.detach() + noise)  # the arg max is a sample
        return action, self.log_prob(action)

    def mode(self) -> Tensor:
        """Return the most probable classes, one-hot ``[..., A]``."""
        return self._highest(self.log_probs)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probabilities ``[...]`` of one-hot actions ``[..., A]``."""
        return (self.log_probs * action).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]`` in nats, summed over the variables; classes of probability 0 add nothing."""
        log_probs = self.log_probs
        return -(log_probs.exp() * log_probs).sum(-1)

    def mean(self, values: Tensor) -> Tensor:
        """Return the expectation sum_a pi(a) x_a ``[...]`` of ``values`` ``[..., A]``, summed over the variables."""
        return (self.log_probs.exp() * values).sum(-1)

    def summary(self, squashed: bool = True) -> Summary:
        """Return the probabilities."""
        return self.log_probs.exp(), torch.zeros_like(self.logits)

    def _highest(self, x: Tensor) -> Tensor:
        return torch.cat([one_hot(part.argmax(-1), part) for part in split_choices(x, self.classes)], -1)


Distribution = Categoricals | Normal
"""Distributions over flat actions ``[..., A]``."""


# ---------------------------------------------------------------------- numbers and choices


class ActionLayout:
    """Positions of the continuous and discrete parts in the flat action."""

    def __init__(self, spec: ActionSpec) -> None:
        parts = [spec.parts[key] for key in sorted(spec.parts)]
        self.continuous: list[bool] = [part.kind == "continuous" for part in parts]
        self.widths: list[int] = [part.width for part in parts]

    def split(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers ``[..., C]`` and the classes ``[..., D]`` of flat actions or masks ``[..., C + D]``."""
        parts = list(zip(torch.split(flat, self.widths, -1), self.continuous, strict=True))
        return join_choices([x for x, number in parts if number]), join_choices(
            [x for x, number in parts if not number]
        )

    def join(self, numbers: Tensor, classes: Tensor) -> Tensor:
        """Return the inverse of :meth:`split`."""
        widths = list(zip(self.widths, self.continuous, strict=True))
        number_parts = iter(torch.split(numbers, [width for width, number in widths if number], -1))
        class_parts = iter(torch.split(classes, [width for width, number in widths if not number], -1))
        return torch.cat([next(number_parts if number else class_parts) for number in self.continuous], -1)


class HybridDistribution:
    """The product of a distribution of an action's continuous part and one of its choices."""

    def __init__(self, numbers: Any, choices: GumbelCategoricals, layout: ActionLayout) -> None:
        """``numbers``: any normal distribution of ``nn/normals.py``, over ``[..., C]``."""
        self.numbers = numbers
        self.squashing: str = numbers.squashing
        self.choices = choices
        self.layout = layout

    def sample(self) -> tuple[Tensor, Tensor]:
        """Return flat actions ``[..., A]`` and their log-densities ``[...]``."""
        (numbers, density), (classes, log_prob) = self.numbers.sample(), self.choices.sample()
        return self.layout.join(numbers, classes), density + log_prob

    def mode(self) -> Tensor:
        """Return the modes of both parts, ``[..., A]``."""
        return self.layout.join(self.numbers.mode(), self.choices.mode())

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-densities ``[...]`` of flat actions ``[..., A]``."""
        numbers, classes = self.layout.split(action)
        density: Tensor = self.numbers.log_prob(numbers)
        return density + self.choices.log_prob(classes)

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]`` in nats of both parts together; squashed normals have none."""
        entropy: Tensor = self.numbers.entropy()
        return entropy + self.choices.entropy()

    def summary(self, squashed: bool = True) -> Summary:
        """Return the summaries of both parts, joined."""
        (mean, std), (probs, none) = self.numbers.summary(squashed), self.choices.summary()
        return self.layout.join(mean, probs), self.layout.join(std, none)
