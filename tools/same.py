#!/usr/bin/env python3
"""Prove that a change of the code changes no number: hashes of small runs, against those that were kept.

    python tools/same.py --write             before a change: write the hashes of this checkout to tools/same.json
    python tools/same.py                     after it: compare; exit code 1 if anything differs
    python tools/same.py --runs td3 dqn      some of the runs
    python tools/same.py --root OTHER        those of another checkout

Each run is trained for a few seconds at one thread, with kernels and with REVERIE_KERNELS=off, and once more in two
parts. Of its last checkpoint, `state` is the hash of all tensors, `latents` that of the stored latents; of its log,
`metrics` is the last entry. Hashes hold for one processor and one version of PyTorch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KEPT = Path(__file__).with_suffix(".json")
QUIET = {
    "threads": 1, "eval_episodes": 0, "tensorboard": False, "console": False, "schedule": {"log_every": 1},
}  # fmt: skip
MODEL_FREE = {
    "steps": 240, "learning_starts": 60, "random_steps": 40, "replay_ratio": 0.25, "algo.batch_size": 16,
    "algo.networks.units": (16, 16), "replay.capacity": 2000,
}  # fmt: skip
DREAMER = {
    "steps": 160, "learning_starts": 20, "replay_ratio": 0.1, "algo.batch_size": 4, "algo.batch_length": 8,
    "env.num": 2, "replay.capacity": 2000,
}  # fmt: skip
RECORDED = {"updates": 60, "algo.batch_size": 16, "algo.networks.units": (16, 16), "env": "none"}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "td3": ("td3", MODEL_FREE | {"env": "Pendulum-v1"}),
    "sac": ("sac", MODEL_FREE | {
        "env": "Pendulum-v1", "algo.value_estimator": "td_lambda(0.9)", "algo.batch_length": 6}),
    "dqn": ("dqn", MODEL_FREE | {"env": "CartPole-v1", "algo.double": True, "algo.dueling": True}),
    "qr_dqn": ("qr_dqn", MODEL_FREE | {
        "env": "CartPole-v1", "algo.value_estimator": "n_step(3)", "algo.batch_length": 4}),
    "cql": ("cql", RECORDED | {"algo.conservative_weight": "lagrange"}),
    "iql": ("iql", RECORDED),
    "ppo": ("ppo", {"env": "CartPole-v1", "steps": 256, "env.num": 2, "algo.rollout": 32, "algo.batch_length": 8,
                    "algo.batch_size": 16, "algo.networks.memory": "lstm(8)", "algo.networks.units": (16,)}),
    "dreamer_v3": ("dreamer_v3", DREAMER | {"env": "pictures", "size": "nano", "algo.replay_context": 1}),
    "dreamer_v2": ("dreamer_v2", DREAMER | {"env": "masked", "algo.posterior_samples": 2, "small": True}),
    "plan2explore_v1": ("plan2explore_v1", DREAMER | {"env": "Pendulum-v1", "small": True}),
}  # fmt: skip
"""By name: the algorithm and the settings that differ from ``QUIET``."""


# ---------------------------------------------------------------- runs, in a process of their own


def train(name: str, run: Path, share: float) -> None:
    """Train ``share`` of the length of a run, or go on with it."""
    tests = Path(__file__).parents[1] / "tests"
    sys.path.append(str(tests / "support"))
    import reverie

    algorithm, settings = RUNS[name]
    settings = {**QUIET, **settings}
    if settings.pop("small", False):
        from dreamer_configs import EARLIER

        settings = {**{f"algo.{key}": value for key, value in EARLIER.items()}, **settings}
    length = "updates" if "updates" in settings else "steps"
    settings[length] = int(settings[length] * share)
    env = {"pictures": pictures, "masked": masked}.get(str(settings["env"]), settings["env"])
    data = {"data": recorded()} if length == "updates" else {}
    reverie.train(algorithm, run=run, **(settings | {"env": env}), **data)


def pictures() -> Any:
    """Return an environment with small pictures and three actions."""
    import gymnasium
    import numpy as np

    class Pictures(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(0, 255, (16, 16, 3), np.uint8)
        action_space = gymnasium.spaces.Discrete(3)

        def _shown(self) -> Any:
            image = np.zeros((16, 16, 3), np.uint8)
            image[:, self.place, :] = 200
            return image

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.place, self.steps = int(self.np_random.integers(16)), 0
            return self._shown(), {}

        def step(self, action: Any) -> Any:
            self.place, self.steps = int(np.clip(self.place + action - 1, 0, 15)), self.steps + 1
            return self._shown(), float(self.place == 8), self.place == 15, self.steps == 20, {}

    return Pictures()


def masked() -> Any:
    """Return an environment with mixed actions, of which not all are legal."""
    from masked_env import Masked

    return Masked(actions="dict")


def recorded() -> Any:
    """Return transitions of D4RL's names."""
    import numpy as np

    rng, n = np.random.default_rng(0), 400
    obs = rng.normal(size=(n, 3)).astype("f4")
    ends = np.arange(n) % 50 == 49
    return {
        "observations": obs, "actions": rng.uniform(-1, 1, (n, 2)).astype("f4"), "rewards": obs[:, 0],
        "terminals": ends & (np.arange(n) % 100 == 99), "timeouts": ends & (np.arange(n) % 100 == 49),
        "next_observations": np.concatenate([obs[1:], obs[:1]]),
    }  # fmt: skip


