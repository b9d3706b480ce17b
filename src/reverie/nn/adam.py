"""Adam, whose state tensors stay at the same addresses: for CUDA graphs and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from reverie.core.accelerate import accelerated
from reverie.core.errors import ConfigError, RunError
from reverie.core.shapes import expect
from reverie.core.types import State
from reverie.core.words import plural
from reverie.nn.optim import to_train


class Adam:
    """Adam (Kingma and Ba 2015, Algorithm 1), all parameters in one fused call.

    ``torch.optim.Adam(fused=True)`` computes the same, but allocates its state at the first step and replaces the
    tensors when a state is loaded: a CUDA graph would go on using the old ones.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        cosine: int = 0,
    ) -> None:
        """Create the optimiser, with moments of 0.

        Args:
            parameters: the parameters to train.
            lr: the learning rate, above 0.
            betas: decay rates of the first and second moment.
            eps: added to the square root of the second moment, above 0.
            cosine: number of updates over which the learning rate decays to 0 along half a cosine (Loshchilov and
                Hutter 2017, equation 5), where it then stays; 0 keeps it constant.

        Raises:
            ConfigError: ``lr`` or ``eps`` is not a finite number above 0, ``cosine`` is negative, there are no
                parameters to train, or one is given twice.
        """
        for name, value in {"lr": lr, "adam_eps": eps}.items():
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} = {value}: expected a finite number above 0.")
        if cosine < 0:
            raise ConfigError(f"cosine = {cosine}: expected a number of updates, 0 or more.")
        self.lr, self.betas, self.eps, self.cosine = lr, betas, eps, cosine
        self.params = to_train("Adam", parameters)
        self.mean = [torch.zeros_like(p, requires_grad=False) for p in self.params]
        self.square = [torch.zeros_like(p, requires_grad=False) for p in self.params]
        # Not float32 as in PyTorch, which counts no further than 2^24: a longer decay of the rate would never end.
        self.updates = torch.zeros((), dtype=torch.int64, device=self.params[0].device)

    def step(self, loss: Tensor) -> None:
        """Compute the gradients of ``loss``, a scalar, and update the parameters: see :meth:`gradient`."""
        self.apply(self.gradient(loss))

    def gradient(self, loss: Tensor) -> Sequence[Tensor | None]:
        """Return the gradient of ``loss``, a scalar, for each parameter that was not frozen since.

        Frozen ones, by ``requires_grad_(False)``, stay as they are, and so do their moments.

        Raises:
            RunError: the loss is not a scalar, does not depend on any of the parameters, or all of them are frozen.
        """
        trained = [p for p in self.params if p.requires_grad]
        if not trained or not loss.requires_grad or loss.numel() != 1:
            raise RunError(_unfit(loss, self.params))
        return torch.autograd.grad(loss, trained, allow_unused=True)

    @torch.no_grad()
    def apply(self, found: Sequence[Tensor | None]) -> None:
        """Update the parameters with the gradients ``found``, one for each of them that is not frozen.

        Raises:
            RunError: a parameter has no gradient.
            ValueError: a gradient has another shape than its parameter.
        """
        mine = [x for x in zip(self.params, self.mean, self.square, strict=True) if x[0].requires_grad]
        params, mean, square = ([x[i] for x in mine] for i in range(3))
        grads = [grad for grad in found if grad is not None]
        if len(grads) != len(params):
            shape = next(list(p.shape) for p, grad in zip(params, found, strict=True) if grad is None)
            raise RunError(
                f"{len(params) - len(grads)} of {len(params)} parameters have no gradient, the first of "
                f"shape {shape}: the loss does not depend on them. Give Adam only the parameters of its loss."
            )
        for p, grad in zip(params, grads, strict=True):
            expect(p.shape, gradient=grad)
        self.updates += 1
        lr, betas, eps, cosine = self.lr, self.betas, self.eps, self.cosine
        adam(params, grads, mean, square, self.updates, lr=lr, betas=betas, eps=eps, cosine=cosine)

    @torch.no_grad()
    def renew(self) -> None:
        """Restart a decaying learning rate, with moments of 0. Change nothing if the learning rate is constant."""
        if self.cosine:
            for tensor in (*self.mean, *self.square, self.updates):
                tensor.zero_()

    def state_dict(self) -> State:
        """Return the moments, in the order of the parameters, and the number of updates."""
        moments = {"mean": self.mean, "square": self.square}
        named = {f"{name}.{i}": x for name, tensors in moments.items() for i, x in enumerate(tensors)}
        return {**named, "updates": self.updates}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """Copy a saved state into the present tensors, whose addresses a captured update (CUDA graph) has stored.

        In checkpoints of before, ``updates`` is float32.

        Raises:
            RunError: it was saved with other numbers or shapes of parameters.
        """
        mine = self.state_dict()
        for name in sorted(mine.keys() | state.keys()):
            had, has = (tuple(x[name].shape) if name in x else "absent" for x in (state, mine))
            if had != has:
                raise RunError(
                    f"optimiser state '{name}' is {had} in the checkpoint and {has} here: the checkpoint was "
                    "saved with different network sizes. Load it with the settings it was trained with."
                )
        for name, tensor in mine.items():
            tensor.copy_(state[name])


def _unfit(loss: Tensor, params: Sequence[Tensor]) -> str:
    """Return what is wrong with a loss that has no gradient, or is not a scalar."""
    whose = f"the optimiser of {plural(len(params), 'parameter')}, the first of shape {list(params[0].shape)},"
    if loss.numel() != 1:
        return f"{whose} was given a loss of shape {list(loss.shape)}: expected a scalar, such as the mean of a batch."
    return (
        f"{whose} was given a loss without gradient: expected one that is computed from these parameters, without "
        "detach() and outside of torch.no_grad(), and at least one of them not frozen by requires_grad_(False)."
    )


@accelerated
@torch.no_grad()
def adam(
    params: list[Tensor],
    grads: list[Tensor],
    mean: list[Tensor],
    square: list[Tensor],
    updates: Tensor,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    cosine: int = 0,
) -> None:
    """Move ``params`` and both moments in place: Kingma and Ba 2015, Algorithm 1.

    m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,  p <- p - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)

    t is ``updates`` ``[]``, int64, from 1. With ``cosine``, lr is multiplied by :func:`cosine_share`.
    """
    b1, b2, t = *betas, updates.double()
    torch._foreach_lerp_(mean, grads, 1 - b1)
    torch._foreach_mul_(square, b2)
    torch._foreach_addcmul_(square, grads, grads, 1 - b2)
    rate, root = lr * cosine_share(updates, cosine) / (1 - b1**t), (1 - b2**t).sqrt()
    for p, m, v in zip(params, mean, square, strict=True):
        p.sub_((rate * m / (v.sqrt() / root + eps)).to(p.dtype))


def cosine_share(updates: Tensor, cosine: int) -> Tensor | float:
    """Return the factor in [0, 1] of a learning rate that decays over ``cosine`` updates: 1 in the first, and if 0."""
    if not cosine:
        return 1.0
    done = (updates - 1).clamp(max=cosine).float()
    return 0.5 + 0.5 * (done * (math.pi / cosine)).cos()
