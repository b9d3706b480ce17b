"""Analytic gradients against autograd's."""

import copy
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
import torch.nn.utils.parametrize
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import TorchDispatchMode

from reverie.algos.bc import BCConfig, BCObjective, Stochastic
from reverie.algos.crr import All, Binary, Exp
from reverie.algos.ddpg import DDPGConfig
from reverie.algos.discrete_bcq import DiscreteBCQConfig
from reverie.algos.discrete_cql import DiscreteCQLConfig, DiscreteCQLObjective
from reverie.algos.discrete_crr import DiscreteCRRConfig, DiscreteCRRObjective
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
from reverie.kernels import losses, steps
from reverie.nn.distributions import Choices
from reverie.nn.perceptron import ReluMLP
from reverie.objectives.estimators import NStep, TDLambda

MOVES = ActionSpec(parts={"move": ActionPart(kind="continuous", size=3)})
CHOICE = ActionSpec(parts={"jump": ActionPart(kind="categorical", classes=(4,))})
CHOICES = ActionSpec(
    parts={"a": ActionPart(kind="categorical", classes=(3,)), "b": ActionPart(kind="categorical", classes=(2, 4))}
)
SEEN = {
    "state": ObsPart(kind="vector", shape=(5,), dtype="float32"),
    "token": ObsPart(kind="categorical", shape=(), dtype="int64", classes=(3,)),
}
MOVING = {
    "ddpg": DDPGConfig(batch_size=40),
    "td3": TD3Config(),
    "sac": SACConfig(),
    "sac_without_temperature": SACConfig(temperature_lr=0.0),
    "long": TD3Config(batch_length=4, value_estimator=TDLambda(0.9)),
}
CHOOSING = {
    "dqn": DQNConfig(batch_size=70),
    "dqn_double": DQNConfig(double=True, kappa=float("inf")),
    "qr_dqn": QRDQNConfig(quantiles=11),
    "n_step": QRDQNConfig(quantiles=3, batch_length=4, value_estimator=NStep(2)),
    "bc": BCConfig(batch_size=40),
    "bc_choices": BCConfig(batch_length=4, batch_size=40),
    "discrete_bcq": DiscreteBCQConfig(threshold=0.8),
    "discrete_bcq_all": DiscreteBCQConfig(threshold=0.0, kappa=float("inf"), logit_weight=0.5),
    "discrete_bcq_long": DiscreteBCQConfig(threshold=1.0, batch_length=4, value_estimator=TDLambda(0.9)),
    "discrete_cql_double": DiscreteCQLConfig(quantiles=3, double=True, min_q_weight=0.3, target_every=2),
    "discrete_cql_long": DiscreteCQLConfig(quantiles=3, batch_length=4, value_estimator=NStep(2)),
    "discrete_crr": DiscreteCRRConfig(filter=Exp(0.1, 1.5), target_every=2),
    "discrete_crr_cql": DiscreteCRRConfig(filter=Binary(), critics=2, min_q_weight=0.7),
    "discrete_crr_all": DiscreteCRRConfig(filter=All(), critics=3, batch_length=4, tau=0.1, target_every=1),
}
needs_compiler = pytest.mark.skipif(kernels() is None, reason="nothing is compiled")


def built(config, spec=None, **changes):
    """A learner of ``config`` or of one with this name."""
    spec = spec or (CHOICES if config == "bc_choices" else MOVES if config in MOVING else CHOICE)
    config = (MOVING | CHOOSING)[config] if isinstance(config, str) else config
    changes = {"networks.units": (40, 33), "batch_size": min(config.batch_size, 70)} | changes
    agent = config.merge(changes).build(SEEN, spec, seed=3)
    agent.classes = [n for part in spec.parts.values() for n in part.classes]
    return agent


