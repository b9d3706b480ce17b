"""What several steps of Adam do, by whatever does them: a function, or replays of it."""

import torch
from torch import nn

from reverie.nn.adam import Adam


def the_learning_rate_falls_along_a_cosine(several):
    """As PyTorch's schedule; then it is 0, and what was learned stays."""
    mine, theirs = (nn.Parameter(torch.linspace(-1, 1, 5)) for _ in range(2))
    ours, others = Adam([mine], 0.1, cosine=4), torch.optim.Adam([theirs], 0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(others, T_max=4)
    seen = []
    for _ in several(lambda: ours.step((mine + 0.3).square().sum()), 6):
        if len(seen) < 4:
            others.zero_grad()
            (theirs + 0.3).square().sum().backward()
            others.step()
            schedule.step()
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
        seen.append(mine.detach().clone())
    assert torch.equal(seen[3], seen[5])
    assert not torch.equal(seen[2], seen[3])


def decoupled_weight_decay_is_that_of_pytorch(several):
    """Also with another momentum."""
    mine, theirs = (nn.Parameter(torch.linspace(-1, 1, 5)) for _ in range(2))
    ours = Adam([mine], 0.1, decoupled_decay=0.3, beta1=0.5)
    others = torch.optim.AdamW([theirs], 0.1, betas=(0.5, 0.999), weight_decay=0.3)
    for _ in several(lambda: ours.step((mine + 0.3).square().sum()), 4):
        others.zero_grad()
        (theirs + 0.3).square().sum().backward()
        others.step()
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def adam_counts_updates_beyond_the_integers_of_float32(several):
    """It also goes on from a checkpoint whose count is float32, as it was before."""
    optim = Adam([nn.Parameter(torch.ones(3))], 0.1, cosine=2**25)
    optim.load_state_dict(optim.state_dict() | {"updates": torch.tensor(2.0**24)})
    assert len(list(several(lambda: optim.apply([torch.ones(3)]), 3))) == 3
    assert int(optim.updates) == 2**24 + 3


CASES = [
    the_learning_rate_falls_along_a_cosine,
    decoupled_weight_decay_is_that_of_pytorch,
    adam_counts_updates_beyond_the_integers_of_float32,
]
