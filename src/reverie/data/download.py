"""Downloads datasets: a dataset appears only once it is complete, and an interrupted download can be continued.

A file is downloaded as ``.name.part`` beside its final path, by HTTP range requests, and renamed once its size and
checksum are those that the server gives. Minari datasets come from Hugging Face (or any server with its API), RL
Unplugged's shards from Google Cloud Storage.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reverie.core.errors import ConfigError, RunError, did_you_mean
from reverie.data.readers.minari import METADATA, check_name, minari_root

HUGGING_FACE = "https://huggingface.co"
MINARI_OWNER = "farama-minari"
RL_UNPLUGGED = "http://storage.googleapis.com/rl_unplugged/atari"
SHARDS, RUNS = 100, 5
GAMES = [
    "Alien",
    "Amidar",
    "Assault",
    "Asterix",
    "Atlantis",
    "BankHeist",
    "BattleZone",
    "BeamRider",
    "Boxing",
    "Breakout",
    "Carnival",
    "Centipede",
    "ChopperCommand",
    "CrazyClimber",
    "DemonAttack",
    "DoubleDunk",
    "Enduro",
    "FishingDerby",
    "Freeway",
    "Frostbite",
    "Gopher",
    "Gravitar",
    "Hero",
    "IceHockey",
    "Jamesbond",
    "Kangaroo",
    "Krull",
    "KungFuMaster",
    "MsPacman",
    "NameThisGame",
    "Phoenix",
    "Pong",
    "Pooyan",
    "Qbert",
    "Riverraid",
    "RoadRunner",
    "Robotank",
    "Seaquest",
    "SpaceInvaders",
    "StarGunner",
    "TimePilot",
    "UpNDown",
    "VideoPinball",
    "WizardOfWor",
    "YarsRevenge",
    "Zaxxon",
]
BLOCK = 1 << 20
PATIENCE = 60.0
ATTEMPTS = 5
"""Number of attempts at a file before a broken connection is an error."""
PAUSE = 1.0
"""Seconds before the second attempt; doubled for each further one."""

Progress = Callable[[str, int, int], None]
"""Called with the name of a file, the number of bytes that have arrived, and its size in bytes (0 if unknown)."""


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A file on a server."""

    url: str
    size: int | None = None
    """Size in bytes according to the server's list of files; None if there is none."""
    sha256: str = ""
    """Checksum in hexadecimal according to that list; "" if there is none."""


def silent(name: str, done: int, total: int) -> None:
    """Do nothing."""


# ---------------------------------------------------------------- one file


