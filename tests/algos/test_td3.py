"""TD3's losses against the paper, one transition at a time; where gradients go; the delay of actor and targets."""

import copy

import pytest
import torch
from recorded import close
from windows import ACTS, ESTIMATORS, TinyActor, TinyCritic, batch, gradients, moves, row, slow_target

from reverie.algos.td3 import TD3Config, TD3Objective
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.nn.actor_critic import Stacked

GAMMA, SIGMA, CLIP = 0.9, 0.5, 0.4


def objective(**settings) -> TD3Objective:
    torch.manual_seed(0)
    critics = Stacked(TinyCritic(), TinyCritic())
    given = {"discount": GAMMA, "target_noise": SIGMA, "noise_clip": CLIP} | settings
    made = TD3Objective(TinyActor(), critics, TD3Config(batch_length=5, **given))
    for p in [*made.target_actor.parameters(), *made.target_critic.parameters()]:
        p.data.add_(torch.randn_like(p) * 0.3)  # targets lag behind
    return made


def slow_losses(made, data, estimator, noise):
    """Algorithm 1: for each transition on its own. ``noise`` is standard normal, of rows 1 ... T-1."""
    size, length = data.shape
    mu, q = made.target_actor.model, made.target_critic.model.critics
    value = [[0.0] * length for _ in range(size)]
    for b in range(size):
        for t in range(1, length):
            action = []
            for i, a in enumerate(mu(row(data, b, t)).tolist()):
                action.append(max(-1.0, min(1.0, a + max(-CLIP, min(CLIP, SIGMA * float(noise[b, t - 1, i]))))))
            value[b][t] = min(c(row(data, b, t), torch.tensor(action, dtype=torch.float64)).item() for c in q)
    first, second = made.critic.critics
    actor = critic = 0.0
    for b, t in moves(data):
        y = slow_target(estimator, data, value, b, t, GAMMA)
        for c in (first, second):
            critic = critic + data.weight[b] * (c(row(data, b, t), data.action[b, t]) - y) ** 2
        actor = actor - first(row(data, b, t), made.actor(row(data, b, t)))
    return {"critic": critic / len(moves(data)), "actor": actor / len(moves(data))}


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_losses_and_gradients_against_the_definition(estimator):
    made, data = objective(value_estimator=estimator), batch(size=8)
    torch.manual_seed(7)
    losses = made(data)
    torch.manual_seed(7)
    noise = torch.randn(8, 4, ACTS, dtype=torch.float64)
    assert (SIGMA * noise).abs().max() > CLIP
    slow = slow_losses(made, data, estimator, noise)
    close(losses, slow, {"critic": made.critic.parameters(), "actor": made.actor.parameters()})


def test_without_noise_a_target_is_the_lesser_of_two():
    made, data = objective(target_noise=0.0), batch()
    obs = {"state": data.obs["state"][:, 1:]}
    both = made.target_critic.model(obs, made.target_actor.model(obs))
    assert (both[0] > both[1]).any()
    assert (both[0] < both[1]).any()
    assert torch.equal(made.next_value(obs), both.amin(0))


def test_each_term_reaches_its_own_networks_alone():
    for term, mine, other in (("actor", "actor", "critic"), ("critic", "critic", "actor")):
        made = objective()
        made(batch()).terms[term].backward()
        assert gradients(getattr(made, mine)).keys() == dict(getattr(made, mine).named_parameters()).keys()
        assert not gradients(getattr(made, other))
        assert not gradients(made.target_actor)
        assert not gradients(made.target_critic)


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_actor_and_targets_move_at_every_dth_update_exactly(delay):
    config = TD3Config(policy_delay=delay, batch_size=4).merge({"networks.units": (8,)})
    agent = config.build(
        {"state": ObsPart(kind="vector", shape=(3,), dtype="float32")},
        ActionSpec(parts={"move": ActionPart(kind="continuous", size=ACTS)}),
    )
    for i in range(1, 8):
        before = copy.deepcopy(agent.objective.state_dict())
        update = agent.update(batch(4, 2, seed=i, crossing=False, dtype=torch.float32))
        after = agent.objective.state_dict()
        moved = {k.split(".")[0] for k in before if not torch.equal(before[k], after[k])}
        late = {"actor", "target_actor", "target_critic"} if i % delay == 0 else set()
        assert moved == {"critic"} | late
        assert ("loss/actor" in update.metrics) == (i % delay == 0)
    assert agent.state_dict()["updates"] == 7
    assert int(agent.optims["actor"].updates) == 7 // delay
