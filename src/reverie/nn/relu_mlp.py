"""Multilayer perceptrons (MLPs) with ReLU, tanh or GELU, whose parameters are one tensor, also with noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.kernel_dispatch import accelerated

ALIGNED = 16
"""Floats in a cache line."""

Activation = Literal["relu", "tanh", "gelu"]
"""The function between the layers. GELU is approximated by tanh (Hendrycks and Gimpel 2016, section 2), as in Flax."""

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu, "tanh": torch.tanh, "gelu": partial(F.gelu, approximate="tanh"),
}  # fmt: skip

HiddenNorm = Literal["before_relu", "after_relu"]
"""Place of the layer norm in a hidden layer."""

NORM_EPS = 1e-6
"""Added to the variance in layer norms, as in Flax, which the authors of ReBRAC, RLPD and FQL use."""


@dataclass(frozen=True)
class MLPLayout:
    """The positions of the layers of K MLPs in their parameters ``[K, P]``."""

    widths: tuple[int, ...]
    """Inputs, units of each hidden layer, outputs."""
    copies: int
    """K."""
    squash: bool = False
    """Whether tanh is applied to the output."""
    activation: Activation = "relu"
    """The function between the layers."""
    norm: HiddenNorm | None = None
    """Where the layer norm of each hidden layer is; None: there is none."""

    @cached_property
    def multiplications(self) -> int:
        """Multiplications of one copy for one row."""
        return sum(i * o for i, o in pairwise(self.widths))

    @cached_property
    def stride(self) -> int:
        """P: the parameters of one copy, padded to whole cache lines."""
        used = sum((i + 1) * o for i, o in pairwise(self.widths))
        return -(-used // ALIGNED) * ALIGNED

    @cached_property
    def hidden(self) -> int:
        """The hidden layers' values of one row, of all copies."""
        return self.copies * sum(self.widths[1:-1])

    def check(self, parts: Sequence[Tensor]) -> None:
        """Raise ValueError unless the widths of ``parts`` add up to the width of the inputs."""
        if sum(part.shape[1] for part in parts) != self.widths[0]:
            widths = " + ".join(str(part.shape[1]) for part in parts)
            raise ValueError(f"inputs of width {widths}: this network expects {self.widths[0]} numbers in each row.")

    @cached_property
    def places(self) -> tuple[tuple[int, int, int, int, int], ...]:
        """For each layer, its inputs and outputs, where its weights begin and end, and where its biases end."""
        sizes = list(pairwise(self.widths))
        starts = accumulate(((i + 1) * o for i, o in sizes), initial=0)
        return tuple((i, o, at, at + i * o, at + (i + 1) * o) for (i, o), at in zip(sizes, starts, strict=False))

    def layers(self, parameters: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the weights ``[K, inputs, outputs]`` and biases ``[K, 1, outputs]`` of each layer, as views."""
        return [
            (parameters[:, start:middle].view(self.copies, i, o), parameters[:, None, middle:end])
            for i, o, start, middle, end in self.places
        ]


def concat_inputs(*parts: Tensor) -> Tensor:
    """Concatenate inputs ``[M, I]``; each row of an input ``[M / n, I]`` is repeated n times."""
    rows = parts[-1].shape[0]  # len would fix a traced number of rows to the example's
    if any(part.shape[0] != rows for part in parts):
        repeated = (part.unsqueeze(1).expand(-1, rows // max(1, part.shape[0]), -1) for part in parts)  # [M / n, n, I]
        parts = tuple(part.reshape(rows, part.shape[-1]) for part in repeated)
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts, 1)  # [M, inputs]


@accelerated
def perceptron(theta: Tensor, layout: MLPLayout, *parts: Tensor) -> Tensor:
    """Return the outputs ``[K, M, outputs]`` of K MLPs with parameters ``theta`` ``[K, P]``.

    Their input is the concatenation of ``parts``, as in :func:`concat_inputs`: x W + b of each layer, and the
    activation between them.
    """
    x = concat_inputs(*parts)  # [M, inputs]
    if x.shape[1] != layout.widths[0]:
        layout.check(parts)
    theta, y, activate = theta.to(x.dtype), x.expand(layout.copies, *x.shape), ACTIVATIONS[layout.activation]
    for k, (i, o, start, middle, end) in enumerate(layout.places):
        weight, bias = theta[:, start:middle].view(-1, i, o), theta[:, None, middle:end]  # [K, i, o], [K, 1, o]
        y = torch.baddbmm(bias, y if k == 0 else activate(y), weight)
    return y.tanh() if layout.squash else y


@accelerated
def regularized_perceptron(
    theta: Tensor, norms: Tensor | None, dropout: Dropout | None, layout: MLPLayout, *parts: Tensor
) -> Tensor:
    """Return the outputs of :func:`perceptron` with dropout, then layer norm, in each hidden layer.

    Dropout acts on the outputs of the layer's product: Hiraoka et al. 2022, figure 1. ``norms`` ``[K, 2, H]`` holds the
    scales and the shifts of all H hidden units: Ba et al. 2016, equation 3.
    """
    layout.check(parts)
    x = concat_inputs(*parts)  # [M, inputs]
    y, (*hidden, last) = x.expand(layout.copies, *x.shape), layout.layers(theta.to(x.dtype))  # [K, M, inputs]
    widths = list(layout.widths[1:-1])
    affine = [None] * len(widths) if norms is None else torch.split(norms.to(x.dtype).unsqueeze(2), widths, -1)
    activate = ACTIVATIONS[layout.activation]
    for (weight, bias), scale_shift in zip(hidden, affine, strict=True):
        y = torch.baddbmm(bias, y, weight)  # [K, M, width]
        y = y if dropout is None else dropout(y)
        y = y if layout.norm == "before_relu" else activate(y)
        if scale_shift is not None:
            scale, shift = scale_shift.unbind(1)  # [K, 1, width]
            y = F.layer_norm(y, y.shape[-1:], eps=NORM_EPS) * scale + shift
        y = activate(y) if layout.norm == "before_relu" else y
    weight, bias = last
    y = torch.baddbmm(bias, y, weight)
    return y.tanh() if layout.squash else y


class Dropout(nn.Module):
    """Dropout (Srivastava et al. 2014) by 16 random bits for each number: PyTorch's takes five times as long on CPUs.

    The probability is rounded to a multiple of 2^-16.
    """

    has_two_modes = True

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.dropped: int = min(round(probability * 2**16), 2**16 - 1)
        """How many of the 2^16 values of the bits drop a number."""

    def factors(self, shape: torch.Size, x: Tensor) -> Tensor:
        """Return 0 for each number of ``shape`` that is dropped and else 1 / (1 - p), with dtype and device of x."""
        count = shape.numel()
        words = torch.empty(-(-count // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        mask = words.view(torch.int16)[:count].view(shape) >= self.dropped - 2**15
        return mask.to(x.dtype) / (1 - self.dropped / 2**16)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply x by :meth:`factors` in an update, and return it otherwise."""
        return x * self.factors(x.shape, x) if self.training else x


class ReluMLP(nn.Module):
    """An MLP, or K of them (``copies``) that share their input. ``squash`` applies tanh to the output.

    All parameters are one tensor ``theta`` ``[K, P]``, one copy in each row, so that optimizers and target networks
    process a single array. Rows are padded to whole cache lines with zeros, which stay 0. With a ``norm``, the scales
    and shifts of the hidden units are another tensor ``norms`` ``[K, 2, H]``. ``dropout`` is the probability with which
    an update sets an output of a hidden layer to 0.
    """

    def __init__(
        self, inputs: int, units: tuple[int, ...], outputs: int, copies: int | None = None, *, squash: bool = False,
        activation: Activation = "relu", norm: HiddenNorm | None = None, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.copies = copies
        self.layout: MLPLayout = MLPLayout((inputs, *units, outputs), copies or 1, squash, activation, norm)
        self.alone: MLPLayout = replace(self.layout, copies=1)
        self.theta: nn.Parameter = nn.Parameter(torch.zeros(copies or 1, self.layout.stride))
        self.dropout: Dropout | None = Dropout(dropout) if dropout else None
        self.norms: nn.Parameter | None = None
        if norm is not None:
            scales = torch.ones(copies or 1, sum(units))
            self.norms = nn.Parameter(torch.stack([scales, torch.zeros_like(scales)], 1))
        self.initialize()

    @torch.no_grad()
    def initialize(self, gain: float | None = None) -> None:
        """Draw the parameters as in ``torch.nn.Linear``; with a ``gain`` of the last layer, orthogonal, biases 0."""
        layers = self.layers()
        for k, (weight, bias) in enumerate(layers):
            if gain is not None:
                for copy in weight:
                    nn.init.orthogonal_(copy, gain if k == len(layers) - 1 else math.sqrt(2))
                bias.zero_()
            else:
                bound = 1 / math.sqrt(weight.shape[1])
                weight.uniform_(-bound, bound)
                bias.uniform_(-bound, bound)

    @torch.no_grad()
    def initialize_glorot(self, last: float = 1.0) -> None:
        """Draw weights uniformly within sqrt(6 / (inputs + outputs)), biases 0: Glorot and Bengio 2010, equation 16.

        ``last``: factor of this bound in the last layer.
        """
        layers = self.layers()
        for k, (weight, bias) in enumerate(layers):
            bound = math.sqrt(6 / (weight.shape[1] + weight.shape[2])) * (last if k == len(layers) - 1 else 1)
            weight.uniform_(-bound, bound)
            bias.zero_()

    @property
    def layout_state(self) -> dict[str, Tensor]:
        """The state saved with ``theta``, to detect other MLPs of the same size: widths, activations, norms."""
        layout = self.layout
        kind = 2 if layout.activation == "gelu" else layout.activation == "tanh"
        norm = [] if layout.norm is None else [layout.norm == "after_relu"]
        return {"widths": torch.tensor(layout.widths), "tanh": torch.tensor([kind, layout.squash, *norm])}

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.update({f"{prefix}{name}": value for name, value in self.layout_state.items()})

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Check the layout, as other layers can have the same number of parameters."""
        state, errors = dict(state_dict), []
        for (
            name,
            expected,
        ) in self.layout_state.items():  # a checkpoint without widths has no theta either, which PyTorch reports
            saved = tuple(state.pop(f"{prefix}{name}", expected).tolist())
            if saved != (current := tuple(expected.tolist())):
                errors.append(f"{prefix}{name} are {saved} in the checkpoint, but {current} here.")
        super()._load_from_state_dict(state, prefix, *rest)
        rest[-1].extend(errors)

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Return each layer's weights ``[K, inputs, outputs]`` and biases ``[K, 1, outputs]``, views of ``theta``."""
        return self.layout.layers(self.theta)

    def forward(self, *parts: Tensor, copy: int | None = None) -> Tensor:
        """Map ``[..., inputs]`` to ``[..., outputs]``, or to ``[K, ..., outputs]`` of K copies.

        Args:
            parts: the inputs, as one tensor or as several that are concatenated along the last axis. A part with one
                axis fewer than the last, ``[..., I]`` next to ``[..., n, J]``, is shared by the n rows.
            copy: the index of the only copy to compute; None computes all.
        """
        lead, theta, norms, layout = parts[-1].shape[:-1], cast(Tensor, self.theta), self.norms, self.layout
        if copy is not None:
            theta, layout = theta[copy : copy + 1], self.alone
        if any(part.shape[:-1] != lead and part.shape[:-1] != lead[:-1] for part in parts):
            raise ValueError(
                f"inputs of shapes {', '.join(str(tuple(part.shape)) for part in parts)}: expected the same but for "
                "the last axis, or [..., n, J] last and [..., I] that is shared by n rows."
            )
        flat = [part.reshape(-1, part.shape[-1]) for part in parts]  # [M, I], or [M / n, I]
        if norms is None and (self.dropout is None or not self.dropout.training):
            y = perceptron(theta, layout, *flat)  # [K, M, outputs]
        else:
            chosen = norms if norms is None or copy is None else norms[copy : copy + 1]
            y = regularized_perceptron(theta, chosen, self.dropout, layout, *flat)
        alone = self.copies is None or copy is not None
        return y.view(*lead, y.shape[-1]) if alone else y.view(layout.copies, *lead, y.shape[-1])


class NoisyMLP(ReluMLP):
    """An MLP with ReLU whose parameters are noisy: Fortunato et al. 2018, "Noisy networks for exploration".

    Within :func:`noisy_parameters`, each forward pass has the parameters theta + sigma noise, with new noise that all
    rows share; elsewhere it has theta. Section 3.2: theta and sigma are initialized for factorized Gaussian noise.
    """

    def __init__(self, inputs: int, units: tuple[int, ...], outputs: int, sigma: float) -> None:
        """``sigma``: initial standard deviation of the noise, times the square root of a layer's inputs."""
        super().__init__(inputs, units, outputs)
        scale = torch.zeros_like(self.theta)
        for weight, bias in self.layout.layers(scale):
            weight.fill_(sigma / math.sqrt(weight.shape[1]))
            bias.fill_(sigma / math.sqrt(weight.shape[1]))
        self.sigma: nn.Parameter = nn.Parameter(scale)

    def forward(self, x: Tensor, copy: int | None = None) -> Tensor:  # type: ignore[override]
        """Map ``[..., inputs]`` to ``[..., outputs]``. There is a single copy."""
        theta = torch.addcmul(self.theta, self.sigma, self.draw_noise()) if _is_noisy.get() else self.theta
        y = perceptron(theta, self.layout, x.reshape(-1, x.shape[-1]))  # [1, M, outputs]
        return y.view(*x.shape[:-1], y.shape[-1])

    def draw_noise(self) -> Tensor:
        """Return noise for all parameters, ``[1, P]``: equations 10 and 11.

        f(e_i) f(e_j) for the weight from input i to output j and f(e_j) for the bias of j, where e are standard normal
        and f(x) = sgn(x) sqrt(|x|).
        """
        sizes = [size for i, o, *_ in self.layout.places for size in (i, o)]
        draws = torch.randn(sum(sizes), device=self.theta.device)
        factors = torch.split(draws.sign() * draws.abs().sqrt(), sizes)
        pairs = zip(factors[::2], factors[1::2], strict=True)
        parts = [part for a, b in pairs for part in ((a.unsqueeze(1) * b).flatten(), b)]
        unused = self.layout.stride - sum(map(len, parts))
        return torch.cat([*parts, draws.new_zeros(unused)]).unsqueeze(0)


_is_noisy: ContextVar[bool] = ContextVar("is_noisy", default=False)


@contextmanager
def noisy_parameters() -> Iterator[None]:
    """Draw noise in each forward pass of a :class:`NoisyMLP` in this context."""
    token = _is_noisy.set(True)
    try:
        yield
    finally:
        _is_noisy.reset(token)
