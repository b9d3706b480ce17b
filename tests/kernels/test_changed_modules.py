"""What a researcher changes inside a learner takes effect with kernels as without: modules, hooks, Python values."""

import contextlib
import copy
import itertools

import pytest
import torch
from torch import nn

import contracts
import dreamer_configs
from reverie.algos import imagination
from reverie.algos.base import Algorithm
from reverie.algos.td import TDObjective
from reverie.core.errors import ConfigError
from reverie.core.kernel_dispatch import ModuleChanges, use_only_kernels
from reverie.core.seeding import seed_everything
from reverie.kernels import capture
from reverie.kernels.capture import CHECK_INTERVAL, MAX_CHANGES, WARM_UPS
from reverie.kernels.compiler import load_kernels
from reverie.kernels.module_watch import ModuleWatch
from reverie.nn.cnn import ConvReLU
from reverie.nn.layers import Conv, DoublingConv
from reverie.nn.on_policy_networks import PolicyActor
from reverie.nn.tdmpc2_networks import MishLayer

compiled = pytest.mark.skipif(load_kernels() is None, reason="nothing is compiled")
DREAMERS = ("v1", "v2", "pydreamer", "p2e", "v3", "v3_p2e", "r2_barlow")
learners = pytest.mark.parametrize("name", contracts.by_base([*contracts.DISTINCT, *DREAMERS]))


def learner(name):
    if name in DREAMERS:
        agent = dreamer_configs.made(name)[0]
        return agent, dreamer_configs.batch(agent, dreamer_configs.made(name)[1])
    agent = contracts.build(name, "everything")
    return agent, contracts.batch(agent, "everything")


# ---------------------------------------------------------------- ways to change a module


def half(out):
    """The same outputs, of which those of floats are half as large."""
    if isinstance(out, torch.Tensor):
        return out * 0.5 if out.is_floating_point() else out
    return type(out)(map(half, out)) if type(out) in (tuple, list) else out


def hook(module):
    return module.register_forward_hook(lambda module, inputs, out: half(out)).remove


def pre_hook(module):
    return module.register_forward_pre_hook(lambda module, inputs: half(inputs)).remove


def function(module):
    forward = module.forward
    module.forward = lambda *inputs, **named: half(forward(*inputs, **named))
    return lambda: vars(module).pop("forward")


def subclass(module):
    kind = type(module)
    forward = {"forward": lambda self, *inputs, **named: half(kind.forward(self, *inputs, **named))}
    module.__class__ = type(kind.__name__, (kind,), forward)
    return lambda: setattr(module, "__class__", kind)


def attribute(module):
    module.temperature_of_mine = 0.5
    return lambda: vars(module).pop("temperature_of_mine")


CHANGES = (hook, pre_hook, function, subclass)


@learners
def test_each_change_of_each_module_is_noticed(name):
    agent, _ = learner(name)
    addresses = capture.ModuleAddresses(agent)
    for change, module in zip(itertools.cycle([*CHANGES, attribute]), list(agent.modules())[1:], strict=False):
        undo = change(module)
        assert addresses.watch.find_change(), (change, module)
        undo()
        assert not addresses.watch.find_change(), (change, module)


@learners
def test_updates_and_actions_change_nothing_that_is_watched(name):
    """Otherwise nothing would be captured for long."""
    agent, batch = learner(name)
    agent.graph = False
    agent.update(batch)
    addresses = capture.ModuleAddresses(agent)
    agent.update(batch)
    assert not addresses.watch.find_change()


# ---------------------------------------------------------------- state-space models


@compiled
@pytest.mark.parametrize("name", ["v3", "v2", "pydreamer"])
def test_each_change_inside_a_world_model_takes_effect(name):
    """Observing and imagining give the definitions' numbers, which differ from those of the model as it was."""
    agent, _ = learner(name)
    model, actor = agent.world.rssm, agent.actor
    for p in (*model.parameters(), *actor.parameters()):
        nn.init.normal_(p, 1.0 if p.ndim == 1 else 0.0, 0.3)
    width = model.posterior.first.weight.shape[1] - model.cfg.deter
    x, action = torch.randn(3, 4, width), torch.rand(3, 4, sum(s.stop - s.start for s in actor.slices.values()))
    first = torch.tensor([[True, False, False, True]] * 3)

    def run():
        seed_everything(0)
        post, stats = model.observe(model.initial(3, torch.float32), x, action, first)
        trajectory = imagination.imagine(agent.world, actor, post.detach(), 3)
        return [*post, stats, trajectory.feature, trajectory.policy.entropy()]

    with torch.no_grad():
        modules = [*[*model.modules()][1:], *actor.modules()]
        for change, module in zip(itertools.cycle(CHANGES), modules, strict=False):
            undo = change(module)
            ours = run()
            with use_only_kernels():
                theirs = run()
            undo()
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


WITHOUT_CALLS = (Algorithm, TDObjective, Conv, DoublingConv, ConvReLU, MishLayer, PolicyActor)
"""Classes of modules that hold weights for others, or whose methods are called."""


@learners
def test_modules_with_weights_are_called_and_give_what_is_computed_in_their_place(name):
    """With a subclass that changes nothing, layers are called one by one, so that changes have an effect."""
    found, called = [], set()
    for is_subclass in (False, True):
        agent, batch = learner(name)
        agent.graph = False
        for module in [*agent.modules()][1:] if is_subclass else ():
            module.__class__ = type(type(module).__name__, (type(module),), {})
        seed_everything(0)
        with use_only_kernels(), modules_called(called if is_subclass else set()):
            found.append(dict(agent.update(batch).metrics))
            agent.update(batch)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    owners = [(n, m) for n, m in agent.named_modules() if [*m.parameters(recurse=False)]]
    assert [n for n, m in owners if m not in called and not isinstance(m, WITHOUT_CALLS)] == []


