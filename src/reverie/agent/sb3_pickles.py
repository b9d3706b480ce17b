"""Arrays and spaces from the pickles of Stable-Baselines3: running statistics of observations, and declared spaces.

A pickle can name any function. Only NumPy's arrays and numbers are made here; objects of all other classes become
dictionaries of their attributes, and no other function is called. A pickle can also claim memory that it does not fill.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from reverie.core.errors import DataError, ReverieError
from reverie.core.files import read_file

MAX_BYTES = 1 << 28
"""Maximum size of a file; the statistics of an image of 1,000 x 1,000 pixels take 50 MB."""
MAX_OPERATIONS = 100_000
"""Maximum number of a pickle's operations, and of a space's binary elements; statistics of a vector need about 200."""


class ObsStatistics(NamedTuple):
    """Mean and variance of each observation by key, the only one under "", and the bound of normalized values."""

    moments: dict[str, tuple[np.ndarray, np.ndarray]]
    rows: float
    clip: float
    epsilon: float


class Attributes(dict[Any, Any]):
    """An object of a class that is not imported."""

    def __init__(self, *args: object) -> None:
        super().__init__()

    def __setstate__(self, state: object) -> None:
        self.update(state if isinstance(state, dict) else {})


SPACES = {name: type(name, (Attributes,), {}) for name in ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict")}
"""Classes of spaces by name, which have their attributes alone."""


def _empty_array(*_: object) -> np.ndarray:
    """Return an array that takes its shape together with its content."""
    return np.empty(0)


def _scalar(dtype: np.dtype, content: bytes) -> Any:
    return np.frombuffer(content, dtype)[0]


_NUMPY = {"_reconstruct": _empty_array, "scalar": _scalar, "dtype": np.dtype,
          "_frombuffer": np.zeros(1).__reduce_ex__(5)[0]}  # fmt: skip
"""What may be called, by name."""


class ArrayUnpickler(pickle.Unpickler):
    """Calls nothing but ``_NUMPY``."""

    def find_class(self, module: str, name: str) -> Any:
        """Return NumPy's function or type of this name; for all others, a class without behavior."""
        if module.startswith(("gym.spaces.", "gymnasium.spaces.")):
            return SPACES.get(name, Attributes)
        return _NUMPY.get(name, Attributes) if module.partition(".")[0] == "numpy" else Attributes


def read_pickle(content: bytes) -> Any:
    """Return the object in a pickle; ValueError if it claims too much."""
    _check_operations(content)
    return ArrayUnpickler(io.BytesIO(content)).load()


def read_space(content: bytes) -> Space[Any] | None:
    """Return the space in a pickle; None if it or a part of it is not in ``SPACES``, such as a class of the user."""
    return _make_space(read_pickle(content))


def _make_space(attributes: Attributes) -> Space[Any] | None:
    match type(attributes).__name__:
        case "Box":
            return spaces.Box(attributes["low"], attributes["high"], dtype=attributes["dtype"])
        case "Discrete":
            return spaces.Discrete(int(attributes["n"]), start=int(attributes.get("start", 0)))
        case "MultiDiscrete":
            return spaces.MultiDiscrete(attributes["nvec"], start=attributes.get("start"))
        case "MultiBinary":
            shape = np.atleast_1d(attributes["n"]).tolist()
            if math.prod(shape) > MAX_OPERATIONS:
                raise ValueError(f"MultiBinary({shape}) claims too much")
            return spaces.MultiBinary(shape)
        case "Dict":
            parts = [(key, _make_space(part)) for key, part in attributes["spaces"].items()]
            readable = [(key, part) for key, part in parts if part is not None]
            return spaces.Dict(readable) if len(readable) == len(parts) else None
    return None


def seems_normalized(attributes: Mapping[str, Any]) -> bool:
    """Return whether an agent with these attributes learned in a VecNormalize, which normalizes observations.

    Only on-policy agents keep an original observation for this reason alone. Off-policy agents tell it if their latest
    observation has another dtype, or is outside of its space, and the original one is not.
    """
    names = ("_last_obs", "_last_original_obs", "observation_space")
    latest, original, boxes = (_by_key(attributes.get(name)) for name in names)
    if "gae_lambda" in attributes:
        return bool(original)
    pairs = [(box, original[key], latest[key]) for key, box in boxes.items() if key in latest and key in original]
    return any(
        isinstance(box, spaces.Box)
        and (before.dtype != after.dtype or (box.contains(before[0]) and not box.contains(after[0])))
        for box, before, after in pairs
    )


def _by_key(values: Any) -> dict[str, Any]:
    """Return observations, or their spaces, by key; empty if there are none."""
    parts = values if isinstance(values, Mapping | spaces.Dict) else {"": values}
    return {key: part for key, part in parts.items() if part is not None}


def read_statistics(file: Path) -> ObsStatistics | None:
    """Return the statistics in a file; None if its observations are not normalized."""
    try:
        state = read_pickle(read_file(file, MAX_BYTES))
        if not state["norm_obs"]:
            return None
        obs_rms = state["obs_rms"] if "mean" not in state["obs_rms"] else {"": state["obs_rms"]}
        moments = {str(key): (np.asarray(rms["mean"], float), np.asarray(rms["var"], float))
                   for key, rms in obs_rms.items()}  # fmt: skip
        if not all(np.isfinite(mean).all() and (var >= 0).all() for mean, var in moments.values()):
            raise ValueError("means or variances are not finite")
        rows = max(float(rms["count"]) for rms in obs_rms.values())
        return ObsStatistics(moments, rows, float(state["clip_obs"]), float(state["epsilon"]))
    except ReverieError:
        raise
    except Exception as error:  # damaged pickles raise errors of all types
        details = f"{type(error).__name__}: {error}"
        raise DataError(f"{file} is not a vecnormalize.pkl of Stable-Baselines3: {details}.") from error


def _check_operations(pickled: bytes) -> None:
    """Raise ValueError for too many operations, or one for which memory is taken that its content does not fill."""
    limits = {"FRAME": len(pickled), **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), MAX_OPERATIONS)}
    for number, (operation, argument, _) in enumerate(pickletools.genops(pickled)):
        claimed = argument if operation.name in limits and isinstance(argument, int) else 0
        if number > MAX_OPERATIONS or claimed > limits.get(operation.name, 0):
            raise ValueError(f"{operation.name} {argument} at operation {number:,} claims too much")
