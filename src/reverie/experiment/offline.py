"""The dataset of a run: open it, compare it with the environments, and read it; and the held-out dataset."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec

from reverie.algos.base import Algorithm
from reverie.algos.dreamer import Dreamer, DreamerConfig
from reverie.algos.returns_to_go import RETURN_TO_GO_COLUMN, ReturnToGoAnnotator
from reverie.core.errors import ConfigError, DataError
from reverie.core.protocols import Env
from reverie.core.seeding import derived_seeds, seeded_rng
from reverie.core.specs import EXTRAS, ObsSpec, diff_specs, spec_to_dict
from reverie.core.types import Window
from reverie.datasets.dataset import RecordedEpisodes, open_recorded, read_progress
from reverie.datasets.dataset_env import check_same_meaning, missing_kwargs_and_wrappers
from reverie.datasets.reader import check_rewards
from reverie.experiment.config import NO_ENV, ExperimentConfig
from reverie.experiment.environments import Environments, ProbedEnv
from reverie.objectives.returns import NextRow, returns_to_go
from reverie.replay.offline import OfflineReplay

NUM_HELDOUT_BATCHES = 4
"""Number of batches of held-out rows."""
WITHOUT_REWARDS = "there are no rewards: the world model predicts 0, and the actor learns nothing"


class OfflineRows(NamedTuple):
    """The loaded dataset rows of a run; empty if there are none."""

    dataset: OfflineReplay | None = None
    estimator: Any = None
    """An ``OffPolicyEstimator`` of ``reverie.agent`` if there is no evaluation environment; else None."""
    spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]] | None = None
    """Spaces of the recorded observations and actions; None if there is an environment, or the dataset does not declare
    them."""
    remarks: tuple[str, ...] = ()
    """Assumptions and omissions while reading them."""
    longest_episode: int = 0
    """Steps of the longest episode."""


def open_run_dataset(
    config: ExperimentConfig, probed: ProbedEnv, environments: Environments, undo: contextlib.ExitStack
) -> RecordedEpisodes:
    """Open the dataset of a run, and check that it matches the environments; ``undo`` closes it after an error."""
    recorded = open_recorded(config.data, config.env, probed.action, probed.observation)
    undo.callback(recorded.close)
    if config.algo.needs_rewards(collected=not config.offline):
        check_rewards(recorded.about, recorded.reader.path, config.name)
    elif isinstance(config.algo, DreamerConfig) and not recorded.about.has_rewards:
        recorded.reader.add_remark(WITHOUT_REWARDS)
    training, evaluation, _ = environments
    if training is not None:
        check_same_task(recorded, config, probed.spec)
    if (env := training or evaluation) is not None:
        env_id = config.eval_env_config.id if training is None else config.env.id
        check_dataset_fits(recorded, spec_to_dict(env.obs_spec, env.action_spec), env_id)
    return recorded


def read_offline_rows(
    config: ExperimentConfig, recorded: RecordedEpisodes, algo: Algorithm, window: Window, seed: int,
    scratch: Path | None, estimates: Callable[..., Any] | None,
) -> OfflineRows:  # fmt: skip
    """Read all recorded rows, and close the files. See ``build`` for ``estimates``."""
    dataset, rewards = load_dataset(config, recorded, algo, window, seed, scratch)
    if config.offline_fraction < 1:
        algo.set_num_offline(window.batch)
    estimator, has_env = None, config.env.id != NO_ENV
    if not has_env and config.data.estimate_updates and estimates is not None and recorded.about.has_rewards:
        specs, eval_seed = (recorded.obs_spec, recorded.action_spec), derived_seeds(config.seed)["evaluation"]
        estimator = estimates(algo, dataset, *specs, seed=eval_seed, rewards=rewards, reward_clipping=recorded.clipped)
    recorded.close()
    starts = np.flatnonzero(dataset.column("is_first"))
    longest = int(np.diff(starts, append=dataset.count).max(initial=1)) - 1
    spaces, remarks = None if has_env else recorded.spaces, tuple(recorded.remarks())
    return OfflineRows(dataset, estimator, spaces, remarks, longest)


def load_dataset(
    config: ExperimentConfig, recorded: RecordedEpisodes, algo: Algorithm, window: Window, seed: int,
    scratch: Path | None,
) -> tuple[OfflineReplay, np.ndarray | None]:  # fmt: skip
    """Read all recorded rows, with a progress bar on a terminal.

    The array contains the true rewards, if clipped here.
    """
    unclipped = config.env.id == NO_ENV and recorded.clip != "none"
    columns: dict[str, list[np.ndarray]] = {"reward": []} if unclipped else {}
    with read_progress(f"reading {recorded.reader.path.name}", recorded.rows()) as track_progress:
        dataset = config.data.build(
            recorded, window=window, seed=seed, batch_sampler=config.replay, extra_spec=algo.extra_spec,
            scratch=scratch, parts=track_progress(recorded.parts(columns)),
        )  # fmt: skip
    dataset.has_rewards = recorded.about.has_rewards
    if isinstance(annotator := algo.annotator, ReturnToGoAnnotator):
        write_returns(dataset, annotator)
    return dataset, np.concatenate(columns["reward"]) if unclipped else None


def write_returns(dataset: OfflineReplay, annotator: ReturnToGoAnnotator, block: int = 1 << 16) -> None:
    """Store the return-to-go of each row as a column, with the settings of ``annotator``.

    Backward in blocks of ``block`` rows.
    """
    reward, first = dataset.column("reward"), dataset.column("is_first")
    last = dataset.column("is_last")
    terminal = last if annotator.ends_at_limits else dataset.column("is_terminal")
    next_row = NextRow()
    for stop in range(dataset.count, 0, -block):
        rows = slice(max(0, stop - block), stop)
        ends = {"first": first[rows], "last": last[rows], "terminal": terminal[rows]}
        returns = returns_to_go(reward=reward[rows], discount=annotator.discount, next_row=next_row, **ends)
        dataset.write_column(EXTRAS + RETURN_TO_GO_COLUMN, rows.start, returns)
        next_row = NextRow(bool(first[rows.start]), float(returns[0]), float(reward[rows.start]))


def check_same_task(recorded: RecordedEpisodes, config: ExperimentConfig, spec: EnvSpec | None) -> None:
    """Check that the dataset, as far as it declares, was recorded in the same task as the run's environment.

    Arguments and wrappers that the environment's ``spec`` lacks become a remark, since training on both can be
    intended, for example on a simulator and a robot.
    """
    check_same_meaning(recorded.about, config.env)
    if missing := missing_kwargs_and_wrappers(recorded.about, spec):
        recorded.reader.add_remark(
            f"the dataset was recorded in {recorded.about.env} with {', '.join(missing)}, but the environment of this "
            "run lacks it: the run trains on both as if they were the same task"
        )


def check_dataset_fits(recorded: RecordedEpisodes, expected: Mapping[str, Any], env: str) -> None:
    """Raise DataError unless the dataset has the ``expected`` observations and actions of the environment or agent.

    ``env``: the environment's id, for the message; ``NO_ENV`` for an agent without one.
    """
    name, whose = ("the agent", "the agent") if env == NO_ENV else (env, f"the environment {env}")
    if problems := diff_specs(spec_to_dict(recorded.obs_spec, recorded.action_spec), expected, ("the data", name)):
        advice = (
            "Use a dataset of the environment in which the agent was trained."
            if env == NO_ENV
            else stacks_in(recorded.obs_spec, expected["observation"])
            or "Use the environment of the dataset with the same options (env.include_keys and env.exclude_keys "
            "select observations), or another dataset."
        )
        raise DataError(f"{recorded.label} does not fit {whose}: {'; '.join(problems)}. {advice}")


def stacks_in(spec: ObsSpec, env_obs: Mapping[str, Any]) -> str:
    """Return advice for a dataset whose images are stacks of the environment's images; "" for other datasets."""
    for key, part in spec.items():
        shape = tuple(env_obs.get(key, {}).get("shape", ()))
        frames, remainder = divmod(part.shape[-1], shape[-1]) if part.kind == "image" and len(shape) == 3 else (1, 0)
        if frames > 1 and not remainder and part.shape[:2] == shape[:2]:
            return (
                f"Its images are stacks of {frames} frames: stack them in the environment, not in the learner: "
                f"--env.frame-stack {frames} --algo.frame-stack 1."
            )
    return ""


