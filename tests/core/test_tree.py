"""Trees of tensors are taken apart and put together again."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from reverie.core.errors import RunError
from reverie.core.tree import flatten_named, unflatten_named


class Pair(NamedTuple):
    left: torch.Tensor
    right: object


@dataclass(frozen=True)
class Box:
    inside: torch.Tensor
    name: str = "box"


def tree(value, dtype: torch.dtype = torch.float32):
    x = torch.full((2,), value, dtype=dtype)
    return {"a": Pair(x, [x + 1, None, 3]), "b": Box(x + 2), "c": (x + 3, "text")}


def test_filled_has_the_types_of_the_template_and_the_values_of_the_tensors():
    saved = flatten_named(tree(5.0, torch.float64))
    assert {place: x[0].item() for place, x in saved.items()} == {"a.left": 5, "a.right.0": 6, "b.inside": 7, "c.0": 8}
    out = unflatten_named(tree(0.0), saved)
    assert isinstance(out["a"], Pair)
    assert (out["b"].name, out["c"][1], out["a"].right[1:]) == ("box", "text", [None, 3])
    assert [leaf[0].item() for leaf in flatten_named(out).values()] == [5.0, 6.0, 7.0, 8.0]
    assert all(leaf.dtype == torch.float32 for leaf in flatten_named(out).values())


def test_tensors_by_name_need_no_order():
    one, two = torch.ones(2), torch.zeros(2)
    saved = flatten_named({"obs": {"a": one, "b": two}, "reward": one})
    assert list(saved) == ["obs.a", "obs.b", "reward"]
    out = unflatten_named({"reward": two, "obs": {"b": one, "a": two}}, saved)
    torch.testing.assert_close(out["obs"], {"a": one, "b": two})
    with pytest.raises(RunError, match="the tensors have shapes"):
        unflatten_named({"obs": {"c": one}}, saved)
