"""A small RSSM that filters random rows, and its loop, against which fast paths are held."""

import torch

from reverie.nn.rssm import RSSMConfig

UNEVEN = {
    "odd": {"deter": 72, "hidden": 40, "stoch": 3, "classes": 7, "blocks": 3},
    "one block": {"deter": 33, "hidden": 33, "stoch": 1, "classes": 2, "blocks": 1},
}


def filtered(sizes):
    """A model, rows of three sequences of six steps, and where they start, on PyTorch's default device."""
    rssm = RSSMConfig(**sizes).build(24, 3).to(torch.get_default_device())
    for p in rssm.parameters():
        torch.nn.init.normal_(p, 1.0 if p.ndim == 1 else 0.0, 0.2)
    embed, action = torch.randn(3, 6, 24, requires_grad=True), torch.randn(3, 6, 3, requires_grad=True)
    is_first = torch.rand(3, 6) < 0.3
    start = rssm.initial(3, torch.float32).map(torch.rand_like)
    return rssm, start, embed, action, is_first


def drawer(numbers):
    """Chooses classes by the given uniform numbers, one tensor a step."""
    left = iter(numbers)

    def choose(probs):
        cumulative = probs.detach().cumsum(-1)
        return (cumulative < next(left).unsqueeze(-1) * cumulative[..., -1:]).sum(-1)

    return choose


def assert_near(found, exact, rtol=1e-4, atol=1e-5):
    """Each is near its exact one; ``atol`` is relative to the largest number of that."""
    for ours, theirs in zip(found, exact, strict=True):
        most = float(theirs.detach().abs().max())
        torch.testing.assert_close(ours.to(theirs.dtype), theirs, rtol=rtol, atol=atol * most)


def assert_observes_as_the_loop(case, without=lambda: None, atol=1e-6):
    """States, probabilities and gradients, in a fast way and, after ``without()``, step by step."""
    rssm, start, embed, action, is_first = case
    torch.manual_seed(1)
    fast = rssm.observe(start, embed, action, is_first)
    without()
    torch.manual_seed(1)
    slow = rssm.observe(start, embed, action, is_first, drawer(torch.rand(6, 3, rssm.cfg.stoch)))
    torch.testing.assert_close([*fast[0], fast[1]], [*slow[0], slow[1]], rtol=1e-5, atol=atol)
    assert_near(*(gradients(rssm, (embed, action), *found) for found in (fast, slow)))


@torch.no_grad()
def assert_dreams_as_the_loop(rssm, rows, without=lambda: None, atol=1e-6):
    feature = torch.rand(rows, rssm.feature_width)
    action, out, slow = 2 * torch.randn(rows, 3), torch.empty_like(feature), torch.empty_like(feature)
    cell = rssm.cell(torch.float32)
    torch.manual_seed(2)
    rssm.dream_step(feature, action, out, cell)
    without()
    torch.manual_seed(2)
    rssm.dream_step(feature, action, slow, cell, drawer([torch.rand(rows, rssm.cfg.stoch)]))
    torch.testing.assert_close(out, slow, rtol=1e-5, atol=atol)


@torch.no_grad()
def assert_hands_nan_on(case):
    rssm, start, embed, action, is_first = case
    embed = embed.detach().clone()
    embed[0, 2] = torch.nan
    latent, probs = rssm.observe(start, embed, action, torch.zeros_like(is_first))
    assert probs[0, 2].isnan().all()
    assert latent.deter[1:].isfinite().all()


def gradients(rssm, inputs, latent, probs):
    torch.manual_seed(3)
    outputs = [latent.deter, latent.stoch, probs]
    wanted = [*inputs, *rssm.in_deter.parameters(), *rssm.in_stoch.parameters(), *rssm.in_action.parameters(),
              *rssm.recurrent.parameters(), *rssm.recurrent_norms.parameters(), *rssm.gates.parameters(),
              *rssm.posterior.parameters()]  # fmt: skip
    return torch.autograd.grad(outputs, wanted, [torch.randn(x.shape).to(x.dtype) for x in outputs])
