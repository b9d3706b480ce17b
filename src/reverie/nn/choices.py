"""A policy over one or several discrete actions, for discrete SAC and the learners that imitate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.specs import ObsSpec
from reverie.core.types import Obs
from reverie.nn.actor_critic import Inputs, NetworkConfig
from reverie.nn.perceptron import ReluMLP


class Choices:
    """Independent categorical variables; an action is the concatenation of their one-hot vectors."""

    def __init__(self, logits: Tensor, classes: tuple[int, ...]) -> None:
        """``logits`` are ``[..., A]``, where A is the sum of ``classes``, the number of classes of each variable."""
        self.classes, self.logits = classes, logits

    @property
    def log_probs(self) -> Tensor:
        """The ln pi of every class, ``[..., A]``. Not cached: a later call may need gradients, unlike this one."""
        return torch.cat([part.log_softmax(-1) for part in self._each(self.logits)], -1)

    def sample(self) -> tuple[Tensor, Tensor]:
        """Return one-hot actions ``[..., A]`` and their log-probabilities ``[...]``."""
        noise = -torch.empty_like(self.log_probs).exponential_().log()  # Gumbel-max trick: the arg max is a sample
        action = self._highest(self.log_probs.detach() + noise)
        return action, self.log_prob(action)

    def mode(self) -> Tensor:
        """Return the most probable classes, one-hot ``[..., A]``."""
        return self._highest(self.log_probs)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probabilities ``[...]`` of one-hot actions ``[..., A]``."""
        return (self.log_probs * action).sum(-1)

    def mean(self, values: Tensor) -> Tensor:
        """Return the expectation sum_a pi(a) x_a ``[...]`` of ``values`` ``[..., A]``; for a single variable only."""
        return (self.log_probs.exp() * values).sum(-1)

    def _each(self, x: Tensor) -> tuple[Tensor, ...]:
        """Split ``[..., A]`` into one part for each variable."""
        return (x,) if len(self.classes) == 1 else torch.split(x, list(self.classes), -1)

    def _highest(self, x: Tensor) -> Tensor:
        return torch.cat([F.one_hot(part.argmax(-1), part.shape[-1]) for part in self._each(x)], -1).to(x.dtype)


class ChoicesActor(nn.Module):
    """A policy pi(a | s): a perceptron whose outputs are the logits of :class:`Choices`."""

    def __init__(
        self, obs_spec: ObsSpec, classes: tuple[int, ...], cfg: NetworkConfig, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.classes = classes
        self.inputs = Inputs(obs_spec, cfg, dtype)
        self.body = ReluMLP(self.inputs.width, cfg.units, sum(classes))

    def forward(self, obs: Obs) -> Choices:
        """Map observations ``[..., *shape]`` to a distribution over actions ``[..., A]``."""
        y: Tensor = self.body(self.inputs(obs))
        return Choices(y.float(), self.classes)
