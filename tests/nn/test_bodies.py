"""Bodies of networks against layers of PyTorch, and their statistics."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reverie.algos.crossq import CrossQConfig
from reverie.algos.sac import SACConfig
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.experiment.bench import noise_batch
from reverie.nn.batch_norm import BatchRenorm, BatchRenormLayer, BatchRenormMLP, batch_statistics
from reverie.nn.bodies import ALL, Hypersphere, ResidualMLP, Simba
from reverie.nn.network import MemoryNetworkConfig, NetworkConfig
from reverie.nn.relu_mlp import NoisyMLP, noisy_parameters


def drawn(net: nn.Module) -> nn.Module:
    """With parameters that are all different."""
    for p in net.parameters():
        nn.init.normal_(p)
    return net


def test_residual_mlps_are_those_of_pytorch():
    """SimBa, figure 4, of each copy; actions may be several for each observation."""
    net, obs, action = drawn(ResidualMLP(4, (6, 6), 2, copies=2)), torch.randn(5, 3), torch.randn(5, 7, 1)
    y = net(obs, action)
    for k in range(2):

        def layer(x, part, k=k):
            return F.linear(x, part.weight[k].T, part.bias[k, 0])

        def norm(x, part, k=k):
            return F.layer_norm(x, (6,), part.scale[k, 0], part.shift[k, 0], eps=1e-6)

        x = layer(torch.cat([obs.unsqueeze(1).expand(5, 7, 3), action], -1), net.embed)
        for block in net.blocks:
            x = x + layer(layer(norm(x, block.norm), block.expand).relu(), block.contract)
        expected = layer(norm(x, net.norm), net.head)
        torch.testing.assert_close(y[k], expected)
        torch.testing.assert_close(net(obs, action, copy=k), expected)


def test_noisy_mlps_are_the_paper_s():
    """Fortunato et al. 2018, equations 9 to 11: new noise in each forward pass, none outside of the context."""
    net, x = NoisyMLP(3, (5,), 2, 0.5), torch.randn(4, 3)
    sigma = [part for layer in net.layout.layers(net.sigma) for part in layer]
    for part, inputs in zip(sigma, (3, 3, 5, 5), strict=True):
        assert torch.equal(part, torch.full_like(part, 0.5 / inputs**0.5))
    drawn(net)

    def output(noise):
        y = x
        for k, (weight, bias) in enumerate(net.layers()):
            (e_in, e_out), s_w, s_b = noise[k], sigma[2 * k], sigma[2 * k + 1]
            w = weight[0] + s_w[0] * torch.outer(e_in, e_out)
            y = (y.relu() if k else y) @ w + bias[0, 0] + s_b[0, 0] * e_out
        return y

    def factors(size):
        e = torch.randn(size)
        return e.sign() * e.abs().sqrt()

    torch.manual_seed(3)
    expected = [output([(factors(3), factors(5)), (factors(5), factors(2))]) for _ in range(2)]
    torch.manual_seed(3)
    with noisy_parameters():
        for y in expected:
            torch.testing.assert_close(net(x), y)
    torch.testing.assert_close(net(x), output([(torch.zeros(3), torch.zeros(5)), (torch.zeros(5), torch.zeros(2))]))


@pytest.mark.parametrize("warm", [False, True])
def test_batch_renormalization_is_the_paper_s(warm):
    """Of two copies, from the batch, then from the running statistics; only updates move these."""
    layer, x = drawn(BatchRenormLayer(3, 2, BatchRenorm(rate=0.25, warmup=4))), torch.randn(2, 8, 3) * 3 + 1
    layer.mean.normal_()
    layer.var.uniform_(0.01, 30)  # so that both limits of r apply
    layer.updates.fill_(4 if warm else 3)
    mean, std = layer.mean.clone(), (layer.var + 1e-3).sqrt()
    scale, shift = layer.scale.detach(), layer.shift.detach()
    torch.testing.assert_close(layer(x, ALL), (x - mean) / std * scale + shift)
    m, s = x.mean(1, keepdim=True), (x.var(1, keepdim=True, correction=0) + 1e-3).sqrt()
    r = (s / std).clamp(1 / 3, 3) if warm else torch.ones(())
    d = ((m - mean) / std).clamp(-5, 5) if warm else torch.zeros(())
    with batch_statistics(layer):
        with torch.no_grad():
            first = layer(x, ALL)  # does not move them
        y = layer(x, ALL)
    assert torch.equal(first, y.detach())
    torch.testing.assert_close(y, scale * ((x - m) / s * r + d) + shift)
    torch.testing.assert_close(layer.mean, 0.75 * mean + 0.25 * m)
    torch.testing.assert_close(layer.var, 0.75 * (std.square() - 1e-3) + 0.25 * (s.square() - 1e-3))
    assert int(layer.updates) == (5 if warm else 4)
    assert not layer.uses_batch


def test_batch_renormalization_has_the_gradient_of_batch_norm():
    layer, x = drawn(BatchRenormLayer(3, 1, BatchRenorm())), torch.randn(1, 8, 3, requires_grad=True)
    weight = torch.randn(1, 8, 3)
    with batch_statistics(layer):
        ours = torch.autograd.grad((layer(x, ALL) * weight).sum(), [x, layer.scale, layer.shift])
    normed = F.batch_norm(x[0], None, None, layer.scale[0, 0], layer.shift[0, 0], training=True, eps=1e-3)
    theirs = torch.autograd.grad((normed * weight[0]).sum(), [x, layer.scale, layer.shift])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_network_of_crossq_normalizes_its_inputs_and_hidden_layers():
    net, x = drawn(BatchRenormMLP(4, (5, 3), 2, copies=2, cfg=BatchRenorm())), torch.randn(6, 4)
    for k in range(2):
        y = net.norms[0](x.expand(2, 6, 4), ALL)[k]
        for i, layer in enumerate(net.layers):
            y = F.linear(y, layer.weight[k].T, layer.bias[k, 0])
            if i < 2:
                y = net.norms[i + 1](y.relu().expand(2, *y.shape), ALL)[k]
        torch.testing.assert_close(net(x, copy=k), y)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"units": (8, 4), "body": Simba()}, r"units = \(8, 4\), body = simba: all blocks must have the same width"),
        ({"body": Simba(), "critic_dropout": 0.1}, "body = simba, critic_dropout = 0.1"),
    ],
)
def test_bodies_refuse_what_they_have_not(settings, said):
    with pytest.raises(ConfigError, match=said):
        MemoryNetworkConfig(**settings)


@pytest.mark.parametrize("body", [BatchRenorm(), Hypersphere()])
def test_sac_neither_updates_statistics_of_batches_nor_projects_weights(body):
    with pytest.raises(ConfigError, match=rf"networks.body = {re.escape(body.to_text())}: sac does not train such"):
        SACConfig(networks=MemoryNetworkConfig(body=body))


def test_crossq_needs_batch_norm():
    with pytest.raises(ConfigError, match=r"networks\.body = simba: crossq only has the body batch_renorm"):
        CrossQConfig(networks=NetworkConfig(body=Simba()))


def updated(config):
    """A learner with small networks after an update of its actor and its critics."""
    spec = {"state": ObsPart(kind="vector", shape=(2,), dtype="float32")}
    action = ActionSpec(parts={"push": ActionPart(kind="continuous", size=1)})
    settings = {"batch_size": 4, "networks.units": (4,), "networks.critic_units": (4,), "policy_delay": 1}
    learner = config.merge(settings).build(spec, action)
    learner.update(noise_batch(learner, spec, action))
    return learner


def test_updates_of_crossq_use_the_statistics_of_batches():
    """Once in critics and actor."""
    learner = updated(CrossQConfig())
    assert {int(layer.updates) for layer in learner.modules() if isinstance(layer, BatchRenormLayer)} == {1}
