"""What every algorithm guarantees: determinism, resume, gradients. The Dreamers have files of their own."""

import copy
from dataclasses import fields

import pytest
import torch
from contracts import CONFIGS, SPECS, batch, build, learned, shown

from reverie.core.discover import GROUP, algorithm_name, algorithms
from reverie.core.errors import ConfigError, RunError
from reverie.nn.target import Target
from reverie.objectives.estimators import TD1

pytestmark = pytest.mark.usefixtures("plain_pytorch")
every = pytest.mark.parametrize("name", CONFIGS)


def test_no_algorithm_is_without_contracts():
    ours = {name for name, home in algorithms().items() if home.startswith(f"{GROUP}.")}
    assert {algorithm_name(type(config)) for config in CONFIGS.values()} | {
        "dreamer_v1",
        "dreamer_v2",
        "dreamer_v3",
        "plan2explore",
        "plan2explore_v1",
        "plan2explore_v3",
    } == ours


@every
@pytest.mark.parametrize("spec", SPECS)
def test_every_parameter_gets_a_gradient_or_is_a_target(name, spec):
    agent = build(name, spec, normalise=None, graph=False)
    before = copy.deepcopy(learned(agent))
    torch.manual_seed(0)  # by chance a filter leaves nothing to imitate
    for i in range(4):
        agent.update(batch(agent, spec, i))
    still = {"model/objective.log_temperature"} if name == "cql_floor" else set()
    without = {f"model/{n}" for n, p in agent.named_parameters() if not p.requires_grad}  # Adam refuses others
    assert without == still | {f"model/{n}" for n, _ in agent.named_parameters() if ".target_" in n}
    same = {k for k, v in learned(agent).items() if torch.equal(v, before[k]) and "preprocess.range" not in k}
    lazy = name == "crr_binary"  # targets follow at the hundredth update
    assert {k for k in same if "norms" not in k and not (lazy and ".target_" in k)} == still


@every
def test_same_seed_same_updates(name):
    results = []
    for _ in range(2):
        agent = build(name)
        torch.manual_seed(5)
        for i in range(4):
            update = agent.update(batch(agent, seed=i))
        results.append((update.metrics, learned(agent)))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


@every
def test_resume_continues_bit_for_bit(name):
    whole = build(name)
    torch.manual_seed(5)
    for i in range(3):
        whole.update(batch(whole, seed=i))
    saved, rng = copy.deepcopy(whole.state_dict()), torch.get_rng_state()
    for i in range(3, 6):
        whole.update(batch(whole, seed=i))
    resumed = build(name)
    places = {k: v.data_ptr() for k, v in learned(resumed).items()}
    resumed.load_state_dict(saved)
    torch.set_rng_state(rng)
    for i in range(3, 6):
        resumed.update(batch(resumed, seed=i))
    torch.testing.assert_close(learned(resumed), learned(whole), rtol=0, atol=0)
    assert {k: v.data_ptr() for k, v in learned(resumed).items()} == places


@every
def test_building_does_not_disturb_the_global_generator(name):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    build(name)
    assert torch.equal(torch.rand(1), expected)


@every
def test_evaluation_draws_nothing(name):
    agent = build(name)
    state = agent.policy.initial(2)
    rng = torch.get_rng_state()
    actions = [agent.policy.act(shown(), state, "eval")[0] for _ in range(2)]
    assert torch.equal(*actions)
    assert torch.equal(rng, torch.get_rng_state())
    if name != "bc":  # its actions have no noise
        many = agent.policy.initial(100)  # a random class now and then
        assert not torch.equal(*[agent.policy.act(shown(envs=100), many, "explore")[0] for _ in range(2)])


@every
def test_moments_of_other_networks_are_refused(name):
    with pytest.raises((RunError, RuntimeError)):
        build(name).load_state_dict(build(name, **{"networks.units": (16,)}).state_dict())


@every
def test_settings_reach_the_losses_the_targets_and_the_optimisers(name):
    """Each with another value than its default, which a learner that does not hand it on has as well."""
    before = CONFIGS[name]
    known = {field.name: getattr(before, field.name) for field in fields(before)}
    changes = {k: 0.9 * v for k, v in known.items() if isinstance(v, float) and 0 < v <= 1}
    changes |= {k: v + 1 for k, v in known.items() if k == "target_every"}
    agent = build(name, **changes | ({"value_estimator": TD1()} if "value_estimator" in known else {}))
    cfg, objective = agent.cfg, agent.objective
    for k in ("discount", "value_estimator", *changes):
        if k in known and hasattr(objective, k):
            wanted = getattr(cfg, k)  # a temperature is the exponential of its logarithm, which processors round apart
            assert getattr(objective, k) == (pytest.approx(wanted) if k in changes else wanted), k
    for target in (module for module in agent.modules() if isinstance(module, Target)):
        assert (target.rate, target.every) == (cfg.tau, getattr(cfg, "target_every", 1))
    for k, optim in agent.optims.items():
        rates = [getattr(cfg, rate) for rate in (f"{k}_lr", "lr") if rate in known]
        assert not rates or optim.settings.lr == rates[0], k


@every
@pytest.mark.parametrize("setting", [{"batch_size": 0}, {"batch_length": 1}, {"discount": 1.5}, {"tau": 0.0}], ids=str)
def test_settings_that_all_have_are_checked_by_all(name, setting):
    ((key, value),) = setting.items()
    if hasattr(CONFIGS[name], key):
        with pytest.raises(ConfigError, match=f"{key} = {value}"):
            CONFIGS[name].merge(setting)
