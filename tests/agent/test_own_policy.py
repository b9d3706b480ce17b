"""Functions, controllers and models of other libraries are scored, and recorded as datasets."""

import contextlib
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import reverie
from log_capture import logged
from masked_env import Masked
from reverie.agent.own_policy import fit_action, make_player
from reverie.cli import main
from reverie.core.errors import ConfigError, DataError, EnvError
from reverie.core.kernel_dispatch import use_only_kernels
from reverie.datasets.format_detection import open_reader
from roads import KINDS, MAKERS
from story_env import Story

ALWAYS = {"left": lambda obs: 0, "right": lambda obs: 1}


def lean(obs):
    return int(obs[2] + obs[3] > 0)


class Model:
    """As models of Stable-Baselines3 predict."""

    def __init__(self):
        self.begun = []

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        self.begun.append((bool(episode_start[0]), state, deterministic))
        return np.array(lean(observation)), (state or 0) + 1


def test_a_function_is_scored_as_the_environment_says():
    evaluation = reverie.evaluate("CartPole-v1", lean, 3, seed=4)
    env = gymnasium.make("CartPole-v1")
    for score, length, seed in zip(evaluation.scores, evaluation.lengths, seeds_of(4, 3), strict=True):
        obs, total, ended = env.reset(seed=seed)[0], 0.0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(lean(obs))
            total, ended = total + reward, terminated or truncated
        assert score == length == total
    assert reverie.evaluate("CartPole-v1", ALWAYS["left"], 2).score < evaluation.score


def seeds_of(seed, count):
    from reverie.core.seeding import derived_seeds

    first = derived_seeds(seed)["test"] % 2**31
    return range(first, first + count)


def test_a_model_gets_its_state_and_the_beginnings_of_episodes():
    model = Model()
    lengths = reverie.evaluate("CartPole-v1", model, 2).lengths
    assert model.begun[0] == (True, None, True)
    assert model.begun[1] == (False, 1, True)
    assert model.begun[lengths[0]] == (True, None, True)
    assert len(model.begun) == sum(lengths)


@pytest.mark.parametrize("named", [["heuristics:lean", "TARGET"], ["TARGET", "--policy=heuristics:lean"]])
def test_what_is_recorded_is_what_was_played(named, tmp_path, monkeypatch):
    (tmp_path / "heuristics.py").write_text("def lean(obs):\n    return int(obs[2] + obs[3] > 0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    reverie.record("CartPole-v1", lean, episodes=2, seed=3, out=tmp_path / "log.hdf5")
    words = [str(tmp_path / "same.hdf5") if word == "TARGET" else word for word in named]
    assert main(["data", "record", *words, "--env", "CartPole-v1", "--episodes", "2", "--seed", "3"]) == 0
    sys.modules.pop("heuristics")
    columns = []
    for name in ("log.hdf5", "same.hdf5"):
        with open_reader(str(tmp_path / name)) as reader:
            columns.append([*reader.parts()])
    first, second = columns
    assert all(np.array_equal(a["obs"], b["obs"]) for a, b in zip(first, second, strict=True))
    rows = first[0]
    chosen = [lean(obs) for obs, last in zip(rows["obs"], rows["is_last"], strict=True) if not last]
    assert [int(x) for x, last in zip(rows["action"], rows["is_last"], strict=True) if not last] == chosen


class Legal(nn.Module):
    def forward(self, obs, action_mask):
        assert action_mask.shape == (1, 6)
        return torch.arange(6.0).expand(1, 6)


def lowest(obs, action_masks):
    return 2 + int(np.flatnonzero(action_masks)[0])  # Discrete(6, start=2)


@pytest.mark.parametrize("tell", ["info", "method", "observation"])
@pytest.mark.parametrize("policy", [lowest, Legal(), type("Model", (), {"predict": staticmethod(lowest)})()])
def test_a_policy_gets_the_legal_actions(policy, tell, tmp_path):
    options = {"kwargs": {"tell": tell}}
    assert len(reverie.evaluate(Masked, policy, 2, env_options=options).scores) == 2  # an illegal action is an error
    reverie.record(Masked, policy, episodes=1, out=tmp_path / "own", format="store", env_options=options)


@pytest.mark.parametrize("owner", ["policy", "environment"])
@pytest.mark.parametrize("error", [KeyError("pole"), OSError("the camera is gone")])
def test_errors_of_the_users_code_are_shown_as_they_are(owner, error, tmp_path):
    def fail(*_):
        raise error

    env = gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), fail if owner == "environment" else float)
    with pytest.raises(EnvError if isinstance(error, OSError) else KeyError, match=str(error.args[0])) as caught:
        reverie.record(env, fail if owner == "policy" else ALWAYS["left"], episodes=1, out=tmp_path / "log.hdf5")
    assert isinstance(error, KeyError) or f"{__file__}:{fail.__code__.co_firstlineno + 1} in fail" in str(caught.value)


