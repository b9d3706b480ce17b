"""The name of this machine's processor. Imports no torch, which commands that only read a run do without."""

from __future__ import annotations

import contextlib
import platform
import re
from pathlib import Path


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's model name; with family and model if it has no number, as in some virtual machines."""
    with contextlib.suppress(OSError, KeyError):
        facts: dict[str, str] = dict(re.findall(r"^(\w[\w ]*?)[ \t]*:[ \t]*(.+)$", cpuinfo.read_text(), re.MULTILINE))
        name = facts["model name"]
        if re.search(r"\d", name) or not {"cpu family", "model"} <= set(facts):
            return name
        return f"{name} (family {facts['cpu family']}, model {facts['model']})"
    return platform.processor() or platform.machine()
