"""Fast inference of small networks on CPUs: the forward pass is captured once and then replayed (``kernels/tape.py``).

On CPUs, networks of :class:`ReluMLP` and convolutions are captured, as their parameters are their only state, and so
are functions marked as ``static``; all others are called. A replay draws new random numbers.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reverie.core.types import Obs
from reverie.kernels.compiler import load_kernels
from reverie.kernels.tape import Tape
from reverie.nn.cnn import ConvReLU
from reverie.nn.exploration import CapturableFunction
from reverie.nn.on_policy_networks import PolicyActor
from reverie.nn.relu_mlp import NoisyMLP, ReluMLP

MAX_KEYS = 8
"""Largest number of captures, one for each kind of input; inputs of further kinds call the network."""


class Capture(NamedTuple):
    """A captured forward pass with its input and output buffers."""

    tape: Tape
    obs: Obs  # copied into before a replay
    answer: Tensor  # contains the result after a replay
    lock: threading.Lock  # held while the buffers are in use: one agent may act in several threads


class Captures:
    """The captures of an inference, by the addresses of its parameters and the shapes of its inputs."""

    def __init__(self, inference: CapturableFunction) -> None:
        network = inference.network
        self.numbers: list[Tensor] = [*network.parameters(), *network.buffers()]
        self.by_key: dict[Any, Capture | None] = {}
        owners = [m for m in network.modules() if [*m.parameters(recurse=False), *m.buffers(recurse=False)]]
        is_stateless = bool(owners) and all(
            type(owner) in (ReluMLP, NoisyMLP, PolicyActor, ConvReLU) for owner in owners
        )
        self.supported: bool = inference.static or is_stateless


def get_captures(inference: CapturableFunction) -> Captures:
    """Return the captures of an inference."""
    if inference.fast is None:
        inference.fast = Captures(inference)
    captures: Captures = inference.fast
    return captures


def supports_infer(inference: CapturableFunction, obs: Obs) -> bool:
    """Return whether :func:`infer_captured` can be used."""
    if torch.is_grad_enabled():
        return False
    captures = get_captures(inference)
    used = (*captures.numbers[:1], *obs.values())  # the others are where the first is
    return captures.supported and all(x.is_cpu for x in used)


def infer_captured(inference: CapturableFunction, obs: Obs) -> Tensor:
    """Compute ``CapturableFunction.__call__``, bit-identical, in a tensor that the caller may change."""
    captures = get_captures(inference)
    # A capture contains memory addresses, and the parameters may have moved since.
    addresses = [x.data_ptr() for x in captures.numbers]
    key = (torch.get_num_threads(), *addresses, *[(name, x.shape, x.dtype) for name, x in obs.items()])
    capture = captures.by_key.get(key)
    if capture is None:
        return _capture(inference, captures, key, obs)
    with capture.lock:
        for name, x in obs.items():
            capture.obs[name].copy_(x)
        capture.tape.replay()
        return capture.answer.clone()


def _capture(inference: CapturableFunction, captures: Captures, key: Any, obs: Obs) -> Tensor:
    """Call the network, and capture the call if inputs of this kind are new."""
    if key in captures.by_key or len(captures.by_key) == MAX_KEYS:
        return inference.function(obs)
    load_kernels()  # the first call tests them, which a tape could not repeat
    with torch.inference_mode(False), torch.no_grad():  # buffers made in inference mode could not be used outside
        inputs = {name: x.clone() for name, x in obs.items()}
        with Tape() as tape:
            answer = inference.function(inputs)
    captures.by_key[key] = None if tape.obstacle else Capture(tape, inputs, answer, threading.Lock())
    return answer.clone()
