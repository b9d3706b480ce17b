"""Train agents of Stable-Baselines3 and sb3-contrib for a moment, for the tests of ``reverie import sb3``.

    python tests/golden/record_sb3.py tests/golden/sb3      # needs stable-baselines3 and sb3-contrib

Beside each ``NAME.zip``, as they save it, ``NAME.npz`` holds observations of 20 steps and what the agent did there:
``obs`` ``[20, ...]``, ``action`` ``[20, ...]``, and for LSTMs the steps are those of one episode.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from sb3_contrib import QRDQN, TQC, CrossQ, MaskablePPO, RecurrentPPO
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3

STEPS = 20
ON_POLICY = {"n_steps": 32, "seed": 1, "device": "cpu"}
OFF_POLICY = {"learning_starts": 20, "batch_size": 16, "buffer_size": 100, "seed": 1, "device": "cpu"}


def parity(env: Any) -> np.ndarray:
    """The mask of MaskablePPO's environment: one action is always legal."""
    return np.array([True, env.unwrapped.state[0] > 0])


def masked() -> Any:
    """CartPole with masks."""
    return ActionMasker(gymnasium.make("CartPole-v1"), parity)


def small(*units: int, **more: Any) -> dict[str, Any]:
    """Keyword arguments of small networks."""
    return {"policy_kwargs": {"net_arch": list(units), **more}}


CASES: dict[str, Any] = {
    "ppo_cartpole": lambda: PPO("MlpPolicy", "CartPole-v1", batch_size=16, **ON_POLICY, **small(8, 6)),
    "ppo_pendulum": lambda: PPO(
        "MlpPolicy", "Pendulum-v1", batch_size=16, gamma=0.9, **ON_POLICY,
        policy_kwargs={"net_arch": {"pi": [8], "vf": [6]}, "activation_fn": torch.nn.ReLU},
    ),
    "a2c_cartpole": lambda: A2C("MlpPolicy", "CartPole-v1", seed=1, device="cpu", **small(8)),
    "ppo_masked": lambda: MaskablePPO("MlpPolicy", masked(), batch_size=16, **ON_POLICY, **small(8)),
    "ppo_lstm": lambda: RecurrentPPO(
        "MlpLstmPolicy", "CartPole-v1", batch_size=16, **ON_POLICY, **small(8, lstm_hidden_size=4)
    ),
    "sac_pendulum": lambda: SAC("MlpPolicy", "Pendulum-v1", **OFF_POLICY, **small(8, 6)),
    "td3_pendulum": lambda: TD3("MlpPolicy", "Pendulum-v1", **OFF_POLICY, **small(8, 6)),
    "ddpg_pendulum": lambda: DDPG("MlpPolicy", "Pendulum-v1", **OFF_POLICY, **small(8)),
    "tqc_pendulum": lambda: TQC("MlpPolicy", "Pendulum-v1", **OFF_POLICY, **small(8, 6, n_quantiles=5)),
    "crossq_pendulum": lambda: CrossQ("MlpPolicy", "Pendulum-v1", **OFF_POLICY, **small(8, 6)),
    "dqn_cartpole": lambda: DQN("MlpPolicy", "CartPole-v1", **OFF_POLICY, **small(8, 6)),
    "qrdqn_cartpole": lambda: QRDQN("MlpPolicy", "CartPole-v1", **OFF_POLICY, **small(8, n_quantiles=5)),
}  # fmt: skip


def record(name: str, folder: Path) -> None:
    """Train, save and play one agent."""
    model = CASES[name]()
    model.learn(64)
    model.save(folder / f"{name}.zip")
    env = gymnasium.make("Pendulum-v1" if "pendulum" in name else "CartPole-v1")
    obs, state, rows, taken = env.reset(seed=5)[0], None, [], []
    start = np.ones(1, bool)
    for _ in range(STEPS):
        more = {"action_masks": parity(env)} if name == "ppo_masked" else {}
        more |= {"state": state, "episode_start": start} if name == "ppo_lstm" else {}
        action, state = model.predict(obs, deterministic=True, **more)
        rows.append(obs)
        taken.append(action)
        start[:] = False
        obs, _, ended, _, _ = env.step(action)
        if ended:
            obs, start[:] = env.reset()[0], True
    np.savez(folder / f"{name}.npz", obs=np.array(rows), action=np.array(taken))


if __name__ == "__main__":
    for case in CASES:
        record(case, Path(sys.argv[1]))
