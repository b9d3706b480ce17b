"""What a class of a user's own may have forgotten, or an optimiser broken, and what would then go wrong in silence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from reverie.core.errors import ConfigError
from reverie.core.words import plural
from reverie.nn.optim import Adam, Optim
from reverie.nn.preprocess import Preprocessor

Optimiser = Adam | Optim | torch.optim.Optimizer


def check_complete(
    learner: nn.Module, optims: Mapping[str, Adam], preprocess: Preprocessor, extra_state: Mapping[str, object]
) -> None:
    """Check a model-free learner after its first update.

    Args:
        learner: the learner.
        optims: those of its optimisers that checkpoints hold.
        preprocess: its preprocessor.
        extra_state: what checkpoints hold beside its parameters and buffers.

    Raises:
        ConfigError: it forgot preprocessing that the settings ask for, or an optimiser would not be saved.
    """
    name, members = type(learner).__name__, vars(learner)
    if forgotten := preprocess.forgotten(has_policy=hasattr(learner, "_policy")):
        raise ConfigError(
            f"{name}: {forgotten}, so it ignores normalise, frames or reward_scale, which the settings ask for. Add "
            "the call; without these settings it changes nothing."
        )
    # Also those that have not stepped yet, which have no moments that `check_saved` could miss.
    foreign = {key: x for key, x in {**members, **optims}.items() if isinstance(x, torch.optim.Optimizer)}
    for key, optim in foreign.items():
        if key in optims or len(foreign) > _states_of_pytorch(extra_state):
            raise ConfigError(
                f"{name}: the optimiser {key!r} is PyTorch's {type(optim).__name__}, whose state no checkpoint would "
                "hold. Use self.optims[...] = Adam(...) of reverie.nn.optim. Or keep it out of self.optims, set "
                "algo.graph to False, and save and restore its state in extra_state and load_extra_state."
            )
    saved = [id(optim) for optim in optims.values()]
    lost = [key for key, value in members.items() if isinstance(value, Adam) and id(value) not in saved]
    if lost:
        raise ConfigError(
            f"{name}.{lost[0]} is an optimiser that no checkpoint would hold: put it into self.optims, for example "
            f"self.optims[{lost[0].strip('_')!r}] = Adam(...)."
        )


def _states_of_pytorch(state: object) -> int:
    """Return how many states of PyTorch's optimisers there are in a nested state."""
    if not isinstance(state, Mapping):
        return 0
    return int("param_groups" in state) + sum(map(_states_of_pytorch, state.values()))


def written(learner: nn.Module) -> dict[int, int]:
    """Return by its id how often each parameter was written to, for :func:`check_trained`."""
    return {id(p): p._version for p in learner.parameters()}


def check_trained(learner: nn.Module, before: Mapping[int, int]) -> None:
    """Check after a learner's first update that each parameter is trained or frozen. ``before``: see :func:`written`.

    A learner without any optimiser that is known here may train in a way of its own, and so may one that wrote to the
    parameter itself.

    Raises:
        ConfigError: a parameter is neither.
    """
    found = [optim for _, optim in _optimisers(learner)]
    held = {id(p) for optim in found for p in _params(optim)}
    left = [
        name
        for name, p in learner.named_parameters()
        if p.requires_grad and id(p) not in held and p._version == before.get(id(p))
    ]
    if found and left:
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        how = "self.optims['head'] = Adam(self.head.parameters(), lr)"
        if any(isinstance(optim, Optim) for optim in found):
            how = "self.optim = self.cfg.optim.build([*self.optim.params, *self.head.parameters()])"
        raise ConfigError(
            f"{type(learner).__name__}: no optimiser has {plural(len(left), 'parameter')}, which would never be "
            f"trained: {', '.join(left[:3])}{more}. Give them to one, as in {how}, or freeze them by "
            "requires_grad_(False)."
        )


def check_saved(learner: nn.Module, extra_state: Mapping[str, object]) -> None:
    """Check after a learner's first update that checkpoints hold the moments of all its optimisers.

    Args:
        learner: the learner.
        extra_state: what checkpoints hold beside its parameters and buffers.

    Raises:
        ConfigError: an optimiser would not be saved.
    """
    saved = [x for x in tree_leaves(dict(extra_state)) if isinstance(x, Tensor)] + list(learner.buffers())
    known = {id(x) for x in saved}
    for name, optim in _optimisers(learner):
        moments = [x for x in tree_leaves(optim.state_dict()) if isinstance(x, Tensor) and x.is_floating_point()]
        if not all(id(x) in known or any(_same(x, y) for y in saved) for x in moments):
            raise ConfigError(
                f"{type(learner).__name__}.{name} is an optimiser that no checkpoint would hold, so that a resumed run "
                "would lose its moments. Return its state_dict() from extra_state(), beside all that "
                "super().extra_state() returns, and restore it in load_extra_state()."
            )


@torch.no_grad()
def bad_moment(learner: nn.Module) -> str | None:
    """Return the name of a parameter of which an optimiser holds NaN or infinity, so that it may never move; or None.

    One gradient whose square float32 does not hold is enough. Reads all moments and waits for the device.
    """
    names = {id(p): name for name, p in learner.named_parameters()}
    for name, optim in _optimisers(learner):
        for p, moments in zip(_params(optim), _moments(optim), strict=True):
            if not all(bool(torch.isfinite(x).all()) for x in moments):
                return names.get(id(p), name)
    return None


def _moments(optim: Optimiser) -> Iterable[Sequence[Tensor]]:
    """Return the moments of each parameter, in the order of :func:`_params`."""
    if isinstance(optim, torch.optim.Optimizer):
        held = (optim.state.get(p, {}).values() for p in _params(optim))
        return ([x for x in values if isinstance(x, Tensor)] for values in held)
    if isinstance(optim, Adam):
        return zip(optim.mean, optim.square, strict=True)
    return zip(*(torch.split(flat, optim.sizes) for flat in (optim.momentum, optim.square)), strict=True)


def _same(x: Tensor, y: Tensor) -> bool:
    alike = x.shape == y.shape and x.dtype == y.dtype and x.device == y.device
    return alike and (x.is_meta or torch.equal(x, y))  # meta tensors have no values


def _optimisers(learner: nn.Module) -> Iterator[tuple[str, Optimiser]]:
    """Yield by name each optimiser that a learner and its modules hold, in mappings and sequences too."""
    seen: set[int] = set()
    for place, module in learner.named_modules():
        for key, value in vars(module).items():
            name = f"{place}.{key}" if place else key
            inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
            for optim in (value, *inner):
                if isinstance(optim, Optimiser) and id(optim) not in seen:
                    seen.add(id(optim))
                    yield name, optim


def _params(optim: Optimiser) -> list[Tensor]:
    if isinstance(optim, torch.optim.Optimizer):
        return [p for group in optim.param_groups for p in group["params"]]
    return optim.params
