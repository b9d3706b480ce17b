"""What people type who know Stable-Baselines3: it works, or the error says what to write."""

from types import SimpleNamespace

import pytest

import reverie
from reverie.algos.table import algorithms
from reverie.api import make_request
from reverie.core.errors import ConfigError
from reverie.core.foreign_names import AGENT_NAMES, EXAMPLES, PACKAGE_NAMES, SYNONYMS, train_line
from reverie.experiment.dataset_env import resolve_with_data
from reverie.experiment.settings import make_preset

KNOWN = ("ppo", "dqn", "td3", "sac", "dreamer_v3", "cql", "iql", "qr_dqn", "tdmpc2", "plan2explore_v3")
STABLE_BASELINES3 = (
    "PPO A2C SAC TD3 DDPG DQN TQC QRDQN CrossQ MaskablePPO RecurrentPPO HerReplayBuffer VecNormalize SubprocVecEnv "
    "DummyVecEnv VecFrameStack make_vec_env Monitor EvalCallback CheckpointCallback BaseCallback NormalActionNoise"
)


def settings(algorithm, *args, size=None, preset=None, config=None, run=None, **overrides):
    """Return the settings that ``reverie.train`` would use."""
    return resolve_with_data(make_request(algorithm, overrides.pop("env", None), size, preset, config, overrides, run))


def evaluate(line):
    """Return the settings of a line ``reverie.train(...)``, without the remark behind it."""
    return eval(line.partition(") (")[0] + ")" * (") (" in line), {"reverie": SimpleNamespace(train=settings)})


def accepts(config, path, value):
    """Return whether a setting exists and takes a value."""
    try:
        return bool(config.merge({path: value}))
    except ConfigError:
        return False


@pytest.mark.parametrize("names", EXAMPLES)
def test_each_example_is_a_setting_with_a_value(names):
    for path, value in EXAMPLES[names]:
        assert path == "run" or any(accepts(make_preset(name), path.replace("-", "_"), value) for name in KNOWN)


def test_no_name_is_explained_twice():
    names = [name for group in EXAMPLES for name in group.split()]
    assert not {name for group in SYNONYMS.values() for name in group.split()} & {*names}
    assert len(names) == len({*names})


@pytest.mark.parametrize(
    ("algorithm", "argument", "line"),
    [
        ("ppo", {"n_envs": 4}, "Write envs=4."),
        ("ppo", {"total_timesteps": 100}, "Write steps=100."),
        ("ppo", {"gamma": 0.9}, 'Write **{"algo.discount": 0.9}.'),
        ("ppo", {"policy_kwargs": {"net_arch": [64]}}, 'Write **{"algo.networks.units": (64, 64)}.'),
        ("ppo", {"features_extractor_class": object}, 'Write **{"algo.networks.encoder": "nature"}.'),
        ("ppo", {"n_steps": 5}, 'Write **{"algo.rollout": 128}.'),
        ("dqn", {"n_steps": 5}, 'Write **{"algo.value_estimator": "n_step(3)"}.'),
        ("ppo", {"ent_coef": 0.1}, 'Write **{"algo.entropy_coef": 0.1}.'),
        ("sac", {"ent_coef": "auto"}, '"algo.temperature": ...}'),
        ("sac", {"learning_rate": 1e-3}, '**{"algo.actor_lr": ...}'),
        ("td3", {"action_noise": object()}, 'Write **{"algo.exploration": "gaussian(0.1)"}.'),
        ("ppo", {"use_sde": True}, "gSDE is not supported."),
        ("ppo", {"policy": "MlpPolicy"}, "networks follow from the observations"),
        ("ppo", {"env_kwargs": {"a": 1}}, '**{"env.kwargs": ...}'),
        ("ppo", {"verbose": 1}, "Write console=True."),
        ("ppo", {"stpes": 1}, "Write steps=1."),
        ("CartPole-v1", {"env": "dqn"}, "Write reverie.train('dqn', env='CartPole-v1')"),
        ("ppo", {"env": "MlpPolicy"}, "Write reverie.train('ppo', env='CartPole-v1')"),
    ],
)
def test_an_argument_of_another_library_is_answered_with_the_line_to_write(algorithm, argument, line):
    with pytest.raises(ConfigError) as caught:
        settings(algorithm, **{"env": "Pendulum-v1", **argument})
    assert line in str(caught.value)


@pytest.mark.parametrize("name", STABLE_BASELINES3.split())
def test_a_class_of_stable_baselines3_is_answered_with_a_line_that_works(name):
    with pytest.raises(AttributeError, match=f"module 'reverie' has no attribute '{name}'. Write ") as caught:
        getattr(reverie, name)
    line = str(caught.value).partition(" Write ")[2].removesuffix(".")
    if line.startswith("reverie.train(") and "Fetch" not in line and "ALE" not in line:
        evaluate(line)


def test_other_names_of_the_package_are_attributes_that_exist():
    lines = [line for line in PACKAGE_NAMES.values() if not line.startswith("reverie.train(")]
    for name in [line.partition("reverie.")[2].partition("(")[0].partition(")")[0] for line in lines]:
        assert hasattr(reverie, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'trian'\. Did you mean 'train'"):
        _ = reverie.trian


def test_algorithms_are_found_in_any_spelling():
    groups = {entry.name: entry.group for entry in algorithms().values()}
    assert train_line("DreamerV3", groups) == "reverie.train('dreamer_v3', env='CartPole-v1')"
    assert train_line("SAC", groups) == "reverie.train('sac', env='Pendulum-v1')"
    assert train_line("CQL", groups) == "reverie.train('cql', data='PATH')"
    assert train_line("Nothing", groups) == ""


@pytest.mark.parametrize("name", [name for names in AGENT_NAMES for name in names.split()])
def test_a_method_of_a_model_is_answered_with_what_the_agent_has(name, trained):
    agent = reverie.load(trained)
    with pytest.raises(AttributeError, match=f"'Agent' object has no attribute '{name}'. Write ") as caught:
        getattr(agent, name)
    line = str(caught.value).partition(" Write ")[2]
    assert not line.startswith("agent.") or hasattr(
        agent, line.removeprefix("agent.").split("(")[0].split(":")[0].split(".")[0]
    )
