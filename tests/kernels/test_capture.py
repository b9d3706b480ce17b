"""When updates are captured and replayed, and when not; what a replay gives back."""

import contextlib
import copy
import gc
import random
import warnings
import weakref
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from tapes import Tapes

from reverie.algos.base import Algorithm
from reverie.core.errors import RunError
from reverie.core.seeding import seed_everything
from reverie.core.types import Batch, SharedBatch, Update
from reverie.kernels import capture
from reverie.kernels.capture import MAX_KEYS, WARM_UPS, CapturedTrainStep


class Counting(Algorithm):
    """A learner with a fault: what it does depends on what Python counts, or draws, or puts in another's place."""

    def __init__(self, fault):
        super().__init__()
        self.total, self.mean, self.fault, self.count = torch.zeros(()), torch.zeros(()), fault, 0
        self.inner, self.device, self.never = torch.nn.Identity(), torch.device("cpu"), float("nan")
        self.inner.scale = 1.0

    def train_step(self, batch):
        self.total += FAULTS[self.fault](self)
        return Update(metrics={"total": self.total.clone()})


def counted(learner):
    learner.count += 1
    return learner.count


def scaled(learner):
    learner.inner.scale *= 0.5
    return learner.inner.scale


def averaged(learner):
    learner.mean = 0.9 * learner.mean + 0.1
    return learner.mean


