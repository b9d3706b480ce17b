"""Whole runs on a pretended GPU learn what they learn on the CPU: with captured updates, and rows and batches there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from safetensors.torch import load_file

import reverie
from device_vectors import SPACE, TorchCycle
from dreamer_configs import TINY
from fake_cuda import CUDA, FakeCuda, fake_cuda
from reverie.core.columns import ColumnSpec
from reverie.core.hardware import with_number
from reverie.core.tree import flatten_named
from reverie.core.types import Window
from reverie.envs.config import EnvConfig
from reverie.envs.slot_vector_env import make_vector_env
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.config import ReplayConfig
from reverie.replay.sources import MixedSource, prefetch
from reverie.replay.storage import Storage, storage_on
from reverie.run.checkpoint import Checkpoints
from reverie.run.collect import EnvCollector
from tiny_configs import SETTINGS

LIVED = {k: v for k, v in SETTINGS.items() if k != "algo"} | {
    "steps": 60, "learning_starts": 20, "random_steps": 10, "replay_ratio": 0.25,
    "algo.batch_size": 4, "algo.batch_length": 3, "algo.networks.units": (8,),
}  # fmt: skip
RECORDED = {
    "eval_episodes": 1, "tensorboard": False, "console": False, "updates": 6, "data.estimate_updates": 4,
    "algo.batch_size": 4, "algo.batch_length": 2, "algo.networks.units": (8,),
}  # fmt: skip
SCALED = {
    "algo.normalize_obs": "running",
    "algo.reward_scale": "return_std",
    "algo.frame_stack": 2,
    "algo.frame_stack_keys": ".*",
}
PRIORITIES = {"replay.fractions.uniform": 0.0, "replay.fractions.priority": 1.0}
PUSHED, CHOSEN = LIVED | {"env": "reverie/Match-v0"}, LIVED | {"env": "reverie/Count-v0"}
RUNS: dict[str, dict[str, Any]] = {
    "td3": PUSHED | SCALED | {"algo.actor_lr": 3e-4, "algo.critic_lr": 3e-4},
    "dqn": CHOSEN | PRIORITIES | {"algo.value_estimator": "n_step(2)"},
    "dreamer_v3": SETTINGS | {"preset": "dreamer_v3", "env": "reverie/Count-v0", "replay_ratio": 0.3,
                              "steps": 80, "learning_starts": 50, "schedule.report_every": 60},
    "ppo": {k: v for k, v in SETTINGS.items() if k not in ("algo", "replay", "learning_starts", "replay_ratio")} | {
        "env": "reverie/Match-v0", "steps": 96, "algo.rollout": 16, "algo.batch_size": 8, "algo.epochs": 3,
        "algo.networks.units": (8,), "env.num": 2, "algo.lr": 3e-4,
    },
    "muzero": {k: v for k, v in SETTINGS.items() if k != "algo"} | {
        "env": "reverie/Count-v0", "steps": 60, "learning_starts": 20, "replay_ratio": 0.25, "env.num": 2,
        "algo.batch_size": 4, "algo.batch_length": 5, "algo.unroll": 2, "algo.value_estimator": "n_step(3)",
        "algo.networks.units": (8,), "algo.networks.encoder_units": (8,), "algo.networks.latent": 8,
        "algo.num_simulations": 4, "algo.reanalyze_interval": 4,
    },
    "bcq": RECORDED | {"algo.vae.units": (8,), "algo.lr": 3e-4},
}  # fmt: skip
WAIT = {
    "kernels/policy_graphs.py:act_captured", "algos/bcq.py:act", "algos/dreamer.py:act", "algos/planner.py:act",
    "core/columns.py:as_numpy",
}  # fmt: skip
"""What waits for the device whenever environments are stepped: for actions, and for what is stored beside them."""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """The device; what is compiled for CPUs is left out, so that they do the same there."""
    monkeypatch.setattr("reverie.kernels.ctypes_call.load_kernels", lambda: None)
    monkeypatch.setattr("reverie.kernels.gpu.triton_problem", lambda *_: "it has no processors")
    with fake_cuda(monkeypatch) as device:
        yield device


def train(algorithm: str, device: str, run: Path, **more: Any) -> dict[str, torch.Tensor]:
    """What the last checkpoint of a run holds; those of model-free learners that explore were stopped and went on."""
    given = (
        RUNS[algorithm]
        | {
            "threads": 1,
            "device": device,
            "run": run,
        }
        | more
    )
    reverie.train(algorithm, **given)
    if algorithm in ("td3", "dqn"):
        reverie.train(algorithm, **given | {"steps": int(1.2 * given["steps"])})
    saved = load_file(Checkpoints(run / "checkpoints").latest() / "tensors.safetensors")
    return {name: x for name, x in saved.items() if not name.startswith(("random/", "collector/unlogged/"))}


@pytest.mark.parametrize("algorithm", RUNS)
def test_a_run_on_a_gpu_is_the_run_on_the_cpu(algorithm, tmp_path, gpu, pendulum):
    data = {"data": str(pendulum), "env": "none"} if algorithm == "bcq" else {}
    there = {"replay.device": "cuda:0"} if "learning_starts" in RUNS[algorithm] else {}
    one = train(algorithm, "cpu", tmp_path / "cpu", **data)
    assert not gpu.waits
    two = train(algorithm, "cuda:0", tmp_path / "gpu", **data, **there)
    assert gpu.replays > 0
    rounded = {"rtol": 1e-3, "atol": 1e-5} if algorithm == "dreamer_v3" else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(two, one, **rounded)  # some products of world models are written differently there


@pytest.mark.parametrize("algorithm", ["dqn", "dreamer_v3"])
def test_windows_of_rows_on_the_gpu_are_learned_from_where_they_are_gathered(algorithm, tmp_path, gpu, monkeypatch):
    """Even those drawn by priority, and of a learner that is captured on GPUs alone: a replay follows no copy."""
    copied = Mock()
    monkeypatch.setattr("reverie.kernels.buffers.InputBuffers.__call__", copied)
    train(algorithm, "cuda:0", tmp_path / "run", **{"replay.device": "cuda:0"})
    assert gpu.replays > 0
    copied.assert_not_called()
    assert with_number(torch.device("cuda")) == CUDA  # what learners call it, and what tensors do


@pytest.mark.parametrize(
    ("algorithm", "precision"),
    [("td3", "float32"), ("td3", "float16"), ("dreamer_v3", "float32"), ("muzero", "float32")],
)
def test_nobody_waits_but_for_actions_and_what_is_stored(algorithm, precision, tmp_path, gpu):
    """Rows lie in this computer's memory: batches come on a stream of their own, and what is fed back arrives late."""
    more = {"schedule.log_every": 10**6, "eval_episodes": 0, "algo.precision": precision}
    counted = []
    for steps in (60, 90):
        gpu.waits.clear()
        reverie.train(algorithm, **RUNS[algorithm] | more | {
            "threads": 1, "device": "cuda:0", "run": tmp_path / str(steps), "steps": steps,
        })  # fmt: skip
        counted.append(gpu.waits.copy())
    grown = {place for place in counted[1] if counted[1][place] > counted[0][place]}
    assert grown  # actions are waited for, so waits are counted
    assert grown <= WAIT
    assert gpu.replays > 0


