"""The policy of an agent, or of a run, as a file that runs without this library: ``policy_file`` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reverie.agent.agent import Agent
from reverie.agent.loading import load
from reverie.agent.policy_file import ExportReport, Format, export_policy


def export(
    agent: Agent | Path | str, out: Path | str | None = None, *,
    format: Format = "onnx", deterministic: bool = True, batch: int | None = None, steps: int = 1000, **loading: Any,
) -> ExportReport:  # fmt: skip
    """Write the policy of an agent as a file that runs without this library, and compare it with the agent.

    Its inputs are observations as learners see them; normalisation, stacks of frames, masks and the scaling of actions
    are inside. The JSON file beside it says all that a caller must know.

    Args:
        agent: the agent, or the place of its run for :func:`reverie.load`.
        out: the file. None: ``policy.onnx`` or ``policy.pt2`` in the run folder.
        format: ``onnx`` for ONNX Runtime and others, ``torch`` for ``torch.export.load``.
        deterministic: the most likely actions. False: sampled ones, whose noise is an input.
        batch: N, the number of observations of a call. None: any number if the policy has no memory, else 1.
        steps: steps of episodes in which the file is compared with the agent: in its environment or, if that cannot be
            made, on random observations.
        loading: ``env``, ``checkpoint`` and others of :func:`reverie.load`, if a run is given.

    Raises:
        ConfigError: there is no such ``format``, or a package is not installed.
        RunError: there is no such run, the file cannot be written, or it does not do what the agent does. Then nothing
            is written.
    """
    agent = agent if isinstance(agent, Agent) else load(agent, **loading)
    return export_policy(agent, out, format=format, deterministic=deterministic, batch=batch, steps=steps)
