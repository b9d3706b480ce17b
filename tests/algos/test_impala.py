"""IMPALA: its losses by a plain script, rollouts that are learned from once, and settings without meaning."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import reverie
from contracts import CHOICE, SPECS
from reverie.algos.impala import IMPALAConfig
from reverie.algos.ppo import PPOConfig
from reverie.core.errors import ConfigError
from reverie.core.types import Batch, Update
from reverie.distributed.actor_replays import MultiQueue
from reverie.experiment.build import build
from reverie.experiment.config import ExperimentConfig

SMALL = {"env.id": "reverie/Count-v0", "env.num": 2, "env.vectorization": "sync", "threads": 1, "eval_episodes": 0,
         "steps": 100, "console": False, "tensorboard": False}  # fmt: skip


def experiment(algo, **more):
    return build(ExperimentConfig(algo=algo).merge(SMALL | more))


def windows(b=3, t=9):
    """Windows that hold ends of all kinds: time limits, terminal rows, and streams that were cut."""
    g = torch.Generator().manual_seed(0)
    last = torch.rand(b, t, generator=g) < 0.2
    first = torch.cat([torch.tensor([[True], [False], [False]]), last[:, :-1]], 1)
    first[0, 1] = first[2, 6] = True  # a copy of the stream's first row before it; a crash
    last &= ~first
    action = torch.eye(3)[torch.randint(3, (b, t), generator=g)] * ~last[..., None]
    return Batch(
        obs={"state": torch.randn(b, t, 3, generator=g)}, action=action, reward=torch.randn(b, t, generator=g) * ~first,
        is_first=first, is_last=last, is_terminal=last & (torch.rand(b, t, generator=g) < 0.5), weight=torch.ones(b),
        index=torch.arange(b), extras={"log_prob": -2 * torch.rand(b, t, generator=g)},
    )  # fmt: skip


def test_losses_are_those_of_a_plain_script():
    config = IMPALAConfig(discount=0.9, entropy_coef=0.2, value_coef=0.3).merge({"networks.units": (8, 8)})
    agent = config.build(SPECS["vector"], CHOICE, seed=1)
    data, network = windows(), agent.objective.network
    decision = network(data.obs)
    logits, value = decision.policy.log_probs, decision.value
    known = value.detach()
    actor, critic, entropy, count = 0.0, 0.0, 0.0, 0
    for b in range(3):
        target = float(known[b, -1])
        for t in reversed(range(8)):
            if data.is_last[b, t] or data.is_first[b, t + 1]:
                target = float(known[b, t])
                continue
            taken = logits[b, t, data.action[b, t].argmax()]
            weight = min(1.0, math.exp(float(taken.detach() - data.extras["log_prob"][b, t])))
            live = 0.0 if data.is_terminal[b, t + 1] else 0.9
            after, reward, now = float(known[b, t + 1]), float(data.reward[b, t + 1]), float(known[b, t])
            actor -= weight * (reward + live * target - now) * taken
            carried = 0.0 if data.is_last[b, t + 1] else target - after
            target = now + weight * (reward + live * after - now) + live * weight * carried
            critic += (target - value[b, t]) ** 2
            entropy -= (logits[b, t].exp() * logits[b, t]).sum()
            count += 1
    plain = (actor + 0.3 * critic - 0.2 * entropy) / count
    loss = agent.objective(data).total()
    torch.testing.assert_close(loss, plain)
    parameters = list(network.parameters())
    torch.testing.assert_close(torch.autograd.grad(loss, parameters), torch.autograd.grad(plain, parameters))


@pytest.mark.parametrize("memory", [None, "gru(4)"])
def test_each_rollout_is_learned_from_once(memory):
    """Rollouts share the row between them, and the stored log-probabilities are those of the policy that acted."""
    made = experiment(IMPALAConfig(rollout=4, batch_size=3).merge({"networks.memory": memory}))
    batches = []
    for _ in range(18):
        made.collector.collect()
        for _ in range(len(made.source)):
            batches.append(made.source.sample())
            made.source.feedback(batches[-1].index, Update(metrics={}))
    assert len(made.source) == 0
    order = torch.cat([batch.index for batch in batches])
    assert order.tolist() == [row * 2 + stream for row in (-1, 3, 7) for stream in (0, 1)]  # the next two wait
    rows = made.replay.storage.read(0, 12)["reward"]
    reward = torch.cat([batch.reward for batch in batches])
    for number, handle in enumerate(order.tolist()):
        if (row := handle // 2) >= 0:
            np.testing.assert_array_equal(reward[number], rows[handle % 2, row : row + 5])
    ratio = made.algo.update(batches[1]).metrics["train/importance_ratio"]
    torch.testing.assert_close(ratio, torch.tensor(1.0))


def test_rollouts_of_several_actors_are_one_queue():
    made = [experiment(IMPALAConfig(rollout=2, batch_size=3)).replay for _ in range(2)]
    queue = MultiQueue(made, seed=0)
    queues = [[1, 2, 3, 4], [5, 6, 7]]
    for replay, handles in zip(made, queues, strict=True):
        replay.batch_sampler.online.queue.extend(handles)
        replay.sample = lambda count, q=replay.batch_sampler.online.queue: SimpleNamespace(
            drawn=[q.popleft() for _ in range(count)]
        )
    drawn = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "reverie.distributed.actor_replays.concat_batches", lambda parts: [x for p in parts for x in p.drawn]
        )
        for left in (2, 1):
            assert len(queue) == left
            drawn += queue.sample()
    assert len(queue) == 0
    assert len(set(drawn)) == 6


def test_actors_learn(tmp_path):
    settings = {key: value for key, value in SMALL.items() if key != "env.id"}
    settings |= {"actors": 1, "steps": 300, "algo.batch_size": 4, "algo.rollout": 5, "algo.graph": False}
    result = reverie.train("impala", env="reverie/Count-v0", run=tmp_path / "run", **settings)
    assert 300 <= result.env_steps < 320
    assert 14 <= result.updates <= 18  # each row once: 300 / 20, and the rows that end episodes


@pytest.mark.parametrize(
    ("algo", "more", "said"),
    [
        (IMPALAConfig(), {"algo.batch_length": 4}, "batch_length = 4: IMPALA's batches are whole rollouts"),
        (IMPALAConfig(), {"algo.value_estimator": "gae"}, r"value_estimator = gae\(lam=0.95\): expected v_trace"),
        (IMPALAConfig(), {"actors": 2, "learners": 2}, "learners = 2: rollouts arrive at each learner at other times"),
        (PPOConfig(rollout=8), {"actors": 2}, "it learns only from rows of its current policy, and impala"),
        (IMPALAConfig(), {"random_steps": 5}, "random_steps = 5 has no effect: impala learns from whole rollouts"),
    ],
)  # fmt: skip
def test_settings_without_meaning_are_named(algo, more, said):
    with pytest.raises(ConfigError, match=said):
        experiment(algo, **more)
