"""What a network of a user's own must leave as it is: tensors that others read after it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from reverie.core.errors import ConfigError


def writes(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Return how often each tensor was written to. Tensors made in inference mode do not count it: always 0."""
    return {key: 0 if x.is_inference() else x._version for key, x in tensors.items()}


def check_unchanged(writer: str, tensors: Mapping[str, Tensor], before: Mapping[str, int], whose: str) -> None:
    """Check that nothing was written to ``tensors`` since :func:`writes` returned ``before``.

    Args:
        writer: who may have done it, such as "the encoder MyEncoder".
        tensors: what it was given, by name.
        before: what :func:`writes` said of them before.
        whose: what they are, and who reads them as well: for the message.

    Raises:
        ConfigError: one was changed in place.
    """
    if (after := writes(tensors)) == before:
        return
    changed = next(key for key in after if after[key] != before[key])
    raise ConfigError(
        f"{writer} changed its input {changed!r} in place, as x /= 10 and x.clamp_() do. {whose} Compute a new tensor "
        "from it, such as x = x / 10."
    )
