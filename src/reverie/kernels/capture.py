"""Capture an update once and replay it: on GPUs as a CUDA graph, on CPUs as a tape (``kernels/tape.py``).

A captured update must do the same work each time: no operation that waits for the device, no copy from the host, no
Python branch that depends on a tensor's value.
"""

from __future__ import annotations

import functools
import operator
import random
import warnings
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from reverie.algos.base import Algorithm, TrainStep, run_step
from reverie.core.collectives import is_distributed
from reverie.core.errors import RunError
from reverie.core.hardware import with_number
from reverie.core.kernel_dispatch import ModuleChanges
from reverie.core.types import Batch, MetricVector, SharedBatch, Update
from reverie.kernels.buffers import InputBuffers, OutputBuffers, allocate_like
from reverie.kernels.module_watch import ModuleWatch
from reverie.kernels.tape import Tape

Key = tuple[int | tuple[str, torch.Size, torch.dtype], ...]
"""Key of a capture: number of threads; the id of a shared batch, whose memory no other batch may be written to; names,
shapes and dtypes of the batch's tensors. Equal keys share a graph."""

WARM_UPS = 3
"""Updates of each kind that run uncaptured first, so that kernels are chosen and workspaces allocated."""

T = TypeVar("T")

MAX_KEYS = 4
"""Maximum number of captured kinds of batches; each has its own memory for inputs and outputs."""

CHECK_INTERVAL = 16
"""Number of updates from one comparison of all attributes to the next."""

MAX_CHANGES = 3
"""Number of changes of a learner, without a replay between them, after which nothing more is captured of it."""

_SHOWN: set[tuple[str, str, int]] = set()  # unrelated warnings of warm-ups: each is shown once

WITHOUT = "Set graph=False (--algo.no-graph) to run updates without it."


class CudaGraphs:
    """Runs, captures and replays calls as CUDA graphs, on a separate stream, with one memory pool for all."""

    title = "a CUDA graph"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.pool: Any = torch.cuda.graph_pool_handle()

    def warm_up(self, call: Callable[[], T]) -> tuple[T, str]:
        """Run ``call`` on the capture stream, ordered after earlier and before later work of the current stream."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            result = _listen(call)
        current.wait_stream(self.stream)
        return result

    def capture(self, call: Callable[[], T]) -> tuple[T, Callable[[], object]]:
        """Capture ``call``, and replay it once. Each replay advances the device's random generator."""
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        # Other threads may use the device during the capture: only this thread must not synchronize.
        capturing = torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local")
        try:
            with torch.cuda.device(self.device), capturing:
                outputs = call()
        except RuntimeError as error:
            torch.cuda.set_stream(current)  # a capture that fails at its end leaves its own stream current
            raise RunError(f"the update cannot be captured in a CUDA graph: {error}. {WITHOUT}") from error
        graph.replay()
        return outputs, graph.replay


class TapeRecorder:
    """Records tapes on the CPU (``kernels/tape.py``)."""

    title = "a recording of its operations"

    def warm_up(self, call: Callable[[], Update]) -> tuple[Update, str]:
        """Run ``call``. Return its result and what in it cannot be recorded, or an empty string."""
        with Tape(is_trial=True) as tape:
            update = call()
        return update, tape.obstacle

    def capture(self, call: Callable[[], Update]) -> tuple[Update, Callable[[], object]]:
        """Run ``call`` and record it. Replays draw random numbers from the default generator."""
        with Tape() as tape:
            outputs = call()
        if tape.obstacle:
            raise RunError(f"the operations of the update cannot be recorded: {tape.obstacle}. {WITHOUT}")
        return outputs, tape.replay


Recorder = CudaGraphs | TapeRecorder


