"""A trained agent acts: on one observation or on many, with its state, also as a copy."""

import copy
import functools
import pickle
import zipfile

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import reverie
from corridor_env import Corridor
from masked_env import Masked
from reverie.agent.agent import Agent
from reverie.agent.loading import load
from reverie.algos.ppo import PPOConfig
from reverie.algos.table import algorithm_config
from reverie.api import train_config as train
from reverie.core.action_codec import ActionCodec
from reverie.core.errors import ConfigError, DataError, RunError
from reverie.envs.flat_env import make_flat
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.settings import make_preset
from reverie.nn.exploration import EpsilonGreedy
from tiny_configs import NETWORKS


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
    config = make_preset("dqn_cartpole").merge(
        small | networks | {"console": False, "tensorboard": False, "threads": 1}
    )
    train(config, run=tmp_path / "run")
    agent, obs = load(tmp_path / "run"), np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    assert agent.step == 40
    for other in (agent, pickle.loads(pickle.dumps(agent))):
        assert (other.act(obs, deterministic=False)[0] == other.act(obs)[0]).all()
    assert agent.evaluate(3, deterministic=False).scores == agent.evaluate(3).scores
    alone = config.merge({"data.path": "rows.npz", "experience": "offline"})
    # It never explores: schedules are at their end.
    assert alone.exploration_step(0) >= 10**12 > config.exploration_step(7) == 7


def test_copies_and_pickles_of_an_agent_act_as_it_does(trained):
    agent, obs = load(trained), torch.rand(3, 4, requires_grad=True)

    def actions(of):
        torch.manual_seed(0)
        return [int(of.act(row, deterministic=False)[0]) for row in (*obs, obs.detach().numpy()[0])]

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


def test_predict_acts_with_the_arguments_of_stable_baselines3(corridor):
    agent = load(corridor, env=Corridor)
    obs, _ = gymnasium.vector.SyncVectorEnv([Corridor] * 3).reset()
    answers = []
    for predict in (
        agent.predict,
        lambda obs, state, first, mode: agent.act(obs, state, is_first=first, deterministic=mode),
    ):
        torch.manual_seed(0)
        _, state = predict(obs, None, None, True)
        answers.append(predict(obs, state, np.array([False, True, False]), False)[0])
    assert {key: value.tolist() for key, value in answers[0].items()} == {k: v.tolist() for k, v in answers[1].items()}
    action, _ = agent.predict(Corridor().reset()[0], episode_start=np.ones(1, bool))
    assert Corridor().action_space.contains(action)


def test_the_state_is_what_tells_equal_observations_apart(trained):
    agent, obs = load(trained), np.zeros((2, 4), np.float32)
    _, state = agent.act(obs, agent.act(obs)[1], is_first=[False, True])
    assert not torch.allclose(*state.policy.latent.deter)


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros(3, np.float32), r"shape \(3,\).*declares \(4,\)"),
        (np.full(4, np.nan, np.float32), "is nan at index"),
        ({"x": np.zeros(4)}, r"got a dictionary with the keys 'x', but this agent takes an array of shape \(4,\)"),
        (None, r"got None, but this agent takes an array of shape \(4,\)"),
    ],
)
def test_what_does_not_fit_is_named(trained, obs, message):
    with pytest.raises(DataError, match=message):
        load(trained).act(obs)
    with pytest.raises(DataError, match="expected the state that the last call returned"):
        load(trained).act(np.zeros(4, np.float32), {"x": 1})


def test_a_number_of_episodes_is_whole(trained):
    agent = load(trained)
    assert len(agent.evaluate(1.0).scores) == 1
    with pytest.raises(ConfigError, match=r"episodes = 1\.5"):
        agent.evaluate(1.5)


# ---------------------------------------------------------------- many at once, and what agents tell

SEEN = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (3, 16, 16), np.uint8), "said": spaces.Text(4, charset="ab"),
        "arm": spaces.Tuple([spaces.Box(-1, 1, (2, 2)), spaces.Discrete(4, start=1)]),
    }
)  # fmt: skip
ACTS = {
    "all": spaces.Dict(
        {
            "move": spaces.Discrete(3, start=1), "both": spaces.MultiDiscrete([2, 3]),
            "force": spaces.Box(-2, 6, (2,)), "whole": spaces.Box(-5, 5, (2,), np.int16),
        }
    ),
    "discrete": spaces.Discrete(3, start=1), "choices": spaces.MultiDiscrete([2, 3]), "force": spaces.Box(-2, 6, (2,)),
}  # fmt: skip


class Things(gymnasium.Env):
    """Shows random things; of each choice the first class is legal."""

    def __init__(self, actions, masks, seen=SEEN):
        self.observation_space, self.action_space, self.masks = seen, ACTS[actions], masks

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {"action_mask": self.masks} if self.masks else {}

    def step(self, action):
        return *self.reset()[:1], 0.0, False, False, self.reset()[1]


