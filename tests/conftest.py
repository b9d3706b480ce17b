"""What all tests share."""

from pathlib import Path

import numpy as np
import pytest
import torch

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def _one_thread():
    """Small tensors are faster on one thread, and tests then do not fight over cores."""
    torch.set_num_threads(1)


@pytest.fixture
def golden():
    """Open a recording by file name."""
    return lambda name: np.load(GOLDEN / name)