def make_heldout_metrics(
    config: ExperimentConfig, algo: Algorithm, owner: Env | RecordedEpisodes, probed: ProbedEnv, scratch: Path | None
) -> Callable[[], dict[str, float]]:
    """Return a function that measures the world model's losses on ``config.heldout_data``.

    It always uses the same windows and random draws. ``owner`` has the observations and actions of the run. ``probed``
    has the spaces of its environment, for datasets that declare none.
    """
    if not isinstance(algo, Dreamer):
        raise ConfigError(
            f"heldout_data = '{config.heldout_data}': it is for Dreamers, but {config.name} is not a Dreamer. Remove "
            "this option."
        )
    data, seed = config.data.merge({"path": config.heldout_data}), derived_seeds(config.seed)["evaluation"]
    with contextlib.closing(open_recorded(data, config.env, probed.action, probed.observation)) as recorded:
        if not isinstance(owner, RecordedEpisodes) or owner.about.has_rewards:
            check_rewards(recorded.about, recorded.reader.path, "heldout_data")
        check_dataset_fits(recorded, spec_to_dict(owner.obs_spec, owner.action_spec), config.env.id)
        window = replace(algo.window, carries=False)
        dataset = data.build(recorded, window=window, seed=seed, scratch=scratch)
    batches = [dataset.sample() for _ in range(NUM_HELDOUT_BATCHES)]

    def measure() -> dict[str, float]:
        with seeded_rng(seed):
            losses = [algo.model_losses(batch) for batch in batches]
        return {f"heldout/{k}": float(torch.stack([terms[k] for terms in losses]).mean()) for k in losses[0]}

    return measure
