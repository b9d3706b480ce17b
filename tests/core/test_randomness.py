"""Seeds of everything random, and generators that go on where they were."""

from __future__ import annotations

import torch

from reverie.core.randomness import RngState, derived_seeds, reproducible


def test_seeds_differ_and_only_some_move_with_the_start() -> None:
    first, again, later, other = derived_seeds(1), derived_seeds(1), derived_seeds(1, 500), derived_seeds(2)
    assert first == again
    assert len(set(first.values())) == len(first)
    assert all(first[name] == later[name] for name in ("algo", "evaluation", "test", "confirmation"))
    assert all(first[name] != later[name] for name in ("env", "replay", "collector", "global"))
    assert all(first[name] != other[name] for name in first)


def test_randomness_goes_on_where_it_was_saved() -> None:
    state = RngState().state_dict()
    expected = torch.rand(3)
    RngState().load_state_dict(state)
    assert torch.equal(torch.rand(3), expected)


def test_reproducible_leaves_no_trace() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with reproducible(3):
        inside = torch.rand(2)
    assert torch.equal(torch.rand(2), expected)
    with reproducible(3):
        assert torch.equal(torch.rand(2), inside)
