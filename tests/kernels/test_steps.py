"""Layers that are prepared once for all steps compute what the definitions do, with the same gradients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reverie.algos import imagination
from reverie.core.specs import ActionPart, ActionSpec
from reverie.kernels import dreams, steps
from reverie.kernels.compiler import load_kernels
from reverie.kernels.steps import REPLACED_METHODS, prepared_class, step_linear
from reverie.nn.actor import ActorConfig, DreamerActor
from reverie.nn.dense_rssm import CELLS, Categorical, DenseRSSMConfig, Gaussian
from reverie.nn.rssm import RSSMConfig
from reverie.nn.state_space import StateSpaceModel

ROWS, WIDTH, BLOCKS, STEPS = 5, 6, 3, 4


SHAPES = {"dense": (WIDTH, WIDTH), "dense_bias": (WIDTH,), "block": (BLOCKS, 2, 2), "block_bias": (WIDTH,),
          "reads": (WIDTH, WIDTH), "into": (WIDTH, 2)}  # fmt: skip
"""A recurrence of two dense layers, one of which reads an input beside the state, and a block-diagonal one."""


def net(**changes: Any) -> SimpleNamespace:
    torch.manual_seed(0)
    made = {name: (torch.randn(shape) / 3).requires_grad_() for name, shape in SHAPES.items()}
    return SimpleNamespace(**made | changes)


def parameters(net: SimpleNamespace) -> list[Tensor]:
    return [x for x in vars(net).values() if x is not None and x.requires_grad]


def noted(net: SimpleNamespace, inputs: Tensor, h: Tensor) -> list[Tensor]:
    """States of all steps, with :func:`step_linear`."""
    dense, block = step_linear(net.dense, net.dense_bias), step_linear(net.block, net.block_bias)
    reads = step_linear(net.reads, None)
    base, states = inputs @ net.into.T, []
    for now in base:
        h = torch.tanh(block(torch.sin(dense(h) + reads(h.flip(-1), now))))
        states.append(h)
    return states


def plain(net: SimpleNamespace, inputs: Tensor, h: Tensor) -> list[Tensor]:
    """The same, as it would be written down."""
    bias = 0 if net.dense_bias is None else net.dense_bias
    matrix, states = torch.block_diag(*net.block), []
    for now in inputs @ net.into.T:
        x = torch.sin(h @ net.dense.T + bias + h.flip(-1) @ net.reads.T + now) @ matrix.T
        h = torch.tanh(x if net.block_bias is None else x + net.block_bias)
        states.append(h)
    return states


def inputs(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(STEPS, rows, 2, requires_grad=True), torch.randn(rows, WIDTH, requires_grad=True)


def assert_same_gradients(net, rows: int = ROWS, used: slice = slice(None), backward: int = 1) -> None:
    x, h = inputs(rows)
    wanted = [*parameters(net), x, h]
    found = []
    for run in (noted, plain):
        states = run(net, x, h)[used]
        loss = sum((state * torch.cos(state.detach() + i)).sum() for i, state in enumerate(states))
        for again in reversed(range(backward)):
            grads = torch.autograd.grad(loss, wanted, retain_graph=again > 0, allow_unused=True)
        found.append([*states, *grads])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.fixture(params=["", "old PyTorch"])
def _numbered(request, monkeypatch):
    if request.param:  # PyTorch's function that numbers backward passes is a private one
        monkeypatch.delattr(torch._C, "_current_graph_task_id")


@pytest.mark.usefixtures("_numbered")
def test_as_plain_autograd():
    """Few rows and many go through different products; some steps alone count; parts are absent or not learned."""
    for rows in (1, ROWS, 150):
        assert_same_gradients(net(), rows)
    assert_same_gradients(net(), backward=2)
    for used in (slice(0, 1), slice(1, 3), slice(-1, None)):
        assert_same_gradients(net(), used=used)
    for absent in ("dense_bias", "block_bias"):
        assert_same_gradients(net(**{absent: None}))
    for frozen in SHAPES:
        assert_same_gradients(net(**{frozen: getattr(net(), frozen).detach()}))


def two_sequences(run, model):
    """Each is noted for itself: they leave the sum of their gradients."""
    for rows in (ROWS, 3):
        sum(state.sum() for state in run(model, *inputs(rows))).backward()


def two_losses(run, model):
    """Gone back through one after the other, each adds its own."""
    states = run(model, *inputs())
    states[1].sum().backward(retain_graph=True)
    states[-1].square().sum().backward()


def a_pass_without_weights(run, model):
    """It adds nothing to theirs: as for the influence of the inputs on states; of steps no loss depends on."""
    x, h = inputs()
    states = run(model, x, h)
    torch.autograd.grad(states[-1].sum(), [x, h], retain_graph=True)
    states[1].sum().backward()


@pytest.mark.usefixtures("_numbered")
@pytest.mark.parametrize("passes", [two_sequences, two_losses, a_pass_without_weights])
def test_gradients_of_several_passes(passes):
    found = []
    for run in (noted, plain):
        passes(run, model := net())
        found.append([x.grad for x in parameters(model)])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_without_gradients_nothing_is_kept():
    with torch.no_grad():
        states = noted(net(), *inputs())
    assert not any(state.requires_grad for state in states)
    torch.testing.assert_close(states, plain(net(), *inputs()), rtol=1e-4, atol=1e-4)


def test_weights_that_no_loss_depends_on_have_no_gradient():
    weight = torch.randn(WIDTH, WIDTH, requires_grad=True)
    layer, (_, h) = step_linear(weight, None), inputs()
    layer(h)
    (grad,) = torch.autograd.grad(h.sum() + 0 * h.sum(), [weight], allow_unused=True)
    assert grad is None


# ---------------------------------------------------------------- state-space models

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
def test_observing(rssm, dtype):
    rows, both = sequence(rssm, dtype), []
    for observe in (steps.observe_prepared, StateSpaceModel.observe.definition):
        draw_by_seed(rssm)
        latent, stats = observe(rssm, *rows)
        assert [latent.deter.dtype, latent.stoch.dtype, stats.dtype] == [dtype, dtype, torch.float32]
        both.append([*latent, stats])
    assert_alike(both, [*rows[1:3], *rssm.parameters()], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_imagining(rssm, dtype):
    actor, both = DreamerActor(rssm.feature_width, ACTIONS, ActorConfig(units=8)), []
    start = steps.observe_prepared(rssm, *sequence(rssm, dtype))[0].map(lambda x: x.detach()[:, :2])  # [3, 2, ...]
    world = SimpleNamespace(rssm=rssm, predict_mask=lambda feature: feature[..., :4] < 1.5)
    for imagine in (dreams.imagine_prepared, imagination.imagine.definition):
        draw_by_seed(rssm)
        torch.manual_seed(4)
        dream = imagine(world, actor, start, 3, 2)
        assert dream.feature.shape == (4, 3, 2, rssm.feature_width)
        both.append([dream.policy.log_prob(dream.action[:2].detach()), dream.policy.entropy()])
        assert torch.equal(dream.legal, world.predict_mask(dream.feature))
    assert_alike(both, [*actor.parameters(), *rssm.parameters()], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_open_loop(rssm, dtype):
    start, _, action, _ = sequence(rssm, dtype)
    both = []
    for open_loop in (steps.open_loop_prepared, imagination.open_loop.definition):
        draw_by_seed(rssm)
        both.append([*open_loop(rssm, start, action)])
    tolerance = 1e-4 if dtype is torch.float32 else 3e-2
    torch.testing.assert_close(*both, rtol=tolerance, atol=tolerance)


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
    assert steps.supports_prepared(model)
    kind = type(model)
    inherits = type("Inherits", (kind,), {"note": None})
    replaces = type("Replaces", (kind,), {method: lambda self, *given: getattr(kind, method)(self, *given)})
    assert [prepared_class(one(7, 4, model.cfg)) is None for one in (inherits, replaces)] == [False, True]
    setattr(model, method, getattr(model, method))
    assert not steps.supports_prepared(model)


@pytest.mark.parametrize("net", ["posterior", "prior_net"])
@pytest.mark.parametrize("name", ["rssm", "keras_gru"])
def test_networks_of_ones_own_run_the_definition(name, net):
    """They need no layer that is called ``first``."""
    model = MODELS[name].build(embed=7, action=4)
    parts = getattr(model, net)
    setattr(model, net, nn.Sequential(parts.first, *parts.rest))
    assert not steps.supports_prepared(model)
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
    draw_by_seed(model)
    rows = sequence(model, torch.float32)
    latents = []
    for observe in (steps.observe_prepared, StateSpaceModel.observe.definition):
        draw_by_seed(model)
        latents.append(observe(model, *rows)[0].deter)
    torch.testing.assert_close(*latents)
