"""Losses of chunks against their definition, one chunk at a time; the policies that take chunks."""

from dataclasses import replace

import pytest
import torch

from batches import (
    ACTS,
    MOVE,
    OBS,
    ROWS,
    SIZE,
    WIDE,
    Case,
    Tiny,
    TinyCritic,
    batch,
    check_against,
    close,
    moves,
    normal_density,
    row,
    same_gradients,
    steps,
)
from contracts import CHOICE, SPECS
from reverie.algos.bc import BCConfig, BCObjective, propose_chunk
from reverie.algos.fql import FlowPolicy, FQLConfig, FQLObjective
from reverie.algos.goal_planner import PlanningPolicy
from reverie.algos.rebrac import ReBRACConfig
from reverie.core.errors import ConfigError
from reverie.core.specs import IS_IMITATED
from reverie.nn.actor_critic import CriticStack
from reverie.nn.exploration import ChunkPolicy
from reverie.nn.normals import ClippedNormal


def flows(size):
    """A flow, a policy and critics of chunks; some actions of the policy are out of bounds."""
    wide = size * ACTS
    critics = CriticStack(TinyCritic(wide), TinyCritic(wide))
    return Tiny(wide, acts=wide + 1), Tiny(wide, lambda y: 3 * y, acts=wide), critics


def mean(numbers):
    return sum(numbers) / len(numbers)


def target(made, data, b, t, drawn):
    """What the chunk from row t turned out to be worth."""
    c, h = made.cfg, made.cfg.chunk_size
    earned = sum(c.discount**i * data.reward[b, t + 1 + i].item() for i in range(h))
    if data.is_terminal[b, t + h]:
        return earned
    obs = row(data, b, t + h)
    values = [q(obs, made.actor(obs, drawn).clip(-1, 1)).item() for q in made.target_critic.model.critics]
    return earned + c.discount**h * (min(values) if c.target_reduction == "min" else mean(values))


def flown(made, obs, x):
    """Where the flow carries noise, in small steps."""
    for i in range(made.cfg.flow_steps):
        at = torch.tensor([i / made.cfg.flow_steps], dtype=torch.float64)
        x = x + made.flow(obs, x, at).detach() / made.cfg.flow_steps
    return x.clip(-1, 1)


def slow(made, data):
    """Algorithm 1. Chunks that the end of an episode cuts off are imitated as far as they go, and have no target."""
    c, h = made.cfg, made.cfg.chunk_size
    wide = SIZE, ROWS + 1 - h, h * ACTS
    after, start = (torch.randn(wide, dtype=torch.float64) for _ in range(2))
    times, tried = torch.rand(*wide[:2], 1, dtype=torch.float64), torch.randn(wide, dtype=torch.float64)
    velocities, critics, distances, values, errors = [], [], [], [], [[] for _ in range(SIZE)]
    for b, t in [(b, t) for b, t in moves(data) if t < wide[1]]:
        obs, taken = row(data, b, t), [not data.is_last[b, t : t + i + 1].any() for i in range(h)]
        chunk = torch.cat([data.action[b, t + i] * x for i, x in enumerate(taken)])
        between = (1 - times[b, t]) * start[b, t] + times[b, t] * chunk
        wrong = (made.flow(obs, between, times[b, t]) - (chunk - start[b, t])) ** 2
        velocities += [wrong[i * ACTS : (i + 1) * ACTS].mean() for i, x in enumerate(taken) if x]
        action = made.actor(obs, tried[b, t])
        distances.append(((action - flown(made, obs, tried[b, t])) ** 2).mean())
        values.append(mean([q(obs, action.clip(-1, 1)) for q in made.critic.critics]))
        if all(taken):
            y = target(made, data, b, t, after[b, t])
            q_values = [q(obs, chunk) for q in made.critic.critics]
            errors[b].append(mean([abs(q.item() - y) for q in q_values]))
            critics.append(data.weight[b] * sum((q - y) ** 2 for q in q_values))
    factor = 1 / mean([abs(q.item()) for q in values]) if c.normalize_q else 1.0
    priority = torch.tensor([sum(e) / max(1, len(e)) for e in errors], dtype=torch.float64)
    return {
        "critic": mean(critics), "flow": mean(velocities), "priority": priority,
        "actor": c.alpha * mean(distances) - factor * mean(values), "loss/distillation": mean(distances),
    }  # fmt: skip


OWN = {name: name for name in ("critic", "flow", "actor")}
CHUNKS = {"alpha": 3.0, "chunk_size": 3, "flow_steps": 3, "normalize_q": True, "target_reduction": "min"}


@pytest.mark.parametrize("given", [{"alpha": 0.7}, CHUNKS])
def test_terms_and_gradients_are_those_of_the_paper(given):
    check_against(Case(lambda c: FQLObjective(*flows(c.chunk_size), c), FQLConfig, slow, OWN, []), given)


def test_chunks_are_taken_whole_unless_an_episode_begins():
    """Actions tell which draw they are of, and their place in the chunk."""
    drawn = iter(range(100))
    policy = FlowPolicy(
        lambda obs, noise: (10 * next(drawn) + torch.arange(3.0)).expand(2, 3) / 100, 3, 1, torch.device("cpu")
    )
    begins = {0: [True, True], 4: [False, True]}
    state, seen = policy.initial(2), []
    for t in range(6):
        step = replace(steps(2), is_first=torch.tensor(begins.get(t, [False, False])))
        action, state = policy.act(step, state, "explore")
        seen.append((100 * action[:, 0]).round().int().tolist())
    assert seen == [[0, 0], [1, 1], [2, 2], [10, 10], [11, 20], [12, 21]]
    assert not policy.memoryless("eval")