def _listen(call: Callable[[], T]) -> tuple[T, str]:
    """Run ``call``. Return its result and where it first waited for the device, by PyTorch's sync debug mode."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        caught.clear()  # PyTorch warns that the mode itself is a prototype
        try:
            result = call()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for w in caught:
        origin = (str(w.message), w.filename, w.lineno)
        if "synchroniz" not in str(w.message) and origin not in _SHOWN:
            _SHOWN.add(origin)
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    waits = [f"it waits for the device at {w.filename}:{w.lineno}" for w in caught if "synchroniz" in str(w.message)]
    return result, waits[0] if waits else ""


class CapturedStep:
    """Updates on one kind of batch: the first run uncaptured, one is captured, the rest are replayed."""

    def __init__(
        self, step: TrainStep, batch: Batch, device: torch.device, recorder: Recorder, learner: object
    ) -> None:
        self.step = step
        self.learner: weakref.ReferenceType[Any] = weakref.ref(learner)
        self.recorder = recorder
        tensors, block = [*batch_tensors(batch).values()], None
        self.batch: Batch = batch
        if type(batch) is not SharedBatch or batch.reward.device != with_number(device):
            tensors, block = allocate_like(tensors, device)
            self.batch = _replace_tensors(batch, tensors)
        self.input_buffers: InputBuffers = InputBuffers(tensors, block)
        self.runs: int = 0
        self.obstacle: str = ""
        self.replay: Callable[[], object] | None = None
        self.hand_out: Callable[[], Update] = lambda: Update(metrics={})

    def __call__(self, batch: Batch) -> Update:
        """Run one update. The caller owns the result."""
        if batch is not self.batch:
            self.input_buffers([*batch_tensors(batch).values()])
        self.runs += 1
        if self.obstacle or self.runs <= WARM_UPS:
            # A separate batch: later updates must not overwrite what a learner keeps of it.
            step = functools.partial(self.step, self.batch.map(torch.clone))
            return step() if self.obstacle else self._warm_up(step)
        if self.replay is None:
            batch = self.batch.map(lambda x: x)  # a learner may replace observations in its dictionary
            outputs, self.replay = self.recorder.capture(lambda: _join_metrics(self.step(batch)))
            self.hand_out = _make_output_copier(outputs)
        else:
            self.replay()
        return self.hand_out()

    def _warm_up(self, step: Callable[[], Update]) -> Update:
        if self.runs < WARM_UPS:  # these may wait for the device, and create lasting state
            return self.recorder.warm_up(step)[0]
        learner = self.learner()
        before = python_state(learner)
        update, obstacle = self.recorder.warm_up(step)
        if obstacle := obstacle or describe_change(before, python_state(learner)):
            self.obstacle = obstacle
            warnings.warn(_slower(self.recorder, obstacle), stacklevel=5)
        return update


def _slower(recorder: Recorder, obstacle: str) -> str:
    mode = f"step by step, without {recorder.title}"  # which would repeat the values of this update
    return f"each update runs {mode}, which is slower: {obstacle}."


def _weak_step(step: TrainStep) -> Callable[[Batch], Update]:
    """Return a function that runs ``step`` on a prepared batch and, if it is a method, does not refer to its object."""
    if not hasattr(step, "__self__"):
        return step
    method_ref = weakref.WeakMethod(step)

    def prepare_and_step(batch: Batch) -> Update:
        method: Any = method_ref()
        return cast(Update, method(method.__self__.prepare_batch(batch)))

    return prepare_and_step


def python_state(learner: object) -> dict[str, object]:
    """Return the numbers, strings and tensors that are attributes of a learner's modules, and generators' states."""
    modules = learner.named_modules() if isinstance(learner, nn.Module) else ()
    values: dict[str, object] = {}
    for name, module in modules:
        attributes = {key: x for key, x in vars(module).items() if isinstance(x, bool | int | float | str | Tensor)}
        values |= {f"{name}.{key}".lstrip("."): x for key, x in attributes.items() if key != "training"}
    legacy = np.random.get_state(legacy=False)  # noqa: NPY002 - the global generator is what is compared
    return values | {"random": random.getstate(), "numpy.random": str(legacy)}


def describe_change(before: dict[str, object], after: dict[str, object]) -> str:
    """Return a sentence on the first value that differs, which a replay would not change, or an empty string."""
    for name, value in after.items():
        had = before.get(name)
        if had is value or not (isinstance(value, Tensor) or (value != had and value == value)):  # NaN is not itself
            continue
        if name in ("random", "numpy.random"):
            return f"it draws random numbers from {name}, which a replay cannot repeat: use PyTorch's generators"
        return (
            f"it changes the Python value {name}, which a replay cannot repeat: store it in a buffer "
            "(register_buffer) and change the buffer in place"
        )
    return ""


_is_trained: Callable[[Tensor], bool] = operator.attrgetter("requires_grad")


class ModuleAddresses:
    """The modules of a learner, the addresses of their parameters and buffers, and which are frozen."""

    def __init__(self, learner: nn.Module) -> None:
        self.watch: ModuleWatch = ModuleWatch(learner, *_unwatched(learner))
        self.num_calls: int = 0
        self.refresh()

    def refresh(self) -> None:
        """Remember the present state."""
        self.watch.refresh()
        modules = cast(nn.Module, self.watch.root()).modules()
        # References to the modules' dictionaries, so that a comparison need not walk through all modules.
        self.tables: list[dict[str, Any]] = [table for m in modules for table in (m._parameters, m._buffers) if table]
        self.before: tuple[list[int], list[bool]] = self._snapshot()

    def find_change(self) -> str:
        """Return what has changed: a module, its hooks or attributes, the memory of a tensor, or what is frozen.

        Attributes of modules without :class:`NotesChanges` are compared once in ``CHECK_INTERVAL`` calls.
        """
        self.num_calls += 1
        is_due = self.num_calls % CHECK_INTERVAL == 0 or self.watch.has_hint()
        change = self.watch.find_change() if is_due else ""
        return change or ("its tensors" if self._snapshot() != self.before else "")

    def _snapshot(self) -> tuple[list[int], list[bool]]:
        tensors = [x for x in chain.from_iterable(map(dict.values, self.tables)) if x is not None]
        return [*map(Tensor.data_ptr, tensors)], [*map(_is_trained, tensors)]


def _unwatched(learner: nn.Module) -> tuple[Collection[str], list[dict[str, Any]]]:
    """Return which attributes a learner changes itself between updates, and the attributes of its optimizers."""
    if not isinstance(learner, Algorithm):
        return (), []
    optims = learner.optimizers().values()
    groups = [group for optim in optims if isinstance(optim, torch.optim.Optimizer) for group in optim.param_groups]
    return {*vars(Algorithm()), *learner.extra_state()}, [*groups, *[vars(optim) for optim in optims]]


class CapturedTrainStep:
    """A learner's ``train_step``, captured for each kind of batch. Valid until the learner's addresses change.

    Calling it gives the same numbers as ``train_step``: warm-ups are updates too, and a capture is replayed at once.
    Each kind is captured at most once. Beyond ``MAX_KEYS`` kinds, updates run uncaptured.
    """

    def __init__(self, train_step: TrainStep, device: torch.device, recorder: Recorder, learner: nn.Module) -> None:
        """``learner``: the module whose parameters and buffers an update writes to."""
        self.step: Callable[[Batch], Update] = _weak_step(train_step)
        self.device = device
        self.recorder = recorder
        self.learner: weakref.ReferenceType[nn.Module] = weakref.ref(learner)
        self.state: list[torch.Tensor] = [*learner.parameters(), *learner.buffers()]
        self.steps: dict[Key, CapturedStep] = {}
        self.newest: tuple[CapturedStep | None, int] = None, 0  # the latest, and its number of threads
        self.has_replayed: bool = False
        """Whether the last update was a replay, so that no Python code of the learner ran."""

    def __call__(self, batch: Batch) -> Update:
        """Run one update. Later updates do not write to its result."""
        step, threads = self.newest
        if step is None or batch is not step.batch or threads != torch.get_num_threads():
            step = self._step_for(batch)
        if step is None:
            return self.step(batch.to(self.device))
        self.has_replayed = step.replay is not None
        update = step(batch)
        if step.replay is not None:
            torch.autograd.graph.increment_version(self.state)  # a replay writes behind autograd's back
        return update

    def _step_for(self, batch: Batch) -> CapturedStep | None:
        """Return the step for batches of this kind, or None if there are enough others."""
        threads, shared = torch.get_num_threads(), id(batch) if type(batch) is SharedBatch else 0
        key: Key = (threads, shared, *((name, x.shape, x.dtype) for name, x in batch_tensors(batch).items()))
        if key not in self.steps and len(self.steps) == MAX_KEYS:
            return None
        if key not in self.steps:
            self.steps[key] = CapturedStep(self.step, batch, self.device, self.recorder, self.learner())
        self.newest = self.steps[key], threads
        return self.steps[key]


class LearnerCaptures:
    """What is captured of a learner, by the name of the step, until the learner is changed."""

    def __init__(self, learner: Algorithm) -> None:
        self.version: object = learner.capture_version
        self.recorder: Recorder = CudaGraphs(learner.device) if learner.device.type == "cuda" else TapeRecorder()
        self.addresses: ModuleAddresses = ModuleAddresses(cast(nn.Module, learner))
        self.num_changes: int = 0  # since the last replay
        self.restart()

    def restart(self, change: str = "") -> None:
        """Forget all captures, after ``change``; warn if nothing can be captured from now on."""
        ModuleChanges.note()
        self.steps: dict[str, CapturedTrainStep] = {}
        self.addresses.refresh()
        self.obstacle: str = ""
        self.num_changes += bool(change)
        if hook := self.addresses.watch.hook:
            self.obstacle = f"a replay would not call the hook of {hook}"
        elif self.num_changes > MAX_CHANGES:
            self.obstacle = f"{change} is changed before every update, which a replay would not notice"
        if self.obstacle:
            warnings.warn(_slower(self.recorder, self.obstacle), stacklevel=6)

    def __call__(self, learner: Algorithm, step: TrainStep, batch: Batch) -> Update:
        """Run one update."""
        if self.num_changes <= MAX_CHANGES and (change := self.addresses.find_change()):
            self.restart(change)
        if self.obstacle:
            return cast(Update, run_step.definition(learner, step, batch))  # type: ignore[attr-defined]
        captured = self.steps.get(step.__name__)
        if captured is None:
            captured = CapturedTrainStep(step, learner.device, self.recorder, cast(nn.Module, learner))
            self.steps[step.__name__] = captured
        update = captured(batch)
        if captured.has_replayed:
            self.num_changes = 0
        else:
            self.addresses.refresh()  # an update may itself change attributes, which CapturedStep looks at
        return update


_captured: weakref.WeakKeyDictionary[Algorithm, LearnerCaptures] = weakref.WeakKeyDictionary()
"""What is captured of each learner; a copy of a learner captures for itself."""


def supports_capture(learner: Algorithm, step: TrainStep, batch: Batch) -> bool:
    """Return whether :func:`run_captured` can be used. Communication between learners cannot be captured."""
    kind = learner.device.type
    return learner.graph and not is_distributed() and (kind == "cuda" or (learner.captures_on_cpu and kind == "cpu"))


def run_captured(learner: Algorithm, step: TrainStep, batch: Batch) -> Update:
    """Compute ``algos/base.py: run_step``."""
    captures = _captured.get(learner)
    if captures is None or captures.version is not learner.capture_version:
        captures = _captured[learner] = LearnerCaptures(learner)
    return captures(learner, step, batch)


def batch_tensors(batch: Batch) -> dict[str, Tensor]:
    """Return the tensors of a batch by name, in an order that does not depend on its dictionaries' order."""
    by_name: dict[str, Tensor] = {}
    for name in _BATCH_FIELDS:
        value = getattr(batch, name)
        if isinstance(value, dict):
            for key in sorted(value):
                by_name[f"{name}/{key}"] = value[key]
        else:
            by_name[name] = value
    return by_name


