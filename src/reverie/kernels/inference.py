"""Networks on CPUs without gradients, of policies and rollouts, are captured once and replayed (``kernels/tape.py``).

Networks of :class:`ReluMLP` and convolutions are captured, as their parameters are their only state, and so are
functions marked as ``static``; all others are called. A replay draws new random numbers.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reverie.core.protocols import Policy
from reverie.core.specs import MASK_KEY
from reverie.core.tree import rebuilder, tensors_in
from reverie.core.types import Batch, Mode, Obs, Step
from reverie.kernels.buffers import InputBuffers, OutputBuffers, is_on_cpu, layout_of
from reverie.kernels.compiler import load_kernels
from reverie.kernels.module_watch import ModuleWatch
from reverie.kernels.tape import Tape, current
from reverie.nn.cnn import ConvReLU
from reverie.nn.exploration import (
    CapturableFunction,
    EpsilonGreedy,
    Gaussian,
    GreedyPolicy,
    NoisyPolicy,
    OrnsteinUhlenbeck,
    SampledPolicy,
)
from reverie.nn.functional import is_traced
from reverie.nn.normalization import ObsNormalizer
from reverie.nn.on_policy_networks import PolicyActor, PolicyValue
from reverie.nn.preprocess import PreprocessedPolicy, Preprocessor
from reverie.nn.relu_mlp import NoisyMLP, ReluMLP
from reverie.objectives import estimators

MAX_KEYS = 8
"""Largest number of captures, one for each kind of input; inputs of further kinds call the network."""


class Capture(NamedTuple):
    """A captured call with its input and output buffers."""

    tape: Tape
    inputs: InputBuffers
    outputs: OutputBuffers
    rebuild: Callable[[Iterator[Tensor]], Any]
    lock: threading.Lock  # held while the buffers are in use: one agent may act in several threads

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        """Return the result for other inputs, in tensors that the caller may change."""
        with self.lock:
            self.inputs(tensors)
            self.tape.replay()
            return self.rebuild(iter(self.outputs()))


def _capture(function: Callable[[Any], Any], inputs: object) -> tuple[Any, Capture | None]:
    """Call ``function`` with copies of ``inputs``; return the result, and the capture if it can be repeated."""
    load_kernels()  # the first call tests them, which a tape could not repeat
    tensors, build = tensors_in(inputs), rebuilder(inputs)
    with torch.inference_mode(False), torch.no_grad():  # buffers made in inference mode could not be used outside
        copies = [x.clone() for x in tensors]
        with Tape() as tape:
            result = function(build(iter(copies)))
    outputs, rebuild = tensors_in(result), rebuilder(result)
    answer = rebuild(iter([x.clone() for x in outputs]))
    if tape.obstacle:
        return answer, None
    return answer, Capture(tape, InputBuffers(copies), OutputBuffers(outputs), rebuild, threading.Lock())


class Captures:
    """The captures of a function, by the addresses of its parameters and the shapes of its inputs."""

    def __init__(self, numbers: list[Tensor], supported: bool, networks: Sequence[nn.Module], owner: object) -> None:
        self.numbers = numbers
        self.by_key: dict[Any, Capture | None] = {}
        self.watches: list[ModuleWatch] = [ModuleWatch(network) for network in dict.fromkeys(networks)]
        self.supported: bool = supported and not any(watch.hook for watch in self.watches)
        self.parts: list[int] = _part_ids(owner)

    def have_expired(self, owner: object) -> bool:
        """Return whether an attribute of the function or policy, or one of its networks, was changed.

        New hooks are noticed at once, anything else after :class:`~reverie.core.kernel_dispatch.ModuleChanges`.
        """
        if not any(watch.has_hint() for watch in self.watches):
            return False
        return any(watch.find_change() for watch in self.watches) or _part_ids(owner) != self.parts

    def call(self, kind: Hashable, tensors: list[Tensor], function: Callable[[Any], Any], inputs: object) -> Any:
        """Return ``function(inputs)``; ``tensors`` are all in ``inputs``, and ``kind`` is all else that matters."""
        # A capture contains memory addresses, and the parameters may have moved since.
        addresses = tuple(map(Tensor.data_ptr, self.numbers))
        key = (kind, torch.get_num_threads(), addresses, *map(layout_of, tensors))
        capture = self.by_key.get(key)
        if capture is not None:
            return capture(tensors)
        if key in self.by_key or len(self.by_key) == MAX_KEYS:
            return function(inputs)
        result, self.by_key[key] = _capture(function, inputs)
        return result


def _part_ids(owner: object) -> list[int]:
    return [id(x) for name, x in vars(owner).items() if name != "fast"]


def get_captures(inference: CapturableFunction) -> Captures:
    """Return the captures of an inference, valid for the network as it is now."""
    if inference.fast is None or inference.fast.have_expired(inference):
        network = inference.network
        numbers = [*network.parameters(), *network.buffers()]
        inference.fast = Captures(numbers, inference.static or _is_stateless(network), [network], inference)
    captures: Captures = inference.fast
    return captures


def _is_stateless(network: nn.Module) -> bool:
    """Return whether the outputs of ``network`` depend on its numbers and inputs alone."""
    owners = [m for m in network.modules() if [*m.parameters(recurse=False), *m.buffers(recurse=False)]]
    return bool(owners) and all(type(owner) in (ReluMLP, NoisyMLP, PolicyActor, ConvReLU) for owner in owners)


def supports_infer(inference: CapturableFunction, obs: Obs) -> bool:
    """Return whether :func:`infer_captured` can be used."""
    if torch.is_grad_enabled() or current() is not None:
        return False
    captures = get_captures(inference)
    used = (*captures.numbers[:1], *obs.values())  # the others are where the first is
    return captures.supported and all(map(is_on_cpu, used))


def infer_captured(inference: CapturableFunction, obs: Obs) -> Tensor:
    """Compute ``CapturableFunction.__call__``, bit-identical, in a tensor that the caller may change."""
    captures: Captures = inference.fast  # as supports_infer has found it
    answer: Tensor = captures.call((*obs,), [*obs.values()], inference.function, obs)
    return answer


# ---------------------------------------------------------------- policies


STATELESS = (NoisyPolicy, SampledPolicy, GreedyPolicy)
"""Policies whose calls depend on their networks and inputs alone."""
REPEATABLE = (Gaussian, OrnsteinUhlenbeck, EpsilonGreedy, type(None))
"""Exploration that draws from PyTorch's generator alone; that of a user may do anything."""


