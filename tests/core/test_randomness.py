"""Seeds of everything random, and generators that go on where they were."""

import torch

from reverie.core.seeding import derived_seeds, seeded_rng


def test_seeds_differ_and_only_some_move_with_the_start():
    first, again, later, other = derived_seeds(1), derived_seeds(1), derived_seeds(1, 500), derived_seeds(2)
    assert first == again
    assert len(set(first.values())) == len(first)
    assert all(first[name] == later[name] for name in ("algo", "evaluation", "test", "confirmation"))
    assert all(first[name] != later[name] for name in ("env", "replay", "collector", "global"))
    assert all(first[name] != other[name] for name in first)


def test_reproducible_leaves_no_trace():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with seeded_rng(3):
        inside = torch.rand(2)
    assert torch.equal(torch.rand(2), expected)
    with seeded_rng(3):
        assert torch.equal(torch.rand(2), inside)
