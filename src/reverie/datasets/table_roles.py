"""The roles of a table's columns, such as obs and reward, and whether the user has named them rightly."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from reverie.core.errors import ConfigError, did_you_mean
from reverie.datasets.reader import Named

END_ROLES = ("terminal", "truncated", "end")
"""Roles of columns that say where episodes end."""
ROLES = ("obs", "next_obs", "action", "reward", *END_ROLES, "episode")
NEEDED = ("obs", "action", "reward")
USUAL = {
    "obs": ("observation", "observations", "obs", "observation.state", "state"),
    "next_obs": ("next_observation", "next_observations", "next_obs"),
    "action": ("action", "actions", "act"),
    "reward": ("reward", "rewards", "next.reward", "rew"),
    "terminal": ("terminal", "terminals", "terminated", "terminations", "is_terminal", "done", "dones", "next.done"),
    "truncated": ("truncated", "truncations", "timeout", "timeouts"),
    "episode": ("episode_index", "episode_id", "episode", "traj_id"),
}
"""Common names of the columns of each role, for proposals in error messages."""


def check_roles(given: Mapping[str, Named], columns: Sequence[str], path: Path) -> None:
    """Check which columns a table has been ``given`` for its roles, of its ``columns``; ``path`` is for messages.

    Raises:
        ConfigError: a role or a column is unknown, several stand for the same, or one that is needed is missing.
    """
    for role, named in given.items():
        if role.partition(".")[0] not in ROLES or (role.partition(".")[2] and role.partition(".")[0] not in ROLES[:3]):
            raise ConfigError(
                f"data.columns: unknown name '{role}'. Expected {', '.join(ROLES)}, or a key of "
                f"{', '.join(ROLES[:3])} such as obs.camera."
            )
        if not isinstance(named, str) and role.partition(".")[0] not in ROLES[:3]:
            raise ConfigError(
                f"data.columns.{role} = {list(named)}: expected one column; only observations and actions can be "
                "vectors of several columns."
            )
        for column in [named] if isinstance(named, str) else named:
            if column not in columns:
                hint = did_you_mean(column, columns)
                raise ConfigError(f"data.columns: {path} has no column '{column}'.{hint} It has: {', '.join(columns)}.")
    places = {role: role.replace(".", "/", 1) for role in given}  # of columns in rows
    for role, inside in itertools.permutations(given, 2):
        if places[inside].startswith(f"{places[role]}/"):
            raise ConfigError(
                f"data.columns: both {role} and {inside} are named: a single column has none inside it. Expected one "
                f"of them, or two keys such as {role.partition('.')[0]}.camera and {inside}."
            )
    if missing := [n for n in NEEDED if not any(role.partition(".")[0] == n for role in given)]:
        raise ConfigError(
            f"{path} has the columns {', '.join(columns)}: no column is named for {', '.join(missing)}. "
            f"Pass the names, such as {example(given, columns)}; COLUMN stands for a name, or several: [a, b]."
        )


def example(given: Mapping[str, Named], columns: Sequence[str]) -> str:
    """Return the option with the columns ``given``, or with those of usual names; COLUMN where there is none."""
    named = {role: f"[{', '.join(name)}]" if isinstance(name, tuple | list) else name for role, name in given.items()}
    heads = {role.partition(".")[0] for role in given}
    for role, names in USUAL.items():
        found = next((name for name in names if name in columns), "COLUMN" if role in NEEDED else "")
        if found and role not in heads:
            named[role] = found
    return "--data.columns '{" + ", ".join(f"{role}: {name}" for role, name in named.items()) + "}'"
