"""BCQ's losses against Algorithm 1, one transition at a time; how it acts."""

import math

import pytest
import torch
from recorded import LATENT, TinyPerturb, TinyVAE, close, lag, reaches
from windows import ACTS, ESTIMATORS, TinyCritic, batch, moves, row, slow_target

from reverie.algos.bcq import BCQConfig, BCQObjective
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Step
from reverie.nn.actor_critic import Stacked

GAMMA, LAMBDA, SAMPLES = 0.9, 0.7, 4


def objective(**settings) -> BCQObjective:
    torch.manual_seed(0)
    given = {"discount": GAMMA, "lmbda": LAMBDA, "samples": SAMPLES} | settings
    critics, config = Stacked(TinyCritic(), TinyCritic()), BCQConfig(batch_length=5, **given)
    made = BCQObjective(TinyVAE(), TinyPerturb(), critics, config)
    lag(made.target_perturb)
    lag(made.target_critic)
    return made


def within(latent):
    return latent.apply_(lambda z: max(-0.5, min(0.5, z)))


def slow_losses(made, data, estimator, coding, after, before):
    """Noise of codes ``[B, T-1, L]`` and of latents ``[B, T-1, n, L]``, for next states and for states."""
    size, length = data.shape
    worth = [[0.0] * length for _ in range(size)]
    for b in range(size):
        for t in range(1, length):
            found = []
            for noise in after[b, t - 1]:
                obs = row(data, b, t)
                action = made.vae.decode(obs, within(noise.clone())[None])[0]
                action = made.target_perturb.model(obs, action)
                q = [c(obs, action).item() for c in made.target_critic.model.critics]
                found.append(LAMBDA * min(q) + (1 - LAMBDA) * max(q))
            worth[b][t] = max(found)
    sums = {"vae": 0.0, "critic": 0.0, "actor": 0.0}
    for b, t in moves(data):
        obs, action = row(data, b, t), data.action[b, t]
        mean, log_std = made.vae.coder(torch.cat([obs["state"], action])).chunk(2)
        made_of = made.vae.decode(obs, (mean + log_std.exp() * coding[b, t])[None])[0]
        sums["vae"] += sum((x - y) ** 2 for x, y in zip(made_of, action, strict=True)) / ACTS
        for m, s in zip(mean, log_std.exp(), strict=True):
            sums["vae"] += 0.5 * (-torch.log(s) + (s**2 + m**2) / 2 - 0.5) / LATENT
        y = slow_target(estimator, data, worth, b, t, GAMMA)
        for c in made.critic.critics:
            sums["critic"] += data.weight[b] * (c(obs, action) - y) ** 2
        drawn = made.vae.decode(obs, within(before[b, t].clone()))[0].detach()
        sums["actor"] -= made.critic.critics[0](obs, made.perturb(obs, drawn))
    return {name: x / len(moves(data)) for name, x in sums.items()}


@pytest.mark.parametrize("estimator", ESTIMATORS[:3], ids=str)
def test_losses_and_gradients_against_the_definition(estimator):
    made, data = objective(value_estimator=estimator), batch(size=8)
    torch.manual_seed(7)
    losses = made(data)
    torch.manual_seed(7)
    coding = torch.randn(8, 4, LATENT, dtype=torch.float64)
    after = torch.randn(8, 4, SAMPLES, LATENT, dtype=torch.float64)
    before = torch.randn(8, 4, 1, LATENT, dtype=torch.float64)
    assert after.abs().max() > 0.5
    slow = slow_losses(made, data, estimator, coding, after, before)
    own = {"vae": made.vae.parameters(), "critic": made.critic.parameters(), "actor": made.perturb.parameters()}
    close(losses, slow, own)


def test_each_term_reaches_its_own_networks_alone():
    reaches(objective(), batch(), {"vae": {"vae"}, "critic": {"critic"}, "actor": {"perturb"}})


def test_next_actions_are_moved_by_the_target_and_not_left_as_they_are():
    made, data = objective(), batch()
    obs, latent = {"state": data.obs["state"]}, torch.randn(5, 5, SAMPLES, LATENT, dtype=torch.float64)
    worth = made.next_value(obs, latent)
    for p in made.perturb.parameters():
        p.data.zero_()  # the one that learns does not count
    assert torch.equal(made.next_value(obs, latent), worth)
    for p in made.target_perturb.parameters():
        p.data.zero_()
    assert not torch.allclose(made.next_value(obs, latent), worth)


def test_the_divergence_is_that_from_a_standard_normal_distribution():
    from reverie.algos.bcq import divergence_from_standard

    mean, log_std = torch.randn(2, 6, dtype=torch.float64)
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(normal(mean, log_std.exp()), normal(0.0, 1.0))
    torch.testing.assert_close(divergence_from_standard(mean, log_std), expected)


def agent(**settings):
    config = BCQConfig(batch_size=4, **settings).merge({"networks.units": (16,), "vae.units": (16,)})
    vector = ObsPart(kind="vector", shape=(3,), dtype="float32")
    return config.build({"state": vector}, ActionSpec(parts={"move": ActionPart(kind="continuous", size=ACTS)}))


def shown(envs=3):
    no = torch.zeros(envs, dtype=torch.bool)
    obs = {"state": torch.randn(envs, 3, generator=torch.Generator().manual_seed(0))}
    return Step(obs=obs, reward=torch.zeros(envs), is_first=no, is_last=no, is_terminal=no)


def test_the_best_of_several_is_taken():
    """Every other action that could have been taken is worth less to the first critic."""
    made = agent(act_samples=7, phi=0.5).objective
    obs, latent = shown().obs, torch.randn(3, 7, 4).clamp(-0.5, 0.5)
    best = made.best_action(obs, latent)
    for i in range(3):
        one = {"state": obs["state"][i]}
        tried = [made.perturb(one, made.vae.decode(one, z[None])[0]) for z in latent[i]]
        values = [made.critic(one, action)[0] for action in tried]
        torch.testing.assert_close(best[i], tried[max(range(7), key=lambda k: values[k])])


def test_actions_are_moved_no_further_than_phi():
    made = agent(phi=0.05).objective
    with torch.no_grad():
        made.perturb.body.theta *= 100
    action = torch.rand(50, ACTS) * 2 - 1
    moved = made.perturb({"state": torch.randn(50, 3)}, action)
    assert 0.04 < (moved - action).abs().max() <= 0.05 + 1e-6
    assert moved.abs().max() <= 1


def test_an_evaluation_draws_anew_at_each_step_and_the_same_each_time():
    policy = agent(normalise=None).policy
    state, actions = policy.initial(3), []
    for _ in range(2):
        action, state = policy.act(shown(), state, "eval")
        actions.append(action)
    assert not torch.equal(*actions)
    again = policy.initial(3)
    torch.manual_seed(99)
    assert torch.equal(policy.act(shown(), again, "eval")[0], actions[0])


def test_a_divergence_of_infinitely_wide_codes_stays_a_number():
    made = agent().objective
    with torch.no_grad():
        made.vae.encoder.theta *= 1e4
    loss = made.vae_loss(batch(4, 2, crossing=False, dtype=torch.float32)).terms["vae"]
    assert math.isfinite(loss.detach())
