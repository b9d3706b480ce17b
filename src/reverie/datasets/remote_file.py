"""Files on servers, and checks that what came from there is what the server says."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

BLOCK = 1 << 16
"""Largest number of bytes that are received, or hashed, at a time."""


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A file on a server."""

    url: str
    size: int | None = None
    """Size in bytes according to the server's list of files; None if there is none."""
    sha256: str = ""
    """Checksum in hexadecimal according to that list; "" if there is none."""
    git: str = ""
    """Id of the file as a git blob according to that list, in hexadecimal; "" if there is none."""

    @property
    def sums(self) -> dict[str, str]:
        """The known checksums by kind, as ``checksum_of`` computes them."""
        return {kind: value for kind, value in (("sha256", self.sha256), ("git", self.git)) if value}


def mismatch(remote: Remote, path: Path, size: int | None = None, sums: Mapping[str, str] | None = None) -> str:
    """Return how the file at ``path`` differs from what is known of ``remote``; "" if it does not.

    ``size`` and ``sums``: what the server said when it sent the file.
    """
    found, expected = path.stat().st_size, remote.size if remote.size is not None else size
    if expected is not None and found != expected:
        return f"received {found:,} bytes; expected {expected:,}"
    for kind, checksum in {**(sums or {}), **remote.sums}.items():
        if (computed := checksum_of(path, kind)) != checksum:
            return f"its {kind} is {computed}; expected {checksum}"
    return ""


def sums_in(said: Mapping[str, str]) -> dict[str, str]:
    """Return the checksums in Google's header ``x-goog-hash: crc32c=..., md5=...``, in hexadecimal by kind."""
    out = {}
    for word in said.get("x-goog-hash", "").split(","):
        kind, _, value = word.strip().partition("=")
        if kind in ("crc32c", "md5") and value:
            out[kind] = base64.b64decode(value).hex()
    return out


def checksum_of(path: Path, kind: str) -> str:
    """Return the ``sha256``, ``md5``, ``crc32c`` or ``git`` (id of a blob) of a file in hexadecimal."""
    if kind == "crc32c":
        from google_crc32c import extend

        crc = 0
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                crc = extend(crc, block)
        return f"{crc:08x}"
    found = hashlib.new("sha1" if kind == "git" else kind)
    if kind == "git":
        found.update(f"blob {path.stat().st_size}\0".encode())
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found.update(block)
    return found.hexdigest()
