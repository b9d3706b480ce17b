"""Distributions of actions: categorical ones, and products of distributions of an action's parts.

``sample`` and ``mode`` return actions ``[..., A]``, ``sample_and_log_prob`` an action and its log-density. ``log_prob``
and ``entropy`` sum over the action's axis, so their shape is ``[...]``. All compute in float32 at least.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reverie.core.kernel_dispatch import accelerated
from reverie.core.specs import MASK_KEY, ActionSpec
from reverie.core.types import Obs
from reverie.nn.functional import ILLEGAL, one_hot, sample_classes
from reverie.nn.normals import Normal, Summary
from reverie.objectives.categorical import join_choices

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
        self.legal = legal
        logits = logits if logits.dtype == torch.float64 else logits.float()
        self.padded: Tensor = self._pad(logits if legal is None else logits.masked_fill(~legal, ILLEGAL))  # [..., n, C]

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities of the classes, ``[..., n, C]``."""
        with self._graph():
            return self._mix_uniform(softmax(self.padded)) if self.unimix else self._log_probs.exp()

    @cached_property
    def _log_probs(self) -> Tensor:
        """Log-probabilities of the classes, ``[..., n, C]``."""
        with self._graph():
            return self.probs.clamp(min=1e-30).log() if self.unimix else torch.log_softmax(self.padded, -1)

    @property
    def log_probs(self) -> Tensor:
        """Log-probabilities of the classes, ``[..., A]``."""
        return self._flat(self._log_probs)

    def _graph(self) -> AbstractContextManager[object]:
        """Enable gradients if the logits have them, because results are cached for calls that may need gradients."""
        return torch.enable_grad() if self.padded.requires_grad else nullcontext()

    def _mix_uniform(self, probs: Tensor) -> Tensor:
        if self.legal is None and not self.ragged:
            return (1 - self.unimix) * probs + self.unimix / self.classes[0]
        legal = self.padded != ILLEGAL  # [..., n, C]
        count = legal.sum(-1, keepdim=True)  # [..., n, 1]
        share = self.unimix / count if self.ragged else (self.unimix / count.double()).float()  # as without a mask
        return torch.where(legal, (1 - self.unimix) * probs + share, 0.0)

    def _pad(self, flat: Tensor) -> Tensor:
        if not self.ragged:
            return flat.reshape(*flat.shape[:-1], len(self.classes), self.classes[0])
        widest = max(self.classes)
        parts = torch.split(flat, list(self.classes), -1)
        return torch.stack([F.pad(p, (0, widest - p.shape[-1]), value=ILLEGAL) for p in parts], -2)

    def _flat(self, padded: Tensor) -> Tensor:
        if not self.ragged:
            return padded.flatten(-2)
        return torch.cat([padded[..., i, :c] for i, c in enumerate(self.classes)], -1)

    def _onehot(self, index: Tensor) -> Tensor:
        return self._flat(one_hot(index, self.padded))

    @accelerated
    def sample(self) -> Tensor:
        """Return a sample ``[..., sum(classes)]``, one-hot for each variable.

        Without ``unimix`` by the Gumbel trick, which needs the logarithms alone: two thirds of the time for one row.
        """
        if self.unimix:
            return self._onehot(sample_classes(self.probs, self.legal is not None))
        log_probs = self._log_probs.detach()
        return self._onehot((log_probs - torch.empty_like(log_probs).exponential_().log()).argmax(-1))

    def rsample(self) -> Tensor:
        """Return a sample ``[..., sum(classes)]`` with the straight-through gradient."""
        return self._flat(straight_through(self.probs, sample_classes(self.probs, self.legal is not None)))

    def uniform_sample(self) -> Tensor:
        """Return uniformly random classes ``[..., sum(classes)]`` among the legal ones, one-hot for each variable."""
        return Categoricals(torch.zeros_like(self._flat(self.padded)), self.classes, legal=self.legal).sample()

    def mode(self) -> Tensor:
        """Return the most probable classes ``[..., sum(classes)]``, one-hot for each variable."""
        return self._onehot(self.probs.argmax(-1))

    def sample_and_log_prob(self) -> tuple[Tensor, Tensor]:
        """Return a sample ``[..., A]`` and its log-probability ``[...]``, which has a gradient."""
        action = self.sample()
        return action, self.log_prob(action)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probability ``[...]`` of one-hot actions ``[..., A]``, which get no gradient."""
        return (self.log_probs * action.detach()).sum(-1)

    def log_prob_index(self, index: Tensor) -> Tensor:
        """Return the log-probability ``[...]`` of class indices ``[..., n]``; indices of -1 (absent) are left out."""
        picked = self._log_probs.gather(-1, index.clamp(min=0).unsqueeze(-1)).squeeze(-1)  # [..., n]
        return torch.where(index >= 0, picked, 0.0).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]`` in nats, summed over the variables; classes of probability 0 add nothing."""
        return self.mean(-self.log_probs)

    def mean(self, values: Tensor) -> Tensor:
        """Return the expectation sum_a pi(a) x_a ``[...]`` of ``values`` ``[..., A]``, summed over the variables."""
        return (self._flat(self.probs) * values).sum(-1)

    def summary(self, squashed: bool = True) -> Summary:
        """Return the probabilities."""
        probs = self._flat(self.probs)
        return probs, torch.zeros_like(probs)


