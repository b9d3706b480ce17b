"""An environment in a page, in which the agent acts or a visitor, beside the dream of a world model if there is one."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from gymnasium import spaces

from reverie.agent.agent import Agent
from reverie.agent.policy_file import ExportReport, copy_to_cpu, export_policy
from reverie.agent.program import Numbers, decode, encode
from reverie.agent.right_dreams import count_right, dream_again, dream_horizon, play_beginnings
from reverie.agent.world_model_inspector import has_world_model, require_world_model
from reverie.core.specs import MASK_KEY
from reverie.core.types import Batch
from reverie.envs.page_programs import find_page_program
from reverie.viewer.page import STATIC

WORLD_AND_DREAM = (
    "Left: the world. Right: what the model imagines from your actions, with closed eyes: one of the futures that it "
    "expects."
)
DREAMS = 100
"""Dreams that are judged for the sentence of a page."""


class Walk(NamedTuple):
    """What a page needs: scripts, blocks of data, and how the program compares with the agent."""

    scripts: list[Path]
    blocks: dict[str, Any]
    report: ExportReport


def make_walk(
    agent: Agent, numbers: Numbers, steps: int, beginnings: Sequence[Sequence[Batch]] | None = None
) -> Walk | None:
    """Return the agent's program beside its environment's; None if the environment has no page program.

    ``beginnings``: episodes under the agent's and under random actions, of which dreams are judged. None: new ones.

    Raises:
        ConfigError: the agent cannot be a program.
    """
    with contextlib.closing(agent.make_env()) as env:
        script = find_page_program(env)
    if script is None:
        return None
    has_dreams = has_world_model(agent)
    program, report = export_parts(agent, numbers, steps, world=has_dreams)
    states = {output["name"]: output["input"] for output in program["outputs"] if output["role"] == "state"}
    description = _describe(agent, numbers) | {"states": states}
    description |= _describe_dreams(agent, numbers, beginnings) if has_dreams else _describe_actions(agent)
    blocks = {"program": {name: program[name] for name in ("parts", "tensors")}, "given": description}
    return Walk([STATIC / "program.js", script, STATIC / "step.js"], blocks, report)


def export_parts(agent: Agent, numbers: Numbers, steps: int, world: bool) -> tuple[dict[str, Any], ExportReport]:
    """Return the content of an agent's program, and how it compares with the agent."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.json"
        report = export_policy(agent, path, format="program", steps=steps, numbers=numbers, world=world)
        return json.loads(path.read_text(encoding="utf-8")), report


def _describe(agent: Agent, numbers: Numbers) -> dict[str, Any]:
    """Return what the page says, and how it reads outputs."""
    spec = {key: part for key, part in agent.obs_spec.items() if key != MASK_KEY}
    grids = {part.shape for part in spec.values() if len(part.shape) == 2}
    cells = [key for key, part in spec.items() if len(part.shape) == 1 and tuple(part.classes[:2]) in grids]
    return {
        "title": agent.config.env.label(),
        "facts": f"{agent.config.algo.algorithm}, {agent.checkpoint.name}, weights in {numbers}.",
        "discrete": all(part.kind == "categorical" for part in agent.action_spec.parts.values()),
        "spec": {key: {"kind": part.kind, "classes": list(part.classes)} for key, part in spec.items()},
        "cells": cells,
    }


def _describe_actions(agent: Agent) -> dict[str, Any]:
    """Return how actions of the environment become those of its page program."""
    space = agent.action_space
    scale = [space.low.ravel().tolist(), space.high.ravel().tolist()] if isinstance(space, spaces.Box) else None
    start = int(np.ravel(getattr(space, "start", 0))[0])
    return {"say": "The agent acts by its most likely actions, or you take over.", "scale": scale, "start": start}


def _describe_dreams(agent: Agent, numbers: Numbers, beginnings: Sequence[Sequence[Batch]] | None) -> dict[str, Any]:
    """Return how many dreams of the rounded model are right, in a sentence."""
    if beginnings is None:
        beginnings = [play_beginnings(agent, DREAMS, random=is_random) for is_random in (False, True)]
    rounded = _round_weights(agent, numbers)
    agents, random = (count_right(dream_again(rounded, batches)) for batches in beginnings)
    sentence = (
        f"{agents.right} of {agents.total} dreams of up to {dream_horizon(agent)} steps are right under the agent's "
        f"actions, {random.right} of {random.total} under random ones."
    )
    return {"say": f"{WORLD_AND_DREAM} {sentence}", "discount": require_world_model(agent).world.discount}


def _round_weights(agent: Agent, numbers: Numbers) -> Agent:
    """Return the agent with its weights as a program stores them."""
    plain = cast(Agent, copy_to_cpu(agent))
    with torch.no_grad():
        for parameter in require_world_model(plain).world.parameters():
            parameter.copy_(decode(encode(parameter, numbers)))
    return plain
