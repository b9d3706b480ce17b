"""A policy as a file that runs without this library: ONNX, or PyTorch's own exported programs."""

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

from reverie.agent.agent import Actions, Agent, as_step, check_word, mode_of
from reverie.agent.loading import load
from reverie.agent.traced import CLOSE, Draws, PolicyFunction
from reverie.core.accelerate import only
from reverie.core.bounds import AtLeast
from reverie.core.discover import version
from reverie.core.errors import ConfigError, EnvError, RunError
from reverie.core.files import check_writable, write_json, writing
from reverie.core.protocols import Memoryless, Policy
from reverie.core.randomness import derived_seeds, reproducible
from reverie.core.specs import ObsPart
from reverie.core.types import Mode, Step, Told, Values
from reverie.experiment.environments import make_eval_env
from reverie.log.artifacts import missing_package_error
from reverie.nn.preprocess import told

Format = Literal["onnx", "torch"]
SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
TIES = 0.005
"""Share of steps that may differ: where rounding decides between two classes that are not quite as good."""
EPISODE = 50
"""Steps of an episode where observations are made up."""
SEMANTICS = (
    "Call the function once for each observation from reset() and step(), but not for the last one of an episode. Pass "
    "is_first = true with the first observation of an episode: the state is then reset within. Before the first call "
    "pass the initial state; afterwards pass each output next_state/... as the input state/... . Draw noise anew for "
    "each call."
)


@dataclass(frozen=True)
class Exported:
    """A policy that was written to a file, and compared with its agent."""

    file: Path
    about: Path
    """The JSON file beside it: names, shapes, dtypes and ranges of inputs and outputs, and how to call it."""
    steps: int
    """Steps that were compared."""
    differing: int
    """Steps in which it did something else, as rounding decided between two classes. Of classes whose logit or value is
    the best, to 1e-5, either is right."""
    error: float
    """Largest difference in the other steps: of the state, and of actions scaled to [-1, 1]."""
    seconds: float
    """Median time of a call."""
    agent_seconds: float
    """Median time in which the agent's policy acts on the same observations."""


def export(
    agent: Agent | Path | str, out: Path | str | None = None, *,
    format: Format = "onnx", actions: Actions = "mode", batch: int | None = None, steps: int = 1000, **loading: Any,
) -> Exported:  # fmt: skip
    """Write the policy of an agent as a file that runs without this library, and compare it with the agent.

    Its inputs are observations as learners see them; normalisation, stacks of frames, masks and the scaling of actions
    are inside. The JSON file beside it says all that a caller must know.

    Args:
        agent: the agent, or the place of its run for :func:`reverie.load`.
        out: the file. None: ``policy.onnx`` or ``policy.pt2`` in the run folder.
        format: ``onnx`` for ONNX Runtime and others, ``torch`` for ``torch.export.load``.
        actions: "mode" for the most likely actions, "sample" for drawn ones, whose noise is an input.
        batch: N, the number of observations of a call. None: any number if the policy has no memory, else 1.
        steps: steps of episodes in which the file is compared with the agent: in its environment or, if that cannot be
            made, on random observations.
        loading: ``env``, ``checkpoint`` and others of :func:`reverie.load`, if a run is given.

    Raises:
        ConfigError: there is no such ``format`` or ``actions``, or a package is not installed.
        RunError: there is no such run, the file cannot be written, or it does not do what the agent does. Then nothing
            is written.
    """
    check_word("format", format, SUFFIXES)
    AtLeast(1).check("batch", 1 if batch is None else batch)
    AtLeast(1).check("steps", steps)
    mode_of(actions)
    for package in ("onnx", "onnxscript", "onnxruntime") if format == "onnx" else ():
        if importlib.util.find_spec(package) is None:
            raise missing_package_error(package, "export to ONNX")
    whole = agent if isinstance(agent, Agent) else load(agent, **loading)
    file = Path(out) if out is not None else whole.run / f"policy{SUFFIXES[format]}"
    check_writable(file.parent)
    plain = on_cpu(whole)
    part = file.with_name(f".{file.stem}.{os.getpid()}.part{SUFFIXES[format]}")
    with writing(file):
        part.parent.mkdir(parents=True, exist_ok=True)
        found, function = _written(whole, plain, actions, batch, file, part, format, steps)
        write_json(found.about, described(whole, function, format, actions, found))
    return found