# ---------------------------------------------------------------- hashes


def hashes(run: Path) -> dict[str, str]:
    """Return the hashes of a finished run."""
    from safetensors.numpy import load_file

    checkpoint = max((run / "checkpoints").glob("step-*"))
    tensors = load_file(checkpoint / "tensors.safetensors")
    state, latents = hashlib.sha256(), hashlib.sha256()
    for key, tensor in sorted(tensors.items()):
        value = tensor[:, :0] if "/tail/" in key else tensor  # how many rows the store had not confirmed is no state
        state.update(f"{key} {value.dtype} {value.shape}".encode() + value.tobytes())
    for path in sorted(checkpoint.glob("replay*/**/*")):
        latents.update(path.read_bytes() if path.is_file() else b"")
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = next(x for x in reversed(entries) if any(key.startswith("loss/") for key in x))
    metrics = {k: v for k, v in last.items() if k.startswith(("loss/", "train/", "opt/"))}
    return {
        "state": state.hexdigest()[:16], "latents": latents.hexdigest()[:16],
        "metrics": hashlib.sha256(json.dumps(metrics, sort_keys=True).encode()).hexdigest()[:16],
    }  # fmt: skip


def measured(root: Path, name: str, kernels: str) -> dict[str, str]:
    """Return the hashes of a run in a checkout; ``cut``: whether it is the same in two parts."""
    env = {**os.environ, "PYTHONPATH": str(root / "src"), "REVERIE_KERNELS": kernels, "OMP_NUM_THREADS": "1"}

    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, str(root / "tools" / Path(__file__).name), "--train", name, folder]
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        whole, cut = (hashes(Path(folder, part)) for part in ("whole", "cut"))
        return {**whole, "cut": "equal" if cut["state"] == whole["state"] else "differs"}


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        for part, share in (("whole", 1.0), ("cut", 0.5), ("cut", 1.0)):
            train(args.train[0], Path(args.train[1], part), share)
        return 0
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    different = 0
    for name in args.runs:
        for kernels in ("on", "off"):
            key, now = f"{name}, kernels {kernels}", measured(args.root.resolve(), name, kernels)
            before = kept.get(key, {})
            wrong = [part for part in now if now[part] != before.get(part)]
            different += bool(wrong)
            print(f"{key:<30} {'same' if not wrong else 'OTHER: ' + ', '.join(wrong)}", flush=True)
            if args.write:
                kept[key] = now
                KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    return int(different > 0 and not args.write)


if __name__ == "__main__":
    sys.exit(main())
