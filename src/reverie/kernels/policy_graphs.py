"""Acting on GPUs: what a policy computes is captured once as a CUDA graph and then replayed.

A function runs uncaptured if it waits for the device, changes Python values or cannot be captured. Replays give the
same numbers: they draw from the device's generator, and parameters are changed in place.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from reverie.algos.dreamer import LatentPolicy
from reverie.algos.planner import SearchPlanner
from reverie.core.errors import RunError
from reverie.core.tree import rebuilder, tensors_in
from reverie.core.types import Mode, Obs, Step
from reverie.kernels.capture import CudaGraphs, ModuleAddresses, describe_change, python_state
from reverie.nn.exploration import CapturableFunction

Outputs = tuple[Tensor, ...]
PolicyFunction = Callable[[Obs], Outputs]
StatefulPolicy = LatentPolicy | SearchPlanner

WARM_UPS = 2
"""Calls of each kind that run uncaptured first."""

MAX_KEYS = 4
"""Maximum number of captured kinds of inputs; each has its own memory."""

READ = ("reward", "is_first", "is_terminal")
"""What a policy with a state reads of a row in addition to its observations."""


class PolicyGraph:
    """Calls with inputs of one kind: the first run uncaptured, one is captured, the rest are replayed."""

    def __init__(self, inputs: Obs, recorder: CudaGraphs) -> None:
        self.recorder = recorder
        with torch.inference_mode(False):  # later calls may be outside of that mode, and write to them
            self.inputs: Obs = {name: torch.empty_like(x, device=recorder.device) for name, x in inputs.items()}
        self.outputs: Outputs = ()
        self.runs: int = 0
        self.supported: bool = True
        self.replay: Callable[[], object] | None = None

    def __call__(self, function: PolicyFunction, inputs: Obs, module: nn.Module) -> Outputs:
        """Return ``function(inputs)``. The next call overwrites the result."""
        for name, x in inputs.items():
            self.inputs[name].copy_(x, non_blocking=True)
        if self.replay is not None:
            self.replay()
            return self.outputs
        with torch.inference_mode(False), torch.no_grad():  # a replay could not write to tensors of inference mode
            return self._prepare(function, module)

    def _prepare(self, function: PolicyFunction, module: nn.Module) -> Outputs:
        self.runs += 1
        if self.runs <= WARM_UPS:
            before = python_state(module)
            outputs, obstacle = self.recorder.warm_up(lambda: function(self.inputs))
            self.supported = self.runs < WARM_UPS or not (obstacle or describe_change(before, python_state(module)))
            return outputs
        try:
            self.outputs, self.replay = self.recorder.capture(lambda: function(self.inputs))
        except RunError:
            self.supported = False
            return function(self.inputs)
        return self.outputs


class PolicyGraphs:
    """The captures of one function, by the kind of its inputs."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        """``module`` has all parameters and buffers that the function reads."""
        self.device = device
        self.lock: threading.Lock = threading.Lock()
        """Held until the outputs are copied: one agent may act in several threads."""
        self.recorder: CudaGraphs = CudaGraphs(device)
        self._start(module)

    def _start(self, module: nn.Module) -> None:
        self.addresses: ModuleAddresses = ModuleAddresses(module)
        self.by_key: dict[Any, PolicyGraph] = {}

    def __call__(self, function: PolicyFunction, inputs: Obs, module: nn.Module, kind: Hashable = None) -> Outputs:
        """Return ``function(inputs)``, for inputs on any device. The next call overwrites the result.

        ``kind``: everything else that determines what the function does.
        """
        if self.addresses.find_change():
            self._start(module)
        key = (kind, *[(name, x.shape, x.dtype) for name, x in inputs.items()])
        graph = self.by_key.get(key)
        if graph is None and len(self.by_key) < MAX_KEYS:
            graph = self.by_key[key] = PolicyGraph(inputs, self.recorder)
        if graph is None or not graph.supported or self.addresses.watch.hook:
            return function({name: x.to(self.device, non_blocking=True) for name, x in inputs.items()})
        return graph(function, inputs, module)


_graphs: weakref.WeakKeyDictionary[Any, PolicyGraphs] = weakref.WeakKeyDictionary()
"""The captures of each function; its copies have their own."""


def _graphs_of(owner: object, module: nn.Module, device: torch.device) -> PolicyGraphs:
    """Return the captures of ``owner``: a function or a policy."""
    graphs = _graphs.get(owner)
    return _graphs.setdefault(owner, PolicyGraphs(module, device)) if graphs is None else graphs


# ---------------------------------------------------------------- kernels


def supports_graph(function: CapturableFunction, obs: Obs, device: torch.device | None = None) -> bool:
    """Return whether :func:`call_captured` can be used."""
    used = device or next(iter(obs.values())).device
    return used.type == "cuda" and function.graph and not torch.is_grad_enabled()


def call_captured(function: CapturableFunction, obs: Obs) -> Tensor:
    """Compute ``CapturableFunction.__call__``."""
    graphs = _graphs_of(function, function.network, next(iter(obs.values())).device)
    with graphs.lock:
        return graphs(lambda x: (function.function(x),), obs, function.network)[0].clone()


def supports_act(function: CapturableFunction, obs: Obs, rows: Tensor, device: torch.device) -> bool:
    """Return whether :func:`act_captured` can be used."""
    return supports_graph(function, obs, device)


def act_captured(function: CapturableFunction, obs: Obs, rows: Tensor, device: torch.device) -> Tensor:
    """Compute ``CapturableFunction.beside``."""
    graphs = _graphs_of(function, function.network, device)
    with graphs.lock:
        y = graphs(lambda x: (function.function(x),), obs, function.network)[0]
        return y.to(rows.device, copy=True)


def supports_choose(policy: StatefulPolicy, step: Step, state: object, mode: Mode) -> bool:
    """Return whether :func:`choose_captured` can be used. Without a search, a planner has nothing to capture."""
    learner = policy.learner
    searches = mode != "random" or not isinstance(policy, SearchPlanner)
    return bool(searches and learner.device.type == "cuda" and learner.graph and not torch.is_grad_enabled())


def choose_captured(policy: StatefulPolicy, step: Step, state: object, mode: Mode) -> Any:
    """Compute the ``choose`` of a policy whose state is a tuple of tensors."""
    learner = policy.learner
    choose: Any = (SearchPlanner if isinstance(policy, SearchPlanner) else LatentPolicy).choose
    inputs = {f"obs/{key}": x for key, x in step.obs.items()} | {name: getattr(step, name) for name in READ}
    inputs |= {f"state/{i}": x for i, x in enumerate(tensors_in(state))}
    rebuild = rebuilder(state)

    def function(x: Obs) -> Outputs:
        obs = {key: x[f"obs/{key}"] for key in step.obs}
        rows = replace(step, obs=obs, **{name: x[name] for name in READ})
        before = rebuild(tensor for name, tensor in x.items() if name.startswith("state/"))
        return tuple(tensors_in(choose.definition(policy, rows, before, mode)))

    graphs = _graphs_of(policy, learner, learner.device)
    with graphs.lock:
        return rebuild(x.clone() for x in graphs(function, inputs, learner, mode == "eval"))