def batch(agent, seed) -> Batch:
    g = torch.Generator().manual_seed(seed)
    shape = agent.window.batch, agent.window.rows
    last = torch.rand(shape, generator=g) < 0.2
    action = torch.rand(*shape, 3, generator=g) * 2 - 1
    if agent.classes:
        action = torch.cat([torch.eye(n)[torch.randint(0, n, shape, generator=g)] for n in agent.classes], -1)
    return Batch(
        obs={"state": torch.randn(*shape, 5, generator=g), "token": torch.randint(0, 3, shape, generator=g)},
        action=action * ~last[..., None], reward=torch.randn(shape, generator=g),
        is_first=torch.zeros(shape, dtype=torch.bool), is_last=last,
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


def assert_same(ours, theirs, updated, tolerance):
    for a, b in zip(*updated, strict=True):
        assert a.metrics.keys() == b.metrics.keys()
        torch.testing.assert_close(a.metrics, b.metrics, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close((a.priority,), (b.priority,), rtol=tolerance, atol=tolerance)
        assert not any(x.requires_grad for x in a.metrics.values())
    torch.testing.assert_close(tensors(ours), tensors(theirs), rtol=tolerance, atol=2 * tolerance)


@needs_compiler
@pytest.mark.parametrize("name", [*MOVING, *CHOOSING])
def test_numbers_are_those_of_the_definition(name, monkeypatch):
    agent = built(name)
    other = copy.deepcopy(agent)
    if name == "sac":  # of equal critics each has its part in the gradient
        for x in (agent, other):
            x.objective.critic.body.theta.data[1] = x.objective.critic.body.theta.data[0]
    with monkeypatch.context() as patch:
        patch.setattr(torch.autograd, "grad", refuse)
        fast = updates(agent)
    monkeypatch.setattr(steps, "STEPS", {})
    if name in CHOOSING and "dqn" not in name and name != "n_step":
        monkeypatch.setattr(losses, "untracked", lambda *numbers: False)
        assert_same(agent, other, (fast, updates(other)), 1e-5)
    else:
        assert_same(agent, other, (fast, updates(other)), 1e-6)


@needs_compiler
def test_parts_of_a_users_own_may_have_other_dtypes():
    """Targets in float64, a filter that returns a mask."""
    for name in ("td3", "dqn", "qr_dqn", "discrete_crr_cql"):
        agent = built(name)
        other = copy.deepcopy(agent)
        targets = other.objective.targets
        if name == "discrete_crr_cql":
            other.objective.filter = lambda advantage: advantage > 0
        else:
            other.objective.targets = lambda rows, targets=targets: targets(rows).double()
        assert_same(agent, other, (updates(agent, 2), updates(other, 2)), 0)


@needs_compiler
def test_discrete_cql_leaves_the_threads_of_pytorch_asleep():
    """They would spin where those of the compiled functions want to run: what remains a tape replaces."""
    agent, large = built(DiscreteCQLConfig(quantiles=200), batch_size=64), []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if any(isinstance(x, torch.Tensor) and x.numel() >= 2**15 for x in args):
                large.append((func.overloadpacket.__name__, (kwargs or {}).get("alpha", 1)))
            return func(*args, **(kwargs or {}))

    with Watch():
        agent.update(batch(agent, 0))
    assert ("add_", 1) in large  # of so many elements that PyTorch would use threads
    assert not {name for name, _ in large} & {"mean", "sum", "mul", "add"}
    assert {factor for _, factor in large} == {1}


class Doubled(SACObjective):
    """Another loss, by what it rests on."""

    def policy_value(self, obs):
        value, entropy = super().policy_value(obs)
        return 2 * value, entropy


class Bounded(SACObjective):
    """A temperature that is not the exponential of the parameter."""

    @property
    def temperature(self):
        return super().temperature.clamp(max=0.1)


class Cautious(DiscreteCRRObjective):
    def advantage(self, obs, action, policy):
        return super().advantage(obs, action, policy) - 1


class Louder(DiscreteCQLObjective):
    def critic_loss(self, batch):
        return super().critic_loss(batch)


class Other(BCObjective):
    def forward(self, batch):
        return super().forward(batch)


@pytest.mark.parametrize(
    ("name", "kind", "loss"),
    [("sac", Doubled, "actor_loss"), ("sac", Bounded, "actor_loss"), ("discrete_crr", Cautious, "actor_loss"),
     ("discrete_cql_long", Louder, "critic_loss"), ("bc", Other, "forward")],
)  # fmt: skip
def test_another_loss_is_computed_from_its_own_definition(name, kind, loss):
    agent = built(name)
    assert analytic(agent, loss) == (kernels() is not None)
    agent.objective.__class__ = kind
    assert not analytic(agent, loss)
    if name == "sac":
        assert analytic(agent, "critic_loss") == (kernels() is not None)
    updates(agent, 2)


def test_losses_without_a_step_go_through_autograd(monkeypatch):
    for config, spec, critic in (
        (TD3BCConfig(normalise=None), MOVES, kernels() is not None), (DiscreteSACConfig(), CHOICE, False),
        (TD3Config(precision="bfloat16"), MOVES, False), (DQNConfig(dueling=True), CHOICE, False),
        (DiscreteCQLConfig(dueling=True), CHOICE, False),
    ):  # fmt: skip
        agent = built(config, spec)
        assert not analytic(agent, "actor_loss")
        assert analytic(agent, "critic_loss") == critic
        assert all("loss/critic" in update.metrics for update in updates(agent, 2))
    for clone in (None, Stochastic()):
        agent = built(BCConfig(clone=clone), MOVES)
        assert not steps.fits(agent.objective.forward, agent.optims, batch(agent, 0))
    agent = built("td3")
    assert analytic(agent, "critic_loss") == (kernels() is not None)
    assert not steps.fits(agent.objective.critic_loss, agent.optims, batch(agent, 0).rows(0, 1))
    monkeypatch.setattr("reverie.kernels.call.kernels", lambda: None)
    assert not analytic(agent, "critic_loss")


def test_what_is_overridden_or_watched_is_called():
    agent, called = built(SACConfig(graph=False), MOVES), []
    loss = agent.objective.actor_loss
    agent.objective.actor_loss = lambda rows: called.append("loss") or loss(rows)
    assert not analytic(agent, "actor_loss")
    updates(agent, 2)
    assert called == ["loss", "loss"]
    agent, seen = built(SACConfig(graph=False), MOVES), []
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
    agent = built(TD3Config(graph=False), MOVES)
    assert analytic(agent, "critic_loss") == (kernels() is not None)
    change(agent)
    assert not analytic(agent, "critic_loss")


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_hooks_of_all_modules_see_each_network_of_an_update(kind):
    agent, seen = built(TD3Config(graph=False), MOVES), []
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
    agent = built(TD3Config(graph=captured), MOVES)
    updates(agent, 6 if captured else 0)
    agent.objective.actor.requires_grad_(False)
    before = agent.objective.actor.body.theta.clone()
    with pytest.raises(RunError, match="without gradient: expected a scalar"):
        updates(agent, 2)
    assert torch.equal(agent.objective.actor.body.theta, before)


@needs_compiler
def test_what_is_masked_has_no_gradient_and_shares_add_up():
    torch.manual_seed(0)
    data = batch(built("bc_choices"), 0)
    logits = torch.randn(40, 3, 9)
    loss, grad = losses.cross_entropy_and_gradient(logits, data, (3, 2, 4))
    held = ~data.is_last[:, :-1]
    expected = -Choices(logits, (3, 2, 4)).log_prob(data.action[:, :-1])[held].mean()
    torch.testing.assert_close(loss, expected)
    assert not grad[~held].any()
    torch.testing.assert_close(grad[held].sum(-1), torch.zeros(int(held.sum())), rtol=0, atol=1e-6)
    nothing, grad = losses.cross_entropy_and_gradient(
        logits, replace(data, is_last=torch.ones_like(data.is_last)), (3, 2, 4)
    )
    assert nothing == 0
    assert not grad.any()


@needs_compiler
@pytest.mark.parametrize("name", ["td3", "sac", "bc", "discrete_bcq", "discrete_cql_long", "discrete_crr"])
def test_nan_is_not_swallowed(name):
    agent = built(name, **({} if name == "bc" else {"discount": 0.9}))
    rows = batch(agent, 0)
    no = torch.zeros_like(rows.is_last)
    rows.obs["state"][0, 0, 0] = torch.nan
    for _ in range(2):
        update = agent.update(replace(rows, is_last=no, is_terminal=no))
    for key in ("loss/critic", "loss/actor", "loss/imitation"):
        assert key not in update.metrics or update.metrics[key].isnan()
    assert all(p.isnan().any() for n, p in agent.named_parameters() if p.requires_grad and "temperature" not in n)


@needs_compiler
def test_nan_among_values_is_what_a_state_is_worth():
    values, logits = torch.tensor([[1.0, torch.nan, 3.0]]), torch.zeros(1, 3)
    assert losses.masked_argmax_value(values, logits, values, -1.0).isnan().all()
    expected, better = losses.expected_and_advantage(logits, values[None], torch.tensor([[1.0, 0.0, 0.0]]))
    assert expected.isnan().all()
    assert better.isnan().all()
