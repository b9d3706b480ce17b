"""A trained agent acts: on one observation or on many, with its state, also as a copy."""

import copy
import pickle

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from corridor import Corridor
from reverie.agent.loading import load
from reverie.api import train_config as train
from reverie.core.errors import DataError
from reverie.core.spaces import ActionCodec
from reverie.experiment.layers import base
from reverie.nn.exploration import EpsilonGreedy


def test_what_an_agent_is_can_be_read(trained):
    agent, env = load(trained), gymnasium.make("CartPole-v1")
    assert repr(agent) == f"Agent(dreamer_v3 in CartPole-v1, from {agent.checkpoint})"
    for one in (agent, copy.deepcopy(agent), pickle.loads(pickle.dumps(agent))):
        assert (one.observation_space, one.action_space) == (env.observation_space, env.action_space)


def test_an_agent_is_told_which_action_was_executed_instead(trained):
    agent = load(trained)
    _, state = agent.act(np.zeros((3, 4), np.float32))
    told = agent.override(state, np.array([1, 0, 1]))
    assert told.policy.action.tolist() == [[0, 1], [1, 0], [0, 1]]
    assert told.policy.latent is state.policy.latent
    _, state = agent.act(np.zeros(4, np.float32))
    assert [agent.override(state, x).policy.action.tolist() for x in (1, np.array([0]))] == [[[0, 1]], [[1, 0]]]
    with pytest.raises(DataError, match=r"action 'action' of row 0 is 7"):
        agent.override(state, 7)


def test_an_agent_is_told_of_actions_of_any_space(trained):
    agent = load(trained)
    _, state = agent.act(np.zeros((2, 4), np.float32))
    turn = spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiBinary(2)))
    agent.action_space = spaces.Dict({"push": spaces.Box(np.float32([-1, 0]), np.float32([3, 10])), "turn": turn})
    agent.codec = decode = ActionCodec(agent.action_space)
    push, bits = np.float32([[2, 5], [-1, 10]]), np.int8([[0, 1], [1, 1]])
    told = agent.override(state, {"push": push, "turn": (np.array([3, 1]), bits)}).policy.action
    assert told[:, :2].tolist() == [[0.5, 0.0], [-1.0, 1.0]]
    for number, flat in enumerate(told.numpy()):
        action = decode(flat)
        np.testing.assert_allclose(action["push"], push[number])
        assert (action["turn"][0], action["turn"][1].tolist()) == ((3, 1)[number], bits[number].tolist())
    with pytest.raises(DataError, match=r"is nan|NaN|finite"):
        agent.override(state, {"push": push * np.nan, "turn": (np.array([3, 1]), bits)})


def test_drawn_actions_have_the_exploration_that_training_ended_with(tmp_path):
    small = {"steps": 40, "learning_starts": 20, "replay_ratio": 0.1, "eval_episodes": 0, "replay.capacity": 40}
    networks = {"algo.networks.units": (4,), "algo.batch_size": 4, "algo.exploration": EpsilonGreedy(1.0, 0.0, 40)}
    config = base("dqn", "CartPole-v1").merge(small | networks | {"console": False, "tensorboard": False, "threads": 1})
    train(config, run=tmp_path / "run")
    agent, obs = load(tmp_path / "run"), np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    assert agent.step == 40
    for other in (agent, pickle.loads(pickle.dumps(agent))):
        assert (other.act(obs, actions="sample")[0] == other.act(obs)[0]).all()
    assert agent.evaluate(3, actions="sample").scores == agent.evaluate(3).scores
    alone = config.merge({"data.path": "rows.npz", "experience": "recorded"})
    assert alone.explored(0) >= 10**12 > config.explored(7) == 7  # it never explores: schedules are at their end


def test_copies_and_pickles_of_an_agent_act_as_it_does(trained):
    agent, obs = load(trained), torch.rand(3, 4, requires_grad=True)

    def actions(of):
        torch.manual_seed(0)
        return [int(of.act(row, actions="sample")[0]) for row in (*obs, obs.detach().numpy()[0])]

    expected = actions(agent)
    for other in (pickle.loads(pickle.dumps(agent)), copy.copy(agent), copy.deepcopy(agent)):
        assert actions(other) == expected
        assert (other.run, other.checkpoint, other.config) == (agent.run, agent.checkpoint, agent.config)
    assert agent.act([obs[0], obs[1]])[0].shape == (2,)


def test_act_on_a_batch_as_on_each_alone(corridor):
    agent = load(corridor, env=Corridor)
    envs = gymnasium.vector.SyncVectorEnv([Corridor] * 3)
    obs, _ = envs.reset()
    torch.manual_seed(0)
    actions, state = agent.act(obs)
    assert {key: value.shape for key, value in actions.items()} == {"go": (3,), "turn": (3, 1)}
    obs, *_ = envs.step(actions)
    actions, state = agent.act(obs, state, is_first=[False, True, False])
    assert envs.action_space.contains(actions)
    one = Corridor()
    assert one.action_space.contains(agent.act(one.reset()[0])[0])


def test_the_state_is_what_tells_equal_observations_apart(trained):
    agent, obs = load(trained), np.zeros((2, 4), np.float32)
    _, state = agent.act(obs, agent.act(obs)[1], is_first=[False, True])
    assert not torch.allclose(*state.policy.latent.deter)


@pytest.mark.parametrize(
    ("obs", "message"),
    [(np.zeros(3, np.float32), r"shape \(3,\).*declares \(4,\)"), (np.full(4, np.nan, np.float32), "is nan at index")],
)
def test_what_does_not_fit_is_named(trained, obs, message):
    with pytest.raises(DataError, match=message):
        load(trained).act(obs)
