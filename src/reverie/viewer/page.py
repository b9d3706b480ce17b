"""One file that is a page: scripts, styles and data inside, and a policy that runs and loads nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

STATIC = Path(__file__).with_name("static")


def make_page(
    template: str, title: str, scripts: Sequence[Path], blocks: Mapping[str, Any], styles: Sequence[str] = ()
) -> str:
    """Return a page from ``static/TEMPLATE.html``, which has ``{{policy}}``, ``{{title}}`` and so on.

    ``{{walk}}`` is ``walk.html`` if there is a program to walk in, otherwise nothing.

    Args:
        template: the name of the template, of which the style is ``TEMPLATE.css``.
        title: text.
        scripts: modules, joined in this order; imports between them are dropped.
        blocks: values that scripts read from elements with these ids, as JSON.
        styles: names of further styles, which come first.
    """
    walk = ["walk"] if "given" in blocks else []
    style = _to_ascii("\n".join(_read(f"{name}.css") for name in (*styles, template, *walk)), "\\{:x} ")
    script = _to_ascii("\n".join(_enclose(path.read_text(encoding="utf-8")) for path in scripts), "\\u{{{:x}}}")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    data = "\n".join(
        f'<script type="application/json" id="{name}">{_json(value)}</script>' for name, value in blocks.items()
    )
    parts = {"policy": html.escape(policy), "title": html.escape(title), "style": style, "data": data, "script": script}
    parts["walk"] = "".join(_read(f"{name}.html") for name in walk)
    return re.sub(r"\{\{(\w+)\}\}", lambda name: parts[name[1]], _read(f"{template}.html"))


def to_json_value(value: Any, digits: int = 6) -> Any:
    """Convert a value for JSON: numbers have so many digits, or are null if not finite; named tuples are mappings."""
    if hasattr(value, "to_dict") or hasattr(value, "_asdict"):
        value = value.to_dict() if hasattr(value, "to_dict") else value._asdict()
    if isinstance(value, float | np.floating):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item, digits) for key, item in value.items()}
    if isinstance(value, Tensor):
        value = value.flatten()
    if isinstance(value, np.ndarray | np.generic | Tensor):
        return to_json_value(value.tolist(), digits)
    return [to_json_value(item, digits) for item in value] if isinstance(value, list | tuple) else value


def _read(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _enclose(module: str) -> str:
    """Return a module as a part of one script, in which it names nothing but what it exports."""
    body = re.sub(r"^import .*?;\n", "", module, flags=re.MULTILINE)
    names = ", ".join(re.findall(r"^export (?:const|function) (\w+)", body, re.MULTILINE))
    body = re.sub(r"^export ", "", body, flags=re.MULTILINE)
    return f"const {{ {names} }} = (() => {{\n{body}\nreturn {{ {names} }};\n}})();" if names else f"{{\n{body}\n}}"


def _to_ascii(text: str, escape: str) -> str:
    """Return text with other letters escaped: a frame's text that is read in another encoding keeps its hash."""
    return re.sub(r"[^\x00-\x7f]", lambda letter: escape.format(ord(letter[0])), text)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(value: object) -> str:
    """Return a value as JSON that ends no element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")
