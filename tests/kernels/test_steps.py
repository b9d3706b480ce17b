"""Analytic gradients against autograd's."""

import copy
from collections.abc import Mapping

import pytest
import torch
import torch.nn.utils.parametrize
from torch.nn.modules import module as torch_module

from reverie.algos.ddpg import DDPGConfig
from reverie.algos.discrete_sac import DiscreteSACConfig
from reverie.algos.dqn import DQNConfig
from reverie.algos.qr_dqn import QRDQNConfig
from reverie.algos.sac import SACConfig, SACObjective
from reverie.algos.td3 import TD3Config
from reverie.algos.td3_bc import TD3BCConfig
from reverie.core.compiler import kernels
from reverie.core.errors import RunError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch
from reverie.kernels import steps
from reverie.nn.perceptron import ReluMLP
from reverie.objectives.estimators import NStep, TDLambda

MOVES = ActionSpec(parts={"move": ActionPart(kind="continuous", size=3)})
CHOICE = ActionSpec(parts={"jump": ActionPart(kind="categorical", classes=(4,))})
SEEN = {
    "state": ObsPart(kind="vector", shape=(5,), dtype="float32"),
    "token": ObsPart(kind="categorical", shape=(), dtype="int64", classes=(3,)),
}
CONFIGS = {
    "ddpg": DDPGConfig(batch_size=40),
    "td3": TD3Config(),
    "sac": SACConfig(),
    "sac_without_temperature": SACConfig(temperature_lr=0.0),
    "dqn": DQNConfig(batch_size=70),
    "dqn_double": DQNConfig(double=True, kappa=float("inf")),
    "qr_dqn": QRDQNConfig(quantiles=11),
    "long": TD3Config(batch_length=4, value_estimator=TDLambda(0.9)),
    "n_step": QRDQNConfig(quantiles=3, batch_length=4, value_estimator=NStep(2)),
}  # fmt: skip
needs_compiler = pytest.mark.skipif(kernels() is None, reason="nothing is compiled")


def built(config, units=(40, 33)):
    actions = CHOICE if isinstance(config, DQNConfig | DiscreteSACConfig) else MOVES
    return config.merge({"networks.units": units}).build(SEEN, actions, seed=3)


def batch(agent, seed) -> Batch:
    g = torch.Generator().manual_seed(seed)
    shape = agent.window.batch, agent.window.rows
    last = torch.rand(shape, generator=g) < 0.2
    discrete = isinstance(agent.cfg, DQNConfig | DiscreteSACConfig)
    chosen = torch.eye(4)[torch.randint(0, 4, shape, generator=g)]
    return Batch(
        obs={"state": torch.randn(*shape, 5, generator=g), "token": torch.randint(0, 3, shape, generator=g)},
        action=chosen if discrete else torch.rand(*shape, 3, generator=g) * 2 - 1,
        reward=torch.randn(shape, generator=g), is_first=torch.zeros(shape, dtype=torch.bool), is_last=last,
        is_terminal=last & (torch.rand(shape, generator=g) < 0.5), weight=torch.rand(shape[0], generator=g),
        index=torch.arange(shape[0]),
    )  # fmt: skip


def tensors(agent) -> dict[str, torch.Tensor]:
    """Every tensor of a learner and its optimisers by name."""
    state = agent.state_dict()
    return {f"{k}/{n}": x for k, part in state.items() if isinstance(part, Mapping) for n, x in part.items()}


def updates(agent, count=5):
    torch.manual_seed(0)
    return [agent.update(batch(agent, seed)) for seed in range(count)]


def analytic(agent, name):
    """Whether the gradients of this loss are computed without autograd."""
    return steps.fits(getattr(agent.objective, name), agent.optims, agent.preprocess(batch(agent, 0)))


def refuse(*args, **kwargs):
    raise AssertionError("autograd was used")


