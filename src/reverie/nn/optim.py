"""The optimisers of the Dreamers: LaProp with adaptive gradient clipping (V3), Adam with global clipping (V1, V2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from reverie.core.checks import above, at_least
from reverie.core.config import Config
from reverie.core.errors import ConfigError, RunError
from reverie.core.types import Metrics, State
from reverie.core.words import plural


@dataclass(frozen=True, kw_only=True)
class OptimConfig(Config):
    """LaProp with adaptive gradient clipping."""

    lr: float = 4e-5
    """Learning rate, above 0."""
    agc: float = 0.3
    """Adaptive clipping: largest norm of a tensor's gradient, as a fraction of the tensor's norm; 0 does not clip."""
    beta1: float = 0.9
    """Decay rate of the momentum, in [0, 1)."""
    beta2: float = 0.999
    """Decay rate of the mean square, in [0, 1)."""
    eps: float = 1e-20
    """Added to the root mean square, 0 or more."""
    warmup: int = 1000
    """Number of updates over which the learning rate rises linearly from 0; 0 starts with the full rate."""

    def __post_init__(self) -> None:
        above(self, lr=0)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected a decay in [0, 1).")
        at_least(self, agc=0, warmup=0, eps=0)

    def build(self, parameters: Iterable[nn.Parameter]) -> Optim:
        """Return an optimiser of these parameters."""
        return Optim(parameters, self)


def to_train(whose: str, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Return those of ``parameters`` that are not frozen, for the optimiser that a message calls ``whose``.

    Raises:
        ConfigError: there are none, or one is given twice and would be moved twice.
    """
    params: list[Tensor] = [p for p in parameters if p.requires_grad]
    if not params:
        raise ConfigError(
            f"{whose} was given no parameters to train: expected those of a network, network.parameters(), that are "
            "not frozen."
        )
    times = Counter(map(id, params))
    twice = [p for p in params if times[id(p)] > 1]
    if twice:
        raise ConfigError(
            f"{whose} was given {len({id(p) for p in twice})} of its parameters more than once, the first of shape "
            f"{list(twice[0].shape)}: each would be moved several times in an update. Give it each parameter once."
        )
    return params


