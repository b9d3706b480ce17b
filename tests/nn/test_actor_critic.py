"""Perceptrons, actors and critics against layers of PyTorch; slow copies; Adam."""

import pytest
import torch
from torch import nn

from adam_cases import CASES
from reverie.algos.dqn import DQNConfig
from reverie.core.errors import ConfigError, RunError
from reverie.core.specs import ObsPart
from reverie.nn.actor_critic import CriticStack, DeterministicActor, QEnsemble
from reverie.nn.adam import Adam
from reverie.nn.network import MemoryNetworkConfig, NetworkConfig, ObsConcat
from reverie.nn.optim import frozen
from reverie.nn.relu_mlp import Dropout, ReluMLP
from reverie.nn.target_network import TargetNetwork

SMALL = NetworkConfig(units=(7, 5))
SPEC = {
    "b": ObsPart(kind="vector", shape=(2, 2), dtype="float32"),
    "a": ObsPart(kind="categorical", shape=(2,), dtype="int64", classes=(2, 3)),
}


def test_inputs_are_numbers_as_they_are_and_classes_one_hot():
    obs = {"a": torch.tensor([[1, 2], [0, -1]]), "b": torch.arange(8.0).view(2, 2, 2) * 100}
    expected = [[0, 1, 0, 0, 1, 0, 100, 200, 300], [1, 0, 0, 0, 0, 400, 500, 600, 700]]
    assert ObsConcat(SPEC, SMALL, torch.float32)(obs).tolist() == expected


def test_actor_and_critics_keep_leading_axes():
    obs = {"a": torch.zeros(3, 4, 2, dtype=torch.int64), "b": torch.randn(3, 4, 2, 2)}
    action = DeterministicActor(SPEC, 2, SMALL)(obs)
    assert action.abs().max() < 1
    one, two, three = (QEnsemble(SPEC, 2, SMALL, copies=copies) for copies in (None, None, 2))
    values = one(obs, action), two(obs, action)
    assert (action.shape, values[0].shape, three(obs, action).shape) == ((3, 4, 2), (3, 4), (2, 3, 4))
    assert torch.equal(CriticStack(one, two)(obs, action), torch.stack(values))


def test_a_network_has_a_hidden_layer():
    with pytest.raises(ConfigError, match="units = "):
        NetworkConfig(units=())


def test_gradients_pass_through_what_is_frozen():
    layer, x = nn.Linear(3, 1), torch.randn(2, 3, requires_grad=True)
    with frozen(layer):
        y = layer(x).sum()
    y.backward()
    assert layer.weight.grad is None
    torch.testing.assert_close(x.grad, layer.weight.detach().expand(2, 3))
    assert all(p.requires_grad for p in layer.parameters())


def test_a_target_also_takes_over_buffers_and_keeps_its_count():
    source = nn.BatchNorm1d(2)
    slow = TargetNetwork(source, 1.0, every=2)
    source(torch.randn(8, 2) + 3)
    slow.update()
    assert torch.equal(slow.model.running_mean, source.running_mean)
    again = TargetNetwork(nn.BatchNorm1d(2), 1.0, every=2)
    again.load_state_dict(slow.state_dict())
    assert int(again.count) == 1
    assert not any(p.requires_grad for p in slow.parameters())


LAYOUTS = {
    "transposed": lambda: torch.randn(5, 3).T, "a number": lambda: torch.randn(()),
    "channels last": lambda: torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last),
    "float64": lambda: torch.randn(4, 3, dtype=torch.float64), "a part": lambda: torch.randn(4, 8)[:, :3],
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_adam_updates_parameters_of_any_layout_by_gradients_of_another(layout):
    mine = nn.Parameter(LAYOUTS[layout]())
    theirs = nn.Parameter(mine.detach().clone(memory_format=torch.contiguous_format))
    ours, others, target = Adam([mine], 0.01), torch.optim.Adam([theirs], 0.01), torch.randn(mine.shape)
    for _ in range(3):
        ours.apply([(mine - target).detach().contiguous()])
        others.zero_grad()
        (theirs - target).square().sum().div(2).backward()
        others.step()
    torch.testing.assert_close(mine, theirs, check_stride=False)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("case", CASES)
def test_steps_of_adam(case):
    def several(function, times):
        for _ in range(times):
            function()
            yield

    case(several)