def replay_of(storage: Storage) -> ReplayBuffer:
    window = Window(batch=2, length=2, crosses_episodes=True)
    replay = ReplayBuffer(storage, window, seed=0, config=ReplayConfig(online_queue=False))
    flags = dict.fromkeys(("is_first", "is_last", "is_terminal"), np.zeros((1, 9), bool))
    replay.extend(flags | {"reward": np.arange(9, dtype=np.float32)[None], "action": np.zeros((1, 9, 1), np.float32)})
    return replay


@pytest.mark.parametrize("lived", ["cpu", "cuda:0"])
@pytest.mark.parametrize("learner", ["cpu", "cuda:0"])
def test_recorded_and_collected_windows_meet_wherever_their_rows_are(lived, learner, gpu):
    columns = {"action": ColumnSpec((1,), "float32"), "reward": ColumnSpec((), "float32")}
    columns |= {name: ColumnSpec((), "bool") for name in ("is_first", "is_last", "is_terminal")}
    two = [replay_of(storage_on(device, columns, 1, 9)) for device in ("cpu", lived)]
    found = MixedSource(*(prefetch(replay, torch.device(learner)) for replay in two)).sample()
    there = "cuda" if "cuda:0" in (lived, learner) else "cpu"
    assert {x.device.type for x in (found.action, found.reward, found.is_last, found.weight)} == {there}
    assert found.index.device.type == "cpu"
    alike = replay_of(storage_on("cpu", columns, 1, 9)).sample()
    assert found.reward.tolist() == [*alike.reward.tolist()] * 2
    assert found.index.tolist() == [*alike.index.tolist()] * 2


