"""A policy as a file that runs without reverie: ONNX, an exported PyTorch program, or a program that a page runs."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import logging
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from reverie.agent.player import Player, check_choice
from reverie.agent.policy_function import PolicyFunction, TensorSpec
from reverie.agent.program import Numbers, Part, compare_world, to_json, trace_policy, trace_world
from reverie.algos.lewm import LeWM
from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError, RunError
from reverie.core.files import check_writable, disk_errors_as_run_error, write_atomic, write_json
from reverie.core.kernel_dispatch import use_only_kernels
from reverie.core.protocols import Memoryless
from reverie.core.seeding import derived_seeds, seeded_rng
from reverie.core.version import version
from reverie.log.artifacts import missing_package_error

Format = Literal["onnx", "torch", "program"]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2", "program": ".json"}
ATOL = 1e-4
"""Largest difference from the agent, in float32: where a tanh is steep, rounding alone reaches 2e-5."""
MAX_TIE_SHARE = 0.005
"""Fraction of steps that may differ, where rounding decides between two almost equally good classes."""
SEMANTICS = (
    "Call the function once for each observation from reset() and step(), but not for the last one of an episode. "
    "Pass is_first = true with the first observation of an episode: this resets the state inside the function. "
    "Before the first call pass the initial state; afterwards pass each output next_state/... as the input state/... "
    ". Draw new noise for each call."
)


@dataclass(frozen=True)
class ExportReport:
    """An exported policy, and its comparison with the agent."""

    file: Path
    metadata_file: Path
    """The JSON file next to it: names, shapes, dtypes and ranges of inputs and outputs, and how to call it. A program
    has them in itself."""
    steps: int
    """Number of compared steps."""
    num_differing: int
    """Steps that differed by more than 1e-4, because rounding decided between two classes."""
    error: float
    """Largest difference in the other steps: relative for numbers above 1; actions are scaled to [-1, 1]."""
    rounding: float = 0.0
    """Largest difference that the rounded weights of a program make, as ``error``; a change of class is that of the
    probabilities or values of both."""


def export_policy(
    player: Player, out: Path | str | None = None, *,
    format: Format | None = None, batch: int | None = None, steps: int = 1000, numbers: Numbers = "float16",
    world: bool = False,
) -> ExportReport:  # fmt: skip
    """Export the policy of a player to a file, and compare the file with the player: see :func:`reverie.export`."""
    if isinstance(player.algo, LeWM):
        raise ConfigError(f"{player.config.algo.algorithm} searches its actions, which cannot be exported.")
    format = _choose_format("program" if world and format is None else format, out)
    AtLeast(1).check("batch", 1 if batch is None else batch)
    AtLeast(1).check("steps", steps)
    check_choice("numbers", numbers, get_args(Numbers))
    if world and format != "program":
        raise ConfigError(f"world = True needs format = 'program', not '{format}': omit one of them.")
    if format == "program":
        if batch not in (None, 1):
            raise ConfigError(f"batch = {batch}: a program takes one observation per call. Omit batch.")
        name = "world.json" if world else "program.json"
        return _export_program(player, Path(out or player.run / name), numbers, world, steps)
    for package in ("onnx", "onnxscript", "onnxruntime") if format == "onnx" else ():
        if importlib.util.find_spec(package) is None:
            raise missing_package_error(package, "export to ONNX")
    file = Path(out) if out is not None else player.run / f"policy{SUFFIXES[format]}"
    check_writable(file.parent)
    plain = copy_to_cpu(player)
    # A killed process leaves nothing beside the file, which PyTorch and ONNX cannot write at once.
    with tempfile.TemporaryDirectory() as folder, disk_errors_as_run_error(file):
        part = Path(folder) / f"policy{SUFFIXES[format]}"
        function, num_differing, error = _export_and_compare(plain, batch, part, format, steps)
        if num_differing > MAX_TIE_SHARE * steps:
            raise RunError(
                f"the exported policy acts differently from {player!r} in {num_differing} of {steps} steps, by "
                f"more than {ATOL:g}. Nothing was written."
            )
        report = ExportReport(file, file.with_suffix(".json"), steps, num_differing, error)
        metadata = _export_metadata(player, function, format, report)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)  # whenever it is there, the JSON file is the one that describes it
        write_json(report.metadata_file, metadata)
        write_atomic(file, part.read_bytes())
    return report


def _export_program(player: Player, file: Path, numbers: Numbers, world: bool, steps: int) -> ExportReport:
    """Write a program that a page runs: the policy, or the functions of the world model."""
    check_writable(file.parent)
    plain = copy_to_cpu(player)
    with _silence_exporters(), torch.no_grad(), use_only_kernels():
        function = None if world else PolicyFunction(plain, 1)
        parts = trace_world(plain) if function is None else {"act": trace_policy(function)}
    exact, rounding = _compare_program(plain, function, parts, numbers, steps)
    if exact[0] > MAX_TIE_SHARE * steps or exact[1] > ATOL:
        raise RunError(f"the exported program computes something else than {player!r}. Nothing was written.")
    report = ExportReport(file, file, steps, *exact, rounding)
    content = _export_metadata(player, function, "program", report) | to_json(parts, numbers)
    with disk_errors_as_run_error(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, json.dumps(content, separators=(",", ":"), allow_nan=False))
    return report


def _compare_program(
    player: Player, function: PolicyFunction | None, parts: Mapping[str, Part], numbers: Numbers, steps: int
) -> tuple[tuple[int, float], float]:
    """Compare parts with the agent as :func:`compare_with_agent`; also return the difference that rounding makes."""
    rounded = {name: part.with_rounding(numbers) for name, part in parts.items()}
    if function is None:
        sources = {name: part.source for name, part in parts.items()}
        exact, (_, rounding) = compare_world(player, [parts, rounded], sources, steps)
        return exact, rounding
    names = [[spec.name for spec in specs] for specs in (function.inputs, function.outputs)]

    def call(act: Part, inputs: Sequence[Tensor]) -> list[Tensor]:
        outputs = act(dict(zip(names[0], inputs, strict=True)))
        return [outputs[name] for name in names[1]]

    exact = compare_with_agent(function, functools.partial(call, parts["act"]), steps)
    return exact, compare_with_agent(function, functools.partial(call, rounded["act"]), steps, math.inf)[1]


def _choose_format(format: Format | None, out: Path | str | None) -> Format:
    """Return ``format``, or if it is None the format that the suffix of ``out`` names, or else ``onnx``."""
    named = next((name for name, suffix in SUFFIXES.items() if Path(out or "").suffix == suffix), None)
    if format is None:
        return named or "onnx"
    check_choice("format", format, SUFFIXES)
    if named not in (None, format):
        raise ConfigError(f"format = '{format}' contradicts the file {out}: expected {SUFFIXES[format]}. Omit format.")
    return format


def copy_to_cpu(player: Player) -> Player:
    """Return the agent with a copy of its learner on the CPU in float32."""
    config = player.config.merge({"algo.precision": "float32"})
    learner = config.algo.build(player.obs_spec, player.action_spec, "cpu", config.seed)
    learner.load_state_dict(player.algo.state_dict())
    return player.with_learner(learner, config)


def _export_and_compare(
    player: Player, batch: int | None, part: Path, format: Format, steps: int
) -> tuple[PolicyFunction, int, float]:
    """Write the policy to ``part`` and compare it; for any number of rows if ``batch`` is None and that is possible."""
    policy = player.algo.policy
    if batch is None and isinstance(policy, Memoryless) and policy.memoryless("eval"):
        # not every function can be exported this way, and not every exported file runs
        with contextlib.suppress(Exception):
            function = save_policy(player, None, part, format)
            return function, *compare_with_agent(function, open_policy(part, format), steps)
    function = save_policy(player, batch or 1, part, format)
    return function, *compare_with_agent(function, open_policy(part, format), steps)


def save_policy(player: Player, batch: int | None, part: Path, format: Format) -> PolicyFunction:
    """Trace the policy and write it to ``part``."""
    with _silence_exporters(), torch.no_grad(), use_only_kernels():
        function = PolicyFunction(player, batch)
        program = function.graph()
        if format == "torch":
            torch.export.save(program, part)
            return function
        names = [[spec.name for spec in specs] for specs in (function.inputs, function.outputs)]
        onnx_program = torch.onnx.export(
            program, dynamo=True, verbose=False, external_data=False, input_names=names[0], output_names=names[1]
        )
        assert onnx_program is not None
        onnx_program.save(part)
    return function


@contextlib.contextmanager
def _silence_exporters() -> Iterator[None]:
    """Silence the warnings of PyTorch's exporters about unneeded packages and their own internals."""
    levels = {logger: logger.level for logger in map(logging.getLogger, ("torch.onnx", "onnxscript"))}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


