#!/bin/sh
# jumanji 1.1.2: what a time limit is depends on the environment, and for several agents on the agent.
#
# A learner bootstraps from the last observation of an episode if its discount is 1. jumanji.types has truncation(),
# which leaves the discount 1, and termination(), which makes it 0.
#
# Guess, written down first: time limits are truncations, as in dm_env, whose time steps jumanji has; where an
# environment prefers terminations, its observation contains the number of steps.
#
# Seen, with the argument time_limit=5 and legal random actions, in episodes that last five steps:
#   discount 0: Cleaner, Maze, MMST, PacMan, RobotWarehouse, RubiksCube, SlidingTilePuzzle, Snake, Tetris, and for both
#     agents SearchAndRescue. All but PacMan observe the number of steps: PacMan's values depend on what it cannot see.
#   discount 1: LevelBasedForaging alone.
#   both in one time step: Connector. An agent that can still move has 1, one that is connected or blocked has 0.
# So any(discount == 0) takes the limit of Connector for the death of all, and all(discount == 0) for a truncation of all.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet jumanji==1.1.2 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import warnings

warnings.simplefilter("ignore")
import jax
import jumanji
import numpy as np

LIMIT, EPISODES = 5, 60

def legal(spec, mask, rng):
    """Draw an action: its parts have separate masks, a joint one, or none."""
    if not hasattr(spec, "num_values"):
        return spec.generate_value()
    counts = np.asarray(spec.num_values)
    if mask is not None and mask.size == counts.sum():
        parts = np.split(mask.reshape(-1), np.cumsum(counts.reshape(-1))[:-1])
        drawn = [rng.choice(np.flatnonzero(part)) if part.any() else 0 for part in parts]
    elif mask is not None:
        drawn = rng.permutation(np.argwhere(mask))[0]
    else:
        drawn = rng.integers(0, counts)
    return np.asarray(drawn, np.int32).reshape(counts.shape)

def at_the_limit(name):
    env = jumanji.make(name, time_limit=LIMIT)
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    for seed in range(EPISODES):
        (state, at), rng, count = reset(jax.random.key(seed)), np.random.default_rng(seed), 0
        while not at.last():
            mask = getattr(at.observation, "action_mask", None)
            state, at = step(state, legal(env.action_spec, None if mask is None else np.asarray(mask), rng))
            count += 1
        if count == LIMIT:
            return np.asarray(at.discount).tolist(), any("step" in field for field in at.observation._fields)
    raise AssertionError(f"{name}: no episode lasted {LIMIT} steps")

expected = dict.fromkeys("Cleaner-v0 Maze-v0 MMST-v0 PacMan-v1 RobotWarehouse-v0 RubiksCube-v0 SlidingTilePuzzle-v0 Snake-v1 Tetris-v0".split(), 0.0)
expected |= {"SearchAndRescue-v0": [0.0, 0.0], "LevelBasedForaging-v0": [1.0, 1.0]}
for name in (*expected, "Connector-v3"):
    discount, observed = at_the_limit(name)
    print(f"{name}: discount {discount}, number of steps {'' if observed else 'not '}observed")
    assert observed == (name != "PacMan-v1")
    assert set(discount) == {0.0, 1.0} if name == "Connector-v3" else discount == expected[name]
print("as described")
PYTHON
