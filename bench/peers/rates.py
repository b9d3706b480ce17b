"""What the scripts of model-free peers share: sizes, experience, and one way to time updates and steps.

Imported inside of the peers' own environments, so it knows nothing but torch and NumPy, and Gymnasium where there is
one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import torch

OBS, ACTIONS, CHOICES, QUANTILES = 17, 6, 4, 200
UNITS, BATCH = [256, 256], 256
ROWS, EPISODE = 100_000, 1000
DISCOUNT, TAU, RATE, COPY_EVERY = 0.99, 0.005, 3e-4, 1000
NOISE, CLIP, DELAY = 0.2, 0.5, 2
OFFLINE = (
    "bc", "td3_bc", "rebrac", "bcq", "cql", "iql", "crr", "fql", "qc_fql", "decision_transformer", "discrete_bcq",
    "discrete_cql", "discrete_crr",
)  # fmt: skip
DISCRETE = ("dqn", "qr_dqn", "discrete_bcq", "discrete_cql", "discrete_crr")
GOALS = ("gcivl", "hiql")
CRITICS = ("tqc", "crossq", "simba", "redq", "droq", "simba_v2", "xqc")
"""Variants of SAC with other critics, with the sizes of their papers."""
TASKS = ("td3", "sac", "ddpg", "dqn", "qr_dqn", *CRITICS, "loop")
"""What is measured: updates of twelve algorithms, and TD3's whole loop on HalfCheetah-v5; and of those of `OFFLINE`."""

START, WARM_UP = 1000, 200
"""Steps of random actions at first, and steps that learn before the time of steps counts."""


class ImageTask(NamedTuple):
    """Updates on images."""

    algorithm: str
    side: int
    """Height and width, in pixels."""
    channels: int
    encoder: str
    """Convolutions of every system: of Mnih et al. 2015 (nature), or of Yarats et al. 2022 (drq)."""
    batch: int
    """Transitions of an update."""


IMAGE_TASKS = {
    "dqn_image": ImageTask("dqn", 84, 4, "nature", 32),
    "qr_dqn_image": ImageTask("qr_dqn", 84, 4, "nature", 32),
    "c51_image": ImageTask("c51", 84, 4, "nature", 32),
    "rainbow_image": ImageTask("rainbow", 84, 4, "nature", 96),
    "iqn_image": ImageTask("iqn", 84, 4, "nature", 32),
    "discrete_cql_image": ImageTask("discrete_cql", 84, 4, "nature", 32),
    "bc_image": ImageTask("bc", 84, 4, "nature", 32),
    "sac_image": ImageTask("sac", 84, 3, "drq", 256),
    "td3_image": ImageTask("td3", 84, 3, "drq", 256),
    "sac_nature": ImageTask("sac", 84, 3, "nature", 256),
    "td3_nature": ImageTask("td3", 84, 3, "nature", 256),
    "sac_image_96": ImageTask("sac", 96, 3, "drq", 256),
    "td3_image_96": ImageTask("td3", 96, 3, "drq", 256),
    "sac_ae": ImageTask("sac_ae", 84, 9, "drq", 128),
    "ppo_image": ImageTask("ppo", 84, 4, "nature", 256),
}
"""Updates on images; discrete actions have one layer of 512 above the convolutions, continuous ones two of 256."""
ENVS, ROLLOUT, EPOCHS = 8, 128, 4
"""Of PPO, as in Stable-Baselines3's settings for Atari."""
IMAGE_ROWS = 4000
"""Rows of their replays."""


class Sequences(NamedTuple):
    """Work of Decision Transformer, with the settings of the paper for MuJoCo."""

    batch: int = 64
    rows: int = 20
    """Rows of a sequence that are learned from."""
    units: int = 128
    layers: int = 3
    heads: int = 1
    lr: float = 1e-4
    max_grad_norm: float = 0.25
    scale: float = 1000.0
    """Returns-to-go are divided by this."""


SEQUENCE = Sequences()
CHUNK = 5
"""Actions in a chunk of QC-FQL."""

Update = Callable[[], int]
"""Samples and learns; how many updates these were."""


@dataclass(frozen=True)
class Experience:
    """Noise as transitions, in episodes of a fixed length that end by a time limit and by themselves in turn."""

    obs: np.ndarray
    """``[ROWS, OBS]`` float32."""
    action: np.ndarray
    """``[ROWS, ACTIONS]`` float32 in [-1, 1], or ``[ROWS]`` int64."""
    reward: np.ndarray
    """``[ROWS]`` float32."""
    next_obs: np.ndarray
    """``[ROWS, OBS]`` float32."""
    terminated: np.ndarray
    """``[ROWS]`` bool."""
    truncated: np.ndarray
    """``[ROWS]`` bool."""


def experience(task: str) -> Experience:
    """As many transitions as a replay holds."""
    noise = np.random.default_rng(0)
    obs = noise.normal(size=(ROWS + 1, OBS)).astype(np.float32)
    if task in DISCRETE:
        action = noise.integers(0, CHOICES, ROWS)
    else:
        action = noise.uniform(-1, 1, (ROWS, ACTIONS)).astype(np.float32)
    number = np.arange(1, ROWS + 1)
    last, even = number % EPISODE == 0, number // EPISODE % 2 == 0
    reward = noise.normal(size=ROWS).astype(np.float32)
    return Experience(obs[:-1], action, reward, obs[1:], terminated=last & even, truncated=last & ~even)


