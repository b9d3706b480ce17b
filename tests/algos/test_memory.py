"""Memory of learners that replay: sequences, stored states and burn-in, acting, masks."""

from dataclasses import replace

import pytest
import torch

from contracts import build, padded
from reverie.algos.bc import BCConfig
from reverie.algos.cql import CQLConfig
from reverie.algos.dqn import DQNConfig
from reverie.algos.sac import SACConfig
from reverie.algos.td3 import TD3Config
from reverie.core.errors import ConfigError
from reverie.core.types import Batch, Step
from reverie.nn.memory import MEMORY_COLUMN, MEMORY_FIRST_KEY, Transformer
from reverie.objectives.returns import transition_mask
from reverie.objectives.td import obs_after, obs_before

NAMES = (
    "dqn_lstm", "qr_dqn_gru", "discrete_sac_transformer", "iql_choices", "discrete_bcq_lstm",
    "discrete_crr_transformer",
)  # fmt: skip
remembering = pytest.mark.parametrize("name", NAMES)


def rows(agent, n, first=(), last=(), seed=0):
    """One window of n rows, with states that were stored."""
    g = torch.Generator().manual_seed(seed)
    begun, over = (torch.tensor([[t in places for t in range(n)]]) for places in (first, last))
    return Batch(
        obs={"state": torch.randn(1, n, 3, generator=g)}, is_first=begun, is_last=over, is_terminal=over & False,
        action=torch.eye(3)[torch.randint(3, (1, n), generator=g)] * ~over[..., None], weight=torch.ones(1),
        reward=torch.randn(1, n, generator=g) * ~begun, index=torch.zeros(1, dtype=torch.int64),
        extras={MEMORY_COLUMN: torch.randn(1, n, agent.memories.width, generator=g).abs()},  # with a count
    )  # fmt: skip


@remembering
def test_padded_sequences_are_ragged_ones_and_those_that_hold_several_episodes(name):
    """Losses and gradients of the same rows: as one window; each episode padded; and each episode by itself."""
    agent = build(name, **{"networks.burn_in": 0})
    whole = rows(agent, 6, first=[2], last=[1])
    ragged = [whole.slice_time(0, 2), whole.slice_time(2, 6)]
    found, o = [], agent.objective
    for given in ([whole], [padded(*ragged)], ragged):
        total, count = 0.0, 0
        for data in given:
            ready, n = agent.prepare_batch(data), int(transition_mask(data.is_last).sum())
            total, count = total + o(ready).total() * n, count + n
        learned = [p for p in o.parameters() if p.requires_grad]
        found.append((total / count, torch.autograd.grad(total / count, learned, allow_unused=True)))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


@remembering
def test_states_that_begin_a_sequence_are_brought_up_to_date_by_each_network(name):
    """By the learned networks' and the targets' own weights, from the stored state before the burn-in."""
    agent = build(name)
    for p in agent.objective.parameters():
        if not p.requires_grad:
            p.data.mul_(1.1)  # targets
    data = rows(agent, 5, first=[1])
    ready = agent.prepare_batch(data)
    assert ready.shape == (1, 3)
    for network, cut in (*agent.memories.modules, *agent.memories.targets):
        long = {MEMORY_FIRST_KEY: data.is_first, network.memory_key: data.extras[MEMORY_COLUMN][..., cut]} | data.obs
        y = network(long)
        torch.testing.assert_close(network(ready.obs), y[:, 2:])
        torch.testing.assert_close(network(obs_before(ready.obs)), y[:, 2:4])
        torch.testing.assert_close(network(obs_after(ready.obs)), y[:, 3:])
    update = agent.update(data)
    assert update.extras[MEMORY_COLUMN].shape == (1, 3, agent.memories.width)  # of the rows that are learned from


@remembering
def test_what_is_stored_in_acting_is_what_learning_computes(name):
    agent, n = build(name, **{"networks.burn_in": 0}), 5
    data, state, stored = rows(agent, n, first=[0, 3], last=[2]), agent.policy.initial(1), []
    for t in range(n):
        now = {key: getattr(data, key)[:, t] for key in ("reward", "is_first", "is_last", "is_terminal")}
        _, state = agent.policy.act(Step(obs={"state": data.obs["state"][:, t]}, **now), state, "explore")
        stored.append(agent.policy.extras(state)[MEMORY_COLUMN])
    seen = replace(data, extras={MEMORY_COLUMN: torch.stack(stored, 1)})
    torch.testing.assert_close(agent.prepare_batch(seen).extras[MEMORY_COLUMN], seen.extras[MEMORY_COLUMN])


def test_what_a_transformer_does_not_see_is_nothing_to_it():
    """Rows before its window or its episode, whatever they hold."""
    torch.manual_seed(0)
    memory = Transformer(window=3, units=8, heads=2, layers=2).build(2)
    x, first, state = torch.randn(1, 6, 2), torch.zeros(1, 6, dtype=torch.bool), torch.zeros(1, memory.width)
    other, begun = x.clone(), first.clone()
    other[:, :3], begun[:, 4] = 9.0, True
    y, z = memory(x, first, state)[0], memory(other, first, state)[0]
    torch.testing.assert_close(z[:, 5], y[:, 5], rtol=0, atol=0)
    assert (z[:, 4] - y[:, 4]).abs().max() > 1e-3
    y, z = memory(x, begun, state)[0], memory(other, begun, state)[0]
    torch.testing.assert_close(z[:, 4:], y[:, 4:], rtol=0, atol=0)
    torch.testing.assert_close(y[:, 4:], memory(x[:, 4:], first[:, 4:], state)[0])


@pytest.mark.parametrize(
    ("config", "given", "said"),
    [
        (DQNConfig(), {"networks.memory": "lstm(4)"}, "a recurrent memory cannot be trained on single rows"),
        (BCConfig(), {"networks.memory": "gru(4)"}, "a recurrent memory cannot be trained on single rows"),
        (SACConfig(), {"networks.burn_in": 4}, "there is no memory to bring up to date"),
        (TD3Config(), {"networks.memory": "gru(4)"}, "memory"),
        (CQLConfig(), {"networks.memory": "gru(4)"}, "memory"),
    ],
)
def test_memory_that_cannot_be_is_refused(config, given, said):
    with pytest.raises(ConfigError, match=said):
        config.merge(given)
    DQNConfig().merge({"networks.memory": "transformer(8)"})  # whose rows hold what was seen
