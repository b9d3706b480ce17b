"""Batches, and those out of TorchRL's samples; that these are what TorchRL makes is for a test with TorchRL to say."""

import dataclasses

import pytest
import torch

from reverie.core.errors import DataError
from reverie.core.types import FLAGS, Batch, Window


def batch():
    flags = torch.zeros(2, 3, dtype=torch.bool)
    return Batch(
        obs={"x": torch.zeros(2, 3, 4)}, action=torch.zeros(2, 3, 1), reward=torch.zeros(2, 3), is_first=flags,
        is_last=flags, is_terminal=flags, weight=torch.ones(2), index=torch.arange(2), extras={"h": torch.zeros(2, 3)},
    )  # fmt: skip


def test_whatever_part_lies_elsewhere_is_moved():
    there = batch().to("meta")
    for field in dataclasses.fields(Batch):  # all but one of them are there
        mixed = dataclasses.replace(there, **{field.name: getattr(batch(), field.name)})
        devices = set()
        mixed.to("meta").map(lambda x: (devices.add(x.device.type), x)[1])  # noqa: B023  # called at once
        assert devices == {"meta"}, field.name


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
def test_a_batch_of_other_types_or_shapes_is_refused(changes, said):
    batch().check(THREE)
    with pytest.raises(DataError, match=said):
        dataclasses.replace(batch(), **changes).check(THREE)


def test_a_batch_without_the_context_rows_of_its_windows_is_refused():
    with pytest.raises(DataError, match=r"shape \[2, 2\], .* learner\.window\.rows = 3 rows"):
        batch().slice_time(1).check(THREE)
    batch().slice_time(1).check(Window(batch=2, length=8))  # no rows are lost without context


def test_columns_become_a_batch():
    made = batch()
    columns = {"obs/x": made.obs["x"], "extras/latent": torch.zeros(2, 3)}
    columns |= {name: getattr(made, name) for name in ("action", "reward", *FLAGS)}
    found = Batch.from_columns(columns, made.index, made.extras)
    torch.testing.assert_close(dataclasses.asdict(found), dataclasses.asdict(made))


# Out of TorchRL's samples


class Sample(dict):  # as much of a ``TensorDict`` as is needed
    device = None

    @property
    def batch_size(self):
        return self["action"].shape[:-1]

    def unsqueeze(self, dim):
        return Sample({k: v.unsqueeze(dim) for k, v in self.items()})


def steps(*size):
    """Steps as TorchRL's collectors give them: rewards and flags have a last axis of one."""
    no = torch.zeros(*size, 1, dtype=torch.bool)
    led = {"observation": torch.randn(*size, 3), "reward": torch.randn(*size, 1), "step_count": no.long()}
    led |= {"done": no.clone(), "terminated": no.clone(), "truncated": no.clone()}
    here = {"observation": torch.randn(*size, 3), "action": torch.rand(*size, 2)}
    return Sample(here, is_init=no, step_count=no.long(), next=Sample(led))


def test_steps_become_windows_of_two_rows():
    sample = steps(4)
    sample["next"]["done"][1:3] = True
    sample["next"]["terminated"][2] = True
    batch = Batch.from_tensordict(sample)
    assert (batch.shape, list(batch.obs)) == ((4, 2), ["observation"])
    shown = torch.stack([sample["observation"], sample["next"]["observation"]], 1)
    assert torch.equal(batch.obs["observation"], shown)
    assert torch.equal(batch.action[:, 0], sample["action"])
    assert torch.equal(batch.reward[:, 1:], sample["next"]["reward"])
    assert batch.is_last.tolist() == [[False, x] for x in (False, True, True, False)]
    assert batch.is_terminal.tolist() == [[False, x] for x in (False, False, True, False)]
    assert not batch.action[:, 1].any()
    assert (batch.weight.tolist(), batch.index.tolist()) == ([1.0] * 4, [0, 1, 2, 3])


def test_slices_become_windows_of_one_row_more():
    sample = steps(2, 5)
    sample["next"]["observation"][:, :-1] = sample["observation"][:, 1:]
    sample["is_init"] = sample["is_init"].clone()
    sample["is_init"][0, 0] = True
    sample["priority_weight"], sample["index"] = torch.tensor([[0.5] * 5, [1.0] * 5]), torch.arange(10).view(2, 5)
    batch = Batch.from_tensordict(sample)
    assert batch.shape == (2, 6)
    shown = torch.cat([sample["observation"], sample["next"]["observation"][:, -1:]], 1)
    assert torch.equal(batch.obs["observation"], shown)
    assert torch.equal(batch.reward[:, 1:], sample["next"]["reward"][..., 0])
    assert batch.is_first.nonzero().tolist() == [[0, 0]]
    assert (batch.weight.tolist(), batch.index.tolist()) == ([0.5, 1.0], [0, 5])


def test_an_end_within_a_slice_is_refused():
    sample = steps(2, 5)
    sample["next"]["done"][1, 4] = True
    Batch.from_tensordict(sample)
    sample["next"]["done"][1, 3] = True
    with pytest.raises(DataError, match=r"inside a slice\. Sample slices of a single trajectory"):
        Batch.from_tensordict(sample)
