"""Random network distillation by a slow definition, and its place in learners."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from reverie.algos.dqn import DQNConfig
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


def test_rewards_are_those_of_a_slow_definition():
    """Errors over the deviation of all errors so far, on observations normalized by all rows so far."""
    torch.manual_seed(0)
    module = RND(scale=0.1, units=8).build(SPEC, None, torch.device("cpu"))
    seen, errors = [], []
    for data in map(rows, (1, 2, 3)):
        found = module.add_reward(data).reward - data.reward
        seen.append(data)
        obs = dict(data.obs)
        for key in ("image.of", "state"):
            every = np.concatenate([x.obs[key].flatten(0, 1).numpy() for x in seen]).astype(np.float64)
            std = every.std(0)
            moved = (data.obs[key].numpy() - every.mean(0)) / np.where(std < 1e-6, np.inf, std)
            obs[key] = torch.from_numpy(moved.clip(-5, 5)).float()
        with torch.no_grad():
            error = (module.predictor(obs) - module.target_network(obs)).square().mean(-1)
        errors.append(error.flatten())
        expected = (0.1 * error / torch.cat(errors).std(correction=0)).masked_fill(data.is_first, 0.0)
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-4)


def test_what_was_seen_often_becomes_less_rewarding():
    torch.manual_seed(0)
    module = RND(units=8, lr=1e-2).build(SPEC, None, torch.device("cpu"))
    old, new = rows(1), rows(2)
    module.add_reward(old)
    before = module(new.obs).mean()
    for _ in range(200):
        metrics = module.learn(old.obs)
    assert float(metrics["loss/intrinsic"]) < 0.2 * float(before)
    assert float(module(new.obs).mean()) > 3 * float(metrics["loss/intrinsic"])


@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_learners_learn_from_the_sum_of_rewards(kind):
    config = (
        PPOConfig(rollout=4, batch_size=4, graph=False) if kind == "ppo" else DQNConfig(batch_length=5, graph=False)
    )
    config = config.merge({"networks.units": (8,), "networks.encoder": "dreamer(depth=2)"})
    plain, agent = (config.merge({"intrinsic_reward": x}).build(SPEC, CHOICE, seed=1) for x in (None, "rnd(0.5)"))
    twin, data = config.merge({"intrinsic_reward": "rnd(0.5)"}).build(SPEC, CHOICE, seed=1), rows(1)
    summed = replace(data, reward=twin.novelty.add_reward(data).reward)
    assert not torch.equal(summed.reward, data.reward)
    if kind == "ppo":
        found, expected = agent.prepare_rollout(data), plain.prepare_rollout(summed)
        torch.testing.assert_close(found.extras["target"], expected.extras["target"])
        metrics = agent.update(found).metrics
    else:
        metrics = agent.update(data).metrics
        torch.testing.assert_close(metrics["loss/critic"], plain.update(summed).metrics["loss/critic"])
    changed = [
        not torch.equal(a, b) for a, b in zip(agent.novelty.parameters(), twin.novelty.parameters(), strict=True)
    ]
    assert any(changed)
    assert float(metrics["train/intrinsic_reward"]) > 0
