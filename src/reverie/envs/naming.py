"""Specs of environments from Gymnasium's registry, written so that readers of recorded data can make them again."""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings

import gymnasium
from gymnasium.envs.registration import EnvSpec

from reverie.core.errors import EnvError
from reverie.core.importing import findable
from reverie.envs.base import import_for
from reverie.envs.suites import load_suite


def registered(env_id: str) -> EnvSpec | None:
    """Return the spec of ``env_id`` in the registry, after importing its module or suite; None if there is none."""
    module, _, name = env_id.rpartition(":")
    with contextlib.suppress(EnvError):  # making the environment will report it
        if module:
            import_for(module, env_id)
        load_suite(name)
    return gymnasium.registry.get(name)


def written(spec: EnvSpec) -> tuple[str, str]:
    """Return ``spec`` as JSON for Gymnasium, and a remark on what could not be written; either may be empty.

    A class or function as entry point becomes ``module:name`` if another process can import it by that name.
    """
    plain, remark = copy.copy(spec), ""
    plain.vector_entry_point = _named(spec.vector_entry_point)
    plain.entry_point = _named(spec.entry_point)
    if plain.entry_point is None:
        remark = (
            f"other processes cannot import the entry point of {spec.id}, {spec.entry_point}: register the environment "
            "before you make it from this dataset"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about parts that cannot be written
            return plain.to_json(), remark
    except (TypeError, ValueError) as error:
        return (
            "",
            f"the dataset does not name its environment {spec.id}: its arguments cannot be written as JSON ({error})",
        )


def _named(maker: object) -> str | None:
    """Return ``module:name`` of an entry point; None if it cannot be imported by that name."""
    if maker is None or isinstance(maker, str):
        return maker
    module, name = str(getattr(maker, "__module__", "")), str(getattr(maker, "__qualname__", ""))
    here = getattr(sys.modules.get(module), name, None) is maker
    return f"{module}:{name}" if here and findable(module) else None
