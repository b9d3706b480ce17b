"""Decision Transformer acts on what it has learned from: returns-to-go, observations, and actions before."""

from dataclasses import replace

import pytest
import torch

from contracts import batch, build, config
from reverie.core.errors import ConfigError
from reverie.core.types import Step


def test_acting_and_learning_read_the_same():
    """The loss of windows at an episode's begin is the error of actions, row by row, where returns are known."""
    agent = build(
        "decision_transformer", batch_length=7, normalize_obs=None, return_scale=2.0, dropout=0.0,
        **{"networks.memory": "transformer(6, 4, 2)"},
    )  # fmt: skip
    data, first = batch(agent), torch.arange(7) == 0
    reward = data.reward * ~first
    to_go = 5 - reward.cumsum(1)
    to_go[:, 5:] = -torch.inf
    no = torch.zeros(4, 7, dtype=torch.bool)
    extras = {"return": to_go, "timestep": torch.arange(7.0).expand(4, 7)}
    data = replace(data, reward=reward, is_first=no | first, is_last=no, is_terminal=no, extras=extras)
    agent.best_return.fill_(5)
    state, errors = agent.policy.initial(4), []
    for t in (5, 6, 0, 1, 2, 3, 4):  # of an episode before, and of this one
        obs, flags = {"state": data.obs["state"][:, t]}, dict.fromkeys(("is_last", "is_terminal"), no[:, t])
        step = Step(obs=obs, reward=reward[:, t], is_first=data.is_first[:, t], **flags)
        action, state = agent.policy.act(step, state, "eval")
        state = agent.policy.override(state, data.action[:, t])
        errors.append((action - data.action[:, t]).square().mean())
    torch.testing.assert_close(agent.update(data).metrics["loss/actor"], torch.stack(errors[2:]).mean())


def test_the_target_is_the_highest_return_of_an_episode():
    agent = build("decision_transformer")
    data = batch(agent)
    to_go = torch.full((4, 4), 9.0)
    to_go[:, 0] = torch.tensor([-3.0, -2.0, -torch.inf, 7.0])
    first = torch.tensor([[True], [True], [True], [False]]) & (torch.arange(4) == 0)
    agent.update(replace(data, is_first=first, extras={"return": to_go, "timestep": 0 * to_go}))
    assert agent.best_return == -2


def test_a_memory_is_needed_and_holds_a_window():
    with pytest.raises(ConfigError, match="Set batch_length to at most 4"):
        config("decision_transformer", {"networks.memory": "transformer(3)"})
    with pytest.raises(ConfigError, match="Use a memory such as"):
        config("decision_transformer", {"networks.memory": "gru(8)"})
