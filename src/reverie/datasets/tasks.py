"""Texts of tasks, such as instructions, in the attributes of files and of episodes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

import numpy as np

TASK_KEYS = (
    "language_instruction", "instruction", "task_description", "lang", "env_lang", "language", "language_raw", "task",
)  # fmt: skip
"""Names of instructions in robomimic, LIBERO, RoboCasa, RoboMIND and others."""
JSON_KEYS = ("problem_info", "ep_meta")
"""Names of attributes of LIBERO and RoboCasa that contain an instruction as JSON."""
FAILED = "an episode is marked as failed (success = False) and is read like the others"


def find_task(attributes: Mapping[str, object]) -> str:
    """Return the text of the task that ``attributes`` declare; "" if they declare none."""
    groups = [attributes]
    for key in JSON_KEYS:
        with contextlib.suppress(ValueError, RecursionError):
            groups.append(json.loads(_to_text(attributes.get(key))))
    texts = (_to_text(group.get(key)) for group in groups if isinstance(group, Mapping) for key in TASK_KEYS)
    return next(filter(None, texts), "")


def has_failed(attributes: Mapping[str, object]) -> bool:
    """Return whether ``attributes`` of an episode declare that it did not succeed."""
    success = attributes.get("success")
    return isinstance(success, bool | np.bool_) and not success


def _to_text(value: object) -> str:
    """Return a text, or a list of words, on one line; "" for other values."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(value, bytes):
        return _to_text(value.decode(errors="replace"))
    if isinstance(value, list | tuple):
        return " ".join(filter(None, map(_to_text, value)))
    return " ".join(value.split()) if isinstance(value, str) else ""