def untrained(algo, tmp_path, actions, masks=None, seen=SEEN, **env):
    """An agent whose weights are all drawn at random."""
    config = ExperimentConfig(algo=algo).merge({"env.id": "Things", **{f"env.{k}": v for k, v in env.items()}})
    make = functools.partial(Things, actions, masks, seen)
    flat = make_flat(config.env, make, 0, False)
    learner = algo.build(flat.obs_spec, flat.action_spec, "cpu", 1)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return Agent(config, learner, flat, make, None, tmp_path, tmp_path, 0)


SMALL = {"networks.units": (8,)}
FORCED = {"move": [1, 1, 0], "both": [[1, 1], [1, 0, 0]]}


@pytest.mark.parametrize(("masks", "stack"), [(FORCED, 1), (None, 2)])
def test_a_batch_is_what_its_rows_are(tmp_path, masks, stack):
    agent = untrained(PPOConfig().merge(SMALL), tmp_path, "all", masks, frame_stack=stack)
    agent.observation_space.seed(2)
    before, alone, told = None, [None] * 3, {} if masks is None else {"action_mask": [masks] * 3}
    for step in range(3):
        rows = [agent.observation_space.sample() for _ in range(3)]
        images, arms = np.stack([row["image"] for row in rows]), [row["arm"] for row in rows]
        batch = {
            "image": images,
            "said": [row["said"] for row in rows],
            "arm": tuple(map(np.stack, zip(*arms, strict=True))),
        }
        first = None if step == 0 else np.array([False, step == 2, False])
        chosen, before = agent.act(batch, before, is_first=first, **told)
        assert gymnasium.vector.utils.batch_space(agent.action_space, 3).contains(chosen)
        for number, row in enumerate(rows):
            state = None if step == 2 and number == 1 else alone[number]
            action, alone[number] = agent.act(row, state, action_mask=masks)
            for key, value in action.items():
                np.testing.assert_allclose(chosen[key][number], value, rtol=1e-4, atol=1e-5)
                assert np.asarray(chosen[key]).dtype == np.asarray(agent.action_space[key].sample()).dtype
    for wrong, message in (
        ({"said": ["a", "c", "a"]}, "c"), ({"image": batch["image"][:2]}, r"'image' has shape \(2, .*expected \(3,"),
        ({"arm": (batch["arm"][0], np.array([1, 2, 5]))}, r"'arm/1' of row 2 is 5"),
    ):  # fmt: skip
        with pytest.raises((DataError, KeyError), match=message):
            agent.act(batch | wrong, **told)
    if masks is not None:
        for given in ([masks] * 2, [masks, None, masks]):
            with pytest.raises(DataError, match=r"2 action masks for 3|pass action_mask"):
                agent.act(batch, action_mask=given)
    with pytest.raises(DataError, match="3 observations, a state of 1"):
        agent.act(batch, alone[0], **told)


@pytest.mark.parametrize("name", ["sac", "ppo", "td3", "bc", "iql"])
def test_numbers_are_told_by_mean_and_deviation(tmp_path, name):
    """They are those of drawn actions; a normal is not clipped, unlike its draws."""
    agent = untrained(algorithm_config(name)().merge(SMALL | {"normalize_obs": None}), tmp_path, "force")
    obs = Things("force", None).reset(seed=1)[0]
    told = agent.distribution(obs)
    if name in ("td3", "bc"):
        assert told["std"].tolist() == [0, 0]
        np.testing.assert_allclose(told["mean"], agent.act(obs)[0], atol=1e-5)
        return
    drawn = np.stack([agent.act(obs, deterministic=False)[0] for _ in range(1500)])
    if name == "sac":
        np.testing.assert_allclose(told["mean"], drawn.mean(0), atol=0.35)
        np.testing.assert_allclose(told["std"], drawn.std(0), rtol=0.1)
    else:
        inside = (drawn > -2) & (drawn < 6)
        share = [np.mean(drawn[:, i] < told["mean"][i] + told["std"][i]) for i in range(2)]
        assert inside.any(0).all()
        for i, (mean, std) in enumerate(zip(told["mean"], told["std"], strict=True)):
            assert mean + std >= 6 or share[i] == pytest.approx(0.841, abs=0.05)


