"""The observations and actions that the networks of a run were made for, as plain values that can be compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from reverie.core.specs import ActionSpec, ObsSpec

Signature = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""``{"observation": {key: part}, "action": {key: part}}``, each part a mapping of its fields, fit for JSON."""


def signature(obs: ObsSpec, action: ActionSpec) -> Signature:
    """Return the specs as plain values."""
    parts = {"observation": obs, "action": action.parts}
    return {what: {key: _plain(part) for key, part in found.items()} for what, found in parts.items()}


def changes(saved: Signature, now: Signature) -> list[str]:
    """Return the differences, each in a few words: ``observation 'vec' was vector (5,), is now (6,)``."""
    out: list[str] = []
    for what in ("observation", "action"):
        before, after = saved.get(what, {}), now[what]
        out += [f"{what} '{key}' ({_words(before[key])}) is missing" for key in before if key not in after]
        out += [f"{what} '{key}' ({_words(after[key])}) is new" for key in after if key not in before]
        for key in before:
            if key in after and dict(before[key]) != dict(after[key]):
                old, new = _words(before[key]), _words(after[key])
                short = new.removeprefix(f"{before[key].get('kind')} ")
                out.append(f"{what} '{key}' was {old}, is now {short}")
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
        words.append(f"of {part['size']} numbers")
    if part.get("classes"):
        words.append(f"of {' x '.join(map(str, part['classes']))} classes")
    if part.get("kind") == "image":
        words.append(f"{part.get('dtype')} in {part.get('low'):g}..{part.get('high'):g}")
    return " ".join(words)
