"""reverie on a GPU, for the tasks of `gpu_script.py`: replay, update and feedback as its loop calls them, and its loop.

    python gpu_reverie.py TASK ... --variant captured --device cuda --seconds 3

`update_s` is with rows on the GPU (``replay.device``), `update_host_s` with rows of the host, as by default. `plain`
captures nothing. In loops, `on_device` puts the replay's rows on the GPU.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gate import wait_for_turn
from gpu_timing import (
    IMAGE_BATCH,
    ROLLOUTS,
    LoopClock,
    Task,
    check_learned,
    main,
    make_breakout,
    make_cheetah,
    random_rows,
)
from rates import BATCH, RATE, UNITS, Experience
from rates_reverie import SEEN, acts, rows_of
from torch import Tensor

import reverie
from reverie.algos.table import algorithm_config
from reverie.core.hardware import choose_device, keep_freed_memory
from reverie.core.specs import ObsPart
from reverie.core.types import FLAGS
from reverie.replay.build import build_replay
from reverie.replay.config import ReplayConfig
from reverie.replay.sources import prefetch

PICTURES = {"observation": ObsPart(kind="image", shape=(84, 84, 4), dtype="uint8")}


def settings(task: Task) -> dict[str, Any]:
    """The settings of the algorithm that all systems have alike."""
    shared: dict[str, Any] = {"graph": task.variant != "plain"}
    images = {"networks.units": (512,), "networks.encoder": "nature"}
    if task.name.startswith("ppo"):
        s = task.sizes.continuous if task.name == "ppo_continuous" else task.sizes.atari
        shared |= {"rollout": s.steps, "batch_size": s.minibatch, "epochs": s.epochs, "clip_range": s.clip}
        shared |= {"entropy_coef": s.entropy, "lr": s.rate}
        above = {"networks.share_encoder": True, "networks.activation": "relu"}
        return shared if task.name == "ppo_continuous" else shared | images | above
    if task.name.startswith("dqn"):
        shared |= {"lr": RATE}
    if task.name == "dqn_atari":
        return shared | images | {"batch_size": IMAGE_BATCH}
    return shared | {"networks.units": tuple(UNITS), "batch_size": BATCH}


def build(task: Task) -> Any:
    """The learner."""
    images = task.name.endswith("atari")
    config: Any = algorithm_config(task.name.partition("_")[0])().merge(settings(task))
    seen = PICTURES if images else SEEN
    return config.build(seen, acts(images or task.name == "dqn"), choose_device(task.device.type))


def noise(task: Task, count: int) -> dict[str, np.ndarray]:
    """Rows of one environment, ``[1, count, ...]``, in reverie's convention."""
    kind = "dqn_atari" if task.name.endswith("atari") else task.name
    rows = random_rows(kind, count)
    obs = rows["obs"].transpose(0, 2, 3, 1) if kind == "dqn_atari" else rows["obs"]
    never = np.zeros(count, bool)
    return rows_of(Experience(obs[:-1], rows["action"], rows["reward"], obs[1:], rows["end"], never))


def trained(learner: Any) -> list[Tensor]:
    """The parameters that an optimizer changes."""
    return [p for optim in learner.optimizers().values() for p in optim.params]


def updates(task: Task, learner: Any, rows: dict[str, np.ndarray], device: str) -> Callable[[], None]:
    """Samples from a filled replay on this device, and learns."""
    images, count = task.name.endswith("atari"), rows["reward"].shape[1]
    replay = build_replay(
        ReplayConfig(capacity=count, device=device), obs_spec=PICTURES if images else SEEN,
        action_spec=acts(images or task.name == "dqn"), extra_spec=learner.extra_spec, num_envs=1,
        window=learner.window, seed=0,
    )  # fmt: skip
    replay.annotator = learner.annotator
    replay.extend(rows)
    source = prefetch(replay, task.device)
    replay.shares_batch = learner.graph and source is replay  # as a run does

    def update() -> None:
        batch = source.sample()
        source.feedback(batch.index, learner.update(batch))

    return update


def measure_replay(task: Task) -> dict[str, Any]:
    """Updates from rows on the device, and from rows of the host."""
    started = time.perf_counter()
    learner, rows = build(task), noise(task, task.sizes.image_rows if task.name == "dqn_atari" else task.sizes.rows)
    before = [x.detach().clone() for x in trained(learner)]
    update = updates(task, learner, rows, task.device.type)
    keep_freed_memory()
    update()
    task.wait()
    result = {"first_update_s": time.perf_counter() - started} | task.time_updates(update)
    result |= task.time_updates(updates(task, build(task), rows, "cpu"), "update_host")
    check_learned(before, trained(learner))
    return result


