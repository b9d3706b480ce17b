"""The formats in which datasets are written: a file of its own, which the command line imports without torch."""

from __future__ import annotations

from typing import Literal

Format = Literal["minari", "d4rl", "parquet", "pydreamer", "store"]