@needs_compiler
@pytest.mark.parametrize("name", CONFIGS)
def test_numbers_are_those_of_the_definition(name, monkeypatch):
    agent = built(CONFIGS[name])
    other = copy.deepcopy(agent)
    with monkeypatch.context() as patch:
        patch.setattr(torch.autograd, "grad", refuse)
        fast = updates(agent)
    monkeypatch.setattr(steps, "STEPS", {})
    slow = updates(other)
    for a, b in zip(fast, slow, strict=True):
        assert a.metrics.keys() == b.metrics.keys()
        torch.testing.assert_close(a.metrics, b.metrics, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(a.priority, b.priority, rtol=1e-6, atol=1e-6)
        assert not any(x.requires_grad for x in a.metrics.values())
    torch.testing.assert_close(tensors(agent), tensors(other), rtol=1e-6, atol=1e-6)


@needs_compiler
@pytest.mark.parametrize("name", ["td3", "dqn", "qr_dqn"])
def test_targets_of_a_users_own_may_be_float64(name):
    agent = built(CONFIGS[name])
    other = copy.deepcopy(agent)
    targets = other.objective.targets
    other.objective.targets = lambda rows: targets(rows).double()
    for a, b in zip(updates(agent, 2), updates(other, 2), strict=True):
        assert a.metrics == b.metrics
    torch.testing.assert_close(tensors(agent), tensors(other), rtol=0, atol=0)


@needs_compiler
def test_of_equal_critics_each_has_its_part_in_the_gradient(monkeypatch):
    agent = built(SACConfig())
    with torch.no_grad():
        agent.objective.critic.body.theta[1] = agent.objective.critic.body.theta[0]
    other = copy.deepcopy(agent)
    updates(agent, 1)
    monkeypatch.setattr(steps, "STEPS", {})
    updates(other, 1)
    torch.testing.assert_close(tensors(agent), tensors(other), rtol=1e-6, atol=1e-6)


class Doubled(SACObjective):
    """Another loss, by what it rests on."""

    def policy_value(self, obs):
        value, entropy = super().policy_value(obs)
        return 2 * value, entropy


@needs_compiler
def test_another_loss_is_computed_from_its_own_definition():
    agent = built(SACConfig())
    assert analytic(agent, "actor_loss")
    assert analytic(agent, "critic_loss")
    agent.objective.__class__ = Doubled
    assert analytic(agent, "critic_loss")
    assert not analytic(agent, "actor_loss")
    for config in (TD3BCConfig(normalise=None), DiscreteSACConfig()):
        agent = built(config)
        assert not analytic(agent, "actor_loss")
        assert analytic(agent, "critic_loss") == isinstance(config, TD3BCConfig)
        for update in updates(agent, 2):
            assert "loss/critic" in update.metrics


class Bounded(SACObjective):
    """A temperature that is not the exponential of the parameter."""

    @property
    def temperature(self):
        return super().temperature.clamp(max=0.1)


def test_what_is_overridden_or_watched_is_called():
    agent = built(SACConfig())
    agent.objective.__class__ = Bounded
    assert not analytic(agent, "actor_loss")
    assert analytic(agent, "critic_loss") == (kernels() is not None)

    agent, called = built(SACConfig(graph=False)), []
    loss = agent.objective.actor_loss
    agent.objective.actor_loss = lambda rows: called.append("loss") or loss(rows)
    assert not analytic(agent, "actor_loss")
    updates(agent, 2)
    assert called == ["loss", "loss"]

    agent, seen = built(SACConfig(graph=False)), []
    agent.objective.actor.register_forward_hook(lambda *given: seen.append(given))
    assert not analytic(agent, "actor_loss")
    updates(agent, 2)
    assert len(seen) == 4  # for the targets, and for its own loss


class Tenfold(ReluMLP):
    """A body that is not what the step was written for."""

    def forward(self, *parts, copy=None):
        return 10 * super().forward(*parts, copy=copy)


def change_class(agent):
    agent.objective.critic.body.__class__ = Tenfold


def hook_body(agent):
    agent.objective.critic.body.register_forward_hook(lambda module, given, found: 10 * found)


def hook_inputs(agent):
    agent.objective.critic.inputs.register_forward_pre_hook(lambda module, given: given)


def replace_forward(agent):
    body = agent.objective.critic.body
    body.forward = lambda *parts, copy=None: 10 * ReluMLP.forward(body, *parts, copy=copy)


def parametrize(agent):
    body = agent.objective.critic.body
    theta = body.theta
    torch.nn.utils.parametrize.register_parametrization(body, "theta", torch.nn.Tanh())
    assert agent.optims["critic"].params[0] is theta


def hook_gradient(agent):
    agent.objective.critic.body.theta.register_hook(lambda grad: 0 * grad)


@pytest.mark.parametrize("change", [change_class, hook_body, hook_inputs, replace_forward, parametrize, hook_gradient])
def test_a_changed_part_of_a_network_is_not_passed_over(change):
    agent = built(TD3Config(graph=False))
    assert analytic(agent, "critic_loss") == (kernels() is not None)
    change(agent)
    assert not analytic(agent, "critic_loss")


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_hooks_of_all_modules_see_each_network_of_an_update(kind):
    agent, seen = built(TD3Config(graph=False)), []
    handle = getattr(torch_module, f"register_module_{kind}_hook")(lambda module, *given: seen.append(module))
    try:
        updates(agent, 2)
    finally:
        handle.remove()
    assert {agent.objective.actor, agent.objective.critic} <= set(seen)
    assert analytic(agent, "critic_loss") == analytic(agent, "actor_loss") == (kernels() is not None)


@pytest.mark.parametrize("captured", [False, True])
def test_a_frozen_network_is_never_changed(captured):
    """As without compiled functions, an optimiser of frozen parameters is told of a loss without gradient."""
    agent = built(TD3Config(graph=captured))
    updates(agent, 6 if captured else 0)
    agent.objective.actor.requires_grad_(False)
    before = agent.objective.actor.body.theta.clone()
    with pytest.raises(RunError, match="without gradient: expected a scalar"):
        updates(agent, 2)
    assert torch.equal(agent.objective.actor.body.theta, before)


def test_what_no_compiled_function_can_read_goes_through_autograd(monkeypatch):
    agent, odd = built(TD3Config()), built(TD3Config(precision="bfloat16"))
    assert analytic(agent, "critic_loss") == (kernels() is not None)
    assert not analytic(odd, "critic_loss")
    assert not steps.fits(agent.objective.critic_loss, agent.optims, batch(agent, 0).rows(0, 1))
    dueling = built(DQNConfig(dueling=True))
    assert not analytic(dueling, "critic_loss")
    for other in (odd, dueling):
        updates(other, 2)
    monkeypatch.setattr("reverie.kernels.call.kernels", lambda: None)
    assert not analytic(agent, "critic_loss")


@needs_compiler
def test_nan_is_not_swallowed():
    for config in (TD3Config(), SACConfig()):
        agent = built(config)
        rows = batch(agent, 0)
        rows.is_last[:] = False
        rows.obs["state"][0, 0, 0] = torch.nan
        for _ in range(2):
            update = agent.update(rows)
        assert update.metrics["loss/critic"].isnan()
        assert update.metrics["loss/actor"].isnan()
        assert agent.objective.actor.body.theta.isnan().any()
