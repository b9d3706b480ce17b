"""DDPG's losses against the paper, one transition at a time; where gradients go; how targets move."""

import copy

import pytest
import torch
from recorded import close
from windows import ESTIMATORS, TinyActor, TinyCritic, batch, gradients, moves, row, slow_target

from reverie.algos.ddpg import DDPGConfig, DDPGObjective

GAMMA = 0.9


def objective(**settings) -> DDPGObjective:
    torch.manual_seed(0)
    made = DDPGObjective(TinyActor(), TinyCritic(), DDPGConfig(batch_length=5, discount=GAMMA, **settings))
    for p in [*made.target_actor.parameters(), *made.target_critic.parameters()]:
        p.data.add_(torch.randn_like(p) * 0.3)  # targets lag behind
    return made


def slow_losses(made, data, estimator):
    """Algorithm 1: for each transition on its own."""
    size, length = data.shape
    mu, q = made.target_actor.model, made.target_critic.model
    value = [[float(q(row(data, b, t), mu(row(data, b, t)))) for t in range(length)] for b in range(size)]
    actor = critic = 0.0
    wrong = [[] for _ in range(size)]
    for b, t in moves(data):
        y = slow_target(estimator, data, value, b, t, GAMMA)
        error = made.critic(row(data, b, t), data.action[b, t]) - y
        critic = critic + data.weight[b] * error**2
        actor = actor - made.critic(row(data, b, t), made.actor(row(data, b, t)))
        wrong[b].append(abs(error.item()))
    count = len(moves(data))
    return {"critic": critic / count, "actor": actor / count}, [sum(w) / max(1, len(w)) for w in wrong]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@pytest.mark.parametrize("crossing", [False, True])
def test_losses_and_gradients_against_the_definition(estimator, crossing):
    made, data = objective(value_estimator=estimator), batch(crossing=crossing)
    assert data.is_terminal.any()
    assert (data.is_last & ~data.is_terminal).any()
    losses = made(data)
    slow, wrong = slow_losses(made, data, estimator)
    close(losses, slow, {"critic": made.critic.parameters(), "actor": made.actor.parameters()})
    torch.testing.assert_close(losses.priority, torch.tensor(wrong, dtype=torch.float64), rtol=1e-10, atol=1e-12)
    assert not any(v.requires_grad for v in losses.metrics.values())
    assert losses.metrics["loss/critic"] == losses.terms["critic"]


def test_each_term_reaches_its_own_network_alone():
    for term, mine, other in (("actor", "actor", "critic"), ("critic", "critic", "actor")):
        made = objective()
        made(batch()).terms[term].backward()
        assert gradients(getattr(made, mine)).keys() == dict(getattr(made, mine).named_parameters()).keys()
        assert not gradients(getattr(made, other))
        assert not gradients(made.target_actor)
        assert not gradients(made.target_critic)


def test_a_critic_that_somebody_froze_stays_frozen():
    made = objective()
    made.critic.layers[0].weight.requires_grad_(False)
    made.actor_loss(batch())
    assert [p.requires_grad for p in made.critic.parameters()] == [False, True, True, True]


def test_soft_targets_move_by_tau():
    made = objective(tau=0.1)
    before = copy.deepcopy(made.state_dict())
    made.update_targets()
    for name in ("actor", "critic"):
        for key, source in getattr(made, name).named_parameters():
            old, new = before[f"target_{name}.model.{key}"], made.state_dict()[f"target_{name}.model.{key}"]
            torch.testing.assert_close(new, 0.1 * source.detach() + 0.9 * old, rtol=1e-12, atol=1e-14)


def test_hard_targets_are_copied_at_every_nth_update_exactly():
    made = objective(tau=1.0, target_every=3)
    for call in range(1, 10):
        with torch.no_grad():
            for p in made.critic.parameters():
                p.add_(1.0)
        before = copy.deepcopy(made.target_critic.model.state_dict())
        made.update_targets()
        expected = made.critic.state_dict() if call % 3 == 0 else before
        torch.testing.assert_close(dict(made.target_critic.model.state_dict()), dict(expected), rtol=0, atol=0)
    assert made.state_dict()["target_critic.count"] == 9


def test_a_batch_without_a_transition_is_worth_nothing():
    data = batch(length=2)
    data.is_last.fill_(True)
    made = objective()
    losses = made(data)
    assert losses.terms["critic"].item() == losses.terms["actor"].item() == 0
    assert torch.equal(losses.priority, torch.zeros(5, dtype=torch.float64))
    losses.total().backward()
    assert all(float(g.abs().max()) == 0 for g in gradients(made).values())


def test_a_critic_with_a_last_axis_of_one_is_an_error():
    class Kept(TinyCritic):
        def forward(self, obs, action):
            return super().forward(obs, action)[..., None]

    made = DDPGObjective(TinyActor(), Kept(), DDPGConfig())
    with pytest.raises(ValueError, match=r"values of shape \(5, 4, 1\): expected \[B, T - 1\] = \(5, 4\)"):
        made(batch())
    made.target_critic.model = TinyCritic()
    with pytest.raises(ValueError, match=r"values of shape \(5, 4, 1\): expected \[\(K,\) B, T - 1\] = \(5, 4\)"):
        made(batch())