def _written(
    whole: Agent, plain: Agent, actions: Actions, batch: int | None, file: Path, part: Path, format: Format, steps: int
) -> tuple[Exported, PolicyFunction]:
    """Write the policy to ``part``, and rename that to ``file`` if it does what the agent ``whole`` does."""
    try:
        function, done = _made(plain, actions, batch, part, format, steps)
        found = Exported(file, file.with_suffix(".json"), **done)
        if found.differing > TIES * steps:
            raise RunError(
                f"the exported policy acts differently from {whole!r} in {found.differing} of {steps} steps, by more "
                f"than {CLOSE:g}. Nothing was written."
            )
        os.replace(part, file)
        return found, function
    finally:
        part.unlink(missing_ok=True)


def on_cpu(agent: Agent) -> Agent:
    """Return the agent with a copy of its learner on the CPU, which computes in float32."""
    config = agent.config.merge({"algo.precision": "float32"})
    learner = config.algo.build(agent.obs_spec, agent.action_spec, "cpu", config.seed)
    learner.load_state_dict(agent.algo.state_dict())
    plain = object.__new__(type(agent))  # a copy would make its environment again
    plain.__dict__.update(agent.__dict__ | {"config": config, "algo": learner})
    return plain


def _made(
    agent: Agent, actions: Actions, batch: int | None, part: Path, format: Format, steps: int
) -> tuple[PolicyFunction, dict[str, Any]]:
    """Write the policy to ``part`` and compare it; for any number of rows if ``batch`` is None and that is possible."""
    policy, mode = agent.algo.policy, mode_of(actions)
    if batch is None and isinstance(policy, Memoryless) and policy.memoryless(mode):
        with contextlib.suppress(Exception):  # not every function can be exported so, and not every file then runs so
            function = saved(agent, mode, None, part, format)
            return function, compared(agent, function, opened(part, format), actions, steps)
    function = saved(agent, mode, batch or 1, part, format)
    return function, compared(agent, function, opened(part, format), actions, steps)


def saved(agent: Agent, mode: Mode, batch: int | None, part: Path, format: Format) -> PolicyFunction:
    """Trace the policy and write it to ``part``."""
    with _quiet(), torch.no_grad(), only():
        function = PolicyFunction(agent, mode, batch)
        program = function.graph()
        if format == "torch":
            torch.export.save(program, part)
            return function
        names = [[port.name for port in ports] for ports in (function.read, function.outputs)]
        made = torch.onnx.export(
            program, dynamo=True, verbose=False, external_data=False, input_names=names[0], output_names=names[1]
        )
        assert made is not None
        made.save(part)
    return function


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what PyTorch's exporters say of packages that are not needed, and of their own parts."""
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

Call = Callable[[Sequence[Tensor]], list[Tensor]]
"""Runs an exported policy: its inputs to its outputs."""


def opened(file: Path, format: Format) -> Call:
    """Return what runs a file."""
    if format == "torch":
        module = torch.export.load(file).module()
        return lambda given: list(module(*given))
    session = importlib.import_module("onnxruntime").InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def call(given: Sequence[Tensor]) -> list[Tensor]:
        found = session.run(None, {name: x.numpy() for name, x in zip(names, given, strict=True)})
        return [torch.from_numpy(np.asarray(x)) for x in found]

    return call


# ---------------------------------------------------------------- comparing it with the agent


def rows(agent: Agent, batch: int, seed: int) -> Generator[Step, Tensor, None]:
    """Yield what N environments show, whose actions ``[N, A]`` are sent; where there are none, random observations."""
    config = agent.config.merge({"eval_envs": batch, "eval_episodes": batch})
    try:
        with contextlib.closing(make_eval_env(config, agent.factory, as_trained=True)) as env:
            step = env.reset(seed)
            while env.num_envs == batch:  # a single instance of the user's does not do for several
                step = env.step((yield step))
    except EnvError:
        if agent.observation_space is None:
            raise
    space, stacks = agent.observation_space, agent.observer.stacks(batch)
    assert space is not None
    space.seed(seed)
    legal = np.ones(agent.action_spec.width, bool)
    for number in itertools.count():
        first = np.full(batch, number % EPISODE == 0)
        drawn = [agent.observer(space.sample(), stack, first[0], legal) for stack in stacks]
        yield as_step({key: np.stack([one[key] for one in drawn]) for key in drawn[0]}, first, 0.0)