_BATCH_FIELDS = tuple(field.name for field in fields(Batch))


def _replace_tensors(batch: Batch, tensors: Sequence[Tensor]) -> Batch:
    """Return ``batch`` with other ``tensors``, in the order of :func:`batch_tensors`."""
    by_name: dict[str, Any] = dict(zip(batch_tensors(batch), tensors, strict=True))
    for name in ("obs", "extras", "goals"):
        by_name[name] = {key: by_name.pop(f"{name}/{key}") for key in getattr(batch, name)}
    return replace(batch, **by_name)


def _join_metrics(update: Update) -> Update:
    """Return ``update`` with metrics that are elements of one vector."""
    if name := next((name for name, value in update.metrics.items() if not isinstance(value, Tensor)), ""):
        raise RunError(f"the metric {name} is a number, which a recording repeats: expected a tensor. {WITHOUT}")
    values = [value.detach().reshape(()).float() for value in update.metrics.values()]
    return replace(update, metrics=MetricVector(tuple(update.metrics), torch.stack(values))) if values else update


def _make_output_copier(outputs: Update) -> Callable[[], Update]:
    """Return a function that copies ``outputs``, whose metrics are joined, with all its tensors."""
    metrics, priority = outputs.metrics, outputs.priority
    vectors = [metrics.vector] if isinstance(metrics, MetricVector) else []
    buffers = OutputBuffers([*vectors, *outputs.extras.values(), *([] if priority is None else [priority])])

    def copy() -> Update:
        copies = buffers()
        return Update(
            metrics=MetricVector(metrics.names, copies[0]) if isinstance(metrics, MetricVector) else {},
            priority=None if priority is None else copies[-1],
            extras=dict(zip(outputs.extras, copies[len(vectors) :], strict=False)),
        )

    return copy
