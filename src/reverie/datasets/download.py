"""Downloads datasets: a file or dataset appears only once it is complete; an interrupted download is continued.

Minari datasets come from Hugging Face (or any server with its API), RL Unplugged's shards from Google Cloud Storage.
During a download, ``.name.part`` next to a file's final path contains the bytes so far, and ``.name.part.version`` the
strong ETag (RFC 9110, section 8.8) of their version. A download is only continued with the same version; without an
ETag it restarts. The file is moved to the final path once size and checksum match the server's.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from reverie.core.errors import RunError
from reverie.core.files import read_file, rename_durably
from reverie.core.lock import lock_beside
from reverie.datasets.minari import METADATA, check_name, minari_root

HUGGING_FACE = "https://huggingface.co"
MINARI_OWNER = "farama-minari"
RL_UNPLUGGED = "https://storage.googleapis.com/rl_unplugged/atari"
SHARDS = 100
BLOCK = 1 << 16
PATIENCE = 60.0
"""Seconds without a byte from the server after which a connection counts as broken."""
ATTEMPTS = 5
"""Number of consecutive attempts without a new byte after which a download fails."""
PAUSE = 1.0
"""Seconds before the second attempt; doubled for each further consecutive attempt without a new byte."""
OVERLOADED = (408, 425, 429)
"""Status codes below 500 that ask for another attempt: Request Timeout, Too Early, Too Many Requests."""
RESUME_ADVICE = "The partial download is kept: run the same command again to continue it."
Progress = Callable[[str, int, int], None]
"""Called with the name of a file, the number of bytes that have arrived, and its size in bytes (0 if unknown)."""
T = TypeVar("T")


def _no_progress(name: str, done: int, total: int) -> None:
    """Do nothing."""


def download_minari(name: str, server: str = "", progress: Progress = _no_progress) -> Path:
    """Download the Minari dataset called ``name`` to Minari's dataset folder; return its path.

    ``server`` must have the API of Hugging Face; by default it is HF_ENDPOINT, or else huggingface.co.
    """
    check_name(name)
    folder = minari_root() / name
    staged = folder.with_name(f".{folder.name}.part")
    server = (server or os.environ.get("HF_ENDPOINT") or HUGGING_FACE).rstrip("/")
    group, _, inside = name.partition("/")
    repository = f"datasets/{MINARI_OWNER}/{group}"
    with lock_beside(folder):
        if (folder / "data" / METADATA).is_file():
            return folder
        entries = _list_files(f"{server}/api/{repository}/tree/main/{urllib.parse.quote(inside)}?recursive=true", name)
        for path, entry in entries.items():
            file = Path(path)
            if ".." in file.parts or not file.is_relative_to(inside):
                raise RunError(f"{server} lists {path!r}, which is outside the dataset: the download was stopped.")
            target, remote = staged / file.relative_to(inside), _remote(entry, f"{server}/{repository}")
            if target.exists() and _describe_mismatch(remote, target):  # the dataset has changed since this file came
                target.unlink()
            fetch(remote, target, progress)
        for old in {*staged.rglob("*")} - {staged / Path(path).relative_to(inside) for path in entries}:
            if old.is_file():  # from an earlier version
                old.unlink()
        rename_durably(staged, folder)
    return folder


def _remote(entry: dict[str, Any], base: str) -> RemoteFile:
    """Return a listed file, with its SHA-256 if it is in Git LFS, else with its git blob id."""
    large, blob = entry.get("lfs") or {}, str(entry.get("oid", ""))
    sums = {"sha256": str(large.get("oid", "")).removeprefix("sha256:"), "git": "" if large else blob}
    valid = {kind: value for kind, value in sums.items() if re.fullmatch("([0-9a-f]{40}|[0-9a-f]{64})", value)}
    return RemoteFile(
        url=f"{base}/resolve/main/{urllib.parse.quote(entry['path'])}", size=entry.get("size"), checksums=valid
    )


def _list_files(url: str, name: str) -> dict[str, dict[str, Any]]:
    """Return the entries of all files below a folder by path, following the server's pages."""
    entries: dict[str, dict[str, Any]] = {}
    page = url
    while page:
        try:
            content, link = retry(lambda page=page: _page(page), page)  # type: ignore[misc]  # binds the loop's page
            entries |= {entry["path"]: entry for entry in json.loads(content) if entry.get("type") == "file"}
        except urllib.error.HTTPError as error:
            raise RunError(f"no Minari dataset '{name}' found: {url} returned {error.code} {error.reason}.") from None
        page = urllib.parse.urljoin(page, link) if link else ""
    return entries


def _page(url: str) -> tuple[bytes, str]:
    """Return a page of a list, and the address of the next one; "" after the last."""
    with _open_url(url) as answer:
        link = re.search(r'<([^>]+)>;\s*rel="next"', answer.headers.get("Link") or "")
        return b"".join(_iter_body(answer)), link[1] if link else ""


def download_shards(
    game: str, run: int, shards: list[int], folder: Path, server: str = "", progress: Progress = _no_progress
) -> list[Path]:
    """Download shards of RL Unplugged's Atari data to ``folder/game``; return their paths."""
    base = (server or RL_UNPLUGGED).rstrip("/")
    names = [f"run_{run}-{shard:05d}-of-{SHARDS:05d}" for shard in shards]
    return [fetch(RemoteFile(url=f"{base}/{game}/{name}"), folder / game / name, progress) for name in names]


