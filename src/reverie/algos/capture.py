"""Updates that are captured once and then replayed: on GPUs as CUDA graphs, on CPUs as tapes.

The thousands of kernels of one update are launched by a single call. What is captured must be the same work each time:
no operation that waits for the device, no copy from the host, no decision of Python's that depends on a number.
``tests/algos/test_capturable.py`` holds every learner here to that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Protocol

import torch
from torch import Tensor

from reverie.core.errors import RunError
from reverie.core.moving import Inlet, Outlet
from reverie.core.python_state import PythonState
from reverie.core.tape import Tape
from reverie.core.types import Batch, Update

TrainStep = Callable[[Batch], Update]
"""One gradient step on a batch that lies on the learner's device."""

Kind = tuple[int | tuple[str, torch.Size, torch.dtype], ...]
"""What two batches must share to be fed to one graph: threads; names, shapes and types of their tensors."""

WARM_UPS = 3
"""Updates of each kind that are run as they are: kernels are chosen and workspaces made before anything is captured."""

MAX_KINDS = 4
"""Kinds of batches that are captured; each has memory of its own for inputs and outputs."""

WITHOUT = "Say graph=False (--algo.no-graph) to run updates without one."


class Recorder(Protocol):
    """What can run, capture and replay a call."""

    @property
    def title(self) -> str:
        """What a captured call is."""
        ...

    def warm_up(self, call: Callable[[], Update]) -> tuple[Update, str]:
        """Run ``call``; its result, and what forbids to capture it, or an empty string."""
        ...

    def capture(self, call: Callable[[], Update]) -> tuple[Update, Callable[[], object]]:
        """Run ``call``; the tensors that it wrote to, and what makes it write to them again."""
        ...


class CudaGraphs:
    """Captures on a stream of its own. All graphs share one pool of memory: they are never replayed at once."""

    title = "a CUDA graph"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.pool = torch.cuda.graph_pool_handle()

    def warm_up(self, call: Callable[[], Update]) -> tuple[Update, str]:
        """Run ``call`` on the stream of the captures, between what came before it and what comes after."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            result = _listen(call)
        current.wait_stream(self.stream)
        return result

    def capture(self, call: Callable[[], Update]) -> tuple[Update, Callable[[], object]]:
        """Capture ``call``, and replay it. Random numbers come from the device's generator, which replays move on.

        Raises:
            RunError: CUDA refused.
        """
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        # Other threads may go on using the device meanwhile: only this one must not wait for it.
        capturing = torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local")
        try:
            with torch.cuda.device(self.device), capturing:
                outputs = call()
        except RuntimeError as error:
            torch.cuda.set_stream(current)  # a capture that fails at its end leaves its own
            raise RunError(f"the update cannot be captured in a CUDA graph: {error}. {WITHOUT}") from error
        graph.replay()
        return outputs, graph.replay


class Tapes:
    """Records on the CPU (``core/tape.py``)."""

    title = "a tape"

    def warm_up(self, call: Callable[[], Update]) -> tuple[Update, str]:
        """Run ``call``, and look for what cannot be recorded."""
        with Tape() as tape:
            update = call()
        return update, tape.obstacle

    def capture(self, call: Callable[[], Update]) -> tuple[Update, Callable[[], object]]:
        """Run ``call`` and record it. Random numbers come from the default generator.

        Raises:
            RunError: it did what no warm-up had done, and what cannot be repeated.
        """
        with Tape() as tape:
            outputs = call()
        if tape.obstacle:
            raise RunError(f"the update cannot be recorded on a tape: {tape.obstacle}. {WITHOUT}")
        return outputs, tape.replay


def _listen(call: Callable[[], Update]) -> tuple[Update, str]:
    """Run ``call``; its result, and where it first waited for the device, as PyTorch's debug mode says."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            update = call()
    finally:
        torch.cuda.set_sync_debug_mode(before)
    waits = [f"it waits for the device at {w.filename}:{w.lineno}" for w in said if "synchroniz" in str(w.message)]
    return update, waits[0] if waits else ""