@contextlib.contextmanager
def modules_called(into):
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: into.add(module))
    try:
        yield
    finally:
        handle.remove()


# ---------------------------------------------------------------- captured updates and actions


def small(**changes):
    agent = contracts.build("sac", **changes)
    return agent, contracts.batch(agent)


def run_updates(agent, batch, count=1):
    return [{k: float(v) for k, v in agent.update(batch).metrics.items()} for _ in range(count)]


def captured(agent):
    return any(step.replay for each in capture._captured[agent].steps.values() for step in each.steps.values())


@pytest.mark.parametrize("place", ["module", "parameter", "every module"])
def test_hooks_are_called_in_each_update_and_the_tape_is_back_without_them(place):
    (agent, batch), calls = small(), []
    run_updates(agent, batch, WARM_UPS + 2)
    assert captured(agent)
    register = {
        "module": agent.objective.critic.register_forward_hook,
        "parameter": next(agent.objective.critic.parameters()).register_hook,
        "every module": nn.modules.module.register_module_forward_hook,
    }[place]
    handle = register(lambda *_: calls.append(1))
    with pytest.warns(UserWarning, match="slower: a replay would not call the hook of"):
        run_updates(agent, batch)
    count = len(calls)
    run_updates(agent, batch, WARM_UPS + 2)
    assert len(calls) == (WARM_UPS + 3) * count > 0
    handle.remove()
    run_updates(agent, batch, WARM_UPS + 2)
    assert len(calls) == (WARM_UPS + 3) * count
    assert captured(agent)


def set_lr(agent, value):
    agent.optims["actor"].lr = value


def set_python_value(agent, value):
    agent.objective.target_entropy = value


def set_target_rate(agent, value):
    agent.objective.target_critic.rate = value


def set_settings(agent, value):
    agent.objective.cfg = agent.objective.cfg.merge({"discount": value})


VALUES = (set_lr, set_python_value, set_target_rate, set_settings)


@pytest.mark.parametrize("change", VALUES)
def test_python_values_that_are_set_between_updates_take_effect(change):
    found = []
    for graph in (True, False):
        agent, batch = small(graph=graph)
        seed_everything(0)
        run_updates(agent, batch, WARM_UPS + 2)
        for value in (0.0, 0.5):
            change(agent, value)
            run_updates(agent, batch, WARM_UPS + 2)
        found.append(copy.deepcopy(contracts.learned(agent)))
        assert not graph or captured(agent)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("change", [attribute, function, subclass])
def test_changes_deep_inside_are_noticed_after_some_updates_or_at_once_if_noted(change):
    """They are looked for once in a while, and after callbacks."""
    agent, _ = small()
    addresses = capture.ModuleAddresses(agent)
    undo = change(agent.objective.actor.body)
    assert sum(bool(addresses.find_change()) for _ in range(CHECK_INTERVAL)) == 1
    undo()
    addresses.refresh()
    change(agent.objective.actor.body)
    ModuleChanges.note()
    assert addresses.find_change()


def test_a_learning_rate_of_0_stops_what_it_trains():
    agent, batch = small()
    run_updates(agent, batch, WARM_UPS + 2)
    agent.optims["actor"].lr = 0
    actor, before = [*agent.objective.actor.parameters()], copy.deepcopy([*agent.objective.actor.parameters()])
    run_updates(agent, batch, WARM_UPS + 2)
    assert all(map(torch.equal, actor, before))
    agent.optims["actor"].lr = 1e-3
    assert agent.optims["actor"].lr == pytest.approx(1e-3)
    run_updates(agent, batch)
    assert not any(map(torch.equal, actor, before))


def test_a_scheduled_learning_rate_cannot_be_set():
    for agent in (small(actor_lr=[[0, 1e-3], [100, 0]])[0], contracts.build("ppo_mixed")):
        optim = next(iter(agent.optimizers().values()))
        with pytest.raises(ConfigError, match="follows the schedule"):
            optim.lr = 0.1


def test_what_changes_before_every_update_is_not_captured_again_and_again():
    agent, batch = small()

    def run() -> None:
        for i in range(MAX_CHANGES + 3):
            agent.objective.target_entropy = -1.0 - i
            run_updates(agent, batch)

    with pytest.warns(UserWarning, match="attribute target_entropy is changed before every update") as said:
        run()
    assert len(said) == 1
    assert not captured(agent)


@pytest.mark.parametrize("change", CHANGES)
def test_actions_follow_changed_networks(change):
    """Hooks and replaced modules at once; the rest after an update, a callback or ``enter_eval_mode``."""
    agent, _ = small()
    step, state = contracts.shown(), agent.policy.initial(2)

    def act():
        torch.manual_seed(0)
        return agent.policy.act(step, state, "explore")[0]

    [act() for _ in range(3)]
    change(agent.objective.actor)
    ModuleChanges.note()
    [act() for _ in range(2)]
    ours = act()
    with use_only_kernels():
        torch.testing.assert_close(ours, act())


def test_a_replaced_module_is_noticed_without_a_look_at_all_modules():
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU())  # not of this library: only PyTorch tells of its changes
    watch = ModuleWatch(network)
    assert not watch.has_hint()
    network[0] = nn.Linear(2, 2)
    assert watch.has_hint()
    assert watch.find_change() == "its modules"