def measure_ppo(task: Task) -> dict[str, Any]:
    """Updates of minibatches, and of whole rollouts, with their advantages and their way from the host."""
    started = time.perf_counter()
    learner, s = build(task), task.sizes.atari if task.name == "ppo_atari" else task.sizes.continuous
    before = [x.detach().clone() for x in trained(learner)]
    images = task.name == "ppo_atari"
    replay: Any = build_replay(
        ReplayConfig(), obs_spec=PICTURES if images else SEEN, action_spec=acts(images), extra_spec={}, num_envs=s.envs,
        window=learner.window, seed=0,
    )  # fmt: skip
    flat = noise(task, s.envs * s.steps)
    rows = {name: column.reshape(s.envs, s.steps, *column.shape[2:]) for name, column in flat.items()}
    first = {name: torch.from_numpy(column[:, 0].copy()) for name, column in rows.items()}
    latest = {"obs": {"observation": first["obs/observation"]}} | {k: first[k] for k in ("reward", *FLAGS)}
    replay.prepare_fn, replay.next_row_fn = learner.prepare_rollout, lambda: SimpleNamespace(**latest)
    replay = prefetch(replay, task.device)
    keep_freed_memory()

    def update() -> None:
        batch = replay.sample()
        replay.feedback(batch.index, learner.update(batch))

    wait_for_turn()
    minibatches, rollouts, singles, firsts = [], [], [], 0.0
    begun = time.perf_counter()
    while len(rollouts) < 9 or time.perf_counter() - begun < task.seconds:
        replay.extend(rows)
        task.wait()
        began = time.perf_counter()
        update()
        task.wait()
        middle, count = time.perf_counter(), len(replay)
        firsts = firsts or middle - started
        for _ in range(count):
            if len(rollouts) % 3 == 2:
                singles.append(task.time_singly(update, 1))
            else:
                update()
        task.wait()
        now = time.perf_counter()
        rollouts.append(now - began)
        if len(rollouts) % 3:
            minibatches.append((now - middle) / count)
    check_learned(before, trained(learner))
    return {
        "first_update_s": firsts, "update_s": statistics.median(minibatches[2:]),
        "update_synced_s": statistics.median(singles), "rollout_update_s": statistics.median(rollouts[4:]),
    }  # fmt: skip


class Stopper(reverie.Callback):
    """Ends the run once its time is over."""

    def __init__(self, task: Task, warm: int) -> None:
        self.clock, self.started, self.first = LoopClock(task, warm), time.perf_counter(), 0.0

    def on_log(self, run: Any, values: Mapping[str, float]) -> None:
        """Look at the clock."""
        if run.updates and not self.first:
            self.first = time.perf_counter() - self.started
        if self.clock.is_over(run.env_steps, 1):
            run.stop("measured")


def measure_loop(task: Task) -> dict[str, Any]:
    """A run with everything that it writes by default: rows, logs, TensorBoard's too, a checkpoint; no evaluation."""
    s, images = task.sizes, task.name == "ppo_atari_loop"
    algorithm = task.name.partition("_")[0]
    common: dict[str, Any] = {f"algo.{name}": value for name, value in settings(task).items()}
    common |= {"device": task.device.type, "eval_episodes": 0, "console": False, "steps": 100_000_000}
    if images:
        batch = s.atari.envs * s.atari.steps
        stopper, name = Stopper(task, 4 * batch), "Breakout"
        common |= {"env": make_breakout, "envs": s.atari.envs, "env.vectorization": "native"}
        common |= {"env.clip_reward": "sign"}
        common |= {"schedule.log_every": 2 * batch}
    else:
        env, name = make_cheetah()
        stopper = Stopper(task, s.start + s.warm)
        common |= {
            "env": lambda: env,
            "learning_starts": s.start,
            "random_steps": s.start,
            "schedule.log_every": "0.5s",
        }
        common |= {
            "replay.capacity": s.rows,
            "replay.device": task.device.type if task.variant == "on_device" else "cpu",
        }
    with tempfile.TemporaryDirectory() as folder:
        reverie.train(algorithm, run=Path(folder) / "run", callbacks=[stopper], **common)
    return {"env": name, "env_steps_per_s": stopper.clock.steps_per_s, "first_update_s": stopper.first}


def measure(task: Task) -> dict[str, Any]:
    """One task."""
    if task.name.endswith("_loop"):
        return measure_loop(task)
    return measure_ppo(task) if task.name in ROLLOUTS else measure_replay(task)


if __name__ == "__main__":
    main(measure, ("captured", "plain", "on_device"))