Distribution = Categoricals | Normal
"""Distributions over parts of actions, ``[..., A]``."""


# ---------------------------------------------------------------------- products

Slices = slice | tuple[slice, ...]
"""Where a part lies in the flat action: in one piece, or in several."""


def slices_by_kind(spec: ActionSpec) -> dict[str, tuple[slice, ...]]:
    """Return where the ``numbers`` of flat actions are, and the ``choices``, which are one-hot."""
    cuts, kinds = spec.slices(), {"numbers": "continuous", "choices": "categorical"}
    return {name: tuple(cuts[key] for key in cuts if spec.parts[key].kind == kind) for name, kind in kinds.items()}


def take_part(flat: Tensor, cuts: Slices) -> Tensor:
    """Return a part ``[..., W]`` of flat actions, or of masks, ``[..., A]``."""
    return flat[..., cuts] if isinstance(cuts, slice) else join_choices([flat[..., cut] for cut in cuts])


def legal_classes(obs: Obs, choices: tuple[slice, ...]) -> Tensor | None:
    """Return the mask of legal classes ``[..., D]`` of mixed actions; None without a mask."""
    return take_part(obs[MASK_KEY], choices) if MASK_KEY in obs else None


@dataclass(eq=False)
class JointDistribution:
    """The product of independent distributions over the parts of a flat action."""

    parts: dict[str, Distribution]
    slices: Mapping[str, Slices]

    @property
    def squashing(self) -> str:
        """How samples of continuous parts become actions: ``normals.py: Normal``; "" if all parts are discrete."""
        return next((part.squashing for part in self.parts.values() if isinstance(part, Normal)), "")

    def _join(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the flat tensor ``[..., A]`` of the parts' ``values``: the inverse of :func:`take_part`."""
        if len(values) == 1:
            return next(iter(values.values()))
        pieces: list[tuple[int, Tensor]] = []
        for key, x in values.items():
            cuts = self.slices[key]
            cuts = (cuts,) if isinstance(cuts, slice) else cuts
            splits = torch.split(x, [cut.stop - cut.start for cut in cuts], -1) if len(cuts) > 1 else (x,)
            pieces += zip((cut.start for cut in cuts), splits, strict=False)
        return torch.cat([x for _, x in sorted(pieces, key=lambda piece: piece[0])], -1)

    def sample(self) -> Tensor:
        """Return a sample, ``[..., A]``."""
        return self._join({key: part.sample() for key, part in self.parts.items()})

    def rsample(self) -> Tensor:
        """Return a sample with gradient, ``[..., A]``: reparameterized, or straight-through for classes."""
        return self._join({key: part.rsample() for key, part in self.parts.items()})

    def sample_and_log_prob(self) -> tuple[Tensor, Tensor]:
        """Return a sample ``[..., A]`` and its log-density ``[...]``, both with gradient, but for classes."""
        drawn = {key: part.sample_and_log_prob() for key, part in self.parts.items()}
        first, *rest = [density for _, density in drawn.values()]
        return self._join({key: x for key, (x, _) in drawn.items()}), sum(rest, first)

    def mode(self) -> Tensor:
        """Return the mode of each part, ``[..., A]``."""
        return self._join({key: part.mode() for key, part in self.parts.items()})

    def add_exploration_noise(self, action: Tensor, noise: float | Tensor) -> Tensor:
        """Return ``action`` ``[..., A]`` with exploration noise: DreamerV1's code.

        Continuous parts get Gaussian noise of std ``noise``; discrete parts are random with probability ``noise``.
        """
        noisy = {}
        for key, part in self.parts.items():
            x = take_part(action, self.slices[key])
            if isinstance(part, Categoricals):
                noisy[key] = torch.where(torch.rand_like(x[..., :1]) < noise, part.uniform_sample(), x)
            else:
                noisy[key] = x + noise * torch.randn_like(x)
        return self._join(noisy)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probability ``[...]`` of flat actions ``[..., A]``."""
        first, *rest = [part.log_prob(take_part(action, self.slices[key])) for key, part in self.parts.items()]
        return sum(rest, first)

    def entropies(self) -> dict[str, Tensor]:
        """Return the entropy ``[...]`` of each part, in nats."""
        return {key: part.entropy() for key, part in self.parts.items()}

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]`` in nats, summed over the parts."""
        first, *rest = self.entropies().values()
        return sum(rest, first)

    def summary(self, squashed: bool = True) -> Summary:
        """Return the summaries of all parts, ``[..., A]``."""
        summaries = {key: part.summary(squashed) for key, part in self.parts.items()}
        mean, std = (self._join({key: pair[i] for key, pair in summaries.items()}) for i in range(2))
        return mean, std
