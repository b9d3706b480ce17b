"""A policy as a function of tensors, ``(observation, is_first, state, noise) -> (action, state)``, and as a graph."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_flatten_with_path, tree_leaves, tree_unflatten

from reverie.agent.conversion import action_bounds, action_statistics
from reverie.agent.player import Player
from reverie.algos.base import Algorithm
from reverie.core.obs_conversion import TINY
from reverie.core.protocols import Policy
from reverie.core.spaces import classes_of, column, get_at_path, iter_leaves
from reverie.core.specs import MASK_KEY, ObsPart
from reverie.core.types import Mode, PolicyOutput, Step
from reverie.nn.preprocess import Preprocessor

ATOL = 1e-5
"""Largest difference from the agent: of the state, and of actions scaled to [-1, 1], in float32."""

# ---------------------------------------------------------------- what is random

UNIFORM, NORMAL, INTEGERS, EXPONENTIAL = "uniform in [0, 1)", "standard normal", "integers in [0, high)", "exponential"
RANDOM_FUNCTIONS: dict[Any, str] = {
    torch.rand: UNIFORM, torch.rand_like: UNIFORM, torch.randn: NORMAL, torch.randn_like: NORMAL,
    torch.randint: INTEGERS, Tensor.exponential_: EXPONENTIAL,
}  # fmt: skip
"""Functions that draw random numbers."""


class NoiseDraw(NamedTuple):
    """Random numbers drawn by a policy."""

    kind: str
    values: Tensor
    high: int | None


class NoiseRecorder(TorchFunctionMode):
    """Records the random numbers drawn inside the context; or, if they are ``given``, replays them."""

    def __init__(self, recorded: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.drawn: list[NoiseDraw] = []
        self._recorded = None if recorded is None else iter(recorded)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._recorded is not None and func is torch.special.ndtri:
            return _normal_quantile(*args)  # not supported in ONNX
        if self._recorded is not None and func in RANDOM_FUNCTIONS:
            return next(self._recorded)
        values = func(*args, **(kwargs or {}))
        if func in RANDOM_FUNCTIONS:
            high = args[0] if func is torch.randint else None
            self.drawn.append(NoiseDraw(RANDOM_FUNCTIONS[func], values.clone(), high))
        return values


CENTER = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
          -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
QUANTILE_TAIL_COEFFS = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
        0.00943887047, 1.00167406, 2.83297682)  # fmt: skip
"""Polynomial coefficients, highest power first."""


def _normal_quantile(p: Tensor) -> Tensor:
    """Return the quantile function of the standard normal distribution for p from 1e-7 to 1 - 1e-7.

    Giles, "Approximating the erfinv function", GPU Computing Gems 2, 2012: errors are below 1e-6, as accurate as
    float32.
    """
    x = p.double()
    w = -(4 * x * (1 - x)).log()
    center, tail = w - 2.5, w.sqrt() - 3
    ratio = torch.where(w < 5, functools.reduce(lambda y, c: y * center + c, CENTER, 0 * w),
                        functools.reduce(lambda y, c: y * tail + c, QUANTILE_TAIL_COEFFS, 0 * w))  # fmt: skip
    return (2**0.5 * (2 * x - 1) * ratio).to(p.dtype)


# ---------------------------------------------------------------- the policy as a function of tensors


@dataclass(frozen=True)
class TensorSpec:
    """An input or output tensor."""

    name: str
    role: str
    example: Tensor
    """An example value; a constant of the graph if the function does not use the input."""
    metadata: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return its description for policy.json."""
        shape, dtype = list(self.example.shape), str(self.example.dtype).removeprefix("torch.")
        return {"name": self.name, "role": self.role, "shape": shape, "dtype": dtype, **self.metadata}


