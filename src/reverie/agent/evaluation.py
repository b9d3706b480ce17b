"""Evaluate a run's agent on whole episodes, and write the scores and, if wanted, a video of the first episode."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reverie.agent.agent import Actions, Agent
from reverie.core.errors import RunError
from reverie.core.files import writing
from reverie.core.logger import logger
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


def evaluate_run(
    agent: Agent,
    episodes: int = 20,
    *,
    actions: Actions = "mode",
    video: bool = False,
    seed: int | None = None,
    time_limit: int | None = None,
) -> EvaluationReport:
    """Play ``episodes`` as :meth:`Agent.evaluate` does; write ``eval.json``, and with ``video`` the first episode.

    If nothing can be written, the report still holds the scores, and the reason is logged.
    """
    evaluation = agent.evaluate(episodes, actions=actions, record=video, seed=seed, time_limit=time_limit)
    folder, files = RunFolder(agent.run), dict[str, Path]()
    content = {"updates" if agent.config.offline else "env_steps": agent.step, **evaluation.to_dict()}
    content |= {"checkpoint": agent.checkpoint.name} | ({} if time_limit is None else {"time_limit": time_limit})
    try:
        with writing(folder.path):
            write_found(folder.evaluation, content)
            files["evaluation"] = folder.evaluation
            if evaluation.frames is not None:
                path = folder.videos / f"eval-{agent.step:012d}.mp4"
                files["video"] = write_video(path, evaluation.frames, agent.frames_per_second)
    except RunError as error:
        logger.warning(str(error))
    return EvaluationReport(evaluation=evaluation, files=files)
