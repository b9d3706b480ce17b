"""Probabilities of classes: the policy of learners that imitate where an action is one choice or several."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.specs import ObsSpec
from reverie.core.types import Obs
from reverie.nn.mlp import Inputs, NetworkConfig
from reverie.nn.perceptron import Perceptron


class Choices:
    """Independent choices, each among classes of its own; an action is their one-hot vectors side by side."""

    def __init__(self, logits: Tensor, classes: tuple[int, ...]) -> None:
        """``logits`` ``[..., A]``, where A is the sum of all ``classes``."""
        self.classes, self.logits = classes, logits

    @property
    def log_probs(self) -> Tensor:
        """The ln pi of every class, ``[..., A]``. Not kept: who asks without gradients may not be the last."""
        return torch.cat([part.log_softmax(-1) for part in self._each(self.logits)], -1)

    def sample(self) -> tuple[Tensor, Tensor]:
        """One-hot ``[..., A]`` and its log-probability ``[...]``."""
        noise = -torch.empty_like(self.log_probs).exponential_().log()  # Gumbel: the largest sum is a draw
        action = self._highest(self.log_probs.detach() + noise)
        return action, self.log_prob(action)

    def mode(self) -> Tensor:
        """The likeliest classes, one-hot ``[..., A]``."""
        return self._highest(self.log_probs)

    def log_prob(self, action: Tensor) -> Tensor:
        """``[...]`` of one-hot actions ``[..., A]``."""
        return (self.log_probs * action).sum(-1)

    def mean(self, values: Tensor) -> Tensor:
        """sum_a pi(a) x_a, the expectation ``[...]`` of values ``[..., A]`` of a single choice."""
        return (self.log_probs.exp() * values).sum(-1)

    def _each(self, x: Tensor) -> tuple[Tensor, ...]:
        """``[..., A]`` as one part for each choice."""
        return (x,) if len(self.classes) == 1 else torch.split(x, list(self.classes), -1)

    def _highest(self, x: Tensor) -> Tensor:
        return torch.cat([F.one_hot(part.argmax(-1), part.shape[-1]) for part in self._each(x)], -1).to(x.dtype)


class ChoicesActor(nn.Module):
    """pi(a | s): a perceptron to :class:`Choices`."""

    def __init__(
        self, obs_spec: ObsSpec, classes: tuple[int, ...], cfg: NetworkConfig, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.classes = classes
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.body = Perceptron(self.inputs.width, cfg.units, sum(classes))

    def forward(self, obs: Obs) -> Choices:
        """``[..., *shape]`` to probabilities of the classes."""
        y: Tensor = self.body(self.inputs(obs))
        return Choices(y.float(), self.classes)
