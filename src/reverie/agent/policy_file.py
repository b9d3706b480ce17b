"""A policy as a file that runs without reverie: ONNX, or an exported PyTorch program."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import logging
import os
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from reverie.agent.conversion import obs_to_step
from reverie.agent.player import Player, check_choice, policy_mode
from reverie.agent.policy_function import ATOL, NoiseRecorder, PolicyFunction
from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError, EnvError, RunError
from reverie.core.files import check_writable, disk_errors_as_run_error, write_json
from reverie.core.kernel_dispatch import use_only_kernels
from reverie.core.protocols import Memoryless, Policy
from reverie.core.seeding import derived_seeds, seeded_rng
from reverie.core.specs import ObsPart
from reverie.core.types import Mode, PolicyOutput, QValues, Step
from reverie.core.version import version
from reverie.experiment.environments import make_eval_env
from reverie.log.artifacts import missing_package_error
from reverie.nn.preprocess import inspect_policy

Format = Literal["onnx", "torch"]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2"}
MAX_TIE_SHARE = 0.005
"""Fraction of steps that may differ, where rounding decides between two almost equally good classes."""
FAKE_EPISODE_STEPS = 50
"""Episode length with random observations."""
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
    """The JSON file next to it: names, shapes, dtypes and ranges of inputs and outputs, and how to call it."""
    steps: int
    """Number of compared steps."""
    num_differing: int
    """Steps in which the actions differed because rounding decided between two classes. Classes whose logit or value is
    within 1e-5 of the best count as equal."""
    error: float
    """Largest difference in the other steps, of the state and of actions scaled to [-1, 1]."""
    seconds: float
    """Median time of a call."""
    agent_seconds: float
    """Median time of the agent's policy for the same observations."""


def export_policy(
    player: Player, out: Path | str | None = None, *,
    format: Format | None = None, deterministic: bool = True, batch: int | None = None, steps: int = 1000,
) -> ExportReport:  # fmt: skip
    """Export the policy of a player to a file, and compare the file with the player: see :func:`reverie.export`."""
    format = _choose_format(format, out)
    AtLeast(1).check("batch", 1 if batch is None else batch)
    AtLeast(1).check("steps", steps)
    for package in ("onnx", "onnxscript", "onnxruntime") if format == "onnx" else ():
        if importlib.util.find_spec(package) is None:
            raise missing_package_error(package, "export to ONNX")
    file = Path(out) if out is not None else player.run / f"policy{SUFFIXES[format]}"
    check_writable(file.parent)
    plain = copy_to_cpu(player)
    part = file.with_name(f".{file.stem}.{os.getpid()}.part{SUFFIXES[format]}")
    with disk_errors_as_run_error(file):
        part.parent.mkdir(parents=True, exist_ok=True)
        report, function = _write_checked(player, plain, deterministic, batch, file, part, format, steps)
        write_json(report.metadata_file, _export_metadata(player, function, format, deterministic, report))
    return report


def _choose_format(format: Format | None, out: Path | str | None) -> Format:
    """Return ``format``, or if it is None the format that the suffix of ``out`` names, or else ``onnx``."""
    named = next((name for name, suffix in SUFFIXES.items() if Path(out or "").suffix == suffix), None)
    if format is None:
        return named or "onnx"
    check_choice("format", format, SUFFIXES)
    if named not in (None, format):
        raise ConfigError(f"format = '{format}' contradicts the file {out}: expected {SUFFIXES[format]}. Omit format.")
    return format


def _write_checked(
    source: Player,
    plain: Player,
    deterministic: bool,
    batch: int | None,
    file: Path,
    part: Path,
    format: Format,
    steps: int,
) -> tuple[ExportReport, PolicyFunction]:
    """Write the policy to ``part``, and rename it to ``file`` if it acts like the agent ``source``."""
    try:
        function, comparison = _export_and_compare(plain, deterministic, batch, part, format, steps)
        report = ExportReport(file, file.with_suffix(".json"), **comparison)
        if report.num_differing > MAX_TIE_SHARE * steps:
            raise RunError(
                f"the exported policy acts differently from {source!r} in {report.num_differing} of {steps} steps, by "
                f"more than {ATOL:g}. Nothing was written."
            )
        os.replace(part, file)
        return report, function
    finally:
        part.unlink(missing_ok=True)


