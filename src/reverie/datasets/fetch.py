"""Downloads one file over HTTP: it appears only once it is complete, and an interrupted download is continued.

Two files lie beside the final path meanwhile: ``.name.part`` holds the bytes so far, and ``.name.part.version`` the
validator (RFC 9110, section 8.8) of the version that they are from: its strong ETag, or else its Last-Modified date. A
download is continued only with bytes of the same version. Where neither a validator nor a checksum can prove that, it
begins anew. The final path is taken once the size and the checksums are those that the server gives.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from reverie.core.errors import RunError
from reverie.core.files import move_synced
from reverie.core.lock import lock_of

BLOCK = 1 << 16
"""Largest number of bytes that are received, or hashed, at a time."""
PATIENCE = 60.0
"""Seconds without a byte from the server after which a connection counts as broken."""
ATTEMPTS = 5
"""Number of attempts in a row without a single new byte after which a download fails."""
PAUSE = 1.0
"""Seconds before the second attempt; doubled for each further one in a row without a new byte."""
OVERLOADED = (408, 425, 429)
"""Status codes below 500 that ask for another attempt: Request Timeout, Too Early, Too Many Requests."""
KEPT = "The partial download is kept: run the same command again to continue it."

Progress = Callable[[str, int, int], None]
"""Called with the name of a file, the number of bytes that have arrived, and its size in bytes (0 if unknown)."""
T = TypeVar("T")


class Broken(Exception):
    """A request failed in a way that another attempt may mend."""


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


@dataclass(frozen=True)
class Part:
    """A file that is being downloaded to ``path``."""

    path: Path

    @property
    def content(self) -> Path:
        """File with the bytes so far."""
        return self.path.with_name(f".{self.path.name}.part")

    @property
    def note(self) -> Path:
        """File with the validator of the version that the bytes are from."""
        return self.path.with_name(f".{self.path.name}.part.version")

    def size(self) -> int:
        """Return the number of bytes so far."""
        return self.content.stat().st_size if self.content.exists() else 0

    def version(self) -> str:
        """Return the validator of the bytes so far; "" if it is not known."""
        return self.note.read_text(encoding="latin-1") if self.note.exists() else ""

    def begin(self, version: str = "") -> None:
        """Delete all bytes, and note the version of those that will follow."""
        self.content.write_bytes(b"")  # first: bytes never lie beside the validator of another version
        self.note.write_text(version, encoding="latin-1")

    def delete(self) -> None:
        """Delete both files."""
        self.content.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)


def silent(name: str, done: int, total: int) -> None:
    """Do nothing."""


def fetch(remote: Remote, path: Path, progress: Progress = silent) -> Path:
    """Download a file to ``path``, unless that exists. An interrupted download is continued.

    Raises:
        RunError: the server has no such file, cannot be reached, or the file does not match its size or checksum; or
            another process is downloading it.
    """
    part = Part(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock_of(path):
        if path.exists():
            part.delete()  # killed right after the file took its place
            return path
        try:
            size, sums = persist(lambda: _append(remote, part, progress), remote.url, part.size)
        except urllib.error.HTTPError as error:
            part.delete()
            raise RunError(f"cannot download {remote.url}: the server returned {error.code} {error.reason}.") from None
        except BaseException as stop:
            if part.size() and not isinstance(stop, Exception):  # Ctrl-C and the like
                stop.add_note(KEPT)
            raise
        if wrong := mismatch(remote, part.content, size, sums):
            part.delete()
            raise RunError(f"the download of {remote.url} is damaged: {wrong}. It was deleted; try again.")
        move_synced(part.content, path)
        part.delete()
    return path


def persist(action: Callable[[], T], url: str, done: Callable[[], int] = lambda: 0) -> T:
    """Call ``action`` until it succeeds, and return its result.

    Args:
        action: raises Broken if it may be repeated.
        url: for the message.
        done: returns the number of bytes that have arrived; attempts that bring further ones do not count.

    Raises:
        RunError: ``ATTEMPTS`` in a row have failed.
    """
    most, failed = done(), 0
    while True:
        try:
            return action()
        except Broken as error:
            now = done()
            most, failed = max(most, now), 0 if now > most else failed + 1
            if failed >= ATTEMPTS:
                raise RunError(f"cannot download {url}: {error}.{f' {KEPT}' if now else ''}") from None
        time.sleep(PAUSE * 2 ** max(0, failed - 1))


# ---------------------------------------------------------------- one request


def opened(url: str, headers: Mapping[str, str] | None = None) -> http.client.HTTPResponse:
    """Send a GET request and return the answer, with its body still to be read.

    Raises:
        Broken: the server does not answer, or is overloaded.
        HTTPError: it refuses the request.
    """
    request = urllib.request.Request(url, headers=dict(headers or {}))
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=PATIENCE)
        return answer
    except urllib.error.HTTPError as error:
        if error.code in OVERLOADED or error.code >= 500:
            raise Broken(f"the server returned {error.code} {error.reason}") from None
        raise
    except (OSError, http.client.HTTPException) as error:
        raise Broken(_reason(error)) from None


def blocks(answer: http.client.HTTPResponse, left: int | None) -> Iterator[bytes]:
    """Yield the body of an answer as it arrives, so that nothing is lost when the connection breaks.

    Raises:
        Broken: it breaks, or ends before ``left`` bytes have come (None: it may have any length).
    """
    while left is None or left > 0:
        try:
            block = answer.read1(BLOCK if left is None else min(BLOCK, left))
        except (OSError, http.client.HTTPException) as error:
            raise Broken(_reason(error)) from None
        if not block and left is None:
            return
        if not block:
            raise Broken("the connection was closed too early")
        left = None if left is None else left - len(block)
        yield block


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", "") or error) or type(error).__name__


def _append(remote: Remote, part: Part, progress: Progress) -> tuple[int | None, dict[str, str]]:
    """Download what is missing of ``part``; return the size and the checksums that the server gives.

    Raises:
        Broken: another attempt may succeed. The bytes so far are kept if they are of the version on the server.
    """
    known = part.version()
    start = max(0, part.size() - 1) if known or remote.sums else 0  # a range of no bytes would be refused
    headers = {"Range": f"bytes={start}-"} | ({"If-Range": known} if known else {}) if start else {}
    try:
        answer = opened(remote.url, headers)
    except urllib.error.HTTPError as error:
        if start and error.code == 416:  # it has fewer bytes now, or all have come
            part.begin()
            raise Broken("the file on the server has changed") from None
        raise
    with answer:
        fields = {key.lower(): value for key, value in answer.headers.items()}
        tag = fields.get("etag", "")
        now = "" if tag.startswith("W/") else tag or fields.get("last-modified", "")
        total = answer.length if answer.length is not None else remote.size
        if answer.status == 206 and headers:
            found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", fields.get("content-range", ""))
            if found is None or int(found[1]) != start or (known and now not in ("", known)):
                part.begin()
                raise Broken("the server's answer does not continue the partial download")
            total = remote.size if found[2] == "*" else int(found[2])
        elif answer.status == 200:
            start = 0
            part.begin(now)
        else:
            raise RunError(f"cannot download {remote.url}: the server returned {answer.status} {answer.reason}.")
        have = start
        with part.content.open("r+b") as file:
            file.seek(start)
            for block in blocks(answer, answer.length if not start or total is None else total - start):
                file.write(block)
                have += len(block)
                progress(part.path.name, have, total or 0)
    if have < (total or 0):
        raise Broken(f"received {have:,} of {total:,} bytes")
    return total, sums_in(fields)


# ---------------------------------------------------------------- checksums


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


def sums_in(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the checksums in Google's header ``x-goog-hash: crc32c=..., md5=...``, in hexadecimal by kind."""
    words = (word.strip().partition("=") for word in fields.get("x-goog-hash", "").split(","))
    return {kind: base64.b64decode(value).hex() for kind, _, value in words if kind in ("crc32c", "md5") and value}


def checksum_of(path: Path, kind: str) -> str:
    """Return the ``sha256``, ``md5``, ``crc32c`` or ``git`` (id of a blob) of a file in hexadecimal."""
    import google_crc32c

    known: dict[str, Any] = {"crc32c": google_crc32c.Checksum, "git": hashlib.sha1, "md5": hashlib.md5}
    found = known.get(kind, hashlib.sha256)()
    if kind == "git":
        found.update(f"blob {path.stat().st_size}\0".encode())
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found.update(block)
    return bytes(found.digest()).hex()
