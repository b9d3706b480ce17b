"""The base class of optimizers; LaProp with adaptive clipping (DreamerV3, R2-Dreamer) and RMSProp (A2C).

An optimizer's state stays at the same addresses, even when one is loaded, because a captured update keeps using it.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from reverie.core.bounds import Above, AtLeast, PiecewiseLinear, ScheduledFloat, Within, initial_value
from reverie.core.collectives import all_reduce_mean, is_distributed
from reverie.core.config import Config
from reverie.core.errors import ConfigError, RunError, count_noun
from reverie.core.kernel_dispatch import NotesChanges, accelerated
from reverie.core.types import Metrics, State
from reverie.nn.loss_scale import LossScale

Tensors = list[Tensor]


def trainable(parameters: Iterable[nn.Parameter]) -> Tensors:
    """Return the ``parameters`` that are not frozen."""
    params: Tensors = [p for p in parameters if p.requires_grad]
    if len({id(p) for p in params}) < len(params):  # it would be updated twice
        raise ConfigError("an optimizer was given a parameter more than once: pass each parameter once.")
    return params


def advance_schedules(ramps: Mapping[PiecewiseLinear, Sequence[Tensor]], step: int) -> None:
    """Set the tensors of each ramp to its value at this env step, in place: captured updates keep reading them."""
    for ramp, tensors in ramps.items():
        new = ramp.value_at(step)
        for value in tensors:
            if value.is_cpu:
                value.numpy()[...] = new  # 3 us less
            else:
                value.fill_(new)


def register_scheduled(module: nn.Module, name: str, rate: ScheduledFloat) -> None:
    """Set ``module.name`` to ``rate``. If the rate is a schedule, register a buffer that follows it over env steps."""
    if not isinstance(rate, PiecewiseLinear):
        setattr(module, name, rate)
        return
    module.register_buffer(name, torch.tensor(initial_value(rate), dtype=torch.float32), persistent=False)
    vars(module).setdefault("ramps", {})[name] = rate


MAX_NAMES = 4
"""Maximum number of parameters that an error names."""


class NoGradientError(RunError):
    """Some ``parameters`` of an optimizer have no gradient."""

    def __init__(self, parameters: Tensors, count: int, names: Sequence[str] = ()) -> None:
        """``count``: number of all parameters of the optimizer. ``names`` of ``parameters``, if they are known."""
        rest = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        listed = ", ".join(names[:MAX_NAMES]) + rest
        super().__init__(
            f"{len(parameters)} of {count_noun(count, 'parameter')} have no gradient: "
            f"{listed or f'the first has shape {list(parameters[0].shape)}'}. Build the optimizer from the parameters "
            "that its loss depends on, or freeze the others by requires_grad_(False)."
        )
        self.parameters: Tensors = parameters
        self.count: int = count

    def with_names(self, module: nn.Module) -> NoGradientError:
        """Return the error with the names that the parameters have in ``module``."""
        names = [name for name, p in module.named_parameters() if any(p is other for other in self.parameters)]
        return NoGradientError(self.parameters, self.count, names)


class Optimizer(NotesChanges, ABC):
    """A rule that updates all parameters of one loss at once. A subclass defines :meth:`_update` and the state.

    Parameters frozen by ``requires_grad_(False)``, and their moments, do not change.
    """

    loss_scale: LossScale | None = None
    """The loss scale of the learner, which sets it; None in float32 and bfloat16."""
    norms: Any = None
    """Norms of gradients by network (``algos/gradient_norms.py``); None unless they are logged."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: ScheduledFloat) -> None:
        self.params: Tensors = trainable(parameters)
        self.schedule: ScheduledFloat = lr
        self.rate: float | Tensor = lr if not isinstance(lr, PiecewiseLinear) else self._new_rate(initial_value(lr))

    def _new_rate(self, lr: float) -> Tensor:
        return torch.tensor(lr, dtype=torch.float32, device=self.params[0].device)

    @property
    def ramps(self) -> list[tuple[PiecewiseLinear, Tensor]]:
        """The schedule of the learning rate with its tensor ``[]``, which :func:`advance_schedules` sets, if any."""
        is_scheduled = isinstance(self.schedule, PiecewiseLinear) and isinstance(self.rate, Tensor)
        return [(self.schedule, self.rate)] if is_scheduled else []  # type: ignore[list-item]

    @property
    def lr(self) -> float:
        """The learning rate. It may be set at any time, unless it follows a schedule; checkpoints do not have it."""
        return float(self.rate)

    @lr.setter
    def lr(self, lr: float) -> None:
        if isinstance(self.schedule, PiecewiseLinear):
            raise ConfigError(
                f"lr = {lr}: this learning rate follows the schedule {self.schedule}. Use a number as its setting."
            )
        self.rate = self.rate.fill_(lr) if isinstance(self.rate, Tensor) else self._new_rate(lr)

    def step(self, loss: Tensor) -> Metrics:
        """Compute gradients of ``loss``, a scalar, and update the parameters. Return metrics: see :meth:`apply`."""
        return {"opt/loss": loss.detach(), **self.apply(self.gradients(loss))}

    def gradients(self, loss: Tensor, keep: bool = False, params: Tensors | None = None) -> Tensors:
        """Return the gradient of ``loss``, a scalar, for each parameter that is not frozen, or for such ``params``.

        ``keep`` its graph for another loss. With a loss scale, the gradient is multiplied by that.
        """
        if not (trained := [p for p in params or self.params if p.requires_grad]):
            return []
        scale = None if self.loss_scale is None else self.loss_scale.value
        grads = torch.autograd.grad(loss, trained, scale, retain_graph=keep, allow_unused=True)
        if without := [p for p, grad in zip(trained, grads, strict=True) if grad is None]:
            raise NoGradientError(without, len(trained))
        return list(grads)

    @torch.no_grad()
    def apply(self, grads: Tensors) -> Metrics:
        """Update the parameters with the ``grads`` of :meth:`gradients`. Return metrics, scalars on the device.

        They are averaged over several learners and divided by the loss scale.
        """
        if not grads:
            return {}
        if is_distributed():
            all_reduce_mean(grads)
        if self.norms is not None:
            self.norms.add(self.params, grads, self.loss_scale)
        if self.loss_scale is None:
            return self._update(grads)
        return self.loss_scale.step_if_finite(self._update, grads, self.tensors())

    @abstractmethod
    def _update(self, grads: Tensors) -> Metrics:
        """Update the parameters that are not frozen with their gradients."""

    def restart_schedule(self) -> None:
        """Restart a learning rate that decays with the number of updates; by default none does."""

    def tensors(self) -> Tensors:
        """Return all tensors that an update changes."""
        return [*self.params, *(x for name, x in self.state_dict().items() if name != "shapes")]

    @abstractmethod
    def state_dict(self) -> State:
        """Return the moments, in the order of the parameters, and the number of updates."""

    def load_state_dict(self, state: State) -> None:
        """Copy a saved state. Raise RunError if it is of another optimizer, or of other parameters."""
        moments = self.state_dict()
        saved, current = (", ".join(sorted({name.partition(".")[0] for name in x})) for x in (state, moments))
        if saved != current:
            raise RunError(
                f"the optimizer of the checkpoint has {saved}: expected {current}. Another version of reverie saved "
                "it. Start a new run from its networks: --init-from RUN --init-modules '.*'."
            )
        for name in sorted(moments.keys() | state.keys()):
            had, has = (tuple(x[name].shape) if name in x else "absent" for x in (state, moments))
            if had != has or (name == "shapes" and not torch.equal(state[name].cpu(), moments[name])):
                raise RunError(
                    f"optimizer state '{name}' is {had if had != has else 'of other parameters'} in the checkpoint, "
                    f"and {has} here: it was saved with other networks. Load it with the settings it was trained with."
                )
        with torch.no_grad():
            for name, tensor in moments.items():
                tensor.copy_(state[name])