def copy_to_cpu(player: Player) -> Player:
    """Return the agent with a copy of its learner on the CPU in float32."""
    config = player.config.merge({"algo.precision": "float32"})
    learner = config.algo.build(player.obs_spec, player.action_spec, "cpu", config.seed)
    learner.load_state_dict(player.algo.state_dict())
    return player.with_learner(learner, config)


def _export_and_compare(
    player: Player, deterministic: bool, batch: int | None, part: Path, format: Format, steps: int
) -> tuple[PolicyFunction, dict[str, Any]]:
    """Write the policy to ``part`` and compare it; for any number of rows if ``batch`` is None and that is possible."""
    policy, mode = player.algo.policy, policy_mode(deterministic)
    if batch is None and isinstance(policy, Memoryless) and policy.memoryless(mode):
        # not every function can be exported this way, and not every exported file runs
        with contextlib.suppress(Exception):
            function = save_policy(player, mode, None, part, format)
            return function, compare_with_agent(player, function, open_policy(part, format), deterministic, steps)
    function = save_policy(player, mode, batch or 1, part, format)
    return function, compare_with_agent(player, function, open_policy(part, format), deterministic, steps)


def save_policy(player: Player, mode: Mode, batch: int | None, part: Path, format: Format) -> PolicyFunction:
    """Trace the policy and write it to ``part``."""
    with _silence_exporters(), torch.no_grad(), use_only_kernels():
        function = PolicyFunction(player, mode, batch)
        program = function.graph()
        if format == "torch":
            torch.export.save(program, part)
            return function
        names = [[spec.name for spec in ports] for ports in (function.used_inputs, function.outputs)]
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


# ---------------------------------------------------------------- running it

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


# ---------------------------------------------------------------- comparing it with the agent


def _sample_steps(player: Player, batch: int, seed: int) -> Generator[Step, Tensor, None]:
    """Yield the rows of N environments, and receive actions ``[N, A]``; without environments, random observations."""
    config = player.config.merge({"eval_envs": batch, "eval_episodes": batch})
    try:
        with contextlib.closing(make_eval_env(config, player.factory, as_trained=True)) as env:
            step = env.reset(seed)
            while env.num_envs == batch:  # a user's single instance cannot serve several
                step = env.step((yield step))
    except EnvError:
        if player.observation_space is None:
            raise
    space, stacks = player.observation_space, player.observer.stacks(batch)
    assert space is not None
    space.seed(seed)
    legal = np.ones(player.action_spec.width, bool)
    for number in itertools.count():
        first = np.full(batch, number % FAKE_EPISODE_STEPS == 0)
        obs_list = [player.observer(space.sample(), stack, first[0], legal) for stack in stacks]
        yield obs_to_step({key: np.stack([flat_obs[key] for flat_obs in obs_list]) for key in obs_list[0]}, first, 0.0)


def _newest_observation(x: Tensor, part: ObsPart, stacked: bool) -> Tensor:
    """Return the newest of stacked observations ``[N, ...]``; ``part`` describes a single one."""
    if not stacked or part.kind == "mask":
        return x
    return x[..., -part.shape[-1] :] if part.kind == "image" else x[:, -1]


