"""What a class of a user's own may have forgotten, and what would then go wrong in silence."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from reverie.core.errors import ConfigError
from reverie.nn.adam import Adam
from reverie.nn.preprocess import Preprocessor


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
    if forgotten := preprocess.forgotten(has_policy="_policy" in members):
        raise ConfigError(
            f"{name}: {forgotten}, so it ignores normalise, frames or reward_scale, which the settings ask for. Add "
            "the call; without these settings it changes nothing."
        )
    foreign = {key: x for key, x in {**members, **optims}.items() if isinstance(x, torch.optim.Optimizer)}
    for key, optim in foreign.items():
        if key in optims or len(foreign) > _states_of_pytorch(extra_state):
            raise ConfigError(
                f"{name}: the optimiser {key!r} is PyTorch's {type(optim).__name__}, whose state no checkpoint would "
                "hold. Use self.optims[...] = Adam(...) of reverie.nn.adam. Or keep it out of self.optims, set "
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
