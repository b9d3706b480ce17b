"""Metrics by attributes."""

import pytest
import torch

from reverie.core.types import Update

ONE = torch.ones(())
MEASURED = Update(metrics={"loss/two_words": ONE, "loss/parts/a": ONE * 2, "loss/parts/arm/angle": ONE * 3}).measured


def test_a_name_that_others_continue_is_a_mapping() -> None:
    assert MEASURED.loss_two_words is ONE
    assert MEASURED.loss_parts == {"a": 2, "arm/angle": 3}


def test_a_metric_that_the_update_does_not_have() -> None:
    with pytest.raises(AttributeError, match="no 'loss/part'; it measured loss/two_words, "):
        _ = MEASURED.loss_part
