#!/usr/bin/env python3
"""How many answers does a reward need? True returns answer instead of a person.

    python bench/taught_rewards.py [--seeds 0 1 2]

``preferences``: clips of 25 steps of Pendulum, 45 episodes of controllers with 0 to 100 % of random actions. The clip
with the larger return is preferred. Of 2,000 pairs of clips of 15 other episodes, ``all`` is the share that the reward
orders right, and ``distinct`` the same for pairs whose returns differ by more than 0.1 standard deviations of this
difference. ``success``: rows of the two rooms of examples/helped.py; the true success answers. In 100 other episodes,
``precision`` is the share of true successes among the ``called`` rows, which the reward calls so, and ``recall`` the
share of the true ones that it calls so. ``random``: the same by random questions instead of chosen ones.
``imagined``: the same as ``preferences``, but the clips are dreams of a DreamerV3 that was trained on the 45 episodes,
in which the same controllers act. Their true rewards answer, or "wrong" if the length of the pendulum is not 1.
``agent``: the mean true return of 50 episodes of SAC, preset `sac_pendulum`, after 8,000 env steps with the reward of
these answers, with 0 answers with the true one. Rows replace those of the same seed and number of answers.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from results import save

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

import reverie
from reverie.core.errors import DataError
from reverie.datasets.config import DatasetConfig
from reverie.datasets.dataset import open_recorded
from reverie.datasets.labels import IndexedRows, LabelFile
from reverie.experiment.labeling import LabelSession
from reverie.experiment.learned_reward import fit_labels, to_batch
from reverie.nn.reward_model import REWARD_MODELS, RewardModel

STEPS, PAIRS, UPDATES, MAX_ERROR = 25, 2000, 1200, 0.3


class Controllers:
    """Swing Pendulum up by energy and balance it; episode i of n acts at random in a fraction i / n of all steps."""

    def __init__(self, seed: int, episodes: int) -> None:
        self.rng, self.episodes, self.steps = np.random.default_rng(seed), episodes, 0

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """Return the action of one step; an episode has 200."""
        noise, self.steps = self.steps // 200 / self.episodes, self.steps + 1
        if self.rng.random() < noise:
            return self.rng.uniform(-2, 2, 1).astype(np.float32)
        x, y, velocity = obs
        energy = velocity**2 / 6 + 5 * x - 5  # 0 at the top, at rest
        action = -15 * np.arctan2(y, x) - 3 * velocity if x > 0.9 else -2 * np.sign(energy * velocity + 1e-9)
        return np.clip([action], -2, 2).astype(np.float32)


@contextlib.contextmanager
def opened(path: str) -> Any:
    """Yield the rows of a dataset, in memory."""
    with contextlib.closing(open_recorded(DatasetConfig(path=path))) as recorded:
        yield IndexedRows(recorded, keeps_rows=True)


def ask_at_random() -> Any:
    """Return a context in which no question is chosen."""
    return mock.patch.object(LabelSession, "_find_model", return_value=None)


def fit(path: Path, kind: str, rows: IndexedRows, seed: int) -> RewardModel:
    """Return the reward of the labels in ``path``."""
    torch.manual_seed(seed)
    model = REWARD_MODELS[kind](rows.recorded.obs_spec, rows.recorded.action_spec)
    fit_labels(model, LabelFile.read(path, kind), rows)
    return model


def ask_preferences(
    folder: Path, seed: int, answers: int, is_random: bool = False, is_imagined: bool = False
) -> tuple[Path, str]:
    """Return a file of preferences by true returns, and the data that they are about."""
    train, labels = str(folder / "train"), folder / f"{answers}.jsonl"
    if not Path(train).exists():
        reverie.record("Pendulum-v1", Controllers(seed, 45), out=train, episodes=45, seed=seed)
        reverie.record("Pendulum-v1", Controllers(1000 + seed, 15), out=folder / "test", episodes=15, seed=1000 + seed)
    if is_imagined and not (folder / "dreams").exists():
        imagine(folder, seed)
    data = str(folder / "dreams") if is_imagined else train

    def prefer(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> str:
        sides = [clip["obs/observation"] for clip in (first, second)]
        if any((np.abs(np.hypot(x[:, 0], x[:, 1]) - 1) > MAX_ERROR).any() for x in sides):
            return "wrong"
        a, b = (sum_rewards(clip) for clip in (first, second))
        return "first" if a > b else "second"

    with ask_at_random() if is_random else contextlib.nullcontext():
        reverie.label(data, "preferences", labels, prefer, count=answers, steps=STEPS, seed=seed)
    return labels, data


def measure_preferences(
    folder: Path, seed: int, answers: int, is_random: bool = False, is_imagined: bool = False
) -> dict[str, Any]:
    """Return the shares of held-out pairs that a reward of ``answers`` answers orders right."""
    labels, data = ask_preferences(folder, seed, answers, is_random, is_imagined)
    with opened(data) as rows:
        model = fit(labels, "preferences", rows, seed)
    rng = np.random.default_rng(seed)
    with opened(str(folder / "test")) as rows:
        clips = [(int(rng.integers(15)), int(rng.integers(rows.lengths[0] - STEPS))) for _ in range(2 * PAIRS)]
        batch = to_batch(rows.read(rows.find(clips, STEPS)))
    true, learned = (x.reward[:, 1:].sum(1).view(2, PAIRS) for x in (batch, model.relabel(batch)))
    true, learned = true[0] - true[1], learned[0] - learned[1]
    is_right, is_distinct = (true > 0) == (learned > 0), true.abs() > 0.1 * true.std()
    values = {"all": is_right.float().mean(), "distinct": is_right[is_distinct].float().mean()}
    wrong = sum(label.answer == "wrong" for label in LabelFile.read(labels, "preferences").labels)
    found = {"wrong": wrong} if is_imagined else {}
    return {name: round(float(x), 4) for name, x in values.items()} | found | {"report": model.report}


def measure_agent(folder: Path, seed: int, answers: int, is_imagined: bool = False) -> dict[str, Any]:
    """Return the true return of SAC after learning from ``answers`` answers; 0: from the true reward."""
    settings: dict[str, Any] = {}
    if answers:
        labels, _ = ask_preferences(folder, seed, answers, is_imagined=is_imagined)
        settings = {"reward": f"preferences:{labels}"}
    result = reverie.train(
        "sac", preset="sac_pendulum", steps=8000, run=folder / f"agent-{answers}", seed=seed, console=False,
        tensorboard=False, eval_episodes=50, **settings,
    )  # fmt: skip
    assert result.evaluation is not None
    return {"score": round(float(np.mean(result.evaluation.scores)), 1)}


def sum_rewards(clip: dict[str, np.ndarray]) -> float:
    """Return the true return of a clip of Pendulum, from its observations and actions in [-1, 1]."""
    (x, y, velocity), action = clip["obs/observation"][:-1].T, clip["action"][:-1, 0]
    return -float((np.arctan2(y, x) ** 2 + 0.1 * velocity**2 + 0.001 * (2 * action) ** 2).sum())


def imagine(folder: Path, seed: int) -> None:
    """Write 90 dreams of 50 steps to ``folder / "dreams"``."""
    reverie.train(
        "dreamer_v3", data=folder / "train", size="nano", updates=UPDATES, run=folder / "model", seed=seed,
        console=False, tensorboard=False, eval_episodes=0, **{"algo.batch_size": 8, "algo.batch_length": 32},
    )  # fmt: skip
    dreams = functools.partial(reverie.DreamEnv, folder / "model", horizon=50, ends="likely")
    reverie.record(dreams, Controllers(seed, 23), out=folder / "dreams", episodes=90, seed=seed)


def measure_success(folder: Path, seed: int, answers: int, is_random: bool = False) -> dict[str, Any]:
    """Return precision and recall of a reward of ``answers`` labels on other episodes."""
    from helped import GOAL, REACH, Helper, Rooms

    class Walker(Helper):
        """Walks to the goal, with noise, from the first step."""

        def __call__(self, obs: np.ndarray, action: Any = None) -> np.ndarray:
            self.left, self.budget = 1, 2
            acted = super().__call__(obs, action)
            assert acted is not None
            return np.clip(acted + self.rng.normal(0, 0.5, 2), -1, 1).astype(np.float32)

    def succeeds(position: np.ndarray) -> np.ndarray:
        return np.linalg.norm(position - GOAL, axis=-1) < REACH

    train, test, labels = str(folder / "rooms"), str(folder / "rooms-test"), folder / f"success-{answers}.jsonl"
    reverie.record(Rooms, Walker(seed), out=train, episodes=100, seed=seed)
    reverie.record(Rooms, Walker(1000 + seed), out=test, episodes=100, seed=1000 + seed)
    is_right = lambda row: "success" if succeeds(row["obs/observation"]) else "failure"  # noqa: E731
    with ask_at_random() if is_random else contextlib.nullcontext():
        reverie.label(train, "success", labels, is_right, count=answers, seed=seed)
    try:
        with opened(train) as rows:
            model = fit(labels, "success", rows, seed)
    except DataError as error:
        return {"error": str(error).partition(": ")[2]}
    with opened(test) as rows:
        starts, lengths = rows.starts, rows.lengths
        clips = [(i, j) for i in range(len(starts)) for j in range(lengths[i] - 1)]
        batch = to_batch(rows.read(rows.find(clips, 1)))
    called, true = (
        model.relabel(batch).reward[:, 1] > 0,
        torch.from_numpy(succeeds(batch.obs["observation"][:, 1].numpy())),
    )
    right = (called & true).sum()
    values = {"precision": right / called.sum(), "recall": right / true.sum()}
    return {name: round(float(x), 4) for name, x in values.items()} | {
        "called": int(called.sum()),
        "report": model.report,
    }


MEASURES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "preferences": (measure_preferences, (50, 100, 200, 800)),
    "preferences, random": (functools.partial(measure_preferences, is_random=True), (50, 100, 200, 800)),
    "preferences, imagined": (functools.partial(measure_preferences, is_imagined=True), (100, 200)),
    "agent": (measure_agent, (0, 200)),
    "agent, imagined": (functools.partial(measure_agent, is_imagined=True), (200,)),
    "success": (measure_success, (40, 80)),
    "success, random": (functools.partial(measure_success, is_random=True), (40, 80)),
}


def main() -> None:
    """Measure all, and write the rows as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="+", default=[*MEASURES])
    parser.add_argument("--answers", nargs="+", type=int)
    arguments = parser.parse_args()
    path = Path(__file__).with_suffix(".json")
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    for kind in arguments.kinds:
        measure, numbers = MEASURES[kind]
        for seed in arguments.seeds:
            with tempfile.TemporaryDirectory() as folder:
                for answers in [number for number in numbers if not arguments.answers or number in arguments.answers]:
                    key = {"kind": kind, "seed": seed, "answers": answers}
                    row = key | measure(
                        Path(folder) / str(answers) if kind.startswith("success") else Path(folder), seed, answers
                    )
                    print(row, flush=True)
                    rows = [x for x in rows if {name: x[name] for name in key} != key] + [row]
                    rows.sort(key=lambda x: (list(MEASURES).index(x["kind"]), x["seed"], x["answers"]))
                    save(path, {"rows": rows})


if __name__ == "__main__":
    main()
