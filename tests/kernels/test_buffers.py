"""What is copied into fixed tensors and out of them."""

import pytest
import torch

from reverie.core.columns import view_in_block
from reverie.kernels import buffers
from reverie.kernels.buffers import MAX_SETS, InputBuffers, OutputBuffers


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def _functions(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(buffers, "load_kernels", lambda: None)


GAPS = {"none": lambda x: x, "column": lambda x: x.expand(3, 8).T[:, 0], "turned": lambda x: x.view(2, 4).T.reshape(8)}


@pytest.mark.parametrize("gaps", GAPS)
def test_copies_in_and_out_are_what_they_were_whatever_comes_later(gaps):
    to = [torch.zeros(8), torch.zeros((), dtype=torch.int64), torch.zeros(2, 2, dtype=torch.bool)]
    inlet, outlet, seen = InputBuffers(to), OutputBuffers(to), []
    for number in range(2 * MAX_SETS + 3):
        given = [GAPS[gaps](torch.randn(8)), torch.tensor(number), torch.rand(2, 2) < 0.5]
        inlet(given)
        seen.append((given, outlet()))
    for given, found in seen:
        torch.testing.assert_close(list(found), given, rtol=0, atol=0)


def test_fixed_tensors_may_have_gaps():
    x = torch.zeros(4, 6)
    inlet, outlet = InputBuffers([x[:, 2]]), OutputBuffers([x[:, 2]])
    inlet([torch.arange(4.0)])
    assert x[:, 2].tolist() == outlet()[0].tolist() == [0, 1, 2, 3]
    assert x.sum() == 6


def test_large_ones_are_handed_out_one_at_a_time_and_nothing_as_nothing():
    x = torch.randn(2**17)
    outlet = OutputBuffers([x])
    first = outlet()
    x.zero_()
    assert not torch.equal(first[0], outlet()[0])
    assert not outlet._ready
    assert list(OutputBuffers([])()) == []


def test_parts_of_one_block_are_copied_at_once_and_others_one_by_one():
    """On a GPU, the fixed tensors are parts of a block as those of the first batch are."""

    def parts(value):
        block = torch.full((16,), value)
        return [block[:6].view(2, 3), block[8:11]]

    block = torch.zeros(64, dtype=torch.uint8)
    targets = [view_in_block(block, x) for x in parts(0.0)]
    copy = InputBuffers(targets, block)
    copy(parts(1.0))
    assert block.view(torch.float32).tolist() == [1.0] * 16  # with what lies between
    copy([x.clone() + 1 for x in parts(1.0)])
    assert block.view(torch.float32).tolist() == [2.0] * 6 + [1.0] * 2 + [2.0] * 3 + [1.0] * 5
    copy([parts(3.0)[0], parts(4.0)[1]])
    assert [float(x.mean()) for x in targets] == [3.0, 4.0]
