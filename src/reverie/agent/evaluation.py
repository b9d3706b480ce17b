"""Evaluate a run's agent on whole episodes, and write the scores and, if wanted, a video of the first episode."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reverie.agent.agent import Actions, Agent
from reverie.core.errors import RunError, warn
from reverie.core.files import writing
from reverie.core.words import Say
from reverie.log.video import write_video
from reverie.run.evaluate import Evaluation
from reverie.run.folder import RunFolder, write_found


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """An evaluation, and the files that hold it."""

    evaluation: Evaluation
    """Scores and lengths."""
    files: dict[str, Path]
    """Written files by name: "evaluation", and "video" if one was asked for and the environment can be rendered."""
    unwritten: str = ""
    """Why some file could not be written; "" if all were."""


def evaluate_run(
    agent: Agent,
    episodes: int = 20,
    *,
    actions: Actions = "mode",
    video: bool = False,
    seed: int | None = None,
    time_limit: int | None = None,
    say: Say = warn,
) -> EvaluationReport:
    """Play ``episodes`` whole episodes, write ``<run>/eval.json``, and with ``video`` the first to ``<run>/videos/``.

    ``time_limit``: most decisions of an episode; None for that of the run's environment.
    If nothing can be written, the report still holds the scores, and ``say`` is called with the reason.

    Raises:
        ConfigError: ``episodes``, ``actions``, ``seed`` or ``time_limit`` is out of range.
        EnvError: the environment cannot be made.
    """
    folder, step = RunFolder(agent.run), agent.step
    evaluation = agent.evaluate(episodes, actions=actions, record=video, seed=seed, time_limit=time_limit)
    more = {"checkpoint": agent.checkpoint.name} | ({} if time_limit is None else {"time_limit": time_limit})
    files: dict[str, Path] = {}
    unwritten = ""
    try:
        with writing(folder.path):
            unit = "updates" if agent.config.offline else "env_steps"
            write_found(folder.evaluation, {unit: step, **evaluation.to_dict(), **more})
            files["evaluation"] = folder.evaluation
            if evaluation.frames is not None:
                path = folder.videos / f"eval-{step:012d}.mp4"
                files["video"] = write_video(path, evaluation.frames, agent.frames_per_second)
    except RunError as error:
        unwritten = str(error)
        say(unwritten)
    return EvaluationReport(evaluation=evaluation, files=files, unwritten=unwritten)