# ---------------------------------------------------------------------- moments as flat vectors


class FlatOptimizer(Optimizer):
    """An optimizer with one flat vector for each moment: a dozen operations instead of a dozen for every parameter."""

    moments: ClassVar[tuple[str, ...]] = ("square", "momentum")
    square: Tensor
    momentum: Tensor

    def __init__(self, parameters: Iterable[nn.Parameter], lr: ScheduledFloat) -> None:
        super().__init__(parameters, lr)
        self.sizes: list[int] = [p.numel() for p in self.params]
        self.shapes: Tensor = torch.tensor([n for p in self.params for n in (p.ndim, *p.shape)], device="cpu")
        self.count: int = sum(self.sizes)
        for name in self.moments:
            setattr(self, name, torch.zeros(self.count, dtype=torch.float32, device=self.params[0].device))
        self.updates: Tensor = torch.zeros_like(self.square[0])  # on the device, so that no update waits for it

    def _with_frozen(self, grads: Tensors) -> Tensors:
        """Return ``grads``, of the parameters that are not frozen, with zeros for those that are."""
        remaining = iter(grads)
        return [next(remaining) if p.requires_grad else torch.zeros_like(p) for p in self.params]

    def _subtract(self, step: Tensor) -> None:
        """Subtract a flat vector ``[count]`` from the parameters that are not frozen."""
        pairs = [pair for pair in zip(self.params, self._parts(step), strict=True) if pair[0].requires_grad]
        for is_usual in (True, False):  # if a single pair had different strides, PyTorch would loop over all pairs
            chosen = [pair for pair in pairs if pair[0].is_contiguous() is is_usual]
            if chosen:
                torch._foreach_sub_([p for p, _ in chosen], [x for _, x in chosen])

    def _parts(self, flat: Tensor) -> Tensors:
        """Return views of a flat vector ``[count]`` in the parameters' shapes."""
        return [x.view(p.shape) for x, p in zip(torch.split(flat, self.sizes), self.params, strict=True)]

    def state_dict(self) -> State:
        """Return the moments, flat in the order of the parameters, the number of updates, and the parameters' shapes.

        ``shapes`` are numbers ``[n]``: of each parameter its number of dimensions, then its shape.
        """
        return {**{name: getattr(self, name) for name in self.moments}, "updates": self.updates, "shapes": self.shapes}


