"""How good a run's agent is, as a file: scores of whole episodes and, if wanted, what the first one looked like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reverie.agent.agent import Actions, Agent
from reverie.core.errors import RunError, warn
from reverie.core.types import Mode
from reverie.experiment import ExperimentConfig
from reverie.folder import RunFolder, found_at_end, write_found, writing
from reverie.log.video import write_video
from reverie.run.evaluate import Evaluation
from reverie.run.verify import step_of


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """An evaluation and the files it left."""

    evaluation: Evaluation
    """Scores and lengths."""
    files: dict[str, Path]
    """What was written, by what it is; there is no video of an environment that cannot be drawn."""
    unwritten: str = ""
    """Why some of it could not be written; nothing if all was."""


def evaluate_run(
    agent: Agent,
    episodes: int = 20,
    *,
    actions: Actions = "mode",
    video: bool = False,
    seed: int | None = None,
    say: Callable[[str], None] = warn,
) -> EvaluationReport:
    """Play ``episodes`` whole episodes and write ``<run>/eval.json``, and a video of the first into ``<run>/videos/``.

    Scores are not lost where nothing can be written: the report holds them, and ``say`` gets a sentence about it.

    Raises:
        ConfigError: ``episodes`` is not at least 1.
        EnvError: the environment cannot be made.
        RunError: the checkpoint is damaged.
    """
    folder, step = RunFolder(agent.run), step_of(agent.checkpoint)
    evaluation = agent.evaluate(episodes, actions=actions, record=video, seed=seed)
    files: dict[str, Path] = {}
    unwritten = ""
    try:
        with writing(folder.path):
            write_evaluation(folder, evaluation, agent.config, step, checkpoint=agent.checkpoint.name)
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
    """Write eval.json. ``step`` counts updates in runs that learn from recorded data alone."""
    mode, unit = "mode" if evaluation.mode == "eval" else "sample", "updates" if config.data.alone else "env_steps"
    head = {unit: step, "episodes": len(evaluation.scores), "actions": mode, "score": summary(evaluation)}
    write_found(folder.evaluation, {**head, **more, "scores": evaluation.scores, "lengths": evaluation.lengths})


def final_evaluation_in(folder: RunFolder) -> Evaluation | None:
    """The one at the end of training, as eval.json has it; None if it does not."""
    own = found_at_end(folder.evaluation) or {}
    try:
        mode: Mode = "eval" if own["actions"] == "mode" else "explore"
        return Evaluation(scores=[float(x) for x in own["scores"]], lengths=[int(x) for x in own["lengths"]], mode=mode)
    except (KeyError, TypeError, ValueError):
        return None


def summary(evaluation: Evaluation) -> dict[str, float]:
    """The scores in a few numbers; ``iqm_low`` and ``iqm_high`` are missing where there is no interval."""
    metrics = evaluation.metrics()
    names = {
        name.removeprefix("eval/score_"): value for name, value in metrics.items() if name.startswith("eval/score_")
    }
    return {"mean": metrics["eval/score"], **names, "min": min(evaluation.scores), "max": max(evaluation.scores)}
