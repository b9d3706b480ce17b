"""A script helps an agent that finds no reward alone: python examples/helped.py prints env steps until it succeeds.

Two rooms, a door, and a reward only at the goal. The script takes over when the agent makes no progress, acts well for
a while, and gives back.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import reverie

GOAL, DOOR, BEHIND_DOOR = np.array([0.7, 0.6]), np.array([0.0, 0.0]), np.array([0.05, 0.0])
SPEED, REACH, DOOR_WIDTH = 0.1, 0.1, 0.2


class Rooms(gymnasium.Env[np.ndarray, np.ndarray]):
    """A dot begins in the left room; the goal is in the right one. 60 steps; the best policy needs about 21."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - as in Gymnasium

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.position, self.time = self.np_random.uniform([-0.9, -0.9], [-0.3, 0.9]), 0
        return self.position.astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        moved = np.clip(self.position + SPEED * np.clip(action, -1, 1), -1, 1)
        share = self.position[0] / (self.position[0] - moved[0]) if self.position[0] * moved[0] <= 0 else None
        crosses = share is not None and np.isfinite(share)
        if crosses and abs(self.position[1] + share * (moved[1] - self.position[1])) > DOOR_WIDTH / 2:
            moved = np.array([self.position[0], moved[1]])  # along the wall
        self.position, self.time = moved, self.time + 1
        is_success = bool(np.linalg.norm(moved - GOAL) < REACH)
        info = {"is_success": is_success}
        return moved.astype(np.float32), float(is_success), is_success, self.time == 60, info

    def render(self) -> Any:
        """Return a picture: the wall with its door, the goal in green, the dot in red."""
        x = np.linspace(-1, 1, 160)
        y = -x[:, None]
        picture = np.full((160, 160, 3), 255, np.uint8)
        picture[(np.abs(x) < 0.02) & (np.abs(y) > DOOR_WIDTH / 2)] = 60
        for (x0, y0), radius, color in ((GOAL, REACH, (40, 160, 60)), (self.position, 0.05, (210, 60, 40))):
            picture[np.hypot(x - x0, y - y0) < radius] = color
        return picture


gymnasium.register("Rooms-v0", entry_point=Rooms)  # --env helped:Rooms-v0


class Helper:
    """Takes over for up to ``turn`` steps after ``patience`` steps without progress, for ``budget`` steps in all."""

    patience, turn = 8, 32

    def __init__(self, seed: int = 0, budget: int = 10**9) -> None:
        self.rng, self.budget = np.random.default_rng(seed), budget
        self.reset()

    def reset(self) -> None:
        """Begin an episode."""
        self.best, self.waited, self.left = np.inf, 0, 0

    def __call__(self, obs: Any, action: Any) -> Any:
        """Return the action to take instead of ``action``; None: the agent's."""
        distance = self.measure(obs)
        is_better = distance < self.best - 1e-3
        self.best, self.waited = min(self.best, distance), 0 if is_better else self.waited + 1
        if self.left == 0 and self.waited >= self.patience:
            self.left = self.turn
        if self.left == 0 or self.budget == 0:
            return None
        self.left, self.waited, self.budget = self.left - 1, 0, self.budget - 1
        best = self.act(obs)
        return np.clip(best + self.rng.normal(0, 0.2, best.shape), -1, 1).astype(np.float32)

    def measure(self, obs: np.ndarray) -> float:
        """Return the length of the way to the goal."""
        if obs[0] >= 0:
            return float(np.linalg.norm(GOAL - obs))
        return float(np.linalg.norm(DOOR - obs) + np.linalg.norm(GOAL - DOOR))

    def act(self, obs: np.ndarray) -> np.ndarray:
        """Return the action towards the goal."""
        target = GOAL if obs[0] > -0.02 else BEHIND_DOOR
        way = (target - obs) / SPEED
        return way / max(1, np.abs(way).max())

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to go on exactly."""
        numbers = (float(self.best), self.waited, self.left, self.budget)
        return {"rng": self.rng.bit_generator.state, "numbers": numbers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.rng.bit_generator.state = state["rng"]
        self.best, self.waited, self.left, self.budget = state["numbers"]


def learn(helper: Helper | None, seed: int, steps: int = 10_000, **settings: Any) -> dict[str, Any]:
    """Train until 90 % of 20 episodes succeed without the helper, twice in a row; return the steps, or None."""
    with tempfile.TemporaryDirectory() as run:
        result = reverie.train(
            "sac", Rooms, preset="hil", steps=steps, seed=seed, run=f"{run}/run", eval_episodes=20, console=False,
            human=None if helper is None else reverie.Person(helper), score_metric="eval/success_rate",
            stop_score=0.9, tensorboard=False,
            **{"schedule.eval_every": 500, "algo.networks.units": (128, 128), "algo.batch_size": 128, **settings},
        )  # fmt: skip
    helped = 0 if helper is None else 10**9 - helper.budget
    return {"steps": result.env_steps if result.stop_reason else None, "helped": helped}


def main() -> None:
    """Print the env steps of each seed, with and without help."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10_000)
    arguments = parser.parse_args()
    for name, make in (("with help", Helper), ("alone", lambda seed: None)):
        for seed in range(arguments.seeds):
            print(f"{name}, seed {seed}:", learn(make(seed), seed, arguments.steps), flush=True)


if __name__ == "__main__":
    main()
