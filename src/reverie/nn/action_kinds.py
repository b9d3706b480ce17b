"""Which actions an algorithm learns: how many classes and numbers an action has, and of which kind it is."""

from __future__ import annotations

from reverie.core.specs import ActionSpec


def num_classes_per_choice(spec: ActionSpec) -> tuple[int, ...]:
    """Return the number of classes of each discrete choice, in the order of the flat action."""
    return tuple(count for key in sorted(spec.parts) for count in spec.parts[key].classes)


def num_continuous(spec: ActionSpec) -> int:
    """Return how many numbers of the flat action are continuous."""
    return sum(part.size for part in spec.parts.values())


def action_kind(spec: ActionSpec) -> str:
    """Return ``continuous``, ``discrete`` (one choice), ``multi_discrete`` (several choices) or ``mixed``."""
    kinds = {part.kind for part in spec.parts.values()}
    if len(kinds) > 1:
        return "mixed"
    if kinds == {"continuous"}:
        return "continuous"
    return "discrete" if len(num_classes_per_choice(spec)) == 1 else "multi_discrete"