def fetch(remote: Remote, path: Path, progress: Progress = silent) -> Path:
    """Download a file to ``path``, unless that exists. An interrupted download is continued.

    Raises:
        RunError: the server has no such file, cannot be reached, or the file does not match its size or checksum.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.part")
    for attempt in range(ATTEMPTS):
        try:
            said = _append(remote, staged, path.name, progress)
            break
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                raise RunError(f"{remote.url}: the server says {error.code} {error.reason}.") from None
            if attempt == ATTEMPTS - 1:
                raise RunError(
                    f"{remote.url} cannot be reached: {getattr(error, 'reason', error)}. What has come so far is kept: "
                    "the same command goes on from there."
                ) from None
            time.sleep(PAUSE * 2**attempt)
    _check(remote, staged, said)
    os.replace(staged, path)
    return path


def _append(remote: Remote, staged: Path, name: str, progress: Progress) -> dict[str, str]:
    """Download what is missing of ``staged``; return the headers of the answer, and the file's size as ``whole``."""
    have = staged.stat().st_size if staged.exists() else 0
    request = urllib.request.Request(remote.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # all of the file is here already
            whole = (error.headers.get("Content-Range") or "").rpartition("/")[2]
            said = {key.lower(): value for key, value in error.headers.items()}
            return (said if _sums(said) or remote.sha256 else said | _headers(remote, have - 1)) | {"whole": whole}
        raise
    with answer:
        headers = {key.lower(): value for key, value in answer.headers.items()}
        if have and answer.status != 206:  # the server does not support ranges, and sends the whole file
            have = 0
        length = int(headers.get("content-length") or 0)
        total = have + length if length else 0
        with staged.open("ab" if have else "wb") as file:
            while block := answer.read(BLOCK):
                file.write(block)
                have += len(block)
                progress(name, have, total)
        if total and have < total:
            raise ConnectionError(f"{have:,} of {total:,} bytes came")
    return headers | {"whole": str(total or have)}


def _headers(remote: Remote, last: int) -> dict[str, str]:
    """Return the headers of a request for the bytes from ``last`` on: they have the checksums of a complete file."""
    request = urllib.request.Request(remote.url, headers={"Range": f"bytes={last}-"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return {key.lower(): value for key, value in answer.headers.items()}
    except urllib.error.HTTPError:  # the server's file is smaller than ours: _check will compare the sizes
        return {}


def _check(remote: Remote, staged: Path, said: dict[str, str]) -> None:
    """Check the size and the checksums of a complete download.

    Raises:
        RunError: one is wrong; the file is deleted, as continuing it could never succeed.
    """
    size = staged.stat().st_size
    expected = remote.size if remote.size is not None else int(said["whole"]) if said["whole"].isdigit() else size
    wrong = "" if size == expected else f"{size:,} bytes came, {expected:,} were said"
    sums = _sums(said) | ({"sha256": remote.sha256} if remote.sha256 else {})
    for kind, checksum in sums.items():
        if not wrong and (found := checksum_of(staged, kind)) != checksum:
            wrong = f"its {kind} is {found}, {checksum} was said"
    if wrong:
        staged.unlink()
        raise RunError(f"{remote.url} did not come whole: {wrong}. It was deleted; try again.")


def _sums(said: dict[str, str]) -> dict[str, str]:
    """Return the checksums in Google's header ``x-goog-hash: crc32c=..., md5=...``, in hexadecimal by kind."""
    out = {}
    for word in said.get("x-goog-hash", "").split(","):
        kind, _, value = word.strip().partition("=")
        if kind in ("crc32c", "md5") and value:
            out[kind] = base64.b64decode(value).hex()
    return out


def checksum_of(path: Path, kind: str) -> str:
    """Return the ``sha256``, ``md5`` or ``crc32c`` of a file in hexadecimal."""
    if kind == "crc32c":
        from google_crc32c import extend

        crc = 0
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                crc = extend(crc, block)
        return f"{crc:08x}"
    found = hashlib.new(kind)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found.update(block)
    return found.hexdigest()


# ---------------------------------------------------------------- datasets


def download_minari(name: str, server: str = "", progress: Progress = silent) -> Path:
    """Download the Minari dataset called ``name`` to the folder where Minari keeps its datasets; return its path.

    ``server`` must have the API of Hugging Face; by default it is HF_ENDPOINT, or else huggingface.co.

    Raises:
        ConfigError: Minari does not allow this name.
        RunError: the server has no such dataset, or its files cannot be downloaded.
    """
    check_name(name)
    place = minari_root() / name
    if (place / "data" / METADATA).is_file():
        return place
    server = (server or os.environ.get("HF_ENDPOINT") or HUGGING_FACE).rstrip("/")
    group, _, inside = name.partition("/")
    where = f"datasets/{MINARI_OWNER}/{group}"
    files = _listed(f"{server}/api/{where}/tree/main/{urllib.parse.quote(inside)}?recursive=true", name)
    staged = place.with_name(f".{place.name}.part")
    for entry in files:
        path = str(entry["path"])
        below = Path(path).relative_to(inside) if inside else Path(path)
        if ".." in below.parts or below.is_absolute():
            raise RunError(f"{server} lists a file {path!r} outside of the dataset.")
        url = f"{server}/{where}/resolve/main/{urllib.parse.quote(path)}"
        sha256 = str((entry.get("lfs") or {}).get("oid", "")).removeprefix("sha256:")
        fetch(Remote(url=url, size=entry.get("size"), sha256=sha256), staged / below, progress)
    if not (staged / "data" / METADATA).is_file():
        raise RunError(f"{server} has no data/{METADATA} in {name}: it is no dataset.")
    os.replace(staged, place)
    return place


def _listed(url: str, name: str) -> list[dict[str, Any]]:
    """Return the files below a folder, following the server's pages.

    Raises:
        RunError: there is no such folder, or the server cannot be reached.
    """
    found: list[dict[str, Any]] = []
    following: str | None = url
    while following:
        try:
            with urllib.request.urlopen(following, timeout=PATIENCE) as answer:
                found += json.loads(answer.read())
                link = re.search(r'<([^>]+)>;\s*rel="next"', answer.headers.get("Link") or "")
        except urllib.error.HTTPError as error:
            raise RunError(f"there is no Minari dataset '{name}' at {url}: {error.code} {error.reason}.") from None
        except (OSError, ValueError) as error:
            raise RunError(f"{url} cannot be read: {error}.") from None
        following = urllib.parse.urljoin(following, link[1]) if link else None
    return [entry for entry in found if entry.get("type") == "file"]


def download_shards(
    game: str, run: int, shards: list[int], folder: Path, server: str = "", progress: Progress = silent
) -> list[Path]:
    """Download shards of RL Unplugged's Atari data to ``folder/game``; return their paths.

    Raises:
        ConfigError: there is no such game, run or shard.
        RunError: a shard cannot be downloaded.
    """
    if game not in GAMES:
        raise ConfigError(
            f"RL Unplugged has no game '{game}'.{did_you_mean(game, GAMES)} There are: {', '.join(GAMES)}."
        )
    if not 1 <= run <= RUNS:
        raise ConfigError(f"run {run}: RL Unplugged has the runs 1 to {RUNS}.")
    if wrong := [shard for shard in shards if not 0 <= shard < SHARDS]:
        raise ConfigError(f"shard {wrong[0]}: RL Unplugged has the shards 0 to {SHARDS - 1} of each run.")
    base = (server or RL_UNPLUGGED).rstrip("/")
    names = [f"run_{run}-{shard:05d}-of-{SHARDS:05d}" for shard in shards]
    return [fetch(Remote(url=f"{base}/{game}/{name}"), folder / game / name, progress) for name in names]
