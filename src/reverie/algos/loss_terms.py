"""The loss terms of a world-model learner, by name: their scales, and what a subclass may get wrong about them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from reverie.core.config import Config
from reverie.core.errors import ConfigError, brief


def scales_of(terms: Mapping[str, Tensor], scales: Config) -> dict[str, float]:
    """Return the scale of each loss term. Names with a ``/`` have that of the part before it.

    Raises:
        ConfigError: there is none for one of them.
    """
    known = scales.to_dict()
    found = {name: known.get(name.split("/")[0]) for name in terms}
    for name, scale in found.items():
        if scale is None:
            field_of = name.split("/")[0]
            raise ConfigError(
                f"the loss term {name!r} has no scale, as {type(scales).__name__} has no field {field_of}. Derive a "
                f"class from LossScales that adds {field_of}: float = 1.0, and make it the default of scales in your "
                "configuration."
            )
    return {name: scale for name, scale in found.items() if scale is not None}


def check_terms(method: str, terms: Mapping[str, object], shape: tuple[int, ...], called: str) -> None:
    """Check that each of the loss terms that ``method`` returned ends in ``shape``, which messages call ``called``.

    Raises:
        ConfigError: one does not, or is no tensor.
    """
    for name, x in terms.items():
        if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[-len(shape) :] != shape:
            got = f"shape {list(x.shape)}" if isinstance(x, Tensor) else f"the value {brief(x)}"
            raise ConfigError(
                f"{method}: the loss term {name!r} has {got}: expected a tensor {called} = "
                f"{list(shape) if len(shape) > 1 else shape[0]}, the loss of each row. Do not average over rows; sum "
                "over what a row consists of."
            )


def joined(*parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return all loss terms.

    Raises:
        ConfigError: two have the same name.
    """
    terms: dict[str, Tensor] = {}
    for part in parts:
        for name in terms.keys() & part.keys():
            raise ConfigError(
                f"there are two loss terms called {name!r}, of which one would be lost: world_losses, dream_losses and "
                "replay_critic_loss each have their own. Give yours another name, and a scale of that name."
            )
        terms |= part
    return terms