@pytest.mark.parametrize("kind", [ChunkPolicy, PlanningPolicy])
def test_another_action_than_that_of_a_chunk_ends_it(kind):
    policy = kind(lambda obs, noise: torch.arange(3.0).expand(2, 3) / 100, 3, 1, torch.device("cpu"))
    step = replace(steps(2), obs={"goal/state": torch.zeros(2, 1)})
    state, seen = policy.override(policy.initial(2), torch.ones(2, 1)), []
    for _ in range(4):
        action, state = policy.act(step, state, "explore")
        seen.append((100 * action[:, 0]).round().int().tolist())
        state = policy.override(state, torch.stack([action[0] + 1e-6, torch.ones(1)]))
    assert seen == [[0, 0], [1, 0], [2, 0], [0, 0]]


def gaussian(size):
    return Tiny(2 * size * ACTS, lambda y: ClippedNormal(*y.chunk(2, -1)))


@pytest.mark.parametrize("h", [1, 3])
@pytest.mark.parametrize("kind", ["deterministic", "stochastic"])
def test_clones_imitate_each_action_of_a_chunk_that_was_taken_unless_it_is_context(kind, h):
    torch.manual_seed(0)
    rows = batch()
    rows = replace(rows, extras={IS_IMITATED: torch.rand(rows.shape) < 0.7})
    actor = (Tiny(h * ACTS) if kind == "deterministic" else gaussian(h)).double()
    made, errors = BCObjective(actor, chunk_size=h), []
    for b, t in [(b, t) for b, t in moves(rows) if t <= ROWS - h]:
        chunk = actor(row(rows, b, t))
        for i in range(h):
            if rows.is_last[b, t : t + i + 1].any():
                break
            if not rows.extras[IS_IMITATED][b, t + i]:
                continue
            part, action = slice(i * ACTS, (i + 1) * ACTS), rows.action[b, t + i]
            if kind == "deterministic":
                errors.append((chunk[part] - action).square().mean())
            else:
                errors.append(-normal_density(ClippedNormal(chunk.mean[part], chunk.log_std[part]), action))
    loss = made(rows).terms["actor"]
    close(loss, mean(errors))
    same_gradients(made, loss, mean(errors), "actor")


def test_clones_explore_by_noise_of_their_own_width():
    torch.manual_seed(0)
    actor, step, seen = gaussian(2).float(), steps(2), {}
    policy = ChunkPolicy(lambda obs, noise: propose_chunk(actor, {"state": obs["state"].float()}, noise), 2, ACTS,
                         torch.device("cpu"))  # fmt: skip
    for mode in ("eval", "explore"):
        torch.manual_seed(1)
        seen[mode] = policy.act(step, policy.initial(2), mode)[1].actions
    torch.manual_seed(1)
    choice = actor({"state": step.obs["state"].float()})
    drawn = choice.mean + choice.log_std.exp() * torch.randn(2, 2 * ACTS)
    torch.testing.assert_close(seen["eval"], choice.mean.clamp(-1, 1).view(2, 2, ACTS))
    torch.testing.assert_close(seen["explore"], drawn.clamp(-1, 1).view(2, 2, ACTS))


def test_windows_hold_a_chunk():
    with pytest.raises(ConfigError, match=r"chunk_size = 2, batch_length = 2: .* Set batch_length to at least 3"):
        FQLConfig(chunk_size=2)
    with pytest.raises(ConfigError, match=r"Set batch_length to a sequence length such as 20"):
        BCConfig(chunk_size=9, batch_length=10).merge({"networks.memory": "gru(4)"})
    with pytest.raises(ConfigError, match=r"chunk_size = 2: chunks are of continuous actions, but .* categorical"):
        BCConfig(chunk_size=2, batch_length=3).build(SPECS["vector"], CHOICE)


def test_networks_begin_as_the_authors_do():
    """FQL's weights are uniform up to sqrt(6 / (inputs + outputs)), ReBRAC's last layers up to 0.001 and 0.003."""
    networks = {"networks.units": (64,), "normalize_obs": None}
    fql, rebrac = (cls().merge(networks).build(OBS, MOVE, seed=0).objective for cls in (FQLConfig, ReBRACConfig))
    for network, inputs in ((fql.flow, WIDE + ACTS + 1), (fql.actor, WIDE + ACTS), (fql.critic, WIDE + ACTS)):
        weight, bias = network.body.layers()[0]
        assert 0.9 < weight.abs().max() / (6 / (inputs + 64)) ** 0.5 < 1
        assert not bias.any()
    for network, bound in ((rebrac.actor, 1e-3), (rebrac.critic, 3e-3)):
        (_, hidden), last = network.body.layers()
        assert all(0.1 * bound < x.abs().max() < bound for x in last)
        assert (hidden == 0.1).all()
    for target in (rebrac.target_actor, rebrac.target_critic):
        assert torch.equal(target.model.body.theta, target.source.body.theta)
