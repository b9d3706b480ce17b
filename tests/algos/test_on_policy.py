"""PPO and A2C: sequences, memory, masks, schedules; recordings of Stable-Baselines3 hold the rest."""

from dataclasses import replace

import pytest
import torch

from contracts import BOTH, CHOICE, CHOICES, SPECS, batch, build, padded, shown
from reverie.algos.ppo import PPOConfig
from reverie.core.specs import MASK_KEY, ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch
from reverie.nn.distributions import Categoricals, JointDistribution, slices_by_kind
from reverie.nn.memory import GRU, LSTM
from reverie.nn.normals import Normal
from reverie.objectives.policy import standardize


def rollout(rows=12, envs=3, seed=0):
    """Rows of episodes that end in every way, also in the last row but one and in the last."""
    g = torch.Generator().manual_seed(seed)
    last = torch.rand(envs, rows, generator=g) < 0.2
    last[0, -2], last[1, -1], last[2, 3] = True, True, True
    first = torch.cat([torch.tensor([[True], [False], [True]]), last[:, :-1]], 1)
    last &= ~first
    return Batch(
        obs={"state": torch.randn(envs, rows, 3, generator=g)},
        action=torch.eye(3)[torch.randint(3, (envs, rows), generator=g)] * ~last[..., None],
        reward=torch.randn(envs, rows, generator=g) * ~first, is_first=first, is_last=last,
        is_terminal=last & (torch.rand(envs, rows, generator=g) < 0.5), weight=torch.ones(envs),
        index=torch.arange(envs),
    )  # fmt: skip


def test_the_first_minibatch_has_ratio_one_and_no_divergence():
    agent = build("ppo_lstm", graph=False)
    update = agent.update(batch(agent))
    assert float(update.metrics["train/approx_kl"]) == pytest.approx(0, abs=1e-6)
    assert float(update.metrics["train/clip_fraction"]) == 0


def test_advantages_are_standardized_over_what_counts():
    x, mask = torch.tensor([[1.0, 2.0, 99.0], [4.0, 99.0, 99.0]]), torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()
    kept = x[mask]
    torch.testing.assert_close(standardize(x, mask)[mask], (kept - kept.mean()) / kept.std())
    alone = torch.tensor([True, False])
    assert standardize(torch.tensor([3.0, 5.0]), alone)[0] == 3.0  # a single one stays, instead of NaN
    assert torch.isfinite(standardize(x, torch.zeros_like(mask))).all()


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("memory", [LSTM(4, 2), GRU(4)], ids=["lstm", "gru"])
def test_memory_is_that_of_pytorch_reset_where_an_episode_begins(memory):
    torch.manual_seed(0)
    ours = memory.build(3)
    kind = torch.nn.LSTM if isinstance(memory, LSTM) else torch.nn.GRU
    theirs = kind(3, 4, memory.layers, batch_first=True)
    for k, cell in enumerate(ours.cells):
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(theirs, f"{name}_l{k}").data.copy_(getattr(cell, name))
    x, state = torch.randn(2, 7, 3), torch.randn(2, ours.width)
    first = torch.zeros(2, 7, dtype=torch.bool)
    first[0, 4] = first[1, 0] = True
    y, after = ours(x, first, state)
    torch.testing.assert_close(y[0, 4:], theirs(x[:1, 4:])[0][0])
    torch.testing.assert_close(y[1], theirs(x[1:])[0][0])
    parts = [part.contiguous() for part in state[:1].unflatten(-1, (memory.layers, -1)).transpose(0, 1).split(4, -1)]
    torch.testing.assert_close(y[0, :4], theirs(x[:1, :4], tuple(parts) if len(parts) > 1 else parts[0])[0][0])
    _, before = ours(x[:, :3], first[:, :3], state)
    torch.testing.assert_close(before, after[:, :3])
    torch.testing.assert_close(ours(x[:, 3:], first[:, 3:], before[:, -1])[1], after[:, 3:])


@pytest.mark.parametrize("name", ["ppo_lstm", "ppo_gru", "ppo_transformer", "a2c_lstm"])
def test_padded_sequences_are_ragged_ones_and_those_that_hold_several_episodes(name):
    """Losses and gradients of the same rows: as one window; each episode padded; and each episode by itself."""
    agent = build(name, graph=False, normalize_advantage=False)
    objective, width = agent.objective, agent.objective.network.width
    g = torch.Generator().manual_seed(2)
    n, none = 6, torch.zeros(1, 6, dtype=torch.bool)
    first = none.index_fill(1, torch.tensor([2]), True)
    state, whole = torch.randn(1, 1, width, generator=g), batch(agent).action[:1, :1]
    extras = {k: torch.randn(1, n, generator=g) for k in ("log_prob", "value", "advantage", "target")}
    data = Batch(
        obs={"state": torch.randn(1, n, 3, generator=g)}, action=whole.expand(1, n, -1), reward=torch.zeros(1, n),
        is_first=first, is_last=none, is_terminal=none, weight=torch.ones(1), index=torch.zeros(1, dtype=torch.int64),
        extras=extras | {"memory": state.expand(1, n, -1)},
    )  # fmt: skip
    ragged = [data.slice_time(0, 2), data.slice_time(2, 6)]
    ragged[1] = replace(ragged[1], is_first=none[:, 2:])
    ragged[1].extras["memory"] = torch.zeros(1, 4, width)
    both, found = padded(*ragged), []
    for given in ([data], [both], ragged):
        rows = sum(int((~x.is_last).sum()) for x in given)
        loss = sum(objective(x).total() * int((~x.is_last).sum()) for x in given) / rows
        found.append((loss, torch.autograd.grad(loss, list(objective.parameters()))))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])
    nonsense = replace(both, obs={"state": both.obs["state"].masked_fill(both.is_last[..., None], 7.0)})
    assert torch.equal(objective(nonsense).total(), objective(both).total())


