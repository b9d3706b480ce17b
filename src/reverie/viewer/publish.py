"""Files that run without reverie: a policy (``agent/policy_file.py``), a world model, and a page in which one walks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from reverie.agent.agent import Agent
from reverie.agent.agent_file import without_folders
from reverie.agent.loading import load
from reverie.agent.policy_file import ExportReport, Format, export_policy
from reverie.agent.program import Numbers
from reverie.agent.sharing import AgentPage, MakePageFn, upload_agent
from reverie.agent.world_model_inspector import require_world_model
from reverie.core.errors import ConfigError, ReverieError
from reverie.core.files import check_writable, disk_errors_as_run_error, write_atomic
from reverie.core.logger import logger
from reverie.run.folder import RunFolder
from reverie.viewer.page import make_page
from reverie.viewer.report import report_shared
from reverie.viewer.walk import make_walk


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
    require_world_model(agent)
    if (walk := make_walk(agent, numbers, steps)) is None:
        raise ConfigError(
            f"{agent.config.env.id} has no page program, which draws it in a page: set the class attribute "
            "page_program of the environment to a JavaScript file, as reverie/Rooms does, or export to .json."
        )
    title = f"Step into the dream: {agent.config.env.label()}"
    with disk_errors_as_run_error(path):
        write_atomic(path, make_page("step", title, walk.scripts, walk.blocks))
    return replace(walk.report, file=path, metadata_file=path)


def push(
    run: Path | str, location: str, *, checkpoint: Path | str | None = None, private: bool = False, page: bool = True
) -> str:
    """Upload the agent of a run: weights, settings, spaces, evaluation, its report, and a model card.

    No rows, no code.

    Args:
        run: the run folder.
        location: ``hf://USER/NAME`` on the Hugging Face Hub, where a repository is created or a commit is added;
            ``s3://BUCKET/NAME`` or another fsspec URL; or a folder, which is new or contains a pushed agent.
        checkpoint: name of a folder in ``checkpoints/``, "best", or a path. None: the best if there is one, else the
            newest.
        private: create the repository as private.
        page: play episodes for report.html (:func:`reverie.report`), whose finding is in the model card. False: the
            environment is not needed.

    Returns:
        Argument for :func:`reverie.load`; for the Hub, without the commit.

    Raises:
        ReverieError: the run or checkpoint does not exist, or the location cannot be reached, denies access, or
            contains something else.
        UntrustedError: the run names a module that belongs to no installed package and that you have not named
            yourself.
    """

    def write_page(checkpoint: Path, path: Path) -> AgentPage | None:
        try:
            made = report_shared(RunFolder.from_path(run).path, checkpoint, path, without_folders(location))
        except ReverieError as error:
            logger.warning(f"the agent is shared without a report: {error}")
            return None
        return AgentPage(made.finding, made.support, made.numbers)

    pages: MakePageFn = write_page if page else lambda checkpoint, path: None
    return upload_agent(run, location, checkpoint=checkpoint, private=private, make_page=pages)
