"""JavaScript with which an environment is stepped and drawn in a page, by its own file or for Gymnasium's classes.

The file exports ``environment``: ``actions`` (each with ``name``, ``key`` and ``flat``, the action as learners see
it), ``steps`` (the time limit), ``pace`` (milliseconds a step), ``reset(random)``, ``step(state, flat)`` to ``{state,
reward, end, ending}``, ``observe(state)`` to numbers by observation, and ``draw(context, observation, side, color)``.
``legend``, if there, is a sentence about what is drawn.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import gymnasium

ATTRIBUTE = "page_program"
"""Name of an optional attribute of environment classes: the file, beside the module of the class."""
PAGES = Path(__file__).with_name("pages")
GYMNASIUM_CLASSES = {"CartPoleEnv": "cartpole.js", "PendulumEnv": "pendulum.js"}


def find_page_program(env: gymnasium.Env[Any, Any]) -> Path | None:
    """Return the page program of an environment; None if it has none."""
    kind = type(env.unwrapped)
    if (name := getattr(kind, ATTRIBUTE, None)) is not None:
        return Path(inspect.getfile(kind)).parent / str(name)
    is_known = kind.__module__.startswith("gymnasium.envs.") and kind.__name__ in GYMNASIUM_CLASSES
    return PAGES / GYMNASIUM_CLASSES[kind.__name__] if is_known else None
