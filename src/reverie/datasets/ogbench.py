"""OGBench's datasets by name: their files, the environment that a name implies, and how the authors recorded them.

``pointmaze-medium-navigate-v0`` is a dataset of the environment ``pointmaze-medium-v0``; ``-val`` after it: held-out
episodes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from reverie.core.errors import ConfigError, DataError, did_you_mean

OGBENCH_PREFIX = "ogbench:"
"""Prefix of the path of a dataset that is named."""
_NAME = re.compile(
    r"((?:visual-)?(?:pointmaze|antmaze|humanoidmaze|antsoccer|cube|scene|puzzle|powderworld)(?:-\w+)?)"
    r"-(navigate|stitch|explore|play|noisy)(-v\d+)(-val)?"
)


class Recipe(NamedTuple):
    """The size of a dataset that needs no trained expert: https://github.com/seohongpark/ogbench, data_gen_scripts."""

    episodes: int
    """Episodes to learn from; a tenth of this number is held out."""
    states: int
    """States of each episode."""


RECIPES = {
    **{f"pointmaze-{maze}-navigate-v0": Recipe(1000, 1001) for maze in ("medium", "large", "teleport")},
    "pointmaze-giant-navigate-v0": Recipe(500, 2001),
    **{f"pointmaze-{maze}-stitch-v0": Recipe(5000, 201) for maze in ("medium", "large", "giant", "teleport")},
    **{
        f"{picture}{env}-{kind}-v0": Recipe(episodes, 1001)
        for picture in ("", "visual-")
        for kind in ("play", "noisy")
        for env, episodes in {
            "cube-single": 1000, "cube-double": 1000, "cube-triple": 3000, "cube-quadruple": 5000, "scene": 1000,
            "puzzle-3x3": 1000, "puzzle-4x4": 1000, "puzzle-4x5": 3000, "puzzle-4x6": 5000,
        }.items()
    },
}  # fmt: skip
"""The datasets that ``reverie data make`` generates, by name."""


def parse_name(name: str) -> tuple[str, str]:
    """Return the environment id and the kind of the dataset called ``name``, such as ``navigate``; "" if it is none."""
    match = _NAME.fullmatch(name)
    return ("", "") if match is None else (f"{match[1]}{match[3]}", match[2])


def check_dataset_name(name: str) -> None:
    """Raise ConfigError unless ``name`` is the name of a dataset."""
    if not parse_name(name)[0]:
        raise ConfigError(
            f"{OGBENCH_PREFIX}{name}: unknown.{did_you_mean(name, RECIPES)} Expected ENV-KIND-v0 with a KIND of "
            "navigate, stitch, explore, play or noisy, such as pointmaze-medium-navigate-v0."
        )


def source_advice(name: str) -> str:
    """Return how to make, or to download, the dataset called ``name``."""
    if (made := name.removesuffix("-val")) in RECIPES:
        return f"Make it: `reverie data make {OGBENCH_PREFIX}{made}`."
    download = f"`python -c 'import ogbench; ogbench.download_datasets([\"{made}\"])'`"
    return f"If OGBench has it, download it: {download}."


def ogbench_path(name: str) -> Path:
    """Return the file of the dataset called ``name``, in the working folder or in OGBench's; DataError without it."""
    check_dataset_name(name)
    for folder in (Path(), Path.home() / ".ogbench" / "data"):
        if (path := folder / f"{name}.npz").is_file():
            return path
    places = "neither in the working folder nor in ~/.ogbench/data"
    raise DataError(f"there is no {name}.npz, {places}.{did_you_mean(name, RECIPES)} {source_advice(name)}")


def heldout_name(path: str | tuple[str, ...]) -> str | None:
    """Return the held-out dataset of the dataset at ``path``; None if this is none of OGBench, or has no such file."""
    name = path.removeprefix(OGBENCH_PREFIX) if isinstance(path, str) else ""
    try:
        return f"{OGBENCH_PREFIX}{name}-val" if path != name and ogbench_path(f"{name}-val") else None
    except (ConfigError, DataError):
        return None
