"""Losses of goal-conditioned learners against direct definitions; recordings of the authors' code hold the rest."""

import pytest
import torch

from reverie.objectives.goals import INTERVALS, contrastive_loss, interval_distance


def union_length(intervals):
    """The length of the union of pairs of ends."""
    total, end = 0.0, -float("inf")
    for low, high in sorted(pair for pair in intervals if pair[0] < pair[1]):
        total += max(0.0, high - max(low, end))
        end = max(end, high)
    return total


def test_interval_distance_is_the_length_of_unions_and_a_quasimetric():
    torch.manual_seed(0)
    a, b, c = torch.randn(3, 50, 3 * INTERVALS)
    mixture = torch.tensor(0.3)
    components = [
        [union_length(zip(x.tolist(), y.tolist(), strict=True)) for x, y in zip(s.split(8), g.split(8), strict=True)]
        for s, g in zip(a, b, strict=True)
    ]
    expected = [0.3 * sum(part) / 3 + 0.7 * max(part) for part in components]
    found = interval_distance(a, b, mixture)
    torch.testing.assert_close(found, torch.tensor(expected))
    assert (interval_distance(a, c, mixture) <= found + interval_distance(b, c, mixture) + 1e-5).all()
    assert not interval_distance(a, a, mixture).any()
    assert not torch.allclose(found, interval_distance(b, a, mixture))


def test_gradients_of_interval_distances_are_those_of_the_outer_ends():
    """1 of an end of the union, -1 of its beginning, and 0 of what lies inside or is empty, such as s to s."""
    start, goal = torch.zeros(INTERVALS), torch.zeros(INTERVALS)
    start[:4], goal[:4] = torch.tensor([0.0, 1.0, 5.0, 9.0]), torch.tensor([2.0, 3.0, 7.0, 8.0])
    start[4:], goal[4:] = 10.0, 10.0
    start.requires_grad_(), goal.requires_grad_()
    distance = interval_distance(start, goal, torch.tensor(0.5))
    assert distance.item() == pytest.approx(5)  # from 0 to 3, from 5 to 7
    distance.backward()
    assert start.grad.tolist() == [-1, 0, -1, 0, 0, 0, 0, 0]
    assert goal.grad.tolist() == [0, 1, 1, 0, 0, 0, 0, 0]


def test_contrastive_loss_is_the_mean_over_pairs():
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 3)
    p = logits.sigmoid()
    terms = [-(p[k, i, j] if i == j else 1 - p[k, i, j]).log() for k in range(2) for i in range(3) for j in range(3)]
    torch.testing.assert_close(contrastive_loss(logits), torch.stack(terms).mean())
