"""Layers that are prepared once for all steps of a dream compute what the definitions do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from reverie.algos import imagination
from reverie.core.specs import ActionPart, ActionSpec
from reverie.kernels import dreams, steps
from reverie.kernels.compiler import load_kernels
from reverie.kernels.steps import REPLACED_METHODS, prepared_class
from reverie.nn.actor import ActorConfig, DreamerActor
from reverie.nn.dense_rssm import CELLS, Categorical, DenseRSSMConfig, Gaussian
from reverie.nn.rssm import RSSMConfig

RSSM = {"deter": 24, "hidden": 10, "stoch": 3, "classes": 5, "blocks": 3}
DENSE = {"deter": 24, "hidden": 10, "stoch": 3, "latent": Categorical(5)}
LAYERS = {f"{net}_layers": count for net, count in (("recurrent", 2), ("posterior", 2), ("prior", 0))}
MODELS = {
    "rssm": RSSMConfig(**RSSM), "other layers": RSSMConfig(**RSSM | LAYERS),
    "no layers": RSSMConfig(**RSSM | dict.fromkeys(LAYERS, 0)),
    **{cell: DenseRSSMConfig(**DENSE, cell=cell) for cell in CELLS},
    **{f"two of {cell}": DenseRSSMConfig(**DENSE, cell=cell, layers=2) for cell in CELLS},
    "gaussian": DenseRSSMConfig(**DENSE | {"latent": Gaussian()}, cell="keras_gru", norm="layer"),
}  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16]
ACTIONS = ActionSpec(
    parts={"move": ActionPart(kind="continuous", size=1), "push": ActionPart(kind="categorical", classes=(3,))}
)


@pytest.fixture(params=MODELS)
def rssm(request):
    torch.manual_seed(0)
    model = MODELS[request.param].build(embed=7, action=4)
    for p in model.parameters():
        torch.nn.init.normal_(p, 1.0 if p.ndim == 1 else 0.0, 0.3)
    return model


def sequence(rssm, dtype):
    """A state ``[3, ...]`` and rows ``[3, 5, ...]`` after it, with beginnings of episodes inside."""
    torch.manual_seed(1)
    start = rssm.initial(3, dtype).map(torch.rand_like)
    x, action = (torch.randn(3, 5, width, requires_grad=True) for width in (7, 4))
    return start, x.to(dtype).detach().requires_grad_(), action, torch.rand(3, 5) < 0.3


def draw_by_seed(model):
    """Let the model draw the same whatever the probabilities, so that rounding leads to no other classes."""
    generator = torch.Generator().manual_seed(2)
    if model.cfg.classes == 1:
        model.draw = lambda mean: torch.randn(mean.shape, generator=generator)
    else:
        model.draw = lambda probs: torch.randint(probs.shape[-1], probs.shape[:-1], generator=generator)


def gradients(outputs: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    torch.manual_seed(3)
    weights = [torch.randn(x.shape).to(x.dtype) for x in outputs]
    grads = torch.autograd.grad(outputs, inputs, weights, allow_unused=True)
    return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(inputs, grads, strict=True)]


def assert_alike(both, inputs, dtype):
    """Two lists of tensors, and their gradients with respect to the inputs, differ by rounding."""
    for ours, theirs in zip(both, [gradients(outputs, inputs) for outputs in both], strict=True):
        ours += theirs
    if dtype is torch.float32:
        torch.testing.assert_close(*both, rtol=1e-4, atol=1e-4)
    else:
        assert all((a - b).norm() <= 0.1 * b.norm() + 1e-3 for a, b in zip(*both, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_imagining(rssm, dtype):
    actor, both = DreamerActor(rssm.feature_width, ACTIONS, ActorConfig(units=8)), []
    start = rssm.observe(*sequence(rssm, dtype))[0].map(lambda x: x.detach()[:, :2])  # [3, 2, ...]
    world = SimpleNamespace(rssm=rssm, predict_mask=lambda feature: feature[..., :4] < 1.5)
    for imagine in (dreams.imagine_prepared, imagination.imagine.definition):
        draw_by_seed(rssm)
        torch.manual_seed(4)
        dream = imagine(world, actor, start, 3, 2)
        assert dream.feature.shape == (4, 3, 2, rssm.feature_width)
        both.append([dream.policy.log_prob(dream.action[:2].detach()), dream.policy.entropy()])
        assert torch.equal(dream.legal, world.predict_mask(dream.feature))
    assert_alike(both, [*actor.parameters(), *rssm.parameters()], dtype)


@pytest.mark.skipif(load_kernels() is None, reason="no C compiler")
def test_imagining_in_c():
    """States, actions and the policy are those of the definition, from the same random numbers."""
    torch.manual_seed(0)
    rssm, seen = RSSMConfig(**RSSM).build(embed=7, action=4), []
    actor = DreamerActor(rssm.feature_width, ACTIONS, ActorConfig(units=8))
    start = rssm.initial(6, torch.float32).map(lambda x: x.view(3, 2, *x.shape[1:]))
    world = SimpleNamespace(rssm=rssm, predict_mask=None)
    for imagine in (dreams.imagine_prepared, imagination.imagine.definition):
        torch.manual_seed(4)
        dream = imagine(world, actor, start, 5)
        seen.append([dream.feature, dream.action, dream.policy.entropy()])
    torch.testing.assert_close(*seen, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", REPLACED_METHODS)
@pytest.mark.parametrize("name", ["rssm", "keras_gru"])
def test_methods_of_ones_own_run_the_definition(name, method):
    model = MODELS[name].build(embed=7, action=4)
    assert prepared_class(model) is not None
    kind = type(model)
    inherits = type("Inherits", (kind,), {"note": None})
    replaces = type("Replaces", (kind,), {method: lambda self, *given: getattr(kind, method)(self, *given)})
    assert [prepared_class(one(7, 4, model.cfg)) is None for one in (inherits, replaces)] == [False, True]
    setattr(model, method, getattr(model, method))
    assert prepared_class(model) is None


@pytest.mark.parametrize("net", ["posterior", "prior_net"])
@pytest.mark.parametrize("name", ["rssm", "keras_gru"])
def test_networks_of_ones_own_run_the_definition(name, net):
    """They need no layer that is called ``first``."""
    model = MODELS[name].build(embed=7, action=4)
    parts = getattr(model, net)
    setattr(model, net, nn.Sequential(parts.first, *parts.rest))
    assert prepared_class(model) is None
    start = model.initial(2, torch.float32)
    latent, _ = model.observe(start, torch.ones(2, 3, 7), torch.ones(2, 3, 4), torch.zeros(2, 3, dtype=torch.bool))
    assert latent.deter.shape[:2] == (2, 3)


class Doubling(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *inputs):
        return 2 * self.layer(*inputs)


@pytest.mark.parametrize("place", ["recurrent", "recurrent_norms", "in_deter"])
def test_a_module_of_ones_own_among_the_layers_is_called(place):
    model = MODELS["rssm"].build(embed=7, action=4)
    layers = getattr(model, place)
    layers[0] = Doubling(layers[0])
    latent, action, latents = sequence(model, torch.float32)[0], torch.ones(3, 4), []
    for one in (steps.prepare(model, torch.float32), model):
        draw_by_seed(model)
        latents.append(one.imagine(latent, action).deter)
    torch.testing.assert_close(*latents)