class Replayed:
    """Updates on one kind of batch: first as they are, then captured, then replayed."""

    def __init__(self, train_step: TrainStep, batch: Batch, device: torch.device, recorder: Recorder) -> None:
        self.train_step = train_step
        self.recorder = recorder
        self.batch = batch.map(lambda x: torch.empty_like(x, device=device))
        self.inlet = Inlet(list(tensors(self.batch).values()))  # where every batch is copied to
        self.runs = 0
        self.obstacle = ""
        self.replay: Callable[[], object] | None = None
        self.hand_out: Callable[[], Update] = lambda: Update(metrics={})

    def __call__(self, given: Mapping[str, Tensor]) -> Update:
        """One update on the tensors of a batch; what it returns is the caller's."""
        self.inlet(list(given.values()))
        self.runs += 1
        if self.obstacle:
            return self._step()
        if self.runs <= WARM_UPS:
            return self._warm_up()
        if self.replay is None:
            outputs, self.replay = self.recorder.capture(self._step)
            self.hand_out = handing_out(outputs)
        else:
            self.replay()
        return self.hand_out()

    def _step(self) -> Update:
        return self.train_step(self.batch)

    def _warm_up(self) -> Update:
        if self.runs < WARM_UPS:  # these may wait, and make something that is kept
            return self.recorder.warm_up(self._step)[0]
        learner = getattr(self.train_step, "__self__", None)
        before = PythonState(learner)
        update, obstacle = self.recorder.warm_up(self._step)
        if obstacle := obstacle or before.changed_in(PythonState(learner)):
            self.obstacle = obstacle
            warnings.warn(f"updates run without {self.recorder.title}, so slower: {obstacle}.", stacklevel=5)
        return update


class Captured:
    """A learner's ``train_step``, captured for each kind of batch.

    Calling it gives the numbers of calling ``train_step``: warm-ups are updates too, and a capture is replayed at once.
    A kind is captured at most once, and beyond ``MAX_KINDS`` kinds updates run as they are.
    """

    def __init__(
        self, train_step: TrainStep, device: torch.device, recorder: Recorder, state: Sequence[Tensor] = ()
    ) -> None:
        """``state`` are the tensors that an update writes to, to be marked as changed after a replay."""
        self.train_step = train_step
        self.device = device
        self.recorder = recorder
        self.state = list(state)
        self.kinds: dict[Kind, Replayed] = {}
        self.told = False

    def __call__(self, batch: Batch) -> Update:
        """One update. What it returns is not written to by later ones."""
        given = tensors(batch)
        kind: Kind = (torch.get_num_threads(), *((name, x.shape, x.dtype) for name, x in given.items()))
        if kind not in self.kinds and len(self.kinds) == MAX_KINDS:
            return self._uncaptured(batch)
        if kind not in self.kinds:
            self.kinds[kind] = Replayed(self.train_step, batch, self.device, self.recorder)
        update = self.kinds[kind](given)
        torch.autograd.graph.increment_version(self.state)  # a replay writes behind autograd's back
        return update

    def _uncaptured(self, batch: Batch) -> Update:
        if not self.told:
            self.told = True
            warnings.warn(
                f"batches came in more than {MAX_KINDS} shapes: those of further shapes are learned from without "
                f"{self.recorder.title}, so slower. Give all batches one shape.",
                stacklevel=3,
            )
        return self.train_step(batch.to(self.device))

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copied or pickled learner has None in the place of this, and captures its own updates."""
        return type(None), ()


def tensors(batch: Batch) -> dict[str, Tensor]:
    """The tensors of a batch by name, sorted however its dictionaries are."""
    found: dict[str, Tensor] = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, dict):
            found |= {f"{field.name}/{key}": value[key] for key in sorted(value)}
        else:
            found[field.name] = value
    return found


def handing_out(outputs: Update) -> Callable[[], Update]:
    """What copies an update, with all that it holds."""
    metrics = [value.reshape(()) for value in outputs.metrics.values()]
    others = [*outputs.extras.values(), *([] if outputs.priority is None else [outputs.priority])]

    def update(values: Sequence[Tensor], own: Sequence[Tensor]) -> Update:
        return Update(
            metrics=dict(zip(outputs.metrics, values, strict=True)),
            priority=None if outputs.priority is None else own[-1],
            extras=dict(zip(outputs.extras, own, strict=False)),
        )

    def by_one_kernel() -> Update:
        return update(torch.stack(metrics).unbind() if metrics else (), [x.clone() for x in others])

    if not all(x.is_cpu for x in (*metrics, *others)):
        return by_one_kernel
    outlet, count = Outlet([*metrics, *others]), len(metrics)

    def by_one_call() -> Update:
        own = outlet()
        return update(own[:count], own[count:])

    return by_one_call
