"""Downloads one file over HTTP: it appears only once it is complete, and an interrupted download is continued.

Two files lie beside the final path meanwhile: ``.name.part`` holds the bytes so far, and ``.name.part.version`` the
validator (RFC 9110, section 8.8) of the version that they are from: its strong ETag, or else its Last-Modified date. A
download is continued only with bytes of the same version. Where neither a validator nor a checksum can prove that, it
begins anew. The final path is taken once the size and the checksums are those that the server gives.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib
import importlib.util
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from reverie.core.errors import RunError
from reverie.core.files import move_synced
from reverie.datasets.remote_file import BLOCK, Remote, mismatch, sums_in

fcntl: Any = importlib.import_module("fcntl") if importlib.util.find_spec("fcntl") else None
"""None on Windows, where files are not locked."""

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


@dataclass(frozen=True)
class Part:
    """A file that is being downloaded."""

    path: Path
    """The final path."""

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

    def is_at(self, file: IO[bytes]) -> bool:
        """Return True if the open ``file`` is the one with the bytes so far, neither moved nor deleted."""
        try:
            return os.path.samestat(os.fstat(file.fileno()), self.content.stat())
        except FileNotFoundError:
            return False

    def begin(self, version: str = "") -> None:
        """Delete all bytes, and note the version of those that will follow."""
        self.content.write_bytes(b"")  # first: bytes never lie beside the validator of another version
        if version:
            self.note.write_text(version, encoding="latin-1")
        else:
            self.note.unlink(missing_ok=True)

    def delete(self) -> None:
        """Delete both files."""
        self.content.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)

    def finish(self) -> None:
        """Move the bytes to the final path, safe from a power failure."""
        move_synced(self.content, self.path)
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
    if path.exists():
        part.note.unlink(missing_ok=True)  # killed right after the file took its place
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(part):
        if path.exists():  # another process has just finished it
            return path
        try:
            size, sums = persist(lambda: _append(remote, part, progress), remote.url, part.size)
            if wrong := mismatch(remote, part.content, size, sums):
                part.delete()
                raise RunError(f"the download of {remote.url} is damaged: {wrong}. It was deleted; try again.")
        except urllib.error.HTTPError as error:
            raise RunError(f"cannot download {remote.url}: the server returned {error.code} {error.reason}.") from None
        except OSError as error:  # of the disk, which does not always say which file it was
            error.filename = error.filename or str(path)
            raise
        except BaseException as stop:
            if part.size() and not isinstance(stop, Exception):  # Ctrl-C and the like
                stop.add_note(KEPT)
            raise
        part.finish()
    return path


@contextlib.contextmanager
def _alone(part: Part) -> Iterator[None]:
    """While entered, no other process downloads the same file. Deletes an empty part at the end.

    Raises:
        RunError: another process does already.
    """
    while True:
        with part.content.open("ab") as file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise RunError(
                        f"{part.path} is being downloaded by another process: wait until that has finished."
                    ) from None
                except OSError:  # a file system without locks
                    pass
            if not part.is_at(file):  # its last owner has moved or deleted it before it could be locked
                continue
            try:
                yield
            finally:
                if part.is_at(file) and not part.size():
                    part.delete()
            return


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
        RunError: it redirects from https to http.
    """
    request = urllib.request.Request(url, headers=dict(headers or {}))
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        if error.code in OVERLOADED or error.code >= 500:
            raise Broken(f"the server returned {error.code} {error.reason}") from None
        raise
    except (OSError, http.client.HTTPException) as error:
        raise Broken(_reason(error)) from None
    if url.startswith("https:") and not answer.geturl().startswith("https:"):
        answer.close()
        raise RunError(f"{url} redirects to {answer.geturl()}, which is not encrypted: expected https.")
    return answer


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
        if not block:
            break
        left = None if left is None else left - len(block)
        yield block
    if left:
        raise Broken(f"the connection was closed with {left:,} bytes missing")


def _reason(error: Exception) -> str:
    return " ".join(str(getattr(error, "reason", None) or error).split()) or type(error).__name__


def _append(remote: Remote, part: Part, progress: Progress) -> tuple[int, dict[str, str]]:
    """Download what is missing of ``part``; return the size of the whole file and its checksums, by the headers.

    The last byte is downloaded once more. So a complete part is answered with its checksums like any other, and an
    answer "416 Range Not Satisfiable" means that the server's file is shorter.

    Raises:
        Broken: another attempt may succeed.
        HTTPError: the server refuses the request.
    """
    start, known = max(0, part.size() - 1), part.version()
    headers = {"Range": f"bytes={start}-"} if part.size() else {}
    if headers and known:
        headers["If-Range"] = known
    try:
        answer = opened(remote.url, headers)
    except urllib.error.HTTPError as error:
        if error.code == 416 and headers:
            part.begin()
            raise Broken("the file on the server has changed") from None
        raise
    with answer:
        said = {key.lower(): value for key, value in answer.headers.items()}
        if answer.status == 206 and headers:
            total = _continued(remote, part, said, start)
            left = total - start if total else answer.length
        elif answer.status == 200:
            start, total, left = 0, answer.length or remote.size or 0, answer.length
            part.begin(_validator(said))
        else:
            raise RunError(
                f"cannot download {remote.url}: the server returned {answer.status} {answer.reason}; expected 200 OK."
            )
        have = start
        with part.content.open("r+b") as file:
            file.seek(start)
            for block in blocks(answer, left):
                file.write(block)
                have += len(block)
                progress(part.path.name, have, total)
    if have < total:
        raise Broken(f"received {have:,} of {total:,} bytes")
    return total or have, sums_in(said)


def _continued(remote: Remote, part: Part, said: Mapping[str, str], start: int) -> int:
    """Return the size of the whole file, 0 if unknown, from the headers of a partial answer.

    Raises:
        Broken: the bytes cannot be added to ``part``; it is empty now.
    """
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", said.get("content-range", ""))
    known, now = part.version(), _validator(said)
    same = (not now or now == known) if known else bool(remote.sums or sums_in(said))
    if found is None or int(found[1]) != start or not same:
        part.begin()
        raise Broken("the server's answer does not continue the partial download")
    return int(found[2]) if found[2] != "*" else remote.size or 0


def _validator(said: Mapping[str, str]) -> str:
    """Return what identifies a version in ``If-Range``: a strong ETag or, without any ETag, the date; else ""."""
    tag = said.get("etag", "")
    return "" if tag.startswith("W/") else tag or said.get("last-modified", "")
