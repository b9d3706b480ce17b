"""The observations and actions that the networks of a run were made for, as plain values that can be compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.words import plural

Signature = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""``{"observation": {key: part}, "action": {key: part}}``, each part a mapping of its fields, fit for JSON."""


def signature(obs: ObsSpec, action: ActionSpec) -> Signature:
    """Return the specs as plain values."""
    parts = {"observation": obs, "action": action.parts}
    return {what: {key: _plain(part) for key, part in found.items()} for what, found in parts.items()}


def differences(one: Signature, two: Signature, where: tuple[str, str]) -> list[str]:
    """Return how two signatures differ, one line for each part; ``where`` names both, such as "the data", "the agent".

    A line reads: ``observation 'vec' is vector (5,) in the data, but (6,) in the agent``.
    """
    out: list[str] = []
    for what in ("observation", "action"):
        first, second = one.get(what, {}), two[what]
        for key in (*first, *(key for key in second if key not in first)):
            name = f"{what} '{key}'"
            if key not in second:
                out.append(f"{name} ({_words(first[key])}) is missing in {where[1]}")
            elif key not in first:
                out.append(f"{name} ({_words(second[key])}) is missing in {where[0]}")
            elif dict(first[key]) != dict(second[key]):
                short = _words(second[key]).removeprefix(f"{first[key].get('kind')} ")
                out.append(f"{name} is {_words(first[key])} in {where[0]}, but {short} in {where[1]}")
    return out


def _plain(part: Any) -> dict[str, Any]:
    values = dataclasses.asdict(part)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _words(part: Mapping[str, Any]) -> str:
    """Describe a part: ``vector (5,)``, ``categorical of 2 classes``, ``image (64, 64, 3) uint8 in 0..255``."""
    words = [str(part.get("kind"))]
    if "shape" in part:
        words.append(str(tuple(part["shape"])))
    if part.get("size"):
        words.append(f"of {plural(part['size'], 'number')}")
    if part.get("classes"):
        words.append(f"of {' x '.join(map(str, part['classes']))} classes")
    if part.get("kind") == "image":
        words.append(f"{part.get('dtype')} in {part.get('low'):g}..{part.get('high'):g}")
    return " ".join(words)