# ---------------------------------------------------------------------- LaProp


@dataclass(frozen=True, kw_only=True)
class LaPropAGCConfig(Config):
    """LaProp with adaptive gradient clipping."""

    lr: Annotated[ScheduledFloat, Above(0)] = 4e-5
    """Learning rate, above 0."""
    agc: Annotated[float, AtLeast(0)] = 0.3
    """Adaptive clipping: largest norm of a tensor's gradient, as a fraction of the tensor's norm; 0 does not clip."""
    agc_min_norm: Annotated[float, Above(0)] = 1e-3
    """Smallest norm of a tensor in adaptive clipping, so that a tensor of zeros can learn."""
    beta1: Annotated[float, Within("[0, 1)")] = 0.9
    """Decay rate of the momentum, in [0, 1)."""
    beta2: Annotated[float, Within("[0, 1)")] = 0.999
    """Decay rate of the mean square, in [0, 1)."""
    eps: Annotated[float, AtLeast(0)] = 1e-20
    """Added to the root mean square, 0 or more."""
    warmup: Annotated[int, AtLeast(0)] = 1000
    """Number of updates over which the learning rate rises linearly from 0; 0 starts with the full rate."""

    def build(self, parameters: Iterable[nn.Parameter]) -> LaPropAGC:
        return LaPropAGC(parameters, self)


def normalized(
    g: Tensor, owner: Tensor | None, clip: Tensor, square: Tensor, correction: Tensor, cfg: LaPropAGCConfig
) -> Tensor:
    """Return u of :class:`LaPropAGC` in the memory of g ``[count]``, and update ``square``, v."""
    if owner is not None:
        g.mul_(clip.index_select(0, owner))  # clip[owner] would make the numbers 64 bits wide
    square.mul_(cfg.beta2).addcmul_(g, g, value=1 - cfg.beta2)
    return g.div_((square / correction).sqrt_().add_(cfg.eps))


@accelerated
def laprop(
    g: Tensor, clip: Tensor, owner: Tensor | None, square: Tensor, momentum: Tensor, rate: Tensor,
    corrections: tuple[Tensor, Tensor], cfg: LaPropAGCConfig,
) -> Tensor:  # fmt: skip
    """Return the update of :class:`LaPropAGC` to subtract from the parameters ``[count]``, and update its moments.

    Args:
        g: gradients ``[count]``; their memory may be written.
        clip: factors of the gradients ``[P]``, if there is an ``owner``.
        owner: the index of each gradient's factor, ``[count]``. None: they are clipped already.
        square: v, ``[count]``.
        momentum: m, ``[count]``.
        rate: lr_t, ``[]``.
        corrections: 1 - beta1^t and 1 - beta2^t, ``[]`` each.
        cfg: the settings.
    """
    momentum.lerp_(normalized(g, owner, clip, square, corrections[1], cfg), 1 - cfg.beta1)
    return momentum * (rate / corrections[0])