class CycleThere(TorchCycle):
    """The cycle with its rows on the device."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.device = CUDA

    def reset(self, **options: Any) -> Any:
        obs, info = super().reset(**options)
        return obs.to(CUDA, non_blocking=True), info

    def step(self, action: torch.Tensor) -> Any:
        *values, info = super().step(torch.zeros(self.num_envs, dtype=torch.int64))
        return (*(x.to(CUDA, non_blocking=True) for x in values), info)


@pytest.mark.parametrize(
    "own",
    [
        {"algo.normalize_obs": "running", "algo.reward_scale": "return_std"},
        {"algo.networks.memory": "gru(8)", "algo.batch_length": 8},
    ],
)
def test_environments_on_the_device_are_waited_for_once_for_each_rollout(own, tmp_path, gpu):
    given = {
        "env.num": 4, "env.vectorization": "native", "algo.rollout": 16, "algo.batch_size": 32, "algo.epochs": 2,
        "algo.lr": 3e-4, "algo.clip_range": 0.2, "eval_episodes": 0, "threads": 1, "console": False,
        "tensorboard": False,
    }  # fmt: skip
    result = reverie.train("ppo", env=CycleThere, run=tmp_path / "run", steps=200, device="cuda:0", **given | own)
    rollouts = result.updates // 4
    assert gpu.waits["envs/torch_vector.py:check"] == rollouts
    assert gpu.waits["run/device_rows.py:_on_host"] == 2 * rollouts  # flags, and rewards
    assert max(gpu.waits.values()) < 16 * rollouts  # nothing in each turn


class MaskedThere(CycleThere):
    """The same, with masks, and resets in the step that ends an episode."""

    single_observation_space = spaces.Dict(observation=SPACE, action_mask=spaces.MultiBinary(2))

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.mode, self.metadata = AutoresetMode.SAME_STEP, {"autoreset_mode": AutoresetMode.SAME_STEP}

    def _masked(self, obs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"observation": obs, "action_mask": torch.ones(self.num_envs, 2, dtype=torch.int8, device=CUDA)}

    def reset(self, **options: Any) -> Any:
        obs, info = super().reset(**options)
        return self._masked(obs), info

    def step(self, action: torch.Tensor) -> Any:
        obs, *values, info = super().step(action)
        final = {"final_obs": self._masked(info["final_obs"].to(CUDA, non_blocking=True))} if info else {}
        return self._masked(obs), *values, final


def test_rules_of_masks_and_hidden_steps_wait_for_nothing_in_a_turn(gpu):
    env = make_vector_env(EnvConfig(num=8, vectorization="native"), seed=0, factory=MaskedThere)
    env.reset()
    gpu.waits.clear()
    for _ in range(40):
        step = env.step(torch.zeros(8, 2, device=CUDA))
    assert not gpu.waits
    env.check()
    # the flags of all rules, lost observations, the ranges of two observations, and ends of episodes
    assert gpu.waits.total() == 5
    assert step.obs["action_mask"].all()


class Kept(EnvCollector):
    newest: Any = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        Kept.newest = self


LR = {"algo.actor_lr": 3e-4, "algo.critic_lr": 3e-4}


class PushThere(CycleThere):
    """The same with an action of two numbers."""

    single_action_space = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    ("name", "kind", "own"),
    [
        ("dqn", CycleThere, {"algo.exploration": "epsilon_greedy(1.0, 0.1, 100)"}),
        ("td3", PushThere, LR | {"algo.normalize_obs": "running", "algo.exploration": "ornstein_uhlenbeck"}),
        ("sac", PushThere, LR | {"algo.temperature_lr": 3e-4, "algo.frame_stack": 2, "algo.frame_stack_keys": ".*"}),
        pytest.param(
            "dreamer_v3",
            CycleThere,
            {f"algo.{key}": x for key, x in TINY.items()} | {"replay_ratio": 1 / 32},
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_off_policy_learners_wait_for_environments_on_the_device_once_in_32_turns(
    name, kind, own, tmp_path, gpu, monkeypatch
):
    given = {
        "env.num": 8, "env.vectorization": "native", "random_steps": 64, "learning_starts": 64, "train_freq": 8,
        "replay_ratio": 0.125, "eval_episodes": 0, "threads": 1, "console": False, "tensorboard": False,
        "schedule.log_every": 10_000,
    }  # fmt: skip
    given |= {} if name == "dreamer_v3" else {"algo.batch_size": 16, "algo.networks.units": (16,)}
    monkeypatch.setattr("reverie.experiment.build.EnvCollector", Kept)
    counted = []
    for steps in (150, 450):
        gpu.waits.clear()
        result = reverie.train(name, env=kind, run=tmp_path / str(steps), steps=steps, device="cuda:0", **given | own)
        counted.append((result.updates, gpu.waits.copy()))
    (updates, before), (more_updates, after) = counted
    assert more_updates - updates > 250 * (given | own)["replay_ratio"]
    schedules = [x.sum() for key, x in flatten_named(Kept.newest.state).items() if key.endswith("steps")]
    assert all(400 < steps <= 458 for steps in schedules)  # of the exploration
    assert len(schedules) == (name in ("dqn", "td3"))
    places = ("envs/tensor_codec.py:check", "envs/torch_vector.py:check", "envs/tensor_codec.py:__call__")
    counts = dict.fromkeys(places, 2) | {"run/device_rows.py:_on_host": 4}  # of about 50 more turns
    assert {place: after[place] - before[place] for place in after if after[place] != before[place]} == counts
