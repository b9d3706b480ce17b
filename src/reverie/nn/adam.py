"""Adam with clipping by the global norm (DreamerV1, V2 and on-policy learners), and Adam of model-free learners."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from reverie.core.bounds import Above, AtLeast, PiecewiseLinear, ScheduledFloat, Within, initial_value
from reverie.core.collectives import all_reduce_mean, is_distributed
from reverie.core.config import Config
from reverie.core.kernel_dispatch import NotesChanges, accelerated
from reverie.core.types import Metrics, State
from reverie.nn.loss_scale import LossScale
from reverie.nn.optim import (
    LaPropAGC,
    Tensors,
    changed_lr,
    clip_grad_norm,
    compute_gradients,
    load_moments,
    lr_or_tensor,
    trainable,
)


@dataclass(frozen=True, kw_only=True)
class GlobalAdamConfig(Config):
    """Adam after clipping by the global norm: DreamerV1 and V2."""

    implementation: Literal["tensorflow", "torch"] = "tensorflow"
    """Which library's Adam to follow. tensorflow: eps is not corrected, and weight_decay is not multiplied by the
    learning rate. torch: both are, as in PyTorch's AdamW."""
    lr: Annotated[ScheduledFloat, Above(0)] = 1e-4
    """Learning rate, above 0."""
    eps: Annotated[float, Above(0)] = 1e-5
    """Added to the root mean square, above 0."""
    max_grad_norm: Annotated[float, AtLeast(0)] = 100.0
    """Maximum norm of the gradient of all parameters; 0 does not clip."""
    weight_decay: Annotated[float, Within("[0, 1)")] = 0.0
    """Share by which every update shrinks every parameter, in [0, 1)."""
    beta1: Annotated[float, Within("[0, 1)")] = 0.9
    """Decay rate of the momentum, in [0, 1)."""
    beta2: Annotated[float, Within("[0, 1)")] = 0.999
    """Decay rate of the mean square, in [0, 1)."""

    def build(self, parameters: Iterable[nn.Parameter]) -> GlobalAdam:
        return GlobalAdam(parameters, self)


class GlobalAdam(LaPropAGC):
    """Adam as in TensorFlow (Kingma and Ba 2015, end of section 2), with clipping and decay.

    In the order of DreamerV2's authors::

        g  <- g min(1, clip / |g|)                        |g| over all parameters
        p  <- p (1 - decay)                               of every parameter, biases and norms too
        p  <- p - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps)

    Algorithm 1 of that paper, and PyTorch, add eps after the correction, which at the first update has the effect of an
    eps 32 times as large. The form ``torch`` does so, with decay lr instead of decay.
    """

    @torch.no_grad()
    def _update(self, grads: Tensors) -> Metrics:
        c, torchs = self.cfg, self.cfg.implementation == "torch"
        flat, norm = clip_grad_norm(grads, c.max_grad_norm)
        trained = [i for i, p in enumerate(self.params) if p.requires_grad]
        params = [self.params[i] for i in trained]
        if c.weight_decay and params:
            torch._foreach_mul_(params, 1 - c.weight_decay * (self.rate if torchs else 1.0))
        self.updates.add_(1)
        if torchs:
            rate = self.rate if isinstance(self.rate, Tensor) else None
            settings = AdamSettings(initial_value(c.lr), (c.beta1, c.beta2), c.eps, rate=rate)
            parts = map(self._parts, (flat, self.momentum, self.square))
            grads, mean, square = ([tensors[i] for i in trained] for tensors in parts)
            if params:
                adam(params, grads, mean, square, self.updates.long(), settings)
            return {"opt/grad_norm": norm}
        self.momentum.lerp_(flat, 1 - c.beta1)
        self.square.mul_(c.beta2).addcmul_(flat, flat, value=1 - c.beta2)
        rate = self.rate * (1 - c.beta2**self.updates).sqrt() / (1 - c.beta1**self.updates)
        step = self.momentum * rate / (self.square.sqrt() + c.eps)  # [count]
        self._subtract(step)
        return {"opt/grad_norm": norm}


# ---------------------------------------------------------------------- model-free