class LaPropAGC(FlatOptimizer):
    """LaProp (Ziyin et al. 2020) with adaptive gradient clipping (Brock et al. 2021) and a linear warm-up.

    Per tensor, in the order that the DreamerV3 authors use::

        g  <- g / max(1, |g| / (agc max(agc_min_norm, |p|)))      clip against the tensor's norm
        v  <- beta2 v + (1 - beta2) g^2
        u   = g / (sqrt(v / (1 - beta2^t)) + eps)         normalize first ...
        m  <- beta1 m + (1 - beta1) u                     ... then average: this is what makes it LaProp
        p  <- p - lr_t m / (1 - beta1^t)

    With a warm-up, the first update has a learning rate of 0.
    """

    warmup_start: ClassVar[int] = 0
    """The learning rate of the first update is lr times this over ``warmup``."""

    def __init__(self, parameters: Iterable[nn.Parameter], cfg: LaPropAGCConfig) -> None:
        super().__init__(parameters, cfg.lr)
        self.cfg = cfg
        # On GPUs the index of each element's tensor, [count].
        device = self.square.device
        owners = [torch.full((n,), i, dtype=torch.int32, device=device) for i, n in enumerate(self.sizes)]
        self.owner: Tensor | None = None if device.type == "cpu" else torch.cat(owners)

    def _update(self, grads: Tensors) -> Metrics:
        c, root, grads = self.cfg, self.count**0.5, self._with_frozen(grads)
        grad_norms = torch.stack(torch._foreach_norm(grads))  # [P]
        param_norms = torch.stack(torch._foreach_norm(self.params))  # [P]
        ratio = grad_norms / (c.agc * param_norms.clamp(min=c.agc_min_norm))  # [P]; not used if agc is 0
        clip = 1 / ratio.clamp(min=1) if c.agc else torch.ones_like(ratio)  # [P], the factors of the gradients
        if self.owner is None:
            flat = torch.empty_like(self.square)
            for part, grad, factor in zip(self._parts(flat), grads, clip.unbind(), strict=True):
                torch.mul(grad, factor, out=part)
        else:  # a few large kernels instead of a small one for each tensor; the step clips
            flat = torch.cat([grad.flatten() for grad in grads])
        warm = (self.updates + self.warmup_start) / c.warmup if c.warmup else torch.ones_like(self.updates)
        rate = self.rate * warm.clamp(max=1)
        self.updates.add_(1)
        step = self._step(flat, clip, rate)  # [count]
        self._subtract(step)
        norm = grad_norms.norm()
        return {
            "opt/grad_norm": norm,
            "opt/grad_rms": norm / root,
            "opt/update_rms": step.norm() / root,
            "opt/param_rms": param_norms.norm() / root,
            "opt/lr": rate,
        }

    def _step(self, g: Tensor, clip: Tensor, rate: Tensor) -> Tensor:
        """Return what to subtract from the parameters, and update the moments: see :func:`laprop`."""
        corrections = (1 - self.cfg.beta1**self.updates, 1 - self.cfg.beta2**self.updates)
        return laprop(g, clip, self.owner, self.square, self.momentum, rate, corrections, self.cfg)


@dataclass(frozen=True, kw_only=True)
class ReleasedLaPropConfig(LaPropAGCConfig):
    """LaProp as its authors released it, with adaptive gradient clipping: R2-Dreamer."""

    def build(self, parameters: Iterable[nn.Parameter]) -> LaProp:
        return LaProp(parameters, self)


