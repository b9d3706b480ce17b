"""What the tests of the page share: runs so small that they take a second."""

import itertools
import json

import pytest
import torch
import yaml

from reverie.api import train_config as train
from reverie.core import wall_clock
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.settings import make_preset
from reverie.log.jsonl import FINAL
from reverie.run.callback import Callback
from tiny_configs import FEW, SMALL


@pytest.fixture(autouse=True)
def _ticks(monkeypatch):
    """The clock ticks at each look, so that a busy machine has time for as many rows as an idle one."""
    ticks = itertools.count(step=0.002)
    monkeypatch.setattr(wall_clock, "monotonic", lambda: next(ticks))


class Expect(Callback):
    """Makes a world model that expects at each step that the episode ends (-20), or that it continues (20)."""

    def __init__(self, logit):
        self.logit = logit

    def on_start(self, run):
        with torch.no_grad():
            list(run.algo.world.cont.parameters())[-1].fill_(self.logit)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Runs of DreamerV3, with two checkpoints and three snapshots, of DQN, of SAC, and of DreamerV2 with probes."""
    import reverie

    where = tmp_path_factory.mktemp("runs")
    config = ExperimentConfig().merge(SMALL).merge({"env.id": "CartPole-v1", "schedule.save_every": 30,
                                                   "schedule.dream_snapshots": 3})  # fmt: skip
    train(config, run=where / "dreamer", callbacks=[Expect(20.0)])
    reverie.train("dqn", env="CartPole-v1", run=where / "dqn", **FEW)
    reverie.train("sac", env="Pendulum-v1", run=where / "sac", **FEW)
    probes = ("mlp('map', inputs='map_coord', units=8)", "mlp('map_coord', units=8)")
    few = {"steps": 40, "learning_starts": 20, "random_steps": 10, "replay_ratio": 0.05, "algo.batch_length": 8,
           "algo.probe.heads": probes, "env.max_episode_steps": 12, "eval_episodes": 0, "tensorboard": False,
           "console": False}  # fmt: skip
    mapped = make_preset("pydreamer_minigrid+cpu").merge({"env.id": "MiniGrid-Empty-5x5-v0"})
    train(mapped.merge(few), run=where / "mapped", callbacks=[Expect(-20.0)])
    return where


@pytest.fixture
def logged_run(folder):
    """Write a run that was never trained: its settings, scores along the steps, and the score at the end."""

    saved = yaml.safe_load((folder / "dqn/config.yaml").read_text())

    def write(path, scores, final=None, **settings):
        path.mkdir()
        steps = [100 * (i + 1) for i in range(len(scores))]
        experiment = saved["experiment"] | {"steps": steps[-1], **settings}
        (path / "config.yaml").write_text(json.dumps(saved | {"experiment": experiment}))  # which is YAML, too
        rows = [
            {"step": step, "episode/score": score, "time/seconds": step / 80, "counters/updates": step / 4}
            for step, score in zip(steps, scores, strict=True)
        ]
        if final is not None:
            rows.append({"step": steps[-1], "eval/score": final, FINAL: 1.0})
            (path / "eval.json").write_text(json.dumps({"env_steps": steps[-1], "score": {"mean": final}}))
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write