class Optim:
    """LaProp (Ziyin et al. 2020) with adaptive gradient clipping (Brock et al. 2021) and a linear warm-up.

    Per tensor, in the order that the DreamerV3 authors use::

        g  <- g / max(1, |g| / (agc max(1e-3, |p|)))      clip against the tensor's norm
        v  <- beta2 v + (1 - beta2) g^2
        u   = g / (sqrt(v / (1 - beta2^t)) + eps)         normalise first ...
        m  <- beta1 m + (1 - beta1) u                     ... then average: this is what makes it LaProp
        p  <- p - lr_t m / (1 - beta1^t)

    With a warm-up, the first update has a learning rate of 0.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], cfg: OptimConfig) -> None:
        """Create the optimiser, with moments of 0.

        Raises:
            ConfigError: there are no parameters to train, or one is given twice.
        """
        self.cfg = cfg
        self.params = to_train("the optimiser of OptimConfig", parameters)
        self.sizes = [p.numel() for p in self.params]
        self.shapes = torch.tensor([n for p in self.params for n in (p.ndim, *p.shape)], device="cpu")
        self.count = sum(self.sizes)
        device = self.params[0].device
        # One flat vector for each moment: a dozen operations in all instead of a dozen for every parameter.
        self.square = torch.zeros(self.count, dtype=torch.float32, device=device)
        self.momentum = torch.zeros(self.count, dtype=torch.float32, device=device)
        self.updates = torch.zeros_like(self.square[0])  # on the device, so that no update waits for it
        # On GPUs the index of each element's tensor, [count].
        owners = [torch.full((n,), i, dtype=torch.int32, device=device) for i, n in enumerate(self.sizes)]
        self.owner = None if device.type == "cpu" else torch.cat(owners)

    def step(self, loss: Tensor) -> Metrics:
        """Compute gradients of ``loss``, clip them and update the parameters. Return metrics as scalars on the device.

        Raises:
            RunError: a parameter has no gradient, because the loss does not depend on it.
        """
        return {"opt/loss": loss.detach(), **self.apply(self.gradients(loss))}

    def gradients(self, loss: Tensor, keep: bool = False) -> list[Tensor]:
        """Compute and return the gradient of ``loss`` for each parameter. ``keep`` its graph for another loss.

        Raises:
            RunError: a parameter has no gradient, because the loss does not depend on it.
        """
        for p in self.params:
            p.grad = None
        self._backward(loss, keep)
        grads = [p.grad for p in self.params if p.grad is not None]
        if len(grads) != len(self.params):
            self._check_none_frozen()
            without = [list(p.shape) for p in self.params if p.grad is None]
            raise RunError(
                f"{len(without)} of {plural(len(self.params), 'parameter')} have no gradient, of the shapes "
                f"{', '.join(map(str, without[:3]))}{', ...' * (len(without) > 3)}: the loss does not depend on them. "
                "Give the optimiser only the parameters of its loss; if you replaced a network, build the optimiser "
                "after that."
            )
        return grads

    def _backward(self, loss: Tensor, keep: bool) -> None:
        loss.backward(retain_graph=keep)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _check_none_frozen(self) -> None:
        """Raise RunError if a parameter was frozen since: the flat moments would go on moving it."""
        frozen = [list(p.shape) for p in self.params if not p.requires_grad]
        if frozen:
            raise RunError(
                f"{len(frozen)} of {plural(len(self.params), 'parameter')} were frozen after this optimiser was made, "
                f"the first of shape {frozen[0]}: make it anew, as in learner.optim = "
                "learner.cfg.optim.build(learner.optim.params)."
            )

    @torch.no_grad()
    def apply(self, grads: list[Tensor]) -> Metrics:
        """Clip the gradients and update the parameters. Return metrics as scalars on the device."""
        c = self.cfg
        grad_norms = torch.stack(torch._foreach_norm(grads))  # [P]
        param_norms = torch.stack(torch._foreach_norm(self.params))  # [P]
        g = self._clipped(grads, grad_norms, param_norms)  # [count]
        rate = self._rate()
        self.updates += 1
        self.square.mul_(c.beta2).addcmul_(g, g, value=1 - c.beta2)
        g /= (self.square / (1 - c.beta2**self.updates)).sqrt_().add_(c.eps)
        self.momentum.lerp_(g, 1 - c.beta1)
        step = self.momentum * (rate / (1 - c.beta1**self.updates))  # [count]
        torch._foreach_sub_(self.params, self._parts(step))
        return self._metrics(grad_norms, param_norms, step, rate)

    def _parts(self, flat: Tensor) -> list[Tensor]:
        """Return views of a flat vector ``[count]`` in the parameters' shapes."""
        return [x.view(p.shape) for x, p in zip(torch.split(flat, self.sizes), self.params, strict=True)]

    def _clipped(self, grads: list[Tensor], grad_norms: Tensor, param_norms: Tensor) -> Tensor:
        """Return the clipped gradients of all tensors as one flat vector ``[count]``."""
        ratio = grad_norms / (self.cfg.agc * param_norms.clamp(min=1e-3))  # [P]; not used if agc is 0
        clip = 1 / ratio.clamp(min=1) if self.cfg.agc else torch.ones_like(ratio)  # [P]
        if self.owner is not None:  # two large kernels in place of a small one for each tensor
            flat = torch.cat([grad.flatten() for grad in grads])
            return flat.mul_(clip.index_select(0, self.owner))  # clip[owner] would make the numbers 64 bits wide
        flat = torch.empty_like(self.square)
        for part, grad, factor in zip(self._parts(flat), grads, clip.unbind(), strict=True):
            torch.mul(grad, factor, out=part)
        return flat

    def _rate(self) -> Tensor:
        share = self.updates / self.cfg.warmup if self.cfg.warmup else torch.ones_like(self.updates)
        return self.cfg.lr * share.clamp(max=1)

    def _metrics(self, grad_norms: Tensor, param_norms: Tensor, step: Tensor, rate: Tensor) -> Metrics:
        root = self.count**0.5
        grad_norm = grad_norms.norm()
        return {
            "opt/grad_norm": grad_norm,
            "opt/grad_rms": grad_norm / root,
            "opt/update_rms": step.norm() / root,
            "opt/param_rms": param_norms.norm() / root,
            "opt/lr": rate,
        }

    def state_dict(self) -> State:
        """Return the moments, flat in the order of the parameters, the number of updates, and the shapes of the former.

        ``shapes`` are numbers ``[n]``: of each parameter its number of dimensions, then its shape.
        """
        return {**self._moments(), "shapes": self.shapes}

    def _moments(self) -> dict[str, Tensor]:
        return {"square": self.square, "momentum": self.momentum, "updates": self.updates}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """Copy a saved state into the present tensors, whose addresses a captured update (CUDA graph) has stored.

        Checkpoints of before hold no shapes; of these, only the total size is compared.

        Raises:
            RunError: it was saved with another number of parameters, or with other shapes or another order of them.
        """
        for name, tensor in self._moments().items():
            if state[name].shape != tensor.shape:
                raise RunError(
                    f"optimiser state '{name}' has shape {tuple(state[name].shape)} in the checkpoint and "
                    f"{tuple(tensor.shape)} here: the checkpoint was saved with different network sizes. Load it with "
                    "the settings it was trained with."
                )
        saved = state.get("shapes", self.shapes).tolist()
        if saved != self.shapes.tolist():
            raise RunError(
                "the optimiser's parameters have other shapes in the checkpoint, or another order: "
                f"{_differing(saved, self.shapes.tolist())}. Give OptimConfig.build the same parameters in the "
                "order in which the checkpoint was saved."
            )
        for name, tensor in self._moments().items():
            tensor.copy_(state[name])


