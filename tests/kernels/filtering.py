"""A small RSSM that filters random rows, for tests that hold fast paths against its loop."""

import torch

from reverie.nn.rssm import RSSMConfig


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


def numbers(seed, *shape):
    torch.manual_seed(seed)
    return torch.rand(*shape)


def gradients(rssm, inputs, latent, probs):
    torch.manual_seed(3)
    outputs = [latent.deter, latent.stoch, probs]
    wanted = [*inputs, *rssm.in_deter.parameters(), *rssm.in_stoch.parameters(), *rssm.in_action.parameters(),
              *rssm.recurrent.parameters(), *rssm.recurrent_norms.parameters(), *rssm.gates.parameters(),
              *rssm.posterior.parameters()]  # fmt: skip
    return torch.autograd.grad(outputs, wanted, [torch.randn(x.shape).to(x.dtype) for x in outputs])
