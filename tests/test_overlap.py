"""Environments that are stepped while the learner learns: nothing comes out differently."""

from __future__ import annotations

import hashlib

import pytest

from reverie.envs.worker import WorkerSlot
from reverie.experiment.build import Experiment, build
from reverie.experiment.config import ExperimentConfig
from reverie.log.meter import Meter
from reverie.run.train import train
from tiny import SETTINGS


def fingerprint(experiment: Experiment) -> str:
    """Of all weights, all rows and all counters."""
    digest, storage = hashlib.sha256(), experiment.replay.storage
    for name, column in sorted(storage.columns.items()):
        digest.update(name.encode() + column[:, : storage.count].tobytes())
    for name, value in sorted(experiment.algo.state_dict()["model"].items()):
        digest.update(name.encode() + value.numpy().tobytes())
    clock = experiment.clock
    digest.update(repr((clock.env_steps, clock.updates, clock.episodes, storage.count)).encode())
    return digest.hexdigest()


def trained(vector: str) -> str:
    settings = {**SETTINGS, "random_steps": 30, "env": {"id": "CartPole-v1", "num": 3, "vector": vector}}
    experiment = build(ExperimentConfig().merge(settings))
    try:
        train(experiment.algo, experiment.replay, experiment.clock, Meter(), collector=experiment.collector)
        assert experiment.clock.updates > 5
        return fingerprint(experiment)
    finally:
        experiment.close()


def test_a_run_with_workers_is_bit_for_bit_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    send = WorkerSlot.send
    monkeypatch.setattr(WorkerSlot, "send", lambda self, *what: (sent.append(1), send(self, *what))[1])
    serial = trained("serial")
    assert not sent
    assert trained("process") == serial
    assert sent
