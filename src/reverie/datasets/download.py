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
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reverie.core.errors import ConfigError, RunError, did_you_mean
from reverie.core.files import move_synced
from reverie.core.lock import lock_of
from reverie.datasets.fetch import Progress, blocks, fetch, opened, persist, silent
from reverie.datasets.minari import METADATA, check_name, minari_root
from reverie.datasets.remote_file import Remote, mismatch

HUGGING_FACE = "https://huggingface.co"
MINARI_OWNER = "farama-minari"
RL_UNPLUGGED = "https://storage.googleapis.com/rl_unplugged/atari"
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


def download_minari(name: str, server: str = "", progress: Progress = silent) -> Path:
    """Download the Minari dataset called ``name`` to the folder where Minari keeps its datasets; return its path.

    ``server`` must have the API of Hugging Face; by default it is HF_ENDPOINT, or else huggingface.co.

    Raises:
        ConfigError: Minari does not allow this name.
        RunError: the server has no such dataset, its files cannot be downloaded, or another process downloads it.
    """
    check_name(name)
    place = minari_root() / name
    if _is_here(place):
        return place
    if place.is_file() or (place.is_dir() and any(place.iterdir())):
        raise RunError(f"{place} exists but is not a Minari dataset: move it elsewhere, then download again.")
    server = address(server or os.environ.get("HF_ENDPOINT") or HUGGING_FACE)
    group, _, inside = name.partition("/")
    where = f"datasets/{MINARI_OWNER}/{group}"
    listed = _listed(f"{server}/api/{where}/tree/main/{urllib.parse.quote(inside)}?recursive=true", name)
    wanted = {_below(path, inside, server): _remote(entry, f"{server}/{where}") for path, entry in listed.items()}
    with lock_of(place):
        if not _is_here(place):  # another process may have downloaded it before this one got the lock
            staged = _gathered(wanted, place.with_name(f".{place.name}.part"), progress)
            if not _is_here(staged):
                raise RunError(f"'{name}' on {server} is not a Minari dataset: it has no data/{METADATA}.")
            move_synced(staged, place)
    return place


def _is_here(place: Path) -> bool:
    return (place / "data" / METADATA).is_file()


def _gathered(wanted: Mapping[Path, Remote], folder: Path, progress: Progress) -> Path:
    """Download the files ``wanted``, by their paths in ``folder``, as far as they are missing; return ``folder``."""
    for below, remote in wanted.items():
        path = folder / below
        if path.exists() and mismatch(remote, path):  # the dataset has changed since this file came
            path.unlink()
        fetch(remote, path, progress)
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder) not in wanted:  # of an earlier version
            path.unlink()
    return folder


def address(server: str) -> str:
    """Return the address of a server without a slash at its end.

    Raises:
        ConfigError: it is not an address of HTTP.
    """
    try:
        parts = urllib.parse.urlsplit(server)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of the port
        fits = False
    if not fits:
        raise ConfigError(f"the server '{server}': expected a URL such as {HUGGING_FACE} or http://localhost:8000.")
    return server.rstrip("/")


def _below(path: str, inside: str, server: str) -> Path:
    """Return the path of a listed file within its dataset.

    Raises:
        RunError: it is outside of the dataset.
    """
    whole = Path(path)
    if ".." in whole.parts or not whole.is_relative_to(inside):
        raise RunError(f"{server} lists the file {path!r}, which is outside the dataset: nothing was downloaded.")
    return whole.relative_to(inside)


def _remote(entry: dict[str, Any], base: str) -> Remote:
    """Return a file of a list, with its SHA-256 if it lies in Git LFS, else with its id as a git blob."""
    url = f"{base}/resolve/main/{urllib.parse.quote(entry['path'])}"
    large = entry.get("lfs") or {}
    sha256 = str(large.get("oid", "")).removeprefix("sha256:")
    blob = "" if large else str(entry.get("oid", ""))
    git = blob if re.fullmatch("[0-9a-f]{40}", blob) else ""
    return Remote(url=url, size=entry.get("size"), sha256=sha256, git=git)


def _listed(url: str, name: str) -> dict[str, dict[str, Any]]:
    """Return the entries of all files below a folder by path, following the server's pages.

    Raises:
        RunError: there is no such folder, the server cannot be reached, or it does not answer with a list of files.
    """
    found: dict[str, dict[str, Any]] = {}
    following: str | None = url
    while following:
        page = following
        try:
            content, link = persist(partial(_page, page), page)
            found |= {entry["path"]: entry for entry in json.loads(content) if entry.get("type") == "file"}
        except urllib.error.HTTPError as error:
            raise RunError(f"no Minari dataset '{name}' found: {url} returned {error.code} {error.reason}.") from None
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise RunError(
                f"{page} did not return a list of files ({error!r}). Check that the server has Hugging Face's API."
            ) from None
        following = urllib.parse.urljoin(page, link) if link else None
    return found


def _page(url: str) -> tuple[bytes, str]:
    """Return a page of a list, and the address of the next one; "" after the last."""
    with opened(url) as answer:
        link = re.search(r'<([^>]+)>;\s*rel="next"', answer.headers.get("Link") or "")
        return b"".join(blocks(answer, answer.length)), link[1] if link else ""


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
            f"RL Unplugged has no game '{game}'.{did_you_mean(game, GAMES)} Available: {', '.join(GAMES)}."
        )
    if not 1 <= run <= RUNS:
        raise ConfigError(f"run {run}: expected 1 to {RUNS}, the runs of RL Unplugged.")
    if wrong := [shard for shard in shards if not 0 <= shard < SHARDS]:
        raise ConfigError(f"shard {wrong[0]}: expected 0 to {SHARDS - 1}, the shards of each run of RL Unplugged.")
    base = address(server or RL_UNPLUGGED)
    names = [f"run_{run}-{shard:05d}-of-{SHARDS:05d}" for shard in shards]
    return [fetch(Remote(url=f"{base}/{game}/{name}"), folder / game / name, progress) for name in names]