FAULTS = {
    "count": counted,
    "inner.scale": scaled,
    "mean": averaged,
    "random": lambda learner: random.random(),
    "numpy.random": lambda learner: np.random.rand(),  # noqa: NPY002 - it is the fault
    "": lambda learner: torch.rand(()),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_python_keeps_is_noticed_and_updates_run_as_they_are(fault):
    results = []
    for capturing in (False, True):
        seed_everything(0)
        agent = Counting(fault)
        call = CapturedTrainStep(agent.train_step, agent.device, Tapes(), agent) if capturing else agent.train_step
        heard = pytest.warns(
            UserWarning, match=f"slower: it (changes the Python value|draws random numbers from) {fault}[, ]"
        )
        with heard if capturing and fault else contextlib.nullcontext():
            results.append([float(call(rows(3)).metrics["total"]) for _ in range(WARM_UPS + 3)])
    assert results[0] == results[1]


# ---------------------------------------------------------------- when is captured


class Mean(Algorithm):
    """Says what it was shown, and remembers how much it has seen."""

    def __init__(self, graph=True):
        super().__init__(graph)
        self.seen = torch.nn.Parameter(torch.zeros(()))
        self.device = torch.device("cpu")

    @torch.no_grad()
    def train_step(self, batch):
        self.seen += batch.reward.sum()
        return Update(
            metrics={"mean": batch.reward.mean(), "seen": self.seen.clone()}, priority=batch.reward.sum(1),
            extras={"twice": 2 * batch.obs["x"]},
        )  # fmt: skip


def rows(length, value=1.0, **obs):
    none = torch.zeros(2, length, dtype=torch.bool)
    reward = torch.full((2, length), float(value))
    return Batch(
        obs={"x": reward.clone(), **obs}, action=torch.zeros(2, length, 1), reward=reward, is_first=none, is_last=none,
        is_terminal=none, weight=torch.ones(2), index=torch.arange(2),
    )  # fmt: skip


@pytest.mark.parametrize("flushed", [False, True])
def test_denormal_numbers_are_zero_in_updates(flushed):
    torch.set_flush_denormal(flushed)
    try:
        found = Mean().update(rows(3, 1e-40)).metrics["mean"]
        assert (torch.tensor(1e-40) * 1 == 0) == flushed  # as before
    finally:
        torch.set_flush_denormal(False)
    assert found == 0


def mean(obstacle=""):
    agent = Mean()
    tapes = Tapes(obstacle)
    captured = CapturedTrainStep(agent.train_step, agent.device, tapes, agent)
    captured.agent = agent  # a capture keeps no reference to its learner
    return agent, tapes, captured


class Anchored(Mean):
    """Compares each batch with the first, of which it keeps a part."""

    def __init__(self, faulty):
        super().__init__()
        self.anchor, self.calls, self.faulty = None, 0, faulty

    def train_step(self, batch):
        if self.anchor is None:
            self.anchor = batch.reward[:, 1:]
        self.calls += self.faulty
        return Update(metrics={"mean": (batch.reward[:, 1:] - self.anchor).mean()})


@pytest.mark.parametrize("faulty", [0, 1])
def test_what_a_learner_keeps_of_the_first_batch_stays(faulty):
    agent = Anchored(faulty)
    call = CapturedTrainStep(agent.train_step, agent.device, Tapes(), agent)
    with pytest.warns(UserWarning, match="calls") if faulty else contextlib.nullcontext():
        means = [float(call(rows(3, value=i)).metrics["mean"]) for i in range(WARM_UPS + 3)]
    assert means == list(range(WARM_UPS + 3))


def test_what_an_update_returns_is_not_written_to_by_later_ones():
    _, _, update = mean()
    results = [update(rows(4, i)) for i in range(WARM_UPS + 3)]
    for i, result in enumerate(results):
        assert float(result.metrics["mean"]) == i
        assert float(result.metrics["seen"]) == 8 * sum(range(i + 1))
        assert result.priority.tolist() == [4 * i] * 2
        assert torch.equal(result.extras["twice"], torch.full((2, 4), 2.0 * i))


def test_a_batch_that_its_source_shares_is_learned_from_where_it_is(monkeypatch):
    """Without copies; another batch of its kind can come at any time."""
    _, tapes, update = mean()
    shared = SharedBatch.of(rows(4))
    for i in range(WARM_UPS + 4):
        shared.reward.fill_(i)
        shared.obs["x"].fill_(i)
        result = update(rows(4, i) if i == WARM_UPS + 2 else shared)
        assert float(result.metrics["mean"]) == i
        assert torch.equal(result.extras["twice"], torch.full((2, 4), 2.0 * i))
    assert tapes.calls.count("capture") == 1
    assert next(iter(update.steps.values())).batch is shared
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    update(shared)
    assert [key[0] == 99 for key in update.steps] == [False, False, True]


class Rescaled(Algorithm):
    """A learner that replaces observations in the dictionary of its batch."""

    def train_step(self, batch):
        batch.obs["x"] = batch.obs["x"] + 1
        return Update(metrics={"x": batch.obs["x"].mean()})


def test_updates_do_not_write_to_a_shared_batch():
    """Neither those on it nor those on others: what is made of it, and what has its shapes."""
    agent, shared = Rescaled(), SharedBatch.of(rows(4, 0))
    update, x = CapturedTrainStep(agent.train_step, torch.device("cpu"), Tapes(), agent), shared.obs["x"]
    for i in range(WARM_UPS + 3):
        for batch in (shared, replace(shared, obs={"x": x + i + 1}), rows(4, i + 2)):
            expected = float(batch.obs["x"].mean()) + 1
            assert float(update(batch).metrics["x"]) == expected
        assert shared.obs["x"] is x
        assert not x.any()
    assert len(update.steps) == 2


def test_every_kind_of_batch_is_captured_once():
    """By shapes and keys in any order, and by the number of threads."""
    _, tapes, update = mean()
    y, before = torch.zeros(2, 5), torch.get_num_threads()
    for _ in range(WARM_UPS + 2):
        assert float(update(rows(4, 1)).metrics["mean"]) == 1
        assert float(update(rows(5, 2)).metrics["mean"]) == 2
        assert float(update(rows(5, 3, y=y)).metrics["mean"]) == 3
    assert tapes.calls.count("capture") == 3
    assert tapes.calls.count("warm up") == 3 * WARM_UPS
    flipped = rows(5, 3)
    assert torch.equal(update(replace(flipped, obs={"y": y, **flipped.obs})).extras["twice"], 2 * flipped.reward)
    assert tapes.calls[-2:] == ["replay", "replay"]
    try:
        torch.set_num_threads(2)
        for _ in range(WARM_UPS + 1):
            update(rows(4))
    finally:
        torch.set_num_threads(before)
    assert tapes.calls.count("capture") == 4


def test_too_many_kinds_are_learned_from_without_a_graph():
    agent, tapes, update = mean()
    [update(rows(length)) for length in range(1, MAX_KEYS + 4)]
    assert tapes.calls == ["warm up"] * MAX_KEYS
    assert agent.seen.item() == 2 * sum(range(1, MAX_KEYS + 4))


def test_what_cannot_be_captured_is_not_and_that_is_said_once():
    agent, tapes, update = mean(obstacle="it waits for the device at x.py:3")
    with pytest.warns(UserWarning, match=r"step by step.*x\.py:3") as said:
        [update(rows(4)) for _ in range(WARM_UPS + 3)]
    assert len(said) == 1
    assert tapes.calls == ["warm up"] * WARM_UPS
    assert agent.seen.item() == 8 * (WARM_UPS + 3)


def test_an_obstacle_that_no_warm_up_has_met_is_not_recorded():
    runs = []

    def sometimes():
        runs.append(None)
        x = torch.ones(3)
        return Update(metrics={"x": x.sum() * (x.sum().item() if len(runs) > WARM_UPS else 1.0)})

    tapes = capture.TapeRecorder()
    assert [tapes.warm_up(sometimes)[1] for _ in range(WARM_UPS)] == [""] * WARM_UPS
    with pytest.raises(
        RunError, match=r"cannot be recorded.*value of a tensor in `return Update.*test_capture\.py.*--algo\.no-graph"
    ):
        tapes.capture(sometimes)


def test_a_number_among_the_metrics_is_named_since_a_recording_repeats_it():
    with pytest.raises(RunError, match=r"metric mine is a number.*--algo\.no-graph"):
        capture._join_metrics(Update(metrics={"x": torch.ones(()), "mine": 0.5}))


def test_waiting_is_heard_and_other_warnings_are_shown_once(monkeypatch, recwarn):
    modes = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(capture, "_SHOWN", set())

    def warns():
        warnings.warn("the weather will change", stacklevel=1)
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        return Update(metrics={})

    warnings.simplefilter("default")
    for _ in range(2):
        assert f"waits for the device at {__file__}" in capture._listen(warns)[1]
    assert [str(w.message) for w in recwarn] == ["the weather will change"]
    assert capture._listen(lambda: Update(metrics={}))[1] == ""
    with pytest.raises(ZeroDivisionError):
        capture._listen(lambda: 1 / 0)
    assert modes == ["warn", 0] * 4


def test_a_capture_on_cuda(monkeypatch):
    monkeypatch.setattr(torch, "cuda", cuda := mock.MagicMock())
    graphs, current = capture.CudaGraphs(torch.device("cuda")), cuda.current_stream.return_value
    order = mock.Mock()
    order.attach_mock(graphs.stream.wait_stream, "side")
    order.attach_mock(current.wait_stream, "main")
    assert graphs.warm_up(lambda: order.call() and "updated")[1] == ""
    assert order.mock_calls == [mock.call.side(current), mock.call.call(), mock.call.main(graphs.stream)]
    graph = cuda.CUDAGraph.return_value
    cuda.graph.return_value.__exit__.return_value = False
    assert graphs.capture(lambda: "outputs") == ("outputs", graph.replay)
    cuda.graph.assert_called_once_with(graph, graphs.pool, graphs.stream, capture_error_mode="thread_local")
    graph.replay.assert_called_once_with()
    cuda.graph.return_value.__exit__.side_effect = RuntimeError("operation not permitted when stream is capturing")
    with pytest.raises(RunError, match=r"cannot be captured.*not permitted.*--algo\.no-graph"):
        graphs.capture(lambda: "outputs")
    cuda.set_stream.assert_called_once_with(current)  # that from before


# ---------------------------------------------------------------- what changes between updates


def move(agent):
    agent.network.weight.data = agent.network.weight.data.clone()


def replace_parameter(agent):
    agent.network.weight = torch.nn.Parameter(torch.zeros(1, 1))


def replace_module(agent):
    agent.network = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(agent.network.weight)


def replace_tensor(agent):
    agent.counts[0] = torch.zeros(())
    agent.enter_eval_mode()


class Adding(Mean):
    """Adds up rewards in a module and in a tensor that belongs to none, as the moments of an optimizer do."""

    captures_on_cpu = True

    def __init__(self, graph):
        super().__init__(graph)
        self.network, self.counts = torch.nn.Linear(1, 1, bias=False), [torch.zeros(())]
        replace_parameter(self)

    @torch.no_grad()
    def train_step(self, batch):
        self.counts[0] += batch.reward.sum()
        self.network.weight += batch.reward.sum()
        return super().train_step(batch)

    def extra_state(self):
        return {"count": self.counts[0]}


@pytest.mark.parametrize("change", [move, replace_parameter, replace_module, replace_tensor])
def test_what_gets_other_memory_after_a_capture_is_what_updates_write_to(change):
    found = []
    for graph in (False, True):
        agent = Adding(graph)
        for _ in range(WARM_UPS + 2):
            agent.update(rows(4))
        change(agent)
        for _ in range(2):
            agent.update(rows(4))
        found.append([agent.network.weight.item(), agent.counts[0].item(), agent.seen.item()])
    assert found[0] == found[1]


def test_a_replay_marks_what_it_has_written_to(monkeypatch):
    """Whoever keeps something computed from a parameter asks for its version, which a CUDA graph does not change."""
    agent, tapes, update = mean()
    monkeypatch.setattr(tapes, "capture", lambda call: (Update(metrics={}), lambda: agent.seen.data.add_(1)))
    for _ in range(WARM_UPS + 2):
        before = agent.seen._version
        update(rows(4))
        assert agent.seen._version > before


def test_each_kind_of_step_is_captured_for_itself_and_once(monkeypatch):
    made = []

    def noting(step, *settings):
        made.append(step.__name__)
        return CapturedTrainStep(step, *settings)

    monkeypatch.setattr(capture, "CapturedTrainStep", noting)
    agent = Mean()
    agent.captures_on_cpu, agent.other_step = True, lambda batch: Update(metrics={})
    agent.other_step.__name__ = "other_step"
    for _ in range(3):
        agent.update(rows(4))
        agent.run_in_train_mode(agent.other_step, rows(4))
    assert made == ["train_step", "other_step"]


def test_a_copied_learner_captures_for_itself():
    agent = Adding(True)
    for _ in range(WARM_UPS + 2):
        agent.update(rows(4))
    twin, before = copy.deepcopy(agent), agent.seen.item()
    twin.update(rows(4))
    assert agent.seen.item() == before
    assert twin.seen.item() == before + 8


def test_what_is_captured_does_not_keep_a_learner_alive():
    agent = Adding(True)
    for _ in range(WARM_UPS + 2):
        agent.update(rows(4))
    ref = weakref.ref(agent)
    del agent
    gc.collect()
    assert ref() is None
