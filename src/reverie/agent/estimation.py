"""What a run's agent would earn, estimated from any recorded data that fit it, as numbers and as a file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reverie.agent.agent import MODES, Actions, saved_config
from reverie.algos.base import AlgorithmConfig
from reverie.core.errors import ConfigError, DataError, EnvError, RunError, warn
from reverie.core.machine import choose_device
from reverie.core.randomness import derived_seeds
from reverie.core.types import Window
from reverie.data.dataset import Dataset, DatasetConfig, no_path
from reverie.estimating import Estimator, PolicyEstimate, config_for, write_estimate
from reverie.experiment import ExperimentConfig
from reverie.folder import RunFolder, writing
from reverie.offline import NO_ENV, action_space_of
from reverie.recorded import Recorded, open_recorded, shown
from reverie.run.checkpoint import Checkpoints
from reverie.run.signature import changes, signature
from reverie.run.verify import step_of


@dataclass(frozen=True, kw_only=True)
class EstimateReport:
    """An estimate and the file that it left."""

    estimate: PolicyEstimate
    """What the policy would earn, and what was earned in the data."""
    files: dict[str, Path]
    """What was written, by what it is."""
    unwritten: str = ""
    """Why it could not be written; nothing if it was."""


def estimate(
    run: Path | str,
    data: DatasetConfig | Path | str | None = None,
    *,
    updates: int = 20_000,
    actions: Actions = "mode",
    draws: int = 10,
    discount: float | None = None,
    checkpoint: Path | str | None = None,
    algo: AlgorithmConfig | None = None,
    device: str = "auto",
    seed: int | None = None,
    say: Callable[[str], None] = warn,
) -> EstimateReport:
    """Estimate by fitted Q evaluation what a run's agent would earn, and write ``<run>/estimate.json``.

    Nothing is played, and no environment is needed. World models are shown the recorded episodes in their order.

    Args:
        run: the run folder.
        data: where to estimate from: a path or minari:NAME, or a configuration where more is to be said. What the run
            was trained on unless given.
        updates: of fitted Q evaluation.
        actions: whether the policy takes its most likely action or draws one.
        draws: how many it draws in each row, if it does.
        discount: gamma; that of the learner unless given, or 0.99 if it has none.
        checkpoint: the name of a folder in ``checkpoints/``, or a path; the newest that is whole unless given.
        algo: the configuration the run was trained with, if it held objects of your own.
        device: where to compute.
        seed: of networks and batches; follows from that of the run unless given.
        say: gets a sentence now and then.

    Raises:
        RunError: there is no such run or checkpoint, or it is damaged.
        DataError: there are no data, they cannot be read, or they do not fit the agent.
    """
    check_numbers(draws=(draws, 1), seed=(0 if seed is None else seed, 0))
    folder, config = RunFolder(Path(run)), saved_config(Path(run), NO_ENV, algo)
    config = with_data(config, data, folder.path)
    checkpoints = Checkpoints(folder.checkpoints, say=say)
    path = checkpoints.chosen(checkpoint)
    seed = derived_seeds(config.seed)["test"] if seed is None else seed
    with contextlib.closing(opened(config)) as recorded:
        check_fit(recorded, folder)
        specs = recorded.obs_spec, recorded.action_spec
        learner = config.algo.build(*specs, choose_device(device), config.seed)
        checkpoints.load(path, {"algo": learner})
        settings = config_for(learner).merge({} if discount is None else {"discount": discount})
        dataset = everything(config, recorded, settings.frames, seed)
        for remark in recorded.remarks():
            say(f"{config.data.path}: {remark}")
    mode = MODES[actions]
    estimator = Estimator(learner, dataset, *specs, settings, seed=seed)
    found = estimator.estimate(updates, mode=mode, draws=1 if mode == "eval" else draws)
    return written(folder, found, path, config.data.path, say)


def check_numbers(**given: tuple[int, int]) -> None:
    """Each number ``(given, least)`` is at least what it must be.

    Raises:
        ConfigError: one is not.
    """
    for name, (number, least) in given.items():
        if number < least:
            raise ConfigError(f"{name} = {number}: expected at least {least}.")


def written(
    folder: RunFolder, found: PolicyEstimate, checkpoint: Path, data: str, say: Callable[[str], None]
) -> EstimateReport:
    """Write estimate.json; the numbers are not lost where that cannot be."""
    try:
        with writing(folder.path):
            write_estimate(folder, found, step_of(checkpoint), checkpoint=checkpoint.name, data=data)
    except RunError as error:
        say(str(error))
        return EstimateReport(estimate=found, files={}, unwritten=str(error))
    return EstimateReport(estimate=found, files={"estimate": folder.estimate})


def with_data(config: ExperimentConfig, data: DatasetConfig | Path | str | None, run: Path) -> ExperimentConfig:
    """``config`` with the data to estimate from, and with rewards as they were.

    Raises:
        RunError: none are given, and the run had none.
    """
    if isinstance(data, DatasetConfig):
        config = config.merge({"data": data})
    elif data is not None:
        if not isinstance(data, str | Path):
            raise no_path(data)
        config = config.merge({"data": DatasetConfig(path=str(data), storage=config.data.storage)})
    if not config.data.path:
        raise RunError(f"{run} was not trained on recorded data: say which to estimate from, --data PATH.")
    return config.merge({"env.clip_reward": "none"})


def opened(config: ExperimentConfig) -> Recorded:
    """The data, whose actions are measured by the bounds of the run's environment if that can be made."""
    space = None
    if config.env.id != NO_ENV:
        with contextlib.suppress(EnvError):
            space = action_space_of(config, None)
    return open_recorded(config.data, config.env, space)


def check_fit(recorded: Recorded, folder: RunFolder) -> None:
    """The data show and do what the agent of a run sees and does.

    Raises:
        DataError: they do not; names each difference.
    """
    if not folder.spec.is_file():
        return
    saved = json.loads(folder.spec.read_text(encoding="utf-8"))
    found = changes(saved, signature(recorded.obs_spec, recorded.action_spec))
    if found:
        what = "; ".join(
            line.replace(" was ", " of the agent is ").replace(", is now ", ", of the data ") for line in found
        )
        raise DataError(
            f"{recorded.where} does not fit the agent in {folder.path}: {what}. Give data of the environment that it "
            "was trained on."
        )


def everything(config: ExperimentConfig, recorded: Recorded, frames: int, seed: int) -> Dataset:
    """All rows, to be seen in stacks of ``frames``, with a progress bar where there is somebody to see it."""
    window = Window(batch=1, length=2, context=frames - 1, context_crosses=frames > 1)
    with shown(f"reading {recorded.reader.path.name}", recorded.rows()) as counted:
        return config.data.build(recorded, window=window, seed=seed, parts=counted(recorded.parts()))