def test_classes_are_told_by_probability_or_value(tmp_path):
    masks, obs = [[1, 1], [1, 0, 1]], [Things("choices", None).reset(seed=n)[0] for n in range(2)]
    for name in ("discrete_sac", "iql", "dqn", "c51", "qr_dqn", "iqn", "discrete_bcq"):
        agent = untrained(algorithm_config(name)().merge(SMALL | {"normalize_obs": None}), tmp_path, "choices", masks)
        told = agent.distribution(obs[0], action_mask=masks)
        (kind, found), action = *told.items(), agent.act(obs[0], action_mask=masks)[0]
        assert (kind, found.shape) == ("probabilities" if name in ("discrete_sac", "iql") else "values", (2, 3))
        assert (found.argmax(-1) == action).all()
        assert (agent.predict(obs[0], action_masks=masks)[0] == action).all()
        gone = 0 if kind == "probabilities" else -np.inf
        assert [found[0, 2], found[1, 1]] == [gone, gone]
        if kind == "probabilities":
            np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-5)
            drawn = np.stack([agent.act(obs[0], deterministic=False, action_mask=masks)[0] for _ in range(500)])
            np.testing.assert_allclose(found[1], [np.mean(drawn[:, 1] == k) for k in range(3)], atol=0.1)
        else:
            assert agent.value(obs[0], action_mask=masks) == pytest.approx(found.max(-1).mean(), rel=1e-5)


def test_values_are_the_critics(tmp_path):
    obs = Things("force", None).reset(seed=1)[0]
    for name in ("sac", "td3", "ddpg", "iql", "crr", "ppo"):
        agent = untrained(algorithm_config(name)().merge(SMALL | {"normalize_obs": None}), tmp_path, "force")
        flat = {key: torch.from_numpy(x)[None] for key, x in agent.observer(obs, None, True).items()}
        action = torch.from_numpy(agent.flatten_actions(agent.act(obs)[0], 1))
        objective = agent.algo.objective
        expected = objective.network(flat).value if name == "ppo" else objective.critic(flat, action).min()
        assert agent.value(obs) == pytest.approx(float(expected.detach()), abs=1e-4)
    for name, wanted in (("bc", "BC does not learn"), ("bcq", "BestOfSamplesPolicy does not expose")):
        with pytest.raises(ConfigError, match=wanted):
            untrained(algorithm_config(name)().merge({"normalize_obs": None}), tmp_path, "force").value(obs)


def test_a_world_model_tells_of_the_latents_that_acting_draws(trained):
    agent, obs = load(trained), np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    _, state = agent.act(obs)
    torch.manual_seed(5)
    told, value = agent.distribution(obs, state), agent.value(obs, state)
    _, after = agent.act(obs, state)
    feature = after.policy.latent.feature
    np.testing.assert_allclose(value, agent.algo.critic(feature).mean().detach(), rtol=1e-5)
    probs = agent.algo.actor(feature).parts["action"].probs[:, 0]
    np.testing.assert_allclose(told["probabilities"], probs.detach(), rtol=1e-5)
    dream = agent.imagine(after, 3, seed=1)
    assert dream.values[:, 0].tolist() == pytest.approx(value.tolist(), rel=1e-5)
    same = agent.imagine(dream.state(0), 3, seed=1)
    np.testing.assert_array_equal(dream.rewards, same.rewards)


def test_what_no_policy_reads_may_be_missing(tmp_path):
    """The decoder alone read it in training."""
    joints = spaces.Dict({"pos": spaces.Box(-1, 1, (3,)), "vel": spaces.Box(-1, 1, (3,))})
    seen = spaces.Dict({"joints": joints, "gripper": spaces.Discrete(2, start=1), "camera": SEEN["image"]})
    algo = algorithm_config("dreamer_v3")().merge(NETWORKS).merge({"encoder.keys": "camera|joints/pos"})
    agent = untrained(algo, tmp_path, "discrete", FORCED["move"], seen)
    whole = seen.sample()
    few = {"camera": whole["camera"], "joints": {"pos": whole["joints"]["pos"]}}
    found = []
    for obs in (whole, few, {key: np.stack([x] * 2) if key == "camera" else {"pos": np.stack([x["pos"]] * 2)}
                             for key, x in few.items()}):  # fmt: skip
        torch.manual_seed(0)
        masks = FORCED["move"] if len(found) < 2 else [FORCED["move"]] * 2
        found.append(agent.distribution(obs, action_mask=masks)["probabilities"])
    np.testing.assert_array_equal(found[0], found[1])
    assert found[2].shape == (2, 3)
    for missing in ({"joints": {}}, {"joints": whole["joints"] | {"pos": None}}):
        given = few | missing
        with pytest.raises(DataError, match=r"'joints/pos' (is missing: this agent uses .*'camera'|has shape \(\))"):
            agent.act(given, action_mask=FORCED["move"])
    with pytest.raises(DataError, match="pass action_mask"):
        agent.act(few)


