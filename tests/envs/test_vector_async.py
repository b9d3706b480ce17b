"""Actions sent now and answered later: the same rows, the same errors, and an end that does not hang."""

from __future__ import annotations

import functools

import env_zoo
import pytest
import torch

from reverie.core.errors import DataError, EnvError
from reverie.envs import slot
from reverie.envs.dummy import Grid

BOTH = pytest.mark.parametrize("vector", ["serial", "process"])


def processes(env):
    return [slot.process for slot in env._slots]


def same(a, b):
    return all(torch.equal(a.obs[key], b.obs[key]) for key in a.obs) and all(
        torch.equal(getattr(a, name), getattr(b, name)) for name in ("reward", "is_first", "is_last", "is_terminal")
    )


@BOTH
def test_sent_and_received_rows_are_those_of_step(make, vector):
    reference, env = make(env_zoo.Seeded, num=3), make(env_zoo.Seeded, num=3, vector=vector)
    assert same(reference.reset(), env.reset())
    for _ in range(14):
        env.send(torch.zeros(3, 2))
        assert same(reference.step(torch.zeros(3, 2)), env.receive())


def test_send_does_not_wait_for_the_workers(make, tmp_path):
    gate = tmp_path / "gate"
    env = make(functools.partial(env_zoo.Waiting, gate), num=2, vector="process")
    env.reset()
    env.send(torch.zeros(2, 2))
    gate.touch()
    assert env.receive().obs["observation"].tolist() == [[1], [1]]


@BOTH
def test_what_is_asked_between_send_and_receive(make, vector):
    env = make(functools.partial(Grid, render_mode="rgb_array"), vector=vector)
    env.reset(seed=3)
    action = torch.eye(4)[:1]
    env.send(action)
    frame = env.render()
    after = env.receive()
    assert (frame[::8, ::8] == after.obs["image"][0].numpy()).all()
    env.send(action)
    assert env.reset(seed=3).is_first.all()
    assert same(env.step(action), after)


@pytest.mark.parametrize(
    ("factory", "error", "message"),
    [
        (env_zoo.nan_in_second, DataError, r"environment [01] .*step 2 of episode 1: observation 'a' is nan"),
        (env_zoo.Dying, EnvError, r"worker process of environment [01] died \(exit code 7\)"),
    ],
)
def test_a_workers_error_is_raised_where_its_answer_is_received(make, factory, error, message):
    env = make(factory, num=2, vector="process", restarts=0)
    env.reset()
    env.step(torch.zeros(2, 2))
    env.send(torch.zeros(2, 2))
    with pytest.raises(error, match=message):
        env.receive()
    assert not any(process.is_alive() for process in processes(env))


def test_a_step_that_never_ends_does_not_keep_the_run_from_ending(make, tmp_path, monkeypatch):
    monkeypatch.setattr(slot.close, "__defaults__", (0.2,))
    env = make(functools.partial(env_zoo.Waiting, tmp_path / "never"), num=2, vector="process")
    env.reset()
    env.send(torch.zeros(2, 2))
    workers = processes(env)
    env.close()
    assert [process.exitcode for process in workers] == [-9, -9]
