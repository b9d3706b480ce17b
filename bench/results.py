"""How results are written: a line for each row, so that a new measurement is a small difference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def text(value: Any, levels: int = 2) -> str:
    """JSON in which what lies in the outer ``levels`` of lists and dictionaries has a line of its own."""
    if not levels or not isinstance(value, dict | list) or not value:
        return json.dumps(value)
    if isinstance(value, list):
        return "[\n" + ",\n".join(text(inner, levels - 1) for inner in value) + "\n]"
    lines = [f"{json.dumps(key)}: {text(inner, 0 if key == 'machine' else levels - 1)}" for key, inner in value.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def save(path: Path, table: Any) -> None:
    """Write the result of a script, whole or not at all: it may be stopped at any time."""
    part = path.with_suffix(".part")
    part.write_text(text(table) + "\n")
    part.replace(path)
