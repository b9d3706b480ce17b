"""Functions of a learner as programs: PyTorch's core operations on one row, which a page runs (``program.js``).

A program is a JSON object. ``parts`` has its functions by name. Each has its inputs ``[variable, label, shape,
dtype]``, the distributions of its random inputs, its operations ``[variable, operation, arguments, shape, dtype]`` and
the variable of each output. ``tensors`` has the constants: weights, and what depends on weights alone.
"""

from __future__ import annotations

import base64
import functools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch._decomp import core_aten_decompositions
from torch.func import functionalize
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from reverie.agent.player import Player
from reverie.agent.policy_function import NOISE, NoiseRecorder, PolicyFunction, merge_duplicates, random_observation
from reverie.agent.world_model_inspector import WorldModelInspector, action_probabilities
from reverie.algos.base import INTERNAL_PREFIX
from reverie.algos.world_model import Context
from reverie.core.errors import ConfigError
from reverie.core.kernel_dispatch import use_only_kernels
from reverie.core.seeding import derived_seeds, seeded_rng
from reverie.core.types import Batch
from reverie.nn.state_space import Latent
from reverie.run.turn import random_flat_actions

Numbers = Literal["float32", "float16", "int8"]
"""How weights are stored; computations are in float32."""
MIN_ROUNDED, MIN_SCALED = 16, 256
"""Numbers of the smallest tensor that is stored in half precision, and with scales: biases and gains are small."""
LARGEST_HALF = 60_000.0
OPERATIONS = (
    "_log_softmax", "_softmax", "_to_copy", "abs", "add", "addmm", "alias", "all", "amax", "amin", "any", "argmax",
    "atanh", "baddbmm", "bitwise_and", "bitwise_not", "bitwise_or", "bmm", "cat", "ceil", "clamp", "clamp_max",
    "clamp_min", "clone", "constant_pad_nd", "convolution", "copy", "cos", "cumsum", "div", "elu", "embedding", "eq",
    "erf", "exp", "exp2", "expand", "expm1", "flip", "floor", "fmod", "full", "full_like", "gather", "ge", "gelu",
    "getitem", "gt", "le", "leaky_relu", "linalg_vector_norm", "log", "log1p", "logical_and", "logical_not",
    "logical_or", "lt", "max", "max_pool2d_with_indices", "maximum", "mean", "min", "minimum", "mm", "mul",
    "native_layer_norm", "ne", "neg", "permute", "pow", "prod", "reciprocal", "relu", "remainder", "repeat", "round",
    "rsqrt", "scalar_tensor", "scatter", "select", "sigmoid", "sign", "sin", "slice", "slice_scatter",
    "split_with_sizes", "sqrt", "squeeze", "sub", "sum", "tanh", "unsqueeze", "view", "where", "zeros_like",
)  # fmt: skip
"""What a program may compute: those of ``program.js``, and no others."""
IMPLIED = ("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking")
"""Arguments that the shape and dtype of the result tell."""
STATE_NAMES = f"{INTERNAL_PREFIX}deter", f"{INTERNAL_PREFIX}stoch"
Function = Callable[..., dict[str, Tensor]]
"""Maps tensors of one row, as keyword arguments, to tensors by name."""
PartFunction = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""Maps tensors of one row by label to tensors by label."""
HALF = 0.5
"""A difference of one-hot vectors in which another class is drawn is larger."""
TWO_HOT = "reward", f"{INTERNAL_PREFIX}value"
"""Predictions that are not compared: DreamerV3's are means over bins up to 4.8e8, where the last bit of a probability
shows."""
ROWS, OBSERVED = 12, 3
"""Rows of an episode in which a world model is compared, and how many of them it observes."""


@dataclass(frozen=True, eq=False)
class Part:
    """A function as a list of operations."""

    inputs: dict[str, Tensor]
    """An example of each input, in the order of :attr:`variables`, by its label."""
    variables: list[str]
    noise: dict[str, str]
    """The distributions of random inputs, by label."""
    outputs: dict[str, str]
    """The variable or constant of each output."""
    operations: list[torch.fx.Node]
    constants: dict[str, Tensor]
    source: PartFunction
    """The function itself."""

    def __call__(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs by label, for inputs by label."""
        return dict(zip(self.outputs, self.module(*(values[label] for label in self.inputs)), strict=True))

    @functools.cached_property
    def module(self) -> torch.fx.GraphModule:
        """The operations as a module that takes and returns tensors in order."""
        graph, names = torch.fx.Graph(), dict[str, torch.fx.Node]()
        names |= {name: graph.placeholder(name) for name in self.variables}
        names |= {name: graph.get_attr(name) for name in self.constants}
        for node in self.operations:
            names[node.name] = graph.node_copy(node, lambda source: names[source.name])
        graph.output(tuple(names[name] for name in self.outputs.values()))
        return torch.fx.GraphModule(self.constants, graph)

    def with_rounding(self, numbers: Numbers) -> Part:
        """Return the function with the constants as they are stored."""
        floats = {name: x for name, x in self.constants.items() if x.dtype == torch.float32}
        constants = self.constants | {name: decode(encode(x, numbers)) for name, x in floats.items()}
        return replace(self, constants=constants)

    def random_inputs(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the inputs that ``values`` has, new random numbers, and examples of the others."""
        drawn = {label: NOISE[kind](*self.inputs[label].shape) for label, kind in self.noise.items()}
        return {label: values.get(label, drawn.get(label, x)) for label, x in self.inputs.items()}


def trace(fn: Function, examples: Mapping[str, Tensor]) -> Part:
    """Return a function of tensors as a part; the random numbers that it draws are further inputs."""
    module = _Module(fn, examples)
    recorded = _record(module, module.examples.values())
    return _part(recorded, module.examples, module.noise, module.outputs, module.call)


def trace_policy(function: PolicyFunction) -> Part:
    """Return a policy as a part with the inputs and outputs of its :class:`PolicyFunction`."""
    inputs, outputs = {spec.name: spec.example for spec in function.inputs}, [spec.name for spec in function.outputs]
    noise = {spec.name: spec.metadata["distribution"] for spec in function.inputs if spec.role == "noise"}
    recorded = _record(function, inputs.values())
    function.remove_unused(recorded.graph, recorded.variables, recorded.results)
    labels = [spec.name for spec in function.outputs]

    def call(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        all_inputs = {**inputs, **values}
        return dict(zip(labels, function(*(all_inputs[spec.name] for spec in function.inputs)), strict=True))

    return _part(recorded, inputs, noise, outputs, call, labels)


class _Recording(NamedTuple):
    """The operations of a function on tensors, as a graph."""

    graph: torch.fx.Graph
    variables: list[str]
    """Names of the inputs."""
    results: list[str]
    """Names of the outputs."""
    constants: dict[str, Tensor]
    """What depends on no input, by name."""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operations that depend on inputs, in PyTorch's core operations.

    It runs them, once: ``torch.export`` runs them five times, and takes seconds to import its compiler.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph, self.constants = torch.fx.Graph(), dict[str, Tensor]()
        self.variables = [self.graph.placeholder(f"x{i}") for i in range(len(inputs))]
        self.values = list(inputs)  # kept, since a tensor is known by its id
        self.nodes = {id(x): node for x, node in zip(inputs, self.variables, strict=True)}

    def __torch_dispatch__(self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        with self:
            composed = _decompositions().get(func, func.decompose)(*args, **(kwargs or {}))
        if composed is not NotImplemented:
            return composed
        is_constant = not any(id(x) in self.nodes for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor))
        if not is_constant and func is torch.ops.aten._local_scalar_dense.default:
            raise ConfigError("pages cannot compute what branches on values: export the policy with format = onnx.")
        if not is_constant and func._schema.is_mutable:
            return self._change(func, types, args, kwargs or {})
        out = func(*args, **(kwargs or {}))
        if not is_constant:
            node = self.graph.call_function(func, *tree_map(self.refer, (args, kwargs or {})))
            node.meta["val"] = out
            for i, x in enumerate(outs := out if isinstance(out, list | tuple) else [out]):
                self.keep(x, node if outs[0] is out else self._pick(node, i, x))
        return out

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else PyTorch imports its compiler, to tell it that this is not for it

    def _change(self, func: Any, types: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Record a change in place within an operation of PyTorch as a new tensor."""
        plain = getattr(getattr(torch.ops.aten, func.__name__.split("_.")[0]), func._overloadname)
        changed = self.__torch_dispatch__(plain, types, args, kwargs)
        self.keep(func(*args, **kwargs), self.nodes[id(changed)])
        return args[0]

    def _pick(self, node: torch.fx.Node, number: int, value: Tensor) -> torch.fx.Node:
        picked = self.graph.call_function(operator.getitem, (node, number))
        picked.meta["val"] = value
        return picked

    def keep(self, value: Tensor, node: torch.fx.Node) -> None:
        """Know a tensor by its node from now on."""
        self.values.append(value)
        self.nodes[id(value)] = node

    def refer(self, value: object) -> Any:
        """Return the node of a tensor, which is else a constant; other values as they are."""
        if isinstance(value, Tensor) and id(value) not in self.nodes:
            self.keep(value, node := self.graph.get_attr(f"w{len(self.constants)}"))
            self.constants[node.name] = value.detach()
        return self.nodes[id(value)] if isinstance(value, Tensor) else value


@functools.cache
def _decompositions() -> Mapping[Any, Any]:
    """Return functions of core operations for those that are none."""
    table: Mapping[Any, Any] = core_aten_decompositions()  # not a dict
    return {**table, torch.ops.aten.lerp.Tensor: _lerp}


def _lerp(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """Interpolate as PyTorch does; its own function would import its compiler."""
    is_near = weight.abs() >= HALF
    return torch.where(is_near, weight - 1, weight) * (end - start) + torch.where(is_near, end, start)


class _Recordable(TorchFunctionMode):
    """Calls functions that can be recorded instead of those that cannot: without checks of values, or another name."""

    functions: ClassVar[Mapping[Any, Any]] = {
        nn.functional.one_hot: lambda index, count: (index.unsqueeze(-1) == torch.arange(count)).long(),
        Tensor.__ior__: Tensor.bitwise_or_, Tensor.__iand__: Tensor.bitwise_and_, Tensor.__ixor__: Tensor.bitwise_xor_,
    }  # fmt: skip

    def __torch_function__(self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return self.functions.get(func, func)(*args, **(kwargs or {}))


def _record(module: nn.Module, examples: Iterable[Tensor]) -> _Recording:
    """Return the operations of a module that takes ``examples``, without changes in place."""
    inputs = [x.clone() for x in examples]
    with torch.no_grad(), use_only_kernels(), _Recorder(inputs) as recorder, _Recordable():
        results = functionalize(module.forward)(*inputs)
        named = [str(recorder.refer(x)) for x in results]
    recorder.graph.output(tuple(recorder.nodes[id(x)] for x in results))
    merge_duplicates(recorder.graph)
    return _Recording(recorder.graph, [*map(str, recorder.variables)], named, recorder.constants)


class _Module(nn.Module):
    """A function of named tensors as a module that takes and returns them in order."""

    def __init__(self, fn: Function, examples: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.fn, self.names = fn, list(examples)
        with torch.no_grad(), use_only_kernels(), NoiseRecorder() as draws:
            self.outputs: list[str] = list(fn(**examples))
        self.noise: dict[str, str] = {f"noise/{i}": kind for i, (kind, _) in enumerate(draws.drawn)}
        drawn = dict(zip(self.noise, (values for _, values in draws.drawn), strict=True))
        self.examples: dict[str, Tensor] = {**examples, **drawn}

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        count = len(self.names)
        with NoiseRecorder(values[count:]):
            out = self.fn(**dict(zip(self.names, values[:count], strict=True)))
        return tuple(out[name] for name in self.outputs)

    def call(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs by label; inputs that are not given are the examples."""
        return dict(zip(self.outputs, self(*{**self.examples, **values}.values()), strict=True))


def _part(
    recorded: _Recording, inputs: Mapping[str, Tensor], noise: Mapping[str, str], outputs: Sequence[str],
    source: PartFunction, labels: Collection[str] = (),
) -> Part:  # fmt: skip
    """Return a function as a part, without what none of its outputs needs: those with these ``labels``, or all."""
    labeled = zip(outputs, recorded.results, strict=True)
    named = {label: name for label, name in labeled if label in (labels or outputs)}
    needed, used = set(named.values()), list[torch.fx.Node]()
    for node in reversed([node for node in recorded.graph.nodes if node.op == "call_function"]):
        if node.name in needed:
            needed |= {source.name for source in node.all_input_nodes}
            used.append(node)
    read = {label: name for label, name in zip(inputs, recorded.variables, strict=True) if name in needed}
    return Part(
        inputs={label: inputs[label] for label in read},
        variables=list(read.values()),
        noise={label: kind for label, kind in noise.items() if label in read},
        outputs=named,
        operations=used[::-1],
        constants={name: x for name, x in recorded.constants.items() if name in needed},
        source=source,
    )


# ---------------------------------------------------------------- the parts of a world model


def trace_world(player: Player) -> dict[str, Part]:
    """Return ``observe``, ``imagine`` and ``predict`` of a world model, for a row each.

    The state is ``deter`` [1, D] and ``stoch`` [1, S, C]. ``observe`` returns the most likely state, ``imagine`` draws
    one; ``predict`` returns the names of ``Dreamer.dream``, and the probabilities or values of the ``policy``.
    """
    inspector = WorldModelInspector(player)
    learner, world = inspector.learner, inspector.world
    state = world.rssm.initial(1, world.dtype)._asdict()
    action, no = torch.zeros(1, player.action_spec.width), torch.zeros(1, 1, dtype=torch.bool)
    parts = player.observer.single.items()
    examples = {f"obs/{key}": torch.zeros(1, *part.shape, dtype=getattr(torch, part.dtype)) for key, part in parts}

    def observe(deter: Tensor, stoch: Tensor, action: Tensor, is_first: Tensor, **obs: Tensor) -> dict[str, Tensor]:
        columns = {key: x.unsqueeze(1) for key, x in obs.items()} | {"is_first": is_first.unsqueeze(1)}
        columns |= {"is_last": no, "is_terminal": no, "reward": no.float(), "action": torch.zeros_like(action)[:, None]}
        batch = Batch.from_columns(columns, torch.zeros(1, dtype=torch.long))
        post = world.observe(batch, Context(Latent(deter, stoch), action))
        return world.rssm.most_likely(post.latent, post.stats).map(lambda x: x[:, 0])._asdict()

    def imagine(deter: Tensor, stoch: Tensor, action: Tensor) -> dict[str, Tensor]:
        return world.rssm.imagine(Latent(deter, stoch), action)._asdict()

    def predict(deter: Tensor, stoch: Tensor) -> dict[str, Tensor]:
        latent = Latent(deter, stoch)
        predictions = learner.describe_latent(latent.map(lambda x: x[:, None]))
        predicted = {name: x[:, 0] for name, x in predictions.items() if name not in STATE_NAMES}
        return predicted | {"policy": action_probabilities(inspector.policy(latent))}

    first = torch.ones(1, dtype=torch.bool)
    functions: dict[str, tuple[Function, dict[str, Tensor]]] = {
        "observe": (observe, state | {"action": action, "is_first": first} | examples),
        "imagine": (imagine, state | {"action": action}),
        "predict": (predict, state),
    }  # fmt: skip
    return {name: trace(fn, examples) for name, (fn, examples) in functions.items()}


def compare_world(
    player: Player, variants: Sequence[Mapping[str, Part]], actual: Mapping[str, PartFunction], steps: int
) -> list[tuple[int, float]]:
    """Return for each variant of the parts in how many ``steps`` a state has another class than the actual one.

    And the largest other difference: relative for numbers above 1; those of :data:`TWO_HOT` do not count. All get the
    same inputs: random observations in the first rows of an episode, and random actions behind them.
    """
    differing, errors, state = [0] * len(variants), [0.0] * len(variants), dict[str, Tensor]()
    with seeded_rng(derived_seeds(player.config.seed)["test"]), torch.no_grad(), use_only_kernels():
        for number in range(steps):
            row = number % ROWS
            name, values = ("observe" if row < OBSERVED else "imagine"), state if row else {}
            for key, part in player.observer.single.items():
                values = values | {f"obs/{key}": random_observation(part, 1, player.action_spec)}
            action = random_flat_actions(player.action_spec, 1, np.random.default_rng(number))
            values = variants[0][name].random_inputs(values | {"action": action, "is_first": torch.tensor([row == 0])})
            state = actual[name](values)
            inputs = variants[0]["predict"].random_inputs(state)
            predicted = actual["predict"](inputs)
            for i, parts in enumerate(variants):
                pairs = [(predicted, parts["predict"](inputs)), (state, after := parts[name](values))]
                if (state["stoch"] - after["stoch"]).abs().max() > HALF:
                    differing[i] += 1
                    pairs.pop()
                gaps = [_difference(x, b[name]) for a, b in pairs for name, x in a.items() if name not in TWO_HOT]
                errors[i] = max(errors[i], *gaps)
    return list(zip(differing, errors, strict=True))


def _difference(expected: Tensor, actual: Tensor) -> float:
    gap = (actual.double() - expected).abs() / expected.double().abs().clamp(min=1)
    return float(torch.where(actual == expected, 0.0, gap).max())


# ---------------------------------------------------------------- the file


def to_json(parts: Mapping[str, Part], numbers: Numbers) -> dict[str, Any]:
    """Return ``parts`` and ``tensors`` of a program; equal tensors are stored once.

    Raises:
        ConfigError: a part has an operation that pages cannot compute.
    """
    tensors, names = dict[str, dict[str, Any]](), dict[bytes, str]()

    def store(x: Tensor) -> str:
        entry = encode(x, numbers)
        key = repr((entry["s"], entry["f"])).encode() + entry["d"] + entry.get("c", b"")
        name = names.setdefault(key, f"w{len(names)}")
        tensors[name] = {k: _text(v) if isinstance(v, bytes) else v for k, v in entry.items()}
        return name

    return {"parts": {name: _describe(name, part, store) for name, part in parts.items()}, "tensors": tensors}


def _describe(name: str, part: Part, store: Callable[[Tensor], str]) -> dict[str, Any]:
    """Return a part for the file."""
    stored = {key: store(x) for key, x in part.constants.items()}
    inputs = [
        [variable, label, *_shape_and_dtype(x)]
        for variable, (label, x) in zip(part.variables, part.inputs.items(), strict=True)
    ]
    operations = [
        [node.name, _operation_name(node, name), _arguments(node, stored), *_shape_and_dtype(node.meta["val"])]
        for node in part.operations
    ]
    outputs = {label: f"%{stored.get(node, node)}" for label, node in part.outputs.items()}
    return {"in": inputs, "noise": dict(part.noise), "ops": operations, "out": outputs}


def _operation_name(node: torch.fx.Node, part: str) -> str:
    """Return the name of an operation without its overload; ConfigError if pages cannot compute it."""
    name = str(getattr(node.target, "__name__", node.target)).split(".")[0]
    if name not in OPERATIONS:
        raise ConfigError(f"pages cannot compute {name}, which {part} uses: export the policy with format = onnx.")
    return name


def _shape_and_dtype(value: Any) -> tuple[Any, str | None]:
    """Return the shape and dtype of a tensor; for several, their shapes and None."""
    if isinstance(value, list | tuple):
        return [None if x is None else list(x.shape) for x in value], None
    return list(value.shape), str(value.dtype).removeprefix("torch.")


def _arguments(node: torch.fx.Node, stored: Mapping[str, str]) -> list[Any]:
    """Return all arguments of an operation in order, with defaults; names of variables begin with %."""

    def encode_argument(x: Any) -> Any:
        if isinstance(x, torch.fx.Node):
            return f"%{stored.get(x.name, x.name)}"
        if isinstance(x, list | tuple):
            return [encode_argument(item) for item in x]
        if isinstance(x, float) and not math.isfinite(x):
            return str(x)
        return x if x is None or isinstance(x, bool | int | float | str) else str(x).removeprefix("torch.")

    if (schema := getattr(node.target, "_schema", None)) is None:
        return [encode_argument(x) for x in node.args]
    values = dict(zip([argument.name for argument in schema.arguments], node.args, strict=False)) | node.kwargs
    return [
        encode_argument(values.get(argument.name, argument.default_value))
        for argument in schema.arguments if argument.name not in IMPLIED
    ]  # fmt: skip


def encode(x: Tensor, numbers: Numbers) -> dict[str, Any]:
    """Return a tensor as shape ``s``, format ``f`` and bytes ``d``.

    int8: numbers are q * c, with a scale ``c`` for each row, or for each column (then ``x`` is 1), whichever is closer.
    """
    array = x.detach().contiguous().numpy()
    entry: dict[str, Any] = {"s": list(array.shape)}
    if x.dtype != torch.float32:
        kind = "uint8" if x.dtype in (torch.bool, torch.uint8) else "int32"
        return entry | {"f": kind, "d": array.astype(kind).tobytes()}
    if numbers == "int8" and array.ndim >= 2 and array.size >= MIN_SCALED:
        return entry | _scaled(array.reshape(-1, array.shape[-1]))
    is_half = numbers != "float32" and array.size >= MIN_ROUNDED and np.abs(array).max() < LARGEST_HALF
    kind = "float16" if is_half else "float32"
    return entry | {"f": kind, "d": array.astype(kind).tobytes()}


def _scaled(matrix: np.ndarray) -> dict[str, Any]:
    """Return the rest of the entry of a matrix ``[M, N]`` in int8."""
    choices = []
    for axis in (1, 0):
        scale = (np.abs(matrix).max(axis, keepdims=True) / 127).astype(np.float32)
        q = np.round(matrix / np.where(scale == 0, 1, scale)).astype(np.int8)
        choices.append((float(np.square(q * scale - matrix).sum()), axis, q, scale))
    _, axis, q, scale = min(choices, key=lambda choice: choice[0])
    return {"f": "int8", "d": q.tobytes(), "c": scale.tobytes()} | ({} if axis else {"x": 1})


def decode(entry: Mapping[str, Any]) -> Tensor:
    """Return the tensor of an entry, as a page reads it."""
    array = np.frombuffer(entry["d"], entry["f"])
    if entry["f"] == "int8":
        scale = np.frombuffer(entry["c"], np.float32).reshape((1, -1) if "x" in entry else (-1, 1))
        array = array.reshape(-1, entry["s"][-1]) * scale
    is_float = entry["f"] in ("int8", "float16")
    return torch.from_numpy((array.astype(np.float32) if is_float else array.copy()).reshape(entry["s"]))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
