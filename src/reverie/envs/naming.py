"""What Gymnasium knows of an environment, so that whoever reads recorded data can make it again."""

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
    """What the registry says of ``env_id``, after its module or suite was imported; None if nothing does."""
    module, _, name = env_id.rpartition(":")
    with contextlib.suppress(EnvError):  # whoever makes the environment is told
        if module:
            import_for(module, env_id)
        load_suite(name)
    return gymnasium.registry.get(name)


def written(spec: EnvSpec) -> tuple[str, str]:
    """``spec`` as Gymnasium reads it, and what of it could not be written, as a remark; each may be empty.

    A class or function that makes the environment becomes ``module:name``, if another process finds it there.
    """
    plain, remark = copy.copy(spec), ""
    plain.vector_entry_point = _named(spec.vector_entry_point)
    plain.entry_point = _named(spec.entry_point)
    if plain.entry_point is None:
        remark = (
            f"what makes {spec.id} is {spec.entry_point}, which other processes do not find: only who registers it can "
            "make it from these data"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # parts that cannot be written
            return plain.to_json(), remark
    except (TypeError, ValueError) as error:
        return "", f"the data do not name the environment {spec.id}: what it was made with cannot be written ({error})"


def _named(maker: object) -> str | None:
    """``module:name`` of what makes an environment; None if it is not found by it."""
    if maker is None or isinstance(maker, str):
        return maker
    module, name = str(getattr(maker, "__module__", "")), str(getattr(maker, "__qualname__", ""))
    here = getattr(sys.modules.get(module), name, None) is maker
    return f"{module}:{name}" if here and findable(module) else None
