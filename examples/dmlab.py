"""DeepMind Lab as a suite of one's own: ``reverie train dreamer_v3 --preset dmlab --env dmlab:explore_goals-v0``.

The package deepmind_lab is on no package index: it is built with Bazel. Give another level by ``--env.kwargs
'{level: contributed/dmlab30/rooms_watermaze}'``.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

ACTIONS = ((0, 0, 0, 1, 0), (0, 0, 0, -1, 0), (0, 0, -1, 0, 0), (0, 0, 1, 0, 0), (-10, 0, 0, 0, 0), (10, 0, 0, 0, 0),
           (-60, 0, 0, 0, 0), (60, 0, 0, 0, 0), (0, 10, 0, 0, 0), (0, -10, 0, 0, 0), (-10, 0, 0, 1, 0),
           (10, 0, 0, 1, 0), (-60, 0, 0, 1, 0), (60, 0, 0, 1, 0), (0, 0, 0, 0, 1))  # fmt: skip
"""Look, look down, strafe, move and fire: the actions of PopArt (Hessel et al. 2019, arXiv:1809.04474), as in the code
of DreamerV3 (github.com/danijar/dreamerv3, embodied/envs/dmlab.py)."""


class DmLab(gymnasium.Env):  # type: ignore[type-arg]
    """A level: images ``[height, width, 3]``, 15 actions; ``frames`` frames for each action."""

    def __init__(
        self, level: str, height: int = 64, width: int = 64, frames: int = 4, renderer: str = "hardware",
        render_mode: str | None = None, **config: Any,
    ) -> None:  # fmt: skip
        import deepmind_lab

        texts = {name: str(value) for name, value in {"height": height, "width": width, **config}.items()}
        self.lab = deepmind_lab.Lab(level, ["RGB_INTERLEAVED"], config=texts, renderer=renderer)
        self.render_mode, self.frames = render_mode, frames
        self.observation_space = gymnasium.spaces.Box(0, 255, (height, width, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(ACTIONS))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.lab.reset(seed=int(self.np_random.integers(2**31 - 1)))
        self.image = self.lab.observations()["RGB_INTERLEAVED"]
        return self.image, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take ``action``. Levels end only at their time limit: a truncation, which repeats the last image."""
        look, down, strafe, move, fire = ACTIONS[action]
        reward = self.lab.step(np.array([look, down, strafe, move, fire, 0, 0], np.intc), num_steps=self.frames)
        if runs := self.lab.is_running():
            self.image = self.lab.observations()["RGB_INTERLEAVED"]
        return self.image, float(reward), False, not runs, {}


gymnasium.register("explore_goals-v0", DmLab, kwargs={"level": "contributed/dmlab30/explore_goal_locations_small"})
