"""Downloads datasets: a dataset appears only once it is complete, and an interrupted download can be continued.

Minari datasets come from Hugging Face (or any server with its API), RL Unplugged's shards from Google Cloud Storage.
How a single file is downloaded, and what lies on disk meanwhile, is in ``fetch.py``. The files of a Minari dataset are
gathered in ``.name.part`` beside its folder, which takes that name at the end.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.parse
from functools import partial
from pathlib import Path
from typing import Any

from reverie.core.errors import ConfigError, RunError
from reverie.core.files import move_synced
from reverie.core.lock import lock_of
from reverie.datasets.fetch import Progress, Remote, blocks, fetch, mismatch, opened, persist, silent
from reverie.datasets.minari import METADATA, check_name, minari_root

HUGGING_FACE = "https://huggingface.co"
MINARI_OWNER = "farama-minari"
RL_UNPLUGGED = "https://storage.googleapis.com/rl_unplugged/atari"
SHARDS, RUNS = 100, 5


def download_minari(name: str, server: str = "", progress: Progress = silent) -> Path:
    """Download the Minari dataset called ``name`` to the folder where Minari keeps its datasets; return its path.

    ``server`` must have the API of Hugging Face; by default it is HF_ENDPOINT, or else huggingface.co.

    Raises:
        ConfigError: Minari does not allow this name.
        RunError: the server has no such dataset, its files cannot be downloaded, or another process downloads it.
    """
    check_name(name)
    place = minari_root() / name
    staged = place.with_name(f".{place.name}.part")
    server = address(server or os.environ.get("HF_ENDPOINT") or HUGGING_FACE)
    group, _, inside = name.partition("/")
    where = f"datasets/{MINARI_OWNER}/{group}"
    with lock_of(place):
        if (place / "data" / METADATA).is_file():
            return place
        if place.exists():
            raise RunError(f"{place} exists but is not a Minari dataset: move it elsewhere, then download again.")
        listed = _listed(f"{server}/api/{where}/tree/main/{urllib.parse.quote(inside)}?recursive=true", name)
        for path, entry in listed.items():
            whole = Path(path)
            if ".." in whole.parts or not whole.is_relative_to(inside):
                raise RunError(f"{server} lists {path!r}, which is outside the dataset: the download has stopped.")
            target, remote = staged / whole.relative_to(inside), _remote(entry, f"{server}/{where}")
            if target.exists() and mismatch(remote, target):  # the dataset has changed since this file came
                target.unlink()
            fetch(remote, target, progress)
        for old in {*staged.rglob("*")} - {staged / Path(path).relative_to(inside) for path in listed}:
            if old.is_file():  # of an earlier version
                old.unlink()
        if not (staged / "data" / METADATA).is_file():
            raise RunError(f"'{name}' on {server} is not a Minari dataset: it has no data/{METADATA}.")
        move_synced(staged, place)
    return place


def address(server: str) -> str:
    """Return the address of a server without a slash at its end.

    Raises:
        ConfigError: it is not an address of HTTP.
    """
    parts = urllib.parse.urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"the server '{server}': expected a URL such as {HUGGING_FACE} or http://localhost:8000.")
    return server.rstrip("/")


def _remote(entry: dict[str, Any], base: str) -> Remote:
    """Return a file of a list, with its SHA-256 if it lies in Git LFS, else with its id as a git blob."""
    large, blob = entry.get("lfs") or {}, str(entry.get("oid", ""))
    sums = {"sha256": str(large.get("oid", "")).removeprefix("sha256:"), "git": "" if large else blob}
    known = {kind: value for kind, value in sums.items() if re.fullmatch("([0-9a-f]{40}|[0-9a-f]{64})", value)}
    return Remote(url=f"{base}/resolve/main/{urllib.parse.quote(entry['path'])}", size=entry.get("size"), sums=known)


def _listed(url: str, name: str) -> dict[str, dict[str, Any]]:
    """Return the entries of all files below a folder by path, following the server's pages.

    Raises:
        RunError: there is no such folder, the server cannot be reached, or it does not answer with a list of files.
    """
    found: dict[str, dict[str, Any]] = {}
    page = url
    while page:
        try:
            content, link = persist(partial(_page, page), page)
            found |= {entry["path"]: entry for entry in json.loads(content) if entry.get("type") == "file"}
        except urllib.error.HTTPError as error:
            raise RunError(f"no Minari dataset '{name}' found: {url} returned {error.code} {error.reason}.") from None
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise RunError(
                f"{page} did not return a list of files ({error!r}). Check that the server has Hugging Face's API."
            ) from None
        page = urllib.parse.urljoin(page, link) if link else ""
    return found


def _page(url: str) -> tuple[bytes, str]:
    """Return a page of a list, and the address of the next one; "" after the last."""
    with opened(url) as answer:
        link = re.search(r'<([^>]+)>;\s*rel="next"', answer.headers.get("Link") or "")
        return b"".join(blocks(answer)), link[1] if link else ""


def download_shards(
    game: str, run: int, shards: list[int], folder: Path, server: str = "", progress: Progress = silent
) -> list[Path]:
    """Download shards of RL Unplugged's Atari data to ``folder/game``; return their paths.

    Raises:
        ConfigError: there is no such run or shard.
        RunError: a shard cannot be downloaded, as those of a game that does not exist.
    """
    if not 1 <= run <= RUNS or not all(0 <= shard < SHARDS for shard in shards):
        raise ConfigError(
            f"run {run}, shards {shards}: expected a run of 1 to {RUNS}, and shards of 0 to {SHARDS - 1}."
        )
    base = address(server or RL_UNPLUGGED)
    names = [f"run_{run}-{shard:05d}-of-{SHARDS:05d}" for shard in shards]
    return [fetch(Remote(url=f"{base}/{game}/{name}"), folder / game / name, progress) for name in names]
