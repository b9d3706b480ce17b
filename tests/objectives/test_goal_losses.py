"""Losses of goal-conditioned learners against direct definitions; recordings of the authors' code hold the rest."""

import pytest
import torch

from reverie.objectives.goals import INTERVALS, interval_distance


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
