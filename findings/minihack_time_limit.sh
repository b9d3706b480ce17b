#!/bin/sh
# MiniHack 1.0.2 with NLE 1.3.0 and Gymnasium 1.2.0: the time limit of an episode is reported as its termination.
#
# Guess: a package for Gymnasium reports its limit as truncated, the registered spec names it, and the last observation
# is the state in which the limit was reached, from which a learner can bootstrap.
# Seen: spec.max_episode_steps is None although the environment has a limit of 100 steps. Its step 100 returns
# terminated=True, truncated=False; only info["end_status"] = -1 (aborted) tells it from a death. The last observation
# is empty, since the game was quit before it was read: a learner that corrects the flag needs the one before.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet minihack==1.0.2 nle==1.3.0 gymnasium==1.2.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import gymnasium
import minihack  # noqa: F401

env = gymnasium.make("MiniHack-Room-5x5-v0", disable_env_checker=True)
before, _ = env.reset(seed=1)
for count in range(1, 1000):
    glyphs = before["blstats"].copy(), len(set(before["glyphs"].flat))
    before, reward, terminated, truncated, info = env.step(0)  # north, into the wall in the end
    if terminated or truncated:
        break
seen = {
    "limit of the spec": env.spec.max_episode_steps, "steps": count, "terminated": terminated, "truncated": truncated,
    "end_status": int(info["end_status"]), "status line is 0 at the end": not before["blstats"].any(),
    "status line is 0 before": not glyphs[0].any(), "kinds of glyphs at the end": len(set(before["glyphs"].flat)),
    "several kinds before": glyphs[1] > 1,
}
print(seen)
assert seen == {
    "limit of the spec": None, "steps": 100, "terminated": True, "truncated": False, "end_status": -1,
    "status line is 0 at the end": True, "status line is 0 before": False, "kinds of glyphs at the end": 1,
    "several kinds before": True,
}
PYTHON