@dataclass(frozen=True, kw_only=True)
class GlobalAdamConfig(Config):
    """Adam after clipping by the global norm: DreamerV1 and V2."""

    form: Literal["tensorflow", "torch"] = "tensorflow"
    """tensorflow: eps is not corrected, and decay is not multiplied by the learning rate. torch: both are, as in
    PyTorch's AdamW."""

    lr: float = 1e-4
    """Learning rate, above 0."""
    eps: float = 1e-5
    """Added to the root mean square, above 0."""
    clip: float = 100.0
    """Largest norm of all gradients together; 0 does not clip."""
    decay: float = 0.0
    """Share by which every update shrinks every parameter, in [0, 1)."""
    beta1: float = 0.9
    """Decay rate of the momentum, in [0, 1)."""
    beta2: float = 0.999
    """Decay rate of the mean square, in [0, 1)."""

    def __post_init__(self) -> None:
        above(self, lr=0, eps=0)
        at_least(self, clip=0)
        for name in ("decay", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected a number in [0, 1).")

    def build(self, parameters: Iterable[nn.Parameter]) -> GlobalAdam:
        """Return an optimiser of these parameters."""
        return GlobalAdam(parameters, self)


class GlobalAdam(Optim):
    """Adam as TensorFlow has it (Kingma and Ba 2015, end of section 2), with clipping and decay.

    In the order of DreamerV2's authors::

        g  <- g min(1, clip / |g|)                        |g| over all parameters
        p  <- p (1 - decay)                               of every parameter, biases and norms too
        p  <- p - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps)

    In algorithm 1 of that paper, and in PyTorch, eps is added after the correction: at the first update as if it were
    32 times as large here. The form ``torch`` is that, with decay lr in place of decay.
    """

    cfg: GlobalAdamConfig  # type: ignore[assignment]  # the base class has that of LaProp

    def __init__(self, parameters: Iterable[nn.Parameter], cfg: GlobalAdamConfig) -> None:
        super().__init__(parameters, cfg)  # type: ignore[arg-type]

    def _backward(self, loss: Tensor, keep: bool) -> None:
        # An actor's loss also depends on the world model, which has an optimiser of its own.
        inputs = [p for p in self.params if p.requires_grad]
        loss.backward(inputs=inputs, retain_graph=keep)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def apply(self, grads: list[Tensor]) -> Metrics:
        """Clip the gradients and update the parameters. Return the norm of the gradients before clipping."""
        c = self.cfg
        norm = torch.stack(torch._foreach_norm(grads)).norm()
        flat = torch.cat([grad.flatten() for grad in grads])  # [count]
        if c.clip:
            flat *= c.clip / norm.clamp(min=c.clip)
        torchs = c.form == "torch"
        if c.decay:
            torch._foreach_mul_(self.params, 1 - c.decay * (c.lr if torchs else 1.0))
        self.updates += 1
        self.momentum.lerp_(flat, 1 - c.beta1)
        self.square.mul_(c.beta2).addcmul_(flat, flat, value=1 - c.beta2)
        correction = (1 - c.beta2**self.updates).sqrt()
        rate = c.lr * correction / (1 - c.beta1**self.updates)
        step = self.momentum * rate / (self.square.sqrt() + (c.eps * correction if torchs else c.eps))  # [count]
        torch._foreach_sub_(self.params, self._parts(step))
        return {"opt/grad_norm": norm}


def descend(losses: Mapping[str, Tensor], optims: Mapping[str, Optim], shared: Collection[str] = ()) -> Metrics:
    """Take a step of the optimiser of each loss, by name, with gradients that are all computed before the first step.

    ``shared`` are the losses of whose graph another one, after them, has a part.

    Returns:
        The metrics of each, as ``opt/loss/NAME`` and ``opt/grad_norm/NAME``.
    """
    found = {name: optims[name].gradients(loss, name in shared) for name, loss in losses.items()}
    steps = {name: {"opt/loss": losses[name].detach(), **optims[name].apply(grads)} for name, grads in found.items()}
    return {f"{key}/{name}": value for name, metrics in steps.items() for key, value in metrics.items()}


def _differing(saved: list[int], mine: list[int]) -> str:
    """Return in words where two lists of shapes first differ: each is the number of dimensions, then the shape."""
    place = 0
    while saved and mine:
        (had, saved), (has, mine) = ((x[1 : x[0] + 1], x[x[0] + 1 :]) for x in (saved, mine))
        if had != has:
            return f"number {place} has shape {had} in the checkpoint and {has} here"
        place += 1
    return f"beyond the first {place}, only one of the two has any"
