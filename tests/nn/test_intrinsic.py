"""Random network distillation by a slow definition, and its place in learners."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from reverie.algos.dqn import DQNConfig
from reverie.algos.impala import IMPALAConfig
from reverie.algos.ppo import PPOConfig
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch
from reverie.nn.intrinsic import RND

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


def prediction_errors(module, seen):
    """Errors ``[B, T]`` of the newest of the batches ``seen``, on observations normalized by all of them."""
    obs = dict(seen[-1].obs)
    for key in ("image.of", "state"):
        every = np.concatenate([x.obs[key].flatten(0, 1).numpy() for x in seen]).astype(np.float64)
        std = every.std(0)
        moved = (obs[key].numpy() - every.mean(0)) / np.where(std < 1e-6, np.inf, std)
        obs[key] = torch.from_numpy(moved.clip(-5, 5)).float()
    with torch.no_grad():
        error = (module.predictor(obs) - module.target_network(obs)).square().mean(-1)
    return error.masked_fill(seen[-1].is_first, 0.0)


def test_rewards_of_rollouts_are_those_of_a_slow_definition():
    """Errors over the deviation of all discounted sums of errors so far, which go on in the next rollout."""
    torch.manual_seed(0)
    module = RND(discount=0.9, units=8).build(SPEC, None, torch.device("cpu"))
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
    module = RND(scale=0.1, discount=0.9, units=8).build(SPEC, None, torch.device("cpu"))
    seen, errors = [], []
    for data in map(rows, (1, 2, 3)):
        seen.append(data)
        found = module.add_reward(data).reward - data.reward
        errors.append(prediction_errors(module, seen))
        std = 10 * torch.cat(errors).std(correction=0)
        torch.testing.assert_close(found, 0.1 * errors[-1] / std, rtol=2e-3, atol=1e-4)


def test_what_was_seen_often_becomes_less_rewarding():
    torch.manual_seed(0)
    module = RND(units=8, lr=1e-2, update_fraction=1.0).build(SPEC, None, torch.device("cpu"))
    old, new = rows(1), rows(2)
    module.add_reward(old)
    before = module(new.obs).mean().detach()
    for _ in range(200):
        metrics = module.learn(old)
    assert float(metrics["loss/intrinsic"]) < 0.2 * float(before)
    assert float(module(new.obs).mean().detach()) > 3 * float(metrics["loss/intrinsic"])


def test_the_predictor_learns_from_some_of_the_rows():
    """Of 5 % of 20 rows, a single one."""
    module, data = RND(units=8, update_fraction=0.05).build(SPEC, None, torch.device("cpu")), rows(1)
    module.add_reward(data)
    errors = module(data.obs)
    assert (errors - module.learn(data)["loss/intrinsic"]).abs().min() < 1e-6


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


@pytest.mark.parametrize("kind", ["impala", "dqn"])
def test_other_learners_learn_from_the_sum_of_rewards(kind):
    config = IMPALAConfig(rollout=4) if kind == "impala" else DQNConfig(batch_length=5)
    plain, agent, twin = (
        config.merge(TINY | {"intrinsic_reward": x}).build(SPEC, CHOICE, seed=1) for x in (None, "rnd()", "rnd()")
    )
    data = replace(rows(1), extras={"log_prob": torch.zeros(4, 5)} if kind == "impala" else {})
    summed = replace(data, reward=twin.novelty.add_reward(data).reward)
    assert not torch.equal(summed.reward, data.reward)
    metrics = agent.update(data).metrics
    torch.testing.assert_close(metrics["loss/critic"], plain.update(summed).metrics["loss/critic"])
    assert not all(map(torch.equal, agent.novelty.parameters(), twin.novelty.parameters()))
    assert float(metrics["train/intrinsic_reward"]) > 0