def _captures_of(policy: Any, statistics: Preprocessor | None = None) -> Captures | None:
    """Return the captures of ``policy``, after an update of ``statistics``; None if its calls cannot be captured.

    A policy keeps the captures of its calls alone, behind its preprocessor and after statistics.
    """
    is_preprocessed = isinstance(policy, PreprocessedPolicy)
    inner = policy.inner if is_preprocessed else policy
    if type(inner) not in STATELESS:
        return None
    if inner.fast is None:
        inner.fast = {}
    captures: dict[tuple[bool, bool], Captures] = inner.fast
    kind = is_preprocessed, statistics is not None
    if kind not in captures or captures[kind].have_expired(inner):
        captures[kind] = new = _new_captures(inner, policy.preprocess.normalizer if is_preprocessed else None)
        new.numbers += [] if statistics is None else list(statistics.buffers())
    return captures[kind]


def _new_captures(policy: Any, normalizer: ObsNormalizer | None) -> Captures:
    exploration = getattr(policy, "noise", getattr(policy, "randomness", None))
    functions = [x for x in vars(policy).values() if isinstance(x, CapturableFunction)]
    captures, networks = [*map(get_captures, functions)], [x.network for x in functions]
    numbers = [x for capture in captures for x in capture.numbers]
    numbers += [x for _, part in normalizer.each for x in (part.shift, part.factor)] if normalizer is not None else []
    is_repeatable = type(exploration) in REPEATABLE and policy.device.type == "cpu"
    if normalizer is not None:
        networks.append(normalizer)
    return Captures(numbers, is_repeatable and all(capture.supported for capture in captures), networks, policy)


def supports_act(
    policy: object, step: Step, state: object, mode: Mode, statistics: Preprocessor | None = None
) -> bool:  # fmt: skip
    """Return whether :func:`act_captured` can be used: masks may draw again where an action is illegal."""
    if is_traced(step.is_first) or MASK_KEY in step.obs:
        return False
    captures = _captures_of(policy, statistics)
    used = step.obs.values() if captures is None else (*captures.numbers[:1], *step.obs.values())
    return captures is not None and captures.supported and all(map(is_on_cpu, used))


