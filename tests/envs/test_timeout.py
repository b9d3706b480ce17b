"""What hangs is interrupted once its time is over, and signals of others are left alone."""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from reverie.envs.timeout import ALARM, Alarm, Overdue, traced

pytestmark = pytest.mark.skipif(traced(), reason="nothing is interrupted under a debugger or coverage")


@pytest.fixture
def alarm():
    ALARM.release()  # an environment that another test has left open may still use it
    alarm = Alarm()
    yield alarm
    alarm.release()
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def hang(seconds=20.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            time.sleep(0.001)
        except Exception:
            continue


def limited(alarm, limit, call):
    before = alarm.begin(limit)
    try:
        call()
    finally:
        alarm.end(before)


def test_each_call_has_its_own_time(alarm, monkeypatch):
    now = [100.0]

    def call():
        now[0] += 6
        signal.raise_signal(signal.SIGALRM)  # as a timer that an earlier call has set
        assert signal.getitimer(signal.ITIMER_REAL)[0] == pytest.approx(24, abs=10)

    with monkeypatch.context() as patch:
        patch.setattr("reverie.envs.timeout.time", SimpleNamespace(monotonic=lambda: now[0]))
        for _ in range(20):
            limited(alarm, 30, call)
        alarm.release()
    with pytest.raises(Overdue, match=r"no response within env.timeout = 0.05 seconds"):
        limited(alarm, 0.05, hang)
    with pytest.raises(Overdue):
        limited(alarm, 0.05, lambda: time.sleep(20))


def test_a_call_inside_another(alarm):
    def outer():
        with pytest.raises(Overdue, match=r"0.02 seconds"):
            limited(alarm, 0.02, hang)
        limited(alarm, 0.0, lambda: None)
        hang()

    with pytest.raises(Overdue, match=r"0.1 seconds"):
        limited(alarm, 0.1, outer)


def by_trace(monkeypatch):
    monkeypatch.setattr(sys, "gettrace", lambda: "a debugger's function")


def by_monitoring(monkeypatch):
    tools = {0: "a debugger"}
    monkeypatch.setattr(sys, "monitoring", SimpleNamespace(DEBUGGER_ID=0, get_tool=tools.get), raising=False)


@pytest.mark.parametrize("debug", [by_trace, by_monitoring])
def test_nothing_is_interrupted_under_a_debugger(alarm, monkeypatch, debug):
    with monkeypatch.context() as patch:
        debug(patch)
        limited(alarm, 0.01, lambda: hang(0.05))
    with pytest.raises(Overdue):
        limited(alarm, 0.01, hang)


def test_nothing_rings_between_calls(alarm):
    limited(alarm, 0.02, lambda: None)
    time.sleep(0.05)
    limited(alarm, 5.0, lambda: time.sleep(0.03))


def test_the_signal_of_somebody_else(alarm):
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        limited(alarm, 0.01, lambda: hang(0.1))
        assert rung == [1]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_another_thread_has_no_limit(alarm):
    raised = []

    def run():
        try:
            limited(alarm, 0.01, lambda: hang(0.05))
        except Overdue as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert raised == []