class AdamSettings(NamedTuple):
    """Settings of :class:`Adam`."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    cosine: int = 0
    rate: Tensor | None = None
    """The learning rate ``[]`` instead of ``lr``, if it changes with env steps."""


class Adam(NotesChanges):
    """Adam (Kingma and Ba 2015, Algorithm 1), all parameters in one call."""

    loss_scale: LossScale | None = None
    """The loss scale of the learner, which sets it; None in float32 and bfloat16."""
    norms: Any = None
    """Norms of gradients by network (``algos/gradient_norms.py``); None unless they are logged."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: ScheduledFloat, eps: float = 1e-8, cosine: int = 0,
        weight_decay: float = 0.0, max_grad_norm: float = 0.0, decoupled_decay: float = 0.0, beta1: float = 0.9,
    ) -> None:  # fmt: skip
        """``cosine``: updates over which the learning rate decays to 0 along half a cosine, where it then stays.

        Loshchilov and Hutter 2017, equation 5; 0 keeps it constant. ``weight_decay`` times each parameter is added to
        its gradient, after the gradient of all parameters was clipped to the norm ``max_grad_norm``; 0: neither.
        ``decoupled_decay``: share of the learning rate by which each update first shrinks each parameter, as in AdamW:
        Loshchilov and Hutter 2019, Algorithm 2.
        """
        self.weight_decay = weight_decay
        self.max_grad_norm = max_grad_norm
        self.decoupled_decay = decoupled_decay
        self.params: Tensors = trainable(parameters)
        rate = lr_or_tensor(lr, self.params[0].device)
        changing = rate if isinstance(rate, Tensor) else None
        self.settings: AdamSettings = AdamSettings(initial_value(lr), (beta1, 0.999), eps, cosine, changing)
        self.ramp: PiecewiseLinear | None = lr if isinstance(lr, PiecewiseLinear) else None
        self.mean: list[Tensor] = [torch.zeros_like(p, requires_grad=False) for p in self.params]
        self.square: list[Tensor] = [torch.zeros_like(p, requires_grad=False) for p in self.params]
        # Not float32 as in PyTorch, which counts no further than 2^24: a longer decay of the rate would never end.
        self.updates: Tensor = torch.zeros((), dtype=torch.int64, device=self.params[0].device)

    @property
    def ramps(self) -> list[tuple[PiecewiseLinear, Tensor]]:
        """The schedule of the learning rate with its tensor, if it has one."""
        return [] if self.ramp is None or self.settings.rate is None else [(self.ramp, self.settings.rate)]

    @property
    def lr(self) -> float:
        """The learning rate. It may be set at any time, unless it follows a schedule; checkpoints do not have it."""
        return self.settings.lr if self.settings.rate is None else float(self.settings.rate)

    @lr.setter
    def lr(self, lr: float) -> None:
        rate = self.settings.lr if self.settings.rate is None else self.settings.rate
        self.settings = self.settings._replace(rate=changed_lr(lr, rate, self.ramp or lr, self.updates.device))

    def step(self, loss: Tensor) -> None:
        """Compute the gradients of ``loss``, a scalar, and update the parameters: see :meth:`gradient`."""
        self.apply(self.gradient(loss))

    def gradient(self, loss: Tensor) -> Tensors:
        """Return the gradient of ``loss``, a scalar, for each parameter that is not frozen.

        With a loss scale, it is multiplied by that. Parameters frozen by ``requires_grad_(False)``, and their moments,
        do not change.
        """
        scale = None if self.loss_scale is None else self.loss_scale.value
        return compute_gradients(loss, self.params, scale)

    @torch.no_grad()
    def apply(self, grads: Tensors) -> None:
        """Update the parameters that are not frozen with the gradients of :meth:`gradient`.

        They are averaged over several learners and divided by the loss scale.
        """
        if grads and is_distributed():
            all_reduce_mean(grads)
        if grads and self.loss_scale is not None:
            self.loss_scale.step_if_finite(self._update, grads, self.tensors())
        elif grads:
            self._update(grads)

    @torch.no_grad()
    def _update(self, grads: Tensors) -> None:
        if self.max_grad_norm:
            grads, _ = clip_by_norm(grads, self.max_grad_norm)
        if self.weight_decay:
            params = [p.detach() for p in self.params if p.requires_grad]
            grads = list(torch._foreach_add(grads, params, alpha=self.weight_decay))
        trained = [x for x in zip(self.params, self.mean, self.square, strict=True) if x[0].requires_grad]
        self.updates.add_(1)
        params, mean, square = ([x[i] for x in trained] for i in range(3))
        if self.decoupled_decay:
            rate = self.settings.lr if self.settings.rate is None else self.settings.rate
            torch._foreach_mul_(params, 1 - self.decoupled_decay * rate)
        adam(params, grads, mean, square, self.updates, self.settings)

    @torch.no_grad()
    def restart_schedule(self) -> None:
        """Restart a decaying learning rate, with moments of 0. Change nothing if the learning rate is constant."""
        if self.settings.cosine:
            for tensor in (*self.mean, *self.square, self.updates):
                tensor.zero_()

    def tensors(self) -> Tensors:
        """Return all tensors that an update changes."""
        return [*self.params, *self.mean, *self.square, self.updates]

    def state_dict(self) -> State:
        """Return the moments, in the order of the parameters, and the number of updates."""
        moments = {"mean": self.mean, "square": self.square}
        named = {f"{name}.{i}": x for name, tensors in moments.items() for i, x in enumerate(tensors)}
        return {**named, "updates": self.updates}

    def load_state_dict(self, state: State) -> None:
        load_moments(self.state_dict(), state)