def supports_watch_and_act(statistics: Any, policy: object, step: Step, state: object, mode: Mode) -> bool:
    """Return whether :func:`watch_and_act_captured` can be used: not for custom statistics, which may do anything."""
    is_repeatable = type(statistics) is Preprocessor and statistics.repeats_updates(step)
    return is_repeatable and supports_act(policy, step, state, mode, statistics)


def watch_and_act_captured(
    statistics: Preprocessor, policy: Policy[Any], step: Step, state: object, mode: Mode
) -> tuple[Tensor, Any]:  # fmt: skip
    """Compute ``run/turn.py: watch_and_act``, bit-identical."""
    return act_captured(policy, step, state, mode, statistics)


_STEP_FIELDS = tuple(field.name for field in fields(Step))


def act_captured(
    policy: Policy[Any], step: Step, state: object, mode: Mode, statistics: Preprocessor | None = None
) -> tuple[Tensor, Any]:  # fmt: skip
    """Compute ``Policy.act``, bit-identical, in tensors that the caller may change; first update ``statistics``."""
    inner: Any = policy.inner if isinstance(policy, PreprocessedPolicy) else policy
    captures: Captures = inner.fast[inner is not policy, statistics is not None]  # as supports_act has found it
    rows = step.obs, step.reward, step.is_first, step.is_last, step.is_terminal
    tensors = [*step.obs.values(), *rows[1:], *tensors_in(state)]
    act: Any = type(policy).act.definition  # type: ignore[attr-defined]

    def function(inputs: Any) -> Any:
        rows, state = inputs
        step = Step(**dict(zip(_STEP_FIELDS, rows, strict=True)))
        if statistics is not None:
            statistics.update_statistics(step)
        return act(policy, step, state, mode)

    answer: tuple[Tensor, Any] = captures.call((mode, *step.obs), tensors, function, (rows, state))
    return answer


# ---------------------------------------------------------------- estimates of rollouts


MAX_ESTIMATED = 65_536
"""Largest rollout in numbers: a capture keeps all intermediate results, and large rollouts gain little."""
_estimates: weakref.WeakKeyDictionary[Any, tuple[Any, Captures]] = weakref.WeakKeyDictionary()
"""The settings and captures of each on-policy objective."""


def supports_estimates(objective: Any, batch: Batch, bonus: Tensor | None = None) -> bool:
    """Return whether :func:`estimates_captured` can be used: a custom estimator may do anything."""
    if bonus is not None or batch.extras or current() is not None or type(objective.network) is not PolicyValue:
        return False
    if sum(map(Tensor.numel, batch.tensors)) > MAX_ESTIMATED or not all(map(is_on_cpu, batch.tensors)):
        return False
    cfg, captures = _estimates.get(objective, (None, None))
    if captures is None or cfg is not objective.cfg or captures.have_expired(objective):
        cfg, network = objective.cfg, objective.network
        is_repeatable = cfg.graph and type(cfg.value_estimator).__module__ == estimators.__name__
        numbers = [*network.parameters(), *network.buffers()]
        captures = Captures(numbers, is_repeatable and _is_stateless(network), [network], objective)
        _estimates[objective] = cfg, captures
    return captures.supported and all(map(is_on_cpu, captures.numbers[:1]))


def estimates_captured(objective: Any, batch: Batch, bonus: Tensor | None = None) -> dict[str, Tensor]:
    """Compute ``OnPolicyObjective.estimates``, bit-identical, in tensors that the caller may change."""
    rows = batch.obs, *(getattr(batch, name) for name in _STEP_FIELDS[1:]), batch.action

    def function(rows: Any) -> Any:
        obs, *columns, action = rows
        part = replace(batch, obs=obs, action=action, **dict(zip(_STEP_FIELDS[1:], columns, strict=True)))
        return type(objective).estimates.definition(objective, part)

    answer: dict[str, Tensor] = _estimates[objective][1].call((*batch.obs,), [*tensors_in(rows)], function, rows)
    return answer