@pytest.mark.parametrize(
    ("space", "action", "fitted"),
    [
        (spaces.Box(-1, 1, (2,)), [3.0, -0.5], [1.0, -0.5]),
        (spaces.Box(-1, 1, (1,)), 0.25, [0.25]),
        (spaces.Discrete(3, start=2), np.array([4]), 4),
        (spaces.MultiDiscrete([2, 3]), [1, 2], [1, 2]),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0, 1, (1,))}), {"a": 1, "b": 2.0}, {"a": 1, "b": [1.0]}),
        (spaces.Box(-1, 1, (2,)), [0.0], None),
        (spaces.Box(-1, 1, (1,)), np.nan, None),
        (spaces.Discrete(3), 3, None),
        (spaces.Discrete(3), [0.2, 0.8, 0.0], None),
        (spaces.MultiDiscrete([2, 3]), [1, 3], None),
    ],
)
def test_actions_fit_their_space_or_are_refused(space, action, fitted):
    if fitted is None:
        with pytest.raises(DataError, match="the policy returned"):
            fit_action(space, action)
        return
    result = fit_action(space, action)
    assert space.contains(result)
    np.testing.assert_equal(result, fitted)


class Leaning(nn.Module):
    """As :func:`lean`, with an output for each action; the dropout would give other actions in train mode."""

    def __init__(self):
        super().__init__()
        self.layer, self.dropout = nn.Linear(4, 2, bias=False), nn.Dropout(0.9)
        self.layer.weight.data = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])

    def forward(self, obs):
        assert obs.shape == (1, 4)
        return self.dropout(self.layer(obs))


class Counting(nn.Module):
    """A continuous action that tells the number of steps, by its state."""

    def forward(self, obs, state=None):
        assert obs.dtype == torch.float32
        count = torch.zeros(1, 1) if state is None else state + 1
        return count / 100, count


@pytest.mark.parametrize("use_kernels", [True, False])
def test_a_module_is_an_agent(use_kernels, tmp_path):
    with contextlib.nullcontext() if use_kernels else use_only_kernels():
        agent = reverie.load(Leaning(), env="CartPole-v1")
        assert isinstance(agent, reverie.Agent)
        expected = reverie.evaluate("CartPole-v1", lean, 3, seed=4)
        assert agent.evaluate(3, seed=4).scores == expected.scores
        assert agent.evaluate(2, max_episode_steps=7).lengths == [7, 7]
        assert agent.evaluate(1, env={"max_episode_steps": 5}).lengths == [5]
        assert agent.evaluate(1, record=True).frames.shape[3] == 3
        agent.act(np.zeros(4, np.float32))
        with pytest.raises(ConfigError, match="it has no learner, and so no 'policy'"):
            agent.value(np.zeros(4, np.float32))
        reverie.record("CartPole-v1", Leaning(), episodes=1, out=tmp_path / "log.hdf5")


def test_a_module_has_its_state():
    agent = reverie.load(Counting(), env="Pendulum-v1")
    obs, state, actions = np.zeros(3), None, []
    for _ in range(3):
        action, state = agent.act(obs, state)
        actions.append(float(action[0]))
    assert actions == pytest.approx([0.0, 0.01, 0.02])
    assert agent.evaluate(1).lengths == [200]


class Doubled(nn.Module):
    """Twice the last number of the observation, as ``change`` returns it; the observation is called state."""

    def __init__(self, change=lambda action: action, dtype=torch.float32):
        super().__init__()
        self.change, self.factor = change, nn.Parameter(torch.full((1,), 2.0, dtype=dtype))

    def forward(self, state):
        return self.change(state[:, 2:] * self.factor)


def hooked():
    """A module whose output a hook changes, as a module of normalized weights needs its hooks."""
    module = Doubled(lambda action: action / 2)
    module.register_forward_hook(lambda module, _, output: output * 2)
    return module


def exported():
    """Like a program of ``torch.export``, which takes seconds to make."""

    def refuse(self):
        raise NotImplementedError

    module = type("GraphModule", (Doubled,), {"eval": refuse})()
    members = {"module": lambda self: module, "__module__": "torch.export.exported_program"}
    return type("ExportedProgram", (), members)()


def counted(obs, state=None, *, episode_start):
    assert bool(episode_start[0]) == (state is None)
    return obs[2:] * 2, (state or 0) + 1


