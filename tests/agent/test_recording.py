"""Episodes of an agent, recorded as a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reverie.agent.agent import Agent
from reverie.agent.loading import load
from reverie.agent.recording import RecordConfig, play


def test_actions_that_a_recording_replaces_are_told_to_the_agent(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, known = load(trained), []
    act = Agent.act

    def watched(self: Agent, obs: Any, state: Any = None, **more: Any) -> Any:
        if state is not None:
            known.append(int(state.policy.action.argmax()))
        return act(self, obs, state, **more)

    monkeypatch.setattr(Agent, "act", watched)
    env = agent.make_env()
    config = RecordConfig(episodes=1, epsilon=0.5)
    episode = play(agent, env, config, np.random.default_rng(0), seed=1, most=30)
    assert episode["actions"].tolist()[:-1] == known