def test_adam_leaves_alone_what_was_frozen_since(either):
    a, b, alone = (nn.Parameter(torch.ones(n)) for n in (2, 3, 3))
    both, one = Adam([a, b], 0.1), Adam([alone], 0.1)
    for stays in (False, True):
        a.requires_grad_(not stays)
        before = [x.clone() for x in (a, both.mean[0], both.square[0])]
        both.step(a.square().sum() + b.square().sum())
        one.step(alone.square().sum())
        assert all(map(torch.equal, before, (a, both.mean[0], both.square[0]))) == stays
    assert torch.equal(b, alone)


def test_adam_refuses_what_does_not_fit():
    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    with pytest.raises(
        RuntimeError, match="1 of 2 parameters have no gradient"
    ):  # no parameter stays still without a word
        Adam([a, b], 0.1).step(a.sum())
    for others, said in (([b], r"'mean.0' is \(3,\) in the checkpoint, and \(2,\) here"), ([a, b], "absent")):
        with pytest.raises(RunError, match=said):
            Adam([a], 0.1).load_state_dict(Adam(others, 0.1).state_dict())


@pytest.mark.parametrize("norm", ["before_relu", "after_relu"])
def test_norms_of_critics_are_those_of_pytorch(norm):
    """Each critic has its own scales and shifts."""
    net, x = ReluMLP(4, (7, 5), 1, copies=2, norm=norm), torch.randn(6, 4)
    nn.init.normal_(net.norms)
    for k in range(2):
        y, start = x, 0
        for weight, bias in net.layers():
            y, width = y @ weight[k] + bias[k], bias.shape[-1]
            if start == 12:
                continue
            layer = nn.LayerNorm(width, eps=1e-6)
            with torch.no_grad():
                layer.weight.copy_(net.norms[k, 0, start : start + width])
                layer.bias.copy_(net.norms[k, 1, start : start + width])
            y, start = layer(y).relu() if norm == "before_relu" else layer(y.relu()), start + width
        torch.testing.assert_close(net(x)[k], y)
        torch.testing.assert_close(net(x, copy=k), y)
    other = ReluMLP(4, (7, 5), 1, copies=2, norm="after_relu" if norm == "before_relu" else "before_relu")
    with pytest.raises(RuntimeError, match="tanh are"):
        other.load_state_dict(net.state_dict())


def test_the_settings_put_norms_into_critics_alone():
    cfg = NetworkConfig(units=(7, 5), critic_norm="after_relu")
    assert DeterministicActor(SPEC, 2, cfg).body.norms is None
    assert QEnsemble(SPEC, 2, cfg, copies=3).body.norms.shape == (3, 2, 12)
    assert QEnsemble(SPEC, 2, SMALL).body.norms is None


def test_dropout_of_critics_comes_before_the_norm_and_only_in_updates():
    """It is drawn for each critic and each row."""
    norm = {"norm": "before_relu"}
    net, x = ReluMLP(4, (7,), 1, copies=2, dropout=0.5, **norm), torch.randn(6, 4)
    (weight, bias), (last, end) = net.layers()
    hidden = torch.baddbmm(bias, x.expand(2, 6, 4), weight)
    torch.manual_seed(0)
    dropped = net.dropout(hidden)
    torch.manual_seed(0)
    expected = torch.baddbmm(end, nn.functional.layer_norm(dropped, (7,), eps=1e-6).relu(), last)
    torch.testing.assert_close(net(x), expected)
    without = ReluMLP(4, (7,), 1, copies=2, **norm)
    without.load_state_dict(net.state_dict())
    torch.testing.assert_close(net.eval()(x), without(x))


def test_dropout_keeps_the_mean():
    factors = Dropout(0.25).factors(torch.Size((401, 251)), torch.empty(0))
    values, counts = factors.unique(return_counts=True)
    assert values.tolist() == pytest.approx([0, 4 / 3])
    assert counts[0] / counts.sum() == pytest.approx(0.25, abs=0.01)


def test_settings_of_critics_are_refused_where_there_are_none():
    with pytest.raises(ConfigError, match=r"networks.critic_dropout = 0.1: it has no effect on these networks of dqn"):
        DQNConfig(networks=MemoryNetworkConfig(critic_dropout=0.1))