def test_an_episode_of_ones_own_is_rows(tmp_path):
    seen = spaces.Dict({"arm": spaces.Box(-9, 9, (1,)), "on": spaces.Discrete(2, start=1)})
    agent = untrained(PPOConfig().merge(SMALL), tmp_path, "all", None, seen, frame_stack=2, clip_reward="sign")
    observations = [{"arm": np.float32([n]), "on": 1 + n % 2} for n in range(3)]
    actions = [{"move": 1 + n, "both": np.array([n, 2]), "force": np.float32([-2, 6 * n]), "whole": np.int16([0, 5])}
               for n in range(2)]  # fmt: skip
    rows = agent.make_episode(observations, actions, [7, -3.0], terminal=True)
    assert (rows.shape, rows.reward.tolist()) == ((1, 3), [[0, 1, -1]])
    assert rows.obs["arm"][0, :, :, 0].tolist() == [[0, 0], [0, 1], [1, 2]]
    assert rows.obs["on"][0].tolist() == [[0, 0], [0, 1], [1, 0]]
    flags = [x[0].tolist() for x in (rows.is_first, rows.is_last, rows.is_terminal)]
    assert flags == [[True, False, False], [False, False, True], [False, False, True]]
    batch = {key: np.stack([action[key] for action in actions]) for key in actions[0]}
    np.testing.assert_array_equal(rows.action[0, :2], agent.flatten_actions(batch, 2))
    assert not rows.action[0, 2].any()
    assert agent.make_episode(observations, actions).reward.tolist() == [[0, 0, 0]]
    for given, message in (
        ((observations[:2], actions), "2 observations, 2 actions"),
        ((observations, actions, [1.0]), "reward"),
    ):
        with pytest.raises(DataError, match=message):
            agent.make_episode(*given)


def test_a_mask_is_taken_wherever_it_is_passed(tmp_path):
    config = ExperimentConfig(algo=PPOConfig().merge(SMALL)).merge({"env.id": "Masked"})
    flat = make_flat(config.env, Masked, 0, False)
    learner = config.algo.build(flat.obs_spec, flat.action_spec, "cpu", 1)
    agent = Agent(config, learner, flat, Masked, None, tmp_path, tmp_path, 0)
    obs, mask = np.zeros(3, np.float32), np.array([0, 0, 0, 1, 0, 0], np.int8)
    assert agent.act({"observation": obs, "action_mask": mask})[0] == 5  # Discrete(6, start=2)
    assert agent.act(obs, action_mask=mask)[0] == agent.predict(obs, action_masks=mask)[0] == 5
    with pytest.raises(DataError, match="pass action_mask"):
        agent.act(obs)


def test_an_agent_is_one_file(trained, tmp_path):
    agent = reverie.load(trained)
    for parameter in agent.algo.parameters():
        parameter.data += 0.01  # what is saved is the agent as it is, not its checkpoint
    loaded = reverie.load(agent.save(tmp_path / "agent"))
    assert (tmp_path / "agent.zip").is_file()
    pairs = zip(agent.algo.parameters(), loaded.algo.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert loaded.step == agent.step
    assert loaded.evaluate(1).scores == agent.evaluate(1).scores
    few = {"steps": 20, "learning_starts": 20, "replay_ratio": 0, "init_from": str(tmp_path / "agent.zip")}
    again = reverie.train(agent.config.merge(few), run=tmp_path / "run").agent
    assert all(torch.equal(a, b) for a, b in zip(agent.algo.parameters(), again.algo.parameters(), strict=True))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["agent.json", "config.yaml", "checkpoints/../../x.json"], "the list was manipulated"),
        (["agent.json", "config.yaml", "mine.py"], "is not an agent that Agent.save has written"),
        (["config.yaml"], "is not an agent that Agent.save has written"),
        (["data", "policy.pth"], "an agent of Stable-Baselines3: reverie.import_sb3"),
    ],
)
def test_other_files_are_refused(tmp_path, names, message):
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        for name in names:
            archive.writestr(name, "{}")
    with pytest.raises(RunError, match=message):
        reverie.load(tmp_path / "other.zip")
    assert {path.name for path in tmp_path.iterdir()} == {"other.zip"}


def test_a_file_that_expands_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "other.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("agent.json", "{}")
        archive.writestr("config.yaml", "a" * 100_000)
    with pytest.raises(RunError, match="is not an agent that"):
        reverie.load(tmp_path / "other.zip")


def test_episodes_are_played_in_another_environment(trained):
    agent = reverie.load(trained)
    for env in (
        lambda: gymnasium.make("CartPole-v1", max_episode_steps=3), gymnasium.make("CartPole-v1", max_episode_steps=3),
        {"max_episode_steps": 3},
    ):  # fmt: skip
        assert agent.evaluate(1, env=env).lengths == [3]
    with pytest.raises(ConfigError, match="env = Pendulum-v1: observation 'observation' is vector"):
        agent.evaluate(1, env="Pendulum-v1")