PolicyFn = Callable[[Sequence[Tensor]], list[Tensor]]
"""Runs an exported policy: maps its inputs to its outputs."""


def open_policy(file: Path, format: Format) -> PolicyFn:
    """Return a function that runs a file."""
    if format == "torch":
        module = torch.export.load(file).module()
        return lambda inputs: list(module(*inputs))
    session = importlib.import_module("onnxruntime").InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]

    def call(inputs: Sequence[Tensor]) -> list[Tensor]:
        outputs = session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})
        return [torch.from_numpy(np.asarray(x)) for x in outputs]

    return call


def compare_with_agent(
    function: PolicyFunction, call: PolicyFn, steps: int, tolerance: float = ATOL
) -> tuple[int, float]:
    """Return in how many steps the file differs from the agent by more, and the largest difference in the others."""
    num_differing, error, state = 0, 0.0, dict[str, Tensor]()
    with seeded_rng(derived_seeds(function.player.config.seed)["test"]), torch.no_grad(), use_only_kernels():
        for number in range(steps):
            values = function.random_inputs(number) | state
            inputs = [values[spec.name] for spec in function.inputs]
            expected, actual = function(*inputs), call(inputs)
            state = {
                spec.metadata["input"]: x
                for spec, x in zip(function.outputs, expected, strict=True)
                if spec.role == "state"
            }
            difference = function.max_difference(actual, expected)
            num_differing += difference > tolerance
            error = max(error, difference if difference <= tolerance else 0.0)
    return num_differing, error


def _export_metadata(
    player: Player, function: PolicyFunction | None, format: Format, report: ExportReport
) -> dict[str, Any]:
    """Return the content of policy.json; a world model, which is no policy, has its inputs in its parts."""
    batch = 1 if function is None else function.batch

    def describe(spec: TensorSpec) -> dict[str, Any]:
        shape = [1, *spec.example.shape[1:]] if batch is None else list(spec.example.shape)
        dtype = str(spec.example.dtype).removeprefix("torch.")
        return {"name": spec.name, "role": spec.role, "shape": shape, "dtype": dtype, **spec.metadata}

    return {
        "file": report.file.name, "format": format, "algorithm": player.config.algo.algorithm,
        "env": player.config.env.id, "run": player.run.name, "checkpoint": player.checkpoint.name,
        "reverie": version(), "torch": str(torch.__version__), "use": SEMANTICS, "batch": batch or "any",
        "inputs": [describe(spec) for spec in getattr(function, "inputs", ())],
        "outputs": [describe(spec) for spec in getattr(function, "outputs", ())],
        "compared": {
            "steps": report.steps, "differing": report.num_differing, "largest_difference": report.error,
            "rounding": report.rounding,
        },
    }  # fmt: skip
