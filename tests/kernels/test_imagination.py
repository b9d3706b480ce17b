"""Imagination on a GPU calls the networks that are there."""

from types import SimpleNamespace

import pytest
import torch

from dreamer_configs import build
from reverie.algos.imagination import imagine


class Residual(torch.nn.Sequential):
    """Two layers, of which the second adds to the first."""

    def forward(self, x):
        x = self[0](x)
        return x + torch.tanh(self[1](x))


class Wrapped(torch.nn.Module):
    """A module that is no sequence of layers."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("wrap", [Wrapped, lambda mlp: mlp])
def test_imagination_on_a_gpu_calls_an_mlp_of_ones_own(wrap, monkeypatch):
    learner, dreamt = build(), []
    rssm, actor = learner.world.rssm, learner.actor
    start = rssm.initial(4, torch.float32).map(lambda x: x.unflatten(0, (2, 2)))
    units = actor.mlp.width
    for p in actor.parts.parameters():
        torch.nn.init.normal_(p)  # so that other hidden layers lead to other actions
    actor.mlp = wrap(Residual(torch.nn.Linear(rssm.feature_width, units), torch.nn.Linear(units, units)))
    for on_gpu in (False, True):
        monkeypatch.setattr("reverie.kernels.dreams.gpu", SimpleNamespace(can_use_triton=lambda *_, yes=on_gpu: yes))
        torch.manual_seed(0)
        dreamt.append(imagine(learner.world, actor, start, 3))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*(dream[:2] for dream in dreamt), strict=True))
    each = [actor(feature).entropy() for feature in dreamt[1].feature[:-1]]  # one product of all would round otherwise
    assert all(torch.equal(dream.policy.entropy(), torch.stack(each)) for dream in dreamt)
