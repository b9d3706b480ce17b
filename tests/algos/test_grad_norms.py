"""Norms of gradients by network: their values, in captured updates too, and that the rest stays as it is."""

import copy

import pytest
import torch

import dreamer_configs
from contracts import DISTINCT, MOVES, SPECS, batch, build
from reverie.algos import gradient_norms
from reverie.algos.gradient_norms import PREFIX, find_network
from reverie.algos.td3 import TD3, TD3Config
from reverie.algos.tdmpc2 import TDMPC2Config
from reverie.nn.adam import Adam

pytestmark = pytest.mark.usefixtures("plain_pytorch")


@pytest.fixture(autouse=True)
def _every_update(monkeypatch):
    monkeypatch.setattr(gradient_norms, "INTERVAL", 1)


DREAMERS = {"v3": dreamer_configs.build, "v1": lambda **c: dreamer_configs.build_earlier("v1", **c)}
LEARNERS = ["sac_ensemble", "tdmpc2", "ppo_lstm", "hiql", "gail_mixed", "discrete_bcq", "sac_ae"]


def norms_in(update):
    return {name.removeprefix(PREFIX): float(x) for name, x in update.metrics.items() if name.startswith(PREFIX)}


def squared(values):
    return sum(value**2 for value in values)


@pytest.mark.parametrize("name", [n if n in LEARNERS else pytest.param(n, marks=pytest.mark.nightly) for n in DISTINCT])
def test_norms_are_those_of_all_gradients_and_nothing_else_changes(name):
    agent, plain = build(name, grad_norms=True, graph=False), build(name, graph=False)
    for i in range(2):
        torch.manual_seed(i)
        update = agent.update(batch(agent, seed=i))
        torch.manual_seed(i)
        expected = plain.update(batch(plain, seed=i))
        assert {k: x for k, x in update.metrics.items() if not k.startswith(PREFIX)} == expected.metrics
        if i == 0 and all(isinstance(optim, Adam) for optim in agent.optimizers().values()):
            assert_moments(agent, norms_in(update))
    totals = [float(x) for k, x in update.metrics.items() if k.startswith("opt/grad_norm")]
    norms = [x for k, x in norms_in(update).items() if k != "novelty"]
    assert not totals or squared(norms) == pytest.approx(squared(totals), rel=1e-4)


def assert_moments(agent, norms):
    """After the first update, Adam's mean is 1 - beta1 times the gradient."""
    optims = agent.optimizers().values()
    if isinstance(agent.cfg, TDMPC2Config) or any(x.max_grad_norm or x.weight_decay for x in optims):
        return
    moments = 0.0
    for optim in optims:
        moments += sum(float(m.square().sum()) for m in optim.mean) / (1 - optim.betas[0]) ** 2
    assert squared(norms.values()) == pytest.approx(moments, rel=1e-4)


@pytest.mark.parametrize("name", ["sac", "dqn", "ppo"])
def test_captured_and_copied_updates_have_the_same_norms(name):
    agents = [build(name, grad_norms=True, graph=graph) for graph in (True, False)]
    for i in range(6):
        updates = []
        for agent in agents:
            torch.manual_seed(i)
            updates.append(agent.update(batch(agent, seed=i)))
        assert norms_in(updates[0]) == norms_in(updates[1]) != {}
    twin, results = copy.deepcopy(agents[0]), []
    for agent in (twin, agents[0]):
        torch.manual_seed(9)
        results.append(norms_in(agent.update(batch(agent, seed=9))))
    assert results[0] == results[1]


def test_only_some_updates_have_norms_and_a_resumed_learner_the_same(monkeypatch):
    monkeypatch.setattr(gradient_norms, "INTERVAL", 3)
    agent, found = build("sac_ensemble", grad_norms=True), []
    for i in range(14):
        if i == 7:
            agent, saved = build("sac_ensemble", grad_norms=True), copy.deepcopy(agent.state_dict())
            agent.load_state_dict(saved)
        found.append({*norms_in(agent.update(batch(agent, seed=i)))})
    both = {"critic", "actor", "log_temperature"}  # the actor learns in every second update
    assert found == [(both if i % 6 == 0 else {"critic"}) if i % 3 == 0 else set() for i in range(1, 15)]


@pytest.mark.parametrize("name", DREAMERS)
def test_a_world_model_is_told_by_its_parts(name):
    agent = DREAMERS[name](grad_norms=True)
    update = agent.update(dreamer_configs.batch(agent))
    norms = norms_in(update)
    assert {"world.rssm", "world.encoder", "world.decoder", "actor", "critic"} <= norms.keys()
    totals = [float(x) for k, x in update.metrics.items() if k.startswith("opt/grad_norm")]
    assert squared(norms.values()) == pytest.approx(squared(totals), rel=1e-4)


@pytest.mark.parametrize(("name", "frozen"), [("sac", "actor"), ("tdmpc2", "encoder"), ("tdmpc2", "prior")])
def test_a_frozen_network_has_no_norm(name, frozen):
    agent = build(name, grad_norms=True)
    before = {*norms_in(agent.update(batch(agent)))}
    agent.objective.get_submodule(frozen).requires_grad_(False)
    assert before - {*norms_in(agent.update(batch(agent)))} == {frozen}


class More(TD3):
    """Has a head with an optimizer of PyTorch's."""

    def __init__(self, *given):
        super().__init__(*given)
        self.head = torch.nn.Linear(1, 1, bias=False)
        self.another = torch.optim.SGD(self.head.parameters(), 0.1)

    def train_step(self, batch):
        self.another.zero_grad()
        self.head(batch.reward[..., None]).square().mean().backward()
        self.another.step()
        return super().train_step(batch)


def test_an_optimizer_of_pytorch_is_watched_once():
    kind = type("MoreConfig", (TD3Config,), {"learner": More})
    agent = kind(grad_norms=True, graph=False, policy_delay=1, batch_size=4).build(SPECS["vector"], MOVES, seed=1)
    agent.enter_eval_mode()  # watches its optimizers again
    for i in range(2):
        rows, before = batch(agent, seed=i), agent.head.weight.clone()
        norms = norms_in(agent.update(rows))
        assert norms.keys() == {"head", "actor", "critic"}
        assert norms["head"] == pytest.approx(float((before - agent.head.weight).norm()) / 0.1, rel=1e-4)


def test_networks_are_those_at_the_top():
    agent = build("sac", "everything")
    names = {find_network(agent, path) for path, _ in agent.named_parameters()}
    assert names == {"actor", "critic", "log_temperature", "target_critic"}
