"""The colors of figures, of the viewer (``viewer/static/style.css``) and of the site, in both themes."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

TEXT, MUTED, BORDER, BACKGROUND = "#1b1e23", "#5d636d", "#e4e1da", "#ffffff"
"""Text, labels of axes, grid, and background."""
BLUE, ORANGE, GREEN = "#1f62b4", "#b3560a", "#2c7a4b"
"""Training, truth and what a model observes; evaluation and prediction; another line."""
HUES = (BLUE, ORANGE, GREEN, "#98249a", "#b3261e", "#6b6f1f", "#1f7f80", "#7a5a3e")
"""Colors of lines without an assigned color."""
DARK = {TEXT: "#e6e8ec", MUTED: "#a0a7b3", BORDER: "#2c313a", BACKGROUND: "#1c1f25", BLUE: "#6fabf2", ORANGE: "#f0a352",
        GREEN: "#6cc58e", HUES[3]: "#e07fd8", HUES[4]: "#f2857d", HUES[5]: "#c6c86a", HUES[6]: "#6fd0d0",
        HUES[7]: "#cda585"}  # fmt: skip
"""Each color in a dark theme."""
NEAR, FAR, GOAL = ORANGE, BLUE, HUES[4]
"""Distances to a goal, between the first two, and the goal's star: as in ``viewer/static/goals.js``."""
ALGORITHM_HUES = (
    "ppo r2dreamer sac_ae crr discrete_crr gcbc",
    "dreamer_v3 ddpg c51 cql discrete_cql gail lewm",
    "sac bmpc iqn rebrac decision_transformer hiql",
    "dqn dreamer_v2 crossq fql gcivl",
    "td3 a2c plan2explore_v3 td3_bc gciql",
    "iql plan2explore tqc qr_dqn crl",
    "tdmpc2 plan2explore_v1 impala simba_v2 bcq discrete_bcq qrl",
    "bc dreamer_v1 discrete_sac xqc muzero",
)
"""The algorithms of each of :data:`HUES`. Algorithms for the same tasks have different colors while colors last."""


def algorithm_hue(name: str) -> int:
    """Return the number among :data:`HUES` of an algorithm; the checksum of the name chooses it for unknown names."""
    hues = (hue for hue, names in enumerate(ALGORITHM_HUES) if name in names.split())
    return next(hues, zlib.crc32(name.encode()) % len(HUES))


def assign_hues(algorithms: Sequence[str]) -> list[int]:
    """Return the number among :data:`HUES` of each line of a chart, by the name of its algorithm.

    The first line of a hue keeps it, the next ones get the hues that are left, in the order of the table.
    """
    hues = [algorithm_hue(name) for name in algorithms]
    left = [hue for hue in range(len(HUES)) if hue not in hues]
    return [left.pop(0) if hue in hues[:line] and left else hue for line, hue in enumerate(hues)]
