"""Learners whose networks compute in float16, on the CPU: what is skipped, what is learned, and what is kept."""

import copy

import pytest
import torch

import dreamer_configs
from contracts import batch, build, learned
from reverie.nn.bodies import SphericalBlock

pytestmark = pytest.mark.usefixtures("plain_pytorch")


def moved(agent, before):
    """Names of parameters and moments that differ from ``before``, but for targets."""
    now = learned(agent)
    names = [k for k in now if not any(word in k for word in ("target", "loss_scale", "preprocess"))]
    return {name for name in names if not torch.equal(now[name], before[name])}


@pytest.mark.parametrize("name", ["dqn", "td3", "ppo_mixed", "tdmpc2"])
def test_an_update_whose_gradients_overflow_changes_nothing_and_the_next_learn(name):
    """By each way to gradients and steps."""
    agent = build(name, "everything", precision="float16", graph=False, normalize_obs=None)
    for seed in range(2):
        agent.update(batch(agent, "everything", seed))
    agent.loss_scale.value.fill_(2.0**60)
    before = copy.deepcopy(learned(agent))
    metrics = agent.update(batch(agent, "everything", 2)).metrics
    assert all(x.isfinite() for key, x in metrics.items() if key.startswith("loss/"))
    assert not moved(agent, before)
    assert (metrics["opt/loss_scale"], agent.loss_scale.value) == (2.0**60, 2.0**59)
    agent.loss_scale.value.fill_(2.0**6)
    for seed in (3, 4):
        agent.update(batch(agent, "everything", seed))
    assert {key.partition("/")[0] for key in moved(agent, before)} == {"model", *agent.optimizers()}


@pytest.mark.parametrize("name", ["dqn", "ppo_mixed", "v3"])
def test_gradients_are_those_of_float32(name):
    found = []
    for precision in ("float32", "float16"):
        if name == "v3":
            agent, kind = dreamer_configs.made(name, precision=precision)
            agent.world.rssm.draw = lambda probs: probs.argmax(-1)  # rounding changes more of the samples
            rows = dreamer_configs.batch(agent, kind)
        else:
            agent = build(name, precision=precision, graph=False)
            rows = batch(agent)
        (optim,) = agent.optimizers().values()
        if precision == "float16":
            agent.loss_scale.value.fill_(16.0)
        grads = []
        if name == "dqn":
            agent.update(rows)
            grads = optim.mean
        else:
            optim._update = lambda x, grads=grads: grads.extend(x) or {}
            torch.manual_seed(0)
            agent.update(rows)
        found.append(torch.cat([x.flatten() for x in grads]))
    assert (found[0] - found[1]).norm() < 0.02 * found[0].norm()


def test_a_learner_resumes_bit_for_bit_also_from_another_precision():
    first, second = (build("dqn", precision="float16", graph=False) for _ in range(2))
    first.loss_scale.value.fill_(8.0)
    first.update(batch(first))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for agent in (first, second):
        agent.update(batch(agent, seed=1))
    torch.testing.assert_close(learned(first), learned(second), rtol=0, atol=0)
    assert (float(second.loss_scale.value), int(second.loss_scale.streak)) == (8.0, 2)
    wide = build("dqn")
    wide.load_state_dict(first.state_dict())
    first.load_state_dict(wide.state_dict())
    assert first.loss_scale.value == 8.0


def test_zeros_have_no_direction_on_the_sphere_in_float16():
    """Added to a number, and as the least norm, 1e-8 is 0 there."""
    block, x = SphericalBlock(4, 1, 1), torch.full((1, 2, 4), 0.5, dtype=torch.float16)
    with torch.no_grad():
        block.expand.weight.fill_(-0.5)  # nothing passes the ReLU
    x.requires_grad_()
    y = block(x, slice(None))
    y.float().sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
