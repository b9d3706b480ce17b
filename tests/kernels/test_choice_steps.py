"""Analytic gradients of learners of recorded discrete actions against autograd's."""

import copy
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from reverie.algos.bc import BCConfig, BCObjective, Stochastic
from reverie.algos.crr import All, Binary, Exp
from reverie.algos.discrete_bcq import DiscreteBCQConfig
from reverie.algos.discrete_cql import DiscreteCQLConfig, DiscreteCQLObjective
from reverie.algos.discrete_crr import DiscreteCRRConfig, DiscreteCRRObjective
from reverie.core.compiler import kernels
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch
from reverie.kernels import losses, steps
from reverie.nn.distributions import Choices
from reverie.objectives.estimators import NStep, TDLambda

CHOICE = ActionSpec(parts={"jump": ActionPart(kind="categorical", classes=(4,))})
CHOICES = ActionSpec(
    parts={"a": ActionPart(kind="categorical", classes=(3,)), "b": ActionPart(kind="categorical", classes=(2, 4))}
)
SEEN = {
    "state": ObsPart(kind="vector", shape=(5,), dtype="float32"),
    "token": ObsPart(kind="categorical", shape=(), dtype="int64", classes=(3,)),
}
CONFIGS = {
    "bc": BCConfig(batch_size=40),
    "bc_choices": BCConfig(batch_length=4),
    "discrete_bcq": DiscreteBCQConfig(threshold=0.8),
    "discrete_bcq_all": DiscreteBCQConfig(threshold=0.0, kappa=float("inf"), logit_weight=0.5),
    "discrete_bcq_long": DiscreteBCQConfig(threshold=1.0, batch_length=4, value_estimator=TDLambda(0.9)),
    "discrete_cql": DiscreteCQLConfig(quantiles=11),
    "discrete_cql_double": DiscreteCQLConfig(quantiles=3, double=True, min_q_weight=0.3, target_every=2),
    "discrete_cql_long": DiscreteCQLConfig(quantiles=3, batch_length=4, value_estimator=NStep(2)),
    "discrete_crr": DiscreteCRRConfig(filter=Exp(0.1, 1.5), target_every=2),
    "discrete_crr_cql": DiscreteCRRConfig(filter=Binary(), critics=2, min_q_weight=0.7),
    "discrete_crr_all": DiscreteCRRConfig(filter=All(), critics=3, batch_length=4, tau=0.1, target_every=1),
}
needs_compiler = pytest.mark.skipif(kernels() is None, reason="nothing is compiled")


def built(name, **changes):
    actions = CHOICES if name == "bc_choices" else CHOICE
    config = CONFIGS[name].merge({"networks.units": (40, 33), "batch_size": 40} | changes)
    agent = config.build(SEEN, actions, seed=3)
    agent.classes = (3, 2, 4) if name == "bc_choices" else (4,)
    return agent


def batch(agent, seed) -> Batch:
    g = torch.Generator().manual_seed(seed)
    shape = agent.window.batch, agent.window.rows
    last = torch.rand(shape, generator=g) < 0.2
    chosen = torch.cat([torch.eye(n)[torch.randint(0, n, shape, generator=g)] for n in agent.classes], -1)
    return Batch(
        obs={"state": torch.randn(*shape, 5, generator=g), "token": torch.randint(0, 3, shape, generator=g)},
        action=chosen * ~last[..., None], reward=torch.randn(shape, generator=g),
        is_first=torch.zeros(shape, dtype=torch.bool), is_last=last,
        is_terminal=last & (torch.rand(shape, generator=g) < 0.5), weight=torch.rand(shape[0], generator=g),
        index=torch.arange(shape[0]),
    )  # fmt: skip


def tensors(agent) -> dict[str, torch.Tensor]:
    """Every tensor of a learner and its optimisers by name."""
    state = agent.state_dict()
    return {f"{k}/{n}": x for k, part in state.items() if isinstance(part, Mapping) for n, x in part.items()}


def updates(agent, count=5):
    return [agent.update(batch(agent, seed)) for seed in range(count)]


def analytic(agent, name):
    """Whether the gradients of this loss are computed without autograd."""
    return steps.fits(getattr(agent.objective, name), agent.optims, agent.preprocess(batch(agent, 0)))


