"""The deterministic actions of a policy as a function of tensors, and as a graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten_with_path, tree_leaves, tree_unflatten

from reverie.agent.conversion import action_bounds, action_statistics
from reverie.agent.player import Player
from reverie.core.errors import ConfigError
from reverie.core.obs_conversion import TINY
from reverie.core.spaces import classes_of, column, iter_leaves
from reverie.core.specs import MASK_KEY, ActionSpec, ObsPart
from reverie.core.types import Step
from reverie.datasets.reader import Space
from reverie.nn.preprocess import Preprocessor, inspect_policy
from reverie.run.turn import random_flat_actions

UNIFORM, NORMAL, EXPONENTIAL = "uniform in [0, 1)", "standard normal", "exponential"
RANDOM_FUNCTIONS: dict[Any, str] = {
    torch.rand: UNIFORM, torch.rand_like: UNIFORM, torch.randn: NORMAL, torch.randn_like: NORMAL,
    Tensor.exponential_: EXPONENTIAL,
}  # fmt: skip
"""Distributions by the functions that draw from them."""
SCORES = "probabilities", "values"
"""Outputs of which the chosen class has the largest."""
NOISE: dict[str, Callable[..., Tensor]] = {
    UNIFORM: torch.rand, NORMAL: torch.randn, EXPONENTIAL: lambda *shape: torch.empty(shape).exponential_()
}  # fmt: skip


class NoiseRecorder(TorchFunctionMode):
    """Records what random functions return inside the context; they return the ``replayed`` values, if any."""

    def __init__(self, replayed: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.drawn: list[tuple[str, Tensor]] = []
        self._replayed = None if replayed is None else iter(replayed)

    def __torch_function__(self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func not in RANDOM_FUNCTIONS:
            return func(*args, **(kwargs or {}))
        values = func(*args, **(kwargs or {})) if self._replayed is None else next(self._replayed)
        self.drawn.append((RANDOM_FUNCTIONS[func], values))
        return values


@dataclass(frozen=True)
class TensorSpec:
    """An input or output tensor."""

    name: str
    role: str
    example: Tensor
    """An example value; a constant of the graph if the function does not use the input."""
    metadata: Mapping[str, Any]


class PolicyFunction(nn.Module):
    """A policy as a function of tensors: from ``inputs``, in this order, to ``outputs``.

    The learner is not a submodule, so that the graph has no weights that it does not use.
    """

    def __init__(self, player: Player, batch: int | None) -> None:
        """``player`` is on the CPU in float32. ``batch``: N, the number of observations per call; None: any number."""
        super().__init__()
        rows = batch or 2  # a graph traced with one row would only accept one
        self.batch = batch
        self.squashing: str = ""
        self.player = player
        self.policy: Any = player.algo.policy
        obs_spec, state = player.observer.single, player.initial_state(rows)
        if (depth := player.config.env.frame_stack) > 1:
            stacker = Preprocessor(obs_spec, frame_stack=depth, frame_stack_keys=".*")
            self.policy = stacker.policy(self.policy, torch.device("cpu"))
            state = self.policy.initial(rows)._replace(state=state)
        leaves, tree = tree_flatten_with_path(state)  # None: not a tensor, but a leaf
        self.tree: Any = tree
        self.state_names: list[str | None] = [None if x is None else _name(path) for path, x in leaves]
        self.inputs: list[TensorSpec] = [_obs_input(player, key, part, rows) for key, part in obs_spec.items()]
        self.inputs.append(TensorSpec("is_first", "is_first", torch.ones(rows, dtype=torch.bool), {}))
        self.inputs.append(TensorSpec("reward", "reward", torch.zeros(rows), {}))
        self.inputs += [
            TensorSpec(_name(path), "state", x, {"initial": _initial(x)}) for path, x in leaves if x is not None
        ]
        outputs, drawn = self._act({spec.name: spec.example for spec in self.inputs}, None)
        noise = [TensorSpec(f"noise/{i}", "noise", x, {"distribution": kind}) for i, (kind, x) in enumerate(drawn)]
        self.inputs += noise
        self.noise_names: list[str] = [spec.name for spec in noise]
        self.unused: list[TensorSpec] = []
        self.outputs: list[TensorSpec] = [self._output(name, x) for name, x in outputs.items()]

    def _output(self, name: str, example: Tensor) -> TensorSpec:
        if name.startswith("next_"):
            return TensorSpec(name, "state", example, {"input": name.removeprefix("next_")})
        leaf = {column("action", path): leaf for path, leaf in iter_leaves(self.player.action_space)}.get(name)
        if leaf is None:
            return TensorSpec(name, "distribution", example, {"squash": self.squashing} if name[:4] == "mean" else {})
        return TensorSpec(name, "action", example, _range(leaf))

    def _act(
        self, values: Mapping[str, Tensor], noise: Sequence[Tensor] | None
    ) -> tuple[dict[str, Tensor], list[tuple[str, Tensor]]]:
        """Return the outputs by name, and the random numbers drawn, which are ``noise`` if it is given."""
        no, space = torch.zeros_like(values["is_first"]), self.player.action_space
        obs = {name.removeprefix("obs/"): x for name, x in values.items() if name.startswith("obs/")}
        step = Step(obs=obs, reward=values["reward"], is_first=values["is_first"], is_last=no, is_terminal=no)
        state = tree_unflatten([None if name is None else values[name] for name in self.state_names], self.tree)
        with NoiseRecorder(noise) as draws:
            action, after = self.policy.act(step, state, "eval")
        cuts = self.player.action_spec.slices()
        outputs = {
            column("action", path): _to_env_action(action[:, cuts["/".join(map(str, path)) or "action"]], leaf)
            for path, leaf in iter_leaves(space)
        }
        with contextlib.suppress(ConfigError), NoiseRecorder([x for _, x in draws.drawn]):
            decision = inspect_policy(self.policy, step, state).decision
            self.squashing = getattr(decision, "squashing", "")
            outputs |= {} if isinstance(decision, Tensor) else action_statistics(decision, space, squashed=False)
        after_leaves = zip(self.state_names, tree_leaves(after), strict=True)
        return outputs | {f"next_{name}": x for name, x in after_leaves if name is not None}, draws.drawn

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of :attr:`outputs` for those of :attr:`inputs`."""
        values = {spec.name: spec.example for spec in self.unused}
        if self.batch is None:
            values = {name: x[:1].expand(inputs[0].shape[0], *x.shape[1:]) for name, x in values.items() if x.ndim}
        values |= dict(zip([spec.name for spec in self.inputs], inputs, strict=True))
        outputs, _ = self._act(values, [values[name] for name in self.noise_names])
        return tuple(outputs[spec.name] for spec in self.outputs)

    def graph(self) -> torch.export.ExportedProgram:
        """Return the function as a graph, without the inputs and states that matter for no action, now or later."""
        program: torch.export.ExportedProgram = self._export()
        self.remove_unused(program.graph, program.graph_signature.user_inputs, program.graph_signature.user_outputs)
        program = self._export().run_decompositions({})
        merge_duplicates(program.graph)
        program.graph_module.recompile()
        return program

    def _export(self) -> torch.export.ExportedProgram:
        examples = tuple(spec.example.clone() for spec in self.inputs)  # the examples themselves would be constants
        axes = (tuple({0: torch.export.Dim("batch")} for _ in examples),) if self.batch is None else None
        return torch.export.export(self, examples, dynamic_shapes=axes, strict=False)

    def remove_unused(self, graph: torch.fx.Graph, variables: Iterable[Any], results: Iterable[Any]) -> None:
        """Remove from :attr:`inputs` and :attr:`outputs` the inputs and states that matter for no action, now or later.

        ``variables`` and ``results``: the names of their nodes in a ``graph`` of the function.
        """
        nodes = {node.name: node for node in graph.nodes}
        input_names = dict(zip(variables, (spec.name for spec in self.inputs), strict=True))
        outputs = dict(zip((spec.name for spec in self.outputs), results, strict=True))
        pending, used = [outputs[spec.name] for spec in self.outputs if spec.role != "state"], set[str]()
        while pending:
            node = nodes.get(str(pending.pop()))
            if node is not None and node.name not in used and node.target is not torch.ops.aten.sym_size.int:
                used.add(node.name)
                pending += [x.name for x in node.all_input_nodes]
                pending.append(outputs.get(f"next_{input_names.get(node.name)}"))
        names = {name for node, name in input_names.items() if node in used}
        self.unused = [spec for spec in self.inputs if spec.name not in names]
        self.inputs = [spec for spec in self.inputs if spec.name in names]
        self.outputs = [spec for spec in self.outputs if spec.role != "state" or spec.metadata["input"] in names]

    def random_inputs(self, number: int) -> dict[str, Tensor]:
        """Return the inputs of the call of this ``number``: random, in episodes of 50 calls; the state is initial.

        A function of any number of rows is called with one and with three.
        """
        rows = 1 + 2 * (number % 2) if self.batch is None else self.batch
        values = {spec.name: spec.example for spec in self.inputs}
        for spec in (spec for spec in self.inputs if spec.role == "noise"):
            size, *trailing = spec.example.shape
            values[spec.name] = NOISE[spec.metadata["distribution"]](rows if self.batch is None else size, *trailing)
        for key, part in self.player.observer.single.items():
            values[f"obs/{key}"] = random_observation(part, rows, self.player.action_spec)
        return values | {"is_first": torch.full((rows,), number % 50 == 0), "reward": torch.randn(rows)}

    def max_difference(self, actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
        """Return the largest difference between outputs: relative above 1, of actions scaled to [-1, 1].

        The difference of a class from the ``expected`` one is that of their probabilities or values.
        """
        outputs = dict(zip([spec.name for spec in self.outputs], zip(actual, expected, strict=True), strict=True))
        for path, leaf in iter_leaves(self.player.action_space):
            name = column("action", path)
            a, b = outputs[name]
            if isinstance(leaf, spaces.Box):
                half = torch.from_numpy(np.maximum(action_bounds(leaf)[2], TINY))
                outputs[name] = a / half, b / half
            for scores in (outputs[key][1] for kind in SCORES if (key := column(kind, path)) in outputs):
                index = (torch.stack([a, b]) - torch.from_numpy(np.asarray(classes_of(leaf)[1]))).unsqueeze(-1)
                outputs[name] = scores.gather(-1, index[0]), scores.gather(-1, index[1])
        gaps = [
            torch.where(a == b, 0.0, (a.double() - b).abs() / b.double().abs().clamp(min=1)).nan_to_num(torch.inf)
            for a, b in outputs.values()
        ]
        return max(float(gap.max()) for gap in gaps if gap.numel())


def merge_duplicates(graph: torch.fx.Graph) -> None:
    """Compute once what ``act`` and ``inspect`` both compute."""
    nodes: dict[Any, Any] = {}
    returned = next(node for node in graph.nodes if node.op == "output").all_input_nodes
    for node in [node for node in graph.nodes if node.op in ("call_function", "get_attr") and node not in returned]:
        key = node.target, str(node.args), str(node.kwargs)
        if (first := nodes.setdefault(key, node)) is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _to_env_action(part: Tensor, leaf: Space) -> Tensor:
    """Convert flat actions ``[N, A]`` to those of the environment, ``[N, *shape]``, like ``core/action_codec.py``."""
    if not isinstance(leaf, spaces.Box):
        counts, start = classes_of(leaf)
        choices = torch.split(part, counts.reshape(-1).tolist(), -1)
        chosen = torch.stack([choice.argmax(-1) for choice in choices], -1).reshape(part.shape[0], *counts.shape)
        return chosen + torch.from_numpy(np.asarray(start))
    low, high, half, middle = (torch.from_numpy(np.asarray(x, np.float32)) for x in action_bounds(leaf))
    scaled = part.clamp(-1, 1).reshape(part.shape[0], *leaf.shape) * half + middle
    is_integer = leaf.dtype.kind != "f"
    inside = torch.minimum(torch.maximum(scaled.round() if is_integer else scaled, low), high)
    return inside.long() if is_integer else inside


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


def random_observation(part: ObsPart, rows: int, actions: ActionSpec) -> Tensor:
    """Return random observations ``[N, *shape]``; a mask allows at least one class of each choice."""
    shape = rows, *part.shape
    if part.kind == "mask":
        seed = int(torch.randint(2**31, ()))
        return (torch.rand(shape) < 0.5) | (random_flat_actions(actions, rows, np.random.default_rng(seed)) != 0)
    if part.kind == "image":
        return (torch.rand(shape) * (part.high - part.low) + part.low).to(getattr(torch, part.dtype))
    if part.kind in ("categorical", "player"):
        return (torch.rand(shape) * torch.tensor(part.classes).reshape(part.shape)).long()
    return torch.randn(shape)


def _name(path: Sequence[Any]) -> str:
    """Return the name of the input for the tensor at ``path`` of the state."""
    keys = (getattr(key, "name", None) or getattr(key, "key", None) or getattr(key, "idx", 0) for key in path)
    return "/".join(["state", *map(str, keys)])


def _initial(x: Tensor) -> Any:
    """Return an initial state: one number if all elements are equal, else nested lists."""
    values = x.float() if x.dtype == torch.bfloat16 else x
    return values.flatten()[0].item() if (values == values.flatten()[0]).all() else values.tolist()


def _range(leaf: Space) -> dict[str, Any]:
    if isinstance(leaf, spaces.Box):
        return {"space": str(leaf), "low": leaf.low.tolist(), "high": leaf.high.tolist()}
    counts, start = classes_of(leaf)
    return {"space": str(leaf), "low": start.tolist(), "high": (start + counts - 1).tolist()}
