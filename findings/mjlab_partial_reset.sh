#!/bin/sh
# mjlab 1.6.0: a reset of one environment shows the others with new noise, unless observations have a history.
#
# With cfg.auto_reset=False a loop calls reset(env_ids=...) for the environments whose episodes have ended, and gets
# the observations of all environments.
#
# Guess, written down first: the others are shown as the step before has shown them, since their states are the same.
#
# Seen, in three environments of Mjlab-Cartpole-Balance with uniform noise on all observations, after a reset of the
# first one:
#   history_length 0, the default: the two others have other numbers than in the step, which were drawn again.
#   history_length 1 or 2: the two others are bit for bit as in the step. A history of one frame shows as many numbers
#   as none, and differs in this alone.
# So a loop that acts on what reset returns stores observations on which it has not acted, in environments that go on.
# A loop takes the rows of the reset environments alone, and the others from the step.
#
# Without a GPU the simulator is compiled for the processor first: minutes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet mjlab==1.6.0 mujoco==3.11.0 mujoco-warp==3.11.0 warp-lang==1.19.0 \
	torch==2.14.1 numpy==2.4.6
WARP_CACHE_PATH="$folder/warp" CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" - <<'PYTHON'
import contextlib
import io

import torch

with contextlib.redirect_stdout(io.StringIO()):  # tables of what each environment consists of
    import mjlab.tasks  # registers the tasks
    from mjlab.envs import ManagerBasedRlEnv
    from mjlab.tasks.registry import load_env_cfg
    from mjlab.utils.noise import UniformNoiseCfg


def unchanged(history):
    """Return which of three environments a reset of the first one shows as the step before did."""
    cfg = load_env_cfg("Mjlab-Cartpole-Balance")
    cfg.scene.num_envs, cfg.auto_reset = 3, False
    for group in cfg.observations.values():
        group.enable_corruption = True
        for term in group.terms.values():
            term.noise = UniformNoiseCfg(n_min=-0.1, n_max=0.1)
            term.history_length = history
    with contextlib.redirect_stdout(io.StringIO()):
        env = ManagerBasedRlEnv(cfg, device="cpu")
        env.reset(seed=0)
        shown = env.step(torch.zeros(3, 1))[0]["actor"].clone()
        again = env.reset(env_ids=torch.tensor([0]))[0]["actor"]
    return again.shape[1], (shown == again).all(1).tolist()


seen = {history: unchanged(history) for history in (0, 1, 2)}
print(seen)
assert seen == {0: (5, [False] * 3), 1: (5, [False, True, True]), 2: (10, [False, True, True])}
PYTHON
