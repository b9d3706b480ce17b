"""Files that run without reverie: a policy (``agent/policy_file.py``), a world model, and a page in which one walks."""

from __future__ import annotations

import contextlib
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from reverie.agent.agent import Agent
from reverie.agent.loading import load
from reverie.agent.policy_file import ExportReport, Format, copy_to_cpu, export_policy
from reverie.agent.program import Numbers, decode, encode
from reverie.agent.right_dreams import RightDreams, count_right_dreams, dream_horizon, play_beginnings
from reverie.agent.world_model_inspector import require_world_model
from reverie.core.errors import ConfigError
from reverie.core.files import check_writable, disk_errors_as_run_error, write_atomic
from reverie.core.specs import MASK_KEY
from reverie.envs.page_programs import find_page_program
from reverie.viewer.page import STATIC, make_page

WORLD_AND_DREAM = "Left: the world. Right: what the model imagines from your actions, with closed eyes."
DREAMS = 100
"""Dreams that are judged for the sentence of a page."""


def export(
    agent: Agent | Path | str, out: Path | str | None = None, *,
    format: Format | None = None, batch: int | None = None, steps: int = 1000, numbers: Numbers = "float16",
    world: bool = False, **loading: Any,
) -> ExportReport:  # fmt: skip
    """Export the policy of an agent to a file that runs without reverie, and compare the file with the agent.

    The inputs are observations as learners see them; normalization, frame stacking, action masks and action scaling are
    part of the file. The outputs are the most likely actions and the parameters of their distribution. The JSON file
    next to it describes everything that a caller needs.

    Args:
        agent: the agent, or its run for :func:`reverie.load`.
        out: the file. None: ``policy.onnx``, ``policy.pt2``, ``program.json`` or ``world.json`` in the run folder.
        format: ``onnx`` for ONNX Runtime and other runtimes, ``torch`` for ``torch.export.load``, ``program`` for a
            list of operations that a browser runs. None: by the suffix of ``out``, else ``onnx``.
        batch: N, the number of observations per call. None: any number if the policy has no memory, else 1.
        steps: number of calls with random observations in which the file is compared with the agent.
        numbers: how a program stores weights; it computes in float32.
        world: export the world model's functions observe, imagine and predict as a program, instead of the policy. If
            ``out`` ends in ``.html``, it is a page in which one walks in the environment and in its dream; the
            environment needs a page program (``envs/page_programs.py``).
        loading: ``env``, ``checkpoint`` and other arguments of :func:`reverie.load`, if ``agent`` is a run.

    Raises:
        ConfigError: the ``format`` is unknown or contradicts ``out``, a package is not installed, a program would need
            an operation that pages do not have, or there is no world model.
        RunError: the run does not exist, the file cannot be written, or the file acts differently from the agent. Then
            nothing is written.
    """
    agent = agent if isinstance(agent, Agent) else load(agent, **loading)
    if world and out is not None and Path(out).suffix == ".html":
        return _write_step_page(agent, Path(out), numbers, steps)
    return export_policy(agent, out, format=format, batch=batch, steps=steps, numbers=numbers, world=world)


def _write_step_page(agent: Agent, path: Path, numbers: Numbers = "float16", steps: int = 1000) -> ExportReport:
    """Write "Step into the dream": the environment beside the model's dream, in one file."""
    check_writable(path.parent)
    with contextlib.closing(agent.make_env()) as env:
        script = find_page_program(env)
    if script is None:
        raise ConfigError(
            f"{agent.config.env.id} has no page program, which draws it in a page: set the class attribute "
            "page_program of the environment to a JavaScript file, as reverie/Rooms does, or export to .json."
        )
    with tempfile.TemporaryDirectory() as folder, disk_errors_as_run_error(path):
        part = Path(folder) / "world.json"
        report = export_policy(agent, part, format="program", steps=steps, numbers=numbers, world=True)
        program = json.loads(part.read_text(encoding="utf-8"))
        title = f"Step into the dream: {agent.config.env.label()}"
        page = make_page(
            "step", title, [STATIC / "program.js", script, STATIC / "step.js"],
            {"program": {name: program[name] for name in ("parts", "tensors")}, "given": _describe(agent, numbers)},
        )  # fmt: skip
        write_atomic(path, page)
    return replace(report, file=path, metadata_file=path)


def _describe(agent: Agent, numbers: Numbers) -> dict[str, Any]:
    """Return what the page says, and how it reads predictions."""
    spec = {key: part for key, part in agent.obs_spec.items() if key != MASK_KEY}
    grids = {part.shape for part in spec.values() if len(part.shape) == 2}
    cells = [key for key, part in spec.items() if len(part.shape) == 1 and tuple(part.classes[:2]) in grids]
    rounded = _round_weights(agent, numbers)
    agents, random = (
        count_right_dreams(rounded, play_beginnings(rounded, DREAMS, random=is_random)) for is_random in (False, True)
    )
    return {
        "title": agent.config.env.label(),
        "say": f"{WORLD_AND_DREAM} {_sentence(agents, random, dream_horizon(agent))}",
        "facts": f"{agent.config.algo.algorithm}, {agent.checkpoint.name}, weights in {numbers}.",
        "discount": require_world_model(agent).world.discount,
        "discrete": all(part.kind == "categorical" for part in agent.action_spec.parts.values()),
        "spec": {key: {"kind": part.kind, "classes": list(part.classes)} for key, part in spec.items()},
        "cells": cells,
    }


def _sentence(agents: RightDreams, random: RightDreams, horizon: int) -> str:
    """Say how many dreams are right."""
    return (
        f"{agents.right} of {agents.total} dreams of up to {horizon} steps are right under the agent's actions, "
        f"{random.right} of {random.total} under random ones."
    )


def _round_weights(agent: Agent, numbers: Numbers) -> Agent:
    """Return the agent with its weights as a program stores them."""
    plain = cast(Agent, copy_to_cpu(agent))
    with torch.no_grad():
        for parameter in require_world_model(plain).world.parameters():
            parameter.copy_(decode(encode(parameter, numbers)))
    return plain