def refuse(*args, **kwargs):
    raise AssertionError("autograd was used")


@needs_compiler
@pytest.mark.parametrize("name", CONFIGS)
def test_numbers_are_those_of_the_definition(name, monkeypatch):
    agent = built(name)
    other = copy.deepcopy(agent)
    with monkeypatch.context() as patch:
        patch.setattr(torch.autograd, "grad", refuse)
        fast = updates(agent)
    monkeypatch.setattr(steps, "STEPS", {})
    monkeypatch.setattr(losses, "untracked", lambda *numbers: False)
    slow = updates(other)
    for a, b in zip(fast, slow, strict=True):
        assert a.metrics.keys() == b.metrics.keys()
        torch.testing.assert_close(a.metrics, b.metrics, rtol=1e-5, atol=1e-5)
        assert (a.priority is None) == (b.priority is None)
        if a.priority is not None:
            torch.testing.assert_close(a.priority, b.priority, rtol=1e-5, atol=1e-5)
        assert not any(x.requires_grad for x in a.metrics.values())
    torch.testing.assert_close(tensors(agent), tensors(other), rtol=1e-5, atol=2e-5)


@needs_compiler
def test_a_filter_of_a_users_own_may_return_a_mask():
    agent = built("discrete_crr_cql")
    other = copy.deepcopy(agent)
    other.objective.filter = lambda advantage: advantage > 0
    for a, b in zip(updates(agent, 2), updates(other, 2), strict=True):
        assert a.metrics == b.metrics
    torch.testing.assert_close(tensors(agent), tensors(other), rtol=0, atol=0)


@needs_compiler
def test_discrete_cql_leaves_the_threads_of_pytorch_asleep():
    """They would spin where those of the compiled functions want to run: what remains a tape replaces."""
    agent, large = built("discrete_cql", quantiles=200, batch_size=64), []

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


def test_other_losses_are_computed_from_their_own_definitions():
    class Cautious(DiscreteCRRObjective):
        def advantage(self, obs, action, policy):
            return super().advantage(obs, action, policy) - 1

    class Louder(DiscreteCQLObjective):
        def critic_loss(self, batch):
            return super().critic_loss(batch)

    class Other(BCObjective):
        def forward(self, batch):
            return super().forward(batch)

    for name, kind, loss in (
        ("discrete_crr", Cautious, "actor_loss"),
        ("discrete_cql", Louder, "critic_loss"),
        ("bc", Other, "forward"),
    ):
        agent = built(name)
        assert analytic(agent, loss) == (kernels() is not None)
        agent.objective.__class__ = kind
        assert not analytic(agent, loss)
        updates(agent, 2)
    move = ActionSpec(parts={"move": ActionPart(kind="continuous", size=2)})
    for clone in (None, Stochastic()):
        agent = BCConfig(clone=clone).build(SEEN, move)
        assert not steps.fits(agent.objective.forward, agent.optims, batch(built("bc"), 0))
    assert not analytic(built("discrete_cql", dueling=True), "critic_loss")


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
@pytest.mark.parametrize("name", ["bc", "discrete_bcq", "discrete_cql", "discrete_crr"])
def test_nan_is_not_swallowed(name):
    agent = built(name, **({} if name == "bc" else {"discount": 0.9}))
    rows = batch(agent, 0)
    no = torch.zeros_like(rows.is_last)
    rows.obs["state"][0, 0, 0] = torch.nan
    for _ in range(2):
        update = agent.update(replace(rows, is_last=no, is_terminal=no))
    for key in ("loss/critic", "loss/actor", "loss/imitation"):
        assert key not in update.metrics or update.metrics[key].isnan()
    assert all(p.isnan().any() for p in agent.parameters() if p.requires_grad)


@needs_compiler
def test_nan_among_values_is_what_a_state_is_worth():
    values, logits = torch.tensor([[1.0, torch.nan, 3.0]]), torch.zeros(1, 3)
    assert losses.masked_argmax_value(values, logits, values, -1.0).isnan().all()
    expected, better = losses.expected_and_advantage(logits, values[None], torch.tensor([[1.0, 0.0, 0.0]]))
    assert expected.isnan().all()
    assert better.isnan().all()
