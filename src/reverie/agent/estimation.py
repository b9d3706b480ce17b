"""Estimate the return of a run's agent from any recorded data that fit it; return the numbers and write a file."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from reverie.agent.agent import Actions, mode_of
from reverie.agent.loading import saved_config
from reverie.algos.base import AlgorithmConfig
from reverie.core.checks import check_at_least
from reverie.core.errors import DataError, EnvError, RunError, warn
from reverie.core.importing import trusting
from reverie.core.machine import choose_device
from reverie.core.randomness import derived_seeds
from reverie.core.signature import differences, signature
from reverie.core.types import Window
from reverie.core.words import Say
from reverie.datasets.dataset import DatasetConfig, Recorded, dataset_config, open_recorded, shown
from reverie.estimating import Estimator, PolicyEstimate, Watch, config_for, write_estimate
from reverie.experiment import ExperimentConfig
from reverie.folder import RunFolder, writing
from reverie.offline import NO_ENV, looked_at
from reverie.replay.dataset import Dataset
from reverie.run.checkpoint import Checkpoints
from reverie.run.verify import step_of
from reverie.saved import check_origin, read_saved


@dataclass(frozen=True, kw_only=True)
class EstimateReport:
    """An estimate, and the file that holds it."""

    estimate: PolicyEstimate
    """Estimated return of the policy, and returns of the recorded episodes."""
    files: dict[str, Path]
    """Written files by name: "estimate", or empty if it could not be written."""
    unwritten: str = ""
    """Why the file could not be written; "" if it was."""


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
    trust: bool = False,
    say: Say = warn,
    watch: Watch | None = None,
) -> EstimateReport:
    """Estimate the return of a run's agent by fitted Q evaluation (FQE), and write ``<run>/estimate.json``.

    Nothing is played and no environment is needed. World models see the recorded episodes in order.

    Args:
        run: the run folder.
        data: recorded data to estimate from: a path, minari:NAME, or settings with further options of reading.
            None: the data that the run was trained on.
        updates: gradient updates of FQE, at least 1.
        actions: the policy evaluated takes its most likely action ("mode"), or draws one ("sample").
        draws: actions drawn for each row, at least 1, with "sample"; their values are averaged.
        discount: gamma. None: the learner's, or 0.99 if it has none.
        checkpoint: name of a folder in ``checkpoints/``, "best", or a path. None: the newest that is whole.
        algo: the config the run was trained with, if it held objects of your own.
        device: where to compute: "cpu", "cuda", "cuda:1", or "auto" for a GPU if there is one.
        seed: of networks and batches, >= 0. None: follows from the run's seed.
        trust: import modules that the run names and no installed package has, such as one in the current folder.
        say: called with a sentence now and then. Default: a line on stderr.
        watch: called after each update as ``watch(made, updates)``. If it returns False, the updates end and the
            estimate is that after those made.

    Returns:
        The estimate with its 95 % interval, and the file.

    Raises:
        RunError: there is no such run or checkpoint, it is damaged, or no data are known.
        DataError: the data cannot be read, or do not fit the agent.
        UntrustedError: the run names a module that is not installed, and it is neither imported nor trusted.
        ConfigError: a number or ``actions`` is out of range, or the device does not exist here.
    """
    check_at_least("draws", draws, 1)
    check_at_least("seed", 0 if seed is None else seed, 0)
    mode = mode_of(actions)
    folder = RunFolder.at(run)
    given = [name for name, value in {"algo": algo, "data": data}.items() if value is not None]
    with trusting(trust):
        check_origin(read_saved(folder.path), folder.path, *given)
    trained = saved_config(folder.path, NO_ENV, algo)
    config = with_data(trained, data, folder.path)
    checkpoints = Checkpoints(folder.checkpoints, say=say)
    path = checkpoints.chosen(checkpoint)
    seed = derived_seeds(config.seed)["test"] if seed is None else seed
    with contextlib.closing(opened(config, named="env" not in read_saved(folder.path).custom)) as recorded:
        check_fit(recorded, folder)
        specs = recorded.obs_spec, recorded.action_spec
        learner = config.algo.build(*specs, choose_device(device), config.seed)
        checkpoints.load(path, {"algo": learner})
        step = step_of(path)  # a run that goes on deletes its old checkpoints
        settings = config_for(learner).merge({} if discount is None else {"discount": discount})
        dataset = everything(config, recorded, settings.frames, seed)
        for remark in recorded.remarks():
            say(f"{config.data.path}: {remark}")
    estimator = Estimator(learner, dataset, *specs, settings, seed=seed, clipped=recorded.clipped)
    draws = 1 if mode == "eval" else draws
    found = estimator.estimate(updates, mode=mode, draws=draws, env_steps=trained.explored(step), watch=watch)
    return written(folder, found, path, step, config.data.path, say)


def written(
    folder: RunFolder, found: PolicyEstimate, checkpoint: Path, step: int, data: str, say: Say
) -> EstimateReport:
    """Write estimate.json. If it cannot be written, report that and keep the numbers."""
    try:
        with writing(folder.path):
            write_estimate(folder, found, step, checkpoint=checkpoint.name, data=data)
    except RunError as error:
        say(str(error))
        return EstimateReport(estimate=found, files={}, unwritten=str(error))
    return EstimateReport(estimate=found, files={"estimate": folder.estimate})


def with_data(config: ExperimentConfig, data: DatasetConfig | Path | str | None, run: Path) -> ExperimentConfig:
    """Return ``config`` with the data to estimate from, and with rewards as they were recorded.

    Raises:
        RunError: no data are given, and the run had none.
    """
    if data is not None:
        config = config.merge({"data": dataset_config(data, config.data.storage)})
    if not config.data.path:
        raise RunError(f"{run} was not trained on recorded data. Pass the dataset to estimate from: --data PATH.")
    return config.merge({"env.clip_reward": "none"})


def opened(config: ExperimentConfig, *, named: bool) -> Recorded:
    """Open the data. Undeclared action bounds are those of the run's environment, if that can be made by its id.

    ``named``: whether the id names it. A Python object cannot be made again: what is registered under the id may be
    another environment, with other bounds. Then the bounds are those of the recorded actions, which a remark says.
    """
    space = None
    if named and config.env.id != NO_ENV:
        with contextlib.suppress(EnvError):
            space, _ = looked_at(config, None)
    return open_recorded(config.data, config.env, space)


def check_fit(recorded: Recorded, folder: RunFolder) -> None:
    """Check that observations and actions of the data are those of the run's agent.

    Raises:
        DataError: they are not; the message names each difference.
    """
    if not folder.spec.is_file():
        return
    saved = json.loads(folder.spec.read_text(encoding="utf-8"))
    now = signature(recorded.obs_spec, recorded.action_spec)
    found = differences(saved, now, ("the agent", "the data"))
    if found:
        raise DataError(
            f"{recorded.where} does not fit the agent in {folder.path}: {'; '.join(found)}. Use data of the "
            "environment that the agent was trained in."
        )


def everything(config: ExperimentConfig, recorded: Recorded, frames: int, seed: int) -> Dataset:
    """Read all rows, for windows with stacks of ``frames``; on a terminal with a progress bar."""
    window = Window(batch=1, length=2, context=frames - 1, context_crosses=frames > 1)
    with shown(f"reading {recorded.reader.path.name}", recorded.rows()) as counted:
        return config.data.build(recorded, window=window, seed=seed, parts=counted(recorded.parts()))
