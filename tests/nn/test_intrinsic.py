"""Random network distillation and intrinsic curiosity by slow definitions, and their place in learners."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from reverie.algos.dqn import DQNConfig
from reverie.algos.impala import IMPALAConfig
from reverie.algos.ppo import PPOConfig
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch
from reverie.nn.intrinsic import ICM, RND

SPEC = {
    "image.of": ObsPart(kind="image", shape=(8, 8, 3), dtype="uint8"),
    "state": ObsPart(kind="vector", shape=(2,), dtype="float32"),
    "token": ObsPart(kind="categorical", shape=(), dtype="int64", classes=(3,)),
}
CHOICE = ActionSpec(parts={"a": ActionPart(kind="categorical", classes=(3,))})


def rows(seed, b=4, t=5):
    g = torch.Generator().manual_seed(seed)
    first = torch.rand(b, t, generator=g) < 0.2
    none = torch.zeros(b, t, dtype=torch.bool)
    state = 3 + 2 * torch.randn(b, t, 2, generator=g)
    state[..., 1] = 0.3  # a constant
    obs = {"image.of": torch.randint(0, 256, (b, t, 8, 8, 3), generator=g, dtype=torch.uint8), "state": state,
           "token": torch.randint(0, 3, (b, t), generator=g)}  # fmt: skip
    return Batch(
        obs=obs, action=torch.eye(3)[torch.randint(3, (b, t), generator=g)], reward=torch.randn(b, t, generator=g),
        is_first=first, is_last=none, is_terminal=none, weight=torch.ones(b), index=torch.arange(b),
    )  # fmt: skip


def normalized(seen):
    """The observations of the newest of the batches ``seen``, normalized by all of them."""
    obs = dict(seen[-1].obs)
    for key in ("image.of", "state"):
        every = np.concatenate([x.obs[key].flatten(0, 1).numpy() for x in seen]).astype(np.float64)
        std = every.std(0)
        moved = (obs[key].numpy() - every.mean(0)) / np.where(std < 1e-6, np.inf, std)
        obs[key] = torch.from_numpy(moved.clip(-5, 5)).float()
    return obs


def prediction_errors(module, seen):
    """Errors ``[B, T]`` of the newest of the batches ``seen``, on observations normalized by all of them."""
    obs = normalized(seen)
    with torch.no_grad():
        error = (module.predictor(obs) - module.target_network(obs)).square().mean(-1)
    return error.masked_fill(seen[-1].is_first, 0.0)


def test_rewards_of_rollouts_are_those_of_a_slow_definition():
    """Errors over the deviation of all discounted sums of errors so far, which go on in the next rollout."""
    torch.manual_seed(0)
    module = RND(discount=0.9, units=8).build(SPEC, CHOICE, None, torch.device("cpu"))
    seen, sums = [], [torch.zeros(4)]
    for data in map(rows, (1, 2, 3)):
        seen.append(data)
        found, error = module.rewards(data), prediction_errors(module, seen)
        for t in range(1, 5):  # row 0 was the last of the rollout before
            sums.append(0.9 * sums[-1] + error[:, t])
        torch.testing.assert_close(found, error / torch.stack(sums[1:]).std(correction=0), rtol=2e-3, atol=1e-4)


def test_rewards_of_replayed_rows_are_those_of_a_slow_definition():
    """Errors over the deviation of returns, as if all errors of a return were equal."""
    torch.manual_seed(0)
    module = RND(scale=0.1, discount=0.9, units=8).build(SPEC, CHOICE, None, torch.device("cpu"))
    seen, errors = [], []
    for data in map(rows, (1, 2, 3)):
        seen.append(data)
        found = module.add_reward(data).reward - data.reward
        errors.append(prediction_errors(module, seen))
        std = 10 * torch.cat(errors).std(correction=0)
        torch.testing.assert_close(found, 0.1 * errors[-1] / std, rtol=2e-3, atol=1e-4)


def test_what_was_seen_often_becomes_less_rewarding():
    torch.manual_seed(0)
    module = RND(units=8, lr=1e-2, update_fraction=1.0).build(SPEC, CHOICE, None, torch.device("cpu"))
    old, new = rows(1), rows(2)
    module.add_reward(old)
    before = module(new.obs).mean().detach()
    for _ in range(200):
        metrics = module.learn(old)
    assert float(metrics["loss/intrinsic"]) < 0.2 * float(before)
    assert float(module(new.obs).mean().detach()) > 3 * float(metrics["loss/intrinsic"])


def test_the_predictor_learns_from_some_of_the_rows():
    """Of 5 % of 20 rows, a single one."""
    module, data = RND(units=8, update_fraction=0.05).build(SPEC, CHOICE, None, torch.device("cpu")), rows(1)
    module.add_reward(data)
    errors = module(data.obs)
    assert (errors - module.learn(data)["loss/intrinsic"]).abs().min() < 1e-6


# ---------------------------------------------------------------- intrinsic curiosity

MIXED = ActionSpec(parts={**CHOICE.parts, "b": ActionPart(kind="continuous", size=2)})


def layered(mlp, x):
    """The outputs ``[outputs]`` of one row, by its weights."""
    *hidden, (weight, bias) = [(weight[0], bias[0, 0]) for weight, bias in mlp.layers()]
    for inner_weight, inner_bias in hidden:
        x = (x @ inner_weight + inner_bias).clamp(min=0)
    return x @ weight + bias


def curiosity(module, seen):
    """L_F and L_I of each transition of the newest batch: Pathak et al. 2017, equations 2 to 5, row by row."""
    obs, data = normalized(seen), seen[-1]
    forward, inverse = torch.zeros(data.shape), torch.zeros(data.shape)
    for b, t in itertools.product(range(data.shape[0]), range(1, data.shape[1])):
        before, after = (module.features({k: x[b : b + 1, i] for k, x in obs.items()})[0] for i in (t - 1, t))
        action = data.action[b, t - 1].clamp(-1, 1)
        forward[b, t] = (layered(module.forward_model, torch.cat([before, action])) - after).square().sum() / 2
        guess = layered(module.inverse_model, torch.cat([before, after]))
        inverse[b, t] = torch.nn.functional.cross_entropy(guess[:3], action[:3])
        inverse[b, t] += (guess[3:] - action[3:]).square().sum() / 2
    return forward, inverse


@pytest.mark.parametrize("acts", [CHOICE, MIXED])
def test_curiosity_is_that_of_a_slow_definition(acts):
    torch.manual_seed(0)
    module = ICM(scale=0.1, discount=0.9, units=8).build(SPEC, acts, None, torch.device("cpu"))
    assert sum(p.numel() for p in module.optim.params) == sum(p.numel() for p in module.parameters())
    seen, errors = [], []
    for data in map(rows, (1, 2, 3)):
        numbers = torch.randn(*data.shape, acts.width - 3)
        last = torch.cat([data.is_first[:, 1:], data.is_last[:, :1]], 1)
        seen.append(replace(data, action=torch.cat([data.action, numbers], -1), is_last=last))
        found = module.add_reward(seen[-1]).reward - data.reward
        with torch.no_grad():
            error = curiosity(module, seen)[0].masked_fill(data.is_first, 0)
        errors.append(error[:, 1:])
        std = 10 * torch.cat(errors).std(correction=0)
        torch.testing.assert_close(found, 0.1 * error / std, rtol=2e-3, atol=1e-4)
    forward, inverse = curiosity(module, seen)
    is_step = ~seen[-1].is_first & (torch.arange(5) > 0)
    loss = 0.8 * inverse[is_step].mean() + 0.2 * forward[is_step].mean()
    expected = torch.autograd.grad(loss, [*module.parameters()])
    taken = []
    module.optim.apply = lambda grads: taken.append(grads) or {}
    metrics = module.learn(seen[-1])
    torch.testing.assert_close(metrics["loss/intrinsic"], loss.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(metrics["loss/inverse"], inverse[is_step].mean().detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(taken[0], list(expected), rtol=1e-3, atol=1e-4)


def test_rows_of_minibatches_have_their_transitions():
    """In single rows, in any order, the loss is that of the rollout."""
    config = PPOConfig(rollout=4, batch_size=16).merge(TINY | {"intrinsic_reward": "icm(units=8)"})
    agent = config.build(SPEC, CHOICE, seed=1)
    last = torch.rand(4, 5) < 0.3
    data = replace(rows(1), is_first=last.roll(1, 1), is_last=last, is_terminal=last)
    rollout = agent.prepare_rollout(data)
    shuffled = rollout.map(lambda x: x[torch.randperm(16, generator=torch.Generator().manual_seed(0))])
    agent.novelty.optim.step = lambda loss: None
    whole, single = (agent.novelty.learn(x) for x in (data, shuffled))
    for name in whole:
        torch.testing.assert_close(whole[name], single[name])
    before = [p.clone() for p in agent.novelty.parameters()]
    del agent.novelty.optim.step
    metrics = agent.update(rollout).metrics
    assert not any(map(torch.equal, agent.novelty.parameters(), before))
    assert float(metrics["train/intrinsic_reward"]) > 0


def test_the_inverse_model_learns_which_action_was_taken():
    """By a number that actions change, beside three of noise."""
    torch.manual_seed(0)
    spec = {"state": ObsPart(kind="vector", shape=(4,), dtype="float32")}
    module = ICM(units=16, lr=3e-3).build(spec, CHOICE, None, torch.device("cpu"))

    def drawn():
        action = torch.eye(3)[torch.randint(3, (32, 5))]
        place = torch.cumsum(action.argmax(-1) - 1.0, 1).roll(1, 1)
        state = torch.cat([place.unsqueeze(-1), torch.randn(32, 5, 3)], -1)
        none = torch.zeros(32, 5, dtype=torch.bool)
        return Batch(obs={"state": state}, action=action, reward=torch.zeros(32, 5), is_first=none, is_last=none,
                     is_terminal=none, weight=torch.ones(32), index=torch.arange(32))  # fmt: skip

    first = None
    for _ in range(400):
        data = drawn()
        module.add_reward(data)
        metrics = module.learn(data)
        first = metrics if first is None else first
    assert float(metrics["loss/inverse"]) < 0.7 * float(first["loss/inverse"])


TINY = {"graph": False, "networks.units": (8,), "networks.encoder": "dreamer(depth=2)"}


def test_the_advantage_of_intrinsic_returns_is_added_and_no_episode_ends_them():
    """Generalized advantage estimation of the second value, over the ends of episodes."""
    config = PPOConfig(rollout=4, batch_size=16).merge(TINY | {"intrinsic_reward": "rnd(units=8)"})
    agent, twin = (config.build(SPEC, CHOICE, seed=1) for _ in range(2))
    last = torch.rand(4, 5) < 0.3
    data = replace(rows(1), is_first=last.roll(1, 1), is_last=last, is_terminal=last)
    bonus, plain = twin.novelty.rewards(data), agent.objective.estimates(data)
    value, ahead, advantages = agent.objective.network(data.obs).values[..., 1].detach(), torch.zeros(4), []
    for t in (3, 2, 1, 0):
        ahead = bonus[:, t + 1] + 0.99 * value[:, t + 1] - value[:, t] + 0.99 * 0.95 * ahead
        advantages.insert(0, ahead)
    advantage, rollout = torch.stack(advantages, 1), agent.prepare_rollout(data)
    torch.testing.assert_close(rollout.extras["advantage"].view(4, 4), plain["advantage"] + 0.5 * advantage)
    torch.testing.assert_close(rollout.extras["target"].view(4, 4), plain["target"])
    torch.testing.assert_close(rollout.extras["intrinsic_target"].view(4, 4), advantage + value[:, :4])
    acting = ~last[:, :4]
    own = (plain["target"] - plain["value"])[acting].square().mean()
    metrics, before = agent.update(rollout).metrics, twin.novelty.parameters()
    torch.testing.assert_close(metrics["loss/critic"], own + advantage.square().mean())
    assert not all(map(torch.equal, agent.novelty.parameters(), before))
    assert float(metrics["train/intrinsic_reward"]) > 0


@pytest.mark.parametrize("name", ["rnd()", "icm()"])
@pytest.mark.parametrize("kind", ["impala", "dqn"])
def test_other_learners_learn_from_the_sum_of_rewards(kind, name):
    config = IMPALAConfig(rollout=4) if kind == "impala" else DQNConfig(batch_length=5)
    plain, agent, twin = (
        config.merge(TINY | {"intrinsic_reward": x}).build(SPEC, CHOICE, seed=1) for x in (None, name, name)
    )
    data = replace(rows(1), extras={"log_prob": torch.zeros(4, 5)} if kind == "impala" else {})
    summed = replace(data, reward=twin.novelty.add_reward(data).reward)
    assert not torch.equal(summed.reward, data.reward)
    metrics = agent.update(data).metrics
    torch.testing.assert_close(metrics["loss/critic"], plain.update(summed).metrics["loss/critic"])
    assert not all(map(torch.equal, agent.novelty.parameters(), twin.novelty.parameters()))
    assert float(metrics["train/intrinsic_reward"]) > 0
