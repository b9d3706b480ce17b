"""A small RSSM that filters random rows, and its definition, against which kernels are held."""

import torch

from reverie.kernels import rssm as kernel
from reverie.kernels import steps
from reverie.nn.rssm import RSSMConfig
from reverie.nn.state_space import StateSpaceModel

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


def assert_observes_as_defined(case, without=lambda: None, atol=1e-6):
    """States, probabilities and gradients: by the kernel and, after ``without()``, the definition."""
    rssm, start, *rows = case
    assert kernel.supports_observe_compiled(rssm, start, *rows)
    torch.manual_seed(1)
    fast = rssm.observe(start, *rows)
    of_fast = gradients(rssm, rows[:2], *fast)
    without()
    torch.manual_seed(1)
    rssm.draw = drawer(torch.rand(6, 3, rssm.cfg.stoch))
    slow = StateSpaceModel.observe.definition(rssm, start, *rows)
    torch.testing.assert_close([*fast[0], fast[1]], [*slow[0], slow[1]], rtol=1e-5, atol=atol)
    assert_near(of_fast, gradients(rssm, rows[:2], *slow))


@torch.no_grad()
def assert_dreams_as_defined(rssm, count, without=lambda: None, atol=1e-6):
    """One step under the prior of ``count`` rows: see above."""
    latent, action = rssm.split(torch.rand(count, rssm.feature_width)), 2 * torch.randn(count, 3)
    assert kernel.supports_dream_step(rssm, latent)
    prepared, out = steps.prepare(rssm, torch.float32), torch.empty_like(latent.feature)
    torch.manual_seed(2)
    kernel.dream_step(rssm, prepared, latent.feature, action, out)
    without()
    for model in (prepared, rssm):
        torch.manual_seed(2)
        rssm.draw = drawer([torch.rand(count, rssm.cfg.stoch)])
        torch.testing.assert_close(out, model.imagine(latent, action).feature, rtol=1e-5, atol=atol)


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