# ---------------------------------------------------------------- one file


class RetryableError(Exception):
    """A request failed with an error that another attempt may resolve."""


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file on a server, its size in bytes if known, and its hex checksums by kind (see ``_file_checksum``)."""

    url: str
    size: int | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)


def fetch(remote: RemoteFile, path: Path, progress: Progress = _no_progress) -> Path:
    """Download a file to ``path``, unless that exists. An interrupted download is continued."""
    part, note = (path.with_name(f".{path.name}.part{end}") for end in ("", ".version"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock_beside(path):
        if not path.exists():
            try:
                total = retry(lambda: _receive(remote, part, note, path.name, progress), remote.url, part)
            except urllib.error.HTTPError as error:
                _delete(part, note)
                why = f"the server returned {error.code} {error.reason}"
                raise RunError(f"cannot download {remote.url}: {why}.") from None
            if wrong := _describe_mismatch(
                RemoteFile(url=remote.url, size=remote.size or total, checksums=remote.checksums), part
            ):
                _delete(part, note)
                raise RunError(f"the download of {remote.url} is damaged: {wrong}. It was deleted; try again.")
            rename_durably(part, path)
        _delete(part, note)
    return path


def _delete(*files: Path) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def retry(action: Callable[[], T], url: str, part: Path | None = None) -> T:
    """Return ``action()``, retried while it raises RetryableError: ``ATTEMPTS`` times unless ``part`` grows."""
    largest, failed = file_size(part), 0
    while True:
        try:
            return action()
        except RetryableError as error:
            current = file_size(part)
            largest, failed = max(largest, current), 0 if current > largest else failed + 1
            if failed >= ATTEMPTS:
                raise RunError(f"cannot download {url}: {error}.{f' {RESUME_ADVICE}' if current else ''}") from None
        time.sleep(PAUSE * 2 ** max(0, failed - 1))


def _open_url(url: str, headers: Mapping[str, str] | None = None) -> http.client.HTTPResponse:
    """Send a GET request and return the response with its body unread; RetryableError if there is none."""
    try:
        request = urllib.request.Request(url, headers=dict(headers or {}))
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=PATIENCE)
        return answer
    except urllib.error.HTTPError as error:
        if error.code in OVERLOADED or error.code >= 500:
            raise RetryableError(f"the server returned {error.code} {error.reason}") from None
        raise
    except (OSError, http.client.HTTPException) as error:
        raise RetryableError(str(getattr(error, "reason", "") or error) or type(error).__name__) from None


def _iter_body(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the body of a response as it arrives.

    RetryableError if the connection breaks before its announced length.
    """
    try:
        while block := answer.read1(BLOCK):
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise RetryableError(str(error) or type(error).__name__) from None
    if answer.length:
        raise RetryableError("the connection was closed too early")


def _receive(remote: RemoteFile, part: Path, note: Path, name: str, progress: Progress) -> int | None:
    """Download the missing bytes of ``part``; a broken attempt keeps the received bytes. Return its size, if known."""
    version = read_file(note).decode("latin-1") if note.exists() else ""
    start = max(0, file_size(part) - 1) if version else 0  # an empty range would be rejected
    try:
        answer = _open_url(remote.url, {"Range": f"bytes={start}-", "If-Range": version} if start else {})
    except urllib.error.HTTPError as error:
        if error.code != 416 or not start:
            raise
        part.unlink()
        raise RetryableError("the file on the server has changed") from None
    with answer:
        tag = answer.headers.get("ETag", "")
        continues = answer.headers.get("Content-Range", "").startswith(f"bytes {start}-") and tag in ("", version)
        if answer.status == 200:
            start = 0
            part.write_bytes(b"")  # first, so that bytes are never next to the ETag of another version
            note.write_text("" if tag.startswith("W/") else tag, encoding="latin-1")
        elif answer.status != 206 or not start or not continues:
            part.unlink(missing_ok=True)
            raise RetryableError("the server's answer does not continue the partial download")
        total, have = remote.size if answer.length is None else start + answer.length, start
        with part.open("r+b") as file:
            file.seek(start)
            for block in _iter_body(answer):
                file.write(block)
                have += len(block)
                progress(name, have, total or 0)
    return total


def file_size(path: Path | None) -> int:
    """Return the number of bytes of a file; 0 if there is none."""
    return path.stat().st_size if path is not None and path.exists() else 0


def _describe_mismatch(remote: RemoteFile, path: Path) -> str:
    """Describe how the file at ``path`` differs from ``remote``; "" if it does not."""
    if remote.size is not None and file_size(path) != remote.size:
        return f"received {file_size(path):,} bytes; expected {remote.size:,}"
    for kind, checksum in remote.checksums.items():
        if (computed := _file_checksum(path, kind)) != checksum:
            return f"its {kind} is {computed}; expected {checksum}"
    return ""


def _file_checksum(path: Path, kind: str) -> str:
    """Return the ``sha256`` or ``git`` (id of a blob) of a file in hexadecimal."""
    digest = hashlib.new("sha1" if kind == "git" else kind)
    if kind == "git":
        digest.update(f"blob {file_size(path)}\0".encode())
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
