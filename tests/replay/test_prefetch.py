"""Batches on their way to a GPU, with the streams of a GPU that only takes notes."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from reverie.core.columns import ColumnSpec, block_of, view_in_block
from reverie.core.types import Batch, Update, Window
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.config import ReplayConfig
from reverie.replay.sources import Prefetch, prefetch
from reverie.replay.storage import DeviceStorage, HostStorage

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
COLUMNS = {
    "action": ColumnSpec((2,), "float32"),
    "reward": ColumnSpec((), "float32"),
    **{name: ColumnSpec((), "bool") for name in ("is_first", "is_last", "is_terminal")},
}


class Numbered:
    """Deals out batches that hold their number."""

    def __init__(self, log):
        self.log, self.sampled, self.fed = log, 0, []

    def sample(self):
        self.sampled += 1
        self.log.append("sample")
        flag, number = torch.zeros(1, 2, dtype=torch.bool), torch.full((1, 2), float(self.sampled))
        return Batch(
            obs={"x": number}, action=number, reward=number, is_first=flag, is_last=flag, is_terminal=flag,
            weight=number[0], index=torch.tensor([self.sampled]), extras={"deter": number},
        )  # fmt: skip

    def feedback(self, index, update):
        self.fed.append((int(index), update))

    def __len__(self):
        return 5


@pytest.fixture
def log(monkeypatch):
    """A GPU of notes: tensors that reach it are on the device ``meta``, where nothing can be read."""
    notes = []

    def stream(name):
        return SimpleNamespace(name=name, wait_stream=lambda other: notes.append(f"{name} waits for {other.name}"))

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream("copies"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream("learner"))

    @contextlib.contextmanager
    def inside(stream):
        notes.append(f"on {stream.name}")
        yield
        notes.append(f"off {stream.name}")

    monkeypatch.setattr(torch.cuda, "stream", inside)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: (notes.append("pin"), tensor)[1])
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: notes.append(f"for {stream.name}"))
    return notes


def test_batches_are_pinned_and_copied_on_their_own_stream(log):
    source = Prefetch(Numbered(log), torch.device("meta"))
    batch = source.sample()
    assert log == ["sample", *["pin"] * 9, "on copies", "off copies", "learner waits for copies", *["for learner"] * 9]
    assert all(tensor.is_meta for tensor in (batch.obs["x"], batch.extras["deter"], batch.weight))
    assert batch.index.tolist() == [1]


def test_nothing_is_sampled_early_and_feedback_is_passed_on(log):
    inner = Numbered(log)
    source = Prefetch(inner, CPU)
    assert (len(source), inner.sampled) == (5, 0)
    for number in (1, 2):
        batch, update = source.sample(), Update(metrics={})
        source.feedback(batch.index, update)
        assert (inner.fed[-1], inner.sampled) == ((number, update), number)


def test_only_what_has_to_travel_is_sent_ahead(log):
    window = Window(batch=1, length=2, crosses_episodes=True)
    host, device = (
        ReplayBuffer(storage, window, seed=0, config=ReplayConfig(online_queue=False))
        for storage in (HostStorage(COLUMNS, 1, 10), DeviceStorage(COLUMNS, 1, 10, CPU))
    )
    assert (prefetch(host, CPU), prefetch(device, CUDA)) == (host, device)
    assert not host.storage.pin
    assert isinstance(prefetch(host, CUDA), Prefetch)
    assert host.storage.pin


def test_a_small_batch_stays_where_it_is_one_block(log, monkeypatch):
    """One block contains all tensors of a batch, with the handles and weights."""
    replays = []
    for _ in range(2):
        replay = ReplayBuffer(
            HostStorage(COLUMNS, 1, 10), Window(batch=3, length=2, crosses_episodes=True), seed=0,
            config=ReplayConfig(online_queue=False),
        )  # fmt: skip
        flags = {name: np.arange(9)[None] % k == 0 for name, k in (("is_first", 3), ("is_last", 4), ("is_terminal", 5))}
        numbers = np.arange(18, dtype=np.float32)
        replay.extend(flags | {"reward": numbers[None, :9], "action": numbers.reshape(1, 9, 2)})
        replays.append(replay)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory=False, **kind: empty(*shape, **kind))
    source, plain = Prefetch(replays[0], CPU), replays[1]
    for _ in range(3):
        batch, expected = source.sample(), plain.sample()
        assert len({x.untyped_storage().data_ptr() for x in batch.tensors}) == 1
        assert all(x.data_ptr() % 64 == 0 for x in batch.tensors)
        torch.testing.assert_close(batch.tensors, expected.tensors, rtol=0, atol=0)
        moved = view_in_block(block_of(batch.reward).clone(), batch.action)
        assert torch.equal(moved, batch.action)