class LaProp(LaPropAGC):
    """:class:`LaPropAGC` with each u weighted by its own learning rate, which matters while the rate changes.

    In the order of the authors of LaProp::

        m  <- beta1 m + (1 - beta1) lr_t u
        c  <- beta1 c + (1 - beta1) lr_t
        p  <- p - lr_t m / c

    With a warm-up, the first update has lr / warmup.
    """

    warmup_start: ClassVar[int] = 1

    def __init__(self, parameters: Iterable[nn.Parameter], cfg: ReleasedLaPropConfig) -> None:
        super().__init__(parameters, cfg)
        self.mass: Tensor = torch.zeros_like(self.updates)

    def _step(self, g: Tensor, clip: Tensor, rate: Tensor) -> Tensor:
        u = normalized(g, self.owner, clip, self.square, 1 - self.cfg.beta2**self.updates, self.cfg)
        self.momentum.lerp_(u * rate, 1 - self.cfg.beta1)
        self.mass.lerp_(rate, 1 - self.cfg.beta1)
        return self.momentum * (rate / self.mass.clamp(min=1e-30))  # a ramp may begin at a rate of 0

    def state_dict(self) -> State:
        return {**super().state_dict(), "mass": self.mass}


@dataclass(frozen=True, kw_only=True)
class GlobalRMSpropConfig(Config):
    """RMSProp after clipping by the global norm: A2C."""

    implementation: Literal["tensorflow", "torch"] = "torch"
    """Which library's RMSProp to follow. tensorflow: the mean square starts at 1, eps is added to it. torch: it starts
    at 0, eps is added to the root."""
    lr: Annotated[ScheduledFloat, Above(0)] = 7e-4
    """Learning rate, above 0."""
    alpha: Annotated[float, Within("[0, 1)")] = 0.99
    """Decay rate of the mean square, in [0, 1)."""
    eps: Annotated[float, Above(0)] = 1e-5
    """Added to the mean square or to its root, above 0."""
    max_grad_norm: Annotated[float, AtLeast(0)] = 0.5
    """Maximum norm of the gradient of all parameters; 0 does not clip."""

    def build(self, parameters: Iterable[nn.Parameter]) -> GlobalRMSprop:
        return GlobalRMSprop(parameters, self)


class GlobalRMSprop(FlatOptimizer):
    """RMSProp (Tieleman and Hinton 2012), neither centered nor with momentum, in the form of TensorFlow or PyTorch.

    s <- decay s + (1 - decay) g^2,  p <- p - lr g / sqrt(s + eps), or in PyTorch's form lr g / (sqrt(s) + eps).
    """

    moments: ClassVar[tuple[str, ...]] = ("square",)

    def __init__(self, parameters: Iterable[nn.Parameter], cfg: GlobalRMSpropConfig) -> None:
        super().__init__(parameters, cfg.lr)
        self.cfg = cfg
        self.square.fill_(1.0 if cfg.implementation == "tensorflow" else 0.0)

    def _update(self, grads: Tensors) -> Metrics:
        c = self.cfg
        flat, norm = clip_grad_norm(self._with_frozen(grads), c.max_grad_norm)
        self.updates.add_(1)
        self.square.mul_(c.alpha).addcmul_(flat, flat, value=1 - c.alpha)
        root = (self.square + c.eps).sqrt() if c.implementation == "tensorflow" else self.square.sqrt() + c.eps
        self._subtract(self.rate * flat / root)
        return {"opt/grad_norm": norm}


@accelerated
@torch.no_grad()
def clip_grad_norm(grads: Tensors, limit: float) -> tuple[Tensor, Tensor]:
    """Return all gradients as one vector ``[count]`` whose norm is at most ``limit`` (0: any), and the norm before."""
    norm = torch.stack(torch._foreach_norm(grads)).norm()
    flat = torch.cat([grad.flatten() for grad in grads])  # [count]
    return (flat * (limit / norm.clamp(min=limit)) if limit else flat), norm


def gradient_steps(
    losses: Mapping[str, Tensor], optims: Mapping[str, Optimizer], shared: Collection[str] = ()
) -> Metrics:
    """Take a step of the optimizer of each loss, by name, with gradients that are all computed before the first step.

    ``shared``: losses that share part of their graph with a later loss. Return the metrics of each, as
    ``opt/loss/NAME`` and ``opt/grad_norm/NAME``.
    """
    gradients = {name: optims[name].gradients(loss, name in shared) for name, loss in losses.items()}
    steps = {
        name: {"opt/loss": losses[name].detach(), **optims[name].apply(grads)} for name, grads in gradients.items()
    }
    return {f"{key}/{name}": value for name, metrics in steps.items() for key, value in metrics.items()}


# ---------------------------------------------------------------------- gradients that pass a module


@contextlib.contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """In this context, gradients pass through ``module`` to its inputs, and its parameters get none."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    for p in parameters:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in parameters:
            p.requires_grad_(True)
