#!/bin/sh
# OGBench 1.2.2 with Gymnasium 1.2.3 and MuJoCo 3.4.0: a seed determines neither an episode nor random actions.
#
# Guess: as Gymnasium's API says, two resets with one seed and one task begin the same episode, and a seeded action space
# samples the same actions; what is drawn beside that is a matter of the policy.
# Seen: the maze draws the noise of the goal and of the start from NumPy's global generator, so that two resets with seed
# 0 and task 1 have other goals and other observations; they agree once numpy.random.seed is called before each. The
# robot's action_space is a property that makes a new Box at each access: env.action_space.seed(0) seeds an object that
# nobody samples from, while env.action_space is env.action_space is False.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet ogbench==1.2.2 gymnasium==1.2.3 mujoco==3.4.0 numpy==2.3.5
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import gymnasium
import numpy as np
import ogbench  # noqa: F401


def begin(env, first=None):
    if first is not None:
        np.random.seed(first)
    obs, info = env.reset(seed=0, options={"task_id": 1})
    return obs, info["goal"]


maze = gymnasium.make("pointmaze-medium-v0", disable_env_checker=True)
pairs = [(begin(maze), begin(maze)), (begin(maze, 5), begin(maze, 5))]
robot = gymnasium.make("cube-single-v0", disable_env_checker=True).unwrapped


def sampled():
    robot.action_space.seed(0)
    return robot.action_space.sample()


seen = {
    "same observation": bool(np.array_equal(pairs[0][0][0], pairs[0][1][0])),
    "same goal": bool(np.array_equal(pairs[0][0][1], pairs[0][1][1])),
    "same with the global generator": all(np.array_equal(a, b) for a, b in zip(*pairs[1])),
    "one action space": robot.action_space is robot.action_space,
    "same random actions": bool(np.array_equal(sampled(), sampled())),
}
print(seen)
assert seen == {
    "same observation": False, "same goal": False, "same with the global generator": True, "one action space": False,
    "same random actions": False,
}
PYTHON
