"""Evaluate a run's agent on whole episodes, and write the scores and, if wanted, a video of the first episode."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reverie.agent.agent import Actions, Agent
from reverie.core.errors import RunError, warn
from reverie.core.types import Mode
from reverie.core.words import Say
from reverie.envs.episode_info import STATISTICS
from reverie.experiment import ExperimentConfig
from reverie.folder import RunFolder, found_at_end, write_found, writing
from reverie.log.video import write_video
from reverie.run.evaluate import Evaluation


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
            write_evaluation(folder, evaluation, agent.config, step, **more)
            files["evaluation"] = folder.evaluation
            if evaluation.frames is not None:
                path = folder.videos / f"eval-{step:012d}.mp4"
                files["video"] = write_video(path, evaluation.frames, agent.frames_per_second)
    except RunError as error:
        unwritten = str(error)
        say(unwritten)
    return EvaluationReport(evaluation=evaluation, files=files, unwritten=unwritten)


def write_evaluation(
    folder: RunFolder, evaluation: Evaluation, config: ExperimentConfig, step: int, **more: Any
) -> None:
    """Write eval.json. ``step`` counts updates in a run on recorded data alone, and env steps otherwise."""
    mode, unit = "mode" if evaluation.mode == "eval" else "sample", "updates" if config.data.alone else "env_steps"
    head = {unit: step, "episodes": len(evaluation.scores), "actions": mode, "score": summary(evaluation)}
    each = {"scores": evaluation.scores, "lengths": evaluation.lengths}
    each |= {"info": evaluation.info} if evaluation.info else {}
    write_found(folder.evaluation, {**head, **more, **each})


def final_evaluation_in(folder: RunFolder) -> Evaluation | None:
    """Return the evaluation made at the end of training, from eval.json; None if there is none."""
    own = found_at_end(folder.evaluation) or {}
    try:
        mode: Mode = "eval" if own["actions"] == "mode" else "explore"
        return Evaluation(
            scores=[float(x) for x in own["scores"]],
            lengths=[int(x) for x in own["lengths"]],
            mode=mode,
            info=[dict(info) for info in own.get("info", [])],
        )
    except (KeyError, TypeError, ValueError):
        return None


def summary(evaluation: Evaluation) -> dict[str, float]:
    """Summarise the scores in a few numbers; without ``iqm_low`` and ``iqm_high`` if there is no interval."""
    metrics = evaluation.metrics()
    others = {name: metrics[f"eval/score_{name}"] for name in STATISTICS if f"eval/score_{name}" in metrics}
    return {"mean": metrics["eval/score"], **others, "min": min(evaluation.scores), "max": max(evaluation.scores)}