def test_acting_remembers_what_learning_sees():
    """Row by row, the policy's states are those that the estimates begin from."""
    agent = build("ppo_lstm")
    data, state = rollout(rows=5), agent.policy.initial(3)
    for t in range(3):
        step = replace(shown(envs=3), obs={"state": data.obs["state"][:, t]}, is_first=data.is_first[:, t])
        _, state = agent.policy.act(step, state, "explore")
    memory = torch.zeros(3, 5, agent.objective.network.width)
    found = agent.objective.estimates(replace(data, action=torch.zeros(3, 5, 3), extras={"memory": memory}))
    torch.testing.assert_close(found["memory"][:, 2], agent.policy.extras(state)["memory"])


# ---------------------------------------------------------------- actions


def test_mixed_actions_are_the_sum_of_their_parts():
    logits, mean, log_std = torch.randn(5, 3), torch.randn(5, 2), torch.randn(2)
    spec = {"a": ActionPart(kind="categorical", classes=(3,)), "b": ActionPart(kind="continuous", size=2)}
    parts = {"numbers": Normal(mean, log_std), "choices": Categoricals(logits, (3,))}
    joint = JointDistribution(parts, slices_by_kind(ActionSpec(parts=spec)))
    one, other = torch.distributions.Categorical(logits=logits), torch.distributions.Normal(mean, log_std.exp())
    action, density = joint.sample_and_log_prob()
    torch.testing.assert_close(density, one.log_prob(action[:, :3].argmax(-1)) + other.log_prob(action[:, 3:]).sum(-1))
    torch.testing.assert_close(joint.log_prob(action), density)
    torch.testing.assert_close(joint.entropy(), one.entropy() + other.entropy().sum(-1))
    torch.testing.assert_close(joint.mode(), torch.cat([torch.eye(3)[logits.argmax(-1)], mean], -1))


@pytest.mark.parametrize("memory", [None, "lstm(4)"])
@pytest.mark.parametrize("spec", [CHOICE, CHOICES, BOTH])
def test_masked_actions_have_no_probability_and_no_gradient(spec, memory):
    config = PPOConfig(rollout=4, batch_size=4, batch_length=2 if memory else 1).merge({"networks.memory": memory})
    seen = SPECS["vector"] | {MASK_KEY: ObsPart(kind="mask", shape=(3,), dtype="bool")}
    network = config.build(seen, spec, seed=1).objective.network
    legal = torch.ones(1, 1, 3, dtype=torch.bool)
    cut = [place for key, place in spec.slices().items() if spec.parts[key].classes][-1]
    legal[..., cut.start] = cut.stop - cut.start == 1
    state = torch.zeros(500, network.width) if memory else None
    obs = {"state": torch.randn(500, 1, 3), MASK_KEY: legal.expand(500, 1, 3)}
    policy = network(obs, torch.ones(500, 1, dtype=torch.bool), state).policy
    taken, density = policy.sample_and_log_prob()
    assert not (taken[..., cut.start] > 0.5).any() or legal[..., cut.start].all()
    (density.sum() + policy.entropy().sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in network.actor.parameters())
    bias = network.actor.body.layout.layers(network.actor.body.theta.grad)[-1][1]
    if not legal[..., cut.start].all():
        assert not bias[0, 0, cut.start].any()


# ---------------------------------------------------------------- schedules


def test_clip_and_entropy_follow_the_run():
    agent = build("ppo", clip_range=[[0, 0.2], [10, 0.1]], entropy_coef=[[0, 0.0], [10, 1.0]])
    agent.position = lambda: 5
    agent.update(batch(agent))
    assert (float(agent.objective.clip), float(agent.objective.entropy_coef)) == pytest.approx((0.15, 0.5))


def test_target_kl_stops_before_the_step():
    agent = build("ppo", graph=False, target_kl=1e-6, lr=0.1)
    data = batch(agent)
    assert agent.update(data).rollout_done is None
    before = [p.clone() for p in agent.parameters()]
    update = agent.update(data)
    assert bool(update.rollout_done)
    assert "opt/grad_norm" not in update.metrics
    assert all(torch.equal(a, b) for a, b in zip(before, agent.parameters(), strict=True))
