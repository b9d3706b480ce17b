"""Export the policy of an agent or a run to a file that runs without reverie; ``policy_file`` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reverie.agent.agent import Agent
from reverie.agent.loading import load
from reverie.agent.policy_file import ExportReport, Format, export_policy


def export(
    agent: Agent | Path | str, out: Path | str | None = None, *,
    format: Format | None = None, batch: int | None = None, steps: int = 1000,
    **loading: Any,
) -> ExportReport:  # fmt: skip
    """Export the policy of an agent to a file that runs without reverie, and compare the file with the agent.

    The inputs are observations as learners see them; normalization, frame stacking, action masks and action scaling are
    part of the file. The outputs are the most likely actions and the parameters of their distribution. The JSON file
    next to it describes everything that a caller needs.

    Args:
        agent: the agent, or its run for :func:`reverie.load`.
        out: the file. None: ``policy.onnx`` or ``policy.pt2`` in the run folder.
        format: ``onnx`` for ONNX Runtime and other runtimes, ``torch`` for ``torch.export.load``. None: ``torch`` if
            ``out`` ends in ``.pt2``, else ``onnx``.
        batch: N, the number of observations per call. None: any number if the policy has no memory, else 1.
        steps: number of calls with random observations in which the file is compared with the agent.
        loading: ``env``, ``checkpoint`` and other arguments of :func:`reverie.load`, if ``agent`` is a run.

    Raises:
        ConfigError: the ``format`` is unknown or contradicts ``out``, or a package is not installed.
        RunError: the run does not exist, the file cannot be written, or the file acts differently from the agent. Then
            nothing is written.
    """
    agent = agent if isinstance(agent, Agent) else load(agent, **loading)
    return export_policy(agent, out, format=format, batch=batch, steps=steps)
