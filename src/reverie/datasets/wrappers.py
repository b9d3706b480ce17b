"""Wrappers of the environment that data declare, as Gymnasium serialises them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reverie.datasets.reader import About

Wrapper = Mapping[str, Any]
"""A wrapper's ``name``, ``entry_point`` (``module:Class``), and ``kwargs``, None if they were not recorded."""

HARMLESS = {
    *("OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics", "RecordVideo", "HumanRendering"),
    *("RenderCollection", "DataCollector", "Open", "EpisodeInfo"),
    "TimeLimit",  # declared elsewhere, too
}
"""Wrappers without which an environment is still the same task."""


def wrappers_in(spec: Mapping[str, Any]) -> list[Wrapper]:
    """Return the wrappers in an environment's specification that make it another task, innermost first."""
    return [one for one in spec.get("additional_wrappers") or () if one.get("name") not in HARMLESS]


def own_wrappers(about: About) -> list[Wrapper]:
    """Return the wrappers that data declare, without those that stand for ``env_settings``."""
    found = wrappers_in(about.env_spec)
    return [one for one in found if not (about.env_settings and str(one.get("entry_point")).startswith("reverie."))]


def is_like(one: Wrapper, other: Wrapper) -> bool:
    """Return whether two wrappers are the same, with the same arguments if both declare them."""
    both = one.get("kwargs"), other.get("kwargs")
    return one.get("name") == other.get("name") and (None in both or both[0] == both[1])


def are_like(some: Sequence[Wrapper], others: Sequence[Wrapper]) -> bool:
    """Return whether ``some`` and ``others`` are the same wrappers in the same order."""
    return len(some) == len(others) and all(map(is_like, some, others))


def names_of(wrappers: Sequence[Wrapper]) -> str:
    """Return the classes of wrappers for messages, ``module:Class``; "no wrapper" if there are none."""
    return ", ".join(str(one.get("entry_point")) for one in wrappers) or "no wrapper"
