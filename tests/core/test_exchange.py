"""Batches out of TorchRL's samples; that these are what TorchRL makes is for a test with TorchRL to say."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reverie.core.errors import DataError
from reverie.core.types import Batch


class Sample(dict[str, Any]):
    """As much of a ``TensorDict`` as is needed."""

    device = None

    @property
    def batch_size(self) -> torch.Size:
        return self["action"].shape[:-1]

    def unsqueeze(self, dim: int) -> Sample:
        return Sample({k: v.unsqueeze(dim) for k, v in self.items()})


def steps(*size: int) -> Sample:
    """Steps as TorchRL's collectors give them: rewards and flags have a last axis of one."""
    no = torch.zeros(*size, 1, dtype=torch.bool)
    led = {"observation": torch.randn(*size, 3), "reward": torch.randn(*size, 1), "step_count": no.long()}
    led |= {"done": no.clone(), "terminated": no.clone(), "truncated": no.clone()}
    here = {
        "observation": torch.randn(*size, 3),
        "action": torch.rand(*size, 2),
        "is_init": no,
        "step_count": no.long(),
    }
    return Sample(here, next=Sample(led))


def test_steps_become_windows_of_two_rows():
    sample = steps(4)
    sample["next"]["done"][1:3] = True
    sample["next"]["terminated"][2] = True
    batch = Batch.from_tensordict(sample)
    assert batch.shape == (4, 2)
    assert list(batch.obs) == ["observation"]
    assert torch.equal(batch.obs["observation"][:, 0], sample["observation"])
    assert torch.equal(batch.obs["observation"][:, 1], sample["next"]["observation"])
    assert torch.equal(batch.action[:, 0], sample["action"])
    assert torch.equal(batch.reward[:, 1:], sample["next"]["reward"])
    assert batch.is_last.tolist() == [[False, x] for x in (False, True, True, False)]
    assert batch.is_terminal.tolist() == [[False, x] for x in (False, False, True, False)]
    assert not batch.action[:, 1].any()
    assert batch.weight.tolist() == [1.0] * 4
    assert batch.index.tolist() == [0, 1, 2, 3]


def test_slices_become_windows_of_one_row_more():
    sample = steps(2, 5)
    sample["next"]["observation"][:, :-1] = sample["observation"][:, 1:]
    sample["is_init"] = sample["is_init"].clone()
    sample["is_init"][0, 0] = True
    sample["priority_weight"], sample["index"] = torch.tensor([[0.5] * 5, [1.0] * 5]), torch.arange(10).view(2, 5)
    batch = Batch.from_tensordict(sample)
    assert batch.shape == (2, 6)
    assert torch.equal(batch.obs["observation"][:, :-1], sample["observation"])
    assert torch.equal(batch.obs["observation"][:, -1], sample["next"]["observation"][:, -1])
    assert torch.equal(batch.reward[:, 1:], sample["next"]["reward"][..., 0])
    assert batch.is_first.nonzero().tolist() == [[0, 0]]
    assert batch.weight.tolist() == [0.5, 1.0]
    assert batch.index.tolist() == [0, 5]


def test_an_end_within_a_slice_is_refused():
    sample = steps(2, 5)
    sample["next"]["done"][1, 4] = True
    Batch.from_tensordict(sample)
    sample["next"]["done"][1, 3] = True
    with pytest.raises(DataError, match=r"inside a slice\. Sample slices of a single trajectory"):
        Batch.from_tensordict(sample)
