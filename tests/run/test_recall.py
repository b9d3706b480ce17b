"""What policies would do in rows that others have lived: those that carry something see whole episodes in order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from reverie.core.errors import DataError
from reverie.core.types import Step
from reverie.run.recall import actions_of, carries, order_of

LENGTHS = (3, 1, 5, 2, 2, 4)


def columns(lengths=LENGTHS):
    total = sum(lengths)
    starts = np.cumsum([0, *lengths[:-1]])
    first, last = np.zeros(total, bool), np.zeros(total, bool)
    first[starts], last[np.cumsum(lengths) - 1] = True, True
    action = np.arange(1, total + 1, dtype=np.float32)[:, None] * ~last[:, None]
    return {
        "obs/row": np.arange(total, dtype=np.float32)[:, None], "action": action, "reward": np.zeros(total, np.float32),
        "is_first": first, "is_last": last, "is_terminal": np.zeros(total, bool),
    }  # fmt: skip


class Sums:
    """Says what was done in its episode so far, in sum, and the row that it sees."""

    def initial(self, num_envs):
        return torch.full((num_envs,), 1e6)

    def act(self, step: Step, state, mode):
        total = state.masked_fill(step.is_first, 0.0)
        return torch.stack([total, step.obs["row"][:, 0]], -1), total

    def override(self, state, action):
        return state + action[:, 0]


class Sees(Sums):
    """Says the row that it sees, and a random number."""

    def initial(self, num_envs):
        return None

    def act(self, step: Step, state, mode):
        return torch.stack([torch.rand(len(step)), step.obs["row"][:, 0]], -1), None

    def override(self, state, action):
        return None


def test_what_was_done_is_what_a_policy_carries():
    data = columns()
    found = actions_of(Sums(), data, 2)[:, 0]
    total = 0.0
    for t in range(len(found)):
        total = 0.0 if data["is_first"][t] else total
        assert found[t].tolist() == [total, t]
        total += float(data["action"][t, 0])


@pytest.mark.parametrize("rows", [1, 17, 1024, 1025, 2500])
def test_every_row_has_its_own_actions(rows):
    found = actions_of(Sees(), columns((rows,)), 2, draws=3)
    assert found.shape == (rows, 3, 2)
    assert (found[..., 1] == np.arange(rows)[:, None]).all()
    assert (found[:, 0, 0] != found[:, 1, 0]).any()


def test_whether_something_is_carried():
    no = torch.zeros(1, dtype=torch.bool)
    step = Step(obs={"row": torch.zeros(1, 1)}, reward=torch.zeros(1), is_first=~no, is_last=no, is_terminal=no)
    assert carries(Sums(), step, "eval")
    assert not carries(Sees(), step, "eval")


@pytest.mark.parametrize("lengths", [LENGTHS, (7,), (1,) * 600, (1000, 1, 1), (3,) * 40])
def test_orders_hold_every_row_once_and_little_else(lengths):
    first = columns(lengths)["is_first"]
    order = order_of(first, carried=True)
    assert sorted(order[order >= 0].tolist()) == list(range(len(first)))
    assert (order >= 0).mean() > 0.45
    for column in order.T:
        rows = column[column >= 0]
        assert (column[: len(rows)] == rows).all()
        assert first[rows[0]]
        breaks = rows[1:][np.diff(rows) != 1]
        assert first[breaks].all()


def test_actions_of_another_width_are_refused():
    with pytest.raises(DataError, match=r"actions are \(2,\) for each row, those of the data \(3,\)"):
        actions_of(Sees(), columns(), 3)