def newest(x: Tensor, part: ObsPart, stacked: bool) -> Tensor:
    """Return the newest of stacked observations ``[N, ...]``, of which ``part`` is a single one."""
    if not stacked or part.kind == "mask":
        return x
    return x[..., -part.shape[-1] :] if part.kind == "image" else x[:, -1]


def compared(agent: Agent, function: PolicyFunction, call: Call, actions: Actions, steps: int) -> dict[str, Any]:
    """Return in how many steps the file differs from the agent, by how much, and the times of both.

    Nothing is compared of the last rows of episodes, where nobody acts. A file for any number of rows is called with
    several now and then.
    """
    batch = function.rows
    seed, took, differing, error = derived_seeds(agent.config.seed)["test"], list[float](), 0, 0.0
    policy, mode, none = agent.algo.policy, mode_of(actions), torch.zeros(batch, dtype=torch.bool)
    single, stacked = agent.observer.single, agent.config.env.frame_stack > 1
    with reproducible(seed), contextlib.closing(rows(agent, batch, seed)) as shown:
        step, state = next(shown), agent.initial_state(batch)
        values = {port.name: port.example for port in function.inputs}
        done = 0
        while done < steps:
            acts, before = ~step.is_last, state  # [N]
            step = replace(step, is_last=none, is_terminal=none)  # which no agent is told
            values |= {f"obs/{key}": newest(x, single[key], stacked) for key, x in step.obs.items()}
            values |= {"is_first": step.is_first, "reward": step.reward}
            with Draws() as draws, only() if function.noise else contextlib.nullcontext():  # some kernels draw in C
                flat, state = policy.act(step, state, mode)
            values |= function.noise_inputs(draws.drawn)
            start = time.perf_counter()
            copies = 3 if function.any_rows and done % 10 == 1 else 1
            given = [values[port.name] for port in function.read]
            found = [x[-batch:] for x in call([torch.cat([x] * copies) for x in given])] if copies > 1 else call(given)
            took.append(time.perf_counter() - start)
            values |= dict(zip(function.kept, found[len(function.actions) :], strict=True))
            if acts.any():
                done, known, taken = done + 1, function.known(state), agent.codec(flat.numpy())
                wrong = float(function.off(found, taken)[acts.numpy()].max())
                gaps = ((values[name].double() - x.double()).abs() for name, x in known.items() if x.numel())
                off = max(wrong, *(float((gap[acts] if len(gap.shape) else gap).max()) for gap in gaps), 0.0)
                if off > CLOSE:
                    chosen = _told(policy, step, before, draws, mode) if wrong > CLOSE else None
                    right = chosen is not None and function.off(found, taken, chosen)[acts.numpy()].max() <= CLOSE
                    differing, values = differing + (not right), values | known
                else:
                    error = max(error, off)
            step = shown.send(flat)
        alone = list[float]()
        for _ in range(min(steps, 200)):
            start = time.perf_counter()
            policy.act(step, state, mode)
            alone.append(time.perf_counter() - start)
    times = {"seconds": float(np.median(took)), "agent_seconds": float(np.median(alone))}
    return {"steps": steps, "differing": differing, "error": error, **times}


def _told(policy: Policy[Any], step: Step, state: Any, draws: Draws, mode: Mode) -> Told | None:
    """Return what the policy chose by, having drawn ``draws``; None if it cannot tell, or has drawn the action."""
    with contextlib.suppress(ConfigError), Draws([one.values for one in draws.drawn]):
        found = told(policy, step, state)
        return found if mode == "eval" or isinstance(found.choice, Values) else None
    return None


def described(
    agent: Agent, function: PolicyFunction, format: Format, actions: Actions, found: Exported
) -> dict[str, Any]:
    """Return the content of policy.json."""
    about: dict[str, Any] = {"file": found.file.name, "format": format, "algorithm": agent.config.algo.algorithm}
    about |= {"env": agent.config.env.id, "run": agent.run.name, "checkpoint": agent.checkpoint.name}
    about |= {"reverie": version(), "torch": str(torch.__version__), "actions": actions, "use": SEMANTICS}
    about |= {"batch": "any" if function.any_rows else function.rows}
    compared = {
        "steps": found.steps,
        "differing": found.differing,
        "largest_difference": found.error,
        "microseconds": round(1e6 * found.seconds, 1),
        "microseconds_of_the_agent": round(1e6 * found.agent_seconds, 1),
    }
    ports = {"inputs": function.read, "outputs": function.outputs}
    return about | {k: [port.described() for port in x] for k, x in ports.items()} | {"compared": compared}
