"""Model-free agents solve environments whose best returns are known, with the targets of several estimators."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import reverie
from reverie.objectives.estimators import NStep, TDLambda

SMALL = {
    "replay_ratio": 1, "learning_starts": 100, "random_steps": 300, "env.num": 4, "env.vectorization": "sync",
    "eval_episodes": 30, "eval_envs": 30, "threads": 1, "seed": 0, "console": False, "tensorboard": False,
    "replay.capacity": 20_000, "algo.batch_size": 64, "algo.discount": 0.9, "algo.networks.units": (64, 64),
    "algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3, "algo.tau": 0.02,
}  # fmt: skip
OWN = {
    "ddpg": {"algo.exploration": "gaussian(0.2)"},
    "td3": {"algo.exploration": "ornstein_uhlenbeck(0.5, 0.2)"},
}


@pytest.mark.parametrize(("name", "estimator"), [("ddpg", NStep(2)), ("td3", TDLambda(0.5))])
def test_solved(name, estimator, tmp_path):
    """Best 0, -53 without looking, -160 at worst: the action is the target that is seen, in units of the space."""
    rows = {"algo.value_estimator": estimator, "algo.batch_length": 4}
    settings = SMALL | OWN[name] | rows | {"steps": 1500, "schedule.eval_every": 100, "stop_score": -3.0}
    result = reverie.train(name, env="reverie/Match-v0", run=tmp_path / "run", **settings)
    mean = sum(result.evaluation.scores) / len(result.evaluation.scores)
    assert mean >= -4.0


def test_crossq_acts_with_the_statistics_that_it_learned(tmp_path):
    """As in :func:`test_solved`."""
    own = {"algo.networks.body": "batch_renorm(0.05, 100)", "algo.networks.critic_units": (64,), "algo.tau": 0.005}
    own |= {"algo.temperature": 0.05, "algo.temperature_lr": 0.0, "algo.networks.units": (32,)}
    settings = SMALL | own | {"steps": 1500, "schedule.eval_every": 100, "stop_score": -3.0}
    result = reverie.train("crossq", env="reverie/Match-v0", run=tmp_path / "run", **settings)
    assert sum(result.evaluation.scores) / len(result.evaluation.scores) >= -5.0


VALUES = {k: v for k, v in SMALL.items() if k not in ("algo.actor_lr", "algo.critic_lr")} | {
    "steps": 1500, "schedule.eval_every": 100, "stop_score": 9.5, "algo.lr": 2e-3, "algo.batch_size": 32,
    "algo.exploration": "epsilon_greedy(1.0, 0.1, 500)", "algo.networks.encoder": "minatar(8)",
}  # fmt: skip
PRIORITIES = {"replay.fractions.uniform": 0.0, "replay.fractions.priority": 1.0, "replay.online_queue": False}


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("dqn", {"algo.dueling": True, "algo.double": True, "algo.tau": 1.0, "algo.target_update_interval": 20,
                 "algo.value_estimator": NStep(3), "algo.batch_length": 4}),
        ("qr_dqn", {"algo.num_quantiles": 20, "algo.kappa": 0.0}),
        ("c51", {"algo.dueling": True, "algo.double": True, "algo.value_estimator": NStep(3), "algo.batch_length": 4,
                 "algo.noisy_sigma": 0.5, "algo.exploration": "epsilon_greedy(0)"}),  # Rainbow
        pytest.param("iqn", {"algo.num_policy_quantiles": 8}, marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_values_of_choices_solve(name, own, tmp_path):
    """Best 10, by chance 5: rewards go on when the clock ends an episode, and what to do is in a picture."""
    settings = VALUES | PRIORITIES | {"algo.target_update_interval": 1} | own
    result = reverie.train(name, env="reverie/Look-v0", run=tmp_path / "run", **settings)
    assert sum(result.evaluation.scores) / len(result.evaluation.scores) >= 9.0


MEMORY = VALUES | {
    "env.num": 1, "schedule.eval_every": 500, "steps": 4000, "stop_score": 0.9, "random_steps": 0, "algo.lr": 3e-3,
    "algo.target_update_interval": 1, "algo.tau": 0.05, "algo.networks.units": (32,), "algo.batch_length": 8,
    "algo.networks.memory": "lstm(16)",
}  # fmt: skip


def test_what_was_seen_once_is_remembered(tmp_path):
    """Best 1, by chance or without memory 0."""
    settings = {key: value for key, value in MEMORY.items() if key != "algo.networks.encoder"}
    result = reverie.train("dqn", env="reverie/Cue-v0", run=tmp_path / "run", **settings)
    assert sum(result.evaluation.scores) / len(result.evaluation.scores) >= 0.8


class Lock(gymnasium.Env[np.ndarray, Any]):
    """Shows what to choose of three, what of four, and a number. Both choices, and a near number, earn 1 and go on."""

    SPACES: ClassVar[dict[str, spaces.Space[Any]]] = {
        "choices": spaces.MultiDiscrete([3, 4]),
        "mixed": spaces.Dict(one=spaces.Discrete(3), two=spaces.Discrete(4), number=spaces.Box(-1, 3, (1,))),
    }

    def __init__(self, actions: str) -> None:
        self.action_space = self.SPACES[actions]
        self.observation_space = spaces.Box(-1, 3, (8,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._shown(), {}

    def _shown(self) -> np.ndarray:
        self.wanted = (*(int(self.np_random.integers(n)) for n in (3, 4)), float(self.np_random.uniform(-1, 3)))
        first, second, number = self.wanted
        return np.array([*np.eye(3)[first], *np.eye(4)[second], number], np.float32)

    def step(self, action: Any) -> Any:
        mixed = isinstance(action, dict)
        one, two, number = (action["one"], action["two"], action["number"][0]) if mixed else (*action, self.wanted[2])
        right = (one, two) == self.wanted[:2]
        reward = float(right) * max(0.0, 1 - abs(number - self.wanted[2]) / 2)
        self.count += 1
        return self._shown(), reward, not right, self.count == 10, {}


SEVERAL = {
    "dqn": VALUES | {"algo.double": True, "algo.dueling": True, "algo.target_update_interval": 20},
    "sac": SMALL | {
        "algo.temperature": 0.05, "algo.temperature_lr": 0.0, "algo.normalize_obs": None, "algo.reward_scale": None,
    },
}  # fmt: skip


@pytest.mark.parametrize(("name", "actions", "least"), [("dqn", "choices", 9.0), ("sac", "mixed", 7.5)])
def test_several_choices_are_learned_together(name, actions, least, tmp_path):
    """Best 10, by chance 1.1, or 0.6 with a number."""
    settings = {k: v for k, v in SEVERAL[name].items() if k != "algo.networks.encoder"}
    settings |= {
        "steps": 3000,
        "schedule.eval_every": 250,
        "stop_score": least + 0.5,
        "env_options": {"kwargs": {"actions": actions}},
    }
    result = reverie.train(name, env=Lock, run=tmp_path / "run", **settings)
    assert sum(result.evaluation.scores) / len(result.evaluation.scores) >= least


def test_recorded_rows_help_from_the_start(tmp_path):
    """RLPD, in few steps. Best 0, -53 without looking; the dataset has random actions."""
    g = np.random.default_rng(0)
    target, action = g.uniform(-1, 1, (600, 1)), g.uniform(-2, 2, (600, 1))
    data = {
        "observations": target.astype(np.float32), "actions": action.astype(np.float32),
        "rewards": -np.minimum(16, 16 * (action - target)[:, 0] ** 2), "terminals": np.zeros(600),
        "timeouts": np.arange(600) % 10 == 9,
    }  # fmt: skip
    fast = {"replay_ratio": 4, "steps": 95, "learning_starts": 50, "random_steps": 50, "algo.policy_delay": 2}
    settings = SMALL | SEVERAL["sac"] | fast | {"algo.actor_lr": 3e-3, "algo.critic_lr": 3e-3}
    result = reverie.train("sac", preset="rlpd", data=data, env="reverie/Match-v0", run=tmp_path / "run", **settings)
    assert sum(result.evaluation.scores) / len(result.evaluation.scores) >= -3.0