def image_experience(task: ImageTask) -> Experience:
    """Noise as transitions between images: obs are ``[rows, side, side, channels]`` uint8."""
    noise = np.random.default_rng(0)
    obs = noise.integers(0, 256, (IMAGE_ROWS + 1, task.side, task.side, task.channels), dtype=np.uint8)
    if task.channels == 4:
        action = noise.integers(0, CHOICES, IMAGE_ROWS)
    else:
        action = noise.uniform(-1, 1, (IMAGE_ROWS, ACTIONS)).astype(np.float32)
    number = np.arange(1, IMAGE_ROWS + 1)
    last, even = number % EPISODE == 0, number // EPISODE % 2 == 0
    reward = noise.normal(size=IMAGE_ROWS).astype(np.float32)
    return Experience(obs[:-1], action, reward, obs[1:], terminated=last & even, truncated=last & ~even)


def returns_to_go(rows: Experience) -> np.ndarray:
    """The sums of rewards until the end of each episode, scaled: ``[ROWS]`` float32."""
    sums = rows.reward.reshape(-1, EPISODE)[:, ::-1].cumsum(1)[:, ::-1]
    return (sums / SEQUENCE.scale).reshape(-1).astype(np.float32)


def repeated(call: Callable[[], object]) -> Update:
    """An update that is one call."""

    def update() -> int:
        call()
        return 1

    return update


def updates_per_second(
    update: Update, seconds: float, clock: Callable[[], float] = time.perf_counter, warm_up: int = 10
) -> float:
    """How many there are in so many seconds, once it is warm: our TD3 records its updates during the first eight."""
    _count(update, min(1.0, seconds / 3), warm_up, clock)
    started = clock()
    return _count(update, seconds, 5, clock) / (clock() - started)


def _count(update: Update, seconds: float, least: int, clock: Callable[[], float]) -> int:
    """The updates of so many seconds, and so many at least."""
    started, done = clock(), 0
    while done < least or clock() - started < seconds:
        done += update()
    return done


# ---------------------------------------------------------------- steps


def spaces(task: str) -> tuple[Any, Any]:
    """Gymnasium's spaces of observations and actions."""
    from gymnasium.spaces import Box, Discrete

    seen = Box(-np.inf, np.inf, (OBS,), np.float32)
    return seen, Discrete(CHOICES) if task in DISCRETE else Box(-1, 1, (ACTIONS,), np.float32)


def cheetah(moments: list[float]) -> Any:
    """HalfCheetah-v5, which notes in ``moments`` when each step was taken."""
    import gymnasium

    class Clocked(gymnasium.Wrapper):
        def step(self, action: Any) -> Any:
            moments.append(time.perf_counter())
            return self.env.step(action)

    return Clocked(gymnasium.make("HalfCheetah-v5"))


def steps_per_second(moments: list[float]) -> float:
    """Between the end of the warm-up and the last step."""
    counted = moments[START + WARM_UP :]
    return (len(counted) - 1) / (counted[-1] - counted[0])


Loop = Callable[[Any, int], None]
"""Trains TD3 in an environment for so many steps, an update after each but the first `START`."""


# ---------------------------------------------------------------- one process


def main(
    build: Callable[[str, str], Update],
    loop: Loop | None = None,
    packages: tuple[str, ...] = (),
    warm_up: int = 10,
) -> None:
    """Time one task and print one line of JSON, the only thing on standard output; the rest goes to standard error.

    ``build(task, variant)`` makes a learner with a filled replay, whose first ``warm_up`` updates are not timed.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=(*TASKS, *OFFLINE, *GOALS, *IMAGE_TASKS))
    parser.add_argument("--variant", default="")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="of updates")
    parser.add_argument("--steps", type=int, default=2000, help="of the loop, after its warm-up")
    args = parser.parse_args()
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints
    sys.stdout = sys.stderr
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  # what several peers draw from
    began, mine, worked = time.perf_counter(), time.process_time(), busy()
    result = _steps(loop, args.steps) if args.task == "loop" else _updates(build, args, warm_up)
    others = (busy() - worked - (time.process_time() - mine)) / (time.perf_counter() - began)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    used = {name: version(name) for name in ("torch", "numpy", *packages)}
    said = {**result, "others_cores": max(0.0, others), "peak_gb": memory, "versions": used}
    print(json.dumps(said), file=answer, flush=True)


def busy() -> float:
    """Seconds for which all cores have worked, for whomever; 0 where the system does not say."""
    if not os.path.exists("/proc/stat"):
        return 0.0
    with open("/proc/stat") as lines:
        user, nice, system, _, _, irq, soft, steal, *_ = map(int, next(lines).split()[1:])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _updates(build: Callable[[str, str], Update], args: argparse.Namespace, warm_up: int) -> Mapping[str, float]:
    started = time.perf_counter()
    update = build(args.task, args.variant)
    update()
    first = time.perf_counter() - started
    alone = args.task != "loop" and args.threads == 1
    clock = time.process_time if alone else time.perf_counter
    return {"first_s": first, "per_s": updates_per_second(update, args.seconds, clock, warm_up)}


def _steps(loop: Loop | None, steps: int) -> Mapping[str, float]:
    assert loop is not None, "no loop"
    moments: list[float] = []
    started = time.perf_counter()
    env = cheetah(moments)
    loop(env, START + WARM_UP + steps)
    return {"first_s": moments[0] - started, "per_s": steps_per_second(moments)}
