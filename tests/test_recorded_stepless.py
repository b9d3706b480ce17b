"""Data of which most rows are episodes without a step, because what marks the ends of episodes was misread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reverie
from reverie.core.errors import DataError

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402  # the package is optional

NAMED = {"obs": "x", "action": "action", "reward": "reward", "terminal": "done", "episode": "time"}
WRONG = "27 of the 33 rows are episodes of a single row, without a step, from which nothing can be learned."
ADVICE = "Check what marks the ends of episodes: a column for episode has one value in all steps of an episode"
SMALL: dict[str, Any] = {"env": "none", "console": False, "tensorboard": False, "threads": 1,
                         "data.estimate_updates": 0, "data.columns": NAMED, "say": lambda text: None}  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """30 steps in three episodes, with a column that has another value in each of them."""
    rng, steps = np.random.default_rng(0), np.arange(30)
    values = {"x": rng.normal(size=30), "action": steps % 2, "reward": rng.normal(size=30), "done": steps % 10 == 9}
    pq.write_table(pa.table(values | {"time": 0.1 * steps}), tmp_path / "steps.parquet")
    return tmp_path / "steps.parquet"


def test_training_refuses_them_before_it_makes_a_folder(table: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"steps\.parquet") as error:
        reverie.train("discrete_bcq", data=table, run=tmp_path / "run", updates=1, **SMALL)
    assert WRONG in str(error.value)
    assert ADVICE in str(error.value)
    assert not (tmp_path / "run").exists()