def joint_gradient_step(loss: Tensor, optims: Sequence[Adam], limit: float) -> Tensor:
    """Take a step of several optimizers on one loss, with all gradients clipped to a joint norm of ``limit``.

    Return the norm before clipping, ``[]``.
    """
    parts = joint_gradients(loss, optims)
    if not (all_grads := list(itertools.chain(*parts))):
        return loss.new_zeros(())
    all_reduce_mean(all_grads)

    def update(grads: Tensors) -> Tensor:
        remaining = iter(grads)
        for optim, part in zip(optims, parts, strict=True):
            if optim.norms is not None:
                optim.norms.add(optim.params, list(itertools.islice(remaining, len(part))))
        grads, norm = clip_by_norm(grads, limit)
        for optim, part in zip(optims, parts, strict=True):
            if part:
                type(optim)._update(optim, grads[: len(part)])  # without norms, which were added above
            grads = grads[len(part) :]
        return norm

    if (scale := optims[0].loss_scale) is None:
        return update(all_grads)
    return scale.step_if_finite(update, all_grads, [x for optim in optims for x in optim.tensors()])


def joint_gradients(loss: Tensor, optims: Sequence[Adam]) -> list[Tensors]:
    """Return the gradients of ``loss`` for each of several optimizers of a learner: see :meth:`Adam.gradient`."""
    parts = [[p for p in optim.params if p.requires_grad] for optim in optims]
    scale = None if optims[0].loss_scale is None else optims[0].loss_scale.value
    grads = iter(compute_gradients(loss, itertools.chain(*parts), scale))
    return [list(itertools.islice(grads, len(part))) for part in parts]


@accelerated
@torch.no_grad()
def clip_by_norm(grads: Tensors, limit: float) -> tuple[Tensors, Tensor]:
    """Return the gradients, scaled so that their joint norm is at most ``limit``, and their norm before, ``[]``."""
    norm: Tensor = torch.stack(torch._foreach_norm(grads)).norm()
    return list(torch._foreach_mul(grads, limit / norm.clamp(min=limit))), norm


@accelerated
@torch.no_grad()
def adam(
    params: Tensors, grads: Tensors, mean: Tensors, square: Tensors, updates: Tensor, settings: AdamSettings
) -> None:
    """Move ``params`` and both moments in place: Kingma and Ba 2015, Algorithm 1.

    m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,  p <- p - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)

    t is ``updates`` ``[]``, int64, from 1; lr is multiplied by :func:`cosine_share`.
    """
    (b1, b2), t = settings.betas, updates.double()
    torch._foreach_lerp_(mean, grads, 1 - b1)
    torch._foreach_mul_(square, b2)
    torch._foreach_addcmul_(square, grads, grads, 1 - b2)
    lr = settings.lr if settings.rate is None else settings.rate
    lr = lr * cosine_share(updates, settings.cosine) if settings.cosine else lr
    rate, root = lr / (1 - b1**t), (1 - b2**t).sqrt()
    for p, m, v in zip(params, mean, square, strict=True):
        p.sub_((rate * m / (v.sqrt() / root + settings.eps)).to(p.dtype))


def cosine_share(updates: Tensor, cosine: int) -> Tensor | float:
    """Return the factor in [0, 1] of a learning rate that decays over ``cosine`` updates; 0: the factor is 1."""
    if not cosine:
        return 1.0
    done = (updates - 1).clamp(max=cosine).float()
    return 0.5 + 0.5 * (done * (math.pi / cosine)).cos()
