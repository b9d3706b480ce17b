"""What learners share, between ranks that are told what the others have."""

import torch

from reverie.core.collectives import (
    all_gather,
    all_reduce_mean,
    clamp_min_across_ranks,
    is_distributed,
    mean_across_ranks,
    single_rank,
    use_ranks,
)


class Beside:  # two ranks, of which the other has what is given here
    rank, count = 0, 2

    def __init__(self, other):
        self.other = torch.tensor(other)

    def average(self, tensors):
        for x in tensors:
            x.copy_((x + self.other) / 2)

    def gather(self, x):
        return torch.stack([x, self.other])


def test_one_learner_has_what_it_is_given_and_several_the_mean():
    x = torch.tensor(1.0, requires_grad=True)
    assert mean_across_ranks(x) is x
    assert all_gather(x).tolist() == [1.0]
    assert not is_distributed()
    with use_ranks(Beside(4.0)):
        assert is_distributed()
        assert (mean_across_ranks(x).item(), all_gather(x).tolist()) == (2.5, [1.0, 4.0])
        own = torch.tensor(2.0)
        all_reduce_mean([own])
        assert own.item() == 3.0
        with single_rank():
            assert mean_across_ranks(x) is x
        assert mean_across_ranks(x).item() == 2.5
    assert x.item() == 1.0


def test_a_bound_of_the_mean_of_all_ranks_decides_for_all():
    """max((1 + 4) / 2, 2) has a gradient by both, though 1 is below 2; max((1 + 2) / 2, 2) by none."""
    for other, value, slope in ((4.0, 1.0, 1.0), (2.0, 2.0, 0.0)):
        x = torch.tensor(1.0, requires_grad=True)
        with use_ranks(Beside(other)):
            found = clamp_min_across_ranks(x, 2.0)
        found.backward()
        assert (found.item(), x.grad.item()) == (value, slope)