class PolicyFunction(nn.Module):
    """A policy as a function of tensors: from ``used_inputs``, in this order, to ``outputs``."""

    def __init__(self, player: Player, mode: Mode, rows: int | None) -> None:
        """``player`` is on the CPU in float32. ``rows``: N, the number of observations per call; None: any number."""
        super().__init__()
        self.any_rows: bool = rows is None
        rows = 2 if rows is None else rows  # a graph traced with one row would only accept one
        self.rows: int = rows
        self.space: spaces.Space[Any] = player.action_space
        self.learner: Algorithm = player.algo.requires_grad_(False)
        self.mode = mode
        self.policy: Policy[Any] = player.algo.policy
        obs_spec, state = player.observer.single, player.initial_state(rows)
        self.inner: str = "state"
        if (depth := player.config.env.frame_stack) > 1:
            self.policy = Preprocessor(obs_spec, frame_stack=depth, frame_stack_keys=".*").policy(
                self.policy, torch.device("cpu")
            )
            state, self.inner = self.policy.initial(rows)._replace(state=state), "state/state"
        self.blank: list[Any]
        self.tree: TreeSpec
        self.blank, self.tree = tree_flatten(state)
        self.carried: list[TensorSpec] = [
            TensorSpec(name, "state", x, {"initial": _initial(x)}) for name, x in _leaves(state, "state")
        ]
        self.inputs: list[TensorSpec] = [_obs_input(player, key, part, rows) for key, part in obs_spec.items()]
        self.inputs.append(TensorSpec("is_first", "is_first", torch.ones(rows, dtype=torch.bool), {}))
        self.inputs.append(TensorSpec("reward", "reward", torch.zeros(rows), {}))
        self.inputs += self.carried
        with FakeTensorMode(allow_non_fake_inputs=True) as fake, NoiseRecorder() as draws:
            action, _ = self._act({spec.name: fake.from_tensor(spec.example) for spec in self.inputs})
        self.noise: list[TensorSpec] = [_noise(number, draw) for number, draw in enumerate(draws.drawn)]
        self.inputs += self.noise
        self.leaves: list[tuple[tuple[Any, ...], spaces.Space[Any]]] = list(iter_leaves(player.action_space))
        self.cuts: dict[str, slice] = player.action_spec.slices()
        blank = torch.zeros(action.shape)
        self.actions: list[TensorSpec] = [
            TensorSpec(column("action", path), "action", self._unflatten_action(blank, path, leaf), _range(leaf))
            for path, leaf in self.leaves
        ]
        self.state_names: list[str] = [spec.name for spec in self.carried]
        self.input_names: list[str] = [spec.name for spec in self.inputs]

    @property
    def used_inputs(self) -> list[TensorSpec]:
        """The inputs that the function uses."""
        return [spec for spec in self.inputs if spec.name in self.input_names]

    @property
    def outputs(self) -> list[TensorSpec]:
        """Actions, and the state after them."""
        carried = [spec for spec in self.carried if spec.name in self.state_names]
        return [*self.actions, *(TensorSpec(f"next_{p.name}", "state", p.example, {"input": p.name}) for p in carried)]

    def state_inputs(self, state: Any) -> dict[str, Tensor]:
        """Return a ``state`` of the agent's policy as inputs."""
        return {name: x for name, x in _leaves(state, self.inner) if name in self.state_names}

    def noise_inputs(self, drawn: Sequence[NoiseDraw]) -> dict[str, Tensor]:
        """Return the noise that a policy has drawn as inputs.

        Some draws can be missing if the policy did not need them.
        """
        remaining, inputs = list(drawn), {}
        for spec in self.noise:
            signature = spec.metadata["distribution"], spec.example.shape
            if remaining and (remaining[0].kind, remaining[0].values.shape) == signature:
                inputs[spec.name] = remaining.pop(0).values
        return inputs

    def max_difference(
        self, actions: Sequence[Tensor], expected: Any, output: PolicyOutput | None = None
    ) -> np.ndarray:
        """Return the largest difference between ``actions`` and ``expected``, scaled to [-1, 1], ``[N]``.

        Classes whose logit or value in ``output`` equals the best, like the ``expected`` class, do not count as
        different.
        """
        statistics = {} if output is None else action_statistics(output.decision, self.space)
        out = np.zeros(self.rows)
        for (path, leaf), action in zip(self.leaves, actions, strict=False):
            half = action_bounds(leaf)[2] if isinstance(leaf, spaces.Box) and leaf.dtype.kind == "f" else 1.0
            gap = np.abs(action.double().numpy() - get_at_path(expected, path)) / np.maximum(half, TINY)  # [N, *shape]
            probs, values = (statistics.get(column(name, path)) for name in ("probabilities", "values"))
            score = values if probs is None else probs.log()
            if score is not None:
                index = (action - torch.from_numpy(np.asarray(classes_of(leaf)[1]))).unsqueeze(-1)
                best = score.amax(-1)
                worse = best - score.gather(-1, index).squeeze(-1)
                gap = np.where(worse <= ATOL * best.abs().clamp(min=1), 0.0, gap)
            out = np.maximum(out, gap.reshape(self.rows, -1).max(-1, initial=0.0))
        return out

    def _act(self, values: dict[str, Tensor]) -> tuple[Tensor, Any]:
        no = torch.zeros(values["is_first"].shape, dtype=torch.bool)
        obs = {name.removeprefix("obs/"): x for name, x in values.items() if name.startswith("obs/")}
        step = Step(obs=obs, reward=values["reward"], is_first=values["is_first"], is_last=no, is_terminal=no)
        carried = iter(self.carried)
        leaves = [None if x is None else values[next(carried).name] for x in self.blank]
        state = tree_unflatten(leaves, self.tree)
        result: tuple[Tensor, Any] = self.policy.act(step, state, self.mode)
        return result

    def _unflatten_action(self, flat: Tensor, path: tuple[Any, ...], leaf: Any) -> Tensor:
        """Convert actions to the environment's format, ``[N, *shape]``, like ``core/action_codec.py: ActionCodec``."""
        part = flat[:, self.cuts["/".join(map(str, path)) or "action"]]
        if not isinstance(leaf, spaces.Box):
            counts, start = classes_of(leaf)
            choices = torch.split(part, counts.reshape(-1).tolist(), -1)
            chosen = torch.stack([choice.argmax(-1) for choice in choices], -1).reshape(flat.shape[0], *counts.shape)
            return chosen + torch.from_numpy(np.asarray(start))
        low, high, half, middle = (torch.from_numpy(np.asarray(x, np.float32)) for x in action_bounds(leaf))
        scaled = part.clamp(-1, 1).reshape(flat.shape[0], *leaf.shape) * half + middle
        is_integer = leaf.dtype.kind != "f"
        inside = torch.minimum(torch.maximum(scaled.round() if is_integer else scaled, low), high)
        return inside.long() if is_integer else inside

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of :attr:`outputs` for those of :attr:`used_inputs`."""
        values = {spec.name: spec.example for spec in self.inputs}
        if self.any_rows:
            values = {name: x[:1].expand(inputs[0].shape[0], *x.shape[1:]) for name, x in values.items() if x.ndim}
        values |= dict(zip(self.input_names, inputs, strict=True))
        with NoiseRecorder([values[spec.name] for spec in self.noise]):
            action, state = self._act(values)
        leaves = (x for x in tree_leaves(state) if x is not None)
        after = [x for spec, x in zip(self.carried, leaves, strict=True) if spec.name in self.state_names]
        return tuple(self._unflatten_action(action, *leaf) for leaf in self.leaves) + tuple(after)

    def graph(self) -> torch.export.ExportedProgram:
        """Return the function as a graph with only the inputs, states and weights that matter."""
        has_unused = True
        while has_unused:
            # The examples themselves are constants of the graph.
            examples = tuple(spec.example.clone() for spec in self.used_inputs)
            axes = (tuple({0: torch.export.Dim("batch")} for _ in examples),) if self.any_rows else None
            program = torch.export.export(self, examples, dynamic_shapes=axes, strict=False)
            has_unused = self._remove_unused(program)
        if self.any_rows:
            self.rows = 1
            groups = self.inputs, self.noise, self.actions
            self.inputs, self.noise, self.actions = ([_first_row(spec) for spec in specs] for specs in groups)
        return program

    def _remove_unused(self, program: torch.export.ExportedProgram) -> bool:
        """Remove everything on which no action depends, now or later; return whether anything was removed."""
        nodes = {node.name: node for node in program.graph.nodes}
        input_of_node = dict(zip(program.graph_signature.user_inputs, self.input_names, strict=True))
        outputs = [nodes.get(str(name)) for name in program.graph_signature.user_outputs]
        next_outputs = dict(zip(self.state_names, outputs[len(self.leaves) :], strict=True))
        used_nodes: set[Any] = set()
        pending = outputs[: len(self.leaves)]
        while pending:
            node = pending.pop()
            if node is not None and node not in used_nodes and node.target is not torch.ops.aten.sym_size.int:
                used_nodes.add(node)
                pending += [*node.all_input_nodes, next_outputs.get(input_of_node.get(node.name, ""))]
        used_names = {name for node, name in input_of_node.items() if nodes[node] in used_nodes}
        has_removed = used_names < set(self.input_names)
        self.state_names = [name for name in self.state_names if name in used_names]
        self.input_names = [name for name in self.input_names if name in used_names]
        parameter_names = program.graph_signature.inputs_to_parameters | program.graph_signature.inputs_to_buffers
        for node, parameter_name in parameter_names.items():
            if not nodes[node].users:
                module, _, name = parameter_name.rpartition(".")
                owner = self.get_submodule(module)
                unused: Any = getattr(owner, name)
                delattr(owner, name)
                setattr(owner, name, unused.detach())  # not a weight: may be accessed without being read
                has_removed = True
        return has_removed


def _obs_input(player: Player, key: str, part: ObsPart, rows: int) -> TensorSpec:
    like = torch.ones if key == MASK_KEY else torch.zeros
    example = like(rows, *part.shape, dtype=getattr(torch, part.dtype))
    metadata: dict[str, Any] = {"kind": part.kind}
    if part.kind == "image":
        metadata |= {"low": part.low, "high": part.high, "axes": "batch, height, width, channels"}
    elif part.kind == "categorical":
        metadata |= {"classes": list(part.classes)}
    elif part.declared_bounds:
        metadata |= {"range": part.declared_bounds}
    role = "mask" if key == MASK_KEY else "observation"
    return TensorSpec(f"obs/{key}", role, example, metadata | player.observer.origin(key))


def _noise(number: int, drawn: NoiseDraw) -> TensorSpec:
    metadata = {"distribution": drawn.kind} | ({} if drawn.high is None else {"high": drawn.high})
    return TensorSpec(f"noise/{number}", "noise", torch.zeros(drawn.values.shape, dtype=drawn.values.dtype), metadata)


def _first_row(spec: TensorSpec) -> TensorSpec:
    return replace(spec, example=spec.example[:1] if spec.example.ndim else spec.example)


def _leaves(state: Any, root: str) -> list[tuple[str, Tensor]]:
    """Return the tensors of a state by name."""
    paths = [(path, x) for path, x in tree_flatten_with_path(state)[0] if x is not None]
    return [("/".join([root, *(str(getattr(key, "name", None) or getattr(key, "key", None) or getattr(key, "idx", 0))
                               for key in path)]), x) for path, x in paths]  # fmt: skip


def _initial(x: Tensor) -> Any:
    """Return an initial state: one number if all elements are equal, else nested lists."""
    values = x.float() if x.dtype == torch.bfloat16 else x
    return values.flatten()[0].item() if (values == values.flatten()[0]).all() else values.tolist()


def _range(leaf: Any) -> dict[str, Any]:
    if isinstance(leaf, spaces.Box):
        return {"space": str(leaf), "low": leaf.low.tolist(), "high": leaf.high.tolist()}
    counts, start = classes_of(leaf)
    return {"space": str(leaf), "low": start.tolist(), "high": (start + counts - 1).tolist()}
