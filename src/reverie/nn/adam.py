"""Adam: of model-free learners; and in TensorFlow's form, of DreamerV1 and V2."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor, nn

from reverie.core.bounds import Above, AtLeast, ScheduledFloat, Within
from reverie.core.collectives import all_reduce_mean
from reverie.core.config import Config
from reverie.core.kernel_dispatch import accelerated
from reverie.core.types import Metrics, State
from reverie.nn.optim import FlatOptimizer, Optimizer, Tensors, clip_grad_norm


class AdamSettings(NamedTuple):
    """Settings of :class:`Adam`."""

    lr: float | Tensor
    """The learning rate, or the tensor ``[]`` of one that changes with env steps."""
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    cosine: int = 0


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, Algorithm 1), all parameters in one call."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: ScheduledFloat, eps: float = 1e-8, cosine: int = 0,
        weight_decay: float = 0.0, max_grad_norm: float = 0.0, decoupled_decay: float = 0.0, beta1: float = 0.9,
        beta2: float = 0.999,
    ) -> None:  # fmt: skip
        """``cosine``: updates over which the learning rate decays to 0 along half a cosine, where it then stays.

        Loshchilov and Hutter 2017, equation 5; 0 keeps it constant. ``weight_decay`` times each parameter is added to
        its gradient, after the gradient of all parameters was clipped to the norm ``max_grad_norm``; 0: neither.
        ``decoupled_decay``: share of the learning rate by which each update first shrinks each parameter, as in AdamW:
        Loshchilov and Hutter 2019, Algorithm 2.
        """
        super().__init__(parameters, lr)
        self.betas: tuple[float, float] = (beta1, beta2)
        self.eps = eps
        self.cosine = cosine
        self.weight_decay = weight_decay
        self.max_grad_norm = max_grad_norm
        self.decoupled_decay = decoupled_decay
        self.mean: list[Tensor] = [torch.zeros_like(p, requires_grad=False) for p in self.params]
        self.square: list[Tensor] = [torch.zeros_like(p, requires_grad=False) for p in self.params]
        # Not float32 as in PyTorch, which counts no further than 2^24: a longer decay of the rate would never end.
        self.updates: Tensor = torch.zeros((), dtype=torch.int64, device=self.params[0].device)

    def _update(self, grads: Tensors) -> Metrics:
        metrics: Metrics = {}
        if self.max_grad_norm:
            grads, metrics["opt/grad_norm"] = clip_by_norm(grads, self.max_grad_norm)
        if self.weight_decay:
            params = [p.detach() for p in self.params if p.requires_grad]
            grads = list(torch._foreach_add(grads, params, alpha=self.weight_decay))
        trained = [x for x in zip(self.params, self.mean, self.square, strict=True) if x[0].requires_grad]
        self.updates.add_(1)
        params, mean, square = ([x[i] for x in trained] for i in range(3))
        if self.decoupled_decay:
            torch._foreach_mul_(params, 1 - self.decoupled_decay * self.rate)
        settings = AdamSettings(self.rate, self.betas, self.eps, self.cosine)
        adam(params, grads, mean, square, self.updates, settings)
        return metrics

    @torch.no_grad()
    def restart_schedule(self) -> None:
        """Restart a decaying learning rate, with moments of 0. Change nothing if the learning rate is constant."""
        if self.cosine:
            for tensor in (*self.mean, *self.square, self.updates):
                tensor.zero_()

    def state_dict(self) -> State:
        moments = {"mean": self.mean, "square": self.square}
        arrays = {f"{name}.{i}": x for name, tensors in moments.items() for i, x in enumerate(tensors)}
        return {**arrays, "updates": self.updates}


def joint_gradient_step(loss: Tensor, optims: Sequence[Adam], limit: float) -> Tensor:
    """Take a step of several optimizers on one loss, with all gradients clipped to a joint norm of ``limit``.

    Return the norm before clipping, ``[]``.
    """
    trained = [[p for p in optim.params if p.requires_grad] for optim in optims]
    grads = optims[0].gradients(loss, params=list(itertools.chain(*trained)))
    if not grads:
        return loss.new_zeros(())
    all_reduce_mean(grads)
    scale, cuts = optims[0].loss_scale, list(itertools.accumulate(map(len, trained), initial=0))
    places = [*zip(optims, map(slice, cuts, cuts[1:]), strict=True)]
    for optim, place in places:
        if optim.norms is not None:
            optim.norms.add(optim.params, grads[place], scale)

    @torch.no_grad()
    def update(grads: Tensors) -> Tensor:
        grads, norm = clip_by_norm(grads, limit)
        for optim, place in places:
            if grads[place]:
                optim._update(grads[place])
        return norm

    if scale is None:
        return update(grads)
    return scale.step_if_finite(update, grads, [x for optim in optims for x in optim.tensors()])


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
    lr = settings.lr * cosine_share(updates, settings.cosine) if settings.cosine else settings.lr
    rate, root = lr / (1 - b1**t), (1 - b2**t).sqrt()
    for p, m, v in zip(params, mean, square, strict=True):
        p.sub_((rate * m / (v.sqrt() / root + settings.eps)).to(p.dtype))


def cosine_share(updates: Tensor, cosine: int) -> Tensor | float:
    """Return the factor in [0, 1] of a learning rate that decays over ``cosine`` updates; 0: the factor is 1."""
    if not cosine:
        return 1.0
    done = (updates - 1).clamp(max=cosine).float()
    return 0.5 + 0.5 * (done * (math.pi / cosine)).cos()


# ---------------------------------------------------------------------- TensorFlow's


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

    def build(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        if self.implementation == "tensorflow":
            return GlobalAdam(parameters, self)
        return Adam(
            parameters, self.lr, self.eps, max_grad_norm=self.max_grad_norm, decoupled_decay=self.weight_decay,
            beta1=self.beta1, beta2=self.beta2,
        )  # fmt: skip


class GlobalAdam(FlatOptimizer):
    """Adam as in TensorFlow (Kingma and Ba 2015, end of section 2), with clipping and decay.

    In the order of DreamerV2's authors::

        g  <- g min(1, clip / |g|)                        |g| over all parameters
        p  <- p (1 - decay)                               of every parameter, biases and norms too
        p  <- p - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps)

    Algorithm 1 of that paper, and PyTorch, add eps after the correction, which at the first update has the effect of an
    eps 32 times as large.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], cfg: GlobalAdamConfig) -> None:
        super().__init__(parameters, cfg.lr)
        self.cfg = cfg

    def _update(self, grads: Tensors) -> Metrics:
        c = self.cfg
        flat, norm = clip_grad_norm(self._with_frozen(grads), c.max_grad_norm)
        trained = [p for p in self.params if p.requires_grad]
        if c.weight_decay and trained:
            torch._foreach_mul_(trained, 1 - c.weight_decay)
        self.updates.add_(1)
        self.momentum.lerp_(flat, 1 - c.beta1)
        self.square.mul_(c.beta2).addcmul_(flat, flat, value=1 - c.beta2)
        rate = self.rate * (1 - c.beta2**self.updates).sqrt() / (1 - c.beta1**self.updates)
        self._subtract(self.momentum * rate / (self.square.sqrt() + c.eps))
        return {"opt/grad_norm": norm}
