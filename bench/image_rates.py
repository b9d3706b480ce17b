#!/usr/bin/env python3
"""How many updates agents make in a second that learn from images, in other libraries and in ours.

    python bench/image_rates.py [--tasks dqn_image sac_image ...] [--systems script ...] [--threads 1 2]

The rounds and the environments are those of `model_free_peers.py`. With discrete actions all systems have the
convolutions of Mnih et al. 2015, one layer of 512 above them, batches of 32 (PPO: 256) and four gray frames of 84 x
84. With continuous actions they have the convolutions and the trunk of DrQ-v2, two layers of 256 and batches of 256,
without augmentation. Those of `sac_nature` and `td3_nature` have the convolutions of Mnih et al. and no trunk. In the
scripts, as in ours, actor and critics share the convolutions, which see each image once. Stable-Baselines3 shares
nothing, and has a layer of 512 above the convolutions of Mnih et al. for all its tasks, its defaults. Tianshou and
TorchRL share them in PPO alone, as in their examples. With one thread, time is that of the process, so that what else
runs on the machine counts less.

Rainbow's windows have four rows in ours, three transitions each. So 32 of them have as many transitions, 96, as a batch
of Tianshou here. Both replays are uniform.

SAC-AE has its published settings, and batches of 128 images of 84 x 84 x 9. Its authors' code is in no package index:
it is measured if a clone of github.com/denisyarats/pytorch_sac_ae is on Python's path.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from model_free_peers import OURS, System, compare
from model_free_peers import SYSTEMS as LIVED
from peers.rates import IMAGE_TASKS

TASKS = tuple(IMAGE_TASKS)
OF_AUTHORS = ("sac_ae",) if find_spec("sac_ae") else ()
OF_TIANSHOU = tuple(x for x in TASKS if x != "sac_ae")
OF_SCRIPTS = tuple(x for x in OF_TIANSHOU if not x.startswith(("c51", "rainbow", "iqn")))
SB3, D3RLPY, TIANSHOU, TORCHRL = (LIVED[name] for name in ("sb3", "d3rlpy", "tianshou", "torchrl"))
SYSTEMS = {
    OURS: System("reverie", TASKS, script="reverie"),
    "script": System(
        "plain script", OF_SCRIPTS, script="script",
        note="in the style of CleanRL: `bench/peers/rates_script_images.py`",
    ),
    "compiled": System(
        "plain script, compiled", OF_SCRIPTS, script="script", variant="compiled",
        note="with torch.compile around each loss, forward and backward",
    ),
    "sb3": System(
        SB3.title, tuple(x for x in TASKS if x.startswith(("dqn", "qr_dqn", "ppo")) or x.endswith("nature")),
        SB3.environment, SB3.packages, SB3.script, note="its CnnPolicy",
    ),
    "d3rlpy": System(
        D3RLPY.title, tuple(x for x in TASKS if x.startswith(("dqn", "qr_dqn", "discrete_cql", "bc"))),
        D3RLPY.environment, D3RLPY.packages, D3RLPY.script, note="its PixelEncoderFactory",
    ),
    "tianshou": System(
        TIANSHOU.title, OF_TIANSHOU, TIANSHOU.environment, TIANSHOU.packages, TIANSHOU.script,
        note="its own networks; IQN with eight quantiles each; for SAC and TD3, modules of the plain script",
    ),
    "torchrl": System(
        TORCHRL.title, tuple(x for x in OF_SCRIPTS if not x.startswith(("qr_dqn", "discrete_cql"))),
        TORCHRL.environment, TORCHRL.packages, TORCHRL.script,
        note="its ConvNet; for SAC and TD3, modules of the plain script",
    ),
    "authors": System("authors' code", OF_AUTHORS, script="sac_ae", note="denisyarats/pytorch_sac_ae, 7fa560e"),
}  # fmt: skip


def main() -> int:
    """Install, measure, write and show."""
    return compare(__doc__, TASKS, SYSTEMS, Path(__file__).with_suffix(".json"))


if __name__ == "__main__":
    sys.exit(main())
