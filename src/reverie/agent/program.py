"""Functions of a learner as programs: PyTorch's core operations on one row, which a page runs (``program.js``).

A program is a JSON object. ``parts`` has its functions by name. Each has its inputs ``[variable, label, shape,
dtype]``, the distributions of its random inputs, its operations ``[variable, operation, arguments, shape, dtype]`` and
the variable of each output. ``tensors`` has the constants: weights, and what depends on weights alone.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.node import map_arg

from reverie.agent.player import Player
from reverie.agent.policy_function import NOISE, NoiseRecorder, PolicyFunction, random_observation
from reverie.agent.world_model_inspector import WorldModelInspector, action_probabilities
from reverie.algos.base import INTERNAL_PREFIX
from reverie.algos.world_model import Context
from reverie.core.errors import ConfigError
from reverie.core.kernel_dispatch import use_only_kernels
from reverie.core.seeding import derived_seeds, seeded_rng
from reverie.core.types import Batch
from reverie.nn.state_space import Latent
from reverie.run.collect import random_flat_actions

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
        results = self.constants | {
            name: values[label] for name, label in zip(self.variables, self.inputs, strict=True)
        }
        for node in self.operations:
            results[node.name] = _compute(node, results)
        return {label: results[name] for label, name in self.outputs.items()}

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
    with torch.no_grad(), use_only_kernels():
        exported = torch.export.export(module, tuple(x.clone() for x in module.examples.values()), strict=False)
        return _part(exported.run_decompositions(), module.examples, module.noise, module.outputs, module.call)


def trace_policy(function: PolicyFunction) -> Part:
    """Return a policy as a part with the inputs and outputs of its :class:`PolicyFunction`."""
    with torch.no_grad(), use_only_kernels():
        exported = function.graph().run_decompositions()
    noise = {spec.name: spec.metadata["distribution"] for spec in function.inputs if spec.role == "noise"}
    inputs, outputs = {spec.name: spec.example for spec in function.inputs}, [spec.name for spec in function.outputs]

    def call(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(zip(outputs, function(*({**inputs, **values}[name] for name in inputs)), strict=True))

    return _part(exported, inputs, noise, outputs, call)


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
    exported: torch.export.ExportedProgram, inputs: Mapping[str, Tensor], noise: Mapping[str, str],
    outputs: list[str], source: PartFunction,
) -> Part:  # fmt: skip
    """Return an exported program as a part, without what no output needs. What depends on weights alone is computed."""
    signature, constants, operations = exported.graph_signature, dict[str, Tensor](), list[torch.fx.Node]()
    for spec in signature.input_specs:
        if spec.target is not None:
            weights = exported.state_dict if spec.target in exported.state_dict else exported.constants
            constants[spec.arg.name] = weights[spec.target].detach()
    for node in _calls(exported.graph):
        if all(source.name in constants for source in node.all_input_nodes):
            constants[node.name] = _compute(node, constants)
        else:
            operations.append(node)
    returned = next(node for node in exported.graph.nodes if node.op == "output").args[0]
    named = {label: node.name for label, node in zip(outputs, returned, strict=True)}
    needed, used = set(named.values()), list[torch.fx.Node]()
    for node in reversed(operations):
        if node.name in needed:
            needed |= {source.name for source in node.all_input_nodes}
            used.append(node)
    read = {label: str(name) for label, name in zip(inputs, signature.user_inputs, strict=True) if name in needed}
    return Part(
        inputs={label: inputs[label] for label in read},
        variables=list(read.values()),
        noise={label: kind for label, kind in noise.items() if label in read},
        outputs=named,
        operations=used[::-1],
        constants={name: x for name, x in constants.items() if name in needed},
        source=source,
    )


def _compute(node: torch.fx.Node, results: Mapping[str, Any]) -> Any:
    """Return the result of an operation from those of the operations before it."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda source: results[source.name])
    with torch.no_grad():
        return cast(Any, node.target)(*args, **kwargs)


def _calls(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Return the operations of a graph, without the assertions about its inputs."""
    return [node for node in graph.nodes if node.op == "call_function" and "assert" not in str(node.target)]


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
    player: Player, parts: Mapping[str, Part], actual: Mapping[str, PartFunction], steps: int
) -> tuple[int, float]:
    """Return in how many ``steps`` a state has another class than that of ``parts``, and the largest other difference.

    Both get the same inputs: random observations in the first rows of an episode, and random actions behind them.
    Differences are relative for numbers above 1; those of :data:`TWO_HOT` do not count.
    """
    num_differing, error, state = 0, 0.0, dict[str, Tensor]()
    with seeded_rng(derived_seeds(player.config.seed)["test"]), torch.no_grad(), use_only_kernels():
        for number in range(steps):
            row = number % ROWS
            name, values = ("observe" if row < OBSERVED else "imagine"), state if row else {}
            for key, part in player.observer.single.items():
                values = values | {f"obs/{key}": random_observation(part, 1, player.action_spec)}
            action = random_flat_actions(player.action_spec, 1, np.random.default_rng(number))
            values = parts[name].random_inputs(values | {"action": action, "is_first": torch.tensor([row == 0])})
            state, actual_state = parts[name](values), actual[name](values)
            if (state["stoch"] - actual_state["stoch"]).abs().max() > HALF:
                num_differing += 1
                continue
            values = parts["predict"].random_inputs(state)
            pairs = (state, actual_state), (parts["predict"](values), actual["predict"](values))
            gaps = [_difference(x, b[name]) for a, b in pairs for name, x in a.items() if name not in TWO_HOT]
            error = max(error, *gaps)
    return num_differing, error


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