def compare_with_agent(
    player: Player, function: PolicyFunction, call: PolicyFn, deterministic: bool, steps: int
) -> dict[str, Any]:
    """Return the number of steps in which the file differs from the agent, the differences, and the times of both.

    Last rows of episodes, where no action is taken, are not compared. A file for any number of rows is sometimes called
    with several.
    """
    batch, policy, mode = function.rows, player.algo.policy, policy_mode(deterministic)
    single, stacked = player.observer.single, player.config.env.frame_stack > 1
    seed, no_ends = derived_seeds(player.config.seed)["test"], torch.zeros(batch, dtype=torch.bool)
    num_compared, num_differing, error, times, agent_times = 0, 0, 0.0, list[float](), list[float]()
    with seeded_rng(seed), contextlib.closing(_sample_steps(player, batch, seed)) as episodes:
        step, state = next(episodes), player.initial_state(batch)
        values = {spec.name: spec.example for spec in function.inputs}
        while num_compared < steps:
            acting, state_before = ~step.is_last, state  # [N]
            step = replace(step, is_last=no_ends, is_terminal=no_ends)  # not an input of the agent
            values |= {f"obs/{key}": _newest_observation(x, single[key], stacked) for key, x in step.obs.items()}
            values |= {"is_first": step.is_first, "reward": step.reward}
            # some kernels draw in C, unseen by the recorder
            with NoiseRecorder() as noise, use_only_kernels() if function.noise else contextlib.nullcontext():
                flat, state = policy.act(step, state, mode)
            values |= function.noise_inputs(noise.drawn)
            start, copies = time.perf_counter(), 3 if function.any_rows and num_compared % 10 == 1 else 1
            inputs = [values[spec.name] for spec in function.used_inputs]
            outputs = call([torch.cat([x] * copies) for x in inputs] if copies > 1 else inputs)
            times.append(time.perf_counter() - start)
            outputs = [x[-batch:] for x in outputs] if copies > 1 else outputs
            values |= dict(zip(function.state_names, outputs[len(function.actions) :], strict=True))
            if acting.any():
                states, expected = function.state_inputs(state), player.codec(flat.numpy())
                action_error = float(function.max_difference(outputs, expected)[acting.numpy()].max())
                gaps = ((values[name].double() - x.double()).abs() for name, x in states.items() if x.numel())
                max_error = max(action_error, *(float((gap[acting] if gap.ndim else gap).max()) for gap in gaps), 0.0)
                num_compared += 1
                if max_error > ATOL:
                    output = _policy_output(policy, step, state_before, noise, mode) if action_error > ATOL else None
                    if (
                        output is None
                        or function.max_difference(outputs, expected, output)[acting.numpy()].max() > ATOL
                    ):
                        num_differing += 1
                    values |= states
                else:
                    error = max(error, max_error)
            step = episodes.send(flat)
        for _ in range(min(steps, 200)):
            start = time.perf_counter()
            policy.act(step, state, mode)
            agent_times.append(time.perf_counter() - start)
    seconds = {"seconds": float(np.median(times)), "agent_seconds": float(np.median(agent_times))}
    return {"steps": steps, "num_differing": num_differing, "error": error, **seconds}


def _policy_output(
    policy: Policy[Any], step: Step, state: Any, noise: NoiseRecorder, mode: Mode
) -> PolicyOutput | None:
    """Return the policy's output with the recorded ``noise``.

    None if it does not support inspection, or sampled the action.
    """
    with contextlib.suppress(ConfigError), NoiseRecorder([draw.values for draw in noise.drawn]):
        output = inspect_policy(policy, step, state)
        return output if mode == "eval" or isinstance(output.decision, QValues) else None
    return None


def _export_metadata(
    player: Player, function: PolicyFunction, format: Format, deterministic: bool, report: ExportReport
) -> dict[str, Any]:
    """Return the content of policy.json."""
    metadata: dict[str, Any] = {"file": report.file.name, "format": format, "algorithm": player.config.algo.algorithm}
    metadata |= {"env": player.config.env.id, "run": player.run.name, "checkpoint": player.checkpoint.name}
    metadata |= {
        "reverie": version(),
        "torch": str(torch.__version__),
        "deterministic": deterministic,
        "use": SEMANTICS,
    }
    metadata |= {"batch": "any" if function.any_rows else function.rows}
    comparison = {
        "steps": report.steps,
        "differing": report.num_differing,
        "largest_difference": report.error,
        "microseconds": round(1e6 * report.seconds, 1),
        "microseconds_of_the_agent": round(1e6 * report.agent_seconds, 1),
    }
    ports = {"inputs": function.used_inputs, "outputs": function.outputs}
    return metadata | {k: [spec.to_dict() for spec in x] for k, x in ports.items()} | {"compared": comparison}
