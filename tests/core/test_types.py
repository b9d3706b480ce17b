"""Batches go where they are sent, as a whole."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from reverie.core.errors import DataError
from reverie.core.types import FLAGS, Batch, Window


def batch() -> Batch:
    flags = torch.zeros(2, 3, dtype=torch.bool)
    return Batch(
        obs={"x": torch.zeros(2, 3, 4)}, action=torch.zeros(2, 3, 1), reward=torch.zeros(2, 3), is_first=flags,
        is_last=flags, is_terminal=flags, weight=torch.ones(2), index=torch.arange(2), extras={"h": torch.zeros(2, 3)},
    )  # fmt: skip


def test_whatever_part_lies_elsewhere_is_moved() -> None:
    names = [field.name for field in dataclasses.fields(Batch)]
    there = batch().to("meta")
    for name in names:  # all but one of them are there
        mixed = dataclasses.replace(there, **{name: getattr(batch(), name)})
        moved = mixed.to("meta")
        devices: set[str] = set()
        moved.map(lambda x: (devices.add(x.device.type), x)[1])  # noqa: B023  # called at once
        assert devices == {"meta"}, name


THREE = Window(batch=2, length=2, context=1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"is_last": torch.zeros(2, 3, dtype=torch.uint8)}, r"is_last \[2, 3\] torch\.uint8.*torch\.bool"),
        ({"is_first": torch.zeros(6, dtype=torch.bool)}, r"is_first \[6\] .*expected flags \[B, T\]"),
        ({"reward": torch.zeros(2, 3, 1)}, r"reward \[2, 3, 1\] "),
        ({"action": torch.zeros(2, 3)}, r"action \[2, 3\] .*action \[B, T, A\]"),
        ({"obs": {"x": torch.zeros(3, 2, 4)}}, r"x \[3, 2, 4\] .*observations \[B, T, \.\.\.\]"),
    ],
)
def test_a_batch_of_other_types_or_shapes_is_refused(changes, said) -> None:
    batch().check(THREE)
    with pytest.raises(DataError, match=said):
        dataclasses.replace(batch(), **changes).check(THREE)


def test_a_batch_without_the_context_rows_of_its_windows_is_refused() -> None:
    with pytest.raises(DataError, match=r"shape \[2, 2\], .* learner\.window\.rows = 3 rows"):
        batch().rows(1).check(THREE)
    batch().rows(1).check(Window(batch=2, length=8))  # no rows are lost without context


def test_columns_become_a_batch() -> None:
    made = batch()
    columns = {"obs/x": made.obs["x"], "extras/latent": torch.zeros(2, 3)}
    columns |= {name: getattr(made, name) for name in ("action", "reward", *FLAGS)}
    torch.testing.assert_close(
        dataclasses.asdict(Batch.of_columns(columns, made.index, made.extras)), dataclasses.asdict(made)
    )
