"""The return of a run's agent, estimated from a dataset, and the file with the estimate."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reverie.agent.loading import check_code, read_config
from reverie.agent.off_policy_estimator import OffPolicyEstimator, ProgressFn, fqe_config_for
from reverie.agent.player import policy_mode
from reverie.agent.return_estimate import METHODS, Method, ReturnEstimate
from reverie.algos.settings import AlgorithmConfig
from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError, EnvError, RunError
from reverie.core.files import disk_errors_as_run_error
from reverie.core.hardware import choose_device
from reverie.core.imports import trust_modules
from reverie.core.logger import logger
from reverie.core.seeding import derived_seeds
from reverie.core.types import Window
from reverie.datasets.config import dataset_config
from reverie.datasets.data_path import DataLike
from reverie.datasets.dataset import build_dataset, open_recorded
from reverie.datasets.options import PROPENSITY
from reverie.datasets.reader import check_rewards, read_progress
from reverie.experiment.config import NO_ENV
from reverie.experiment.environments import probe_env
from reverie.experiment.offline import check_dataset_fits
from reverie.run.checkpoint import Checkpoints
from reverie.run.folder import RunFolder, check_locations, read_saved_config, read_spec, write_result
from reverie.run.manifest import checkpoint_step


@dataclass(frozen=True, kw_only=True)
class EstimateReport:
    """An estimate, and its file."""

    estimate: ReturnEstimate
    files: dict[str, Path]
    """Written files by name: "estimate", or empty if it could not be written."""


def estimate_return(
    run: Path | str, data: DataLike | None = None, *,
    method: Method = "fqe", updates: int = 20_000, deterministic: bool = True, num_action_samples: int = 10,
    discount: float | None = None, fqe: Mapping[str, Any] | None = None, checkpoint: Path | str | None = None,
    algo: AlgorithmConfig | None = None, device: str = "auto", seed: int | None = None, trust_code: bool = False,
    progress: ProgressFn | None = None,
) -> EstimateReport:  # fmt: skip
    """Estimate the return of a run's agent from a dataset, and write ``<run>/estimate.json``.

    No environment is needed. World models observe the recorded episodes in order.

    Args:
        run: the run folder.
        data: dataset to use: a path, minari:NAME, data in memory, or a DatasetConfig. None: the dataset that the run
            was trained on.
        method: "fqe", fitted Q evaluation; "wis", per-decision weighted importance sampling; or "dr", the weighted
            doubly robust estimator, which combines both. The last two need discrete actions and a propensity column,
            the behavior policy's probability of each recorded action.
        updates: gradient updates of FQE, at least 1.
        deterministic: evaluate the policy's most likely actions. False: sampled actions.
        num_action_samples: number of actions sampled per row, at least 1; their values are averaged.
        discount: gamma. None: the learner's discount, or 0.99 if it has none.
        fqe: other settings of :class:`~reverie.algos.fqe.FQEConfig`, such as ``{"lr": 1e-4}``.
        checkpoint: name of a folder in ``checkpoints/``, "best", or a path. None: the newest intact checkpoint.
        algo: the config with which the run was trained, if it contained Python objects.
        device: where to compute: "cpu", "cuda", "cuda:1", or "auto" for a GPU if there is one.
        seed: of networks and batches, >= 0. None: derived from the run's seed.
        trust_code: import modules that the run names and that belong to no installed package, such as a module in this
            folder.
        progress: called after each update as ``progress(num_done, updates)``; False stops the updates.

    Raises:
        RunError: the run or checkpoint does not exist or is damaged, or no dataset is known.
        DataError: the data cannot be read, or do not match the agent.
        UntrustedError: the run names a module that belongs to no installed package and that you have not named
            yourself.
        ConfigError: a number, ``method`` or a setting in ``fqe`` is out of range, the device does not exist, or the
            method does not support the dataset.
    """
    AtLeast(0).check("seed", seed)
    if method not in METHODS:
        raise ConfigError(f"method = {method!r}: expected one of {', '.join(METHODS)}.")
    mode = policy_mode(deterministic)
    folder = RunFolder.from_path(run)
    saved, overrides = read_saved_config(folder.path), {"algo": algo, "data": data}
    with trust_modules(trust_code):
        check_code(saved, folder.path, *(name for name, value in overrides.items() if value is not None))
        check_locations({"data": saved.experiment.get("data") if data is None else None}, folder.config)
    run_config = read_config(folder.path, NO_ENV, algo)
    data_config = run_config.data if data is None else dataset_config(data, run_config.data.storage)
    if not data_config.path:
        raise RunError(f"{folder.path} was not trained on a dataset. Pass the dataset to use: --data PATH.")
    config = run_config.merge({"data": data_config, "env.clip_reward": "none"})
    checkpoints = Checkpoints(folder.checkpoints)
    path = checkpoints.select(checkpoint)
    seed = derived_seeds(config.seed)["test"] if seed is None else seed
    # The environment provides what the data do not declare; an environment passed from Python cannot be made again.
    action_space = obs_space = None
    if "env" not in saved.custom and config.env.id != NO_ENV:
        with contextlib.suppress(EnvError):
            obs_space, action_space, _ = probe_env(config, None)
    with contextlib.closing(open_recorded(config.data, config.env, action_space, obs_space)) as recorded:
        if (spec := read_spec(folder)) is not None:
            check_dataset_fits(recorded, spec, NO_ENV, config.algo)
        check_rewards(recorded.about, recorded.reader.path, "an estimate")
        specs = recorded.obs_spec, recorded.action_spec
        learner = config.algo.build(*specs, choose_device(device), config.seed)
        checkpoints.load(path, {"algo": learner})
        step = checkpoint_step(path)  # a run that continues deletes its old checkpoints
        settings = fqe_config_for(learner).merge(fqe or {}, "fqe")
        settings = settings.merge({} if discount is None else {"discount": discount})
        window = Window(batch=1, length=2, context=settings.frame_stack - 1, context_crosses=settings.frame_stack > 1)
        with read_progress(f"reading {recorded.reader.path.name}", recorded.rows()) as track_progress:
            extra_columns: dict[str, list[np.ndarray]] = {PROPENSITY: []}
            parts = track_progress(recorded.parts(extra_columns))
            dataset = build_dataset(config.data, recorded, window=window, seed=seed, parts=parts)
        for remark in recorded.remarks():
            logger.warning(f"{config.data.label}: {remark}")
    estimator = OffPolicyEstimator(
        learner, dataset, *specs, settings, seed=seed, reward_clipping=recorded.clipped,
        propensity=np.concatenate(extra_columns[PROPENSITY]) if extra_columns[PROPENSITY] else None,
    )  # fmt: skip
    num_action_samples = 1 if deterministic else num_action_samples
    result = estimator.estimate(
        updates,
        method=method,
        mode=mode,
        num_action_samples=num_action_samples,
        env_steps=run_config.exploration_step(step),
        progress=progress,
    )
    content, files = {"step": step, **result.to_dict(), "checkpoint": path.name, "data": config.data.label}, {}
    try:
        with disk_errors_as_run_error(folder.path):
            write_result(folder.estimate, content)
            files["estimate"] = folder.estimate
    except RunError as error:
        logger.warning(str(error))
    return EstimateReport(estimate=result, files=files)
