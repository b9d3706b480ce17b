"""Metrics with types: names, groups of names, and what belongs to another."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from reverie.core.types import Stats


@dataclass(frozen=True, kw_only=True)
class Some(Stats):
    loss_two_words: Tensor
    loss_parts: Mapping[str, Tensor]
    train_now_and_then: Tensor | None = None


ONE = torch.ones(())
TOLD = {"loss/two_words": ONE, "loss/parts/a": ONE * 2, "loss/parts/arm/angle": ONE * 3}


@pytest.mark.parametrize("metrics", [{"loss/two_words": ONE}, TOLD | {"loss/two_words/more": ONE}])
def test_what_belongs_to_another(metrics: dict[str, Tensor]) -> None:
    with pytest.raises(TypeError, match="argument"):
        Some.from_metrics(metrics)


def test_a_field_whose_default_is_made_may_be_absent() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Sometimes(Stats):
        loss_parts: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)

    assert Sometimes.from_metrics({}).loss_parts == {}
    assert Sometimes.from_metrics({"loss/parts/a": ONE}).loss_parts == {"a": ONE}
    assert list(Sometimes.names(required_only=True)) == []
