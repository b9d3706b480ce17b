"""The observations and actions that the networks of a run were made for, as plain values that can be compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.words import plural

Signature = Mapping[str, dict[str, dict[str, Any]]]
"""``{"observation": {key: part}, "action": {key: part}}``, each part a mapping of its fields, fit for JSON."""

BOUNDS = {"low", "high"}
"""Names of the fields that hold bounds."""
CLOSE = 1e-5
"""Relative difference up to which bounds are the same: float32 and float64 hold them, and messages show six digits."""


def signature(obs: ObsSpec, action: ActionSpec) -> Signature:
    """Return the specs as plain values."""
    parts = {"observation": obs, "action": action.parts}
    return {what: {key: _plain(part) for key, part in found.items()} for what, found in parts.items()}


def differences(one: Signature, two: Signature, where: tuple[str, str]) -> list[str]:
    """Return how two signatures differ, one line for each part; ``where`` names both, such as "the data", "the agent".

    A line reads: ``observation 'vec' is vector (5,) in the data, but (6,) in the agent``. Bounds of actions count where
    both are known.
    """
    out: list[str] = []
    for what in ("observation", "action"):
        first, second = one.get(what, {}), two[what]
        for key in dict.fromkeys((*first, *second)):
            name = f"{what} '{key}'"
            if key not in first or key not in second:
                out.append(f"{name} ({_words((first | second)[key])}) is missing in {where[key in first]}")
            elif _differ(first[key], second[key]):
                short = _words(second[key]).removeprefix(f"{first[key].get('kind')} ")
                out.append(f"{name} is {_words(first[key])} in {where[0]}, but {short} in {where[1]}")
    return out


def other_bounds(one: Signature, two: Signature, where: tuple[str, str]) -> list[str]:
    """Return one line, as :func:`differences` does, for each vector of which both declare bounds, and other ones."""
    before, now = one.get("observation", {}), two["observation"]
    both = {key: (before[key].get("declared"), now[key].get("declared")) for key in now if key in before}
    return [
        f"observation '{key}' has {was} in {where[0]}, but {new} in {where[1]}"
        for key, (was, new) in both.items()
        if was and new and was != new
    ]


def _differ(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Return whether two parts differ in a field that both have; bounds may be unknown."""
    both = one.keys() & two.keys()
    return any(one[name] != two[name] for name in both - BOUNDS - {"declared"}) or not all(
        np.shape(one[name]) == np.shape(two[name]) and np.allclose(one[name], two[name], rtol=CLOSE, atol=0)
        for name in both & BOUNDS
    )


def _plain(part: Any) -> dict[str, Any]:
    values = dataclasses.asdict(part)
    unknown = [name for name in BOUNDS if values.get(name) == ()]
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items() if name not in unknown}


def _words(part: Mapping[str, Any]) -> str:
    """Describe a part: ``vector (5,)``, ``categorical of 2 classes``, ``image (64, 64, 3) uint8 in 0..255``."""
    words = [str(part.get("kind"))]
    if "shape" in part:
        words.append(str(tuple(part["shape"])))
    if part.get("size"):
        words.append(f"of {plural(part['size'], 'number')}")
        words += [f"in {_numbers(part['low'])}..{_numbers(part['high'])}"] if part.get("low") else []
    if part.get("classes"):
        words.append(f"of {' x '.join(map(str, part['classes']))} classes")
    if part.get("kind") == "image":
        words.append(f"{part.get('dtype')} in {part.get('low'):g}..{part.get('high'):g}")
    return " ".join(words)


def _numbers(values: Sequence[float]) -> str:
    """Return the numbers as ``(-1, -2)``, or as a single one if all are the same."""
    each = [f"{value:g}" for value in values]
    return each[0] if len(set(each)) == 1 else f"({', '.join(each)})"
