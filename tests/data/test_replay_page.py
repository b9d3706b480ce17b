"""The tables of docs/replay.md say what was measured, and what the defaults are."""

from __future__ import annotations

import json
import re
from pathlib import Path

from reverie.replay.config import ReplayConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "replay.md").read_text(encoding="utf-8")
RESULTS = json.loads((ROOT / "benchmarks" / "replay.json").read_text(encoding="utf-8"))["rows"]


def table(name: str) -> list[list[str]]:
    found = re.search(rf"<!-- table:{name} -->\n(.*?)<!-- /table -->", PAGE, re.DOTALL)
    assert found is not None
    lines = found[1].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def thousands(value: float) -> str:
    return f"{value / 1e3:.0f}k" if value < 1e6 else f"{value / 1e6:.1f}M"


def test_the_table_of_rows() -> None:
    expected = [
        [
            "with latents" if row["latents"] else "images",
            f"`{row['storage']}`",
            thousands(row["rows_added_per_s"]),
            f"{row['add_copy_ratio']:.1f}",
            f"{row['batches_per_s']:.0f}",
            f"{row['sample_copy_ratio']:.1f}",
            f"{row['sample_gb_per_s']:.0f}",
        ]
        for row in RESULTS
        if row["kind"] == "rows"
    ]
    assert table("replay") == expected


def test_the_table_of_samplers() -> None:
    draws = {(row["sampler"], row["batch"]): row for row in RESULTS if row["kind"] == "draws"}
    samplers = list(dict.fromkeys(name for name, _ in draws))
    expected = [
        [
            name,
            thousands(draws[name, 16]["windows_per_s"]),
            thousands(draws[name, 256]["windows_per_s"]),
            thousands(draws[name, 16]["rows_added_per_s"]),
        ]
        for name in samplers
    ]
    assert table("draws") == expected


def test_the_defaults() -> None:
    shown = re.findall(r"^\| `replay\.(fractions|priority)\.(\w+)` \| (\S+) \|", PAGE, re.MULTILINE)
    config = ReplayConfig().to_dict()
    assert {(part, name): value for part, name, value in shown} == {
        (part, name): str(value) for part in ("fractions", "priority") for name, value in config[part].items()
    }
    assert f"`replay.recency_exponent` ({config['recency_exponent']})" in PAGE