def batched(returned=lambda action: action):
    """As scikit-learn and d3rlpy predict."""
    return type("Batched", (), {"predict": lambda self, X: returned(np.reshape(X, (1, 3))[:, 2:] * 2)})()


@pytest.mark.parametrize(
    "policy",
    [
        Doubled(), Doubled(dtype=torch.float64), Doubled(dtype=torch.bfloat16), Doubled(lambda action: (action, None)),
        exported(), hooked(), batched(), counted,
        lambda obs: torch.tensor(obs[2:], requires_grad=True) * 2,
    ],
)  # fmt: skip
def test_policies_of_each_form_act_as_themselves(policy):
    agent, state = reverie.load(policy, env="Pendulum-v1"), None
    for _ in range(2):
        action, state = agent.act(np.array([0.0, 0.0, 0.5]), state)
        assert action.tolist() == [1.0]


@pytest.mark.parametrize(
    "policy",
    [
        Doubled(lambda mean: (mean, mean)), Doubled(lambda action: (action, action, action)),
        Doubled(lambda action: {"action": action}), Doubled(lambda mean: torch.distributions.Normal(mean, 1.0)),
        type("NoForward", (nn.Module,), {})(), lambda obs: (obs[:1], {}), lambda obs: [obs[:1], {}],
        batched(lambda action: (action, action)), batched(lambda action: {"action": action}),
    ],
)  # fmt: skip
def test_outputs_that_could_be_another_thing_than_the_action_are_refused(policy):
    with pytest.raises((ConfigError, DataError), match=r"lambda obs: policy\(obs\)\[0\]|expected an action in Box"):
        reverie.load(policy, env="Pendulum-v1").act(np.zeros(3))


class Normalized:
    """A model of Stable-Baselines3 that learned in a VecNormalize: with its statistics, or from a file without them."""

    norm_obs = True

    def __init__(self, algorithm):
        on_policy = {"gae_lambda": 0.9, "_last_original_obs": np.zeros((1, 3))}
        off_policy = {"_last_original_obs": np.zeros((1, 3)), "_last_obs": np.full((1, 3), 9.0),
                      "observation_space": spaces.Box(-1, 1, (3,), float)}  # fmt: skip
        vars(self).update({"PPO": on_policy, "SAC": off_policy}.get(algorithm, {}))
        self.algorithm = algorithm

    def get_vec_normalize_env(self):
        return self if self.algorithm == "with statistics" else None

    def normalize_obs(self, obs):
        return obs + 1

    def predict(self, observation):
        return observation[2:], None


@pytest.mark.parametrize(
    ("algorithm", "action", "told"),
    [("", 0.0, ""), ("with statistics", 1.0, "VecNormalize"), ("PPO", 0.0, "statistics"), ("SAC", 0.0, "statistics")],
)
def test_observations_are_normalized_as_in_the_training_of_a_model(algorithm, action, told):
    with logged() as lines:
        agent = reverie.load(Normalized(algorithm).predict, env="Pendulum-v1")
    assert agent.act(np.zeros(3))[0] == [action]
    assert [told in line for line in lines] == [True] * bool(told)


def test_commands_take_a_policy_as_they_take_a_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "leaning.py").write_text("class Model:\n    def predict(self, obs):\n        return int(obs[2] > 0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    command = ["eval", "leaning:Model", "--env", "CartPole-v1", "--episodes", "2", "--video"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "CartPole-v1, Model, deterministic actions" in printed
    assert (tmp_path / "Model.mp4").stat().st_size > 0
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix) == ["Model.mp4", "leaning.py"]
    for wrong, said in ((["eval", "leaning:Model"], "pass its environment, --env ID"),
                        (["dream", *command[1:4]], "has no learner")):  # fmt: skip
        assert main(wrong) == 1
        assert said in " ".join(capsys.readouterr().err.split())
    sys.modules.pop("leaning")


@pytest.mark.parametrize("policy", ["CartPole-v1", 3, Model])
def test_what_is_no_policy_is_refused(policy):
    with pytest.raises(ConfigError, match="a function of the observation that returns an action"):
        make_player("CartPole-v1", policy)


@pytest.mark.parametrize("road", KINDS[1:])
def test_vectors_tell_of_success_and_takeovers_as_single_environments_do(road):
    def first_legal(obs):
        return {"choice": 1 + int(obs["action_mask"].argmax()), "push": np.float32([0.5])}

    alone = reverie.evaluate(Story, first_legal, 2, env_options={"kwargs": {"tells": "person"}})
    options = {"vectorization": "native", "kwargs": {"tells": "person"}}
    assert reverie.evaluate(MAKERS[road], first_legal, 2, env_options=options) == alone
    assert (alone.info, alone.intervention_rate) == ([{"success_rate": 0.0}] * 2, 0.5)
